package seccomp

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/idrange"
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

// Offsets in struct seccomp_data. An argument has 64 bits. The filter loads the lower
// half: the kernel uses only 32 bits of the checked arguments, or all their flags are in the lower
// half.
const numberOffset, archOffset, argumentsOffset, argumentSize = 0, 4, 16, 8

// x32Start is the lowest number of the system calls of the x32 ABI.
const x32Start = 0x40000000

// namespaceFlags are the flags of clone(2) that make a namespace.
const namespaceFlags = unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP

var (
	allow      = bpfStatement(unix.BPF_RET|unix.BPF_K, unix.SECCOMP_RET_ALLOW)
	deny       = bpfStatement(unix.BPF_RET|unix.BPF_K, unix.SECCOMP_RET_ERRNO|uint32(unix.EPERM))
	unknown    = bpfStatement(unix.BPF_RET|unix.BPF_K, unix.SECCOMP_RET_ERRNO|uint32(unix.ENOSYS))
	kill       = bpfStatement(unix.BPF_RET|unix.BPF_K, unix.SECCOMP_RET_KILL_PROCESS)
	loadNumber = bpfStatement(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, numberOffset)
	loadArch   = bpfStatement(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, archOffset)
)

func bpfStatement(code uint16, k uint32) unix.SockFilter { return unix.SockFilter{Code: code, K: k} }

func loadArgumentStatement(index uint32) unix.SockFilter {
	return bpfStatement(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, argumentsOffset+index*argumentSize)
}

// conditionalJump returns a conditional jump, which skips skipIfTrue statements if the condition is
// true for k, else skipIfFalse statements.
func conditionalJump(condition uint16, k uint32, skipIfTrue, skipIfFalse uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | condition, K: k, Jt: skipIfTrue, Jf: skipIfFalse}
}

// Profile has the properties of a task that determine its filter.
type Profile struct {
	// CapabilityBits are those that the task can have, a set with bit n for capability n.
	CapabilityBits uint64

	// AllowSetuidSetgidBits means that the task can give set-user-ID and set-group-ID bits to files.
	AllowSetuidSetgidBits bool

	// DeniedUIDs and DeniedGIDs are ids that the task cannot take by setuid(2), setgid(2) and the calls like them.
	// They have an effect if the task can have the capabilities that these calls need. setgroups(2)
	// can then only remove groups, because a filter cannot read its list.
	DeniedUIDs, DeniedGIDs idrange.Set
}

// maxDeniedRanges limits the statements for ids: the kernel accepts 4096, and setresuid(2) compares each range
// with three arguments.
const maxDeniedRanges = 64

