package schedulerworker

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// asked is a hot tier that notes which partitions it is asked for, and when.
type asked struct {
	hotbucket.Buckets
	mu    sync.Mutex
	reads []askedFor
}

type askedFor struct {
	at         time.Time
	partitions []int
	given      int
}

func (a *asked) Due(ctx context.Context, owners []coord.Owner, ask hotbucket.Ask) ([]hotbucket.Given, []time.Time, error) {
	given, next, err := a.Buckets.Due(ctx, owners, ask)
	a.mu.Lock()
	defer a.mu.Unlock()
	r := askedFor{at: time.Now(), given: len(given)}
	for _, o := range owners {
		r.partitions = append(r.partitions, o.Partition)
	}
	a.reads = append(a.reads, r)
	return given, next, err
}

// take returns the reads since the last call, and how many partitions they asked for.
func (a *asked) take() (reads []askedFor, partitions int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	reads, a.reads = a.reads, nil
	for _, r := range reads {
		partitions += len(r.partitions)
	}
	return reads, partitions
}

// noRows is a store in which every job row is still on its way.
type noRows struct{ jobstore.Jobs }

func (noRows) GetMany(context.Context, []string) (map[string]*job.Job, error) { return nil, nil }

// shardOf runs a shard that owns all partitions of a hot tier, until the bubble's test ends.
func shardOf(t *testing.T, partitions int) (*shard, *asked) {
	t.Helper()
	hot := &asked{Buckets: embedded.NewHotBuckets("00000000000001-a", partitions, 0)}
	s, err := New(DefaultConfig(), Deps{Hot: hot, Jobs: noRows{}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	owners := make([]coord.Owner, partitions)
	for i := range owners {
		owners[i] = coord.Owner{Role: coord.RoleWorker, Partition: i, Epoch: 1}
		if err := hot.SetEpoch(t.Context(), owners[i]); err != nil {
			t.Fatal(err)
		}
	}
	sh := newShard(s)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		sh.run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	sh.own(owners)
	time.Sleep(time.Second)
	synctest.Wait()
	if _, n := hot.take(); n < partitions {
		t.Fatalf("%d of %d partitions were read at first", n, partitions)
	}
	return sh, hot
}

func dueIn(partition int, in time.Duration) job.Entry {
	at := time.Now().UTC().Truncate(time.Millisecond).Add(in)
	const id = "job_01M7ZJW5E6D77SAJPXRW35C2CA"
	return job.NewEntry(job.Entry{
		Locator: job.Locator{
			Partition: partition, DueAt: at, ExecutionID: job.ScheduleExecutionID(id, at), Attempt: 1, DefinitionID: "def_01M7ZJW5E6D77SAJPXRZ65CMZZ",
		},
		JobID: id, Trigger: job.TriggerSchedule, NominalAt: at, ScheduledFor: at, WrittenAt: time.Now(),
	}, at)
}

func TestPartitionsWithoutAnythingDueAreReadSeldom(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const partitions, seconds = 256, 20
		_, hot := shardOf(t, partitions)
		time.Sleep(seconds * time.Second)
		synctest.Wait()
		// As often as quietPoll says, but never so seldom that the owner could not know whether it still is one.
		if _, n := hot.take(); n < partitions*(seconds/2-1) || n > partitions*(seconds/2+1) {
			t.Errorf("%d partitions were read %d times in %d s", partitions, n, seconds)
		}
	})
}

func TestOnlyAHintedPartitionIsReadAtOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		sh, hot := shardOf(t, 256)
		if err := hot.Add(t.Context(), []job.Entry{dueIn(77, 500*time.Millisecond)}); err != nil {
			t.Fatal(err)
		}
		hot.take()
		began := time.Now()
		sh.hint(77)
		sh.nudge()
		time.Sleep(50 * time.Millisecond)
		synctest.Wait()
		reads, _ := hot.take()
		i := slices.IndexFunc(reads, func(r askedFor) bool { return r.given > 0 })
		if i < 0 || reads[i].at.Sub(began) > 2*sh.s.cfg.ReadGap || !slices.Equal(reads[i].partitions, []int{77}) {
			t.Errorf("after a hint at 77 the reads are %+v", reads)
		}
	})
}

