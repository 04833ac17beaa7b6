package job

import (
	"encoding/json"
	"hash/fnv"
	"io"
	"net/url"
	"strings"
	"time"
)

// Status is what a client set a job to; "completed" is derived from its schedule and never stored.
type Status string

// The stored states of a job.
const (
	StatusActive    Status = "active"
	StatusPaused    Status = "paused"
	StatusCancelled Status = "cancelled"
)

// Job is one registered job: its row in the cold store.
type Job struct {
	ID     string `json:"id"`
	Tenant Tenant `json:"tenant"`
	Name   string `json:"name"`
	// Key is a name that no other job of the tenant has, unless that is deleted; "" for none. A job keeps it.
	Key    string            `json:"key,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	// Owner says who is to be told when a deadline is missed: a team, a person, an address. Nothing interprets it.
	Owner string `json:"owner,omitempty"`
	// Notify are those who are told of what becomes of the job's executions, at most [MaxNotify].
	Notify []Notify `json:"notify,omitempty"`
	// Followed is set once another job was to follow this one.
	Followed bool   `json:"followed,omitempty"`
	Status   Status `json:"status"`
	// Deleted hides a cancelled job from reads and lists.
	Deleted bool `json:"deleted,omitempty"`
	// Version grows by one with every write; it is the ETag.
	Version   int64     `json:"version"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
	// PausedAt is the instant up to which the last pause skips occurrences; a resume keeps it.
	PausedAt time.Time `json:"paused_at,omitzero"`
	// EndsAt is where the occurrences of a cancelled job end: at its cancellation, or just after the pause that it was in.
	EndsAt time.Time `json:"ends_at,omitzero"`
	// StoppedExecutions are the executions that were cancelled individually, at most [MaxStoppedExecutions].
	StoppedExecutions []string `json:"stopped_executions,omitempty"`
	// StoppedBefore stops the executions of the schedule for instants before it, if their definitions let no two overlap: the one for
	// that instant took their place.
	StoppedBefore time.Time `json:"stopped_before,omitzero"`
	// Changes are the latest changes of the row but the first, at most [MaxChanges].
	Changes    []ChangeRef `json:"changes,omitempty"`
	Definition Definition  `json:"definition"`
	// Unknown is what a later release wrote into the row and this one does not know, as Protobuf fields. It stays in the row when this
	// release changes something else in it. So does that of Definition, Schedule, Target and RetryPolicy.
	Unknown string `json:"-"`
}

// MaxStoppedExecutions bounds the cancelled executions that a job remembers.
const MaxStoppedExecutions = 100

// Void returns a row that keeps an id from ever being that of a job, which was to have a key.
func Void(id string, tenant Tenant, key string, now time.Time) Job {
	return Job{ID: id, Tenant: tenant, Key: key, Status: StatusCancelled, Deleted: true, Version: 1, CreatedAt: now, UpdatedAt: now, EndsAt: now}
}

// IsVoid reports whether a row is one of [Void]: there never was a job, whatever entries name its id.
func (j *Job) IsVoid() bool { return j.Deleted && j.Definition.ID == "" }

// NextEffective returns from when on a definition holds that supersedes the job's at an instant. It begins later than that one, which begins after
// a pause or was made by a clock that is ahead. It also begins later than a pause in which it is made, and than what was displaced. The instants
// of a job pass from one definition to the next and never back.
func (j *Job) NextEffective(now time.Time) time.Time {
	at := Later(Later(now, j.StoppedBefore.Add(time.Millisecond)), j.Definition.EffectiveAt.Add(time.Millisecond))
	if j.Status == StatusPaused {
		at = Later(at, j.PausedAt.Add(time.Millisecond))
	}
	return at
}

// State returns the part of the row that decides whether an attempt may begin.
func (j *Job) State() State {
	return State{
		Version: j.Version, Status: j.Status, PausedAt: j.PausedAt, StoppedExecutions: j.StoppedExecutions, StoppedBefore: j.StoppedBefore,
		DefinitionID: j.Definition.ID, EffectiveAt: j.Definition.EffectiveAt,
	}
}

