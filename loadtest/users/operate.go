package users

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/loadtest/ledger"
)

const (
	// mostBackfilled is how many jobs are backfilled, fillRate how many of their executions are due in a second.
	mostBackfilled, fillRate = 3, 20
	// redriveRate is how many dead letters a redrive of all executes again in a second.
	redriveRate = 20
	// filled is how long before the start the range of a backfill begins.
	filled = 90 * time.Second
)

// operate backfills jobs in the middle of the run, as an operator does, and waits until that is done.
func (u *Users) operate(ctx context.Context) {
	if run.Sleep(ctx, u.cfg.Lasts/3) != nil {
		return
	}
	for n, id := range u.lasting() {
		from, to := u.began.Add(-filled), time.Now().Add(-5*time.Second) // clocks differ
		v, ok := u.request(ctx, http.StatusAccepted, http.MethodPost, "/jobs/"+id+"/backfill",
			map[string]any{"from": from, "to": to, "rate_per_second": fillRate}, "Idempotency-Key", fmt.Sprintf("backfill-%d-%d", u.began.UnixNano(), n))
		if !ok {
			continue
		}
		u.awaits(ctx, ledger.Operation{
			JobID: id, ID: v.OperationID, DefinitionID: v.DefinitionID, From: from, To: to, Total: v.Total, AckedAt: time.Now(), Rate: fillRate,
		})
	}
}

// awaits notes an operation once it is done.
func (u *Users) awaits(ctx context.Context, o ledger.Operation) {
	for o.Status != "done" && run.Sleep(ctx, time.Second) == nil {
		v, ok := u.request(ctx, http.StatusOK, http.MethodGet, "/operations/"+o.ID, nil)
		if !ok {
			break
		}
		o.Status, o.HandedOut = v.Status, v.HandedOut
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.said.Operations = append(u.said.Operations, o)
}

// redriveAll redrives all dead letters.
func (u *Users) redriveAll(ctx context.Context) {
	known := u.deadLetters(ctx)
	v, ok := u.request(ctx, http.StatusAccepted, http.MethodPost, "/dead-letters:redrive-all", map[string]any{"rate_per_second": redriveRate},
		"Idempotency-Key", fmt.Sprint("redrive-all-", u.began.UnixNano()))
	if ok {
		u.awaits(ctx, ledger.Operation{ID: v.OperationID, Redrive: true, Known: known, AckedAt: time.Now(), Rate: redriveRate})
	}
}

// deadLetters returns the executions that are shown as given up, and not redriven.
func (u *Users) deadLetters(ctx context.Context) (ids []string) {
	for cursor := ""; ; {
		v, ok := u.request(ctx, http.StatusOK, http.MethodGet, "/dead-letters?limit=100"+cursor, nil)
		for _, d := range v.Items {
			if d.RedrivenBy == "" {
				ids = append(ids, d.ExecutionID)
			}
		}
		if !ok || v.NextCursor == "" {
			return ids
		}
		cursor = "&cursor=" + url.QueryEscape(v.NextCursor)
	}
}

// lasting returns jobs that recur by cron, that nobody ends, and whose targets answer.
func (u *Users) lasting() (ids []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for id, x := range u.jobs {
		ends := func(c change) bool { return c.what == "cancel" || c.what == "delete" }
		if x.script.body["type"] == "cron" && slices.Contains([]string{"ok", "flaky"}, x.script.behavior) && !slices.ContainsFunc(x.script.changes, ends) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids[:min(mostBackfilled, len(ids))]
}
