// Package sqs sends messages to queues of SQS, or of a server that speaks its protocol.
package sqs

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/minutehand/minutehand/libs/messaging"
	"github.com/minutehand/minutehand/libs/run"
)

const (
	// flights bounds the requests to a queue that are under way, atOnce the messages of one: SQS takes ten.
	flights = 16
	atOnce  = 10
	// small is the size below which ten messages and their attributes fit in one request.
	small = 16 << 10
	// requestLimit bounds one request.
	requestLimit = 30 * time.Second
	// maxIdle bounds the connections that are kept, idleFor for how long.
	maxIdle = 32
	idleFor = time.Minute
	// maxQueues bounds the queues whose addresses are known.
	maxQueues = 1000
)

// sender sends messages to the queues of an account. Messages that come at the same time share requests, which are what SQS charges for.
type sender struct {
	client    *sqs.Client
	transport *http.Transport
	account   *string
	batches   run.Gatherer[string, *asked, result]

	closed atomic.Bool

	mu sync.Mutex
	// urls are the addresses of queues by their names.
	urls map[string]string
}

// limited bounds the bodies of answers: the tenant chooses who answers.
type limited struct{ *http.Transport }

// maxAnswer is more than the answer to ten messages takes.
const maxAnswer = 256 << 10

func (l limited) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := l.Transport.RoundTrip(r)
	if err == nil {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(resp.Body, maxAnswer), resp.Body}
	}
	return resp, err
}

// asked is a message that somebody waits for.
type asked struct {
	*messaging.Message

	mu sync.Mutex
	// over says that nobody waits any more; end ends the request that the message is in.
	over bool
	end  context.CancelFunc
}

// join enters a request, which end ends. It reports false if nobody waits for the message any more.
func (a *asked) join(end context.CancelFunc) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.end = end
	return !a.over
}

// leave ends the request that the message is in, before the call returns that nobody waits for any more: what is sent later is not of it.
func (a *asked) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
	if a.end != nil {
		a.end()
	}
}

// result is what became of one message of a request.
type result struct {
	receipt []byte
	err     error
}

var _ messaging.Sender = (*sender)(nil)

// Senders returns what opens connections of tenants to accounts of theirs. Every address is reached by dial, and nothing but the
// connection's own key is used.
func Senders(dial messaging.Dial) messaging.Open {
	return func(c *messaging.Connection) (messaging.Sender, error) { return newSender(c.SQS, dial), nil }
}

func newSender(c *messaging.SQS, dial messaging.Dial) *sender {
	s := &sender{
		transport: &http.Transport{
			DialContext: dial, ForceAttemptHTTP2: true, MaxIdleConns: maxIdle, MaxIdleConnsPerHost: maxIdle, IdleConnTimeout: idleFor,
			TLSHandshakeTimeout: requestLimit, MaxResponseHeaderBytes: 64 << 10,
		},
		urls: map[string]string{},
	}
	o := sqs.Options{
		Region: c.Region, Credentials: credentials.NewStaticCredentialsProvider(c.KeyID, c.SecretKey, ""), Retryer: aws.NopRetryer{},
		HTTPClient: &http.Client{Transport: limited{s.transport}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}
	if c.Endpoint != "" {
		o.BaseEndpoint = aws.String(c.Endpoint)
	}
	if c.Account != "" {
		s.account = aws.String(c.Account)
	}
	s.client = sqs.New(o)
	s.batches = run.Gatherer[string, *asked, result]{Send: s.send, Flights: flights, Most: atOnce}
	return s
}

// Send implements messaging.Sender. The receipt has the member message_id, and of a FIFO queue sequence_number. Message.ID is the
// deduplication id there: SQS delivers what it has taken once, for five minutes.
func (s *sender) Send(ctx context.Context, m *messaging.Message) ([]byte, error) {
	if s.closed.Load() {
		return nil, errors.New("sqs: the connection is closed")
	}
	to, err := s.url(ctx, m.Queue)
	if err != nil {
		return nil, s.failure(m.Queue, err)
	}
	size := len(m.Body)
	for name, value := range m.Headers {
		size += len(name) + len(value)
	}
	if size > small {
		return s.sendAlone(ctx, to, m)
	}
	for {
		a := &asked{Message: m}
		r, err := s.batches.Do(ctx, to, a)
		var answered smithy.APIError
		switch {
		case err == nil && r.err == nil:
			return r.receipt, nil
		case err == nil:
			return nil, s.failure(m.Queue, r.err)
		case ctx.Err() != nil:
			a.leave()
		case errors.Is(err, context.Canceled):
			continue // another call of the request was over
		case errors.As(err, &answered):
			return s.sendAlone(ctx, to, m) // perhaps another message was meant
		}
		return nil, s.failure(m.Queue, err)
	}
}

// sendAlone sends a message in a request of its own.
func (s *sender) sendAlone(ctx context.Context, to string, m *messaging.Message) ([]byte, error) {
	in := &sqs.SendMessageInput{QueueUrl: &to, MessageBody: aws.String(string(m.Body)), MessageAttributes: attributes(m)}
	in.MessageGroupId, in.MessageDeduplicationId = order(m)
	out, err := s.client.SendMessage(ctx, in)
	if err != nil {
		return nil, s.failure(m.Queue, err)
	}
	return receipt(out.MessageId, out.SequenceNumber), nil
}

// send sends messages in one request. It ends with the first of their calls, for which nothing may be sent then; the others are asked for again.
func (s *sender) send(ctx context.Context, to string, messages []*asked) ([]result, error) {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	for _, m := range messages {
		if !m.join(cancel) {
			return nil, context.Canceled
		}
	}
	in := &sqs.SendMessageBatchInput{QueueUrl: &to}
	for i, m := range messages {
		e := types.SendMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), MessageBody: aws.String(string(m.Body)), MessageAttributes: attributes(m.Message)}
		e.MessageGroupId, e.MessageDeduplicationId = order(m.Message)
		in.Entries = append(in.Entries, e)
	}
	out, err := s.client.SendMessageBatch(ctx, in)
	if err != nil {
		return nil, err
	}
	results := make([]result, len(messages))
	for i := range results {
		results[i].err = errors.New("the answer does not name the message")
	}
	place := func(id *string) *result {
		if i, err := strconv.Atoi(aws.ToString(id)); err == nil && i >= 0 && i < len(results) {
			return &results[i]
		}
		return &result{}
	}
	for i := range out.Successful {
		*place(out.Successful[i].Id) = result{receipt: receipt(out.Successful[i].MessageId, out.Successful[i].SequenceNumber)}
	}
	for i := range out.Failed {
		f := &out.Failed[i]
		fault := smithy.FaultServer
		if f.SenderFault {
			fault = smithy.FaultClient
		}
		*place(f.Id) = result{err: &smithy.GenericAPIError{Code: aws.ToString(f.Code), Fault: fault}}
	}
	return results, nil
}

