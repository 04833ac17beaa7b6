// Package metered measures the calls of every port: how long they take and how many fail. It wraps the adapters of servers; a call
// of an embedded adapter takes less time than its measurement.
package metered

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/archive"
	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/capacity"
	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/pools"
)

// Meter measures the ports of a process.
type Meter struct {
	seconds  *prometheus.HistogramVec
	failures *prometheus.CounterVec
}

// New returns a meter whose metrics it registers.
func New(to prometheus.Registerer) *Meter {
	m := &Meter{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "minutehand_port_call_seconds", Help: "How long calls of ports took, failed ones too.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 11), // 0.1 ms to 105 s
		}, []string{"port", "operation"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "minutehand_port_failures_total", Help: "Calls of ports that the server could not answer.",
		}, []string{"port", "operation"}),
	}
	to.MustRegister(m.seconds, m.failures)
	return m
}

// answers returns the errors that are a port's regular answers, not failures.
func answers() []error {
	return []error{
		context.Canceled, jobstore.ErrNotFound, jobstore.ErrExists, jobstore.ErrConflict, archive.ErrExists, archive.ErrNotFound,
		hotbucket.ErrStaleEpoch, hotbucket.ErrFull, pools.ErrFull, attempts.ErrFenced, attempts.ErrIncarnation, dispatch.ErrRecreated, dispatch.ErrClosed, io.EOF,
	}
}

func (m *Meter) done(port, operation string, began time.Time, err error) {
	m.seconds.WithLabelValues(port, operation).Observe(time.Since(began).Seconds())
	m.failed(port, operation, err)
}

func (m *Meter) failed(port, operation string, err error) {
	if err == nil {
		return
	}
	for _, answer := range answers() {
		if errors.Is(err, answer) {
			return
		}
	}
	m.failures.WithLabelValues(port, operation).Inc()
}

type boardPort struct {
	capacity.Board
	m *Meter
}

// Board measures a port.
func (m *Meter) Board(p capacity.Board) capacity.Board { return &boardPort{p, m} }

func (x *boardPort) Post(ctx context.Context, r capacity.Report) (err error) {
	defer func(began time.Time) { x.m.done("board", "Post", began, err) }(time.Now())
	err = x.Board.Post(ctx, r)
	return err
}

func (x *boardPort) Read(ctx context.Context) (a []capacity.Report, err error) {
	defer func(began time.Time) { x.m.done("board", "Read", began, err) }(time.Now())
	a, err = x.Board.Read(ctx)
	return a, err
}

type poolsPort struct {
	pools.Queue
	m *Meter
}

// Pools measures a port.
func (m *Meter) Pools(p pools.Queue) pools.Queue { return &poolsPort{p, m} }

func (x *poolsPort) Add(ctx context.Context, t *pools.Task, now time.Time) (err error) {
	defer func(began time.Time) { x.m.done("pools", "Add", began, err) }(time.Now())
	err = x.Queue.Add(ctx, t, now)
	return err
}

func (x *poolsPort) Take(ctx context.Context, p pools.Pool, t pools.Take) (a pools.Taken, err error) {
	defer func(began time.Time) { x.m.done("pools", "Take", began, err) }(time.Now())
	a, err = x.Queue.Take(ctx, p, t)
	return a, err
}

func (x *poolsPort) Bind(ctx context.Context, p pools.Pool, id string, l *pools.Lease, now time.Time) (ok bool, err error) {
	defer func(began time.Time) { x.m.done("pools", "Bind", began, err) }(time.Now())
	ok, err = x.Queue.Bind(ctx, p, id, l, now)
	return ok, err
}

func (x *poolsPort) Leases(ctx context.Context, p pools.Pool, ids []string) (a []*pools.Lease, err error) {
	defer func(began time.Time) { x.m.done("pools", "Leases", began, err) }(time.Now())
	a, err = x.Queue.Leases(ctx, p, ids)
	return a, err
}

func (x *poolsPort) Remove(ctx context.Context, p pools.Pool, id string, fence job.Fence, number int64) (removed bool, err error) {
	defer func(began time.Time) { x.m.done("pools", "Remove", began, err) }(time.Now())
	removed, err = x.Queue.Remove(ctx, p, id, fence, number)
	return removed, err
}

func (x *poolsPort) Forget(ctx context.Context, p pools.Pool, id string) (err error) {
	defer func(began time.Time) { x.m.done("pools", "Forget", began, err) }(time.Now())
	err = x.Queue.Forget(ctx, p, id)
	return err
}

