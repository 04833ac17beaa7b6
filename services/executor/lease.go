package executor

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/minutehand/minutehand/libs/dedupe"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/run"
)

// leases are the leases that this process holds; they are renewed until the outcome is stored.
type leases struct {
	mu   sync.Mutex
	held map[dedupe.Key]lease
}

// lease is what a record must say of the lease, should the hot tier have forgotten it.
type lease struct {
	token        job.Token
	definitionID string
	began        bool
}

func (l *leases) hold(k dedupe.Key, t job.Token, definitionID string, began bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held == nil {
		l.held = map[dedupe.Key]lease{}
	}
	l.held[k] = lease{t, definitionID, began}
}

// drop ends the renewal of a lease, unless it is another's by now: after a stall, that of a later task of this process.
func (l *leases) drop(k dedupe.Key, t job.Token) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held[k].token == t {
		delete(l.held, k)
	}
}

func (l *leases) all() map[dedupe.Key]lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.held)
}

// leaseBits is how many bits of a token's start number count the leases of a process: 10^12 of them, and 8 million starts.
const leaseBits = 40

// holder is this process as the holder of one more lease. Its number is in no other token, so that an attempt that this
// process makes again after the hot tier lost the first one's record can be told from that.
func (s *Service) holder(definitionID string) dedupe.Holder {
	return dedupe.Holder{Name: s.name, DefinitionID: definitionID, Start: s.start<<leaseBits | s.leased.Add(1)}
}

func (s *Service) renewLoop(work context.Context) {
	for run.Sleep(work, s.cfg.RenewEvery) == nil {
		held := s.leases.all()
		for _, k := range slices.SortedFunc(maps.Keys(held), dedupe.CompareKeys) {
			t := held[k].token
			h := dedupe.Holder{Name: s.name, DefinitionID: held[k].definitionID, Start: t.Start, Began: held[k].began}
			err := s.deps.Records.Renew(work, k, h, t, s.deps.Clock.Now().Add(s.cfg.LeaseTTL))
			if errors.Is(err, dedupe.ErrFenced) {
				continue // ended meanwhile, or taken over: Finish finds out
			}
			if err != nil && work.Err() == nil {
				s.deps.Logger.Warn("cannot renew a lease", "error", err)
				break
			}
		}
	}
}
