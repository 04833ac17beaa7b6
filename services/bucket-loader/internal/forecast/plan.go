package forecast

import (
	"time"

	"github.com/minutehand/minutehand/libs/forecast"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/schedule"
)

// head is where a schedule goes on: at an instant, with its ordinal, of which most is the last; 0 for no last one.
type head struct {
	tenant        job.Tenant
	plan          *schedule.Plan
	at            time.Time
	ordinal, most int
	// stopped is set if the execution of that instant was cancelled, so that only what comes after it fires.
	stopped bool
}

// counts reports whether a row may be a planned fire, or lead to some. The entry of a schedule that was ahead does so though it is done by now, and
// so does one that was behind, however long, if a run of instants was skipped with it: some of them may have been ahead.
func (p *pass) counts(r *job.PendingRow) bool {
	jumped := r.Decision != nil && r.Decision.Skipped != nil
	return r.Trigger != job.TriggerChange && (!r.Done || r.Attended() && (jumped || r.DueAt.After(p.began)))
}

// plan counts what is planned of a row, and of what follows from it, as its job is now.
func (p *pass) plan(r *job.PendingRow, j *job.Job) {
	state := j.State()
	if j.Deleted || state.Judge(&r.Entry, time.Time{}) != job.VerdictProceed {
		return
	}
	stopped := state.Stops(r.ExecutionID)
	if !r.FirstOfSchedule() || r.Chained || j.Definition.Schedule.Type == job.ScheduleOneShot {
		if minute := job.Minute(r.DueAt); !r.Done && !stopped && minute >= p.from && !p.met.has(r.ExecutionID) {
			p.met.add(r.ExecutionID)
			p.add(j.Tenant, minute, 1)
		}
		return
	}
	if job.DefinedAt(j.Definition.ID).After(p.began) {
		return // the schedule that it replaced may have been counted
	}
	plan, err := schedule.Compile(j.Definition.Schedule, j.ID)
	if err != nil {
		return // a later release wrote it
	}
	h := head{tenant: j.Tenant, plan: plan, at: r.NominalAt, ordinal: r.Ordinal, most: j.Definition.Schedule.MaxOccurrences, stopped: stopped}
	if p.met.has(j.ID) {
		return
	}
	if !r.DueAt.After(p.began) {
		if len(p.behind) < mostBehind {
			h.stopped = stopped || r.Done
			p.behind[j.ID] = h
		}
		return
	}
	if last, ok := plan.Prev(r.NominalAt); ok && r.Ordinal > j.Definition.FirstOrdinal && !last.Before(j.Definition.EffectiveAt) && plan.ScheduledFor(last).After(p.began) {
		return // that one was ahead, too; it was counted, or what is behind will be
	}
	delete(p.behind, j.ID)
	p.met.add(j.ID)
	p.follow(h)
}

// add counts fires of one job in a minute.
func (p *pass) add(tenant job.Tenant, minute int64, n int) {
	p.all.Add(minute, n)
	if t := p.of(tenant); t != nil {
		t.Add(minute, n)
	}
	p.instants++
}

// follow counts the instants of a schedule from its head on, up to the end of the forecast.
func (p *pass) follow(h head) {
	at, ordinal, begin := h.at, h.ordinal, job.MinuteStart(p.from)
	end := p.from + forecast.Minutes
	from, ok := at, true
	if h.stopped {
		from, ok = h.plan.Next(at)
	}
	if from, ok = firstDue(h.plan, from, begin, ok); !ok {
		return
	}
	if h.most > 0 {
		ordinal += h.plan.Count(at, from, h.most+1)
	}
	at = from
	minute, n := int64(0), 0 // fires of one minute are counted together
	for ; ok && (h.most == 0 || ordinal <= h.most); ordinal++ {
		due := job.Minute(h.plan.ScheduledFor(at))
		if due >= end {
			break
		}
		if due != minute && n > 0 {
			p.add(h.tenant, minute, n)
			n = 0
		}
		minute, n = due, n+1
		p.instants++
		at, ok = h.plan.Next(at)
	}
	if n > 0 {
		p.add(h.tenant, minute, n)
	}
}

// firstDue returns the first instant of a schedule, not before at, that is due at begin or later; ok says whether there is an instant at. What is
// behind by then is late, and skipped or made up for before the forecast begins.
func firstDue(plan *schedule.Plan, at, begin time.Time, ok bool) (time.Time, bool) {
	if !ok || !plan.ScheduledFor(at).Before(begin) {
		return at, ok
	}
	if last, ok := plan.Prev(begin); ok && last.After(at) && !plan.ScheduledFor(last).Before(begin) {
		return last, true
	}
	return plan.First(begin)
}

// of returns the table of a tenant; nil if it has none of its own.
func (p *pass) of(tenant job.Tenant) *forecast.Table {
	t := p.tenants[tenant]
	switch {
	case t != nil:
	case len(p.tenants) < forecast.MaxTenants:
		t = forecast.NewTable(p.from)
		p.tenants[tenant] = t
	default:
		p.others = true
	}
	return t
}
