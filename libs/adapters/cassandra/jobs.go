package cassandra

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
	"github.com/cespare/xxhash/v2"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/libs/wire"
)

const (
	// listingShards is the number of partitions over which a tenant's listing of a day is spread.
	listingShards = 8
	// listedDays bounds the days of tenants that a process knows to be noted, maxDays those that one query of a list asks for.
	listedDays, maxDays = 10_000, 8
)

// JobStore is the job rows.
type JobStore struct {
	*Store
	mu sync.Mutex
	// noted holds until when days are known to be among their tenants'.
	noted map[dayOfTenant]time.Time
}

type dayOfTenant struct {
	tenant job.Tenant
	day    int
}

var _ jobstore.Jobs = (*JobStore)(nil)

// NewJobStore returns the job rows of a store.
func NewJobStore(s *Store) *JobStore { return &JobStore{Store: s, noted: map[dayOfTenant]time.Time{}} }

// beforeAllClocks returns the write timestamp of a new row, in µs. It is older than what any clock gives to a transaction, and
// decreases with time, so that the first of several rows stands. It works until the year 2050.
func beforeAllClocks() int64 { return 2_500_000_000_000_000 - time.Now().UnixMicro() }

// Get implements jobstore.Jobs.
func (s *JobStore) Get(ctx context.Context, jobID string) (job.Job, error) {
	return s.get(ctx, s.session.Query("SELECT row FROM jobs WHERE job_id = ?", jobID).Idempotent(true))
}

func (s *JobStore) get(ctx context.Context, q *gocql.Query) (job.Job, error) {
	var row []byte
	err := q.ScanContext(ctx, &row)
	if err == nil && len(row) == 0 { // it has expired: see Create
		err = gocql.ErrNotFound
	}
	if err != nil {
		return job.Job{}, failed("job", err)
	}
	return wire.UnmarshalJob(row)
}

// GetSerial implements jobstore.Jobs: a read at serial consistency completes the transactions that are in flight.
func (s *JobStore) GetSerial(ctx context.Context, jobID string) (job.Job, error) {
	q := s.session.Query("SELECT row FROM jobs WHERE job_id = ?", jobID)
	return s.get(ctx, q.Consistency(gocql.LocalSerial).Idempotent(true))
}

// GetMany implements jobstore.Jobs.
func (s *JobStore) GetMany(ctx context.Context, jobIDs []string) (map[string]*job.Job, error) {
	chunks := slices.Collect(slices.Chunk(jobIDs, inRows))
	found := make([][]*job.Job, len(chunks))
	err := run.Each(len(chunks), concurrency, func(i int) error {
		it := s.session.Query("SELECT row FROM jobs WHERE job_id IN ?", chunks[i]).Idempotent(true).IterContext(ctx)
		var row []byte
		for it.Scan(&row) {
			if len(row) == 0 {
				continue
			}
			j, err := wire.UnmarshalJob(row)
			if err != nil {
				return errors.Join(err, it.Close())
			}
			found[i] = append(found[i], &j)
			row = nil
		}
		return failed("jobs", it.Close())
	})
	rows := make(map[string]*job.Job, len(jobIDs))
	for _, list := range found {
		for _, j := range list {
			rows[j.ID] = j
		}
	}
	return rows, err
}

// maxTTL is the longest TTL that Cassandra accepts, in seconds: twenty years.
const maxTTL = 20 * 365 * 24 * 60 * 60

// ttl returns for how many seconds a job's row is kept; 0 for ever. It returns 0 also for a row that would expire in more than
// maxTTL: the next write sets it again.
func ttl(j *job.Job) int {
	at := jobstore.Expiry(j)
	if at.IsZero() {
		return 0
	}
	seconds := int(max(time.Until(at), jobstore.HistoryTTL) / time.Second) // it is changed now, whatever the row says
	if seconds > maxTTL {
		return 0
	}
	return seconds
}

// listing is the place where a job is listed under its tenant: by the day in its id.
type listing struct {
	dayOfTenant
	shard int
}

func listingOf(tenant job.Tenant, jobID string) listing {
	return listing{dayOfTenant{tenant, listingDay(jobID)}, int(xxhash.Sum64String(jobID) % listingShards)}
}

