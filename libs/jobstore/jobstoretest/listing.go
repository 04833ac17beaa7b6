package jobstoretest

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

func jobIsRemoved(t *testing.T, s jobstore.Jobs) {
	tenant := newTenant()
	var jobs []job.Job
	for range 3 {
		j := newJob()
		j.Tenant = tenant
		must(t, s.Create(t.Context(), j, true))
		must(t, s.PutDefinition(t.Context(), j.ID, newDefinition(newDefinitionID())))
		jobs = append(jobs, j)
	}
	for range 2 {
		must(t, s.Remove(t.Context(), tenant, jobs[1].ID))
		_, err := s.Get(t.Context(), jobs[1].ID)
		mustBe(t, err, jobstore.ErrNotFound)
		_, err = s.GetSerial(t.Context(), jobs[1].ID)
		mustBe(t, err, jobstore.ErrNotFound)
		late := jobs[1]
		late.Version++
		mustBe(t, s.Replace(t.Context(), late), jobstore.ErrNotFound)
		page, _, err := s.List(t.Context(), tenant, "", 10)
		must(t, err)
		if len(page) != 2 || page[0].ID == jobs[1].ID || page[1].ID == jobs[1].ID {
			t.Errorf("%d jobs are listed, want the other two", len(page))
		}
	}
	for _, j := range jobs {
		must(t, s.Remove(t.Context(), tenant, j.ID))
	}
	for range 2 {
		must(t, s.RemoveListings(t.Context(), tenant))
		page, next, err := s.List(t.Context(), tenant, "", 10)
		must(t, err)
		if len(page) != 0 || next != "" {
			t.Errorf("%d jobs are listed, want none", len(page))
		}
	}
}

func definitionIsReadBack(t *testing.T, s jobstore.Jobs) {
	jobID, d := newJobID(), newDefinition(newDefinitionID())
	for range 2 {
		must(t, s.PutDefinition(t.Context(), jobID, d))
		got, endsAt, err := s.Definition(t.Context(), jobID, d.ID)
		must(t, err)
		same(t, "definition", got, d)
		if !endsAt.IsZero() {
			t.Errorf("the last one ends at %s", endsAt)
		}
	}
	_, _, err := s.Definition(t.Context(), newJobID(), d.ID)
	mustBe(t, err, jobstore.ErrNotFound) // another job's
}

func definitionEnds(t *testing.T, s jobstore.Jobs) {
	jobID := newJobID()
	// The third is a resume, which reaches back before the second.
	begins := []time.Duration{0, 3 * time.Hour, time.Hour, 4 * time.Hour}
	ends := []time.Duration{time.Hour, time.Hour, 4 * time.Hour, 0}
	var put []job.Definition
	for i := range begins {
		previous := ""
		if i > 0 {
			previous = put[i-1].ID
		}
		d := newDefinition(job.NextDefinitionID(previous, newDefinitionID()))
		d.EffectiveAt = d.EffectiveAt.Add(begins[i])
		put = append(put, d)
	}
	for _, i := range []int{2, 0, 3, 1} { // the order of writing does not matter
		must(t, s.PutDefinition(t.Context(), jobID, put[i]))
	}
	must(t, s.PutDefinition(t.Context(), newJobID(), newDefinition(newDefinitionID())))
	for i := range put {
		got, endsAt, err := s.Definition(t.Context(), jobID, put[i].ID)
		must(t, err)
		same(t, "definition", got, put[i])
		want := time.Time{}
		if i < len(put)-1 {
			want = put[0].EffectiveAt.Add(ends[i])
		}
		if !endsAt.Equal(want) {
			t.Errorf("definition %d ends at %s, want %s", i, endsAt, want)
		}
	}
	reversed := slices.Clone(put)
	slices.Reverse(reversed)
	for _, limit := range []int{1, 3, 4, 10} {
		var all, page []job.Definition
		for before := job.NextDefinitionID(put[len(put)-1].ID, newDefinitionID()); before != ""; {
			var err error
			page, err = s.Definitions(t.Context(), jobID, before, limit)
			must(t, err)
			all = append(all, page...)
			if before = ""; len(page) == limit {
				before = page[limit-1].ID
			}
		}
		same(t, fmt.Sprintf("all definitions, %d at a time", limit), all, reversed)
	}
}

func listing(t *testing.T, s jobstore.Jobs) {
	tenant := newTenant()
	var jobs []job.Job
	for range 7 {
		j := newJob()
		j.Tenant = tenant
		jobs = append(jobs, j)
	}
	for _, i := range []int{3, 0, 6, 2, 5, 1, 4} {
		must(t, s.Create(t.Context(), jobs[i], i%2 == 0))
		must(t, s.Create(t.Context(), newJob(), false)) // another tenant's
	}
	slices.Reverse(jobs)
	for _, limit := range []int{1, 3, 7, 100} {
		same(t, fmt.Sprint("listing by ", limit), listed(t, s, tenant, limit), jobs)
	}
}

