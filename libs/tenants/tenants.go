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
}

var validName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// ValidName reports whether a tenant may have a name: 1 to 63 lower-case letters, digits and hyphens, as in a DNS label.
func ValidName(s string) bool { return validName.MatchString(s) }

// Directory reads and changes the rows. It must not be copied.
type Directory struct {
	settings jobstore.Settings
	clock    clock.Clock
	tenants  cache[Tenant]
	keys     cache[Key]
}

// New returns the directory of an installation.
func New(settings jobstore.Settings, c clock.Clock) *Directory {
	return &Directory{settings: settings, clock: c}
}

func tenantSetting(name string) string { return "tenant/" + name }

func numberSetting(t job.Tenant) string { return "tenant-number/" + t.String() }

// nextNumber is the setting that holds the number of the next tenant.
const nextNumber = "tenant-next"

// Tenant returns the tenant with a name, as it was at most [Fresh] ago.
func (d *Directory) Tenant(ctx context.Context, name string) (Tenant, error) {
	return d.tenants.get(name, d.clock.Now(), func() (Tenant, error) { return d.readTenant(ctx, name) })
}

func (d *Directory) readTenant(ctx context.Context, name string) (t Tenant, err error) {
	raw, err := d.read(ctx, tenantSetting(name), &t)
	if err != nil {
		return Tenant{}, fmt.Errorf("read tenant %s: %w", name, err)
	}
	switch {
	case raw == nil && name == DefaultName:
		return Tenant{Name: DefaultName, Status: StatusActive}, nil
	case raw == nil:
		return Tenant{}, fmt.Errorf("tenant %s: %w", name, ErrNotFound)
	}
	return t, nil
}

// Create makes a tenant. It fails with ErrExists if there is, or was, one with the name.
func (d *Directory) Create(ctx context.Context, name string) (Tenant, error) {
	if name == DefaultName {
		return Tenant{}, fmt.Errorf("tenant %s: %w", name, ErrExists)
	}
	_, err := d.readTenant(ctx, name)
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
	if err := d.write(ctx, tenantSetting(name), nil, t); err != nil {
		if errors.Is(err, jobstore.ErrConflict) {
			err = ErrExists // another request made it meanwhile
		}
		return Tenant{}, fmt.Errorf("write tenant %s: %w", name, err)
	}
	d.tenants.drop(name)
	return t, nil
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
		t, err := d.readTenant(ctx, name)
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
