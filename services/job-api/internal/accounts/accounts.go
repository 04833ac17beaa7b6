// Package accounts carries out the operations on tenants, their API keys and their connections.
//
// It promises: a principal sees and changes the keys of the tenant that it acts for, and no others, and gives nobody a greater role
// than its own. A key is shown once, when it is made. The secret of a connection is never shown.
package accounts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobchange"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/problem"
	"github.com/minutehand/minutehand/libs/tenants"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
	"github.com/minutehand/minutehand/services/job-api/internal/removal"
)

// Accounts carries out the operations.
type Accounts struct {
	Directory *tenants.Directory
	Removal   *removal.Removal
	// Settings holds the connections of tenants, and Recorder makes known how they change.
	Settings jobstore.Settings
	Recorder jobchange.Recorder
	Clock    clock.Clock
}

// Operations returns the operations by their ids in the document.
func (as *Accounts) Operations() map[string]edge.Operation {
	return map[string]edge.Operation{
		"createTenant": as.createTenant, "listTenants": as.listTenants, "getTenant": as.getTenant, "deleteTenant": as.deleteTenant,
		"createKey": as.createKey, "listKeys": as.listKeys, "rotateKey": as.rotateKey, "revokeKey": as.revokeKey,
		"whoAmI":          as.whoAmI,
		"listConnections": as.listConnections, "getConnection": as.getConnection, "putConnection": as.putConnection, "deleteConnection": as.deleteConnection,
	}
}

// edit returns who makes a request, and by which operation.
func edit(r *edge.Request) tenants.Edit { return tenants.Edit{Operation: r.Operation, By: r.Author()} }

// tenant is a tenant as answers show it.
type tenant struct {
	Name      string     `json:"name"`
	Number    job.Tenant `json:"number"`
	Status    string     `json:"status"`
	CreatedAt *time.Time `json:"created_at,omitempty"`
	Removal   *progress  `json:"removal,omitempty"`
}

// progress is how far the removal of a tenant's data is.
type progress struct {
	Step      string     `json:"step"`
	StartedAt time.Time  `json:"started_at"`
	UpdatedAt time.Time  `json:"updated_at"`
	GoesOnAt  *time.Time `json:"goes_on_at,omitempty"`
	Stopped   int64      `json:"jobs_stopped"`
	Jobs      int64      `json:"jobs_removed"`
}

func show(t *tenants.Tenant) tenant {
	shown := tenant{Name: t.Name, Number: t.Number, Status: string(t.Status)}
	if m := t.Removal; m != nil {
		shown.Removal = &progress{
			Step: string(m.Step), StartedAt: m.StartedAt, UpdatedAt: m.UpdatedAt, GoesOnAt: instant(m.GoesOnAt),
			Stopped: m.Stopped, Jobs: m.Jobs,
		}
	}
	if !t.CreatedAt.IsZero() {
		shown.CreatedAt = &t.CreatedAt
	}
	return shown
}

// createTenant makes a tenant.
func (as *Accounts) createTenant(ctx context.Context, r *edge.Request) (edge.Response, error) {
	var body struct {
		Name string `json:"name"`
	}
	if err := json.Unmarshal(r.Raw, &body); err != nil {
		return edge.Response{}, edge.OutOfRange()
	}
	t, err := as.Directory.Create(ctx, body.Name, edit(r))
	if errors.Is(err, tenants.ErrExists) {
		return edge.Response{}, problem.New(http.StatusConflict, "tenant-exists", "The name belongs to another tenant, or did; choose another.",
			problem.Fault{Pointer: "/name", Code: "taken", Message: "Choose another name."})
	}
	if err != nil {
		return edge.Response{}, err
	}
	return edge.Response{Status: http.StatusCreated, Headers: map[string]string{"Location": edge.Root + "/tenants/" + t.Name}, Body: show(&t)}, nil
}

// getTenant shows a tenant.
func (as *Accounts) getTenant(ctx context.Context, r *edge.Request) (edge.Response, error) {
	t, err := as.Directory.Tenant(ctx, r.PathValue("tenant"))
	if err != nil {
		return edge.Response{}, absent(err)
	}
	return edge.Response{Status: http.StatusOK, Body: show(&t)}, nil
}

// deleteTenant stops everything of a tenant, and lets its data be removed.
func (as *Accounts) deleteTenant(ctx context.Context, r *edge.Request) (edge.Response, error) {
	t, err := as.Removal.Begin(ctx, r.PathValue("tenant"), edit(r))
	if err != nil {
		return edge.Response{}, absent(err)
	}
	return edge.Response{Status: http.StatusAccepted, Body: show(&t)}, nil
}

