package platform

import (
	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/process"
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
	// mostMemTableBytes bounds what is replayed at a start.
	mostMemTableBytes = 64 << 20
)

// MachineMemory returns half of what this machine, or this process's control group, has: at least 512 MiB and at most 8
// GiB.
func MachineMemory() Memory { return memoryOf(process.Memory()) }

func memoryOf(machine, group int64) Memory {
	all := machine
	if group > 0 {
		all = group
	}
	return min(max(Memory(all/2), LeastMemory), mostMemory)
}

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
