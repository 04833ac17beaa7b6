// Package jobstore is the port of the cold store: job rows, pending entries in minute buckets, and history. It has three
// interfaces, because each service needs only some of them; one database stands behind all three.
//
// What every adapter promises:
//   - A write that returned nil is durable: it survives the loss of the process and of the machine's memory. (A crash may take the latest
//     rows of [History.Record] back, and their events are then consumed again.)
//   - A write that returned an error may or may not have taken effect; repeating it is always right.
//   - A read sees every write that returned before the read began.
//   - Instants are read back as they were written (UTC, whole milliseconds).
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
	// ErrNoProgress means: a partition has no low-water mark, because the store was never set up for it.
	ErrNoProgress = errors.New("partition has no low-water mark: the store was not set up")
	// ErrPartitions means: the store was set up with another partition count.
	ErrPartitions = errors.New("partition count differs from the one the store was set up with")
)

// Jobs holds job rows, superseded definitions, the tenants' listings and idempotency claims.
type Jobs interface {
	// Get reads a job row, including deleted ones. ErrNotFound if there is none.
	Get(ctx context.Context, jobID string) (job.Job, error)
	// GetMany reads several rows; those that do not exist are missing from the map. At most MaxGetMany ids.
	GetMany(ctx context.Context, jobIDs []string) (map[string]*job.Job, error)
	// GetSerial is Get, but first completes or aborts any write of the row that is in flight: a row that it does not see will not
	// appear later through a Create that began before, and a row that it sees is durable.
	GetSerial(ctx context.Context, jobID string) (job.Job, error)
	// Create lists the job under its tenant, then inserts its row. With exclusive it returns ErrExists if a row exists; without, the
	// existing row stands.
	Create(ctx context.Context, j job.Job, exclusive bool) error
	// CreateMany is Create without exclusive for several jobs. After an error some of them may have been created.
	CreateMany(ctx context.Context, jobs []job.Job) error
	// Replace writes j if the row is at j.Version-1, otherwise it returns ErrConflict. ErrNotFound if there is no row.
	Replace(ctx context.Context, j job.Job) error
	// PutDefinition stores a superseded definition; storing the same one twice has no further effect.
	PutDefinition(ctx context.Context, jobID string, d job.Definition) error
	// Definition reads a superseded definition, and where the first of those began that were superseded after it. The definition ended
	// there, or where the job row's own definition began if that is earlier. endsAt is zero when only the row's definition followed
	// it. ErrNotFound if there is none.
	Definition(ctx context.Context, jobID, definitionID string) (d job.Definition, endsAt time.Time, err error)
	// Definitions returns up to limit superseded definitions of a job with an id before the given one, greatest id first. Less than limit
	// means the end.
	Definitions(ctx context.Context, jobID, before string, limit int) ([]job.Definition, error)
	// List returns up to limit jobs of the tenant, newest id first, including deleted ones. It begins after the cursor (a job id, ""
	// for the start). next is "" at the end.
	List(ctx context.Context, tenant job.Tenant, cursor string, limit int) (page []job.Job, next string, err error)

	// Runs returns the rows of the executions that were in progress when the last [Jobs.SwapRuns] of the job was made; none if there was
	// none. Which of them still are, their rows tell. It first completes or aborts any write of them that is in flight.
	Runs(ctx context.Context, jobID string) ([]job.Locator, error)
	// SwapRuns replaces what Runs returns, by one row or more, if it is still old; otherwise it returns ErrConflict. They may be forgotten
	// twice HistoryTTL after that: no execution is in progress for so long.
	SwapRuns(ctx context.Context, jobID string, old, runs []job.Locator) error

	// HoldJobKey gives the job's key to it if no job has it, or if the one that has it is gone, and returns the id of the job that has it
	// then. A key that was given away stays with its job while that has a row that is not deleted; after that, it may be free again
	// without another call.
	HoldJobKey(ctx context.Context, j job.Job, gone string) (holder string, err error)
	// JobOfKey returns the id of the job to which a key was given. There need not be a row of that job. ErrNotFound if there is none.
	JobOfKey(ctx context.Context, tenant job.Tenant, key string) (jobID string, err error)

	// Remove removes a job's row, its superseded definitions and its runs; it is not listed any more. A job that is not there is left as it is. An
	// id that was removed must not be created again.
	Remove(ctx context.Context, tenant job.Tenant, jobID string) error
	// RemoveListings removes what is left of a tenant's listing, after its jobs were removed, and may remove keys that its jobs had. Jobs that are
	// still there lose their place.
	RemoveListings(ctx context.Context, tenant job.Tenant) error

	// ClaimKey stores the claim under the tenant's key if there is none, and returns the one that stands.
	ClaimKey(ctx context.Context, tenant job.Tenant, key string, c Claim) (standing Claim, won bool, err error)
	// FinishKey stores the answer of a claimed key. The first answer stands.
	FinishKey(ctx context.Context, tenant job.Tenant, key string, answer Answer) error
}

