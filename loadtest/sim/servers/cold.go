// Package servers is the simulated servers: each kind of state that the services share, in memory, for any number of
// processes in one testing/synctest bubble. They keep the ports' contracts, which the conformance suites check, and outlive
// every process of the simulation. What happens to them (a hot tier that forgets, a log that is recreated, a member that
// lapses) has methods of its own, so the simulation decides about faults, and not the servers.
//
// They are small and slow: everything is kept until the end.
package servers

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/wire"
)

// Cold is the cold store: job rows, pending entries, history and settings.
type Cold struct {
	mu sync.Mutex
	// Rows are kept encoded, so that no two processes share memory.
	jobs map[string][]byte
	// before is what plain reads see of a row instead: some replicas have accepted its last change, and others have not
	// heard of it. It is nil if there was no row. It ends with the next serial read or write.
	before      map[string][]byte
	definitions map[string]map[string][]byte
	claims      map[string]jobstore.Claim
	runs        map[string][]byte
	jobKeys     map[tenantKey]string
	settings    map[string][]byte
	lists       map[string]map[string]item
	writes      atomic.Int64 // of items

	low     []int64
	buckets []map[int64]*minute
	closed  map[[2]int64]time.Time // by partition and minute: when it was deleted
	buried  map[job.Locator]bool

	// updated is when a job's row got the definition, unless a resume made the definition.
	updated  map[string]time.Time
	repeated map[string]Repeat // by job: the last one
	// paused is when the last pause of a job reached its row.
	paused map[string]time.Time

	events  map[string]map[string]job.Event // by job, then id
	letters []job.DeadLetter
}

// tenantKey is the key of a tenant's job.
type tenantKey struct {
	tenant job.Tenant
	key    string
}

// minute is one bucket: its rows in key order.
type minute struct {
	rows []job.PendingRow
}

// NewCold returns a cold store that was set up with this partition count in that minute.
func NewCold(partitions int, setup int64) *Cold {
	c := &Cold{
		jobs: map[string][]byte{}, before: map[string][]byte{}, definitions: map[string]map[string][]byte{}, claims: map[string]jobstore.Claim{},
		runs: map[string][]byte{}, jobKeys: map[tenantKey]string{}, settings: map[string][]byte{}, lists: map[string]map[string]item{}, low: make([]int64, partitions), buckets: make([]map[int64]*minute, partitions),
		closed: map[[2]int64]time.Time{}, buried: map[job.Locator]bool{}, updated: map[string]time.Time{}, repeated: map[string]Repeat{}, paused: map[string]time.Time{}, events: map[string]map[string]job.Event{},
	}
	for p := range partitions {
		c.low[p], c.buckets[p] = setup, map[int64]*minute{}
	}
	return c
}

// Get implements jobstore.Jobs.
func (c *Cold) Get(_ context.Context, jobID string) (job.Job, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.read(jobID)
}

// read is a plain read.
func (c *Cold) read(jobID string) (job.Job, error) {
	if v, ok := c.before[jobID]; ok {
		return decodeJob(v)
	}
	return decodeJob(c.jobs[jobID])
}

// get is a serial read.
func (c *Cold) get(jobID string) (job.Job, error) {
	row, err := decodeJob(c.jobs[jobID])
	if before, ok := c.before[jobID]; ok && err == nil {
		delete(c.before, jobID)
		if before != nil {
			old, err := decodeJob(before)
			if err != nil {
				return old, err
			}
			c.tookEffect(&old, &row)
		}
	}
	return row, err
}

// tookEffect notes that all readers see a change from now on.
func (c *Cold) tookEffect(old, j *job.Job) {
	switch {
	case j.Status == job.StatusPaused && old.Status == job.StatusActive:
		c.paused[j.ID] = time.Now()
	case j.Definition.ID == old.Definition.ID:
	case j.Definition.EffectiveAt.Equal(j.PausedAt.Add(time.Millisecond)):
		c.updated[j.Definition.ID] = c.paused[j.ID] // the resume begins where the pause did
	default:
		c.updated[j.Definition.ID] = time.Now()
	}
}

func decodeJob(row []byte) (job.Job, error) {
	if row == nil {
		return job.Job{}, jobstore.ErrNotFound
	}
	return wire.UnmarshalJob(row)
}

