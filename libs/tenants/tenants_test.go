package tenants_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/tenants"
	"github.com/minutehand/minutehand/libs/tenants/tenantstest"
)

func settings() jobstore.Settings { return &tenantstest.Memory{} }

func TestDefaultTenantExistsWithoutBeingMade(t *testing.T) {
	d := tenantstest.Directory(settings())
	row, err := d.Tenant(t.Context(), "default")
	if err != nil || row.Number != job.DefaultTenant || row.Status != tenants.StatusActive {
		t.Errorf("%+v, %v", row, err)
	}
	if _, err := d.Create(t.Context(), "default", tenants.Edit{}); !errors.Is(err, tenants.ErrExists) {
		t.Errorf("it was made again: %v", err)
	}
}

func TestNameAndNumberAreGivenOutOnce(t *testing.T) {
	store := settings()
	a, b := tenantstest.Directory(store), tenantstest.Directory(store)
	made := make(chan tenants.Tenant, 16)
	for i := range 16 {
		go func() {
			d := []*tenants.Directory{a, b}[i%2]
			row, err := d.Create(t.Context(), []string{"acme", "globex"}[i/2%2], tenants.Edit{})
			if err != nil && !errors.Is(err, tenants.ErrExists) {
				t.Error(err)
			}
			made <- row
		}()
	}
	numbers, names := map[job.Tenant]bool{}, map[string]bool{}
	for range 16 {
		row := <-made
		if row.Name == "" {
			continue
		}
		if numbers[row.Number] || names[row.Name] || row.Number == job.DefaultTenant {
			t.Errorf("given out twice: %+v", row)
		}
		numbers[row.Number], names[row.Name] = true, true
	}
	page, next, err := a.List(t.Context(), 0, 10)
	if err != nil || next != 0 || len(page) != 3 || page[0].Name != "default" {
		t.Errorf("listed %+v, %d, %v", page, next, err)
	}
}

// failing fails each write of a creation in turn.
type failing struct {
	jobstore.Settings
	left int
}

func (f *failing) SwapSetting(ctx context.Context, name string, old, value []byte) error {
	if f.left--; f.left < 0 {
		return errors.New("died")
	}
	return f.Settings.SwapSetting(ctx, name, old, value)
}

func TestCrashAtAnyStepOfACreationLeavesNothingHalfMade(t *testing.T) {
	store := settings()
	for writes := range 3 {
		d := tenantstest.Directory(&failing{store, writes})
		if _, err := d.Create(t.Context(), "acme", tenants.Edit{}); err == nil {
			t.Fatalf("%d writes were enough", writes)
		}
		whole := tenantstest.Directory(store)
		if _, err := whole.Tenant(t.Context(), "acme"); !errors.Is(err, tenants.ErrNotFound) {
			t.Errorf("after %d writes: %v", writes, err)
		}
		if page, _, err := whole.List(t.Context(), 0, 10); err != nil || len(page) != 1 {
			t.Errorf("after %d writes: listed %+v, %v", writes, page, err)
		}
	}
	if _, err := tenantstest.Directory(store).Create(t.Context(), "acme", tenants.Edit{}); err != nil {
		t.Error(err)
	}
}

