package job

import (
	"fmt"
	"slices"
)

// Precision is how close to its instant an occurrence is called, while its target and the machines keep up. Each has lanes of its own,
// and where one is called before another, the more precise goes first.
type Precision uint8

const (
	// PrecisionStandard is within two seconds, and gives way to the others.
	PrecisionStandard Precision = iota
	// PrecisionFast is within 250 ms, also beside a stampede of PrecisionStandard.
	PrecisionFast
	// PrecisionPrecise is within 1 ms of what a bare timer and a bare request take: a thread sleeps until its instant.
	PrecisionPrecise
	// Precisions is how many there are.
	Precisions
)

var precisionNames = [Precisions]string{"standard", "fast", "precise"}

// PrecisionOf returns the precision of a stored number. What a later release may store means PrecisionStandard here.
func PrecisionOf(n uint32) Precision {
	if n >= uint32(Precisions) {
		return PrecisionStandard
	}
	return Precision(n)
}

// String returns the name that the API uses.
func (p Precision) String() string { return precisionNames[PrecisionOf(uint32(p))] }

// MarshalText implements encoding.TextMarshaler.
func (p Precision) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *Precision) UnmarshalText(text []byte) error {
	i := slices.Index(precisionNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("there is no precision %q", text)
	}
	*p = Precision(i)
	return nil
}
