// Package overlap keeps the executions of a schedule apart where its overlap policy asks for that.
//
// What is in progress stands in the cold store, because a retry may be hours away when the hot tier forgets: a list of the rows of the
// job's entries ([jobstore.Jobs.Runs]), which changes by compare-and-set only. An execution is in progress while one of its listed rows is
// open:
//
//   - [Stores.Enter] adds the row of its first attempt, as the last one, before its fire is decided, so also before its successor exists;
//   - [Note] puts the row of another attempt, or of a deferred one, in its place before the row that led to it is marked done.
//
// So an execution has an open row in the list from its decision to its last mark, whichever process dies in between. Nothing is removed
// when it ends: a row that is done does not count, and the next execution to enter, or to be called, leaves it out. A process that stalled
// and adds a row late therefore does no harm.
//
// An execution that was cancelled, or whose place another one took, is over as soon as no attempt of it runs, although its row may be open
// for hours.
//
// The list is the line in which occurrences wait, too, where the policy lets them: the first one is called, and any other when all before
// it have ended ([Stores.Turn]). Nobody is put in before another, so whose turn it was, it is.
package overlap

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// Rows are the entries' rows; [jobstore.Pending] has them.
type Rows interface {
	Rows(ctx context.Context, locators []job.Locator) (map[job.Locator]job.PendingRow, error)
	LowWater(ctx context.Context, partition int) (int64, error)
}

// Records are the attempts' records; [attempts.Records] has them.
type Records interface {
	Lookup(ctx context.Context, keys []attempts.Key) ([]attempts.Record, error)
}

// mostTries bounds how often a change is tried while others change the same list.
const mostTries = 20

// errContended: others changed a job's runs again and again. The caller tries again later.
var errContended = errors.New("the executions in progress change all the time")

// Stores are where what is known of executions is kept.
type Stores struct {
	Jobs    jobstore.Jobs
	Rows    Rows
	Records Records
}

// Place is where an execution stands among those in progress of its job.
type Place struct {
	// Before are the executions in progress that began before it, in order. It is called when they have ended.
	Before []string
	// Full is set if it gives way to the last of them: too many wait already, or that one is of a later instant and is not displaced.
	Full bool
}

// GaveWayTo returns the nominal instant of the last execution before it; zero if it is the first.
func (p *Place) GaveWayTo() time.Time {
	if len(p.Before) == 0 {
		return time.Time{}
	}
	ref, _ := job.ParseExecutionID(p.Before[len(p.Before)-1]) // the ids of entries can be parsed
	return ref.NominalAt
}

// Enter adds the entry's execution to those in progress of its job, after all others, unless there are others of which more than most
// would wait. Of two that enter at once, one is before the other. Executions of which stopped reports that the hot tier lets no further
// attempt begin are in progress only while an attempt runs; nil stands for none.
func (s Stores) Enter(ctx context.Context, e *job.Entry, most int, now time.Time, stopped func(executionID string) bool) (p Place, err error) {
	err = swap(ctx, s.Jobs, e.JobID, func(runs []job.Locator) ([]job.Locator, error) {
		before, entered := ahead(runs, e.ExecutionID)
		open, err := s.inProgress(ctx, before, now, stopped)
		p = Place{Before: executions(open)}
		switch {
		case err != nil:
			return nil, err
		case !entered && len(p.Before) > most:
			p.Full = true
			return nil, nil
		case !entered:
			return append(open, e.Locator), nil // without what is over
		case !slices.Contains(runs, e.Locator): // a row that repeats another one
			return append(append(open, e.Locator), runs[len(before):]...), nil
		case len(open) == len(before):
			return nil, nil
		}
		return append(open, runs[len(before):]...), nil // this proves, too, that what is left out is over: see Turn
	})
	return p, err
}

// Entered reports whether an entry, or one that it repeats, has entered. Others may have given way to it since.
func Entered(ctx context.Context, jobs jobstore.Jobs, e *job.Entry) (bool, error) {
	runs, err := jobs.Runs(ctx, e.JobID)
	return slices.ContainsFunc(runs, func(l job.Locator) bool {
		return l.ExecutionID == e.ExecutionID && l.DefinitionID == e.DefinitionID && l.Attempt == e.Attempt
	}), err
}

// Turn returns the first execution in progress that stands before the entry's, or "" if it is the entry's turn. An execution that has no
// place any more gets the last one.
func (s Stores) Turn(ctx context.Context, e *job.Entry, now time.Time, stopped func(executionID string) bool) (before string, err error) {
	for range mostTries {
		runs, err := s.Jobs.Runs(ctx, e.JobID)
		if err != nil {
			return "", err
		}
		ahead, entered := ahead(runs, e.ExecutionID)
		if !entered {
			if err = s.Jobs.SwapRuns(ctx, e.JobID, runs, append(slices.Clone(runs), e.Locator)); err == nil || errors.Is(err, jobstore.ErrConflict) {
				continue
			}
			return "", err
		}
		for chunk := range slices.Chunk(ahead, lookAtOnce) { // as a rule it is the first
			open, err := s.inProgress(ctx, chunk, now, stopped)
			if err != nil {
				return "", err
			}
			if len(open) > 0 {
				return open[0].ExecutionID, nil
			}
		}
		if len(ahead) == 0 {
			return "", nil
		}
		// Only where the list has not changed do rows that are done prove that their executions are over: the row of another attempt is on
		// the list before the one that led to it is marked. They go off the list, or an entry of another definition for one of them would
		// take its place there, and be called beside this one.
		if err = s.Jobs.SwapRuns(ctx, e.JobID, runs, runs[len(ahead):]); !errors.Is(err, jobstore.ErrConflict) {
			return "", err
		}
	}
	return "", errContended
}