// GetMany implements jobstore.Jobs.
func (c *Cold) GetMany(_ context.Context, jobIDs []string) (map[string]*job.Job, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	rows := map[string]*job.Job{}
	for _, id := range jobIDs {
		if j, err := c.read(id); err == nil {
			rows[id] = &j
		}
	}
	return rows, nil
}

// GetSerial implements jobstore.Jobs.
func (c *Cold) GetSerial(_ context.Context, jobID string) (job.Job, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.get(jobID)
}

// Create implements jobstore.Jobs.
func (c *Cold) Create(ctx context.Context, j job.Job, exclusive bool) error {
	return c.CreateUnseen(ctx, j, exclusive, false)
}

// CreateUnseen is Create. If unseen is set, plain reads do not see the row before the next serial read or write of it.
func (c *Cold) CreateUnseen(_ context.Context, j job.Job, exclusive, unseen bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.jobs[j.ID]; ok {
		if exclusive {
			delete(c.before, j.ID)
			return jobstore.ErrExists
		}
		return nil
	}
	c.jobs[j.ID] = wire.MarshalJob(&j)
	if unseen {
		c.before[j.ID] = nil
	}
	return nil
}

// Repeat is a first entry that was written again.
type Repeat struct{ At, NominalAt time.Time }

// Repeated returns a job's first entry that was written again, because its registration took long; zero if it was not.
func (c *Cold) Repeated(jobID string) Repeat {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.repeated[jobID]
}

// CreateMany implements jobstore.Jobs.
func (c *Cold) CreateMany(ctx context.Context, jobs []job.Job) error {
	for _, j := range jobs {
		if err := c.Create(ctx, j, false); err != nil {
			return err
		}
	}
	return nil
}

// Replace implements jobstore.Jobs.
func (c *Cold) Replace(ctx context.Context, j job.Job) error { return c.ReplaceUnseen(ctx, j, false) }

// ReplaceUnseen is Replace. If unseen is set, plain reads see the old row until the next serial read or write of it.
func (c *Cold) ReplaceUnseen(_ context.Context, j job.Job, unseen bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	old, err := c.get(j.ID)
	if err != nil {
		return err
	}
	if old.Version != j.Version-1 {
		return jobstore.ErrConflict
	}
	c.tookEffect(&old, &j)
	if unseen {
		c.before[j.ID] = c.jobs[j.ID]
	}
	c.jobs[j.ID] = wire.MarshalJob(&j)
	return nil
}

// freeJobKey takes a key from a job that is gone.
func (c *Cold) freeJobKey(j *job.Job) {
	if k := (tenantKey{j.Tenant, j.Key}); c.jobKeys[k] == j.ID {
		delete(c.jobKeys, k)
	}
}

// HoldJobKey implements jobstore.Jobs. A job that is deleted keeps its key until it is asked for, as if the process that deleted it had died
// before it freed the key.
func (c *Cold) HoldJobKey(_ context.Context, j job.Job, gone string) (holder string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := tenantKey{j.Tenant, j.Key}
	if standing := c.jobKeys[k]; standing != "" && standing != gone {
		return standing, nil
	}
	c.jobKeys[k] = j.ID
	return j.ID, nil
}

// JobOfKey implements jobstore.Jobs.
func (c *Cold) JobOfKey(_ context.Context, tenant job.Tenant, key string) (jobID string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if jobID = c.jobKeys[tenantKey{tenant, key}]; jobID == "" {
		return "", jobstore.ErrNotFound
	}
	return jobID, nil
}

// Updated returns when the definitions made by updates took effect; for a definition made by a resume, when the pause did.
func (c *Cold) Updated() map[string]time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.updated)
}

// Remove implements jobstore.Jobs.
func (c *Cold) Remove(_ context.Context, tenant job.Tenant, jobID string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if j, err := c.get(jobID); err == nil && j.Tenant == tenant {
		c.freeJobKey(&j)
		delete(c.jobs, jobID)
	}
	delete(c.definitions, jobID)
	delete(c.runs, jobID)
	return nil
}

// RemoveListings implements jobstore.Jobs; what is listed follows from the rows.
func (c *Cold) RemoveListings(context.Context, job.Tenant) error { return nil }

