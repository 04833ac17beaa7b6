package writes

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/occurrence"
	"github.com/minutehand/minutehand/libs/problem"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/libs/trace"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
	"github.com/minutehand/minutehand/services/job-api/internal/form"
	"github.com/minutehand/minutehand/services/job-api/internal/reads"
)

// keyedAtOnce bounds how many jobs of a batch that have keys are created concurrently.
const keyedAtOnce = 16

// maxBatchFaults bounds the reported faults of a batch; beyond it each job reports its first.
const maxBatchFaults = 1000

// batchResult is the result of one job of a batch.
type batchResult struct {
	Status  int              `json:"status"`
	Job     any              `json:"job,omitempty"`
	Problem *problem.Problem `json:"problem,omitempty"`
}

// batchJob is a valid job of a batch, with its place in the batch.
type batchJob struct {
	at     int
	job    job.Job
	series *occurrence.Series
}

// createJobs accepts many jobs as createJob accepts one: their entries, then their rows, then the answer, each step for all
// of them at once. A fault in one does not affect the others. Under an Idempotency-Key their ids follow from the claim, so
// a request repeated after a crash creates what is missing.
func (ws *Writes) createJobs(ctx context.Context, r *edge.Request) (edge.Response, error) {
	now := job.Instant(ws.deps.Clock.Now())
	claim := jobstore.Claim{ID: ws.newID("", now), AcceptedAt: now}
	turn, answered, err := ws.begin(ctx, r, "createJobs", r.Parameters["Idempotency-Key"], claim)
	if err != nil {
		return edge.Response{}, err
	}
	if answered != nil {
		return *answered, nil
	}
	bodies, err := edge.Elements(r.Raw, "jobs")
	if err != nil {
		return edge.Response{}, err
	}
	results := make([]batchResult, len(bodies))
	jobs, keyed := ws.checkBatch(r, bodies, turn.claim, results)
	if turn.again {
		if jobs, err = ws.missingOf(ctx, r, jobs, turn.claim.AcceptedAt, results); err != nil {
			return edge.Response{}, err
		}
	}
	if jobs, err = ws.connected(ctx, r, jobs, results); err != nil {
		return edge.Response{}, err
	}
	if err := ws.acceptAll(ctx, r, jobs, results, turn.again); err != nil {
		return edge.Response{}, err
	}
	seen := ws.served()
	for _, b := range jobs {
		if shown, ok := results[b.at].Job.(*reads.Job); ok {
			ws.warn(ctx, shown, bodies[b.at], &b.job, b.series, seen)
		}
	}
	ws.createKeyed(ctx, keyed, turn.claim, turn.again, results)
	resp := edge.Response{Status: http.StatusOK, Headers: map[string]string{}, Body: map[string]any{"results": results}}
	if slices.ContainsFunc(results, func(b batchResult) bool { return b.Status >= http.StatusInternalServerError }) {
		return resp, nil // not kept: if the request is repeated, what is missing is created
	}
	return turn.finish(ctx, resp)
}

