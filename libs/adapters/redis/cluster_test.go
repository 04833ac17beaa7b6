//go:build servers

package redis_test

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/redis"
	"github.com/minutehand/minutehand/libs/adapters/servertest"
	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
)

// Nobody asks anything while the other server is the master: only the server itself reveals what it forgot.
func TestIncarnationIsAnotherAfterAFailoverThereAndBack(t *testing.T) {
	const id = "job_01M7ZJW5E6D77SAJPXRZ65CMZZ"
	p := bucket.Partition(id, partitions)
	tier := open(t, redis.Options{Cluster: true})
	hot := redis.NewHotBuckets(tier)
	defer func() { _ = hot.Close() }()
	before, err := hot.Incarnations(t.Context(), []int{p})
	if err != nil {
		t.Fatal(err)
	}
	first, second := servertest.RedisServers(t, fmt.Sprintf("{p%d}", p))
	second.Promote(first)
	first.Promote(second)
	after, err := hot.Incarnations(t.Context(), []int{p})
	if err != nil || after[0] == before[0] {
		t.Errorf("the incarnation was %q, and is %q (%v)", before, after, err)
	}
	// A job's memory may report the incarnation that has ended, for as long as the server that lost the records has not heard of it.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		memory, err := redis.NewRecords(tier).Memory(t.Context(), id)
		got := memory.Incarnation
		if err == nil && got == after[0] {
			break
		}
		if err != nil || got != before[0] || time.Now().After(deadline) {
			t.Fatalf("the job's is %q, want %q (%v)", got, after, err)
		}
	}
}

// A master that was replaced may go on with the clients that it still reaches, which do not learn of a stop.
func TestStopHoldsOnlyWhenTheServerThatWasReplacedHasEnded(t *testing.T) {
	const id = "job_01M7ZJW5E6D77SAJPXRZ65CMZZ"
	records := redis.NewRecords(open(t, redis.Options{Cluster: true}))
	master, replica := servertest.RedisServers(t, fmt.Sprintf("{p%d}", bucket.Partition(id, partitions)))
	replica.Promote(master)
	var holdsIn []time.Duration
	for deadline := time.Now().Add(time.Minute); len(holdsIn) < 2 && time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		d, err := records.SetStop(t.Context(), id, job.State{Status: job.StatusCancelled, Version: int64(len(holdsIn) + 1)})
		if err == nil { // otherwise there is no master yet, or its replica is not in step
			holdsIn = append(holdsIn, d)
		}
	}
	if len(holdsIn) < 2 || holdsIn[0] > attempts.ReplacedFor+clock.MaxDifference || holdsIn[1] >= holdsIn[0] || holdsIn[1] == 0 {
		t.Errorf("stop records that are set soon after a promotion hold in %v", holdsIn)
	}
}

func TestStopRecordIsNotAcknowledgedBeforeAReplicaHasIt(t *testing.T) {
	const id = "job_01M7ZJW5E6D77SAJPXRZ65CMZZ"
	records := redis.NewRecords(open(t, redis.Options{Cluster: true}))
	_, replica := servertest.RedisServers(t, fmt.Sprintf("{p%d}", bucket.Partition(id, partitions)))
	set := func(version int64) error {
		_, err := records.SetStop(t.Context(), id, job.State{Status: job.StatusCancelled, Version: version})
		return err
	}
	eventually := func(version int64) {
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
			err := set(version)
			if err == nil {
				return
			}
			if time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
	}
	eventually(6)
	replica.Signal(syscall.SIGSTOP)
	began := time.Now()
	err := set(7)
	replica.Signal(syscall.SIGCONT)
	if took := time.Since(began); err == nil || took > 6*time.Second {
		t.Errorf("while its replica stood still a stop record was answered with %v, after %s", err, took)
	}
	eventually(7)
	if stops, err := records.StopsOf(t.Context(), []string{id}); err != nil || stops[id].Version != 7 {
		t.Errorf("the stop record is %+v (%v)", stops, err)
	}
}

// A process renews everything that it holds in one call, in which one server must not hold up the others.
func TestLeasesOnOtherServersAreRenewedWhileOneHangs(t *testing.T) {
	records := redis.NewRecords(open(t, redis.Options{Cluster: true}))
	hung, _ := servertest.RedisServers(t, "{p0}")
	now := job.Instant(time.Now())
	var healthy, all []attempts.Lease
	for i := range 40 {
		id := fmt.Sprintf("%026d", i)
		l := attempts.Lease{
			Key: attempts.Key{ExecutionID: job.ExecutionPrefix + id + "-s1", Attempt: 1}, Holder: attempts.Holder{Name: "executor", Start: int64(i)},
		}
		rec, ok, err := records.Acquire(t.Context(), l.Key, l.Holder, now, now.Add(time.Minute))
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		l.Token = rec.Token
		if master, _ := servertest.RedisServers(t, fmt.Sprintf("{p%d}", bucket.Partition(job.JobPrefix+id, partitions))); master.Options().Addr != hung.Options().Addr {
			healthy = append(healthy, l)
		}
		all = append(all, l)
	}
	if len(healthy) == 0 || len(healthy) == len(all) {
		t.Fatalf("%d of %d leases are on other servers", len(healthy), len(all))
	}
	hung.Signal(syscall.SIGSTOP)
	defer hung.Signal(syscall.SIGCONT)
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond) // before the replica is promoted
	defer cancel()
	if err := records.Renew(ctx, all, now.Add(time.Hour)); err == nil {
		t.Error("renewed on a server that stands still")
	}
	for _, l := range healthy {
		found, err := records.Lookup(t.Context(), []attempts.Key{l.Key})
		if err != nil || !found[0].LapsesAt.Equal(now.Add(time.Hour)) {
			t.Errorf("%+v (%v)", found, err)
		}
	}
}
