// Command escape tries one way out of a sandbox, or to use more than it may. It prints "escaped" if it could, and "contained" if it was refused.
package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ways are what it tries. One returns nil if it got through.
var ways = map[string]func(args []string) error{
	"read": func(args []string) error { _, err := os.ReadFile(args[0]); return err },
	"symlink": func(args []string) error {
		if err := os.Symlink(args[0], "/tmp/link"); err != nil {
			return err
		}
		_, err := os.ReadFile("/tmp/link")
		return err
	},
	"write": func(args []string) error {
		f, err := os.OpenFile(args[0], os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.WriteString(strings.Join(args[1:], " "))
		return err
	},
	// A file that it may open for writing is a way already, so that nothing need be written.
	"open":        func(args []string) error { f, err := os.OpenFile(args[0], os.O_WRONLY, 0); f.Close(); return err },
	"environment": environment,
	"processes":   processes,
	"connect":     func(args []string) error { _, err := net.DialTimeout(args[0], args[1], time.Second); return err },
	"family": func(args []string) error {
		n, _ := strconv.Atoi(args[0])
		fd, err := unix.Socket(n, unix.SOCK_STREAM, 0)
		if errors.Is(err, unix.ESOCKTNOSUPPORT) || errors.Is(err, unix.EPROTOTYPE) {
			fd, err = unix.Socket(n, unix.SOCK_DGRAM, 0)
		}
		unix.Close(fd)
		return err
	},
	"unshare": func([]string) error { return run("/usr/bin/unshare", "-Ur", "true") },
	"clone":   func([]string) error { return start(&syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}) },
	"mount":   func([]string) error { return unix.Mount("none", "/tmp", "tmpfs", 0, "") },
	"chroot":  func([]string) error { return unix.Chroot("/tmp") },
	"setuid":  func([]string) error { return unix.Setuid(0) },
	"ptrace":  func([]string) error { return unix.PtraceSeize(os.Getppid()) },
	"keyring": func([]string) error {
		_, err := unix.AddKey("user", "minutehand", []byte("x"), unix.KEY_SPEC_SESSION_KEYRING)
		return err
	},
	"io_uring": func([]string) error { return call(unix.SYS_IO_URING_SETUP, 0, 0) },
	"bpf":      func([]string) error { return call(unix.SYS_BPF, 0, 0) },
	"memfd":    func([]string) error { fd, err := unix.MemfdCreate("x", 0); unix.Close(fd); return err },
	"shmget": func([]string) error {
		_, err := unix.SysvShmGet(unix.IPC_PRIVATE, 1<<20, unix.IPC_CREAT|0o600)
		return err
	},
	"limits": func([]string) error {
		return unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1 << 19, Max: 1 << 19})
	},
	"open-many": func([]string) error {
		for range 400 {
			if _, err := os.Open("/dev/null"); err != nil {
				return err
			}
		}
		return nil
	},
	"priority": func([]string) error { return unix.Setpriority(unix.PRIO_PROCESS, 0, 0) },
	"kill":     killAll,
	"disk":     disk,
	"files":    files,
	"shared":   shared,
	"hidden":   hidden,
	"tables":   tables,
	"vmsplice": func([]string) error {
		var p [2]int
		if err := unix.Pipe(p[:]); err != nil {
			return err
		}
		b := []byte("x")
		_, err := unix.Vmsplice(p[1], []unix.Iovec{{Base: &b[0], Len: 1}}, 0)
		return err
	},
	"ignored":  ignored,
	"memory":   memory,
	"siblings": siblings,
	"burn":     func([]string) error { burn(); return nil },
	"burners":  func([]string) error { return many(8, "burn") },
	"flood":    func([]string) error { return flood() },
	"stubborn": func([]string) error { return stubborn() },
	"daemon":   func([]string) error { return daemon() },
}

func main() {
	err := ways[os.Args[1]](os.Args[2:])
	if err != nil {
		fmt.Println("contained:", err)
		return
	}
	fmt.Println("escaped")
}

func run(name string, args ...string) error { return exec.Command(name, args...).Run() }

func call(number, a, b uintptr) error {
	_, _, e := unix.Syscall(number, a, b, 0)
	if e == unix.EPERM || e == unix.ENOSYS {
		return e
	}
	return nil
}

// start starts a process in namespaces.
func start(a *syscall.SysProcAttr) error {
	c := exec.Command("/bin/true")
	c.SysProcAttr = a
	return c.Run()
}

// environment looks for a word of the process that runs the sandbox.
func environment(args []string) error {
	found := strings.Contains(strings.Join(os.Environ(), "\n"), args[0])
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, name := range all {
		text, _ := os.ReadFile(name)
		found = found || strings.Contains(string(text), args[0])
	}
	if !found {
		return errors.New("no environment has the word")
	}
	return nil
}

