// Package hotbuckettest is the conformance suite of the hot buckets: each clause of the port's contract is a test here, named after
// the promise.
//
// The buckets that open returns are empty and have at least 4 partitions. [RunBound] is for adapters that can be opened with a
// bound on their entries, [RunSharedBound] for those whose partitions all share it.
package hotbuckettest

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
)

// racers is how many goroutines race in a test of concurrency.
const racers = 8

// now is an arbitrary instant; the hot tier orders by it and otherwise does not care.
var now = time.Date(2031, 3, 4, 5, 6, 7, 89_000_000, time.UTC)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mustBeStale(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, hotbucket.ErrStaleEpoch) {
		t.Errorf("%s gave %v", what, err)
	}
}

func same(t *testing.T, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s is\n%+v, want\n%+v", what, got, want)
	}
}

// atOnce runs try from n goroutines that begin together.
func atOnce(n int, try func(i int)) {
	begin := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-begin
			try(i)
		})
	}
	close(begin)
	wg.Wait()
}

func entryAt(partition int, at time.Time) job.Entry {
	id := job.JobPrefix + ulid.Make().String()
	return job.NewEntry(job.Entry{
		Locator: job.Locator{
			Partition: partition, DueAt: at, ExecutionID: job.ScheduleExecutionID(id, at), Attempt: 1,
			DefinitionID: job.DefinitionPrefix + ulid.Make().String(),
		},
		JobID: id, Trigger: job.TriggerSchedule, NominalAt: at.Add(-time.Minute), ScheduledFor: at.Add(-time.Second),
		Ordinal: 5, BackfillFired: 2, WrittenAt: at.Add(-time.Hour), Chained: true,
	}, at)
}

func worker(partition int, epoch int64) coord.Owner {
	return coord.Owner{Role: coord.RoleWorker, Partition: partition, Epoch: epoch}
}

func loader(partition int, epoch int64) coord.Owner {
	return coord.Owner{Role: coord.RoleLoader, Partition: partition, Epoch: epoch}
}

// own takes over partitions for a worker.
func own(t *testing.T, b hotbucket.Buckets, partitions ...int) []coord.Owner {
	t.Helper()
	var owners []coord.Owner
	for _, p := range partitions {
		must(t, b.SetEpoch(t.Context(), worker(p, 1)))
		owners = append(owners, worker(p, 1))
	}
	return owners
}

// due reads what is due of a few entries, including what was returned before.
func due(t *testing.T, b hotbucket.Buckets, owners []coord.Owner, until time.Time, limit int) []job.Entry {
	t.Helper()
	ask := hotbucket.All(until)
	ask.Limit, ask.Again = limit, true
	return entriesOf(given(t, b, owners, ask))
}

func given(t *testing.T, b hotbucket.Buckets, owners []coord.Owner, ask hotbucket.Ask) []hotbucket.Given {
	t.Helper()
	list, _, err := b.Due(t.Context(), owners, ask)
	must(t, err)
	return list
}

func entriesOf(list []hotbucket.Given) []job.Entry {
	entries := make([]job.Entry, len(list))
	for i, g := range list {
		entries[i] = *g.Entry
	}
	return entries
}

// pointers returns pointers to the entries of a list.
func pointers(entries ...job.Entry) []*job.Entry {
	list := make([]*job.Entry, len(entries))
	for i := range entries {
		list[i] = &entries[i]
	}
	return list
}

