package sim

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/capacity"
	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
)

var (
	opAdd         = newOp("hot", "Add", WriteMany, often)
	opDue         = newOp("hot", "Due", Write, always)
	opPostpone    = newOp("hot", "Postpone", Write, seldom)
	opRecall      = newOp("hot", "Recall", Write, seldom)
	opPark        = newOp("hot", "Park", Write, often)
	opPost        = newOp("hot", "Post", Write, always)
	opReadBoard   = newOp("hot", "Read", Read, always)
	opRemove      = newOp("hot", "Remove", WriteMany, often)
	opAbsent      = newOp("hot", "Absent", Read, often)
	opClaim       = newOp("hot", "Claim", Write, often)
	opClaimed     = newOp("hot", "Claimed", Read, often)
	opHorizon     = newOp("hot", "Horizon", Read, often)
	opSetHorizon  = newOp("hot", "SetHorizon", Write, seldom)
	opSetEpoch    = newOp("hot", "SetEpoch", Write, seldom)
	opIncarnation = newOp("hot", "Incarnation", Read, always)
)

// board is where executors post their reports.
type board struct{ *client }

func (c board) Post(ctx context.Context, r capacity.Report) error {
	if c.p.w.variant != nil {
		return nil // waiting entries are not dispatched, and break less
	}
	return do(ctx, c.p, opPost, c.p.name, func(ctx context.Context) error { return c.p.w.board.Post(ctx, r) })
}

func (c board) Read(ctx context.Context) ([]capacity.Report, error) {
	return through(ctx, c.p, opReadBoard, c.p.name, c.p.w.board.Read)
}

type buckets struct{ *client }

func (c buckets) Add(ctx context.Context, entries []job.Entry) error {
	if len(entries) == 0 {
		return nil
	}
	entries = slices.Clone(entries)
	return write(ctx, c.p, opAdd, entries, entryKey, c.hot.Add)
}

func (c buckets) Due(ctx context.Context, owners []coord.Owner, ask hotbucket.Ask) ([]hotbucket.Given, []time.Time, error) {
	type read struct {
		given []hotbucket.Given
		next  []time.Time
	}
	r, err := through(ctx, c.p, opDue, c.p.name, func(ctx context.Context) (r read, err error) {
		r.given, r.next, err = c.hot.Due(ctx, owners, ask)
		if err == nil {
			c.p.w.accepted(c.p, owners)
		}
		return r, err
	})
	return r.given, r.next, err
}

func (c buckets) Postpone(ctx context.Context, o coord.Owner, entries []*job.Entry, until time.Time) error {
	return do(ctx, c.p, opPostpone, first(entries, sharedKey), func(ctx context.Context) error {
		return c.hot.Postpone(ctx, o, entries, until)
	})
}

func (c buckets) Recall(ctx context.Context, entries []*job.Entry) error {
	return do(ctx, c.p, opRecall, first(entries, sharedKey), func(ctx context.Context) error { return c.hot.Recall(ctx, entries) })
}

func (c buckets) Park(ctx context.Context, o coord.Owner, entries []*job.Entry) error {
	return do(ctx, c.p, opPark, first(entries, sharedKey), func(ctx context.Context) error { return c.hot.Park(ctx, o, entries) })
}

func (c buckets) Remove(ctx context.Context, entries []*job.Entry) error {
	entries = slices.Clone(entries)
	return write(ctx, c.p, opRemove, entries, sharedKey, func(ctx context.Context, entries []*job.Entry) error {
		for _, e := range entries {
			c.p.w.did(c.p, leaves, e, e.NominalAt)
		}
		return c.hot.Remove(ctx, entries)
	})
}

func (c buckets) Absent(ctx context.Context, entries []*job.Entry) ([]job.Locator, error) {
	return through(ctx, c.p, opAbsent, first(entries, sharedKey), func(ctx context.Context) ([]job.Locator, error) {
		return c.hot.Absent(ctx, entries)
	})
}

