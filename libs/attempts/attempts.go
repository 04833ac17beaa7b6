// Package attempts is the port that makes executions run once. It holds the record of each (execution, attempt), which is a lease
// while the attempt is under way and its outcome afterwards, and the stop record of each job.
//
// What every adapter promises:
//   - Every call on one record is atomic.
//   - A record outlives its lease: takeovers are counted for as long as the record is kept. The embedded adapter keeps
//     started records across a restart, so that a fire that kills its process ends.
//   - Outcomes are kept for Retention, or until a named bound evicts the oldest; Memory reports which are still there.
//   - An outcome is kept whole for DetailFor, or until a named bound packs the oldest. After that it may lack the target's
//     response and its time.
//   - A stop record is only ever replaced by one of a greater version.
package attempts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
)

// Sentinel errors.
var (
	// ErrFenced means: the record no longer belongs to this token.
	ErrFenced = errors.New("lease was taken over")
	// ErrIncarnation means: the hot tier has another incarnation, and may have forgotten what stops an attempt.
	ErrIncarnation = errors.New("another incarnation of the hot tier")
)

// DetailFor is how long an outcome is kept whole: until the executor that stored it, or one that takes over from it, has published
// it.
const DetailFor = 2 * time.Minute

// ReplacedFor is the longest that a server of the hot tier goes on answering clients that have not noticed that a replica was
// promoted in its place. Servers must be configured so that this holds: see schemas/redis/KEYS.md.
const ReplacedFor = 15 * time.Second

// AloneFor is how much later than one hand-out of a task another one may take its lease over. No server that was replaced hands anything out as
// late as that.
const AloneFor = ReplacedFor + clock.MaxDifference

// epochDigits is the number of hexadecimal digits of the number in an incarnation's name.
const epochDigits = 14

// IncarnationName returns the name of an incarnation of a part of the hot tier. It consists of the incarnation's number, which is
// greater than that of every earlier one, and of whatever else distinguishes it.
func IncarnationName(epoch int64, rest string) string {
	return fmt.Sprintf("%0*x-%s", epochDigits, epoch, rest)
}

// EpochOf returns the number in an incarnation's name, 0 if the text is not such a name.
func EpochOf(incarnation string) int64 {
	number, _, _ := strings.Cut(incarnation, "-")
	if len(number) != epochDigits {
		return 0
	}
	n, err := strconv.ParseInt(number, 16, 64)
	if err != nil {
		return 0
	}
	return n
}

// promotedMark ends the name of an incarnation that began when a replica was promoted.
const promotedMark = "p"

// PromotedName is IncarnationName for an incarnation that begins when a replica is promoted.
func PromotedName(epoch int64, rest string) string {
	return IncarnationName(epoch, rest) + promotedMark
}

// NextEpoch returns the number of the incarnation that begins now: one more than the last number, and at least the time in
// microseconds, so that it is still greater when the last number was lost with everything else.
func NextEpoch(last int64, now time.Time) int64 { return max(last+1, now.UnixMicro()) }

// Key names an attempt.
type Key struct {
	ExecutionID string
	Attempt     int
}

// CompareKeys orders attempts.
func CompareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.ExecutionID, b.ExecutionID), cmp.Compare(a.Attempt, b.Attempt))
}

// KeyOf names the attempt of an entry.
func KeyOf(e *job.Entry) Key { return Key{ExecutionID: e.ExecutionID, Attempt: e.Attempt} }

// Record is what the store holds for an attempt.
type Record struct {
	Exists bool
	Holder string
	// DefinitionID is that of the entry for which the attempt was last started, or for which the lease was acquired if it never was;
	// "" when that is not known.
	DefinitionID string
	Token        job.Token
	// LapsesAt is when the lease ends unless it is renewed. Once that is past, or with Released set, nobody holds the lease.
	LapsesAt time.Time
	Released bool
	// Running is set by the last check: the target was called, or may have been.
	Running bool
	// Takeovers counts how often an expired lease was taken over.
	Takeovers int
	// Outcome is the end of the attempt, nil while there is none.
	Outcome *job.Outcome
	// For and ForSince are the hand-out that has the lease, see [Holder]; empty if there was none.
	For      string
	ForSince time.Time
}

