package embedded

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
)

// DefaultMaxRecords bounds the leases and outcomes that are kept, and likewise the stop records.
const DefaultMaxRecords = 200_000

// At most maxWhole outcomes, and at most a quarter of the bound, are kept whole: for as long as others may ask for the target's
// response, which takes maxRecordBytes at most. The others are packed.
const (
	maxWhole       = 50_000
	maxRecordBytes = 64 << 20
)

// Records is the leases, outcomes and stop records in this process.
//
// A record that was started is also written to the database and loaded at the next start as an expired lease, so that takeovers are
// counted across restarts and a fire that kills its process ends. The write does not wait for a sync, which would cost every fire
// one. A first start is written startsAfter to twice that later, together with others, unless the attempt has ended by then. Where an earlier
// process may have died of the attempt, the write and the sync happen at once. So the first death of all may go uncounted, but no
// later one does. An outcome needs no durable copy of its own: its durable form is its event in the log. After a restart the
// incarnation differs, so that an executor waits for the settlers and reads the entry's row before it invokes what it finds again.
type Records struct {
	db       *DB
	max      int
	openedAt time.Time

	mu      sync.Mutex
	records map[attempts.Key]*attempts.Record
	stops   map[string]stop
	// unwritten holds the starts that are not written: those that the next flush writes, and those that the one after it does. If
	// there are any, a flush is under way.
	unwritten [2]map[attempts.Key]*attempts.Record
	flush     *time.Timer
	closed    bool
	// packed holds the outcomes that are no longer kept whole.
	packed packed
	// ended, released and stopped queue what may be packed or evicted, oldest first.
	ended, released fifo[attempts.Key]
	stopped         fifo[string]
	// started counts the last checks that were accepted.
	started int64
	// bytes is the size of the outcomes beside their fixed size.
	bytes int
	// keptSince grows with every eviction; the incarnation shows which outcomes are a predecessor's.
	keptSince time.Time
}

var _ attempts.Records = (*Records)(nil)

// stop is a job's stop record and when it was stored.
type stop struct {
	state job.State
	at    time.Time
}

// NewRecords loads the records that were started and have no outcome. maxRecords 0 means DefaultMaxRecords.
func NewRecords(ctx context.Context, db *DB, maxRecords int) (*Records, error) {
	if maxRecords == 0 {
		maxRecords = DefaultMaxRecords
	}
	r := &Records{
		db: db, max: maxRecords, openedAt: time.Now(), records: map[attempts.Key]*attempts.Record{}, stops: map[string]stop{},
		unwritten: [2]map[attempts.Key]*attempts.Record{{}, {}},
	}
	db.closing = append(db.closing, r.close)
	prefix := []byte{tableStarted}
	err := db.scan(ctx, prefix, after(prefix), func(k, v []byte) (bool, error) {
		key, rec, err := decodeStarted(k, v)
		r.records[key] = rec
		return err == nil, err
	})
	if err != nil {
		return nil, fmt.Errorf("embedded: load started records: %w", err)
	}
	return r, r.loadHanded()
}

// Acquire implements attempts.Records.
func (r *Records) Acquire(
	_ context.Context, k attempts.Key, h attempts.Holder, now, lapsesAt time.Time,
) (attempts.Record, bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.obtain(k)
	if mine, ok := rec.AcquireAgain(h, lapsesAt); mine {
		return *rec, ok, nil
	}
	if rec.Outcome != nil || rec.Alive(now) {
		return *rec, false, nil
	}
	if rec.Exists && !rec.Released {
		rec.Takeovers++
	}
	rec.Exists, rec.Released = true, false
	rec.Holder, rec.LapsesAt, rec.For, rec.ForSince = h.Name, lapsesAt, h.For, h.ForSince
	if !rec.Running {
		rec.DefinitionID = h.DefinitionID
	}
	rec.Token = job.Token{Counter: rec.Token.Counter + 1, Start: h.Start}
	return *rec, true, nil
}

// find returns the record of an attempt, whole or what is left of it.
func (r *Records) find(k attempts.Key) (*attempts.Record, bool) {
	if rec, ok := r.records[k]; ok {
		return rec, true
	}
	return r.packed.find(k)
}

// obtain returns the record of an attempt, after creating it if there is none.
func (r *Records) obtain(k attempts.Key) *attempts.Record {
	rec, ok := r.find(k)
	if !ok {
		rec = &attempts.Record{}
		r.records[k] = rec
	}
	return rec
}

// Memory implements attempts.Records.
func (r *Records) Memory(context.Context, string) (attempts.Memory, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return attempts.Memory{Incarnation: r.db.Incarnation(), KeptSince: r.keptSince}, nil
}

