// Package form is the form in which clients write a job, and in which answers show it.
//
// It promises: a body that the OpenAPI document allows becomes a definition with every default resolved, or a problem with
// every fault that a schema cannot express. A definition that is shown and sent back means the same. The value of a header
// that looks like a secret is never shown.
package form

import (
	"cmp"
	"encoding/json"
	"time"

	"github.com/minutehand/minutehand/libs/job"
)

// Schedule holds the members of a request or an answer that make a schedule.
type Schedule struct {
	Type           job.ScheduleType `json:"type"`
	RunAt          *time.Time       `json:"run_at,omitempty"`
	Delay          *duration        `json:"delay,omitempty"`
	CronExpr       string           `json:"cron_expr,omitempty"`
	Timezone       string           `json:"timezone,omitempty"`
	DST            *job.DST         `json:"dst,omitempty"`
	Every          *duration        `json:"every,omitempty"`
	StartAt        *time.Time       `json:"start_at,omitempty"`
	EndAt          *time.Time       `json:"end_at,omitempty"`
	MaxOccurrences Whole            `json:"max_occurrences,omitempty"`
	Jitter         *duration        `json:"jitter,omitempty"`
	Spread         string           `json:"spread,omitempty"`
	SpreadWithin   *duration        `json:"spread_within,omitempty"`
	After          []parent         `json:"after,omitempty"`
	AfterMode      string           `json:"after_mode,omitempty"`
}

// parent holds the members of a job that another one follows.
type parent struct {
	Job string `json:"job"`
	On  job.On `json:"on,omitempty"`
}

// The modes in which a job follows several others.
const (
	modeAny = "any"
	modeAll = "all"
)

// spreadAuto lets occurrences at full hours be moved.
const spreadAuto = "auto"

// target holds the members of a target.
type target struct {
	Kind       string            `json:"kind"`
	URL        string            `json:"url,omitempty"`
	Method     string            `json:"method,omitempty"`
	Connection string            `json:"connection,omitempty"`
	Topic      string            `json:"topic,omitempty"`
	Key        string            `json:"key,omitempty"`
	Queue      string            `json:"queue,omitempty"`
	Group      string            `json:"group,omitempty"`
	Pool       string            `json:"pool,omitempty"`
	Handler    string            `json:"handler,omitempty"`
	Heartbeat  *duration         `json:"heartbeat_timeout,omitempty"`
	Headers    map[string]string `json:"headers,omitempty"`
	Body       json.RawMessage   `json:"body,omitempty"`
	BodyRef    *job.BodyRef      `json:"body_ref,omitempty"`
	Timeout    *duration         `json:"timeout,omitempty"`
}

// retry holds the members of a retry policy.
type retry struct {
	Backoff     job.Backoff `json:"backoff,omitempty"`
	MaxAttempts Whole       `json:"max_attempts,omitempty"`
	BaseDelay   *duration   `json:"base_delay,omitempty"`
	MaxDelay    *duration   `json:"max_delay,omitempty"`
	Jitter      *float64    `json:"jitter,omitempty"`
	Window      *duration   `json:"window,omitempty"`
	Delays      []duration  `json:"delays,omitempty"`
}

// deadlines holds the members of what occurrences are held against.
type deadlines struct {
	StartWithin  *duration `json:"start_within,omitempty"`
	FinishWithin *duration `json:"finish_within,omitempty"`
}

// Job holds the members of a job that a client writes; an answer has the same members.
type Job struct {
	Name string `json:"name"`
	Key  string `json:"key,omitempty"`
	Schedule
	Target        target            `json:"target"`
	KeyTemplate   string            `json:"idempotency_key_template,omitempty"`
	Retry         *retry            `json:"retry_policy,omitempty"`
	MissedRun     job.MissedRun     `json:"missed_run_policy,omitempty"`
	CatchUpWindow *duration         `json:"catch_up_window,omitempty"`
	MaxBackfill   Whole             `json:"max_backfill,omitempty"`
	Overlap       job.Overlap       `json:"overlap_policy,omitempty"`
	Priority      string            `json:"priority,omitempty"`
	Precision     job.Precision     `json:"precision"`
	SLA           *deadlines        `json:"sla,omitempty"`
	Owner         string            `json:"owner,omitempty"`
	Notify        []notify          `json:"notify,omitempty"`
	Labels        map[string]string `json:"labels,omitempty"`
}

