package reads

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/occurrence"
	"github.com/minutehand/minutehand/libs/schedule"
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
	GaveWayTo    string          `json:"gave_way_to,omitempty"`
	DefinitionID string          `json:"definition_id,omitempty"`
	Attempts     int             `json:"attempts,omitempty"`
	LatenessMS   *int64          `json:"lateness_ms,omitempty"`
	Skipped      *skippedRun     `json:"skipped,omitempty"`
	// skippedAt is when it was decided that it is skipped, as far as that is on record.
	skippedAt time.Time
}

// The states that occurrences have and executions have not.
const (
	statePlanned, statePaused, stateUnknown = "planned", "paused", "unknown"
)

const (
	// maxSeries bounds the definitions that are read for a page of an account, seriesRead those that are read at once: each may be large.
	maxSeries, seriesRead = 200, 10
	// recordsRead bounds the events that are read at once; recordsMore are read beyond those of a page.
	recordsRead, recordsMore = 500, 200
)

// endOfPlans is where no schedule names an instant any more.
var endOfPlans = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)

// listOccurrences shows a page of the account of a job: each instant that its schedule names with what became of it, the newest first.
// Those that were skipped together are shown one by one.
func (rs *Reads) listOccurrences(ctx context.Context, r *edge.Request) (edge.Response, error) {
	j, err := rs.Find(ctx, r, r.PathValue("id"))
	if err != nil {
		return edge.Response{}, err
	}
	p, ok := parsePlace(r.Parameters["cursor"])
	if !ok {
		return edge.Response{}, edge.BadCursor()
	}
	now := job.Instant(rs.Clock.Now())
	from, before := span(r, now)
	if before.IsZero() {
		before = now.Add(time.Millisecond)
	}
	if before.After(endOfPlans) {
		before = endOfPlans
	}
	if p.Before != 0 && time.UnixMilli(p.Before).Before(before) {
		before = time.UnixMilli(p.Before).UTC()
	}
	a := &account{rs: rs, j: &j, now: now, from: from, limit: r.Limit(), called: map[string]called{}, deferred: map[string]time.Time{}, inLine: map[string]string{}}
	if p.Read != 0 {
		a.cursor = jobstore.Cursor{NominalAt: time.UnixMilli(p.Read).UTC(), ExecutionID: p.ReadID}
	}
	if err := a.readSeries(ctx, before, p); err != nil {
		return edge.Response{}, err
	}
	items, left, err := a.page(ctx, before)
	if err != nil {
		return edge.Response{}, err
	}
	result := newPage()
	for _, o := range items {
		result.Items = append(result.Items, o)
	}
	if !left.IsZero() {
		cursor := a.place(left)
		result.NextCursor = &cursor
	}
	return edge.Response{Status: http.StatusOK, Body: result}, nil
}

// place is what a cursor of an account says: the instant before which its page begins; the definition before which the definitions begin
// that may name its instants, and the end of the first of them; and, if the page before it ended because too much was read that is no
// occurrence, where to read on. Instants are in milliseconds. Version is the job's: a resume since then may reach back beyond the place.
type place struct {
	Before     int64  `json:"b"`
	Version    int64  `json:"v"`
	Definition string `json:"d,omitempty"`
	End        int64  `json:"e,omitempty"`
	Read       int64  `json:"r,omitempty"`
	ReadID     string `json:"i,omitempty"`
}

// place returns the cursor of a page that begins before an instant.
func (a *account) place(before time.Time) string {
	p := place{Before: before.UnixMilli(), Version: a.j.Version}
	for _, s := range a.series {
		if p.Definition, p.End = s.after, s.series.EndsAt.UnixMilli(); s.series.Def.EffectiveAt.Before(before) {
			break
		}
		p.Definition, p.End = s.series.Def.ID, s.series.Def.EffectiveAt.UnixMilli()
	}
	if a.older != "" && !a.from.Before(before) {
		p.Definition, p.End = a.older, a.from.UnixMilli()
	}
	if p.Definition == "" {
		p.End = 0 // it begins with the row's own definition
	}
	if a.cut {
		p.Read, p.ReadID = a.cursor.NominalAt.UnixMilli(), a.cursor.ExecutionID
	}
	text, _ := json.Marshal(p) // it cannot fail
	return base64.RawURLEncoding.EncodeToString(text)
}

