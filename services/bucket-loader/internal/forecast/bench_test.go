package forecast

import (
	"flag"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/forecast"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/occurrence"
	"github.com/minutehand/minutehand/libs/schedule"
)

var atRest = flag.Int("jobs", 100_000, "how many jobs are at rest in BenchmarkPass")

// BenchmarkPass makes forecasts of jobs at rest on the embedded store: for each one that fires each hour, nine that fire once in the next 30 hours.
// busy-ms is what a pass works, without its rests; peak-MiB by how much the heap grows meanwhile.
func BenchmarkPass(b *testing.B) {
	db, err := embedded.Open(embedded.Options{Dir: b.TempDir(), FS: vfs.Default, Partitions: bucket.DefaultPartitions, SetupMinute: job.Minute(time.Now())})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	f := &Forecaster{
		Config: DefaultConfig(), Jobs: embedded.NewJobStore(db), Pending: embedded.NewPending(db), Lists: embedded.NewSettings(db),
		Partitions: bucket.DefaultPartitions, Logger: slog.New(slog.DiscardHandler), Metrics: NewMetrics(nil),
	}
	measure(b, f, func() time.Duration { return 0 })
}

// measure registers jobs, and makes forecasts of them. cpu returns what a server has used.
func measure(b *testing.B, f *Forecaster, cpu func() time.Duration) {
	b.Helper()
	register(b, f, *atRest)
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	peak, end := uint64(0), make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				var now runtime.MemStats
				runtime.ReadMemStats(&now)
				peak = max(peak, now.HeapAlloc)
			case <-end:
				return
			}
		}
	})
	busy, used := time.Duration(0), cpu()
	b.ReportAllocs()
	for b.Loop() { // which does not register the jobs once more, for each number of passes
		d, err := f.Pass(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		busy += d
	}
	close(end)
	watching.Wait()
	all, err := forecast.Store{Lists: f.Lists}.All(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(busy.Milliseconds())/float64(b.N), "busy-ms/op")
	if used = cpu() - used; used > 0 {
		b.ReportMetric(float64(used.Milliseconds())/float64(b.N), "server-cpu-ms/op")
	}
	b.ReportMetric(float64(max(peak, before.HeapAlloc)-before.HeapAlloc)/(1<<20), "peak-MiB")
	b.ReportMetric(100*float64(all.Read)/float64(all.Of), "%-of-jobs")
}

// register registers jobs.
func register(b *testing.B, f *Forecaster, n int) {
	b.Helper()
	now := job.Instant(clock.Clock{}.Now())
	for from := 0; from < n; from += 500 {
		var jobs []job.Job
		var entries []job.Entry
		for i := from; i < min(from+500, n); i++ {
			s := job.Schedule{Type: job.ScheduleOneShot, RunAt: now.Add(time.Hour + time.Duration(i*7919%(29*3600))*time.Second)}
			if i%10 == 0 {
				s = job.Schedule{Type: job.ScheduleInterval, Every: time.Hour, StartAt: now.Add(time.Hour + time.Duration(i%3600)*time.Second)}
			}
			j := job.Job{
				ID: fmt.Sprintf("%s01M7ZJW5E6D77SAJPX%08d", job.JobPrefix, i), Status: job.StatusActive, Version: 1, CreatedAt: now, UpdatedAt: now,
				Definition: job.Definition{ID: "def_01M7ZJW5E6D77SAJPXRZ65CMZZ", EffectiveAt: now, FirstOrdinal: 1, CatchUpWindow: time.Minute, Schedule: s},
			}
			plan, err := schedule.Compile(s, j.ID)
			if err != nil {
				b.Fatal(err)
			}
			series := &occurrence.Series{JobID: j.ID, Def: &j.Definition, Plan: plan}
			e, _ := series.First(bucket.Partition(j.ID, f.Partitions), now)
			jobs, entries = append(jobs, j), append(entries, e)
		}
		err := f.Pending.Put(b.Context(), entries)
		if err == nil {
			err = f.Jobs.CreateMany(b.Context(), jobs)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
