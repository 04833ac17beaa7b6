//go:build amd64 || arm64

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// BubblewrapConfig says how scripts are run.
type BubblewrapConfig struct {
	// Path is where bwrap is; empty means wherever PATH has it.
	Path string
	// Root is the folder with what a script sees as its root, read-only. For / that is /usr, and what belongs to it, alone.
	Root string
	// Network says that programs may be granted the network of this machine.
	Network bool
	// Users are those that scripts run as; nil where nothing else in this process runs programs.
	Users *Users
}

// Bubblewrap runs scripts with bubblewrap: in user, mount, process, IPC, UTS, cgroup and, unless it is granted, network namespaces of their own,
// without capabilities, on a root that is read-only, with a folder in memory to work in, under a filter of system calls. A process that runs
// as root runs them as a user that nothing else is.
type Bubblewrap struct {
	config BubblewrapConfig
	filter []byte
}

var _ Backend = (*Bubblewrap)(nil)

const (
	// scriptAt is where a script finds itself.
	scriptAt = "/script"
	// workAt is the folder that a script can write to. It is its home, too.
	workAt = "/tmp"
	// sharedAt is where shared memory lies, which a script can write to as well.
	sharedAt = "/dev/shm"
	// path is where a script finds programs.
	path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	// inner is the user and the group that a script takes itself for.
	inner = "1000"
	// maxFiles bounds the files and folders in each of the two folders that a script can write to, each of which takes memory beside what it has in it.
	maxFiles = 16384
	// maxOpen bounds what a process may have open.
	maxOpen = 256
)

// NewBubblewrap returns the backend, after it has run a script with it. It fails with a sentence that says what this machine lacks.
func NewBubblewrap(ctx context.Context, c BubblewrapConfig) (*Bubblewrap, error) {
	if c.Path == "" {
		found, err := exec.LookPath("bwrap")
		if err != nil {
			return nil, errors.New("bubblewrap is not installed; install the package bubblewrap (apt-get install bubblewrap)")
		}
		c.Path = found
	}
	if c.Root == "" {
		c.Root = "/"
	}
	if c.Users == nil {
		c.Users = &Users{}
	}
	f, err := filter()
	if err != nil {
		return nil, err
	}
	b := &Bubblewrap{config: c, filter: f}
	limits := Default()
	limits.Time = time.Minute // the machine may be busy
	const word = "here"
	r, err := b.Run(ctx, &Program{Code: []byte("sleep 0.2; echo " + word), Limits: limits})
	switch {
	case err != nil:
		return nil, fmt.Errorf("bubblewrap cannot run scripts here: %w", err)
	case r.Stopped != "" || r.MaxMemory == 0 || r.files == 0:
		return nil, errors.New("bubblewrap runs scripts here, but what they use cannot be seen in /proc, so that their limits cannot be kept")
	case r.ExitCode != 0 || strings.TrimSpace(string(r.Stdout)) != word:
		return nil, fmt.Errorf("bubblewrap cannot run scripts here: exit code %d, %s", r.ExitCode, strings.TrimSpace(string(r.Stderr)))
	}
	return b, nil
}

// Run implements [Backend].
func (b *Bubblewrap) Run(ctx context.Context, p *Program) (*Result, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	if p.Network && !b.config.Network {
		return nil, fmt.Errorf("%w: no network is granted here", ErrProgram)
	}
	f := &files{}
	defer f.close()
	args, status, gate, err := b.arguments(p, f)
	if err != nil {
		return nil, err
	}
	user, free := b.config.Users.take()
	defer free()
	cmd := &exec.Cmd{Path: b.config.Path, Args: append([]string{"bwrap"}, args...), Env: []string{}, Dir: "/", ExtraFiles: f.given, SysProcAttr: user}
	s := &supervised{
		cmd: cmd, limits: p.Limits, stdin: p.Stdin, opened: f.closeGiven,
		// The first process of the namespaces waits at the gate, and has its limits before the script begins.
		first: func() (int, error) { return firstOf(status) },
		begin: func(pid int) error {
			limits := p.Limits
			limits.Disk = max(limits.Disk, int64(len(p.Code))) // bubblewrap writes the script, which is not in the folder
			if err := confine(pid, limits, user.Credential); err != nil {
				return err
			}
			_, err := gate.Write([]byte{1})
			return err
		},
		work: []string{workAt, sharedAt},
	}
	r, err := s.run(ctx)
	if err != nil {
		return nil, err
	}
	// What bubblewrap itself says has no exit code of a program.
	if code, ok := exitOf(status); ok {
		r.ExitCode = code
	} else if r.Stopped == "" {
		return nil, notRun(p.Code, strings.TrimSpace(string(r.Stderr)))
	}
	return r, nil
}

