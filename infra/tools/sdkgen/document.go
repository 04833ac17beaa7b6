package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// document is as much of an OpenAPI document as matters here.
type document struct {
	Paths      map[string]map[string]yaml.Node `yaml:"paths"`
	Components struct {
		Schemas    map[string]*schema   `yaml:"schemas"`
		Parameters map[string]parameter `yaml:"parameters"`
		Responses  map[string]response  `yaml:"responses"`
	} `yaml:"components"`
}

type parameter struct {
	Ref      string  `yaml:"$ref"`
	In       string  `yaml:"in"`
	Name     string  `yaml:"name"`
	Required bool    `yaml:"required"`
	About    string  `yaml:"description"`
	Schema   *schema `yaml:"schema"`
}

type content map[string]struct {
	Schema *schema `yaml:"schema"`
}

type response struct {
	Ref     string  `yaml:"$ref"`
	Content content `yaml:"content"`
}

type schema struct {
	Ref        string             `yaml:"$ref"`
	Is         string             `yaml:"x-is"` // what each item is that is checked by itself
	Type       texts              `yaml:"type"`
	Format     string             `yaml:"format"`
	Enum       []string           `yaml:"enum"`
	Properties map[string]*schema `yaml:"properties"`
	Required   []string           `yaml:"required"`
	Items      *schema            `yaml:"items"`
	Additional yaml.Node          `yaml:"additionalProperties"`
	AllOf      []*schema          `yaml:"allOf"`
	Default    any                `yaml:"default"`
	Minimum    *float64           `yaml:"minimum"`
	About      string             `yaml:"description"`
}

// texts is a text or a list of them.
type texts []string

// UnmarshalYAML implements yaml.Unmarshaler.
func (t *texts) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		*t = texts{n.Value}
		return nil
	}
	return n.Decode((*[]string)(t))
}

func (s *schema) is(name string) bool { return slices.Contains(s.Type, name) }

func (s *schema) nullable() bool { return s.is("null") }

// members are an object's, in the order of their names; those of the schemas that it has all of come first.
func (s *schema) members(d *document) (list []member) {
	for _, of := range s.AllOf {
		list = append(list, d.resolve(of).members(d)...)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		list = append(list, member{name: name, schema: s.Properties[name]})
	}
	for i := range list {
		list[i].required = list[i].required || slices.Contains(s.Required, list[i].name)
	}
	return list
}

type member struct {
	name     string
	schema   *schema
	required bool
}

// values are those of a map; nil if the object is not one.
func (s *schema) values() *schema {
	if s.Additional.Kind != yaml.MappingNode {
		return nil
	}
	var v schema
	if s.Additional.Decode(&v) != nil {
		return nil
	}
	return &v
}

func named(ref string) string { return ref[strings.LastIndex(ref, "/")+1:] }

func (d *document) resolve(s *schema) *schema {
	for s.Ref != "" || s.Is != "" {
		s = d.Components.Schemas[named(cmp.Or(s.Ref, s.Is))]
	}
	return s
}

// about is what is said of a member: there, or where its schema is.
func (d *document) about(s *schema) string { return cmp.Or(s.About, d.resolve(s).About) }

// operation is one of the API's.
type operation struct {
	ID, Method, Path string
	Summary          string
	About            string
	PathParams       []parameter
	Query            []parameter
	IfMatch          bool
	Keyed            bool // takes an idempotency key
	Body             *schema
	BodyType         string
	BodyRequired     bool
	// Answers are the schemas of its successes, by status: nil where there is no content.
	Answers map[string]*schema
}

// answer is the schema that all successes have; several is true if they differ.
func (o *operation) answer() (one *schema, several bool) {
	for _, status := range slices.Sorted(maps.Keys(o.Answers)) {
		s := o.Answers[status]
		if one != nil && (s == nil || s.Ref != one.Ref) {
			return nil, true
		}
		one = s
	}
	return one, false
}

// once reports whether a request whose answer was lost must not be repeated: it would make a second thing, or be refused for what it
// changed itself.
func (o *operation) once() bool {
	return o.IfMatch || o.Method == "POST" && !o.Keyed && o.Answers["201"] != nil
}

// pages reports whether the operation answers with pages.
func (o *operation) pages(d *document) bool {
	return slices.ContainsFunc(o.Query, func(p parameter) bool { return p.Name == "cursor" }) && o.items(d) != nil
}

// items is the schema of the items of a page.
func (o *operation) items(d *document) *schema {
	one, _ := o.answer()
	if one == nil {
		return nil
	}
	list := d.resolve(one).Properties["items"]
	if list == nil {
		return nil
	}
	return list.Items
}

func (d *document) operations() (list []*operation, err error) {
	for path, item := range d.Paths {
		shared := item["parameters"]
		for method, node := range item {
			if method == "parameters" {
				continue
			}
			o, err := d.operation(path, strings.ToUpper(method), &node, &shared)
			if err != nil {
				return nil, fmt.Errorf("%s %s: %w", method, path, err)
			}
			list = append(list, o)
		}
	}
	slices.SortFunc(list, func(a, b *operation) int { return cmp.Compare(a.ID, b.ID) })
	return list, nil
}

func (d *document) operation(path, method string, node, shared *yaml.Node) (*operation, error) {
	var raw struct {
		ID         string      `yaml:"operationId"`
		Summary    string      `yaml:"summary"`
		About      string      `yaml:"description"`
		Parameters []parameter `yaml:"parameters"`
		Body       struct {
			Required bool    `yaml:"required"`
			Content  content `yaml:"content"`
		} `yaml:"requestBody"`
		Responses map[string]response `yaml:"responses"`
	}
	if err := node.Decode(&raw); err != nil {
		return nil, err
	}
	var before []parameter
	if shared.Kind != 0 {
		if err := shared.Decode(&before); err != nil {
			return nil, err
		}
	}
	o := &operation{ID: raw.ID, Method: method, Path: path, Summary: raw.Summary, About: raw.About, BodyRequired: raw.Body.Required, Answers: map[string]*schema{}}
	for _, p := range append(before, raw.Parameters...) {
		if p.Ref != "" {
			p = d.Components.Parameters[named(p.Ref)]
		}
		switch {
		case p.In == "path":
			o.PathParams = append(o.PathParams, p)
		case p.In == "query":
			o.Query = append(o.Query, p)
		case p.Name == "If-Match":
			o.IfMatch = true
		case p.Name == "Idempotency-Key":
			o.Keyed = true
		}
	}
	for kind, c := range raw.Body.Content {
		o.Body, o.BodyType = c.Schema, kind
	}
	for status, r := range raw.Responses {
		if !strings.HasPrefix(status, "2") {
			continue
		}
		if r.Ref != "" {
			r = d.Components.Responses[named(r.Ref)]
		}
		o.Answers[status] = r.Content["application/json"].Schema
	}
	return o, nil
}