// parsePlace returns what a cursor says; the empty one says nothing.
func parsePlace(cursor string) (p place, ok bool) {
	if cursor == "" {
		return p, true
	}
	text, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || json.Unmarshal(text, &p) != nil {
		return p, false
	}
	ok = p.Before > 0 && p.Read >= 0 && p.End >= 0 && max(p.Before, p.Read, p.End) < 1<<47
	if p.Read > 0 {
		_, bad := job.ParseExecutionID(p.ReadID)
		ok = ok && bad == nil
	}
	return p, ok
}

// account holds what the schedule names of a job against what is on record, from the newest instant back.
type account struct {
	rs        *Reads
	j         *job.Job
	now, from time.Time
	limit     int
	// series are the definitions that were in force from `from` on, the newest first. They do not overlap.
	series []inForce
	// older is the definition before which there are more than one request goes back over; then `from` is where the last of series begins.
	older string
	// records are the executions of the schedule that come next, and were read; cursor is where to read on, ended whether that was all, and
	// cut whether no more may be read for this request.
	records    []*Execution
	cursor     jobstore.Cursor
	ended, cut bool
	read       int
	// called is when the executions were called of which an attempt is on record, among all that was read, by id.
	called map[string]called
	// runs are the runs of skipped instants among all that was read, deferred the executions of which a fire was deferred and nothing else
	// is on record, with the instant at which it comes again, and inLine those among them that wait for others, with the last of these.
	runs     []*Execution
	deferred map[string]time.Time
	inLine   map[string]string
	// plans are what the definitions name of which runs were asked, by id; nil for one that is not kept.
	plans map[string]*schedule.Plan
}

// inForce is a definition, which was in force until its series' EndsAt.
type inForce struct {
	series *occurrence.Series
	// until is where its instants end, after is the definition before which it is found, "" for the job row's.
	until time.Time
	after string
}

