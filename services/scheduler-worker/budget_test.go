package schedulerworker

import (
	"testing"

	"github.com/minutehand/minutehand/libs/capacity"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
)

func weighing(n, weight int) []*task {
	tasks := make([]*task, n)
	for i := range tasks {
		tasks[i] = &task{entry: &job.Entry{Lane: testLane, Weight: weight}, counted: true}
	}
	return tasks
}

func TestHeavyEntriesLeaveMemoryToOthers(t *testing.T) {
	b, room := newBudget(4<<20), make(chan struct{}, 1)
	large := weighing(40, 250<<10)
	taken := 0
	for n := -1; n != 0; taken += n {
		if n = b.reserve(large[taken:], heavy, room); n > batchBytes/(250<<10) {
			t.Errorf("%d of 250 KiB were taken at once", n)
		}
	}
	if taken != 12 { // three quarters of 4 MiB
		t.Errorf("%d large entries found room", taken)
	}
	if n := b.reserve(weighing(500, 100), light, room); n != 500 {
		t.Errorf("%d small entries of 500 found room beside them", n)
	}
	select {
	case <-room:
		t.Error("there is room, it was told")
	default:
	}
	b.release(large[0])
	b.release(large[0])
	<-room
	if n := b.reserve(large[taken:], heavy, room); n != 0 {
		t.Errorf("%d large entries found room that the small ones have", n)
	}
}

func TestEntryLargerThanAllMemoryPassesAlone(t *testing.T) {
	b, room := newBudget(1000), make(chan struct{}, 1)
	tasks := weighing(2, 250<<10)
	if n := b.reserve(tasks, heavy, room); n != 1 {
		t.Fatalf("%d were taken", n)
	}
	if n := b.reserve(tasks[1:], heavy, room); n != 0 {
		t.Errorf("%d more were taken", n)
	}
	b.release(tasks[0])
	<-room
	if n := b.reserve(tasks[1:], heavy, room); n != 1 {
		t.Errorf("%d were taken when all was free", n)
	}
}

func TestLaneIsCrowdedByTheSizeOfWhatIsPublished(t *testing.T) {
	l := newLanes(clock.Clock{}, 2000)
	tasks := weighing(100, 250<<10)
	l.published(tasks[:20])
	if l.crowded(testLane) {
		t.Error("20 large fires crowd a lane")
	}
	l.published(tasks[20:])
	if !l.crowded(testLane) {
		t.Error("100 large fires do not crowd a lane on which nobody reports")
	}
	l.report([]capacity.Report{{Executor: "e", Lanes: []capacity.Lane{{ID: testLane, Window: 200}}}})
	if l.crowded(testLane) {
		t.Error("a lane is crowded with half of what an executor takes")
	}
}
