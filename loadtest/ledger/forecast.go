package ledger

import (
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/schedule"
)

// Forecast is what a client was told to be planned.
type Forecast struct {
	// AnsweredAt is when the answer came.
	AnsweredAt time.Time `json:"-"`
	AsOf       time.Time `json:"as_of"`
	Share      float64   `json:"share"`
	Items      []Planned `json:"items"`
}

// Planned is what is planned for a full hour.
type Planned struct {
	At      time.Time `json:"at"`
	Planned int       `json:"planned"`
	Error   int       `json:"error"`
}

const (
	// plansAhead is how long after a forecast nothing is planned any more but what schedules name: retries are due before.
	plansAhead = 2 * time.Hour
	// plansSettle is how long before a forecast a change must have been answered to be in it for certain: the clocks differ.
	plansSettle = 10 * time.Second
)

// checkForecasts checks I16: what is planned for an hour is at least what the jobs name that nobody was changing, and at most what all jobs name
// by any definition that they had.
func checkForecasts(r *report, a *Account) {
	for n := range a.Forecasts {
		f := &a.Forecasts[n]
		if f.AsOf.IsZero() {
			continue // there was none yet
		}
		var certain, possible []*schedule.Plan
		var most [][]*schedule.Plan // by job
		for k := range a.Jobs {
			j := &a.Jobs[k]
			var plans []*schedule.Plan
			for _, d := range append(j.Superseded[:len(j.Superseded):len(j.Superseded)], j.Job.Definition) {
				plan, err := schedule.Compile(d.Schedule, j.Job.ID)
				if err != nil || d.Schedule.Type == job.ScheduleAfter || d.EffectiveAt.After(f.AnsweredAt.Add(plansSettle)) {
					continue
				}
				plans = append(plans, plan)
				if d.Schedule.MaxOccurrences == 0 && len(j.Superseded) == 0 && a.untouched(j.Job.ID, f) {
					certain = append(certain, plan)
				}
			}
			most = append(most, plans)
			possible = append(possible, plans...)
		}
		for _, p := range f.Items {
			if p.At.Before(f.AsOf.Add(plansAhead)) || p.At.Minute() != 0 {
				continue
			}
			atLeast, atMost := 0, 0
			for _, plan := range certain {
				atLeast += due(plan, p.At)
			}
			for _, plans := range most {
				of := 0
				for _, plan := range plans {
					of = max(of, due(plan, p.At))
				}
				atMost += of
			}
			if p.Planned+p.Error < atLeast {
				r.add("I16", "", "%d ± %d fires are planned for the hour from %s, as of %s, and jobs that nobody was changing name %d", p.Planned, p.Error,
					p.At.Format(time.RFC3339), f.AsOf.Format(time.RFC3339Nano), atLeast)
			}
			if p.Planned-p.Error > atMost {
				r.add("I16", "", "%d ± %d fires are planned for the hour from %s, as of %s, and all %d definitions name no more than %d", p.Planned, p.Error,
					p.At.Format(time.RFC3339), f.AsOf.Format(time.RFC3339Nano), len(possible), atMost)
			}
		}
	}
}

// due returns how many fires of a plan are due in an hour. Jitter and spread may move one out of it and another one in, so those are counted
// where they are due.
func due(p *schedule.Plan, from time.Time) (n int) {
	to := from.Add(time.Hour)
	for at, ok := p.First(from.Add(-time.Hour)); ok && at.Before(to); at, ok = p.Next(at) {
		if t := p.ScheduledFor(at); !t.Before(from) && t.Before(to) {
			n++
		}
	}
	return n
}

// untouched reports whether a job's registration was answered before a forecast, and nothing was asked for until then that changes it.
func (a *Account) untouched(jobID string, f *Forecast) bool {
	created := false
	for n := range a.Requests {
		q := &a.Requests[n]
		if q.JobID != jobID {
			continue
		}
		switch q.Operation {
		case "createJob", "createJobs":
			created = created || q.Done && q.AckedAt.Before(f.AsOf.Add(-plansSettle))
		case "replaceJob", "patchJob", "pauseJob", "resumeJob", "cancelJob", "deleteJob":
			if !q.Refused && (q.SentAt.IsZero() || q.SentAt.Before(f.AnsweredAt)) {
				return false
			}
		}
	}
	if !created {
		return false
	}
	for n := range a.Calls {
		if a.Calls[n].JobID == jobID && a.Calls[n].Gone {
			return false // that paused it
		}
	}
	for x := range a.Removed {
		if ref, err := job.ParseExecutionID(x); err == nil && ref.JobID == jobID {
			return false
		}
	}
	return true
}
