package executor

import "context"

// maxIdleRunners bounds the goroutines that wait for a task. They keep their stacks, which a new goroutine has to grow first.
const maxIdleRunners = 64

// launch starts what may run now.
func (s *Service) launch(work context.Context) {
	for w := s.hosts.next(); w != nil; w = s.hosts.next() {
		select {
		case s.idle <- w:
		default:
			go s.runTasks(work, w)
		}
	}
}

// runTasks runs a task, and then what may run next, as long as it is one of the few that wait for more.
func (s *Service) runTasks(work context.Context, w *task) {
	for {
		s.execute(work, w)
		s.hosts.release(w)
		if w = s.hosts.next(); w != nil {
			s.launch(work) // there may be more than one place now
			continue
		}
		if s.idling.Add(1) > maxIdleRunners {
			s.idling.Add(-1)
			return
		}
		select {
		case w = <-s.idle:
			s.idling.Add(-1)
		case <-work.Done():
			return
		}
	}
}