// Run runs the suite.
func Run(t *testing.T, open func(t *testing.T) hotbucket.Buckets) {
	for _, c := range []struct {
		promise string
		check   func(t *testing.T, b hotbucket.Buckets)
	}{
		{"an entry is read back as it was added", entryIsReadBack},
		{"what is due at or before an instant is read, earliest first, and stays", dueIsReadInOrder},
		{"owners are read in order, at most the limit of each partition", ownersInOrder},
		{"what was given is not given again, but to another owner or when it is asked for again", givenIsSetAside},
		{"a read tells when there is something to read next", nextIsTold},
		{"of each lane is given what is asked for of it, and none hides another", lanesAreReadApart},
		{"of a lane without room only what must be attended to is given", attendedAreGiven},
		{"what was parked is given when its lane is asked for, and as parked", parkedIsGiven},
		{"an entry that is there already stays as it is", secondAddIsNone},
		{"an entry that is added below what was read is read by the next", addBelowIsSeen},
		{"removing an occurrence leaves its execution's other attempts and instants", removeIsExact},
		{"removing what is not there changes nothing", removeOfNothing},
		{"absent are exactly those that are not there", absentIsExact},
		{"concurrent adds and removes of different entries all take effect", addsAndRemovesRace},
		{"an added entry gives a hint to who waits", addHints},
		{"without an epoch everything that carries one is refused", missingEpochIsRefused},
		{"an owner whose epoch was passed is refused, and changes nothing", staleEpochIsRefused},
		{"an epoch may be set again, and only ever grows", epochGrows},
		{"epochs of roles and partitions are epochs of their own", epochsAreSeparate},
		{"of concurrent owners of a partition the greatest epoch stands", epochsRace},
		{"one stale owner among several is refused", oneStaleOwner},
		{"the first claim of an occurrence stands, and is given back whole", firstClaimStands},
		{"what is postponed stays, and is not given before its instant", postponedStays},
		{"claims are answered in order, each for itself", claimsInOrder},
		{"of concurrent claims all see the one that stands", claimsRace},
		{"a claim outlives the owner that made it", claimOutlivesOwner},
		{"the horizon is zero until it is published, and each partition's own", horizonIsPublished},
	} {
		t.Run(c.promise, func(t *testing.T) { c.check(t, open(t)) })
		t.Run(c.promise+", if nothing is expected", func(t *testing.T) { c.check(t, quiet{open(t)}) })
	}
	t.Run("a hot tier keeps its incarnation, and a new tier has a greater one", func(t *testing.T) { incarnationIsKept(t, open) })
}

// quiet asks for every partition as for one in which nothing is expected.
type quiet struct{ hotbucket.Buckets }

// Due implements hotbucket.Buckets.
func (q quiet) Due(ctx context.Context, owners []coord.Owner, ask hotbucket.Ask) ([]hotbucket.Given, []time.Time, error) {
	ask.Quiet = map[int]bool{}
	for _, o := range owners {
		ask.Quiet[o.Partition] = true
	}
	return q.Buckets.Due(ctx, owners, ask)
}

func incarnationIsKept(t *testing.T, open func(t *testing.T) hotbucket.Buckets) {
	seen, last := map[string]bool{}, int64(0)
	for range 3 {
		b := open(t)
		partitions := []int{2, 0, 1}
		first, err := b.Incarnations(t.Context(), partitions)
		must(t, err)
		must(t, b.Add(t.Context(), []job.Entry{entryAt(1, now)}))
		second, err := b.Incarnations(t.Context(), partitions)
		must(t, err)
		if len(first) != len(partitions) || !slices.Equal(first, second) {
			t.Errorf("incarnations %q, then %q", first, second)
		}
		reversed, err := b.Incarnations(t.Context(), []int{1, 0, 2})
		must(t, err)
		if slices.Reverse(reversed); !slices.Equal(first, reversed) {
			t.Errorf("incarnations of %v are %q, asked in the other order %q", partitions, first, reversed)
		}
		none, err := b.Incarnations(t.Context(), nil)
		must(t, err)
		for _, incarnation := range slices.Compact(slices.Sorted(slices.Values(first))) {
			if incarnation == "" || seen[incarnation] || len(none) != 0 {
				t.Errorf("incarnation %q, earlier %v; of no partition %q", incarnation, seen, none)
			}
			seen[incarnation] = true
			if epoch := attempts.EpochOf(incarnation); epoch <= last {
				t.Errorf("incarnation %q has number %d, one before had %d", incarnation, epoch, last)
			}
		}
		for _, incarnation := range first {
			last = max(last, attempts.EpochOf(incarnation))
		}
	}
}

