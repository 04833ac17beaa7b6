package tenants

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

const (
	// KeyPrefix begins every API key.
	KeyPrefix = "mh_"
	// MaxKeys bounds the keys of a scope that are not revoked.
	MaxKeys = 1000
	// usedEvery is how exactly the last use of a key is known.
	usedEvery = 10 * time.Minute
	// longestKey bounds the text of a key.
	longestKey = 128
)

// Scope is what a key opens: one tenant, or the installation.
type Scope string

// Installation is the scope of keys that stand for the installation itself.
const Installation Scope = "all"

// ScopeOf returns the scope of a tenant.
func ScopeOf(t job.Tenant) Scope { return Scope(t.String()) }

// Key is an API key's row. The secret itself is kept nowhere.
type Key struct {
	Scope Scope `json:"scope"`
	// Number is the key's own among those of its scope.
	Number int64 `json:"number"`
	// TenantName is the name of the scope's tenant; "" for the installation.
	TenantName string `json:"tenant,omitempty"`
	Name       string `json:"name"`
	Role       string `json:"role"`
	// Hash is the SHA-256 of the secret, in hexadecimal digits. The secret has 256 random bits, so a slow hash would add nothing.
	Hash       string    `json:"hash"`
	CreatedAt  time.Time `json:"created_at"`
	CreatedBy  string    `json:"created_by"`
	ExpiresAt  time.Time `json:"expires_at,omitzero"`
	RevokedAt  time.Time `json:"revoked_at,omitzero"`
	LastUsedAt time.Time `json:"last_used_at,omitzero"`
	// Changes are the latest changes of the row. Raised grows when a worker keeps a late writer out.
	Changes []job.ChangeRef `json:"changes,omitempty"`
	Raised  int64           `json:"raised,omitempty"`
}

// ID returns the visible part of the key, by which it is named.
func (k *Key) ID() string { return KeyPrefix + string(k.Scope) + "_" + strconv.FormatInt(k.Number, 10) }

// subject returns what stands in the place of a job's id for the changes of a scope's keys, and the tenant.
func (s Scope) subject() (string, job.Tenant) {
	t, err := job.ParseTenant(string(s))
	if s == Installation || err != nil {
		return job.InstallationSettings(), job.DefaultTenant
	}
	return job.SettingsOf(t), t
}

// Live reports whether the key opens anything at an instant.
func (k *Key) Live(now time.Time) bool {
	return k.RevokedAt.IsZero() && (k.ExpiresAt.IsZero() || now.Before(k.ExpiresAt))
}

func keySetting(s Scope, n int64) string { return "key/" + string(s) + "/" + strconv.FormatInt(n, 10) }

func nextKey(s Scope) string { return "key-next/" + string(s) }

// ParseKeyID returns what a key's id names.
func ParseKeyID(id string) (s Scope, n int64, ok bool) {
	rest, ok := strings.CutPrefix(id, KeyPrefix)
	scope, number, found := strings.Cut(rest, "_")
	if !ok || !found {
		return "", 0, false
	}
	if s = Scope(scope); s != Installation {
		t, err := job.ParseTenant(scope)
		if err != nil || t.String() != scope {
			return "", 0, false
		}
	}
	n, err := strconv.ParseInt(number, 10, 32)
	return s, n, err == nil && n > 0 && strconv.FormatInt(n, 10) == number
}

// CreateKey makes a key with the scope, tenant, name, role, creator and expiry of k. It returns the row, and the key itself, which
// cannot be read again.
func (d *Directory) CreateKey(ctx context.Context, k Key, by Edit) (created Key, text string, err error) {
	for {
		created, text, err = d.createKey(ctx, k, by)
		if !errors.Is(err, jobstore.ErrConflict) || ctx.Err() != nil {
			return created, text, err
		} // it took so long that workers closed the number to it
	}
}

func (d *Directory) createKey(ctx context.Context, k Key, by Edit) (Key, string, error) {
	n, err := d.take(ctx, nextKey(k.Scope), 1)
	if err != nil {
		return Key{}, "", fmt.Errorf("number a key: %w", err)
	}
	if n > MaxKeys {
		live, err := d.liveKeys(ctx, k.Scope, n)
		if err != nil {
			return Key{}, "", err
		}
		if live >= MaxKeys {
			return Key{}, "", ErrTooMany
		}
	}
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // it never fails
	text := base64.RawURLEncoding.EncodeToString(secret)
	k.Number, k.Hash, k.CreatedAt = n, hash(text), job.Instant(d.clock.Now())
	k.RevokedAt, k.LastUsedAt, k.Changes = time.Time{}, time.Time{}, nil
	err = d.record(ctx, &k, by, func() error { return d.write(ctx, keySetting(k.Scope, n), nil, k) })
	if err != nil {
		return Key{}, "", fmt.Errorf("write key %s: %w", k.ID(), err)
	}
	d.keys.drop(keySetting(k.Scope, n))
	return k, k.ID() + "_" + text, nil
}

// record makes a change of a key known, and stores it.
func (d *Directory) record(ctx context.Context, k *Key, by Edit, swap func() error) error {
	subject, tenant := k.Scope.subject()
	change := job.Change{Operation: by.Operation, Setting: keySetting(k.Scope, k.Number), Object: k.ID()}
	return d.recorder.Setting(ctx, subject, tenant, change, by.By, &k.Changes, swap)
}

// liveKeys counts the keys of a scope below a number that are live.
func (d *Directory) liveKeys(ctx context.Context, s Scope, below int64) (live int, err error) {
	for n := int64(1); n < below; n++ {
		k, _, err := d.readKey(ctx, s, n)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return 0, err
		}
		if err == nil && k.Live(d.clock.Now()) {
			live++
		}
	}
	return live, nil
}

