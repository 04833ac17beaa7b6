package removal_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/incidents"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobchange"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/tenants"
	"github.com/minutehand/minutehand/libs/tenants/tenantstest"
	"github.com/minutehand/minutehand/services/job-api/internal/removal"
)

// store is the stores of an installation in memory. Calls that change something are counted, and fail from a number on.
type store struct {
	jobstore.Jobs
	jobstore.Pending
	jobstore.History
	tenantstest.Memory
	mu      sync.Mutex
	jobs    map[string]job.Job
	stopped map[string]bool
	letters []job.DeadLetter
	history map[string]bool
	writes  int
	dies    int
	untold  bool
}

var errDied = errors.New("the process died")

func (s *store) write() error {
	if s.writes++; s.dies > 0 && s.writes >= s.dies {
		return errDied
	}
	return nil
}

func (s *store) SwapSetting(ctx context.Context, name string, old, value []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.write(); err != nil {
		return err
	}
	return s.Memory.SwapSetting(ctx, name, old, value)
}

func (s *store) Put(context.Context, []job.Entry) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.write()
}

// Rows finds the entries of changes as long as nobody publishes them.
func (s *store) Rows(_ context.Context, locators []job.Locator) (map[job.Locator]job.PendingRow, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rows := map[job.Locator]job.PendingRow{}
	for _, l := range locators {
		if s.untold {
			rows[l] = job.PendingRow{}
		}
	}
	return rows, nil
}

func (s *store) SetStop(_ context.Context, id string, _ job.State) (time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped[id] = true
	return 0, s.write()
}

func (s *store) Get(_ context.Context, id string) (job.Job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j, ok := s.jobs[id]
	if !ok {
		return j, jobstore.ErrNotFound
	}
	return j, nil
}

func (s *store) GetSerial(ctx context.Context, id string) (job.Job, error) { return s.Get(ctx, id) }

func (s *store) Replace(_ context.Context, j job.Job) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.write(); err != nil {
		return err
	}
	s.jobs[j.ID] = j
	return nil
}

func (s *store) List(_ context.Context, tenant job.Tenant, cursor string, limit int) (page []job.Job, next string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []string
	for id, j := range s.jobs {
		if j.Tenant == tenant && (cursor == "" || id < cursor) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	slices.Reverse(ids)
	for _, id := range ids {
		if len(page) == limit {
			return page, page[limit-1].ID, nil
		}
		page = append(page, s.jobs[id])
	}
	return page, "", nil
}

func (s *store) Remove(_ context.Context, _ job.Tenant, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.write(); err != nil {
		return err
	}
	delete(s.jobs, id)
	return nil
}

func (s *store) Forget(_ context.Context, of jobstore.Of) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.write(); err != nil {
		return err
	}
	delete(s.history, of.ID)
	return nil
}

func (s *store) RemoveDeadLetters(_ context.Context, tenant job.Tenant) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.write(); err != nil {
		return err
	}
	s.letters = slices.DeleteFunc(s.letters, func(d job.DeadLetter) bool { return d.Event.Entry.Tenant == tenant })
	return nil
}

func (s *store) RemoveListings(context.Context, job.Tenant) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.write()
}

// process is one process that removes.
func (s *store) process(n int) *removal.Removal {
	r := jobchange.Recorder{Pending: s, Entropy: rand.Reader, Partitions: 4, Grace: 2 * time.Minute}
	return &removal.Removal{
		Jobs: s, History: s, Settings: s, Directory: tenants.New(s, r, clock.Clock{}), Logger: slog.New(slog.DiscardHandler),
		Change: jobchange.Changer{Jobs: s, Stops: stops{s}, Recorder: r}, Worker: fmt.Sprint("process ", n),
	}
}

type stops struct{ *store }

var _ attempts.Stops = stops{}

func (stops) StopsOf(context.Context, []string) (map[string]job.State, error) { return nil, nil }