// checkBatch checks every job of a batch, and notes in results what is wrong. It returns the valid jobs. Those with a key, or with an
// idempotency key of their own, are returned separately, by their places.
func (ws *Writes) checkBatch(
	r *edge.Request, bodies [][]byte, c jobstore.Claim, results []batchResult,
) (jobs []*batchJob, keyed map[int]*edge.Request) {
	trees, _ := r.Tree.(map[string]any)["jobs"].([]any)
	keyed = map[int]*edge.Request{}
	names := map[string]bool{}
	jobs = make([]*batchJob, 0, len(bodies))
	told := 0
	refuse := func(i int, p *problem.Problem) {
		if told += len(p.Errors); told > maxBatchFaults && len(p.Errors) > 1 {
			p.Errors = p.Errors[:1]
		}
		results[i] = refused(p)
	}
	for i, raw := range bodies {
		tree, _ := trees[i].(map[string]any)
		if p := edge.Invalid(ws.deps.Document.CheckBody("createJob", tree)); p != nil {
			refuse(i, p)
			continue
		}
		if int64(len(raw)) > ws.cfg.MaxBodyBytes {
			refuse(i, edge.TooLarge(ws.cfg.MaxBodyBytes))
			continue
		}
		key, _ := tree["key"].(string)
		if names[key] {
			refuse(i, edge.Invalid([]problem.Fault{{Pointer: "/key", Code: "repeated", Message: "Another job of this batch has this key; give each its own."}}))
			continue
		}
		if names[key] = key != ""; tree["idempotency_key"] != nil || key != "" || tree["type"] == string(job.ScheduleAfter) {
			keyed[i] = single(r, raw, tree)
			continue
		}
		b := &batchJob{at: i}
		body, def, err := form.Parse(raw, c.AcceptedAt, nil)
		if err == nil {
			b.job = newJob(r.Tenant(), &body, def, derivedClaim(c, i))
			b.series, err = newSeries(&b.job)
		}
		if err != nil {
			refuse(i, ws.deps.Problems.Of(err, r))
			continue
		}
		b.series.Def = &b.job.Definition
		jobs = append(jobs, b)
	}
	return jobs, keyed
}

// connected leaves out the jobs whose connections are not there.
func (ws *Writes) connected(ctx context.Context, r *edge.Request, jobs []*batchJob, results []batchResult) (there []*batchJob, err error) {
	c := connections{of: ws.deps.Settings}
	there = make([]*batchJob, 0, len(jobs))
	for _, b := range jobs {
		err := c.find(ctx, r.Tenant(), &b.job.Definition.Target)
		var p *problem.Problem
		if errors.As(err, &p) {
			results[b.at] = refused(p)
			continue
		}
		if err != nil {
			return nil, err
		}
		there = append(there, b)
	}
	return there, nil
}

// refused returns the result of a job with a problem.
func refused(p *problem.Problem) batchResult { return batchResult{Status: p.Status, Problem: p} }

// derivedClaim returns what follows from a request's claim for a place in its batch.
func derivedClaim(c jobstore.Claim, i int) jobstore.Claim {
	return jobstore.Claim{
		ID: derivedID(job.JobPrefix, c, i), DefinitionID: derivedID(job.DefinitionPrefix, c, i), AcceptedAt: c.AcceptedAt,
	}
}

// derivedID returns an id that follows from a request's claim and a place in its batch.
func derivedID(prefix string, c jobstore.Claim, i int) string {
	sum := sha256.Sum256(binary.BigEndian.AppendUint32([]byte(prefix+c.ID), uint32(i)))
	var id ulid.ULID
	_ = id.SetTime(uint64(c.AcceptedAt.UnixMilli())) // until the year 10889
	copy(id[6:], sum[:])
	return prefix + id.String()
}

// single returns a job of a batch as its own request.
func single(r *edge.Request, raw []byte, tree any) *edge.Request {
	req, u := *r.Request, *r.URL
	u.Path = edge.Root + "/jobs"
	req.URL = &u
	return &edge.Request{Request: &req, By: r.By, ID: r.ID, Source: r.Source, Operation: r.Operation, Parameters: map[string]string{}, Raw: raw, Tree: tree}
}

// missingOf leaves out what an earlier try of the request has created. A row alone does not prove that: the try may have
// written it too late for its entry, which workers dropped meanwhile, and died before it wrote another.
func (ws *Writes) missingOf(
	ctx context.Context, r *edge.Request, jobs []*batchJob, acceptedAt time.Time, results []batchResult,
) (missing []*batchJob, err error) {
	for len(jobs) > 0 {
		n := min(len(jobs), jobstore.MaxGetMany)
		ids := make([]string, n)
		for i := range ids {
			ids[i] = jobs[i].job.ID
		}
		rows, err := ws.deps.Jobs.GetMany(ctx, ids)
		if err != nil {
			return nil, fmt.Errorf("read %d jobs of a batch: %w", n, err)
		}
		for _, b := range jobs[:n] {
			row, begun := rows[b.job.ID]
			if begun && ws.tookTooLong(acceptedAt) && untouched(row) { // a later change has found it to be there
				if begun, err = ws.hasBegun(ctx, row); err != nil {
					return nil, err
				}
			}
			if begun && ws.tookTooLong(acceptedAt) {
				if err := ws.tellCreation(ctx, r, row); err != nil {
					return nil, err
				}
			}
			if !begun {
				missing = append(missing, b)
				continue
			}
			shown, err := ws.deps.Reads.Show(ctx, row)
			if err != nil {
				return nil, err
			}
			results[b.at] = batchResult{Status: http.StatusCreated, Job: shown}
		}
		jobs = jobs[n:]
	}
	return missing, nil
}

