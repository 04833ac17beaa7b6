package sim

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/loadtest/ledger"
	auditwriter "github.com/minutehand/minutehand/services/audit-writer"
	jobapi "github.com/minutehand/minutehand/services/job-api"
)

// Result is the result of a run.
type Result struct {
	Seed       uint64
	Weather    string
	Violations []ledger.Violation
	Struck     []Fault
	Hits       map[Hit]int
	// Counts of what was done, so that a reader sees that something was.
	Jobs, Calls, Events int
	// Occurrences is how many there were, Excused how many of these may have had more than one disposition.
	Occurrences, Excused int
	// Lateness is that of first attempts, in no particular order.
	Lateness []time.Duration
	// Calm is the lateness where nothing may delay a call (see calmLateness); it is empty in other weathers.
	Calm []time.Duration
	// Seen counts events by their names in sometimes.
	Seen    map[string]int
	moments []moment
}

// Trace returns the result in the form in which it is saved.
func (r *Result) Trace(v *Variant) Trace {
	t := Trace{Seed: r.Seed, Faults: r.Struck}
	if v != nil {
		t.Variant = v.Name
	}
	for _, x := range r.Violations {
		t.Violations = append(t.Violations, x.String())
	}
	return t
}

// turns is how many orders there are for the goroutines of one instant.
const turns = 10_000

// Run runs a seed; if replay is not nil, with a trace's faults instead of the seed's own.
func Run(t *testing.T, seed uint64, v *Variant, replay []Fault) *Result {
	t.Helper()
	if err := jobapi.Warm(); err != nil { // outside the bubble, so that the first seed of a process runs like the others
		t.Fatal(err)
	}
	var w *world
	var a *ledger.Account
	f := newFaults(seed, weatherOf(seed), replay)
	// Outside the bubble: a trace and a seed find the faults in different ways, and that would change the order of
	// goroutines.
	scheduled := f.Schedule(replay, faultsFor, processNames(kinds()...), processNames("scheduler-worker", "bucket-loader"))
	bubble.Test(t, func(t *testing.T) {
		base, end := context.WithCancel(context.Background())
		// With the overlay of ./steady the order of goroutines follows from the time, and so from the seed.
		time.Sleep(time.Duration(seed%turns) * time.Nanosecond)
		time.Sleep(time.Until(dateOf(f.dice)))
		w = newWorld(base, seed, f, v)
		f.from, f.until = w.began, w.began.Add(faultsFor)
		for _, k := range kinds() {
			for _, name := range processNames(k) {
				w.start(k, name, 1)
				time.Sleep(37 * time.Millisecond) // so that few of them act at the same instant
			}
		}
		w.schedule(scheduled)
		w.beginClients()
		time.Sleep(faultsFor)
		w.hot.Widen()
		time.Sleep(time.Until(f.over()) + settleFor)
		for n := 0; n < moreSettling && w.behind(); n++ {
			time.Sleep(settleFor)
		}
		due := time.Now().Add(-unsettled)
		w.read()
		w.stop()
		a = w.account(due)
		end()
		w.background.Wait()
	})
	result := &Result{
		Seed: seed, Weather: w.faults.weather.Name, Violations: w.broken, Struck: w.faults.struck, Hits: w.faults.hits,
		moments: w.moments,
	}
	if a == nil {
		return result
	}
	w.addArchive(t, a)
	result.Violations = append(result.Violations, ledger.Check(a)...)
	result.Jobs, result.Calls, result.Events = len(a.Jobs), len(a.Calls), len(a.Events)
	result.Occurrences, result.Excused = ledger.Occurrences(a)
	result.Lateness, result.Seen = ledger.Lateness(a.Calls), w.seen(a)
	if w.faults.weather.Name == calm.Name {
		result.Calm = calmLateness(a)
	}
	return result
}

