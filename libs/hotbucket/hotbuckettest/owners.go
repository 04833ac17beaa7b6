package hotbuckettest

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
)

// everythingIsStale tries every call that carries an owner's epoch.
func everythingIsStale(t *testing.T, b hotbucket.Buckets, o coord.Owner) {
	t.Helper()
	_, _, err := b.Due(t.Context(), []coord.Owner{o}, hotbucket.All(now))
	mustBeStale(t, "reading", err)
	_, err = b.Claim(t.Context(), o, []hotbucket.Claim{{ExecutionID: "stale", Decision: job.Decision{NextOrdinal: 666}}})
	mustBeStale(t, "claiming", err)
	mustBeStale(t, "setting the horizon", b.SetHorizon(t.Context(), o, now))
}

func missingEpochIsRefused(t *testing.T, b hotbucket.Buckets) {
	must(t, b.Add(t.Context(), []job.Entry{entryAt(1, now)}))
	for _, o := range []coord.Owner{worker(1, 1), loader(1, 1), worker(1, 0), worker(1, 1<<40)} {
		everythingIsStale(t, b, o)
	}
}

func staleEpochIsRefused(t *testing.T, b hotbucket.Buckets) {
	for _, role := range []func(int, int64) coord.Owner{worker, loader} {
		must(t, b.SetEpoch(t.Context(), role(1, 5)))
		must(t, b.SetEpoch(t.Context(), role(1, 6)))
		everythingIsStale(t, b, role(1, 5))
		mustBeStale(t, "taking over", b.SetEpoch(t.Context(), role(1, 5)))
	}
	h, err := b.Horizons(t.Context(), []int{1})
	must(t, err)
	same(t, "the horizons where a stale owner tried to set one", h, []time.Time{{}})
	mine := job.Decision{NextOrdinal: 1}
	standing, err := b.Claim(t.Context(), worker(1, 6), []hotbucket.Claim{{ExecutionID: "stale", Decision: mine}})
	must(t, err)
	same(t, "the claim that a stale owner tried", standing, []job.Decision{mine})
}

func epochGrows(t *testing.T, b hotbucket.Buckets) {
	for _, c := range []struct {
		set   int64
		stale bool
	}{{3, false}, {3, false}, {2, true}, {7, false}, {3, true}, {7, false}} {
		err := b.SetEpoch(t.Context(), worker(1, c.set))
		if c.stale {
			mustBeStale(t, "an epoch below", err)
		} else {
			must(t, err)
		}
	}
	_, _, err := b.Due(t.Context(), []coord.Owner{worker(1, 7)}, hotbucket.All(now))
	must(t, err)
}

func epochsAreSeparate(t *testing.T, b hotbucket.Buckets) {
	must(t, b.SetEpoch(t.Context(), worker(1, 9)))
	everythingIsStale(t, b, loader(1, 9))
	everythingIsStale(t, b, worker(2, 9))
	must(t, b.SetEpoch(t.Context(), loader(1, 2)))
	must(t, b.SetEpoch(t.Context(), worker(2, 3)))
	for _, o := range []coord.Owner{worker(1, 9), loader(1, 2), worker(2, 3)} {
		_, _, err := b.Due(t.Context(), []coord.Owner{o}, hotbucket.All(now))
		must(t, err)
	}
}

func epochsRace(t *testing.T, b hotbucket.Buckets) {
	atOnce(racers, func(i int) {
		if err := b.SetEpoch(t.Context(), worker(1, int64(i+1))); err != nil && !errors.Is(err, hotbucket.ErrStaleEpoch) {
			t.Error(err)
		}
	})
	for i := range racers - 1 {
		everythingIsStale(t, b, worker(1, int64(i+1)))
	}
	_, _, err := b.Due(t.Context(), []coord.Owner{worker(1, racers)}, hotbucket.All(now))
	must(t, err)
}

func oneStaleOwner(t *testing.T, b hotbucket.Buckets) {
	owners := own(t, b, 1, 2, 3)
	must(t, b.Add(t.Context(), []job.Entry{entryAt(1, now), entryAt(3, now)}))
	must(t, b.SetEpoch(t.Context(), worker(3, 2)))
	for _, limit := range []int{1, 100} {
		_, _, err := b.Due(t.Context(), owners, hotbucket.Ask{PerLane: hotbucket.LaneAsk{Until: now, Limit: limit}})
		mustBeStale(t, "reading with one stale owner", err)
	}
}

