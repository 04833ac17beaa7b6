// Package forecast counts, again and again, what is planned for each minute of the next 24 hours.
//
// It promises: a pass reads the pending entries of partitions in a random order, with the rows of their jobs, and stops after the partition
// with which it has read Config.Rows of them; so it costs the same however many jobs there are, unless one partition alone holds more. Of buckets
// with few rows it reads many at once. It holds three pages of rows, the tables, where schedules go on that are behind, and hashes of what it has counted of the last minutes, in memory.
// It writes nothing but the forecast, and nothing depends on it.
//
// Each entry that is not done is one planned fire. From the entry of a schedule the instants after it follow. A schedule goes on while the
// buckets are read, in the order of time, so a reader may meet several of its entries. It counts the one that was ahead, and whose
// predecessor was not, when the pass over the partition began. Where it meets none ahead, the schedule is behind, and it counts the last one.
package forecast

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/forecast"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/run"
)

// Config holds what an operator may change.
type Config struct {
	// Rows and Instants are how many rows a pass reads, and how many instants it computes, before it begins no further partition.
	Rows, Instants int
	// Pause is the shortest time from the end of a pass to the next.
	Pause time.Duration
	// Page is how many rows are read together.
	Page int
}

// DefaultConfig returns the settings of a forecaster that was given none.
func DefaultConfig() Config {
	return Config{Rows: 200_000, Instants: 20_000_000, Pause: 30 * time.Second, Page: 500}
}

const (
	// rest is for how many times as long as a page took nothing is read, restBetween the same for a pass: at most a fiftieth of the time is
	// spent on forecasts.
	rest, restBetween = 4, 50
	// mostPause bounds the rest between passes: a forecast reaches no further than a day.
	mostPause = time.Hour
	// turnFor is for how long schedules that are behind are followed before a rest.
	turnFor = 50 * time.Millisecond
	// tries is how often a read is tried, tryAgain the pause in between: a pass may take minutes, and one read that fails is not its end.
	tries, tryAgain = 5, time.Second
	// mostBehind bounds the schedules of a partition that are behind, or whose occurrence is in progress, at once. More are not counted.
	mostBehind = 100_000
	// lookEvery is the pause before a pass is tried again, and before the forecaster asks again whether it is to begin.
	lookEvery = 5 * time.Second
)

// Forecaster makes forecasts. Two at a time do work twice.
type Forecaster struct {
	Config
	Jobs       jobstore.Jobs
	Pending    jobstore.Pending
	Lists      jobstore.Lists
	Partitions int
	Clock      clock.Clock
	Logger     *slog.Logger
	Metrics    *Metrics
	// Mine reports whether this process is the one that is to do it.
	Mine func() bool
}

// Metrics counts what a forecaster does.
type Metrics struct {
	rows, passes prometheus.Counter
	share        prometheus.Gauge
}

// NewMetrics registers the metrics; reg may be nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		rows: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "minutehand_bucket_loader_forecast_rows_total", Help: "Rows of entries that were read for forecasts.",
		}),
		passes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "minutehand_bucket_loader_forecasts_total", Help: "Forecasts that were made.",
		}),
		share: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "minutehand_bucket_loader_forecast_share_ratio", Help: "Share of the partitions that the last forecast has read.",
		}),
	}
	if reg != nil {
		reg.MustRegister(m.rows, m.passes, m.share)
	}
	return m
}

// Run makes forecasts until ctx ends.
func (f *Forecaster) Run(ctx context.Context) {
	for pause := lookEvery; run.Sleep(ctx, pause) == nil; {
		pause = lookEvery
		if !f.Mine() {
			continue
		}
		busy, err := f.Pass(ctx)
		pause = min(max(f.Pause, restBetween*busy), mostPause)
		if err != nil && ctx.Err() == nil {
			f.Logger.Warn("cannot forecast what is planned, it is tried again", "error", err)
		}
	}
}

// pass is one pass over partitions.
type pass struct {
	*Forecaster
	from    int64
	all     *forecast.Table
	tenants map[job.Tenant]*forecast.Table
	others  bool
	// rows and instants are what was read and computed; busy is for how long.
	rows, instants int
	busy           time.Duration
	// began is when the pass over the present partition began, behind where schedules go on of which an entry was due by then, and none ahead was met, by job.
	began  time.Time
	behind map[string]head
	met    met
}

