package retrymanager

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/notices"
	"github.com/minutehand/minutehand/libs/run"
)

// jobsAtOnce is how many rows of jobs that have dead letters are read at once: each may be large.
const jobsAtOnce = 50

// tellOwners owes the owners of jobs a notice of their dead letters, before the entries of these are marked: a crash leads to the same notices
// again. What is owed already in a quiet period is written once more, under the same id. It costs a batch without dead letters nothing, and any
// other the reading of their jobs.
func (s *Service) tellOwners(ctx context.Context, b *batch) error {
	ids := map[string]bool{}
	for i := range b.letters {
		ids[b.letters[i].Event.Entry.JobID] = true
	}
	owed := map[string]notices.Notice{}
	for chunk := range slices.Chunk(slices.Sorted(maps.Keys(ids)), jobsAtOnce) {
		jobs, err := s.deps.Jobs.GetMany(ctx, chunk)
		if err != nil {
			return err
		}
		for i := range b.letters {
			l := &b.letters[i]
			if j := jobs[l.Event.Entry.JobID]; j != nil {
				of(owed, j, l, b.paused[l.Event.Entry.ExecutionID])
			}
		}
	}
	list := slices.Sorted(maps.Keys(owed))
	store := notices.Store{Lists: s.deps.Settings}
	return run.Each(len(list), notesAtOnce, func(i int) error {
		n := owed[list[i]]
		return store.Owe(ctx, &n)
	})
}

// of adds what the owners of a job are to be told of a dead letter; paused says that the job is, because of it.
func of(owed map[string]notices.Notice, j *job.Job, l *job.DeadLetter, paused bool) {
	e, hops := &l.Event, 1
	if n := e.Entry.Note; n != nil {
		hops += n.Hops
	}
	for i := range j.Notify {
		to := &j.Notify[i]
		add := func(c job.Cause, reason string) {
			if !to.Tells(c) {
				return
			}
			n := notices.Of(j.ID, to, c, l.At)
			n.Reason, n.ExecutionID, n.Attempts, n.Hops, n.AfterSuccess = reason, e.Entry.ExecutionID, e.Entry.Attempt, hops, c == job.CauseRecovered
			if other, ok := owed[n.ID()]; !ok || other.At.Before(n.At) {
				owed[n.ID()] = n
			}
		}
		add(job.CauseDeadLetter, fmt.Sprintf("An execution has failed for good: %s.", e.Outcome.Error))
		if paused {
			add(job.CausePausedBy410, "The target answered 410 (Gone), so the job is paused.")
		}
		if to.Tells(job.CauseDeadLetter) || paused && to.Tells(job.CausePausedBy410) {
			add(job.CauseRecovered, "")
		}
	}
}
