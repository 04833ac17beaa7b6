package edge

import (
	"errors"
	"path"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/minutehand/minutehand/libs/problem"
)

// maxFaults bounds the faults of one request that are reported.
const maxFaults = 50

// checkTree returns the faults that a schema finds in a value, up to maxFaults of them.
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
		*faults = append(*faults, problem.Fault{Pointer: Pointer(at), Code: code, Message: message})
	}
}

// holder returns the path to the object at this depth of the tree that has the name last and contains the member.
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

// Pointer returns the JSON pointer of a location. Unknown members and map keys are the client's own text, so it ends before
// the first part that does not look like a name.
func Pointer(location []string) string {
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

// describe says what is wrong, in our own words: the validator's messages repeat values.
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
		return "pattern", "Must " + inWords(k.Want) + ".", nil
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

// ofAttempt is the end of a task's pattern: the number of the attempt.
const ofAttempt = "[.][1-9][0-9]{0,2}$"

// inWords says in words what a pattern asks for, if it is the pattern of an id.
func inWords(pattern string) string {
	switch {
	case strings.HasPrefix(pattern, "^job_"):
		return `be a job's id, such as "job_01M7ZJW5E6D77SAJPXRW35C2CA"`
	case strings.HasPrefix(pattern, "^(job_"):
		return `be a job's id, such as "job_01M7ZJW5E6D77SAJPXRW35C2CA", or "key:" and its key`
	case strings.HasPrefix(pattern, "^exe_") && strings.HasSuffix(pattern, ofAttempt):
		return `be a task's id, such as "exe_01M7ZJW5E6D77SAJPXRW35C2CA-s1893456000000.1"`
	case strings.HasPrefix(pattern, "^exe_"):
		return `be an execution's id, such as "exe_01M7ZJW5E6D77SAJPXRW35C2CA-s1893456000000"`
	case pattern == "^([0-9]|10)$":
		return "be a number from 0 to 10; more notifications in a row are a loop"
	case strings.HasPrefix(pattern, "^mh_"):
		return `be the visible part of an API key, such as "mh_default_1"`
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
