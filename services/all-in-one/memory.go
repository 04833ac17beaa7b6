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

// Memory is how much a process may take, in bytes. What is bounded by memory follows from it.
type Memory int64

const (
	// LeastMemory is what everything below is stated for: a process with it stays within a container of 512 MB.
	LeastMemory = 512 << 20
	// mostMemory is the most that a process takes unless it is told to.
	mostMemory Memory = 8 << 30
	// collectorShare of the memory is where Go's collector begins to work harder; the rest is for the store's caches, which lie
	// outside its heap.
	collectorShare = 320.0 / 512
	// mostMemTableBytes bounds what is replayed at a start.
	mostMemTableBytes = 64 << 20
)

// MachineMemory is half of what this machine, or this process's control group, has: 512 MiB at least and 8 GiB at most.
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
			if limit, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64); err == nil { // else it is "max"
				all = min(all, limit)
			}
		}
	}
	return min(max(Memory(all/2), LeastMemory), mostMemory)
}

// CollectorLimit is the soft limit of Go's heap.
func (m Memory) CollectorLimit() int64 { return int64(float64(m) * collectorShare) }

// times is n, which is meant for the least memory, for as much as there is.
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
