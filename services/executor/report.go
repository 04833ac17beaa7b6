package executor

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/capacity"
	"github.com/minutehand/minutehand/libs/run"
)

const (
	// reportEvery is the pause between two reports. Rates are counted over rateSlots slots of that length.
	reportEvery = 100 * time.Millisecond
	rateSlots   = 10
	// ahead is how much work an executor would like to have waiting: what it calls in this time.
	ahead = 2 * time.Second
	// slowCall is how long a call of a slow target takes. Its places are filled a slowShare at a time, because calls that
	// begin together time out together, and a hundred connections made at one instant slow down the calls of other targets.
	slowCall, slowShare = time.Second, 8
	// tookWeight is the weight of the latest call in the mean duration of calls.
	tookWeight = 0.05
	// caughtUp is how long a poll must have waited for fires to show that there were none left.
	caughtUp = 50 * time.Millisecond
)

// pace is the rate of a lane's calls.
type pace struct {
	// ended counts the calls that ended, in slots of reportEvery; slot is the current one, slots how many are counted.
	ended       [rateSlots]int
	slot, slots int
	// took is the mean duration of a call with its overhead, in seconds; bytes is the mean size of a fire.
	took, bytes float64
}

func (p *pace) count(took time.Duration, bytes int64) {
	if p.took == 0 {
		p.took, p.bytes = took.Seconds(), float64(bytes)
	}
	p.ended[p.slot]++
	p.took += tookWeight * (took.Seconds() - p.took)
	p.bytes += tookWeight * (float64(bytes) - p.bytes)
}

// next begins the next slot, and returns how many calls a second ended in the slots before it.
func (p *pace) next() (rate float64) {
	p.slots = min(p.slots+1, rateSlots)
	for _, n := range p.ended {
		rate += float64(n)
	}
	rate /= float64(p.slots) * reportEvery.Seconds()
	p.slot = (p.slot + 1) % rateSlots
	p.ended[p.slot] = 0
	return rate
}

// report returns what waits here in each lane, and how much would be enough. That is as much as is called in a while at the
// current rate, and no more than calls of the current duration can be made meanwhile. The calls that could begin at once
// are added, and memory bounds the sum. At a target that hangs no call ends, so nothing more is asked for.
func (h *hosts) report() []capacity.Lane {
	h.mu.Lock()
	defer h.mu.Unlock()
	byLane := map[uint32]*capacity.Lane{}
	of := func(id uint32) *capacity.Lane {
		if byLane[id] == nil {
			byLane[id] = &capacity.Lane{ID: id}
		}
		return byLane[id]
	}
	running, queued, bytes := map[uint32]int{}, map[uint32]int{}, map[uint32]int64{}
	for _, at := range h.byName {
		for i := range at.lanes {
			lane := &at.lanes[i]
			if len(lane.queue)+lane.running == 0 {
				continue
			}
			of(lane.id).Waiting += len(lane.queue)
			running[lane.id] += at.running() // they share the host's places and memory
			queued[lane.id] += at.waiting()
			bytes[lane.id] += at.bytes
		}
	}
	for _, w := range h.delayed {
		if !w.behind { // otherwise it takes no place here unless another process is lost
			of(w.fire.Lane).Waiting++
		}
	}
	for id, p := range h.paces {
		rate := p.next()
		if rate == 0 && byLane[id] == nil {
			delete(h.paces, id)
			continue
		}
		window := rate * ahead.Seconds()
		if p.took > 0 {
			window = min(window, float64(h.cfg.HostConcurrency)*ahead.Seconds()/p.took)
		}
		of(id).Window = int(min(window, float64(h.cfg.HostWaiting)))
	}
	lanes := make([]capacity.Lane, 0, len(byLane))
	for id, l := range byLane {
		free := max(min(h.cfg.HostConcurrency-running[id], h.cfg.MaxRunning-h.inFlight), 0)
		if p := h.paces[id]; p != nil && p.took > slowCall.Seconds() {
			free = min(free, max(h.cfg.HostConcurrency/slowShare, 1))
		}
		l.Window += free
		size := int64(0) // of one fire
		if n := queued[id] + running[id]; n > 0 {
			size = bytes[id] / int64(n)
		} else if p := h.paces[id]; p != nil {
			size = int64(p.bytes)
		}
		if size > 0 {
			ofHost, ofAll := h.cfg.room(size)
			left := min(ofHost, ofAll-h.bytes+bytes[id])
			l.Window = max(min(l.Window, int(left/size)-running[id]), 0)
		}
		lanes = append(lanes, *l)
	}
	slices.SortFunc(lanes, func(a, b capacity.Lane) int {
		return cmp.Or(cmp.Compare(b.Waiting, a.Waiting), cmp.Compare(a.ID, b.ID))
	})
	return lanes[:min(len(lanes), capacity.MaxLanes)]
}

// reportLoop posts reports while there is anything to report. A lost report is replaced by the next. At the end it
// withdraws them, because an executor that stops takes nothing more.
func (s *Service) reportLoop(ctx context.Context) {
	posted, told := false, false
	for run.Sleep(ctx, reportEvery) == nil {
		lanes := s.hosts.report()
		if len(lanes) == 0 && !posted {
			select {
			case <-s.hosts.stirred: // something waits for its host
			case <-ctx.Done():
				return
			}
			continue
		}
		err := s.post(ctx, lanes)
		posted = len(lanes) > 0 || err != nil
		if err != nil && !told && ctx.Err() == nil {
			s.deps.Logger.Warn("cannot report what waits", "error", err)
		}
		told = err != nil
	}
	if posted {
		_ = s.post(context.WithoutCancel(ctx), nil) // it expires in a moment anyway
	}
}

func (s *Service) post(ctx context.Context, lanes []capacity.Lane) error {
	ctx, cancel := context.WithTimeout(ctx, capacity.Fresh)
	defer cancel()
	return s.deps.Board.Post(ctx, capacity.Report{Executor: s.name, Behind: s.behind(), Lanes: lanes})
}

// polled notes what a poll of the fires returned. A full batch means that there are more, as old as the last of the batch.
func (s *Service) polled(began, newest time.Time, full bool) {
	if full {
		began = newest
	}
	s.seenUntil.Store(began.UnixNano())
}

// behind returns the age of the fires that are being consumed now.
func (s *Service) behind() time.Duration {
	now := s.deps.Clock.Now()
	if since := s.pollingSince.Load(); since != 0 && now.UnixNano()-since > int64(caughtUp) {
		return 0
	}
	behind := time.Duration(now.UnixNano() - s.seenUntil.Load())
	if s.seenUntil.Load() == 0 || behind < 2*caughtUp {
		return 0
	}
	return behind
}
