// Package jobstore is the port of the cold store: job rows, pending entries in minute buckets, and history. Three
// interfaces, because each service needs only some of them; one database stands behind all three.
//
// What every adapter promises:
//   - A write that returned nil is durable: it survives the loss of the process and of the machine's memory.
//   - A write that returned an error may or may not have taken effect; doing it again is always right.
//   - A read sees every write that returned before the read began.
//   - Instants come back as they were written (UTC, whole milliseconds).
//
// Errors other than the sentinels below mean that the store could not answer; the caller waits and tries again.
package jobstore

import (
	"context"
	"errors"
	"time"

	"github.com/minutehand/minutehand/libs/job"
)

// Sentinel errors. Adapters wrap them with the operation.
var (
	// ErrNotFound means: no such row.
	ErrNotFound = errors.New("not found")
	// ErrExists means: an exclusive create found a row.
	ErrExists = errors.New("exists already")
	// ErrConflict means: the row is no longer at the expected version.
	ErrConflict = errors.New("version conflict")
	// ErrNoProgress means: a partition has no low-water mark; the store was never set up for it.
	ErrNoProgress = errors.New("partition has no low-water mark: the store was not set up")
	// ErrPartitions means: the store was set up with another partition count.
	ErrPartitions = errors.New("partition count differs from the one the store was set up with")
)

// Jobs holds job rows, superseded definitions, the tenants' listings and idempotency claims.
type Jobs interface {
	// Get reads a job row, deleted ones too. ErrNotFound if there is none.
	Get(ctx context.Context, jobID string) (job.Job, error)
	// GetMany reads several rows; those that do not exist are missing from the map. At most MaxGetMany ids.
	GetMany(ctx context.Context, jobIDs []string) (map[string]*job.Job, error)
	// GetSerial is Get, but first finishes or ends any write of the row that is in flight: a row that it does not see
	// will not appear later through a Create that began before, and a row that it sees is durable.
	GetSerial(ctx context.Context, jobID string) (job.Job, error)
	// Create lists the job under its tenant, then inserts its row. With exclusive set it inserts only where no row is
	// and else returns ErrExists; without, an existing row stands and wins.
	Create(ctx context.Context, j job.Job, exclusive bool) error
	// CreateMany is Create without exclusive for several jobs. After an error some of them may have been created.
	CreateMany(ctx context.Context, jobs []job.Job) error
	// Replace writes j if the row stands at j.Version-1, else ErrConflict. ErrNotFound if there is none.
	Replace(ctx context.Context, j job.Job) error
	// PutDefinition keeps a superseded definition; the same twice is once.
	PutDefinition(ctx context.Context, jobID string, d job.Definition) error
	// Definition reads a superseded definition, and where the first of those began that were superseded after it: it ended
	// there, or where the job row's own definition began if that is earlier. endsAt is zero when only the row's followed it.
	// ErrNotFound if there is none.
	Definition(ctx context.Context, jobID, definitionID string) (d job.Definition, endsAt time.Time, err error)
	// List gives up to limit jobs of the tenant, newest id first, beginning after the cursor (a job id, "" for the
	// start), deleted ones too. next is "" at the end.
	List(ctx context.Context, tenantID, cursor string, limit int) (page []job.Job, next string, err error)

	// ClaimKey stores the claim under the tenant's key if none is there, and returns the one that stands.
	ClaimKey(ctx context.Context, tenantID, key string, c Claim) (standing Claim, won bool, err error)
	// FinishKey stores the answer of a claimed key. The first one stands.
	FinishKey(ctx context.Context, tenantID, key string, answer Answer) error
}

// MaxGetMany bounds one GetMany, and one Rows.
const MaxGetMany = 500

// Claim is what a request under an idempotency key decided before it wrote anything.
type Claim struct {
	// BodyHash is SHA-256 over the operation and the canonical body.
	BodyHash string `json:"body_hash"`
	// ID is the job id of a create, the request's ULID of a trigger.
	ID           string    `json:"id"`
	DefinitionID string    `json:"definition_id,omitempty"`
	AcceptedAt   time.Time `json:"accepted_at"`
	// Answer is nil until the request was carried out.
	Answer *Answer `json:"answer,omitempty"`
}

// Answer is a response that is given again.
type Answer struct {
	Status  int               `json:"status"`
	Headers map[string]string `json:"headers"`
	Body    []byte            `json:"body"`
}

