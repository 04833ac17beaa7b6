package sim

import (
	"fmt"

	"github.com/cespare/xxhash/v2"
)

// dice returns numbers that depend only on a seed and a name.
type dice struct{ seed uint64 }

// roll returns a number in [0,1).
func (d dice) roll(format string, args ...any) float64 {
	return float64(d.number(fmt.Sprintf(format, args...))>>11) / (1 << 53)
}

func (d dice) number(name string) uint64 {
	return xxhash.Sum64String(fmt.Sprintf("%d/%s", d.seed, name))
}

// pick chooses one element of list.
func pick[T any](d dice, list []T, format string, args ...any) T {
	return list[int(d.roll(format, args...)*float64(len(list)))]
}
