package reads

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/occurrence"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
	"github.com/minutehand/minutehand/services/job-api/internal/form"
)

// Occurrence is a nominal instant of a job's schedule and what became of it, as answers show it.
type Occurrence struct {
	NominalAt    time.Time       `json:"nominal_at"`
	ScheduledFor time.Time       `json:"scheduled_for"`
	Local        string          `json:"local,omitempty"`
	State        string          `json:"state"`
	Disposition  job.Disposition `json:"disposition,omitempty"`
	Reason       string          `json:"reason"`
	ExecutionID  string          `json:"execution_id,omitempty"`
	DefinitionID string          `json:"definition_id,omitempty"`
	Attempts     int             `json:"attempts,omitempty"`
	LatenessMS   *int64          `json:"lateness_ms,omitempty"`
	Skipped      *skippedRun     `json:"skipped,omitempty"`
}

// The states that occurrences have and executions have not.
const (
	statePlanned, statePaused, stateUnknown = "planned", "paused", "unknown"
)

const (
	// maxSeries bounds the definitions that a page of an account goes back over, seriesRead those that are read at once: each may be large.
	maxSeries, seriesRead = 200, 10
	// recordsRead is how many events are read at once.
	recordsRead = 500
)

// listOccurrences shows a page of the account of a job: each instant that its schedule names with what became of it, the newest first.
// Those that were skipped together are shown one by one.
func (rs *Reads) listOccurrences(ctx context.Context, r *edge.Request) (edge.Response, error) {
	j, err := rs.Find(ctx, r, r.PathValue("id"))
	if err != nil {
		return edge.Response{}, err
	}
	cursor, readOn, ok := parsePlace(r.Parameters["cursor"])
	if !ok {
		return edge.Response{}, edge.BadCursor()
	}
	now := job.Instant(rs.Clock.Now())
	from, before := now.Add(-jobstore.HistoryTTL), now.Add(time.Millisecond)
	if at, err := time.Parse(time.RFC3339Nano, r.Parameters["from"]); err == nil {
		from = job.Later(from, job.Instant(at.Add(time.Millisecond-1)))
	}
	if at, err := time.Parse(time.RFC3339Nano, r.Parameters["to"]); err == nil {
		before = job.Instant(at.Add(time.Millisecond - 1))
	}
	if !cursor.IsZero() && cursor.Before(before) {
		before = cursor
	}
	a := &account{rs: rs, j: &j, now: now, from: from, cursor: readOn}
	if err := a.readSeries(ctx, before); err != nil {
		return edge.Response{}, err
	}
	result := newPage()
	items, left, err := a.page(ctx, before, r.Limit())
	if err != nil {
		return edge.Response{}, err
	}
	for _, o := range items {
		result.Items = append(result.Items, o)
	}
	if !left.IsZero() {
		cursor := a.place(left)
		result.NextCursor = &cursor
	}
	return edge.Response{Status: http.StatusOK, Body: result}, nil
}

// place returns the cursor of a page that begins before an instant. If this one ended because too much was read that is no occurrence, the
// cursor says where to read on as well.
func (a *account) place(before time.Time) string {
	text := strconv.FormatInt(before.UnixMilli(), 10)
	if a.cut {
		text += " " + strconv.FormatInt(a.cursor.NominalAt.UnixMilli(), 10) + " " + a.cursor.ExecutionID
	}
	return base64.RawURLEncoding.EncodeToString([]byte(text))
}

// parsePlace returns what a cursor says; the empty one says nothing.
func parsePlace(cursor string) (before time.Time, readOn jobstore.Cursor, ok bool) {
	if cursor == "" {
		return before, readOn, true
	}
	text, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil {
		return before, readOn, false
	}
	ms, rest, cut := strings.Cut(string(text), " ")
	at, err := strconv.ParseInt(ms, 10, 53)
	if err != nil || at < 0 {
		return before, readOn, false
	}
	if cut {
		if readOn, ok = parsePosition(base64.RawURLEncoding.EncodeToString([]byte(rest))); !ok {
			return before, readOn, false
		}
	}
	return time.UnixMilli(at).UTC(), readOn, true
}

// account holds what the schedule names of a job against what is on record, from the newest instant back.
type account struct {
	rs        *Reads
	j         *job.Job
	now, from time.Time
	// series are the definitions that were in force from `from` on, the newest first. They do not overlap: each ends where the next
	// one begins, or at the end that stands beside it.
	series []*occurrence.Series
	ends   []time.Time
	// records are the executions of the schedule that come next, and were read; cursor is where to read on, ended whether that was all, and
	// cut whether no more may be read for this request.
	records    []*Execution
	cursor     jobstore.Cursor
	ended, cut bool
	read       int
	// runs are the runs of skipped instants among all that was read.
	runs []*Execution
	// older is set if the page ends where there were more definitions than one request goes back over.
	older bool
}

// readSeries reads which definition was in force when, as far as instants before an end ask for. A definition ends where the first of
// those began that came after it: a resume reaches back before an update that was made during the pause.
func (a *account) readSeries(ctx context.Context, before time.Time) error {
	end := before
	if a.j.Status == job.StatusCancelled && a.j.EndsAt.Before(end) {
		end = a.j.EndsAt
	}
	for page, d := []job.Definition(nil), a.j.Definition; ; {
		if d.EffectiveAt.Before(end) {
			def := d
			def.Target.Body = nil // many of them are held
			series, err := form.Compile(a.j.ID, &def)
			if err != nil {
				return err
			}
			series.EndsAt = end
			a.series, a.ends = append(a.series, series), append(a.ends, series.Until(end))
			end = d.EffectiveAt
		}
		if !end.After(a.from) {
			return nil
		}
		if len(a.series) == maxSeries { // the next page goes further back
			a.from, a.older = end, true
			return nil
		}
		if len(page) == 0 {
			var err error
			if page, err = a.rs.Jobs.Definitions(ctx, a.j.ID, d.ID, seriesRead); err != nil {
				return fmt.Errorf("read definitions of job %s: %w", a.j.ID, err)
			}
			if len(page) == 0 {
				return nil
			}
		}
		d, page = page[0], page[1:]
	}
}

