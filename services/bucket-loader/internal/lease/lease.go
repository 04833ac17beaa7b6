// Package lease lets one process at a time do something for the whole region, under a lease in the cold store.
//
// It promises: while one process may take itself for the holder no other does, unless it stands still between a look at the lease and what it
// does then; whatever is done under a lease must bear being done twice. A lease passes on after its time and clock.MaxDifference. One who holds it
// and misses something that the work needs passes it on to one who does not, if there is one.
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
	// Misses names something that this process does not reach, so that one that reaches it had better hold the lease; "" for nothing. It is told what
	// the one misses that held the lease last. It is called at most once in a call of Hold or Renew; nil if there is nothing to reach.
	Misses func(ctx context.Context, other string) string

	// held is the lease that this process holds, as it is stored; nil while it has none. missing is how many terms of it in a row say that it misses
	// something, reached in how many looks in a row this process reached what the one misses that holds it.
	held    []byte
	missing int
	reached int
	last    term
}

// term says until when somebody holds a lease. Each one that is stored has another number.
type term struct {
	Number int64     `json:"number"`
	Until  time.Time `json:"until"`
	// Misses is what the one who holds it does not reach. A process that reaches it asks for the lease by writing the same term with Asked: the one who
	// holds it cannot renew it then.
	Misses string `json:"misses,omitempty"`
	Asked  bool   `json:"asked,omitempty"`
}

// Held reports whether this process held the lease when it looked last.
func (l *Lease) Held() bool { return l.held != nil }

// looks is in how many looks in a row a process reaches what the holder misses before it asks for the lease: the holder, which looks as often, may
// reach it again.
const looks = 2

// Missing reports whether the lease of this process says that it misses something.
func (l *Lease) Missing() bool { return l.missing > 0 }

// Unasked reports whether that has been so for three terms in a row: nobody has asked for the lease for as long as For, if each looks every third of that.
func (l *Lease) Unasked() bool { return l.missing > 2 }

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
	now, over := l.Clock.Now(), l.last.Until.Add(clock.MaxDifference)
	switch {
	case now.Before(over) && (l.last.Misses == "" || l.last.Asked):
		l.reached = 0
		return false, false, nil
	case now.Before(over):
		if l.reached++; l.misses(ctx) != "" {
			l.reached = 0
		}
		if l.reached < looks {
			return false, false, nil
		}
		asked := term{Number: l.last.Number + 1, Until: l.last.Until, Misses: l.last.Misses, Asked: true}
		if _, err := l.store(ctx, stored, asked); err != nil && !errors.Is(err, jobstore.ErrConflict) {
			return false, false, fmt.Errorf("ask for the lease %s: %w", l.Name, err)
		}
		return false, false, nil
	}
	missed := l.misses(ctx)
	if missed != "" && now.Before(over.Add(l.For)) {
		return false, false, nil // left to one who reaches it, for as long as a lease lasts
	}
	mine, err = l.swap(ctx, stored, now, missed)
	return mine, mine, err
}

func (l *Lease) misses(ctx context.Context) string {
	if l.Misses == nil {
		return ""
	}
	return l.Misses(ctx, l.last.Misses)
}

// Renew reports whether this process still is the one that holds the lease, for half of For at least.
func (l *Lease) Renew(ctx context.Context) (mine bool, err error) {
	half := l.last.Until.Add(-l.For / 2)
	if l.held == nil || l.Clock.Now().Before(half) && !l.Missing() {
		return l.held != nil, nil
	}
	missed := l.misses(ctx)
	now := l.Clock.Now()
	if now.Before(half) && missed != "" {
		return true, nil
	}
	return l.swap(ctx, l.held, now, missed) // before somebody asks, if it has just reached what it missed
}

// swap stores a new lease in place of one.
func (l *Lease) swap(ctx context.Context, old []byte, now time.Time, missed string) (bool, error) {
	next := term{Number: l.last.Number + 1, Until: job.Instant(now.Add(l.For)), Misses: missed}
	value, err := l.store(ctx, old, next)
	if err != nil || missed == "" {
		l.missing = 0
	} else {
		l.missing++
	}
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

// store stores a term in place of another, and returns it as it is stored.
func (l *Lease) store(ctx context.Context, old []byte, next term) ([]byte, error) {
	value, err := json.Marshal(next)
	if err != nil {
		return nil, err
	}
	return value, l.Settings.SwapSetting(ctx, l.Name, old, value)
}