func firstClaimStands(t *testing.T, b hotbucket.Buckets) {
	o := own(t, b, 1)[0]
	x := entryAt(1, now).ExecutionID
	for i, first := range []job.Decision{
		{},
		{Fire: true, Next: now.Add(time.Hour), NextOrdinal: 3},
		{Skipped: &job.SkippedRange{From: now, To: now.Add(time.Hour), Count: 60}, Next: now.Add(2 * time.Hour), NextOrdinal: 61, NextBackfillFired: 4},
	} {
		id := x + string(rune('a'+i))
		claimed(t, b, hotbucket.Claim{ExecutionID: id}, nil)
		for _, mine := range []job.Decision{first, {NextOrdinal: 99}} {
			standing, err := b.Claim(t.Context(), o, []hotbucket.Claim{{ExecutionID: id, Decision: mine}})
			must(t, err)
			same(t, "the standing decision", standing, []job.Decision{first})
		}
		claimed(t, b, hotbucket.Claim{ExecutionID: id}, &first)
		claimed(t, b, hotbucket.Claim{ExecutionID: id, DefinitionID: "def_other"}, nil)
	}
}

// claimed checks which decision stands in partition 1.
func claimed(t *testing.T, b hotbucket.Buckets, c hotbucket.Claim, want *job.Decision) {
	t.Helper()
	standing, err := b.Claimed(t.Context(), 1, c)
	must(t, err)
	same(t, "the decision that is read", standing, want)
}

func claimsInOrder(t *testing.T, b hotbucket.Buckets) {
	o := own(t, b, 1)[0]
	claim := func(n int) hotbucket.Claim {
		return hotbucket.Claim{ExecutionID: entryAt(1, now).ExecutionID, Decision: job.Decision{Fire: true, NextOrdinal: n}}
	}
	first, second, third := claim(1), claim(2), claim(3)
	_, err := b.Claim(t.Context(), o, []hotbucket.Claim{second})
	must(t, err)
	second.Decision.NextOrdinal = 22
	standing, err := b.Claim(t.Context(), o, []hotbucket.Claim{third, second, first})
	must(t, err)
	same(t, "standing", standing, []job.Decision{{Fire: true, NextOrdinal: 3}, {Fire: true, NextOrdinal: 2}, {Fire: true, NextOrdinal: 1}})
	standing, err = b.Claim(t.Context(), o, nil)
	must(t, err)
	same(t, "how many stand for no claims", len(standing), 0)
}

func claimsRace(t *testing.T, b hotbucket.Buckets) {
	o := own(t, b, 1)[0]
	for range 20 {
		x := entryAt(1, now).ExecutionID
		var mu sync.Mutex
		seen := map[int]bool{}
		atOnce(racers, func(i int) {
			standing, err := b.Claim(t.Context(), o, []hotbucket.Claim{{ExecutionID: x, Decision: job.Decision{NextOrdinal: i + 1}}})
			if err != nil || len(standing) != 1 {
				t.Errorf("%v, %v", standing, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			seen[standing[0].NextOrdinal] = true
		})
		if len(seen) != 1 || seen[0] {
			t.Errorf("the decisions %v were seen", seen)
		}
	}
}

func claimOutlivesOwner(t *testing.T, b hotbucket.Buckets) {
	o := own(t, b, 1)[0]
	claim := hotbucket.Claim{ExecutionID: entryAt(1, now).ExecutionID, Decision: job.Decision{Fire: true, NextOrdinal: 1}}
	_, err := b.Claim(t.Context(), o, []hotbucket.Claim{claim})
	must(t, err)
	next := worker(1, 2)
	must(t, b.SetEpoch(t.Context(), next))
	claim.Decision = job.Decision{NextOrdinal: 2}
	standing, err := b.Claim(t.Context(), next, []hotbucket.Claim{claim})
	must(t, err)
	same(t, "standing", standing, []job.Decision{{Fire: true, NextOrdinal: 1}})
}

func horizonIsPublished(t *testing.T, b hotbucket.Buckets) {
	want := func(partition int, horizon time.Time) {
		t.Helper()
		h, err := b.Horizons(t.Context(), []int{3, partition})
		must(t, err)
		same(t, "the horizons", h, []time.Time{{}, horizon})
	}
	want(1, time.Time{})
	must(t, b.SetEpoch(t.Context(), loader(1, 1)))
	want(1, time.Time{})
	for _, horizon := range []time.Time{now, now.Add(time.Minute)} {
		must(t, b.SetHorizon(t.Context(), loader(1, 1), horizon))
		want(1, horizon)
		want(2, time.Time{})
	}
}
