// Package jobstoretest is the conformance suite of the cold store. Every adapter passes it, both the embedded one and the one on
// the real server: each clause of the port's contract is a test here, named after the promise.
//
// The store that open returns is set up with at least 4 partitions, and the suite writes only at and above its low-water marks. Ids
// and tenants are new in every test, so that several stores may share one server.
package jobstoretest

import (
	"errors"
	"math/rand/v2"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/oklog/ulid/v2"

	"github.com/minutehand/minutehand/libs/job"
)

func newJobID() string { return job.JobPrefix + ulid.Make().String() }

func newDefinitionID() string { return job.DefinitionPrefix + ulid.Make().String() }

// newTenant returns a number that no other test uses: several runs may share one server.
func newTenant() job.Tenant { return job.Tenant(1 + rand.Uint32N(1<<32-1)) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mustBe(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got error %v, want %v", err, want)
	}
}

func same(t *testing.T, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s is\n%+v, want\n%+v", what, got, want)
	}
}

// atOnce runs try from n goroutines that begin together.
func atOnce(n int, try func(i int)) {
	begin := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-begin
			try(i)
		})
	}
	close(begin)
	wg.Wait()
}

// winners counts the tries that won when n of them began together; a losing try returns the error lost, or none.
func winners(t *testing.T, n int, lost error, try func(i int) (bool, error)) int64 {
	t.Helper()
	var won atomic.Int64
	atOnce(n, func(i int) {
		ok, err := try(i)
		if err != nil && (lost == nil || !errors.Is(err, lost)) {
			t.Errorf("try %d: %v", i, err)
		}
		if ok && err == nil {
			won.Add(1)
		}
	})
	return won.Load()
}
