package jobstoretest

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// writers is how many goroutines race in a test of concurrency.
const writers = 8

// mostUnanswered is how often a server that is slow may leave it open whether a write took effect, as callers must expect.
const mostUnanswered = 20

var jobsBegin = time.Date(2031, 3, 4, 5, 6, 7, 89_000_000, time.UTC)

// newJob returns a job of a new tenant, with something in every field. Its body holds what a JSON encoder would like to tidy up,
// because a body is sent verbatim.
func newJob() job.Job {
	return job.Job{
		ID: newJobID(), Tenant: newTenant(), Name: "conformance", Labels: map[string]string{"a": "b", "ü": "<&>"},
		Status: job.StatusActive, Version: 1, CreatedAt: jobsBegin, UpdatedAt: jobsBegin.Add(time.Millisecond),
		PausedAt: jobsBegin.Add(-time.Hour), Definition: newDefinition(newDefinitionID()),
	}
}

func newDefinition(id string) job.Definition {
	return job.Definition{
		ID: id, EffectiveAt: jobsBegin, FirstOrdinal: 3,
		Schedule: job.Schedule{
			Type: job.ScheduleInterval, Every: time.Minute, StartAt: jobsBegin, EndAt: jobsBegin.Add(1000 * time.Hour), MaxOccurrences: 7,
		},
		Target: job.Target{
			Kind: job.TargetWebhook, URL: "http://target/?a=1&b=<2>", Method: "POST", Timeout: 1500 * time.Millisecond,
			Headers: map[string]string{"X-One": "1"}, Body: json.RawMessage("{ \"b\" : 1.0,\n\t\"a\": \"<&>\\u00e9\" }"), BodyRef: &job.BodyRef{URL: "https://objects/?a=1&b=<2>", SHA256: "00ff"},
		},
		Retry: job.DefaultRetryPolicy(), MissedRun: job.MissedBackfill, CatchUpWindow: 90 * time.Second, MaxBackfill: 5,
		Overlap: job.OverlapSkip, Priority: "normal",
	}
}

// RunJobs runs the suite of job rows, definitions, listings and idempotency claims.
func RunJobs(t *testing.T, open func(t *testing.T) jobstore.Jobs) {
	for _, c := range []struct {
		promise string
		check   func(t *testing.T, s jobstore.Jobs)
	}{
		{"a created job is read back as it was written", createdIsReadBack},
		{"a replacement is read back as it was written", replacedIsReadBack},
		{"what is not there is not found", absentIsNotFound},
		{"a plain create leaves the row that is there", plainCreateYields},
		{"an exclusive create of a row that is there says so and leaves it", exclusiveCreateRefuses},
		{"a create that comes late never shadows a replacement", lateCreateYields},
		{"of concurrent exclusive creates exactly one wins", exclusiveCreatesRace},
		{"a replacement of any version but the one before is a conflict and changes nothing", replaceChecksVersion},
		{"of concurrent replacements of one version exactly one wins, and its row stands", replacementsRace},
		{"no read-modify-write is lost among concurrent ones, and each reads what was acknowledged", replacementsChain},
		{"of concurrent changes of a job's runs each builds on the one before", runsChain},
		{"a removed job has no runs", runsAreRemoved},
		{"of concurrent jobs with one key exactly one gets it, and all see which", jobKeyRace},
		{"a key passes to another job only from the one that is gone", jobKeyPasses},
		{"a job keeps its key whatever becomes of it, until it is deleted", jobKeyStays},
		{"keys of other tenants are keys of their own", jobKeysAreSeparate},
		{"what a serial read saw stays, and what was acknowledged it sees", serialReadSees},
		{"many rows are read at once, those that do not exist are missing", manyAreRead},
		{"a deleted job is read and listed like any other", deletedIsRead},
		{"a job that is removed is gone, and no other", jobIsRemoved},
		{"a superseded definition is read as it was written, the same twice is once", definitionIsReadBack},
		{"a superseded definition ends where the first of those begins that were superseded after it", definitionEnds},
		{"a tenant's jobs are listed newest id first, in pages without gap or repetition", listing},
		{"a tenant without jobs has an empty listing", emptyListing},
		{"a claim is given back as it was stored, to every later claimant", claimStands},
		{"of concurrent claims of a key exactly one wins, and all see it", claimsRace},
		{"claims of other tenants and keys are claims of their own", claimsAreSeparate},
		{"the first answer of a key stands, and is given back whole", firstAnswerStands},
		{"of concurrent answers of a key one stands", answersRace},
	} {
		t.Run(c.promise, func(t *testing.T) { c.check(t, open(t)) })
	}
}