// MaxGetMany bounds one GetMany, and one Rows.
const MaxGetMany = 500

// Claim is what a request under an idempotency key decided before it wrote anything.
type Claim struct {
	// BodyHash is SHA-256 over the operation and the canonical body.
	BodyHash string `json:"body_hash"`
	// ID is the job id for a create, the request's ULID for a trigger.
	ID           string    `json:"id"`
	DefinitionID string    `json:"definition_id,omitempty"`
	AcceptedAt   time.Time `json:"accepted_at"`
	// Answer is nil until the request has been carried out.
	Answer *Answer `json:"answer,omitempty"`
}

// Answer is a response that is sent again when its request is repeated.
type Answer struct {
	Status  int               `json:"status"`
	Headers map[string]string `json:"headers"`
	Body    []byte            `json:"body"`
}

// KeyTTL is how long an idempotency key is remembered.
const KeyTTL = 24 * time.Hour

// Pending holds the entries in minute buckets.
type Pending interface {
	// Put writes entries. Writing an entry that exists changes nothing, and never touches its done mark or its decision. With
	// [RowFollows] they need not be durable yet.
	Put(ctx context.Context, entries []job.Entry) error
	// MarkDone marks rows as done. A row below its partition's low-water mark, or one that does not exist, is not created.
	MarkDone(ctx context.Context, locators []job.Locator) error
	// Defer marks a row as done whose attempt is due again at an instant, under another row.
	Defer(ctx context.Context, l job.Locator, to time.Time) error
	// Decide stores a decision on a row.
	Decide(ctx context.Context, l job.Locator, d job.Decision) error
	// Row reads one row. ErrNotFound if there is none.
	Row(ctx context.Context, l job.Locator) (job.PendingRow, error)
	// Rows reads several rows; those that do not exist are missing from the map. At most MaxGetMany locators.
	Rows(ctx context.Context, locators []job.Locator) (map[job.Locator]job.PendingRow, error)
	// Scan returns up to limit rows of a minute bucket in key order, after the given locator (nil: from the start). Fewer than limit
	// means the end.
	Scan(ctx context.Context, partition int, minute int64, after *job.Locator, limit int) ([]job.PendingRow, error)
	// Heads returns the first rows, up to limit, of each bucket of the minutes [from, to), in the order of the minutes, and within one in key order. A
	// bucket of which fewer than limit are returned has no more. The buckets are not read at one moment.
	Heads(ctx context.Context, partition int, from, to int64, limit int) ([]job.PendingRow, error)
	// FirstOpen returns the first minute in [from, to) that has a row; ok is false when none has.
	FirstOpen(ctx context.Context, partition int, from, to int64) (minute int64, ok bool, err error)
	// LowWater returns the first minute that has not been closed. ErrNoProgress if it was never set.
	LowWater(ctx context.Context, partition int) (int64, error)
	// Close deletes all buckets of the partition below minute and then moves the low-water mark there. The caller must have read them:
	// every entry in them is done.
	Close(ctx context.Context, partition int, minute int64) error
}

type rowFollows struct{}

// RowFollows returns the context of a Put whose caller acknowledges nothing before it has created the entries' job rows by the same
// store's Create or CreateMany. Then a store in which a write makes durable what was written before it may wait for one of them only.
func RowFollows(ctx context.Context) context.Context {
	return context.WithValue(ctx, rowFollows{}, true)
}

// DoesRowFollow reports whether a context is one of [RowFollows].
func DoesRowFollow(ctx context.Context) bool {
	follows, _ := ctx.Value(rowFollows{}).(bool)
	return follows
}

