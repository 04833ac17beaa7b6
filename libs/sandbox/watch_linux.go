//go:build amd64 || arm64

package sandbox

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// use is what a program was seen to use.
type use struct {
	cpu   time.Duration
	peak  int64
	files int64
}

// process is one for good: its number may come again.
type process struct {
	pid   int
	began string
}

// watch looks at the processes of a program.
type watch struct {
	pid  int
	work []string
	seen use
	own  map[process]time.Duration // is what each process has had of the processors by itself
	gone time.Duration             // is what those had that have ended
}

// tick is the unit of the times in /proc; see proc(5) and sysconf(3), where it is 100 a second on all of Linux.
const tick = 10 * time.Millisecond

// look adds up what all processes use, and returns which limit that is beyond, if any. What is read while the program ends counts for nothing.
func (w *watch) look(l Limits, alive func() bool) (why string) {
	all := descendants(w.pid, 4*l.Processes+16)
	var memory int64
	var cpu time.Duration
	before := w.own
	w.own = make(map[process]time.Duration, len(all))
	var ever time.Duration
	for _, pid := range all {
		m, c, own, began := usageOf(pid)
		memory, cpu, ever = memory+m+tablesOf(pid), cpu+c, ever+own
		if began != "" {
			w.own[process{pid, began}] = own
		}
	}
	// The time of a process that has ended is nobody's, if its parent ignores the ends of its children.
	for p, own := range before {
		if _, there := w.own[p]; !there {
			w.gone += own
		}
	}
	cpu = max(cpu, ever+w.gone)
	if memory > l.Memory {
		memory = proportional(all)
	}
	var files int64
	for _, folder := range w.work {
		files = max(files, filesIn(w.pid, folder))
	}
	if !alive() {
		return ""
	}
	w.seen.cpu, w.seen.peak, w.seen.files = max(w.seen.cpu, cpu), max(w.seen.peak, memory), max(w.seen.files, files)
	switch {
	case memory > l.Memory:
		return StoppedMemory
	case cpu > l.CPU:
		return StoppedCPU
	case files > maxFiles:
		return StoppedFiles
	}
	return ""
}

// descendants returns a process and all that descend from it, of which there are at most limit. One whose parent has ended is a child of the first.
func descendants(pid, limit int) []int {
	all := []int{pid}
	for i := 0; i < len(all) && len(all) < limit; i++ {
		threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", all[i])) // one that has ended has none
		for _, t := range threads {
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", all[i], t.Name()))
			for _, child := range bytes.Fields(text) {
				if n, err := strconv.Atoi(string(child)); err == nil {
					all = append(all, n)
				}
			}
		}
	}
	return all
}

// usageOf returns the bytes that a process has in memory, the time that it and its children that have ended had of the processors, the part of that
// which is its own, and when it began. See proc(5).
func usageOf(pid int) (memory int64, cpu, own time.Duration, began string) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, 0, ""
	}
	// The second field is a name in parentheses, which may have anything in it.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	const userTime, beginning, resident = 11, 19, 21 // after the name
	if len(fields) <= resident {
		return 0, 0, 0, ""
	}
	for i := range 4 { // in user mode, in the kernel, and the same of the children
		n, _ := strconv.ParseInt(string(fields[userTime+i]), 10, 64)
		cpu += time.Duration(n) * tick
		if i == 1 {
			own = cpu
		}
	}
	pages, _ := strconv.ParseInt(string(fields[resident]), 10, 64)
	return pages * int64(os.Getpagesize()), cpu, own, string(fields[beginning])
}

// tablesOf returns the bytes of a process that the kernel needs to find its memory, which it can have without memory, and those that are swapped out.
func tablesOf(pid int) (sum int64) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for _, name := range []string{"\nVmPTE:", "\nVmSwap:"} {
		_, rest, _ := bytes.Cut(text, []byte(name))
		if fields := bytes.Fields(rest); len(fields) > 0 {
			kib, _ := strconv.ParseInt(string(fields[0]), 10, 64)
			sum += kib << 10
		}
	}
	return sum
}

// proportional returns the bytes that processes have in memory together. What several share counts once, which takes longer to find out.
func proportional(all []int) (sum int64) {
	for _, pid := range all {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		_, rest, found := bytes.Cut(text, []byte("\nPss:"))
		fields := bytes.Fields(rest)
		if err != nil || !found || len(fields) == 0 {
			memory, _, _, _ := usageOf(pid) // it hides this
			sum += memory + tablesOf(pid)
			continue
		}
		kib, _ := strconv.ParseInt(string(fields[0]), 10, 64)
		sum += kib<<10 + tablesOf(pid)
	}
	return sum
}

// filesIn returns how many files and folders there are in a folder in memory, as a process sees it.
func filesIn(pid int, folder string) int64 {
	var s unix.Statfs_t
	if unix.Statfs(fmt.Sprintf("/proc/%d/root%s", pid, folder), &s) != nil || s.Type != unix.TMPFS_MAGIC {
		return 0
	}
	return int64(s.Files - s.Ffree)
}
