// Package archivetest is the conformance suite of the archive: each clause of the port's contract is a test here, named after the
// promise. The archive that open returns is empty.
package archivetest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"

	"github.com/minutehand/minutehand/libs/archive"
)

// racers is how many goroutines race in a test of concurrency.
const racers = 8

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Run runs the suite.
func Run(t *testing.T, open func(t *testing.T) archive.Archive) {
	for _, c := range []struct {
		promise string
		check   func(t *testing.T, a archive.Archive)
	}{
		{"an object is read back whole, whatever its size", objectIsReadBack},
		{"any part of an object can be read, and its end is told", partsAreRead},
		{"an object does not change with the bytes it was put from", objectIsOwn},
		{"a second put is refused, and nothing is replaced", secondPutIsRefused},
		{"of concurrent puts of one name exactly one wins, and its bytes stand", putsRace},
		{"concurrent puts of different names all take effect", putsOfManyNames},
		{"an object that is seen while it is put is whole", seenIsWhole},
		{"what is not there is not found", absentIsNotFound},
		{"a prefix of a name is no object", prefixIsNoObject},
		{"names that begin with a prefix are listed in order", listInOrder},
		{"an object can be read by many at once, and after others were put", readersShare},
	} {
		t.Run(c.promise, func(t *testing.T) { c.check(t, open(t)) })
	}
}

func read(t *testing.T, a archive.Archive, name string) []byte {
	t.Helper()
	o, err := a.Open(t.Context(), name)
	must(t, err)
	body, err := io.ReadAll(io.NewSectionReader(o, 0, o.Size()))
	must(t, errors.Join(err, o.Close()))
	return body
}

func bytesOf(n int) []byte {
	body := make([]byte, n)
	for i := range body {
		body[i] = byte(i*7 + i>>8)
	}
	return body
}

func objectIsReadBack(t *testing.T, a archive.Archive) {
	for _, size := range []int{0, 1, 4096, 5<<20 + 3} {
		name := fmt.Sprintf("audit/region=eu/dt=2031-03-04/hour=05/%d.parquet", size)
		must(t, a.PutIfAbsent(t.Context(), name, bytesOf(size)))
		if got := read(t, a, name); !bytes.Equal(got, bytesOf(size)) {
			t.Errorf("of %d bytes %d came back, or others", size, len(got))
		}
	}
}

func partsAreRead(t *testing.T, a archive.Archive) {
	must(t, a.PutIfAbsent(t.Context(), "audit/parts", []byte("0123456789")))
	o, err := a.Open(t.Context(), "audit/parts")
	must(t, err)
	defer func() { must(t, o.Close()) }()
	if o.Size() != 10 {
		t.Errorf("size is %d", o.Size())
	}
	for _, c := range []struct {
		offset int64
		length int
		want   string
	}{{0, 3, "012"}, {7, 2, "78"}, {3, 4, "3456"}, {8, 5, "89"}, {10, 1, ""}, {99, 1, ""}} {
		part := make([]byte, c.length)
		n, err := o.ReadAt(part, c.offset)
		if string(part[:n]) != c.want || n < c.length && !errors.Is(err, io.EOF) || n == c.length && err != nil && !errors.Is(err, io.EOF) {
			t.Errorf("%d bytes from %d are %q, %v", c.length, c.offset, part[:n], err)
		}
	}
}

func objectIsOwn(t *testing.T, a archive.Archive) {
	body := []byte("as it was")
	must(t, a.PutIfAbsent(t.Context(), "audit/own", body))
	copy(body, "something")
	if got := read(t, a, "audit/own"); string(got) != "as it was" {
		t.Errorf("it is %q", got)
	}
}

func secondPutIsRefused(t *testing.T, a archive.Archive) {
	must(t, a.PutIfAbsent(t.Context(), "audit/once", []byte("first")))
	for _, body := range []string{"second", "first", ""} {
		if err := a.PutIfAbsent(t.Context(), "audit/once", []byte(body)); !errors.Is(err, archive.ErrExists) {
			t.Errorf("putting %q gave %v", body, err)
		}
	}
	if got := read(t, a, "audit/once"); string(got) != "first" {
		t.Errorf("it is %q", got)
	}
}

// atOnce runs try from racers goroutines that begin together.
func atOnce(try func(i int)) {
	begin := make(chan struct{})
	var wg sync.WaitGroup
	for i := range racers {
		wg.Go(func() {
			<-begin
			try(i)
		})
	}
	close(begin)
	wg.Wait()
}

func putsRace(t *testing.T, a archive.Archive) {
	won := make(chan string, racers)
	atOnce(func(i int) {
		body := fmt.Sprint("body ", i)
		switch err := a.PutIfAbsent(t.Context(), "audit/deep/new/folder/object", []byte(body)); {
		case err == nil:
			won <- body
		case !errors.Is(err, archive.ErrExists):
			t.Error(err)
		}
	})
	if len(won) != 1 {
		t.Fatalf("%d puts won", len(won))
	}
	if got, want := string(read(t, a, "audit/deep/new/folder/object")), <-won; got != want {
		t.Errorf("it is %q, the winner put %q", got, want)
	}
}

