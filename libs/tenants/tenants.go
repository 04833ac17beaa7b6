// Package tenants is the directory of an installation: its tenants, and the API keys by which clients without an identity provider
// are known.
//
// It promises: a number is given out once, and a name belongs to one tenant at most. A row exists when the one write that makes it
// has succeeded, so a crash leaves a number unused, and nothing half-made. A change is seen everywhere within [Fresh].
//
// The rows are settings of the cold store ([jobstore.Settings]), because they are few and every change of one is a compare-and-set.
package tenants

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobchange"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// Why a row is not made or found.
var (
	// ErrNotFound means that there is no such row.
	ErrNotFound = errors.New("there is no such row")
	// ErrExists means that the name belongs to another tenant, or did.
	ErrExists = errors.New("the name is taken")
	// ErrTooMany means that a tenant has MaxKeys keys that are not revoked.
	ErrTooMany = errors.New("there are too many keys")
)

// Status is what a tenant may do.
type Status string

// The states of a tenant.
const (
	StatusActive Status = "active"
	// StatusDeleting means that nothing more is taken or fired, and that the data is being removed.
	StatusDeleting Status = "deleting"
	// StatusDeleted means that nothing but the name and the number is left, which are never given out again.
	StatusDeleted Status = "deleted"
)

// DefaultName is the name of the tenant that exists without being made.
const DefaultName = "default"

// Tenant is a tenant's row.
type Tenant struct {
	Number    job.Tenant `json:"number"`
	Name      string     `json:"name"`
	Status    Status     `json:"status"`
	CreatedAt time.Time  `json:"created_at,omitzero"`
	UpdatedAt time.Time  `json:"updated_at,omitzero"`
	// Changes are the latest changes of the row. Raised grows when a worker keeps a late writer out.
	Changes []job.ChangeRef `json:"changes,omitempty"`
	Raised  int64           `json:"raised,omitempty"`
	// Removal is how far the removal of its data is; nil for a tenant that nobody deletes.
	Removal *Removal `json:"removal,omitempty"`
}

// Removal is how far the data of a tenant is removed. It follows from the stores alone how it goes on, so any process may carry on.
type Removal struct {
	Step      Step       `json:"step"`
	By        job.Author `json:"by"`
	StartedAt time.Time  `json:"started_at"`
	UpdatedAt time.Time  `json:"updated_at"`
	// Cursor is where the jobs of a step go on; GoesOnAt, when the next step begins that waits.
	Cursor   string    `json:"cursor,omitempty"`
	GoesOnAt time.Time `json:"goes_on_at,omitzero"`
	// Stopped and Jobs count the jobs that were stopped, and those that were removed.
	Stopped int64 `json:"stopped"`
	Jobs    int64 `json:"jobs"`
	// Key is the number of the key that is removed next.
	Key int64 `json:"key,omitempty"`
	// Worker is the process that removes, until Until.
	Worker string    `json:"worker,omitempty"`
	Until  time.Time `json:"until,omitzero"`
}

// Step is a step of a removal.
type Step string

// The steps, in their order.
const (
	// StepStopping cancels the jobs.
	StepStopping Step = "stopping"
	// StepWaiting lets what is on its way be recorded.
	StepWaiting Step = "waiting"
	// StepRemoving removes jobs with their history, StepClearing dead letters, listings and keys.
	StepRemoving Step = "removing"
	StepClearing Step = "clearing"
	StepDone     Step = "done"
)

// Edit is who changes a row, and by which operation of the OpenAPI document.
type Edit struct {
	Operation string
	By        job.Author
}

var validName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// ValidName reports whether a tenant may have a name: 1 to 63 lower-case letters, digits and hyphens, as in a DNS label.
func ValidName(s string) bool { return validName.MatchString(s) }

// Directory reads and changes the rows. It must not be copied.
type Directory struct {
	settings jobstore.Settings
	recorder jobchange.Recorder
	clock    clock.Clock
	tenants  cache[Tenant]
	keys     cache[Key]
}

// New returns the directory of an installation. The recorder makes its changes known; a directory that changes nothing needs none.
func New(settings jobstore.Settings, recorder jobchange.Recorder, c clock.Clock) *Directory {
	return &Directory{settings: settings, recorder: recorder, clock: c}
}

func tenantSetting(name string) string { return "tenant/" + name }

func numberSetting(t job.Tenant) string { return "tenant-number/" + t.String() }

// nextNumber is the setting that holds the number of the next tenant.
const nextNumber = "tenant-next"

// Tenant returns the tenant with a name, as it was at most [Fresh] ago.
func (d *Directory) Tenant(ctx context.Context, name string) (Tenant, error) {
	return d.tenants.get(name, d.clock.Now(), func() (Tenant, error) { return d.Read(ctx, name) })
}

// Read returns the tenant with a name as it is.
func (d *Directory) Read(ctx context.Context, name string) (Tenant, error) {
	t, _, err := d.readTenantRow(ctx, name)
	return t, err
}

// readTenantRow also returns the row as it is stored, which may be there without a tenant: see [jobchange.Raise].
func (d *Directory) readTenantRow(ctx context.Context, name string) (t Tenant, raw []byte, err error) {
	if raw, err = d.read(ctx, tenantSetting(name), &t); err != nil {
		return Tenant{}, nil, fmt.Errorf("read tenant %s: %w", name, err)
	}
	switch {
	case t.Name == "" && name == DefaultName:
		return Tenant{Name: DefaultName, Status: StatusActive}, raw, nil
	case t.Name == "":
		return Tenant{}, raw, fmt.Errorf("tenant %s: %w", name, ErrNotFound)
	}
	return t, raw, nil
}

