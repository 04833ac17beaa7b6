package servers

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/minutehand/minutehand/libs/archive"
)

// Archive is the archive.
type Archive struct {
	mu      sync.Mutex
	objects map[string][]byte
}

// NewArchive returns an empty archive.
func NewArchive() *Archive { return &Archive{objects: map[string][]byte{}} }

// PutIfAbsent implements archive.Archive.
func (a *Archive) PutIfAbsent(_ context.Context, name string, body []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, there := a.objects[name]; there {
		return archive.ErrExists
	}
	a.objects[name] = bytes.Clone(body)
	return nil
}

type object struct{ *bytes.Reader }

// Close implements archive.Object.
func (object) Close() error { return nil }

// Open implements archive.Archive.
func (a *Archive) Open(_ context.Context, name string) (archive.Object, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	body, there := a.objects[name]
	if !there {
		return nil, archive.ErrNotFound
	}
	return object{bytes.NewReader(body)}, nil
}

// List implements archive.Archive.
func (a *Archive) List(_ context.Context, prefix string) (names []string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(a.objects)) {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	return names, nil
}
