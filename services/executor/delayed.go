package executor

import (
	"container/heap"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
)

// earlyShare is the share of the bounds that fires ahead of their instants may take. What comes beyond it is treated as if it were due.
const earlyShare = 4

// waitFor keeps a fire until shortly before its instant, if it has come ahead of that and there is room for it.
func (h *hosts) waitFor(w *task) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !w.isEarly(h.clock.Now()) || h.early >= h.cfg.MaxWaiting/earlyShare || h.earlyBytes+w.bytes > h.cfg.MaxBytes/earlyShare {
		return false
	}
	h.ahead(w, w.begins())
	tell(h.stirred)
	return true
}

// ahead keeps a task aside that is ahead of its instant.
func (h *hosts) ahead(w *task, until time.Time) {
	w.early = true
	h.early++
	h.earlyBytes += w.bytes
	h.keepAside(w, until)
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

// takeDelayed takes the tasks whose instant has come, and returns the next task's instant; zero when there is none.
func (h *hosts) takeDelayed(now time.Time) (due []*task, next time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.delayed) > 0 {
		if now.Before(h.delayed[0].notBefore) {
			return due, h.delayed[0].notBefore
		}
		w := heap.Pop(&h.delayed).(*task)
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
