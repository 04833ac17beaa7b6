package executor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/messaging"
)

// broker is a broker, the connections of tenants to it, and what was sent over them.
type broker struct {
	mu   sync.Mutex
	sets map[string]messaging.Set
	// reads counts what was read of the connections; err fails that, refuse what is sent.
	reads        int
	err, refuse  error
	open, opened int
	sent         []*messaging.Message
	hold         chan struct{} // until it is closed, nothing is answered
	hangs        bool          // nothing is read of the connections
}

func (b *broker) Setting(ctx context.Context, name string) ([]byte, error) {
	b.mu.Lock()
	hangs := b.hangs
	b.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.reads++; b.err != nil {
		return nil, b.err
	}
	return json.Marshal(b.sets[name])
}

func (b *broker) put(of job.Tenant, c messaging.Connection) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sets == nil {
		b.sets = map[string]messaging.Set{}
	}
	set := b.sets[messaging.SettingOf(of)]
	if err := set.Put(&c); err != nil {
		panic(err)
	}
	b.sets[messaging.SettingOf(of)] = set
}

func (b *broker) messages() *messages {
	open := func(c *messaging.Connection) (messaging.Sender, error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.open++
		b.opened++
		return &overConnection{b: b, c: c}, nil
	}
	return newMessages(b, map[string]messaging.Open{job.TargetKafka: open, job.TargetSQS: open}, clock.Clock{})
}

type overConnection struct {
	b      *broker
	c      *messaging.Connection
	closed bool
}

func (s *overConnection) Send(ctx context.Context, m *messaging.Message) ([]byte, error) {
	s.b.mu.Lock()
	hold, err := s.b.hold, s.b.refuse
	if s.closed {
		err = errors.New("it was closed while it was used")
	}
	if err == nil {
		s.b.sent = append(s.b.sent, m)
	}
	s.b.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if s.closed {
		return nil, errors.New("it was closed while it was used")
	}
	return []byte(`{"to":"` + s.c.Kind() + `"}`), err
}

func (s *overConnection) Close() {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.closed = true
	s.b.open--
}

// isOpen returns how many connections are open, and how many were opened.
func (b *broker) isOpen() (now, ever int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open, b.opened
}

func kafkaTo(brokers ...string) messaging.Connection {
	return messaging.Connection{Name: "orders", Kafka: &messaging.Kafka{Brokers: brokers}}
}

// toQueue returns a fire of a tenant whose target is a topic or a queue.
func toQueue(of job.Tenant, kind, connection string) *job.Fire {
	f := &job.Fire{Target: job.Target{Kind: kind, Connection: connection, Queue: "runs", Headers: map[string]string{"a": "b"}, Body: json.RawMessage(`{}`), Timeout: time.Minute}}
	f.Tenant, f.JobID, f.Attempt, f.ScheduledFor = of, "job_1", 2, time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	f.ExecutionID = "exe_1-s0946684800000"
	return f
}

func TestMessageSaysWhatAWebhookSays(t *testing.T) {
	b := &broker{}
	b.put(0, kafkaTo("a:1"))
	m, f := b.messages(), toQueue(0, job.TargetKafka, "orders")
	o := m.call(t.Context(), f, job.Fence{Start: 7})
	if o.Kind != job.OutcomeSucceeded || string(o.ResponseBody) != `{"to":"kafka"}` || o.ResponseBytes != int64(len(o.ResponseBody)) {
		t.Fatalf("%+v", o)
	}
	got := b.sent[0]
	for name, want := range map[string]string{
		"a": "b", "Minutehand-Execution-Id": f.ExecutionID, "Minutehand-Job-Id": "job_1", "Minutehand-Attempt": "2",
		"Minutehand-Scheduled-For": "2000-01-01T00:00:00.000Z", "Minutehand-Fencing-Token": job.Fence{Start: 7}.String(),
	} {
		if got.Headers[name] != want {
			t.Errorf("%s is %q, want %q", name, got.Headers[name], want)
		}
	}
	if got.Headers["Traceparent"] == "" || len(got.Headers) > 10-messaging.MaxAttributes+1 {
		t.Errorf("SQS takes ten, and the tenant has %d of them: %v", messaging.MaxAttributes, got.Headers)
	}
	if got.ID != f.ExecutionID || got.Queue != "runs" || got.Group != "job_1" || string(got.Body) != "{}" {
		t.Errorf("%+v", got)
	}
	f.Target.Group, f.Target.KeyTemplate = "g", "run-{run_at}"
	m.call(t.Context(), f, job.Fence{})
	if got := b.sent[1]; got.Group != "g" || !strings.HasPrefix(got.Headers["Idempotency-Key"], "run-") {
		t.Errorf("%+v", got)
	}
}

