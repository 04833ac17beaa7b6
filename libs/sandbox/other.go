//go:build !linux || !(amd64 || arm64)

package sandbox

import (
	"context"
	"errors"
)

// BubblewrapConfig says how scripts are run.
type BubblewrapConfig struct {
	Path, Root string
	Network    bool
	Users      *Users
}

// Users are the users that programs run as on Linux.
type Users struct{}

// Bubblewrap runs scripts on Linux.
type Bubblewrap struct{}

// Wasm runs WebAssembly modules on Linux.
type Wasm struct{}

// Supported says whether programs can run in a sandbox on this system at all.
const Supported = false

var errSystem = errors.New("programs run in a sandbox on Linux only, on amd64 and arm64")

// NewBubblewrap fails.
func NewBubblewrap(context.Context, BubblewrapConfig) (*Bubblewrap, error) { return nil, errSystem }

// Run fails.
func (*Bubblewrap) Run(context.Context, *Program) (*Result, error) { return nil, errSystem }

// Run fails.
func (*Wasm) Run(context.Context, *Program) (*Result, error) { return nil, errSystem }

// NewWasm returns the backend, which fails.
func NewWasm(*Users, ...string) *Wasm { return &Wasm{} }

// ServeWasm fails.
func ServeWasm() error { return errSystem }
