package jobapi_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sort"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/minutehand/minutehand/schemas"
)

func TestDocumentIsValidOpenAPI31(t *testing.T) {
	doc, err := openapi3.NewLoader().LoadFromData(schemas.OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	if !doc.IsOpenAPI31OrLater() {
		t.Errorf("the document is of OpenAPI %s", doc.OpenAPI)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestDocumentIsServedAsItIs(t *testing.T) {
	w := httptest.NewRecorder()
	newServer(t, nil).handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/openapi.json", nil))
	doc, err := openapi3.NewLoader().LoadFromData(w.Body.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if n := doc.Paths.Len(); n == 0 || n != len(loadDocument(t).at("/paths")) {
		t.Errorf("%d paths are served", n)
	}
}

// document is the OpenAPI document as a tree, independent of how the service reads it.
type document struct {
	t        testing.TB
	tree     map[string]any
	compiler *jsonschema.Compiler
	compiled map[string]*jsonschema.Schema
}

// described is one operation of the document.
type described struct {
	id, method, path string
	contentType      string
	// body is the schema of the request body; nil for none.
	body       map[string]any
	parameters []map[string]any
	pointer    string
}

const documentURL = "mem:///document.json"

func loadDocument(t testing.TB) *document {
	t.Helper()
	var tree any
	if err := yaml.Unmarshal(schemas.OpenAPI, &tree); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	d := &document{t: t, compiler: jsonschema.NewCompiler(), compiled: map[string]*jsonschema.Schema{}}
	if err := json.Unmarshal(text, &d.tree); err != nil {
		t.Fatal(err)
	}
	resource, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.compiler.AddResource(documentURL, resource); err != nil {
		t.Fatal(err)
	}
	return d
}

// at returns the object at a pointer; nil if there is none.
func (d *document) at(pointer string) map[string]any {
	var v any = d.tree
	for part := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		m, _ := v.(map[string]any)
		v = m[strings.NewReplacer("~1", "/", "~0", "~").Replace(part)]
	}
	m, _ := v.(map[string]any)
	return m
}

// resolve follows a reference, if it is one.
func (d *document) resolve(schema map[string]any) map[string]any {
	for {
		ref, ok := schema["$ref"].(string)
		if !ok {
			return schema
		}
		schema = d.at(strings.TrimPrefix(ref, "#"))
	}
}

func (d *document) operations() []described {
	var all []described
	for path := range d.at("/paths") {
		at := "/paths/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(path)
		item := d.at(at)
		for method := range item {
			if method == "parameters" {
				continue
			}
			raw := d.at(at + "/" + method)
			op := described{
				method: strings.ToUpper(method), path: "/api/v1" + path, pointer: at + "/" + method,
				parameters: append(d.parameters(item), d.parameters(raw)...),
			}
			op.id, _ = raw["operationId"].(string)
			for contentType := range d.at(op.pointer + "/requestBody/content") {
				op.contentType = contentType
				op.body = d.at(op.pointer + "/requestBody/content/" + strings.ReplaceAll(contentType, "/", "~1") + "/schema")
			}
			all = append(all, op)
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i].id < all[j].id })
	return all
}

func (d *document) parameters(item map[string]any) []map[string]any {
	var all []map[string]any
	list, _ := item["parameters"].([]any)
	for _, p := range list {
		m, _ := p.(map[string]any)
		all = append(all, d.resolve(m))
	}
	return all
}

// check returns how a value departs from the schema at a pointer.
func (d *document) check(pointer string, body []byte) error {
	d.t.Helper()
	schema, ok := d.compiled[pointer]
	if !ok {
		var err error
		schema, err = d.compiler.Compile(documentURL + "#" + (&url.URL{Path: pointer}).EscapedPath())
		if err != nil {
			d.t.Fatal(err)
		}
		d.compiled[pointer] = schema
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return err
	}
	return schema.Validate(value)
}