func (x *poolsPort) Lapsed(ctx context.Context, p pools.Pool, now time.Time) (a []*pools.Lease, err error) {
	defer func(began time.Time) { x.m.done("pools", "Lapsed", began, err) }(time.Now())
	a, err = x.Queue.Lapsed(ctx, p, now)
	return a, err
}

func (x *poolsPort) Pools(ctx context.Context, now time.Time) (a []pools.Pool, err error) {
	defer func(began time.Time) { x.m.done("pools", "Pools", began, err) }(time.Now())
	a, err = x.Queue.Pools(ctx, now)
	return a, err
}

func (x *poolsPort) See(ctx context.Context, p pools.Pool, w *pools.Worker) (err error) {
	defer func(began time.Time) { x.m.done("pools", "See", began, err) }(time.Now())
	err = x.Queue.See(ctx, p, w)
	return err
}

func (x *poolsPort) Show(ctx context.Context, p pools.Pool, now time.Time) (a *pools.State, err error) {
	defer func(began time.Time) { x.m.done("pools", "Show", began, err) }(time.Now())
	a, err = x.Queue.Show(ctx, p, now)
	return a, err
}

type bucketsPort struct {
	hotbucket.Buckets
	m *Meter
}

// Buckets measures a port.
func (m *Meter) Buckets(p hotbucket.Buckets) hotbucket.Buckets { return &bucketsPort{p, m} }

func (x *bucketsPort) Add(ctx context.Context, entries []job.Entry) (err error) {
	defer func(began time.Time) { x.m.done("hot buckets", "Add", began, err) }(time.Now())
	err = x.Buckets.Add(ctx, entries)
	return err
}

func (x *bucketsPort) Due(
	ctx context.Context, owners []coord.Owner, ask hotbucket.Ask,
) (a []hotbucket.Given, next []time.Time, err error) {
	defer func(began time.Time) { x.m.done("hot buckets", "Due", began, err) }(time.Now())
	a, next, err = x.Buckets.Due(ctx, owners, ask)
	return a, next, err
}

func (x *bucketsPort) Postpone(ctx context.Context, o coord.Owner, entries []*job.Entry, until time.Time) (err error) {
	defer func(began time.Time) { x.m.done("hot buckets", "Postpone", began, err) }(time.Now())
	err = x.Buckets.Postpone(ctx, o, entries, until)
	return err
}

func (x *bucketsPort) Recall(ctx context.Context, entries []*job.Entry) (err error) {
	defer func(began time.Time) { x.m.done("hot buckets", "Recall", began, err) }(time.Now())
	err = x.Buckets.Recall(ctx, entries)
	return err
}

func (x *bucketsPort) Park(ctx context.Context, o coord.Owner, entries []*job.Entry) (err error) {
	defer func(began time.Time) { x.m.done("hot buckets", "Park", began, err) }(time.Now())
	err = x.Buckets.Park(ctx, o, entries)
	return err
}

func (x *bucketsPort) Remove(ctx context.Context, entries []*job.Entry) (err error) {
	defer func(began time.Time) { x.m.done("hot buckets", "Remove", began, err) }(time.Now())
	err = x.Buckets.Remove(ctx, entries)
	return err
}

func (x *bucketsPort) Absent(ctx context.Context, entries []*job.Entry) (a []job.Locator, err error) {
	defer func(began time.Time) { x.m.done("hot buckets", "Absent", began, err) }(time.Now())
	a, err = x.Buckets.Absent(ctx, entries)
	return a, err
}

func (x *bucketsPort) Claim(ctx context.Context, o coord.Owner, claims []hotbucket.Claim) (a []job.Decision, err error) {
	defer func(began time.Time) { x.m.done("hot buckets", "Claim", began, err) }(time.Now())
	a, err = x.Buckets.Claim(ctx, o, claims)
	return a, err
}

func (x *bucketsPort) Claimed(ctx context.Context, partition int, c hotbucket.Claim) (a *job.Decision, err error) {
	defer func(began time.Time) { x.m.done("hot buckets", "Claimed", began, err) }(time.Now())
	a, err = x.Buckets.Claimed(ctx, partition, c)
	return a, err
}

