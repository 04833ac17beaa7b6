package job_test

import (
	"cmp"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/minutehand/minutehand/libs/job"
)

const (
	jobID = "job_01ARZ3NDEKTSV4RRFFQ69G5FAV"
	ulid1 = "01BX5ZZKBKACTAV9WEVGEMMVRZ"
)

func TestExecutionIDSaysWhatItWasMadeOf(t *testing.T) {
	at := time.Date(2031, 5, 6, 7, 8, 9, 123e6, time.UTC)
	for id, want := range map[string]job.ExecutionRef{
		job.ScheduleExecutionID(jobID, at):  {JobID: jobID, Trigger: job.TriggerSchedule, NominalAt: at},
		job.ManualExecutionID(jobID, ulid1): {JobID: jobID, Trigger: job.TriggerManual, NominalAt: job.ULIDTime(ulid1), Request: ulid1},
		job.BackfillExecutionID(jobID, "op_"+ulid1, at): {
			JobID: jobID, Trigger: job.TriggerBackfill, NominalAt: job.ULIDTime(ulid1), Request: "01BX5ZZKBK071BFEE84CEMMVRZ", FillsIn: at,
		},
	} {
		got, err := job.ParseExecutionID(id)
		if err != nil || got != want {
			t.Errorf("%s gave %+v, %v; want %+v", id, got, err, want)
		}
	}
	for _, bad := range []string{
		"", "exe_", "exe_x-s1", "job_01ARZ3NDEKTSV4RRFFQ69G5FAV", "exe_01ARZ3NDEKTSV4RRFFQ69G5FAV-s12",
		"exe_01ARZ3NDEKTSV4RRFFQ69G5FAV-s-000000000001", "exe_01ARZ3NDEKTSV4RRFFQ69G5FAV-mX", "exe_01ARZ3NDEKTSV4RRFFQ69G5FAV-q1",
	} {
		if ref, err := job.ParseExecutionID(bad); err == nil {
			t.Errorf("%q gave %+v", bad, ref)
		}
	}
}

func TestDefinitionIDsGrowEvenWithinOneMillisecond(t *testing.T) {
	for previous, candidate := range map[string]string{
		"def_01ARZ3NDEKTSV4RRFFQ69G5FAV": "def_01ARZ3NDEKTSV4RRFFQ69G5FAA",
		"def_01ARZ3NDEKTSV4RRFFQ69G5FZZ": "def_01ARZ3NDEKTSV4RRFFQ69G5FZZ",
		"def_01ARZ3NDEKTSV4RRFFQ69GZZZZ": "def_00000000000000000000000000",
		"def_01ARZ3NDEKTSV4RRFFQ69G5FA0": "def_01ARZ3NDEKTSV4RRFFQ69G5FA1",
	} {
		next := job.NextDefinitionID(previous, candidate)
		if next <= previous || !job.ValidID(next, job.DefinitionPrefix) {
			t.Errorf("after %s came %s", previous, next)
		}
		began := job.JobPrefix + strings.TrimPrefix(previous, job.DefinitionPrefix)
		if !job.FirstDefinition(began, previous) || job.FirstDefinition(began, next) {
			t.Errorf("of %s and %s the former is the first of a job of its millisecond", previous, next)
		}
	}
}

// Two requests that change the same definition at once each write an entry under the id that they chose. Only one of them prevails,
// and the other's entry must not pass for one of the winner's.
func TestDefinitionsThatFollowTheSameOneHaveDifferentIDs(t *testing.T) {
	const previous = "def_01ARZ3NDEKTSV4RRFFQ69G5FAV" // by a clock that is ahead
	one := job.NextDefinitionID(previous, "def_01ARZ3NDEKSSV4RRFFQ69G5FAA")
	other := job.NextDefinitionID(previous, "def_01ARZ3NDEKSSV4RRFFQ69G5FAB")
	if one == other || one <= previous || other <= previous {
		t.Errorf("after %s came %s and %s", previous, one, other)
	}
}

func TestDelayFollowsItsFormula(t *testing.T) {
	base := job.RetryPolicy{BaseDelay: 10 * time.Second, MaxDelay: time.Minute}
	for _, test := range []struct {
		backoff job.Backoff
		delays  []time.Duration
		want    []time.Duration // before attempts 2, 3, …
	}{
		{job.BackoffExponential, nil, []time.Duration{10e9, 20e9, 40e9, 60e9, 60e9}},
		{job.BackoffLinear, nil, []time.Duration{10e9, 20e9, 30e9, 40e9, 50e9, 60e9, 60e9}},
		{job.BackoffFixed, nil, []time.Duration{10e9, 10e9, 10e9}},
		{job.BackoffList, []time.Duration{1e9, 7e9}, []time.Duration{1e9, 7e9, 7e9}},
	} {
		p := base
		p.Backoff, p.Delays = test.backoff, test.delays
		for i, want := range test.want {
			if got := p.Delay("exe", i+1); got != want {
				t.Errorf("%s: delay %d is %s, want %s", test.backoff, i+1, got, want)
			}
		}
	}
}

func TestJitterStaysWithinItsShareAndFollowsFromTheExecution(t *testing.T) {
	p := job.RetryPolicy{Backoff: job.BackoffFixed, BaseDelay: 100 * time.Second, MaxDelay: time.Hour, Jitter: 0.25}
	var sum float64
	const n = 2000
	for i := range n {
		x := job.ScheduleExecutionID(jobID, time.UnixMilli(int64(i)))
		d := p.Delay(x, 1)
		if d < 75*time.Second || d > 125*time.Second {
			t.Fatalf("delay %s", d)
		}
		if d != p.Delay(x, 1) {
			t.Fatal("the same failure gave two delays")
		}
		sum += d.Seconds()
	}
	if mean := sum / n; math.Abs(mean-100) > 2 {
		t.Errorf("the mean delay is %.1f s, want about 100", mean)
	}
}