// AcquireAgain acquires a lease for the holder that has it already. mine reports whether that is the holder. ok reports whether it acquired the
// lease: not if another hand-out has it.
func (r *Record) AcquireAgain(h Holder, lapsesAt time.Time) (mine, ok bool) {
	if !r.Exists || r.Outcome != nil || r.Released || r.Holder != h.Name || r.Token.Start != h.Start {
		return false, false
	}
	if h.For != "" && h.For != r.For {
		if r.For != "" {
			if h.ForSince.Before(r.ForSince.Add(AloneFor)) {
				return true, false
			}
			r.Token.Counter++
		}
		r.For, r.ForSince = h.For, h.ForSince
	}
	r.LapsesAt = job.Later(r.LapsesAt, lapsesAt)
	return true, true
}

// Of reports whether a lease or an outcome may stem from this definition's entry. Around an update, entries of two definitions may
// stand for one execution, and each has its own chain.
func (r *Record) Of(definitionID string) bool {
	d := r.DefinitionID
	if r.Outcome != nil && r.Outcome.DefinitionID != "" {
		d = r.Outcome.DefinitionID
	}
	return r.Exists && (d == "" || d == definitionID)
}

// Alive reports whether someone holds the lease.
func (r *Record) Alive(now time.Time) bool {
	return r.Exists && r.Outcome == nil && !r.Released && now.Before(r.LapsesAt)
}

// Holder acquires a lease: a process, for the entry of a definition.
type Holder struct {
	// Name is new at each start of the process.
	Name         string
	DefinitionID string
	// Start makes every token unique. It combines the number drawn from the coordinator at the process's start and a count of its
	// leases. A holder that asks again with the same number asks for the same lease.
	Start int64
	// For names a hand-out of a task that several processes hand out as one holder, and ForSince is when the task was taken for it. For is ""
	// otherwise. One hand-out at a time has the lease: another one is refused until AloneFor after the one before, and then takes the lease
	// over, under a greater token. Without For, the holder has the lease as before, and no hand-out changes.
	For      string
	ForSince time.Time
}

// Check is the subject of the last check.
type Check struct {
	Entry *job.Entry
	// StopVersion is the version of the stop record by which the entry was judged and may begin; 0 stands for no stop record.
	StopVersion int64
	// Incarnation is the one that is known to have forgotten nothing that concerns the entry.
	Incarnation string
}

// Bounds of a call: MaxFinish of the completions in one Finish, MaxRenew of the leases in one Renew.
const (
	MaxFinish = 500
	MaxRenew  = 4096
)

// Lease is a lease that its holder keeps.
type Lease struct {
	Key    Key
	Holder Holder
	Token  job.Token
	// MayHaveBegun means that the invocation may have begun; a record that Renew re-creates says so. Begun means that it has; the
	// record then says so in any case, even if the hot tier has gone back to before the last check.
	MayHaveBegun, Begun bool
}

// Completion is how an attempt ended for the holder of a token.
type Completion struct {
	Key     Key
	Token   job.Token
	Outcome *job.Outcome // must no longer be changed
}

// Completed is the result of a Completion: whether its outcome was stored, and if not, the record that stands now.
type Completed struct {
	Record Record
	Stored bool
}

// Memory is what a part of the hot tier knows about what it has forgotten.
type Memory struct {
	// Incarnation is that of the partition's hot buckets, with which its records are lost. It may be one that has just ended; Start
	// uses the current one.
	Incarnation string
	// KeptSince is the instant from which every outcome that this incarnation stored is still there. It is clock.MaxDifference after
	// the last one that was evicted, because one clock takes a fire and another stores its outcome.
	KeptSince time.Time
}

// Covers reports whether nothing has been forgotten of attempts that ended at an instant or later, by anybody's clock: this
// incarnation had begun by then, any server that it replaced had stopped, and whatever it evicted is older.
func (m Memory) Covers(at time.Time) bool {
	if !at.After(m.KeptSince) {
		return false
	}
	epoch := EpochOf(m.Incarnation) // no earlier than the time in microseconds, see NextEpoch
	alone := time.UnixMicro(epoch).Add(clock.MaxDifference)
	if strings.HasSuffix(m.Incarnation, promotedMark) {
		alone = alone.Add(ReplacedFor)
	}
	return epoch > 0 && at.After(alone)
}

