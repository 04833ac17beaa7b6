package tasks

import (
	"sync"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/job"
)

// maxPublished bounds the ends that a process remembers twice over: the latest ones, and as many before them.
const maxPublished = 2000

// publishedEnd is by which lease an attempt has ended.
type publishedEnd struct {
	tenant job.Tenant
	key    attempts.Key
	fence  string
}

// published remembers how attempts ended whose events this process has put on the log. A worker whose answer was lost sends the end again at once, and
// the history has it a moment later. What is forgotten is answered by the history.
type published struct {
	mu            sync.Mutex
	latest, older map[publishedEnd]job.OutcomeKind
}

func (p *published) note(e publishedEnd, kind job.OutcomeKind) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.latest == nil || len(p.latest) >= maxPublished {
		p.latest, p.older = map[publishedEnd]job.OutcomeKind{}, p.latest
	}
	p.latest[e] = kind
}

// of returns how an attempt has ended by a lease, if that is remembered.
func (p *published) of(e publishedEnd) (kind job.OutcomeKind, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if kind, known = p.latest[e]; !known {
		kind, known = p.older[e]
	}
	return kind, known
}