// absent is the error for a row that is not there, as the edge knows it.
func absent(err error) error {
	if errors.Is(err, tenants.ErrNotFound) {
		return jobstore.ErrNotFound
	}
	return err
}

// page is a page of any items.
type page struct {
	Items      []any   `json:"items"`
	NextCursor *string `json:"next_cursor"`
}

// cursor returns the number that a cursor names, 0 for none.
func cursor(r *edge.Request) (uint32, error) {
	text := r.Parameters["cursor"]
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0, edge.BadCursor()
	}
	return uint32(n), nil
}

func (p *page) end(next int64) edge.Response {
	if next != 0 {
		text := strconv.FormatInt(next, 10)
		p.NextCursor = &text
	}
	return edge.Response{Status: http.StatusOK, Body: p}
}

// listTenants shows a page of the tenants.
func (as *Accounts) listTenants(ctx context.Context, r *edge.Request) (edge.Response, error) {
	from, err := cursor(r)
	if err != nil {
		return edge.Response{}, err
	}
	list, next, err := as.Directory.List(ctx, job.Tenant(from), r.Limit())
	if err != nil {
		return edge.Response{}, fmt.Errorf("list tenants: %w", err)
	}
	result := page{Items: []any{}}
	for i := range list {
		result.Items = append(result.Items, show(&list[i]))
	}
	return result.end(int64(next)), nil
}

// whoAmI shows the principal of the request.
func (as *Accounts) whoAmI(_ context.Context, r *edge.Request) (edge.Response, error) {
	return edge.Response{Status: http.StatusOK, Body: map[string]any{
		"subject": r.By.Subject, "role": r.By.Role.String(), "tenant": r.By.TenantName, "installation": r.By.Installation,
	}}, nil
}

// scope returns whose keys the request is about: those of the tenant that the principal acts for, or of the installation.
func scope(r *edge.Request, installation bool) (tenants.Scope, error) {
	if !installation {
		return tenants.ScopeOf(r.Tenant()), nil
	}
	if !r.By.Installation || r.By.Chosen {
		return "", problem.New(http.StatusForbidden, "forbidden", "Only an admin of the installation has to do with its keys, and names no tenant then.")
	}
	return tenants.Installation, nil
}

// key is a key as answers show it.
type key struct {
	ID           string     `json:"key_id"`
	Name         string     `json:"name"`
	Role         string     `json:"role"`
	Installation bool       `json:"installation"`
	Status       string     `json:"status"`
	CreatedAt    time.Time  `json:"created_at"`
	CreatedBy    string     `json:"created_by"`
	ExpiresAt    *time.Time `json:"expires_at,omitempty"`
	RevokedAt    *time.Time `json:"revoked_at,omitempty"`
	LastUsedAt   *time.Time `json:"last_used_at,omitempty"`
	// Key is the key itself, in the one answer that has it.
	Key string `json:"key,omitempty"`
}

func (as *Accounts) showKey(k *tenants.Key) key {
	shown := key{
		ID: k.ID(), Name: k.Name, Role: k.Role, Installation: k.Scope == tenants.Installation, Status: "live", CreatedAt: k.CreatedAt, CreatedBy: k.CreatedBy,
		ExpiresAt: instant(k.ExpiresAt), RevokedAt: instant(k.RevokedAt), LastUsedAt: instant(k.LastUsedAt),
	}
	switch {
	case !k.RevokedAt.IsZero():
		shown.Status = "revoked"
	case !k.Live(as.Clock.Now()):
		shown.Status = "expired"
	}
	return shown
}