// filled returns a store with two tenants, each with jobs, dead letters, keys and history.
func filled(t *testing.T) (*store, map[string]tenants.Tenant) {
	t.Helper()
	s := &store{jobs: map[string]job.Job{}, stopped: map[string]bool{}, history: map[string]bool{}}
	d := s.process(0).Directory
	of := map[string]tenants.Tenant{}
	for _, name := range []string{"acme", "globex"} {
		row, err := d.Create(t.Context(), name, tenants.Edit{})
		if err != nil {
			t.Fatal(err)
		}
		of[name] = row
		for range 5 {
			id := job.JobPrefix + ulid.Make().String()
			s.jobs[id] = job.Job{ID: id, Tenant: row.Number, Status: job.StatusActive, Version: 1}
			s.history[id], s.history[job.ChangesOf(id)] = true, true
		}
		for n := range 3 {
			letter := job.DeadLetter{Event: job.Event{ID: fmt.Sprint(name, n), Entry: job.Entry{Tenant: row.Number}}}
			s.letters = append(s.letters, letter)
		}
		if _, _, err := d.CreateKey(t.Context(), tenants.Key{Scope: tenants.ScopeOf(row.Number), Role: "admin"}, tenants.Edit{}); err != nil {
			t.Fatal(err)
		}
	}
	for name, row := range of {
		i := &incidents.Incident{ID: incidents.ID(job.JobPrefix+"01ARZ3NDEKTSV4RRFFQ69G5FAV", incidents.StartWithin, time.Now()), Tenant: row.Number, JobName: name, First: time.Now()}
		if err := (incidents.Store{Lists: s}).Put(t.Context(), i); err != nil {
			t.Fatal(err)
		}
	}
	s.writes = 0
	return s, of
}

// until runs a process until what it removes is gone, or it dies.
func until(s *store, n int, d time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	s.process(n).Run(ctx)
}

// The process that removes dies at every one of its writes, and others carry on.
func TestTenantIsRemovedWhateverDies(t *testing.T) {
	died := true
	dies := 0
	for died {
		dies++
		bubble.Test(t, func(t *testing.T) {
			s, of := filled(t)
			s.dies = dies
			if _, err := s.process(1).Begin(t.Context(), "acme", tenants.Edit{Operation: "deleteTenant"}); err == nil {
				until(s, 1, 30*time.Minute)
			}
			died, s.dies = s.writes >= dies, 0
			if _, err := s.process(2).Begin(t.Context(), "acme", tenants.Edit{Operation: "deleteTenant"}); err != nil {
				t.Fatal(err)
			}
			until(s, 2, 30*time.Minute)
			row, err := s.process(3).Directory.Tenant(t.Context(), "acme")
			if err != nil || row.Status != tenants.StatusDeleted || row.Removal.Step != tenants.StepDone {
				t.Fatalf("died at write %d: %+v %+v, %v", dies, row, row.Removal, err)
			}
			if len(s.jobs) != 5 || len(s.letters) != 3 || len(s.history) != 10 || len(s.stopped) < 5 {
				t.Errorf("died at write %d: %d jobs, %d letters, %d histories are left, want the other tenant's", dies, len(s.jobs), len(s.letters), len(s.history))
			}
			for _, j := range s.jobs {
				if j.Tenant != of["globex"].Number || j.Status != job.StatusActive {
					t.Errorf("died at write %d: %+v", dies, j)
				}
			}
			if keys, _, err := s.process(3).Directory.Keys(t.Context(), tenants.ScopeOf(of["acme"].Number), 0, 10); err != nil || len(keys) != 0 {
				t.Errorf("died at write %d: %d keys are left, %v", dies, len(keys), err)
			}
			for name, row := range of {
				list, _, err := incidents.Store{Lists: s}.List(t.Context(), row.Number, "", time.Now(), 10)
				if err != nil || len(list) > 0 != (name == "globex") {
					t.Errorf("died at write %d: incidents of %s: %v, %v", dies, name, list, err)
				}
			}
			if text, _ := s.Setting(t.Context(), jobstore.SettingDispatchHold); holdOf(t, text).Deletes(of["acme"].Number) {
				t.Errorf("died at write %d: the tenant is still held", dies)
			}
		})
	}
	if dies < 30 {
		t.Errorf("only %d writes", dies)
	}
}