// listingDay returns the day under which a job is listed; it grows with the id.
func listingDay(jobID string) int {
	if !job.ValidID(jobID, job.JobPrefix) {
		return 0
	}
	return dayOf(job.ULIDTime(strings.TrimPrefix(jobID, job.JobPrefix)))
}

// listed returns the statement that lists a job, for as long as its row is kept.
func listed(of listing, j *job.Job) gocql.BatchEntry {
	return gocql.BatchEntry{
		Stmt: "INSERT INTO listings (tenant_id, day, shard, job_id) VALUES (?, ?, ?, ?) USING TTL ?",
		Args: []any{of.tenant.String(), of.day, of.shard, j.ID, ttl(j)}, Idempotent: true,
	}
}

// forGood is until when a day is noted if a job that is kept for good was registered on it.
var forGood = time.Unix(1<<40, 0)

// note makes sure that a day is among its tenant's days for as long as a job is listed there, before the job is. The write that
// lasts longest has the greatest timestamp, so no other write makes it expire earlier; a cell of its own stands for ever.
func (s *JobStore) note(ctx context.Context, of dayOfTenant, j *job.Job) error {
	const day = 24 * time.Hour
	until := time.Now().Add(time.Duration(ttl(j)) * time.Second).Truncate(day).Add(2 * day) // rarely different from the previous job's
	seconds := int(time.Until(until) / time.Second)
	if ttl(j) == 0 || seconds > maxTTL {
		until = forGood
	}
	s.mu.Lock()
	known := s.noted[of]
	s.mu.Unlock()
	if !known.Before(until) {
		return nil
	}
	q := s.session.Query("INSERT INTO listing_days (tenant_id, day) VALUES (?, ?) USING TIMESTAMP ? AND TTL ?", of.tenant.String(), of.day, until.UnixMicro(), seconds)
	if until.Equal(forGood) {
		q = s.session.Query("UPDATE listing_days SET kept = true WHERE tenant_id = ? AND day = ?", of.tenant.String(), of.day)
	}
	if err := q.Idempotent(true).ExecContext(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.noted) >= listedDays {
		clear(s.noted)
	}
	s.noted[of] = until
	return nil
}

// list lists a job.
func (s *JobStore) list(ctx context.Context, j *job.Job) error {
	of := listingOf(j.Tenant, j.ID)
	if err := s.note(ctx, of.dayOfTenant, j); err != nil {
		return err
	}
	list := listed(of, j)
	return s.session.Query(list.Stmt, list.Args...).Idempotent(true).ExecContext(ctx)
}

// Create implements jobstore.Jobs.
func (s *JobStore) Create(ctx context.Context, j job.Job, exclusive bool) error {
	if err := s.list(ctx, &j); err != nil {
		return failed("create job", err)
	}
	if !exclusive {
		return s.insert(ctx, &j)
	}
	// Of a row that was inserted for good, and expired after a change, its key is left: see insert.
	applied, err := s.session.Query("UPDATE jobs USING TTL ? SET version = ?, row = ? WHERE job_id = ? IF version = null", ttl(&j), j.Version,
		wire.MarshalJob(&j), j.ID).MapScanCASContext(ctx, map[string]any{})
	if err == nil && !applied {
		err = jobstore.ErrExists
	}
	return failed("create job", err)
}

// insert writes a row if there is none.
func (s *JobStore) insert(ctx context.Context, j *job.Job) error {
	q := s.session.Query("INSERT INTO jobs (job_id, version, row) VALUES (?, ?, ?) USING TIMESTAMP ? AND TTL ?", j.ID, j.Version,
		wire.MarshalJob(j), beforeAllClocks(), ttl(j))
	return failed("create job", q.Idempotent(true).ExecContext(ctx))
}

// CreateMany implements jobstore.Jobs. The listings are sent in batches of one shard.
func (s *JobStore) CreateMany(ctx context.Context, jobs []job.Job) error {
	byShard := map[listing][]gocql.BatchEntry{}
	for i := range jobs {
		of := listingOf(jobs[i].Tenant, jobs[i].ID)
		if err := s.note(ctx, of.dayOfTenant, &jobs[i]); err != nil {
			return failed("create jobs", err)
		}
		byShard[of] = append(byShard[of], listed(of, &jobs[i]))
	}
	var batches [][]gocql.BatchEntry
	for _, entries := range byShard {
		batches = slices.AppendSeq(batches, slices.Chunk(entries, maxBatch))
	}
	err := run.Each(len(batches), concurrency, func(i int) error {
		b := s.session.Batch(gocql.UnloggedBatch)
		b.Entries = batches[i]
		return failed("create jobs", b.ExecContext(ctx))
	})
	if err != nil {
		return err
	}
	return run.Each(len(jobs), concurrency, func(i int) error { return s.insert(ctx, &jobs[i]) })
}

