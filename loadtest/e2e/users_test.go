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
	t.Parallel()
	p := newProcess(t)
	p.Start()
	began := time.Now()
	const kills = 4
	const look = 15 * time.Second // between two looks at what is left
	jobs, lasts := sized(40, 60), sized(25*time.Second, 50*time.Second)
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
	var shown map[string][]ledger.Shown
	// Deferred fires come back later, and an entry whose request was cut short is dropped two minutes after it was written.
	for limit := time.Now().Add(5 * time.Minute); ; time.Sleep(look) {
		p.Users.WaitForSilence(10*time.Second, 2*time.Minute)
		atRest(t, p, 30*time.Second)
		shown = p.Users.Accounts()
		p.Stop()
		a = p.Account(began, time.Now())
		if !slices.ContainsFunc(a.Pending, func(r job.PendingRow) bool { return !r.Done }) || time.Now().After(limit) {
			break
		}
		p.Start()
	}
	a.Crashed, a.Shown = true, shown
	p.Users.Fill(a)
	for _, v := range ledger.Check(a) {
		t.Error(v)
	}
	t.Log(p.Users.Summary())
}
