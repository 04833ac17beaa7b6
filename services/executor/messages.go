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
	"github.com/minutehand/minutehand/libs/run"
)

const (
	// maxSenders bounds the connections that are known, and so those that are open; maxOfTenant those of one tenant.
	maxSenders, maxOfTenant = 256, maxSenders / 8
	// freshFor is how long a connection is used without its row being read again, unusedFor how long it is kept open without being used.
	freshFor, unusedFor = 5 * time.Second, time.Minute
	// readLimit bounds the reading of a row. A connection that is open is waited for no longer than readPatience.
	readLimit, readPatience = 5 * time.Second, 250 * time.Millisecond
	// crowdedPause is how long a call waits before it looks for room again.
	crowdedPause = 100 * time.Millisecond
)

// messages calls targets that are topics and queues, over the connections of their tenants.
type messages struct {
	settings messaging.Settings
	// open opens connections, by the kind of their targets.
	open  map[string]messaging.Open
	clock clock.Clock

	mu    sync.Mutex
	slots map[slotKey]*slot
	// reading is the context of what is read; over ends it.
	reading context.Context //nolint:containedctx // reads outlive the calls that wait for them
	over    context.CancelFunc
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

var (
	// errCrowded means that all connections that may be open are in use.
	errCrowded = errors.New("too many connections are in use")
	// errOver means that the executor has stopped.
	errOver = errors.New("the executor has stopped")
)

func newMessages(settings messaging.Settings, open map[string]messaging.Open, c clock.Clock) *messages {
	m := &messages{settings: settings, open: open, clock: c, slots: map[slotKey]*slot{}}
	m.reading, m.over = context.WithCancel(context.Background())
	return m
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
			o := job.Outcome{Kind: job.OutcomeSucceeded, ResponseBody: receipt, ResponseBytes: int64(len(receipt))}
			if len(receipt) > job.MaxResponseBytes {
				o.ResponseBody, o.ResponseTruncated = receipt[:job.MaxResponseBytes], true
			}
			return o
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
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		ctx = context.WithoutCancel(ctx) // a driver that tries again to the end says why it did
	}
	return failure(ctx, err)
}

// acquire returns the sender of a connection, which must be released. A row that cannot be read again is used as it was. Where too many
// connections are in use it waits for one of them.
func (m *messages) acquire(ctx context.Context, k slotKey) (*sender, error) {
	for {
		s, err := m.tryAcquire(ctx, k)
		if !errors.Is(err, errCrowded) {
			return s, err
		}
		if run.Sleep(ctx, crowdedPause) != nil {
			return nil, err
		}
	}
}

func (m *messages) tryAcquire(ctx context.Context, k slotKey) (*sender, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at, err := m.slot(k)
	if err != nil {
		return nil, err
	}
	at.users++
	if age := m.clock.Since(at.readAt); age >= freshFor || age < 0 { // the clock may have been set back
		if at.reading == nil {
			at.reading = make(chan struct{})
			m.helpers.Go(func() { m.read(k, at) })
		}
		if err := m.await(ctx, at.reading, at.current != nil); err != nil {
			at.users--
			return nil, err
		}
	}
	switch {
	case m.reading.Err() != nil:
		at.users--
		return nil, errOver
	case at.current == nil:
		at.users--
		return nil, at.err
	}
	at.usedAt = m.clock.Now()
	at.current.users++
	return at.current, nil
}

// slot returns the slot of a connection, for which it makes room.
func (m *messages) slot(k slotKey) (*slot, error) {
	if m.reading.Err() != nil {
		return nil, errOver
	}
	if at := m.slots[k]; at != nil {
		return at, nil
	}
	own := 0
	for other := range m.slots {
		if other.tenant == k.tenant {
			own++
		}
	}
	if own >= maxOfTenant && !m.driveOut(func(other slotKey) bool { return other.tenant == k.tenant }) ||
		len(m.slots) >= maxSenders && !m.driveOut(func(slotKey) bool { return true }) {
		return nil, errCrowded
	}
	at := &slot{usedAt: m.clock.Now()}
	m.slots[k] = at
	return at, nil
}

// await unlocks the mutex while it waits until a row was read. If a connection is open, it waits for readPatience only.
func (m *messages) await(ctx context.Context, read <-chan struct{}, open bool) error {
	m.mu.Unlock()
	defer m.mu.Lock()
	var enough <-chan time.Time
	if open {
		t := time.NewTimer(readPatience)
		defer t.Stop()
		enough = t.C
	}
	select {
	case <-read:
	case <-enough:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
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

// driveOut makes room by closing the connection that was used longest ago of those that may go, if there is one that nobody uses.
func (m *messages) driveOut(may func(k slotKey) bool) bool {
	var oldest slotKey
	found := false
	for k, at := range m.slots {
		if may(k) && at.users == 0 && at.reading == nil && (!found || at.usedAt.Before(m.slots[oldest].usedAt)) {
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
	ctx, cancel := context.WithTimeout(m.reading, readLimit)
	defer cancel()
	asked := m.clock.Now()
	_, set, err := messaging.Read(ctx, m.settings, k.tenant)
	m.mu.Lock()
	defer m.mu.Unlock()
	defer func() {
		close(at.reading)
		at.reading = nil
	}()
	if m.reading.Err() != nil {
		return
	}
	if err != nil {
		if at.err = err; at.current != nil {
			at.readAt = m.clock.Now()
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

// tidyLoop closes what nobody has used for a while, until ctx ends: otherwise a broker would still see a password long after it was replaced.
func (m *messages) tidyLoop(ctx context.Context) {
	for run.Sleep(ctx, unusedFor/2) == nil {
		m.tidy()
	}
}

func (m *messages) tidy() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, at := range m.slots {
		if at.users == 0 && at.reading == nil && m.clock.Since(at.usedAt) >= unusedFor {
			m.replace(at, nil)
			delete(m.slots, k)
		}
	}
}

// close closes all connections. Nothing is sent any more; a call that is still under way fails.
func (m *messages) close() {
	m.mu.Lock()
	m.over()
	for _, at := range m.slots {
		if at.current != nil {
			m.helpers.Go(at.current.Close)
			at.current.retired = false // it is closed already when its last user releases it
		}
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
	for name, value := range map[string]string{
		"Minutehand-Execution-Id":  f.ExecutionID,
		"Minutehand-Job-Id":        f.JobID,
		"Minutehand-Scheduled-For": f.ToldInstant().Format("2006-01-02T15:04:05.000Z07:00"),
		"Minutehand-Attempt":       strconv.Itoa(f.Attempt),
		"Minutehand-Fencing-Token": fence.String(),
		"Traceparent":              traceparent(ctx, f),
	} {
		m.Headers[name] = value
	}
	if f.Note != nil && f.Note.Hops > 0 {
		m.Headers["Minutehand-Hops"] = strconv.Itoa(f.Note.Hops)
	}
	if f.Target.KeyTemplate != "" {
		m.Headers["Idempotency-Key"] = f.Target.IdempotencyKey(&f.Entry)
	}
	return m
}
