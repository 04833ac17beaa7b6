// Package schedules is the schedule audit: job after job, it proves that every active schedule has its next entry (I6), and mends what does
// not hold.
//
// A schedule goes on from each entry to the next, so a job whose one live entry is lost would never be called again, and nothing else would
// notice. That there is no more than one follows from the keys: two entries of a definition for one instant are one row.
//
// It promises: a schedule of which no entry is left goes on, from the first instant of which nothing is on record; what of that is past is
// missed, and the policy for missed runs decides about it. A schedule that has its entry is left alone, however far it is behind. So is one
// that has ended: whether its last entry was lost, or the record of its last call, cannot be told.
//
// It costs the listing of the job rows and one row of an entry for each job, at Config.Rate jobs a second. Where that row is not there, as
// when a schedule is behind, the open buckets of its partition are read, once for all such jobs of a page.
package schedules

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobchange"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/libs/schedule"
	"github.com/minutehand/minutehand/libs/tenants"
	"github.com/minutehand/minutehand/libs/wire"
)

// Config holds what an operator may change.
type Config struct {
	// Rate is how many jobs are looked at in a second, Pause the time from the end of a pass over all jobs to the next.
	Rate  int
	Pause time.Duration
	// Page is how many jobs are looked at together, LookAgain how long after the first look those are looked at again of which no entry was
	// where it is expected.
	Page      int
	LookAgain time.Duration
	// MaxRows bounds the rows that are read of a partition to find the entries of a page's jobs. What is not found among so many is left to
	// the next pass.
	MaxRows int
}

// DefaultConfig returns the settings of an audit that was given none.
func DefaultConfig() Config {
	return Config{Rate: 200, Pause: 10 * time.Minute, Page: 100, LookAgain: 5 * time.Second, MaxRows: 100_000}
}

// Audit looks through the schedules. Several processes may do so at once; then they do work twice.
type Audit struct {
	Config
	Jobs       jobstore.Jobs
	Pending    jobstore.Pending
	History    jobstore.History
	Settings   jobstore.Settings
	Hot        hotbucket.Buckets
	Log        dispatch.Log
	Partitions int
	Clock      clock.Clock
	Logger     *slog.Logger
	Metrics    *Metrics
	// Mine reports whether this process is the one that is to do it.
	Mine func() bool

	// stored is the progress as it was last read or written, told when that was.
	stored   []byte
	told     time.Time
	progress progress
	// mine is set while this process does it, and the progress is known.
	mine bool
	// failed is how often the page that is looked at has failed. full are the partitions of which this pass has read too much.
	failed int
	full   map[int]bool
	// elsewhere is how many jobs of that page wait where other time zone data puts them, unsure is set if that is not known of all.
	elsewhere int
	unsure    bool
	// checked is when this process looked by which time zone data the schedules are planned, plannedBy what it told of that. mixed is set if its
	// last pass found some that other data planned.
	checked   time.Time
	plannedBy string
	mixed     bool
}

// Metrics counts what an audit does.
type Metrics struct {
	looked, mended, undecided, passes prometheus.Counter
	otherZones                        *prometheus.GaugeVec
}

// NewMetrics registers the counters; reg may be nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &Metrics{
		looked:    counter("minutehand_bucket_loader_audited_schedules_total", "Schedules of which the audit has looked for the next entry."),
		mended:    counter("minutehand_bucket_loader_mended_schedules_total", "Schedules that had lost their next entry and were given it again."),
		undecided: counter("minutehand_bucket_loader_undecided_schedules_total", "Schedules of which too much waits to tell whether they have their next entry."),
		passes:    counter("minutehand_bucket_loader_schedule_audits_total", "Passes of the audit over all jobs."),
		otherZones: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "minutehand_bucket_loader_other_time_zone_data", Help: "1 while schedules are planned by time zone data of another release than that of this process.",
		}, []string{"planned_by"}),
	}
	if reg != nil {
		reg.MustRegister(m.looked, m.mended, m.undecided, m.passes, m.otherZones)
	}
	return m
}

// setting is where the progress is kept.
const setting = "schedule-audit"

// progress is how far the audit is.
type progress struct {
	// Tenant and Cursor are where the next page begins. Ended is when the last pass ended, zero while one is under way.
	Tenant job.Tenant `json:"tenant"`
	Cursor string     `json:"cursor,omitempty"`
	Ended  time.Time  `json:"ended,omitzero"`
	// Zones is the release of the time zone data by which the pass looks, Elsewhere how many schedules wait where other data puts them, and
	// Unsure is set if it could not tell of all.
	Zones     string `json:"zones,omitempty"`
	Elsewhere int    `json:"elsewhere,omitempty"`
	Unsure    bool   `json:"unsure,omitempty"`
	// Mends are the entries that are written for jobs of that page. They are noted before they are written: whoever does the page again,
	// while a write may still be on its way, writes the same rows.
	Mends [][]byte `json:"mends,omitempty"`
}

const (
	// lookEvery is the pause before the audit tries again, or asks again whether it is to begin.
	lookEvery = 5 * time.Second
	// noteEvery is the pause between two notes of the progress.
	noteEvery = 10 * time.Second
	// mostTries is how often the audit tries to look at a page of jobs.
	mostTries = 20
	// lateWrite is how long after it was noted an entry may be written: its bucket is open for longer.
	lateWrite = 2 * time.Minute
	// lateLook is how long after a look at a partition what it did not find is taken for lost: a registration or a resume may have written it
	// since. One look takes seconds.
	lateLook = 30 * time.Second
)

