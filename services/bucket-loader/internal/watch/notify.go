package watch

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/incidents"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/notices"
)

// notices returns what owners are to be told, to which the watchdog adds only while it holds the lease.
func (w *Watchdog) notices() notices.Store { return notices.Store{Lists: leased{w.Settings, w}} }

// tellOwners owes those a notice of an incident who are to be told of it and were not. Who was told of another one in the same quiet period has it
// in the next one, if the incident is open then. It is noted right behind that: after a crash in between, the next process owes the same notice again.
func (w *Watchdog) tellOwners(ctx context.Context, l *look, line *line, i *incidents.Incident) error {
	owed := false
	for n := range l.job.Notify {
		to := &l.job.Notify[n]
		id := to.ID()
		if !to.Tells(job.CauseSLAMissed) || slices.Contains(line.Told, id) {
			continue
		}
		x := notices.Of(l.id, to, job.CauseSLAMissed, i.DeadlineAt)
		var last time.Time
		told := false
		for _, other := range l.lines {
			last = job.Later(last, other.Periods[id])
			told = told || other.Open != nil && slices.Contains(other.Told, id)
		}
		if told { // of the other deadline of the job
			line.Told, l.stale = append(slices.Clip(line.Told), id), true
			continue
		}
		if !x.Period.After(last) {
			x.Period = to.Period(l.now)
		}
		if !x.Period.After(last) {
			continue
		}
		x.IncidentID, x.Reason = i.ID, fmt.Sprintf("The occurrence of %s missed its deadline, %s of %s. %s", text(i.First), i.Deadline, i.Within, i.Reason)
		if err := w.notices().Owe(ctx, &x); err != nil {
			return err
		}
		if line.Periods == nil {
			line.Periods = map[string]time.Time{}
		}
		line.Periods[id], line.Told = x.Period, append(slices.Clip(line.Told), id)
		owed = true
	}
	if owed {
		l.unnoted = true
		return w.note(ctx, l.subject)
	}
	return nil
}

// tellRecovery owes those a notice who were told of an incident, and are to be told that the last open one of the job is over.
// at is when the job recovered.
func (w *Watchdog) tellRecovery(ctx context.Context, l *look, line *line, at time.Time) error {
	for _, other := range l.lines {
		if other != line && other.Open != nil {
			return nil
		}
	}
	for n := range l.job.Notify {
		to := &l.job.Notify[n]
		if !to.Tells(job.CauseRecovered) || !slices.Contains(line.Told, to.ID()) {
			continue
		}
		x := notices.Of(l.id, to, job.CauseRecovered, at)
		x.IncidentID, x.Reason = line.Open.ID, fmt.Sprintf("The deadline %s, which the job missed since %s, is met again.", line.Open.Deadline, text(line.Open.First))
		if err := w.notices().Owe(ctx, &x); err != nil {
			return err
		}
	}
	return nil
}

// recovered ends the open incident of a line because the job has recovered, and lets its owners know.
func (w *Watchdog) recovered(ctx context.Context, l *look, line *line, at time.Time, why string) error {
	if err := w.tellOwners(ctx, l, line, line.Open); err != nil {
		return err
	}
	if err := w.tellRecovery(ctx, l, line, at); err != nil {
		return err
	}
	return w.close(ctx, l.subject, line, why)
}
