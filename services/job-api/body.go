package jobapi

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/minutehand/minutehand/libs/job"
)

// duration is a duration as the API writes it: "30s", "5m", "1h30m", "250ms".
type duration time.Duration

// UnmarshalJSON implements json.Unmarshaler.
func (d *duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	v, err := time.ParseDuration(s)
	*d = duration(v)
	return err
}

// MarshalJSON implements json.Marshaler: the shortest form, "1h30m" and not "1h30m0s".
func (d duration) MarshalJSON() ([]byte, error) {
	rest := time.Duration(d)
	if rest == 0 {
		return []byte(`"0s"`), nil
	}
	text := make([]byte, 0, 16)
	text = append(text, '"')
	for _, u := range []struct {
		size time.Duration
		name string
	}{{time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
		if n := rest / u.size; n > 0 {
			text = strconv.AppendInt(text, int64(n), 10)
			text = append(text, u.name...)
			rest -= n * u.size
		}
	}
	return append(text, '"'), nil
}

// whole is a whole number in any form that JSON has for it: 100, 100.0, 1e2. The document bounds it well within an int.
type whole int

// UnmarshalJSON implements json.Unmarshaler.
func (n *whole) UnmarshalJSON(b []byte) error {
	f, err := strconv.ParseFloat(string(b), 64)
	*n = whole(f)
	return err
}

// scheduleBody is the schedule members of a request or a response.
type scheduleBody struct {
	Type           job.ScheduleType `json:"type"`
	RunAt          *time.Time       `json:"run_at,omitempty"`
	Delay          *duration        `json:"delay,omitempty"`
	CronExpr       string           `json:"cron_expr,omitempty"`
	Timezone       string           `json:"timezone,omitempty"`
	DST            *job.DST         `json:"dst,omitempty"`
	Every          *duration        `json:"every,omitempty"`
	StartAt        *time.Time       `json:"start_at,omitempty"`
	EndAt          *time.Time       `json:"end_at,omitempty"`
	MaxOccurrences whole            `json:"max_occurrences,omitempty"`
	Jitter         *duration        `json:"jitter,omitempty"`
}

// targetBody is a target.
type targetBody struct {
	Kind    string            `json:"kind"`
	URL     string            `json:"url,omitempty"`
	Method  string            `json:"method,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
	Body    json.RawMessage   `json:"body,omitempty"`
	Timeout *duration         `json:"timeout,omitempty"`
}

// retryBody is a retry policy.
type retryBody struct {
	Backoff     job.Backoff `json:"backoff,omitempty"`
	MaxAttempts whole       `json:"max_attempts,omitempty"`
	BaseDelay   *duration   `json:"base_delay,omitempty"`
	MaxDelay    *duration   `json:"max_delay,omitempty"`
	Jitter      *float64    `json:"jitter,omitempty"`
	Window      *duration   `json:"window,omitempty"`
	Delays      []duration  `json:"delays,omitempty"`
}

// definitionBody is what a client says of a job; the same members are in the answer.
type definitionBody struct {
	Name string `json:"name"`
	scheduleBody
	Target        targetBody        `json:"target"`
	Retry         *retryBody        `json:"retry_policy,omitempty"`
	MissedRun     job.MissedRun     `json:"missed_run_policy,omitempty"`
	CatchUpWindow *duration         `json:"catch_up_window,omitempty"`
	MaxBackfill   whole             `json:"max_backfill,omitempty"`
	Overlap       string            `json:"overlap_policy,omitempty"`
	Priority      string            `json:"priority,omitempty"`
	Labels        map[string]string `json:"labels,omitempty"`
}

// schedule turns the members into a schedule; now resolves delay and the anchor of an interval.
func (b *scheduleBody) schedule(now time.Time) job.Schedule {
	s := job.Schedule{
		Type: b.Type, CronExpr: b.CronExpr, Timezone: b.Timezone, MaxOccurrences: int(b.MaxOccurrences),
		RunAt: instantOf(b.RunAt), StartAt: instantOf(b.StartAt), EndAt: instantOf(b.EndAt),
		Every: durationOf(b.Every, 0), Jitter: durationOf(b.Jitter, 0),
	}
	if b.DST != nil {
		s.DST = *b.DST
	}
	if b.Delay != nil {
		s.RunAt = job.Instant(now.Add(time.Duration(*b.Delay)))
	}
	if s.Type == job.ScheduleInterval && s.StartAt.IsZero() {
		s.StartAt = now
	}
	return s
}

// definition turns the members into a definition with all defaults resolved.
func (b *definitionBody) definition(now time.Time) job.Definition {
	d := job.Definition{
		FirstOrdinal: 1, Schedule: b.schedule(now), MissedRun: b.MissedRun,
		CatchUpWindow: durationOf(b.CatchUpWindow, job.DefaultCatchUpWindow), MaxBackfill: int(b.MaxBackfill),
		Overlap: b.Overlap, Priority: b.Priority, Retry: b.Retry.policy(),
		Target: job.Target{
			Kind: b.Target.Kind, URL: b.Target.URL, Method: b.Target.Method, Headers: b.Target.Headers, Body: b.Target.Body,
			Timeout: durationOf(b.Target.Timeout, job.DefaultTimeout),
		},
	}
	if d.MissedRun == "" {
		d.MissedRun = job.MissedFireOnce
	}
	if d.MaxBackfill == 0 {
		d.MaxBackfill = job.DefaultMaxBackfill
	}
	if d.Overlap == "" {
		d.Overlap = "allow_all"
	}
	if d.Priority == "" {
		d.Priority = "normal"
	}
	if d.Target.Method == "" {
		d.Target.Method = "POST"
	}
	return d
}

func (b *retryBody) policy() job.RetryPolicy {
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

// bodyOf is the definition of a row as the API writes it.
func bodyOf(j *job.Job) definitionBody {
	d, s := &j.Definition, &j.Definition.Schedule
	b := definitionBody{
		Name: j.Name, Labels: j.Labels, MissedRun: d.MissedRun, MaxBackfill: whole(d.MaxBackfill), Overlap: d.Overlap,
		Priority: d.Priority, CatchUpWindow: text(d.CatchUpWindow),
		scheduleBody: scheduleBody{
			Type: s.Type, CronExpr: s.CronExpr, Timezone: s.Timezone, MaxOccurrences: whole(s.MaxOccurrences),
			RunAt: maybe(s.RunAt), StartAt: maybe(s.StartAt), EndAt: maybe(s.EndAt),
		},
		Target: targetBody{
			Kind: d.Target.Kind, URL: d.Target.URL, Method: d.Target.Method, Headers: masked(d.Target.Headers), Body: d.Target.Body,
			Timeout: text(d.Target.Timeout),
		},
		Retry: &retryBody{
			Backoff: d.Retry.Backoff, MaxAttempts: whole(d.Retry.MaxAttempts), BaseDelay: text(d.Retry.BaseDelay),
			MaxDelay: text(d.Retry.MaxDelay), Jitter: &d.Retry.Jitter, Window: text(d.Retry.Window),
		},
	}
	for _, delay := range d.Retry.Delays {
		b.Retry.Delays = append(b.Retry.Delays, duration(delay))
	}
	if s.Every > 0 {
		b.Every = text(s.Every)
	}
	if s.Jitter > 0 {
		b.Jitter = text(s.Jitter)
	}
	if s.DST != (job.DST{}) {
		b.DST = &s.DST
	}
	return b
}

func text(d time.Duration) *duration { v := duration(d); return &v }

func durationOf(d *duration, otherwise time.Duration) time.Duration {
	if d == nil {
		return otherwise
	}
	return time.Duration(*d)
}

func instantOf(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return job.Instant(*t)
}

func maybe(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
