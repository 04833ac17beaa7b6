package sim

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/archive"
	"github.com/minutehand/minutehand/libs/capacity"
	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/dedupe"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/wire"
	"github.com/minutehand/minutehand/loadtest/sim/servers"
)

// Ports are the ports that a process is given. A broken variant of the code is made by replacing some of them.
type Ports struct {
	Jobs      jobstore.Jobs
	Pending   jobstore.Pending
	History   jobstore.History
	Settings  jobstore.Settings
	Hot       hotbucket.Buckets
	Records   dedupe.Records
	Log       dispatch.Log
	Coord     coord.Coordinator
	Archive   archive.Archive
	Board     capacity.Board
	Transport http.RoundTripper
}

// The weights of operations: from those that are called all the time over those that are called for each fire to rare ones.
const (
	always, steadily, often, seldom, rarely = 0.05, 0.3, 1, 4, 25
)

var ops []*Op

// newOp registers an operation, so that the report can name those at which nothing ever went wrong.
func newOp(port, name string, class Class, weight float64) *Op {
	op := &Op{Port: port, Name: name, Class: class, Weight: weight}
	ops = append(ops, op)
	return op
}

// client is the ports of one process: the servers behind faults.
type client struct {
	p   *process
	hot *servers.HotClient
}

func (p *process) ports() Ports {
	c := &client{p: p, hot: p.w.hot.Client()}
	return Ports{
		Jobs: jobs{c}, Pending: pending{c}, History: history{c}, Settings: settings{c}, Hot: buckets{c}, Records: records{c},
		Log: log{c}, Coord: coordinator{c}, Archive: objects{c}, Board: board{c}, Transport: transport{c},
	}
}

// first is the key of a call that concerns many: the smallest, which the others' timing changes least.
func first[T any](list []T, key func(T) string) string {
	if len(list) == 0 {
		return ""
	}
	smallest := key(list[0])
	for _, x := range list[1:] {
		smallest = min(smallest, key(x))
	}
	return smallest
}

func entryKey(e job.Entry) string     { return locatorKey(e.Locator) }
func sharedKey(e *job.Entry) string   { return locatorKey(e.Locator) }
func locatorKey(l job.Locator) string { return fmt.Sprintf("%s/%d", l.ExecutionID, l.Attempt) }
func attemptKey(k dedupe.Key) string  { return fmt.Sprintf("%s/%d", k.ExecutionID, k.Attempt) }
func same(s string) string            { return s }

// pair is what calls with two results give.
type pair[A, B any] struct {
	a A
	b B
}

var (
	opGet           = newOp("cold", "Get", Read, often)
	opGetMany       = newOp("cold", "GetMany", Read, often)
	opGetSerial     = newOp("cold", "GetSerial", Read, seldom)
	opCreate        = newOp("cold", "Create", WriteSerial, seldom)
	opReplace       = newOp("cold", "Replace", WriteSerial, seldom)
	opPutDefinition = newOp("cold", "PutDefinition", Write, seldom)
	opDefinition    = newOp("cold", "Definition", Read, seldom)
	opClaimKey      = newOp("cold", "ClaimKey", Write, seldom)
	opFinishKey     = newOp("cold", "FinishKey", Write, seldom)
)

type jobs struct{ *client }

func (c jobs) Get(ctx context.Context, id string) (job.Job, error) {
	return through(ctx, c.p, opGet, id, func(ctx context.Context) (job.Job, error) { return c.p.w.cold.Get(ctx, id) })
}

func (c jobs) GetMany(ctx context.Context, ids []string) (map[string]*job.Job, error) {
	return through(ctx, c.p, opGetMany, first(ids, same), func(ctx context.Context) (map[string]*job.Job, error) {
		c.p.w.hasRead(c.p, ids)
		return c.p.w.cold.GetMany(ctx, ids)
	})
}

func (c jobs) GetSerial(ctx context.Context, id string) (job.Job, error) {
	return through(ctx, c.p, opGetSerial, id, func(ctx context.Context) (job.Job, error) { return c.p.w.cold.GetSerial(ctx, id) })
}

func (c jobs) Create(ctx context.Context, j job.Job, exclusive bool) error {
	_, err := knowing(ctx, c.p, opCreate, j.ID, func(ctx context.Context, f Fault) (struct{}, error) {
		return struct{}{}, c.p.w.cold.CreateUnseen(ctx, j, exclusive, exclusive && f.Kind == Unseen)
	})
	return err
}

