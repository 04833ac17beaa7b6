// Package lease lets one process at a time do something for the whole region, under a lease in the cold store.
//
// It promises: while one process may take itself for the holder no other does, unless it stands still between a look at the lease and what it
// does then; whatever is done under a lease must bear being done twice. A lease passes on after its time and clock.MaxDifference.
package lease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// Lease is a process' part in who holds a lease. One goroutine uses it.
type Lease struct {
	Settings jobstore.Settings
	// Name is the setting in which it is kept, For how long a process holds it that cannot renew it.
	Name   string
	For    time.Duration
	Clock  clock.Clock
	Logger *slog.Logger

	// held is the lease that this process holds, as it is stored; nil while it has none.
	held []byte
	last term
}

// term says until when somebody holds a lease. Each one that is stored has another number.
type term struct {
	Number int64     `json:"number"`
	Until  time.Time `json:"until"`
}

// Held reports whether this process held the lease when it looked last.
func (l *Lease) Held() bool { return l.held != nil }

// Lapsed reports whether what this process held is over.
func (l *Lease) Lapsed() bool { return l.Clock.Now().After(l.last.Until) }

// Hold reports whether this process is the one that holds the lease, after it has renewed its own, or taken one that nobody holds; taken says
// that it was not the one before.
func (l *Lease) Hold(ctx context.Context) (mine, taken bool, err error) {
	if l.held != nil {
		mine, err = l.Renew(ctx)
		return mine, false, err
	}
	stored, err := l.Settings.Setting(ctx, l.Name)
	if err != nil {
		return false, false, fmt.Errorf("read who holds the lease %s: %w", l.Name, err)
	}
	if l.last = (term{}); stored != nil {
		if err := json.Unmarshal(stored, &l.last); err != nil {
			l.Logger.Warn("a lease cannot be read, and is overwritten", "role", l.Name, "error", err)
		}
	}
	now := l.Clock.Now()
	if now.Before(l.last.Until.Add(clock.MaxDifference)) {
		return false, false, nil
	}
	mine, err = l.swap(ctx, stored, now)
	return mine, mine, err
}

// Renew reports whether this process still is the one that holds the lease, for half of For at least.
func (l *Lease) Renew(ctx context.Context) (mine bool, err error) {
	now := l.Clock.Now()
	if l.held != nil && !now.Before(l.last.Until.Add(-l.For/2)) {
		return l.swap(ctx, l.held, now)
	}
	return l.held != nil, nil
}

// swap stores a new lease in place of one.
func (l *Lease) swap(ctx context.Context, old []byte, now time.Time) (bool, error) {
	next := term{Number: l.last.Number + 1, Until: job.Instant(now.Add(l.For))}
	value, err := json.Marshal(next)
	if err != nil {
		return false, err
	}
	err = l.Settings.SwapSetting(ctx, l.Name, old, value)
	if err == nil {
		l.held, l.last = value, next
		return true, nil
	}
	l.held = nil // another process holds it, or nobody can tell
	if errors.Is(err, jobstore.ErrConflict) {
		return false, nil
	}
	return false, fmt.Errorf("say who holds the lease %s: %w", l.Name, err)
}