// processes looks for processes of others: all that it may see are its own and bubblewrap's.
func processes(args []string) error {
	all, _ := filepath.Glob("/proc/[0-9]*")
	if len(all) > 3 {
		return nil
	}
	return fmt.Errorf("it sees %d processes", len(all))
}

// killAll looks for a process of others that it may signal, beside the first one. The signal 0 does no harm.
func killAll([]string) error {
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, name := range all {
		pid, _ := strconv.Atoi(filepath.Base(name))
		if pid > 1 && pid != os.Getpid() && unix.Kill(pid, 0) == nil {
			return nil
		}
	}
	return errors.New("no other process is there")
}

// disk writes 256 MiB into a folder, in several files.
func disk(args []string) error {
	block := make([]byte, 1<<20)
	for i := range 16 {
		f, err := os.Create(filepath.Join(args[0], strconv.Itoa(i)))
		if err != nil {
			return err
		}
		defer os.Remove(f.Name())
		for range 16 {
			if _, err := f.Write(block); err != nil {
				return err
			}
		}
	}
	return nil
}

// files makes files without anything in them.
func files(args []string) error {
	for i := range 500_000 {
		f, err := os.Create(args[0] + "/file" + strconv.Itoa(i))
		if err != nil {
			return err
		}
		f.Close()
	}
	hold()
	return nil
}

func touch(b []byte) {
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
}

// memory takes memory, and keeps it for a while if it is told to.
func memory(args []string) error {
	n, _ := strconv.Atoi(args[0])
	b := make([]byte, n)
	touch(b)
	if len(args) > 1 {
		hold()
	}
	runtime.KeepAlive(b)
	return nil
}

// shared takes memory that belongs to no process alone.
func shared([]string) error {
	b, err := unix.Mmap(-1, 0, 1<<30, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	touch(b)
	return nil
}

// hidden takes 384 MiB of memory that is shared, and has nothing of it mapped then. With an argument the memory is of a file.
func hidden(args []string) error {
	fd, flags := -1, unix.MAP_SHARED|unix.MAP_ANONYMOUS
	if len(args) > 0 {
		var err error
		if fd, err = unix.Open(args[0], unix.O_RDWR, 0); err != nil {
			return err
		}
		flags = unix.MAP_SHARED
	}
	b, err := unix.Mmap(fd, 0, 384<<20, unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		return err
	}
	for ; len(b) > 0; b = b[4<<20:] {
		touch(b[:4<<20])
		if err := unix.Madvise(b[:4<<20], unix.MADV_DONTNEED); err != nil {
			return err
		}
	}
	time.Sleep(100 * time.Millisecond)
	return nil
}

// tables has the kernel make 512 MiB of tables for memory that there is not.
func tables([]string) error {
	const span, each = 256 << 30, 2 << 20
	b, err := unix.Mmap(-1, 0, span, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return err
	}
	_ = unix.Madvise(b, unix.MADV_NOHUGEPAGE)
	sum := 0
	for i := 0; i < span; i += each {
		sum += int(b[i])
	}
	hold()
	runtime.KeepAlive(sum)
	return nil
}

// long is longer than any program may take here.
const long = 10 * time.Minute

// hold keeps what was taken until the program is stopped for it, however late somebody looks.
func hold() { time.Sleep(long) }

// ignored burns the processor by one process after the other, whose ends it ignores.
func ignored([]string) error {
	signal.Ignore(syscall.SIGCHLD)
	for range 2000 {
		_ = run("/bin/sh", "-c", "i=0; while [ $i -lt 150000 ]; do i=$((i+1)); done")
	}
	return nil
}

// siblings are processes each of which has less than the limit, but not all together.
func siblings([]string) error { return many(12, "memory", strconv.Itoa(32<<20), "wait") }

// many runs this program many times at once, and returns when all have ended.
func many(n int, args ...string) error {
	var all []*exec.Cmd
	for range n {
		c := exec.Command("/proc/self/exe", args...)
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		if err := c.Start(); err != nil {
			return err
		}
		all = append(all, c)
	}
	for _, c := range all {
		if err := c.Wait(); err != nil {
			return err
		}
	}
	return nil
}

func burn() {
	for began := time.Now(); time.Since(began) < long; {
	}
}

func flood() error {
	line := []byte(strings.Repeat("flood ", 1000) + "\n")
	for range 100_000 {
		if _, err := os.Stdout.Write(line); err != nil {
			return err
		}
	}
	return nil
}

// stubborn obeys no signal that it can ignore.
func stubborn() error {
	for s := syscall.Signal(1); s < 32; s++ {
		if s != syscall.SIGKILL && s != syscall.SIGSTOP && s != syscall.SIGURG {
			signal.Ignore(s)
		}
	}
	hold()
	return nil
}

// daemon leaves a process in a session of its own that holds the streams.
func daemon() error {
	c := exec.Command("/bin/sh", "-c", "trap '' HUP TERM; sleep 100; echo late")
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := c.Start(); err != nil {
		return err
	}
	return errors.New("left a daemon")
}
