// Package archive is the port of the audit archive: named objects that are written once and whole.
//
// What every adapter promises: an object exists completely or not at all; once PutIfAbsent has returned nil the object is durable,
// and nothing ever replaces it.
package archive

import (
	"context"
	"errors"
	"io"
)

// Sentinel errors.
var (
	// ErrExists means: an object with that name exists.
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
	// List returns the names that begin with prefix, in order.
	List(ctx context.Context, prefix string) ([]string, error)
}
