package bucketloader

import "slices"

// span is the minutes of [from, to).
type span struct{ from, to int64 }

// spans are minutes as ordered spans that do not touch: only a few, however many minutes there are.
type spans []span

// end returns the first minute from m on that is not in s.
func (s spans) end(m int64) int64 {
	if i := s.at(m); i < len(s) && s[i].from <= m {
		return s[i].to
	}
	return m
}

// at returns the index of the first span that ends after m.
func (s spans) at(m int64) int {
	i, _ := slices.BinarySearchFunc(s, m, func(x span, m int64) int {
		if x.to <= m {
			return -1
		}
		return 1
	})
	return i
}

// add adds the minutes of [from, to).
func (s *spans) add(from, to int64) {
	if from >= to {
		return
	}
	i := s.at(from - 1) // a span that ends at from is continued
	j := i
	for ; j < len(*s) && (*s)[j].from <= to; j++ {
		from, to = min(from, (*s)[j].from), max(to, (*s)[j].to)
	}
	*s = slices.Replace(*s, i, j, span{from, to})
}

// remove removes the minutes of [from, to).
func (s *spans) remove(from, to int64) {
	if from >= to {
		return
	}
	var left spans
	for _, x := range *s {
		for _, y := range []span{{x.from, min(x.to, from)}, {max(x.from, to), x.to}} {
			if y.from < y.to {
				left = append(left, y)
			}
		}
	}
	*s = left
}
