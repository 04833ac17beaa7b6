package schedulerworker

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/capacity"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/run"
)

const (
	// reportsEvery is the pause between two looks at what executors report, while anything may have to wait.
	reportsEvery = 100 * time.Millisecond
	// transit is how long a fire may take from its publication until a report counts it.
	transit = 300 * time.Millisecond
	// minWindow is the least that a worker with few partitions takes as its share of Config.Window, if Config.Window is that
	// large.
	minWindow = 100
	// minAhead is how many entries of a lane may be taken ahead of their instants, however small its window is.
	minAhead = 16
	// attendBatch is how many entries of a lane without room are attended to at a time, in one partition.
	attendBatch = 50
	// visitBatch is how many entries of a lane with little room are read of a partition at a time: few partitions are asked for that.
	visitBatch = 16
	// sentSlot is how finely the instants of publication are kept.
	sentSlot = 25 * time.Millisecond
)

// lanes is admission: it counts what this worker has in flight in each lane, and decides how much more of it is read from
// the hot buckets. An entry that is not read costs nothing, and waits where it is durable. Shards share lanes.
//
// A lane has room for what executors would like to have waiting (their windows), less what waits there already, what is on
// its way to them, and what the worker holds. Each worker takes a share equal to its share of all partitions, because job
// ids spread a lane evenly.
type lanes struct {
	clock clock.Clock
	// usual is the window of a lane without reports.
	usual int
	// stirred is told when an entry was taken.
	stirred chan struct{}

	mu sync.Mutex
	m  map[uint32]*lane
	// share of all partitions that this worker owns.
	share float64
}

// lane is one target host's lane, as this worker sees it.
type lane struct {
	// taken is how many entries were taken and are not yet published.
	taken int
	// sent is how many fires were published lately, oldest first.
	sent []sent
	// reported is set once executors have reported on the lane. window and waiting are the sums of their reports; fires
	// published after since are not counted in them.
	reported        bool
	window, waiting int
	since           time.Time
}

type sent struct {
	at time.Time
	n  int
	// bytes is the size of the heavy ones.
	bytes int64
}

func newLanes(c clock.Clock, usual int) *lanes {
	return &lanes{clock: c, usual: usual, stirred: make(chan struct{}, 1), m: map[uint32]*lane{}, share: 1}
}

func (l *lanes) of(id uint32) *lane {
	one := l.m[id]
	if one == nil {
		one = &lane{}
		l.m[id] = one
	}
	return one
}

func (l *lanes) setShare(share float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.share = share
}

// add counts entries that are taken from now on, or, with a negative n, that are given back without having been published.
func (l *lanes) add(id uint32, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of(id).taken += n
	select {
	case l.stirred <- struct{}{}:
	default:
	}
}

// published counts fires of entries that were taken before.
func (l *lanes) published(tasks []*task) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	for _, t := range tasks {
		one := l.of(t.entry.Lane)
		if t.counted {
			t.counted = false
			one.taken--
		}
		if n := len(one.sent); n == 0 || now.Sub(one.sent[n-1].at) >= sentSlot {
			one.sent = append(one.sent, sent{at: now})
		}
		last := &one.sent[len(one.sent)-1]
		last.n++
		if t.class() == heavy {
			last.bytes += t.bytes()
		}
	}
}

// crowded reports whether a lane has no room for the heavy entries that were taken already. Executors count fires, and
// report by size how many they can take, but only once they have met some.
func (l *lanes) crowded(id uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	one, now := l.of(id), l.clock.Now()
	if one.reported {
		_, room := l.room(one, now)
		return room < 0
	}
	bytes := int64(0)
	for _, s := range one.sent {
		if s.at.After(now.Add(-capacity.Fresh)) {
			bytes += s.bytes
		}
	}
	return bytes >= int64(unreportedBytes*l.share)
}

// roomAhead reports whether a lane has room for fires ahead of their instants. They take half of its window at most, so that there
// is room for those that are due.
func (l *lanes) roomAhead(id uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	one := l.of(id)
	window, room := l.room(one, l.clock.Now())
	return room+one.taken >= window/2
}

// room returns how many fires may be in flight, and how many more may be sent; negative when there are too many. A share is
// rounded up: where executors want fewer fires than there are workers, each worker sends one, and stops when they wait.
func (l *lanes) room(one *lane, now time.Time) (window, room int) {
	since := now.Add(-capacity.Fresh)
	if one.reported {
		window, since = l.shareOf(one.window), one.since
		room = l.shareOf(one.window - one.waiting)
	} else {
		window = l.unreported()
		room = window
	}
	for i := len(one.sent) - 1; i >= 0 && one.sent[i].at.After(since); i-- {
		room -= one.sent[i].n
	}
	return window, room - one.taken
}

func (l *lanes) shareOf(n int) int { return int(math.Ceil(float64(n) * l.share)) }

