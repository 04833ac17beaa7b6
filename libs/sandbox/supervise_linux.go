//go:build amd64 || arm64

package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lookEvery is the pause between two looks at what a program uses.
	lookEvery = 25 * time.Millisecond
	// drainFor is how long streams may stay open after a program has ended. Nothing of it is left then that could write.
	drainFor = 5 * time.Second
	// endFor is how long the kernel may take to end a process, such as one that waits for a disk.
	endFor = 30 * time.Second
)

// supervised is a program that is about to run.
type supervised struct {
	cmd    *exec.Cmd
	limits Limits
	stdin  []byte
	// opened is called when the process has its files.
	opened func()
	// first returns the process of which all others of the program descend, and begin lets the program begin.
	first func() (int, error)
	begin func(pid int) error
	// work are the folders whose files are counted, as that process sees them.
	work []string

	mu      sync.Mutex
	stopped string
	pidfd   int // of the first process, or -1
}

// run runs a program until nothing of it is left.
func (s *supervised) run(ctx context.Context) (*Result, error) {
	// The kernel ends the program when this thread ends, so that it must not end earlier.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	kept := &streams{room: s.limits.Output, full: func() { s.stop(StoppedOutput) }}
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = bytes.NewReader(s.stdin), stream{kept, &kept.out}, stream{kept, &kept.err}
	s.cmd.WaitDelay, s.pidfd = drainFor, -1
	began := time.Now()
	if err := s.start(); err != nil {
		return nil, err
	}
	s.opened()
	used, failed := s.watch(ctx, began)
	err := s.cmd.Wait()
	u := used()
	if left := s.end(); left != nil {
		return nil, left
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, errFull) && !errors.Is(err, exec.ErrWaitDelay) && s.stopped == "" {
		return nil, fmt.Errorf("wait for a program: %w", err)
	}
	if failed != nil && s.stopped == "" {
		return nil, fmt.Errorf("%w: %s", failed, bytes.TrimSpace(kept.err.Bytes()))
	}
	state := s.cmd.ProcessState
	r := &Result{
		ExitCode: state.ExitCode(), Stopped: s.stopped, Stdout: kept.out.Bytes(), Stderr: kept.err.Bytes(), Wall: time.Since(began),
		CPU: max(u.cpu, state.UserTime()+state.SystemTime()), MaxMemory: u.peak, files: u.files,
	}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		r.ExitCode = signalled + int(status.Signal())
	}
	// The kernel ends a process that the looks missed.
	if r.Stopped == "" && r.CPU >= s.limits.CPU && r.ExitCode == signalled+int(unix.SIGKILL) {
		r.Stopped = StoppedCPU
	}
	return r, nil
}

// start starts the process. It gets no file but its own: what this process was given by the one that started it would go on to it otherwise. Its
// streams are files of its user, so that it can open them by the names /dev/stdout and /dev/stderr.
func (s *supervised) start() error {
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("keep files from a program: %w", err)
	}
	if user := s.cmd.SysProcAttr.Credential; user != nil {
		owner := func(uid, gid uint32) { // of the files that this thread makes
			_, _, _ = unix.RawSyscall(unix.SYS_SETFSGID, uintptr(gid), 0, 0)
			_, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, uintptr(uid), 0, 0)
		}
		owner(user.Uid, user.Gid)
		defer owner(0, 0)
	}
	err := s.cmd.Start()
	if errors.Is(err, unix.E2BIG) {
		return fmt.Errorf("%w: its arguments and its environment are too long", ErrProgram)
	}
	if err != nil {
		return fmt.Errorf("start a program: %w", err)
	}
	return nil
}

// signalled is added to a signal where an exit code is meant, as shells do.
const signalled = 128

// stop ends a program, and all of it. The first reason stands.
func (s *supervised) stop(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped == "" {
		s.stopped = why
	}
	s.kill()
}

// kill ends the first process, with which the kernel ends all others of its namespace, and the one that waits for it.
func (s *supervised) kill() {
	if s.pidfd >= 0 {
		unix.PidfdSendSignal(s.pidfd, unix.SIGKILL, nil, 0) //nolint:errcheck // it has ended already
	}
	s.cmd.Process.Kill() //nolint:errcheck // it has ended already
}

// end waits until the first process has ended, and with it all others: the one that waits for it in their stead ends before that.
func (s *supervised) end() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pidfd < 0 {
		return nil
	}
	s.kill()
	poll := []unix.PollFd{{Fd: int32(s.pidfd), Events: unix.POLLIN}}
	var n int
	for began := time.Now(); n == 0 && time.Since(began) < endFor; {
		var err error
		if n, err = unix.Poll(poll, int(time.Second/time.Millisecond)); err != nil && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	_ = unix.Close(s.pidfd)
	s.pidfd = -1
	if n != 1 {
		return errors.New("processes of a program cannot be ended")
	}
	return nil
}

// watch lets a program begin, looks at what it uses, and stops it when it uses too much or ctx ends. It returns what ends the looks and returns what
// they have seen.
func (s *supervised) watch(ctx context.Context, began time.Time) (end func() use, err error) {
	pid, err := s.first()
	if err == nil {
		err = s.open(pid)
	}
	if err == nil {
		err = s.begin(pid)
	}
	if err != nil {
		s.mu.Lock()
		s.kill()
		s.mu.Unlock()
		return func() use { return use{} }, err
	}
	w := &watch{pid: pid, work: s.work}
	ended := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() { // a look may take long, where a program has many processes and maps
		tick := time.NewTicker(lookEvery)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				return
			case <-tick.C:
				if why := w.look(s.limits, s.alive); why != "" {
					s.stop(why)
					return
				}
			}
		}
	})
	done.Go(func() {
		timer := time.NewTimer(s.limits.Time - time.Since(began))
		defer timer.Stop()
		select {
		case <-ended:
		case <-ctx.Done():
			why := StoppedCancelled
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				why = StoppedTime
			}
			s.stop(why)
		case <-timer.C:
			s.stop(StoppedTime)
		}
	})
	return func() use { close(ended); done.Wait(); return w.seen }, nil
}

// open takes hold of the first process, whose number may be another's when it has ended.
func (s *supervised) open(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("hold a process: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pidfd = fd
	return nil
}

// alive reports whether the first process is still there, and so whether what was read under its number is its own.
func (s *supervised) alive() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	poll := []unix.PollFd{{Fd: int32(s.pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(poll, 0)
	return err == nil && n == 0
}
