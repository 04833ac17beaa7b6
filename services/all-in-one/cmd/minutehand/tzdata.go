package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/schedule"
)

type tzdataCmd struct {
	Diff   tzdataDiffCmd   `cmd:"" help:"List the jobs whose next occurrence other time zone data moves."`
	Apply  tzdataApplyCmd  `cmd:"" help:"Plan the jobs that the data of the processes moves."`
	Export tzdataExportCmd `cmd:"" help:"Write the data in this program to a file."`
}

// Help implements kong.HelpProvider.
func (tzdataCmd) Help() string {
	return `Governments move the days on which clocks change. A job's next occurrence was planned by the data of its time; what comes after it follows
the data that the processes have then. So: look at what new data moves, start all processes with it, and let it plan those jobs.

  minutehand tzdata diff embedded zoneinfo.zip
  minutehand tzdata apply`
}

type tzdataExportCmd struct {
	File string `arg:"" help:"File to write; it must not exist." placeholder:"FILE"`
}

// Help implements kong.HelpProvider.
func (tzdataExportCmd) Help() string {
	return `Keep the data of a release before you upgrade: with it, the next release finds the jobs that were planned by it.

  minutehand tzdata export before.zip`
}

// Run implements the command.
func (c *tzdataExportCmd) Run() error {
	text, err := schedule.EmbeddedArchive()
	if err != nil {
		return err
	}
	f, err := os.OpenFile(c.File, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644) //nolint:gosec // it is no secret
	if err != nil {
		return usageError{cause(err)}
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	fmt.Printf("%s holds release %s\n", c.File, schedule.Embedded().Release())
	return nil
}

// zoneData are two releases of time zone data.
type zoneData struct {
	client
	Old string `arg:"" help:"Data by which the jobs were planned: a folder such as /usr/share/zoneinfo, a zoneinfo.zip, or embedded for that in this program."`
	New string `arg:"" help:"Data to compare it with."`
}

type tzdataDiffCmd struct{ zoneData }

// Help implements kong.HelpProvider.
func (tzdataDiffCmd) Help() string {
	return `Compares the next occurrence of each active cron job in a time zone, as both data name it. It changes nothing.

  minutehand tzdata diff embedded zoneinfo.zip
  minutehand tzdata diff embedded zoneinfo.zip -o json`
}

type tzdataApplyCmd struct {
	client
	Rate           int    `default:"100" help:"How many jobs a second, at most 1000." placeholder:"N"`
	IdempotencyKey string `help:"Begin at most one operation under this key, however often the command is repeated." placeholder:"KEY"`
}

// Help implements kong.HelpProvider.
func (tzdataApplyCmd) Help() string {
	return `Begins an operation that updates each job with what it has of which the data of the processes names another next occurrence than the one that was
planned. All processes must have the new data (--tzdata) by then; an instant that is past is not made up for. Doing it again does no harm.
minutehand operations shows how far it is.

  minutehand tzdata apply
  minutehand tzdata apply --rate 500 --idempotency-key 2026b`
}

// zoneDiff is what moves between two releases.
type zoneDiff struct {
	Old string `json:"old_release"`
	New string `json:"new_release"`
	// Jobs is how many cron jobs in a time zone were compared.
	Jobs  int         `json:"jobs"`
	Moved []movedNext `json:"moved"`
}

// movedNext is a job whose next nominal instant moves; nil where there is none.
type movedNext struct {
	JobID    string     `json:"job_id"`
	Name     string     `json:"name"`
	Timezone string     `json:"timezone"`
	Old      *time.Time `json:"old_instant"`
	New      *time.Time `json:"new_instant"`
}

// Run implements the command.
func (c *tzdataDiffCmd) Run(ctx context.Context) error {
	d, err := c.diff(ctx, time.Now())
	if err != nil {
		return err
	}
	return c.print(d, func(w io.Writer) { zoneTable(w, d) })
}

// Run implements the command.
func (c *tzdataApplyCmd) Run(ctx context.Context) error {
	var headers []string
	if c.IdempotencyKey != "" {
		headers = []string{"Idempotency-Key", c.IdempotencyKey}
	}
	var o map[string]any
	if _, err := c.do(ctx, http.MethodPost, "/jobs:replan", map[string]any{"rate_per_second": c.Rate}, &o, headers...); err != nil {
		return err
	}
	return c.printOperation(o)
}

func openZones(path string) (*schedule.Zones, error) {
	if path == "embedded" {
		return schedule.Embedded(), nil
	}
	zones, err := schedule.OpenZones(path)
	if err != nil {
		return nil, usageError{err}
	}
	return zones, nil
}

// diff compares the next occurrences of all jobs after an instant.
func (c *zoneData) diff(ctx context.Context, now time.Time) (*zoneDiff, error) {
	before, err := openZones(c.Old)
	if err != nil {
		return nil, err
	}
	after, err := openZones(c.New)
	if err != nil {
		return nil, err
	}
	d := &zoneDiff{Old: before.Release(), New: after.Release(), Moved: []movedNext{}}
	err = c.pages(ctx, "/jobs", url.Values{"status": {"active"}}, func(item map[string]any) error {
		j, err := zonedJobOf(item)
		if err != nil || j == nil {
			return err
		}
		d.Jobs++
		var next [2]*time.Time
		for i, zones := range []*schedule.Zones{before, after} {
			plan, err := schedule.CompileBy(zones, j.schedule(), j.JobID)
			if fault := new(schedule.Error); errors.As(err, &fault) && fault.Field == "timezone" {
				continue // one of them does not have the zone
			}
			if err != nil {
				return fmt.Errorf("%s: %w", j.JobID, err)
			}
			if at, ok := plan.First(job.Later(now, j.EffectiveAt)); ok {
				next[i] = &at
			}
		}
		if !same(next[0], next[1]) {
			d.Moved = append(d.Moved, movedNext{j.JobID, j.Name, j.Timezone, next[0], next[1]})
		}
		return nil
	})
	return d, err
}

func same(a, b *time.Time) bool {
	return a == b || a != nil && b != nil && a.Equal(*b)
}

// zonedJob are the members of a job that decide when it runs, in a time zone.
type zonedJob struct {
	JobID       string    `json:"job_id"`
	Name        string    `json:"name"`
	Type        string    `json:"type"`
	CronExpr    string    `json:"cron_expr"`
	Timezone    string    `json:"timezone"`
	DST         job.DST   `json:"dst"`
	StartAt     time.Time `json:"start_at"`
	EndAt       time.Time `json:"end_at"`
	Jitter      string    `json:"jitter"`
	Spread      string    `json:"spread_within"`
	EffectiveAt time.Time `json:"effective_at"`
}

// zonedJobOf returns a cron job that goes by a zone other than UTC; nil for any other.
func zonedJobOf(item map[string]any) (*zonedJob, error) {
	text, err := json.Marshal(item)
	if err != nil {
		return nil, err
	}
	j := &zonedJob{}
	if err := json.Unmarshal(text, j); err != nil {
		return nil, err
	}
	if j.Type != string(job.ScheduleCron) || j.Timezone == "" || j.Timezone == "UTC" {
		return nil, nil
	}
	return j, nil
}

func (j *zonedJob) schedule() job.Schedule {
	jitter, _ := time.ParseDuration(j.Jitter) // "" is none
	spread, _ := time.ParseDuration(j.Spread)
	return job.Schedule{
		Type: job.ScheduleCron, CronExpr: j.CronExpr, Timezone: j.Timezone, DST: j.DST, StartAt: j.StartAt, EndAt: j.EndAt, Jitter: jitter, Spread: spread,
	}
}

// zoneTable shows what moves.
func zoneTable(w io.Writer, d *zoneDiff) {
	if len(d.Moved) > 0 {
		t := newTable(w, "JOB", "NAME", "ZONE", "BY "+d.Old, "BY "+d.New)
		for i := range d.Moved {
			m := &d.Moved[i]
			t.row(m.JobID, m.Name, m.Timezone, instantCell(m.Old), instantCell(m.New))
		}
		t.end()
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "%d of %d jobs in a time zone move\n", len(d.Moved), d.Jobs)
}

func instantCell(at *time.Time) any {
	if at == nil {
		return "-"
	}
	return at.Format(time.RFC3339)
}