func (l *lanes) unreported() int { return max(int(float64(l.usual)*l.share), min(minWindow, l.usual)) }

// question is what a shard asks lanes.
type question struct {
	// shards share the worker's partitions; partitions is how many of its own this shard asks. turn changes with each read.
	shards, partitions, turn int
	// now, the instant up to which the shard reads, and the pause between two reads.
	now, until time.Time
	poll       time.Duration
	// backlog holds the lanes in which more is due.
	backlog map[uint32]time.Time
}

// ask returns what a shard reads.
func (l *lanes) ask(q question) hotbucket.Ask {
	l.mu.Lock()
	defer l.mu.Unlock()
	parts, now := q.partitions*q.shards, q.now
	each := func(n int) int { return (n + parts - 1) / parts }
	usual := each(l.unreported())
	ask := hotbucket.Ask{PerLane: hotbucket.LaneAsk{Until: q.until, Limit: usual}, Lanes: map[uint32]hotbucket.LaneAsk{}}
	type named struct {
		id   uint32
		room int
		ask  hotbucket.LaneAsk
	}
	var list []named
	for id, one := range l.m {
		window, room := l.room(one, now)
		if l.forget(id, one, now) {
			continue
		}
		a := hotbucket.LaneAsk{Until: q.until, Limit: max(each(room), usual)}
		if soon := now.Add(2 * q.poll); one.reported && soon.Before(a.Until) {
			a.Until = soon // the whole lookahead would fill the window of a busy lane with what is not due yet
		}
		_, waits := q.backlog[id]
		if waits {
			a.Limit = each(max(room, 0))
		}
		if visit := min(visitBatch, room); waits && room > 0 && room < parts*visit {
			a.Limit = visit
			a.Every, a.Turn, a.AttendedLimit = (parts*visit+room-1)/room, q.turn, attendBatch
		}
		if one.taken >= max(window/2, minAhead) {
			a.Until = now // entries taken ahead of their instant must not keep out those that are due
		}
		if room+min(one.taken, minAhead) <= 0 { // the few that it may always take ahead do not restrict it
			a = hotbucket.LaneAsk{Until: now, Limit: attendBatch, Attended: true}
		}
		if waits || !a.Until.Equal(q.until) {
			list = append(list, named{id, room, a})
		}
	}
	// If there are too many to name, the lanes with the most room are left out.
	slices.SortFunc(list, func(a, b named) int { return cmp.Or(cmp.Compare(a.room, b.room), cmp.Compare(a.id, b.id)) })
	for _, n := range list[:min(len(list), hotbucket.MaxLaneAsks)] {
		ask.Lanes[n.id] = n.ask
	}
	return ask
}

// forget drops what is too old in a lane, and the lane if nothing is known about it any more. It reports whether it dropped the lane.
func (l *lanes) forget(id uint32, one *lane, now time.Time) bool {
	for len(one.sent) > 0 && now.Sub(one.sent[0].at) > 2*capacity.Fresh {
		one.sent = one.sent[1:]
	}
	if one.taken == 0 && len(one.sent) == 0 && !one.reported {
		delete(l.m, id)
		return true
	}
	return false
}

// open reports whether one of the lanes has room for a good part of its window, so that a read is worth it.
func (l *lanes) open(backlog map[uint32]time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	for id := range backlog {
		one := l.m[id]
		if one == nil {
			return true
		}
		if window, room := l.room(one, now); room > 0 && room >= window/8 {
			return true
		}
	}
	return false
}

// busy reports whether any lane has so much in flight that reports matter.
func (l *lanes) busy() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, enough := l.clock.Now(), l.unreported()/4
	for id, one := range l.m {
		if l.forget(id, one, now) {
			continue
		}
		n := one.taken
		for _, s := range one.sent {
			n += s.n
		}
		if n > enough || one.reported {
			return true
		}
	}
	return false
}

// report replaces what executors reported.
func (l *lanes) report(reports []capacity.Report) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	for _, one := range l.m {
		one.reported = false
	}
	for _, r := range reports {
		counted := now.Add(-r.Age - r.Behind - transit)
		for _, of := range r.Lanes {
			one := l.of(of.ID)
			if !one.reported {
				one.reported, one.window, one.waiting, one.since = true, 0, 0, counted
			}
			one.window += of.Window
			one.waiting += of.Waiting
			if counted.Before(one.since) {
				one.since = counted
			}
		}
	}
}

// reportLoop follows the executors' reports while they matter. If they cannot be read, they are forgotten after a while,
// and lanes have the usual window again.
func (s *Service) reportLoop(ctx context.Context) {
	read := s.deps.Clock.Now()
	for run.Sleep(ctx, reportsEvery) == nil {
		if !s.lanes.busy() {
			select {
			case <-s.lanes.stirred: // an entry was taken
			case <-ctx.Done():
				return
			}
			continue
		}
		reports, err := s.deps.Board.Read(ctx)
		now := s.deps.Clock.Now()
		if err == nil {
			read = now
		} else if now.Sub(read) < capacity.Fresh {
			continue
		}
		s.lanes.report(reports)
	}
}

