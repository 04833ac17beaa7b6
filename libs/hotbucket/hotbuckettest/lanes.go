package hotbuckettest

import (
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
)

// inLane returns an entry of a lane; one that needs attention stands for a recurring schedule.
func inLane(lane uint32, at time.Time, attended bool) job.Entry {
	e := entryAt(1, at)
	e.Lane, e.Chained = lane, !attended
	return e
}

func givenIsSetAside(t *testing.T, b hotbucket.Buckets) {
	o := own(t, b, 1)
	list := []job.Entry{entryAt(1, now), entryAt(1, now.Add(time.Second)), inLane(7, now.Add(2*time.Second), true)}
	must(t, b.Add(t.Context(), list))
	ask := hotbucket.All(now.Add(time.Minute))
	same(t, "given first", entriesOf(given(t, b, o, ask)), list)
	same(t, "how many are given next", len(given(t, b, o, ask)), 0)
	absent, err := b.Absent(t.Context(), pointers(list...))
	must(t, err)
	same(t, "how many are absent", len(absent), 0)
	must(t, b.Add(t.Context(), list))
	same(t, "how many are given once they were added again", len(given(t, b, o, ask)), 0)

	again := ask
	again.Again = true
	same(t, "given again", entriesOf(given(t, b, o, again)), list)
	must(t, b.Remove(t.Context(), pointers(list[0])))
	must(t, b.SetEpoch(t.Context(), worker(1, 1)))
	same(t, "how many are given to the same owner", len(given(t, b, o, ask)), 0)
	must(t, b.SetEpoch(t.Context(), loader(1, 5)))
	same(t, "how many are given when there is another loader", len(given(t, b, o, ask)), 0)
	must(t, b.SetEpoch(t.Context(), worker(1, 2)))
	same(t, "given to another owner", entriesOf(given(t, b, []coord.Owner{worker(1, 2)}, ask)), list[1:])
}

func lanesAreReadApart(t *testing.T, b hotbucket.Buckets) {
	o := own(t, b, 1)
	var busy, closed []job.Entry
	for i := range 20 {
		at := now.Add(time.Duration(i) * time.Millisecond)
		busy, closed = append(busy, inLane(1, at, false)), append(closed, inLane(2, at, false))
	}
	quiet, later := inLane(3, now.Add(time.Second), false), inLane(4, now.Add(time.Minute), false)
	must(t, b.Add(t.Context(), busy))
	must(t, b.Add(t.Context(), closed))
	must(t, b.Add(t.Context(), []job.Entry{later, quiet}))
	ask := hotbucket.Ask{
		PerLane: hotbucket.LaneAsk{Until: now.Add(30 * time.Second), Limit: 3},
		Lanes: map[uint32]hotbucket.LaneAsk{
			1: {Until: now.Add(4 * time.Millisecond), Limit: 10}, 2: {},
		},
	}
	same(t, "given", entriesOf(given(t, b, o, ask)), append(busy[:5:5], quiet))
	ask.Lanes[1] = hotbucket.LaneAsk{Until: now.Add(time.Hour), Limit: 2}
	same(t, "given of a lane by its limit", entriesOf(given(t, b, o, ask)), busy[5:7])
	delete(ask.Lanes, 2)
	delete(ask.Lanes, 1)
	same(t, "how many are given of lanes that are not named", len(given(t, b, o, ask)), 6)
	ask.Lanes[4] = hotbucket.LaneAsk{Until: later.DueAt, Limit: 1}
	ask.PerLane.Limit = 0
	same(t, "given of one lane", entriesOf(given(t, b, o, ask)), []job.Entry{later})

	// However much one lane has, a read has room for another.
	ask = hotbucket.All(now.Add(time.Hour))
	ask.Limit = 4
	must(t, b.Add(t.Context(), []job.Entry{inLane(5, now.Add(time.Hour), false)}))
	last := false
	for _, e := range entriesOf(given(t, b, o, ask)) {
		last = last || e.Lane == 2
	}
	if !last {
		t.Error("one lane took all of a read")
	}
}

