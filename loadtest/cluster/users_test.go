//go:build servers

package cluster_test

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/servertest"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/loadtest/ledger"
	"github.com/minutehand/minutehand/loadtest/users"
)

// users lets users work with the platform for a while, each time with another seed.
func (f *platform) users(jobs int, lasts time.Duration, change ...func(*users.Config)) *users.Users {
	f.t.Helper()
	cfg := users.Config{
		Seed: uint64(time.Now().UnixNano()), Jobs: jobs, Lasts: lasts,
		Base: func(try int) string { return "http://" + f.Member("job-api", try%2).Listen },
	}
	for _, c := range change {
		c(&cfg)
	}
	f.played = users.Start(f.t, cfg)
	return f.played
}

// A process of each kind is killed and restarted, and the hot tier is lost, while users do everything that users do.
func TestUsersAreServedWhateverIsKilled(t *testing.T) {
	f := newInstallation(t).fleet()
	const jobs, lasts = 60, 90 * time.Second
	u := f.users(jobs, lasts)
	chain := f.chain(30)
	time.Sleep(10 * time.Second)
	for n, service := range []string{"scheduler-worker", "executor", "job-api", "bucket-loader", "retry-manager", "audit-writer"} {
		victim := f.Member(service, n%2)
		victim.Signal(syscall.SIGKILL)
		<-victim.Ended
		time.Sleep(session)
		f.restart(service, n%2)
	}
	local(t, "wipe", "redis")
	local(t, "up", "redis")
	u.Wait()
	overlaps := 0
	f.check(func(a *ledger.Account) {
		a.HotLost = true
		f.wantChain(a, chain)
		for i := range a.Events {
			if a.Events[i].Disposition == job.DispositionSkippedOverlap {
				overlaps++
			}
		}
	})
	if t.Logf("%d occurrences gave way to another", overlaps); overlaps == 0 {
		t.Error("no occurrence gave way to another")
	}
	said := u.Summary()
	t.Log(said)
	for _, want := range []string{"202:", "200:", "201:"} {
		if !strings.Contains(said, want) {
			t.Errorf("no request was answered %s", want)
		}
	}
}

func TestUsersAreServedWhenServersAreKilled(t *testing.T) {
	f := newInstallation(t).fleet()
	u := f.users(40, 60*time.Second)
	for range 2 {
		for _, server := range []string{"kafka", "redis"} { // which forgets up to a second
			time.Sleep(session)
			local(t, "kill", server)
			local(t, "up", server)
		}
	}
	u.Wait()
	f.check(func(a *ledger.Account) { a.HotLost = true })
	t.Log(u.Summary())
}

// What the master of some partitions accepted while its replica stood still is lost with it: leases, claims, entries. (A
// stop that was answered is not lost, because it waits for a replica.)
func TestUsersAreServedByAReplicaThatStoodStillBeforeItsMasterWasKilled(t *testing.T) {
	f := newInstallation(t, onRedisCluster).fleet()
	u := f.users(40, 60*time.Second)
	time.Sleep(15 * time.Second)
	master, replica := servertest.RedisServers(t, "{p0}")
	replica.Signal(syscall.SIGSTOP)
	time.Sleep(session)
	master.Signal(syscall.SIGKILL)
	replica.Signal(syscall.SIGCONT)
	defer local(t, "up", "--cluster", "redis")
	u.Wait()
	f.check(func(a *ledger.Account) { a.HotLost = true })
	t.Log(u.Summary())
}
