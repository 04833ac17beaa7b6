// Package users plays the users of an installation and their targets. The users register jobs of every kind, change, pause,
// trigger, redrive and cancel them, and repeat each request until it is answered. The package keeps what they were
// answered, and what the targets received, for package ledger; none of it comes from the system's own records.
//
// Every schedule has an end, so that an installation comes to rest afterwards.
package users

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/loadtest/ledger"
)

// Config says who plays, and for how long.
type Config struct {
	// Seed decides what the users do; the same seed makes the same requests.
	Seed uint64
	// Jobs is how many they register.
	Jobs int
	// Lasts is how long after the start jobs fall due and are changed.
	Lasts time.Duration
	// Base returns the address of an API, as in "http://127.0.0.1:8080"; the next try asks another one.
	Base func(try int) string
	// NoTenants leaves out tenants and keys, which a release may not know.
	NoTenants bool
	// NoPrecision leaves the precision of jobs out, their overlap policies, and operations: there are releases that do not know them.
	NoPrecision bool
}

// Slack is how long before a change the instants lie that must still be called: whatever is killed or unavailable is back
// sooner.
const Slack = time.Minute

// patience is how long after the end an unanswered request may still be repeated.
const patience = 3 * time.Minute

// travel is how long after its last check a call may reach its target: executors allow themselves a second to begin it.
const travel = 2 * time.Second

// Users have been playing since Start.
type Users struct {
	t       *testing.T
	cfg     Config
	targets *targets
	client  http.Client
	began   time.Time
	done    sync.WaitGroup

	mu     sync.Mutex
	jobs   map[string]*user // by job id
	said   ledger.Account   // what users were answered
	answer map[int]int      // how many answers had a status; 0 for none at all
	// definitions are the ids that answers named, by job; changed are the instants of the answers to updates and resumes.
	definitions map[string][]string
	changed     map[string][]time.Time
}

// user is the owner of one job.
type user struct {
	*Users
	script script
	id     string
	// asked is the index of the job's current schedule in said.Asked; -1 while nothing is owed.
	asked int
}

// Start begins; Wait waits until the users have done everything and the last schedule has ended.
func Start(t *testing.T, cfg Config) *Users {
	t.Helper()
	u := &Users{
		t: t, cfg: cfg, targets: newTargets(t), began: time.Now(), client: http.Client{Timeout: 20 * time.Second}, jobs: map[string]*user{},
		answer: map[int]int{}, definitions: map[string][]string{}, changed: map[string][]time.Time{},
		said: ledger.Account{
			MaxAttempts: map[string]int{}, RetryAfter: map[string]time.Duration{}, Resumed: map[string]bool{}, Deleted: map[string]bool{}, Updated: map[string]time.Time{},
		},
	}
	t.Logf("users: seed %d, %d jobs for %s", cfg.Seed, cfg.Jobs, cfg.Lasts)
	ctx, cancel := context.WithTimeout(t.Context(), cfg.Lasts+patience)
	t.Cleanup(cancel)
	for _, s := range scripts(cfg, u.began, u.targets) {
		u.done.Go(func() { (&user{Users: u, script: s, asked: -1}).play(ctx) })
	}
	u.done.Go(func() { u.redrive(ctx) })
	if !cfg.NoPrecision {
		u.done.Go(func() { u.operate(ctx) })
	}
	if !cfg.NoTenants {
		u.done.Go(func() { u.administer(ctx) })
	}
	return u
}

// Wait returns when the users have done everything, and all schedules have ended.
func (u *Users) Wait() {
	u.t.Helper()
	u.done.Wait()
	_ = run.Sleep(u.t.Context(), time.Until(u.began.Add(u.cfg.Lasts)))
}

// Superseded returns the former definitions of a job, in the order in which they were made: those that users were told of,
// and those that an event names. A job that does not belong to the users has none; without users, no job has any.
func (u *Users) Superseded(ctx context.Context, jobs jobstore.Jobs, j *job.Job, events []job.Event) (list []job.Definition, err error) {
	if u == nil {
		return nil, nil
	}
	u.mu.Lock()
	ids, mine := slices.Clone(u.definitions[j.ID]), u.jobs[j.ID] != nil
	u.mu.Unlock()
	if !mine {
		return nil, nil
	}
	for i := range events {
		if e := &events[i].Entry; e.JobID == j.ID {
			ids = append(ids, e.DefinitionID)
		}
	}
	slices.Sort(ids) // by time
	for _, id := range slices.Compact(ids) {
		if id == j.Definition.ID || id == "" {
			continue
		}
		switch d, _, err := jobs.Definition(ctx, j.ID, id); {
		case err == nil:
			list = append(list, d)
		case !errors.Is(err, jobstore.ErrNotFound): // the row that would have held it was never written
			return nil, err
		}
	}
	return list, nil
}

