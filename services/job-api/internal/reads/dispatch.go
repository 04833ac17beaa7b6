package reads

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
)

// getDispatch shows what is held.
func (rs *Reads) getDispatch(ctx context.Context, r *edge.Request) (edge.Response, error) {
	_, hold, err := rs.DispatchHold(ctx)
	return AnswerHold(HoldOf(&hold, r)), err
}

// HoldsAll reports whether a request is about what the whole installation holds: a principal of the installation makes it, and names
// no tenant.
func HoldsAll(r *edge.Request) bool { return r.By.Installation && !r.By.Chosen }

// HoldOf returns the hold that a request is about.
func HoldOf(all *job.DispatchHold, r *edge.Request) job.Hold {
	if HoldsAll(r) {
		return all.Hold
	}
	return all.Tenants[r.Tenant()]
}

// DispatchHold returns the setting that holds dispatch: as it is stored (nil if nothing is held), and decoded.
func (rs *Reads) DispatchHold(ctx context.Context) (old []byte, h job.DispatchHold, err error) {
	old, err = rs.Settings.Setting(ctx, jobstore.SettingDispatchHold)
	if err != nil {
		return nil, h, fmt.Errorf("read setting %s: %w", jobstore.SettingDispatchHold, err)
	}
	if old != nil {
		if err := json.Unmarshal(old, &h); err != nil {
			return nil, h, fmt.Errorf("decode setting %s: %w", jobstore.SettingDispatchHold, err)
		}
	}
	return old, h, nil
}

// AnswerHold returns the answer that shows a hold.
func AnswerHold(h job.Hold) edge.Response {
	if h.Labels == nil {
		h.Labels = []string{}
	}
	return edge.Response{Status: http.StatusOK, Body: map[string]any{"paused": h.All, "paused_labels": h.Labels}}
}
