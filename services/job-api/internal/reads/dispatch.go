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
func (rs *Reads) getDispatch(ctx context.Context, _ *edge.Request) (edge.Response, error) {
	_, hold, err := rs.DispatchHold(ctx)
	return AnswerHold(hold), err
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
func AnswerHold(h job.DispatchHold) edge.Response {
	if h.Labels == nil {
		h.Labels = []string{}
	}
	return edge.Response{Status: http.StatusOK, Body: map[string]any{"paused": h.All, "paused_labels": h.Labels}}
}
