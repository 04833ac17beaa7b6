// Package removal deletes tenants.
//
// It promises: nothing of the tenant is let in from five seconds after the answer on, and workers dispatch nothing more of it from seven
// on; what they had dispatched before is called within the seconds that admission allows for, or stopped. Then its jobs are cancelled, and
// its data is removed in bounded steps, by one process at a time; if that dies, another goes on where it was. The archive keeps what it
// has, and a tenant's name and number are never given out again.
//
// A tenant is deleted by one compare-and-set of the setting that holds dispatch. Everything else follows from that setting: any process
// that finds the tenant in it carries on, even if the request that put it there has died.
package removal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/dependents"
	"github.com/minutehand/minutehand/libs/forecast"
	"github.com/minutehand/minutehand/libs/incidents"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobchange"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/messaging"
	"github.com/minutehand/minutehand/libs/operations"
	"github.com/minutehand/minutehand/libs/pools"
	"github.com/minutehand/minutehand/libs/problem"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/libs/tenants"
)

const (
	// lookEvery is the pause between two looks at what is to be removed.
	lookEvery = 5 * time.Second
	// page is how many jobs are removed before that is noted, atOnce how many side by side.
	page, atOnce = 100, 8
	// lease is how long a process has to itself what it removes, from each page on.
	lease = time.Minute
	// quiet is how long what was called before the jobs were cancelled may take to be recorded. What comes later expires after 30 days.
	quiet = 10 * time.Minute
)

// Removal deletes tenants.
type Removal struct {
	Jobs      jobstore.Jobs
	History   jobstore.History
	Settings  jobstore.Settings
	Directory *tenants.Directory
	Change    jobchange.Changer
	Clock     clock.Clock
	Logger    *slog.Logger
	// Worker is this process's name, which no other has.
	Worker string
}

// Begin deletes a tenant, and returns its row. Doing it again changes nothing.
func (r *Removal) Begin(ctx context.Context, name string, by tenants.Edit) (tenants.Tenant, error) {
	if name == tenants.DefaultName {
		return tenants.Tenant{}, problem.New(http.StatusConflict, "default-tenant", "The tenant default is always there; delete its jobs instead.")
	}
	t, err := r.Directory.Read(ctx, name)
	if err != nil || t.Status == tenants.StatusDeleted {
		return t, err
	}
	if err := r.hold(ctx, &t, by); err != nil {
		return t, err
	}
	return r.begun(ctx, name, by.By)
}

// errAsItIs means that a row is to stay as it is.
var errAsItIs = errors.New("the row stays as it is")

// begun notes in a tenant's row that its data is being removed.
func (r *Removal) begun(ctx context.Context, name string, by job.Author) (tenants.Tenant, error) {
	now := job.Instant(r.Clock.Now())
	t, err := r.Directory.Change(ctx, name, func(t *tenants.Tenant) error {
		if t.Status != tenants.StatusActive {
			return errAsItIs
		}
		t.Status = tenants.StatusDeleting
		t.Removal = &tenants.Removal{Step: tenants.StepStopping, By: by, StartedAt: now, UpdatedAt: now}
		return nil
	})
	if errors.Is(err, errAsItIs) {
		return t, nil
	}
	return t, err
}

// hold keeps everything of a tenant from being dispatched.
func (r *Removal) hold(ctx context.Context, t *tenants.Tenant, by tenants.Edit) error {
	for {
		old, h, err := r.readHold(ctx)
		if err != nil || h.Deletes(t.Number) {
			return err
		}
		if h.Deleting = append(h.Deleting, job.Deletion{Tenant: t.Number, By: by.By}); len(h.Deleting) > job.MaxDeletingTenants {
			return problem.New(http.StatusConflict, "too-many-deletions", "100 tenants are being deleted already; try again when one of them is gone.")
		}
		change := job.Change{Operation: by.Operation, Setting: jobstore.SettingDispatchHold, Object: t.Name}
		err = r.Change.Setting(ctx, job.InstallationSettings(), job.DefaultTenant, change, by.By, &h.Changes, func() error {
			return r.swapHold(ctx, old, &h)
		})
		if !errors.Is(err, jobstore.ErrConflict) || ctx.Err() != nil {
			return err
		}
	}
}