// Definition is what a definition id refers to and never changes: schedule, target and policies.
type Definition struct {
	ID string `json:"id"`
	// EffectiveAt is where the definition begins: every nominal instant from here on belongs to it, until the next definition begins.
	EffectiveAt time.Time `json:"effective_at"`
	// FirstOrdinal is the ordinal of the definition's first occurrence: 1, unless it carries on the count of an earlier definition.
	FirstOrdinal int         `json:"first_ordinal"`
	Schedule     Schedule    `json:"schedule"`
	Target       Target      `json:"target"`
	Retry        RetryPolicy `json:"retry_policy"`
	MissedRun    MissedRun   `json:"missed_run_policy"`
	// CatchUpWindow is how late a worker may take an occurrence before the missed-run policy applies to it.
	CatchUpWindow time.Duration `json:"catch_up_window"`
	// MaxBackfill bounds how many missed occurrences one run of MissedBackfill fires.
	MaxBackfill int `json:"max_backfill"`
	// Overlap says what becomes of an occurrence while another execution of the schedule is in progress.
	Overlap  Overlap `json:"overlap_policy"`
	Priority string  `json:"priority"`
	// Precision is how close to its instant an occurrence is called.
	Precision Precision `json:"precision"`
	// Deadlines are what the watchdog holds each occurrence of the schedule against. A fire only carries them, to the archive.
	Deadlines Deadlines `json:"sla,omitzero"`
	Unknown   string    `json:"-"` // see Job
}

// Deadlines say when an occurrence is to have begun and to have succeeded, counted from the instant for which it is scheduled; 0 for no
// such deadline.
type Deadlines struct {
	StartWithin  time.Duration `json:"start_within,omitempty"`
	FinishWithin time.Duration `json:"finish_within,omitempty"`
}

// Overlap is an overlap policy: what becomes of an occurrence at whose instant another execution of its job's schedule is in progress. An
// execution is in progress from its instant until its last attempt has ended, also while it waits for its target or between two attempts.
type Overlap string

// The overlap policies that are implemented.
const (
	// OverlapAllowAll: it is called all the same.
	OverlapAllowAll Overlap = "allow_all"
	// OverlapSkip: it is skipped.
	OverlapSkip Overlap = "skip"
	// OverlapBufferOne: it waits until the other has ended, and is skipped if one waits already.
	OverlapBufferOne Overlap = "buffer_one"
	// OverlapBufferAll: it waits until all before it have ended, and is skipped if MaxWaiting wait already.
	OverlapBufferAll Overlap = "buffer_all"
	// OverlapCancelOther: the other is cancelled, and it waits until the attempt in progress has ended.
	OverlapCancelOther Overlap = "cancel_other"
	// OverlapTerminateOther: the other is cancelled, and it is called at once.
	OverlapTerminateOther Overlap = "terminate_other"
)

// MaxWaiting is how many occurrences of a job wait for one another at most.
const MaxWaiting = 100

// Alone reports whether at most one execution of the schedule may be in progress.
func (d *Definition) Alone() bool {
	switch d.Overlap {
	case OverlapSkip, OverlapBufferOne, OverlapBufferAll, OverlapCancelOther, OverlapTerminateOther:
		return d.Schedule.Type != ScheduleOneShot
	}
	return false
}

// TakesPlace reports whether an occurrence takes the place of the executions before it.
func (d *Definition) TakesPlace() bool {
	return d.Alone() && (d.Overlap == OverlapCancelOther || d.Overlap == OverlapTerminateOther)
}

// MostWaiting returns how many occurrences may wait while another execution of the schedule is in progress.
func (d *Definition) MostWaiting() int {
	switch {
	case !d.Alone():
		return 0
	case d.Overlap == OverlapBufferOne:
		return 1
	case d.Overlap == OverlapBufferAll, d.Overlap == OverlapCancelOther:
		return MaxWaiting
	}
	return 0
}

// EndOf returns where a definition ended that d followed, directly or after others that were superseded in turn. otherBegan is when
// the first of those others began, zero if there were none.
func (d *Definition) EndOf(otherBegan time.Time) time.Time {
	if otherBegan.IsZero() || d.EffectiveAt.Before(otherBegan) {
		return d.EffectiveAt
	}
	return otherBegan
}

// MissedRun is the policy for occurrences that were missed.
type MissedRun string

// The missed-run policies.
const (
	MissedSkip     MissedRun = "skip"
	MissedFireOnce MissedRun = "fire_once"
	MissedBackfill MissedRun = "backfill"
)

// The kinds of targets.
const (
	// TargetWebhook is an HTTP request.
	TargetWebhook = "http_webhook"
	// TargetKafka is a record on a topic of a Kafka cluster, TargetSQS a message on a queue of SQS.
	TargetKafka = "kafka"
	TargetSQS   = "sqs"
	// TargetPool is a task that one of a pool of workers fetches.
	TargetPool = "pool"
)

// Priority is which of the tasks of a pool are fetched first.
type Priority string

// The priorities; "" is normal, too.
const (
	PriorityHigh   Priority = "high"
	PriorityNormal Priority = "normal"
	PriorityLow    Priority = "low"
)

