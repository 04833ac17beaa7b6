package form

import (
	"strconv"

	"github.com/minutehand/minutehand/libs/job"
)

// Of returns a job's definition as answers show it, with secrets masked.
func Of(j *job.Job) Job {
	d, s := &j.Definition, &j.Definition.Schedule
	b := Job{
		Name: j.Name, Key: j.Key, Labels: j.Labels, Owner: j.Owner, Notify: notifies(j.Notify), MissedRun: d.MissedRun, MaxBackfill: Whole(d.MaxBackfill), Overlap: d.Overlap,
		Priority: d.Priority, Precision: d.Precision, CatchUpWindow: text(d.CatchUpWindow), KeyTemplate: d.Target.KeyTemplate,
		Schedule: Schedule{
			Type: s.Type, CronExpr: s.CronExpr, Timezone: s.Timezone, MaxOccurrences: Whole(s.MaxOccurrences),
			RunAt: Instant(s.RunAt), StartAt: Instant(s.StartAt), EndAt: Instant(s.EndAt),
		},
		Target: targetOf(&d.Target),
		Retry: &retry{
			Backoff: d.Retry.Backoff, MaxAttempts: Whole(d.Retry.MaxAttempts), BaseDelay: text(d.Retry.BaseDelay),
			MaxDelay: text(d.Retry.MaxDelay), Jitter: &d.Retry.Jitter, Window: text(d.Retry.Window),
		},
	}
	for _, p := range s.After {
		b.After = append(b.After, parent{Job: p.Named, On: p.On})
	}
	if len(s.After) > 1 {
		b.AfterMode = modeAny
	}
	if s.All {
		b.AfterMode = modeAll
	}
	for _, delay := range d.Retry.Delays {
		b.Retry.Delays = append(b.Retry.Delays, duration(delay))
	}
	if t := d.Deadlines; t != (job.Deadlines{}) {
		b.SLA = &deadlines{}
		if t.StartWithin > 0 {
			b.SLA.StartWithin = text(t.StartWithin)
		}
		if t.FinishWithin > 0 {
			b.SLA.FinishWithin = text(t.FinishWithin)
		}
	}
	if s.Every > 0 {
		b.Every = text(s.Every)
	}
	if s.Jitter > 0 {
		b.Jitter = text(s.Jitter)
	}
	if s.Spread > 0 {
		b.Spread, b.SpreadWithin = spreadAuto, text(s.Spread)
	}
	if s.DST != (job.DST{}) {
		b.DST = &s.DST
	}
	return b
}

func targetOf(t *job.Target) target {
	b := target{
		Kind: t.Kind, URL: t.URL, Method: t.Method, Connection: t.Connection, Headers: masked(t.Headers), Body: t.Body,
		BodyRef: t.BodyRef, Timeout: text(t.Timeout),
	}
	switch t.Kind {
	case job.TargetKafka:
		b.Topic, b.Key = t.Queue, t.Group
	case job.TargetSQS:
		b.Queue, b.Group = t.Queue, t.Group
	case job.TargetPool:
		b.Pool, b.Handler, b.Heartbeat = t.Pool, t.Handler, text(t.Heartbeat)
	}
	return b
}

// ETag returns the version of a job in the form that HTTP compares.
func ETag(j *job.Job) string { return `"` + strconv.FormatInt(j.Version, 10) + `"` }
