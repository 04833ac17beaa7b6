// Package incidents holds which jobs have deadlines, and the incidents: that occurrences of a job missed one.
//
// An incident begins with the first occurrence that misses a deadline, and ends with the first after it that meets it. So however long
// something is broken, a job has one open incident for each of its deadlines.
//
// It promises: the id of an incident follows from the job, the deadline and the first occurrence that missed it. So a process that finds the
// same incident again, after a crash or beside another one, writes the same item.
//
// Jobs that have deadlines are items of [Slices] lists, which the job-api writes before the job's row; so a job that was acknowledged with
// deadlines is in one of them. The incidents of a day are a list.
package incidents

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// Deadline is one of the two that a job may have.
type Deadline string

// The deadlines.
const (
	StartWithin  Deadline = "start_within"
	FinishWithin Deadline = "finish_within"
)

// Deadlines are all of them.
func Deadlines() []Deadline { return []Deadline{StartWithin, FinishWithin} }

// Of returns how long after its instant an occurrence of a definition has; 0 if it has no such deadline.
func (d Deadline) Of(def *job.Definition) time.Duration {
	if d == StartWithin {
		return def.Deadlines.StartWithin
	}
	return def.Deadlines.FinishWithin
}

// Cause is what kept an occurrence from meeting a deadline, as far as it can be told from outside.
type Cause string

// The causes.
const (
	// CauseHeld: dispatch of the job is paused. CauseNotDispatched: no scheduler-worker has taken it. CauseNotExecuted: it was dispatched, and
	// no executor has begun to call its target. CauseHotTierAway: nothing can be called, because Redis does not answer.
	CauseHeld          Cause = "held"
	CauseNotDispatched Cause = "not_dispatched"
	CauseNotExecuted   Cause = "not_executed"
	CauseHotTierAway   Cause = "hot_tier_away"
	// CauseWaits: it waits for other executions of the job, or for room at its target.
	CauseWaits Cause = "waits"
	// CauseCalling: a call is in progress. CauseRetrying: calls have failed, another one follows. CauseFailed: all have failed. CauseLate: it
	// happened, but too late. CauseMissed: it was found so late that the missed-run policy let it go.
	CauseCalling  Cause = "calling"
	CauseRetrying Cause = "retrying"
	CauseFailed   Cause = "failed"
	CauseLate     Cause = "late"
	CauseMissed   Cause = "missed"
)

// Causes returns all causes.
func Causes() []Cause {
	return []Cause{
		CauseHeld, CauseNotDispatched, CauseNotExecuted, CauseHotTierAway, CauseWaits, CauseCalling, CauseRetrying, CauseFailed, CauseLate, CauseMissed,
	}
}

// Incident tells that occurrences of a job missed a deadline.
type Incident struct {
	ID       string        `json:"id"`
	Tenant   job.Tenant    `json:"tenant"`
	JobID    string        `json:"job_id"`
	JobName  string        `json:"job_name"`
	Owner    string        `json:"owner,omitempty"`
	Deadline Deadline      `json:"deadline"`
	Within   time.Duration `json:"within"`
	// Cause and Reason are those of the first occurrence, when it was noticed.
	Cause  Cause  `json:"cause"`
	Reason string `json:"reason"`
	// First and Last are the nominal instants of the first and the last occurrence that missed the deadline, Missed is how many did. Of one before
	// that in the id it may be known later that it missed it.
	First  time.Time `json:"first"`
	Last   time.Time `json:"last"`
	Missed int       `json:"missed"`
	// DeadlineAt is when the first was to have happened, NoticedAt when it was noticed that it had not.
	DeadlineAt time.Time `json:"deadline_at"`
	NoticedAt  time.Time `json:"noticed_at"`
	// ClosedAt is when it was noticed that the incident is over, zero while it is not, and Closed says why.
	ClosedAt time.Time `json:"closed_at,omitzero"`
	Closed   string    `json:"closed,omitempty"`
}

// Prefix begins the ids of incidents.
const Prefix = "inc_"

// ID returns the id of the incident that begins with an occurrence of a job.
func ID(jobID string, d Deadline, nominalAt time.Time) string {
	return fmt.Sprintf("%s%s-%c%013d", Prefix, strings.TrimPrefix(jobID, job.JobPrefix), d[0], nominalAt.UnixMilli())
}

