package hotbuckettest

import (
	"slices"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
)

func entryIsReadBack(t *testing.T, b hotbucket.Buckets) {
	e := entryAt(1, now)
	must(t, b.Add(t.Context(), []job.Entry{e}))
	same(t, "due", due(t, b, own(t, b, 1), now, 10), []job.Entry{e})
}

func dueIsReadInOrder(t *testing.T, b hotbucket.Buckets) {
	var list []job.Entry
	for i := range 20 {
		list = append(list, entryAt(1, now.Add(time.Duration(i)*time.Millisecond)))
	}
	for _, i := range []int{7, 3, 19, 0} {
		must(t, b.Add(t.Context(), []job.Entry{list[i]}))
	}
	must(t, b.Add(t.Context(), list))
	owners := own(t, b, 1)
	for range 2 {
		same(t, "due", due(t, b, owners, list[11].DueAt, 100), list[:12])
	}
	same(t, "due before the first", len(due(t, b, owners, now.Add(-time.Millisecond), 100)), 0)
	same(t, "due by a limit", due(t, b, owners, now.Add(time.Hour), 5), list[:5])
	must(t, b.Remove(t.Context(), pointers(list[0], list[2])))
	same(t, "due after removing", due(t, b, owners, list[3].DueAt, 100), []job.Entry{list[1], list[3]})
}

func ownersInOrder(t *testing.T, b hotbucket.Buckets) {
	one := []job.Entry{entryAt(1, now.Add(time.Second)), entryAt(1, now.Add(2*time.Second))}
	two := []job.Entry{entryAt(2, now), entryAt(2, now.Add(3*time.Second))}
	must(t, b.Add(t.Context(), slices.Concat(two, one)))
	must(t, b.Add(t.Context(), []job.Entry{entryAt(3, now)})) // nobody asks for it
	until := now.Add(time.Minute)
	forth, back := own(t, b, 1, 2), own(t, b, 2, 1)
	same(t, "due of 1 and 2", due(t, b, forth, until, 10), slices.Concat(one, two))
	same(t, "due of 2 and 1", due(t, b, back, until, 10), slices.Concat(two, one))
	same(t, "due by a limit", due(t, b, forth, until, 1), slices.Concat(one[:1], two[:1]))
	same(t, "due of no owners", len(due(t, b, nil, until, 10)), 0)
}

func secondAddIsNone(t *testing.T, b hotbucket.Buckets) {
	e := entryAt(1, now)
	must(t, b.Add(t.Context(), []job.Entry{e, e}))
	other := e
	other.Ordinal, other.WrittenAt = 99, now
	must(t, b.Add(t.Context(), []job.Entry{other}))
	must(t, b.Add(t.Context(), nil))
	owners := own(t, b, 1)
	same(t, "due", due(t, b, owners, now, 10), []job.Entry{e})
	must(t, b.Remove(t.Context(), pointers(e)))
	same(t, "due after removing", len(due(t, b, owners, now, 10)), 0)
}

func addBelowIsSeen(t *testing.T, b hotbucket.Buckets) {
	owners := own(t, b, 1)
	later := entryAt(1, now.Add(time.Second))
	must(t, b.Add(t.Context(), []job.Entry{later}))
	same(t, "due", due(t, b, owners, now.Add(time.Minute), 10), []job.Entry{later})
	earlier := entryAt(1, now)
	must(t, b.Add(t.Context(), []job.Entry{earlier}))
	same(t, "due", due(t, b, owners, now.Add(time.Minute), 10), []job.Entry{earlier, later})
}

// siblings returns occurrences that each differ from the first one in one part.
func siblings() []job.Entry {
	e := entryAt(1, now)
	attempt, later, execution, partition := e, e, e, e
	attempt.Attempt = 2
	later.DueAt = now.Add(time.Millisecond)
	execution.ExecutionID = entryAt(1, now).ExecutionID
	partition.Partition = 2
	return []job.Entry{e, attempt, later, execution, partition}
}

func locators(entries []job.Entry) []job.Locator {
	var list []job.Locator
	for _, e := range entries {
		list = append(list, e.Locator)
	}
	return list
}

func removeIsExact(t *testing.T, b hotbucket.Buckets) {
	list := siblings()
	must(t, b.Add(t.Context(), list))
	for i := range list {
		must(t, b.Remove(t.Context(), pointers(list[i])))
		absent, err := b.Absent(t.Context(), pointers(list...))
		must(t, err)
		same(t, "absent", absent, locators(list[:i+1]))
	}
}

func removeOfNothing(t *testing.T, b hotbucket.Buckets) {
	list := siblings()
	must(t, b.Add(t.Context(), list[1:]))
	must(t, b.Remove(t.Context(), pointers(list[0])))
	must(t, b.Remove(t.Context(), nil))
	absent, err := b.Absent(t.Context(), pointers(list...))
	must(t, err)
	same(t, "absent", absent, locators(list[:1]))
}

