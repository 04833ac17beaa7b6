package jobapi_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	jobapi "github.com/minutehand/minutehand/services/job-api"
)

// row returns a job's current row.
func (s *server) row(jobID string) job.Job {
	s.t.Helper()
	j, err := s.jobs.Get(s.t.Context(), jobID)
	if err != nil {
		s.t.Fatal(err)
	}
	return j
}

const everySecond = `{"name":"x","type":"interval","every":"1s","target":{"kind":"http_webhook","url":"http://x/"}}`

// Otherwise an instant between the update and the end of the pause would belong to no definition: it is outdated under the
// old one, and the new one has no entry before the resume, which begins after the pause.
func TestUpdateInAPauseBeginsBehindThePause(t *testing.T) {
	s := newServer(t, nil)
	id := s.create(everySecond)
	s.answer(http.StatusOK, http.MethodPost, "/jobs/"+id+"/pause", "")
	s.answer(http.StatusOK, http.MethodPatch, "/jobs/"+id, `{"name":"y"}`, "If-Match", "*")
	if j := s.row(id); !j.Definition.EffectiveAt.After(j.PausedAt) {
		t.Errorf("paused until %s, the new definition begins at %s", j.PausedAt, j.Definition.EffectiveAt)
	}
	before := s.row(id).Definition.EffectiveAt
	s.answer(http.StatusOK, http.MethodPatch, "/jobs/"+id, `{"name":"z"}`, "If-Match", "*")
	if after := s.row(id).Definition.EffectiveAt; !after.After(before) {
		t.Errorf("a definition that begins at %s is followed by one that begins at %s", before, after)
	}
}

func TestOccurrencesEndWhereAJobWasCancelledOrBehindThePauseItWasIn(t *testing.T) {
	s := newServer(t, nil)
	active, paused := s.create(everySecond), s.create(everySecond)
	s.answer(http.StatusOK, http.MethodPost, "/jobs/"+paused+"/pause", "")
	for _, id := range []string{active, paused} {
		s.answer(http.StatusOK, http.MethodPost, "/jobs/"+id+"/cancel", "")
	}
	if j := s.row(active); !j.EndsAt.Equal(j.UpdatedAt) {
		t.Errorf("cancelled at %s, its occurrences end at %s", j.UpdatedAt, j.EndsAt)
	}
	if j := s.row(paused); !j.EndsAt.Equal(j.PausedAt.Add(time.Millisecond)) {
		t.Errorf("paused until %s, its occurrences end at %s", j.PausedAt, j.EndsAt)
	}
	ends := s.row(active).EndsAt
	s.answer(http.StatusNoContent, http.MethodDelete, "/jobs/"+active, "")
	if j := s.row(active); !j.EndsAt.Equal(ends) {
		t.Errorf("deleting what was cancelled moved its end from %s to %s", ends, j.EndsAt)
	}
}

// failsOnce fails the first create, after it took effect or before.
type failsOnce struct {
	jobstore.Jobs
	takesEffect, failed bool
}

func (f *failsOnce) Create(ctx context.Context, j job.Job, exclusive bool) error {
	if f.failed {
		return f.Jobs.Create(ctx, j, exclusive)
	}
	f.failed = true
	if f.takesEffect {
		if err := f.Jobs.Create(ctx, j, exclusive); err != nil {
			return err
		}
	}
	return errors.New("no answer")
}

func TestTriesOfARegistrationSoonAfterEachOtherWriteOneEntry(t *testing.T) {
	for _, takesEffect := range []bool{false, true} {
		s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) { d.Jobs = &failsOnce{Jobs: d.Jobs, takesEffect: takesEffect} })
		s.answer(http.StatusServiceUnavailable, http.MethodPost, "/jobs", everySecond, "Idempotency-Key", "k")
		s.create(everySecond, "Idempotency-Key", "k")
		if n := s.entries(); n != 1 {
			t.Errorf("%d entries after two tries (the first took effect: %v)", n, takesEffect)
		}
	}
}

// slow stalls after its calls, for a different time after each.
type slow struct {
	jobstore.Jobs
	jobstore.Pending
	create error
	finish error
	delays []time.Duration
	puts   []job.Entry
}

func (s *slow) stall() {
	if len(s.delays) > 0 {
		time.Sleep(s.delays[0])
		s.delays = s.delays[1:]
	}
}

