// Package coordtest is the conformance suite of the coordinator: each clause of the port's contract is a test here, named after the
// promise. The coordinator that open returns has no other members, and some partitions to give out.
package coordtest

import (
	"context"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/coord"
)

// patience is how long the suite waits for an assignment.
const patience = time.Minute

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Run runs the suite.
func Run(t *testing.T, open func(t *testing.T) coord.Coordinator) {
	for _, c := range []struct {
		promise string
		check   func(t *testing.T, c coord.Coordinator)
	}{
		{"every start number is greater than all before", startNumbersGrow},
		{"no start number is drawn twice, and a later draw is greater than one that ended before", startNumbersRace},
		{"a member is told the whole set of what it owns, each partition once, in its role", wholeSet},
		{"a later owner of a partition has a greater epoch", epochsGrow},
		{"two members of a role never hold one partition under one epoch", membersAreApart},
		{"the channel is closed when the member leaves, read or unread", channelIsClosed},
	} {
		t.Run(c.promise, func(t *testing.T) { c.check(t, open(t)) })
	}
}

func startNumbersGrow(t *testing.T, c coord.Coordinator) {
	var last int64
	for range 5 {
		n, err := c.StartNumber(t.Context())
		must(t, err)
		if n <= last {
			t.Fatalf("number %d after %d", n, last)
		}
		last = n
	}
}

func startNumbersRace(t *testing.T, c coord.Coordinator) {
	var mu sync.Mutex
	seen := map[int64]bool{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			var last int64
			for range 5 {
				n, err := c.StartNumber(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if seen[n] || n <= last {
					t.Errorf("number %d after %d, drawn before: %v", n, last, seen[n])
				}
				seen[n] = true
				mu.Unlock()
				last = n
			}
		})
	}
	wg.Wait()
}

// member is a membership of one process in a role.
type member struct {
	assigned <-chan []coord.Owner
	leave    context.CancelFunc
}

func join(t *testing.T, c coord.Coordinator, role coord.Role) member {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	assigned, err := c.Join(ctx, role)
	if err != nil {
		leave()
		t.Fatal(err)
	}
	return member{assigned, leave}
}

// next waits for the next set; open is false when the channel was closed instead.
func (m member) next(t *testing.T) (owned []coord.Owner, open bool) {
	t.Helper()
	select {
	case owned, open = <-m.assigned:
		return owned, open
	case <-time.After(patience):
		t.Fatal("no assignment came, and the channel stayed open")
	}
	return nil, false
}

// until waits for a set that satisfies ok.
func (m member) until(t *testing.T, ok func([]coord.Owner) bool) []coord.Owner {
	t.Helper()
	for {
		owned, open := m.next(t)
		if !open {
			t.Fatal("the channel was closed")
		}
		if ok(owned) {
			return owned
		}
	}
}

// rest leaves and returns all sets that still arrived.
func (m member) rest(t *testing.T) (sets [][]coord.Owner) {
	t.Helper()
	m.leave()
	for {
		owned, open := m.next(t)
		if !open {
			return sets
		}
		sets = append(sets, owned)
	}
}

func some(owned []coord.Owner) bool { return len(owned) > 0 }

// epochs returns the epochs of a set, by partition.
func epochs(t *testing.T, role coord.Role, owned []coord.Owner) map[int]int64 {
	t.Helper()
	by := map[int]int64{}
	for _, o := range owned {
		if _, twice := by[o.Partition]; twice || o.Role != role || o.Epoch <= 0 || o.Partition < 0 {
			t.Errorf("owner %+v of role %s in %v", o, role, owned)
		}
		by[o.Partition] = o.Epoch
	}
	return by
}

func wholeSet(t *testing.T, c coord.Coordinator) {
	var members []member
	for _, role := range []coord.Role{coord.RoleWorker, coord.RoleLoader} {
		m := join(t, c, role)
		members = append(members, m)
		epochs(t, role, m.until(t, some))
	}
	for _, m := range members {
		m.rest(t)
	}
}

func epochsGrow(t *testing.T, c coord.Coordinator) {
	held := map[int]int64{}
	for range 3 {
		m := join(t, c, coord.RoleWorker)
		// A lone member gets everything that the previous one had.
		owned := m.until(t, func(owned []coord.Owner) bool {
			by := epochs(t, coord.RoleWorker, owned)
			for p := range held {
				if _, ok := by[p]; !ok {
					return false
				}
			}
			return some(owned)
		})
		for p, epoch := range epochs(t, coord.RoleWorker, owned) {
			if epoch <= held[p] {
				t.Errorf("partition %d is owned under epoch %d after %d", p, epoch, held[p])
			}
		}
		maps.Copy(held, epochs(t, coord.RoleWorker, owned))
		for _, owned := range m.rest(t) {
			maps.Copy(held, epochs(t, coord.RoleWorker, owned))
		}
	}
}

func membersAreApart(t *testing.T, c coord.Coordinator) {
	type tenure struct {
		partition int
		epoch     int64
	}
	holder := map[tenure]int{}
	hold := func(i int, owned []coord.Owner) {
		for p, epoch := range epochs(t, coord.RoleWorker, owned) {
			if other, taken := holder[tenure{p, epoch}]; taken && other != i {
				t.Errorf("members %d and %d both hold partition %d under epoch %d", other, i, p, epoch)
			}
			holder[tenure{p, epoch}] = i
		}
	}
	members := []member{join(t, c, coord.RoleWorker), join(t, c, coord.RoleWorker)}
	for i, m := range members {
		owned, open := m.next(t)
		if !open {
			t.Fatal("the channel was closed")
		}
		hold(i, owned)
	}
	for i, m := range members {
		for _, owned := range m.rest(t) {
			hold(i, owned)
		}
	}
	if len(holder) == 0 {
		t.Error("nobody was given anything")
	}
}

func channelIsClosed(t *testing.T, c coord.Coordinator) {
	unread := join(t, c, coord.RoleWorker)
	unread.rest(t)
	again := join(t, c, coord.RoleWorker)
	again.until(t, some)
	again.rest(t)
}
