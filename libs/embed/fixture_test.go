package embed

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/minutehand/minutehand/libs/sdk"
	"github.com/minutehand/minutehand/libs/sdk/worker"
	platform "github.com/minutehand/minutehand/services/all-in-one"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("MINUTEHAND_TEST_PROGRAM"); dir != "" {
		program(dir)
		return
	}
	os.Exit(m.Run())
}

// folder is one in memory that outlives a scheduler.
type folder struct {
	t   *testing.T
	fs  *vfs.MemFS
	log io.Writer
}

func newFolder(t *testing.T) *folder { return &folder{t: t, fs: vfs.NewMem(), log: t.Output()} }

// open opens a scheduler, lets it have its handlers, and runs it. stop ends it as a program would.
func (f *folder) open(drain time.Duration, handlers func(*Scheduler)) (s *Scheduler, stop func()) {
	f.t.Helper()
	s, err := Open("/data", Settings{
		Concurrency: 4, Worker: worker.Settings{Drain: drain}, Logger: slog.New(slog.NewTextHandler(f.log, &slog.HandlerOptions{Level: slog.LevelWarn})),
		edit: func(cfg *platform.Config) {
			cfg.FS, cfg.Partitions = f.fs, 8
			cfg.Auditor.Codec = "snappy" // zstd's encoders are pooled, with channels that belong to the bubble of their first use
		},
	})
	if err != nil {
		f.t.Fatal(err)
	}
	handlers(s)
	ctx, end := context.WithCancel(f.t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	return s, sync.OnceFunc(func() {
		end()
		if err := errors.Join(<-done, s.Close()); err != nil {
			f.t.Error(err)
		}
	})
}

// rest lets everything happen that happens within a while.
func rest(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// record is what handlers saw.
type record struct {
	mu   sync.Mutex
	seen []string
	at   []time.Time
}

func (r *record) add(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen, r.at = append(r.seen, text), append(r.at, time.Now())
}

// execution is the only one of a job.
func execution(t *testing.T, s *Scheduler, jobID string) *sdk.Execution {
	t.Helper()
	page, err := s.Client().ListExecutions(t.Context(), jobID, sdk.ListExecutionsParams{})
	if err != nil || len(page.Items) != 1 {
		t.Fatalf("the job has the executions %v, %v", page, err)
	}
	x, err := s.Client().GetExecution(t.Context(), page.Items[0].ExecutionID)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// retrying has attempts of a second's pause.
func retrying(most int) func(*sdk.JobCreate) {
	return func(j *sdk.JobCreate) {
		none := 0.0
		j.RetryPolicy = &sdk.RetryPolicy{Backoff: "fixed", BaseDelay: sdk.Duration(time.Second), MaxAttempts: most, Jitter: &none}
	}
}
