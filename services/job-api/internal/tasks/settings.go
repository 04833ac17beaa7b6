package tasks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/pools"
	"github.com/minutehand/minutehand/libs/problem"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
	"github.com/minutehand/minutehand/services/job-api/internal/form"
)

// settings are what is set for a pool, as answers show it.
type settings struct {
	MaxRunning *int            `json:"max_running,omitempty"`
	Handlers   []handlerLimits `json:"handlers,omitempty"`
	LogsURL    string          `json:"logs_url,omitempty"`
	UpdatedAt  *time.Time      `json:"updated_at,omitempty"`
	UpdatedBy  string          `json:"updated_by,omitempty"`
}

type handlerLimits struct {
	Name       string `json:"name"`
	MaxRunning *int   `json:"max_running"`
}

func showSettings(s *pools.Settings) *settings {
	if s.Empty() {
		return nil
	}
	shown := &settings{MaxRunning: s.MaxRunning, LogsURL: s.LogsURL, UpdatedAt: form.Instant(s.UpdatedAt), UpdatedBy: s.UpdatedBy}
	for _, name := range slices.Sorted(maps.Keys(s.Handlers)) {
		shown.Handlers = append(shown.Handlers, handlerLimits{name, s.Handlers[name].MaxRunning})
	}
	return shown
}

// put sets something for a pool, in place of what was set before.
func (ts *Tasks) put(ctx context.Context, r *edge.Request) (edge.Response, error) {
	var body struct {
		MaxRunning *form.Whole `json:"max_running"`
		Handlers   []struct {
			Name       string     `json:"name"`
			MaxRunning form.Whole `json:"max_running"`
		} `json:"handlers"`
		LogsURL string `json:"logs_url"`
	}
	if err := json.Unmarshal(r.Raw, &body); err != nil {
		return edge.Response{}, edge.OutOfRange()
	}
	s, faults := pools.Settings{LogsURL: body.LogsURL}, []problem.Fault(nil)
	if body.MaxRunning != nil {
		s.MaxRunning = new(int(*body.MaxRunning))
	}
	for i, h := range body.Handlers {
		if _, twice := s.Handlers[h.Name]; twice {
			faults = append(faults, problem.Fault{Pointer: "/handlers/" + strconv.Itoa(i) + "/name", Code: "duplicate", Message: "Name each handler once."})
		}
		if s.Handlers == nil {
			s.Handlers = map[string]pools.HandlerSettings{}
		}
		s.Handlers[h.Name] = pools.HandlerSettings{MaxRunning: new(int(h.MaxRunning))}
	}
	if wrong := checkLogs(s.LogsURL); wrong != "" {
		faults = append(faults, problem.Fault{Pointer: "/logs_url", Code: "url", Message: wrong})
	}
	if len(faults) > 0 {
		return edge.Response{}, edge.Invalid(faults)
	}
	stands, err := ts.set(ctx, r, s)
	if err != nil {
		return edge.Response{}, err
	}
	shown := showSettings(&stands)
	if shown == nil {
		shown = &settings{}
	}
	return edge.Response{Status: http.StatusOK, Body: shown}, nil
}

// checkLogs returns what is wrong with a URL of logs; "" if nothing is.
func checkLogs(text string) string {
	if text == "" {
		return ""
	}
	if wrong := pools.CheckLogs(text); wrong != "" {
		return wrong
	}
	u, err := url.Parse((&pools.Settings{LogsURL: text}).Logs(pools.Subject{Pool: "p", Worker: "w", Job: "j", Execution: "x", Attempt: 1}))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil {
		return "Must be an absolute http or https URL without user name or password."
	}
	return ""
}

// set stores what is set for a pool, makes that known, and starts over if another change came first. It returns what stands then.
func (ts *Tasks) set(ctx context.Context, r *edge.Request, s pools.Settings) (stands pools.Settings, err error) {
	p := poolAt(r)
	name := pools.SettingOf(p.Tenant)
	for {
		old, all, err := pools.Read(ctx, ts.deps.Settings, p.Tenant)
		if err != nil {
			return stands, err
		}
		if stands, err = all.Get(p.Name); err != nil {
			return stands, err
		}
		s.UpdatedAt, s.UpdatedBy = stands.UpdatedAt, stands.UpdatedBy
		if reflect.DeepEqual(s, stands) {
			return stands, nil
		}
		s.UpdatedAt, s.UpdatedBy = job.Instant(ts.deps.Clock.Now()), r.By.Subject
		if err := all.Put(p.Name, &s); errors.Is(err, pools.ErrTooMany) {
			return stands, problem.New(http.StatusConflict, "too-many-pools",
				"The tenant has set something for 100 pools already, or 64 KiB in all; send {} to one for which nothing needs to be set any more.")
		} else if err != nil {
			return stands, err
		}
		c := job.Change{Operation: r.Operation, Setting: name, Object: p.Name}
		err = ts.deps.Recorder.Setting(ctx, job.SettingsOf(p.Tenant), p.Tenant, c, r.Author(), &all.Changes, func() error {
			value, err := json.Marshal(all)
			if err != nil {
				return err
			}
			return ts.deps.Settings.SwapSetting(ctx, name, old, value)
		})
		if errors.Is(err, jobstore.ErrConflict) && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return stands, fmt.Errorf("swap setting %s: %w", name, err)
		}
		return s, nil
	}
}
