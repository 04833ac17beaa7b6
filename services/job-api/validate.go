package jobapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"path"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/minutehand/minutehand/libs/problem"
)

// request is a request that was checked against its operation.
type request struct {
	*http.Request
	// parameters holds every parameter that was given or has a default, by name.
	parameters map[string]string
	body       []byte
	// tree is the body, decoded.
	tree any
}

// limit is the page size asked for.
func (r *request) limit() int {
	n, _ := strconv.Atoi(r.parameters["limit"]) // checked to be an integer
	return n
}

// check reads a request and tells every fault at once: 400 for parameters and for what is no JSON at all, 422 for a
// body that says something wrong.
func (s *Service) check(r *http.Request, op *operation) (*request, *problem.Problem) {
	req := &request{Request: r, parameters: map[string]string{}}
	faults := op.checkParameters(req)
	if len(faults) > 0 {
		return nil, problem.New(http.StatusBadRequest, "invalid-parameter", "A parameter is not as it must be.", faults...)
	}
	limit, values := s.cfg.MaxBodyBytes, maxValues
	if op.id == "createJobs" {
		limit, values = s.cfg.MaxBatchBytes, maxBatchValues
	}
	body, p := readBody(r, limit)
	if p != nil {
		return nil, p
	}
	if op.body == nil {
		if len(bytes.TrimSpace(body)) > 0 {
			return nil, problem.New(http.StatusBadRequest, "unexpected-body", "This operation takes no body; leave it out.",
				problem.Fault{Pointer: "", Code: "unexpected-body", Message: "Leave the body out."})
		}
		return req, nil
	}
	mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || mediaType != op.contentType && mediaType != "application/json" {
		return nil, problem.New(http.StatusUnsupportedMediaType, "unsupported-media-type",
			"Set the Content-Type header to "+op.contentType+".")
	}
	req.body = body
	req.tree, err = decode(body, values)
	var large *limitError
	switch {
	case errors.As(err, &large):
		return nil, invalid([]problem.Fault{problem.Fault(*large)})
	case err != nil:
		return nil, problem.New(http.StatusBadRequest, "malformed-json", "The body is not valid JSON in UTF-8.",
			problem.Fault{Pointer: "", Code: "malformed-json", Message: "Send one JSON value in UTF-8, each member once, nested at most 1000 deep, numbers within 1e±1000."})
	}
	return req, invalid(checkTree(op.body, req.tree))
}

func readBody(r *http.Request, limit int64) ([]byte, *problem.Problem) {
	if r.ContentLength > limit {
		return nil, tooLarge(limit)
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
		return nil, tooLarge(limit)
	case err != nil:
		return nil, problem.New(http.StatusBadRequest, "unreadable-body", "The body could not be read completely.")
	}
	return body, nil
}

// maxAhead bounds what is made room for before it has come.
const maxAhead = 1 << 20

func tooLarge(limit int64) *problem.Problem {
	return problem.New(http.StatusRequestEntityTooLarge, "too-large",
		"The body is larger than "+strconv.FormatInt(limit, 10)+" bytes.")
}

// Bounds of a body, whatever its size: a value of one byte costs a hundred once it is decoded, and more to check.
const (
	// maxDepth bounds how deep it nests: what is accepted is nested deeper in rows and answers, and encoding/json reads no more
	// than 10,000 levels back.
	maxDepth = 1000
	// maxValues bounds the values of all kinds in a request, maxBatchValues those in a batch.
	maxValues, maxBatchValues = 20_000, 200_000
	// maxMembers and maxItems bound an object and an array, but for what is in a target's body: nothing else that the document
	// has is larger.
	maxMembers, maxItems = 128, 1000
	// ofTarget is the member that may hold anything.
	ofTarget = "body"
)

// reasonable reports whether a number can be computed with at little cost: exact arithmetic on 1e1000000 takes a megabyte.
func reasonable(n json.Number) bool {
	_, exponent, ok := strings.Cut(strings.ToLower(string(n)), "e")
	e, err := strconv.Atoi(exponent)
	return len(n) <= 1000 && (!ok || err == nil && e >= -1000 && e <= 1000)
}

func (op *operation) checkParameters(req *request) []problem.Fault {
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
			req.parameters[p.name] = p.value
			continue
		}
		req.parameters[p.name] = given[0]
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
				Pointer: pointer([]string{"query", name}), Code: "unknown-parameter",
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

// checkTree tells all faults that a schema finds in a value.
func checkTree(schema *jsonschema.Schema, tree any) []problem.Fault {
	err := schema.Validate(tree)
	if err == nil {
		return nil
	}
	var invalid *jsonschema.ValidationError
	if !errors.As(err, &invalid) {
		return []problem.Fault{{Code: "invalid", Message: "The value cannot be checked."}}
	}
	var faults []problem.Fault
	collect(invalid, tree, &faults)
	sort.SliceStable(faults, func(i, j int) bool { return faults[i].Pointer < faults[j].Pointer })
	if len(faults) > maxFaults {
		faults = faults[:maxFaults]
	}
	return faults
}

