//go:build servers

package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/minutehand/minutehand/libs/adapters/servertest"
)

// brokers are a topic and two queues, and what arrived there.
type brokers struct {
	f     *platform
	topic string
	// queues are the names of a standard queue and a FIFO queue.
	queues [2]string
	proxy  *servertest.Proxy
	kafka  *kgo.Client
	sqs    *sqs.Client

	mu sync.Mutex
	// got are the messages by the place and the id of the execution.
	got map[string]map[string][]message
}

type message struct {
	Attempt, Token string
	Body           string
}

// brokers makes the places, and connections to them: that to the queues leads through a proxy.
func (f *platform) brokers() *brokers {
	f.t.Helper()
	ctx := f.t.Context()
	b := &brokers{
		f: f, topic: f.name + ".target", queues: [2]string{f.name, f.name + ".fifo"}, proxy: servertest.NewProxy(f.t, servertest.Address(f.t, "SQS")),
		got: map[string]map[string][]message{},
	}
	var err error
	b.kafka, err = kgo.NewClient(kgo.SeedBrokers(f.config.Kafka.Brokers...), kgo.ConsumeTopics(b.topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	f.must(err)
	f.t.Cleanup(b.kafka.Close)
	_, err = kadm.NewClient(b.kafka).CreateTopic(ctx, 4, 1, nil, b.topic)
	f.must(err)
	b.sqs = sqs.New(sqs.Options{
		Region: "elasticmq", BaseEndpoint: aws.String("http://" + servertest.Address(f.t, "SQS")), Credentials: credentials.NewStaticCredentialsProvider("x", "y", ""),
	})
	for i, name := range b.queues {
		in := &sqs.CreateQueueInput{QueueName: &name}
		if i == 1 {
			in.Attributes = map[string]string{"FifoQueue": "true"}
		}
		_, err := b.sqs.CreateQueue(ctx, in)
		f.must(err)
	}
	f.connect("cluster", map[string]any{"kafka": map[string]any{"brokers": f.config.Kafka.Brokers}})
	f.connect("account", account(b.proxy.Address()))
	return b
}

func account(address string) map[string]any {
	return map[string]any{"sqs": map[string]any{"region": "elasticmq", "endpoint": "http://" + address, "access_key_id": "x", "secret_access_key": "y"}}
}

func (f *platform) connect(name string, body map[string]any) {
	f.t.Helper()
	a, err := f.ask(f.t.Context(), 0, http.MethodPut, "/connections/"+name, body)
	f.must(err)
	if a.status != http.StatusCreated {
		f.t.Fatalf("connection %s was answered %d: %s", name, a.status, a.body)
	}
}

// to returns a job that sends a message at an instant.
func (f *platform) to(target map[string]any, n int, at time.Time) map[string]any {
	j := f.oneShot(at, "")
	target["timeout"], target["body"] = "20s", map[string]any{"n": n}
	j["target"] = target
	j["retry_policy"] = map[string]any{"backoff": "fixed", "base_delay": "2s", "max_attempts": 40, "jitter": 0}
	return j
}

// read notes what arrives until ctx ends.
func (b *brokers) read(ctx context.Context, wg *sync.WaitGroup) {
	wg.Go(func() {
		for ctx.Err() == nil {
			b.kafka.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
				headers := map[string]string{}
				for _, h := range r.Headers {
					headers[h.Key] = string(h.Value)
				}
				b.note(b.topic, headers, string(r.Value))
			})
		}
	})
	for _, name := range b.queues {
		wg.Go(func() {
			q, err := b.sqs.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: &name})
			if err != nil {
				b.f.t.Error(err)
				return
			}
			for ctx.Err() == nil {
				out, err := b.sqs.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: q.QueueUrl, MaxNumberOfMessages: 10, WaitTimeSeconds: 1, MessageAttributeNames: []string{"All"}})
				for i := 0; err == nil && i < len(out.Messages); i++ {
					m, headers := &out.Messages[i], map[string]string{}
					for name := range m.MessageAttributes {
						headers[name] = aws.ToString(m.MessageAttributes[name].StringValue)
					}
					b.note(name, headers, aws.ToString(m.Body))
					_, err = b.sqs.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: q.QueueUrl, ReceiptHandle: m.ReceiptHandle})
				}
			}
		})
	}
}

