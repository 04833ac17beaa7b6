//go:build servers

package cluster_test

import (
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/bucket"
)

const (
	// manyPartitions is the partition count of an installation laid out for a large fleet.
	manyPartitions = 1024
	// refilledWithin is how soon after an empty Redis answers everything due has been called. It is three times what that
	// takes on two otherwise idle cores, shared by twelve services and six servers. It took 100 s while the hour came first.
	refilledWithin = 30 * time.Second
)

// Entries that are overdue, or due soon in any partition, come before the whole hour of one partition.
func TestRedisThatCameBackEmptyHasWhatIsDueInEveryPartitionBeforeTheHourAhead(t *testing.T) {
	f := newInstallation(t, func(c *installation) {
		c.config.Partitions, c.config.ZooKeeper.Partitions = manyPartitions, manyPartitions
	}).fleet()
	due := time.Now().Add(10 * time.Minute)
	comingHour := sized(20_000, 100_000) // jobs that the loader must bring back
	jobs := make([]map[string]any, comingHour)
	for i := range jobs {
		jobs[i] = f.oneShot(due.Add(time.Duration(i)*45*time.Minute/time.Duration(comingHour)), "/ok")
	}
	began := time.Now()
	f.register(jobs)
	t.Logf("%d jobs were registered in %.0f s", comingHour, time.Since(began).Seconds())

	ids, from := f.stream(30 * time.Second)
	of := map[int]bool{}
	for _, id := range ids {
		of[bucket.Partition(id, manyPartitions)] = true
	}
	time.Sleep(time.Until(from.Add(5 * time.Second)))
	local(t, "wipe", "redis")
	local(t, "up", "redis")
	back := time.Now()
	f.awaitCalls(ids)
	var latest time.Duration // after its instant, or after the return of Redis
	late := 0
	for _, c := range f.sink.all() {
		begins := c.ScheduledFor
		if begins.Before(back) {
			begins = back
		}
		behind := c.At.Sub(begins)
		latest = max(latest, behind)
		if behind > refilledWithin {
			late++
		}
	}
	t.Logf("of %d jobs in %d of %d partitions the latest was called %.1f s behind its instant or the return of Redis", len(ids), len(of), manyPartitions,
		latest.Seconds())
	if late > 0 {
		t.Errorf("%d calls came more than %s behind", late, refilledWithin)
	}
}