func (c buckets) Hints() *hotbucket.Hints { return c.hot.Hints() }

func (c buckets) Claim(ctx context.Context, o coord.Owner, list []hotbucket.Claim) ([]job.Decision, error) {
	key := first(list, func(c hotbucket.Claim) string { return c.ExecutionID })
	for _, claim := range list {
		if ref, err := job.ParseExecutionID(claim.ExecutionID); err == nil {
			of := job.Locator{Attempt: 1, DefinitionID: claim.DefinitionID}
			c.p.w.did(c.p, claims, &job.Entry{Locator: of, JobID: ref.JobID, Trigger: ref.Trigger}, ref.NominalAt)
		}
	}
	return through(ctx, c.p, opClaim, key, func(ctx context.Context) ([]job.Decision, error) {
		standing, err := c.hot.Claim(ctx, o, list)
		for i := range standing {
			if !reflect.DeepEqual(standing[i], list[i].Decision) {
				c.p.w.mu.Lock()
				c.p.w.decidedBefore++
				c.p.w.mu.Unlock()
			}
		}
		return standing, err
	})
}

func (c buckets) Claimed(ctx context.Context, partition int, claim hotbucket.Claim) (*job.Decision, error) {
	return through(ctx, c.p, opClaimed, claim.ExecutionID, func(ctx context.Context) (*job.Decision, error) {
		return c.hot.Claimed(ctx, partition, claim)
	})
}

func (c buckets) Horizons(ctx context.Context, partitions []int) ([]time.Time, error) {
	return through(ctx, c.p, opHorizon, fmt.Sprintf("%s/p%d", c.p.name, partitions[0]), func(ctx context.Context) ([]time.Time, error) {
		return c.hot.Horizons(ctx, partitions)
	})
}

func (c buckets) SetHorizon(ctx context.Context, o coord.Owner, horizon time.Time) error {
	return do(ctx, c.p, opSetHorizon, fmt.Sprintf("p%d", o.Partition), func(ctx context.Context) error {
		return c.hot.SetHorizon(ctx, o, horizon)
	})
}

func (c buckets) SetEpoch(ctx context.Context, o coord.Owner) error {
	return do(ctx, c.p, opSetEpoch, fmt.Sprintf("%s/p%d", o.Role, o.Partition), func(ctx context.Context) error {
		return c.hot.SetEpoch(ctx, o)
	})
}

func (c buckets) Incarnations(ctx context.Context, partitions []int) ([]string, error) {
	return through(ctx, c.p, opIncarnation, c.p.name, func(ctx context.Context) ([]string, error) {
		return c.hot.Incarnations(ctx, partitions)
	})
}

var (
	opAcquire = newOp("hot", "Acquire", Write, often)
	opBegin   = newOp("hot", "Begin", Write, often)
	opStart   = newOp("hot", "Start", Write, often)
	opRenew   = newOp("hot", "Renew", WriteMany, often)
	opRelease = newOp("hot", "Release", Write, rarely)
	opFinish  = newOp("hot", "Finish", WriteMany, often)
	opRefuse  = newOp("hot", "Refuse", Write, seldom)
	opLookup  = newOp("hot", "Lookup", Read, often)
	opMemory  = newOp("hot", "Memory", Read, always)
	opSetStop = newOp("hot", "SetStop", Write, seldom)
	opStopsOf = newOp("hot", "StopsOf", Read, often)
)

type records struct{ *client }

func (c records) Acquire(
	ctx context.Context, k attempts.Key, h attempts.Holder, now, lapsesAt time.Time,
) (attempts.Record, bool, error) {
	c.p.w.looks(c.p, k)
	v, err := through(ctx, c.p, opAcquire, attemptKey(k), func(ctx context.Context) (pair[attempts.Record, bool], error) {
		rec, ok, err := c.hot.Acquire(ctx, k, h, now, lapsesAt)
		return pair[attempts.Record, bool]{rec, ok}, err
	})
	return v.a, v.b, err
}

