package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/loadtest/e2e/process"
	"github.com/minutehand/minutehand/loadtest/e2e/world"
)

func TestReadsFollowWhatIsDueAndNotWhatIsRegistered(t *testing.T) {
	t.Parallel()
	const due, atRest = 200, 50_000 // the reads are counted exactly, so more would show nothing more
	var reads [2][2]int64
	for i, rest := range []int{0, atRest} {
		world.Run(t, time.Minute, func(w *world.World) {
			w.Start()
			putAtRest(t, w, rest)
			time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
			cells, size := w.Platform.Adapters.Pending.Reads()
			at := time.Now().Add(90 * time.Minute) // not in the hot buckets yet: it is staged, swept and closed like any other
			putDue(t, w, due, at)
			time.Sleep(2 * time.Hour)
			more, larger := w.Platform.Adapters.Pending.Reads()
			if n := len(w.Targets.Calls()); n != due {
				t.Errorf("%d calls, want %d", n, due)
			}
			reads[i] = [2]int64{more - cells, larger - size}
		})
	}
	t.Logf("%d cells and %d bytes for %d entries", reads[0][0], reads[0][1], due)
	if reads[0] != reads[1] || reads[0][0] < due {
		t.Errorf("%v cells and bytes were read with no job at rest, %v with %d", reads[0], reads[1], atRest)
	}
}

// putDue writes jobs and their entries straight into the store, under the same ids in every run, so that even the bytes are
// the same.
func putDue(t *testing.T, w *world.World, n int, at time.Time) {
	t.Helper()
	now := job.Instant(time.Now())
	jobs, entries := make([]job.Job, n), make([]job.Entry, n)
	for i := range jobs {
		id := fmt.Sprintf("%026d", i)
		w.Adopt(job.JobPrefix + id)
		jobs[i] = job.Job{
			ID: job.JobPrefix + id, Tenant: job.DefaultTenant, Name: "due", Status: job.StatusActive, Version: 1, CreatedAt: now, UpdatedAt: now,
			Definition: job.Definition{
				ID: job.DefinitionPrefix + id, EffectiveAt: now, FirstOrdinal: 1, Retry: job.DefaultRetryPolicy(),
				Schedule:  job.Schedule{Type: job.ScheduleOneShot, RunAt: at},
				Target:    job.Target{Kind: job.TargetWebhook, URL: "http://ok/hook", Method: "POST", Timeout: job.DefaultTimeout},
				MissedRun: job.MissedFireOnce, CatchUpWindow: job.DefaultCatchUpWindow,
			},
		}
		entries[i] = job.NewEntry(job.Entry{
			Locator: job.Locator{
				Partition: bucket.Partition(job.JobPrefix+id, world.Partitions), DueAt: at, Attempt: 1,
				ExecutionID: job.ScheduleExecutionID(job.JobPrefix+id, at), DefinitionID: job.DefinitionPrefix + id,
			},
			JobID: job.JobPrefix + id, Trigger: job.TriggerSchedule, NominalAt: at, ScheduledFor: at, Ordinal: 1, WrittenAt: now,
		}, now)
	}
	stores := w.Platform.Adapters
	if err := errors.Join(stores.Pending.Put(t.Context(), entries), stores.Jobs.CreateMany(t.Context(), jobs)); err != nil {
		t.Fatal(err)
	}
}

// putAtRest writes entries of jobs due in a year straight into the store.
func putAtRest(t *testing.T, w *world.World, n int) {
	t.Helper()
	const size = 1000
	at := job.Instant(time.Now().AddDate(1, 0, 0))
	for range n / size {
		entries := make([]job.Entry, size)
		for i := range entries {
			id := job.JobPrefix + ulid.Make().String()
			entries[i] = job.NewEntry(job.Entry{
				Locator: job.Locator{
					Partition: bucket.Partition(id, world.Partitions), DueAt: at, Attempt: 1,
					ExecutionID: job.ScheduleExecutionID(id, at), DefinitionID: job.DefinitionPrefix + id[len(job.JobPrefix):],
				},
				JobID: id, Trigger: job.TriggerSchedule, NominalAt: at, ScheduledFor: at, Ordinal: 1, WrittenAt: at,
			}, at)
		}
		if err := w.Platform.Adapters.Pending.Put(t.Context(), entries); err != nil {
			t.Fatal(err)
		}
	}
}

// What a process uses is held against what one request costs it, in the same run: machines differ, and one machine from day to day.
func TestIdleProcessUsesLittle(t *testing.T) {
	const (
		requests = 5000
		watched  = 10 * time.Second
		most     = 250 // requests a second, with 1,024 partitions, four times the default; 100 to 120 were measured
	)
	t.Setenv("MINUTEHAND_PARTITIONS", "1024")
	p := newProcess(t)
	p.Start()
	watch := time.NewTimer(3 * time.Second) // the cost of a start is not idleness
	defer watch.Stop()
	<-watch.C
	before := cpuOf(t, p)
	watch.Reset(watched)
	<-watch.C
	used := (cpuOf(t, p) - before).Seconds() / watched.Seconds()
	before = cpuOf(t, p)
	for range requests {
		api(t, p, http.MethodGet, "/whoami", nil, http.StatusOK)
	}
	request := (cpuOf(t, p) - before).Seconds() / requests
	t.Logf("an idle process uses %.2f %% of a core, as %.0f requests a second of %.0f µs", used*100, used/request, request*1e6)
	if used/request >= most {
		t.Errorf("want less than %d", most)
	}
}

// cpuOf returns the CPU time that a process has used: utime and stime of /proc/PID/stat, in ticks of 10 ms.
func cpuOf(t *testing.T, p *process.Process) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	var ticks int
	for _, f := range fields[11:13] {
		n, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