// maxFaults bounds how many faults of one request are told.
const maxFaults = 50

func collect(e *jsonschema.ValidationError, tree any, faults *[]problem.Fault) {
	location := e.InstanceLocation
	if k, ok := e.ErrorKind.(*kind.PropertyNames); ok {
		// The causes lie in the name and have no place in the body, and v6.0.3 lets later steps overwrite the location
		// of this error: only its length can be trusted.
		schema := path.Base(strings.TrimSuffix(e.SchemaURL, "/propertyNames"))
		location = holder(tree, len(location), schema, k.Property)
	} else if len(e.Causes) > 0 {
		for _, c := range e.Causes {
			collect(c, tree, faults)
		}
		return
	}
	code, message, members := describe(e.ErrorKind)
	if members == nil {
		members = []string{""}
	}
	for _, m := range members {
		at := location
		if m != "" {
			at = append(slices.Clone(location), m)
		}
		*faults = append(*faults, problem.Fault{Pointer: pointer(at), Code: code, Message: message})
	}
}

// holder is the way to the object that stands so deep in the tree under the name last, and has the member.
func holder(tree any, depth int, last, member string) []string {
	object, ok := tree.(map[string]any)
	if !ok || depth == 0 {
		return nil
	}
	if inner, ok := object[last].(map[string]any); ok && depth == 1 {
		if _, ok := inner[member]; ok {
			return []string{last}
		}
	}
	for name, child := range object {
		if way := holder(child, depth-1, last, member); way != nil {
			return append([]string{name}, way...)
		}
	}
	return nil
}

// pointer is a JSON pointer. Unknown members and map keys are the client's own text: what does not look like a name is
// left out, and what follows it.
func pointer(location []string) string {
	var b strings.Builder
	for _, part := range location {
		if len(part) > 64 || strings.ContainsFunc(part, func(r rune) bool {
			return r != '_' && r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
		}) {
			break
		}
		b.WriteString("/" + part)
	}
	return b.String()
}

// describe says what is wrong, in words of our own: the validator's messages repeat values.
func describe(k jsonschema.ErrorKind) (code, message string, members []string) {
	switch k := k.(type) {
	case *kind.Required:
		return "required", "This member is missing; add it.", k.Missing
	case *kind.AdditionalProperties:
		return "unknown-member", "There is no such member here; check its spelling or leave it out.", k.Properties
	case *kind.Type:
		return "type", "Must be of type " + strings.Join(k.Want, " or ") + ".", nil
	case *kind.Enum:
		return "enum", "Must be one of: " + list(k.Want) + ".", nil
	case *kind.Pattern:
		return "pattern", "Must " + form(k.Want) + ".", nil
	case *kind.Format:
		if k.Want == "minutehand-duration" {
			return "format", `Must be a duration in whole milliseconds, such as "250ms", "30s" or "1h30m"; a day is "24h".`, nil
		}
		return "format", `Must be an RFC 3339 instant such as "2030-01-02T03:04:05Z", in the years 1970 to 9999.`, nil
	case *kind.MinLength:
		return "min-length", "Must have at least " + strconv.Itoa(k.Want) + " characters.", nil
	case *kind.MaxLength:
		return "max-length", "Must have at most " + strconv.Itoa(k.Want) + " characters.", nil
	case *kind.Minimum:
		return "minimum", "Must be at least " + k.Want.RatString() + ".", nil
	case *kind.Maximum:
		return "maximum", "Must be at most " + k.Want.RatString() + ".", nil
	case *kind.MinItems:
		return "min-items", "Must have at least " + strconv.Itoa(k.Want) + " items.", nil
	case *kind.MaxItems:
		return "max-items", "Must have at most " + strconv.Itoa(k.Want) + " items.", nil
	case *kind.MaxProperties:
		return "max-properties", "Must have at most " + strconv.Itoa(k.Want) + " members.", nil
	case *kind.PropertyNames:
		return "member-name", "A member's name does not have the form that the API's description gives for it.", nil
	}
	return "invalid", "Does not match the API's description.", nil
}

// form says in words what a pattern asks for, where it is one of an id.
func form(pattern string) string {
	switch {
	case strings.HasPrefix(pattern, "^job_"):
		return `be a job's id, such as "job_01M7ZJW5E6D77SAJPXRW35C2CA"`
	case strings.HasPrefix(pattern, "^exe_"):
		return `be an execution's id, such as "exe_01M7ZJW5E6D77SAJPXRW35C2CA-s1893456000000"`
	}
	return "match " + pattern
}

func list(values []any) string {
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i], _ = v.(string)
	}
	return strings.Join(texts, ", ")
}

func invalid(faults []problem.Fault) *problem.Problem {
	if len(faults) == 0 {
		return nil
	}
	return problem.New(http.StatusUnprocessableEntity, "invalid-request",
		"The body was understood, but "+strconv.Itoa(len(faults))+" of its members must be mended.", faults...)
}
