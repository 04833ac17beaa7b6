package schedulerworker

import (
	"container/heap"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
)

func TestListLetsGoOfWhatIsPulled(t *testing.T) {
	whole := []*task{{}, {}, {}}
	list := whole
	tasks := pull(&list, 2)
	if len(tasks) != 2 || len(list) != 1 || whole[0] != nil || whole[1] != nil || list[0] == nil {
		t.Errorf("%d tasks were pulled, %d are left, and the list still holds %v", len(tasks), len(list), whole)
	}
	if tasks = pull(&list, 2); len(tasks) != 1 || len(list) != 0 {
		t.Errorf("%d tasks were pulled of one, %d are left", len(tasks), len(list))
	}
}

// A batch of a stampede needs claims, successors and removals in each of its partitions.
func TestWhatIsDueAtOneInstantIsTakenPartitionByPartition(t *testing.T) {
	const partitions, each = 100, 20
	now := time.Now()
	var queue taskQueue
	for _, n := range rand.Perm(partitions * each) {
		precision := job.PrecisionStandard
		if n%each == 0 {
			precision = job.PrecisionFast
		}
		heap.Push(&queue, &task{at: now, entry: &job.Entry{Locator: job.Locator{Partition: n / each}, Precision: precision}})
	}
	heap.Push(&queue, &task{at: now.Add(-time.Millisecond), entry: &job.Entry{Locator: job.Locator{Partition: partitions}}})
	if first := heap.Pop(&queue).(*task); first.entry.Partition != partitions {
		t.Errorf("of partition %d comes before what is due earlier", first.entry.Partition)
	}
	changes, last := 0, -1
	for len(queue) > 0 {
		if p := heap.Pop(&queue).(*task).entry.Partition; p != last {
			changes, last = changes+1, p
		}
	}
	if want := 2 * partitions; changes > want {
		t.Errorf("%d runs of one partition, want %d: those that are fast, and the others", changes, want)
	}
}

func TestNoPartitionIsAlwaysTheLastOfAnInstant(t *testing.T) {
	lasts := map[int]bool{}
	for minute := range 100 {
		at := time.Date(2030, 1, 1, 0, minute, 0, 0, time.UTC)
		var queue taskQueue
		for p := range 16 {
			heap.Push(&queue, &task{at: at, entry: &job.Entry{Locator: job.Locator{Partition: p}}})
		}
		for len(queue) > 1 {
			heap.Pop(&queue)
		}
		lasts[queue[0].entry.Partition] = true
	}
	if len(lasts) < 8 {
		t.Errorf("in a hundred minutes only %v were the last of 16", lasts)
	}
}
