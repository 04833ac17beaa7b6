//go:build amd64 || arm64

package sandbox

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// files are what a process is given beside its three streams, and the other ends of these.
type files struct {
	given, kept []*os.File
}

// give returns the number under which the process will have a file.
func (f *files) give(file *os.File) string {
	f.given = append(f.given, file)
	return strconv.Itoa(2 + len(f.given))
}

// data gives a file in memory.
func (f *files) data(text []byte) (fd string, err error) {
	n, err := unix.MemfdCreate("minutehand", unix.MFD_CLOEXEC)
	if err != nil {
		return "", fmt.Errorf("make a file in memory: %w", err)
	}
	file := os.NewFile(uintptr(n), "memory")
	fd = f.give(file)
	if _, err := file.Write(text); err != nil {
		return "", fmt.Errorf("write a file in memory: %w", err)
	}
	_, err = file.Seek(0, io.SeekStart)
	return fd, err
}

// out gives what the process writes to, and returns the end to read from.
func (f *files) out() (read *os.File, fd string, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, "", fmt.Errorf("make a pipe: %w", err)
	}
	f.kept = append(f.kept, r)
	return r, f.give(w), nil
}

// in gives what the process reads from, and returns the end to write to.
func (f *files) in() (write *os.File, fd string, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, "", fmt.Errorf("make a pipe: %w", err)
	}
	f.kept = append(f.kept, w)
	return w, f.give(r), nil
}

// closeGiven closes what the process has now.
func (f *files) closeGiven() {
	for _, file := range f.given {
		_ = file.Close()
	}
	f.given = nil
}

func (f *files) close() {
	f.closeGiven()
	for _, file := range f.kept {
		_ = file.Close()
	}
}

// maxReport bounds what bubblewrap reports.
const maxReport = 4096

// firstOf reads which process is the first of the namespaces.
func firstOf(status *os.File) (int, error) {
	var line []byte
	one := make([]byte, 1)
	for len(line) < maxReport { // to the end of the line and no further
		n, err := status.Read(one)
		if n == 1 && one[0] == '\n' {
			break
		}
		line = append(line, one[:n]...)
		if err != nil {
			break
		}
	}
	var report struct {
		PID int `json:"child-pid"`
	}
	if json.Unmarshal(line, &report) != nil || report.PID < 2 {
		return 0, errors.New("bubblewrap made no namespaces")
	}
	return report.PID, nil
}

// exitOf reads the exit code of the program, if it had one.
func exitOf(status *os.File) (code int, ok bool) {
	lines := bufio.NewScanner(io.LimitReader(status, maxReport))
	for lines.Scan() {
		var report struct {
			Code *int `json:"exit-code"`
		}
		if json.Unmarshal(lines.Bytes(), &report) == nil && report.Code != nil {
			return *report.Code, true
		}
	}
	return 0, false
}

// Users are the users that programs run as where this process is root: each at a time has its own, which owns nothing. Backends of one process share
// them.
type Users struct {
	mu    sync.Mutex
	taken map[uint32]bool
}

// firstUser begins a range that no other use is known of; see the list of users and groups of systemd.
const firstUser = 2_000_000_000

// take returns how a program is started, and what gives its user back.
func (u *Users) take() (attributes *syscall.SysProcAttr, free func()) {
	// The program ends with the thread that started it, which ends with this process.
	a := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true}
	if os.Geteuid() != 0 {
		return a, func() {}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.taken == nil {
		u.taken = map[uint32]bool{}
	}
	id := uint32(firstUser)
	for u.taken[id] {
		id++
	}
	u.taken[id] = true
	a.Credential = &syscall.Credential{Uid: id, Gid: id}
	return a, func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		delete(u.taken, id)
	}
}
