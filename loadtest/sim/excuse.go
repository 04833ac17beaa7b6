package sim

import (
	"time"

	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/loadtest/ledger"
)

// span is a time during which a worker was held up.
type span struct {
	ledger.Window
	worker string
	// woke is when it first went on: it may have been held up again at once.
	woke time.Time
}

// deed is something a worker did about a job, or about one of its instants as a definition has it. Around an update two
// definitions may share an instant, and an entry of the former one is dropped while the other's is in hand.
type deed struct {
	worker, jobID, definition string
	nominal, at               time.Time
	kind                      deedKind
}

type deedKind int

const (
	reads  deedKind = iota // reads the job, whichever instant it is for
	claims                 // claims an instant
	writes                 // writes an entry, a decision, a fire or an event
	leaves                 // is done with an instant
)

// window is the shortest catch-up window of the workload.
const window = 10 * time.Second

// delayed notes that a worker is held up, once for long or several times without a pause. If the hot tier is lost
// meanwhile, I1 promises nothing. A stall holds up everything that the worker has in flight, a slow call only what comes
// right after it.
func (w *world) delayed(p *process, d time.Duration, stall bool) {
	if p.kind == "scheduler-worker" && d >= time.Second {
		w.mu.Lock()
		defer w.mu.Unlock()
		now := time.Now()
		end := now.Add(d)
		for i, s := range w.slow { // held up again
			goesOn := s.To.Equal(now) || s.To.After(now) && s.long()
			if s.worker == p.name && goesOn && end.After(s.To) {
				w.slow[i].To = end
			}
		}
		w.slow = append(w.slow, span{ledger.Window{From: now, To: end}, p.name, end})
	}
}

// long reports whether a catch-up window may end during a span.
func (s *span) long() bool { return s.To.Sub(s.From) >= window-time.Second }

// did notes something a worker does about an instant of a schedule. Nothing follows from the row of an occurrence that waits,
// so it is not noted.
func (w *world) did(p *process, kind deedKind, e *job.Entry, nominal time.Time) {
	if p.kind == "scheduler-worker" && e.FirstOfSchedule() && !e.Chained {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.deeds = append(w.deeds, deed{p.name, e.JobID, e.DefinitionID, nominal, time.Now(), kind})
	}
}

// hasRead notes that a worker reads jobs.
func (w *world) hasRead(p *process, ids []string) {
	if p.kind == "scheduler-worker" {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, id := range ids {
			w.deeds = append(w.deeds, deed{p.name, id, "", time.Time{}, time.Now(), reads})
		}
	}
}

const (
	// inHand is how long a worker takes at most to be done with what it has claimed, unless it is held up.
	inHand = window
	// copied is how long it takes at most until the copy of a first entry is dispatched, unless the hot tier has no room for
	// it.
	copied = time.Minute
)

// excused returns the instants of a job that a worker had in hand when it was held up and the hot tier was lost meanwhile,
// and those that it writes before it reads the job again. A range begins at the instant that it wrote about and lasts until
// that is decided, because the decision may cover everything before.
func (w *world) excused(jobID string) (list []ledger.Window) {
	for _, s := range w.slow {
		if !s.long() || !w.lostFor(jobID, s.From, s.To) || !w.had(s, jobID) {
			continue
		}
		again := false
		for _, x := range w.deeds {
			if x.worker != s.worker || x.jobID != jobID || x.at.Before(s.woke) || !x.at.Before(s.To.Add(inHand)) {
				continue
			}
			again = again || x.kind == reads
			if x.kind == writes && (!again || x.nominal.Before(s.From.Add(inHand))) {
				list = append(list, ledger.Window{From: x.nominal, To: w.decided(x, s.To)})
			}
		}
	}
	return list
}

// had reports whether a worker that was held up had read a job, or had one of its instants, and was not done with it.
func (w *world) had(s span, jobID string) bool {
	type instant struct {
		nominal    int64
		definition string
	}
	open := map[instant]bool{}
	read := false
	for _, x := range w.deeds {
		if x.worker == s.worker && x.jobID == jobID && x.at.After(s.From.Add(-inHand)) && !x.at.After(s.From) {
			read = x.kind == reads || read && x.kind != leaves
			if x.kind != reads && !x.nominal.After(s.From.Add(clock.MaxDifference)) {
				open[instant{x.nominal.UnixMilli(), x.definition}] = x.kind != leaves
			}
		}
	}
	for _, o := range open {
		read = read || o
	}
	return read
}

// decided returns when something was last written about an instant that was past when x was done, but no earlier than after. What
// was written began a chain beside the one that others go on with; a late decision about an instant of theirs covers instants of both.
func (w *world) decided(x deed, after time.Time) time.Time {
	for _, y := range w.deeds {
		if y.jobID == x.jobID && y.kind == writes && !y.nominal.After(x.at) && y.at.After(after) {
			after = y.at
		}
	}
	return after
}

// copyDecided returns when something was last written about an instant of a job that may belong to the chain which the copy of its first
// entry began: one that was already past when the copy was written, or that was written about by the time at which the copy has been
// dispatched. Each link of that chain is either found decided or decided once more, and a late decision covers what came since.
func (w *world) copyDecided(jobID string, written time.Time) time.Time {
	dispatched := written.Add(copied)
	links := map[int64]bool{}
	until := dispatched
	for _, y := range w.deeds { // in the order of their instants
		if y.jobID != jobID || y.kind != writes {
			continue
		}
		n := y.nominal.UnixMilli()
		links[n] = links[n] || !y.nominal.After(written) || !y.at.After(dispatched)
		if links[n] && y.at.After(until) {
			until = y.at
		}
	}
	return until
}
