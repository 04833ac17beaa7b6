// Package operations holds the work on many executions or jobs that somebody asked for: a backfill of a range of a schedule, a replay of what
// was executed, a redrive of what was given up, or that jobs are planned by other time zone data. An operation has progress and a rate, and can be paused, resumed and cancelled; bucket-loaders carry it out.
//
// It promises: an operation exists when the one write that makes it has succeeded. What it hands out is noted, by compare-and-set, before it
// is written: whoever carries on after a crash writes the same executions, under the same ids.
//
// The operations of a tenant are one setting of the cold store ([jobstore.Settings]), because they are few, and one write notes the
// progress of all of them. Another setting names the tenants that have some which have not ended.
package operations

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobchange"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// Why an operation is not made or changed.
var (
	// ErrNotFound means that the tenant has no such operation, or has it no more.
	ErrNotFound = errors.New("there is no such operation")
	// ErrTooMany means that MaxUnfinished operations of the tenant have not ended, or that those of MaxTenants tenants have not.
	ErrTooMany = errors.New("too many operations have not ended")
	// ErrEnded means that the operation has ended, so that it cannot be changed.
	ErrEnded = errors.New("the operation has ended")
	// ErrNoChange is returned by a function that has nothing to change.
	ErrNoChange = errors.New("nothing to change")
)

const (
	// MaxUnfinished bounds the operations of a tenant that have not ended.
	MaxUnfinished = 20
	// MaxKept bounds all that are kept of a tenant: those that ended first are forgotten.
	MaxKept = 50
	// MaxTenants bounds the tenants that have operations which have not ended.
	MaxTenants = 1000
	// MaxChunk bounds the executions that are noted at once.
	MaxChunk = 250
	// MaxTotal bounds the occurrences of a backfill: its executions lie together in the history.
	MaxTotal = 200_000
	// Lasts is how long after it was asked for an operation may hand executions out. The history places them there, and forgets them later.
	Lasts = jobstore.HistoryTTL - 48*time.Hour
)

// Type is what an operation does.
type Type string

// The types.
const (
	// TypeBackfill executes a job for each instant of its schedule in a range, TypeReplay repeats executions of a job, TypeRedrive executes
	// dead letters of any jobs again. TypeReplan plans each job whose next occurrence other time zone data has planned.
	TypeBackfill Type = "backfill"
	TypeReplay   Type = "replay"
	TypeRedrive  Type = "redrive"
	TypeReplan   Type = "replan"
)

// Status is the state of an operation.
type Status string

// The states. An operation that is done, cancelled or failed has ended.
const (
	StatusRunning   Status = "running"
	StatusPaused    Status = "paused"
	StatusDone      Status = "done"
	StatusCancelled Status = "cancelled"
	// StatusFailed is that of an operation which cannot go on, for its Reason.
	StatusFailed Status = "failed"
)

// Order is that in which an operation takes occurrences or executions.
type Order string

// The orders, by their nominal instants.
const (
	OldestFirst Order = "oldest_first"
	NewestFirst Order = "newest_first"
)

