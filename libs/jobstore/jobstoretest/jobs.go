// Package jobstoretest is the conformance suite of the cold store. Every adapter passes it, the embedded one and the
// one on the real server; a clause of the contract is a test here.
package jobstoretest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// newJob is a job of a tenant of its own, so that suites may share a store.
func newJob() job.Job {
	now := job.Instant(time.Now())
	return job.Job{
		ID: job.JobPrefix + ulid.Make().String(), TenantID: "tenant-" + ulid.Make().String(), Name: "conformance",
		Status: job.Active, Version: 1, CreatedAt: now, UpdatedAt: now, Labels: map[string]string{"a": "b"},
		Definition: job.Definition{
			ID: job.DefinitionPrefix + ulid.Make().String(), EffectiveAt: now, FirstOrdinal: 1,
			Schedule: job.Schedule{Type: job.Interval, Every: time.Minute, StartAt: now},
			Target:   job.Target{Kind: job.TargetWebhook, URL: "http://target/", Method: "POST", Timeout: time.Second},
			Retry:    job.DefaultRetryPolicy(),
		},
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mustBe(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got error %v, want %v", err, want)
	}
}

// RunJobs runs the suite of job rows.
func RunJobs(t *testing.T, open func(t *testing.T) jobstore.Jobs) {
	t.Run("a created job is read back as it was written", func(t *testing.T) {
		s, j := open(t), newJob()
		must(t, s.Create(t.Context(), j, false))
		for name, read := range map[string]func() (job.Job, error){
			"Get":       func() (job.Job, error) { return s.Get(t.Context(), j.ID) },
			"GetSerial": func() (job.Job, error) { return s.GetSerial(t.Context(), j.ID) },
		} {
			got, err := read()
			must(t, err)
			if fmt.Sprint(got) != fmt.Sprint(j) {
				t.Errorf("%s gave %+v, want %+v", name, got, j)
			}
		}
	})
	t.Run("what is not there is not found", func(t *testing.T) {
		s := open(t)
		_, err := s.Get(t.Context(), newJob().ID)
		mustBe(t, err, jobstore.ErrNotFound)
		_, err = s.GetSerial(t.Context(), newJob().ID)
		mustBe(t, err, jobstore.ErrNotFound)
		_, _, err = s.Definition(t.Context(), newJob().ID, "def_x")
		mustBe(t, err, jobstore.ErrNotFound)
		mustBe(t, s.Replace(t.Context(), newJob()), jobstore.ErrNotFound)
		rows, err := s.GetMany(t.Context(), []string{newJob().ID})
		must(t, err)
		if len(rows) != 0 {
			t.Errorf("GetMany gave %v", rows)
		}
	})
	t.Run("a second create leaves the row that is there", func(t *testing.T) {
		s, j := open(t), newJob()
		must(t, s.Create(t.Context(), j, false))
		other := j
		other.Name = "other"
		must(t, s.Create(t.Context(), other, false))
		mustBe(t, s.Create(t.Context(), other, true), jobstore.ErrExists)
		got, err := s.Get(t.Context(), j.ID)
		must(t, err)
		if got.Name != j.Name {
			t.Errorf("name is %q", got.Name)
		}
	})
	t.Run("a later create never shadows a replacement", func(t *testing.T) {
		s, j := open(t), newJob()
		must(t, s.Create(t.Context(), j, false))
		cancelled := j
		cancelled.Version, cancelled.Status = 2, job.Cancelled
		must(t, s.Replace(t.Context(), cancelled))
		must(t, s.Create(t.Context(), j, false))
		got, err := s.Get(t.Context(), j.ID)
		must(t, err)
		if got.Status != job.Cancelled || got.Version != 2 {
			t.Errorf("row is %s at version %d", got.Status, got.Version)
		}
	})
	t.Run("of concurrent replacements of one version one wins", func(t *testing.T) {
		s, j := open(t), newJob()
		must(t, s.Create(t.Context(), j, false))
		j.Version = 2
		if n := winners(t, 8, func() (bool, error) {
			err := s.Replace(t.Context(), j)
			if errors.Is(err, jobstore.ErrConflict) {
				return false, nil
			}
			return err == nil, err
		}); n != 1 {
			t.Errorf("%d replacements won", n)
		}
	})
	t.Run("a superseded definition is read with the one that followed it", func(t *testing.T) {
		s, j := open(t), newJob()
		a, b := job.Definition{ID: "def_A", FirstOrdinal: 1}, job.Definition{ID: "def_B", FirstOrdinal: 2}
		must(t, s.PutDefinition(t.Context(), j.ID, a))
		must(t, s.PutDefinition(t.Context(), j.ID, a))
		got, next, err := s.Definition(t.Context(), j.ID, "def_A")
		must(t, err)
		if got.FirstOrdinal != 1 || next != nil {
			t.Errorf("got %+v and %v", got, next)
		}
		must(t, s.PutDefinition(t.Context(), j.ID, b))
		_, next, err = s.Definition(t.Context(), j.ID, "def_A")
		must(t, err)
		if next == nil || next.ID != "def_B" {
			t.Errorf("next is %v", next)
		}
	})
	t.Run("a tenant's jobs are listed newest first, in pages without gap or repetition", func(t *testing.T) { listing(t, open(t)) })
	t.Run("of concurrent claims of a key one wins and all see it", func(t *testing.T) { claims(t, open(t)) })
}

func listing(t *testing.T, s jobstore.Jobs) {
	tenant := "tenant-" + ulid.Make().String()
	var want []string
	for range 7 {
		j := newJob()
		j.TenantID = tenant
		must(t, s.Create(t.Context(), j, false))
		want = append([]string{j.ID}, want...)
	}
	must(t, s.Create(t.Context(), newJob(), false)) // another tenant's
	var got []string
	cursor := ""
	for {
		page, next, err := s.List(t.Context(), tenant, cursor, 3)
		must(t, err)
		if len(page) > 3 {
			t.Fatalf("a page of %d", len(page))
		}
		for _, j := range page {
			got = append(got, j.ID)
		}
		if next == "" {
			break
		}
		cursor = next
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("listed %v, want %v", got, want)
	}
}

func claims(t *testing.T, s jobstore.Jobs) {
	tenant, now := "tenant-"+ulid.Make().String(), job.Instant(time.Now())
	var mu sync.Mutex
	seen := map[string]bool{}
	if n := winners(t, 8, func() (bool, error) {
		standing, won, err := s.ClaimKey(t.Context(), tenant, "key", jobstore.Claim{ID: ulid.Make().String(), AcceptedAt: now})
		mu.Lock()
		defer mu.Unlock()
		seen[standing.ID] = true
		return won, err
	}); n != 1 || len(seen) != 1 {
		t.Errorf("%d won, %d different claims were seen", n, len(seen))
	}
	must(t, s.FinishKey(t.Context(), tenant, "key", jobstore.Answer{Status: 201, Body: []byte("first")}))
	must(t, s.FinishKey(t.Context(), tenant, "key", jobstore.Answer{Status: 201, Body: []byte("second")}))
	standing, _, err := s.ClaimKey(t.Context(), tenant, "key", jobstore.Claim{AcceptedAt: now})
	must(t, err)
	if standing.Answer == nil || string(standing.Answer.Body) != "first" {
		t.Errorf("answer is %v", standing.Answer)
	}
}

// winners runs try at once from n goroutines and counts those that won.
func winners(t *testing.T, n int, try func() (bool, error)) int64 {
	t.Helper()
	var won atomic.Int64
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			ok, err := try()
			if err != nil {
				t.Error(err)
			}
			if ok {
				won.Add(1)
			}
		})
	}
	wg.Wait()
	return won.Load()
}