// Replace implements jobstore.Jobs. A job that is kept for good is listed for good before its row says so, any other after it. A
// crash in between leaves a listing that stays for too long, but never a job that is not listed.
func (s *JobStore) Replace(ctx context.Context, j job.Job) error {
	keep := ttl(&j)
	if keep == 0 {
		if err := s.list(ctx, &j); err != nil {
			return failed("replace job", err)
		}
	}
	if err := s.keepJobKey(ctx, &j); err != nil {
		return failed("replace job", err)
	}
	standing := map[string]any{}
	applied, err := s.session.Query("UPDATE jobs USING TTL ? SET version = ?, row = ? WHERE job_id = ? IF version = ?",
		keep, j.Version, wire.MarshalJob(&j), j.ID, j.Version-1).MapScanCASContext(ctx, standing)
	if err == nil && applied && keep > 0 {
		_ = s.list(ctx, &j) // the change stands, whatever happens to its listing
	}
	if err == nil && applied && j.Deleted {
		_ = s.freeJobKey(ctx, &j) // the change stands; the next request for the key finds it free
	}
	if err == nil && !applied {
		if err = jobstore.ErrConflict; standing["version"] == nil || standing["version"] == int64(0) {
			err = jobstore.ErrNotFound
		}
	}
	return failed("replace job", err)
}

// Remove implements jobstore.Jobs. The listing stays, as a listing without its job is passed over: a tombstone for each would stand in
// the way of those who read it.
func (s *JobStore) Remove(ctx context.Context, _ job.Tenant, jobID string) error {
	row, err := s.Get(ctx, jobID)
	if err == nil {
		err = s.freeJobKey(ctx, &row)
	}
	if err == nil || errors.Is(err, jobstore.ErrNotFound) {
		err = s.session.Query("DELETE FROM definitions WHERE job_id = ?", jobID).Idempotent(true).ExecContext(ctx)
	}
	if err == nil {
		err = s.session.Query("DELETE FROM runs WHERE job_id = ?", jobID).Idempotent(true).ExecContext(ctx)
	}
	if err == nil {
		_, err = s.session.Query("DELETE FROM jobs WHERE job_id = ? IF EXISTS", jobID).MapScanCASContext(ctx, map[string]any{})
	}
	return failed("remove job", err)
}

// RemoveListings implements jobstore.Jobs: partitions as wholes, and then the list of their days.
func (s *JobStore) RemoveListings(ctx context.Context, tenant job.Tenant) error {
	it := s.session.Query("SELECT day FROM listing_days WHERE tenant_id = ?", tenant.String()).Idempotent(true).IterContext(ctx)
	var days []int
	for day := 0; it.Scan(&day); {
		days = append(days, day)
	}
	if err := it.Close(); err != nil {
		return failed("remove listings", err)
	}
	err := run.Each(len(days)*listingShards, concurrency, func(i int) error {
		q := s.session.Query("DELETE FROM listings WHERE tenant_id = ? AND day = ? AND shard = ?", tenant.String(), days[i/listingShards], i%listingShards)
		return q.Idempotent(true).ExecContext(ctx)
	})
	if err == nil {
		// A day is noted with a timestamp ahead of all clocks: see note.
		q := s.session.Query("DELETE FROM listing_days USING TIMESTAMP ? WHERE tenant_id = ?", forGood.UnixMicro(), tenant.String())
		err = q.Idempotent(true).ExecContext(ctx)
	}
	return failed("remove listings", err)
}

