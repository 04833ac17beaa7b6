//go:build tools

// Package tools pins the programs that the Makefile runs.
package tools

import (
	_ "github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen"
	_ "google.golang.org/protobuf/cmd/protoc-gen-go"
)