func (c jobs) CreateMany(ctx context.Context, list []job.Job) error {
	return do(ctx, c.p, opCreate, first(list, func(j job.Job) string { return j.ID }), func(ctx context.Context) error {
		return c.p.w.cold.CreateMany(ctx, list)
	})
}

func (c jobs) Replace(ctx context.Context, j job.Job) error {
	_, err := knowing(ctx, c.p, opReplace, j.ID, func(ctx context.Context, f Fault) (struct{}, error) {
		return struct{}{}, c.p.w.cold.ReplaceUnseen(ctx, j, f.Kind == Unseen)
	})
	return err
}

func (c jobs) PutDefinition(ctx context.Context, id string, d job.Definition) error {
	return do(ctx, c.p, opPutDefinition, id, func(ctx context.Context) error { return c.p.w.cold.PutDefinition(ctx, id, d) })
}

func (c jobs) Definition(ctx context.Context, id, definition string) (job.Definition, time.Time, error) {
	v, err := through(ctx, c.p, opDefinition, id, func(ctx context.Context) (pair[job.Definition, time.Time], error) {
		d, endsAt, err := c.p.w.cold.Definition(ctx, id, definition)
		return pair[job.Definition, time.Time]{d, endsAt}, err
	})
	return v.a, v.b, err
}

func (c jobs) List(ctx context.Context, tenant, cursor string, limit int) ([]job.Job, string, error) {
	return c.p.w.cold.List(ctx, tenant, cursor, limit)
}

func (c jobs) ClaimKey(ctx context.Context, tenant, key string, claim jobstore.Claim) (jobstore.Claim, bool, error) {
	v, err := through(ctx, c.p, opClaimKey, key, func(ctx context.Context) (pair[jobstore.Claim, bool], error) {
		standing, won, err := c.p.w.cold.ClaimKey(ctx, tenant, key, claim)
		return pair[jobstore.Claim, bool]{standing, won}, err
	})
	return v.a, v.b, err
}

func (c jobs) FinishKey(ctx context.Context, tenant, key string, a jobstore.Answer) error {
	return do(ctx, c.p, opFinishKey, key, func(ctx context.Context) error { return c.p.w.cold.FinishKey(ctx, tenant, key, a) })
}

var opSetting = newOp("cold", "Setting", Read, always)

type settings struct{ *client }

func (c settings) Setting(ctx context.Context, name string) ([]byte, error) {
	return through(ctx, c.p, opSetting, c.p.name, func(ctx context.Context) ([]byte, error) { return c.p.w.cold.Setting(ctx, name) })
}

func (c settings) SwapSetting(ctx context.Context, name string, old, value []byte) error {
	return c.p.w.cold.SwapSetting(ctx, name, old, value)
}

var (
	opPut       = newOp("cold", "Put", WriteMany, often)
	opMarkDone  = newOp("cold", "MarkDone", WriteMany, often)
	opDefer     = newOp("cold", "Defer", Write, rarely)
	opDecide    = newOp("cold", "Decide", Write, seldom)
	opRow       = newOp("cold", "Row", Read, often)
	opRows      = newOp("cold", "Rows", Read, rarely)
	opScan      = newOp("cold", "Scan", Read, often)
	opFirstOpen = newOp("cold", "FirstOpen", Read, always)
	opLowWater  = newOp("cold", "LowWater", Read, seldom)
	opClose     = newOp("cold", "Close", Write, seldom)
)

type pending struct{ *client }

func (c pending) Put(ctx context.Context, entries []job.Entry) error {
	if len(entries) == 0 {
		return nil
	}
	entries = slices.Clone(entries)
	sent := time.Now()
	return write(ctx, c.p, opPut, entries, entryKey, func(_ context.Context, entries []job.Entry) error {
		for i := range entries {
			c.p.w.did(c.p, writes, &entries[i], entries[i].NominalAt)
		}
		return c.p.w.cold.PutAt(sent, entries)
	})
}

func (c pending) MarkDone(ctx context.Context, locators []job.Locator) error {
	locators = slices.Clone(locators)
	return write(ctx, c.p, opMarkDone, locators, locatorKey, c.p.w.cold.MarkDone)
}

func (c pending) Defer(ctx context.Context, l job.Locator, to time.Time) error {
	return do(ctx, c.p, opDefer, locatorKey(l), func(ctx context.Context) error { return c.p.w.cold.Defer(ctx, l, to) })
}