// Run looks through the schedules, again and again, until ctx ends.
func (a *Audit) Run(ctx context.Context) {
	for pause := time.Duration(0); run.Sleep(ctx, pause) == nil; {
		if a.Clock.Since(a.checked) >= a.Pause {
			if err := a.checkZones(ctx); err != nil {
				if ctx.Err() == nil {
					a.Logger.Warn("cannot compare time zone data, it is tried again", "error", err)
				}
				pause = lookEvery
				continue
			}
			a.checked = a.Clock.Now()
		}
		if !a.Mine() {
			a.mine, a.mixed, pause = false, false, lookEvery
			continue
		}
		looked, err := a.step(ctx)
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, jobstore.ErrConflict) { // another process is at it
				a.Logger.Warn("cannot go on with the audit of the schedules, it is tried again", "error", err)
			}
			pause = lookEvery
			continue
		}
		pause = time.Duration(max(looked, 1)) * time.Second / time.Duration(a.Rate)
		if !a.progress.Ended.IsZero() {
			pause = lookEvery
		}
	}
}

// step looks at a page of jobs, and returns how many there were.
func (a *Audit) step(ctx context.Context) (looked int, err error) {
	if !a.mine {
		if err := a.read(ctx); err != nil {
			return 0, err
		}
	}
	p := a.progress
	if !p.Ended.IsZero() {
		if a.Clock.Since(p.Ended) < a.Pause {
			return 0, nil
		}
		return 0, a.note(ctx, progress{Zones: schedule.TZDataVersion()})
	}
	directory := tenants.New(a.Settings, jobchange.Recorder{}, a.Clock)
	list, next, err := directory.List(ctx, p.Tenant, 1)
	if err != nil {
		return 0, fmt.Errorf("list tenants: %w", err)
	}
	if len(list) == 0 {
		return 0, a.end(ctx, &p)
	}
	if list[0].Number != p.Tenant {
		p.Tenant, p.Cursor = list[0].Number, ""
	}
	jobs, cursor, err := a.Jobs.List(ctx, p.Tenant, p.Cursor, a.Page)
	if err != nil {
		return 0, fmt.Errorf("list jobs of tenant %s: %w", p.Tenant, err)
	}
	if p.Zones != schedule.TZDataVersion() {
		p.Zones = "" // it began by other data
	}
	a.elsewhere, a.unsure = 0, false
	if err := a.look(ctx, jobs); err != nil {
		a.failed++
		if a.failed < mostTries || errors.Is(err, jobstore.ErrConflict) || ctx.Err() != nil {
			return 0, err
		}
		a.Metrics.undecided.Add(float64(len(jobs)))
		a.unsure = true
		a.Logger.Error("some jobs cannot be looked at, the audit of the schedules goes on behind them", "tenant", p.Tenant, "jobs", len(jobs), "error", err)
	}
	a.failed = 0
	p.Elsewhere, p.Unsure = p.Elsewhere+a.elsewhere, p.Unsure || a.unsure
	switch p.Mends = nil; {
	case cursor != "":
		p.Cursor = cursor
	case next != 0:
		p.Tenant, p.Cursor = next, ""
	default:
		return len(jobs), a.end(ctx, &p)
	}
	return len(jobs), a.goOn(ctx, p)
}

// end notes that a pass is over.
func (a *Audit) end(ctx context.Context, p *progress) error {
	if err := a.settleZones(ctx, p); err != nil {
		return err
	}
	a.Metrics.passes.Inc()
	clear(a.full)
	return a.note(ctx, progress{Ended: job.Instant(a.Clock.Now())})
}

// goOn goes on elsewhere. A crash may lead back to where it was noted last.
func (a *Audit) goOn(ctx context.Context, p progress) error {
	if len(a.progress.Mends) == 0 && a.Clock.Since(a.told) < noteEvery {
		a.progress = p
		return nil
	}
	return a.note(ctx, p)
}

func (a *Audit) read(ctx context.Context) (err error) {
	if a.stored, err = a.Settings.Setting(ctx, setting); err != nil {
		return fmt.Errorf("read the progress: %w", err)
	}
	a.progress = progress{}
	if a.stored == nil {
		a.progress.Zones = schedule.TZDataVersion()
	} else {
		if err := json.Unmarshal(a.stored, &a.progress); err != nil {
			a.Logger.Warn("the progress of the audit of the schedules cannot be read, it begins anew", "error", err)
		}
	}
	a.told, a.mine, a.full = a.Clock.Now(), true, map[int]bool{}
	return nil
}

// note stores the progress, and fails with ErrConflict if another process has. After a failure it is read again.
func (a *Audit) note(ctx context.Context, p progress) error {
	value, err := json.Marshal(p)
	if err != nil {
		return err
	}
	if err := a.Settings.SwapSetting(ctx, setting, a.stored, value); err != nil {
		a.mine = false
		return fmt.Errorf("note the progress: %w", err)
	}
	a.stored, a.told, a.progress = value, a.Clock.Now(), p
	return nil
}

// noted returns the entries that the progress names, by job.
func (a *Audit) noted() map[string]job.Entry {
	entries := map[string]job.Entry{}
	for _, text := range a.progress.Mends {
		if e, err := wire.UnmarshalEntry(text); err == nil {
			entries[e.JobID] = e
		}
	}
	return entries
}
