package users

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/loadtest/ledger"
)

// view is the part of an answer that a user reads.
type view struct {
	JobID        string    `json:"job_id"`
	DefinitionID string    `json:"definition_id"`
	EffectiveAt  time.Time `json:"effective_at"`
	ExecutionID  string    `json:"execution_id"`
	KeyID        string    `json:"key_id"`
	OperationID  string    `json:"operation_id"`
	Status       string    `json:"status"`
	Total        int       `json:"total"`
	HandedOut    int       `json:"handed_out"`
	Executions   []struct {
		ExecutionID string `json:"execution_id"`
		JobID       string `json:"job_id"`
	} `json:"executions"`
	// Items are dead letters.
	Items []struct {
		ExecutionID string `json:"execution_id"`
		RedrivenBy  string `json:"redriven_by"`
	} `json:"items"`
	NextCursor string `json:"next_cursor"`
	// version is the one in the answer's ETag.
	version int64
	// Type is that of a job, or of a problem document.
	Type           string    `json:"type"`
	RunAt          time.Time `json:"run_at"`
	CronExpr       string    `json:"cron_expr"`
	Timezone       string    `json:"timezone"`
	Every          string    `json:"every"`
	StartAt        time.Time `json:"start_at"`
	EndAt          time.Time `json:"end_at"`
	MaxOccurrences float64   `json:"max_occurrences"`
	Jitter         string    `json:"jitter"`
	Overlap        string    `json:"overlap_policy"`
}

func (v *view) schedule() job.Schedule {
	every, _ := time.ParseDuration(v.Every)
	jitter, _ := time.ParseDuration(v.Jitter)
	return job.Schedule{
		Type: job.ScheduleType(v.Type), RunAt: v.RunAt, CronExpr: v.CronExpr, Timezone: v.Timezone, Every: every, StartAt: v.StartAt, EndAt: v.EndAt,
		MaxOccurrences: int(v.MaxOccurrences), Jitter: jitter,
	}
}

// play registers the user's job and makes its changes.
func (u *user) play(ctx context.Context) {
	u.until(ctx, u.script.begin)
	v, ok := u.register(ctx)
	if !ok {
		u.t.Errorf("users: %s was never registered", u.script.name)
		return
	}
	u.id = v.JobID
	u.mu.Lock()
	u.jobs[u.id] = u
	u.said.Registered = append(u.said.Registered, u.id)
	u.said.MaxAttempts[u.id], u.said.RetryAfter[u.id] = u.script.attempts, u.script.pause
	u.mu.Unlock()
	u.owed(&v, v.EffectiveAt)
	version := 0
	for _, c := range u.script.changes {
		u.until(ctx, c.at)
		if ctx.Err() != nil || !u.change(ctx, c, &version) {
			return
		}
	}
}

func (u *user) until(ctx context.Context, at time.Duration) {
	_ = run.Sleep(ctx, time.Until(u.began.Add(at)))
}

// key returns an idempotency key that no other run has.
func (u *user) key(what string, n int) string {
	return fmt.Sprintf("%s-%d-%d-%s-%d", u.script.name, u.cfg.Seed, u.began.UnixNano(), what, n)
}

// owed notes that the schedule of an answer holds, and what it owes from an instant on.
func (u *user) owed(v *view, from time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.definitions[u.id] = append(u.definitions[u.id], v.DefinitionID)
	u.asked = len(u.said.Asked)
	u.said.Asked = append(u.said.Asked, ledger.Asked{JobID: u.id, Schedule: v.schedule(), Alone: v.Overlap != "allow_all", From: from, Until: u.began.Add(24 * time.Hour)})
}

// stops notes that the user is about to request something that stops what the schedule owes.
func (u *user) stops() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.asked >= 0 {
		u.said.Asked[u.asked].Until = time.Now().Add(-Slack)
		u.asked = -1
	}
	delete(u.said.Resumed, u.id)
}