// PutDefinition implements jobstore.Jobs.
func (c *Cold) PutDefinition(_ context.Context, jobID string, d job.Definition) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.definitions[jobID] == nil {
		c.definitions[jobID] = map[string][]byte{}
	}
	c.definitions[jobID][d.ID] = wire.MarshalDefinition(&d)
	return nil
}

// Definition implements jobstore.Jobs.
func (c *Cold) Definition(_ context.Context, jobID, definitionID string) (d job.Definition, endsAt time.Time, err error) {
	all, err := c.Superseded(jobID)
	if err != nil {
		return d, endsAt, err
	}
	i, found := slices.BinarySearchFunc(all, definitionID, func(d job.Definition, id string) int { return cmp.Compare(d.ID, id) })
	if !found {
		return d, endsAt, jobstore.ErrNotFound
	}
	for _, later := range all[i+1:] {
		if endsAt.IsZero() || later.EffectiveAt.Before(endsAt) {
			endsAt = later.EffectiveAt
		}
	}
	return all[i], endsAt, nil
}

// Definitions implements jobstore.Jobs.
func (c *Cold) Definitions(_ context.Context, jobID, before string, limit int) ([]job.Definition, error) {
	all, err := c.Superseded(jobID)
	all = slices.DeleteFunc(all, func(d job.Definition) bool { return d.ID >= before })
	slices.Reverse(all)
	return all[:min(len(all), limit)], err
}

// Superseded returns all of a job's superseded definitions, oldest first.
func (c *Cold) Superseded(jobID string) ([]job.Definition, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []job.Definition
	for _, id := range slices.Sorted(maps.Keys(c.definitions[jobID])) {
		d, err := wire.UnmarshalDefinition(c.definitions[jobID][id])
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return all, nil
}

// Runs implements jobstore.Jobs.
func (c *Cold) Runs(_ context.Context, jobID string) ([]job.Locator, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return wire.UnmarshalRuns(c.runs[jobID])
}

// SwapRuns implements jobstore.Jobs.
func (c *Cold) SwapRuns(_ context.Context, jobID string, old, runs []job.Locator) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Equal(c.runs[jobID], wire.MarshalRuns(old)) {
		return jobstore.ErrConflict
	}
	c.runs[jobID] = wire.MarshalRuns(runs)
	return nil
}

// List implements jobstore.Jobs.
func (c *Cold) List(_ context.Context, tenant job.Tenant, cursor string, limit int) (page []job.Job, next string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ids := slices.Sorted(maps.Keys(c.jobs))
	slices.Reverse(ids)
	for _, id := range ids {
		j, err := decodeJob(c.jobs[id])
		if err != nil {
			return nil, "", err
		}
		if j.Tenant != tenant || cursor != "" && id >= cursor {
			continue
		}
		if len(page) == limit {
			return page, page[limit-1].ID, nil
		}
		page = append(page, j)
	}
	return page, "", nil
}

// ClaimKey implements jobstore.Jobs.
func (c *Cold) ClaimKey(_ context.Context, tenant job.Tenant, key string, claim jobstore.Claim) (jobstore.Claim, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := tenant.String() + "\x00" + key
	if standing, ok := c.claims[k]; ok && claim.AcceptedAt.Sub(standing.AcceptedAt) < jobstore.KeyTTL {
		return standing, false, nil
	}
	c.claims[k] = claim
	return claim, true, nil
}

// FinishKey implements jobstore.Jobs.
func (c *Cold) FinishKey(_ context.Context, tenant job.Tenant, key string, answer jobstore.Answer) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := tenant.String() + "\x00" + key
	claim, ok := c.claims[k]
	if !ok {
		return jobstore.ErrNotFound
	}
	if claim.Answer == nil {
		claim.Answer = &answer
		c.claims[k] = claim
	}
	return nil
}

// Setting implements jobstore.Settings.
func (c *Cold) Setting(_ context.Context, name string) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.settings[name]), nil
}

// SwapSetting implements jobstore.Settings.
func (c *Cold) SwapSetting(_ context.Context, name string, old, value []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Equal(c.settings[name], old) {
		return jobstore.ErrConflict
	}
	if c.settings[name] = slices.Clone(value); value == nil {
		delete(c.settings, name)
	}
	return nil
}