// parseID returns the instant in an id.
func parseID(id string) (nominalAt time.Time, ok bool) {
	rest, ok := strings.CutPrefix(id, Prefix)
	ulid, tail, found := strings.Cut(rest, "-")
	if !ok || !found || !job.ValidID(job.JobPrefix+ulid, job.JobPrefix) || len(tail) != 14 || tail[0] != 's' && tail[0] != 'f' {
		return time.Time{}, false
	}
	ms, err := strconv.ParseUint(tail[1:], 10, 53)
	return time.UnixMilli(int64(ms)).UTC(), err == nil
}

const (
	// Slices is in how many lists the jobs with deadlines are.
	Slices = 16
	// KeptDays is for how many days, before that of a list's incidents, incidents are kept.
	KeptDays = int(jobstore.HistoryTTL/(24*time.Hour)) + 1
)

// Store holds incidents and the jobs that have deadlines.
type Store struct{ Lists jobstore.Lists }

// SliceOf returns the list of a job.
func SliceOf(jobID string) int { return bucket.Partition(jobID, Slices) }

func watched(slice int) string { return "watched/" + strconv.Itoa(slice) }

func judged(slice int) string { return "judged/" + strconv.Itoa(slice) }

// Watch notes that a job has deadlines, if it has, under its present definition. It is called before the row is written. Each definition has
// an item of its own, so nobody who removes that of one that is over gets in the way of another that is on its way.
func (s Store) Watch(ctx context.Context, j *job.Job) error {
	if j.Definition.Deadlines == (job.Deadlines{}) {
		return nil
	}
	w := Watched{j.ID, j.Definition.ID}
	if err := s.Lists.PutItem(ctx, watched(SliceOf(j.ID)), jobstore.Item{Name: w.name(), Value: []byte{}}); err != nil {
		return fmt.Errorf("note that job %s has deadlines: %w", j.ID, err)
	}
	return nil
}

// Watched is a definition of a job that has deadlines.
type Watched struct{ JobID, DefinitionID string }

func (w Watched) name() string { return w.JobID + "/" + w.DefinitionID }

// Unwatch removes a definition from the list of its job.
func (s Store) Unwatch(ctx context.Context, w Watched) error {
	if err := s.Lists.RemoveItem(ctx, watched(SliceOf(w.JobID)), w.name(), 0); err != nil {
		return fmt.Errorf("note that definition %s is over: %w", w.DefinitionID, err)
	}
	return nil
}

// Watched returns up to limit definitions of a list after one, by job; fewer than limit means the end.
func (s Store) Watched(ctx context.Context, slice int, after Watched, limit int) ([]Watched, error) {
	begin := ""
	if after.JobID != "" {
		begin = after.name()
	}
	items, err := s.Lists.Items(ctx, watched(slice), begin, limit)
	if err != nil {
		return nil, fmt.Errorf("list the jobs that have deadlines: %w", err)
	}
	list := make([]Watched, len(items))
	for n, i := range items {
		list[n].JobID, list[n].DefinitionID, _ = strings.Cut(i.Name, "/")
	}
	return list, nil
}

// Judged is how far occurrences of a job were held against one of its deadlines.
type Judged struct {
	// Until, by definition: every occurrence with a nominal instant before it was, but for those in Aside, of which nothing can be told yet.
	Until map[string]time.Time `json:"until,omitempty"`
	Aside []time.Time          `json:"aside,omitempty"`
	// Met is the last nominal instant of an occurrence that met the deadline, zero for none.
	Met time.Time `json:"met,omitzero"`
	// Open is the incident that has not ended; nil for none.
	Open *Incident `json:"open,omitempty"`
	// Told are those who were told of the open incident, and Periods the quiet periods in which they were told last that the deadline was missed, by
	// their [job.Notify.ID].
	Told    []string             `json:"told,omitempty"`
	Periods map[string]time.Time `json:"periods,omitempty"`
}

// Note notes how far a job's occurrences were held against its deadlines.
func (s Store) Note(ctx context.Context, jobID string, how map[Deadline]Judged) error {
	value, err := json.Marshal(how)
	if err != nil {
		return err
	}
	if err := s.Lists.PutItem(ctx, judged(SliceOf(jobID)), jobstore.Item{Name: jobID, Value: value}); err != nil {
		return fmt.Errorf("note how far job %s was judged: %w", jobID, err)
	}
	return nil
}

// ForgetJob removes what [Store.Note] noted of a job.
func (s Store) ForgetJob(ctx context.Context, jobID string) error {
	if err := s.Lists.RemoveItem(ctx, judged(SliceOf(jobID)), jobID, 0); err != nil {
		return fmt.Errorf("forget how far job %s was judged: %w", jobID, err)
	}
	return nil
}