func (c records) Begin(
	ctx context.Context, k attempts.Key, h attempts.Holder, lapsesAt time.Time, check attempts.Check, keptSince time.Time,
) (job.Fence, bool, error) {
	c.p.w.looks(c.p, k)
	v, err := through(ctx, c.p, opBegin, attemptKey(k), func(ctx context.Context) (pair[job.Fence, bool], error) {
		fence, ok, err := c.hot.Begin(ctx, k, h, lapsesAt, check, keptSince)
		if ok {
			c.p.w.started(k, fence)
		}
		return pair[job.Fence, bool]{fence, ok}, err
	})
	return v.a, v.b, err
}

func (c records) Start(ctx context.Context, k attempts.Key, t job.Token, check attempts.Check) (job.Fence, *job.State, error) {
	v, err := through(ctx, c.p, opStart, attemptKey(k), func(ctx context.Context) (pair[job.Fence, *job.State], error) {
		fence, stop, err := c.hot.Start(ctx, k, t, check)
		if err == nil && stop == nil {
			c.p.w.started(k, fence)
		}
		return pair[job.Fence, *job.State]{fence, stop}, err
	})
	return v.a, v.b, err
}

func (c records) Renew(ctx context.Context, leases []attempts.Lease, lapsesAt time.Time) error {
	key := func(l attempts.Lease) string { return attemptKey(l.Key) }
	return write(ctx, c.p, opRenew, leases, key, func(ctx context.Context, leases []attempts.Lease) error {
		return c.hot.Renew(ctx, leases, lapsesAt)
	})
}

func (c records) Release(ctx context.Context, k attempts.Key, t job.Token, called bool, definitionID string) error {
	return do(ctx, c.p, opRelease, attemptKey(k), func(ctx context.Context) error { return c.hot.Release(ctx, k, t, called, definitionID) })
}

func (c records) Finish(ctx context.Context, ends []attempts.Completion, now time.Time) ([]attempts.Completed, error) {
	ends = slices.Clone(ends)
	key := func(e attempts.Completion) string { return attemptKey(e.Key) }
	return knowing(ctx, c.p, opFinish, first(ends, key), func(ctx context.Context, f Fault) ([]attempts.Completed, error) {
		return c.hot.Finish(ctx, some(c.p, f, ends, key), now)
	})
}

func (c records) Refuse(ctx context.Context, k attempts.Key, o job.Outcome, now time.Time) (attempts.Record, bool, error) {
	v, err := through(ctx, c.p, opRefuse, attemptKey(k), func(ctx context.Context) (pair[attempts.Record, bool], error) {
		rec, ok, err := c.hot.Refuse(ctx, k, o, now)
		return pair[attempts.Record, bool]{rec, ok}, err
	})
	return v.a, v.b, err
}

func (c records) Lookup(ctx context.Context, keys []attempts.Key) ([]attempts.Record, error) {
	return through(ctx, c.p, opLookup, first(keys, attemptKey), func(ctx context.Context) ([]attempts.Record, error) {
		return c.hot.Lookup(ctx, keys)
	})
}

func (c records) Memory(ctx context.Context, jobID string) (attempts.Memory, error) {
	return through(ctx, c.p, opMemory, c.p.name, func(ctx context.Context) (attempts.Memory, error) { return c.hot.Memory(ctx, jobID) })
}

func (c records) SetStop(ctx context.Context, id string, s job.State) (time.Duration, error) {
	return through(ctx, c.p, opSetStop, id, func(ctx context.Context) (time.Duration, error) { return c.hot.SetStop(ctx, id, s) })
}

func (c records) StopsOf(ctx context.Context, ids []string) (map[string]job.State, error) {
	return through(ctx, c.p, opStopsOf, c.p.name, func(ctx context.Context) (map[string]job.State, error) {
		return c.hot.StopsOf(ctx, ids)
	})
}
