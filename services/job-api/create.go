package jobapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/occurrence"
	"github.com/minutehand/minutehand/libs/problem"
	"github.com/minutehand/minutehand/libs/trace"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
	"github.com/minutehand/minutehand/services/job-api/internal/form"
)

// createJob accepts a job, in the order of step 1 in services/README.md: claim, entry, job row, answer, write-through.
func (s *Service) createJob(ctx context.Context, r *edge.Request) (edge.Response, error) {
	now := job.Instant(s.deps.Clock.Now())
	key, err := r.IdempotencyKey()
	if err != nil {
		return edge.Response{}, err
	}
	body, def, refusal := form.Parse(r.Raw, now, nil)
	// What is past by now, such as the end of an interval, was not when an earlier try of this request was answered.
	earlier := false
	if refusal != nil && key != "" {
		_, _, err = form.Parse(r.Raw, now.Add(-jobstore.KeyTTL), nil)
		earlier = err == nil
	}
	if refusal != nil && !earlier {
		return edge.Response{}, refusal
	}
	claim := jobstore.Claim{
		ID: s.newID(job.JobPrefix, now), DefinitionID: s.newID(job.DefinitionPrefix, now), AcceptedAt: now,
	}
	fresh := claim.ID
	return s.once(ctx, r, "createJob", key, claim, func(claim jobstore.Claim) (edge.Response, error) {
		body, def, err := body, def, refusal
		if !claim.AcceptedAt.Equal(now) {
			body, def, err = form.Parse(r.Raw, claim.AcceptedAt, nil) // what an earlier try of this request decided
		}
		if err != nil {
			return edge.Response{}, err
		}
		j := newJob(r.Tenant(), &body, def, claim)
		if key != "" {
			standing, err := s.deps.Jobs.Get(ctx, j.ID)
			begun := !s.tookTooLong(claim.AcceptedAt)
			if err == nil && !begun {
				begun, err = s.hasBegun(ctx, &standing)
			}
			if err == nil && begun {
				return s.reads.Answer(ctx, http.StatusCreated, &standing)
			}
			if err != nil && !errors.Is(err, jobstore.ErrNotFound) {
				return edge.Response{}, err
			}
			// There is no row, or an earlier try may have reached it too late for its entry, and died before it wrote another.
		}
		return s.accept(ctx, j, key != "", claim.ID != fresh)
	})
}

// hasBegun reports whether anything is on record of a job: then its first entry was not dropped.
func (s *Service) hasBegun(ctx context.Context, j *job.Job) (bool, error) {
	events, err := s.deps.History.Executions(ctx, j.ID, jobstore.Position{}, j.CreatedAt.Add(-j.Definition.CatchUpWindow), 1)
	return len(events) > 0, err
}

// newJob is the first version of a job's row.
func newJob(tenantID string, body *form.Job, def job.Definition, claim jobstore.Claim) job.Job {
	def.ID, def.EffectiveAt = claim.DefinitionID, claim.AcceptedAt
	return job.Job{
		ID: claim.ID, TenantID: tenantID, Name: body.Name, Labels: body.Labels, Status: job.StatusActive, Version: 1,
		CreatedAt: claim.AcceptedAt, UpdatedAt: claim.AcceptedAt, Definition: def,
	}
}

// accept makes a new job durable: its first entry, then its row.
//
// A crash after the entry leaves an entry without a job, which the worker holds and drops when the grace is over. So a
// writer that takes longer than half of the grace from the entry to the acknowledged row starts over with a new entry:
// the old one may have been dropped, or its bucket may have closed.
func (s *Service) accept(ctx context.Context, j job.Job, exclusive, again bool) (edge.Response, error) {
	line, err := newLine(&j)
	if err != nil {
		return edge.Response{}, err
	}
	p := bucket.Partition(j.ID, s.cfg.Partitions)
	for before, floor := j.CreatedAt, s.floor(j.CreatedAt); ; before, floor = floor, s.floor(j.CreatedAt) {
		now := job.Instant(s.deps.Clock.Now())
		first, ok := s.firstEntry(line, p, floor, before)
		if !ok {
			return edge.Response{}, noOccurrence()
		}
		first.Trace = trace.Of(ctx)
		if err := s.deps.Pending.Put(ctx, []job.Entry{first}); err != nil {
			return edge.Response{}, err
		}
		if s.tookTooLong(now) {
			again = true
			continue
		}
		err := s.deps.Jobs.Create(ctx, j, exclusive)
		if err != nil && !errors.Is(err, jobstore.ErrExists) {
			return edge.Response{}, err
		}
		if s.tookTooLong(now) {
			exclusive, again = false, true // the row is there: only the entry is repeated
			continue
		}
		if again {
			if first, err = s.revive(ctx, first); err != nil {
				return edge.Response{}, err
			}
		}
		s.writeThrough(ctx, first)
		return s.reads.Answer(ctx, http.StatusCreated, &j)
	}
}

// floor is the instant in whose bucket a try writes a new job's first entry, unless that is due later. Tries soon after the
// job was accepted write the same row; a later one may find that closed, or dropped.
func (s *Service) floor(acceptedAt time.Time) time.Time {
	if s.tookTooLong(acceptedAt) {
		return job.Instant(s.deps.Clock.Now())
	}
	return acceptedAt
}

