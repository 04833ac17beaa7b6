package ledger

import (
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
)

// WordKind is what a worker of a pool tells of its task.
type WordKind string

// What a worker tells.
const (
	WordHeartbeat WordKind = "heartbeat"
	WordCompleted WordKind = "completed"
	WordFailed    WordKind = "failed"
	WordReleased  WordKind = "released"
)

// Word is what a worker told of its task, and was answered with success.
type Word struct {
	Kind                      WordKind
	JobID, ExecutionID, Token string
	Attempt                   int
	// FirstAt is when it was sent first, SentAt when that was which was answered.
	FirstAt, SentAt, AckedAt time.Time
	// Progress is what a heartbeat tells, counted over all attempts of the execution; 0 for nothing.
	Progress int
	// Stops is set if the answer was that the worker shall stop.
	Stops bool
}

// checkWorkers checks I17: what a worker was answered stands. Its end is on record, and the last one of its execution. Its progress is given to the next
// worker that has the task. And who has lost a task, or was told to stop it, is not believed for long.
func checkWorkers(r *report, a *Account, i *index) {
	if a.Words == nil {
		return
	}
	handed := map[string][]Call{}
	for _, c := range a.Calls {
		if c.Pool && !c.CheckedAt.IsZero() {
			handed[c.ExecutionID] = append(handed[c.ExecutionID], c)
		}
	}
	words := map[string][]Word{}
	for _, w := range a.Words {
		words[w.ExecutionID] = append(words[w.ExecutionID], w)
	}
	for id, list := range words {
		checkEnds(r, a, i, id, list, handed[id])
		checkProgress(r, a, i, id, list, handed[id])
		checkTold(r, a, list)
	}
}

// checkEnds checks the ends that were answered.
func checkEnds(r *report, a *Account, i *index, id string, words []Word, handed []Call) {
	completed := ""
	for _, w := range words {
		kinds := map[WordKind][]job.OutcomeKind{WordCompleted: {job.OutcomeSucceeded}, WordFailed: {job.OutcomeFailed, job.OutcomeCancelled}}[w.Kind]
		if kinds == nil {
			continue
		}
		if !slices.ContainsFunc(i.attempts[id], func(e *job.Event) bool {
			return e.Outcome.Fence.String() == w.Token && slices.Contains(kinds, e.Outcome.Kind)
		}) {
			r.add("I17", w.JobID, "a worker was answered that %s has %s under token %s, and no event tells of it", id, w.Kind, w.Token)
		}
		for _, c := range handed {
			// Two attempts at once there may be where the hot tier forgot the end of one.
			if c.Token > w.Token && c.CheckedAt.Before(w.FirstAt) && !c.Replaced && (c.Attempt == w.Attempt || !a.HotLost) {
				r.add("I17", w.JobID, "a worker was answered that %s has %s under token %s, %s after another had it under %s", id, w.Kind, w.Token, w.FirstAt.Sub(c.CheckedAt), c.Token)
			}
		}
		if w.Kind != WordCompleted {
			continue
		}
		if completed != "" && completed != w.Token && !a.HotLost {
			r.add("I17", w.JobID, "workers were answered that %s has completed under token %s and under %s", id, completed, w.Token)
		}
		completed = w.Token
		for _, c := range handed {
			if c.CheckedAt.After(w.AckedAt) && !a.HotLost {
				r.add("I17", w.JobID, "%s was handed out %s after a worker was answered that it has completed", id, c.CheckedAt.Sub(w.AckedAt))
			}
		}
	}
}

// checkProgress checks that progress that was answered is given to those who have the task later. After a success it is removed: after one that a
// worker was told of, or after one on record whose worker had given up waiting for the answer. Then only a hot tier that forgot it hands the task out.
func checkProgress(r *report, a *Account, i *index, id string, words []Word, handed []Call) {
	for _, c := range handed {
		ended := slices.ContainsFunc(words, func(e Word) bool { return e.Kind == WordCompleted && e.FirstAt.Before(c.CheckedAt) }) ||
			a.HotLost && slices.ContainsFunc(i.attempts[id], func(e *job.Event) bool {
				return e.Outcome.Kind == job.OutcomeSucceeded && e.Outcome.Timeline.Completed.Before(c.CheckedAt.Add(clock.MaxDifference))
			})
		for _, w := range words {
			if w.Progress > c.Progress && w.Token != c.Token && w.AckedAt.Before(c.CheckedAt) && !ended {
				r.add("I17", w.JobID, "%s was handed out with progress %d, %s after a worker was answered that it has %d", id, c.Progress, c.CheckedAt.Sub(w.AckedAt), w.Progress)
			}
		}
	}
}

// obeysFor is how long a worker that was told to stop keeps its task at most.
const obeysFor = 10*time.Second + clock.MaxDifference

// checkTold checks that a worker is told to stop what was cancelled, and is then not believed for long. A hot tier that was lost does not know what was
// cancelled.
func checkTold(r *report, a *Account, words []Word) {
	told := map[string]time.Time{} // by token
	for _, w := range words {
		if at, was := told[w.Token]; was && w.FirstAt.After(at.Add(obeysFor)) {
			r.add("I17", w.JobID, "a worker was told to stop %s, and believed %s later", w.ExecutionID, w.FirstAt.Sub(at))
		} else if w.Stops && !was {
			told[w.Token] = w.AckedAt
		}
		if w.Kind != WordHeartbeat || w.Stops || a.HotLost {
			continue
		}
		for _, s := range a.Stops {
			stops := s.Kind == StopExecution && s.ExecutionID == w.ExecutionID // a cancelled job lets what runs go on
			if stops && w.SentAt.After(s.AckedAt) {
				r.add("I17", w.JobID, "a worker was not told that %s was stopped %s before", w.ExecutionID, w.SentAt.Sub(s.AckedAt))
			}
		}
	}
}
