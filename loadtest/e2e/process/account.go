package process

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/loadtest/ledger"
	auditwriter "github.com/minutehand/minutehand/services/audit-writer"
)

// all is a limit that no test reaches.
const all = 1_000_000

// Account reads what a stopped process left in its folder: all jobs of the store, their history, pending entries, dead
// letters and the archive. The caller adds the calls. It also checks that the archive has as many records as the log ever
// had, which the ledger cannot know.
func (p *Process) Account(from, until time.Time) *ledger.Account {
	p.t.Helper()
	db, err := embedded.Open(embedded.Options{Dir: filepath.Join(p.Dir, "store")})
	if err != nil {
		p.t.Fatal(err)
	}
	a := &ledger.Account{From: from, Until: until}
	err = errors.Join(p.readJobs(db, a), readPending(p.t, db, a), readArchive(p.t, db, filepath.Join(p.Dir, "archive"), a))
	if err := errors.Join(err, db.Close()); err != nil {
		p.t.Fatal(err)
	}
	return a
}

func (p *Process) readJobs(db *embedded.DB, a *ledger.Account) error {
	ctx := p.t.Context()
	jobs, history := embedded.NewJobStore(db), embedded.NewHistory(db)
	rows, _, err := jobs.List(ctx, job.DefaultTenant, "", all)
	if err != nil {
		return err
	}
	for _, row := range rows {
		if row.IsVoid() {
			continue
		}
		events, err := ledger.History(ctx, history, jobstore.OfJob(&row), a.From)
		if err != nil {
			return err
		}
		superseded, err := p.Users.Superseded(ctx, jobs, &row, events)
		if err != nil {
			return err
		}
		a.Jobs = append(a.Jobs, ledger.JobAccount{Job: row, Superseded: superseded})
		a.Events = append(a.Events, events...)
	}
	for _, id := range ledger.Settings() {
		events, err := ledger.History(ctx, history, jobstore.Of{ID: id}, a.From)
		if err != nil {
			return err
		}
		a.Events = append(a.Events, events...)
	}
	a.DeadLetters, _, err = history.DeadLetters(ctx, job.DefaultTenant, "", all)
	return err
}

func readPending(t *testing.T, db *embedded.DB, a *ledger.Account) error {
	pending := embedded.NewPending(db)
	for partition := range db.Partitions() {
		from, err := pending.LowWater(t.Context(), partition)
		for err == nil {
			var minute int64
			var ok bool
			if minute, ok, err = pending.FirstOpen(t.Context(), partition, from, 1<<40); err != nil || !ok {
				break
			}
			rows, scanErr := pending.Scan(t.Context(), partition, minute, nil, all)
			a.Pending = append(a.Pending, rows...)
			from, err = minute+1, scanErr
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func readArchive(t *testing.T, db *embedded.DB, dir string, a *ledger.Account) error {
	archive, err := embedded.NewArchive(nil, dir)
	if err != nil {
		return err
	}
	archived, err := auditwriter.ReadArchive(t.Context(), archive)
	if err != nil {
		return err
	}
	for _, x := range archived {
		a.Archived = append(a.Archived, ledger.Archived(x))
	}
	log, err := embedded.NewLog(db)
	if err != nil {
		return err
	}
	defer log.Close()
	end, err := log.End(t.Context(), dispatch.TopicEvents)
	if err != nil {
		return err
	}
	var records int64
	for _, offset := range end.Offsets {
		records += offset
	}
	if records != int64(len(archived)) {
		t.Errorf("the archive holds %d records of the %d that the log had", len(archived), records)
	}
	return nil
}
