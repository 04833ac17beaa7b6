package reads

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/operations"
	"github.com/minutehand/minutehand/libs/pools"
	"github.com/minutehand/minutehand/libs/schedule"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
	"github.com/minutehand/minutehand/services/job-api/internal/form"
)

// listExecutions shows a page of a job's executions, the newest first.
func (rs *Reads) listExecutions(ctx context.Context, r *edge.Request) (edge.Response, error) {
	j, err := rs.Find(ctx, r, r.PathValue("id"))
	if err != nil {
		return edge.Response{}, err
	}
	before, ok := parsePosition(r.Parameters["cursor"])
	if !ok {
		return edge.Response{}, edge.BadCursor()
	}
	oldest, to := span(r, rs.Clock.Now())
	if last := to.Add(-time.Millisecond); !to.IsZero() && (before.NominalAt.IsZero() || last.Before(before.NominalAt)) {
		before = jobstore.Cursor{NominalAt: last}
	}
	executions, last, more, err := rs.executions(ctx, &j, before, oldest, maxRowsRead)
	if err != nil {
		return edge.Response{}, err
	}
	logs := logs{rs: rs, of: r.Tenant()}
	result := newPage()
	size := 0
	for _, x := range executions {
		if state := r.Parameters["state"]; state != "" && x.State != state {
			continue
		}
		if len(result.Items) >= r.Limit() || size >= maxPageBytes {
			// An execution and a run of skipped occurrences may begin at one instant, after a loss (I1): one page has both.
			if cursor := result.Items[len(result.Items)-1].(*Execution).position(); cursor != x.position() {
				result.NextCursor = &cursor
				return edge.Response{Status: http.StatusOK, Body: result}, nil
			}
		}
		logs.put(ctx, x)
		result.Items = append(result.Items, x)
		for i := range x.Attempts {
			size += 512 + len(x.Attempts[i].ResponseBody) + len(x.Attempts[i].Error) + len(x.Attempts[i].LogsURL)
		}
	}
	if more {
		cursor := position(last.NominalAt, last.ExecutionID)
		result.NextCursor = &cursor
	}
	return edge.Response{Status: http.StatusOK, Body: result}, nil
}

// executions returns the newest executions of a job before a position, from at most limit events. An execution whose events
// the limit cuts off is left out, unless it is the only one. more reports whether there may be older ones, after the place of last.
func (rs *Reads) executions(
	ctx context.Context, j *job.Job, before jobstore.Cursor, oldest time.Time, limit int,
) (list []*Execution, last jobstore.Cursor, more bool, err error) {
	events, err := rs.History.Executions(ctx, jobstore.OfJob(j), before, oldest, limit)
	if err != nil {
		return nil, last, false, fmt.Errorf("read history of job %s: %w", j.ID, err)
	}
	list, more = group(events), len(events) == limit
	if more && len(list) > 0 {
		cut := list[len(list)-1].position()
		if whole := slices.IndexFunc(list, func(x *Execution) bool { return x.position() == cut }); whole > 0 {
			list = list[:whole]
		} else if err := rs.complete(ctx, list); err != nil {
			return nil, last, false, err
		}
	}
	if n := len(list); n > 0 {
		last = jobstore.Cursor{NominalAt: list[n-1].NominalAt, ExecutionID: list[n-1].ExecutionID}
	}
	stops := j.State()
	for _, x := range list {
		x.Cancelling = x.cancelling(stops)
	}
	return slices.DeleteFunc(list, (*Execution).nothing), last, more && len(list) > 0, nil
}

// complete reads the whole of executions of which the events may be cut off.
func (rs *Reads) complete(ctx context.Context, list []*Execution) error {
	for i, x := range list {
		if x.Skipped != nil {
			continue
		}
		events, err := rs.History.Execution(ctx, x.ExecutionID)
		if err != nil {
			return fmt.Errorf("read history of execution %s: %w", x.ExecutionID, err)
		}
		for _, whole := range group(events) {
			if whole.Skipped == nil {
				list[i] = whole
			}
		}
	}
	return nil
}

