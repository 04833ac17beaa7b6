package ledger

import (
	"context"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// mostEvents is more than a job has in any run.
const mostEvents = 1_000_000

// History returns the events of a job, or of what stands in the place of a job's id: those of its executions and those of its changes.
func History(ctx context.Context, h jobstore.History, of jobstore.Of, oldest time.Time) ([]job.Event, error) {
	events, err := h.Executions(ctx, of, jobstore.Cursor{}, oldest, mostEvents)
	if err != nil {
		return nil, err
	}
	changes, err := h.Executions(ctx, jobstore.Of{ID: job.ChangesOf(of.ID)}, jobstore.Cursor{}, oldest, mostEvents)
	return append(events, changes...), err
}

// Settings are what stands in the place of a job's id for the changes of an installation that has no other tenants.
func Settings() []string {
	return []string{job.InstallationSettings(), job.SettingsOf(job.DefaultTenant)}
}