// Operation is one operation.
type Operation struct {
	ID   string `json:"id"`
	Type Type   `json:"type"`
	// JobID is the job; of a redrive, "" for all; of a replan, "".
	JobID  string `json:"job_id"`
	Status Status `json:"status"`
	Reason string `json:"reason,omitempty"`
	// DefinitionID is the definition of the job under which everything of the operation is executed; "" for a redrive, which takes the
	// present one for each part, and for a replan.
	DefinitionID string `json:"definition_id"`
	// From and To bound the nominal instants, and for a redrive the instants at which executions were given up. To is not one of them. For a
	// replan both are when it was asked for.
	// States are those of the executions that are replayed, none for all.
	From   time.Time `json:"from"`
	To     time.Time `json:"to"`
	States []string  `json:"states,omitempty"`
	// GivenUpFor is the reason for which the executions were given up that are redriven; "" for all.
	GivenUpFor string `json:"given_up_for,omitempty"`
	Order      Order  `json:"order"`
	// Elsewhere is what a replay calls instead of the job's target; nil for that.
	Elsewhere *job.Elsewhere `json:"target,omitempty"`
	// TZData is the release of the time zone data by which a replan plans jobs.
	TZData string `json:"tzdata,omitempty"`
	// Rate is how many executions are due in a second, or jobs are planned.
	Rate int `json:"rate"`
	// Total is how many occurrences a backfill has; 0 where it is not known. HandedOut is how many executions were handed out, or jobs planned.
	Total     int        `json:"total,omitempty"`
	HandedOut int        `json:"handed_out"`
	By        job.Author `json:"by"`
	CreatedAt time.Time  `json:"created_at"`
	UpdatedAt time.Time  `json:"updated_at"`
	EndedAt   time.Time  `json:"ended_at,omitzero"`
	// Last is the nominal instant, and for a replay the execution, that was noted last; zero before the first.
	Last          time.Time `json:"last,omitzero"`
	LastExecution string    `json:"last_execution,omitempty"`
	// Cursor is where a redrive goes on among the dead letters, or a replan among the jobs; Read is set once it has read the last of them.
	Cursor string `json:"cursor,omitempty"`
	Read   bool   `json:"read,omitempty"`
	// DueAt is when the next execution is due at the earliest.
	DueAt time.Time `json:"due_at"`
	// Chunk is what is being handed out; nil for nothing.
	Chunk *Chunk `json:"chunk,omitempty"`
}

// Chunk is a part of an operation that was noted. Unless it is held, what is due soon of it may have been written or not. Its entries follow from it.
type Chunk struct {
	// NotedAt is when it was noted, by the clock of who did. DueAt is when the first of it is due.
	NotedAt time.Time `json:"noted_at"`
	DueAt   time.Time `json:"due_at"`
	Rate    int       `json:"rate"`
	// Held is set if nothing of it was written, because the operation was paused.
	Held bool `json:"held,omitempty"`
	// At are the nominal instants for which the executions stand, in milliseconds, Sources those that they repeat, or for a replan the jobs.
	At      []int64  `json:"at"`
	Sources []string `json:"sources,omitempty"`
	// Definitions are those under which a redrive executes them, and Cursor is where the page began from which they were taken.
	Definitions []string `json:"definitions,omitempty"`
	Cursor      string   `json:"cursor,omitempty"`
}

// Due returns when the n-th execution of the chunk is due, from 0.
func (c *Chunk) Due(n int) time.Time {
	return job.Instant(c.DueAt.Add(time.Duration(n) * time.Second / time.Duration(c.Rate)))
}

// From returns the part of the chunk that begins with its n-th execution.
func (c *Chunk) From(n int) Chunk {
	rest := Chunk{NotedAt: c.NotedAt, DueAt: c.Due(n), Rate: c.Rate, At: c.At[n:], Cursor: c.Cursor}
	if c.Sources != nil {
		rest.Sources = c.Sources[n:]
	}
	if c.Definitions != nil {
		rest.Definitions = c.Definitions[n:]
	}
	return rest
}

// Ended reports whether the operation has ended.
func (o *Operation) Ended() bool { return !o.EndedAt.IsZero() }

// Settled reports whether nothing more has to be done for the operation: it has ended, and neither a part of it is noted nor headers, which may
// be secrets.
func (o *Operation) Settled() bool {
	return o.Chunk == nil && o.Ended() && (o.Elsewhere == nil || o.Elsewhere.Headers == nil)
}

// End ends the operation at an instant. What is noted of it may still be written.
func (o *Operation) End(s Status, reason string, now time.Time) {
	o.Status, o.Reason, o.EndedAt = s, reason, now
}

// Book holds the operations of a tenant, the newest first.
type Book struct {
	Operations []Operation `json:"operations"`
	// Changes are the latest changes of the row. Raised grows when a worker keeps a late writer out.
	Changes []job.ChangeRef `json:"changes,omitempty"`
	Raised  int64           `json:"raised,omitempty"`
}

// find returns an operation; nil if there is none.
func (b *Book) find(id string) *Operation {
	n := slices.IndexFunc(b.Operations, func(o Operation) bool { return o.ID == id })
	if n < 0 {
		return nil
	}
	return &b.Operations[n]
}

