// Package schemas holds every contract that Minutehand has with the outside, once.
package schemas

import (
	"embed"
	"io/fs"
)

// OpenAPI is the document of the public API. Requests are validated against it, and it lists only what works.
//
//go:embed openapi/minutehand.yaml
var OpenAPI []byte

//go:embed cassandra/*.cql
var cassandra embed.FS

// Cassandra is the migrations of the cold store, numbered files of CQL.
func Cassandra() fs.FS {
	below, err := fs.Sub(cassandra, "cassandra")
	if err != nil {
		panic(err) // the name is a constant
	}
	return below
}