// Noted returns what [Store.Note] noted of up to limit jobs of a list after one, and after which job the next page begins, "" at the end.
func (s Store) Noted(ctx context.Context, slice int, after string, limit int) (of map[string]map[Deadline]Judged, next string, err error) {
	items, err := s.Lists.Items(ctx, judged(slice), after, limit)
	if err != nil {
		return nil, "", fmt.Errorf("read how far jobs were judged: %w", err)
	}
	of = make(map[string]map[Deadline]Judged, len(items))
	for _, i := range items {
		var how map[Deadline]Judged
		if json.Unmarshal(i.Value, &how) == nil {
			of[i.Name] = how
		}
	}
	if len(items) == limit {
		next = items[limit-1].Name
	}
	return of, next, nil
}

func dayOf(at time.Time) string { return "incidents/" + at.UTC().Format(time.DateOnly) }

// name returns the name of an incident in its day's list: by tenant, the newest first.
func name(tenant job.Tenant, id string, nominalAt time.Time) string {
	return fmt.Sprintf("%s/%013d/%s", tenant, 9_999_999_999_999-nominalAt.UnixMilli(), id)
}

// Put writes an incident, in place of what was written of it before.
func (s Store) Put(ctx context.Context, i *Incident) error {
	value, err := json.Marshal(i)
	if err != nil {
		return err
	}
	at, ok := parseID(i.ID)
	if !ok {
		return fmt.Errorf("write incident %q: %w", i.ID, job.ErrBadID)
	}
	if err := s.Lists.PutItem(ctx, dayOf(at), jobstore.Item{Name: name(i.Tenant, i.ID, at), Value: value}); err != nil {
		return fmt.Errorf("write incident %s: %w", i.ID, err)
	}
	return nil
}

// ErrBadCursor is returned for a cursor that is not the id of an incident.
var ErrBadCursor = errors.New("not a cursor")

// List returns up to limit of a tenant's incidents, those with the latest first occurrence first, after the one with the id that cursor is; ""
// for the start. next is "" at the end.
func (s Store) List(ctx context.Context, tenant job.Tenant, cursor string, now time.Time, limit int) (page []Incident, next string, err error) {
	day, after := now.UTC().AddDate(0, 0, 1), ""
	if cursor != "" {
		at, ok := parseID(cursor)
		if !ok || at.After(day) {
			return nil, "", ErrBadCursor
		}
		day, after = at, name(tenant, cursor, at)
	}
	of := tenant.String() + "/"
	for oldest := now.AddDate(0, 0, -KeptDays); !day.Before(oldest.UTC().Truncate(24 * time.Hour)); day = day.AddDate(0, 0, -1) {
		items, err := s.Lists.Items(ctx, dayOf(day), max(after, of), limit-len(page))
		if err != nil {
			return nil, "", fmt.Errorf("read incidents: %w", err)
		}
		after = ""
		for _, item := range items {
			if !strings.HasPrefix(item.Name, of) {
				break
			}
			var i Incident
			if err := json.Unmarshal(item.Value, &i); err != nil {
				return nil, "", fmt.Errorf("read incident %s: %w", item.Name, err)
			}
			page = append(page, i)
		}
		if len(page) == limit {
			return page, page[limit-1].ID, nil
		}
	}
	return page, "", nil
}

// Forget removes the incidents of a tenant.
func (s Store) Forget(ctx context.Context, tenant job.Tenant, now time.Time) error {
	const atOnce = 500
	of := tenant.String() + "/"
	for n := -1; n <= KeptDays; n++ {
		list := dayOf(now.AddDate(0, 0, -n))
		for {
			items, err := s.Lists.Items(ctx, list, of, atOnce)
			if err != nil {
				return fmt.Errorf("read incidents: %w", err)
			}
			removed := 0
			for _, i := range items {
				if !strings.HasPrefix(i.Name, of) {
					break
				}
				if err := s.Lists.RemoveItem(ctx, list, i.Name, 0); err != nil {
					return fmt.Errorf("remove an incident: %w", err)
				}
				removed++
			}
			if removed < atOnce {
				break
			}
		}
	}
	return nil
}

// Expire removes the incidents of the last days that are not kept.
func (s Store) Expire(ctx context.Context, now time.Time) error {
	const days = 7
	for n := range days {
		if err := s.Lists.RemoveList(ctx, dayOf(now.AddDate(0, 0, -KeptDays-1-n))); err != nil {
			return fmt.Errorf("remove old incidents: %w", err)
		}
	}
	return nil
}
