package world

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/loadtest/ledger"
	auditwriter "github.com/minutehand/minutehand/services/audit-writer"
)

// Create creates a job and returns its id.
func (w *World) Create(body map[string]any) string {
	w.T.Helper()
	answer := w.Must(http.StatusCreated, http.MethodPost, "/jobs", body)
	id, _ := answer["job_id"].(string)
	w.mu.Lock()
	w.jobs = append(w.jobs, id)
	w.mu.Unlock()
	w.keepDefinition(id, answer)
	return id
}

// Adopt adds a job that was put straight into the store to the account.
func (w *World) Adopt(jobID string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.jobs = append(w.jobs, jobID)
}

func (w *World) keepDefinition(jobID string, answer map[string]any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if d, ok := answer["definition_id"].(string); ok {
		w.definitions[jobID] = append(w.definitions[jobID], d)
	}
}

func (w *World) keepStop(s *ledger.Stop) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stops = append(w.stops, s)
}

// Patch updates a job, whose old definition called oldHost.
func (w *World) Patch(jobID, oldHost string, patch map[string]any) {
	w.T.Helper()
	asked := job.Instant(time.Now())
	answer := w.Must(http.StatusOK, http.MethodPatch, "/jobs/"+jobID, patch, "If-Match", "*")
	w.keepDefinition(jobID, answer)
	w.keepStop(&ledger.Stop{
		JobID: jobID, Kind: ledger.StopUpdate, AckedAt: time.Now(), EffectiveAt: asked, OldHosts: []string{oldHost},
	})
}

// Pause pauses a job.
func (w *World) Pause(jobID string) {
	w.T.Helper()
	w.Must(http.StatusOK, http.MethodPost, "/jobs/"+jobID+"/pause", nil)
	w.keepStop(&ledger.Stop{JobID: jobID, Kind: ledger.StopPause, AckedAt: time.Now()})
}

// Resume resumes a job.
func (w *World) Resume(jobID string) {
	w.T.Helper()
	w.mu.Lock()
	for _, s := range w.stops {
		if s.JobID == jobID && s.Kind == ledger.StopPause && s.ResumedAt.IsZero() {
			s.ResumedAt = time.Now()
		}
	}
	w.mu.Unlock()
	w.keepDefinition(jobID, w.Must(http.StatusOK, http.MethodPost, "/jobs/"+jobID+"/resume", nil))
}

// Cancel cancels a job, Delete deletes it.
func (w *World) Cancel(jobID string) {
	w.T.Helper()
	w.Must(http.StatusOK, http.MethodPost, "/jobs/"+jobID+"/cancel", nil)
	w.keepStop(&ledger.Stop{JobID: jobID, Kind: ledger.StopCancel, AckedAt: time.Now()})
}

// Delete deletes a job.
func (w *World) Delete(jobID string) {
	w.T.Helper()
	w.Must(http.StatusNoContent, http.MethodDelete, "/jobs/"+jobID, nil)
	w.keepStop(&ledger.Stop{JobID: jobID, Kind: ledger.StopCancel, AckedAt: time.Now()})
}

// Run runs a scenario in a bubble and then checks every invariant on its account. settle is how long before the end of the
// scenario the last occurrence fell that must have its disposition. It returns the account.
func Run(t *testing.T, settle time.Duration, scenario func(w *World)) *ledger.Account {
	t.Helper()
	var w *World
	var a *ledger.Account
	bubble.Test(t, func(t *testing.T) {
		w = New(t)
		scenario(w)
		a = w.account(time.Now().Add(-settle))
		w.Stop()
	})
	if a == nil || t.Failed() && w == nil {
		return &ledger.Account{}
	}
	// Outside the bubble: the Parquet reader shares its decoders with other bubbles.
	archive, err := embedded.NewArchive(w.FS, "/data/archive")
	if err != nil {
		t.Fatal(err)
	}
	archived, err := auditwriter.ReadArchive(t.Context(), archive)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range archived {
		a.Archived = append(a.Archived, ledger.Archived(x))
	}
	for _, v := range ledger.Check(a) {
		t.Error(v)
	}
	return a
}

func (w *World) account(until time.Time) *ledger.Account {
	w.T.Helper()
	ctx := w.T.Context()
	must := func(err error) {
		if err != nil {
			w.T.Helper()
			w.T.Fatal(err)
		}
	}
	// Between the instants at which jobs fire, and quiet, so that nothing is only half on record.
	time.Sleep(437 * time.Millisecond)
	synctest.Wait()
	ad := w.Platform.Adapters
	a := &ledger.Account{From: w.began, Until: until, Crashed: w.crashed}
	for _, s := range w.stops {
		a.Stops = append(a.Stops, *s)
	}
	for _, id := range w.jobs {
		row, err := ad.Jobs.Get(ctx, id)
		must(err)
		account := ledger.JobAccount{Job: row}
		for _, d := range w.definitions[id] {
			if d == row.Definition.ID {
				continue
			}
			old, _, err := ad.Jobs.Definition(ctx, id, d)
			must(err)
			account.Superseded = append(account.Superseded, old)
		}
		a.Jobs = append(a.Jobs, account)
		if row.Definition.Schedule.Type == job.ScheduleAfter {
			a.Followers = append(a.Followers, ledger.Follower{JobID: id, AckedAt: row.CreatedAt})
		}
		events, err := ledger.History(ctx, ad.History, jobstore.OfJob(&row), w.began)
		must(err)
		a.Events = append(a.Events, events...)
	}
	for _, id := range ledger.Settings() {
		events, err := ledger.History(ctx, ad.History, jobstore.Of{ID: id}, w.began)
		must(err)
		a.Events = append(a.Events, events...)
	}
	for p := range Partitions {
		low, err := ad.Pending.LowWater(ctx, p)
		must(err)
		for {
			minute, ok, err := ad.Pending.FirstOpen(ctx, p, low, 1<<40)
			must(err)
			if !ok {
				break
			}
			rows, err := ad.Pending.Scan(ctx, p, minute, nil, 1_000_000)
			must(err)
			a.Pending = append(a.Pending, rows...)
			low = minute + 1
		}
	}
	letters, _, err := ad.History.DeadLetters(ctx, job.DefaultTenant, "", 1_000_000)
	must(err)
	a.DeadLetters = letters
	a.Calls = w.Targets.Calls() // last, so that no event is in the account without its call
	return a
}
