package schedules

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/occurrence"
	"github.com/minutehand/minutehand/libs/schedule"
)

// BenchmarkPass looks through jobs on the embedded store, one per operation, without a pause between pages.
func BenchmarkPass(b *testing.B) {
	db, err := embedded.Open(embedded.Options{Dir: b.TempDir(), FS: vfs.Default, Partitions: 256, SetupMinute: job.Minute(time.Now())})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	log, err := embedded.NewLog(db)
	if err != nil {
		b.Fatal(err)
	}
	defer log.Close()
	a := &Audit{
		Config: DefaultConfig(), Jobs: embedded.NewJobStore(db), Pending: embedded.NewPending(db), History: embedded.NewHistory(db),
		Settings: embedded.NewSettings(db), Hot: embedded.NewHotBuckets(db.Incarnation(), 256, 0), Log: log, Partitions: 256,
		Logger: slog.New(slog.DiscardHandler), Metrics: NewMetrics(nil), Mine: func() bool { return true },
	}
	const most = 100_000
	if err := fill(b.Context(), a, min(b.N, most)); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for looked := 0; looked < b.N; {
		n, err := a.step(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		if looked += n; !a.progress.Ended.IsZero() {
			a.progress.Ended = time.Unix(0, 0)
		}
	}
}

// fill makes jobs that run once an hour, each with its entry.
func fill(ctx context.Context, a *Audit, n int) error {
	now := job.Instant(time.Now())
	for from := 0; from < n; from += 500 {
		var jobs []job.Job
		var entries []job.Entry
		for i := from; i < min(from+500, n); i++ {
			j := job.Job{
				ID: fmt.Sprintf("%s01M7ZJW5E6D77SAJPX%08d", job.JobPrefix, i), Status: job.StatusActive, Version: 1, CreatedAt: now, UpdatedAt: now,
				Definition: job.Definition{
					ID: "def_01M7ZJW5E6D77SAJPXRZ65CMZZ", EffectiveAt: now, FirstOrdinal: 1, CatchUpWindow: time.Minute,
					Schedule: job.Schedule{Type: job.ScheduleInterval, Every: time.Hour, StartAt: now.Add(time.Hour)},
				},
			}
			plan, err := schedule.Compile(j.Definition.Schedule, j.ID)
			if err != nil {
				return err
			}
			s := &occurrence.Series{JobID: j.ID, Def: &j.Definition, Plan: plan}
			e, _ := s.First(bucket.Partition(j.ID, a.Partitions), now)
			jobs, entries = append(jobs, j), append(entries, e)
		}
		if err := a.Pending.Put(ctx, entries); err != nil {
			return err
		}
		if err := a.Jobs.CreateMany(ctx, jobs); err != nil {
			return err
		}
	}
	return nil
}
