package artifact

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// architectures are those whose numbers of system calls are those of this program.
var architectures = map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}

// denyUnixSockets takes the way to local services from the calling thread and all
// that it starts: landlock does not see who connects to a socket in the file
// system. A kernel that cannot do that leaves it to the permissions of the sockets.
func denyUnixSockets() {
	arch, ok := architectures[runtime.GOARCH]
	if !ok {
		return
	}
	const (
		load   = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		above  = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
		answer = unix.BPF_RET | unix.BPF_K

		// Where things are in struct seccomp_data.
		number, architecture, family = 0, 4, 16
		x32                          = 0x40000000 // begins the numbers of another ABI
	)
	filter := []unix.SockFilter{
		{Code: load, K: architecture},
		{Code: equal, K: arch, Jf: 7},
		{Code: load, K: number},
		{Code: above, K: x32, Jt: 5},
		{Code: equal, K: unix.SYS_IO_URING_SETUP, Jt: 4}, // it makes sockets too
		{Code: equal, K: unix.SYS_SOCKET, Jf: 2},
		{Code: load, K: family},
		{Code: equal, K: unix.AF_UNIX, Jt: 1},
		{Code: answer, K: unix.SECCOMP_RET_ALLOW},
		{Code: answer, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EACCES)},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_ = unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
	runtime.KeepAlive(filter)
}