// stopped notes what was answered.
func (u *user) stopped(s ledger.Stop) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if s.JobID = u.id; s.AckedAt.IsZero() {
		s.AckedAt = time.Now()
	}
	u.said.Stops = append(u.said.Stops, s)
	if s.Kind == ledger.StopUpdate {
		u.changed[u.id] = append(u.changed[u.id], s.AckedAt)
	}
}

// change makes one change; it returns false if that ended the job.
func (u *user) change(ctx context.Context, c change, version *int) bool {
	path := "/jobs/" + u.id
	switch c.what {
	case "update", "reschedule", "replace":
		u.update(ctx, c, version)
	case "race":
		u.race(ctx, version)
	case "pause":
		u.stops()
		if _, ok := u.request(ctx, http.StatusOK, http.MethodPost, path+"/pause", nil); ok {
			u.stopped(ledger.Stop{Kind: ledger.StopPause})
		}
	case "resume":
		u.resume(ctx)
	case "trigger":
		u.trigger(ctx, c)
	case "cancel", "delete":
		u.stops()
		method, status := http.MethodDelete, http.StatusNoContent
		if c.what == "cancel" {
			method, path, status = http.MethodPost, path+"/cancel", http.StatusOK
		} else {
			u.mu.Lock()
			u.said.Deleted[u.id] = true // answered or not
			u.mu.Unlock()
		}
		if _, ok := u.request(ctx, status, method, path, nil); ok {
			u.stopped(ledger.Stop{Kind: ledger.StopCancel})
		}
		return false
	}
	return true
}

// update changes the job's target, or the target and the schedule, or the whole job.
func (u *user) update(ctx context.Context, c change, version *int) {
	*version++
	u.stops()
	target := maps.Clone(u.script.body["target"].(map[string]any))
	target["url"] = u.targets.url("ok", *version, u.script.name)
	method, body := http.MethodPatch, map[string]any{"target": map[string]any{"url": target["url"]}}
	switch {
	case c.what == "reschedule" && u.script.body["type"] == "interval":
		body["every"] = "4s"
	case c.what == "replace" && u.script.body["type"] != "one_shot": // a delay would start again
		method, body = http.MethodPut, maps.Clone(u.script.body)
		body["target"] = target
	}
	v, ok := u.request(ctx, http.StatusOK, method, "/jobs/"+u.id, body, "If-Match", "*")
	if !ok {
		return
	}
	u.stopped(ledger.Stop{Kind: ledger.StopUpdate, EffectiveAt: v.EffectiveAt, OldHosts: u.hosts(*version)})
	u.owed(&v, time.Now())
}

// hosts returns those of the targets before a version.
func (u *user) hosts(version int) []string {
	old := []string{host(u.script.behavior, 0, u.script.name)}
	for n := 1; n < version; n++ {
		old = append(old, host("ok", n, u.script.name))
	}
	return old
}

// race makes two clients change the job's target at once, each by the ETag that it has read: neither overwrites a version
// it has not seen.
func (u *user) race(ctx context.Context, version *int) {
	u.stops()
	type answer struct {
		view
		target int
		at     time.Time
	}
	answers := make([]answer, 2)
	var both sync.WaitGroup
	for i := range answers {
		target := *version + 1 + i
		both.Go(func() {
			v, ok := u.patchByETag(ctx, u.targets.url("ok", target, u.script.name))
			if !ok {
				v.version = -1 // it was refused, as it is if the job has ended
			}
			answers[i] = answer{v, target, time.Now()}
		})
	}
	both.Wait()
	first := *version + 1
	*version += 2
	slices.SortFunc(answers, func(a, b answer) int { return cmp.Compare(a.version, b.version) })
	if answers[0].version == answers[1].version && answers[0].version >= 0 {
		u.t.Errorf("users: two changes of %s were answered with version %d", u.id, answers[0].version)
	}
	old := u.hosts(first)
	for _, a := range answers {
		if a.version < 0 {
			continue
		}
		u.stopped(ledger.Stop{Kind: ledger.StopUpdate, AckedAt: a.at, EffectiveAt: a.EffectiveAt, OldHosts: slices.Clone(old)})
		old = append(old, host("ok", a.target, u.script.name))
		u.owed(&a.view, time.Now())
		if a.version < answers[1].version {
			u.stops() // the other change came after it
		}
	}
}