// resolve turns the members into a schedule; now resolves a delay and the anchor of an interval.
func (b *Schedule) resolve(now time.Time) job.Schedule {
	s := job.Schedule{
		Type: b.Type, CronExpr: b.CronExpr, Timezone: b.Timezone, MaxOccurrences: int(b.MaxOccurrences),
		RunAt: instantOf(b.RunAt), StartAt: instantOf(b.StartAt), EndAt: instantOf(b.EndAt),
		Every: durationOf(b.Every, 0), Jitter: durationOf(b.Jitter, 0),
	}
	if b.Spread == spreadAuto {
		s.Spread = durationOf(b.SpreadWithin, 0)
	}
	if b.DST != nil {
		s.DST = *b.DST
	}
	for _, p := range b.After {
		s.After = append(s.After, job.Parent{Named: p.Job, On: cmp.Or(p.On, job.OnSuccess)})
	}
	s.All = b.AfterMode == modeAll
	if b.Delay != nil {
		s.RunAt = job.Instant(now.Add(time.Duration(*b.Delay)))
	}
	if s.Type == job.ScheduleInterval && s.StartAt.IsZero() {
		s.StartAt = now
	}
	return s
}

// definition turns the members into a definition with all defaults resolved.
func (b *Job) definition(now time.Time) job.Definition {
	d := job.Definition{
		FirstOrdinal: 1, Schedule: b.resolve(now), MissedRun: b.MissedRun,
		CatchUpWindow: durationOf(b.CatchUpWindow, job.DefaultCatchUpWindow), MaxBackfill: int(b.MaxBackfill),
		Overlap: b.Overlap, Priority: b.Priority, Precision: b.Precision, Retry: b.Retry.policy(),
		Target: job.Target{
			Kind: b.Target.Kind, URL: b.Target.URL, Method: b.Target.Method, Connection: b.Target.Connection,
			Queue: cmp.Or(b.Target.Topic, b.Target.Queue), Group: cmp.Or(b.Target.Key, b.Target.Group), Headers: b.Target.Headers, Body: b.Target.Body, BodyRef: b.Target.BodyRef,
			Timeout: durationOf(b.Target.Timeout, job.DefaultTimeout), KeyTemplate: b.KeyTemplate,
			Pool: b.Target.Pool, Handler: b.Target.Handler,
		},
	}
	if b.SLA != nil {
		d.Deadlines = job.Deadlines{StartWithin: durationOf(b.SLA.StartWithin, 0), FinishWithin: durationOf(b.SLA.FinishWithin, 0)}
	}
	if d.MissedRun == "" {
		d.MissedRun = job.MissedFireOnce
	}
	if d.MaxBackfill == 0 {
		d.MaxBackfill = job.DefaultMaxBackfill
	}
	if d.Overlap == "" {
		d.Overlap = job.OverlapAllowAll
	}
	if d.Priority == "" {
		d.Priority = "normal"
	}
	switch t := &d.Target; {
	case t.Kind == job.TargetWebhook && t.Method == "":
		t.Method = "POST"
	case t.Kind == job.TargetPool:
		t.Timeout, t.Heartbeat = durationOf(b.Target.Timeout, job.DefaultTaskTimeout), durationOf(b.Target.Heartbeat, job.DefaultHeartbeat)
		if p := job.Priority(d.Priority); p != job.PriorityNormal {
			t.Priority = p
		}
	}
	return d
}

// policy turns the members into a retry policy with all defaults resolved; nil means the default policy.
func (b *retry) policy() job.RetryPolicy {
	p := job.DefaultRetryPolicy()
	if b == nil {
		return p
	}
	if b.Backoff != "" {
		p.Backoff = b.Backoff
	}
	if b.MaxAttempts != 0 {
		p.MaxAttempts = int(b.MaxAttempts)
	}
	if b.Jitter != nil {
		p.Jitter = *b.Jitter
	}
	p.BaseDelay = durationOf(b.BaseDelay, p.BaseDelay)
	p.MaxDelay = durationOf(b.MaxDelay, p.MaxDelay)
	p.Window = durationOf(b.Window, p.Window)
	for _, d := range b.Delays {
		p.Delays = append(p.Delays, time.Duration(d))
	}
	return p
}
