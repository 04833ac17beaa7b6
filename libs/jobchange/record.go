package jobchange

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// ErrUntold means that a row names too many changes whose events are not published yet: [job.MaxChanges], or [Edit].Most. The change may
// be made when workers have published some of them.
var ErrUntold = errors.New("too many changes wait to be published")

// Recorder makes changes known.
type Recorder struct {
	Pending jobstore.Pending
	Clock   clock.Clock
	// Entropy is the source of ids; it must be safe for concurrent use.
	Entropy io.Reader
	// Partitions is the store's partition count.
	Partitions int
	// Grace is how long an entry without its row is kept; a writer may take half of it from entry to row.
	Grace time.Duration
	// Near adds entries of settings to their hot buckets; nil leaves them to the loader's sweeps.
	Near func(ctx context.Context, entries []job.Entry)
}

// write puts the entries of a change until they came back in time, and names the change in changes, which the row keeps. Entries that
// took too long may have been dropped, or their bucket may have closed; those of an earlier turn are dropped, because no row names
// them. It is ErrUntold if the row names most changes that are not published yet.
func (r Recorder) write(
	ctx context.Context, jobID string, changes *[]job.ChangeRef, most int, entries func(id string, l job.Locator) []job.Entry, version int64,
) ([]job.Entry, error) {
	partition, of := bucket.Partition(jobID, r.Partitions), ""
	if version == 0 {
		of = jobID
	}
	kept, err := *changes, error(nil)
	if len(kept) >= job.EnoughChanges {
		if kept, err = r.unpublished(ctx, jobID, kept); err != nil {
			return nil, err
		}
	}
	if len(kept) >= most {
		return nil, ErrUntold
	}
	last := job.CreationRef(jobID)
	if n := len(*changes); n > 0 {
		last = (*changes)[n-1]
	}
	for {
		now := job.Instant(r.Clock.Now())
		at := job.Later(now, job.ULIDTime(last.ID).Add(time.Millisecond)) // a row's changes are listed by their instants
		id := ulid.MustNew(uint64(at.UnixMilli()), r.Entropy).String()
		list := entries(id, job.ChangeLocator(partition, jobID, id))
		if err := r.Pending.Put(ctx, list); err != nil {
			return nil, fmt.Errorf("put the entry of a change: %w", err)
		}
		if r.Clock.Since(now) <= r.Grace/2 {
			*changes = append(slices.Clone(kept), job.ChangeRef{ID: id, Version: version, Of: of})
			return list, nil
		}
	}
}

// Published reports whether all of a row's changes have become events, so that the row may go.
func (r Recorder) Published(ctx context.Context, jobID string, changes []job.ChangeRef) (bool, error) {
	left, err := r.unpublished(ctx, jobID, changes)
	return len(left) == 0, err
}

// unpublished returns those of a row's changes whose events are not settled yet.
func (r Recorder) unpublished(ctx context.Context, jobID string, changes []job.ChangeRef) ([]job.ChangeRef, error) {
	at := func(c job.ChangeRef) job.Locator {
		of := cmp.Or(c.Of, jobID)
		return job.ChangeLocator(bucket.Partition(of, r.Partitions), of, c.ID)
	}
	kept := slices.Clone(changes)
	locators := make([]job.Locator, len(kept))
	for i, c := range kept {
		locators[i] = at(c)
	}
	rows, err := r.Pending.Rows(ctx, locators)
	if err != nil {
		return nil, fmt.Errorf("read the entries of earlier changes: %w", err)
	}
	// An entry that a row names is marked as done by its event alone, and its bucket closes after that.
	kept = slices.DeleteFunc(kept, func(c job.ChangeRef) bool {
		row, open := rows[at(c)]
		return !open || row.Done
	})
	return kept, nil
}

// Setting makes a change of a setting known. changes are those that the setting's value names, and is where the value takes them from;
// swap stores the value, by compare-and-set. jobID stands in the place of a job's id: [job.SettingsOf], [job.InstallationSettings].
func (r Recorder) Setting(
	ctx context.Context, jobID string, tenant job.Tenant, c job.Change, by job.Author, changes *[]job.ChangeRef, swap func() error,
) error {
	entries, err := r.write(ctx, jobID, changes, job.MaxChanges, func(_ string, l job.Locator) []job.Entry {
		return []job.Entry{job.NewChange(l, jobID, tenant, c, by)}
	}, 0)
	if err != nil {
		return err
	}
	if err := swap(); err != nil {
		return err
	}
	if r.Near != nil {
		r.Near(ctx, entries)
	}
	return nil
}

// Named returns the changes that the value of a setting names.
func Named(value []byte) (changes []job.ChangeRef, err error) {
	var v struct {
		Changes []job.ChangeRef `json:"changes"`
	}
	if len(value) > 0 {
		err = json.Unmarshal(value, &v)
	}
	return v.Changes, err
}

// Raise changes a setting without changing what it says, so that a writer that read it before conflicts and starts over. Readers take
// a value that says nothing else for none.
func Raise(ctx context.Context, s jobstore.Settings, name string, value []byte) error {
	members := map[string]json.RawMessage{}
	if len(value) > 0 {
		if err := json.Unmarshal(value, &members); err != nil {
			return fmt.Errorf("setting %s: %w", name, err)
		}
	}
	var raised int64
	if n, ok := members["raised"]; ok {
		if err := json.Unmarshal(n, &raised); err != nil {
			return fmt.Errorf("setting %s: %w", name, err)
		}
	}
	members["raised"], _ = json.Marshal(raised + 1) // a number is always text
	next, err := json.Marshal(members)
	if err != nil {
		return fmt.Errorf("setting %s: %w", name, err)
	}
	return s.SwapSetting(ctx, name, value, next)
}