func instant(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// createKey makes a key for the tenant, or the installation.
func (as *Accounts) createKey(ctx context.Context, r *edge.Request) (edge.Response, error) {
	var body struct {
		Name         string `json:"name"`
		Role         string `json:"role"`
		ExpiresIn    string `json:"expires_in"`
		Installation bool   `json:"installation"`
	}
	if err := json.Unmarshal(r.Raw, &body); err != nil {
		return edge.Response{}, edge.OutOfRange()
	}
	s, err := scope(r, body.Installation)
	if err != nil {
		return edge.Response{}, err
	}
	k := tenants.Key{Scope: s, Name: body.Name, Role: body.Role, CreatedBy: r.By.Subject}
	if s != tenants.Installation {
		k.TenantName = r.By.TenantName
	}
	if body.ExpiresIn != "" {
		d, err := time.ParseDuration(body.ExpiresIn)
		if err != nil || d <= 0 || d > longestLife {
			return edge.Response{}, edge.Invalid([]problem.Fault{{Pointer: "/expires_in", Code: "range", Message: "Must be more than 0s and at most 87600h."}})
		}
		k.ExpiresAt = job.Instant(as.Clock.Now().Add(d))
	}
	return as.make(ctx, r, k)
}

// longestLife bounds the life of a key that expires: ten years.
const longestLife = 87600 * time.Hour

func (as *Accounts) make(ctx context.Context, r *edge.Request, k tenants.Key) (edge.Response, error) {
	k, text, err := as.Directory.CreateKey(ctx, k, edit(r))
	if errors.Is(err, tenants.ErrTooMany) {
		return edge.Response{}, problem.New(http.StatusConflict, "too-many-keys", "There are 1000 live keys already; revoke one that is no longer used.")
	}
	if err != nil {
		return edge.Response{}, err
	}
	shown := as.showKey(&k)
	shown.Key = text
	return edge.Response{
		Status: http.StatusCreated, Headers: map[string]string{"Location": edge.Root + "/keys/" + shown.ID, "Cache-Control": "no-store"}, Body: shown,
	}, nil
}

// listKeys shows a page of keys.
func (as *Accounts) listKeys(ctx context.Context, r *edge.Request) (edge.Response, error) {
	from, err := cursor(r)
	if err != nil {
		return edge.Response{}, err
	}
	s, err := scope(r, r.Parameters["installation"] == "true")
	if err != nil {
		return edge.Response{}, err
	}
	list, next, err := as.Directory.Keys(ctx, s, int64(from), r.Limit())
	if err != nil {
		return edge.Response{}, fmt.Errorf("list keys: %w", err)
	}
	result := page{Items: []any{}}
	for i := range list {
		result.Items = append(result.Items, as.showKey(&list[i]))
	}
	return result.end(next), nil
}

// named returns the key that the path names, if the principal has to do with it. Of a key of another scope it returns one that
// does not exist, so that the way through the stores is the same.
func named(r *edge.Request) (s tenants.Scope, n int64, err error) {
	s, n, ok := tenants.ParseKeyID(r.PathValue("key_id"))
	if !ok {
		return "", 0, jobstore.ErrNotFound
	}
	own := tenants.ScopeOf(r.Tenant())
	if s == own || s == tenants.Installation && r.By.Installation && !r.By.Chosen {
		return s, n, nil
	}
	return own, math.MaxInt32, nil
}

// revokeKey ends a key within [tenants.Fresh].
func (as *Accounts) revokeKey(ctx context.Context, r *edge.Request) (edge.Response, error) {
	s, n, err := named(r)
	if err != nil {
		return edge.Response{}, err
	}
	_, err = as.Directory.ChangeKey(ctx, s, n, edit(r), func(k *tenants.Key) error {
		if k.RevokedAt.IsZero() {
			k.RevokedAt = job.Instant(as.Clock.Now())
		}
		return nil
	})
	return edge.Response{Status: http.StatusNoContent}, absent(err)
}

// rotateKey makes a key that may do the same, and lets the old one expire. A crash between the two leaves a key that nobody has, and
// the old one as it was.
func (as *Accounts) rotateKey(ctx context.Context, r *edge.Request) (edge.Response, error) {
	var body struct {
		Overlap string `json:"overlap"`
	}
	if err := json.Unmarshal(r.Raw, &body); err != nil {
		return edge.Response{}, edge.OutOfRange()
	}
	overlap, err := time.ParseDuration(body.Overlap)
	if body.Overlap == "" {
		overlap, err = time.Hour, nil
	}
	if err != nil || overlap < 0 || overlap > longestOverlap {
		return edge.Response{}, edge.Invalid([]problem.Fault{{Pointer: "/overlap", Code: "range", Message: "Must be 0s to 720h."}})
	}
	s, n, err := named(r)
	if err != nil {
		return edge.Response{}, err
	}
	old, err := as.Directory.Key(ctx, s, n)
	if err != nil {
		return edge.Response{}, absent(err)
	}
	now := job.Instant(as.Clock.Now())
	if !old.Live(now) {
		return edge.Response{}, problem.New(http.StatusConflict, "key-ended", "The key has ended already; make a new one.")
	}
	next := old
	if next.CreatedBy = r.By.Subject; !old.ExpiresAt.IsZero() { // it lives as long as the old one was to
		next.ExpiresAt = now.Add(old.ExpiresAt.Sub(old.CreatedAt))
	}
	resp, err := as.make(ctx, r, next)
	if err != nil {
		return edge.Response{}, err
	}
	_, err = as.Directory.ChangeKey(ctx, s, n, edit(r), func(k *tenants.Key) error {
		if end := now.Add(overlap); k.ExpiresAt.IsZero() || end.Before(k.ExpiresAt) {
			k.ExpiresAt = end
		}
		return nil
	})
	return resp, err
}

// longestOverlap bounds for how long a key and the one in its place both live.
const longestOverlap = 720 * time.Hour