func (r *Removal) readHold(ctx context.Context) (old []byte, h job.DispatchHold, err error) {
	old, err = r.Settings.Setting(ctx, jobstore.SettingDispatchHold)
	if err == nil && old != nil {
		err = json.Unmarshal(old, &h)
	}
	return old, h, err
}

func (r *Removal) swapHold(ctx context.Context, old []byte, h *job.DispatchHold) error {
	value, err := json.Marshal(h)
	if err != nil {
		return err
	}
	return r.Settings.SwapSetting(ctx, jobstore.SettingDispatchHold, old, value)
}

// Run removes the data of the tenants that are being deleted, a page of each in turn, until ctx ends.
func (r *Removal) Run(ctx context.Context) {
	for goesOn := false; goesOn && ctx.Err() == nil || run.Sleep(ctx, lookEvery) == nil; {
		_, h, err := r.readHold(ctx)
		if err != nil && ctx.Err() == nil {
			r.Logger.Warn("cannot read which tenants are being deleted", "error", err)
		}
		goesOn = false
		for _, d := range h.Deleting {
			err := r.carryOn(ctx, d)
			if err != nil && !errors.Is(err, errAsItIs) && ctx.Err() == nil {
				r.Logger.Warn("cannot go on removing a tenant, it is tried again", "tenant", d.Tenant, "error", err)
			}
			goesOn = goesOn || err == nil
		}
	}
}

// carryOn removes a page of a tenant. It fails with errAsItIs if there is nothing to do now, or another process does it.
func (r *Removal) carryOn(ctx context.Context, d job.Deletion) error {
	name, err := r.Directory.Name(ctx, d.Tenant)
	if err != nil {
		return err
	}
	if _, err := r.begun(ctx, name, d.By); err != nil { // if the request died
		return err
	}
	t, err := r.claim(ctx, name)
	if err != nil {
		return err
	}
	if t.Status == tenants.StatusDeleted {
		return r.release(ctx, d.Tenant)
	}
	progress := *t.Removal
	if err := r.step(ctx, &t, &progress); err != nil {
		return err
	}
	return r.note(ctx, name, progress)
}

// claim takes the removal of a tenant for this process. It fails with errAsItIs if another has it, or the next step is not due.
func (r *Removal) claim(ctx context.Context, name string) (tenants.Tenant, error) {
	now := job.Instant(r.Clock.Now())
	return r.Directory.Change(ctx, name, func(t *tenants.Tenant) error {
		if t.Status == tenants.StatusDeleted {
			return nil
		}
		m := t.Removal
		if m == nil || m.Worker != r.Worker && now.Before(m.Until) || now.Before(m.GoesOnAt) {
			return errAsItIs
		}
		m.Worker, m.Until = r.Worker, now.Add(lease)
		return nil
	})
}

// note stores how far a removal is, unless another process has taken it over.
func (r *Removal) note(ctx context.Context, name string, progress tenants.Removal) error {
	progress.UpdatedAt = job.Instant(r.Clock.Now())
	_, err := r.Directory.Change(ctx, name, func(t *tenants.Tenant) error {
		if t.Removal == nil || t.Removal.Worker != r.Worker {
			return errAsItIs
		}
		if t.Removal = &progress; progress.Step == tenants.StepDone {
			t.Status = tenants.StatusDeleted
		}
		return nil
	})
	return err
}

// step removes one page. Every part of it may be done twice.
func (r *Removal) step(ctx context.Context, t *tenants.Tenant, m *tenants.Removal) error {
	m.GoesOnAt = time.Time{}
	switch m.Step {
	case tenants.StepStopping:
		return r.stop(ctx, t, m)
	case tenants.StepWaiting:
		m.Step = tenants.StepRemoving
		return nil
	case tenants.StepRemoving:
		return r.remove(ctx, t, m)
	}
	return r.clear(ctx, t, m)
}

