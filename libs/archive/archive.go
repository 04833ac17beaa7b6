// Package archive is the port of the audit archive: named objects that are written once and whole.
//
// What every adapter promises: an object is there completely, or not at all; once PutIfAbsent returned nil it is
// durable, and nothing ever replaces it.
package archive

import (
	"context"
	"errors"
	"io"
)

// Sentinel errors.
var (
	// ErrExists means: an object of that name is there.
	ErrExists = errors.New("object exists")
	// ErrNotFound means: no such object.
	ErrNotFound = errors.New("object not found")
)

// Object is an object opened for reading.
type Object interface {
	io.ReaderAt
	io.Closer
	Size() int64
}

// Archive keeps objects under slash-separated names.
type Archive interface {
	// PutIfAbsent stores an object, or returns ErrExists.
	PutIfAbsent(ctx context.Context, name string, body []byte) error
	// Open opens an object, or returns ErrNotFound.
	Open(ctx context.Context, name string) (Object, error)
	// List gives the names that begin with prefix, in order.
	List(ctx context.Context, prefix string) ([]string, error)
}
