package seccomp

import (
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/idrange"
)

// run interprets the filter as the kernel does.
func run(t testing.TB, filter []unix.SockFilter, arch, number uint32, arguments ...uint32) uint32 {
	t.Helper()
	data := map[uint32]uint32{numberOffset: number, archOffset: arch}
	for n, argument := range arguments {
		data[argumentsOffset+uint32(n)*argumentSize] = argument
	}
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
		case unix.BPF_JMP | unix.BPF_JA:
			at += int(s.K)
			continue
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

func compile(t testing.TB, p Profile) []unix.SockFilter {
	t.Helper()
	filter, err := p.CompileFilter()
	if err != nil {
		t.Fatal(err)
	}
	return filter
}

func TestFilter(t *testing.T) {
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
		{"io_uring, whose operations no filter sees", admin, auditArch, unix.SYS_IO_URING_SETUP, 0, deny.K},
		{"openat2, whose mode no filter sees", admin, auditArch, unix.SYS_OPENAT2, 0, unknown.K},
		{"a call that no kernel has", 0, auditArch, 9999, 0, deny.K},
	} {
		if got := run(t, compile(t, Profile{CapabilityBits: test.capabilities}), test.arch, test.number, test.argument); got != test.want {
			t.Errorf("%s: the filter returns %#x, want %#x", test.name, got, test.want)
		}
	}
}

// wantMode computes the verdict on a call that sets a mode.
func wantMode(flags, mode uint32, hasFlags bool) uint32 {
	const otmpfile, ocreat, suid, sgid = 0o20000000, 0o100, 0o4000, 0o2000
	uses := !hasFlags || flags&ocreat > 0 || flags&otmpfile > 0
	if uses && (mode&suid > 0 || mode&sgid > 0) {
		return deny.K
	}
	return allow.K
}

func TestSetIDBits(t *testing.T) {
	calls := map[uint32]struct {
		arguments int
		hasFlags  bool
	}{
		unix.SYS_FCHMOD: {2, false}, unix.SYS_FCHMODAT: {3, false}, unix.SYS_FCHMODAT2: {3, false}, unix.SYS_MKNODAT: {3, false}, unix.SYS_OPENAT: {4, true},
	}
	for _, c := range fileModeSyscallsOfArch {
		calls[c.syscallNumber] = struct {
			arguments int
			hasFlags  bool
		}{int(c.modeArgIndex) + 1, c.flagsArgIndex > 0}
	}
	filter, open := compile(t, Profile{}), compile(t, Profile{AllowSetuidSetgidBits: true})
	random := newRandom(t)
	for number, c := range calls {
		for range 2000 {
			arguments := []uint32{random.Uint32(), random.Uint32(), random.Uint32(), random.Uint32(), random.Uint32()}
			// Few bits, so that both verdicts are frequent.
			for _, n := range []int{c.arguments - 1, c.arguments - 2} {
				arguments[n] &= random.Uint32() & random.Uint32() & random.Uint32()
			}
			mode, flags := arguments[c.arguments-1], arguments[c.arguments-2]
			if got, want := run(t, filter, auditArch, number, arguments...), wantMode(flags, mode, c.hasFlags); got != want {
				t.Fatalf("call %d, flags %#o, mode %#o: %#x, want %#x", number, flags, mode, got, want)
			}
			if got := run(t, open, auditArch, number, arguments...); got != allow.K {
				t.Fatalf("call %d, mode %#o: %#x, want that it is allowed", number, mode, got)
			}
		}
	}
	if got := run(t, open, auditArch, unix.SYS_OPENAT2); got != allow.K {
		t.Errorf("openat2: %#x", got)
	}
}

