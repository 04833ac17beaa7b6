package writes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/problem"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
	"github.com/minutehand/minutehand/services/job-api/internal/reads"
)

// pauseDispatch holds everything, or the jobs with a label. Workers follow within two seconds.
func (ws *Writes) pauseDispatch(ctx context.Context, r *edge.Request) (edge.Response, error) {
	return ws.changeHold(ctx, r, func(h *job.Hold, label string) error {
		switch {
		case label == "":
			h.All = true
		case !slices.Contains(h.Labels, label):
			h.Labels = append(h.Labels, label)
		}
		if len(h.Labels) > job.MaxHeldLabels {
			return problem.New(http.StatusConflict, "too-many-held-labels",
				"100 labels are held already; resume one of them, or pause everything.")
		}
		return nil
	})
}

// resumeDispatch releases everything, or the jobs with a label.
func (ws *Writes) resumeDispatch(ctx context.Context, r *edge.Request) (edge.Response, error) {
	return ws.changeHold(ctx, r, func(h *job.Hold, label string) error {
		if label == "" {
			*h = job.Hold{}
			return nil
		}
		h.Labels = slices.DeleteFunc(h.Labels, func(l string) bool { return l == label })
		return nil
	})
}

// changeHold changes what is held, and starts over if another change came first.
func (ws *Writes) changeHold(
	ctx context.Context, r *edge.Request, change func(h *job.Hold, label string) error,
) (edge.Response, error) {
	var b struct {
		Label string `json:"label"`
	}
	if err := json.Unmarshal(r.Raw, &b); err != nil {
		return edge.Response{}, err
	}
	for {
		old, hold, err := ws.deps.Reads.DispatchHold(ctx)
		if err != nil {
			return edge.Response{}, err
		}
		own := reads.HoldOf(&hold, r)
		if err := change(&own, b.Label); err != nil {
			return edge.Response{}, err
		}
		if err := keepHold(&hold, r, own); err != nil {
			return edge.Response{}, err
		}
		err = ws.swapHold(ctx, r, b.Label, old, &hold)
		if errors.Is(err, jobstore.ErrConflict) && ctx.Err() == nil {
			continue // another change came first
		}
		if err != nil {
			return edge.Response{}, fmt.Errorf("swap setting %s: %w", jobstore.SettingDispatchHold, err)
		}
		return reads.AnswerHold(own), nil
	}
}

// swapHold makes a changed hold known, and stores it in place of the old one.
func (ws *Writes) swapHold(ctx context.Context, r *edge.Request, label string, old []byte, hold *job.DispatchHold) error {
	subject, tenant := job.SettingsOf(r.Tenant()), r.Tenant()
	if reads.HoldsAll(r) {
		subject, tenant = job.InstallationSettings(), job.DefaultTenant
	}
	change := job.Change{Operation: r.Operation, Setting: jobstore.SettingDispatchHold, Object: label}
	return ws.deps.Recorder.Setting(ctx, subject, tenant, change, r.Author(), &hold.Changes, func() error {
		value, err := json.Marshal(hold)
		if err != nil {
			return err
		}
		return ws.deps.Settings.SwapSetting(ctx, jobstore.SettingDispatchHold, old, value)
	})
}

// keepHold puts a changed hold where it belongs: to the installation, or to the tenant for which the request is made.
func keepHold(all *job.DispatchHold, r *edge.Request, own job.Hold) error {
	if reads.HoldsAll(r) {
		all.Hold = own
		return nil
	}
	if !own.All && len(own.Labels) == 0 {
		delete(all.Tenants, r.Tenant())
		return nil
	}
	if all.Tenants == nil {
		all.Tenants = map[job.Tenant]job.Hold{}
	}
	if all.Tenants[r.Tenant()] = own; len(all.Tenants) > job.MaxHoldingTenants {
		return problem.New(http.StatusConflict, "too-many-holding-tenants", "1000 tenants hold something already; ask the installation's operators.")
	}
	return nil
}
