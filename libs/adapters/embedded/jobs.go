package embedded

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/wire"
)

// lockStripes is how many job rows may be in a compare-and-set at once.
const lockStripes = 256

// JobStore is the cold store's job rows on the embedded database.
type JobStore struct {
	db *DB
	// rows and keys serialise the compare-and-sets of one row or key.
	rows, keys stripes
}

var _ jobstore.Jobs = (*JobStore)(nil)

// NewJobStore returns the job rows of db.
func NewJobStore(db *DB) *JobStore { return &JobStore{db: db} }

type stripes [lockStripes]sync.Mutex

func (s *stripes) of(key string) *sync.Mutex { return &s[stripe(key)] }

func stripe(key string) int {
	var h uint32 = 2166136261
	for i := range len(key) {
		h = (h ^ uint32(key[i])) * 16777619
	}
	return int(h % lockStripes)
}

// lock acquires the locks of all the keys, in one order so that no two callers wait for each other.
func (s *stripes) lock(keys []string) (unlock func()) {
	numbers := make([]int, len(keys))
	for i, k := range keys {
		numbers[i] = stripe(k)
	}
	slices.Sort(numbers)
	numbers = slices.Compact(numbers)
	for _, n := range numbers {
		s[n].Lock()
	}
	return func() {
		for _, n := range numbers {
			s[n].Unlock()
		}
	}
}

// Get implements jobstore.Jobs.
func (s *JobStore) Get(_ context.Context, jobID string) (job.Job, error) {
	v, found, err := s.db.get(jobKey(jobID))
	if err != nil {
		return job.Job{}, fmt.Errorf("embedded: job: %w", err)
	}
	if !found {
		return job.Job{}, fmt.Errorf("embedded: job: %w", jobstore.ErrNotFound)
	}
	j, err := wire.UnmarshalJob(v)
	if err != nil {
		return job.Job{}, fmt.Errorf("embedded: job row: %w", err)
	}
	return j, nil
}

// GetSerial implements jobstore.Jobs. Acquiring the row's lock waits for a write in flight, the sync for its fsync.
func (s *JobStore) GetSerial(ctx context.Context, jobID string) (job.Job, error) {
	lock := s.rows.of(jobID)
	lock.Lock()
	j, err := s.Get(ctx, jobID)
	lock.Unlock()
	if err != nil {
		return job.Job{}, err
	}
	if err := s.db.sync(); err != nil {
		return job.Job{}, fmt.Errorf("embedded: job: %w", err)
	}
	return j, nil
}

