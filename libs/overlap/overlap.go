// Package overlap keeps the executions of a schedule apart where its overlap policy asks for that.
//
// What is in progress stands in the cold store, because a retry may be hours away when the hot tier forgets: a list of the rows of the
// job's entries ([jobstore.Jobs.Runs]), which changes by compare-and-set only. An execution is in progress while one of its listed rows is
// open:
//
//   - [Stores.Enter] adds the row of its first attempt before its fire is decided, so also before its successor exists;
//   - [Note] adds the row of another attempt, or of a deferred one, before the row that led to it is marked done.
//
// So an execution has an open row in the list from its decision to its last mark, whichever process dies in between. Nothing is removed
// when it ends: a row that is done does not count, and the next execution to enter leaves it out. A process that stalled and adds a row
// late therefore does no harm.
package overlap

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// Rows are the entries' rows; [jobstore.Pending] has them.
type Rows interface {
	Rows(ctx context.Context, locators []job.Locator) (map[job.Locator]job.PendingRow, error)
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

// Enter adds the entry's execution to those in progress of its job, and returns the zero time. If another one is in progress it adds
// nothing, and returns the nominal instant of that one. Of two that enter at once, only one gets in. Executions of which stopped reports
// that the hot tier lets no further attempt begin are in progress only while an attempt runs; nil stands for none.
func (s Stores) Enter(ctx context.Context, e *job.Entry, now time.Time, stopped func(executionID string) bool) (other time.Time, err error) {
	x, err := swap(ctx, s.Jobs, e, func(runs []job.Locator) (next []job.Locator, other string, err error) {
		var others []job.Locator
		for _, r := range runs {
			if r.ExecutionID == e.ExecutionID {
				next = append(next, r)
			} else {
				others = append(others, r)
			}
		}
		other, err = s.inProgress(ctx, others, now, stopped)
		return next, other, err
	})
	if err != nil || x == "" {
		return other, err
	}
	ref, err := job.ParseExecutionID(x)
	return ref.NominalAt, err
}

// Note adds the row of an attempt of an execution that is in progress. It leaves out rows of earlier attempts, which lead to this one.
func Note(ctx context.Context, jobs jobstore.Jobs, e *job.Entry) error {
	_, err := swap(ctx, jobs, e, func(runs []job.Locator) (next []job.Locator, other string, err error) {
		for _, r := range runs {
			earlier := r.Attempt < e.Attempt || r.Attempt == e.Attempt && r.DueAt.Before(e.DueAt)
			if r.ExecutionID != e.ExecutionID || !earlier {
				next = append(next, r)
			}
		}
		return next, "", nil
	})
	return err
}

// swap adds an entry's row to what of the list is kept, unless another execution is returned.
func swap(
	ctx context.Context, jobs jobstore.Jobs, e *job.Entry, keep func(runs []job.Locator) (next []job.Locator, other string, err error),
) (other string, err error) {
	for range mostTries {
		runs, err := jobs.Runs(ctx, e.JobID)
		if err != nil {
			return "", err
		}
		next, other, err := keep(runs)
		if err != nil || other != "" {
			return other, err
		}
		if slices.Contains(runs, e.Locator) {
			return "", nil // what else is on the list does no harm
		}
		if err = jobs.SwapRuns(ctx, e.JobID, runs, append(next, e.Locator)); !errors.Is(err, jobstore.ErrConflict) {
			return "", err
		}
	}
	return "", errContended
}

// inProgress returns one of the executions of rows that is in progress; "" if none is. An attempt has ended for good before its row is
// marked; then the hot tier knows that first. A row that was decided not to fire counts if somebody has its attempt all the same: a worker
// that stalled may have written its decision over another one.
func (s Stores) inProgress(ctx context.Context, locators []job.Locator, now time.Time, stopped func(executionID string) bool) (string, error) {
	if len(locators) == 0 {
		return "", nil
	}
	rows, err := s.Rows.Rows(ctx, locators)
	if err != nil {
		return "", err
	}
	var open []job.PendingRow
	var keys []attempts.Key
	for _, l := range locators {
		if row, found := rows[l]; found && !row.Done {
			open = append(open, row)
			keys = append(keys, attempts.KeyOf(&row.Entry))
		}
	}
	if len(open) == 0 {
		return "", nil
	}
	known, err := s.Records.Lookup(ctx, keys)
	if err != nil {
		return "", err
	}
	for i := range open {
		row, rec := &open[i], &known[i]
		switch o := rec.Outcome; {
		case o != nil && (!o.Failed() || !o.Retryable):
		case row.Decision != nil && !row.Decision.Fire && !rec.Exists:
		case stopped != nil && stopped(row.ExecutionID) && !rec.Alive(now):
		default:
			return row.ExecutionID, nil
		}
	}
	return "", nil
}
