package ledger

import (
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
)

// Follower is a job that follows others, and when its registration was answered.
type Follower struct {
	JobID   string
	AckedAt time.Time
}

// followsFrom is how long after the answer an execution is scheduled or asked for that is followed for certain: workers read their jobs up to two
// seconds ahead, and clocks differ.
const followsFrom = 2*time.Second + 2*clock.MaxDifference

// checkFollowers checks I15: who follows others is executed once for each of their executions that ended as it names, or once for each instant
// that all of them had, and for nothing else.
func checkFollowers(r *report, a *Account, i *index) {
	if a.Followers == nil {
		return
	}
	ends := endsOf(a, i)
	acked := map[string]time.Time{}
	for _, f := range a.Followers {
		acked[f.JobID] = f.AckedAt
	}
	changed := map[string]bool{}
	for _, s := range a.Stops {
		changed[s.JobID] = true
	}
	for n := range a.Jobs {
		j := &a.Jobs[n].Job
		own := followers(i, j.ID)
		checkFollowed(r, a, i, ends, j.ID, own)
		at, answered := acked[j.ID]
		d := &j.Definition
		if answered && d.Schedule.Type == job.ScheduleAfter && !changed[j.ID] && !a.Deleted[j.ID] && j.Status == job.StatusActive && len(a.Jobs[n].Superseded) == 0 {
			checkFollows(r, a, ends, d, j.ID, at.Add(followsFrom), own)
		}
	}
}

// followed is the end of an execution, as far as others may follow it.
type followed struct {
	jobID           string
	own, occurrence time.Time
	succeeded, dead bool
	// at is when its last attempt ended. unsettled is set if a log lost that.
	at        time.Time
	unsettled bool
}

// endsOf returns the ends of all executions that are on record.
func endsOf(a *Account, i *index) map[string]*followed {
	ends := map[string]*followed{}
	for id, events := range i.attempts {
		e := &events[0].Entry
		if e.Elsewhere() != nil {
			continue // nothing follows it
		}
		x := &followed{jobID: e.JobID, own: e.NominalAt, occurrence: e.Occurrence(), dead: i.deadLetter[id]}
		for _, e := range events {
			x.succeeded = x.succeeded || e.Outcome.Kind == job.OutcomeSucceeded
			x.at = later(x.at, e.At)
		}
		ends[id] = x
	}
	for n := range a.LostToSettle {
		if x := ends[a.LostToSettle[n].Entry.ExecutionID]; x != nil {
			x.unsettled = true
		}
	}
	return ends
}

// followers returns the executions by which a job follows others: their entries, by their ids.
func followers(i *index, jobID string) map[string]*job.Entry {
	own := map[string]*job.Entry{}
	for _, e := range i.eventsOf[jobID] {
		if e.Entry.Trigger == job.TriggerAfter {
			own[e.Entry.ExecutionID] = &e.Entry
		}
	}
	for _, p := range i.pendingOf[jobID] {
		if p.Trigger == job.TriggerAfter {
			own[p.ExecutionID] = &p.Entry
		}
	}
	return own
}

// checkFollowed checks that a job's executions follow what ended as one of its definitions names, once.
func checkFollowed(r *report, a *Account, i *index, ends map[string]*followed, jobID string, own map[string]*job.Entry) {
	sources, instants := map[string]string{}, map[time.Time]string{}
	for id, e := range own {
		if e.Note == nil || e.Note.Source == "" {
			r.add("I15", jobID, "%s follows nothing", id)
			continue
		}
		x := ends[e.Note.Source]
		if x == nil {
			if !i.called[e.Note.Source] {
				r.add("I15", jobID, "%s follows %s, of which nothing is known", id, e.Note.Source)
			}
			continue
		}
		if !x.occurrence.Equal(e.Occurrence()) {
			r.add("I15", jobID, "%s stands for %s, and follows %s of %s", id, e.Occurrence(), e.Note.Source, x.occurrence)
		}
		named, all := false, false
		for _, d := range i.definitions[jobID] {
			all = all || d.Schedule.All
			for _, p := range d.Schedule.After {
				named = named || p.JobID == x.jobID && !x.own.Before(d.EffectiveAt) && (x.succeeded && p.On.Takes(true) || x.dead && p.On.Takes(false))
			}
		}
		if !named {
			r.add("I15", jobID, "%s follows %s, which no definition names (succeeded %t, dead %t)", id, e.Note.Source, x.succeeded, x.dead)
		}
		if d := definitionOf(i, jobID, e.DefinitionID); d != nil && d.Schedule.All {
			checkAll(r, i, ends, d, e)
		}
		if other := sources[e.Note.Source]; other != "" && !all {
			r.add("I15", jobID, "%s and %s follow %s", id, other, e.Note.Source)
		}
		if other := instants[e.Occurrence()]; other != "" && all {
			r.add("I15", jobID, "%s and %s stand for %s", id, other, e.Occurrence())
		}
		sources[e.Note.Source], instants[e.Occurrence()] = id, id
	}
}

// definitionOf returns a definition of a job; nil if it never had it.
func definitionOf(i *index, jobID, id string) *job.Definition {
	n := slices.IndexFunc(i.definitions[jobID], func(d *job.Definition) bool { return d.ID == id })
	if n < 0 {
		return nil
	}
	return i.definitions[jobID][n]
}

// checkAll checks that all whom an execution follows had its occurrence.
func checkAll(r *report, i *index, ends map[string]*followed, d *job.Definition, e *job.Entry) {
	for _, p := range d.Schedule.After {
		had := false
		for id, x := range ends {
			if x.jobID == p.JobID && x.occurrence.Equal(e.Occurrence()) {
				had = had || x.succeeded && p.On.Takes(true) || x.dead && p.On.Takes(false) || !x.succeeded && !x.dead && i.called[id]
			}
		}
		if !had {
			r.add("I15", e.JobID, "%s stands for %s, for which %s had no execution that ended so", e.ExecutionID, e.Occurrence(), p.JobID)
		}
	}
}

// checkFollows checks that a job whose definition was never changed follows what it names, from an instant on.
func checkFollows(r *report, a *Account, ends map[string]*followed, d *job.Definition, jobID string, from time.Time, own map[string]*job.Entry) {
	sources, instants := map[string]bool{}, map[time.Time]bool{}
	for _, e := range own {
		if e.Note != nil {
			sources[e.Note.Source], instants[e.Occurrence()] = true, true
		}
	}
	had := map[time.Time]map[string]bool{} // which parents had an instant
	for id, x := range ends {
		n := slices.IndexFunc(d.Schedule.After, func(p job.Parent) bool { return p.JobID == x.jobID })
		if n < 0 || x.own.Before(from) || x.unsettled || !x.at.Before(a.Until) || a.Deleted[x.jobID] {
			continue // of a deleted job nothing is followed any more
		}
		on := d.Schedule.After[n].On
		if (!x.succeeded || !on.Takes(true)) && (!x.dead || !on.Takes(false)) {
			continue
		}
		if had[x.occurrence] == nil {
			had[x.occurrence] = map[string]bool{}
		}
		had[x.occurrence][x.jobID] = true
		if !d.Schedule.All && !sources[id] {
			r.add("I15", jobID, "nothing follows %s (succeeded %t, dead %t)", id, x.succeeded, x.dead)
		}
	}
	for at, by := range had {
		if d.Schedule.All && len(by) == len(d.Schedule.After) && !instants[at] {
			r.add("I15", jobID, "nothing follows, though all had an execution for %s", at)
		}
	}
}