func everyRead(t *testing.T, s jobstore.Jobs, want job.Job) {
	t.Helper()
	got, err := s.Get(t.Context(), want.ID)
	must(t, err)
	same(t, "Get", got, want)
	got, err = s.GetSerial(t.Context(), want.ID)
	must(t, err)
	same(t, "GetSerial", got, want)
	rows, err := getMany(t, s, []string{want.ID})
	must(t, err)
	same(t, "GetMany", rows, map[string]job.Job{want.ID: want})
	page, _, err := s.List(t.Context(), want.Tenant, "", 10)
	must(t, err)
	same(t, "List", page, []job.Job{want})
}

func createdIsReadBack(t *testing.T, s jobstore.Jobs) {
	for _, exclusive := range []bool{false, true} {
		j := newJob()
		must(t, s.Create(t.Context(), j, exclusive))
		everyRead(t, s, j)
	}
}

func replacedIsReadBack(t *testing.T, s jobstore.Jobs) {
	j := newJob()
	must(t, s.Create(t.Context(), j, false))
	j.Version, j.Status, j.Name = 2, job.StatusPaused, "renamed"
	j.PausedAt, j.UpdatedAt = jobsBegin.Add(time.Hour), jobsBegin.Add(2*time.Hour)
	j.Definition = newDefinition(newDefinitionID())
	must(t, s.Replace(t.Context(), j))
	everyRead(t, s, j)
}

func absentIsNotFound(t *testing.T, s jobstore.Jobs) {
	_, err := s.Get(t.Context(), newJobID())
	mustBe(t, err, jobstore.ErrNotFound)
	_, err = s.GetSerial(t.Context(), newJobID())
	mustBe(t, err, jobstore.ErrNotFound)
	_, _, err = s.Definition(t.Context(), newJobID(), newDefinitionID())
	mustBe(t, err, jobstore.ErrNotFound)
	j := newJob()
	j.Version = 2
	mustBe(t, s.Replace(t.Context(), j), jobstore.ErrNotFound)
	_, err = s.Get(t.Context(), j.ID)
	mustBe(t, err, jobstore.ErrNotFound)
}

func plainCreateYields(t *testing.T, s jobstore.Jobs) {
	j := newJob()
	must(t, s.Create(t.Context(), j, false))
	other := j
	other.Name = "other"
	must(t, s.Create(t.Context(), other, false))
	everyRead(t, s, j)
}

func exclusiveCreateRefuses(t *testing.T, s jobstore.Jobs) {
	j := newJob()
	must(t, s.Create(t.Context(), j, true))
	other := j
	other.Name = "other"
	mustBe(t, s.Create(t.Context(), other, true), jobstore.ErrExists)
	everyRead(t, s, j)
}

func lateCreateYields(t *testing.T, s jobstore.Jobs) {
	j := newJob()
	must(t, s.Create(t.Context(), j, false))
	cancelled := j
	cancelled.Version, cancelled.Status = 2, job.StatusCancelled
	must(t, s.Replace(t.Context(), cancelled))
	must(t, s.Create(t.Context(), j, false))
	everyRead(t, s, cancelled)
}

func exclusiveCreatesRace(t *testing.T, s jobstore.Jobs) {
	base := newJob()
	if n := winners(t, writers, jobstore.ErrExists, func(i int) (bool, error) {
		j := base
		j.Name = fmt.Sprint("by ", i)
		err := s.Create(t.Context(), j, true)
		return err == nil, err
	}); n != 1 {
		t.Errorf("%d creates won", n)
	}
}

