// Package hotbucket is the port of the hot buckets: for each partition the entries of its next hour, by lane and sorted by the
// instant at which they are due, and the claims of their occurrences. All of it can be rebuilt from the cold store.
//
// A lane is the queue of one target host (see job.Definition.Mark). Reading by lane keeps a million entries that wait for one host
// from hiding what is due behind them for another.
//
// What every adapter promises:
//   - A call that carries an owner's epoch is refused with ErrStaleEpoch when the store holds a greater one for that
//     role and partition, or none.
//   - Add and Remove name an occurrence (execution, attempt, due instant), never an execution alone, so that an
//     owner that removes late cannot destroy an entry that was added in between.
//   - If the hot tier lost anything of a partition, or the partition's server was restarted or failed over, the partition
//     has another incarnation afterwards.
package hotbucket

import (
	"context"
	"errors"
	"time"

	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/job"
)

// Sentinel errors.
var (
	// ErrStaleEpoch means: another owner has taken over the partition, or the hot tier forgot the epoch.
	ErrStaleEpoch = errors.New("stale or missing epoch")
	// ErrFull means: the hot tier's named bound is reached; the entry waits in the cold store for a later sweep.
	ErrFull = errors.New("hot bucket is full")
)

// RoomWithin is how soon an entry must be due, or how lately it was due, to be added when an adapter is more than four fifths full.
// So neither entries due in an hour nor long overdue ones keep out what is due next.
const RoomWithin = 5 * time.Minute

// HintWithin is how soon an added entry must be due for a hint to be sent: longer than any worker looks ahead.
const HintWithin = 5 * time.Second

// Hurries reports whether readers get a hint at an entry that is added at now. It is due within HintWithin, and more than the news that a
// job was created: most jobs are due later than that, and a read for each of them would cost more than anything else about it.
func Hurries(e *job.Entry, now time.Time) bool {
	return e.DueAt.Before(now.Add(HintWithin)) && (e.Change == nil || e.Change.Version != 1)
}

// Buckets is the hot tier as loaders, workers and writers see it.
type Buckets interface {
	// Add puts entries into their partitions' due sets. An entry that is there already stays as it is. Add returns ErrFull where the
	// adapter's bound would be exceeded; then none of the call's entries of that partition were added.
	Add(ctx context.Context, entries []job.Entry) error
	// Due returns, for each owner in order, the entries that the Ask asks for, earliest due first within a lane, and sets each of them
	// aside. An entry set aside is not returned again before GivenFor has passed, except to an owner with another epoch or with
	// Ask.Again. Entries that were set aside stay in their hot bucket, so nobody misses them. The store may forget at any time that it
	// set them aside, so a reader remembers what it holds. The entries may be shared, and must not be changed.
	//
	// next holds, for each owner, when there is something to read in its partition if nothing is added: the due instant of the first
	// entry that was left, or the end of GivenFor of one that was set aside, whichever comes first; zero if there is neither.
	Due(ctx context.Context, owners []coord.Owner, ask Ask) (given []Given, next []time.Time, err error)
	// Postpone keeps Due from returning entries before an instant, as setting them aside does. The owner's epoch is checked.
	Postpone(ctx context.Context, o coord.Owner, entries []*job.Entry, until time.Time) error
	// Recall ends that entries are set aside, so that Due returns them again, and hints at them. An entry that is not there is not added.
	Recall(ctx context.Context, entries []*job.Entry) error
	// Park marks entries as attended: what had to be done at their instant is done, and they only wait for their target. Due returns
	// them again as soon as their lane is asked for. The store may forget at any time that they are parked. The owner's epoch is
	// checked; an entry that is not there is not added.
	Park(ctx context.Context, o coord.Owner, entries []*job.Entry) error
	// Remove removes occurrences from their hot buckets.
	Remove(ctx context.Context, entries []*job.Entry) error
	// Absent returns the locators of those entries that are not in their hot bucket.
	Absent(ctx context.Context, entries []*job.Entry) ([]job.Locator, error)
	// Hints reports in which partitions entries that hurry (see [Hurries]) may have been added. A hint may be spurious, and may be lost. It
	// only makes a reader quicker; correctness never depends on it. An adapter that may have lost hints hints at every partition.
	Hints() *Hints

	// Claim stores the decision for an occurrence under a definition if there is none, checks the owner's epoch, and returns the
	// decision that stands. Claims are kept for at least an hour, or until a named bound evicts the oldest. An occurrence that has lost its
	// claim is decided again: alike if it is on time, because that follows from the schedule alone; and if it is late, as its row says, where
	// its decision is written before it is carried out.
	Claim(ctx context.Context, o coord.Owner, claims []Claim) ([]job.Decision, error)
	// Claimed returns the decision that Claim has stored for an occurrence under a definition, or nil. It checks no epoch, and ignores the
	// decision in c. Once an owner has set its epoch, no earlier owner can store another.
	Claimed(ctx context.Context, partition int, c Claim) (*job.Decision, error)

	// Horizons returns the instants up to which partitions have been filled, in order; zero for one that never was in this incarnation.
	Horizons(ctx context.Context, partitions []int) ([]time.Time, error)
	// SetHorizon publishes the horizon.
	SetHorizon(ctx context.Context, o coord.Owner, horizon time.Time) error
	// SetEpoch takes over a partition for a role. An epoch below the stored one is refused with ErrStaleEpoch.
	SetEpoch(ctx context.Context, o coord.Owner) error
	// Incarnations returns those of partitions, in order: each of the part of the hot tier that holds the partition.
	Incarnations(ctx context.Context, partitions []int) ([]string, error)
}

