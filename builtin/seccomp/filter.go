package seccomp

import (
	"slices"

	"golang.org/x/sys/unix"
)

// callsOfCapability are the calls that a task can make if it can have the capability.
var callsOfCapability = []struct {
	capability uint
	calls      []uint32
}{
	{unix.CAP_SYS_ADMIN, []uint32{
		unix.SYS_BPF, unix.SYS_CLONE, unix.SYS_CLONE3, unix.SYS_FANOTIFY_INIT, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSOPEN, unix.SYS_FSPICK,
		unix.SYS_LOOKUP_DCOOKIE, unix.SYS_LSM_GET_SELF_ATTR, unix.SYS_LSM_LIST_MODULES, unix.SYS_LSM_SET_SELF_ATTR, unix.SYS_MOUNT,
		unix.SYS_MOUNT_SETATTR, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE, unix.SYS_PERF_EVENT_OPEN, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD,
		unix.SYS_SETDOMAINNAME, unix.SYS_SETHOSTNAME, unix.SYS_SETNS, unix.SYS_SYSLOG, unix.SYS_UMOUNT2, unix.SYS_UNSHARE,
	}},
	{unix.CAP_DAC_READ_SEARCH, []uint32{unix.SYS_OPEN_BY_HANDLE_AT}},
	{unix.CAP_SYS_BOOT, []uint32{unix.SYS_REBOOT}},
	{unix.CAP_SYS_CHROOT, []uint32{unix.SYS_CHROOT}},
	{unix.CAP_SYS_MODULE, []uint32{unix.SYS_DELETE_MODULE, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE}},
	{unix.CAP_SYS_PACCT, []uint32{unix.SYS_ACCT}},
	{unix.CAP_SYS_PTRACE, []uint32{unix.SYS_KCMP, unix.SYS_PIDFD_GETFD, unix.SYS_PROCESS_MADVISE}},
	{unix.CAP_SYS_RAWIO, rawIOCalls},
	{unix.CAP_SYS_TIME, []uint32{unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME}},
	{unix.CAP_SYS_TTY_CONFIG, []uint32{unix.SYS_VHANGUP}},
	{unix.CAP_SYS_NICE, []uint32{unix.SYS_GET_MEMPOLICY, unix.SYS_MBIND, unix.SYS_SET_MEMPOLICY, unix.SYS_SET_MEMPOLICY_HOME_NODE}},
	{unix.CAP_SYSLOG, []uint32{unix.SYS_SYSLOG}},
	{unix.CAP_BPF, []uint32{unix.SYS_BPF}},
	{unix.CAP_PERFMON, []uint32{unix.SYS_PERF_EVENT_OPEN}},
}

// Offsets in struct seccomp_data.
const numberOffset, archOffset, argumentOffset = 0, 4, 16

// x32Start is the lowest number of the system calls of the x32 ABI.
const x32Start = 0x40000000

// namespaceFlags are the flags of clone(2) that make a namespace.
const namespaceFlags = unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP

var (
	allow      = statement(unix.BPF_RET|unix.BPF_K, unix.SECCOMP_RET_ALLOW)
	deny       = statement(unix.BPF_RET|unix.BPF_K, unix.SECCOMP_RET_ERRNO|uint32(unix.EPERM))
	unknown    = statement(unix.BPF_RET|unix.BPF_K, unix.SECCOMP_RET_ERRNO|uint32(unix.ENOSYS))
	kill       = statement(unix.BPF_RET|unix.BPF_K, unix.SECCOMP_RET_KILL_PROCESS)
	loadNumber = statement(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, numberOffset)
	loadArch   = statement(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, archOffset)

	// loadArgument loads the lower half of the first argument. The checked arguments have
	// 32 bits in the kernel, or flags in the lower half only.
	loadArgument = statement(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, argumentOffset)
)

func statement(code uint16, k uint32) unix.SockFilter { return unix.SockFilter{Code: code, K: k} }

// jump is a conditional jump: it skips the number of statements for its result.
func jump(condition uint16, k uint32, ifTrue, ifFalse uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | condition, K: k, Jt: ifTrue, Jf: ifFalse}
}

// Default returns the filter of a task that can have the capabilities, a set with bit n for
// capability n. Other calls fail with EPERM. clone3 does not exist for the task, because a
// filter cannot see its flags, and programs then call clone. A process that makes a call of
// another architecture, such as i386, is killed.
func Default(capabilities uint64) []unix.SockFilter {
	calls := slices.Concat(allowed[:], allowedOfArch[:])
	for _, c := range callsOfCapability {
		if capabilities&(1<<c.capability) != 0 {
			calls = append(calls, c.calls...)
		}
	}
	filter := []unix.SockFilter{
		loadArch, jump(unix.BPF_JEQ, auditArch, 1, 0), kill,
		loadNumber, jump(unix.BPF_JGE, x32Start, 0, 1), unknown,
	}
	if capabilities&(1<<unix.CAP_SYS_ADMIN) == 0 {
		filter = append(filter, jump(unix.BPF_JEQ, unix.SYS_CLONE3, 0, 1), unknown)
		filter = appendArgumentCheck(filter, unix.SYS_CLONE, jump(unix.BPF_JSET, namespaceFlags, 0, 1), deny, allow)
	}
	filter = appendArgumentCheck(filter, unix.SYS_SOCKET,
		jump(unix.BPF_JEQ, unix.AF_ALG, 1, 0), jump(unix.BPF_JEQ, unix.AF_VSOCK, 0, 1), deny, allow)
	filter = appendArgumentCheck(filter, unix.SYS_PERSONALITY,
		jump(unix.BPF_JEQ, 0, 5, 0), jump(unix.BPF_JEQ, 0x8, 4, 0), jump(unix.BPF_JEQ, 0x20000, 3, 0),
		jump(unix.BPF_JEQ, 0x20008, 2, 0), jump(unix.BPF_JEQ, 0xffffffff, 1, 0), deny, allow)
	for _, r := range toRanges(calls) {
		filter = append(filter, jump(unix.BPF_JGT, r.last, 2, 0), jump(unix.BPF_JGE, r.first, 0, 1), allow)
	}
	return append(filter, deny)
}

// appendArgumentCheck appends a check of the first argument of a call. The check must end with a
// return statement.
func appendArgumentCheck(filter []unix.SockFilter, call uint32, check ...unix.SockFilter) []unix.SockFilter {
	filter = append(filter, jump(unix.BPF_JEQ, call, 0, uint8(len(check)+1)), loadArgument)
	return append(filter, check...)
}

// numberRange is a range of system call numbers, all of which are allowed.
type numberRange struct{ first, last uint32 }

// toRanges joins consecutive numbers, so that the filter is short.
func toRanges(numbers []uint32) (ranges []numberRange) {
	slices.Sort(numbers)
	for _, n := range numbers {
		if last := len(ranges) - 1; last >= 0 && n <= ranges[last].last+1 {
			ranges[last].last = n
			continue
		}
		ranges = append(ranges, numberRange{n, n})
	}
	return ranges
}