// Target is what a fire invokes.
type Target struct {
	Kind string `json:"kind"`
	// URL and Method are those of a webhook.
	URL    string `json:"url,omitempty"`
	Method string `json:"method,omitempty"`
	// Connection is the name of the tenant's connection over which a message is sent, Queue the topic or queue.
	Connection string `json:"connection,omitempty"`
	Queue      string `json:"queue,omitempty"`
	// Group keeps messages in order: the key of a record, or the group of a message on a FIFO queue; "" for the job's id.
	Group string `json:"group,omitempty"`
	// Pool is the tenant's pool of workers that fetch the task, Handler the name of what they do with it.
	Pool     string   `json:"pool,omitempty"`
	Handler  string   `json:"handler,omitempty"`
	Priority Priority `json:"priority,omitempty"`
	// Heartbeat is how long a worker may be silent before it loses the task.
	Heartbeat time.Duration     `json:"heartbeat_timeout,omitempty"`
	Headers   map[string]string `json:"headers,omitempty"`
	// Body is sent verbatim: JSON text.
	Body json.RawMessage `json:"body,omitempty"`
	// BodyRef is the object that is sent in place of a body; nil for none.
	BodyRef *BodyRef `json:"body_ref,omitempty"`
	// Timeout bounds a call, or how long a worker has a task.
	Timeout time.Duration `json:"timeout"`
	// KeyTemplate makes the idempotency key of each execution's calls, see [Target.IdempotencyKey].
	KeyTemplate string `json:"idempotency_key_template,omitempty"`
	Unknown     string `json:"-"` // see Job
}

// MaxReferencedBytes bounds an object that is sent in place of a body.
const MaxReferencedBytes = 1 << 30

// BodyRef is an object that is sent in place of a body: where it is, and its SHA-256 in lower-case hexadecimal digits.
type BodyRef struct {
	URL    string `json:"url"`
	SHA256 string `json:"sha256"`
}

// Host returns the host and port of a webhook's URL, "" if its URL has none; of any other target the name of its connection or pool.
func (t *Target) Host() string {
	if t.Connection+t.Pool != "" {
		return t.Connection + t.Pool
	}
	u, err := url.Parse(t.URL)
	if err != nil {
		return ""
	}
	return strings.ToLower(u.Host)
}

// Place returns where what calls the target of a tenant waits for its turn: its host, which tenants share, or its connection or pool, which
// is the tenant's own.
func (t *Target) Place(of Tenant) string {
	switch {
	case t.Pool != "":
		return t.Pool + "|" + of.String() + "|" // no host or connection has such a name
	case t.Connection == "":
		return t.Host()
	}
	return t.Connection + "|" + of.String() // no host has such a name
}

// TargetRef is what the record of an event says of a target: nothing of it that a tenant may want to keep secret.
type TargetRef struct{ Kind, Host string }

// Ref returns the target's kind and host.
func (t *Target) Ref() TargetRef { return TargetRef{Kind: t.Kind, Host: t.Host()} }

// Lane returns the hash of the kind and the place of a tenant's target, and of a precision, under which its capacity is counted; never 0.
func (t *Target) Lane(of Tenant, p Precision) uint32 {
	h := fnv.New32a()
	_, _ = io.WriteString(h, t.Kind+"|"+t.Place(of)) // a hash never fails to write
	if p != PrecisionStandard {
		_, _ = io.WriteString(h, "|"+p.String())
	}
	return max(h.Sum32(), 1)
}

// Defaults and limits of a definition; the OpenAPI document states the same numbers.
const (
	DefaultCatchUpWindow = time.Minute
	DefaultMaxBackfill   = 100
	DefaultTimeout       = 30 * time.Second
	MaxTimeout           = 5 * time.Minute
	// DefaultTaskTimeout and MaxTaskTimeout are how long a worker has a task, DefaultHeartbeat, MinHeartbeat and MaxHeartbeat how long it may be
	// silent.
	DefaultTaskTimeout = time.Hour
	MaxTaskTimeout     = 24 * time.Hour
	DefaultHeartbeat   = 30 * time.Second
	MinHeartbeat       = 5 * time.Second
	MaxHeartbeat       = 10 * time.Minute
	MaxPayloadBytes    = 256 << 10
	MaxHeaders         = 64
	MaxHeaderBytes     = 8 << 10
	MaxHorizon         = 10 * 365 * 24 * time.Hour
	MinDeadline        = time.Second
	MaxDeadline        = 24 * time.Hour
	// MaxResponseBytes is how much of a target's response is kept.
	MaxResponseBytes = 4 << 10
	// MaxResultBytes is how much is kept of what a worker reports about the end of a task.
	MaxResultBytes = 12 << 10
)