// newRandom returns a generator, and prints its seed if the test fails.
func newRandom(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

// randomID returns an id that is often at the end of a range, or -1.
func randomID(random *rand.Rand, set idrange.Set) uint32 {
	if len(set) > 0 && random.IntN(3) > 0 {
		r := set[random.IntN(len(set))]
		return []uint32{r.First - 1, r.First, r.Last, r.Last + 1}[random.IntN(4)]
	}
	return []uint32{0, 1<<32 - 1, random.Uint32(), random.Uint32N(100000)}[random.IntN(4)]
}

func randomRanges(random *rand.Rand) (set idrange.Set) {
	for range random.IntN(maxDeniedRanges + 1) {
		first := []uint32{random.Uint32(), random.Uint32N(3000)}[random.IntN(2)]
		last := first + []uint32{0, random.Uint32N(100), random.Uint32N(1 << 30)}[random.IntN(3)]
		set = append(set, idrange.Range{First: first, Last: max(first, last)})
	}
	return set
}

func TestDeniedIDs(t *testing.T) {
	calls := []struct {
		number, ids uint32
		ofUsers     bool
	}{
		{unix.SYS_SETUID, 1, true}, {unix.SYS_SETREUID, 2, true}, {unix.SYS_SETRESUID, 3, true}, {unix.SYS_SETFSUID, 1, true},
		{unix.SYS_SETGID, 1, false}, {unix.SYS_SETREGID, 2, false}, {unix.SYS_SETRESGID, 3, false}, {unix.SYS_SETFSGID, 1, false},
	}
	random := newRandom(t)
	for range 50 {
		p := Profile{CapabilityBits: random.Uint64(), DeniedUIDs: randomRanges(random), DeniedGIDs: randomRanges(random)}
		mayUID, mayGID := p.CapabilityBits>>7&1 > 0, p.CapabilityBits>>6&1 > 0
		filter := compile(t, p)
		for _, c := range calls {
			may, denied := mayGID, p.DeniedGIDs
			if c.ofUsers {
				may, denied = mayUID, p.DeniedUIDs
			}
			for range 200 {
				want := allow.K
				// The kernel ignores the arguments after the ids, and the upper halves of all.
				arguments := []uint32{randomID(random, denied), randomID(random, denied), randomID(random, denied), random.Uint32()}
				for _, id := range arguments[:c.ids] {
					if may && id != 1<<32-1 && slices.ContainsFunc(denied, func(r idrange.Range) bool { return r.First <= id && id <= r.Last }) {
						want = deny.K
					}
				}
				if got := run(t, filter, auditArch, c.number, arguments...); got != want {
					t.Fatalf("call %d with %d of %d: %#x, want %#x; denied are %v", c.number, c.ids, arguments, got, want, denied)
				}
			}
		}
		for _, size := range []uint32{0, 1, random.Uint32()} {
			want := allow.K
			if mayGID && size > 0 && len(p.DeniedUIDs)+len(p.DeniedGIDs) > 0 {
				want = deny.K
			}
			if got := run(t, filter, auditArch, unix.SYS_SETGROUPS, size); got != want {
				t.Fatalf("setgroups of %d groups: %#x, want %#x", size, got, want)
			}
		}
	}
}

// The kernel accepts at most 4096 statements.
func TestFilterLength(t *testing.T) {
	if n := len(compile(t, Profile{CapabilityBits: 1<<63 - 1})); n > 1024 {
		t.Errorf("the filter has %d statements", n)
	}
	var ranges idrange.Set
	for id := range uint32(maxDeniedRanges) {
		ranges = append(ranges, idrange.Range{First: 3 * id, Last: 3*id + 1})
	}
	p := Profile{CapabilityBits: 1<<63 - 1, DeniedUIDs: ranges, DeniedGIDs: ranges}
	if n := len(compile(t, p)); n > 4096 {
		t.Errorf("the filter with the most ranges has %d statements", n)
	}
	p.DeniedGIDs = append(ranges, idrange.Range{First: 1000, Last: 1000})
	if filter, err := p.CompileFilter(); err == nil {
		t.Errorf("a filter of %d statements for too many ranges", len(filter))
	}
	p.CapabilityBits = 0 // no ids are compared
	compile(t, p)
}

// FuzzDeniedID compares the filter with the set for a single id and range.
func FuzzDeniedID(f *testing.F) {
	f.Add(uint32(0), uint32(999), uint32(0))
	f.Add(uint32(1), uint32(1<<32-1), uint32(1<<32-1))
	f.Fuzz(func(t *testing.T, first, last, id uint32) {
		if last < first {
			return
		}
		denied := idrange.Set{{First: first, Last: last}}
		filter := compile(t, Profile{CapabilityBits: 1 << unix.CAP_SETUID, DeniedUIDs: denied})
		got := run(t, filter, auditArch, unix.SYS_SETRESUID, 1<<32-1, id, 1<<32-1) == deny.K
		if want := id != 1<<32-1 && first <= id && id <= last; got != want {
			t.Errorf("setresuid(-1, %d, -1) with %d-%d denied: %t, want %t", id, first, last, got, want)
		}
	})
}
