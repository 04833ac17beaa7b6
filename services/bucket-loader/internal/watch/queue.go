package watch

import (
	"container/heap"
	"time"

	"github.com/minutehand/minutehand/libs/incidents"
)

// subject is a job that is watched.
type subject struct {
	id string
	// definitions are those of the job that have deadlines and are not over, known what is known of them, and over the row's if it is. changed
	// is when the last of them was found, and pass the reading of the lists in which they were.
	definitions []string
	known       map[string]*segment
	over        string
	changed     time.Time
	pass        int
	// lines is how far the job was held against its deadlines. stale: that has changed since it was noted; unnoted: it is to be noted at once.
	lines          map[incidents.Deadline]*line
	stale, unnoted bool
	noted          time.Time
	// at is when it is looked at next, place where it is in the queue, -1 while it is not.
	at    time.Time
	place int
}

// line is how far a job was held against one deadline.
type line struct {
	incidents.Judged
	// written is when the open incident was written last, behind whether it has changed since.
	written time.Time
	behind  bool
}

func (w *Watchdog) drop(s *subject) {
	delete(w.jobs, s.id)
	if s.place >= 0 {
		heap.Remove(&w.queue, s.place)
	}
}

// queue is a heap of subjects by when they are looked at.
type queue []*subject

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].at.Before(q[j].at) }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}

// Push implements heap.Interface.
func (q *queue) Push(x any) {
	s, _ := x.(*subject)
	s.place = len(*q)
	*q = append(*q, s)
}

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	s := (*q)[len(*q)-1]
	(*q)[len(*q)-1] = nil
	*q, s.place = (*q)[:len(*q)-1], -1
	return s
}

// lookAt lets a subject be looked at at an instant, or before if it is to be.
func (w *Watchdog) lookAt(s *subject, at time.Time) {
	switch {
	case s.place < 0:
		s.at = at
		heap.Push(&w.queue, s)
	case at.Before(s.at):
		s.at = at
		heap.Fix(&w.queue, s.place)
	}
}
