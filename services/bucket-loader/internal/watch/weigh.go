package watch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/incidents"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// kind is what a look at an occurrence comes to.
type kind int

const (
	// met, missed: the deadline. excused: the occurrence has none, because it was not to be called. undecided: what became of it is not on
	// record yet.
	met kind = iota
	missed
	excused
	undecided
)

// verdict is what a look at an occurrence comes to, and if it missed its deadline, why.
type verdict struct {
	kind   kind
	cause  incidents.Cause
	reason string
}

const noRedis = "Redis does not answer, without which nothing is called."

func miss(c incidents.Cause, format string, args ...any) verdict {
	return verdict{missed, c, fmt.Sprintf(format, args...)}
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return strconv.Itoa(n) + " times"
}

// weigh holds an occurrence against its deadline, which is past.
func (w *Watchdog) weigh(ctx context.Context, j *job.Job, p *place, d incidents.Deadline) (verdict, error) {
	if p.due.Before(p.made) {
		return verdict{kind: excused}, nil
	}
	e, err := w.gather(ctx, j, p)
	if err != nil {
		return verdict{}, err
	}
	if d == incidents.StartWithin {
		switch {
		case e.called && !e.began.IsZero() && e.began.After(p.deadline) && e.waits:
			return miss(incidents.CauseWaits, "It waited for other executions of the job, or for room at its target, and was called %s after its instant.", e.began.Sub(p.due).Round(time.Millisecond)), nil
		case e.called && !e.began.IsZero() && e.began.After(p.deadline):
			return miss(incidents.CauseLate, "It was called %s after its instant.", e.began.Sub(p.due).Round(time.Millisecond)), nil
		case e.called:
			return verdict{kind: met}, nil
		case e.running:
			return verdict{kind: undecided}, nil // when it began will be on record
		}
		return w.notCalled(ctx, j, p, e)
	}
	switch {
	case !e.succeeded.IsZero() && e.succeeded.After(p.deadline):
		return miss(incidents.CauseLate, "It succeeded %s after its instant.", e.succeeded.Sub(p.due).Round(time.Millisecond)), nil
	case !e.succeeded.IsZero():
		return verdict{kind: met}, nil
	case e.refused != "" && e.refused != job.DispositionSkippedMissed && !pausedLater(j, p, e):
		return verdict{kind: excused}, nil
	case e.over && e.called:
		return miss(incidents.CauseFailed, "It was called in vain, %s, and given up.", times(e.attempt)), nil
	case e.called && w.stopped(j, p):
		return verdict{kind: excused}, nil // what is on record of that comes with its next attempt
	case e.calling && e.attempt == 0:
		return miss(incidents.CauseCalling, "Its target was called and has not answered."), nil
	case e.calling:
		return miss(incidents.CauseCalling, "It was called in vain, %s, and its target, called again, has not answered.", times(e.attempt)), nil
	case w.mayKnowMore(p, e):
		return verdict{undecided, incidents.CauseHotTierAway, noRedis}, nil
	case e.running && e.back:
		return verdict{kind: undecided}, nil // its executor may have been unable to say how it went
	case e.running:
		return miss(incidents.CauseCalling, "Its target was called, and nothing is known of how that went: the executor has stopped, or cannot say."), nil
	case e.called:
		return miss(incidents.CauseRetrying, "Its calls, %d so far, have not succeeded, and it is to be called again.", max(e.attempt, 1)), nil
	}
	return w.notCalled(ctx, j, p, e)
}

// mayKnowMore reports whether Redis, when it answers, or the executors, when they have told it again, may say that an occurrence was called. One
// that was due since Redis is away was not, if Redis is away for the others, too: then nobody asks for the lease.
func (w *Watchdog) mayKnowMore(p *place, e *evidence) bool {
	return e.unsure && (w.Clock.Since(p.deadline) < w.HotPatience || e.away && (p.due.Before(e.awaySince) || !w.lease.Unasked()))
}