// lookAtOnce is how many rows of those before an execution are read at a time.
const lookAtOnce = 4

// ahead returns the rows that stand before those of an execution, all of them if it has none.
func ahead(runs []job.Locator, executionID string) (before []job.Locator, entered bool) {
	for i, r := range runs {
		if r.ExecutionID == executionID {
			return runs[:i], true
		}
	}
	return runs, false
}

// executions returns the executions of rows, each once.
func executions(rows []job.Locator) (ids []string) {
	for _, r := range rows {
		if !slices.Contains(ids, r.ExecutionID) {
			ids = append(ids, r.ExecutionID)
		}
	}
	return ids
}

// Note puts the row of an attempt of an execution that is in progress in the place of the rows of earlier attempts, which lead to it. Around
// an update, two definitions may have entries for one execution; a row stays while nothing but one of the other definition came.
func Note(ctx context.Context, jobs jobstore.Jobs, e *job.Entry) error {
	return swap(ctx, jobs, e.JobID, func(runs []job.Locator) ([]job.Locator, error) {
		if slices.Contains(runs, e.Locator) {
			return nil, nil
		}
		before, _ := ahead(runs, e.ExecutionID)
		next := append(slices.Clone(before), e.Locator)
		for _, r := range runs[len(before):] {
			earlier := r.Attempt < e.Attempt || r.Attempt == e.Attempt && r.DueAt.Before(e.DueAt)
			if r.ExecutionID != e.ExecutionID || r.DefinitionID != e.DefinitionID || !earlier {
				next = append(next, r)
			}
		}
		return next, nil
	})
}

// Next returns the entry of the occurrence of a job that waited in line, if it is its turn now that others are done; nil if it is not, or
// nobody waits.
func Next(ctx context.Context, jobs jobstore.Jobs, rows Rows, jobID string, now time.Time) (*job.Entry, error) {
	runs, err := jobs.Runs(ctx, jobID)
	if err != nil || len(runs) < 2 {
		return nil, err
	}
	open, err := openRows(ctx, rows, runs, now)
	if err != nil || len(open) == 0 || !open[0].InLine() {
		return nil, err
	}
	return &open[0].Entry, nil
}

// openRows returns those of the rows that are not done, in order. A worker that stalled may have written a row into a bucket that was closed
// meanwhile: nobody finds it there or marks it, and whatever it stands for was done before, under a row that is gone.
func openRows(ctx context.Context, rows Rows, locators []job.Locator, now time.Time) (open []job.PendingRow, err error) {
	found, err := rows.Rows(ctx, locators)
	if err != nil {
		return nil, err
	}
	low, asked := int64(0), false
	for _, l := range locators {
		row, exists := found[l]
		if !exists || row.Done {
			continue
		}
		if !asked && l.Minute <= job.Minute(now.Add(clock.MaxDifference-jobstore.ClosesAfter)) {
			if low, err = rows.LowWater(ctx, l.Partition); err != nil {
				return nil, err
			}
			asked = true
		}
		if l.Minute >= low {
			open = append(open, row)
		}
	}
	return open, nil
}

// swap replaces a job's list by what change makes of it, and starts over if it has changed meanwhile; nil leaves the list as it is.
func swap(ctx context.Context, jobs jobstore.Jobs, jobID string, change func(runs []job.Locator) (next []job.Locator, err error)) error {
	for range mostTries {
		runs, err := jobs.Runs(ctx, jobID)
		if err != nil {
			return err
		}
		next, err := change(runs)
		if err != nil || next == nil {
			return err
		}
		if err = jobs.SwapRuns(ctx, jobID, runs, next); !errors.Is(err, jobstore.ErrConflict) {
			return err
		}
	}
	return errContended
}

// inProgress returns those of the rows whose executions are in progress, in order. An attempt has ended for good before its row is
// marked; then the hot tier knows that first. A row that was decided not to fire counts if somebody has its attempt all the same: a worker
// that stalled may have written its decision over another one.
func (s Stores) inProgress(ctx context.Context, locators []job.Locator, now time.Time, stopped func(executionID string) bool) ([]job.Locator, error) {
	if len(locators) == 0 {
		return nil, nil
	}
	open, err := openRows(ctx, s.Rows, locators, now)
	if err != nil || len(open) == 0 {
		return nil, err
	}
	keys := make([]attempts.Key, len(open), 2*len(open))
	for i := range open {
		keys[i] = attempts.KeyOf(&open[i].Entry)
	}
	// A slow settler may note the next attempt only after that has begun. The one after it cannot begin before: the log is settled in order.
	if stopped != nil {
		for _, k := range keys {
			k.Attempt++
			keys = append(keys, k)
		}
	}
	known, err := s.Records.Lookup(ctx, keys)
	if err != nil {
		return nil, err
	}
	var list []job.Locator
	for i := range open {
		row, rec := &open[i], &known[i]
		switch o := rec.Outcome; {
		case o != nil && (!o.Failed() || !o.Retryable):
		case row.Decision != nil && !row.Decision.Fire && !rec.Exists:
		case stopped != nil && stopped(row.ExecutionID) && !rec.Alive(now) && !known[len(open)+i].Alive(now):
		default:
			list = append(list, row.Locator)
		}
	}
	return list, nil
}