// WaitForSilence returns once no target was called for a while, or fails.
func (u *Users) WaitForSilence(silence, limit time.Duration) {
	u.t.Helper()
	for began := time.Now(); time.Since(began) < limit; {
		calls := u.targets.all()
		if len(calls) > 0 && time.Since(calls[len(calls)-1].At) > silence {
			return
		}
		_ = run.Sleep(u.t.Context(), 100*time.Millisecond)
	}
	u.t.Errorf("targets are still called %s after the last schedule has ended", limit)
}

// Fill adds what the users and their targets know to an account of the installation at rest.
func (u *Users) Fill(a *ledger.Account) {
	u.mu.Lock()
	defer u.mu.Unlock()
	calls := u.targets.all()
	a.Calls = append(a.Calls, calls...)
	a.Stops = append(a.Stops, u.said.Stops...)
	a.Registered, a.MaxAttempts, a.RetryAfter = append(a.Registered, u.said.Registered...), u.said.MaxAttempts, u.said.RetryAfter
	a.Triggers, a.Resumed, a.Refusals = append(a.Triggers, u.said.Triggers...), u.said.Resumed, append(a.Refusals, u.said.Refusals...)
	a.Operations = append(a.Operations, u.said.Operations...)
	a.Requests, a.Keyed, a.Deleted = append(a.Requests, u.said.Requests...), append(a.Keyed, u.said.Keyed...), u.said.Deleted
	a.Settles = time.Second // everything before the end was waited for
	a.Travel, a.TellsWithin = travel, Slack
	gone := map[string]time.Time{}
	for _, c := range calls {
		if c.Gone && gone[c.JobID].IsZero() {
			gone[c.JobID] = c.At
		}
	}
	for _, asked := range u.said.Asked {
		if at := gone[asked.JobID]; !at.IsZero() && at.Before(asked.Until.Add(Slack)) { // its target paused the job
			asked.Until = at.Add(-Slack)
		}
		a.Asked = append(a.Asked, asked)
	}
	a.Updated = u.updated(a)
}

// updated returns by when definitions had taken effect: at the first answer after the instant that they name.
func (u *Users) updated(a *ledger.Account) map[string]time.Time {
	updated := map[string]time.Time{}
	for n := range a.Jobs {
		j := &a.Jobs[n]
		for i, d := range slices.Concat(j.Superseded, []job.Definition{j.Job.Definition}) {
			for _, at := range u.changed[j.Job.ID] {
				if i > 0 && at.After(d.EffectiveAt) && (updated[d.ID].IsZero() || at.Before(updated[d.ID])) {
					updated[d.ID] = at
				}
			}
		}
	}
	return updated
}

// Summary returns how much the users did, for a test's log.
func (u *Users) Summary() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	kinds := map[ledger.StopKind]int{}
	for _, s := range u.said.Stops {
		kinds[s.Kind]++
	}
	calls := u.targets.all()
	failed := 0
	for _, c := range calls {
		if c.Failed {
			failed++
		}
	}
	return fmt.Sprintf("%d jobs, %d calls (%d failed, %d duplicates), %d triggers and redrives, %d operations, stops %v, answers by status %v", len(u.said.Registered),
		len(calls), failed, repeated(calls), len(u.said.Triggers), len(u.said.Operations), kinds, u.answer)
}

// Duplicates counts the calls of attempts that had been called before.
func (u *Users) Duplicates() int { return repeated(u.targets.all()) }

func repeated(calls []ledger.Call) (n int) {
	seen := map[string]bool{}
	for _, c := range calls {
		attempt := fmt.Sprint(c.ExecutionID, "/", c.Attempt)
		if seen[attempt] {
			n++
		}
		seen[attempt] = true
	}
	return n
}