// notRun returns why bubblewrap did not run a script, of which it said something. No further try helps where the kernel does not find or take what is
// to run it.
func notRun(code []byte, said string) error {
	_, failed, begun := strings.Cut(said, "bwrap: execvp ")
	_, why, _ := strings.Cut(failed, ": ")
	forGood := func(e error) bool { return strings.EqualFold(e.Error(), why) }
	if !begun || !slices.ContainsFunc([]error{unix.ENOENT, unix.EACCES, unix.ENOTDIR, unix.ELOOP}, forGood) {
		return fmt.Errorf("bubblewrap did not run the script: %s", said)
	}
	first, _, _ := strings.Cut(string(code), "\n")
	line, script := strings.CutPrefix(first, "#!")
	interpreter, _, _ := strings.Cut(strings.TrimLeft(line, " \t"), " ")
	switch {
	case !script:
		return fmt.Errorf("%w: this machine cannot execute it: %s", ErrProgram, why)
	case strings.HasSuffix(first, "\r"):
		return fmt.Errorf("%w: its first line ends with a carriage return, so that it names no interpreter; end its lines with a line feed alone", ErrProgram)
	}
	return fmt.Errorf("%w: its interpreter %q cannot be executed here: %s", ErrProgram, interpreter, why)
}

// arguments returns bubblewrap's arguments, the file in which it reports, and the gate at which the script waits.
func (b *Bubblewrap) arguments(p *Program, f *files) (args []string, status, gate *os.File, err error) {
	add := func(more ...string) { args = append(args, more...) }
	add("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try", "--disable-userns", "--die-with-parent",
		"--new-session", "--cap-drop", "ALL", "--hostname", "sandbox", "--uid", inner, "--gid", inner, "--clearenv")
	if !p.Network {
		add("--unshare-net")
	}
	env, err := environment(p.Env)
	if err != nil {
		return nil, nil, nil, err
	}
	add(env...)
	root, err := b.root(p.Network)
	if err != nil {
		return nil, nil, nil, err
	}
	add(root...)
	add(folders(p.Limits)...)
	data := func(perms, at string, text []byte) {
		var fd string
		if err == nil {
			fd, err = f.data(text)
		}
		add("--perms", perms, "--ro-bind-data", fd, at)
	}
	data("0555", scriptAt, p.Code)
	if b.config.Root == "/" {
		data("0444", "/etc/passwd", []byte("script:x:"+inner+":"+inner+"::"+workAt+":/bin/sh\n"))
		data("0444", "/etc/group", []byte("script:x:"+inner+":\n"))
		data("0444", "/etc/hosts", []byte("127.0.0.1 localhost sandbox\n::1 localhost\n"))
	}
	if err != nil {
		return nil, nil, nil, err
	}
	add("--remount-ro", "/", "--chdir", workAt)
	seccomp, err := f.data(b.filter)
	if err != nil {
		return nil, nil, nil, err
	}
	status, statusFD, err := f.out()
	if err != nil {
		return nil, nil, nil, err
	}
	gate, gateFD, err := f.in()
	if err != nil {
		return nil, nil, nil, err
	}
	add("--seccomp", seccomp, "--json-status-fd", statusFD, "--block-fd", gateFD)
	// Every user of the machine may read a command line, so the environment must not be on it.
	options, err := f.data([]byte(strings.Join(args, "\x00") + "\x00"))
	if err != nil {
		return nil, nil, nil, err
	}
	command, err := commandOf(p)
	return append([]string{"--args", options, "--"}, command...), status, gate, err
}

// commandOf returns what runs in the sandbox.
func commandOf(p *Program) (command []string, err error) {
	if !strings.HasPrefix(string(p.Code), "#!") && !strings.HasPrefix(string(p.Code), "\x7fELF") {
		command = append(command, "/bin/sh")
	}
	command = append(append(command, scriptAt), p.Args...)
	for _, a := range p.Args {
		if strings.ContainsRune(a, 0) {
			return nil, fmt.Errorf("%w: an argument has a zero byte", ErrProgram)
		}
	}
	return command, nil
}

// folders returns the arguments that make what a script has beside its root.
func folders(l Limits) []string {
	return []string{
		// Who could write to the memory of the first process could have it live on when the runner is killed, and with it the script.
		"--proc", "/proc", "--tmpfs", "/proc/1", "--remount-ro", "/proc/1",
		// What is mapped of /dev/zero would be memory of no process. /dev/full reads the same, and cannot be mapped.
		"--dev", "/dev", "--dev-bind", "/dev/full", "/dev/zero",
		"--size", strconv.FormatInt(max(l.Disk/4, 4096), 10), "--tmpfs", sharedAt, "--remount-ro", "/dev",
		"--size", strconv.FormatInt(l.Disk, 10), "--tmpfs", workAt,
	}
}

