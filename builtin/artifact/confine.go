package artifact

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/confine"
)

// ConfineHookProcess permanently drops the system calls and capabilities that neither this process nor
// its downloads need. A process that only serves the hook must call ConfineHookProcess at the start of
// main: ConfineHookProcess may execute the program again, see confine.KeepProcessCapabilities.
func ConfineHookProcess() {
	err := confine.KeepProcessCapabilities(
		unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, // to take ownership of downloaded files, and to give them to a task
		unix.CAP_SETUID, unix.CAP_SETGID, // to start a download with its own user id
		unix.CAP_KILL,       // to kill the processes of a download
		unix.CAP_SYS_PTRACE, // to see processes of other users in a /proc with hidepid
		unix.CAP_SYS_ADMIN,  // to make a PID namespace for a download, and mounts for git
	)
	if err != nil {
		hclog.Default().Debug("artifacts are downloaded by a process with all capabilities", "error", err)
	}
	confine.DenyProcessSyscalls(confine.SystemAdminSyscalls()...)
}

// Landlock access rights of a download.
const (
	landlockReadRights    = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	landlockExecuteRights = unix.LANDLOCK_ACCESS_FS_EXECUTE
	landlockCreateRights  = unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SYM
	landlockWriteRights   = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE |
		unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REFER

	// landlockFileRights are the access rights that apply to files; Landlock rejects the others in
	// a rule for a file.
	landlockFileRights = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_EXECUTE |
		unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE
)

// landlockPaths are the paths that each download can access, if they exist: the
// programs that it may run, with their libraries, and the files for resolving
// and authenticating hosts.
var landlockPaths = []struct {
	path   string
	access uint64
}{
	{"/proc/self/exe", landlockReadRights | landlockExecuteRights},
	{"/usr", landlockReadRights | landlockExecuteRights},
	{"/bin", landlockReadRights | landlockExecuteRights},
	{"/lib", landlockReadRights | landlockExecuteRights},
	{"/lib64", landlockReadRights | landlockExecuteRights},
	{"/etc/ld.so.cache", landlockReadRights},
	{"/etc/resolv.conf", landlockReadRights},
	{"/etc/hosts", landlockReadRights},
	{"/etc/host.conf", landlockReadRights},
	{"/etc/nsswitch.conf", landlockReadRights},
	{"/etc/gai.conf", landlockReadRights},
	{"/etc/services", landlockReadRights},
	{"/etc/passwd", landlockReadRights},
	{"/etc/group", landlockReadRights},
	{"/etc/ssl", landlockReadRights},
	{"/etc/pki", landlockReadRights},
	{"/etc/ca-certificates", landlockReadRights},
	{"/etc/ssh/ssh_config", landlockReadRights},
	{"/etc/ssh/ssh_config.d", landlockReadRights},
	{"/etc/ssh/ssh_known_hosts", landlockReadRights},
	{"/dev/null", landlockReadRights | landlockWriteRights},
	{"/dev/zero", landlockReadRights},
	{"/dev/urandom", landlockReadRights},
	{"/dev/random", landlockReadRights},
}

// errNoLandlock means that the kernel does not support Landlock.
var errNoLandlock = errors.New("this kernel has no landlock")

// restrictThreadWithLandlock restricts the file access of the calling thread, and of processes that
// it starts, to landlockPaths, the extra paths of limits, and stagingDir. If allowProcFS is
// true, it also allows /proc, which a thread needs to make a user namespace.
func restrictThreadWithLandlock(stagingDir *os.File, limits Limits, allowProcFS bool) error {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return errNoLandlock
	}
	handled := newLandlockRulesetAttr(int(abi))
	// Kernels with an older version accept the longer struct if the additional
	// fields are zero.
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&handled)), unsafe.Sizeof(handled), 0)
	if errno != 0 {
		return fmt.Errorf("landlock: %w", errno)
	}
	defer unix.Close(int(fd))

	rules := landlockRuleset{int(fd), handled.Handled_access_fs}
	for _, v := range landlockPaths {
		if err := rules.allowPath(v.path, v.access); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	for _, p := range limits.parseExtraPaths() {
		if err := rules.allowPath(filepath.Clean(p.path), p.landlockRights()); err != nil {
			return fmt.Errorf("filesystem_isolation_extra_paths of the client's artifact block: %w", err)
		}
	}
	if err := rules.allowBeneath(int(stagingDir.Fd()), landlockReadRights|landlockWriteRights|landlockCreateRights); err != nil {
		return err
	}
	if allowProcFS {
		if err := rules.allowPath("/proc", landlockReadRights|landlockWriteRights); err != nil {
			return err
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("landlock: %w", err)
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 {
		return fmt.Errorf("landlock: %w", errno)
	}
	// These calls are denied because Landlock does not restrict connections to unix
	// sockets in the file system.
	confine.DenyThreadSyscalls(
		confine.Syscall{Number: unix.SYS_SOCKET, CheckFirstArgument: true, FirstArgument: unix.AF_UNIX},
		confine.Syscall{Number: unix.SYS_IO_URING_SETUP}, // io_uring can make sockets too
	)
	return nil
}

// newLandlockRulesetAttr returns the access rights that the version abi of Landlock can restrict. A
// download has these rights only for allowed paths.
func newLandlockRulesetAttr(abi int) unix.LandlockRulesetAttr {
	rules := unix.LandlockRulesetAttr{Handled_access_fs: 1<<13 - 1} // all access rights of Landlock ABI 1
	if abi >= 2 {
		rules.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if abi >= 3 {
		rules.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	if abi >= 4 {
		rules.Handled_access_net = unix.LANDLOCK_ACCESS_NET_BIND_TCP // denied, because downloads do not listen
	}
	if abi >= 6 {
		rules.Scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
	}
	return rules
}

// landlockRuleset is a Landlock ruleset that denies access rights except for
// allowed paths.
type landlockRuleset struct {
	rulesetFD             int
	rightsDeniedByDefault uint64 // access rights that are denied except below allowed paths
}

func (r landlockRuleset) allowBeneath(parentFD int, access uint64) error {
	var fileStat unix.Stat_t
	if err := unix.Fstat(parentFD, &fileStat); err != nil {
		return err
	}
	access &= r.rightsDeniedByDefault
	if fileStat.Mode&unix.S_IFMT != unix.S_IFDIR {
		access &= landlockFileRights
	}
	rule := unix.LandlockPathBeneathAttr{Allowed_access: access, Parent_fd: int32(parentFD)}
	if _, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(r.rulesetFD), unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&rule)), 0, 0, 0); errno != 0 {
		return fmt.Errorf("landlock: %w", errno)
	}
	return nil
}

func (r landlockRuleset) allowPath(path string, access uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("landlock: %s: %w", path, err)
	}
	defer unix.Close(fd)
	return r.allowBeneath(fd, access)
}

// landlockRights converts the letters of an extra path to access rights.
func (p extraLandlockPath) landlockRights() uint64 {
	var rights uint64
	for _, letter := range p.accessLetters {
		switch letter {
		case 'r':
			rights |= landlockReadRights
		case 'w':
			rights |= landlockWriteRights
		case 'c':
			rights |= landlockCreateRights
		case 'x':
			rights |= landlockExecuteRights
		}
	}
	return rights
}