// named returns the last instant before pos that a schedule names.
func (a *account) named(pos time.Time) (s *occurrence.Series, at time.Time) {
	for i, s := range a.series {
		end := a.ends[i]
		if pos.Before(end) {
			end = pos
		}
		if at, ok := s.Prev(end); ok {
			if at.Before(a.from) {
				break
			}
			return s, at
		}
	}
	return nil, time.Time{}
}

// seriesOf returns the definition that was in force at an instant; nil if it is not known any more.
func (a *account) seriesOf(at time.Time) *occurrence.Series {
	for _, s := range a.series {
		if !at.Before(s.Def.EffectiveAt) && at.Before(s.EndsAt) {
			return s
		}
	}
	return nil
}

// recorded returns what is on record of the last instant before pos of which anything is: an execution, or a run of skipped instants that
// begins there. After a loss both may begin at one instant (I1), so there may be several. It sets cut if more had to be read than one
// request may.
func (a *account) recorded(ctx context.Context, pos time.Time) ([]*Execution, error) {
	if a.cursor.NominalAt.IsZero() {
		a.cursor = jobstore.Cursor{NominalAt: pos.Add(-time.Millisecond)}
	}
	for {
		for len(a.records) > 0 && !a.records[0].NominalAt.Before(pos) {
			a.records = a.records[1:]
		}
		n := 0
		for n < len(a.records) && a.records[n].NominalAt.Equal(a.records[0].NominalAt) {
			n++
		}
		a.cut = n == 0 && !a.ended && a.read >= maxRowsRead
		if n < len(a.records) || a.ended || a.read >= maxRowsRead {
			return a.records[:n], nil
		}
		more, left, err := a.rs.executions(ctx, a.j, a.cursor, a.now.Add(-jobstore.HistoryTTL), recordsRead)
		if err != nil {
			return nil, err
		}
		if a.ended, a.read = !left || len(more) == 0, a.read+recordsRead; len(more) > 0 {
			last := more[len(more)-1]
			a.cursor = jobstore.Cursor{NominalAt: last.NominalAt, ExecutionID: last.ExecutionID}
		}
		for _, x := range more {
			if x.Skipped != nil {
				a.runs = append(a.runs, x)
			}
			if x.Trigger == job.TriggerSchedule && (x.Skipped != nil || len(x.Attempts) > 0) { // otherwise it was only deferred
				a.records = append(a.records, x)
			}
		}
	}
}

// page returns up to limit occurrences before pos, and before which instant the next page begins, zero after the last.
func (a *account) page(ctx context.Context, pos time.Time, limit int) (items []*Occurrence, left time.Time, err error) {
	for len(items) < limit {
		s, at := a.named(pos)
		list, err := a.recorded(ctx, pos)
		if err != nil {
			return nil, left, err
		}
		if a.cut {
			break
		}
		o := &Occurrence{}
		switch run := covering(list, at); {
		case len(list) > 0 && !list[0].NominalAt.Before(a.from) && !list[0].NominalAt.Before(at):
			pos = list[0].NominalAt
			a.ofRecord(o, list, at)
		case s == nil:
			if pos = (time.Time{}); a.older {
				pos = a.from
			}
			return items, pos, a.explain(ctx, items)
		default:
			pos = at
			a.put(o, at)
			if run != nil {
				o.State, o.Disposition = run.State, run.Disposition
			}
		}
		items = append(items, o)
	}
	return items, pos, a.explain(ctx, items)
}

// covering returns the run of skipped instants to which an instant belongs; nil if there is none.
func covering(list []*Execution, at time.Time) *Execution {
	for _, x := range list {
		if x.Skipped != nil && !at.Before(x.Skipped.From) && !at.After(x.Skipped.To) {
			return x
		}
	}
	return nil
}

// put fills in an instant and what its definition makes of it.
func (a *account) put(o *Occurrence, at time.Time) {
	o.NominalAt, o.ScheduledFor = at, at
	if s := a.seriesOf(at); s != nil {
		o.ScheduledFor, o.DefinitionID = s.Plan.ScheduledFor(at), s.Def.ID
		o.Local = s.Plan.Occurrence(at).Local.Format(time.RFC3339Nano)
	}
}

// ofRecord fills in what is on record of one instant. What was called counts before what was skipped. A run of which the schedule
// names no instant any more is shown as a whole.
func (a *account) ofRecord(o *Occurrence, list []*Execution, named time.Time) {
	x := list[0]
	for _, other := range list {
		if other.Skipped == nil {
			x = other
		}
	}
	a.put(o, x.NominalAt)
	o.State, o.Disposition = x.State, x.Disposition
	if x.Skipped != nil {
		if !x.NominalAt.Equal(named) {
			o.Skipped = x.Skipped
		}
		return
	}
	o.ScheduledFor, o.ExecutionID, o.Attempts, o.LatenessMS = x.ScheduledFor, x.ExecutionID, len(x.Attempts), x.LatenessMS
	o.Reason = ofAttempts(x)
}