func hash(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

// Authenticate returns the row of a key that a client has sent, as it was at most [Fresh] ago. It fails with ErrNotFound unless the
// key is live, and does not tell why.
func (d *Directory) Authenticate(ctx context.Context, key string) (Key, error) {
	parts := strings.SplitN(key, "_", 4) // the secret may have one
	if len(key) > longestKey || len(parts) != 4 {
		return Key{}, ErrNotFound
	}
	scope, n, ok := ParseKeyID(strings.Join(parts[:3], "_"))
	if !ok {
		return Key{}, ErrNotFound
	}
	return d.authenticate(ctx, scope, n, parts[3])
}

func (d *Directory) authenticate(ctx context.Context, s Scope, n int64, secret string) (Key, error) {
	id := keySetting(s, n)
	k, err := d.keys.get(id, d.clock.Now(), func() (Key, error) { return d.Key(ctx, s, n) })
	if errors.Is(err, ErrNotFound) {
		return Key{}, ErrNotFound
	}
	if err != nil {
		return Key{}, err
	}
	now := d.clock.Now()
	if subtle.ConstantTimeCompare([]byte(hash(secret)), []byte(k.Hash)) != 1 || !k.Live(now) {
		return Key{}, ErrNotFound
	}
	return k, nil
}

// Key returns a key's row as it is.
func (d *Directory) Key(ctx context.Context, s Scope, n int64) (Key, error) {
	k, _, err := d.readKey(ctx, s, n)
	return k, err
}

func (d *Directory) readKey(ctx context.Context, s Scope, n int64) (k Key, raw []byte, err error) {
	if raw, err = d.read(ctx, keySetting(s, n), &k); err != nil {
		return Key{}, nil, fmt.Errorf("read key %d of %s: %w", n, s, err)
	}
	if k.Hash == "" {
		return Key{}, nil, fmt.Errorf("key %d of %s: %w", n, s, ErrNotFound)
	}
	return k, raw, nil
}

// ChangeKey applies fn to a key's row and stores it; fn may be called again.
func (d *Directory) ChangeKey(ctx context.Context, s Scope, n int64, by Edit, fn func(k *Key) error) (Key, error) {
	return d.changeKey(ctx, s, n, &by, fn)
}

// changeKey is ChangeKey, of which nobody is told if by is nil.
func (d *Directory) changeKey(ctx context.Context, s Scope, n int64, by *Edit, fn func(k *Key) error) (Key, error) {
	for {
		k, raw, err := d.readKey(ctx, s, n)
		if err != nil {
			return Key{}, err
		}
		if err := fn(&k); err != nil {
			return k, err
		}
		swap := func() error { return d.write(ctx, keySetting(s, n), raw, k) }
		if by == nil {
			err = swap()
		} else {
			err = d.record(ctx, &k, *by, swap)
		}
		if errors.Is(err, jobstore.ErrConflict) && ctx.Err() == nil {
			continue
		}
		d.keys.drop(keySetting(s, n))
		return k, err
	}
}

// Keys returns up to limit keys of a scope from a number on, revoked ones included; next is 0 at the end.
func (d *Directory) Keys(ctx context.Context, s Scope, from int64, limit int) (page []Key, next int64, err error) {
	last, err := d.next(ctx, nextKey(s), 1)
	if err != nil {
		return nil, 0, err
	}
	for n := max(from, 1); n < last; n++ {
		if len(page) == limit {
			return page, n, nil
		}
		k, _, err := d.readKey(ctx, s, n)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, 0, err
		}
		page = append(page, k)
	}
	return page, 0, nil
}

// keysAtOnce bounds the keys that one call removes.
const keysAtOnce = 200

// ErrUntold means that a change of a row is not published yet, so the row must stay.
var ErrUntold = errors.New("a change of the row is not published yet")

// RemoveKeys removes keys of a scope from a number on, and returns the number at which the next call goes on, 0 at the end. It fails
// with ErrUntold at a key whose row must stay for now. A number that had a key is not given out again.
func (d *Directory) RemoveKeys(ctx context.Context, s Scope, from int64) (next int64, err error) {
	last, err := d.next(ctx, nextKey(s), 1)
	if err != nil {
		return from, err
	}
	subject, _ := s.subject()
	for n := max(from, 1); n < last; n++ {
		if n >= from+keysAtOnce {
			return n, nil
		}
		k, raw, err := d.readKey(ctx, s, n)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		told := false
		if err == nil {
			told, err = d.recorder.Published(ctx, subject, k.Changes)
		}
		if err == nil && !told {
			return n, ErrUntold
		}
		if err == nil {
			err = d.settings.SwapSetting(ctx, keySetting(s, n), raw, []byte("{}"))
			d.keys.drop(keySetting(s, n))
		}
		if err != nil {
			return n, fmt.Errorf("remove key %d of %s: %w", n, s, err)
		}
	}
	return 0, nil
}

// errUsed means that the last use is known well enough.
var errUsed = errors.New("the last use is known")

// Used notes that a key was used now, unless that is known to within ten minutes.
func (d *Directory) Used(ctx context.Context, k *Key) error {
	now := job.Instant(d.clock.Now())
	if now.Sub(k.LastUsedAt) < usedEvery {
		return nil
	}
	_, err := d.changeKey(ctx, k.Scope, k.Number, nil, func(k *Key) error {
		if now.Sub(k.LastUsedAt) < usedEvery {
			return errUsed
		}
		k.LastUsedAt = now
		return nil
	})
	if errors.Is(err, errUsed) || errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}
