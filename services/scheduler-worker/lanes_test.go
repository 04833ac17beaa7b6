package schedulerworker

import (
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/capacity"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/occurrence"
)

const testLane = 7

// newLane returns admission with some entries of a lane held, and a function that returns how much room the lane has.
func newLane(held int) (l *lanes, room func() int) {
	l = newLanes(clock.Clock{}, 1000)
	l.add(testLane, held)
	return l, func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		_, n := l.room(l.of(testLane), time.Now())
		return n
	}
}

func firesOf(n int) (tasks []*task) {
	for range n {
		tasks = append(tasks, &task{entry: &job.Entry{Lane: testLane}, counted: true})
	}
	return tasks
}

func TestRoomOfALaneIsItsWindowLessWhatIsUnderWay(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l, room := newLane(300)
		want := func(when string, n int) {
			t.Helper()
			if got := room(); got != n {
				t.Errorf("%s there is room for %d, want %d", when, got, n)
			}
		}
		want("of a lane without reports, while 300 are held,", 700)
		l.published(firesOf(200))
		want("when 200 of them were published", 700)
		l.add(testLane, -100)
		want("when the others were refused", 800)
		time.Sleep(capacity.Fresh)
		want("without a report for long", 1000)

		l.published(firesOf(50)) // 50 of them were held
		l.add(testLane, 50)
		time.Sleep(time.Second)
		l.report([]capacity.Report{
			{Executor: "a", Lanes: []capacity.Lane{{ID: testLane, Waiting: 10, Window: 500}}},
			{Executor: "b", Lanes: []capacity.Lane{{ID: testLane, Waiting: 90, Window: 100}}},
		})
		want("when executors have reported what waits there", 500)
		l.published(firesOf(50))
		l.add(testLane, 50)
		want("when more was published since", 450)
		time.Sleep(time.Second)
		l.report([]capacity.Report{{Executor: "a", Behind: 2 * time.Second, Lanes: []capacity.Lane{{ID: testLane, Waiting: 10, Window: 500}}}})
		want("when the executors have not seen yet what was published", 390)
		l.report([]capacity.Report{{Executor: "a", Lanes: []capacity.Lane{{ID: testLane, Waiting: 500}}}})
		want("when the target hangs", -500)
		l.setShare(0.5)
		l.report([]capacity.Report{{Executor: "a", Lanes: []capacity.Lane{{ID: testLane, Window: 500}}}})
		want("of half of the partitions", 250)
		l.setShare(0.02)
		l.report([]capacity.Report{{Executor: "a", Lanes: []capacity.Lane{{ID: testLane, Window: 12}}}})
		want("of one partition in fifty, where there is room for twelve,", 1)
		l.report([]capacity.Report{{Executor: "a", Lanes: []capacity.Lane{{ID: testLane, Window: 12, Waiting: 12}}}})
		want("of one partition in fifty, when twelve wait,", 0)
		time.Sleep(3 * capacity.Fresh)
		l.report(nil)
		if l.busy() || len(l.m) > 0 {
			t.Errorf("an idle lane is kept: %v", l.m)
		}
	})
}

func TestLaneWithoutRoomIsAskedForWhatMustBeAttendedToAlone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l, _ := newLane(0)
		now := time.Now()
		q := question{shards: 2, partitions: 100, now: now, until: now.Add(2 * time.Second), poll: 500 * time.Millisecond, backlog: map[uint32]time.Time{}}
		ask := l.ask(q)
		if len(ask.Lanes) > 0 || !ask.PerLane.Until.Equal(q.until) || ask.PerLane.Limit != 5 {
			t.Errorf("of lanes of which nothing is known %+v is asked", ask)
		}
		l.report([]capacity.Report{{Executor: "a", Lanes: []capacity.Lane{{ID: testLane, Window: 20, Waiting: 20}}}})
		ask = l.ask(q)
		if of := ask.Of(1, testLane); !of.Attended || !of.Until.Equal(now) {
			t.Errorf("of a lane without room %+v is asked", of)
		}
		l.report([]capacity.Report{{Executor: "a", Lanes: []capacity.Lane{{ID: testLane, Window: 30, Waiting: 20}}}})
		q.backlog[testLane] = now
		asked := 0
		for turn := range 20 {
			q.turn = turn
			ask = l.ask(q)
			for p := range 100 {
				if of := ask.Of(p, testLane); !of.Attended {
					asked += of.Limit
				}
			}
		}
		// Room for 10, shared by two shards: 5 a read, from one partition in 20.
		if asked < 60 || asked > 140 {
			t.Errorf("in 20 reads %d entries were asked for, want about 100: each partition once", asked)
		}
	})
}

func TestLateEntryIsNotMissedIfItWaitedInItsLane(t *testing.T) {
	const window = time.Minute
	due := time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC)
	series := &occurrence.Series{Def: &job.Definition{CatchUpWindow: window}}
	for name, c := range map[string]struct {
		since, written time.Time
		want           bool
	}{
		"its lane had room":                          {time.Time{}, due.Add(-time.Hour), true},
		"it waited since before it was due":          {due.Add(-time.Second), due.Add(-time.Hour), false},
		"it waited since before it became late":      {due.Add(30 * time.Second), due.Add(-time.Hour), false},
		"it came late, and then waited":              {due.Add(2 * window), due.Add(-time.Hour), true},
		"a resume wrote it when it was long past":    {due.Add(-time.Second), due.Add(2 * window), true},
		"it was written late, but within the window": {due.Add(-time.Second), due.Add(window / 2), false},
	} {
		task := &task{series: series, waitsSince: c.since, entry: &job.Entry{
			Locator: job.Locator{DueAt: due, Attempt: 1}, Trigger: job.TriggerSchedule, ScheduledFor: due, WrittenAt: c.written,
		}}
		if got := task.late(due.Add(5 * window)); got != c.want {
			t.Errorf("%s: late is %t, want %t", name, got, c.want)
		}
	}
}
