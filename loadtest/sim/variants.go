package sim

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/archive"
	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/wire"
	schedulerworker "github.com/minutehand/minutehand/services/scheduler-worker"
)

// Variant is the code with something broken on purpose, to show that the simulation notices. It consists of ports placed in
// front of the real ones, of broken servers, or of a worker's limits, so that the services are unchanged.
type Variant struct {
	Name string
	// Seed is the first seed known to catch it, where `make test` begins to look.
	Seed uint64
	// Ports replaces some of the ports given to processes of a kind.
	Ports func(kind string, p *Ports)
	// Servers breaks a server.
	Servers func(w *world)
	// Worker changes how workers are configured.
	Worker func(c *schedulerworker.Config)
}

// Variants are those that break an invariant.
func Variants() []*Variant {
	only := func(kind string, change func(p *Ports)) func(string, *Ports) {
		return func(k string, p *Ports) {
			if k == kind {
				change(p)
			}
		}
	}
	return []*Variant{
		{Name: "close without re-read", Ports: only("bucket-loader", func(p *Ports) {
			p.Pending = &closesBlindly{Pending: p.Pending, done: map[[2]int64][]job.PendingRow{}}
		})},
		{Name: "close out of order", Ports: only("bucket-loader", func(p *Ports) { p.Pending = closesOutOfOrder{p.Pending} })},
		{Name: "no put-back", Ports: only("bucket-loader", func(p *Ports) { p.Hot = neverPutsBack{p.Hot} })},
		{Name: "mark before settle", Ports: only("retry-manager", func(p *Ports) { p.Pending = &marksFirst{Pending: p.Pending} })},
		{Name: "outcome stored without comparing the token", Servers: func(w *world) { w.hot.Broken.AnyToken = true }},
		{Name: "late entry without the successor check", Ports: only("scheduler-worker", func(p *Ports) {
			p.Pending = &seesNoSuccessor{Pending: p.Pending, own: map[string]job.Locator{}}
		})},
		{Name: "decision or next instant not claimed", Ports: only("scheduler-worker", func(p *Ports) { p.Hot = claimsNothing{p.Hot} })},
		{Name: "stop record written without its version", Servers: func(w *world) { w.hot.Broken.AnyVersion = true }},
		{Name: "a fire of a greater definition is refused", Ports: only("executor", func(p *Ports) { p.Records = refusesAhead{p.Records} })},
		{Name: "an old definition is fired after an update", Ports: only("executor", func(p *Ports) {
			p.Records = beginsAs{p.Records, []job.Verdict{job.VerdictSuperseded, job.VerdictOutdated}}
		})},
		{Name: "an old definition is judged by the last update alone", Seed: 74, Ports: only("executor", func(p *Ports) {
			p.Records = beginsAs{p.Records, []job.Verdict{job.VerdictSuperseded}}
		})},
		{Name: "an attempt begins at once whatever stop record there is", Ports: only("executor", func(p *Ports) { p.Records = beginsAnyway{p.Records} })},
		{Name: "a change writes no stop record", Ports: only("job-api", func(p *Ports) { p.Records = stopsNothing{p.Records} })},
		{Name: "a stop holds that only a replaced server has", Seed: 328, Servers: func(w *world) { w.hot.Broken.AloneHolds = true }},
		{Name: "no successor is written", Ports: only("scheduler-worker", func(p *Ports) { p.Pending = writesNothing{p.Pending} })},
		{Name: "the hot tier's incarnation is not asked for", Servers: func(w *world) { w.hot.Broken.AnyIncarnation = true }},
		{Name: "a token is given out again", Servers: func(w *world) { w.hot.Broken.SameToken = true }},
		{Name: "a later incarnation has a smaller number", Servers: func(w *world) { w.hot.Broken.FallingEpochs = true }},
		{Name: "a worker dispatches however long ago it read", Worker: func(c *schedulerworker.Config) { c.OwnerTTL = time.Hour }},
		{Name: "an owner that gets nothing done stays the owner", Ports: func(_ string, p *Ports) { p.Coord = staysOwner{p.Coord} }},
		{Name: "an object of the archive counts as put when it is there", Ports: only("audit-writer", func(p *Ports) {
			p.Archive = putsBlindly{p.Archive}
		})},
		{Name: "a topic that is created anew is read on", Ports: func(_ string, p *Ports) { p.Log = readsOn{p.Log} }},
		{Name: "an entry is dropped without fencing its writer", Ports: only("scheduler-worker", func(p *Ports) {
			p.Jobs = fencesNothing{p.Jobs}
		})},
	}
}

