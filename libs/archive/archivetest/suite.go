// Package archivetest is the conformance suite of the archive.
package archivetest

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/minutehand/minutehand/libs/archive"
)

// Run runs the suite; the archive that open gives is empty.
func Run(t *testing.T, open func(t *testing.T) archive.Archive) {
	t.Run("of concurrent puts of one name one wins, and its bytes stand", func(t *testing.T) {
		a := open(t)
		var won atomic.Int64
		var winner atomic.Value
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				body := fmt.Sprint("body ", i)
				switch err := a.PutIfAbsent(t.Context(), "audit/x/y", []byte(body)); {
				case err == nil:
					won.Add(1)
					winner.Store(body)
				case !errors.Is(err, archive.ErrExists):
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if won.Load() != 1 {
			t.Fatalf("%d puts won", won.Load())
		}
		o, err := a.Open(t.Context(), "audit/x/y")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = o.Close() }()
		body, err := io.ReadAll(io.NewSectionReader(o, 0, o.Size()))
		if err != nil || string(body) != winner.Load() {
			t.Errorf("read %q, want %q, %v", body, winner.Load(), err)
		}
	})
	t.Run("names are listed in order by prefix", func(t *testing.T) {
		a := open(t)
		for _, name := range []string{"audit/b/2", "audit/a/1", "audit/b/1", "other/1"} {
			if err := a.PutIfAbsent(t.Context(), name, []byte(name)); err != nil {
				t.Fatal(err)
			}
		}
		names, err := a.List(t.Context(), "audit/")
		if err != nil || fmt.Sprint(names) != "[audit/a/1 audit/b/1 audit/b/2]" {
			t.Errorf("listed %v, %v", names, err)
		}
		names, err = a.List(t.Context(), "audit/b/")
		if err != nil || len(names) != 2 {
			t.Errorf("listed %v, %v", names, err)
		}
	})
	t.Run("what is not there is not found", func(t *testing.T) {
		if _, err := open(t).Open(t.Context(), "audit/nothing"); !errors.Is(err, archive.ErrNotFound) {
			t.Errorf("got %v", err)
		}
	})
}
