package job

import "time"

// ScheduleType is how a schedule names its instants.
type ScheduleType string

// The three kinds of schedule.
const (
	ScheduleOneShot  ScheduleType = "one_shot"
	ScheduleCron     ScheduleType = "cron"
	ScheduleInterval ScheduleType = "interval"
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
	Jitter  time.Duration `json:"jitter,omitempty"`
	Unknown string        `json:"-"` // see Job
}