// Create makes a tenant. It fails with ErrExists if there is, or was, one with the name.
func (d *Directory) Create(ctx context.Context, name string, by Edit) (t Tenant, err error) {
	for {
		t, err = d.create(ctx, name, by)
		if !errors.Is(err, jobstore.ErrConflict) || ctx.Err() != nil {
			return t, err
		} // another request made it meanwhile, or a worker closed the name to this one
	}
}

func (d *Directory) create(ctx context.Context, name string, by Edit) (Tenant, error) {
	if name == DefaultName {
		return Tenant{}, fmt.Errorf("tenant %s: %w", name, ErrExists)
	}
	_, raw, err := d.readTenantRow(ctx, name)
	if err == nil {
		return Tenant{}, fmt.Errorf("tenant %s: %w", name, ErrExists)
	}
	if !errors.Is(err, ErrNotFound) {
		return Tenant{}, err
	}
	n, err := d.take(ctx, nextNumber, 1)
	if err != nil {
		return Tenant{}, fmt.Errorf("number a tenant: %w", err)
	}
	now := job.Instant(d.clock.Now())
	t := Tenant{Number: job.Tenant(n), Name: name, Status: StatusActive, CreatedAt: now, UpdatedAt: now}
	if err := d.write(ctx, numberSetting(t.Number), nil, name); err != nil {
		return Tenant{}, fmt.Errorf("note the name of tenant %s: %w", t.Number, err)
	}
	change := job.Change{Operation: by.Operation, Setting: tenantSetting(name), Object: name}
	err = d.recorder.Setting(ctx, job.InstallationSettings(), job.DefaultTenant, change, by.By, &t.Changes, func() error {
		return d.write(ctx, tenantSetting(name), raw, t)
	})
	if err != nil {
		return Tenant{}, fmt.Errorf("write tenant %s: %w", name, err)
	}
	d.tenants.drop(name)
	return t, nil
}

// Name returns the name of the tenant with a number.
func (d *Directory) Name(ctx context.Context, n job.Tenant) (name string, err error) {
	raw, err := d.read(ctx, numberSetting(n), &name)
	if err == nil && raw == nil {
		err = fmt.Errorf("tenant %s: %w", n, ErrNotFound)
	}
	return name, err
}

// Change applies fn to a tenant's row and stores it; fn may be called again. Nobody is told of it: see [Directory.Create].
func (d *Directory) Change(ctx context.Context, name string, fn func(t *Tenant) error) (Tenant, error) {
	for {
		t, raw, err := d.readTenantRow(ctx, name)
		if err != nil {
			return Tenant{}, err
		}
		if err := fn(&t); err != nil {
			return t, err
		}
		t.UpdatedAt = job.Instant(d.clock.Now())
		err = d.write(ctx, tenantSetting(name), raw, t)
		if errors.Is(err, jobstore.ErrConflict) && ctx.Err() == nil {
			continue
		}
		d.tenants.drop(name)
		return t, err
	}
}

// List returns up to limit tenants from a number on, in the order of their numbers; next is 0 at the end.
func (d *Directory) List(ctx context.Context, from job.Tenant, limit int) (page []Tenant, next job.Tenant, err error) {
	last, err := d.next(ctx, nextNumber, 1)
	if err != nil {
		return nil, 0, err
	}
	for n := from; uint64(n) < uint64(last); n++ {
		if len(page) == limit {
			return page, n, nil
		}
		name := DefaultName
		if n != job.DefaultTenant {
			raw, err := d.read(ctx, numberSetting(n), &name)
			if err != nil {
				return nil, 0, err
			}
			if raw == nil {
				continue // a request took the number and made no tenant
			}
		}
		t, err := d.Read(ctx, name)
		if errors.Is(err, ErrNotFound) || err == nil && t.Number != n {
			continue
		}
		if err != nil {
			return nil, 0, err
		}
		page = append(page, t)
	}
	return page, 0, nil
}

// next returns the number that take would take.
func (d *Directory) next(ctx context.Context, setting string, first int64) (int64, error) {
	raw, err := d.settings.Setting(ctx, setting)
	if err != nil || raw == nil {
		return first, err
	}
	return strconv.ParseInt(string(raw), 10, 64)
}

// take takes the next number of a setting, which nobody else gets.
func (d *Directory) take(ctx context.Context, setting string, first int64) (int64, error) {
	for {
		raw, err := d.settings.Setting(ctx, setting)
		if err != nil {
			return 0, err
		}
		n := first
		if raw != nil {
			if n, err = strconv.ParseInt(string(raw), 10, 32); err != nil {
				return 0, err
			}
		}
		err = d.settings.SwapSetting(ctx, setting, raw, strconv.AppendInt(nil, n+1, 10))
		if errors.Is(err, jobstore.ErrConflict) && ctx.Err() == nil {
			continue
		}
		return n, err
	}
}

func (d *Directory) read(ctx context.Context, setting string, v any) (raw []byte, err error) {
	raw, err = d.settings.Setting(ctx, setting)
	if err != nil || raw == nil {
		return nil, err
	}
	return raw, json.Unmarshal(raw, v)
}

func (d *Directory) write(ctx context.Context, setting string, old []byte, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return d.settings.SwapSetting(ctx, setting, old, raw)
}