// patchByETag sets the job's target by the version that it read right before.
func (u *user) patchByETag(ctx context.Context, url string) (view, bool) {
	for ctx.Err() == nil {
		v, ok := u.request(ctx, http.StatusOK, http.MethodGet, "/jobs/"+u.id, nil)
		if !ok {
			return v, false
		}
		v, ok = u.request(ctx, http.StatusOK, http.MethodPatch, "/jobs/"+u.id, map[string]any{"target": map[string]any{"url": url}},
			"If-Match", fmt.Sprintf("%q", strconv.FormatInt(v.version, 10)))
		if ok || !strings.HasSuffix(v.Type, "/changed") {
			return v, ok
		}
	}
	return view{}, false
}

// resume ends a pause; what the schedule owes begins with the answer.
func (u *user) resume(ctx context.Context) {
	u.stops()
	u.mu.Lock()
	for i := range u.said.Stops {
		if p := &u.said.Stops[i]; p.JobID == u.id && p.Kind == ledger.StopPause && p.ResumedAt.IsZero() {
			p.ResumedAt = time.Now()
		}
	}
	u.mu.Unlock()
	v, ok := u.request(ctx, http.StatusOK, http.MethodPost, "/jobs/"+u.id+"/resume", nil)
	if !ok {
		return
	}
	u.owed(&v, time.Now())
	u.mu.Lock()
	u.said.Resumed[u.id] = true
	u.changed[u.id] = append(u.changed[u.id], time.Now())
	u.mu.Unlock()
}

// trigger triggers the job, and cancels some of these executions.
func (u *user) trigger(ctx context.Context, c change) {
	v, ok := u.request(ctx, http.StatusAccepted, http.MethodPost, "/jobs/"+u.id+"/trigger", nil, "Idempotency-Key", u.key("trigger", c.n))
	if !ok {
		return
	}
	u.mu.Lock()
	u.said.Triggers = append(u.said.Triggers, ledger.Trigger{JobID: u.id, ExecutionID: v.ExecutionID, AckedAt: time.Now()})
	u.mu.Unlock()
	if c.n%2 == 0 {
		return
	}
	if _, ok := u.request(ctx, http.StatusAccepted, http.MethodPost, "/executions/"+v.ExecutionID+"/cancel", nil); ok {
		u.stopped(ledger.Stop{Kind: ledger.StopExecution, ExecutionID: v.ExecutionID})
	}
}

// administer makes a tenant and keys all the time, as an operator of the installation does, and rotates and revokes the keys.
func (u *Users) administer(ctx context.Context) {
	const pause = 2 * time.Second
	u.request(ctx, http.StatusCreated, http.MethodPost, "/tenants", map[string]any{"name": fmt.Sprintf("users-%d", u.began.UnixNano())})
	for time.Since(u.began) < u.cfg.Lasts && run.Sleep(ctx, pause) == nil {
		k, ok := u.request(ctx, http.StatusCreated, http.MethodPost, "/keys", map[string]any{"name": "deploy", "role": "viewer", "installation": true})
		if !ok {
			return
		}
		u.request(ctx, http.StatusCreated, http.MethodPost, "/keys/"+k.KeyID+"/rotate", map[string]any{"overlap": "10m"})
		u.request(ctx, http.StatusNoContent, http.MethodDelete, "/keys/"+k.KeyID, nil)
	}
}

// mostRedriven is how many dead letters are redriven.
const mostRedriven = 10

// redrive redrives some dead letters, as an operator does, in the middle of the run, and then all others.
func (u *Users) redrive(ctx context.Context) {
	if run.Sleep(ctx, u.cfg.Lasts*2/3) != nil {
		return
	}
	v, ok := u.request(ctx, http.StatusAccepted, http.MethodPost, "/dead-letters:redrive", map[string]any{"limit": mostRedriven},
		"Idempotency-Key", fmt.Sprint("redrive-", u.began.UnixNano()))
	if !ok {
		return
	}
	u.mu.Lock()
	for _, x := range v.Executions {
		u.said.Triggers = append(u.said.Triggers, ledger.Trigger{JobID: x.JobID, ExecutionID: x.ExecutionID, AckedAt: time.Now()})
	}
	u.mu.Unlock()
	if !u.cfg.NoPrecision {
		u.redriveAll(ctx)
	}
}

