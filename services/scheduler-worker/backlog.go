package schedulerworker

import (
	"time"

	"github.com/minutehand/minutehand/libs/hotbucket"
)

// brought is how many entries of a lane a read brought of a partition, and when the last of them is due.
type brought struct {
	n    int
	last time.Time
}

// followBacklog notes of which lanes more is due than was read, and of which no more. Such a lane is read again as soon as it
// has room.
func (sh *shard) followBacklog(got map[int]map[uint32]brought, began time.Time, ask *hotbucket.Ask) {
	more, full := map[uint32]bool{}, false
	for partition, lanes := range got {
		all := 0
		for _, b := range lanes {
			all += b.n
		}
		// A read that was full may have left out any lane, one with two lanes or more half of it.
		crowded := all >= ask.Room()/2
		full = full || crowded
		for lane, b := range lanes {
			delete(sh.empty, lane)
			of := ask.Of(partition, lane)
			cut := b.n >= of.Limit || crowded
			switch {
			case cut && !b.last.After(began):
				more[lane] = true
				sh.hinted = sh.hinted || of.Attended
			case cut: // more of it is due ahead
				sh.hinted = true
			}
			if more[lane] && sh.backlog[lane].IsZero() {
				sh.backlog[lane] = began
			}
		}
	}
	sh.hinted = sh.hinted || full
	for lane := range sh.backlog {
		of, named := ask.Lanes[lane]
		// A lane of which not every partition was asked may have more in the others, until each had its turn.
		closed := named && of.Attended
		if !more[lane] && !full && !closed && (!named || of.Every <= 1 || sh.passed(lane, of.Every)) {
			delete(sh.backlog, lane)
			delete(sh.empty, lane)
		}
	}
	if len(more) == 0 { // partitions that were not asked may have more, which is not worth reading all the time for
		sh.backlogAt = sh.s.deps.Clock.Now().Add(fruitlessPause)
	}
	sh.hinted = sh.hinted || sh.backlogOpen()
}

// restartMarks begins the marks of all lanes anew: the shard was not able to attend to what was due.
func (sh *shard) restartMarks() {
	now := sh.s.deps.Clock.Now()
	for lane := range sh.backlog {
		sh.backlog[lane] = now
	}
}

// backlogOpen reports whether a lane with a backlog is to be read because it has room again.
func (sh *shard) backlogOpen() bool {
	return len(sh.backlog) > 0 && !sh.s.deps.Clock.Now().Before(sh.backlogAt) && sh.s.lanes.open(sh.backlog)
}

// passed counts reads of a lane, one partition in so many each, that brought nothing of it, and reports whether they have been
// twice as many as it takes to ask each.
func (sh *shard) passed(lane uint32, every int) bool {
	sh.empty[lane]++
	return sh.empty[lane] > 2*every
}