func replaceChecksVersion(t *testing.T, s jobstore.Jobs) {
	j := newJob()
	must(t, s.Create(t.Context(), j, false))
	second := j
	second.Version = 2
	must(t, s.Replace(t.Context(), second))
	for _, version := range []int64{1, 2, 4, 100} {
		wrong := second
		wrong.Version, wrong.Name = version, "wrong"
		mustBe(t, s.Replace(t.Context(), wrong), jobstore.ErrConflict)
	}
	everyRead(t, s, second)
}

func replacementsRace(t *testing.T, s jobstore.Jobs) {
	base := newJob()
	must(t, s.Create(t.Context(), base, false))
	names := make(chan string, writers)
	if n := winners(t, writers, jobstore.ErrConflict, func(i int) (bool, error) {
		j := base
		j.Version, j.Name = 2, fmt.Sprint("by ", i)
		err := s.Replace(t.Context(), j)
		if err == nil {
			names <- j.Name
		}
		return err == nil, err
	}); n != 1 {
		t.Fatalf("%d replacements won", n)
	}
	base.Version, base.Name = 2, <-names
	everyRead(t, s, base)
}

func replacementsChain(t *testing.T, s jobstore.Jobs) {
	const each = 5
	j := newJob()
	must(t, s.Create(t.Context(), j, false))
	var unanswered atomic.Int64 // writes that may have taken effect
	atOnce(4, func(int) {
		acknowledged := int64(1)
		for wrote := 0; wrote < each; {
			row, err := s.GetSerial(t.Context(), j.ID)
			if err != nil || row.Version < acknowledged {
				t.Errorf("read version %d after %d was acknowledged, %v", row.Version, acknowledged, err)
				return
			}
			row.Version++
			err = s.Replace(t.Context(), row)
			if errors.Is(err, jobstore.ErrConflict) {
				continue
			}
			if err != nil {
				if unanswered.Add(1) > mostUnanswered {
					t.Error(err)
					return
				}
				continue
			}
			acknowledged = row.Version
			wrote++
		}
	})
	row, err := s.GetSerial(t.Context(), j.ID)
	must(t, err)
	if least := int64(1 + 4*each); row.Version < least || row.Version > least+unanswered.Load() {
		t.Errorf("version is %d, want %d, and %d writes were not answered", row.Version, least, unanswered.Load())
	}
}

func serialReadSees(t *testing.T, s jobstore.Jobs) {
	for range 20 {
		j := newJob()
		created := make(chan error, 1)
		go func() { created <- s.Create(t.Context(), j, true) }()
		_, first := s.GetSerial(t.Context(), j.ID)
		if first == nil {
			if _, err := s.Get(t.Context(), j.ID); err != nil {
				t.Errorf("a row that a serial read saw is gone: %v", err)
			}
		} else if !errors.Is(first, jobstore.ErrNotFound) {
			t.Error(first)
		}
		if err := <-created; err == nil {
			_, err = s.GetSerial(t.Context(), j.ID)
			must(t, err)
		}
	}
}

func manyAreRead(t *testing.T, s jobstore.Jobs) {
	want := map[string]job.Job{}
	var ids []string
	for i := range jobstore.MaxGetMany {
		j := newJob()
		ids = append(ids, j.ID)
		if i%50 == 0 {
			must(t, s.Create(t.Context(), j, false))
			want[j.ID] = j
		}
	}
	rows, err := getMany(t, s, ids)
	must(t, err)
	same(t, "GetMany", rows, want)
	rows, err = getMany(t, s, nil)
	must(t, err)
	if len(rows) != 0 {
		t.Errorf("of no ids %d rows", len(rows))
	}
}

func deletedIsRead(t *testing.T, s jobstore.Jobs) {
	j := newJob()
	must(t, s.Create(t.Context(), j, false))
	j.Version, j.Status, j.Deleted = 2, job.StatusCancelled, true
	must(t, s.Replace(t.Context(), j))
	everyRead(t, s, j)
}

func getMany(t *testing.T, s jobstore.Jobs, ids []string) (map[string]job.Job, error) {
	t.Helper()
	found, err := s.GetMany(t.Context(), ids)
	rows := make(map[string]job.Job, len(found))
	for id, row := range found {
		rows[id] = *row
	}
	return rows, err
}
