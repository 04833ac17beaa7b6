package watch

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/notices"
)

// told lets those be told of causes whom a URL names, at most once in ten minutes.
func told(url string, on ...job.Cause) func(*job.Job) {
	return func(j *job.Job) {
		j.Notify = append(j.Notify, job.Notify{On: on, Target: job.Target{Kind: job.TargetWebhook, URL: url}, Quiet: 10 * time.Minute})
	}
}

// owed returns what is owed.
func (f *fixture) owed() (list []notices.Notice) {
	f.t.Helper()
	s := notices.Store{Lists: f.Settings}
	for slice := range notices.Slices {
		page, _, err := s.List(f.t.Context(), slice, "", 100)
		f.must(err)
		for _, x := range page {
			list = append(list, x.Notice)
		}
	}
	return list
}

// wantsOwed checks what is owed: causes and periods, by the instant in each period that decided.
func (f *fixture) wantsOwed(j *job.Job, want map[job.Cause][]time.Time) {
	f.t.Helper()
	n := 0
	for cause, instants := range want {
		for _, at := range instants {
			n++
			found := false
			for _, x := range f.owed() {
				found = found || x.JobID == j.ID && x.Cause == cause && x.Period.Equal(j.Notify[0].Period(at))
			}
			if !found {
				f.t.Errorf("no notice of %s in the period of %s", cause, at)
			}
		}
	}
	if list := f.owed(); len(list) != n {
		f.t.Errorf("%d notices, want %d: %+v", len(list), n, list)
	}
}

func TestOwnersAreToldOnceThatDeadlinesAreMissedAndThatItIsOver(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		j := f.create(told("https://team.example", job.CauseSLAMissed, job.CauseRecovered))
		f.until(nth(j, 5))
		missed := nth(j, 1).Add(2 * time.Second)
		f.wantsOwed(j, map[job.Cause][]time.Time{job.CauseSLAMissed: {missed}}) // one of the two deadlines that it misses
		if x := f.owed()[0]; x.IncidentID == "" || !strings.Contains(x.Reason, "start_within of 2s") || x.Hops != 1 {
			t.Errorf("%+v", x)
		}
		for n := 5; n <= 7; n++ {
			f.succeed(j, n)
		}
		f.until(nth(j, 7))
		f.wantsOwed(j, map[job.Cause][]time.Time{job.CauseSLAMissed: {missed}, job.CauseRecovered: {nth(j, 6)}})
	})
}

// What is missed again in the quiet period in which its owners were told is told when that is over, if it is missed still.
func TestIncidentInAQuietPeriodIsToldWhenThatIsOver(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		time.Sleep(time.Until(time.Now().Truncate(10 * time.Minute).Add(11 * time.Minute)))
		j := f.create(startOnly, told("https://team.example", job.CauseSLAMissed, job.CauseRecovered))
		first := nth(j, 1)
		f.succeed(j, 2)
		f.until(nth(j, 3).Add(time.Second))
		want := map[job.Cause][]time.Time{job.CauseSLAMissed: {first}, job.CauseRecovered: {first}}
		f.wantsOwed(j, want)
		f.until(first.Add(8 * time.Minute))
		f.wantsOwed(j, want)
		f.until(first.Add(10 * time.Minute))
		want[job.CauseSLAMissed] = append(want[job.CauseSLAMissed], first.Add(10*time.Minute))
		f.wantsOwed(j, want)
		f.until(first.Add(25 * time.Minute)) // it is told once, however long it lasts
		f.wantsOwed(j, want)
	})
}

// The notice fails, or the note behind it, or the process dies there: whoever carries on owes the same one.
func TestNoticeIsTheSameWhoeverOwesIt(t *testing.T) {
	for name, where := range map[string]string{"before the notice": "notices/", "behind it": "judged/"} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				f := newFixture(t)
				j := f.create(startOnly, told("https://team.example", job.CauseSLAMissed), told("https://all.example", job.CauseSLAMissed, job.CauseRecovered))
				seen := 0
				f.hands.put = func(list string) error {
					if strings.HasPrefix(list, "notices/") {
						seen++
					}
					if strings.HasPrefix(list, where) && (where == "notices/" || seen > 0) {
						return errors.New("it does not answer")
					}
					return nil
				}
				f.until(nth(j, 2))
				f.hands.put = nil
				f.Watchdog = f.another()
				time.Sleep(time.Minute)
				f.until(nth(j, 20))
				missed := nth(j, 1).Add(2 * time.Second)
				if list := f.owed(); len(list) != 2 || !list[0].Period.Equal(j.Notify[0].Period(missed)) || list[0].IncidentID != list[1].IncidentID || list[0].To == list[1].To {
					t.Errorf("%+v", list)
				}
			})
		})
	}
}

// A job misses both of its deadlines, and its owners are told of one. Who watches dies, and the job meets them again.
func TestOwnersAreToldThatItIsOverByTheNextThatWatches(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		j := f.create(told("https://team.example", job.CauseSLAMissed, job.CauseRecovered))
		f.until(nth(j, 3))
		for n := 3; n <= 10; n++ {
			f.succeed(j, n)
		}
		f.Watchdog = f.another()
		f.until(nth(j, 10))
		f.wantsOwed(j, map[job.Cause][]time.Time{job.CauseSLAMissed: {nth(j, 1)}, job.CauseRecovered: {nth(j, 3)}})
	})
}

func TestJobThatTellsNobodyOwesNothing(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		j := f.create(told("https://team.example", job.CauseDeadLetter))
		f.create()
		f.until(nth(j, 5))
		if list := f.owed(); len(list) != 0 || len(f.all()) != 4 {
			t.Errorf("%+v", list)
		}
	})
}
