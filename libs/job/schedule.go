package job

import "time"

// ScheduleType is how a schedule names its instants.
type ScheduleType string

// The kinds of schedule. One of ScheduleAfter names no instants: its job follows others, see [Schedule.After].
const (
	ScheduleOneShot  ScheduleType = "one_shot"
	ScheduleCron     ScheduleType = "cron"
	ScheduleInterval ScheduleType = "interval"
	ScheduleAfter    ScheduleType = "after"
)

// On is which ends of a parent's executions another job follows.
type On string

// The ends: an execution has succeeded, or failed for good, or either. One that is cancelled or skipped is followed by nothing.
const (
	OnSuccess On = "success"
	OnFailure On = "failure"
	OnAny     On = "any"
)

// Takes reports whether an end is one of those that are followed.
func (o On) Takes(succeeded bool) bool { return o == OnAny || succeeded == (o == OnSuccess) }

// Parent is a job that another one follows.
type Parent struct {
	JobID string `json:"job_id"`
	// Named is how the client named it: by its id, or by its key.
	Named string `json:"named"`
	On    On     `json:"on"`
}

// Bounds on jobs that follow others.
const (
	// MaxParents is how many jobs one follows at most.
	MaxParents = 20
	// MaxDependents is by how many jobs one is followed at most.
	MaxDependents = 100
	// MaxChain is how many jobs follow one another at most, and so how many executions in a row.
	MaxChain = 100
)

// GapPolicy is what a fixed local time does on a day on which it does not exist.
type GapPolicy string

// FoldPolicy is what a fixed local time does on a day on which it exists twice.
type FoldPolicy string

// The DST policies; the first of each is the default.
const (
	GapNextValid GapPolicy = "next_valid"
	GapSkip      GapPolicy = "skip"

	FoldFirst FoldPolicy = "first"
	FoldLast  FoldPolicy = "last"
	FoldBoth  FoldPolicy = "both"
)

// DST is how a cron schedule behaves where local time jumps. The zero value means the defaults.
type DST struct {
	Gap  GapPolicy  `json:"gap,omitempty"`
	Fold FoldPolicy `json:"fold,omitempty"`
}

// Schedule is the part of a definition that names its nominal instants. It is data only: package schedule
// compiles it. Instants are UTC with millisecond precision; a zero time means "not set".
type Schedule struct {
	Type ScheduleType `json:"type"`

	// RunAt is the only instant of a one_shot.
	RunAt time.Time `json:"run_at,omitzero"`

	// CronExpr has 5, 6 (seconds first) or 7 fields (seconds … year), or is a macro such as @daily.
	CronExpr string `json:"cron_expr,omitempty"`
	// Timezone is an IANA name; empty means UTC.
	Timezone string `json:"timezone,omitempty"`
	DST      DST    `json:"dst,omitzero"`

	// Every is the period of an interval, at least a second, counted from StartAt.
	Every time.Duration `json:"every,omitempty"`

	// StartAt is the earliest instant. An interval is anchored there, so an interval always sets it.
	StartAt time.Time `json:"start_at,omitzero"`
	// EndAt is exclusive: no instant at or after it.
	EndAt time.Time `json:"end_at,omitzero"`
	// MaxOccurrences ends the schedule after that many nominal occurrences; 0 means no limit. It is applied where an occurrence's
	// ordinal is known.
	MaxOccurrences int `json:"max_occurrences,omitempty"`
	// Jitter is the largest delay by which this job's occurrences are moved. The delay is the same for all of them, unless the next
	// occurrence is nearer.
	Jitter time.Duration `json:"jitter,omitempty"`
	// Spread is Jitter for the occurrences at a full hour of UTC alone; the others are not moved. A schedule has one of the two at most.
	Spread time.Duration `json:"spread,omitempty"`

	// After are the jobs that a job of ScheduleAfter follows, at least one and at most [MaxParents]: it is executed once for each execution of
	// one of them or, with All, once for each occurrence of which all of them had one. An occurrence is named by its instant.
	After   []Parent `json:"after,omitempty"`
	All     bool     `json:"all,omitempty"`
	Unknown string   `json:"-"` // see Job
}
