package edge

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/problem"
	"github.com/minutehand/minutehand/services/job-api/internal/access"
)

// Request is a request that its operation allows.
type Request struct {
	*http.Request
	// By is who makes the request, ID the request's own, and Source the address that it came from.
	By         access.Principal
	ID, Source string
	// Operation is the id of the operation that is asked for.
	Operation string
	// Parameters holds every parameter that was given or has a default, by name.
	Parameters map[string]string
	// Raw is the body as it was sent, and Tree is what it decodes to: maps, slices, strings, json.Numbers, bools and nil.
	Raw  []byte
	Tree any
}

// Limit returns the page size asked for.
func (r *Request) Limit() int {
	n, _ := strconv.Atoi(r.Parameters["limit"]) // checked to be an integer
	return n
}

// Tenant returns the tenant that the request is made for.
func (r *Request) Tenant() job.Tenant { return r.By.Tenant }

// Author returns who makes the request, as events name it.
func (r *Request) Author() job.Author {
	return job.Author{Subject: within(r.By.Subject), Role: r.By.Role.String(), Request: r.ID, Source: r.Source}
}

// maxSubject bounds the bytes of a principal's name in an event.
const maxSubject = 256

// within returns at most maxSubject bytes of a name, as UTF-8.
func within(name string) string {
	return strings.ToValidUTF8(name[:min(len(name), maxSubject)], "")
}

// may returns the answer to a principal that may not carry an operation out; nil if it may.
func (op *endpoint) may(by *access.Principal) *problem.Problem {
	switch {
	case op.installation && !by.Installation:
		return problem.New(http.StatusForbidden, "forbidden", "This concerns the whole installation; ask its operators.")
	case by.Role < op.role:
		return problem.New(http.StatusForbidden, "forbidden", "This needs the role "+op.role.String()+", and yours is "+by.Role.String()+".")
	}
	return nil
}

// IdempotencyKey returns the request's key, from the header or the body; "" if it has none. It fails with a problem if the
// two differ.
func (r *Request) IdempotencyKey() (string, error) {
	header := r.Parameters["Idempotency-Key"]
	var inBody string
	if m, ok := r.Tree.(map[string]any); ok {
		inBody, _ = m["idempotency_key"].(string)
	}
	if header != "" && inBody != "" && header != inBody {
		return "", Invalid([]problem.Fault{{
			Pointer: "/idempotency_key", Code: "conflict", Message: "The header Idempotency-Key has another value; give one of them.",
		}})
	}
	if header != "" {
		return header, nil
	}
	return inBody, nil
}

// check reads a request and reports all of its faults at once: 400 for parameters and for a body that is not JSON, 422 for
// a body that the document does not allow.
func (e *Edge) check(r *http.Request, op *endpoint) (*Request, *problem.Problem) {
	req := &Request{Request: r, Operation: op.id, Parameters: map[string]string{}}
	if c, ok := r.Context().Value(principal{}).(*caller); ok {
		req.By, req.ID, req.Source = c.by, c.id, c.source
	}
	if p := op.may(&req.By); p != nil {
		return req, p
	}
	faults := op.checkParameters(req)
	if len(faults) > 0 {
		return nil, problem.New(http.StatusBadRequest, "invalid-parameter", "A parameter is not as it must be.", faults...)
	}
	limit, values := e.cfg.MaxBodyBytes, maxValues
	if op.id == "createJobs" {
		limit, values = e.cfg.MaxBatchBytes, maxBatchValues
	}
	body, p := readBody(r, limit)
	if p != nil {
		return nil, p
	}
	if op.body == nil {
		if len(bytes.TrimSpace(body)) > 0 && req.Parameters["Minutehand-Hops"] == "" { // a notification says what happened, which is not read
			return nil, problem.New(http.StatusBadRequest, "unexpected-body", "This operation takes no body; leave it out.",
				problem.Fault{Pointer: "", Code: "unexpected-body", Message: "Leave the body out."})
		}
		return req, nil
	}
	if op.mayBeBare && len(bytes.TrimSpace(body)) == 0 {
		return req, nil
	}
	mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || mediaType != op.contentType && mediaType != "application/json" {
		return nil, problem.New(http.StatusUnsupportedMediaType, "unsupported-media-type",
			"Set the Content-Type header to "+op.contentType+".")
	}
	req.Raw = body
	req.Tree, err = Decode(body, values)
	var large *limitError
	switch {
	case errors.As(err, &large):
		return nil, Invalid([]problem.Fault{problem.Fault(*large)})
	case err != nil:
		return nil, problem.New(http.StatusBadRequest, "malformed-json", "The body is not valid JSON in UTF-8.",
			problem.Fault{Pointer: "", Code: "malformed-json", Message: "Send one JSON value in UTF-8, each member once, nested at most 1000 deep, numbers within 1e±1000."})
	}
	return req, Invalid(checkTree(op.body, req.Tree))
}

func readBody(r *http.Request, limit int64) ([]byte, *problem.Problem) {
	if r.ContentLength > limit {
		return nil, TooLarge(limit)
	}
	var text bytes.Buffer
	if r.ContentLength > 0 {
		text.Grow(min(int(r.ContentLength), maxAhead) + bytes.MinRead)
	}
	_, err := text.ReadFrom(http.MaxBytesReader(nil, r.Body, limit))
	body := text.Bytes()
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, TooLarge(limit)
	case err != nil:
		return nil, problem.New(http.StatusBadRequest, "unreadable-body", "The body could not be read completely.")
	}
	return body, nil
}

// maxAhead bounds the memory reserved for bytes that have not arrived yet.
const maxAhead = 1 << 20

func (op *endpoint) checkParameters(req *Request) []problem.Fault {
	var faults []problem.Fault
	query, err := url.ParseQuery(req.URL.RawQuery)
	if err != nil {
		faults = append(faults, problem.Fault{
			Pointer: "/query", Code: "malformed", Message: "Encode the query as NAME=VALUE, joined by &.",
		})
	}
	known := map[string]bool{}
	for _, p := range op.parameters {
		var given []string
		switch p.in {
		case "query":
			known[p.name] = true
			given = query[p.name]
		case "header":
			given = req.Header.Values(p.name)
		default:
			given = []string{req.PathValue(p.name)}
		}
		pointer := "/" + p.in + "/" + p.name
		if len(given) > 1 {
			faults = append(faults, problem.Fault{Pointer: pointer, Code: "repeated", Message: "Give it once."})
			continue
		}
		if len(given) == 0 {
			req.Parameters[p.name] = p.value
			continue
		}
		req.Parameters[p.name] = given[0]
		var v any = given[0]
		if p.integer {
			v = json.Number(given[0])
			if !integer(given[0]) {
				faults = append(faults, problem.Fault{Pointer: pointer, Code: "type", Message: "Must be an integer."})
				continue
			}
		}
		for _, f := range checkTree(p.schema, v) {
			f.Pointer = pointer
			faults = append(faults, f)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if !known[name] && len(faults) < maxFaults {
			faults = append(faults, problem.Fault{
				Pointer: Pointer([]string{"query", name}), Code: "unknown-parameter",
				Message: "This operation has no such parameter; check its spelling or leave it out.",
			})
		}
	}
	return faults
}

func integer(s string) bool {
	_, err := strconv.ParseInt(s, 10, 32)
	return err == nil
}