func (b *brokers) note(place string, headers map[string]string, body string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.got[place] == nil {
		b.got[place] = map[string][]message{}
	}
	id := headers["Minutehand-Execution-Id"]
	b.got[place][id] = append(b.got[place][id], message{headers["Minutehand-Attempt"], headers["Minutehand-Fencing-Token"], body})
}

// arrived returns how many executions a place knows.
func (b *brokers) arrived(place string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.got[place])
}

// execution is an execution as the API shows it.
type execution struct {
	ID       string `json:"execution_id"`
	State    string `json:"state"`
	Attempts []struct {
		Error    string `json:"error"`
		Response string `json:"response_body"`
	} `json:"attempts"`
}

// of returns the one execution of a job; nothing before it is on record.
func (f *platform) executionOf(jobID string) (x execution) {
	f.t.Helper()
	a, err := f.send(f.t.Context(), 1, http.MethodGet, "/jobs/"+jobID+"/executions", nil)
	f.must(err)
	var page struct {
		Items []execution `json:"items"`
	}
	f.must(json.Unmarshal(a.body, &page))
	if len(page.Items) > 0 {
		a, err = f.send(f.t.Context(), 1, http.MethodGet, "/executions/"+page.Items[0].ID, nil)
		f.must(err)
		f.must(json.Unmarshal(a.body, &x))
	}
	return x
}

// Executors are killed while they send, and then the brokers are away.
func TestMessagesReachTheirBrokersWhateverIsKilled(t *testing.T) {
	each, lasts, outage := sized(150, 3000), sized(15*time.Second, 2*time.Minute), sized(8*time.Second, 30*time.Second)
	f := newInstallation(t).fleet()
	b := f.brokers()
	// Another account of the same tenant hangs meanwhile, with more jobs than it may have calls.
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // the system accepts, and nobody answers
	f.must(err)
	defer func() { _ = l.Close() }()
	f.connect("hangs", account(l.Addr().String()))
	places := []struct {
		name   string
		target func() map[string]any
	}{
		{b.topic, func() map[string]any {
			return map[string]any{"kind": "kafka", "connection": "cluster", "topic": b.topic}
		}},
		{b.queues[0], func() map[string]any {
			return map[string]any{"kind": "sqs", "connection": "account", "queue": b.queues[0]}
		}},
		{b.queues[1], func() map[string]any {
			return map[string]any{"kind": "sqs", "connection": "account", "queue": b.queues[1]}
		}},
	}
	from := time.Now().Add(8 * time.Second)
	var jobs []map[string]any
	for n := range each {
		at := from.Add(time.Duration(n) * lasts / time.Duration(each))
		for _, p := range places {
			jobs = append(jobs, f.to(p.target(), n, at))
		}
	}
	for n := range 300 {
		hung := f.to(map[string]any{"kind": "sqs", "connection": "hangs", "queue": "any"}, n, from)
		hung["retry_policy"] = map[string]any{"max_attempts": 1}
		jobs = append(jobs, hung)
	}
	ids := f.register(jobs)
	ctx, cancel := context.WithCancel(t.Context())
	var reading sync.WaitGroup
	defer reading.Wait()
	defer cancel()
	b.read(ctx, &reading)

	eventually(t, "messages are sent", time.Minute, func() bool { return b.arrived(b.topic) > each/10 && b.arrived(b.queues[1]) > each/10 })
	b.proxy.Off() // what is due meanwhile fails, and is sent again
	victim := f.Member("executor", 0)
	victim.Signal(syscall.SIGKILL)
	<-victim.Ended
	time.Sleep(outage / 2)
	f.restart("executor", 0)
	local(t, "kill", "kafka") // which is the services' own log, too
	time.Sleep(outage / 2)
	local(t, "up", "kafka")
	b.proxy.On()
	for _, p := range places {
		eventually(t, "everything has arrived at "+p.name, 3*time.Minute, func() bool { return b.arrived(p.name) == each })
	}
	took := time.Since(from)
	again := map[string]int{}
	var sample []execution
	for i, id := range ids[:3*each] {
		p := places[i%3]
		var x execution
		eventually(t, "it is on record that a message was sent", time.Minute, func() bool {
			x = f.executionOf(id)
			return x.State == "succeeded"
		})
		last := x.Attempts[len(x.Attempts)-1]
		if !strings.Contains(last.Response, `"offset":`) && !strings.Contains(last.Response, `"message_id":`) {
			t.Errorf("%s has the receipt %s", x.ID, last.Response)
		}
		if len(x.Attempts) > 1 {
			sample = append(sample, x)
		}
		b.mu.Lock()
		got := b.got[p.name][x.ID]
		b.mu.Unlock()
		if want := fmt.Sprintf(`{"n":%d}`, i/3); len(got) == 0 || got[0].Body != want {
			t.Errorf("%s sent %v, want %s", x.ID, got, want)
		}
		again[p.name] += len(got) - 1
	}
	if again[b.queues[1]] != 0 {
		t.Errorf("the FIFO queue delivered %d messages twice, under one deduplication id", again[b.queues[1]])
	}
	if len(sample) == 0 {
		t.Error("nothing was sent again: the outage has shown nothing")
	} else {
		t.Logf("an attempt failed because %s", sample[0].Attempts[0].Error)
	}
	t.Logf("%d messages to each place in %.0f s, %d executions with several attempts, messages that came again: %v", each, took.Seconds(), len(sample), again)
}