// LateVariants are those that only cost lateness, because put-back repairs them.
func LateVariants() []*Variant {
	return []*Variant{
		{Name: "removed from due before it is published", Ports: func(kind string, p *Ports) {
			if kind == "scheduler-worker" {
				p.Log = removesFirst{p.Log, p.Hot}
			}
		}},
		{Name: "the horizon is published after the read", Ports: func(kind string, p *Ports) {
			if kind == "bucket-loader" {
				p.Hot = horizonLate{p.Hot}
			}
		}},
	}
}

// VariantOf returns a variant by its name; nil for none.
func VariantOf(name string) *Variant {
	for _, v := range append(Variants(), LateVariants()...) {
		if v.Name == name {
			return v
		}
	}
	return nil
}

// closesBlindly returns a bucket that was once seen all done as it was then.
type closesBlindly struct {
	jobstore.Pending
	mu   sync.Mutex
	done map[[2]int64][]job.PendingRow
}

func (c *closesBlindly) Scan(
	ctx context.Context, partition int, minute int64, after *job.Locator, limit int,
) ([]job.PendingRow, error) {
	k := [2]int64{int64(partition), minute}
	c.mu.Lock()
	rows, ok := c.done[k]
	c.mu.Unlock()
	if ok && after == nil {
		return rows, nil
	}
	rows, err := c.Pending.Scan(ctx, partition, minute, after, limit)
	all := err == nil && after == nil && len(rows) > 0 && len(rows) < limit
	for _, r := range rows {
		all = all && r.Done
	}
	if all {
		c.mu.Lock()
		c.done[k] = rows
		c.mu.Unlock()
	}
	return rows, err
}

// closesOutOfOrder skips open buckets when it looks for buckets to close.
type closesOutOfOrder struct{ jobstore.Pending }

func (c closesOutOfOrder) FirstOpen(ctx context.Context, partition int, from, to int64) (int64, bool, error) {
	for {
		minute, ok, err := c.Pending.FirstOpen(ctx, partition, from, to)
		if err != nil || !ok || to > job.Minute(time.Now().Add(-5*time.Minute)) {
			return minute, ok, err
		}
		rows, err := c.Scan(ctx, partition, minute, nil, everything)
		open := false
		for _, r := range rows {
			open = open || !r.Done
		}
		if err != nil || !open {
			return minute, true, err
		}
		from = minute + 1
	}
}

type neverPutsBack struct{ hotbucket.Buckets }

func (b neverPutsBack) Add(ctx context.Context, entries []job.Entry) error {
	var ahead []job.Entry
	for _, e := range entries {
		if e.DueAt.After(time.Now()) {
			ahead = append(ahead, e)
		}
	}
	return b.Buckets.Add(ctx, ahead)
}

// marksFirst marks an attempt's entry before it writes what follows from the attempt.
type marksFirst struct {
	jobstore.Pending
	mu      sync.Mutex
	waiting []job.Entry
}

func (m *marksFirst) Put(_ context.Context, entries []job.Entry) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting = append(m.waiting, entries...)
	return nil
}

func (m *marksFirst) MarkDone(ctx context.Context, locators []job.Locator) error {
	m.mu.Lock()
	waiting := m.waiting
	m.waiting = nil
	m.mu.Unlock()
	if err := m.Pending.MarkDone(ctx, locators); err != nil {
		return err
	}
	return m.Pending.Put(ctx, waiting)
}

// seesNoSuccessor sees the row of an entry but not its successor's.
type seesNoSuccessor struct {
	jobstore.Pending
	mu  sync.Mutex
	own map[string]job.Locator
}

func (s *seesNoSuccessor) Row(ctx context.Context, l job.Locator) (job.PendingRow, error) {
	ref, err := job.ParseExecutionID(l.ExecutionID)
	if err == nil && l.Attempt == 1 && ref.Trigger == job.TriggerSchedule {
		s.mu.Lock()
		own := s.own[ref.JobID]
		s.own[ref.JobID] = l
		s.mu.Unlock()
		if own.ExecutionID != "" && own.ExecutionID < l.ExecutionID {
			return job.PendingRow{}, jobstore.ErrNotFound
		}
	}
	return s.Pending.Row(ctx, l)
}

type claimsNothing struct{ hotbucket.Buckets }

func (claimsNothing) Claim(_ context.Context, _ coord.Owner, claims []hotbucket.Claim) ([]job.Decision, error) {
	own := make([]job.Decision, len(claims))
	for i, c := range claims {
		own[i] = c.Decision
	}
	return own, nil
}

func (claimsNothing) Claimed(context.Context, int, hotbucket.Claim) (*job.Decision, error) {
	return nil, nil
}

type refusesAhead struct{ attempts.Records }

func (r refusesAhead) Start(ctx context.Context, k attempts.Key, t job.Token, c attempts.Check) (job.Fence, *job.State, error) {
	fence, stop, err := r.Records.Start(ctx, k, t, c)
	if stop != nil && stop.JudgeAttempt(c.Entry, time.Time{}) == job.VerdictAheadOfRow {
		stop.DefinitionID, stop.EffectiveAt = c.Entry.DefinitionID+"~", time.Time{}
	}
	return fence, stop, err
}

