package bucketloader

import (
	"math/rand/v2"
	"testing"
)

func TestSpansAreTheMinutesThatWereAdded(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	const minutes = 60
	for range 200 {
		var s spans
		in := map[int64]bool{}
		for range 30 {
			from := random.Int64N(minutes)
			to := min(from+random.Int64N(8), minutes)
			add := random.IntN(3) > 0
			if add {
				s.add(from, to)
			} else {
				s.remove(from, to)
			}
			for m := from; m < to; m++ {
				in[m] = add
			}
			for i := 1; i < len(s); i++ {
				if s[i-1].to >= s[i].from {
					t.Fatalf("%v touch each other", s)
				}
			}
			for m := range int64(minutes) {
				end := m
				for in[end] {
					end++
				}
				if got := s.end(m); got != end {
					t.Fatalf("%v goes on from %d to %d, want %d", s, m, got, end)
				}
			}
		}
	}
}
