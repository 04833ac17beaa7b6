package executor

import (
	"container/heap"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/job"
)

// earlyShare is the share of the bounds that fires ahead of their instants may take. What comes beyond it is treated as if it were due.
const earlyShare = 4

// keptPlaces is the share of the places, of a host and of all, that are kept from fires ahead of their instants. In a place they keep
// others waiting, which may be due.
const keptPlaces = 4

// waitFor keeps a fire until it may begin, if it has come ahead of its instant and there is room for it.
func (h *hosts) waitFor(w *task) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now, until := h.clock.Now(), w.begins()
	if !now.Before(until) && !h.placeAhead(w, 0, 0) {
		until = w.fire.DueAt
	}
	if !now.Before(until) || h.early >= h.cfg.MaxWaiting/earlyShare || h.earlyBytes+w.bytes > h.cfg.MaxBytes/earlyShare {
		return false
	}
	w.early = true
	h.early++
	h.earlyBytes += w.bytes
	h.keepAside(w, until)
	tell(h.stirred)
	return true
}

// placeAhead reports whether a fire may take a place before its instant, where so many are about to take one, of its host and of all. One
// of [job.PrecisionPrecise] always may: otherwise its instant would find it waiting for a place.
func (h *hosts) placeAhead(w *task, ofHost, ofAll int) bool {
	if w.fire.Precision == job.PrecisionPrecise {
		return true
	}
	if at := h.byName[w.host]; at != nil {
		ofHost += at.running() + at.waiting()
	}
	free := func(places int) int { return places - places/keptPlaces }
	return ofHost < free(h.cfg.HostConcurrency) && h.inFlight+ofAll < free(h.cfg.MaxRunning)
}

// delay keeps a task aside until its instant. It counts as waiting, but always has room because it was let in before.
func (h *hosts) delay(w *task, until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w.behind = false
	h.keepAside(w, until)
}

// delayForOther keeps a task aside until an instant, because another process has its attempt.
func (h *hosts) delayForOther(w *task, until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w.behind = true
	h.keepAside(w, until)
}

// delayBehind keeps a task aside until another task here is done with its attempt, or until an instant.
func (h *hosts) delayBehind(w *task, until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := attempts.KeyOf(&w.fire.Entry)
	h.behind[key] = append(h.behind[key], w)
	w.behind = true
	h.keepAside(w, until)
}

func (h *hosts) keepAside(w *task, until time.Time) {
	w.notBefore, w.called = until, false
	heap.Push(&h.delayed, w)
	h.count(1, w.bytes)
	if h.delayed[0] == w {
		h.rouse()
	}
}

// wake lets the tasks go on that wait for an attempt, because no task here has it any more.
func (h *hosts) wake(k attempts.Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.behind[k] {
		w.notBefore = h.clock.Now()
		heap.Fix(&h.delayed, w.place)
		h.rouse()
	}
	delete(h.behind, k)
}

func (h *hosts) rouse() { tell(h.sooner) }

// takeDelayed takes the tasks whose instant has come, or that begin ahead of it, and returns when the next one does; zero when there is
// none.
func (h *hosts) takeDelayed(now time.Time) (due []*task, next time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	ahead := map[string]int{} // by host, of what is taken
	for len(h.delayed) > 0 {
		w := h.delayed[0]
		if now.Before(w.notBefore) {
			return due, w.notBefore
		}
		if w.early && now.Before(w.fire.DueAt) {
			if !h.placeAhead(w, ahead[w.host], len(due)) {
				w.notBefore = w.fire.DueAt
				heap.Fix(&h.delayed, 0)
				continue
			}
			ahead[w.host]++
		}
		heap.Pop(&h.delayed)
		key := attempts.KeyOf(&w.fire.Entry)
		if list := slices.DeleteFunc(h.behind[key], func(other *task) bool { return other == w }); len(list) > 0 {
			h.behind[key] = list
		} else {
			delete(h.behind, key)
		}
		due = append(due, w)
		h.count(-1, -w.bytes)
		if w.early {
			w.early = false
			h.early--
			h.earlyBytes -= w.bytes
		}
	}
	return due, time.Time{}
}

// delayed is a heap ordered by the instant at which a task is looked at next.
type delayed []*task

func (d delayed) Len() int           { return len(d) }
func (d delayed) Less(i, j int) bool { return d[i].notBefore.Before(d[j].notBefore) }
func (d delayed) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].place, d[j].place = i, j
}

// Push implements heap.Interface.
func (d *delayed) Push(x any) {
	w := x.(*task)
	w.place = len(*d)
	*d = append(*d, w)
}

// Pop implements heap.Interface.
func (d *delayed) Pop() any {
	old := *d
	w := old[len(old)-1]
	old[len(old)-1] = nil
	*d = old[:len(old)-1]
	return w
}
