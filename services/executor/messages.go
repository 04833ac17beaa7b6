package executor

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/messaging"
)

const (
	// maxSenders bounds the connections of tenants that are known, and so those that are open.
	maxSenders = 256
	// freshFor is how long a connection is used without its row being read again.
	freshFor = 5 * time.Second
	// readLimit bounds the reading of a row.
	readLimit = 5 * time.Second
)

// messages calls targets that are topics and queues, over the connections of their tenants.
type messages struct {
	settings messaging.Settings
	// open opens connections, by the kind of their targets.
	open  map[string]messaging.Open
	clock clock.Clock

	mu    sync.Mutex
	slots map[slotKey]*slot
	// helpers read rows and close connections.
	helpers sync.WaitGroup
}

type slotKey struct {
	tenant job.Tenant
	name   string
}

// slot is what is known of a tenant's connection.
type slot struct {
	// current is the open connection; nil if there is none, for the reason err.
	current *sender
	err     error
	// readAt is when the row was read last, usedAt when the connection was used last.
	readAt, usedAt time.Time
	// reading is closed when the row was read; nil unless somebody reads it.
	reading chan struct{}
	// users counts who waits for the connection or uses it: meanwhile nothing drives it out.
	users int
}

// sender is an open connection. It is closed when the row is another one and nobody uses it any more.
type sender struct {
	messaging.Sender
	row     messaging.Connection
	slot    *slot
	users   int
	retired bool
}

// errCrowded means that all connections that may be open are in use.
var errCrowded = errors.New("too many connections are in use")

func newMessages(settings messaging.Settings, open map[string]messaging.Open, c clock.Clock) *messages {
	return &messages{settings: settings, open: open, clock: c, slots: map[slotKey]*slot{}}
}

// call sends one message, for as long as ctx lasts, and returns how that ended.
func (m *messages) call(ctx context.Context, f *job.Fire, fence job.Fence) job.Outcome {
	t := &f.Target
	if m.open[t.Kind] == nil {
		// A job-api of a later release knows it, and so will the executors soon.
		return job.Outcome{Kind: job.OutcomeFailed, Retryable: true, Error: "this release of the executor knows no targets of kind " + strconv.Quote(t.Kind)}
	}
	s, err := m.acquire(ctx, slotKey{f.Tenant, t.Connection})
	if err == nil {
		defer m.release(s)
		if s.row.Kind() != t.Kind {
			return job.Outcome{Kind: job.OutcomeFailed, Error: fmt.Sprintf("connection %s is one of %s now, and the target is of kind %s", t.Connection, s.row.Kind(), t.Kind)}
		}
		var receipt []byte
		if receipt, err = s.Send(ctx, message(ctx, f, fence)); err == nil {
			return job.Outcome{Kind: job.OutcomeSucceeded, ResponseBody: receipt, ResponseBytes: int64(len(receipt))}
		}
	}
	var refusal *messaging.Refusal
	switch {
	case errors.As(err, &refusal):
		return job.Outcome{Kind: job.OutcomeFailed, Retryable: !refusal.Permanent, Error: refusal.Reason}
	case errors.Is(err, messaging.ErrNotFound):
		return job.Outcome{Kind: job.OutcomeFailed, Retryable: true, Error: "there is no connection " + t.Connection}
	case errors.Is(err, errCrowded):
		return job.Outcome{Kind: job.OutcomeFailed, Retryable: true, Error: "this executor has no room for another connection"}
	}
	return failure(ctx, err)
}

// acquire returns the sender of a connection, which must be released. A row that cannot be read again is used as it was.
func (m *messages) acquire(ctx context.Context, k slotKey) (*sender, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := m.slots[k]
	if at == nil {
		if len(m.slots) >= maxSenders && !m.driveOut() {
			return nil, errCrowded
		}
		at = &slot{}
		m.slots[k] = at
	}
	at.users++
	if age := m.clock.Since(at.readAt); age >= freshFor || age < 0 { // the clock may have been set back
		if at.reading == nil {
			at.reading = make(chan struct{})
			m.helpers.Go(func() { m.read(k, at) })
		}
		reading := at.reading
		m.mu.Unlock()
		var err error
		select {
		case <-reading:
		case <-ctx.Done():
			err = ctx.Err()
		}
		m.mu.Lock()
		if err != nil {
			at.users--
			return nil, err
		}
	}
	if at.current == nil {
		at.users--
		return nil, at.err
	}
	at.usedAt = m.clock.Now()
	at.current.users++
	return at.current, nil
}

