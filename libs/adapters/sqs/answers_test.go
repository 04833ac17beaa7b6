package sqs

import (
	"context"
	"crypto/md5" //nolint:gosec // as SQS has it
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/messaging"
)

// sum returns the checksum of a body that SQS answers with.
func sum(body string) string {
	h := md5.Sum([]byte(body)) //nolint:gosec // as SQS has it
	return hex.EncodeToString(h[:])
}

// account returns a sender to a server that answers every request but that for a queue's address as it is told.
func account(t *testing.T, answer http.HandlerFunc) messaging.Sender {
	t.Helper()
	return accountOver(t, answer, new(net.Dialer).DialContext)
}

// accountOver is account, with connections for one request each that are dialled so.
func accountOver(t *testing.T, answer http.HandlerFunc, dial messaging.Dial) messaging.Sender {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		if strings.HasSuffix(r.Header.Get("X-Amz-Target"), "GetQueueUrl") {
			fmt.Fprint(w, `{"QueueUrl":"http://queue/"}`)
			return
		}
		answer(w, r)
	}))
	server.Config.SetKeepAlivesEnabled(false)
	t.Cleanup(server.Close)
	s, err := Senders(dial)(&messaging.Connection{SQS: &messaging.SQS{Region: "x", Endpoint: server.URL, KeyID: "AKIA", SecretKey: "hunter2"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func send(t *testing.T, s messaging.Sender, body string) ([]byte, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return s.Send(ctx, &messaging.Message{Queue: "q", ID: "exe_1", Body: []byte(body)})
}

func TestWhatSQSAnswersIsARefusalForGoodOrNot(t *testing.T) {
	for code, permanent := range map[string]bool{
		"QueueDoesNotExist": true, "com.amazonaws.sqs#QueueDoesNotExist": true, "AccessDenied": true, "SignatureDoesNotMatch": true, "InvalidMessageContents": true,
		"InvalidParameterValue": true, "KMS.AccessDeniedException": true, "KmsNotFound": true,
		"ThrottlingException": false, "RequestThrottled": false, "KmsThrottled": false, "KMS.ThrottlingException": false, "KMS.DisabledException": false,
		"KmsInvalidState": false, "InternalError": false, "ServiceUnavailable": false, "SomethingNew": false, "OverLimit": false,
	} {
		s := account(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"__type":%q,"message":"AKIA hunter2"}`, code)
		})
		_, err := send(t, s, "{}")
		var r *messaging.Refusal
		if !errors.As(err, &r) || r.Permanent != permanent || strings.Contains(r.Reason, "hunter2") || strings.Contains(r.Reason, "AKIA") {
			t.Errorf("%s: %v", code, err)
		}
	}
}

func TestAnswerThatIsNoneIsAnErrorOfTheConnection(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"endless": func(w http.ResponseWriter, _ *http.Request) {
			for range 64 {
				_, _ = w.Write([]byte(strings.Repeat("x", 64<<10)))
			}
		},
		"cut off":    func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"Successful":[{"Id":"0"`) },
		"of nothing": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{}`) },
		"of another": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"Successful":[{"Id":"7","MessageId":"x","MD5OfMessageBody":"y"}]}`)
		},
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://169.254.169.254/", http.StatusFound)
		},
		"a 500 of HTML": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "<html>", http.StatusInternalServerError) },
	} {
		_, err := send(t, account(t, answer), "{}")
		var r *messaging.Refusal
		if err == nil || errors.As(err, &r) && r.Permanent {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// One message of a request is refused, and the request with it.
func TestMessagesOfARefusedRequestAreSentAlone(t *testing.T) {
	var mu sync.Mutex
	alone := 0
	s := account(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.Header.Get("X-Amz-Target"), "SendMessageBatch") {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"__type":"BatchRequestTooLong"}`)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		alone++
		fmt.Fprint(w, `{"MessageId":"x\u0001\"","MD5OfMessageBody":"99914b932bd37a50b983c5e7c90ae93b"}`)
	})
	receipt, err := send(t, s, "{}")
	if err != nil || alone != 1 || !json.Valid(receipt) {
		t.Errorf("%s, %v, %d alone", receipt, err, alone)
	}
}

// A request that is not under way yet ends with the first of its calls, and the others are made again.
func TestNothingIsSentOfACallThatIsOverInARequestWithOthers(t *testing.T) {
	held := make(chan struct{})
	var hold atomic.Bool
	s := accountOver(t, func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			Entries []struct{ ID, MessageBody string }
		}
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			t.Error(err)
		}
		var done []string
		for _, e := range in.Entries {
			if e.MessageBody == `"over"` {
				t.Error("it was sent")
			}
			done = append(done, fmt.Sprintf(`{"Id":%q,"MessageId":"m","MD5OfMessageBody":%q}`, e.ID, sum(e.MessageBody)))
		}
		fmt.Fprintf(w, `{"Successful":[%s]}`, strings.Join(done, ","))
	}, func(ctx context.Context, network, address string) (net.Conn, error) {
		if hold.Load() {
			<-held
		}
		return new(net.Dialer).DialContext(ctx, network, address)
	})
	if _, err := send(t, s, `"first"`); err != nil { // which learns the address of the queue
		t.Fatal(err)
	}
	hold.Store(true)
	var over, others sync.WaitGroup
	for n := range 3 * flights {
		if n%3 > 0 {
			others.Go(func() {
				if _, err := send(t, s, `"n"`); err != nil {
					t.Error(err)
				}
			})
			continue
		}
		over.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err := s.Send(ctx, &messaging.Message{Queue: "q", Body: []byte(`"over"`)}); err == nil {
				t.Error("it was sent")
			}
		})
	}
	over.Wait()
	close(held)
	others.Wait()
}
