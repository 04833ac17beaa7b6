package executor

import (
	"context"
	"slices"
	"sync"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/run"
)

// leases are those that this process holds; they are renewed until the outcome is stored. An attempt is one task's at a time:
// of a fire that comes twice, the second waits for the first to be done with it, so that a process which stalled, or could not
// renew, never takes over from itself.
type leases struct {
	mu    sync.Mutex
	taken map[attempts.Key]*lease
}

// lease is what a record must say of the lease, should the hot tier have forgotten it. One without a token is still to be had.
type lease struct {
	token               job.Token
	definitionID        string
	mayHaveBegun, begun bool
}

// reserve makes an attempt a task's own; nil if it is another's.
func (l *leases) reserve(k attempts.Key) *lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.taken == nil {
		l.taken = map[attempts.Key]*lease{}
	}
	if l.taken[k] != nil {
		return nil
	}
	l.taken[k] = &lease{}
	return l.taken[k]
}

// set says what is to be renewed from now on.
func (l *leases) set(at *lease, now lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*at = now
}

// drop ends the renewal, and lets another task have the attempt. It may be called again.
func (l *leases) drop(k attempts.Key, at *lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.taken[k] == at {
		delete(l.taken, k)
	}
}

// all gives those that are to be renewed, in the order of their keys.
func (l *leases) all(holder string) []attempts.Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := make([]attempts.Lease, 0, len(l.taken))
	for k, h := range l.taken {
		if h.token == (job.Token{}) {
			continue
		}
		list = append(list, attempts.Lease{
			Key: k, Holder: attempts.Holder{Name: holder, DefinitionID: h.definitionID, Start: h.token.Start}, Token: h.token,
			MayHaveBegun: h.mayHaveBegun, Begun: h.begun,
		})
	}
	slices.SortFunc(list, func(a, b attempts.Lease) int { return attempts.CompareKeys(a.Key, b.Key) })
	return list
}

// leaseBits is how many bits of a token's start number count the leases of a process: 10^12 of them, and 8 million starts.
const leaseBits = 40

// holder is this process as the holder of one more lease. Its number is in no other token, so that an attempt that this
// process makes again after the hot tier lost the first one's record can be told from that.
func (s *Service) holder(definitionID string) attempts.Holder {
	return attempts.Holder{Name: s.name, DefinitionID: definitionID, Start: s.start<<leaseBits | s.leased.Add(1)}
}

// renewLoop renews every lease that is held. A round takes as long as the pause at most, however long a server of the hot tier
// hangs, so a lease that another server holds is renewed within two pauses.
func (s *Service) renewLoop(work context.Context) {
	for run.Sleep(work, s.cfg.RenewEvery) == nil {
		ctx, cancel := context.WithTimeout(work, s.cfg.RenewEvery)
		var calls sync.WaitGroup
		for leases := range slices.Chunk(s.leases.all(s.name), attempts.MaxRenew) {
			calls.Go(func() {
				err := s.deps.Records.Renew(ctx, leases, s.deps.Clock.Now().Add(s.cfg.LeaseTTL))
				if err != nil && work.Err() == nil {
					s.deps.Logger.Warn("cannot renew leases", "error", err)
				}
			})
		}
		calls.Wait()
		cancel()
	}
}
