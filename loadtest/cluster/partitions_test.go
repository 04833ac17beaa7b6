//go:build servers

package cluster_test

import (
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/servertest"
)

// Workers join, and one is killed. Soon afterwards every partition has one owner, and no more partitions move than must.
func TestPartitionsAreSharedAmongWorkersThatComeAndGo(t *testing.T) {
	f := newInstallation(t).processes()
	owners := f.owners("scheduler-worker")
	share := func(step string, workers int, began time.Time) map[int]string {
		var now map[int]string
		eventually(t, step+": every partition has one owner", resume, func() bool {
			now = owners()
			counts := map[string]int{}
			for _, owner := range now {
				counts[owner]++
			}
			least := partitions
			most := 0
			for _, n := range counts {
				least, most = min(least, n), max(most, n)
			}
			return len(now) == partitions && len(counts) == workers && most-least <= 1
		})
		t.Logf("%s: every partition had its owner after %.1f s", step, time.Since(began).Seconds())
		return now
	}
	moved := func(from, to map[int]string) (n int) {
		for p := range to {
			if to[p] != from[p] {
				n++
			}
		}
		return n
	}
	begin := func(n int) time.Time {
		_, err := f.Start("scheduler-worker", n)
		f.must(err)
		began := time.Now()
		f.must(f.Member("scheduler-worker", n).AwaitReady(t.Context()))
		return began
	}
	one := share("one worker", 1, begin(0))
	began := begin(1)
	begin(2)
	three := share("three workers", 3, began)
	if n, needed := moved(one, three), partitions-(partitions+2)/3; n > needed {
		t.Errorf("from one worker to three %d partitions moved, %d need to", n, needed)
	}
	victim := f.Member("scheduler-worker", 0)
	gone := 0
	for _, owner := range three {
		if owner == one[0] {
			gone++
		}
	}
	victim.Signal(syscall.SIGKILL)
	<-victim.Ended
	two := share("two workers, one was killed", 2, time.Now())
	if n := moved(three, two); n != gone {
		t.Errorf("of the worker that was killed were %d partitions, and %d moved", gone, n)
	}
}

// owners reads who owns each partition in a role: the node that names an owner disappears with it.
func (f *platform) owners(role string) func() map[int]string {
	f.t.Helper()
	conn := servertest.ZooKeeper(f.t)
	return func() map[int]string {
		now := map[int]string{}
		for p := range partitions {
			if owner, ok := conn.Read(f.config.ZooKeeper.Root + "/" + role + "/owners/" + strconv.Itoa(p)); ok {
				now[p] = owner
			}
		}
		return now
	}
}
