package schedulerworker

import (
	"time"

	"github.com/minutehand/minutehand/libs/hotbucket"
)

// brought says how many entries of a lane a read returned from a partition, and when the last of them is due.
type brought struct {
	n    int
	last time.Time
}

// followBacklog notes the lanes in which more is due than was read, and those in which nothing more is. The former are read
// again as soon as they have room. Only a whole read, of all partitions with something due, shows that nothing more is: what waits in a
// lane with a backlog is not missed, however late it is (task.waits).
func (sh *shard) followBacklog(got map[int]map[uint32]brought, began time.Time, ask *hotbucket.Ask, whole bool) {
	more, full := map[uint32]bool{}, false
	for partition, lanes := range got {
		all := 0
		for _, b := range lanes {
			all += b.n
		}
		// A full read may have left out any lane; a read with two lanes or more, half of it.
		crowded := all >= ask.Room()/2
		full = full || crowded
		if crowded {
			sh.hint(partition)
		}
		for lane, b := range lanes {
			of := ask.Of(partition, lane)
			cut := b.n >= of.Limit || crowded
			switch {
			case cut && !b.last.After(began):
				more[lane] = true
				if of.Attended {
					sh.hinted = true
					sh.hint(partition)
				}
			case cut: // more of the lane is due ahead
				sh.hinted = true
				sh.hint(partition)
			}
			if more[lane] {
				delete(sh.empty, lane)
			}
			if more[lane] && sh.backlog[lane].IsZero() {
				sh.backlog[lane] = began
			}
		}
	}
	sh.hinted = sh.hinted || full
	for lane := range sh.backlog {
		if !whole || ask.PerLane.Limit == 0 { // nothing is asked for while the shard holds too much
			break
		}
		of, named := ask.Lanes[lane]
		// If not every partition was asked for a lane, the others may have more of it, until each had its turn.
		closed := named && of.Attended
		if !more[lane] && !full && !closed && (!named || of.Every <= 1 || sh.passed(lane, of.Every)) {
			delete(sh.backlog, lane)
			delete(sh.empty, lane)
		}
	}
	if whole && len(more) == 0 { // partitions that were not asked may have more, which is not worth constant reads
		sh.backlogAt = sh.s.deps.Clock.Now().Add(fruitlessPause)
	}
	sh.hinted = sh.hinted || sh.backlogOpen()
}

// restartMarks restarts the waits of all lanes: the shard was not able to attend to what was due.
func (sh *shard) restartMarks() {
	now := sh.s.deps.Clock.Now()
	for lane := range sh.backlog {
		sh.backlog[lane] = now
	}
}

// heldBackAfter is how long a lane has a backlog before its target counts as held back: a stampede is over sooner.
const heldBackAfter = 30 * time.Second

// countHeldBack keeps the metric of lanes that are held back.
func (sh *shard) countHeldBack(now time.Time) {
	n := 0
	for _, since := range sh.backlog {
		if now.Sub(since) > heldBackAfter {
			n++
		}
	}
	sh.s.metrics.heldBack.Add(float64(n - sh.heldBack))
	sh.heldBack = n
}

// backlogOpen reports whether to read a lane with a backlog because it has room again.
func (sh *shard) backlogOpen() bool {
	return len(sh.backlog) > 0 && !sh.s.deps.Clock.Now().Before(sh.backlogAt) && sh.s.lanes.open(sh.backlog)
}

// passed counts reads of a lane that left nothing that is due, each of one partition in every. It reports whether there were more than
// four times as many as it takes to ask each partition: which are asked changes with every.
func (sh *shard) passed(lane uint32, every int) bool {
	sh.empty[lane]++
	return sh.empty[lane] > 4*every
}