// dateOf returns when a run begins: in some runs, four minutes before clocks change in New York (spring or autumn) or on
// Lord Howe Island.
func dateOf(d dice) time.Time {
	const before = 4 * time.Minute
	switch r := d.roll("date"); {
	case r < 0.06:
		return time.Date(2000, 4, 2, 7, 0, 0, 0, time.UTC).Add(-before) // 02:00 is 03:00
	case r < 0.12:
		return time.Date(2000, 10, 29, 6, 0, 0, 0, time.UTC).Add(-before) // 02:00 is 01:00
	case r < 0.18:
		return time.Date(2000, 3, 25, 15, 0, 0, 0, time.UTC).Add(-before) // 02:00 is 01:30
	}
	return time.Time{}
}

// calmLateness returns the lateness of first attempts at healthy targets. It leaves out the jobs that were paused, even if
// a target paused them by answering that it was gone: a resume may fire what it finds missed. It also leaves out jobs whose occurrences may
// wait for one another.
func calmLateness(a *ledger.Account) []time.Duration {
	paused := map[string]bool{}
	for _, s := range a.Stops {
		paused[s.JobID] = paused[s.JobID] || s.Kind == ledger.StopPause
	}
	for _, c := range a.Calls {
		paused[c.JobID] = paused[c.JobID] || strings.HasPrefix(c.Host, "gone.")
	}
	for _, j := range a.Jobs { // what waits for others is late
		for _, d := range append(slices.Clone(j.Superseded), j.Job.Definition) {
			paused[j.Job.ID] = paused[j.Job.ID] || d.MostWaiting() > 0
		}
	}
	return ledger.Lateness(slices.DeleteFunc(slices.Clone(a.Calls), func(c ledger.Call) bool {
		return paused[c.JobID] || !strings.HasPrefix(c.Host, "ok.")
	}))
}

// beginClients begins what clients do while there are faults.
func (w *world) beginClients() {
	dice := w.faults.dice
	if w.pooled {
		w.beginPools()
	}
	if w.faults.weather.Name != calm.Name && dice.roll("holds") < 0.4 {
		w.background.Go(w.hold)
	}
	if dice.roll("administers?") < 0.5 {
		w.background.Go(w.administer)
	}
	if dice.roll("redrives") < 0.5 {
		if dice.roll("redrives all") < 0.5 {
			w.background.Go(w.redriveAll)
		} else {
			w.background.Go(w.redrive)
		}
	}
	if w.variant == nil && dice.roll("follows?") < 0.6 {
		w.mu.Lock()
		w.followers = []ledger.Follower{}
		w.mu.Unlock()
		w.playFollowers()
	}
	if w.variant == nil && dice.roll("operates?") < 0.5 {
		w.background.Go(w.operate)
	}
	if dice.roll("watches?") < 0.5 {
		w.background.Go(w.watch)
	}
	if w.variant == nil && dice.roll("foresees?") < 0.5 {
		w.background.Go(w.foresee)
	}
	for _, together := range scripts(dice, w.began) {
		w.background.Go(func() { w.play(together) })
	}
}