func (x *bucketsPort) Horizons(ctx context.Context, partitions []int) (a []time.Time, err error) {
	defer func(began time.Time) { x.m.done("hot buckets", "Horizons", began, err) }(time.Now())
	a, err = x.Buckets.Horizons(ctx, partitions)
	return a, err
}

func (x *bucketsPort) SetHorizon(ctx context.Context, o coord.Owner, horizon time.Time) (err error) {
	defer func(began time.Time) { x.m.done("hot buckets", "SetHorizon", began, err) }(time.Now())
	err = x.Buckets.SetHorizon(ctx, o, horizon)
	return err
}

func (x *bucketsPort) SetEpoch(ctx context.Context, o coord.Owner) (err error) {
	defer func(began time.Time) { x.m.done("hot buckets", "SetEpoch", began, err) }(time.Now())
	err = x.Buckets.SetEpoch(ctx, o)
	return err
}

func (x *bucketsPort) Incarnations(ctx context.Context, partitions []int) (a []string, err error) {
	defer func(began time.Time) { x.m.done("hot buckets", "Incarnations", began, err) }(time.Now())
	a, err = x.Buckets.Incarnations(ctx, partitions)
	return a, err
}

type recordsPort struct {
	attempts.Records
	m *Meter
}

// Records measures a port.
func (m *Meter) Records(p attempts.Records) attempts.Records { return &recordsPort{p, m} }

func (x *recordsPort) Acquire(ctx context.Context, k attempts.Key, h attempts.Holder, now, lapsesAt time.Time) (a attempts.Record, b bool, err error) {
	defer func(began time.Time) { x.m.done("records", "Acquire", began, err) }(time.Now())
	a, b, err = x.Records.Acquire(ctx, k, h, now, lapsesAt)
	return a, b, err
}

func (x *recordsPort) Begin(
	ctx context.Context, k attempts.Key, h attempts.Holder, lapsesAt time.Time, c attempts.Check, keptSince time.Time,
) (a job.Fence, b bool, err error) {
	defer func(began time.Time) { x.m.done("records", "Begin", began, err) }(time.Now())
	a, b, err = x.Records.Begin(ctx, k, h, lapsesAt, c, keptSince)
	return a, b, err
}

func (x *recordsPort) Memory(ctx context.Context, jobID string) (a attempts.Memory, err error) {
	defer func(began time.Time) { x.m.done("records", "Memory", began, err) }(time.Now())
	a, err = x.Records.Memory(ctx, jobID)
	return a, err
}

func (x *recordsPort) Start(ctx context.Context, k attempts.Key, t job.Token, c attempts.Check) (a job.Fence, b *job.State, err error) {
	defer func(began time.Time) { x.m.done("records", "Start", began, err) }(time.Now())
	a, b, err = x.Records.Start(ctx, k, t, c)
	return a, b, err
}

func (x *recordsPort) Renew(ctx context.Context, leases []attempts.Lease, lapsesAt time.Time) (err error) {
	defer func(began time.Time) { x.m.done("records", "Renew", began, err) }(time.Now())
	err = x.Records.Renew(ctx, leases, lapsesAt)
	return err
}

func (x *recordsPort) Release(ctx context.Context, k attempts.Key, t job.Token, called bool, definitionID string) (err error) {
	defer func(began time.Time) { x.m.done("records", "Release", began, err) }(time.Now())
	err = x.Records.Release(ctx, k, t, called, definitionID)
	return err
}

func (x *recordsPort) Finish(ctx context.Context, ends []attempts.Completion, now time.Time) (a []attempts.Completed, err error) {
	defer func(began time.Time) { x.m.done("records", "Finish", began, err) }(time.Now())
	a, err = x.Records.Finish(ctx, ends, now)
	return a, err
}

func (x *recordsPort) Refuse(ctx context.Context, k attempts.Key, o job.Outcome, now time.Time) (a attempts.Record, b bool, err error) {
	defer func(began time.Time) { x.m.done("records", "Refuse", began, err) }(time.Now())
	a, b, err = x.Records.Refuse(ctx, k, o, now)
	return a, b, err
}

func (x *recordsPort) Lookup(ctx context.Context, keys []attempts.Key) (a []attempts.Record, err error) {
	defer func(began time.Time) { x.m.done("records", "Lookup", began, err) }(time.Now())
	a, err = x.Records.Lookup(ctx, keys)
	return a, err
}