// An entry whose hint was lost is seen within [quietPoll], and one that is due later is read while there is time to prepare it.
func TestWhatNobodyHintsAtIsReadInTime(t *testing.T) {
	for _, c := range []struct {
		name     string
		in       time.Duration
		earliest time.Duration // before its instant
		latest   time.Duration
	}{
		{"due at once", 0, 0, -quietPoll - 500*time.Millisecond},
		{"due later", 20 * time.Second, 2 * time.Second, 500 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				_, hot := shardOf(t, 64)
				e := dueIn(5, c.in)
				if err := hot.Add(t.Context(), []job.Entry{e}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(c.in + 5*time.Second)
				synctest.Wait()
				reads, _ := hot.take()
				i := slices.IndexFunc(reads, func(r askedFor) bool { return r.given > 0 })
				if i < 0 {
					t.Fatal("it was never read")
				}
				if ahead := e.DueAt.Sub(reads[i].at); ahead > c.earliest || ahead < c.latest {
					t.Errorf("it was read %s before its instant", ahead)
				}
			})
		})
	}
}

// If it did, what waits in the lane would count as missed once its catch-up window is over.
func TestAReadOfSomePartitionsDoesNotEndABacklog(t *testing.T) {
	s, err := New(DefaultConfig(), Deps{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	sh, now := newShard(s), time.Now()
	sh.own([]coord.Owner{{Role: coord.RoleWorker, Partition: 1, Epoch: 1}, {Role: coord.RoleWorker, Partition: 2, Epoch: 1}})
	owners := sh.owned()
	sh.reads.accept(owners, now, []time.Time{now, now.Add(time.Hour)})
	sh.again = false
	sh.backlog[7], sh.backlogAt = now, now.Add(time.Minute) // which is not looked at before that
	sh.hint(2)
	worth, _, whole := sh.worthReading(owners, now, false)
	if !slices.Equal(worth, owners[1:]) || whole {
		t.Errorf("worth a read between two are %v, whole %v, want the one that is hinted at", worth, whole)
	}
	ask := hotbucket.All(now)
	sh.followBacklog(nil, now, &ask, whole)
	if _, waits := sh.backlog[7]; !waits {
		t.Error("a read of one partition ended the backlog of a lane")
	}
	worth, _, whole = sh.worthReading(owners, now, true)
	if !slices.Equal(worth, owners) || !whole {
		t.Errorf("worth a regular read are %v, whole %v", worth, whole)
	}
	sh.followBacklog(nil, now, &ask, whole)
	if _, waits := sh.backlog[7]; waits {
		t.Error("a whole read that found nothing did not end the backlog")
	}
}

// Each read of a host that is called all the time finds something. If that kept its backlog open, one stampede would do so for ever.
func TestABacklogEndsAlthoughItsTargetIsStillCalled(t *testing.T) {
	s, err := New(DefaultConfig(), Deps{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	sh, now := newShard(s), time.Now()
	sh.backlog[7] = now
	ask := hotbucket.All(now)
	ask.Lanes = map[uint32]hotbucket.LaneAsk{7: {Until: now, Limit: 16, Every: 8, AttendedLimit: 50}}
	reads := 0
	for ; len(sh.backlog) > 0 && reads < 1000; reads++ {
		sh.followBacklog(map[int]map[uint32]brought{reads % 8: {7: {n: 1, last: now.Add(-time.Second)}}}, now, &ask, true)
	}
	if reads == 1000 {
		t.Error("it did not end")
	}
	if reads < 8 {
		t.Errorf("it ended after %d reads, and each asks one partition in 8", reads)
	}
}

// A partition in which nothing is expected is asked all the same, to show that nobody else owns it; that shall cost as little as it can.
func TestNothingIsExpectedWhereNothingIsDue(t *testing.T) {
	s, err := New(DefaultConfig(), Deps{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	sh, now := newShard(s), time.Now()
	sh.own([]coord.Owner{
		{Role: coord.RoleWorker, Partition: 1, Epoch: 1},
		{Role: coord.RoleWorker, Partition: 2, Epoch: 1},
		{Role: coord.RoleWorker, Partition: 3, Epoch: 1},
		{Role: coord.RoleWorker, Partition: 4, Epoch: 1},
	})
	owners := sh.owned()
	sh.reads.accept(owners[:3], now.Add(-quietPoll), []time.Time{{}, now.Add(time.Millisecond), now.Add(time.Hour)}) // the fourth was never read
	sh.again = false
	sh.hint(3)
	worth, quiet, _ := sh.worthReading(owners, now, true)
	if want := map[int]bool{1: true}; !slices.Equal(worth, owners) || !maps.Equal(quiet, want) {
		t.Errorf("worth a read are %v, without anything expected in %v, want all and %v", worth, quiet, want)
	}
	sh.again = true // something was given, and is given again
	if _, quiet, _ = sh.worthReading(owners, now, true); len(quiet) > 0 {
		t.Errorf("nothing is expected in %v, though all is asked for once more", quiet)
	}
}
