package jobchange

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

const jobID = "job_01M7ZJW5E6D77SAJPXRW35C2CA"

// entries is a store of entries in memory, whose first write may take long.
type entries struct {
	jobstore.Pending
	rows map[job.Locator]job.PendingRow
	slow time.Duration
}

func (p *entries) Put(_ context.Context, list []job.Entry) error {
	for _, e := range list {
		p.rows[e.Locator] = job.PendingRow{Entry: e}
	}
	time.Sleep(p.slow)
	p.slow = 0
	return nil
}

func (p *entries) Rows(_ context.Context, locators []job.Locator) (map[job.Locator]job.PendingRow, error) {
	found := map[job.Locator]job.PendingRow{}
	for _, l := range locators {
		if row, ok := p.rows[l]; ok {
			found[l] = row
		}
	}
	return found, nil
}

func recorder() (Recorder, *entries) {
	p := &entries{rows: map[job.Locator]job.PendingRow{}}
	return Recorder{Pending: p, Entropy: rand.Reader, Partitions: 4, Grace: 2 * time.Minute}, p
}

func (r Recorder) once(changes *[]job.ChangeRef) error {
	return r.Setting(context.Background(), jobID, 0, job.Change{Operation: "x", Setting: "s"}, job.Author{}, changes, func() error { return nil })
}

func TestRowNamesItsUnpublishedChangesAndNoMoreThanThereIsRoomFor(t *testing.T) {
	r, p := recorder()
	var changes []job.ChangeRef
	for n := range job.MaxChanges {
		if err := r.once(&changes); err != nil || len(changes) != n+1 {
			t.Fatalf("change %d: %d named, %v", n, len(changes), err)
		}
	}
	full := fmt.Sprint(changes)
	if err := r.once(&changes); !errors.Is(err, ErrUntold) || fmt.Sprint(changes) != full {
		t.Errorf("a row without room took another change: %v", err)
	}
	for l, row := range p.rows { // all but one are published, and some of their buckets have closed
		if l.ExecutionID == job.ChangeExecutionID(jobID, changes[7].ID) {
			continue
		}
		if row.Done = true; l.DueAt.UnixMilli()%2 == 0 {
			p.rows[l] = row
		} else {
			delete(p.rows, l)
		}
	}
	waiting := changes[7]
	if err := r.once(&changes); err != nil || len(changes) != 2 || changes[0] != waiting {
		t.Errorf("named %v, %v; want the one that waits, and the new one", changes, err)
	}
}

// Its bucket may have closed, or a worker dropped it.
func TestEntryThatTookTooLongIsNotTheOneThatTheRowNames(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r, p := recorder()
		p.slow = r.Grace
		var changes []job.ChangeRef
		began := time.Now()
		if err := r.once(&changes); err != nil || len(changes) != 1 || len(p.rows) != 2 || job.ULIDTime(changes[0].ID).Before(began.Add(r.Grace)) {
			t.Errorf("named %v of %d entries, %v", changes, len(p.rows), err)
		}
	})
}

// The hold of the installation names changes of several tenants.
func TestChangesOfOneSettingByTwoTenantsAreKeptUntilTheirOwnEventsArePublished(t *testing.T) {
	r, p := recorder()
	var changes []job.ChangeRef
	for n := range job.EnoughChanges + 2 {
		of := job.SettingsOf(job.Tenant(n % 2))
		err := r.Setting(t.Context(), of, 0, job.Change{Operation: "pauseDispatch", Setting: "s"}, job.Author{}, &changes, func() error { return nil })
		if err != nil || len(changes) != n+1 {
			t.Fatalf("change %d: %d named, %v", n, len(changes), err)
		}
	}
	if len(p.rows) != len(changes) {
		t.Errorf("%d entries, %d named", len(p.rows), len(changes))
	}
}