func (s *slow) Put(ctx context.Context, entries []job.Entry) error {
	err := s.Pending.Put(ctx, entries)
	for _, e := range entries {
		if e.Change == nil { // a change's has an id of its own in each turn
			s.puts = append(s.puts, e)
		}
	}
	s.stall()
	return err
}

func (s *slow) Create(ctx context.Context, j job.Job, exclusive bool) error {
	if err := s.create; err != nil {
		s.create = nil
		return err
	}
	return s.Jobs.Create(ctx, j, exclusive)
}

func (s *slow) FinishKey(ctx context.Context, tenant job.Tenant, key string, a jobstore.Answer) error {
	if err := s.finish; err != nil {
		s.finish = nil
		return err
	}
	return s.Jobs.FinishKey(ctx, tenant, key, a)
}

// slowly runs a test with fake time on an API whose store is slow.
func slowly(t *testing.T, test func(t *testing.T, s *server, store *slow)) {
	bubble.Test(t, func(t *testing.T) {
		store := &slow{}
		s := newServer(t, func(c *jobapi.Config, d *jobapi.Deps) {
			store.Jobs, store.Pending = d.Jobs, d.Pending
			d.Jobs, d.Pending = store, store
			c.Grace = 2 * time.Minute
		})
		test(t, s, store)
	})
}

// A worker that looked for the row in vain drops the entry whenever it comes to it. So an entry whose grace is over is as
// good as dropped. (Seed 6530 of the simulation.)
func TestEntryWhoseGraceIsOverIsWrittenAnewBeforeTheAnswer(t *testing.T) {
	slowly(t, func(t *testing.T, s *server, store *slow) {
		store.create = errFlaky
		body := oneShot(time.Now().Add(90*time.Second), "")
		s.answer(http.StatusServiceUnavailable, http.MethodPost, "/jobs", body, "Idempotency-Key", "k")
		time.Sleep(119 * time.Second)
		s.create(body, "Idempotency-Key", "k")
		if n := len(store.puts); n < 2 || store.puts[n-1].Minute == store.puts[0].Minute {
			t.Fatalf("written: %v, want an entry in another minute", store.puts)
		} else if last := store.puts[n-1]; last.Repeats != store.puts[0].Minute {
			t.Errorf("the entry repeats the one of minute %d, want %d", last.Repeats, store.puts[0].Minute)
		}
	})
}

// Otherwise the missed-run policy would decide differently about the two. (Seed 4836 of the simulation.)
func TestEntryOfAnUpdateThatWasSlowSaysWhichItRepeats(t *testing.T) {
	slowly(t, func(t *testing.T, s *server, store *slow) {
		id := s.create(everySecond)
		store.puts, store.delays = nil, []time.Duration{65 * time.Second, 65 * time.Second}
		s.answer(http.StatusOK, http.MethodPatch, "/jobs/"+id, `{"name":"y"}`, "If-Match", "*")
		if len(store.puts) != 3 || store.puts[0].Repeats != 0 {
			t.Fatalf("written: %v, want three entries", store.puts)
		}
		for _, e := range store.puts[1:] {
			if e.Minute == store.puts[0].Minute || e.Repeats != store.puts[0].Minute {
				t.Errorf("the entry of minute %d repeats the one of %d, want %d", e.Minute, e.Repeats, store.puts[0].Minute)
			}
		}
	})
}

func TestTraceOfTheRequestGoesWithTheEntry(t *testing.T) {
	slowly(t, func(t *testing.T, s *server, store *slow) {
		const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
		id := s.create(everySecond, "Traceparent", parent)
		s.answer(http.StatusOK, http.MethodPatch, "/jobs/"+id, `{"name":"y"}`, "If-Match", "*", "Traceparent", parent)
		s.answer(http.StatusAccepted, http.MethodPost, "/jobs/"+id+"/trigger", "", "Traceparent", parent)
		s.answer(http.StatusOK, http.MethodPost, "/jobs:batch", `{"jobs":[`+everySecond+`]}`, "Traceparent", parent)
		for i, e := range store.puts {
			if e.Trace != parent {
				t.Errorf("entry %d has the trace %q, want the request's", i, e.Trace)
			}
		}
		if len(store.puts) != 4 {
			t.Errorf("%d entries were written, want 4", len(store.puts))
		}
	})
}
