package edge

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/minutehand/minutehand/libs/problem"
)

// Bounds of a body, whatever its size: a value of one byte costs a hundred bytes once it is decoded, and more to check.
const (
	// maxDepth bounds how deeply a body nests. What is accepted is nested more deeply in rows and answers, and encoding/json
	// reads no more than 10,000 levels back.
	maxDepth = 1000
	// maxValues bounds the values of all kinds in a request, maxBatchValues those in a batch.
	maxValues, maxBatchValues = 20_000, 200_000
	// maxMembers and maxItems bound an object and an array, except in a target's body and in what a worker reports: nothing else in the
	// document is larger.
	maxMembers, maxItems = 128, 1000
)

// holdsAnything reports whether a member of an object may hold anything: a target's body wherever it is, and what a worker reports of its task.
func (p *place) holdsAnything(member string) bool {
	return p.free || member == "body" || p.in == nil && (member == "progress" || member == "result")
}

// reasonable reports whether computing with a number costs little: exact arithmetic on 1e1000000 takes a megabyte.
func reasonable(n json.Number) bool {
	_, exponent, ok := strings.Cut(strings.ToLower(string(n)), "e")
	e, err := strconv.Atoi(exponent)
	return len(n) <= 1000 && (!ok || err == nil && e >= -1000 && e <= 1000)
}

// limitError is a fault of a body that is not worth decoding to the end.
type limitError problem.Fault

func (e *limitError) Error() string { return e.Message }

// Decode reads exactly one JSON value, strictly: in UTF-8, each member once, at most values values. (If a name occurs
// twice, a tree would hold the last member, while a struct merges both: something that the schema never saw would get in.)
func Decode(body []byte, values int) (any, error) {
	if !utf8.Valid(body) {
		return nil, errors.New("not UTF-8")
	}
	r := reader{d: jsontext.NewDecoder(bytes.NewBuffer(body), escapedHalves), values: values, left: values}
	tree, err := r.value(&place{})
	if err != nil {
		return nil, err
	}
	if _, err := r.d.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one value")
	}
	return tree, nil
}

// escapedHalves lets an escaped half of a surrogate pair pass: a target's body is sent unchanged.
var escapedHalves = jsontext.AllowInvalidUTF8(true)

// reader builds the tree of a body. left is how many more values the body may have.
type reader struct {
	d            *jsontext.Decoder
	values, left int
}

// place is where a value is: under a name, or at an index of an array.
type place struct {
	in    *place // nil for the whole body
	name  string // of the member, or else
	index int    // of the item, in an array
	array bool
	depth int
	free  bool // within what is sent to a target, or what a worker reports
}

// location returns the path to the place.
func (p *place) location() []string {
	if p.in == nil {
		return nil
	}
	if p.array {
		return append(p.in.location(), strconv.Itoa(p.index))
	}
	return append(p.in.location(), p.name)
}

func (r *reader) value(at *place) (any, error) {
	if r.left--; r.left < 0 {
		return nil, &limitError{Code: "too-many-values", Message: "Must consist of at most " + strconv.Itoa(r.values) + " values in all; send less at once."}
	}
	if r.d.PeekKind() == '0' {
		v, err := r.d.ReadValue()
		n := json.Number(v)
		if err == nil && !reasonable(n) {
			err = errors.New("a number beyond all measure")
		}
		return n, err
	}
	token, err := r.d.ReadToken()
	if err != nil {
		return nil, err
	}
	switch token.Kind() {
	case '{', '[':
		if at.depth == maxDepth {
			return nil, errors.New("nested too deep")
		}
		if token.Kind() == '{' {
			return r.object(at)
		}
		return r.array(at)
	case '"':
		return token.String(), nil
	case 't', 'f':
		return token.Bool(), nil
	}
	return nil, nil // null
}

func (r *reader) object(at *place) (any, error) {
	object := map[string]any{}
	inner := place{in: at, depth: at.depth + 1}
	for r.d.PeekKind() != '}' {
		token, err := r.d.ReadToken()
		if err != nil {
			return nil, err
		}
		if len(object) == maxMembers && !at.free {
			_, message, _ := describe(&kind.MaxProperties{Want: maxMembers})
			return nil, &limitError{Pointer: Pointer(at.location()), Code: "max-properties", Message: message}
		}
		inner.name = token.String()
		inner.free = at.holdsAnything(inner.name)
		if object[inner.name], err = r.value(&inner); err != nil {
			return nil, err
		}
	}
	_, err := r.d.ReadToken()
	return object, err
}

func (r *reader) array(at *place) (any, error) {
	array := []any{}
	inner := place{in: at, array: true, depth: at.depth + 1, free: at.free}
	for r.d.PeekKind() != ']' {
		if len(array) == maxItems && !at.free {
			_, message, _ := describe(&kind.MaxItems{Want: maxItems})
			return nil, &limitError{Pointer: Pointer(at.location()), Code: "max-items", Message: message}
		}
		inner.index = len(array)
		v, err := r.value(&inner)
		if err != nil {
			return nil, err
		}
		array = append(array, v)
	}
	_, err := r.d.ReadToken()
	return array, err
}

// Elements returns the elements of the array under a member of a body, each with its original bytes. The body must be one
// that Decode has read.
func Elements(body []byte, member string) ([][]byte, error) {
	d := jsontext.NewDecoder(bytes.NewBuffer(body), jsontext.AllowDuplicateNames(true), escapedHalves)
	if _, err := d.ReadToken(); err != nil {
		return nil, err
	}
	for d.PeekKind() == '"' {
		name, err := d.ReadToken()
		if err != nil {
			return nil, err
		}
		if name.String() != member {
			if err := d.SkipValue(); err != nil {
				return nil, err
			}
			continue
		}
		var list [][]byte
		for _, err = d.ReadToken(); err == nil && d.PeekKind() != ']'; {
			var v jsontext.Value
			if v, err = d.ReadValue(); err == nil {
				list = append(list, v.Clone())
			}
		}
		return list, err
	}
	return nil, nil
}