// Recorded is an event of the history. Text is how the log carries it, which is stored as it is; without it the event is encoded.
type Recorded struct {
	*job.Event
	Text []byte
}

// Unencoded returns events without their texts.
func Unencoded(events ...*job.Event) []Recorded {
	list := make([]Recorded, len(events))
	for i, e := range events {
		list[i].Event = e
	}
	return list
}

// History holds what happened: attempts, dispositions and dead letters.
type History interface {
	// Record stores events. Recording the same event id twice has no further effect. A crash may undo the latest records, together
	// with every position of the log that was committed after them.
	Record(ctx context.Context, events []Recorded) error
	// Executions returns up to limit events of a job, newest nominal instant first, strictly before the cursor position (zero: the
	// newest). Events of one execution follow each other by attempt. It looks back no further than `oldest`. What
	// [OfOneShot] tells of may be missing if the job's row, and where that was updated its first definition, is not there.
	Executions(ctx context.Context, of Of, before Cursor, oldest time.Time, limit int) ([]job.Event, error)
	// Execution returns all events of one execution, by attempt; none if there are none.
	Execution(ctx context.Context, executionID string) ([]job.Event, error)

	// Forget removes all events that Executions finds, so a job and its definitions are removed after them.
	Forget(ctx context.Context, of Of) error

	// PutDeadLetter stores a dead letter, in place of that of the same execution. What MarkRedriven stored stays.
	PutDeadLetter(ctx context.Context, d job.DeadLetter) error
	// MarkRedriven stores which execution replaces a dead letter's.
	MarkRedriven(ctx context.Context, d job.DeadLetter, executionID string) error
	// RemoveDeadLetters removes all dead letters of a tenant.
	RemoveDeadLetters(ctx context.Context, tenant job.Tenant) error
	// DeadLetters returns up to limit of the tenant's dead letters, newest day first, after the cursor. next is "" at the end, and else of at most
	// 256 letters, digits, "_" and "-": clients are given it.
	DeadLetters(ctx context.Context, tenant job.Tenant, cursor string, limit int) (page []job.DeadLetter, next string, err error)
}

// Settings holds what concerns the whole installation: a few values, and lists.
type Settings interface {
	// Setting reads a value; nil if there is none.
	Setting(ctx context.Context, name string) ([]byte, error)
	// SwapSetting writes a value if the old one is still stored, otherwise it returns ErrConflict. A value of nil removes the setting.
	SwapSetting(ctx context.Context, name string, old, value []byte) error
	Lists
}

// Lists holds small items in lists, in the order of their names. A list exists while it has items; it should have fewer than 100,000.
type Lists interface {
	// PutItem writes an item, in place of the list's item of that name. Of two writes or removals the one stands that began later, however late
	// the other takes effect; if they began within clock.MaxDifference of each other in two processes, any may. Of two writes with versions the one
	// with the greater version stands.
	PutItem(ctx context.Context, list string, i Item) error
	// RemoveItem removes an item; one that is not there is left as it is. With a version, for an item that is always written with one, it leaves what
	// was written with a greater one. What is written after that with the same or a smaller one may stand or not.
	RemoveItem(ctx context.Context, list, name string, version int64) error
	// Items returns up to limit items in the order of the bytes of their names, after the given name ("" for the start). Fewer than limit
	// means the end.
	Items(ctx context.Context, list, after string, limit int) ([]Item, error)
	// RemoveList removes all items of a list.
	RemoveList(ctx context.Context, list string) error
}

// Item is an item of a list. Its name is not empty, and has no zero byte.
type Item struct {
	Name  string
	Value []byte
	// Version orders the writes of an item that is always written with one; 0 for none. It is an instant that is past, in microseconds, so that a
	// removal without one that begins later stands. It is not read.
	Version int64
}

// ClosesAfter is how long after its minute a bucket may be closed at the earliest, on which late writers rely.
const ClosesAfter = 5 * time.Minute

// SettingDispatchHold is the name under which a [job.DispatchHold] is kept, as JSON.
const SettingDispatchHold = "dispatch-hold"

// Expiry returns when a job's row may be dropped; zero for never. A one-shot's is HistoryTTL after it is due or was last changed,
// whichever is later, but never while it is paused. Any other job's is HistoryTTL after it was deleted.
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