// request repeats a request until it is answered with the status, or with a conflict that the job's state explains.
func (u *Users) request(ctx context.Context, want int, method, path string, body any, headers ...string) (v view, ok bool) {
	for try := 0; ctx.Err() == nil; try++ {
		status, etag, text := u.once(ctx, try, method, path, body, headers)
		v = view{}
		_ = json.Unmarshal(text, &v) // a 204 has no body
		v.version, _ = strconv.ParseInt(strings.Trim(etag, `"`), 10, 64)
		u.mu.Lock()
		u.answer[status]++
		u.mu.Unlock()
		switch {
		case status == want:
			return v, true
		case status == http.StatusConflict:
			u.refused(path, v.Type)
			return v, false
		case status == http.StatusPreconditionFailed && len(headers) > 0 && headers[1] != "*":
			return v, false // another client was faster
		case status == http.StatusUnprocessableEntity && (method == http.MethodPatch || method == http.MethodPut):
			return v, false // such as a one_shot whose instant has passed
		case status != 0 && status != http.StatusServiceUnavailable:
			u.t.Errorf("users: %s %s was answered %d, want %d: %s", method, path, status, want, text[:min(len(text), 500)])
			return v, false
		}
		_ = run.Sleep(ctx, time.Second)
		if method != http.MethodGet {
			u.look(ctx, try, path)
		}
	}
	u.t.Errorf("users: %s %s was still not answered %s after the end", method, path, patience)
	return v, false
}

// look reads the job of a change that was not answered with success. The change may have been made all the same, and its
// definition be in force until the change is repeated. No later answer reports what that definition owed.
func (u *Users) look(ctx context.Context, try int, path string) {
	id, _, _ := strings.Cut(strings.TrimPrefix(path, "/jobs/"), "/")
	if !strings.HasPrefix(id, job.JobPrefix) {
		return
	}
	status, _, text := u.once(ctx, try, http.MethodGet, "/jobs/"+id, nil, nil)
	var v view
	if status == http.StatusOK && json.Unmarshal(text, &v) == nil && v.DefinitionID != "" {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.definitions[id] = append(u.definitions[id], v.DefinitionID)
	}
}

// refused notes that a request for /jobs/ID/… was answered 409.
func (u *Users) refused(path, problem string) {
	id, _, _ := strings.Cut(strings.TrimPrefix(path, "/jobs/"), "/")
	u.mu.Lock()
	defer u.mu.Unlock()
	u.said.Refusals = append(u.said.Refusals, ledger.Refusal{JobID: id, Code: problem[strings.LastIndexAny(problem, "/:")+1:]})
}

// asked notes a request for a change, and its answer.
func (u *Users) asked(method, path string, status int, h http.Header, answer []byte) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.said.Requests = append(u.said.Requests, ledger.RequestsOf(method, path, status, h, ledger.JobsIn(answer))...)
}

// once makes a request; the status is 0 if no answer came.
func (u *Users) once(ctx context.Context, try int, method, path string, body any, headers []string) (status int, etag string, answer []byte) {
	var text io.Reader = http.NoBody
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			u.t.Error(err)
			return 0, "", nil
		}
		text = bytes.NewReader(b)
	}
	r, err := http.NewRequestWithContext(ctx, method, u.cfg.Base(try)+"/api/v1"+path, text)
	if err != nil {
		u.t.Error(err)
		return 0, "", nil
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := u.client.Do(r)
	if err != nil {
		u.asked(method, path, 0, nil, nil)
		return 0, "", nil
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		u.asked(method, path, 0, nil, nil)
		return 0, "", nil
	}
	u.asked(method, path, resp.StatusCode, resp.Header, answer)
	return resp.StatusCode, resp.Header.Get("ETag"), answer
}