// Start implements attempts.Records.
func (r *Records) Start(_ context.Context, k attempts.Key, t job.Token, c attempts.Check) (job.Fence, *job.State, error) {
	if c.Incarnation != r.db.incarnation {
		return job.Fence{}, nil, fmt.Errorf("embedded: start: %w", attempts.ErrIncarnation)
	}
	fence, stop, err := r.start(k, t, c)
	if err == nil && stop == nil && r.mayHaveKilled(c.Entry) {
		// Once this returns, everything written so far is on disk; many waiting callers share one sync.
		if err := r.db.sync(); err != nil {
			return job.Fence{}, nil, fmt.Errorf("embedded: start: %w", err)
		}
	}
	return fence, stop, err
}

func (r *Records) start(k attempts.Key, t job.Token, c attempts.Check) (job.Fence, *job.State, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec, ok := r.records[k]
	if !ok || rec.Token != t || rec.Released || rec.Outcome != nil {
		return job.Fence{}, nil, fmt.Errorf("embedded: start: %w", attempts.ErrFenced)
	}
	e := c.Entry
	if stop := r.stops[e.JobID].state; stop.Version != c.StopVersion {
		return job.Fence{}, &stop, nil
	}
	fence, err := r.run(k, rec, e)
	return fence, nil, err
}

// run makes a record one that has begun.
func (r *Records) run(k attempts.Key, rec *attempts.Record, e *job.Entry) (job.Fence, error) {
	rec.DefinitionID = e.DefinitionID
	if rec.Token.Counter == 1 && !rec.Running && !r.mayHaveKilled(e) && !r.closed {
		r.unwritten[1][k] = rec
		if r.flush == nil {
			r.flush = time.AfterFunc(startsAfter, r.writeStarts)
		}
	} else {
		if err := r.db.setLater(startedKey(k.ExecutionID, k.Attempt), encodeStarted(rec)); err != nil {
			return job.Fence{}, fmt.Errorf("embedded: start: %w", err)
		}
		r.forgetStart(k)
	}
	rec.Running = true
	r.started++
	return job.Fence{Epoch: attempts.EpochOf(r.db.incarnation), Counter: r.started, Start: rec.Token.Start}, nil
}

// Renew implements attempts.Records.
func (r *Records) Renew(_ context.Context, leases []attempts.Lease, lapsesAt time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range leases {
		rec, ok := r.find(l.Key)
		if !ok {
			rec = &attempts.Record{Exists: true, Holder: l.Holder.Name, DefinitionID: l.Holder.DefinitionID, Token: l.Token, Running: l.MayHaveBegun || l.Begun}
			r.records[l.Key] = rec
		}
		if rec.Token != l.Token || rec.Outcome != nil {
			continue
		}
		if l.Begun && !rec.Running {
			rec.Running, rec.DefinitionID = true, l.Holder.DefinitionID
		}
		rec.LapsesAt = job.Later(rec.LapsesAt, lapsesAt)
	}
	return nil
}

// Release implements attempts.Records.
func (r *Records) Release(_ context.Context, k attempts.Key, t job.Token, called bool, definitionID string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec, ok := r.records[k]
	if !ok || rec.Token != t || rec.Outcome != nil || rec.Released {
		return nil
	}
	rec.Released, rec.Running = true, rec.Running && called
	if !rec.Running {
		// Token and takeovers stay counted, but a look-up finds nothing for the attempt. Otherwise a worker would take it for one that
		// was dispatched, and omit its successor.
		rec.Exists = false
		now := time.Now()
		r.released.push(k, now)
		r.evict(now)
	} else if rec.DefinitionID != definitionID {
		rec.DefinitionID = definitionID
		if err := r.db.setLater(startedKey(k.ExecutionID, k.Attempt), encodeStarted(rec)); err != nil {
			return fmt.Errorf("embedded: release: %w", err)
		}
	}
	return nil
}

// Finish implements attempts.Records.
func (r *Records) Finish(_ context.Context, ends []attempts.Completion, now time.Time) ([]attempts.Completed, error) {
	b := r.db.pebble.NewBatch()
	defer b.Close()
	ended := make([]attempts.Completed, len(ends))
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range ends {
		e := &ends[i]
		rec, ok := r.find(e.Key)
		if !ok {
			rec = &attempts.Record{Token: e.Token}
			r.records[e.Key] = rec
		}
		if rec.Outcome == nil && (rec.Token == e.Token || !rec.Alive(now)) {
			if err := r.end(b, e.Key, rec, e.Outcome, now); err != nil {
				return nil, err
			}
			ended[i].Stored = true
		}
		ended[i].Record = *rec
	}
	r.evict(now)
	return ended, r.endings(b)
}

