package platform

import (
	"bytes"
	"os"
	"strconv"
	"strings"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/services/executor"
	schedulerworker "github.com/minutehand/minutehand/services/scheduler-worker"
)

// Memory is how many bytes a process may use. Everything bounded by memory is derived from it.
type Memory int64

const (
	// LeastMemory is the memory that everything below is stated for: with it, a process stays within a container of 512 MB.
	LeastMemory = 512 << 20
	// mostMemory is the most that a process uses unless it is told otherwise.
	mostMemory Memory = 8 << 30
	// collectorShare is the share of the memory at which Go's collector begins to work harder. The rest is for the store's
	// caches, which lie outside its heap.
	collectorShare = 320.0 / 512
	// mostMemTableBytes bounds what is replayed at a start.
	mostMemTableBytes = 64 << 20
)

// MachineMemory returns half of what this machine, or this process's control group, has: at least 512 MiB and at most 8
// GiB.
func MachineMemory() Memory {
	return memoryOf(os.ReadFile)
}

func memoryOf(read func(name string) ([]byte, error)) Memory {
	all := int64(LeastMemory)
	if text, err := read("/proc/meminfo"); err == nil {
		_, rest, _ := strings.Cut(string(text), "MemTotal:")
		if fields := strings.Fields(rest); len(fields) > 0 {
			if kb, err := strconv.ParseInt(fields[0], 10, 64); err == nil {
				all = kb << 10
			}
		}
	}
	for _, file := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		if text, err := read(file); err == nil {
			if limit, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64); err == nil { // otherwise it is "max"
				all = min(all, limit)
			}
		}
	}
	return min(max(Memory(all/2), LeastMemory), mostMemory)
}

// CollectorLimit returns the soft limit of Go's heap.
func (m Memory) CollectorLimit() int64 { return int64(float64(m) * collectorShare) }

// times scales n, which is meant for the least memory, to the memory there is.
func (m Memory) times(n int64) int64 {
	return n * max(int64(m), int64(LeastMemory)) / int64(LeastMemory)
}

func (m Memory) cacheBytes() int64 { return m.times(32 << 20) }
func (m Memory) memTableBytes() int64 {
	return min(m.times(embedded.DefaultMemTableBytes), mostMemTableBytes)
}
func (m Memory) maxHotEntries() int64 { return m.times(embedded.DefaultMaxHotEntries) }
func (m Memory) workerBytes() int64 {
	return min(m.times(32<<20), schedulerworker.DefaultConfig().MaxBytes)
}

func (m Memory) executorBytes() int64 { return min(m.times(64<<20), executor.DefaultConfig().MaxBytes) }
func (m Memory) maxRecords() int      { return int(m.times(embedded.DefaultMaxRecords)) }
