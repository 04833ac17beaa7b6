package embedded

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/run"
)

// housekeepEvery is the pause between two rounds of expiry.
const housekeepEvery = time.Hour

// Housekeeper deletes what has outlived its time: history, dead letters, idempotency claims, superseded definitions and the rows of
// ended jobs. (A real Cassandra does this by TTL.)
type Housekeeper struct {
	Jobs    *JobStore
	History *History
	Log     *slog.Logger
}

// Run deletes what is old, once an hour, until ctx ends.
func (h *Housekeeper) Run(ctx context.Context) error {
	for run.Sleep(ctx, housekeepEvery) == nil {
		now := time.Now()
		err := errors.Join(
			h.Jobs.expire(ctx, now), h.History.expire(now.Add(-jobstore.HistoryTTL)),
		)
		if err != nil && ctx.Err() == nil {
			h.Log.Warn("expiry failed, it is tried again in an hour", "error", err)
		}
	}
	return nil
}
