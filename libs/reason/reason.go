// Package reason keeps why connections to a server fail, where a driver tries again by itself and says nothing but that time is over.
package reason

import (
	"fmt"
	"log/slog"
	"sync"
	"time"
)

const (
	// recent is how long a failure explains what goes wrong, again how long it is not logged again.
	recent = 30 * time.Second
	again  = time.Minute
)

// Keeper keeps the latest failure. The zero value is ready for use, and logs nothing.
type Keeper struct {
	// Server is the kind of server, such as "kafka".
	Server string
	Logger *slog.Logger

	mu     sync.Mutex
	err    error
	at     time.Time
	logged map[string]time.Time
}

// maxLogged bounds the failures that are known to be logged.
const maxLogged = 100

// Failed notes that a connection to an address failed; each reason is logged once a minute.
func (k *Keeper) Failed(address string, err error) {
	if err == nil {
		return
	}
	if address != "" {
		err = fmt.Errorf("%s: %w", address, err)
	}
	now := time.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err, k.at = err, now
	if k.Logger == nil || now.Sub(k.logged[err.Error()]) < again {
		return
	}
	if k.logged == nil || len(k.logged) >= maxLogged {
		k.logged = map[string]time.Time{}
	}
	k.logged[err.Error()] = now
	k.Logger.Warn("a server cannot be used, it is tried again", "to", k.Server, "error", err)
}

// Explain adds to an error why the latest connection failed, if one did a moment ago.
func (k *Keeper) Explain(err error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil || k.err == nil || time.Since(k.at) > recent {
		return err
	}
	return fmt.Errorf("%w: %w", err, k.err)
}
