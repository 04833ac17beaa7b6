// Package hotbucket is the port of the hot buckets: for each partition the entries of its next hour, sorted by the
// instant at which they are due, and the claims of their occurrences. All of it can be rebuilt from the cold store.
//
// What every adapter promises:
//   - Whatever carries an owner's epoch is refused with ErrStaleEpoch when the store holds a greater one for that
//     role and partition, or none.
//   - Add and Remove name an occurrence (execution, attempt, due instant), never an execution alone, so that whoever
//     removes late cannot destroy what was put in between.
//   - A partition of which the hot tier lost anything, or whose server was restarted or failed over, has another
//     incarnation afterwards.
package hotbucket

import (
	"context"
	"errors"
	"time"

	"github.com/minutehand/minutehand/libs/job"
)

// Sentinel errors.
var (
	// ErrStaleEpoch means: another owner has taken the partition over, or the hot tier forgot the epoch.
	ErrStaleEpoch = errors.New("stale or missing epoch")
	// ErrFull means: the hot tier's named bound is reached; the entry waits in the cold store for a later sweep.
	ErrFull = errors.New("hot bucket is full")
)

// Role is a kind of owner.
type Role string

// The roles that own partitions.
const (
	RoleLoader Role = "bucket-loader"
	RoleWorker Role = "scheduler-worker"
)

// Owner is a partition as one owner holds it.
type Owner struct {
	Role      Role
	Partition int
	Epoch     int64
}

// RoomWithin is how soon an entry must be due, or how lately, to be added where an adapter is more than four fifths full:
// what is due next is kept out neither by what is due in an hour nor by what has long been overdue.
const RoomWithin = 5 * time.Minute

// HintWithin is how soon an added entry must be due to be hinted at: longer than any worker looks ahead.
const HintWithin = 5 * time.Second

// Buckets is the hot tier as loaders, workers and writers see it.
type Buckets interface {
	// Add puts entries into their partitions' due sets. One that is there already stays as it is. ErrFull where the
	// bound of the adapter would be passed: then none of the call's entries of that partition were added.
	Add(ctx context.Context, entries []job.Entry) error
	// Due gives, for each owner in order, the entries due at or before until, without removing them: at most limit
	// in all, earliest due first within a partition. They may be shared, and must not be changed.
	Due(ctx context.Context, owners []Owner, until time.Time, limit int) ([]*job.Entry, error)
	// Postpone keeps Due from giving occurrences before an instant. They stay in their due sets, so nobody misses them;
	// that they were postponed may be forgotten at any time. The owner's epoch is checked.
	Postpone(ctx context.Context, o Owner, locators []job.Locator, until time.Time) error
	// Remove takes occurrences out of their due sets.
	Remove(ctx context.Context, locators []job.Locator) error
	// Absent gives those of the locators that are not in their due set.
	Absent(ctx context.Context, locators []job.Locator) ([]job.Locator, error)
	// Hints receives when entries due within HintWithin may have been added; a hint may be spurious, and may be lost.
	// It only makes a reader quicker, correctness never depends on it.
	Hints() <-chan struct{}

	// Claim stores the decision for an occurrence under a definition if none is there, checks the owner's epoch, and
	// returns the decision that stands. Claims are kept for an hour at least.
	Claim(ctx context.Context, o Owner, claims []Claim) ([]job.Decision, error)

	// Horizon is up to where the partition has been filled; zero when it never was in this incarnation.
	Horizon(ctx context.Context, partition int) (time.Time, error)
	// SetHorizon publishes it.
	SetHorizon(ctx context.Context, o Owner, horizon time.Time) error
	// SetEpoch takes a partition over for a role. An epoch below the stored one is refused with ErrStaleEpoch.
	SetEpoch(ctx context.Context, o Owner) error
	// Incarnations are those of partitions, in order: each of the part of the hot tier that holds the partition.
	Incarnations(ctx context.Context, partitions []int) ([]string, error)
}

// Claim is an occurrence and what its owner would decide. Around an update, two definitions may share an occurrence,
// and each has its own chain.
type Claim struct {
	ExecutionID, DefinitionID string
	Decision                  job.Decision
}