// listed reads all pages.
func listed(t *testing.T, s jobstore.Jobs, tenant job.Tenant, limit int) []job.Job {
	t.Helper()
	var all []job.Job
	cursor := ""
	for range 100 {
		page, next, err := s.List(t.Context(), tenant, cursor, limit)
		must(t, err)
		if len(page) > limit {
			t.Fatalf("a page of %d, limit %d", len(page), limit)
		}
		all = append(all, page...)
		if next == "" {
			return all
		}
		cursor = next
	}
	t.Fatal("the listing has no end")
	return nil
}

func emptyListing(t *testing.T, s jobstore.Jobs) {
	must(t, s.Create(t.Context(), newJob(), false))
	if all := listed(t, s, newTenant(), 10); len(all) != 0 {
		t.Errorf("listed %v", all)
	}
}

func newClaim() jobstore.Claim {
	return jobstore.Claim{
		BodyHash: "hash", ID: newJobID(), DefinitionID: newDefinitionID(),
		// A store may forget a key KeyTTL after its claim, so this instant is the current one.
		AcceptedAt: job.Instant(time.Now()),
	}
}

func claimStands(t *testing.T, s jobstore.Jobs) {
	tenant, first := newTenant(), newClaim()
	standing, won, err := s.ClaimKey(t.Context(), tenant, "key", first)
	must(t, err)
	same(t, "the winner's claim", standing, first)
	if !won {
		t.Error("the first claim lost")
	}
	for range 2 {
		standing, won, err = s.ClaimKey(t.Context(), tenant, "key", newClaim())
		must(t, err)
		same(t, "the standing claim", standing, first)
		if won {
			t.Error("a second claim won")
		}
	}
}

func claimsRace(t *testing.T, s jobstore.Jobs) {
	tenant := newTenant()
	var mu sync.Mutex
	seen := map[string]bool{}
	if n := winners(t, writers, nil, func(int) (bool, error) {
		c := newClaim()
		standing, won, err := s.ClaimKey(t.Context(), tenant, "key", c)
		mu.Lock()
		defer mu.Unlock()
		seen[standing.ID] = true
		if won && standing.ID != c.ID {
			t.Errorf("a winner was given another's claim")
		}
		return won, err
	}); n != 1 || len(seen) != 1 {
		t.Errorf("%d won, %d different claims were seen", n, len(seen))
	}
}

func claimsAreSeparate(t *testing.T, s jobstore.Jobs) {
	a, b := newTenant(), newTenant()
	for _, c := range []struct {
		tenant job.Tenant
		key    string
	}{{a, "key"}, {b, "key"}, {a, "key2"}, {a, "ke"}, {a, "key "}} {
		if _, won, err := s.ClaimKey(t.Context(), c.tenant, c.key, newClaim()); err != nil || !won {
			t.Errorf("%+v: won %v, %v", c, won, err)
		}
	}
}

func firstAnswerStands(t *testing.T, s jobstore.Jobs) {
	tenant, claim := newTenant(), newClaim()
	_, _, err := s.ClaimKey(t.Context(), tenant, "key", claim)
	must(t, err)
	first := jobstore.Answer{Status: 201, Headers: map[string]string{"ETag": `"1"`}, Body: []byte("{ \"a\": \"<\xff>\" }")}
	must(t, s.FinishKey(t.Context(), tenant, "key", first))
	must(t, s.FinishKey(t.Context(), tenant, "key", jobstore.Answer{Status: 500, Headers: map[string]string{}, Body: []byte("second")}))
	standing, won, err := s.ClaimKey(t.Context(), tenant, "key", newClaim())
	must(t, err)
	claim.Answer = &first
	same(t, "the standing claim", standing, claim)
	if won {
		t.Error("an answered key was claimed anew")
	}
}

func answersRace(t *testing.T, s jobstore.Jobs) {
	tenant := newTenant()
	_, _, err := s.ClaimKey(t.Context(), tenant, "key", newClaim())
	must(t, err)
	seen := make(chan int, writers)
	atOnce(writers, func(i int) {
		err := s.FinishKey(t.Context(), tenant, "key", jobstore.Answer{Status: 200 + i, Headers: map[string]string{}})
		if err != nil {
			t.Error(err)
			return
		}
		standing, _, err := s.ClaimKey(t.Context(), tenant, "key", newClaim())
		if err != nil || standing.Answer == nil {
			t.Errorf("no answer stands after one was acknowledged: %v", err)
			return
		}
		seen <- standing.Answer.Status
	})
	close(seen)
	first := <-seen
	for status := range seen {
		if status != first {
			t.Errorf("answers %d and %d were both given", first, status)
		}
	}
}