// stop cancels a page of jobs, the newest first.
func (r *Removal) stop(ctx context.Context, t *tenants.Tenant, m *tenants.Removal) error {
	jobs, next, err := r.Jobs.List(ctx, t.Number, m.Cursor, page)
	if err != nil {
		return fmt.Errorf("list jobs of tenant %s: %w", t.Name, err)
	}
	if _, err = r.cancel(ctx, t, m, jobs); err != nil {
		return err
	}
	if m.Cursor = next; next == "" {
		m.Step, m.GoesOnAt = tenants.StepWaiting, job.Instant(r.Clock.Now().Add(quiet))
	}
	return nil
}

// cancel cancels and hides jobs; late reports whether any of them was not.
func (r *Removal) cancel(ctx context.Context, t *tenants.Tenant, m *tenants.Removal, jobs []job.Job) (late bool, err error) {
	jobs = slices.DeleteFunc(slices.Clone(jobs), func(j job.Job) bool { return j.Deleted })
	edit := jobchange.Edit{Operation: "deleteTenant", Object: t.Name, By: m.By, Apply: func(_ context.Context, j *job.Job) error {
		return jobchange.Cancel(j, job.Instant(r.Clock.Now()), true)
	}}
	err = run.Each(len(jobs), atOnce, func(i int) error {
		changed, err := r.Change.Change(ctx, t.Number, jobs[i].ID, edit)
		if errors.Is(err, jobstore.ErrNotFound) {
			return nil
		}
		if err == nil && r.Change.Near != nil && len(changed.Entries) > 0 {
			r.Change.Near(ctx, changed.Entries)
		}
		return err
	})
	if err != nil {
		return false, fmt.Errorf("cancel jobs of tenant %s: %w", t.Name, err)
	}
	m.Stopped += int64(len(jobs))
	return len(jobs) > 0, nil
}

// untold is how long a page waits in which a job's changes are not published yet.
const untold = 10 * time.Second

// remove removes a page of jobs with their history, the newest first. A job that a slow request has written meanwhile is cancelled
// first. One of whose changes an event is still to come holds the page up: without its row nobody could tell that the change was made.
func (r *Removal) remove(ctx context.Context, t *tenants.Tenant, m *tenants.Removal) error {
	jobs, next, err := r.Jobs.List(ctx, t.Number, m.Cursor, page)
	if err != nil {
		return fmt.Errorf("list jobs of tenant %s: %w", t.Name, err)
	}
	late, err := r.cancel(ctx, t, m, jobs)
	if err != nil {
		return err
	}
	waits := make([]bool, len(jobs))
	err = run.Each(len(jobs), atOnce, func(i int) error {
		published, err := r.Change.Published(ctx, jobs[i].ID, append(jobs[i].Changes, job.CreationRef(jobs[i].ID)))
		if waits[i] = !published || late; err != nil || waits[i] {
			return err
		}
		return r.removeJob(ctx, t, &jobs[i])
	})
	if err != nil {
		return err
	}
	for _, w := range waits {
		if !w {
			m.Jobs++
		}
	}
	switch {
	case slices.Contains(waits, true):
		m.GoesOnAt = job.Instant(r.Clock.Now().Add(untold))
	case next == "":
		m.Step, m.Cursor = tenants.StepClearing, ""
	default:
		m.Cursor = next
	}
	return nil
}

// removeJob removes a job; the row goes last, so that a crash leaves a job that is found again.
func (r *Removal) removeJob(ctx context.Context, t *tenants.Tenant, j *job.Job) error {
	for _, of := range []jobstore.Of{jobstore.OfJob(j), {ID: job.ChangesOf(j.ID)}} {
		if err := r.History.Forget(ctx, of); err != nil {
			return fmt.Errorf("forget the history of job %s: %w", j.ID, err)
		}
	}
	if j.Followed || j.Version > 1 || j.Definition.Schedule.Type == job.ScheduleAfter {
		if err := (dependents.Store{Jobs: r.Jobs, Settings: r.Settings}).Forget(ctx, j.ID); err != nil {
			return err
		}
	}
	if err := r.Jobs.Remove(ctx, t.Number, j.ID); err != nil {
		return fmt.Errorf("remove job %s: %w", j.ID, err)
	}
	return nil
}