// readSeries reads which definition was in force when, as far as instants before an end ask for. A definition ends where the first of
// those began that came after it: a resume reaches back before an update that was made during the pause.
func (a *account) readSeries(ctx context.Context, before time.Time, p place) error {
	end := before
	if a.j.Status == job.StatusCancelled && a.j.EndsAt.Before(end) {
		end = a.j.EndsAt
	}
	d, after, page := a.j.Definition, "", []job.Definition(nil)
	known := p.Definition == "" || p.Version != a.j.Version // d is the next one to look at
	if !known {
		d.ID = p.Definition
		if at := time.UnixMilli(p.End).UTC(); at.Before(end) {
			end = at
		}
	}
	for read := 0; ; read++ {
		if def := d; known && d.EffectiveAt.Before(end) {
			def.Target.Body, def.Target.BodyRef = nil, nil // many of them are held
			series, err := form.Compile(a.j.ID, &def)
			if err != nil {
				return err
			}
			series.EndsAt = end
			a.series = append(a.series, inForce{series, series.Until(end), after})
			end = d.EffectiveAt
		}
		if known && !end.After(a.from) {
			return nil
		}
		if read >= maxSeries { // the next page goes further back
			a.from, a.older = job.Later(a.from, end), d.ID
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
		known, after = true, d.ID
		d, page = page[0], page[1:]
	}
}

// named returns the last instant before pos that a definition names; the zero time if there is none.
func (a *account) named(pos time.Time) time.Time {
	for _, s := range a.series {
		end := s.until
		if pos.Before(end) {
			end = pos
		}
		if at, ok := s.series.Prev(end); ok {
			if at.Before(a.from) {
				break
			}
			return at
		}
	}
	return time.Time{}
}

// seriesOf returns the definition that was in force at an instant; nil if it is not known any more.
func (a *account) seriesOf(at time.Time) *occurrence.Series {
	for _, s := range a.series {
		if !at.Before(s.series.Def.EffectiveAt) && at.Before(s.series.EndsAt) {
			return s.series
		}
	}
	return nil
}

// recorded returns what is on record of the last instant before pos of which anything is: an execution, or a run of skipped instants that
// begins there. After a loss both may begin at one instant (I1), so there may be several. named is the instant that the schedule names
// there. It sets cut if more had to be read than one request may.
func (a *account) recorded(ctx context.Context, pos, named time.Time) ([]*Execution, error) {
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
		over := a.ended || named.IsZero() && a.cursor.NominalAt.Before(a.from)
		a.cut = n == 0 && !over && a.read >= maxRowsRead
		if n < len(a.records) || over || a.read >= maxRowsRead {
			return a.records[:n], nil
		}
		chunk := min(recordsRead, 2*a.limit+recordsMore)
		more, last, left, err := a.rs.executions(ctx, a.j, a.cursor, a.now.Add(-jobstore.HistoryTTL), chunk)
		if err != nil {
			return nil, err
		}
		if a.ended, a.read = !left, a.read+chunk; left {
			a.cursor = last.Schedules(a.j.ID)
		}
		for _, x := range more {
			if x.Skipped != nil {
				a.runs = append(a.runs, x)
			}
			switch {
			case x.Trigger != job.TriggerSchedule:
			case x.Skipped != nil || len(x.Attempts) > 0:
				a.records = append(a.records, x)
				if x.Skipped == nil {
					a.called[x.ExecutionID] = x.calls()
				}
			default:
				a.deferred[x.ExecutionID] = x.waitsUntil
				if x.inLine {
					a.inLine[x.ExecutionID] = x.GaveWayTo
				}
			}
		}
	}
}

// page returns the occurrences before pos, and before which instant the next page begins, zero after the last.
func (a *account) page(ctx context.Context, pos time.Time) (items []*Occurrence, left time.Time, err error) {
	for len(items) < a.limit {
		at := a.named(pos)
		list, err := a.recorded(ctx, pos, at)
		if err != nil {
			return nil, left, err
		}
		if a.cut {
			break
		}
		o := &Occurrence{}
		switch {
		case len(list) > 0 && !list[0].NominalAt.Before(a.from) && !list[0].NominalAt.Before(at):
			pos = list[0].NominalAt
			a.ofRecord(o, list, at)
		case at.IsZero():
			if pos = (time.Time{}); a.older != "" {
				pos = a.from
			}
			return items, pos, a.explain(ctx, items)
		default:
			pos = at
			a.put(o, at)
			if run := covering(list, o); run != nil {
				o.State, o.Disposition = run.State, run.Disposition
			}
		}
		items = append(items, o)
	}
	return items, pos, a.explain(ctx, items)
}

// covering returns the run of skipped instants to which an occurrence belongs; nil if there is none. A run holds the instants that its own
// definition names, and may lie over others: with a resume began a definition that the row which was read does not have yet.
func covering(list []*Execution, o *Occurrence) *Execution {
	at := o.NominalAt
	for _, x := range list {
		if x.Skipped != nil && x.Skipped.definitionID == o.DefinitionID && !at.Before(x.Skipped.From) && !at.After(x.Skipped.To) {
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
	o.State, o.Disposition, o.GaveWayTo = x.State, x.Disposition, x.GaveWayTo
	if x.Skipped != nil {
		if !x.NominalAt.Equal(named) {
			o.Skipped = x.Skipped
		}
		return
	}
	o.ScheduledFor, o.ExecutionID, o.Attempts, o.LatenessMS = x.ScheduledFor, x.ExecutionID, len(x.Attempts), x.LatenessMS
	o.Reason, o.skippedAt = ofAttempts(x, a.j.Status), x.lastEnd
}
