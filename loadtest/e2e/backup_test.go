package e2e

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/minutehand/minutehand/loadtest/e2e/process"
	"github.com/minutehand/minutehand/loadtest/ledger"
)

// A disk is lost under load, and the process goes on from a backup that was made in the middle of a stampede.
func TestNoJobAcceptedBeforeABackupIsLostWhenItIsRestored(t *testing.T) {
	t.Parallel()
	const window = 6 * time.Second
	jobs := sized(3000, 12_000)
	later := jobs / 10
	p, sink := newProcess(t), process.NewSink(t)
	p.Start()
	began := time.Now()
	due := began.Add(4 * time.Second)
	once := func(of int) func(i int) map[string]any {
		return func(i int) map[string]any {
			return process.Once(sink.URL+"/hook", due.Add(window*time.Duration(i)/time.Duration(of)), nil)
		}
	}
	ids := p.Register(jobs, once(jobs))
	cancelled := ids[jobs-50:]
	stops := p.Cancel(cancelled)
	process.WaitFor(t, time.Minute, "a third has fired", func() bool { return sink.Called() >= jobs/3 })
	copied := filepath.Join(t.TempDir(), "backup")
	p.Backup(copied)
	// What is accepted now is lost with the disk.
	lost := p.Register(later, once(later))
	process.WaitFor(t, time.Minute, "more has fired", func() bool { return sink.Called() >= jobs/2 })
	p.Kill()
	before := len(sink.Calls())
	p.Restore(copied, filepath.Join(t.TempDir(), "restored"))
	p.Start()
	called := func() (n int) {
		for _, c := range sink.CallsOf(ids) {
			if c > 0 {
				n++
			}
		}
		return n
	}
	process.WaitFor(t, 2*time.Minute, "every job that was accepted before the backup has fired", func() bool { return called() == jobs-len(cancelled) })
	atRest(t, p, time.Minute)
	var calls []ledger.Call
	for _, c := range sink.Calls() {
		if !slices.Contains(lost, c.JobID) {
			calls = append(calls, c)
		}
	}
	duplicates := oneExecutionEach(t, calls) // each under a greater token than the call before
	for id, n := range sink.CallsOf(cancelled) {
		if n > 0 {
			t.Errorf("%s was called although its cancel was acknowledged before the backup", id)
		}
	}
	a := audit(t, p, began, ids, ledger.Account{Crashed: true, Stops: stops, Calls: calls})
	t.Logf("%d calls before the loss, %d calls of %d jobs in all, %d repeated and recognisable; %d jobs that were accepted after the backup are gone; %d records in the archive",
		before, len(calls), jobs-len(cancelled), duplicates, len(lost), len(a.Archived))
	if duplicates == 0 {
		t.Error("nothing was called again: the backup was not from the middle")
	}
}
