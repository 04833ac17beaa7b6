package sim

import (
	"strings"
	"time"

	"github.com/minutehand/minutehand/libs/job"
)

const (
	// lateCheck is how late a last check comes to its server that an executor asked for right before a change. It throws away what took a
	// second.
	lateCheck = 900 * time.Millisecond
	// checkWithin is how long a change waits for such a check.
	checkWithin = 6 * time.Second
)

// delaysCheck makes the next last check of one of a job's attempts come late, and waits until an executor asks for it. What changes the job
// now comes after all that the executor has read, so that only the stop record is in the way of the call.
func (w *world) delaysCheck(jobID string) {
	asked := make(chan struct{})
	w.faults.late(jobID, asked)
	defer w.faults.late(jobID, nil)
	select {
	case <-asked:
	case <-time.After(checkWithin):
	case <-w.base.Done():
	}
}

// late makes the next last check of one of a job's attempts come late, and closes a channel then; with nil it no longer does.
func (f *Faults) late(jobID string, asked chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if asked == nil {
		delete(f.awaited, jobID)
		return
	}
	f.awaited[jobID] = asked
}

// comesLate reports whether a call is a check that is to come late.
func (f *Faults) comesLate(kind string, op *Op, key string) bool {
	if len(f.awaited) == 0 || kind != "executor" || op != opBegin && op != opStart {
		return false
	}
	execution, _, _ := strings.Cut(key, "/")
	ref, err := job.ParseExecutionID(execution)
	asked := f.awaited[ref.JobID]
	if err != nil || asked == nil {
		return false
	}
	delete(f.awaited, ref.JobID)
	close(asked)
	return true
}
