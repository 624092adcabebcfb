package seccomp

import (
	"testing"

	"golang.org/x/sys/unix"
)

// run interprets the filter as the kernel does.
func run(t *testing.T, filter []unix.SockFilter, arch, number, argument uint32) uint32 {
	t.Helper()
	data := map[uint32]uint32{numberOffset: number, archOffset: arch, argumentOffset: argument}
	var a uint32
	for at := 0; at < len(filter); at++ {
		s := filter[at]
		var jumps bool
		switch s.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			a = data[s.K]
			continue
		case unix.BPF_RET | unix.BPF_K:
			return s.K
		case unix.BPF_JMP | unix.BPF_K | unix.BPF_JEQ:
			jumps = a == s.K
		case unix.BPF_JMP | unix.BPF_K | unix.BPF_JGE:
			jumps = a >= s.K
		case unix.BPF_JMP | unix.BPF_K | unix.BPF_JGT:
			jumps = a > s.K
		case unix.BPF_JMP | unix.BPF_K | unix.BPF_JSET:
			jumps = a&s.K != 0
		default:
			t.Fatalf("statement %d has the code %#x", at, s.Code)
		}
		if jumps {
			at += int(s.Jt)
		} else {
			at += int(s.Jf)
		}
	}
	t.Fatal("the filter does not return")
	return 0
}

func TestDefault(t *testing.T) {
	const admin, mknod = 1 << unix.CAP_SYS_ADMIN, 1 << unix.CAP_MKNOD
	const foreignArch = unix.AUDIT_ARCH_I386
	for _, test := range []struct {
		name                   string
		capabilities           uint64
		arch, number, argument uint32
		want                   uint32
	}{
		{"read is allowed", 0, auditArch, unix.SYS_READ, 0, allow.K},
		{"the highest allowed call", 0, auditArch, unix.SYS_REMOVEXATTRAT, 0, allow.K},
		{"mount is denied", 0, auditArch, unix.SYS_MOUNT, 0, deny.K},
		{"mount is denied with another capability", mknod, auditArch, unix.SYS_MOUNT, 0, deny.K},
		{"mount with CAP_SYS_ADMIN", admin, auditArch, unix.SYS_MOUNT, 0, allow.K},
		{"clone without namespaces", 0, auditArch, unix.SYS_CLONE, unix.CLONE_VM | unix.CLONE_VFORK | uint32(unix.SIGCHLD), allow.K},
		{"clone with a user namespace", 0, auditArch, unix.SYS_CLONE, unix.CLONE_NEWUSER | uint32(unix.SIGCHLD), deny.K},
		{"clone with a namespace and CAP_SYS_ADMIN", admin, auditArch, unix.SYS_CLONE, unix.CLONE_NEWNS, allow.K},
		{"clone3 does not exist", 0, auditArch, unix.SYS_CLONE3, 0, unknown.K},
		{"clone3 with CAP_SYS_ADMIN", admin, auditArch, unix.SYS_CLONE3, 0, allow.K},
		{"an internet socket", 0, auditArch, unix.SYS_SOCKET, unix.AF_INET, allow.K},
		{"a socket between AF_ALG and AF_VSOCK", 0, auditArch, unix.SYS_SOCKET, unix.AF_ALG + 1, allow.K},
		{"a socket of virtual machines", 0, auditArch, unix.SYS_SOCKET, unix.AF_VSOCK, deny.K},
		{"a socket of the kernel's cryptography", 0, auditArch, unix.SYS_SOCKET, unix.AF_ALG, deny.K},
		{"the personality of Linux", 0, auditArch, unix.SYS_PERSONALITY, 0, allow.K},
		{"the personality is read", 0, auditArch, unix.SYS_PERSONALITY, 0xffffffff, allow.K},
		{"a personality without randomized addresses", 0, auditArch, unix.SYS_PERSONALITY, 0x40000, deny.K},
		{"a call of another architecture", 0, foreignArch, unix.SYS_READ, 0, kill.K},
		{"a call of the x32 ABI", 0, auditArch, x32Start + unix.SYS_READ, 0, unknown.K},
		{"the keyrings of other tasks", 0, auditArch, unix.SYS_KEYCTL, 0, deny.K},
		{"a call that no kernel has", 0, auditArch, 9999, 0, deny.K},
	} {
		if got := run(t, Default(test.capabilities), test.arch, test.number, test.argument); got != test.want {
			t.Errorf("%s: the filter returns %#x, want %#x", test.name, got, test.want)
		}
	}
}

// The kernel accepts at most 4096 statements.
func TestFilterLength(t *testing.T) {
	if n := len(Default(1<<63 - 1)); n > 1024 {
		t.Errorf("the filter has %d statements", n)
	}
}