// KeyTTL is how long an idempotency key is remembered.
const KeyTTL = 24 * time.Hour

// Pending holds the entries in minute buckets.
type Pending interface {
	// Put writes entries. Writing one that is there already changes nothing, and never touches done or its decision.
	Put(ctx context.Context, entries []job.Entry) error
	// MarkDone sets done on rows. A row below its partition's low-water mark, or one that is not there, stays away.
	MarkDone(ctx context.Context, locators []job.Locator) error
	// Defer marks a row done whose attempt is due again at an instant, by another row.
	Defer(ctx context.Context, l job.Locator, to time.Time) error
	// Decide stores a decision on a row.
	Decide(ctx context.Context, l job.Locator, d job.Decision) error
	// Row reads one row. ErrNotFound if there is none.
	Row(ctx context.Context, l job.Locator) (job.PendingRow, error)
	// Rows reads several rows; those that do not exist are missing from the map. At most MaxGetMany locators.
	Rows(ctx context.Context, locators []job.Locator) (map[job.Locator]job.PendingRow, error)
	// Scan gives up to limit rows of a minute bucket in key order, those after the given locator (nil: from the start).
	// Fewer than limit means the end.
	Scan(ctx context.Context, partition int, minute int64, after *job.Locator, limit int) ([]job.PendingRow, error)
	// FirstOpen gives the first minute of [from, to) that has a row; ok is false when none has.
	FirstOpen(ctx context.Context, partition int, from, to int64) (minute int64, ok bool, err error)
	// LowWater is the first minute that has not been closed. ErrNoProgress if it was never set.
	LowWater(ctx context.Context, partition int) (int64, error)
	// Close deletes all buckets of the partition below minute and then moves the low-water mark there.
	// The caller has read them: every entry in them was done.
	Close(ctx context.Context, partition int, minute int64) error
}

// History holds what happened: attempts and dispositions, and the dead letters.
type History interface {
	// Record stores events. The same event id twice is once. A crash may take the latest back, together with every
	// position of the log that was committed after them.
	Record(ctx context.Context, events []*job.Event) error
	// Executions gives up to limit events of the job, newest nominal instant first, those strictly before the cursor
	// position (zero: the newest). Events of one execution follow each other by attempt. It looks back at most to
	// `oldest`.
	Executions(ctx context.Context, jobID string, before Cursor, oldest time.Time, limit int) ([]job.Event, error)
	// Execution gives all events of one execution, by attempt. Empty if there are none.
	Execution(ctx context.Context, executionID string) ([]job.Event, error)

	// PutDeadLetter stores a dead letter; the same execution twice is once.
	PutDeadLetter(ctx context.Context, d job.DeadLetter) error
	// MarkRedriven stores which execution takes a dead letter's place.
	MarkRedriven(ctx context.Context, d job.DeadLetter, executionID string) error
	// DeadLetters gives up to limit of the tenant's dead letters, newest day first, after the cursor. next is "" at the end.
	DeadLetters(ctx context.Context, tenantID, cursor string, limit int) (page []job.DeadLetter, next string, err error)
}

// Settings holds the few values that concern the whole installation.
type Settings interface {
	// Setting reads a value; nil where there is none.
	Setting(ctx context.Context, name string) ([]byte, error)
	// SwapSetting writes a value where the old one stands, else ErrConflict.
	SwapSetting(ctx context.Context, name string, old, value []byte) error
}

// SettingDispatchHold is the name under which a [job.DispatchHold] is kept, as JSON.
const SettingDispatchHold = "dispatch-hold"

// HistoryTTL is how long history, dead letters, superseded definitions and ended one-shots are kept.
const HistoryTTL = 30 * 24 * time.Hour

// Expiry is when a job's row may go; zero for never. A one-shot's is HistoryTTL after it is due, or was last changed, except
// while it is paused; any other's is as long after it was deleted.
func Expiry(j *job.Job) time.Time {
	switch {
	case j.Deleted:
		return j.UpdatedAt.Add(HistoryTTL)
	case j.Definition.Schedule.Type == job.ScheduleOneShot && j.Status != job.StatusPaused:
		return job.Later(j.Definition.Schedule.RunAt, j.UpdatedAt).Add(HistoryTTL)
	}
	return time.Time{}
}

// Cursor is a place in a job's history: before the events of this nominal instant and execution.
type Cursor struct {
	NominalAt   time.Time
	ExecutionID string
}
