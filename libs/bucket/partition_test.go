package bucket

import "testing"

// A job whose partition changed would never be found again. The hashes are those of the reference implementation with seed 0.
func TestPartitionIsTheReferenceHashOfTheJob(t *testing.T) {
	for in, hash := range map[string]uint64{
		"":    0xef46db3751d8e999,
		"a":   0xd24ec4f1a98c6e5b,
		"abc": 0x44bc2cf5ad770999,
		"Nobody inspects the spammish repetition":     0xfbcea83c8a378bf1,
		"The quick brown fox jumps over the lazy dog": 0x0b242d361fda71bc,
	} {
		for _, count := range []int{1, 3, DefaultPartitions, MaxPartitions} {
			if got, want := Partition(in, count), int(hash%uint64(count)); got != want {
				t.Errorf("the partition of %q among %d is %d, want %d", in, count, got, want)
			}
		}
	}
}
