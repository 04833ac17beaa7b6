package pools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
)

// Bounds of what is set for pools.
const (
	// MaxSet bounds the pools of a tenant for which something is set.
	MaxSet = 100
	// MaxSetBytes bounds all that a tenant has set for pools.
	MaxSetBytes = 64 << 10
	// KnownFor is how long after a change a process may go by what was set before.
	KnownFor = 5 * time.Second
	// readLimit bounds how long it is read.
	readLimit = 2 * time.Second
	// maxKnown bounds the tenants of which a process remembers what is set.
	maxKnown = 1000
)

// ErrTooMany means that a tenant has no room for what is to be set.
var ErrTooMany = errors.New("too much is set for pools")

// Settings are what an admin has set for a pool. The zero value sets nothing.
type Settings struct {
	// MaxRunning bounds the tasks that workers have at once; nil for no bound.
	MaxRunning *int `json:"max_running,omitempty"`
	// Handlers are the settings of handlers, by name.
	Handlers map[string]HandlerSettings `json:"handlers,omitempty"`
	// LogsURL is where the logs of a worker are, with placeholders: see [Placeholders].
	LogsURL   string    `json:"logs_url,omitempty"`
	UpdatedAt time.Time `json:"updated_at"`
	UpdatedBy string    `json:"updated_by"`
}

// HandlerSettings are what is set for a handler of a pool.
type HandlerSettings struct {
	// MaxRunning bounds the tasks for the handler that workers have at once; nil for no bound.
	MaxRunning *int `json:"max_running,omitempty"`
}

// Empty reports whether nothing is set.
func (s *Settings) Empty() bool {
	return s.MaxRunning == nil && len(s.Handlers) == 0 && s.LogsURL == ""
}

// Limits returns what bounds the tasks that are handed out.
func (s *Settings) Limits() (l Limits) {
	l.Running = s.MaxRunning
	for name, h := range s.Handlers {
		if h.MaxRunning == nil {
			continue
		}
		if l.Handlers == nil {
			l.Handlers = map[string]int{}
		}
		l.Handlers[name] = *h.MaxRunning
	}
	return l
}

// Subject is of whom or of what logs are to be found. What is not known is empty.
type Subject struct {
	Pool, Worker, Job, Execution string
	Attempt                      int
}

// Placeholders returns what stands in a URL of logs for the parts of a subject: two for the worker, and the others for what it does.
func Placeholders() []string {
	return []string{"{pool}", "{worker}", "{job_id}", "{execution_id}", "{attempt}"}
}

// Logs returns where the logs of a subject are; "" if that is not set.
func (s *Settings) Logs(of Subject) string {
	if s.LogsURL == "" {
		return ""
	}
	attempt := ""
	if of.Attempt > 0 {
		attempt = strconv.Itoa(of.Attempt)
	}
	var pairs []string
	for i, value := range []string{of.Pool, of.Worker, of.Job, of.Execution, attempt} {
		pairs = append(pairs, Placeholders()[i], escape(value))
	}
	return strings.NewReplacer(pairs...).Replace(s.LogsURL)
}

// LogsOfWorker returns where the logs of a worker are, whatever it does; "" if that is not set, or only for attempts.
func (s *Settings) LogsOfWorker(pool, worker string) string {
	for _, of := range Placeholders()[2:] {
		if strings.Contains(s.LogsURL, of) {
			return ""
		}
	}
	return s.Logs(Subject{Pool: pool, Worker: worker})
}