// Pass makes a forecast and stores it. It returns how long it was busy.
func (f *Forecaster) Pass(ctx context.Context) (busy time.Duration, err error) {
	now := f.Clock.Now()
	p := &pass{Forecaster: f, from: job.Minute(now) + 1, tenants: map[job.Tenant]*forecast.Table{}}
	p.all = forecast.NewTable(p.from)
	order := rand.New(rand.NewPCG(uint64(now.UnixNano()), 0)).Perm(f.Partitions)
	read := 0
	for ; read < len(order) && (p.rows < f.Rows && p.instants < f.Instants || read == 0); read++ {
		if err := p.read(ctx, order[read]); err != nil {
			return p.busy, err
		}
	}
	asOf := job.Instant(now)
	all := p.all.Estimate(asOf, read, f.Partitions)
	all.Others = p.others
	of := make(map[job.Tenant]*forecast.Forecast, len(p.tenants))
	for tenant, t := range p.tenants {
		e := t.Estimate(asOf, read, f.Partitions)
		of[tenant] = &e
	}
	turn := f.Clock.Now()
	err = forecast.Store{Lists: f.Lists}.Put(ctx, &all, of)
	p.busy += f.Clock.Since(turn)
	if err != nil {
		return p.busy, err
	}
	f.Metrics.passes.Inc()
	f.Metrics.share.Set(float64(read) / float64(f.Partitions))
	return p.busy, nil
}

// read counts what a partition holds.
func (p *pass) read(ctx context.Context, partition int) error {
	p.began, p.behind, p.met = p.Clock.Now(), map[string]head{}, met{}
	minute := int64(0)
	err := p.try(ctx, func() (err error) {
		minute, err = p.Pending.LowWater(ctx, partition)
		return err
	})
	if err != nil {
		return fmt.Errorf("read the low-water mark of partition %d: %w", partition, err)
	}
	end := p.from + forecast.Minutes
	ahead := min(job.Minute(p.began)+1, end)
	for ; minute < ahead; minute++ {
		found, err := p.bucket(ctx, partition, minute)
		if err != nil {
			return err
		}
		if found {
			continue
		}
		next, err := p.skip(ctx, partition, minute+1, end)
		if err != nil {
			return err
		}
		minute = next - 1
	}
	for minute < end {
		found, err := p.buckets(ctx, partition, minute, min(minute+span, end))
		if err != nil {
			return err
		}
		if minute += span; found {
			continue
		}
		if minute, err = p.skip(ctx, partition, minute, end); err != nil {
			return err
		}
	}
	turn := p.Clock.Now()
	for _, h := range p.behind {
		if p.follow(h); p.Clock.Since(turn) > turnFor {
			if err := p.relax(ctx, turn); err != nil {
				return err
			}
			turn = p.Clock.Now()
		}
	}
	return p.relax(ctx, turn)
}

// skip returns the first minute of [from, to) of which a bucket holds something, to if there is none.
func (p *pass) skip(ctx context.Context, partition int, from, to int64) (int64, error) {
	turn, next, ok := p.Clock.Now(), to, false
	err := p.try(ctx, func() (err error) {
		next, ok, err = p.Pending.FirstOpen(ctx, partition, from, to)
		return err
	})
	if err == nil {
		err = errors.Join(p.inTime(from), p.relax(ctx, turn))
	}
	if err != nil {
		return 0, fmt.Errorf("look for buckets of partition %d: %w", partition, err)
	}
	if !ok {
		return to, nil
	}
	return next, nil
}

// errSlow: a bucket was read so late that it may have closed before. The head of a schedule may have been in it, of which a later row tells
// only that there was one.
var errSlow = errors.New("buckets were read so slowly that they may have closed before")

const (
	// span is how many buckets that are ahead are read together, headRows how many rows of each; a bucket that has as many is read by itself.
	span, headRows = 50, 10
)

// mostRest bounds a rest: a read that takes long has waited, and not worked.
const mostRest = 5 * time.Second

// lateRead is how long after its minute a bucket may be read: it is open for longer.
const lateRead = 30 * time.Second

// inTime returns errSlow if a bucket that was ahead when the partition's turn came was read, or passed over, too late. It is called after that.
func (p *pass) inTime(minute int64) error {
	if minute >= job.Minute(p.began) && p.Clock.Now().After(job.MinuteStart(minute+1).Add(lateRead)) {
		return errSlow
	}
	return nil
}