// environment returns the arguments that give a script its environment.
func environment(own map[string]string) (args []string, err error) {
	all := map[string]string{"PATH": path, "HOME": workAt, "TMPDIR": workAt, "LANG": "C.UTF-8"}
	maps.Copy(all, own)
	for name, value := range all {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return nil, fmt.Errorf("%w: an environment variable has no name, or one with = in it, or a zero byte", ErrProgram)
		}
		args = append(args, "--setenv", name, value)
	}
	return args, nil
}

// root returns the arguments that make the root of a script.
func (b *Bubblewrap) root(network bool) ([]string, error) {
	entries, err := os.ReadDir(b.config.Root)
	if err != nil {
		return nil, fmt.Errorf("read the root for scripts: %w", err)
	}
	own := []string{"proc", "dev", "tmp", "sys", "run", strings.TrimPrefix(scriptAt, "/")}
	var args []string
	for _, e := range entries {
		name, from := e.Name(), filepath.Join(b.config.Root, e.Name())
		// Of this machine's own root a script sees no more than the programs.
		if b.config.Root == "/" && !slices.Contains([]string{"usr", "bin", "sbin"}, name) && !strings.HasPrefix(name, "lib") || slices.Contains(own, name) {
			continue
		}
		if e.Type()&os.ModeSymlink == 0 {
			args = append(args, "--ro-bind", from, "/"+name)
			continue
		}
		to, err := os.Readlink(from)
		if err != nil {
			return nil, fmt.Errorf("read the root for scripts: %w", err)
		}
		args = append(args, "--symlink", to, "/"+name)
	}
	if b.config.Root == "/" {
		for _, shared := range []string{"/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime"} {
			args = append(args, "--ro-bind-try", shared, shared)
		}
		if network {
			for _, shared := range []string{"/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/ssl/certs", "/etc/ca-certificates"} {
				args = append(args, "--ro-bind-try", shared, shared)
			}
		}
	}
	return args, nil
}

// confine gives a process, and all that it starts, the limits that the kernel keeps. The thread that calls it must be the caller's alone: it takes
// the user of the process for its real one for that long, because root without CAP_SYS_RESOURCE may limit no process of another user.
func confine(pid int, l Limits, user *syscall.Credential) error {
	if user != nil {
		defer func() {
			if err := become(0, 0); err != nil {
				// This thread would go on as another user. It ends with its goroutine now, also where the panic is recovered.
				runtime.LockOSThread()
				panic(err)
			}
		}()
		if err := become(int(user.Uid), int(user.Gid)); err != nil {
			return err
		}
	}
	for resource, limit := range map[int]uint64{
		unix.RLIMIT_CORE: 0, unix.RLIMIT_CPU: seconds(l.CPU), unix.RLIMIT_DATA: uint64(l.Memory), unix.RLIMIT_STACK: uint64(min(max(l.Memory/64, 1<<20), 8<<20)),
		unix.RLIMIT_FSIZE: uint64(l.Disk), unix.RLIMIT_NOFILE: maxOpen, unix.RLIMIT_NPROC: uint64(l.Processes + 1), // one is bubblewrap's own
		unix.RLIMIT_MEMLOCK: 64 << 10, unix.RLIMIT_MSGQUEUE: 0, unix.RLIMIT_RTPRIO: 0, unix.RLIMIT_NICE: 0, unix.RLIMIT_SIGPENDING: 1024,
	} {
		if err := unix.Prlimit(pid, resource, &unix.Rlimit{Cur: limit, Max: limit}, nil); err != nil {
			return fmt.Errorf("limit a script: %w", err)
		}
	}
	return yieldTo(pid)
}

// seconds is where the kernel itself ends a process for its use of the processors: somewhat above the limit, because it counts whole ticks, also those
// of which the process had a part.
func seconds(d time.Duration) uint64 { return uint64((d+d/4)/time.Second) + 1 }

// become changes the real user and group of this thread, and of no other.
func become(uid, gid int) error {
	const same = ^uintptr(0)
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(gid), same, same); e != 0 {
		return fmt.Errorf("change the group of a thread: %w", e)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), same, same); e != 0 {
		return fmt.Errorf("change the user of a thread: %w", e)
	}
	return nil
}

// yieldTo makes a process one that the kernel ends first when there is no memory, and that runs after the rest of this machine.
func yieldTo(pid int) error {
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte("1000"), 0); err != nil {
		return fmt.Errorf("make a script the first to go without memory: %w", err)
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, pid, niceness); err != nil {
		return fmt.Errorf("lower the priority of a script: %w", err)
	}
	return nil
}

// niceness is how much a program yields the processor.
const niceness = 10