// clear removes what is left when the jobs are gone: keys, page by page, then dead letters, listings, operations and the changes of settings.
func (r *Removal) clear(ctx context.Context, t *tenants.Tenant, m *tenants.Removal) error {
	next, err := r.Directory.RemoveKeys(ctx, tenants.ScopeOf(t.Number), m.Key)
	m.Key = next
	if errors.Is(err, tenants.ErrUntold) {
		m.GoesOnAt = job.Instant(r.Clock.Now().Add(untold))
		return nil
	}
	if err != nil || next != 0 {
		return err
	}
	if err := r.History.RemoveDeadLetters(ctx, t.Number); err != nil {
		return fmt.Errorf("remove the dead letters of tenant %s: %w", t.Name, err)
	}
	if err := r.Jobs.RemoveListings(ctx, t.Number); err != nil {
		return fmt.Errorf("remove the listings of tenant %s: %w", t.Name, err)
	}
	if err := (incidents.Store{Lists: r.Settings}).Forget(ctx, t.Number, r.Clock.Now()); err != nil {
		return err
	}
	if err := (forecast.Store{Lists: r.Settings}).Forget(ctx, t.Number); err != nil {
		return err
	}
	for _, forget := range []func(context.Context, job.Tenant) (told bool, err error){r.forgetConnections, r.forgetPools} {
		told, err := forget(ctx, t.Number)
		if err != nil {
			return err
		}
		if !told {
			m.GoesOnAt = job.Instant(r.Clock.Now().Add(untold))
			return nil
		}
	}
	err = (&operations.Store{Settings: r.Settings, Recorder: r.Change.Recorder}).Forget(ctx, t.Number)
	if errors.Is(err, jobchange.ErrUntold) {
		m.GoesOnAt = job.Instant(r.Clock.Now().Add(untold))
		return nil
	}
	if err != nil {
		return err
	}
	if err := r.History.Forget(ctx, jobstore.Of{ID: job.ChangesOf(job.SettingsOf(t.Number))}); err != nil {
		return fmt.Errorf("forget the changes of tenant %s: %w", t.Name, err)
	}
	m.Step = tenants.StepDone
	return nil
}

func (r *Removal) forgetConnections(ctx context.Context, n job.Tenant) (told bool, err error) {
	return r.forgetSetting(ctx, n, messaging.SettingOf(n), func() ([]byte, []job.ChangeRef, error) {
		old, set, err := messaging.Read(ctx, r.Settings, n)
		return old, set.Changes, err
	})
}

func (r *Removal) forgetPools(ctx context.Context, n job.Tenant) (told bool, err error) {
	return r.forgetSetting(ctx, n, pools.SettingOf(n), func() ([]byte, []job.ChangeRef, error) {
		old, set, err := pools.Read(ctx, r.Settings, n)
		return old, set.Changes, err
	})
}

// forgetSetting removes a setting of a tenant, once it is known how it changed. Nobody is let in any more who could change it.
func (r *Removal) forgetSetting(
	ctx context.Context, n job.Tenant, name string, read func() (old []byte, changes []job.ChangeRef, err error),
) (told bool, err error) {
	for {
		old, changes, err := read()
		if err != nil || old == nil {
			return err == nil, err
		}
		if told, err := r.Change.Published(ctx, job.SettingsOf(n), changes); err != nil || !told {
			return false, err
		}
		if err = r.Settings.SwapSetting(ctx, name, old, nil); !errors.Is(err, jobstore.ErrConflict) || ctx.Err() != nil {
			return err == nil, err
		}
	}
}

// release takes a tenant whose data is gone out of the setting that holds dispatch.
func (r *Removal) release(ctx context.Context, n job.Tenant) error {
	for {
		old, h, err := r.readHold(ctx)
		if err != nil || !h.Deletes(n) {
			return err
		}
		delete(h.Tenants, n)
		h.Deleting = slices.DeleteFunc(h.Deleting, func(d job.Deletion) bool { return d.Tenant == n })
		err = r.swapHold(ctx, old, &h)
		if !errors.Is(err, jobstore.ErrConflict) || ctx.Err() != nil {
			return err
		}
	}
}