// watchedAtOnce is how many jobs of a batch are listed for the watchdog at once.
const watchedAtOnce = 16

// acceptAll is accept for many jobs that were accepted at one instant.
func (ws *Writes) acceptAll(ctx context.Context, r *edge.Request, jobs []*batchJob, results []batchResult, again bool) error {
	if len(jobs) == 0 {
		return nil
	}
	acceptedAt := jobs[0].job.CreatedAt
	before := acceptedAt // the floor of the previous try
	if err := run.Each(len(jobs), watchedAtOnce, func(i int) error { return ws.list(ctx, &jobs[i].job) }); err != nil {
		return err
	}
	for {
		floor := ws.floor(acceptedAt)
		began := job.Instant(ws.deps.Clock.Now())
		entries, rows, err := ws.firstEntries(ctx, jobs, results, floor, before)
		if err != nil || len(rows) == 0 {
			return err
		}
		before = floor
		for i := range rows {
			entries = append(entries, ws.creation(r, &rows[i], floor, began))
		}
		if err := ws.deps.Pending.Put(jobstore.RowFollows(ctx), entries); err != nil {
			return fmt.Errorf("put %d first entries of a batch: %w", len(entries), err)
		}
		if ws.tookTooLong(began) {
			again = true
			continue
		}
		if err := ws.deps.Jobs.CreateMany(ctx, rows); err != nil {
			return fmt.Errorf("create %d jobs of a batch: %w", len(rows), err)
		}
		if ws.tookTooLong(began) {
			again = true // the rows are there: only the entries are repeated
			continue
		}
		if again {
			if err := ws.reviveAll(ctx, entries); err != nil {
				return err
			}
		}
		ws.Near(ctx, entries)
		return nil
	}
}

// firstEntries returns the first entries of jobs, and their rows, and notes their results. A job without any further
// occurrence is left out.
func (ws *Writes) firstEntries(
	ctx context.Context, jobs []*batchJob, results []batchResult, floor, before time.Time,
) (entries []job.Entry, rows []job.Job, err error) {
	entries, rows = make([]job.Entry, 0, 2*len(jobs)), make([]job.Job, 0, len(jobs)) // with room for what tells of the creations
	for _, b := range jobs {
		first, ok := ws.firstEntry(b.series, bucket.Partition(b.job.ID, ws.cfg.Partitions), floor, before)
		if !ok {
			results[b.at] = refused(noOccurrence())
			continue
		}
		shown, err := ws.deps.Reads.ShowSeries(ctx, &b.job, b.series)
		if err != nil {
			return nil, nil, err
		}
		results[b.at] = batchResult{Status: http.StatusCreated, Job: shown}
		first.Trace = trace.Of(ctx)
		entries, rows = append(entries, first), append(rows, b.job)
	}
	return entries, rows, nil
}

// createKeyed creates the jobs that have a key, or an idempotency key of their own.
func (ws *Writes) createKeyed(ctx context.Context, keyed map[int]*edge.Request, c jobstore.Claim, again bool, results []batchResult) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, keyedAtOnce)
	for i, r := range keyed {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			resp, err := ws.createAs(ctx, r, derivedClaim(c, i), again)
			if err != nil {
				results[i] = refused(ws.deps.Problems.Of(err, r))
				return
			}
			results[i] = batchResult{Status: resp.Status, Job: resp.Body}
			if replayed, ok := resp.Body.([]byte); ok {
				results[i].Job = json.RawMessage(replayed)
			}
		})
	}
	wg.Wait()
}