func absentIsExact(t *testing.T, b hotbucket.Buckets) {
	list := siblings()
	absent, err := b.Absent(t.Context(), pointers(list...))
	must(t, err)
	same(t, "absent of an empty tier", absent, locators(list))
	must(t, b.Add(t.Context(), list))
	for _, asked := range [][]*job.Entry{pointers(list...), nil} {
		absent, err = b.Absent(t.Context(), asked)
		must(t, err)
		same(t, "how many are absent", len(absent), 0)
	}
}

func addsAndRemovesRace(t *testing.T, b hotbucket.Buckets) {
	const each = 20
	var stay, gone [racers][]job.Entry
	for i := range racers {
		for range each {
			stay[i], gone[i] = append(stay[i], entryAt(i%4, now)), append(gone[i], entryAt(i%4, now))
		}
	}
	atOnce(racers, func(i int) {
		for k := range each {
			for _, err := range []error{
				b.Add(t.Context(), []job.Entry{stay[i][k], gone[i][k]}), b.Remove(t.Context(), pointers(gone[i][k])),
			} {
				if err != nil {
					t.Error(err)
				}
			}
		}
	})
	if n := len(due(t, b, own(t, b, 0, 1, 2, 3), now, 10*racers*each)); n != racers*each {
		t.Errorf("%d entries, want %d", n, racers*each)
	}
	for i := range racers {
		absent, err := b.Absent(t.Context(), pointers(stay[i]...))
		must(t, err)
		same(t, "how many are absent", len(absent), 0)
	}
}

// addHints adds until a hint comes, since any single one may be lost.
func addHints(t *testing.T, b hotbucket.Buckets) {
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	created, changed := creation(0), creation(1)
	changed.Change.Version = 2
	for {
		must(t, b.Add(t.Context(), []job.Entry{created, changed, entryAt(2, time.Now().Add(time.Hour)), entryAt(3, time.Now())}))
		select {
		case <-b.Hints().Ready():
			same(t, "the partitions hinted at", b.Hints().Take(), []int{1, 3})
			return
		case <-again.C:
		case <-deadline.C:
			t.Fatal("no hint came")
		}
	}
}

// creation returns the entry that tells of a job's creation, which gives no hint.
func creation(partition int) job.Entry {
	id := job.JobPrefix + ulid.Make().String()
	l := job.ChangeLocator(partition, id, job.CreationRef(id).ID)
	return job.NewChange(l, id, 1, job.Change{Operation: "createJob", Version: 1}, job.Author{Subject: "somebody"})
}

// postponedStays works with instants around the current one, because a postponement ends by the clock.
func postponedStays(t *testing.T, b hotbucket.Buckets) {
	present := time.Now().UTC().Truncate(time.Millisecond)
	e, other := entryAt(1, present), entryAt(1, present.Add(time.Second))
	o := own(t, b, 1)
	must(t, b.Add(t.Context(), []job.Entry{e, other}))
	until := present.Add(time.Hour)
	all := hotbucket.All(present.Add(2 * time.Hour))
	must(t, b.Postpone(t.Context(), o[0], pointers(e, entryAt(1, present)), until))
	same(t, "due", entriesOf(given(t, b, o, all)), []job.Entry{other})
	absent, err := b.Absent(t.Context(), pointers(e, other))
	must(t, err)
	same(t, "how many are absent", len(absent), 0)
	must(t, b.Add(t.Context(), []job.Entry{e}))
	same(t, "how many are due after it was added again", len(given(t, b, o, all)), 0)

	mustBeStale(t, "a stale owner's postponement", b.Postpone(t.Context(), worker(1, o[0].Epoch-1), pointers(other), present.Add(-time.Second)))
	same(t, "how many are due after that", len(given(t, b, o, all)), 0)
	must(t, b.Postpone(t.Context(), o[0], pointers(other), present.Add(-time.Second)))
	same(t, "due once its instant has come", entriesOf(given(t, b, o, all)), []job.Entry{other})

	must(t, b.Recall(t.Context(), pointers(e, other, entryAt(1, present))))
	same(t, "due after a recall", entriesOf(given(t, b, o, all)), []job.Entry{e, other})
	must(t, b.Postpone(t.Context(), o[0], pointers(e), until))

	must(t, b.Remove(t.Context(), pointers(e)))
	absent, err = b.Absent(t.Context(), pointers(e, other))
	must(t, err)
	same(t, "absent", absent, locators([]job.Entry{e}))
	must(t, b.Recall(t.Context(), pointers(e)))
	same(t, "due after the recall of one that was removed", len(given(t, b, o, all)), 0)
}