// Doubts reports whether an attempt that is taken up at now, and was due before, may have ended before without a trace in this memory: its
// outcome may be forgotten, and an earlier entry, taken again after a crash, have made its own hot once more.
func (m Memory) Doubts(due, now time.Time) bool { return now.After(due) && !m.Covers(due) }

// Records is everything that is kept about attempts. An attempt's record is stored with its job's stop record, so that one call may
// compare the one and change the other.
type Records interface {
	Leases
	Outcomes
	Stops
}

// Leases give an attempt to one executor at a time.
type Leases interface {
	// Acquire acquires the lease until lapsesAt if nobody holds it and there is no outcome; it raises the token above every one seen
	// before. ok reports whether it did; rec is the record that stands now. A lease that was acquired with the same name and number,
	// by a call whose answer was lost, is renewed and returned with the token that it has. This never shortens a lease, however late a
	// call comes. Another hand-out of the same task (Holder.For) has a lease of its own.
	Acquire(ctx context.Context, k Key, h Holder, now, lapsesAt time.Time) (rec Record, ok bool, err error)
	// Begin is Acquire and Start in one, where nothing stands in the way: there is no record of the attempt, nor a stop record of its
	// job, the hot tier's incarnation is the check's, and it has kept every outcome since the given instant. ok reports whether the
	// attempt began; the token's counter is then 1. Otherwise Begin changed nothing, and Acquire and Start tell why. A call that was
	// made twice, or whose answer was lost, finds its own record: Acquire then returns it to the same holder, running, with counter 1.
	Begin(ctx context.Context, k Key, h Holder, lapsesAt time.Time, c Check, keptSince time.Time) (fence job.Fence, ok bool, err error)
	// Memory reports what the part of the hot tier that holds a job's records can have forgotten.
	Memory(ctx context.Context, jobID string) (Memory, error)
	// Start is the last check and the step lease → running, in one. If the current stop record has the check's version, Start marks
	// the record as running and stop is nil. The fence of the invocation is then greater than all that this part of the hot tier
	// accepted before, in this incarnation and earlier ones. Otherwise nothing begins, and stop is the current stop record, with
	// version 0 if there is none: the caller judges by it.
	// Start returns ErrIncarnation if the hot tier's incarnation is not the check's, otherwise ErrFenced if the lease does not belong
	// to the token.
	Start(ctx context.Context, k Key, t job.Token, c Check) (fence job.Fence, stop *job.State, err error)
	// Renew moves the end of leases, never back. It re-creates a record that was lost, and leaves alone one that belongs to another
	// token or has an outcome. After an error some may be renewed. At most MaxRenew.
	Renew(ctx context.Context, leases []Lease, lapsesAt time.Time) error
	// Release releases a lease without an outcome; the record stays. With called, this holder or an earlier one may have called the
	// target, for an entry of the given definition: the record remains running and names that definition, even if this holder's last
	// check was for an entry of another one. Without called, the record is as before the last check.
	Release(ctx context.Context, k Key, t job.Token, called bool, definitionID string) error
}

// Outcomes record how attempts ended.
type Outcomes interface {
	// Finish stores each outcome whose record belongs to the token, is released, has expired at now or is gone. After an error some
	// may be stored; repeating the call finds them. At most MaxFinish.
	Finish(ctx context.Context, completions []Completion, now time.Time) ([]Completed, error)
	// Refuse stores the outcome of an attempt that will never be invoked, if there is no lease and no outcome (a released record that
	// never ran counts as neither). rec is the record that stands now.
	Refuse(ctx context.Context, k Key, o job.Outcome, now time.Time) (rec Record, ok bool, err error)
	// Lookup reads records.
	Lookup(ctx context.Context, keys []Key) ([]Record, error)
}

// Stops are the stop records of jobs.
type Stops interface {
	// SetStop stores the state of a job, only over a smaller version. If holdsIn is positive, the state may have been stored by a
	// server that was replaced, or a replaced server may still accept last checks without it. A change that stops attempts is then
	// acknowledged only after that time has passed and the state was stored once more. holdsIn is 0 unless a server failed over, was
	// lost or lost its replica.
	SetStop(ctx context.Context, jobID string, s job.State) (holdsIn time.Duration, err error)
	// StopsOf reads stop records; those that do not exist are missing from the map.
	StopsOf(ctx context.Context, jobIDs []string) (map[string]job.State, error)
}
