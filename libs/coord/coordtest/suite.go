// Package coordtest is the conformance suite of the coordinator.
package coordtest

import (
	"context"
	"testing"

	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/hotbucket"
)

// Run runs the suite. partitions is the store's count.
func Run(t *testing.T, partitions int, open func(t *testing.T) coord.Coordinator) {
	t.Run("start numbers grow", func(t *testing.T) {
		c := open(t)
		var last int64
		for range 3 {
			n, err := c.StartNumber(t.Context())
			if err != nil || n <= last {
				t.Fatalf("number %d after %d, %v", n, last, err)
			}
			last = n
		}
	})
	t.Run("a lone member owns every partition once, and later under a greater epoch", func(t *testing.T) {
		c := open(t)
		epochs := map[int]int64{}
		for range 2 {
			ctx, leave := context.WithCancel(t.Context())
			assigned, err := c.Join(ctx, hotbucket.RoleWorker)
			if err != nil {
				t.Fatal(err)
			}
			owned := <-assigned
			if len(owned) != partitions {
				t.Fatalf("owns %d of %d", len(owned), partitions)
			}
			for _, o := range owned {
				if o.Role != hotbucket.RoleWorker || o.Epoch <= epochs[o.Partition] {
					t.Errorf("owner %+v after epoch %d", o, epochs[o.Partition])
				}
				epochs[o.Partition] = o.Epoch
			}
			leave()
			for range assigned { //nolint:revive // drained until it is closed
			}
		}
		if len(epochs) != partitions {
			t.Errorf("%d partitions", len(epochs))
		}
	})
}
