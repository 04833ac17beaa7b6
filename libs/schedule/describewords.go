package schedule

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

func size(set uint64) int    { return bits.OnesCount64(set) }
func lowest(set uint64) int  { return bits.TrailingZeros64(set) }
func highest(set uint64) int { return bits.Len64(set) - 1 }

// values returns the values of a set in order.
func values(set uint64) []int {
	var list []int
	for ; set != 0; set &= set - 1 {
		list = append(list, lowest(set))
	}
	return list
}

// stepOf returns the distance of two or more values that are evenly spaced, otherwise 0.
func stepOf(list []int) int {
	if len(list) < 2 {
		return 0
	}
	step := list[1] - list[0]
	for i, v := range list {
		if v != list[0]+i*step {
			return 0
		}
	}
	return step
}

// cycleStep is stepOf for a set that stays evenly spaced when its cycle of n values starts over.
func cycleStep(set uint64, n int) int {
	step := stepOf(values(set))
	if step*size(set) != n {
		return 0
	}
	return step
}

// unbroken moves the values at the beginning of a cycle of n to after its end, if a range would otherwise be cut in two: it turns
// 0, 1, 5 and 6 into 5, 6, 7 and 8 if n is 7. A full cycle stays as it is.
func unbroken(list []int, n int) []int {
	if len(list) == 0 || len(list) == n || list[0] != 0 || list[len(list)-1] != n-1 {
		return list
	}
	cut := 1
	for list[cut] == cut {
		cut++
	}
	moved := append([]int{}, list[cut:]...)
	for _, v := range list[:cut] {
		moved = append(moved, v+n)
	}
	return moved
}

// rangesOf groups consecutive values; both ends belong to a range.
func rangesOf(list []int) [][2]int {
	var ranges [][2]int
	for _, v := range list {
		if n := len(ranges); n > 0 && ranges[n-1][1] == v-1 {
			ranges[n-1][1] = v
		} else {
			ranges = append(ranges, [2]int{v, v})
		}
	}
	return ranges
}

// spans puts values into words, three or more consecutive ones as "a through b".
func spans(list []int, word func(int) string) []string {
	var items []string
	for _, r := range rangesOf(list) {
		if r[1]-r[0] >= 2 {
			items = append(items, word(r[0])+" through "+word(r[1]))
			continue
		}
		for v := r[0]; v <= r[1]; v++ {
			items = append(items, word(v))
		}
	}
	return items
}

// stepped puts five or more evenly spaced values into words, unless they are consecutive.
func stepped(unit string, list []int, word func(int) string) (string, bool) {
	step := stepOf(list)
	if step < 2 || len(list) < 5 {
		return "", false
	}
	return fmt.Sprintf("every %s %s from %s through %s", ordinal(step), unit, word(list[0]), word(list[len(list)-1])), true
}

// counted names things by their numbers: "minute 5", "minutes 1, 5 and 10 through 20".
func counted(unit string, list []int) string {
	if text, ok := stepped(unit, list, strconv.Itoa); ok {
		return text
	}
	if len(list) > 1 {
		unit += "s"
	}
	return unit + " " + joined(spans(list, strconv.Itoa), "and")
}

// joined formats a list: "a", "a and b", "a, b and c".
func joined(items []string, conjunction string) string {
	last := len(items) - 1
	if last < 1 {
		return strings.Join(items, "")
	}
	return strings.Join(items[:last], ", ") + " " + conjunction + " " + items[last]
}

func ordinal(n int) string {
	suffix := "th"
	if n%100 < 11 || n%100 > 13 {
		switch n % 10 {
		case 1:
			suffix = "st"
		case 2:
			suffix = "nd"
		case 3:
			suffix = "rd"
		}
	}
	return strconv.Itoa(n) + suffix
}