// pausedLater reports whether a pause let an occurrence go whose deadline was over by then.
func pausedLater(j *job.Job, p *place, e *evidence) bool {
	return !e.called && e.refused == job.DispositionSkippedPaused && p.deadline.Before(j.PausedAt)
}

// notCalled says why an occurrence was not called that was to be.
func (w *Watchdog) notCalled(ctx context.Context, j *job.Job, p *place, e *evidence) (verdict, error) {
	l := w.locator(j, p)
	switch {
	case e.refused == job.DispositionSkippedMissed:
		return miss(incidents.CauseMissed, "It was found so late that the missed_run_policy let it go."), nil
	case pausedLater(j, p, e):
		return miss(incidents.CauseMissed, "It was not called in time, and then the job was paused."), nil
	case e.refused != "":
		return verdict{kind: excused}, nil
	case leftToResume(j, p):
		// It was looked at by a row from before the pause. A resume that was made before it was due may let it be called.
		return verdict{kind: undecided}, nil
	case w.refuses(j, p, l):
		return verdict{kind: excused}, nil
	case w.mayKnowMore(p, e):
		return verdict{undecided, incidents.CauseHotTierAway, noRedis}, nil
	case e.waits:
		return miss(incidents.CauseWaits, "It waits for other executions of the job, or for room at its target."), nil
	case e.over:
		return verdict{kind: undecided}, nil // its record will tell
	}
	row, err := w.Pending.Row(ctx, l)
	there := err == nil
	if err != nil && !errors.Is(err, jobstore.ErrNotFound) {
		return verdict{}, fmt.Errorf("read an entry of job %s: %w", j.ID, err)
	}
	if !there {
		low, err := w.Pending.LowWater(ctx, l.Partition)
		if err != nil {
			return verdict{}, fmt.Errorf("read the low-water mark of partition %d: %w", l.Partition, err)
		}
		if l.Minute < low {
			// It was done, and its record will tell; or it never was there, and there will be none.
			return verdict{undecided, incidents.CauseNotDispatched, "Nothing is on record of it."}, nil
		}
	}
	switch d := row.Decision; {
	case d != nil && d.Refuses():
		return verdict{kind: undecided}, nil // its record will tell of which stop
	case d != nil && !d.Fire && d.Unfired() == job.DispositionSkippedMissed:
		return miss(incidents.CauseMissed, "It was found so late that the missed_run_policy let it go."), nil
	case d != nil && !d.Fire:
		// It gave way, and its record will tell. But an update that reaches back to it, before a worker has carried that out, may let it be called.
		return verdict{kind: undecided}, nil
	case d != nil && d.Waits(), !row.DeferredTo.IsZero():
		return miss(incidents.CauseWaits, "It waits for other executions of the job, or for room at its target."), nil
	case row.Done:
		return verdict{kind: undecided}, nil
	}
	return w.unsent(ctx, j, &row, there, e)
}

// unsent says where an occurrence is that nothing was decided about.
func (w *Watchdog) unsent(ctx context.Context, j *job.Job, row *job.PendingRow, there bool, e *evidence) (verdict, error) {
	var hold job.DispatchHold
	raw, err := w.Settings.Setting(ctx, jobstore.SettingDispatchHold)
	if err == nil && raw != nil {
		err = json.Unmarshal(raw, &hold)
	}
	if err != nil {
		return verdict{}, fmt.Errorf("read what is held: %w", err)
	}
	if hold.Holds(j.Tenant, j.Labels) {
		return miss(incidents.CauseHeld, "Dispatch of the job is paused."), nil
	}
	if !e.away && there {
		ask, cancel := context.WithTimeout(ctx, w.AskWithin)
		defer cancel()
		absent, err := w.Hot.Absent(ask, []*job.Entry{&row.Entry})
		if err == nil && len(absent) == 1 {
			return miss(incidents.CauseNotExecuted, "It was dispatched, or is to be dispatched again, and no executor has begun to call its target."), nil
		}
		if e.away = err != nil; ctx.Err() != nil {
			return verdict{}, ctx.Err() // it was not Redis that was slow
		}
	}
	if e.away {
		return miss(incidents.CauseHotTierAway, noRedis), nil
	}
	return miss(incidents.CauseNotDispatched, "No scheduler-worker has dispatched it."), nil
}

