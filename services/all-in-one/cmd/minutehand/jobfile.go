package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
)

// readFile reads a file, or standard input for "-".
func readFile(name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(os.Stdin)
	}
	return os.ReadFile(name)
}

// readObjects reads objects from a file: JSON, as an array or one after the other, or YAML, as a list or as documents.
func readObjects(name string) ([]map[string]any, error) {
	text, err := readFile(name)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", name, cause(err))
	}
	next := yaml.NewDecoder(bytes.NewReader(text)).Decode
	form := "YAML"
	if t := bytes.TrimSpace(text); len(t) > 0 && (t[0] == '{' || t[0] == '[') {
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber() // a payload's numbers are not this program's to round
		next, form = d.Decode, "JSON"
	}
	var objects []map[string]any
	for {
		var v any
		switch err := next(&v); {
		case errors.Is(err, io.EOF):
			return objects, nil
		case err != nil:
			return nil, fmt.Errorf("%s is not valid %s: %s", name, form, strings.TrimPrefix(err.Error(), "yaml: "))
		}
		items := []any{v}
		if list, ok := v.([]any); ok {
			items = list
		}
		for _, item := range items {
			object, ok := item.(map[string]any)
			if !ok {
				return nil, fmt.Errorf("%s holds %s where an object is expected, like {\"name\": \"hello\"} or name: hello", name, kindOf(item))
			}
			objects = append(objects, object)
		}
	}
}

// readObject reads the only object of a file.
func readObject(name string) (map[string]any, error) {
	objects, err := readObjects(name)
	if err == nil && len(objects) != 1 {
		err = fmt.Errorf("%s holds %d objects, and must hold one", name, len(objects))
	}
	if err != nil {
		return nil, err
	}
	return objects[0], nil
}

func kindOf(v any) string {
	switch v.(type) {
	case nil:
		return "nothing"
	case string:
		return "a text"
	case []any:
		return "a list"
	}
	return fmt.Sprint(v)
}

// toYAML shows an answer as YAML, its members in the order of its JSON.
func toYAML(answer any) ([]byte, error) {
	text, err := json.Marshal(answer)
	if err != nil {
		return nil, err
	}
	var node yaml.Node
	if err := yaml.Unmarshal(text, &node); err != nil { // JSON is YAML
		return nil, err
	}
	block(&node)
	return yaml.Marshal(&node)
}

// block makes a node that was read from JSON look like YAML that somebody wrote.
func block(n *yaml.Node) {
	n.Style &^= yaml.FlowStyle | yaml.DoubleQuotedStyle
	for _, c := range n.Content {
		block(c)
	}
}
