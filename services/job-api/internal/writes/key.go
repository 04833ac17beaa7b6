package writes

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"net/http"

	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/problem"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
)

// once carries a request out under its idempotency key: once, and the same answer every time. The claim fixes what the
// request decides before anything is written; a request that finds a claim without an answer carries it out with those values.
func (ws *Writes) once(
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
	standing, won, err := ws.deps.Jobs.ClaimKey(ctx, r.Tenant(), key, claim)
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
	return resp, ws.deps.Jobs.FinishKey(ctx, r.Tenant(), key,
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