func (x *recordsPort) SetStop(ctx context.Context, jobID string, s job.State) (holdsIn time.Duration, err error) {
	defer func(began time.Time) { x.m.done("records", "SetStop", began, err) }(time.Now())
	holdsIn, err = x.Records.SetStop(ctx, jobID, s)
	return holdsIn, err
}

func (x *recordsPort) StopsOf(ctx context.Context, jobIDs []string) (a map[string]job.State, err error) {
	defer func(began time.Time) { x.m.done("records", "StopsOf", began, err) }(time.Now())
	a, err = x.Records.StopsOf(ctx, jobIDs)
	return a, err
}

type logPort struct {
	dispatch.Log
	m *Meter
}

// Log measures a port.
func (m *Meter) Log(p dispatch.Log) dispatch.Log { return &logPort{p, m} }

func (x *logPort) Publish(ctx context.Context, topic string, records []dispatch.Message) (err error) {
	defer func(began time.Time) { x.m.done("log", "Publish", began, err) }(time.Now())
	err = x.Log.Publish(ctx, topic, records)
	return err
}

func (x *logPort) End(ctx context.Context, topic string) (a dispatch.Position, err error) {
	defer func(began time.Time) { x.m.done("log", "End", began, err) }(time.Now())
	a, err = x.Log.End(ctx, topic)
	return a, err
}

func (x *logPort) Committed(ctx context.Context, topic, group string) (a dispatch.Position, err error) {
	defer func(began time.Time) { x.m.done("log", "Committed", began, err) }(time.Now())
	a, err = x.Log.Committed(ctx, topic, group)
	return a, err
}

type coordinatorPort struct {
	coord.Coordinator
	m *Meter
}

// Coordinator measures a port.
func (m *Meter) Coordinator(p coord.Coordinator) coord.Coordinator { return &coordinatorPort{p, m} }

func (x *coordinatorPort) StartNumber(ctx context.Context) (a int64, err error) {
	defer func(began time.Time) { x.m.done("coordinator", "StartNumber", began, err) }(time.Now())
	a, err = x.Coordinator.StartNumber(ctx)
	return a, err
}

type archivePort struct {
	archive.Archive
	m *Meter
}

// Archive measures a port.
func (m *Meter) Archive(p archive.Archive) archive.Archive { return &archivePort{p, m} }

func (x *archivePort) PutIfAbsent(ctx context.Context, name string, body []byte) (err error) {
	defer func(began time.Time) { x.m.done("archive", "PutIfAbsent", began, err) }(time.Now())
	err = x.Archive.PutIfAbsent(ctx, name, body)
	return err
}

func (x *archivePort) Open(ctx context.Context, name string) (a archive.Object, err error) {
	defer func(began time.Time) { x.m.done("archive", "Open", began, err) }(time.Now())
	if a, err = x.Archive.Open(ctx, name); err == nil {
		a = &object{a, x.m}
	}
	return a, err
}

type object struct {
	archive.Object
	m *Meter
}

func (x *object) ReadAt(p []byte, offset int64) (n int, err error) {
	defer func(began time.Time) { x.m.done("archive", "ReadAt", began, err) }(time.Now())
	n, err = x.Object.ReadAt(p, offset)
	return n, err
}

func (x *archivePort) List(ctx context.Context, prefix string) (a []string, err error) {
	defer func(began time.Time) { x.m.done("archive", "List", began, err) }(time.Now())
	a, err = x.Archive.List(ctx, prefix)
	return a, err
}

// Subscribe measures the consumer's commits, and counts its polls that fail. A poll that succeeds waits for records, so its
// duration says nothing about the server.
func (x *logPort) Subscribe(ctx context.Context, topic, group string) (c dispatch.Consumer, err error) {
	defer func(began time.Time) { x.m.done("log", "Subscribe", began, err) }(time.Now())
	if c, err = x.Log.Subscribe(ctx, topic, group); err == nil {
		c = &consumer{c, x.m}
	}
	return c, err
}

type consumer struct {
	dispatch.Consumer
	m *Meter
}

func (x *consumer) Poll(ctx context.Context, limit int) (a []dispatch.Message, err error) {
	a, err = x.Consumer.Poll(ctx, limit)
	if ctx.Err() == nil {
		x.m.failed("log", "Poll", err)
	}
	return a, err
}

func (x *consumer) Commit(ctx context.Context, offsets map[int]int64) (err error) {
	defer func(began time.Time) { x.m.done("log", "Commit", began, err) }(time.Now())
	err = x.Consumer.Commit(ctx, offsets)
	return err
}