func (c pending) Decide(ctx context.Context, l job.Locator, d job.Decision) error {
	return do(ctx, c.p, opDecide, locatorKey(l), func(ctx context.Context) error {
		if ref, err := job.ParseExecutionID(l.ExecutionID); err == nil {
			c.p.w.did(c.p, writes, &job.Entry{Locator: l, JobID: ref.JobID, Trigger: ref.Trigger}, ref.NominalAt)
		}
		return c.p.w.cold.Decide(ctx, l, d)
	})
}

func (c pending) Row(ctx context.Context, l job.Locator) (job.PendingRow, error) {
	return through(ctx, c.p, opRow, locatorKey(l), func(ctx context.Context) (job.PendingRow, error) { return c.p.w.cold.Row(ctx, l) })
}

func (c pending) Rows(ctx context.Context, locators []job.Locator) (map[job.Locator]job.PendingRow, error) {
	return through(ctx, c.p, opRows, first(locators, locatorKey), func(ctx context.Context) (map[job.Locator]job.PendingRow, error) {
		return c.p.w.cold.Rows(ctx, locators)
	})
}

func (c pending) Scan(
	ctx context.Context, partition int, minute int64, after *job.Locator, limit int,
) ([]job.PendingRow, error) {
	return through(ctx, c.p, opScan, fmt.Sprintf("p%d/%d", partition, minute), func(ctx context.Context) ([]job.PendingRow, error) {
		return c.p.w.cold.Scan(ctx, partition, minute, after, limit)
	})
}

func (c pending) FirstOpen(ctx context.Context, partition int, from, to int64) (int64, bool, error) {
	v, err := through(ctx, c.p, opFirstOpen, fmt.Sprintf("p%d", partition), func(ctx context.Context) (pair[int64, bool], error) {
		minute, ok, err := c.p.w.cold.FirstOpen(ctx, partition, from, to)
		return pair[int64, bool]{minute, ok}, err
	})
	return v.a, v.b, err
}

func (c pending) LowWater(ctx context.Context, partition int) (int64, error) {
	return through(ctx, c.p, opLowWater, fmt.Sprintf("p%d", partition), func(ctx context.Context) (int64, error) {
		return c.p.w.cold.LowWater(ctx, partition)
	})
}

func (c pending) Close(ctx context.Context, partition int, minute int64) error {
	return do(ctx, c.p, opClose, fmt.Sprintf("p%d/%d", partition, minute), func(ctx context.Context) error {
		return c.p.w.cold.Close(ctx, partition, minute)
	})
}

var (
	opRecord        = newOp("cold", "Record", WriteMany, often)
	opPutDeadLetter = newOp("cold", "PutDeadLetter", Write, seldom)
)

type history struct{ *client }

func (c history) Record(ctx context.Context, events []*job.Event) error {
	events = slices.Clone(events)
	return write(ctx, c.p, opRecord, events, func(e *job.Event) string { return locatorKey(e.Entry.Locator) }, c.p.w.cold.Record)
}

func (c history) Executions(
	ctx context.Context, id string, before jobstore.Position, oldest time.Time, limit int,
) ([]job.Event, error) {
	return c.p.w.cold.Executions(ctx, id, before, oldest, limit)
}

func (c history) Execution(ctx context.Context, id string) ([]job.Event, error) {
	return c.p.w.cold.Execution(ctx, id)
}

func (c history) PutDeadLetter(ctx context.Context, d job.DeadLetter) error {
	return do(ctx, c.p, opPutDeadLetter, d.Event.Entry.ExecutionID, func(ctx context.Context) error {
		return c.p.w.cold.PutDeadLetter(ctx, d)
	})
}

func (c history) MarkRedriven(ctx context.Context, d job.DeadLetter, id string) error {
	return c.p.w.cold.MarkRedriven(ctx, d, id)
}

func (c history) DeadLetters(ctx context.Context, tenant, cursor string, limit int) ([]job.DeadLetter, string, error) {
	return c.p.w.cold.DeadLetters(ctx, tenant, cursor, limit)
}

