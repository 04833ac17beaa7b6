package bucket

import "testing"

// The vectors are those that the reference implementation gives with seed 0.
func TestXXH64AgreesWithTheReference(t *testing.T) {
	for in, want := range map[string]uint64{
		"":    0xef46db3751d8e999,
		"a":   0xd24ec4f1a98c6e5b,
		"abc": 0x44bc2cf5ad770999,
		"Nobody inspects the spammish repetition":     0xfbcea83c8a378bf1,
		"The quick brown fox jumps over the lazy dog": 0x0b242d361fda71bc,
	} {
		if got := XXH64(in); got != want {
			t.Errorf("XXH64(%q) = %#x, want %#x", in, got, want)
		}
	}
}