func TestAMessageThatIsNotTakenIsAnOutcomeWithTheReason(t *testing.T) {
	b := &broker{}
	b.put(0, kafkaTo("a:1"))
	m := b.messages()
	m.call(t.Context(), toQueue(0, job.TargetKafka, "orders"), job.Fence{}) // the row is read: no case is the one that waits for that
	ended, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	for name, c := range map[string]struct {
		ctx       context.Context //nolint:containedctx // a case of a table
		f         *job.Fire
		refuse    error
		kind      job.OutcomeKind
		retryable bool
		says      string
	}{
		"refused":                  {t.Context(), toQueue(0, job.TargetKafka, "orders"), &messaging.Refusal{Reason: "it is full"}, job.OutcomeFailed, true, "it is full"},
		"refused for good":         {t.Context(), toQueue(0, job.TargetKafka, "orders"), &messaging.Refusal{Permanent: true, Reason: "too large"}, job.OutcomeFailed, false, "too large"},
		"no connection":            {t.Context(), toQueue(0, job.TargetKafka, "orders"), syscall.ECONNREFUSED, job.OutcomeFailed, true, "refused the connection"},
		"no connection to the end": {ended, toQueue(0, job.TargetKafka, "orders"), syscall.ECONNREFUSED, job.OutcomeFailed, true, "refused the connection"},
		"the timeout is over":      {ended, toQueue(0, job.TargetKafka, "orders"), context.DeadlineExceeded, job.OutcomeTimedOut, true, "timeout"},
		"it was deleted":           {t.Context(), toQueue(0, job.TargetKafka, "nobody"), nil, job.OutcomeFailed, true, "no connection nobody"},
		"of another tenant":        {t.Context(), toQueue(1, job.TargetKafka, "orders"), nil, job.OutcomeFailed, true, "no connection orders"},
		"of another kind":          {t.Context(), toQueue(0, job.TargetSQS, "orders"), nil, job.OutcomeFailed, false, "kafka"},
		"of a later release":       {t.Context(), toQueue(0, "pulsar", "orders"), nil, job.OutcomeFailed, true, "pulsar"},
	} {
		b.refuse = c.refuse
		if o := m.call(c.ctx, c.f, job.Fence{}); o.Kind != c.kind || o.Retryable != c.retryable || !strings.Contains(o.Error, c.says) {
			t.Errorf("%s: %+v", name, o)
		}
	}
}

func TestConnectionIsReadOnceInAWhileAndOpenedOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := &broker{}
		b.put(0, kafkaTo("a:1"))
		m := b.messages()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if o := m.call(t.Context(), toQueue(0, job.TargetKafka, "orders"), job.Fence{}); o.Kind != job.OutcomeSucceeded {
					t.Errorf("%+v", o)
				}
			})
		}
		wg.Wait()
		if b.reads != 1 || b.opened != 1 || len(b.sent) != 100 {
			t.Errorf("%d reads, %d opened, %d sent", b.reads, b.opened, len(b.sent))
		}
		time.Sleep(freshFor)
		m.call(t.Context(), toQueue(0, job.TargetKafka, "orders"), job.Fence{})
		if b.reads != 2 || b.opened != 1 {
			t.Errorf("after a while: %d reads, %d opened", b.reads, b.opened)
		}
		m.close()
		if b.open != 0 {
			t.Errorf("%d are open", b.open)
		}
	})
}