// waits reports whether a late entry waited for room in its lane since before it became late. Then it was not missed: the
// worker was there in time, and only this worker has dispatched from the partition since.
func (t *task) waits() bool {
	last := t.entry.ScheduledFor.Add(t.series.Def.CatchUpWindow)
	return !t.waitsSince.IsZero() && !t.waitsSince.After(last) && !t.entry.WrittenAt.After(last) // a resume writes instants that are long past
}

// alone reports whether the overlap policy decides about the task at its instant.
func (t *task) alone() bool {
	return t.entry.Alone && !t.published && !t.bare && t.entry.FirstOfSchedule() && !t.entry.Chained
}

// late reports whether the missed-run policy applies.
func (t *task) late(now time.Time) bool {
	return !t.published && !t.bare && t.entry.Late(now, t.series.Def.CatchUpWindow) && !t.waits()
}

func byPartition(a, b coord.Owner) int { return a.Partition - b.Partition }

// parkedFor bounds how long a parked entry is trusted. An owner that published it and died may have left it there, and its
// outcome is kept for attempts.Retention only. After that its row is read.
const parkedFor = 20 * time.Minute

// parkUntilRoom leaves entries that were attended to in the hot buckets until their lanes have room. If everything else
// were forgotten, the missed-run policy might skip such an entry. So it is marked on its row when it is about to wait
// longer than its catch-up window: later by the shard (markLater), or at once where the window is too short for that.
//
// A crash before the entries are parked leaves them as they were, so they are attended to again: the claim stands, and the
// successor has the same key. A crash afterwards leaves them parked. If the hot buckets are lost as well, an entry with a
// successor was dispatched before (successorExists), and a marked entry was decided to fire. Any other is judged as an
// entry that is taken now: it has not waited for as long as its window.
func (s *Service) parkUntilRoom(ctx context.Context, tasks []*task, decisions map[*task]job.Decision, now time.Time) error {
	byOwner := map[coord.Owner][]*job.Entry{}
	for _, t := range tasks {
		byOwner[t.owner] = append(byOwner[t.owner], t.entry)
		if t.bare || t.series.Def.MissedRun != job.MissedSkip || !decisions[t].Next.IsZero() {
			continue
		}
		if t.markAt = t.entry.ScheduledFor.Add(t.series.Def.CatchUpWindow - markBefore); t.markAt.After(now) && !t.markNow {
			continue
		}
		t.markAt = time.Time{}
		if err := s.deps.Pending.Decide(ctx, t.entry.Locator, job.Decision{Fire: true}); err != nil {
			return err
		}
	}
	owners := slices.SortedFunc(maps.Keys(byOwner), byPartition)
	err := run.Each(len(owners), hotbucket.AtOnce, func(i int) error { return s.deps.Hot.Park(ctx, owners[i], byOwner[owners[i]]) })
	if err != nil {
		return err
	}
	for _, t := range tasks {
		t.parked = true
	}
	s.metrics.parked.Add(float64(len(tasks)))
	return nil
}

// clearUp reads the rows of late entries whose outcome the hot tier may have forgotten, and returns the
// tasks that are still to be sent. An entry that was settled long ago is removed: a parent that was dispatched again made
// it hot. A decision about an entry that is not settled yet is carried out, because the claim may be forgotten too.
func (s *Service) clearUp(ctx context.Context, batch []*task, now time.Time) ([]*task, error) {
	var doubtful []job.Locator
	for _, t := range batch {
		if t.doubtful(now) {
			doubtful = append(doubtful, t.entry.Locator)
		}
	}
	if len(doubtful) == 0 {
		return batch, nil
	}
	rows, err := s.deps.Pending.Rows(ctx, doubtful)
	if err != nil {
		return nil, err
	}
	var left []*task
	var settled []*job.Entry
	for _, t := range batch {
		if t.doubtful(now) {
			row, found := rows[t.entry.Locator]
			if !found || row.Done {
				settled = append(settled, t.entry)
				continue
			}
			t.fresh = true
			if d := row.Decision; d != nil && (!d.Fire || d.Skipped != nil) {
				if err := s.carryOutLate(ctx, t, *d, now); err != nil {
					return nil, err
				}
				continue
			}
		}
		left = append(left, t)
	}
	return left, s.deps.Hot.Remove(ctx, settled)
}

// doubtful reports whether a task is late and may have been dispatched before, and its outcome forgotten since.
func (t *task) doubtful(now time.Time) bool {
	memory := attempts.Memory{Incarnation: t.incarnation, KeptSince: now.Add(clock.MaxDifference - attempts.Retention)}
	return !t.fresh && !t.published && memory.Doubts(t.entry.DueAt, now)
}
