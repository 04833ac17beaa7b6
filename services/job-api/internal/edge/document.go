package edge

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/minutehand/minutehand/libs/problem"
	"github.com/minutehand/minutehand/schemas"
	"github.com/minutehand/minutehand/services/job-api/internal/access"
)

// Document is the compiled OpenAPI document: which operations there are, and what each accepts.
type Document struct {
	json       []byte
	operations []*endpoint
}

// endpoint is where the document has an operation, and what it accepts there.
type endpoint struct {
	id, method, path string
	// role is what a principal needs, and installation is set if only one of the installation may carry it out.
	role         access.Role
	installation bool
	parameters   []parameter
	body         *jsonschema.Schema
	// mayBeBare is set if a request may have no body.
	mayBeBare   bool
	contentType string
}

// parameter is one parameter of an operation, wherever it is sent.
type parameter struct {
	name, in string
	integer  bool
	schema   *jsonschema.Schema
	value    string // the default
}

// outline is the part of the document that is read besides its schemas.
type outline struct {
	Servers []struct {
		URL string `json:"url"`
	} `json:"servers"`
	Paths map[string]map[string]json.RawMessage `json:"paths"`
}

const specURL = "mem:///openapi.json"

// LoadDocument returns the document that the module schemas embeds. It is compiled once in a process, which takes some 25 ms of CPU; nothing
// changes it afterwards.
func LoadDocument() (*Document, error) { return compiled() }

var compiled = sync.OnceValues(compile)

func compile() (*Document, error) {
	var tree any
	if err := yaml.Unmarshal(schemas.OpenAPI, &tree); err != nil {
		return nil, fmt.Errorf("openapi document: %w", err)
	}
	text, err := json.Marshal(tree)
	if err != nil {
		return nil, fmt.Errorf("openapi document: %w", err)
	}
	compiler, err := newCompiler(text)
	if err != nil {
		return nil, err
	}
	var doc outline
	if err := json.Unmarshal(text, &doc); err != nil {
		return nil, fmt.Errorf("openapi document: %w", err)
	}
	d := &Document{json: text}
	for path, item := range doc.Paths {
		for method, raw := range item {
			if method == "parameters" {
				continue
			}
			op, err := newOperation(compiler, tree, doc.Servers[0].URL, path, method, raw)
			if err != nil {
				return nil, fmt.Errorf("openapi document: %s %s: %w", method, path, err)
			}
			d.operations = append(d.operations, op)
		}
	}
	return d, nil
}

// CheckBody returns all faults that an operation's schema finds in a body, even one that did not arrive as a request of its
// own.
func (d *Document) CheckBody(operation string, tree any) []problem.Fault {
	for _, op := range d.operations {
		if op.id == operation {
			return checkTree(op.body, tree)
		}
	}
	panic("the document has no operation " + operation)
}

func newCompiler(text []byte) (*jsonschema.Compiler, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("openapi document: %w", err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	c.RegisterFormat(&jsonschema.Format{Name: "minutehand-duration", Validate: func(v any) error {
		s, ok := v.(string)
		if !ok {
			return nil
		}
		d, err := time.ParseDuration(s)
		if err == nil && d%time.Millisecond != 0 {
			err = errors.New("not in whole milliseconds")
		}
		return err
	}})
	c.RegisterFormat(&jsonschema.Format{Name: "minutehand-instant", Validate: func(v any) error {
		s, ok := v.(string)
		if !ok {
			return nil
		}
		t, err := time.Parse(time.RFC3339Nano, s)
		if y := t.UTC().Year(); err == nil && (y < 1970 || y > 9999) {
			return errors.New("outside the years that can be written in UTC and told from no instant at all")
		}
		return err
	}})
	return c, c.AddResource(specURL, doc)
}

func newOperation(
	c *jsonschema.Compiler, tree any, server, path, method string, raw json.RawMessage,
) (*endpoint, error) {
	var o struct {
		OperationID  string `json:"operationId"`
		Role         string `json:"x-role"`
		Installation bool   `json:"x-installation"`
		RequestBody  struct {
			Required bool                       `json:"required"`
			Content  map[string]json.RawMessage `json:"content"`
		} `json:"requestBody"`
	}
	if err := json.Unmarshal(raw, &o); err != nil {
		return nil, err
	}
	op := &endpoint{id: o.OperationID, method: strings.ToUpper(method), path: server + path, role: access.ParseRole(o.Role), installation: o.Installation}
	if op.role == access.NoRole {
		return nil, errors.New("x-role does not say who may carry it out")
	}
	at := "/paths/" + escape(path)
	for _, list := range []string{at + "/parameters", at + "/" + method + "/parameters"} {
		parameters, err := newParameters(c, tree, list)
		if err != nil {
			return nil, err
		}
		op.parameters = append(op.parameters, parameters...)
	}
	for contentType := range o.RequestBody.Content {
		op.contentType = contentType
		schema, err := c.Compile(fragment(at + "/" + method + "/requestBody/content/" + escape(contentType) + "/schema"))
		if err != nil {
			return nil, err
		}
		op.body, op.mayBeBare = schema, !o.RequestBody.Required
	}
	return op, nil
}

// newParameters compiles the list of parameters at a pointer; each is a reference into the components.
func newParameters(c *jsonschema.Compiler, tree any, list string) ([]parameter, error) {
	refs, _ := lookup(tree, list).([]any)
	parameters := make([]parameter, 0, len(refs))
	for _, r := range refs {
		ref, _ := lookup(r, "/$ref").(string)
		at := strings.TrimPrefix(ref, "#")
		p := parameter{}
		p.name, _ = lookup(tree, at+"/name").(string)
		p.in, _ = lookup(tree, at+"/in").(string)
		p.integer = lookup(tree, at+"/schema/type") == "integer"
		if v := lookup(tree, at+"/schema/default"); v != nil {
			p.value = fmt.Sprint(v)
		}
		if p.name == "" {
			return nil, errors.New("a parameter is not a reference to a component")
		}
		schema, err := c.Compile(fragment(at + "/schema"))
		if err != nil {
			return nil, err
		}
		p.schema = schema
		parameters = append(parameters, p)
	}
	return parameters, nil
}

// lookup follows a JSON pointer; it returns nil if the pointer leads nowhere.
func lookup(tree any, pointer string) any {
	for part := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		m, ok := tree.(map[string]any)
		if !ok {
			return nil
		}
		tree = m[strings.NewReplacer("~1", "/", "~0", "~").Replace(part)]
	}
	return tree
}

func escape(part string) string { return strings.NewReplacer("~", "~0", "/", "~1").Replace(part) }

func fragment(pointer string) string { return specURL + "#" + (&url.URL{Path: pointer}).EscapedPath() }
