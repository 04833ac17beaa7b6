package sim

import (
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

func TestRowThatAClientWroteTooLateForItsBucketCountsAsDone(t *testing.T) {
	const closable = time.Minute + jobstore.ClosesAfter // after the minute began
	scan := func(c pending, minute int64) error {
		_, err := c.Scan(t.Context(), 0, minute, nil, 10)
		return err
	}
	for _, c := range []struct {
		name                  string
		writer                string
		written, reads, comes time.Duration // after the minute began; 0 if it is not read
		read                  func(c pending, minute int64) error
		broken                bool
	}{
		{"after the read", "job-api", 0, closable + time.Second, closable + 2*time.Second, scan, false},
		{"where nothing was found", "job-api", 0, closable + time.Second, closable + 2*time.Second, func(c pending, minute int64) error {
			_, _, err := c.FirstOpen(t.Context(), 0, minute, minute+2)
			return err
		}, false},
		{"before the read", "job-api", 0, closable + 2*time.Second, closable + time.Second, scan, true},
		{"unread", "job-api", 0, 0, closable + time.Second, scan, true},
		{"in time", "job-api", 0, closable - 3*time.Second, closable - 2*time.Second, scan, true},
		{"by a writer that was quick", "job-api", closable - 30*time.Second, closable + time.Second, closable + 2*time.Second, scan, true},
		{"by a worker", "scheduler-worker", 0, closable + time.Second, closable + 2*time.Second, scan, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t.Context(), 1, newFaults(1, calm, nil), nil)
				port := func(kind string) pending {
					return pending{&client{p: &process{w: w, kind: kind, name: kind + "-1", gone: make(chan struct{})}}}
				}
				loader := port("bucket-loader")
				began := time.Now() // with a minute
				minute := job.Minute(began)
				do := map[time.Duration]func() error{
					c.comes: func() error {
						l := job.Locator{Minute: minute, DueAt: job.Instant(began), ExecutionID: "exe_1", Attempt: 1}
						return port(c.writer).Put(t.Context(), []job.Entry{{Locator: l, JobID: "job_1", WrittenAt: job.Instant(began.Add(c.written))}})
					},
				}
				if c.reads != 0 {
					do[c.reads] = func() error { return c.read(loader, minute) }
				}
				for at := time.Duration(0); at < closable+time.Minute; at += time.Second {
					if step := do[at]; step != nil {
						if err := step(); err != nil {
							t.Fatal(err)
						}
					}
					time.Sleep(time.Second)
				}
				if err := loader.Close(t.Context(), 0, minute+1); err != nil {
					t.Fatal(err)
				}
				if got := len(w.broken) > 0; got != c.broken {
					t.Errorf("I9 is broken: %v, want %v (%v)", got, c.broken, w.broken)
				}
			})
		})
	}
}
