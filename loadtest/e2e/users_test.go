package e2e

import (
	"slices"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/loadtest/ledger"
	"github.com/minutehand/minutehand/loadtest/users"
)

func TestUsersAreServedWhileTheProcessIsKilledAgainAndAgain(t *testing.T) {
	p := newProcess(t)
	p.Start()
	began := time.Now()
	const jobs, lasts, kills = 60, 50 * time.Second, 4
	p.Users = users.Start(t, users.Config{
		Seed: uint64(began.UnixNano()), Jobs: jobs, Lasts: lasts, Base: func(int) string { return p.URL },
	})
	for range kills {
		time.Sleep(lasts / (kills + 1))
		p.Kill()
		p.Start()
	}
	p.Users.Wait()
	var a *ledger.Account
	for limit := time.Now().Add(5 * time.Minute); ; p.Start() { // what was deferred comes back later
		p.Users.WaitForSilence(10*time.Second, 2*time.Minute)
		atRest(t, p, 30*time.Second)
		p.Stop()
		a = p.Account(began, time.Now())
		if !slices.ContainsFunc(a.Pending, func(r job.PendingRow) bool { return !r.Done }) || time.Now().After(limit) {
			break
		}
	}
	a.Crashed = true
	p.Users.Fill(a)
	for _, v := range ledger.Check(a) {
		t.Error(v)
	}
	t.Log(p.Users.Summary())
}