// Store reads and changes operations.
type Store struct {
	Settings jobstore.Settings
	// Recorder makes the changes known that somebody asks for; who only carries operations out needs none.
	Recorder jobchange.Recorder
	Clock    clock.Clock
}

// Edit is who changes an operation, and by which operation of the OpenAPI document.
type Edit struct {
	Operation string
	By        job.Author
}

func bookSetting(t job.Tenant) string { return "operations/" + t.String() }

// Read returns the operations of a tenant, and the value from which they were read.
func (s *Store) Read(ctx context.Context, t job.Tenant) (b Book, raw []byte, err error) {
	if raw, err = s.Settings.Setting(ctx, bookSetting(t)); err == nil && raw != nil {
		err = json.Unmarshal(raw, &b)
	}
	if err != nil {
		return b, nil, fmt.Errorf("read the operations of tenant %s: %w", t, err)
	}
	return b, raw, nil
}

// Get returns an operation of a tenant.
func (s *Store) Get(ctx context.Context, t job.Tenant, id string) (Operation, error) {
	b, _, err := s.Read(ctx, t)
	if err != nil {
		return Operation{}, err
	}
	if o := b.find(id); o != nil {
		return *o, nil
	}
	return Operation{}, fmt.Errorf("operation %s: %w", id, ErrNotFound)
}

// Create makes an operation, unless one with its id is there, and returns the one that is. The tenant is named as one that has some before the
// operation is there, so that a crash leaves none that nobody carries out: a name stays for longer than a request takes. It is named afterwards,
// too, for a request that was slower.
func (s *Store) Create(ctx context.Context, t job.Tenant, o Operation, by Edit) (Operation, error) {
	if err := s.name(ctx, t, true); err != nil {
		return Operation{}, err
	}
	standing, err := s.edit(ctx, t, o.ID, by, func(b *Book) error {
		if b.find(o.ID) != nil {
			return ErrNoChange
		}
		open := 0
		for n := range b.Operations {
			if !b.Operations[n].Ended() {
				open++
			}
		}
		if open >= MaxUnfinished {
			return ErrTooMany
		}
		b.Operations = append([]Operation{o}, b.Operations...)
		for n := len(b.Operations) - 1; n > 0 && len(b.Operations) > MaxKept; n-- {
			if x := &b.Operations[n]; x.Ended() && x.Settled() {
				b.Operations = slices.Delete(b.Operations, n, n+1)
			}
		}
		return nil
	})
	if err != nil {
		return Operation{}, err
	}
	return standing, s.name(ctx, t, false)
}

// Change applies fn to an operation that has not ended, and stores it. fn may be called again. It returns the operation as it stands then.
func (s *Store) Change(ctx context.Context, t job.Tenant, id string, by Edit, fn func(o *Operation) error) (Operation, error) {
	o, err := s.edit(ctx, t, id, by, func(b *Book) error {
		o := b.find(id)
		if o == nil {
			return fmt.Errorf("operation %s: %w", id, ErrNotFound)
		}
		return fn(o)
	})
	if err != nil {
		return o, err
	}
	return o, s.name(ctx, t, false)
}

// edit changes a tenant's operations, and tells of the change; with ErrNoChange from fn it changes nothing. It returns the operation with an id.
func (s *Store) edit(ctx context.Context, t job.Tenant, id string, by Edit, fn func(b *Book) error) (Operation, error) {
	for {
		b, raw, err := s.Read(ctx, t)
		if err != nil {
			return Operation{}, err
		}
		err = fn(&b)
		if err != nil && !errors.Is(err, ErrNoChange) {
			return Operation{}, err
		}
		if err == nil {
			change := job.Change{Operation: by.Operation, Setting: bookSetting(t), Object: id}
			err = s.Recorder.Setting(ctx, job.SettingsOf(t), t, change, by.By, &b.Changes, func() error { return s.Note(ctx, t, raw, &b) })
			if errors.Is(err, jobstore.ErrConflict) && ctx.Err() == nil {
				continue
			}
			if err != nil {
				return Operation{}, err
			}
		}
		if o := b.find(id); o != nil {
			return *o, nil
		}
		return Operation{}, fmt.Errorf("operation %s: %w", id, ErrNotFound)
	}
}

