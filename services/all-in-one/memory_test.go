package platform

import (
	"errors"
	"testing"
)

func TestMemoryIsHalfOfWhatTheMachineOrItsControlGroupHas(t *testing.T) {
	for _, c := range []struct {
		meminfo, group string
		want           Memory
	}{
		{"MemTotal:       24000000 kB\nMemFree: 1 kB\n", "max\n", 8 << 30},
		{"MemTotal:       4194304 kB\n", "max\n", 2 << 30},
		{"MemTotal:       24000000 kB\n", "3221225472\n", 3 << 29},
		{"MemTotal:       24000000 kB\n", "536870912\n", 512 << 20},
		{"MemTotal:       24000000 kB\n", "9223372036854771712\n", 8 << 30},
		{"", "max", 512 << 20},
		{"MemTotal:", "nonsense", 512 << 20},
	} {
		got := memoryOf(func(name string) ([]byte, error) {
			switch name {
			case "/proc/meminfo":
				return []byte(c.meminfo), nil
			case "/sys/fs/cgroup/memory.max":
				return []byte(c.group), nil
			}
			return nil, errors.New("not there")
		})
		if got != c.want {
			t.Errorf("of %q and %q a process takes %d MiB, want %d", c.meminfo, c.group, got>>20, c.want>>20)
		}
	}
	if got := (512 << 20); Memory(got).maxHotEntries() != 300_000 || Memory(4*got).maxHotEntries() != 1_200_000 {
		t.Errorf("the bounds do not follow from the memory")
	}
}