func TestWhatABrokerAnswersDecidesWhatBecomesOfAnExecution(t *testing.T) {
	f := newInstallation(t).fleet()
	b := f.brokers()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // the system accepts, and nobody answers
	f.must(err)
	defer func() { _ = l.Close() }()
	f.connect("hangs", account(l.Addr().String()))
	now := time.Now()
	later := b.topic + "-later"
	ids := f.register([]map[string]any{
		f.to(map[string]any{"kind": "sqs", "connection": "account", "queue": "nobody-made-it"}, 0, now),
		f.to(map[string]any{"kind": "kafka", "connection": "cluster", "topic": later}, 1, now),
		f.to(map[string]any{"kind": "sqs", "connection": "hangs", "queue": "any"}, 2, now),
	})
	var x execution
	eventually(t, "a queue that is not there is a failure for good", time.Minute, func() bool {
		x = f.executionOf(ids[0])
		return x.State == "dead"
	})
	if len(x.Attempts) != 1 || !strings.Contains(x.Attempts[0].Error, "there is no such queue") {
		t.Errorf("%+v", x)
	}
	eventually(t, "a topic that is not there is tried again", time.Minute, func() bool {
		x = f.executionOf(ids[1])
		return len(x.Attempts) > 0
	})
	if !strings.Contains(x.Attempts[0].Error, "there is no such topic") {
		t.Errorf("%+v", x)
	}
	_, err = kadm.NewClient(b.kafka).CreateTopic(t.Context(), 1, 1, nil, later)
	f.must(err)
	eventually(t, "the topic has the message once it is made", time.Minute, func() bool { return f.executionOf(ids[1]).State == "succeeded" })

	hung := strings.Replace(ids[2], "job_", "exe_", 1) + fmt.Sprintf("-s%013d", now.UTC().Truncate(time.Millisecond).UnixMilli())
	a, err := f.ask(t.Context(), 0, http.MethodPost, "/executions/"+hung+"/cancel", nil)
	f.must(err)
	if a.status != http.StatusAccepted {
		t.Fatalf("the cancel was answered %d: %s", a.status, a.body)
	}
	asked := time.Now()
	eventually(t, "what hangs is cancelled", time.Minute, func() bool { return f.executionOf(ids[2]).State == "cancelled" })
	t.Logf("cancelled %.1f s after the request", time.Since(asked).Seconds())
}
