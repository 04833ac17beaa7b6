package writes

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/problem"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
)

// turn is a request that is about to be carried out, for the first time or again.
type turn struct {
	// claim decides: for a repeated request it has the values of the first try.
	claim jobstore.Claim
	// again is set if an earlier try made the claim, and may have written something before it ended without an answer.
	again bool

	jobs   jobstore.Jobs
	tenant job.Tenant
	key    string
	lost   bool // the key was claimed before
}

// begin takes a request's turn under its idempotency key ("" for none), so that it is carried out once and answered the
// same every time. The claim fixes what the request decides before anything is written. answered is the stored answer of an
// earlier try. Without one, the caller carries the request out with the turn's claim, and then calls finish.
func (ws *Writes) begin(
	ctx context.Context, r *edge.Request, operation, key string, claim jobstore.Claim,
) (t turn, answered *edge.Response, err error) {
	if key == "" {
		return turn{claim: claim}, nil, nil
	}
	if claim.BodyHash, err = hash(operation, r); err != nil {
		return turn{}, nil, err
	}
	standing, won, err := ws.deps.Jobs.ClaimKey(ctx, r.Tenant(), key, claim)
	if err != nil {
		return turn{}, nil, fmt.Errorf("claim the idempotency key of %s: %w", operation, err)
	}
	if standing.BodyHash != claim.BodyHash {
		return turn{}, nil, problem.New(http.StatusUnprocessableEntity, "idempotency-key-reused",
			"This Idempotency-Key was used for another request; use a new one.",
			problem.Fault{Pointer: "/header/Idempotency-Key", Code: "reused", Message: "Use a new key for a new request."})
	}
	if standing.Answer != nil {
		resp := replay(standing.Answer)
		return turn{}, &resp, nil
	}
	return turn{
		claim: standing, again: standing.ID != claim.ID, jobs: ws.deps.Jobs, tenant: r.Tenant(), key: key, lost: !won,
	}, nil, nil
}

// finish stores the answer under the request's key, and returns it. It must not be called for a request that failed, which
// may be carried out when it is repeated.
func (t *turn) finish(ctx context.Context, resp edge.Response) (edge.Response, error) {
	if t.key == "" {
		return resp, nil
	}
	if t.lost {
		resp.Headers["Idempotency-Replayed"] = "true"
	}
	body, err := json.Marshal(resp.Body)
	if err != nil {
		return edge.Response{}, err
	}
	err = t.jobs.FinishKey(ctx, t.tenant, t.key, jobstore.Answer{Status: resp.Status, Headers: resp.Headers, Body: body})
	if err != nil {
		return edge.Response{}, fmt.Errorf("keep the answer under the idempotency key of claim %s: %w", t.claim.ID, err)
	}
	return resp, nil
}

// replay returns a stored answer.
func replay(a *jobstore.Answer) edge.Response {
	headers := map[string]string{"Idempotency-Replayed": "true"}
	for name, value := range a.Headers {
		headers[name] = value
	}
	return edge.Response{Status: a.Status, Headers: headers, Body: a.Body}
}

// hash returns SHA-256 over the operation, the path and the body in canonical form (members in order, no white space).
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