func holdOf(t *testing.T, text []byte) *job.DispatchHold {
	t.Helper()
	h := &job.DispatchHold{}
	if err := json.Unmarshal(text, h); err != nil {
		t.Fatal(err)
	}
	return h
}

func TestTenantIsHeldFromTheAnswerOn(t *testing.T) {
	s, of := filled(t)
	p := s.process(1)
	row, err := p.Begin(t.Context(), "acme", tenants.Edit{Operation: "deleteTenant"})
	if err != nil || row.Status != tenants.StatusDeleting {
		t.Fatalf("%+v, %v", row, err)
	}
	text, err := s.Setting(t.Context(), jobstore.SettingDispatchHold)
	if err != nil {
		t.Fatal(err)
	}
	if h := holdOf(t, text); !h.Holds(of["acme"].Number, nil) || h.Holds(of["globex"].Number, nil) || h.Holds(job.DefaultTenant, nil) {
		t.Errorf("held: %s", text)
	}
	writes := s.writes
	if again, err := p.Begin(t.Context(), "acme", tenants.Edit{}); err != nil || again.Status != tenants.StatusDeleting || s.writes != writes {
		t.Errorf("deleted again: %+v, %v, %d writes", again, err, s.writes-writes)
	}
	for name, want := range map[string]string{"default": "default", "nobody": "no such row"} {
		if _, err := p.Begin(t.Context(), name, tenants.Edit{}); err == nil {
			t.Errorf("%s was deleted, want %q", name, want)
		}
	}
}

// Two processes see the same tenant; a request that was slow has written a job meanwhile.
func TestOneProcessRemovesAtATimeAndMissesNoLateJob(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, of := filled(t)
		if _, err := s.process(1).Begin(t.Context(), "acme", tenants.Edit{Operation: "deleteTenant"}); err != nil {
			t.Fatal(err)
		}
		until(s, 1, time.Minute)
		row, err := s.process(2).Directory.Tenant(t.Context(), "acme")
		if err != nil || row.Removal.Step != tenants.StepWaiting || row.Removal.Stopped != 5 {
			t.Fatalf("%+v, %v", row.Removal, err)
		}
		late := job.JobPrefix + ulid.Make().String()
		s.jobs[late] = job.Job{ID: late, Tenant: of["acme"].Number, Status: job.StatusActive, Version: 1}
		writes := s.writes
		until(s, 2, 5*time.Minute) // it waits
		if s.writes != writes {
			t.Errorf("%d writes while what is on its way is recorded", s.writes-writes)
		}
		until(s, 2, 10*time.Minute)
		row, err = s.process(3).Directory.Tenant(t.Context(), "acme")
		if err != nil || row.Status != tenants.StatusDeleted || row.Removal.Stopped != 6 || row.Removal.Jobs != 6 || !s.stopped[late] {
			t.Errorf("%+v, %v", row.Removal, err)
		}
	})
}

// Without its row nobody could tell that a change was made, and its entry would be dropped.
func TestRowsOfWhichAChangeIsNotPublishedStay(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, of := filled(t)
		s.untold = true
		if _, err := s.process(1).Begin(t.Context(), "acme", tenants.Edit{Operation: "deleteTenant"}); err != nil {
			t.Fatal(err)
		}
		until(s, 1, 30*time.Minute)
		keys, _, err := s.process(3).Directory.Keys(t.Context(), tenants.ScopeOf(of["acme"].Number), 0, 10)
		if row, _ := s.process(2).Directory.Tenant(t.Context(), "acme"); len(s.jobs) != 10 || len(keys) != 1 || err != nil || row.Removal.Step != tenants.StepRemoving {
			t.Fatalf("%d jobs and %d keys are left, %v; %+v", len(s.jobs), len(keys), err, row.Removal)
		}
		s.untold = false
		until(s, 1, time.Minute)
		if row, _ := s.process(2).Directory.Tenant(t.Context(), "acme"); len(s.jobs) != 5 || row.Status != tenants.StatusDeleted {
			t.Errorf("%d jobs are left; %+v", len(s.jobs), row.Removal)
		}
	})
}
