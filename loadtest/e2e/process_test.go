package e2e

import (
	"context"
	"flag"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/loadtest/e2e/process"
	"github.com/minutehand/minutehand/loadtest/ledger"
)

// full makes tests as large and as strict as make release wants them. As one of many stages of make test, on any machine,
// they show the same at a smaller size, and judge no figure that a busy machine decides.
var full = flag.Bool("e2e.full", false, "tests are as large and as strict as make release wants them, on a machine that does nothing else")

func sized[T any](small, large T) T {
	if *full {
		return large
	}
	return small
}

// binary is the built binary; the first test that needs it builds it, once for all of them.
var binary struct {
	once      sync.Once
	dir, path string
	err       error
}

func TestMain(m *testing.M) {
	m.Run() // its code is the test binary's
	if binary.dir != "" {
		_ = os.RemoveAll(binary.dir)
	}
}

// newProcess returns minutehand on an empty folder, not started. These tests take minutes of real time, so -short skips
// them; CI runs them all.
func newProcess(t *testing.T) *process.Process {
	t.Helper()
	if testing.Short() {
		t.Skip("runs the real binary for a while")
	}
	binary.once.Do(func() {
		if binary.dir, binary.err = os.MkdirTemp("", "minutehand-e2e-"); binary.err == nil {
			binary.path, binary.err = process.Build(context.WithoutCancel(t.Context()), binary.dir)
		}
	})
	if binary.err != nil {
		t.Fatal(binary.err)
	}
	return process.New(t, binary.path)
}

// atRest waits until executors, settlers and the history have nothing left to read.
func atRest(t *testing.T, p *process.Process, limit time.Duration) {
	t.Helper()
	process.WaitFor(t, limit, "all fires and events are settled", func() bool {
		m := p.Metrics()
		return m.Lag(t, dispatch.TopicFires, dispatch.GroupExecutor) == 0 &&
			m.Lag(t, dispatch.TopicEvents, dispatch.GroupSettle) == 0 &&
			m.Lag(t, dispatch.TopicEvents, dispatch.GroupHistory) == 0
	})
}

// audit stops the process, reads what it left in its folder, and checks every invariant on that and on what the sinks saw.
// The store must hold exactly the jobs that were accepted.
func audit(t *testing.T, p *process.Process, began time.Time, accepted []string, a ledger.Account) *ledger.Account {
	t.Helper()
	p.Stop()
	read := p.Account(began, time.Now())
	read.Crashed, read.Stops, read.Calls = a.Crashed, a.Stops, a.Calls
	for _, v := range ledger.Check(read) {
		t.Error(v)
	}
	stored := make([]string, len(read.Jobs))
	for i := range read.Jobs {
		stored[i] = read.Jobs[i].Job.ID
	}
	slices.Sort(stored)
	accepted = slices.Sorted(slices.Values(accepted))
	if !slices.Equal(stored, accepted) {
		t.Errorf("%d jobs were accepted, the store holds %d, and they are not the same", len(accepted), len(stored))
	}
	if len(slices.Compact(accepted)) != len(stored) {
		t.Error("two requests were answered with one job")
	}
	return read
}

// oneExecutionEach checks one_shot jobs that were invoked: each in one execution and its first attempt, and again only
// under a greater token. It returns how many calls were duplicates.
func oneExecutionEach(t *testing.T, calls []ledger.Call) (duplicates int) {
	t.Helper()
	first := map[string]ledger.Call{}
	for _, c := range calls {
		f, again := first[c.JobID]
		if !again {
			first[c.JobID] = c
			continue
		}
		duplicates++
		if c.ExecutionID != f.ExecutionID || c.Attempt != f.Attempt {
			t.Errorf("%s was invoked as %s/%d and as %s/%d", c.JobID, f.ExecutionID, f.Attempt, c.ExecutionID, c.Attempt)
		}
		if c.Token <= f.Token {
			t.Errorf("%s was invoked under token %s and then under %s, which is not greater", c.JobID, f.Token, c.Token)
		}
	}
	return duplicates
}

// quantile returns a quantile of some durations.
func quantile(of []time.Duration, q float64) time.Duration {
	if len(of) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(of))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)].Round(10 * time.Microsecond)
}