// List implements jobstore.Jobs. A job that is listed but has no row was never created.
func (s *JobStore) List(ctx context.Context, tenant job.Tenant, cursor string, limit int) (page []job.Job, next string, err error) {
	for {
		ids, err := s.listed(ctx, tenant, cursor, limit+1)
		if err != nil {
			return nil, "", err
		}
		for chunk := range slices.Chunk(ids, jobstore.MaxGetMany) {
			rows, err := s.GetMany(ctx, chunk)
			if err != nil {
				return nil, "", err
			}
			for _, id := range chunk {
				cursor = id
				if rows[id] == nil {
					continue
				}
				if len(page) == limit {
					return page, page[limit-1].ID, nil
				}
				page = append(page, *rows[id])
			}
		}
		if len(ids) <= limit {
			return page, "", nil
		}
	}
}

// listed returns the ids after the cursor, newest first. It queries the days that exist, first the newest alone and then more at
// once: a tenant that registers many jobs fills a page from one day, and one that registers few has few in each.
func (s *JobStore) listed(ctx context.Context, tenant job.Tenant, cursor string, limit int) (ids []string, err error) {
	newest := math.MaxInt32
	if cursor == "" {
		cursor = "~" // after every id
	} else {
		newest = listingDay(cursor)
	}
	shards := make([]int, listingShards)
	for i := range shards {
		shards[i] = i
	}
	for n := 1; len(ids) < limit; n = min(2*n, maxDays) {
		days, err := s.days(ctx, tenant, newest, n)
		if err != nil {
			return nil, err
		}
		if len(days) == 0 {
			break
		}
		newest = days[len(days)-1] - 1
		it := s.session.Query("SELECT job_id FROM listings WHERE tenant_id = ? AND day IN ? AND shard IN ? AND job_id < ? PER PARTITION LIMIT ?",
			tenant.String(), days, shards, cursor, limit).Idempotent(true).IterContext(ctx)
		var id string
		for it.Scan(&id) {
			ids = append(ids, id)
		}
		if err := it.Close(); err != nil {
			return nil, failed("list jobs", err)
		}
	}
	slices.SortFunc(ids, func(a, b string) int { return cmp.Compare(b, a) })
	return ids[:min(limit, len(ids))], nil
}

// days returns at most n of a tenant's days, newest first.
func (s *JobStore) days(ctx context.Context, tenant job.Tenant, newest, n int) (days []int, err error) {
	it := s.session.Query("SELECT day FROM listing_days WHERE tenant_id = ? AND day <= ? LIMIT ?", tenant.String(), newest, n).
		Idempotent(true).IterContext(ctx)
	var day int
	for it.Scan(&day) {
		days = append(days, day)
	}
	return days, failed("list jobs", it.Close())
}

// ClaimKey implements jobstore.Jobs.
func (s *JobStore) ClaimKey(ctx context.Context, tenant job.Tenant, key string, c jobstore.Claim) (jobstore.Claim, bool, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return c, false, fmt.Errorf("cassandra: claim: %w", err)
	}
	standing := map[string]any{}
	applied, err := s.session.Query("INSERT INTO idempotency_keys (tenant_id, key, claim) VALUES (?, ?, ?) IF NOT EXISTS", tenant.String(), key,
		string(text)).MapScanCASContext(ctx, standing)
	if err != nil || applied {
		return c, applied, failed("claim", err)
	}
	claim, _ := standing["claim"].(string)
	answer, _ := standing["answer"].(string)
	var other jobstore.Claim
	if err := json.Unmarshal([]byte(claim), &other); err != nil {
		return c, false, fmt.Errorf("cassandra: claim: %w", err)
	}
	if answer != "" {
		other.Answer = &jobstore.Answer{}
		if err := json.Unmarshal([]byte(answer), other.Answer); err != nil {
			return c, false, fmt.Errorf("cassandra: answer: %w", err)
		}
	}
	return other, false, nil
}

// FinishKey implements jobstore.Jobs.
func (s *JobStore) FinishKey(ctx context.Context, tenant job.Tenant, key string, answer jobstore.Answer) error {
	text, err := json.Marshal(answer)
	if err != nil {
		return fmt.Errorf("cassandra: answer: %w", err)
	}
	standing := map[string]any{}
	applied, err := s.session.Query("UPDATE idempotency_keys SET answer = ? WHERE tenant_id = ? AND key = ? IF claim != null AND answer = null",
		string(text), tenant.String(), key).MapScanCASContext(ctx, standing)
	if claim, _ := standing["claim"].(string); err == nil && !applied && claim == "" {
		err = jobstore.ErrNotFound
	}
	return failed("answer", err)
}