func putsOfManyNames(t *testing.T, a archive.Archive) {
	const each = 5
	atOnce(func(i int) {
		for k := range each {
			if err := a.PutIfAbsent(t.Context(), fmt.Sprintf("audit/%d/%d", k, i), fmt.Append(nil, i, k)); err != nil {
				t.Error(err)
			}
		}
	})
	names, err := a.List(t.Context(), "audit/")
	must(t, err)
	if len(names) != racers*each {
		t.Fatalf("%d names, want %d", len(names), racers*each)
	}
	for i := range racers {
		for k := range each {
			if got := read(t, a, fmt.Sprintf("audit/%d/%d", k, i)); !bytes.Equal(got, fmt.Append(nil, i, k)) {
				t.Errorf("object %d/%d is %q", k, i, got)
			}
		}
	}
}

func seenIsWhole(t *testing.T, a archive.Archive) {
	const name, size = "audit/whole/object", 3 << 20
	put := make(chan error, 1)
	go func() { put <- a.PutIfAbsent(t.Context(), name, bytesOf(size)) }()
	for done := false; !done; {
		select {
		case err := <-put:
			must(t, err)
			done = true
		default:
		}
		names, err := a.List(t.Context(), "audit/")
		must(t, err)
		if len(names) > 1 || len(names) == 1 && names[0] != name {
			t.Errorf("listed %v", names)
		}
		o, err := a.Open(t.Context(), name)
		if errors.Is(err, archive.ErrNotFound) && len(names) == 0 && !done {
			continue
		}
		must(t, err)
		if o.Size() != size {
			t.Errorf("seen with %d bytes of %d", o.Size(), size)
		}
		must(t, o.Close())
	}
	if got := read(t, a, name); !bytes.Equal(got, bytesOf(size)) {
		t.Error("other bytes came back")
	}
}

func mustBeAbsent(t *testing.T, a archive.Archive, name string) {
	t.Helper()
	if _, err := a.Open(t.Context(), name); !errors.Is(err, archive.ErrNotFound) {
		t.Errorf("opening %s gave %v", name, err)
	}
}

func absentIsNotFound(t *testing.T, a archive.Archive) {
	mustBeAbsent(t, a, "audit/nothing")
	mustBeAbsent(t, a, "nothing")
	names, err := a.List(t.Context(), "")
	must(t, err)
	if len(names) != 0 {
		t.Errorf("an empty archive lists %v", names)
	}
}

func prefixIsNoObject(t *testing.T, a archive.Archive) {
	must(t, a.PutIfAbsent(t.Context(), "audit/hour=05/object.parquet", []byte("x")))
	for _, name := range []string{"audit", "audit/hour=05", "audit/hour=05/object", "audit/hour=05/object.parquet/more"} {
		mustBeAbsent(t, a, name)
	}
}

func listInOrder(t *testing.T, a archive.Archive) {
	all := []string{"a-b/1", "a/.partial/1", "a/1", "a/2/1", "a/20", "a/b", "a0", "b/1/2/3", "b/10"}
	for _, i := range []int{4, 0, 8, 2, 6, 1, 7, 3, 5} {
		must(t, a.PutIfAbsent(t.Context(), all[i], []byte(all[i])))
	}
	for prefix, want := range map[string][]string{
		"": all, "a": all[:7], "a/": all[1:6], "a/2": all[3:5], "a/2/": all[3:4], "a/20": all[4:5], "b/1": all[7:],
		"b/1/2/3": all[7:8], "b/1/2/3/": nil, "c": nil, "a/.": all[1:2], "/a": nil,
	} {
		names, err := a.List(t.Context(), prefix)
		must(t, err)
		if !slices.Equal(names, want) {
			t.Errorf("%q lists %v, want %v", prefix, names, want)
		}
	}
}

func readersShare(t *testing.T, a archive.Archive) {
	must(t, a.PutIfAbsent(t.Context(), "audit/shared", bytesOf(100_000)))
	o, err := a.Open(t.Context(), "audit/shared")
	must(t, err)
	atOnce(func(i int) {
		if i == 0 {
			if err := a.PutIfAbsent(t.Context(), "audit/shared2", nil); err != nil {
				t.Error(err)
			}
		}
		body, err := io.ReadAll(io.NewSectionReader(o, int64(i), o.Size()))
		if err != nil || !bytes.Equal(body, bytesOf(100_000)[i:]) {
			t.Errorf("reader %d got %d bytes, %v", i, len(body), err)
		}
	})
	must(t, o.Close())
}
