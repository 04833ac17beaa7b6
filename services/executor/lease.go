package executor

import (
	"context"
	"slices"
	"sync"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/run"
)

// leases holds the leases of this process, which renews them until the outcome is stored. Only one task at a time has an
// attempt: when a fire comes twice, the second waits until the first is done with it. So a process that stalled, or could
// not renew, never takes over from itself.
type leases struct {
	mu    sync.Mutex
	taken map[attempts.Key]*lease
}

// lease is what a record must say of the lease if the hot tier forgets it. A lease without a token has not been acquired
// yet.
type lease struct {
	token               job.Token
	definitionID        string
	mayHaveBegun, begun bool
}

// reserve reserves an attempt for one task; it returns nil if another task has it.
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

// set sets what renewals write from now on.
func (l *leases) set(at *lease, now lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*at = now
}

// drop stops renewing the lease and lets another task have the attempt. It may be called more than once.
func (l *leases) drop(k attempts.Key, at *lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.taken[k] == at {
		delete(l.taken, k)
	}
}

// all returns the leases to renew, ordered by key.
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

// leaseBits is how many bits below a token's start number count the leases of a process: 10^12 leases, and 8 million
// starts.
const leaseBits = 40

// holder returns this process as the holder of one more lease. No other token contains its number. So an attempt that this
// process makes again, after the hot tier lost the record of the first, can be told from the first.
func (s *Service) holder(definitionID string) attempts.Holder {
	return attempts.Holder{Name: s.name, DefinitionID: definitionID, Start: s.start<<leaseBits | s.leased.Add(1)}
}

// renewLoop renews every lease held. A round never takes longer than the pause, however long a server of the hot tier
// hangs. So a lease that another server holds is renewed within two pauses.
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