func TestJudge(t *testing.T) {
	effective := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	before, after := effective.Add(-time.Minute), effective.Add(time.Minute)
	active := job.State{Status: job.StatusActive, DefinitionID: "def_2", EffectiveAt: effective}
	paused := active
	paused.Status, paused.PausedAt = job.StatusPaused, effective
	resumed := active
	resumed.PausedAt = before
	cancelled := active
	cancelled.Status = job.StatusCancelled
	entry := func(definition string, nominal time.Time, attempt int, trigger job.Trigger) *job.Entry {
		return &job.Entry{
			Locator: job.Locator{DefinitionID: definition, Attempt: attempt}, NominalAt: nominal, Trigger: trigger,
		}
	}
	for _, test := range []struct {
		name  string
		state job.State
		entry *job.Entry
		want  job.Verdict
	}{
		{"the current definition", active, entry("def_2", after, 1, job.TriggerSchedule), job.VerdictProceed},
		{"a definition whose row is on its way", cancelled, entry("def_3", after, 1, job.TriggerSchedule), job.VerdictAheadOfRow},
		{"an old definition before the update", active, entry("def_1", before, 1, job.TriggerSchedule), job.VerdictSuperseded},
		{"an old definition from the update on", active, entry("def_1", effective, 1, job.TriggerSchedule), job.VerdictOutdated},
		{"a retry of an old definition", active, entry("def_1", after, 2, job.TriggerSchedule), job.VerdictProceed},
		{"up to the pause", paused, entry("def_2", effective, 1, job.TriggerSchedule), job.VerdictPaused},
		{"behind the pause", paused, entry("def_2", after, 1, job.TriggerSchedule), job.VerdictAfterPause},
		{"a retry while paused", paused, entry("def_2", before, 2, job.TriggerSchedule), job.VerdictProceed},
		{"a manual execution while paused", paused, entry("def_2", after, 1, job.TriggerManual), job.VerdictProceed},
		{"an old definition that the pause stopped, after the resume", resumed, entry("def_1", before, 1, job.TriggerSchedule), job.VerdictSuperseded},
		{"cancelled", cancelled, entry("def_2", after, 1, job.TriggerSchedule), job.VerdictCancelled},
		{"a retry of a cancelled job", cancelled, entry("def_1", before, 3, job.TriggerSchedule), job.VerdictCancelled},
		{"a manual execution of a cancelled job", cancelled, entry("def_2", after, 1, job.TriggerManual), job.VerdictCancelled},
	} {
		if got := test.state.Judge(test.entry, time.Time{}); got != test.want {
			t.Errorf("%s: verdict %d, want %d", test.name, got, test.want)
		}
	}
	old := entry("def_1", before, 1, job.TriggerSchedule)
	for _, test := range []struct {
		name   string
		state  job.State
		endsAt time.Time
		want   job.Verdict
	}{
		{"before its definition ended", active, before.Add(time.Millisecond), job.VerdictProceed},
		{"where another followed it that is not the job's any more either", active, before, job.VerdictOutdated},
		{"the same of a job that is cancelled by now", cancelled, before, job.VerdictOutdated},
		{"before its definition ended, of a cancelled job", cancelled, effective, job.VerdictCancelled},
		{"before its definition ended, that the pause stopped", resumed, effective, job.VerdictPaused},
	} {
		if got := test.state.Judge(old, test.endsAt); got != test.want {
			t.Errorf("an old definition's, %s: verdict %d, want %d", test.name, got, test.want)
		}
	}
}

func TestAttemptIsJudgedByTheStopRecordThatIsThere(t *testing.T) {
	e := &job.Entry{Locator: job.Locator{ExecutionID: "exe_1", DefinitionID: "def_2", Attempt: 1}, Trigger: job.TriggerSchedule}
	standing := job.State{Version: 1, Status: job.StatusActive, DefinitionID: "def_2"}
	one := standing
	one.StoppedExecutions = []string{"exe_0", "exe_1"}
	ahead := one
	ahead.DefinitionID = "def_1"
	for _, test := range []struct {
		name  string
		state job.State
		want  job.Verdict
	}{
		{"no stop record", job.State{}, job.VerdictProceed},
		{"one that stops nothing", standing, job.VerdictProceed},
		{"one that stops this execution", one, job.VerdictCancelled},
		{"one of before the definition", ahead, job.VerdictAheadOfRow},
	} {
		if got := test.state.JudgeAttempt(e, time.Time{}); got != test.want {
			t.Errorf("%s: verdict %d, want %d", test.name, got, test.want)
		}
	}
}

// Targets compare tokens as text: incarnation before check before lease, however large each of them grew.
func TestFencingTokensSortAsTextLikeWhatTheyStandFor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) job.Fence {
			return job.Fence{
				Epoch: rapid.Int64Range(0, 1<<56-1).Draw(t, name+" epoch"), Counter: rapid.Int64Range(1, 1<<48-1).Draw(t, name+" counter"),
				Start: rapid.Int64Range(1, 1<<63-1).Draw(t, name+" start"),
			}
		}
		a, b := draw("a"), draw("b")
		if rapid.Bool().Draw(t, "same incarnation") {
			b.Epoch = a.Epoch
		}
		want := cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Counter, b.Counter), cmp.Compare(a.Start, b.Start))
		if x, y := a.String(), b.String(); cmp.Compare(x, y) != want || len(x) != 49 || len(y) != 49 {
			t.Fatalf("%q and %q, of %+v and %+v", x, y, a, b)
		}
	})
}