func TestConnectionThatIsReplacedIsClosedWhenNobodyUsesIt(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := &broker{hold: make(chan struct{})}
		b.put(0, kafkaTo("a:1"))
		m := b.messages()
		var wg sync.WaitGroup
		wg.Go(func() {
			if o := m.call(t.Context(), toQueue(0, job.TargetKafka, "orders"), job.Fence{}); o.Kind != job.OutcomeSucceeded {
				t.Errorf("%+v", o)
			}
		})
		time.Sleep(freshFor)
		b.put(0, kafkaTo("b:1"))
		wg.Go(func() { m.call(t.Context(), toQueue(0, job.TargetKafka, "orders"), job.Fence{}) })
		time.Sleep(time.Second)
		if now, ever := b.isOpen(); ever != 2 || now != 2 {
			t.Errorf("%d were opened, %d are open", ever, now)
		}
		close(b.hold)
		wg.Wait()
		synctest.Wait()
		if now, _ := b.isOpen(); now != 1 {
			t.Errorf("%d are open", now)
		}
	})
}

func TestConnectionThatCannotBeReadAgainGoesOn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := &broker{}
		b.put(0, kafkaTo("a:1"))
		m := b.messages()
		m.call(t.Context(), toQueue(0, job.TargetKafka, "orders"), job.Fence{})
		b.err = errors.New("the store is away")
		time.Sleep(freshFor)
		for range 10 {
			if o := m.call(t.Context(), toQueue(0, job.TargetKafka, "orders"), job.Fence{}); o.Kind != job.OutcomeSucceeded {
				t.Errorf("%+v", o)
			}
		}
		if b.reads != 2 {
			t.Errorf("%d reads", b.reads)
		}
		if o := m.call(t.Context(), toQueue(0, job.TargetKafka, "another"), job.Fence{}); o.Kind != job.OutcomeFailed || !o.Retryable || strings.Contains(o.Error, "no connection") {
			t.Errorf("one that is not known: %+v", o)
		}
	})
}

func TestAFewConnectionsAreOpenAtATime(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := &broker{}
		for n := range 2 * maxSenders {
			c := kafkaTo("a:1")
			c.Name = fmt.Sprint("c", n)
			b.put(job.Tenant(n), c)
		}
		m := b.messages()
		for n := range 2 * maxSenders {
			if o := m.call(t.Context(), toQueue(job.Tenant(n), job.TargetKafka, fmt.Sprint("c", n)), job.Fence{}); o.Kind != job.OutcomeSucceeded {
				t.Fatalf("%+v", o)
			}
		}
		synctest.Wait()
		if now, _ := b.isOpen(); now != maxSenders {
			t.Errorf("%d are open", now)
		}
		b.hold = make(chan struct{})
		var wg sync.WaitGroup
		for n := range maxSenders {
			wg.Go(func() {
				m.call(t.Context(), toQueue(job.Tenant(n), job.TargetKafka, fmt.Sprint("c", n)), job.Fence{})
			})
		}
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if o := m.call(ctx, toQueue(maxSenders, job.TargetKafka, fmt.Sprint("c", maxSenders)), job.Fence{}); o.Kind != job.OutcomeFailed || !o.Retryable || !strings.Contains(o.Error, "no room") {
			t.Errorf("one more: %+v", o)
		}
		wg.Go(func() { // it waits for room
			if o := m.call(t.Context(), toQueue(maxSenders, job.TargetKafka, fmt.Sprint("c", maxSenders)), job.Fence{}); o.Kind != job.OutcomeSucceeded {
				t.Errorf("one more, later: %+v", o)
			}
		})
		time.Sleep(time.Second)
		close(b.hold)
		wg.Wait()
	})
}