// account gathers what is known about the run. Every instant before until must have its disposition.
func (w *world) account(until time.Time) *ledger.Account {
	ctx := context.Background()
	w.mu.Lock()
	defer w.mu.Unlock()
	a := &ledger.Account{
		From: w.began, Until: until, TakenAt: w.taken, Crashed: w.faults.weather.Crash, HotLost: len(w.losses) > 0, Shortened: w.shortened, Updated: w.cold.Updated(),
		Excused: map[string][]ledger.Window{}, Calls: w.calls, Stops: w.stops, Registered: w.registered, MaxAttempts: w.attempts,
		RetryAfter: w.pauses, Triggers: w.triggers, Removed: w.removed, Operations: w.operations, Unanswered: w.unanswered, Resumed: w.resumed, Refusals: w.refusals, Requests: w.requests,
		Settles: settleFor - time.Minute,
		Deleted: w.deleted, Listed: w.listed, Executions: w.executions, Shown: w.shown, ShownBefore: w.shownBefore, Keyed: w.keyed, ByKey: w.byKey,
		LostToHistory: w.lostToHistory, LostToArchive: w.lostToArchive, LostToSettle: w.lostToSettle, Pending: w.cold.Open(),
	}
	if w.variant == nil {
		a.Incidents, a.Notifications, a.Followers, a.Forecasts = w.incidents, w.notifications, w.followers, w.forecasts
	}
	if w.pooled {
		a.Words = append([]ledger.Word{}, w.words...)
	}
	switch w.faults.weather.Name { // in the others a settler may stand still for as long as the faults last
	case calm.Name:
		a.TellsWithin, a.NoticesWithin = 100*time.Millisecond, 30*time.Second
	case "network":
		a.TellsWithin = 4 * time.Minute
	}
	_, evicted := w.hot.Bounded()
	for i, p := range w.callers {
		at := a.Calls[i].At
		if c := &a.Calls[i]; p == nil { // a worker had it
			c.Untold = c.EndedAt.IsZero() && (w.poolLost(at, until) || w.lostFor(c.JobID, at, until) || evicted > 0)
			continue
		}
		a.Calls[i].Untold = p.isDead() && (w.lostFor(a.Calls[i].JobID, at, until) || evicted > 0)
	}
	a.HotLost, a.Crashed = a.HotLost || evicted > 0, a.Crashed || evicted > 0 // a forgotten outcome may be produced again
	effective := map[string]time.Time{}
	rows, _, _ := w.cold.List(ctx, job.DefaultTenant, "", everything)
	for _, row := range rows {
		if row.IsVoid() {
			continue
		}
		superseded, _ := w.cold.Superseded(row.ID)
		superseded = slices.DeleteFunc(superseded, func(d job.Definition) bool { return d.ID == row.Definition.ID })
		for _, d := range append(superseded, row.Definition) {
			effective[d.ID] = d.EffectiveAt
		}
		a.Excused[row.ID] = w.excused(row.ID)
		if again := w.cold.Repeated(row.ID); (evicted > 0 || w.lostFor(row.ID, w.began, a.Until)) && !again.At.IsZero() { // until the copy is dispatched, or found to be one
			until := w.copyDecided(row.ID, again.At)
			a.Excused[row.ID] = append(a.Excused[row.ID], ledger.Window{From: a.From, To: until})
		}
		a.Jobs = append(a.Jobs, ledger.JobAccount{Job: row, Superseded: superseded})
		events, _ := ledger.History(ctx, w.cold, jobstore.OfJob(&row), time.Time{})
		a.Events = append(a.Events, events...)
	}
	for _, id := range ledger.Settings() {
		events, _ := ledger.History(ctx, w.cold, jobstore.Of{ID: id}, time.Time{})
		a.Events = append(a.Events, events...)
	}
	for i, definition := range w.updates {
		a.Stops[i].EffectiveAt = effective[definition]
	}
	a.DeadLetters, _, _ = w.cold.DeadLetters(ctx, job.DefaultTenant, "", everything)
	return a
}

// unsettled is how long before the end of a run a due occurrence may still have no disposition.
const unsettled = 30 * time.Second

// behind reports whether entries wait that were due long ago. A job that calls a failing target every few seconds may leave more during
// the faults than so small a fleet makes up for in one settleFor.
func (w *world) behind() bool {
	now := time.Now()
	return slices.ContainsFunc(w.cold.Open(), func(row job.PendingRow) bool {
		if row.InLine() { // in a job whose executions take longer than the time between two instants, one always waits
			return !row.Done && row.DueAt.Before(now.Add(time.Minute-settleFor))
		}
		due := row.DueAt
		if row.FirstOfSchedule() { // its target may have put it off again and again
			due = row.ScheduledFor
		}
		return !row.Done && due.Before(now.Add(-unsettled))
	})
}

// everything is more than there is of any kind.
const everything = 1_000_000

// addArchive reads the archive outside the bubble: the Parquet reader shares its decoders with other bubbles.
func (w *world) addArchive(t *testing.T, a *ledger.Account) {
	t.Helper()
	archived, err := auditwriter.ReadArchive(t.Context(), w.archive)
	if err != nil {
		t.Error(err)
	}
	for _, x := range archived {
		a.Archived = append(a.Archived, ledger.Archived(x))
	}
}