// getExecution shows an execution.
func (rs *Reads) getExecution(ctx context.Context, r *edge.Request) (edge.Response, error) {
	x, err := rs.Execution(ctx, r, r.PathValue("execution_id"))
	if err != nil {
		return edge.Response{}, err
	}
	(&logs{rs: rs, of: r.Tenant()}).put(ctx, x)
	return edge.Response{Status: http.StatusOK, Body: x}, nil
}

// logs says where the logs of workers are that made attempts.
type logs struct {
	rs *Reads
	of job.Tenant
	// set is what is set for a pool, which was asked for last.
	pool string
	set  pools.Settings
}

// put says it of the attempts of an execution. If it cannot be read, it is left out.
func (l *logs) put(ctx context.Context, x *Execution) {
	for i := range x.Attempts {
		a := &x.Attempts[i]
		if a.pool == "" {
			continue
		}
		if l.pool != a.pool {
			set, err := l.rs.Pools.Of(ctx, pools.Pool{Tenant: l.of, Name: a.pool})
			if err != nil {
				return
			}
			l.pool, l.set = a.pool, set
		}
		a.LogsURL = l.set.Logs(pools.Subject{Pool: a.pool, Worker: a.Worker, Job: x.JobID, Execution: x.ExecutionID, Attempt: a.Number})
	}
}

// Execution assembles what is known of an execution of the request's tenant. It fails with jobstore.ErrNotFound, or a problem, if
// there is none.
func (rs *Reads) Execution(ctx context.Context, r *edge.Request, id string) (*Execution, error) {
	ref, err := job.ParseExecutionID(id)
	if err != nil || ref.Trigger == job.TriggerChange {
		return nil, edge.NotFound()
	}
	j, err := rs.Find(ctx, r, ref.JobID)
	if err != nil {
		return nil, err
	}
	x, err := rs.recorded(ctx, id)
	if err == nil && x == nil {
		x, err = rs.pending(ctx, &j, id, ref)
		if errors.Is(err, jobstore.ErrNotFound) { // or it was pending when the history was read, and has ended since
			if ended, failed := rs.recorded(ctx, id); failed != nil || ended != nil {
				x, err = ended, failed
			}
		}
	}
	if err != nil {
		return nil, err
	}
	x.Cancelling = x.cancelling(j.State())
	return x, nil
}

// recorded returns an execution of which the history has events; nil if it has none.
func (rs *Reads) recorded(ctx context.Context, id string) (*Execution, error) {
	events, err := rs.History.Execution(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("read history of execution %s: %w", id, err)
	}
	if x := group(events); len(x) > 0 && !x[0].nothing() {
		return x[0], rs.underWay(ctx, x[0])
	}
	return nil, nil
}

// pending shows an execution that has no event yet: its record reports whether it runs, its entry whether it exists.
func (rs *Reads) pending(ctx context.Context, j *job.Job, id string, ref job.ExecutionRef) (*Execution, error) {
	x := &Execution{
		ExecutionID: id, JobID: j.ID, Trigger: ref.Trigger, NominalAt: ref.NominalAt, ScheduledFor: ref.NominalAt,
		State: "pending", Attempts: []attempt{}, alone: ref.Trigger == job.TriggerSchedule && j.Definition.Alone(),
	}
	if ref.Trigger == job.TriggerSchedule {
		series, err := form.Compile(j.ID, &j.Definition)
		if err != nil {
			return nil, err
		}
		x.ScheduledFor = series.Plan.ScheduledFor(ref.NominalAt)
	}
	e := job.Entry{NominalAt: ref.NominalAt}
	schedule.Localize(&e, &j.Definition.Schedule)
	x.Local = local(ref.NominalAt, e.Note)
	if err := rs.underWay(ctx, x); err != nil || x.State != "pending" {
		return x, err
	}
	l := job.Locator{
		Partition: bucket.Partition(j.ID, rs.Partitions), Minute: job.Minute(x.ScheduledFor), DueAt: x.ScheduledFor,
		ExecutionID: id, Attempt: 1, DefinitionID: j.Definition.ID,
	}
	switch ref.Trigger {
	case job.TriggerSchedule:
	case job.TriggerBackfill, job.TriggerReplay: // an operation may hand it out long after it was asked for
		return x, rs.findRequested(ctx, l, operations.Lasts)
	default: // the entry was written after its key was claimed
		return x, rs.findRequested(ctx, l, jobstore.KeyTTL)
	}
	if _, err := rs.Pending.Row(ctx, l); err != nil {
		return nil, fmt.Errorf("read entry of execution %s: %w", id, err)
	}
	return x, nil
}

