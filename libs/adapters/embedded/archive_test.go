package embedded_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
)

// A process that compacts puts objects while the process that the folder belongs to puts its own.
func TestObjectsOfTwoProcessesAreNeverMixedUp(t *testing.T) {
	dir := t.TempDir()
	first, err := embedded.NewArchive(nil, dir)
	if err != nil {
		t.Fatal(err)
	}
	writers := []*embedded.Archive{first}
	for range 2 {
		a, err := embedded.OpenArchive(dir)
		if err != nil {
			t.Fatal(err)
		}
		writers = append(writers, a)
	}
	const each = 150
	var wg sync.WaitGroup
	for w, a := range writers {
		wg.Go(func() {
			for i := range each {
				name := fmt.Sprintf("of/%d/%d", w, i)
				if err := a.PutIfAbsent(t.Context(), name, []byte(strings.Repeat(name, 100))); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
	wg.Wait()
	for w := range writers {
		for i := range each {
			name := fmt.Sprintf("of/%d/%d", w, i)
			o, err := first.Open(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			text := make([]byte, o.Size())
			if _, err := o.ReadAt(text, 0); err != nil && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			if err := o.Close(); err != nil {
				t.Fatal(err)
			}
			if want := strings.Repeat(name, 100); string(text) != want {
				t.Errorf("%s holds %.20q", name, text)
			}
		}
	}
}
