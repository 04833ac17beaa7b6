package process

import (
	"bytes"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

const (
	// collectorShare is the share of the memory at which Go's collector begins to work harder. The rest is for what lies outside its heap.
	collectorShare = 320.0 / 512
	// collectorPercent lets garbage grow to four times of what lives: most of a heap lives long and is small.
	collectorPercent = 400
	// outside is the share of a machine without a limit that a service takes as its own: servers and other services are beside it.
	outside = 1.0 / 8
)

// Memory returns how many bytes this machine has, and how many the process's control group may use. Each is 0 if it is not known, or
// there is no limit.
func Memory() (machine, group int64) { return memory(os.ReadFile) }

func memory(read func(name string) ([]byte, error)) (machine, group int64) {
	if text, err := read("/proc/meminfo"); err == nil {
		_, rest, _ := strings.Cut(string(text), "MemTotal:")
		if fields := strings.Fields(rest); len(fields) > 0 {
			if kb, err := strconv.ParseInt(fields[0], 10, 64); err == nil {
				machine = kb << 10
			}
		}
	}
	for _, file := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		if text, err := read(file); err == nil {
			limit, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64) // otherwise it is "max"
			if err == nil && (machine == 0 || limit < machine) {
				group = limit
			}
		}
	}
	return machine, group
}

// Collect lets garbage grow up to a share of the memory that the process may use, instead of collecting it all the time; GOGC or
// GOMEMLIMIT, if set, say otherwise.
func Collect(bytes int64) {
	if os.Getenv("GOGC") == "" && os.Getenv("GOMEMLIMIT") == "" && bytes > 0 {
		debug.SetGCPercent(collectorPercent)
		debug.SetMemoryLimit(int64(float64(bytes) * collectorShare))
	}
}

// OwnMemory returns how many bytes a service among others takes as its own.
func OwnMemory() int64 { return own(Memory()) }

func own(machine, group int64) int64 {
	if group > 0 {
		return group
	}
	return int64(float64(machine) * outside)
}
