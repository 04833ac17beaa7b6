package cassandra

import "time"

// Expire makes the next call ask for the number of shards again.
func (s *History) Expire() {
	s.shards.mu.Lock()
	defer s.shards.mu.Unlock()
	s.shards.goodTo = time.Time{}
}
