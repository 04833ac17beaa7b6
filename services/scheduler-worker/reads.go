package schedulerworker

import (
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/hotbucket"
)

// quietPoll is the longest pause between two reads of a partition in which nothing is known to be due. Each read also shows that the
// partition has no other owner yet, and finds what a lost hint left unseen.
const quietPoll = 2 * time.Second

// reads is what a shard knows of its partitions from the reads that the hot tier accepted. The shard's goroutines ask it, too.
type reads struct {
	mu sync.Mutex
	// of holds all owned partitions, and no other.
	of map[coord.Owner]accepted
	// oldest is the first of the last reads of all partitions; zero while one was not read yet.
	oldest time.Time
}

// accepted is the last read of a partition: when it began, which is zero if there was none, and when there was something to read next in
// the partition if nothing was added to it since; zero for nothing.
type accepted struct{ at, next time.Time }

// own replaces the partitions that are owned.
func (r *reads) own(owners []coord.Owner) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.of
	r.of = make(map[coord.Owner]accepted, len(owners))
	for _, o := range owners {
		r.of[o] = was[o]
	}
	r.age()
}

// accept notes a read of partitions, of which some may not be owned any more.
func (r *reads) accept(owners []coord.Owner, at time.Time, next []time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, o := range owners {
		if _, owned := r.of[o]; owned {
			r.of[o] = accepted{at, next[i]}
		}
	}
	r.age()
}

// returned notes that an entry of an owner's partition may be read again that was given before.
func (r *reads) returned(o coord.Owner, due time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a, ok := r.of[o]; ok && (a.next.IsZero() || due.Before(a.next)) {
		a.next = due
		r.of[o] = a
	}
}

func (r *reads) age() {
	first := true
	for _, a := range r.of {
		if first || a.at.Before(r.oldest) {
			r.oldest, first = a.at, false
		}
	}
	if first {
		r.oldest = time.Time{}
	}
}

// last returns when the last read of an owner's partition began; zero if there was none.
func (r *reads) last(o coord.Owner) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.of[o].at
}

// stale reports whether the last read of an owned partition is older than ttl, or there was none. Without any partition nothing is stale:
// what is left then only waits to be removed.
func (r *reads) stale(now time.Time, ttl time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.of) > 0 && now.Sub(r.oldest) > ttl
}

// hint notes that something may have been added to a partition that is due soon.
func (sh *shard) hint(partition int) {
	sh.mu.Lock()
	sh.hints[partition] = true
	sh.mu.Unlock()
}

// unhint forgets hints at partitions that are read now.
func (sh *shard) unhint(owners []coord.Owner) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for _, o := range owners {
		delete(sh.hints, o.Partition)
	}
}

// worthReading returns the partitions in which there may be something to read: those that a hint names, or that were not read for long, or
// all, if the shard asks once more for what it was given before. A regular read also asks those that have something due before the read
// after the next; one between regular reads, those that have something due if a lane with a backlog has room. The read is whole if all
// that have something due are among them. In the quiet ones nothing is expected.
func (sh *shard) worthReading(owners []coord.Owner, now time.Time, regular bool) (worth []coord.Owner, quiet map[int]bool, whole bool) {
	if sh.again {
		return owners, nil, true
	}
	due, whole := now.Add(sh.readsAhead()), true
	if !regular {
		due, whole = now, sh.backlogOpen()
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.reads.mu.Lock()
	defer sh.reads.mu.Unlock()
	quiet = map[int]bool{}
	for _, o := range owners {
		last := sh.reads.of[o]
		switch {
		case last.at.IsZero() || sh.hints[o.Partition] || whole && last.holds(due):
			worth = append(worth, o)
		case regular && now.Sub(last.at) >= sh.quietPoll():
			worth = append(worth, o)
			quiet[o.Partition] = true
		}
	}
	return worth, quiet, whole
}

// holds reports whether there is something to read in the partition that is due at an instant, as far as its last read knows.
func (a accepted) holds(due time.Time) bool { return !a.next.IsZero() && !a.next.After(due) }

// readsAhead is how long before its instant the first entry of a partition is read at the latest.
func (sh *shard) readsAhead() time.Duration { return min(2*sh.s.cfg.PollInterval, sh.s.cfg.Lookahead) }

// quietPoll is [quietPoll], or less if the owner must ask more often to keep what it holds.
func (sh *shard) quietPoll() time.Duration {
	poll := sh.s.cfg.PollInterval
	return max(min(quietPoll, sh.s.cfg.OwnerTTL/2-poll), poll)
}

// inTurn returns those of the partitions that are worth a read between two regular ones: they were never read, hints name them, or they are
// asked in this turn for what waits of a lane with a backlog.
func (sh *shard) inTurn(owners []coord.Owner, ask *hotbucket.Ask) (worth []coord.Owner) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for _, o := range owners {
		if sh.hints[o.Partition] || sh.reads.last(o).IsZero() || sh.asksBacklog(o.Partition, ask) {
			worth = append(worth, o)
		}
	}
	return worth
}

// asksBacklog reports whether a partition is asked for what waits of a lane with a backlog.
func (sh *shard) asksBacklog(partition int, ask *hotbucket.Ask) bool {
	for lane := range sh.backlog {
		if of := ask.Of(partition, lane); !of.Attended && of.Limit > 0 {
			return true
		}
	}
	return false
}