// locator returns where the entry of an occurrence lies, unless the one before it was late.
func (w *Watchdog) locator(j *job.Job, p *place) job.Locator {
	return p.Locator(bucket.Partition(j.ID, w.Partitions), p.at, p.due)
}

// refuses reports whether a job's row lets an occurrence not be called.
func (w *Watchdog) refuses(j *job.Job, p *place, l job.Locator) bool {
	e := job.Entry{Locator: l, JobID: j.ID, Trigger: job.TriggerSchedule, NominalAt: p.at}
	p.Def.Mark(&e)
	v := j.State().JudgeAttempt(&e, p.EndsAt)
	if v == job.VerdictPaused {
		return !p.deadline.Before(j.PausedAt) // otherwise it was paused too late for that
	}
	if v == job.VerdictCancelled {
		return w.stopped(j, p) || !p.deadline.Before(j.EndsAt) // otherwise it was cancelled too late for that
	}
	return v == job.VerdictOutdated
}

// leftToResume reports whether what becomes of an occurrence is for the resume of its job to say.
func leftToResume(j *job.Job, p *place) bool {
	return j.Status == job.StatusPaused && p.at.After(j.PausedAt)
}

// stopped reports whether an occurrence was cancelled by itself, or another took its place.
func (w *Watchdog) stopped(j *job.Job, p *place) bool {
	s := j.State()
	return s.Stops(job.ScheduleExecutionID(j.ID, p.at)) || p.Def.Alone() && p.at.Before(s.StoppedBefore)
}

// evidence is what is on record of an occurrence.
type evidence struct {
	// called: its target was, at began, if that is known; succeeded is when a call had succeeded, and attempt the last one that has ended.
	called           bool
	began, succeeded time.Time
	attempt          int
	// running: an executor has begun an attempt that has not ended; calling: it is at it. over: nothing more follows. waits: it waits for others,
	// or its target.
	running, calling, over, waits bool
	// refused is the disposition of an occurrence that was not called, or not called again, "" for none; skipped that of one that was not called
	// as far as one record says. What was called counts before that.
	refused, skipped job.Disposition
	// away: Redis did not answer. unsure: that, or it may have forgotten something of it.
	away, unsure bool
	// back: it answers again since so short a time that executors may not have told it what they had to.
	back bool
	// awaySince is since when it does not.
	awaySince time.Time
}

// take takes account of how an attempt ended.
func (e *evidence) take(attempt int, o *job.Outcome, over bool) {
	switch {
	case o.Called():
	case attempt == 1:
		e.skipped = o.Disposition
		return
	default:
		e.refused, e.over = job.DispositionCancelled, true
		return
	}
	began := o.Timeline.Invoked
	if e.began.IsZero() || !began.IsZero() && began.Before(e.began) { // of a call whose executor died it is not known
		e.began = began
	}
	e.called, e.attempt, e.over = true, max(e.attempt, attempt), e.over || over
	switch o.Kind {
	case job.OutcomeSucceeded:
		if e.over = true; e.succeeded.IsZero() || o.Timeline.Completed.Before(e.succeeded) {
			e.succeeded = o.Timeline.Completed
		}
	case job.OutcomeCancelled:
		e.over, e.refused = true, job.DispositionCancelled
	}
}

// mostAttempts bounds the records of attempts that are asked for one occurrence, beyond those in the history.
const mostAttempts = 20