// Refuse implements attempts.Records.
func (r *Records) Refuse(
	_ context.Context, k attempts.Key, o job.Outcome, now time.Time,
) (attempts.Record, bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.obtain(k)
	if rec.Outcome != nil || rec.Running || rec.Exists && !rec.Released {
		return *rec, false, nil
	}
	b := r.db.pebble.NewBatch()
	defer b.Close()
	if err := r.end(b, k, rec, &o, now); err != nil {
		return *rec, false, err
	}
	stands := *rec
	r.evict(now)
	return stands, true, r.endings(b)
}

// end stores the outcome and adds to the batch the deletion of the start's durable mark. If the process dies before the event of
// the outcome is durable, the fire is found again and the attempt is made again; that is the crash that invariant I2 allows.
func (r *Records) end(b *pebble.Batch, k attempts.Key, rec *attempts.Record, o *job.Outcome, now time.Time) error {
	if !r.forgetStart(k) && rec.Running {
		if err := b.Delete(startedKey(k.ExecutionID, k.Attempt), nil); err != nil {
			return fmt.Errorf("embedded: outcome: %w", err)
		}
	}
	rec.Exists, rec.Outcome = true, o
	r.bytes += outcomeBytes(o)
	r.ended.push(k, now)
	return nil
}

// endings commits what end put into the batch. It does not fail unless the process ends.
func (r *Records) endings(b *pebble.Batch) error {
	if b.Empty() {
		return nil
	}
	return r.db.commitLater(b)
}

// Lookup implements attempts.Records.
func (r *Records) Lookup(_ context.Context, keys []attempts.Key) ([]attempts.Record, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	records := make([]attempts.Record, len(keys))
	for i, k := range keys {
		if rec, ok := r.find(k); ok {
			records[i] = *rec
		}
	}
	return records, nil
}

// SetStop implements attempts.Records. This process has no replica, so what it stores holds at once.
func (r *Records) SetStop(_ context.Context, jobID string, s job.State) (holdsIn time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old, ok := r.stops[jobID]
	if ok && old.state.Version >= s.Version {
		return 0, nil
	}
	now := time.Now()
	r.stops[jobID] = stop{s, now}
	r.stopped.push(jobID, now)
	r.evict(now)
	return 0, nil
}

func outcomeBytes(o *job.Outcome) int { return len(o.ResponseBody) + len(o.Error) }

// evict packs outcomes that need not be kept whole, and drops those that are older than the retention or exceed the bound. A fire
// that was taken before an evicted outcome was stored may miss it. So keptSince moves past it, and such a fire takes the slow path:
// settlers, then rows.
func (r *Records) evict(now time.Time) {
	for r.ended.len() > 0 && (r.bytes > maxRecordBytes || r.ended.len() > min(maxWhole, r.max/4) || now.Sub(r.ended.first().at) > attempts.DetailFor) {
		a := r.ended.pop()
		rec := r.records[a.key]
		r.packed.add(a.key, rec, a.at)
		r.bytes -= outcomeBytes(rec.Outcome)
		delete(r.records, a.key)
	}
	old := func(n int, at time.Time) bool { return n > r.max || now.Sub(at) > attempts.Retention }
	for r.packed.len() > 0 && old(r.ended.len()+r.packed.len(), r.packed.oldest()) {
		// Others of the same instant may be gone too.
		r.keptSince = job.Later(r.keptSince, r.packed.oldest().Add(clock.MaxDifference+time.Millisecond))
		r.packed.drop()
	}
	for r.released.len() > 0 && old(r.released.len(), r.released.first().at) {
		a := r.released.pop()
		if rec, ok := r.records[a.key]; ok && rec.Released && !rec.Running && rec.Outcome == nil {
			delete(r.records, a.key)
		}
	}
	for r.stopped.len() > 0 && old(r.stopped.len(), r.stopped.first().at) {
		a := r.stopped.pop()
		if r.stops[a.key].at.Equal(a.at) {
			delete(r.stops, a.key)
		}
		r.keptSince = job.Later(r.keptSince, a.at.Add(clock.MaxDifference))
	}
}

// StopsOf implements attempts.Records.
func (r *Records) StopsOf(_ context.Context, jobIDs []string) (map[string]job.State, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	states := make(map[string]job.State, len(jobIDs))
	for _, id := range jobIDs {
		if s, ok := r.stops[id]; ok {
			states[id] = s.state
		}
	}
	return states, nil
}