// GetMany implements jobstore.Jobs. Jobs that were registered one after the other are adjacent, and jobs due at one instant often
// were. One iterator that goes from row to row costs a fraction of as many reads.
func (s *JobStore) GetMany(_ context.Context, jobIDs []string) (rows map[string]*job.Job, err error) {
	rows = make(map[string]*job.Job, len(jobIDs))
	if len(jobIDs) == 0 {
		return rows, nil
	}
	ids := slices.Sorted(slices.Values(jobIDs))
	it, err := s.db.pebble.NewIter(&pebble.IterOptions{
		LowerBound: jobKey(ids[0]), UpperBound: append(jobKey(ids[len(ids)-1]), 0),
	})
	if err != nil {
		return nil, fmt.Errorf("embedded: jobs: %w", err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for _, id := range ids {
		if key := jobKey(id); !it.SeekGE(key) || !bytes.Equal(it.Key(), key) {
			continue
		}
		v, err := it.ValueAndErr()
		if err != nil {
			return nil, fmt.Errorf("embedded: jobs: %w", err)
		}
		j, err := wire.UnmarshalJob(v)
		if err != nil {
			return nil, fmt.Errorf("embedded: job row: %w", err)
		}
		rows[id] = &j
	}
	return rows, nil
}

// Create implements jobstore.Jobs.
func (s *JobStore) Create(_ context.Context, j job.Job, exclusive bool) error {
	err := s.write([]string{j.ID}, func(b *pebble.Batch) error {
		_, found, err := s.db.get(jobKey(j.ID))
		switch {
		case err != nil:
			return fmt.Errorf("embedded: create job: %w", err)
		case found && exclusive:
			return fmt.Errorf("embedded: create job: %w", jobstore.ErrExists)
		case found:
			return nil
		}
		return setJob(b, j)
	})
	if errors.Is(err, jobstore.ErrExists) { // for some that is as good, and the entries that they put before must be durable
		err = errors.Join(err, s.db.sync())
	}
	return err
}

// CreateMany implements jobstore.Jobs, with one fsync.
func (s *JobStore) CreateMany(_ context.Context, jobs []job.Job) error {
	ids := make([]string, len(jobs))
	for i := range jobs {
		ids[i] = jobs[i].ID
	}
	return s.write(ids, func(b *pebble.Batch) error {
		there, err := s.existing(ids)
		if err != nil {
			return fmt.Errorf("embedded: create jobs: %w", err)
		}
		for i := range jobs {
			if there[ids[i]] {
				continue
			}
			if err := setJob(b, jobs[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// existing returns which of the jobs have rows. It visits them in the order of their keys: new ids are close together, after all
// others.
func (s *JobStore) existing(ids []string) (map[string]bool, error) {
	sorted := slices.Sorted(slices.Values(ids))
	if len(sorted) == 0 {
		return nil, nil
	}
	it, err := s.db.pebble.NewIter(&pebble.IterOptions{
		LowerBound: jobKey(sorted[0]), UpperBound: after(jobKey(sorted[len(sorted)-1])),
	})
	if err != nil {
		return nil, err
	}
	there := map[string]bool{}
	more := it.First()
	for _, id := range sorted {
		key := jobKey(id)
		if more && bytes.Compare(it.Key(), key) < 0 {
			more = it.SeekGE(key)
		}
		if !more {
			break
		}
		if bytes.Equal(it.Key(), key) {
			there[id] = true
		}
	}
	return there, errors.Join(it.Error(), it.Close())
}

// Replace implements jobstore.Jobs.
func (s *JobStore) Replace(ctx context.Context, j job.Job) error {
	err := s.write([]string{j.ID}, func(b *pebble.Batch) error {
		old, err := s.Get(ctx, j.ID)
		if err != nil {
			return err
		}
		if old.Version != j.Version-1 {
			return fmt.Errorf("embedded: replace job: %w", jobstore.ErrConflict)
		}
		return setJob(b, j)
	})
	if err == nil && j.Deleted {
		_ = s.freeJobKey(&j) // the change stands; the next request for the key finds it free
	}
	return err
}

// write fills a batch under the rows' locks and applies it there. It waits for the fsync without the locks: a request that reads
// the rows in the meantime and then writes is after this write in the write-ahead log.
func (s *JobStore) write(jobIDs []string, fill func(b *pebble.Batch) error) error {
	b := s.db.pebble.NewBatch()
	defer b.Close()
	unlock := s.rows.lock(jobIDs)
	err := fill(b)
	if err == nil && !b.Empty() {
		err = s.db.apply(b)
	}
	unlock()
	if err != nil {
		return err
	}
	synced := func() error { return s.db.synced(b) }
	if b.Empty() {
		synced = s.db.sync // the entries that were put before, see jobstore.RowFollows
	}
	if err := synced(); err != nil {
		return fmt.Errorf("embedded: job: %w", err)
	}
	return nil
}

func setJob(b *pebble.Batch, j job.Job) error {
	err := errors.Join(b.Set(listingKey(j.Tenant, j.ID), nil, nil), b.Set(jobKey(j.ID), wire.MarshalJob(&j), nil))
	if at := jobstore.Expiry(&j); !at.IsZero() {
		err = errors.Join(err, b.Set(expiryKey(at, jobKey(j.ID)), nil, nil))
	}
	if err != nil {
		return fmt.Errorf("embedded: job: %w", err)
	}
	return nil
}

// Remove implements jobstore.Jobs. What the row's expiry would have dropped is not there any more by then.
func (s *JobStore) Remove(ctx context.Context, tenant job.Tenant, jobID string) error {
	return s.write([]string{jobID}, func(b *pebble.Batch) error {
		definitions := text([]byte{tableDefinition}, jobID)
		row, err := s.Get(ctx, jobID)
		if err == nil {
			err = s.freeJobKey(&row)
		}
		if err != nil && !errors.Is(err, jobstore.ErrNotFound) {
			return err
		}
		err = errors.Join(b.Delete(listingKey(tenant, jobID), nil), b.Delete(jobKey(jobID), nil), b.Delete(runsKey(jobID), nil),
			b.DeleteRange(definitions, after(definitions), nil))
		if err != nil {
			return fmt.Errorf("embedded: remove job: %w", err)
		}
		return nil
	})
}

// RemoveListings implements jobstore.Jobs. It removes the keys, too, that requests which died have taken.
func (s *JobStore) RemoveListings(_ context.Context, tenant job.Tenant) error {
	b := s.db.pebble.NewBatch()
	defer b.Close()
	prefix := text([]byte{tableListing}, tenant.String())
	keys := heldKey(tenant, "")
	if err := errors.Join(b.DeleteRange(prefix, after(prefix), nil), b.DeleteRange(keys, after(keys), nil), s.db.commit(b)); err != nil {
		return fmt.Errorf("embedded: remove listings: %w", err)
	}
	return nil
}

// PutDefinition implements jobstore.Jobs.
func (s *JobStore) PutDefinition(_ context.Context, jobID string, d job.Definition) error {
	err := s.db.setExpiring(definitionKey(jobID, d.ID), wire.MarshalDefinition(&d), time.Now().Add(jobstore.HistoryTTL))
	if err != nil {
		return fmt.Errorf("embedded: definition: %w", err)
	}
	return nil
}

// Definition implements jobstore.Jobs.
func (s *JobStore) Definition(
	ctx context.Context, jobID, definitionID string,
) (d job.Definition, endsAt time.Time, err error) {
	found := false
	prefix := text([]byte{tableDefinition}, jobID)
	err = s.db.scan(ctx, definitionKey(jobID, definitionID), after(prefix), func(_, v []byte) (bool, error) {
		other, err := wire.UnmarshalDefinition(v)
		switch {
		case err != nil:
			return false, err
		case other.ID == definitionID:
			d, found = other, true
		case endsAt.IsZero() || other.EffectiveAt.Before(endsAt):
			endsAt = other.EffectiveAt
		}
		return found, nil
	})
	if err != nil {
		return d, endsAt, fmt.Errorf("embedded: definition: %w", err)
	}
	if !found {
		return d, endsAt, fmt.Errorf("embedded: definition: %w", jobstore.ErrNotFound)
	}
	return d, endsAt, nil
}

// Definitions implements jobstore.Jobs.
func (s *JobStore) Definitions(ctx context.Context, jobID, before string, limit int) (list []job.Definition, err error) {
	it, err := s.db.pebble.NewIterWithContext(ctx, &pebble.IterOptions{
		LowerBound: text([]byte{tableDefinition}, jobID), UpperBound: definitionKey(jobID, before),
	})
	if err != nil {
		return nil, fmt.Errorf("embedded: definitions: %w", err)
	}
	for ok := it.Last(); ok && len(list) < limit && err == nil; ok = it.Prev() {
		var d job.Definition
		if d, err = wire.UnmarshalDefinition(it.Value()); err == nil {
			list = append(list, d)
		}
	}
	if err = errors.Join(err, it.Error(), it.Close()); err != nil {
		return nil, fmt.Errorf("embedded: definitions: %w", err)
	}
	return list, nil
}

// List implements jobstore.Jobs.
func (s *JobStore) List(ctx context.Context, tenant job.Tenant, cursor string, limit int) ([]job.Job, string, error) {
	prefix := text([]byte{tableListing}, tenant.String())
	upper := after(prefix)
	if cursor != "" {
		upper = listingKey(tenant, cursor)
	}
	it, err := s.db.pebble.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: prefix, UpperBound: upper})
	if err != nil {
		return nil, "", fmt.Errorf("embedded: list jobs: %w", err)
	}
	var page []job.Job
	var next string
	for ok := it.Last(); ok; ok = it.Prev() {
		if len(page) == limit {
			next = page[limit-1].ID
			break
		}
		j, err := s.Get(ctx, string(it.Key()[len(prefix):]))
		if errors.Is(err, jobstore.ErrNotFound) {
			continue // a row that is gone, whatever took it, does not hide the others
		}
		if err != nil {
			return nil, "", errors.Join(err, it.Close())
		}
		page = append(page, j)
	}
	if err := errors.Join(it.Error(), it.Close()); err != nil {
		return nil, "", fmt.Errorf("embedded: list jobs: %w", err)
	}
	return page, next, nil
}

// ClaimKey implements jobstore.Jobs. A claim older than jobstore.KeyTTL counts as none.
func (s *JobStore) ClaimKey(_ context.Context, tenant job.Tenant, key string, c jobstore.Claim) (jobstore.Claim, bool, error) {
	k := claimKey(tenant, key)
	lock := s.keys.of(tenant.String() + "\x00" + key)
	lock.Lock()
	defer lock.Unlock()
	standing, found, err := s.claim(k)
	if err != nil {
		return jobstore.Claim{}, false, err
	}
	if found && c.AcceptedAt.Sub(standing.AcceptedAt) < jobstore.KeyTTL {
		return standing, false, nil
	}
	return c, true, s.putClaim(k, c)
}

// FinishKey implements jobstore.Jobs.
func (s *JobStore) FinishKey(_ context.Context, tenant job.Tenant, key string, answer jobstore.Answer) error {
	k := claimKey(tenant, key)
	lock := s.keys.of(tenant.String() + "\x00" + key)
	lock.Lock()
	defer lock.Unlock()
	c, found, err := s.claim(k)
	if err != nil {
		return err
	}
	if !found {
		return fmt.Errorf("embedded: claim: %w", jobstore.ErrNotFound)
	}
	if c.Answer != nil {
		return nil
	}
	c.Answer = &answer
	return s.putClaim(k, c)
}

func (s *JobStore) claim(k []byte) (jobstore.Claim, bool, error) {
	v, found, err := s.db.get(k)
	if err != nil || !found {
		return jobstore.Claim{}, false, err
	}
	var c jobstore.Claim
	if err := json.Unmarshal(v, &c); err != nil {
		return jobstore.Claim{}, false, fmt.Errorf("embedded: claim: %w", err)
	}
	return c, true, nil
}

func (s *JobStore) putClaim(k []byte, c jobstore.Claim) error {
	v, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("embedded: claim: %w", err)
	}
	if err := s.db.setExpiring(k, v, c.AcceptedAt.Add(jobstore.KeyTTL)); err != nil {
		return fmt.Errorf("embedded: claim: %w", err)
	}
	return nil
}