func attendedAreGiven(t *testing.T, b hotbucket.Buckets) {
	o := own(t, b, 1)
	list := []job.Entry{
		inLane(1, now, false), inLane(1, now.Add(time.Second), true), inLane(1, now.Add(2*time.Second), false), inLane(1, now.Add(3*time.Second), true),
	}
	must(t, b.Add(t.Context(), list))
	ask := hotbucket.Ask{PerLane: hotbucket.LaneAsk{Until: now.Add(2 * time.Second), Limit: 10, Attended: true}}
	got := given(t, b, o, ask)
	same(t, "given", entriesOf(got), list[1:2])
	same(t, "parked", got[0].Parked, false)
	got = given(t, b, o, hotbucket.All(now.Add(time.Minute)))
	same(t, "given of an open lane", entriesOf(got), []job.Entry{list[0], list[2], list[3]})
}

func parkedIsGiven(t *testing.T, b hotbucket.Buckets) {
	o := own(t, b, 1)
	parked, gone, plain := inLane(1, now, true), inLane(1, now, true), inLane(1, now.Add(time.Second), false)
	must(t, b.Add(t.Context(), []job.Entry{parked, gone, plain}))
	attended := hotbucket.Ask{PerLane: hotbucket.LaneAsk{Until: now, Limit: 10, Attended: true}}
	same(t, "how many must be attended to", len(given(t, b, o, attended)), 2)
	mustBeStale(t, "a stale owner's parking", b.Park(t.Context(), worker(1, o[0].Epoch-1), pointers(parked)))
	must(t, b.Remove(t.Context(), pointers(gone)))
	must(t, b.Park(t.Context(), o[0], pointers(parked, gone)))
	absent, err := b.Absent(t.Context(), pointers(parked, gone))
	must(t, err)
	same(t, "absent", absent, locators([]job.Entry{gone}))
	must(t, b.Add(t.Context(), []job.Entry{parked}))
	same(t, "how many must be attended to after parking", len(given(t, b, o, attended)), 0)
	got := given(t, b, o, hotbucket.All(now.Add(time.Minute)))
	same(t, "given of an open lane", entriesOf(got), []job.Entry{parked, plain})
	same(t, "parked", []bool{got[0].Parked, got[1].Parked}, []bool{true, false})
	must(t, b.Remove(t.Context(), pointers(parked)))
	absent, err = b.Absent(t.Context(), pointers(parked))
	must(t, err)
	same(t, "absent after removing", absent, locators([]job.Entry{parked}))
}

// nextIsTold works with instants around the current one, because what was given is set aside by the clock.
func nextIsTold(t *testing.T, b hotbucket.Buckets) {
	owners := own(t, b, 1, 2)
	next := func(ask hotbucket.Ask) []time.Time {
		t.Helper()
		_, next, err := b.Due(t.Context(), owners, ask)
		must(t, err)
		return next
	}
	present := time.Now().UTC().Truncate(time.Millisecond)
	soon := hotbucket.All(present.Add(2 * time.Second))
	same(t, "what is next of nothing", next(soon), []time.Time{{}, {}})
	first, later := inLane(1, present.Add(time.Second), true), inLane(7, present.Add(time.Hour), false)
	must(t, b.Add(t.Context(), []job.Entry{first, later}))
	got := next(soon)
	if aside := got[0].Sub(present); aside < hotbucket.GivenFor || aside > hotbucket.GivenFor+time.Minute || !got[1].IsZero() {
		t.Errorf("next are %v, want when what was given at %s is given again, and nothing", got, present)
	}
	must(t, b.Remove(t.Context(), pointers(first)))
	same(t, "next once that was removed", next(soon), []time.Time{later.DueAt, {}})
	must(t, b.Add(t.Context(), []job.Entry{first}))
	same(t, "next where nothing is asked for", next(hotbucket.Ask{}), []time.Time{first.DueAt, {}})
}