// Note stores the operations of a tenant if they still are as they were read; otherwise it fails with [jobstore.ErrConflict].
func (s *Store) Note(ctx context.Context, t job.Tenant, raw []byte, b *Book) error {
	value, err := json.Marshal(b)
	if err == nil {
		err = s.Settings.SwapSetting(ctx, bookSetting(t), raw, value)
	}
	if err != nil {
		return fmt.Errorf("note the operations of tenant %s: %w", t, err)
	}
	return nil
}

// Forget removes the operations of a tenant that is being deleted, whether they have ended or not. It fails with [jobchange.ErrUntold] while the
// events of some of their changes are still to be published.
func (s *Store) Forget(ctx context.Context, t job.Tenant) error {
	b, raw, err := s.Read(ctx, t)
	if err != nil || raw == nil {
		return err
	}
	published, err := s.Recorder.Published(ctx, job.SettingsOf(t), b.Changes)
	if err == nil && !published {
		err = jobchange.ErrUntold
	}
	if err != nil {
		return fmt.Errorf("remove the operations of tenant %s: %w", t, err)
	}
	if err := s.Settings.SwapSetting(ctx, bookSetting(t), raw, nil); err != nil {
		return fmt.Errorf("remove the operations of tenant %s: %w", t, err)
	}
	return nil
}

// indexSetting is the setting that names the tenants which have operations that have not ended.
const indexSetting = "operations"

// Index names tenants.
type Index struct {
	Tenants []job.Tenant `json:"tenants"`
	// Last is, for each of them, Named as it was when the tenant was named last.
	Last []int64 `json:"last"`
	// Named grows with each operation, so that who found no operation before does not take the name of its tenant away.
	Named int64 `json:"named"`
	raw   []byte
}

// Index returns the tenants that may have operations which have not ended.
func (s *Store) Index(ctx context.Context) (i Index, err error) {
	raw, err := s.Settings.Setting(ctx, indexSetting)
	if err == nil && raw != nil {
		err = json.Unmarshal(raw, &i)
	}
	if err != nil {
		return i, fmt.Errorf("read which tenants have operations: %w", err)
	}
	if i.raw = raw; len(i.Last) != len(i.Tenants) {
		return i, errors.New("read which tenants have operations: the value is not whole")
	}
	return i, nil
}

// name names a tenant in the index; with anew also if it is there.
func (s *Store) name(ctx context.Context, t job.Tenant, anew bool) error {
	for {
		i, err := s.Index(ctx)
		if err != nil {
			return err
		}
		at := slices.Index(i.Tenants, t)
		there := at >= 0
		if there && !anew {
			return nil
		}
		if !there && len(i.Tenants) >= MaxTenants {
			return ErrTooMany
		}
		if i.Named++; there {
			i.Last[at] = i.Named
		} else {
			i.Tenants, i.Last = append(i.Tenants, t), append(i.Last, i.Named)
		}
		if err := s.swapIndex(ctx, &i); !errors.Is(err, jobstore.ErrConflict) || ctx.Err() != nil {
			return err
		}
	}
}

// Leave takes tenants out of an index of which no operation was found after it was read. It fails with [jobstore.ErrConflict] if the index is
// another one by now.
func (s *Store) Leave(ctx context.Context, i Index, tenants []job.Tenant) error {
	left := Index{Named: i.Named, raw: i.raw}
	for n, t := range i.Tenants {
		if !slices.Contains(tenants, t) {
			left.Tenants, left.Last = append(left.Tenants, t), append(left.Last, i.Last[n])
		}
	}
	return s.swapIndex(ctx, &left)
}

func (s *Store) swapIndex(ctx context.Context, i *Index) error {
	value, err := json.Marshal(i)
	if err == nil {
		err = s.Settings.SwapSetting(ctx, indexSetting, i.raw, value)
	}
	if err != nil {
		return fmt.Errorf("note which tenants have operations: %w", err)
	}
	return nil
}
