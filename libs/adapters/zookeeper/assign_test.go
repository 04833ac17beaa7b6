package zookeeper

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func owners(assignment map[string][]int) map[int]string {
	by := map[int]string{}
	for m, list := range assignment {
		for _, p := range list {
			by[p] = m
		}
	}
	return by
}

func TestAssignmentIsBalancedAndMovesNoMoreThanItMust(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		partitions := rapid.IntRange(1, 64).Draw(t, "partitions")
		var members []string
		standing := map[string][]int{}
		for step := range rapid.IntRange(1, 8).Draw(t, "steps") {
			before := slices.Clone(members)
			if len(members) == 0 || rapid.Bool().Draw(t, "joins") {
				members = append(members, fmt.Sprintf("m%03d", step))
			} else {
				i := rapid.IntRange(0, len(members)-1).Draw(t, "leaves")
				members = slices.Delete(members, i, i+1)
			}
			next := balance(partitions, members, standing)
			if len(members) == 0 {
				standing = next
				continue
			}
			least, most, total := partitions, 0, 0
			for _, m := range members {
				least, most, total = min(least, len(next[m])), max(most, len(next[m])), total+len(next[m])
			}
			if most-least > 1 || total != partitions || len(owners(next)) != partitions {
				t.Fatalf("%d partitions among %v: %v", partitions, members, next)
			}
			// A member that stayed gave up only what it had above the greatest share.
			for _, m := range members {
				kept := 0
				for _, p := range standing[m] {
					if owners(next)[p] == m {
						kept++
					}
				}
				if slices.Contains(before, m) && kept < min(len(standing[m]), partitions/len(members)) {
					t.Fatalf("%s kept %d of %d, its share is %d", m, kept, len(standing[m]), partitions/len(members))
				}
			}
			standing = next
		}
	})
}

func TestAssignmentOfOneTwoAndThreeMembers(t *testing.T) {
	one := balance(6, []string{"a"}, nil)
	three := balance(6, []string{"a", "b", "c"}, one)
	two := balance(6, []string{"a", "c"}, three)
	moved := 0
	for p, m := range owners(two) {
		if before := owners(three)[p]; before != m && before != "b" {
			moved++
		}
	}
	if len(one["a"]) != 6 || len(three["b"]) != 2 || len(two["a"]) != 3 || moved != 0 {
		t.Errorf("one %v, three %v, two %v, %d moved without need", one, three, two, moved)
	}
}