func TestPagesOfTenantsLeaveNoneOut(t *testing.T) {
	d := tenantstest.Directory(settings())
	for _, name := range []string{"a", "b", "c", "d"} {
		if _, err := d.Create(t.Context(), name, tenants.Edit{}); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	for from := job.Tenant(0); ; {
		page, next, err := d.List(t.Context(), from, 2)
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range page {
			names = append(names, row.Name)
		}
		if from = next; next == 0 {
			break
		}
	}
	if strings.Join(names, " ") != "default a b c d" {
		t.Errorf("listed %v", names)
	}
}

func TestKeyOpensItsScopeUntilItIsRevokedOrExpires(t *testing.T) {
	store := settings()
	bubble.Test(t, func(t *testing.T) {
		d, other := tenantstest.Directory(store), tenantstest.Directory(store)
		k, text, err := d.CreateKey(t.Context(), tenants.Key{Scope: tenants.ScopeOf(7), Role: "viewer", ExpiresAt: time.Now().Add(time.Hour)}, tenants.Edit{})
		if err != nil || !strings.HasPrefix(text, "mh_00000007_1_") || strings.Contains(k.Hash, text[len("mh_00000007_1_"):]) {
			t.Fatalf("%+v, %v", k, err)
		}
		opens := func(d *tenants.Directory, want bool) {
			t.Helper()
			got, err := d.Authenticate(t.Context(), text)
			if want && (err != nil || got.Scope != k.Scope || got.Role != "viewer") || !want && !errors.Is(err, tenants.ErrNotFound) {
				t.Errorf("authenticated %+v, %v", got, err)
			}
		}
		opens(d, true)
		opens(other, true)
		if _, err := d.ChangeKey(t.Context(), k.Scope, k.Number, tenants.Edit{}, func(k *tenants.Key) error { k.RevokedAt = time.Now(); return nil }); err != nil {
			t.Fatal(err)
		}
		opens(d, false)
		opens(other, true) // it has read the row a moment ago
		time.Sleep(tenants.Fresh)
		opens(other, false)
		_, text, err = d.CreateKey(t.Context(), tenants.Key{Scope: tenants.Installation, Role: "admin", ExpiresAt: time.Now().Add(time.Hour)}, tenants.Edit{})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := d.Authenticate(t.Context(), text); err != nil || got.Scope != tenants.Installation {
			t.Errorf("%+v, %v", got, err)
		}
		time.Sleep(time.Hour)
		if _, err := d.Authenticate(t.Context(), text); !errors.Is(err, tenants.ErrNotFound) {
			t.Errorf("expired: %v", err)
		}
	})
}

func TestOnlyTheWholeKeyOpens(t *testing.T) {
	d := tenantstest.Directory(settings())
	_, text, err := d.CreateKey(t.Context(), tenants.Key{Scope: tenants.ScopeOf(7), Role: "admin"}, tenants.Edit{})
	if err != nil {
		t.Fatal(err)
	}
	secret := strings.TrimPrefix(text, "mh_00000007_1_")
	for _, wrong := range []string{
		"", "mh_", "mh_00000007_1", "mh_00000007_1_", text[:len(text)-1], text + "A", strings.ToLower(text), " " + text,
		"mh_00000008_1_" + secret, "mh_all_1_" + secret, "mh_default_1_" + secret, "mh_00000007_2_" + secret, "mh_00000007_01_" + secret,
		"mh_7_1_" + secret, "mh_00000007_-1_" + secret, "mh_00000007_99999999999999999999_" + secret, "mh_00000000_1_" + secret,
		"xx_00000007_1_" + secret, strings.Repeat("mh_00000007_1_", 1000), "mh_0000000７_1_" + secret,
	} {
		if k, err := d.Authenticate(t.Context(), wrong); !errors.Is(err, tenants.ErrNotFound) {
			t.Errorf("%.40q: %+v, %v", wrong, k, err)
		}
	}
	if _, err := d.Authenticate(t.Context(), text); err != nil {
		t.Error(err)
	}
}

func TestLastUseOfAKeyIsKnownToWithinTenMinutes(t *testing.T) {
	store := settings()
	bubble.Test(t, func(t *testing.T) {
		d := tenantstest.Directory(store)
		k, text, err := d.CreateKey(t.Context(), tenants.Key{Scope: tenants.ScopeOf(7), Role: "admin"}, tenants.Edit{})
		if err != nil {
			t.Fatal(err)
		}
		for range 100 {
			time.Sleep(time.Minute)
			row, err := d.Authenticate(t.Context(), text)
			if err != nil || d.Used(t.Context(), &row) != nil {
				t.Fatal(err)
			}
			row, err = tenantstest.Directory(store).Key(t.Context(), k.Scope, k.Number)
			if err != nil || time.Since(row.LastUsedAt) > 10*time.Minute {
				t.Fatalf("last used %s ago, %v", time.Since(row.LastUsedAt), err)
			}
		}
	})
}
