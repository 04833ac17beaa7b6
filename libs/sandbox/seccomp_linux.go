//go:build amd64 || arm64

package sandbox

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Offsets in the kernel's struct seccomp_data, and what a filter answers; see seccomp(2).
const (
	offsetCall = 0
	offsetArch = 4
	offsetArg0 = 16
	offsetArg1 = 24
	offsetArg3 = 40

	answerAllow = 0x7fff0000
	answerKill  = 0x80000000
	answerErrno = 0x00050000

	x32Bit = 0x40000000 // marks the calls of the x32 interface
)

// refused are the system calls that no script needs, and through which it could get around a limit or reach a part of the kernel that namespaces do
// not divide. Memory of memfd_create and shmget belongs to no process, so that no limit would see it; nor would it see what vmsplice has put into a pipe.
func refused() []uint32 {
	return []uint32{
		unix.SYS_MEMFD_CREATE, unix.SYS_MEMFD_SECRET, unix.SYS_VMSPLICE, unix.SYS_SHMGET, unix.SYS_SHMAT, unix.SYS_MSGGET, unix.SYS_SEMGET,
		unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
		unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_FANOTIFY_INIT,
		unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PIDFD_GETFD, unix.SYS_KCMP,
		unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY,
		unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT,
		unix.SYS_OPEN_TREE, unix.SYS_MOVE_MOUNT, unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR,
		unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_QUOTACTL,
		unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD, unix.SYS_REBOOT, unix.SYS_SWAPON, unix.SYS_SWAPOFF,
		unix.SYS_SYSLOG, unix.SYS_ACCT, unix.SYS_LOOKUP_DCOOKIE, unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_ADJTIMEX,
	}
}

// families are the kinds of sockets that a script may open. Others, such as those to the hypervisor, are not divided by a network namespace.
func families() []uint32 {
	return []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}
}

// spaces are the flags of clone that make namespaces.
const spaces = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

// filter returns a seccomp filter, as the kernel reads it. What is refused fails with EPERM; clone3, whose flags no filter can read, with ENOSYS,
// after which C libraries use clone. Calls of another architecture end the program.
func filter() ([]byte, error) {
	refuse := func(errno uint32) bpf.Instruction { return bpf.RetConstant{Val: answerErrno | errno} }
	is := func(value uint32, then ...bpf.Instruction) []bpf.Instruction {
		return append([]bpf.Instruction{bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: value, SkipTrue: uint8(len(then))}}, then...)
	}
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offsetArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: auditArch, SkipTrue: 1},
		bpf.RetConstant{Val: answerKill},
		bpf.LoadAbsolute{Off: offsetCall, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpLessThan, Val: x32Bit, SkipTrue: 1},
		bpf.RetConstant{Val: answerKill},
	}
	for _, call := range refused() {
		program = append(program, is(call, refuse(uint32(unix.EPERM)))...)
	}
	program = append(program, is(unix.SYS_CLONE3, refuse(uint32(unix.ENOSYS)))...)
	program = append(program, is(unix.SYS_CLONE,
		bpf.LoadAbsolute{Off: offsetArg0, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: spaces, SkipTrue: 1},
		refuse(uint32(unix.EPERM)),
		bpf.RetConstant{Val: answerAllow})...)
	program = append(program, is(unix.SYS_IOCTL, // TIOCSTI types on the terminal of others, TIOCLINUX pastes there
		bpf.LoadAbsolute{Off: offsetArg1, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.TIOCSTI, SkipTrue: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.TIOCLINUX, SkipTrue: 1},
		refuse(uint32(unix.EPERM)),
		bpf.RetConstant{Val: answerAllow})...)
	program = append(program, is(unix.SYS_MMAP, // memory that is shared stays when no process has it mapped any more, as MADV_DONTNEED leaves it
		bpf.LoadAbsolute{Off: offsetArg3, Size: 4},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: unix.MAP_TYPE | unix.MAP_ANONYMOUS},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.MAP_SHARED | unix.MAP_ANONYMOUS, SkipTrue: 1},
		refuse(uint32(unix.EPERM)),
		bpf.RetConstant{Val: answerAllow})...)
	sockets := []bpf.Instruction{bpf.LoadAbsolute{Off: offsetArg0, Size: 4}}
	for _, family := range families() {
		sockets = append(sockets, is(family, bpf.RetConstant{Val: answerAllow})...)
	}
	sockets = append(sockets, refuse(uint32(unix.EAFNOSUPPORT)))
	for _, call := range []uint32{unix.SYS_SOCKET, unix.SYS_SOCKETPAIR} {
		program = append(program, is(call, sockets...)...)
	}
	program = append(program, bpf.RetConstant{Val: answerAllow})
	raw, err := bpf.Assemble(program)
	if err != nil {
		return nil, fmt.Errorf("assemble the filter of system calls: %w", err)
	}
	var text bytes.Buffer
	for _, i := range raw {
		if err := binary.Write(&text, binary.NativeEndian, struct {
			Code   uint16
			JT, JF uint8
			K      uint32
		}{i.Op, i.Jt, i.Jf, i.K}); err != nil {
			return nil, err
		}
	}
	return text.Bytes(), nil
}