var (
	opAdd         = newOp("hot", "Add", WriteMany, often)
	opDue         = newOp("hot", "Due", Write, always)
	opPostpone    = newOp("hot", "Postpone", Write, seldom)
	opPark        = newOp("hot", "Park", Write, often)
	opPost        = newOp("hot", "Post", Write, always)
	opReadBoard   = newOp("hot", "Read", Read, always)
	opRemove      = newOp("hot", "Remove", WriteMany, often)
	opAbsent      = newOp("hot", "Absent", Read, often)
	opClaim       = newOp("hot", "Claim", Write, often)
	opHorizon     = newOp("hot", "Horizon", Read, often)
	opSetHorizon  = newOp("hot", "SetHorizon", Write, seldom)
	opSetEpoch    = newOp("hot", "SetEpoch", Write, seldom)
	opIncarnation = newOp("hot", "Incarnation", Read, always)
)

// board is where executors report.
type board struct{ *client }

func (c board) Post(ctx context.Context, r capacity.Report) error {
	if c.p.w.variant != nil {
		return nil // what waits is not dispatched, and breaks less
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

func (c buckets) Due(ctx context.Context, owners []hotbucket.Owner, ask hotbucket.Ask) ([]hotbucket.Given, error) {
	return through(ctx, c.p, opDue, c.p.name, func(ctx context.Context) ([]hotbucket.Given, error) {
		given, err := c.hot.Due(ctx, owners, ask)
		if err == nil {
			c.p.w.accepted(c.p, owners)
		}
		return given, err
	})
}

func (c buckets) Postpone(ctx context.Context, o hotbucket.Owner, entries []*job.Entry, until time.Time) error {
	return do(ctx, c.p, opPostpone, first(entries, sharedKey), func(ctx context.Context) error {
		return c.hot.Postpone(ctx, o, entries, until)
	})
}

func (c buckets) Park(ctx context.Context, o hotbucket.Owner, entries []*job.Entry) error {
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

func (c buckets) Claim(ctx context.Context, o hotbucket.Owner, list []hotbucket.Claim) ([]job.Decision, error) {
	key := first(list, func(c hotbucket.Claim) string { return c.ExecutionID })
	for _, claim := range list {
		if ref, err := job.ParseExecutionID(claim.ExecutionID); err == nil {
			c.p.w.did(c.p, claims, &job.Entry{Locator: job.Locator{Attempt: 1}, JobID: ref.JobID, Trigger: ref.Trigger}, ref.NominalAt)
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

func (c buckets) Horizon(ctx context.Context, partition int) (time.Time, error) {
	return through(ctx, c.p, opHorizon, fmt.Sprintf("%s/p%d", c.p.name, partition), func(ctx context.Context) (time.Time, error) {
		return c.hot.Horizon(ctx, partition)
	})
}

func (c buckets) SetHorizon(ctx context.Context, o hotbucket.Owner, horizon time.Time) error {
	return do(ctx, c.p, opSetHorizon, fmt.Sprintf("p%d", o.Partition), func(ctx context.Context) error {
		return c.hot.SetHorizon(ctx, o, horizon)
	})
}

func (c buckets) SetEpoch(ctx context.Context, o hotbucket.Owner) error {
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
	ctx context.Context, k dedupe.Key, h dedupe.Holder, now, lapsesAt time.Time,
) (dedupe.Record, bool, error) {
	v, err := through(ctx, c.p, opAcquire, attemptKey(k), func(ctx context.Context) (pair[dedupe.Record, bool], error) {
		rec, ok, err := c.hot.Acquire(ctx, k, h, now, lapsesAt)
		return pair[dedupe.Record, bool]{rec, ok}, err
	})
	return v.a, v.b, err
}

func (c records) Start(ctx context.Context, k dedupe.Key, t job.Token, check dedupe.Check) (job.Verdict, job.Fence, error) {
	v, err := through(ctx, c.p, opStart, attemptKey(k), func(ctx context.Context) (pair[job.Verdict, job.Fence], error) {
		v, fence, err := c.hot.Start(ctx, k, t, check)
		if err == nil && v == job.Proceed {
			c.p.w.started(k, fence)
		}
		return pair[job.Verdict, job.Fence]{v, fence}, err
	})
	return v.a, v.b, err
}

func (c records) Renew(ctx context.Context, leases []dedupe.Lease, lapsesAt time.Time) error {
	key := func(l dedupe.Lease) string { return attemptKey(l.Key) }
	return write(ctx, c.p, opRenew, leases, key, func(ctx context.Context, leases []dedupe.Lease) error {
		return c.hot.Renew(ctx, leases, lapsesAt)
	})
}

func (c records) Release(ctx context.Context, k dedupe.Key, t job.Token, called bool) error {
	return do(ctx, c.p, opRelease, attemptKey(k), func(ctx context.Context) error { return c.hot.Release(ctx, k, t, called) })
}

func (c records) Finish(ctx context.Context, ends []dedupe.End, now time.Time) ([]dedupe.Ended, error) {
	ends = slices.Clone(ends)
	key := func(e dedupe.End) string { return attemptKey(e.Key) }
	return knowing(ctx, c.p, opFinish, first(ends, key), func(ctx context.Context, f Fault) ([]dedupe.Ended, error) {
		return c.hot.Finish(ctx, some(c.p, f, ends, key), now)
	})
}

func (c records) Refuse(ctx context.Context, k dedupe.Key, o job.Outcome, now time.Time) (dedupe.Record, bool, error) {
	v, err := through(ctx, c.p, opRefuse, attemptKey(k), func(ctx context.Context) (pair[dedupe.Record, bool], error) {
		rec, ok, err := c.hot.Refuse(ctx, k, o, now)
		return pair[dedupe.Record, bool]{rec, ok}, err
	})
	return v.a, v.b, err
}

func (c records) Lookup(ctx context.Context, keys []dedupe.Key) ([]dedupe.Record, error) {
	return through(ctx, c.p, opLookup, first(keys, attemptKey), func(ctx context.Context) ([]dedupe.Record, error) {
		return c.hot.Lookup(ctx, keys)
	})
}

func (c records) Memory(ctx context.Context, jobID string) (dedupe.Memory, error) {
	return through(ctx, c.p, opMemory, c.p.name, func(ctx context.Context) (dedupe.Memory, error) { return c.hot.Memory(ctx, jobID) })
}

func (c records) SetStop(ctx context.Context, id string, s job.State) error {
	return do(ctx, c.p, opSetStop, id, func(ctx context.Context) error { return c.hot.SetStop(ctx, id, s) })
}

func (c records) StopsOf(ctx context.Context, ids []string) (map[string]job.State, error) {
	return through(ctx, c.p, opStopsOf, c.p.name, func(ctx context.Context) (map[string]job.State, error) {
		return c.hot.StopsOf(ctx, ids)
	})
}

var (
	opPublishFires  = newOp("log", "Publish fires", WriteMany, often)
	opPublishEvents = newOp("log", "Publish events", WriteMany, often)
	opPublishDLQ    = newOp("log", "Publish dlq", Write, seldom)
	opEnd           = newOp("log", "End", Read, often)
	opCommitted     = newOp("log", "Committed", Read, often)
	opPoll          = newOp("log", "Poll", Poll, steadily)
	opCommit        = newOp("log", "Commit", Write, always)
)

func publishOp(topic string) *Op {
	switch topic {
	case dispatch.TopicFires:
		return opPublishFires
	case dispatch.TopicEvents:
		return opPublishEvents
	}
	return opPublishDLQ
}

type log struct{ *client }

func (c log) Publish(ctx context.Context, topic string, list []dispatch.Record) error {
	if len(list) == 0 {
		return nil
	}
	list = slices.Clone(list)
	if topic == dispatch.TopicFires {
		c.p.w.publishes(c.p, list)
	}
	key := func(r dispatch.Record) string { return r.Key }
	return write(ctx, c.p, publishOp(topic), list, key, func(ctx context.Context, list []dispatch.Record) error {
		c.wrote(topic, list)
		return c.p.w.log.Publish(ctx, topic, list)
	})
}

// wrote notes what a worker says of instants.
func (c log) wrote(topic string, list []dispatch.Record) {
	for _, r := range list {
		if f, err := wire.UnmarshalFire(r.Value); topic == dispatch.TopicFires && err == nil {
			c.p.w.did(c.p, writes, &f.Entry, f.NominalAt)
		}
		if e, err := wire.UnmarshalEvent(r.Value); topic == dispatch.TopicEvents && err == nil {
			at := e.Entry.NominalAt
			if e.Type == job.EventSkipped {
				at = e.Skipped.From
			}
			c.p.w.did(c.p, writes, &e.Entry, at)
		}
	}
}

func (c log) Subscribe(_ context.Context, topic, group string) (dispatch.Consumer, error) {
	if err := c.p.ready(); err != nil {
		return nil, err
	}
	m := c.p.w.log.Member(topic, group)
	c.p.mu.Lock()
	c.p.consumers = append(c.p.consumers, m)
	c.p.mu.Unlock()
	return consumer{c.client, m, group}, nil
}

func (c log) End(ctx context.Context, topic string) (dispatch.Position, error) {
	return through(ctx, c.p, opEnd, topic, func(ctx context.Context) (dispatch.Position, error) { return c.p.w.log.End(ctx, topic) })
}

func (c log) Committed(ctx context.Context, topic, group string) (dispatch.Position, error) {
	return through(ctx, c.p, opCommitted, c.p.name+"/"+group, func(ctx context.Context) (dispatch.Position, error) {
		return c.p.w.log.Committed(ctx, topic, group)
	})
}

type consumer struct {
	*client
	*servers.Consumer
	group string
}

func (c consumer) Poll(ctx context.Context, limit int) ([]dispatch.Message, error) {
	if err := c.p.ready(); err != nil {
		return nil, err
	}
	if c.p.w.away("log") {
		c.p.waitFor(ctx, c.p.w.hanging("log"))
		return nil, errOutage
	}
	messages, err := c.Consumer.Poll(ctx, limit)
	if err != nil {
		return nil, cmp.Or(c.p.ready(), err)
	}
	// Decided when there is something: how often a poll came back empty follows from timing.
	key := c.p.name + "/" + c.group
	f := c.p.w.faults.At(c.p.kind, opPoll, key)
	if f.Kind != None {
		c.p.w.tell(c.p.name, key, "FAULT "+f.String())
	}
	switch f.Kind {
	case FailBefore, Redeliver:
		c.Redeliver()
		if f.Kind == FailBefore {
			return nil, errFault
		}
	case DieBefore, DieAfter:
		c.p.die(f.For)
	case StallBefore, StallAfter:
		c.p.w.delayed(c.p, f.For)
		c.p.stall(f.For)
	}
	return messages, c.p.ready()
}

func (c consumer) Commit(ctx context.Context, offsets map[int]int64) error {
	return do(ctx, c.p, opCommit, c.p.name+"/"+c.group, func(ctx context.Context) error { return c.Consumer.Commit(ctx, offsets) })
}

func (c consumer) Close() error {
	if err := c.p.ready(); err != nil {
		return nil //nolint:nilerr // nobody hears of the dead
	}
	return c.Consumer.Close()
}

var (
	opStartNumber = newOp("coord", "StartNumber", Write, seldom)
	opJoin        = newOp("coord", "Join", Read, seldom)
)

type coordinator struct{ *client }

func (c coordinator) StartNumber(ctx context.Context) (int64, error) {
	return through(ctx, c.p, opStartNumber, c.p.name, c.p.w.coord.StartNumber)
}

func (c coordinator) Join(ctx context.Context, role hotbucket.Role) (<-chan []hotbucket.Owner, error) {
	m, err := through(ctx, c.p, opJoin, c.p.name, func(context.Context) (*servers.Member, error) {
		return c.p.w.coord.Member(role), nil
	})
	if err != nil {
		return nil, err
	}
	c.p.mu.Lock()
	c.p.members = append(c.p.members, m)
	c.p.mu.Unlock()
	context.AfterFunc(ctx, func() {
		if c.p.ready() == nil {
			m.Leave() // the dead are noticed when their session times out
		}
	})
	return m.Sets(), nil
}

var (
	opPutIfAbsent = newOp("archive", "PutIfAbsent", Write, 3*seldom)
	opOpen        = newOp("archive", "Open", Read, rarely)
)

type objects struct{ *client }

func (c objects) PutIfAbsent(ctx context.Context, name string, body []byte) error {
	return do(ctx, c.p, opPutIfAbsent, name, func(ctx context.Context) error { return c.p.w.archive.PutIfAbsent(ctx, name, body) })
}

func (c objects) Open(ctx context.Context, name string) (archive.Object, error) {
	return through(ctx, c.p, opOpen, name, func(ctx context.Context) (archive.Object, error) { return c.p.w.archive.Open(ctx, name) })
}

func (c objects) List(ctx context.Context, prefix string) ([]string, error) {
	return c.p.w.archive.List(ctx, prefix)
}

var opInvoke = newOp("target", "Invoke", Call, often)

type transport struct{ *client }

func (c transport) RoundTrip(r *http.Request) (*http.Response, error) {
	key := r.Header.Get("Webhook-Id") + "/" + r.Header.Get("Minutehand-Attempt")
	return through(r.Context(), c.p, opInvoke, key, func(context.Context) (*http.Response, error) {
		return c.p.w.invoke(c.p, r)
	})
}
