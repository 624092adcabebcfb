package confine

import (
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Syscall identifies the system calls to deny: all calls with the Number, or, with CheckFirstArgument, only those whose
// first argument is FirstArgument.
type Syscall struct {
	Number             uint32
	CheckFirstArgument bool
	FirstArgument      uint32
}

// ExecAndSystemAdminSyscalls returns the system calls that start programs, inspect other
// processes or change the machine. A process that only reads and writes files needs none of
// them.
func ExecAndSystemAdminSyscalls() []Syscall {
	return slices.Concat(newSyscalls(unix.SYS_EXECVE, unix.SYS_EXECVEAT), NamespaceSyscalls(), SystemAdminSyscalls())
}

// NamespaceSyscalls returns the system calls unshare and mount, with which a process creates
// namespaces and mounts file systems in them.
func NamespaceSyscalls() []Syscall { return newSyscalls(unix.SYS_UNSHARE, unix.SYS_MOUNT) }

// SystemAdminSyscalls returns the system calls that inspect other processes or change the
// machine. A process that starts programs in new namespaces does not need them.
func SystemAdminSyscalls() []Syscall {
	return newSyscalls(
		unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PROCESS_MADVISE, unix.SYS_PIDFD_GETFD, unix.SYS_KCMP,
		unix.SYS_UMOUNT2, unix.SYS_OPEN_TREE, unix.SYS_MOVE_MOUNT, unix.SYS_FSOPEN, unix.SYS_FSPICK, unix.SYS_FSMOUNT, unix.SYS_MOUNT_SETATTR,
		unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_SETNS, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_FANOTIFY_INIT,
		unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL,
		unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_REBOOT,
		unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_SYSLOG,
		unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME,
		// io_uring can open files and sockets without the system calls that the filter
		// checks.
		unix.SYS_IO_URING_SETUP,
	)
}

// FileOpeningSyscalls returns the system calls that open, create, rename, delete or change files by their paths.
func FileOpeningSyscalls() []Syscall {
	return append(newSyscalls(fileOpeningSyscalls...), newSyscalls(unix.SYS_OPENAT, unix.SYS_OPENAT2, unix.SYS_MKDIRAT, unix.SYS_MKNODAT,
		unix.SYS_UNLINKAT, unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_LINKAT, unix.SYS_SYMLINKAT, unix.SYS_TRUNCATE,
		unix.SYS_FCHMODAT, unix.SYS_FCHMODAT2, unix.SYS_FCHOWNAT, unix.SYS_UTIMENSAT, unix.SYS_SETXATTR, unix.SYS_LSETXATTR,
		unix.SYS_REMOVEXATTR, unix.SYS_LREMOVEXATTR, unix.SYS_SETXATTRAT, unix.SYS_REMOVEXATTRAT)...)
}

// ProcessSignalAndIPCSyscalls returns the system calls with which a process of the same user can be signaled, except tgkill, which Go's
// runtime needs, or can exchange data without an inherited file.
func ProcessSignalAndIPCSyscalls() []Syscall {
	return newSyscalls(unix.SYS_KILL, unix.SYS_TKILL, unix.SYS_RT_SIGQUEUEINFO, unix.SYS_RT_TGSIGQUEUEINFO, unix.SYS_PIDFD_OPEN,
		unix.SYS_PIDFD_SEND_SIGNAL, unix.SYS_SOCKETPAIR, unix.SYS_SHMGET, unix.SYS_MSGGET, unix.SYS_SEMGET, unix.SYS_MQ_OPEN)
}

func newSyscalls(numbers ...uint32) []Syscall {
	calls := make([]Syscall, len(numbers))
	for i, number := range numbers {
		calls[i].Number = number
	}
	return calls
}

// InternetSocketSyscalls returns the calls that create an internet socket.
func InternetSocketSyscalls() []Syscall {
	return []Syscall{
		{Number: unix.SYS_SOCKET, CheckFirstArgument: true, FirstArgument: unix.AF_INET},
		{Number: unix.SYS_SOCKET, CheckFirstArgument: true, FirstArgument: unix.AF_INET6},
	}
}

// auditArchByGOARCH holds the audit architecture of each supported GOARCH. The system call
// numbers in a filter are valid for one architecture only.
var auditArchByGOARCH = map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}

// DenyThreadSyscalls denies calls to the calling thread, and to the threads and processes that
// it starts. The caller must have locked the thread. If the kernel does not support
// filters, DenyThreadSyscalls has no effect.
func DenyThreadSyscalls(calls ...Syscall) { installSeccompFilter(0, calls) }

// DenyProcessSyscalls denies calls to all threads of this process, and to the processes that it starts.
func DenyProcessSyscalls(calls ...Syscall) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	installSeccompFilter(unix.SECCOMP_FILTER_FLAG_TSYNC, calls)
}

func installSeccompFilter(flags uintptr, calls []Syscall) {
	arch, ok := auditArchByGOARCH[runtime.GOARCH]
	if !ok || unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != nil {
		return
	}
	filter := compileSeccompFilter(arch, calls)
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, _ = unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&program)))
	runtime.KeepAlive(filter)
}

// compileSeccompFilter returns a filter program for the kernel. Denied calls, and calls of another
// architecture, fail with EACCES.
func compileSeccompFilter(arch uint32, calls []Syscall) []unix.SockFilter {
	const (
		bpfLoad          = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		bpfJumpIfEqual   = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		bpfJumpIfAtLeast = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
		bpfReturn        = unix.BPF_RET | unix.BPF_K

		// Offsets in struct seccomp_data.
		syscallNumberOffset, architectureOffset, argumentOffset = 0, 4, 16
		x32ABIStart                                             = 0x40000000 // lowest system call number of the x32 ABI
	)
	denied := unix.SockFilter{Code: bpfReturn, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EACCES)}
	filter := []unix.SockFilter{
		{Code: bpfLoad, K: architectureOffset},
		{Code: bpfJumpIfEqual, K: arch, Jt: 1},
		denied,
		{Code: bpfLoad, K: syscallNumberOffset},
		{Code: bpfJumpIfAtLeast, K: x32ABIStart, Jf: 1},
		denied,
	}
	for _, c := range calls {
		if !c.CheckFirstArgument {
			filter = append(filter, unix.SockFilter{Code: bpfJumpIfEqual, K: c.Number, Jf: 1}, denied)
			continue
		}
		filter = append(filter,
			unix.SockFilter{Code: bpfJumpIfEqual, K: c.Number, Jf: 4},
			unix.SockFilter{Code: bpfLoad, K: argumentOffset},
			unix.SockFilter{Code: bpfJumpIfEqual, K: c.FirstArgument, Jf: 1},
			denied,
			unix.SockFilter{Code: bpfLoad, K: syscallNumberOffset})
	}
	return append(filter, unix.SockFilter{Code: bpfReturn, K: unix.SECCOMP_RET_ALLOW})
}
