package platform

import "testing"

func TestMemoryIsHalfOfWhatTheMachineOrItsControlGroupHas(t *testing.T) {
	for _, c := range []struct {
		machine, group int64
		want           Memory
	}{
		{24 << 30, 0, 8 << 30}, {4 << 30, 0, 2 << 30}, {24 << 30, 3 << 30, 3 << 29}, {24 << 30, 512 << 20, 512 << 20}, {0, 0, 512 << 20},
	} {
		if got := memoryOf(c.machine, c.group); got != c.want {
			t.Errorf("of %d and %d MiB a process takes %d MiB, want %d", c.machine>>20, c.group>>20, got>>20, c.want>>20)
		}
	}
	if got := (512 << 20); Memory(got).maxHotEntries() != 300_000 || Memory(4*got).maxHotEntries() != 1_200_000 {
		t.Errorf("the bounds do not follow from the memory")
	}
}