// RunBound runs the clauses about the bound; the buckets that open returns hold at most bound entries of a partition.
func RunBound(t *testing.T, bound int, open func(t *testing.T) hotbucket.Buckets) {
	now := time.Now().UTC().Truncate(time.Millisecond)
	fill := func(t *testing.T, b hotbucket.Buckets, n int) []job.Entry {
		t.Helper()
		var list []job.Entry
		for i := range n {
			list = append(list, entryAt(1, now.Add(time.Duration(i)*time.Second)))
		}
		must(t, b.Add(t.Context(), list))
		return list
	}
	refused := func(t *testing.T, b hotbucket.Buckets, list []job.Entry) {
		t.Helper()
		if err := b.Add(t.Context(), list); !errors.Is(err, hotbucket.ErrFull) {
			t.Errorf("adding %d gave %v", len(list), err)
		}
	}
	t.Run("up to the bound entries are added, none beyond", func(t *testing.T) {
		b := open(t)
		list := fill(t, b, bound)
		refused(t, b, []job.Entry{entryAt(1, now)})
		same(t, "due", due(t, b, own(t, b, 1), now.Add(time.Hour), 10*bound), list)
	})
	t.Run("of a call that would pass the bound none of a partition's entries are added", func(t *testing.T) {
		b := open(t)
		list := fill(t, b, bound-1)
		refused(t, b, []job.Entry{entryAt(1, now), entryAt(1, now)})
		same(t, "due", due(t, b, own(t, b, 1), now.Add(time.Hour), 10*bound), list)
	})
	t.Run("what is there already may be added again to a full tier", func(t *testing.T) {
		b := open(t)
		list := fill(t, b, bound)
		must(t, b.Add(t.Context(), list))
		must(t, b.Add(t.Context(), list[:1]))
		same(t, "due", due(t, b, own(t, b, 1), now.Add(time.Hour), 10*bound), list)
	})
	t.Run("what was removed makes room", func(t *testing.T) {
		b := open(t)
		list := fill(t, b, bound)
		must(t, b.Remove(t.Context(), pointers(list[0], list[0])))
		more := entryAt(1, now.Add(time.Minute))
		must(t, b.Add(t.Context(), []job.Entry{more}))
		refused(t, b, []job.Entry{entryAt(1, now)})
		same(t, "due", due(t, b, own(t, b, 1), now.Add(time.Hour), 10*bound), append(list[1:], more))
	})
	t.Run("what is due in an hour leaves room for what is due next", func(t *testing.T) {
		b := open(t)
		far := 0
		for range bound {
			if err := b.Add(t.Context(), []job.Entry{entryAt(1, now.Add(time.Hour))}); err == nil {
				far++
			}
		}
		same(t, "far entries", far, bound*4/5)
		must(t, b.Add(t.Context(), []job.Entry{entryAt(1, now.Add(time.Minute))}))
	})
	t.Run("concurrent adds do not pass the bound", func(t *testing.T) { race(t, open(t), bound, 1) })
}

// RunSharedBound runs the clause about a bound that all partitions share.
func RunSharedBound(t *testing.T, bound int, open func(t *testing.T) hotbucket.Buckets) {
	t.Run("concurrent adds to several partitions do not pass their bound", func(t *testing.T) { race(t, open(t), bound, 0, 1, 2, 3) })
}

// race adds more than the bound from several goroutines.
func race(t *testing.T, b hotbucket.Buckets, bound int, partitions ...int) {
	now := time.Now().UTC().Truncate(time.Millisecond)
	atOnce(racers, func(i int) {
		for range bound {
			err := b.Add(t.Context(), []job.Entry{entryAt(partitions[i%len(partitions)], now)})
			if err != nil && !errors.Is(err, hotbucket.ErrFull) {
				t.Error(err)
			}
		}
	})
	if n := len(due(t, b, own(t, b, partitions...), now, 100*bound)); n != bound {
		t.Errorf("%d entries were added, the bound is %d", n, bound)
	}
}