// firstEntry is a new job's. It says what it repeats where the try before wrote into the bucket of another instant.
func (s *Service) firstEntry(l *occurrence.Line, partition int, floor, before time.Time) (job.Entry, bool) {
	e, ok := l.First(partition, job.Instant(s.deps.Clock.Now()))
	e = job.NewEntry(e, floor)
	if m := job.NewEntry(e, before).Minute; m != e.Minute {
		e.Repeats = m
	}
	return e, ok
}

// repeat is the entry in the bucket of at.
func repeat(e job.Entry, at time.Time) job.Entry {
	again := job.NewEntry(e, at)
	if again.Repeats == 0 && again.Minute != e.Minute {
		again.Repeats = e.Minute
	}
	return again
}

// revive makes sure that an entry is there which is not done and will not be dropped, after its job's row was written: an
// earlier one of the same key may have been dropped meanwhile, and what is done stays done. One whose grace is over may be
// dropped at any time, by a worker that looked for the row before it was there. Then it is written into the next minute.
// (If it is done because it fired, or fires after all, the second fire meets the outcome of the first.)
func (s *Service) revive(ctx context.Context, e job.Entry) (job.Entry, error) {
	for {
		row, err := s.deps.Pending.Row(ctx, e.Locator)
		inGrace := s.deps.Clock.Since(row.WrittenAt) < s.cfg.Grace-clock.MaxDifference
		if err == nil && !row.Done && inGrace {
			return e, nil
		}
		if err != nil && !errors.Is(err, jobstore.ErrNotFound) {
			return e, err
		}
		e.WrittenAt = job.Instant(s.deps.Clock.Now())
		e = repeat(e, job.MinuteStart(max(e.Minute, job.Minute(e.WrittenAt))+1))
		if err := s.deps.Pending.Put(ctx, []job.Entry{e}); err != nil {
			return e, err
		}
	}
}

// newLine is the line of occurrences of a new job, which then begins at its first instant if that is a little past.
func newLine(j *job.Job) (*occurrence.Line, error) {
	line, err := form.Compile(j.ID, &j.Definition)
	if err != nil {
		return nil, err
	}
	if at := j.Definition.Schedule.RunAt; !at.IsZero() && at.Before(j.Definition.EffectiveAt) {
		if j.Definition.EffectiveAt.Sub(at) > j.Definition.CatchUpWindow {
			return nil, edge.Invalid([]problem.Fault{{
				Pointer: "/run_at", Code: "in-the-past", Message: "Lies in the past by more than the catch-up window.",
			}})
		}
		j.Definition.EffectiveAt = at // its one instant belongs to it
	}
	return line, nil
}

func (s *Service) tookTooLong(began time.Time) bool { return s.deps.Clock.Since(began) > s.cfg.Grace/2 }

func noOccurrence() *problem.Problem {
	return edge.Invalid([]problem.Fault{{
		Pointer: "/type", Code: "no-occurrence",
		Message: "The schedule has no occurrence from now on; check start_at, end_at and the instants it names.",
	}})
}

func (s *Service) newID(prefix string, now time.Time) string {
	return prefix + ulid.MustNew(uint64(now.UnixMilli()), s.deps.Entropy).String()
}

// once carries a request out under its idempotency key: once, and the same answer every time. The claim fixes what the
// request decides before anything is written; a request that finds a claim without an answer carries it out with those values.
func (s *Service) once(
	ctx context.Context, r *edge.Request, operation, key string, claim jobstore.Claim,
	do func(jobstore.Claim) (edge.Response, error),
) (edge.Response, error) {
	if key == "" {
		return do(claim)
	}
	var err error
	if claim.BodyHash, err = hash(operation, r); err != nil {
		return edge.Response{}, err
	}
	standing, won, err := s.deps.Jobs.ClaimKey(ctx, r.Tenant(), key, claim)
	if err != nil {
		return edge.Response{}, err
	}
	if standing.BodyHash != claim.BodyHash {
		return edge.Response{}, problem.New(http.StatusUnprocessableEntity, "idempotency-key-reused",
			"This Idempotency-Key was used for another request; use a new one.",
			problem.Fault{Pointer: "/header/Idempotency-Key", Code: "reused", Message: "Use a new key for a new request."})
	}
	if standing.Answer != nil {
		return replay(standing.Answer), nil
	}
	resp, err := do(standing)
	if err != nil {
		return edge.Response{}, err
	}
	if !won {
		resp.Headers["Idempotency-Replayed"] = "true"
	}
	body, err := json.Marshal(resp.Body)
	if err != nil {
		return edge.Response{}, err
	}
	return resp, s.deps.Jobs.FinishKey(ctx, r.Tenant(), key,
		jobstore.Answer{Status: resp.Status, Headers: resp.Headers, Body: body})
}

func replay(a *jobstore.Answer) edge.Response {
	headers := map[string]string{"Idempotency-Replayed": "true"}
	for name, value := range a.Headers {
		headers[name] = value
	}
	return edge.Response{Status: a.Status, Headers: headers, Body: a.Body}
}

// hash is SHA-256 over the operation, the path and the body in canonical form (members in order, no white space).
func hash(operation string, r *edge.Request) (string, error) {
	tree := r.Tree
	if m, ok := tree.(map[string]any); ok {
		m = maps.Clone(m)
		delete(m, "idempotency_key")
		tree = m
	}
	canonical, err := json.Marshal([]any{operation, r.URL.Path, tree})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:]), nil
}
