package e2e

import (
	"errors"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/minutehand/minutehand/loadtest/e2e/process"
	"github.com/minutehand/minutehand/loadtest/ledger"
)

func TestStoreThatCannotWriteEndsWithASentenceAndLosesNothingThatWasAnswered(t *testing.T) {
	t.Parallel()
	const jobs = 50_000 // more than the limit has room for
	p, sink := newProcess(t), process.NewSink(t)
	p.FileLimit = sized(1<<10, 4<<10)
	p.Start()
	began := time.Now()
	at := began.Add(sized(10*time.Second, 25*time.Second)) // while it is down, or soon after it is back
	var mu sync.Mutex
	var ids []string
	err := process.Each(jobs, func(int) error {
		id, err := p.Create(t.Context(), process.Once(sink.URL+"/hook", at, nil), "")
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		ids = append(ids, id)
		return nil
	})
	var status process.StatusError
	if err == nil || errors.As(err, &status) && status.Status != 503 {
		t.Fatalf("the first failure is %v, want no answer or 503", err)
	}
	code, said := p.Died(30 * time.Second)
	if lines := strings.Count(said, "\n"); code != 1 || lines > 3 || strings.Contains(said, "goroutine ") ||
		!strings.Contains(said, "cannot go on: "+syscall.EFBIG.Error()) || !strings.Contains(said, "start again") {
		t.Errorf("exit code %d, and on standard error:\n%s", code, said)
	}
	t.Logf("%d jobs were answered before the disk was full", len(ids))

	p.FileLimit = 0
	p.Start()
	process.WaitFor(t, 2*time.Minute, "every accepted job has fired", func() bool {
		for _, n := range sink.CallsOf(ids) {
			if n == 0 {
				return false
			}
		}
		return true
	})
	atRest(t, p, 30*time.Second)
	for id, n := range sink.CallsOf(ids) {
		if n != 1 {
			t.Errorf("%s was called %d times", id, n)
		}
	}
	// Unanswered requests may have been accepted all the same, so the store may hold more jobs.
	p.Stop()
	a := p.Account(began, time.Now())
	a.Crashed, a.Calls = true, sink.Calls()
	for _, v := range ledger.Check(a) {
		t.Error(v)
	}
	stored := map[string]bool{}
	for i := range a.Jobs {
		stored[a.Jobs[i].Job.ID] = true
	}
	for _, id := range ids {
		if !stored[id] {
			t.Errorf("%s was answered and is not in the store", id)
		}
	}
}