// findRequested looks for the entry of a request in the open buckets. The entry was written within a time, and may have waited since for room in
// its target's lane. A bucket with an entry that is not done stays open, and what is done
// is on record. The entry's definition is the one that was in force then.
func (rs *Reads) findRequested(ctx context.Context, l job.Locator, within time.Duration) error {
	written := l.Minute + int64(within/time.Minute) // at the latest
	err := rs.findOpen(ctx, l.Partition, l.Minute, written+2, func(row *job.PendingRow) bool { return row.ExecutionID == l.ExecutionID })
	if errors.Is(err, errGaveUp) {
		return jobstore.ErrNotFound
	}
	return err
}

// errGaveUp: what was looked for may be behind what was read.
var errGaveUp = errors.New("too much is in the open buckets to look through")

// findOpen looks for an entry in the open buckets of a partition, in the minutes of [from, to) that are not ahead. It fails with
// jobstore.ErrNotFound if it is not there, or with errGaveUp.
func (rs *Reads) findOpen(ctx context.Context, partition int, from, to int64, is func(row *job.PendingRow) bool) error {
	low, err := rs.Pending.LowWater(ctx, partition)
	if err != nil {
		return fmt.Errorf("read low-water mark of partition %d: %w", partition, err)
	}
	to = min(to, max(job.Minute(rs.Clock.Now()), from)+2) // by the clock of the process that wrote it
	from = max(from, low)
	gaveUp := false
	for range requestBuckets {
		minute, ok, err := rs.Pending.FirstOpen(ctx, partition, from, to)
		if err != nil {
			return fmt.Errorf("find open bucket of partition %d from minute %d: %w", partition, from, err)
		}
		if !ok {
			if gaveUp {
				return errGaveUp
			}
			return jobstore.ErrNotFound
		}
		found, whole, err := rs.openIn(ctx, partition, minute, is)
		if found || err != nil {
			return err
		}
		gaveUp = gaveUp || !whole
		from = minute + 1
	}
	return errGaveUp
}

// openIn reports whether an entry that is the one is in a bucket, and whether the whole bucket was looked through.
func (rs *Reads) openIn(ctx context.Context, partition int, minute int64, is func(row *job.PendingRow) bool) (found, whole bool, err error) {
	var after *job.Locator
	for range requestPages {
		rows, err := rs.Pending.Scan(ctx, partition, minute, after, requestPage)
		if err != nil {
			return false, false, fmt.Errorf("scan bucket of partition %d and minute %d: %w", partition, minute, err)
		}
		for i := range rows {
			if is(&rows[i]) {
				return true, false, nil
			}
		}
		if len(rows) < requestPage {
			return false, true, nil
		}
		after = &rows[len(rows)-1].Locator
	}
	return false, false, nil
}

// Bounds on the search for an entry: how many open buckets are read, and how many pages of each.
const (
	requestBuckets = 60
	requestPages   = 10
	requestPage    = 500
)

// underWay looks at the record of the attempt that is next, or running.
func (rs *Reads) underWay(ctx context.Context, x *Execution) error {
	if x.Ended() {
		return nil
	}
	k := attempts.Key{ExecutionID: x.ExecutionID, Attempt: len(x.Attempts) + 1}
	records, err := rs.Outcomes.Lookup(ctx, []attempts.Key{k})
	if err != nil {
		return fmt.Errorf("look up attempt %d of execution %s: %w", k.Attempt, k.ExecutionID, err)
	}
	if rec := records[0]; rec.Alive(rs.Clock.Now()) {
		x.State = "dispatched"
		if rec.Running {
			x.State = "running"
		}
	}
	return nil
}
