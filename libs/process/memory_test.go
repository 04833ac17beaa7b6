package process

import (
	"errors"
	"testing"
)

func TestMemoryIsThatOfTheMachineAndOfItsControlGroup(t *testing.T) {
	for _, c := range []struct {
		meminfo, group      string
		machine, limit, own int64
	}{
		{"MemTotal:       4194304 kB\nMemFree: 1 kB\n", "max\n", 4 << 30, 0, 512 << 20},
		{"MemTotal:       4194304 kB\n", "3221225472\n", 4 << 30, 3 << 30, 3 << 30},
		{"MemTotal:       4194304 kB\n", "9223372036854771712\n", 4 << 30, 0, 512 << 20},
		{"", "536870912\n", 0, 512 << 20, 512 << 20},
		{"", "max", 0, 0, 0},
		{"MemTotal:", "nonsense", 0, 0, 0},
	} {
		machine, limit := memory(func(name string) ([]byte, error) {
			switch name {
			case "/proc/meminfo":
				return []byte(c.meminfo), nil
			case "/sys/fs/cgroup/memory.max":
				return []byte(c.group), nil
			}
			return nil, errors.New("not there")
		})
		if machine != c.machine || limit != c.limit || own(machine, limit) != c.own {
			t.Errorf("%q and %q: %d and %d bytes, of which %d are the service's", c.meminfo, c.group, machine, limit, own(machine, limit))
		}
	}
}
