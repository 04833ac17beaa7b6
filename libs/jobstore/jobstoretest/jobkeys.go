package jobstoretest

import (
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// keyed returns a job of a tenant with a key.
func keyed(tenant job.Tenant, key string) job.Job {
	j := newJob()
	j.Tenant, j.Key = tenant, key
	return j
}

// holdKey returns who has a job's key after the job asked for it. A call that was not answered may have taken effect.
func holdKey(t *testing.T, s jobstore.Jobs, j job.Job, gone string) string {
	t.Helper()
	var err error
	for range mostUnanswered {
		var holder string
		if holder, err = s.HoldJobKey(t.Context(), j, gone); err == nil {
			return holder
		}
	}
	t.Errorf("a key: %v", err)
	return ""
}

func hasKey(t *testing.T, s jobstore.Jobs, tenant job.Tenant, key, want string) {
	t.Helper()
	got, err := s.JobOfKey(t.Context(), tenant, key)
	must(t, err)
	same(t, "the job with the key", got, want)
}

func jobKeyRace(t *testing.T, s jobstore.Jobs) {
	tenant := newTenant()
	_, err := s.JobOfKey(t.Context(), tenant, "nightly")
	mustBe(t, err, jobstore.ErrNotFound)
	ids, holders := make([]string, writers), make([]string, writers)
	atOnce(writers, func(i int) {
		j := keyed(tenant, "nightly")
		ids[i], holders[i] = j.ID, holdKey(t, s, j, "")
	})
	won := 0
	for i, h := range holders {
		same(t, "the job with the key", h, holders[0])
		if h == ids[i] {
			won++
		}
	}
	same(t, "the number of jobs that got the key", won, 1)
	hasKey(t, s, tenant, "nightly", holders[0])
}

func jobKeyPasses(t *testing.T, s jobstore.Jobs) {
	tenant := newTenant()
	first, second, third := keyed(tenant, "nightly"), keyed(tenant, "nightly"), keyed(tenant, "nightly")
	same(t, "the first holder", holdKey(t, s, first, ""), first.ID)
	same(t, "the holder, asked by itself", holdKey(t, s, first, ""), first.ID)
	same(t, "the holder, asked about another that is gone", holdKey(t, s, second, third.ID), first.ID)
	same(t, "the holder after the first", holdKey(t, s, second, first.ID), second.ID)
	same(t, "the holder, asked too late", holdKey(t, s, third, first.ID), second.ID)
	hasKey(t, s, tenant, "nightly", second.ID)
	free := keyed(tenant, "weekly")
	same(t, "the holder of a key that nobody had", holdKey(t, s, free, first.ID), free.ID)
}

func jobKeyStays(t *testing.T, s jobstore.Jobs) {
	j := keyed(newTenant(), "nightly")
	j.Definition.Schedule = job.Schedule{Type: job.ScheduleOneShot, RunAt: time.Now().Add(time.Hour)}
	same(t, "the holder", holdKey(t, s, j, ""), j.ID)
	must(t, s.Create(t.Context(), j, true))
	stored, err := s.Get(t.Context(), j.ID)
	must(t, err)
	same(t, "the key in the row", stored.Key, j.Key)
	change := func(apply func()) {
		apply()
		j.Version++
		must(t, s.Replace(t.Context(), j))
	}
	for _, apply := range []func(){
		func() { j.Status = job.StatusPaused },
		func() { j.Status = job.StatusActive },
		func() { j.Definition = newDefinition(newDefinitionID()) },
		func() { j.Status = job.StatusCancelled },
	} {
		change(apply)
		hasKey(t, s, j.Tenant, j.Key, j.ID)
		other := keyed(j.Tenant, j.Key)
		same(t, "the holder", holdKey(t, s, other, ""), j.ID)
	}
	change(func() { j.Deleted = true })
	next := keyed(j.Tenant, j.Key)
	same(t, "the holder after a deleted job", holdKey(t, s, next, j.ID), next.ID)
	change(func() {})
	must(t, s.Remove(t.Context(), j.Tenant, j.ID))
	hasKey(t, s, next.Tenant, next.Key, next.ID)
	must(t, s.Create(t.Context(), next, true))
	must(t, s.Remove(t.Context(), next.Tenant, next.ID))
	_, err = s.JobOfKey(t.Context(), next.Tenant, next.Key)
	mustBe(t, err, jobstore.ErrNotFound)
}

func jobKeysAreSeparate(t *testing.T, s jobstore.Jobs) {
	one, two := keyed(newTenant(), "nightly"), keyed(newTenant(), "nightly")
	other := keyed(one.Tenant, "weekly")
	for _, j := range []job.Job{one, two, other} {
		same(t, "the holder", holdKey(t, s, j, ""), j.ID)
	}
	for _, j := range []job.Job{one, two, other} {
		hasKey(t, s, j.Tenant, j.Key, j.ID)
	}
}