// relax notes the time since a turn began as busy, and rests.
func (p *pass) relax(ctx context.Context, turn time.Time) error {
	took := p.Clock.Since(turn)
	if took <= 0 {
		return ctx.Err()
	}
	p.busy += took
	return run.Sleep(ctx, min(rest*took, mostRest))
}

// try reads, and tries again what failed.
func (p *pass) try(ctx context.Context, read func() error) (err error) {
	for n := 1; ; n++ {
		if err = read(); err == nil || n == tries {
			return err
		}
		if err := run.Sleep(ctx, tryAgain); err != nil {
			return err
		}
	}
}

// buckets counts what buckets hold that are ahead, all but the large ones by one request, and reports whether they hold anything. In which order they are read does not matter, because
// who goes on from an entry in one of them leaves it there.
func (p *pass) buckets(ctx context.Context, partition int, from, to int64) (found bool, err error) {
	turn := p.Clock.Now()
	var heads []job.PendingRow
	err = p.try(ctx, func() (err error) {
		heads, err = p.Pending.Heads(ctx, partition, from, to, headRows)
		return err
	})
	if err == nil {
		err = p.inTime(from)
	}
	if err != nil {
		return false, fmt.Errorf("read buckets of partition %d: %w", partition, err)
	}
	found = len(heads) > 0
	var small []job.PendingRow
	for len(heads) > 0 {
		n, minute := 1, heads[0].Minute
		for n < len(heads) && heads[n].Minute == minute {
			n++
		}
		if n < headRows {
			small = append(small, heads[:n]...)
		} else {
			if err := p.countAll(ctx, small, turn); err != nil {
				return false, err
			}
			if _, err := p.bucket(ctx, partition, minute); err != nil {
				return false, err
			}
			small, turn = small[:0], p.Clock.Now()
		}
		heads = heads[n:]
	}
	return found, p.countAll(ctx, small, turn)
}

// bucket counts what a bucket holds, and reports whether it holds anything.
func (p *pass) bucket(ctx context.Context, partition int, minute int64) (found bool, err error) {
	var after *job.Locator
	for {
		turn := p.Clock.Now()
		var rows []job.PendingRow
		err := p.try(ctx, func() (err error) {
			rows, err = p.Pending.Scan(ctx, partition, minute, after, p.Page)
			return err
		})
		if err == nil {
			err = p.inTime(minute)
		}
		if err != nil {
			return false, fmt.Errorf("read a bucket of partition %d: %w", partition, err)
		}
		if err := p.countAll(ctx, rows, turn); err != nil {
			return false, err
		}
		found = found || len(rows) > 0
		if len(rows) < p.Page {
			return found, nil
		}
		last := rows[len(rows)-1].Locator
		after = &last
	}
}

// countAll counts rows that were read since a turn began, and ends the turn.
func (p *pass) countAll(ctx context.Context, rows []job.PendingRow, turn time.Time) error {
	if err := p.count(ctx, rows); err != nil {
		return err
	}
	p.rows += len(rows)
	p.Metrics.rows.Add(float64(len(rows)))
	return p.relax(ctx, turn)
}

// count counts the rows of a page.
func (p *pass) count(ctx context.Context, rows []job.PendingRow) error {
	var ids []string
	asked := make(map[string]bool, len(rows))
	for i := range rows {
		if r := &rows[i]; p.counts(r) && !asked[r.JobID] {
			asked[r.JobID], ids = true, append(ids, r.JobID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	jobs := make(map[string]*job.Job, len(ids))
	for len(ids) > 0 {
		n := min(len(ids), jobstore.MaxGetMany)
		var some map[string]*job.Job
		err := p.try(ctx, func() (err error) {
			some, err = p.Jobs.GetMany(ctx, ids[:n])
			return err
		})
		if err != nil {
			return fmt.Errorf("read the jobs of %d entries: %w", len(rows), err)
		}
		for id, j := range some {
			jobs[id] = j
		}
		ids = ids[n:]
	}
	for i := range rows {
		if r := &rows[i]; p.counts(r) && jobs[r.JobID] != nil {
			if err := ctx.Err(); err != nil {
				return err
			}
			p.met.turn(r.Minute)
			p.plan(r, jobs[r.JobID])
		}
	}
	return nil
}