func (m *messages) release(s *sender) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s.slot.users--
	s.users--
	m.closeUnused(s)
}

// closeUnused closes a sender that nobody uses or will use, and waits for nothing.
func (m *messages) closeUnused(s *sender) {
	if s.retired && s.users == 0 {
		m.helpers.Go(s.Close)
	}
}

// driveOut makes room by closing the connection that was used longest ago, if there is one that nobody uses.
func (m *messages) driveOut() bool {
	var oldest slotKey
	found := false
	for k, at := range m.slots {
		if at.users == 0 && at.reading == nil && (!found || at.usedAt.Before(m.slots[oldest].usedAt)) {
			oldest, found = k, true
		}
	}
	if found {
		m.replace(m.slots[oldest], nil)
		delete(m.slots, oldest)
	}
	return found
}

// replace puts a sender in the place of the one that a slot has.
func (m *messages) replace(at *slot, s *sender) {
	if old := at.current; old != nil {
		old.retired = true
		m.closeUnused(old)
	}
	at.current = s
}

// read reads the row of a connection, and opens the connection if the row is another one than before.
func (m *messages) read(k slotKey, at *slot) {
	ctx, cancel := context.WithTimeout(context.Background(), readLimit)
	defer cancel()
	asked := m.clock.Now()
	_, set, err := messaging.Read(ctx, m.settings, k.tenant)
	m.mu.Lock()
	defer m.mu.Unlock()
	defer func() {
		close(at.reading)
		at.reading = nil
	}()
	if err != nil {
		if at.err = err; at.current != nil {
			at.readAt = asked
		}
		return
	}
	at.readAt = asked
	row, err := set.Get(k.name)
	if err == nil && at.current != nil && reflect.DeepEqual(&at.current.row, row) {
		return
	}
	var opened messaging.Sender
	if err == nil {
		opened, err = m.opened(row)
	}
	if err != nil {
		at.err = err
		m.replace(at, nil)
		return
	}
	m.replace(at, &sender{Sender: opened, row: *row, slot: at})
}

// opened opens a connection, which waits for nobody.
func (m *messages) opened(row *messaging.Connection) (messaging.Sender, error) {
	open := m.open[row.Kind()]
	if open == nil {
		return nil, &messaging.Refusal{Reason: "this release of the executor knows no connections of kind " + row.Kind()}
	}
	s, err := open(row)
	if err != nil {
		return nil, &messaging.Refusal{Permanent: true, Reason: "the connection cannot be opened: " + err.Error()}
	}
	return s, nil
}

// close closes all connections, when nothing is sent any more.
func (m *messages) close() {
	m.mu.Lock()
	for _, at := range m.slots {
		m.replace(at, nil)
	}
	clear(m.slots)
	m.mu.Unlock()
	m.helpers.Wait()
}

// message returns what is sent for a fire. Its headers say what those of a webhook say.
func message(ctx context.Context, f *job.Fire, fence job.Fence) *messaging.Message {
	m := &messaging.Message{Queue: f.Target.Queue, Group: f.Target.Group, ID: f.ExecutionID, Body: f.Target.Body, Headers: make(map[string]string, len(f.Target.Headers)+8)}
	if m.Group == "" {
		m.Group = f.JobID // what a job sends stays in order
	}
	for name, value := range f.Target.Headers {
		m.Headers[name] = value
	}
	scheduled := f.ScheduledFor
	if f.Note != nil && !f.Note.Occurrence.IsZero() {
		scheduled = f.Note.Occurrence
	}
	for name, value := range map[string]string{
		"Minutehand-Execution-Id":  f.ExecutionID,
		"Minutehand-Job-Id":        f.JobID,
		"Minutehand-Scheduled-For": scheduled.Format("2006-01-02T15:04:05.000Z07:00"),
		"Minutehand-Attempt":       strconv.Itoa(f.Attempt),
		"Minutehand-Fencing-Token": fence.String(),
		"Traceparent":              traceparent(ctx, f),
	} {
		m.Headers[name] = value
	}
	if f.Target.KeyTemplate != "" {
		m.Headers["Idempotency-Key"] = f.Target.IdempotencyKey(&f.Entry)
	}
	return m
}