// escape writes a value so that it is one part of a path, or one value of a query: RFC 3986, section 2.3.
func escape(value string) string {
	var b strings.Builder
	for _, c := range []byte(value) {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// Store reads the settings in which it is kept what is set for pools.
type Store interface {
	// Setting reads a value; nil if there is none.
	Setting(ctx context.Context, name string) ([]byte, error)
}

// SettingOf returns the name of the setting that holds what a tenant has set for its pools, as the JSON of a [Set].
func SettingOf(t job.Tenant) string { return "pools/" + t.String() }

// Set is all that a tenant has set for its pools.
type Set struct {
	// Pools are by name. Those that are not touched stay as they are, whatever a later release wrote into them.
	Pools map[string]json.RawMessage `json:"pools"`
	// Changes are those by which the set came about: see [job.ChangeRef].
	Changes []job.ChangeRef `json:"changes,omitempty"`
}

// Read returns what a tenant has set for its pools, and the value of the setting.
func Read(ctx context.Context, s Store, of job.Tenant) (value []byte, set Set, err error) {
	value, err = s.Setting(ctx, SettingOf(of))
	if err == nil && len(value) > 0 {
		err = json.Unmarshal(value, &set)
	}
	if err != nil {
		return nil, Set{}, fmt.Errorf("read what tenant %s has set for pools: %w", of, err)
	}
	return value, set, nil
}

// Get returns what is set for a pool.
func (s *Set) Get(name string) (one Settings, err error) {
	raw, there := s.Pools[name]
	if !there {
		return one, nil
	}
	if err := json.Unmarshal(raw, &one); err != nil {
		return one, fmt.Errorf("read what is set for pool %s: %w", name, err)
	}
	return one, nil
}

// Put sets something for a pool, in place of what was set. ErrTooMany means that there is no room.
func (s *Set) Put(name string, one *Settings) error {
	if one.Empty() {
		delete(s.Pools, name)
		return nil
	}
	raw, err := json.Marshal(one)
	if err != nil {
		return fmt.Errorf("encode what is set for pool %s: %w", name, err)
	}
	if s.Pools == nil {
		s.Pools = map[string]json.RawMessage{}
	}
	s.Pools[name] = raw
	size := 0
	for name, raw := range s.Pools {
		size += len(name) + len(raw)
	}
	if len(s.Pools) > MaxSet || size > MaxSetBytes {
		return ErrTooMany
	}
	return nil
}

// Known remembers for a while what is set for pools.
type Known struct {
	Store Store
	Clock clock.Clock

	mu  sync.Mutex
	all map[job.Tenant]*knownSet
}

// knownSet is what is known of a tenant. Who reads it has the turn.
type knownSet struct {
	turn chan struct{}

	mu     sync.Mutex
	readAt time.Time // the zero time before it was read
	set    Set
}

func (s *knownSet) get() (Set, time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.set, s.readAt
}

// Of returns what is set for a pool, as it was up to KnownFor ago, or when it could be read last. While one caller reads it again, for readLimit at
// most, all others get what was known before.
func (k *Known) Of(ctx context.Context, p Pool) (Settings, error) {
	s := k.of(p.Tenant)
	set, readAt := s.get()
	if readAt.IsZero() {
		select {
		case s.turn <- struct{}{}:
		case <-ctx.Done():
			return Settings{}, ctx.Err()
		}
	} else if k.Clock.Since(readAt) >= KnownFor {
		select {
		case s.turn <- struct{}{}:
		default:
			return set.Get(p.Name)
		}
	} else {
		return set.Get(p.Name)
	}
	defer func() { <-s.turn }()
	if set, readAt = s.get(); !readAt.IsZero() && k.Clock.Since(readAt) < KnownFor {
		return set.Get(p.Name)
	}
	// The read goes on if its caller gives up: other callers need it, too.
	reading, cancel := context.WithTimeout(context.WithoutCancel(ctx), readLimit)
	defer cancel()
	asked := k.Clock.Now()
	_, read, err := Read(reading, k.Store, p.Tenant)
	if err != nil && readAt.IsZero() {
		return Settings{}, err
	}
	if err == nil {
		read.Changes = nil
		set = read
	}
	s.mu.Lock()
	s.set, s.readAt = set, asked
	s.mu.Unlock()
	return set.Get(p.Name)
}

func (k *Known) of(t job.Tenant) *knownSet {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.all[t]
	if s == nil {
		if k.all == nil || len(k.all) >= maxKnown {
			k.all = map[job.Tenant]*knownSet{}
		}
		s = &knownSet{turn: make(chan struct{}, 1)}
		k.all[t] = s
	}
	return s
}

// CheckLogs returns what is wrong with a URL of logs, as a sentence that says what to do; "" if nothing is.
func CheckLogs(text string) string {
	for rest := text; ; {
		open := strings.IndexAny(rest, "{}")
		if open < 0 {
			break
		}
		end := strings.IndexByte(rest[open:], '}')
		if end < 0 || !slices.Contains(Placeholders(), rest[open:open+end+1]) || strings.Count(text, rest[open:open+end+1]) > 1 {
			return "In braces it may have only " + strings.Join(Placeholders(), ", ") + ", each once."
		}
		rest = rest[open+end+1:]
	}
	return ""
}