// GivenFor is how long Due sets aside what it returned: longer than a worker takes from reading an entry to its removal.
const GivenFor = 30 * time.Second

// Bounds of a read: MaxGiven of the entries that one Due returns of one partition, MaxLaneAsks of the lanes in an Ask.
const (
	MaxGiven    = 500
	MaxLaneAsks = 256
)

// Ask selects what Due returns.
type Ask struct {
	// PerLane applies to every lane that Lanes does not name.
	PerLane LaneAsk
	Lanes   map[uint32]LaneAsk
	// Limit bounds what is returned of one partition; 0, or more than MaxGiven, stands for MaxGiven.
	Limit int
	// Again returns once more what was set aside, because an answer was lost or its reader has dropped it.
	Again bool
	// Quiet partitions are read to show that their owners still own them, and the asker expects nothing in them. They are answered as the
	// others are, but an adapter may ask first, for less, whether there is anything.
	Quiet map[int]bool
}

// LaneAsk selects what Due returns of a lane in one partition.
type LaneAsk struct {
	// Until: entries due at or before it.
	Until time.Time
	// Limit bounds their number.
	Limit int
	// Attended: only entries that need attention at their instant and are not parked.
	Attended bool
	// Every, if over 1, asks only one in that many partitions; another Turn asks others. Each of the other partitions yields at most
	// AttendedLimit entries, as with Attended. So a lane may get little room however many partitions there are.
	Every, Turn, AttendedLimit int
}

// Of returns what is asked for from a lane in a partition.
func (a *Ask) Of(partition int, lane uint32) LaneAsk {
	l, ok := a.Lanes[lane]
	if !ok {
		l = a.PerLane
	}
	if l.Every > 1 && int(uint32(partition)*2654435761>>12)%l.Every != l.Turn%l.Every {
		return LaneAsk{Until: l.Until, Limit: l.AttendedLimit, Attended: true}
	}
	return l
}

// Room returns the maximum number of entries that Due returns of one partition.
func (a *Ask) Room() int {
	if a.Limit <= 0 || a.Limit > MaxGiven {
		return MaxGiven
	}
	return a.Limit
}

// All returns an Ask for everything that is due at or before an instant.
func All(until time.Time) Ask { return Ask{PerLane: LaneAsk{Until: until, Limit: MaxGiven}} }

// Given is an entry that Due returned.
type Given struct {
	*job.Entry
	// Parked: the entry was attended to at its instant, and has waited for its target since.
	Parked bool
}

// Claim is an occurrence and what its owner would decide. Around an update, two definitions may share an occurrence,
// and each has its own chain.
type Claim struct {
	ExecutionID, DefinitionID string
	Decision                  job.Decision
}
