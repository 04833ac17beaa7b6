package sim

import (
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/job"
)

func tokenKey(k attempts.Key, token string) string { return attemptKey(k) + "@" + token }

// check is an accepted last check, perhaps by a server that had been replaced.
type check struct {
	at       time.Time
	replaced bool
}

// look is an attempt at the moment an executor finds it due by its own clock, right before it asks for the lease.
type look struct {
	executor *process
	attempt  string
}

// looks notes by how much an executor's clock is ahead when it finds an attempt due.
func (w *world) looks(p *process, k attempts.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l, ahead := look{p, attemptKey(k)}, p.clock.Difference()
	if before, again := w.ahead[l]; again {
		ahead = max(ahead, before)
	}
	w.ahead[l] = ahead
}

// started notes that the hot tier accepted the last check of an attempt.
func (w *world) started(k attempts.Key, fence job.Fence) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.checked[tokenKey(k, fence.String())] = check{time.Now(), w.hot.Replaced(k.ExecutionID, fence)}
}