// beginsAnyway begins an attempt that nobody has met, and asks nobody whether it was stopped.
type beginsAnyway struct{ attempts.Records }

func (b beginsAnyway) Begin(
	ctx context.Context, k attempts.Key, h attempts.Holder, lapsesAt time.Time, c attempts.Check, keptSince time.Time,
) (job.Fence, bool, error) {
	if fence, ok, err := b.Records.Begin(ctx, k, h, lapsesAt, c, keptSince); ok || err != nil {
		return fence, ok, err
	}
	rec, held, err := b.Acquire(ctx, k, h, time.Now(), lapsesAt)
	stops, asked := b.StopsOf(ctx, []string{c.Entry.JobID})
	if err != nil || asked != nil || !held || rec.Token.Counter > 1 {
		return job.Fence{}, false, errors.Join(err, asked)
	}
	c.StopVersion = stops[c.Entry.JobID].Version
	fence, stop, err := b.Start(ctx, k, rec.Token, c)
	return fence, err == nil && stop == nil, err
}

// beginsAs lets an attempt begin although the stop record gives it one of some verdicts.
type beginsAs struct {
	attempts.Records
	verdicts []job.Verdict
}

func (b beginsAs) Start(ctx context.Context, k attempts.Key, t job.Token, c attempts.Check) (job.Fence, *job.State, error) {
	fence, stop, err := b.Records.Start(ctx, k, t, c)
	if stop != nil && slices.Contains(b.verdicts, stop.JudgeAttempt(c.Entry, time.Time{})) {
		c.StopVersion = stop.Version
		return b.Records.Start(ctx, k, t, c)
	}
	return fence, stop, err
}

type stopsNothing struct{ attempts.Records }

func (stopsNothing) SetStop(context.Context, string, job.State) (time.Duration, error) { return 0, nil }

type writesNothing struct{ jobstore.Pending }

func (writesNothing) Put(context.Context, []job.Entry) error { return nil }

type putsBlindly struct{ archive.Archive }

func (a putsBlindly) PutIfAbsent(ctx context.Context, name string, body []byte) error {
	if err := a.Archive.PutIfAbsent(ctx, name, body); !errors.Is(err, archive.ErrExists) {
		return err
	}
	return nil
}

// readsOn returns consumers that go over to a recreated topic without saying so.
type readsOn struct{ dispatch.Log }

func (l readsOn) Subscribe(ctx context.Context, topic, group string) (dispatch.Consumer, error) {
	c, err := l.Log.Subscribe(ctx, topic, group)
	return &readingOn{Consumer: c, again: func(ctx context.Context) (dispatch.Consumer, error) {
		return l.Log.Subscribe(ctx, topic, group)
	}}, err
}

type readingOn struct {
	dispatch.Consumer
	again func(ctx context.Context) (dispatch.Consumer, error)
}

func (c *readingOn) Poll(ctx context.Context, limit int) ([]dispatch.Message, error) {
	messages, err := c.Consumer.Poll(ctx, limit)
	if errors.Is(err, dispatch.ErrRecreated) {
		var next dispatch.Consumer
		if next, err = c.again(ctx); err == nil {
			_ = c.Close()
			c.Consumer = next
		}
		return nil, err
	}
	return messages, err
}

type fencesNothing struct{ jobstore.Jobs }

func (fencesNothing) Replace(context.Context, job.Job) error { return nil }

type removesFirst struct {
	dispatch.Log
	hot hotbucket.Buckets
}

func (l removesFirst) Publish(ctx context.Context, topic string, records []dispatch.Message) error {
	if topic == dispatch.TopicFires {
		var entries []*job.Entry
		for _, r := range records {
			if f, err := wire.UnmarshalFire(r.Value); err == nil {
				entries = append(entries, &f.Entry)
			}
		}
		if err := l.hot.Remove(ctx, entries); err != nil {
			return err
		}
	}
	return l.Log.Publish(ctx, topic, records)
}

type horizonLate struct{ hotbucket.Buckets }

func (b horizonLate) SetHorizon(ctx context.Context, o coord.Owner, horizon time.Time) error {
	time.AfterFunc(100*time.Millisecond, func() { _ = b.Buckets.SetHorizon(ctx, o, horizon) })
	return nil
}

// staysOwner is a coordinator whose members never leave on their own.
type staysOwner struct{ coord.Coordinator }

func (c staysOwner) Join(ctx context.Context, role coord.Role) (<-chan []coord.Owner, error) {
	return c.Coordinator.Join(context.WithoutCancel(ctx), role)
}