// holdAll lets a call of each of n connections of a tenant hang.
func (b *broker) holdAll(t *testing.T, m *messages, of job.Tenant, n int, wg *sync.WaitGroup) {
	t.Helper()
	for i := range n {
		c := kafkaTo("a:1")
		c.Name = fmt.Sprint("c", i)
		b.put(of, c)
		wg.Go(func() { m.call(t.Context(), toQueue(of, job.TargetKafka, c.Name), job.Fence{}) })
	}
	time.Sleep(time.Second)
}

func TestATenantWhoseConnectionsHangLeavesRoomToOthers(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := &broker{hold: make(chan struct{})}
		m := b.messages()
		var wg sync.WaitGroup
		b.holdAll(t, m, 7, messaging.MaxConnections, &wg)
		if now, _ := b.isOpen(); now != maxOfTenant {
			t.Errorf("%d are open", now)
		}
		b.put(0, kafkaTo("a:1"))
		b.mu.Lock()
		hung := b.hold
		b.hold = nil
		b.mu.Unlock()
		if o := m.call(t.Context(), toQueue(0, job.TargetKafka, "orders"), job.Fence{}); o.Kind != job.OutcomeSucceeded {
			t.Errorf("%+v", o)
		}
		close(hung)
		wg.Wait()
	})
}

func TestStoreThatHangsHoldsUpNoMessage(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := &broker{}
		b.put(0, kafkaTo("a:1"))
		m := b.messages()
		m.call(t.Context(), toQueue(0, job.TargetKafka, "orders"), job.Fence{})
		b.mu.Lock()
		b.hangs = true
		b.mu.Unlock()
		for range 100 {
			time.Sleep(time.Second)
			began := time.Now()
			if o := m.call(t.Context(), toQueue(0, job.TargetKafka, "orders"), job.Fence{}); o.Kind != job.OutcomeSucceeded || time.Since(began) > readPatience {
				t.Fatalf("%+v after %s", o, time.Since(began))
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if o := m.call(ctx, toQueue(0, job.TargetKafka, "another"), job.Fence{}); o.Kind != job.OutcomeTimedOut {
			t.Errorf("one that is not known: %+v", o)
		}
		m.close()
	})
}

// A broker is not to see a password long after it was replaced.
func TestConnectionThatNobodyUsesIsClosed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := &broker{}
		b.put(0, kafkaTo("a:1"))
		m := b.messages()
		ctx, stop := context.WithCancel(t.Context())
		var tidying sync.WaitGroup
		tidying.Go(func() { m.tidyLoop(ctx) })
		for range 10 {
			m.call(t.Context(), toQueue(0, job.TargetKafka, "orders"), job.Fence{})
			time.Sleep(unusedFor / 2)
		}
		if now, ever := b.isOpen(); now != 1 || ever != 1 {
			t.Errorf("in use: %d are open of %d", now, ever)
		}
		time.Sleep(2 * unusedFor)
		if now, _ := b.isOpen(); now != 0 {
			t.Errorf("%d are open", now)
		}
		stop()
		tidying.Wait()
	})
}

// A call may outlast the drain of a stop.
func TestACallThatOutlastsTheExecutorFails(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := &broker{hold: make(chan struct{})}
		b.put(0, kafkaTo("a:1"))
		m := b.messages()
		var wg sync.WaitGroup
		wg.Go(func() { m.call(t.Context(), toQueue(0, job.TargetKafka, "orders"), job.Fence{}) })
		time.Sleep(time.Second)
		m.close()
		if now, _ := b.isOpen(); now != 0 {
			t.Errorf("%d are open", now)
		}
		if o := m.call(t.Context(), toQueue(0, job.TargetKafka, "orders"), job.Fence{}); o.Kind != job.OutcomeFailed || !o.Retryable {
			t.Errorf("a further one: %+v", o)
		}
		close(b.hold)
		wg.Wait()
		if now, _ := b.isOpen(); now != 0 {
			t.Errorf("%d are open: it was closed twice", now)
		}
	})
}
