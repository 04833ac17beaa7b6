// Command sdkgen writes the operations and types of the Go SDK and of the Python client from the OpenAPI document:
//
//	sdkgen DOCUMENT GO-FILE PYTHON-FILE
package main

import (
	"fmt"
	"go/format"
	"os"

	"go.yaml.in/yaml/v3"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: sdkgen DOCUMENT GO-FILE PYTHON-FILE")
		os.Exit(2)
	}
	if err := generate(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "sdkgen:", err)
		os.Exit(1)
	}
}

func generate(from, goFile, pythonFile string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	var d document
	if err := yaml.Unmarshal(text, &d); err != nil {
		return err
	}
	ops, err := d.operations()
	if err != nil {
		return err
	}
	source, err := format.Source(inGo(&d, ops))
	if err != nil {
		return err
	}
	if err := os.WriteFile(goFile, source, 0o644); err != nil {
		return err
	}
	return os.WriteFile(pythonFile, inPython(&d, ops), 0o644)
}