// gather gathers what is on record of an occurrence: from the history, and if that does not tell how it ended, from the records of attempts.
func (w *Watchdog) gather(ctx context.Context, j *job.Job, p *place) (*evidence, error) {
	e := &evidence{}
	id := job.ScheduleExecutionID(j.ID, p.at)
	events, err := w.History.Execution(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("read history of job %s: %w", j.ID, err)
	}
	for n := range events {
		switch x := &events[n]; x.Type {
		case job.EventAttempt:
			e.take(x.Entry.Attempt, &x.Outcome, x.Outcome.Failed() && x.Reason() != "")
		case job.EventSkipped:
			e.skipped = x.Disposition
		case job.EventDeferred:
			e.waits = true
		}
	}
	if !e.over && e.skipped == "" {
		if err := w.records(ctx, p, id, e); err != nil {
			return e, err
		}
	}
	if e.called || e.running || e.over {
		return e, nil
	}
	if e.skipped == "" {
		err = w.covering(ctx, j, p, e)
	}
	e.refused, e.over = e.skipped, e.skipped != ""
	return e, err
}

// records takes account of the records of those attempts of which the history does not tell.
func (w *Watchdog) records(ctx context.Context, p *place, id string, e *evidence) error {
	now, partition := w.Clock.Now(), bucket.Partition(p.JobID, w.Partitions)
	known, _ := w.away.Load(partition)
	a, isAway := known.(away)
	if !isAway || !now.Before(a.until) {
		ask, cancel := context.WithTimeout(ctx, w.AskWithin)
		defer cancel()
		if err := w.ask(ask, p, id, e); err == nil {
			if isAway && a.back.IsZero() {
				a.back = now
				w.away.Store(partition, a)
			}
			e.back = isAway && now.Sub(a.back) < backFor
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err() // it was not Redis that was slow
		}
		if !isAway || !a.back.IsZero() || w.stale(a, now) {
			a.since = now
		}
		a.until, a.back = w.Clock.Now().Add(awayFor), time.Time{}
		w.away.Store(partition, a)
	}
	e.away, e.unsure, e.awaySince = true, true, a.since
	if since := time.UnixMilli(w.probedAway.Load()); w.probedAway.Load() != 0 && since.Before(e.awaySince) {
		e.awaySince = since
	}
	return nil
}

// ask asks Redis for the records.
func (w *Watchdog) ask(ctx context.Context, p *place, id string, e *evidence) error {
	for range mostAttempts {
		k := attempts.Key{ExecutionID: id, Attempt: e.attempt + 1}
		found, err := w.Records.Lookup(ctx, []attempts.Key{k})
		if err != nil {
			return err
		}
		rec := &found[0]
		if rec.Outcome == nil {
			e.running = rec.Running
			e.calling = rec.Running && rec.Alive(w.Clock.Now())
			if rec.Exists {
				return nil
			}
			memory, err := w.Records.Memory(ctx, p.JobID)
			e.unsure = !memory.Covers(p.due)
			return err
		}
		o := rec.Outcome
		e.take(k.Attempt, o, o.Failed() && (!o.Retryable || k.Attempt >= p.Def.Retry.MaxAttempts))
		if e.over || e.skipped != "" {
			return nil
		}
		e.attempt = k.Attempt
	}
	return nil
}

// covering looks for the run of skipped instants to which an occurrence belongs.
func (w *Watchdog) covering(ctx context.Context, j *job.Job, p *place, e *evidence) error {
	const read = 200
	events, err := w.History.Executions(ctx, jobstore.OfJob(j), jobstore.Cursor{NominalAt: p.at}.Schedules(j.ID), p.at.Add(-jobstore.HistoryTTL), read)
	if err != nil {
		return fmt.Errorf("read history of job %s: %w", j.ID, err)
	}
	for n := range events {
		if x := &events[n]; x.Type == job.EventSkipped && !p.at.Before(x.Skipped.From) && !p.at.After(x.Skipped.To) {
			e.skipped = x.Disposition
		}
	}
	return nil
}