// fifo reports whether a queue keeps the order of its messages.
func fifo(queue string) bool { return strings.HasSuffix(queue, ".fifo") }

// order returns the group and the deduplication id of a message; nil unless its queue keeps the order.
func order(m *messaging.Message) (group, id *string) {
	if !fifo(m.Queue) {
		return nil, nil
	}
	return &m.Group, &m.ID
}

func attributes(m *messaging.Message) map[string]types.MessageAttributeValue {
	list := make(map[string]types.MessageAttributeValue, len(m.Headers))
	for name, value := range m.Headers {
		list[name] = types.MessageAttributeValue{DataType: aws.String("String"), StringValue: aws.String(value)}
	}
	return list
}

func receipt(id, sequence *string) []byte {
	text, err := json.Marshal(struct {
		ID       *string `json:"message_id"`
		Sequence *string `json:"sequence_number,omitempty"`
	}{id, sequence})
	if err != nil {
		return []byte("{}") // two strings are always JSON
	}
	return text
}

// url returns the address of a queue.
func (s *sender) url(ctx context.Context, queue string) (string, error) {
	s.mu.Lock()
	known := s.urls[queue]
	s.mu.Unlock()
	if known != "" {
		return known, nil
	}
	out, err := s.client.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: &queue, QueueOwnerAWSAccountId: s.account})
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.urls) >= maxQueues {
		clear(s.urls)
	}
	s.urls[queue] = aws.ToString(out.QueueUrl)
	return s.urls[queue], nil
}

// failure says what an error of SQS means. Of what SQS says only its code is repeated.
func (s *sender) failure(queue string, err error) error {
	var answered smithy.APIError
	if !errors.As(err, &answered) {
		return err
	}
	// The code may have the namespace of an older protocol.
	code := strings.TrimPrefix(answered.ErrorCode(), "AWS.SimpleQueueService.")
	r := &messaging.Refusal{Reason: "SQS answered " + strconv.Quote(code)}
	if len(code) > 100 {
		r.Reason = "SQS answered with an error"
	}
	if _, throttled := retry.DefaultThrottleErrorCodes[code]; throttled || strings.Contains(code, "Thrott") {
		return r
	}
	switch code {
	case "QueueDoesNotExist", "NonExistentQueue":
		s.mu.Lock()
		delete(s.urls, queue)
		s.mu.Unlock()
		r.Permanent, r.Reason = true, r.Reason+": there is no such queue"
	case "InvalidClientTokenId", "SignatureDoesNotMatch", "UnrecognizedClientException", "InvalidSecurity", "MissingAuthenticationToken":
		r.Permanent, r.Reason = true, r.Reason+": the connection's access key is wrong"
	case "AccessDenied", "AccessDeniedException", "KmsAccessDenied", "KMS.AccessDeniedException":
		r.Permanent, r.Reason = true, r.Reason+": the connection's access key must not send to the queue"
	case "InvalidParameterValue", "InvalidParameterCombination", "MissingParameter", "ValidationError":
		r.Permanent, r.Reason = true, r.Reason+": the queue does not take such a message, or one of this size"
	default:
		r.Permanent = answered.ErrorFault() == smithy.FaultClient && !slices.Contains(passing, code)
	}
	return r
}

// passing are errors that SQS counts as the client's and that may pass by themselves.
var passing = []string{
	"OverLimit", "QueueDeletedRecently", "RequestExpired", "RequestTimeout", "RequestTimeTooSkewed", "KmsInvalidState", "KMS.InvalidStateException",
	"KmsDisabled", "KMS.DisabledException",
}

// Close implements messaging.Sender.
func (s *sender) Close() {
	s.closed.Store(true)
	s.transport.CloseIdleConnections()
}