// CompileFilter returns the system call filter of the profile. Calls that the filter does not allow fail
// with EPERM. clone3 does not exist for the task, because a filter cannot see its flags, and
// programs then call clone; neither does openat2, unless the task can set all bits of modes. A
// process that makes a call of another architecture, such as i386, is killed.
//
// It returns an error if the denied ids are too many ranges for a filter.
func (p Profile) CompileFilter() ([]unix.SockFilter, error) {
	calls := slices.Concat(allowed[:], allowedOfArch[:])
	for _, c := range callsOfCapability {
		if p.hasCapability(c.capability) {
			calls = append(calls, c.calls...)
		}
	}
	filter := []unix.SockFilter{
		loadArch, conditionalJump(unix.BPF_JEQ, auditArch, 1, 0), kill,
		loadNumber, conditionalJump(unix.BPF_JGE, x32Start, 0, 1), unknown,
	}
	if !p.AllowSetuidSetgidBits {
		for _, c := range slices.Concat(fileModeSyscalls[:], fileModeSyscallsOfArch[:]) {
			filter = appendSyscallCheck(filter, c.syscallNumber, c.buildModeCheckStatements()...)
		}
		filter = appendSyscallCheck(filter, unix.SYS_OPENAT2, unknown) // a filter cannot read its struct open_how
	}
	if !p.hasCapability(unix.CAP_SYS_ADMIN) {
		filter = appendSyscallCheck(filter, unix.SYS_CLONE3, unknown)
		filter = appendSyscallCheck(filter, unix.SYS_CLONE, loadArgumentStatement(0), conditionalJump(unix.BPF_JSET, namespaceFlags, 0, 1), deny, allow)
	}
	filter = appendSyscallCheck(filter, unix.SYS_SOCKET, loadArgumentStatement(0),
		conditionalJump(unix.BPF_JEQ, unix.AF_ALG, 1, 0), conditionalJump(unix.BPF_JEQ, unix.AF_VSOCK, 0, 1), deny, allow)
	filter = appendSyscallCheck(filter, unix.SYS_PERSONALITY, loadArgumentStatement(0),
		conditionalJump(unix.BPF_JEQ, 0, 5, 0), conditionalJump(unix.BPF_JEQ, 0x8, 4, 0), conditionalJump(unix.BPF_JEQ, 0x20000, 3, 0),
		conditionalJump(unix.BPF_JEQ, 0x20008, 2, 0), conditionalJump(unix.BPF_JEQ, 0xffffffff, 1, 0), deny, allow)
	filter, err := p.appendDeniedIDChecks(filter)
	if err != nil {
		return nil, err
	}
	for _, r := range joinToRanges(calls) {
		filter = append(filter, conditionalJump(unix.BPF_JGT, r.last, 2, 0), conditionalJump(unix.BPF_JGE, r.first, 0, 1), allow)
	}
	return append(filter, deny), nil
}

func (p Profile) hasCapability(capability uint) bool { return p.CapabilityBits&(1<<capability) != 0 }

// appendSyscallCheck appends the statements that decide about one call. Each path through the statements
// must end with a return statement.
func appendSyscallCheck(filter []unix.SockFilter, syscallNumber uint32, checkStatements ...unix.SockFilter) []unix.SockFilter {
	if len(checkStatements) <= 255 {
		filter = append(filter, conditionalJump(unix.BPF_JEQ, syscallNumber, 0, uint8(len(checkStatements))))
	} else { // a conditional jump can skip at most 255 statements
		filter = append(filter, conditionalJump(unix.BPF_JEQ, syscallNumber, 1, 0), bpfStatement(unix.BPF_JMP|unix.BPF_JA, uint32(len(checkStatements))))
	}
	return append(filter, checkStatements...)
}

// fileModeSyscall is a system call that sets the mode of a file. modeArgIndex and flagsArgIndex are the indexes of
// its arguments.
type fileModeSyscall struct {
	syscallNumber, modeArgIndex uint32
	flagsArgIndex               uint32 // only for calls like open(2), which use the mode only with createFlags; 0 means that the call has no such flags
}

// fileModeSyscalls are the calls that every architecture has. mkdirat is not among them: the kernel ignores
// setIDBits for directories that it makes.
var fileModeSyscalls = [...]fileModeSyscall{
	{syscallNumber: unix.SYS_OPENAT, modeArgIndex: 3, flagsArgIndex: 2},
	{syscallNumber: unix.SYS_FCHMOD, modeArgIndex: 1}, {syscallNumber: unix.SYS_FCHMODAT, modeArgIndex: 2}, {syscallNumber: unix.SYS_FCHMODAT2, modeArgIndex: 2},
	{syscallNumber: unix.SYS_MKNODAT, modeArgIndex: 2},
}

const (
	setIDBits = unix.S_ISUID | unix.S_ISGID

	// createFlags are the flags of open(2) with which it uses the mode. unix.O_TMPFILE includes O_DIRECTORY.
	createFlags = unix.O_CREAT | unix.O_TMPFILE&^unix.O_DIRECTORY
)

