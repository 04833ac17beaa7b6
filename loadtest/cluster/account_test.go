//go:build servers

package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/loadtest/ledger"
	auditwriter "github.com/minutehand/minutehand/services/audit-writer"
)

// account gathers what the stores and the sink hold about an installation that has come to rest.
func (f *platform) account() *ledger.Account {
	f.t.Helper()
	ctx := f.t.Context()
	f.mu.Lock()
	a := &ledger.Account{Until: time.Now(), Crashed: true, Calls: f.sink.all(), Requests: slices.Clone(f.requests)}
	f.mu.Unlock()
	for cursor := ""; ; {
		page, next, err := f.ports.Jobs.List(ctx, job.DefaultTenant, cursor, 1000)
		f.must(err)
		for _, j := range page {
			if j.IsVoid() {
				continue
			}
			a.Jobs = append(a.Jobs, ledger.JobAccount{Job: j})
		}
		if cursor = next; next == "" {
			break
		}
	}
	var err error
	a.Events, err = f.history(ctx, a.Jobs)
	f.must(err)
	for _, id := range ledger.Settings() {
		events, err := ledger.History(ctx, f.ports.History, jobstore.Of{ID: id}, time.Now().Add(-time.Hour))
		f.must(err)
		a.Events = append(a.Events, events...)
	}
	if f.mixed {
		told := map[string]bool{}
		a.Events = slices.DeleteFunc(a.Events, func(e job.Event) bool {
			again := e.Type == job.EventChange && told[e.ID]
			told[e.ID] = true
			return again
		})
	}
	for cursor := ""; ; {
		page, next, err := f.ports.History.DeadLetters(ctx, job.DefaultTenant, cursor, 1000)
		f.must(err)
		a.DeadLetters = append(a.DeadLetters, page...)
		if cursor = next; next == "" {
			break
		}
	}
	for p := range partitions {
		rows, err := openRows(ctx, f.ports.Pending, p)
		f.must(err)
		a.Pending = append(a.Pending, rows...)
	}
	if f.played != nil {
		for n := range a.Jobs {
			a.Jobs[n].Superseded, err = f.played.Superseded(ctx, f.ports.Jobs, &a.Jobs[n].Job, a.Events)
			f.must(err)
		}
		f.played.Fill(a)
	}
	return a
}

// history reads the events of jobs, several at once.
func (f *platform) history(ctx context.Context, jobs []ledger.JobAccount) ([]job.Event, error) {
	const readers = 16
	var wg sync.WaitGroup
	var mu sync.Mutex
	var events []job.Event
	var errs []error
	for part := range slices.Chunk(jobs, len(jobs)/readers+1) {
		wg.Go(func() {
			for _, j := range part {
				of, err := ledger.History(ctx, f.ports.History, jobstore.OfJob(&j.Job), j.Job.CreatedAt.Add(-time.Hour))
				mu.Lock()
				events, errs = append(events, of...), append(errs, err)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return events, errors.Join(errs...)
}

// openRows reads the open buckets of a partition.
func openRows(ctx context.Context, pending jobstore.Pending, partition int) (rows []job.PendingRow, err error) {
	from, err := pending.LowWater(ctx, partition)
	if err != nil {
		return nil, err
	}
	to := job.Minute(time.Now()) + 60
	for {
		minute, ok, err := pending.FirstOpen(ctx, partition, from, to)
		if err != nil || !ok {
			return rows, err
		}
		var after *job.Locator
		for {
			page, err := pending.Scan(ctx, partition, minute, after, 1000)
			if err != nil {
				return rows, err
			}
			rows = append(rows, page...)
			if len(page) < 1000 {
				break
			}
			after = &page[len(page)-1].Locator
		}
		from = minute + 1
	}
}

// rest returns what keeps an installation from being at rest: a call that is not on record, an event that is missing from
// the archive or exists only there, or an entry that is not done.
func (f *platform) rest(a *ledger.Account) string {
	f.t.Helper()
	archived, err := auditwriter.ReadArchive(f.t.Context(), f.ports.Archive)
	f.must(err)
	a.Archived = make([]ledger.Archived, 0, len(archived))
	ids := make(map[string]bool, len(archived))
	for _, x := range archived {
		a.Archived = append(a.Archived, ledger.Archived(x))
		ids[x.EventID] = true
	}
	recorded := map[string]bool{}
	for i := range a.Events {
		e := &a.Events[i]
		if !ids[e.ID] {
			return fmt.Sprintf("an event that is not archived: %+v", *e)
		}
		delete(ids, e.ID)
		if e.Type == job.EventAttempt {
			recorded[attemptOf(e.Entry.ExecutionID, e.Entry.Attempt)] = true
		}
	}
	if len(ids) > 0 {
		return fmt.Sprintf("%d events that are archived and not in the history", len(ids))
	}
	for _, c := range a.Calls {
		if x := attemptOf(c.ExecutionID, c.Attempt); !recorded[x] { // the events were read before the calls
			return "no record of the call of " + x
		}
	}
	for i := range a.Pending {
		if !a.Pending[i].Done {
			return fmt.Sprintf("an entry that is not done: %+v", a.Pending[i])
		}
	}
	return ""
}

func attemptOf(executionID string, attempt int) string {
	return fmt.Sprintf("%s/%d", executionID, attempt)
}

// restWithin is how long an installation may take until it is at rest: an entry whose registration was cut short is dropped
// two minutes after it was written.
const restWithin = 4 * time.Minute

// check waits until history and archive are complete, and fails for every invariant that is broken.
func (f *platform) check(change func(*ledger.Account)) {
	f.t.Helper()
	var a *ledger.Account
	for deadline := time.Now().Add(restWithin); ; {
		a = f.account()
		lacks := f.rest(a)
		if lacks == "" {
			break
		}
		if time.Now().After(deadline) {
			f.t.Errorf("there still is, %s after the last call, %s", restWithin, lacks)
			break
		}
	}
	if f.played != nil && !f.mixed { // a release before has no accounts
		a.Shown = f.played.Accounts()
	}
	if change != nil {
		change(a)
	}
	for _, v := range ledger.Check(a) {
		f.t.Error(v)
	}
	f.t.Logf("%d jobs, %d calls, %d events, %d of the archive: every invariant holds, or is told above", len(a.Jobs), len(a.Calls),
		len(a.Events), len(a.Archived))
}
