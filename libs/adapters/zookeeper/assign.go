package zookeeper

import (
	"cmp"
	"maps"
	"slices"
)

// balance assigns every partition to one of the members, so that no two differ by more than one, and moves as few as that needs. A
// member with more than its share gives up its last ones, and unassigned partitions go to the members that have least. Members are
// in the order in which they joined.
func balance(partitions int, members []string, standing map[string][]int) map[string][]int {
	if len(members) == 0 {
		return map[string][]int{}
	}
	next := make(map[string][]int, len(members))
	free := make(map[int]bool, partitions)
	for p := range partitions {
		free[p] = true
	}
	for _, m := range members {
		for _, p := range slices.Sorted(slices.Values(standing[m])) {
			if free[p] {
				delete(free, p)
				next[m] = append(next[m], p)
			}
		}
	}
	// The larger shares go to the members that have most, so that they keep them.
	order := slices.Clone(members)
	slices.SortStableFunc(order, func(a, b string) int { return cmp.Compare(len(next[b]), len(next[a])) })
	share := func(i int) int {
		if i < partitions%len(members) {
			return partitions/len(members) + 1
		}
		return partitions / len(members)
	}
	for i, m := range order {
		for len(next[m]) > share(i) {
			last := len(next[m]) - 1
			free[next[m][last]] = true
			next[m] = next[m][:last]
		}
	}
	rest := slices.Sorted(maps.Keys(free))
	for i, m := range order {
		n := min(share(i)-len(next[m]), len(rest))
		next[m] = slices.Sorted(slices.Values(append(next[m], rest[:n]...)))
		rest = rest[n:]
	}
	return next
}