func (c fileModeSyscall) buildModeCheckStatements() []unix.SockFilter {
	check := []unix.SockFilter{loadArgumentStatement(c.modeArgIndex), conditionalJump(unix.BPF_JSET, setIDBits, 0, 1), deny, allow}
	if c.flagsArgIndex == 0 {
		return check
	}
	return append([]unix.SockFilter{loadArgumentStatement(c.flagsArgIndex), conditionalJump(unix.BPF_JSET, createFlags, 1, 0), allow}, check...)
}

// idCalls are the calls that take ids as their first arguments.
var idCalls = []struct {
	capability uint
	ids        uint32
	numbers    []uint32
}{
	{unix.CAP_SETUID, 1, []uint32{unix.SYS_SETUID, unix.SYS_SETFSUID}},
	{unix.CAP_SETUID, 2, []uint32{unix.SYS_SETREUID}},
	{unix.CAP_SETUID, 3, []uint32{unix.SYS_SETRESUID}},
	{unix.CAP_SETGID, 1, []uint32{unix.SYS_SETGID, unix.SYS_SETFSGID}},
	{unix.CAP_SETGID, 2, []uint32{unix.SYS_SETREGID}},
	{unix.CAP_SETGID, 3, []uint32{unix.SYS_SETRESGID}},
}

// appendDeniedIDChecks appends the comparison of ids with the denied ids. A task without the capabilities
// needs no comparison, because it cannot take other ids.
func (p Profile) appendDeniedIDChecks(filter []unix.SockFilter) ([]unix.SockFilter, error) {
	denied := map[uint]idrange.Set{unix.CAP_SETUID: p.DeniedUIDs.MergeRanges(), unix.CAP_SETGID: p.DeniedGIDs.MergeRanges()}
	for _, c := range idCalls {
		ranges := denied[c.capability]
		if !p.hasCapability(c.capability) || len(ranges) == 0 {
			continue
		}
		if len(ranges) > maxDeniedRanges {
			return nil, fmt.Errorf("the denied ids are %d ranges, and the filter of a task with the capability setuid or setgid can compare %d: deny longer ranges, or remove the capabilities from the task", len(ranges), maxDeniedRanges)
		}
		check := buildDeniedIDArgsCheck(c.ids, ranges)
		for _, number := range c.numbers {
			filter = appendSyscallCheck(filter, number, check...)
		}
	}
	if p.hasCapability(unix.CAP_SETGID) && len(p.DeniedUIDs)+len(p.DeniedGIDs) > 0 {
		filter = appendSyscallCheck(filter, unix.SYS_SETGROUPS, loadArgumentStatement(0), conditionalJump(unix.BPF_JEQ, 0, 0, 1), allow, deny)
	}
	return filter, nil
}

// buildDeniedIDArgsCheck returns statements that compare the first arguments of a call with deniedRanges, which must be
// sorted. The argument -1 is allowed, because it means that the call does not change the id.
func buildDeniedIDArgsCheck(idArgCount uint32, deniedRanges idrange.Set) []unix.SockFilter {
	var check []unix.SockFilter
	for n := range idArgCount {
		check = append(check, loadArgumentStatement(n), conditionalJump(unix.BPF_JEQ, 0xffffffff, uint8(3*len(deniedRanges)), 0))
		for _, r := range deniedRanges {
			check = append(check, conditionalJump(unix.BPF_JGT, r.Last, 2, 0), conditionalJump(unix.BPF_JGE, r.First, 0, 1), deny)
		}
	}
	return append(check, allow)
}

// syscallNumberRange is a range of allowed system call numbers.
type syscallNumberRange struct{ first, last uint32 }

// joinToRanges joins consecutive numbers, so that the filter is short.
func joinToRanges(numbers []uint32) (ranges []syscallNumberRange) {
	slices.Sort(numbers)
	for _, n := range numbers {
		if last := len(ranges) - 1; last >= 0 && n <= ranges[last].last+1 {
			ranges[last].last = n
			continue
		}
		ranges = append(ranges, syscallNumberRange{n, n})
	}
	return ranges
}
