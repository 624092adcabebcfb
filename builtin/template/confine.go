package template

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/confine"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// landlockABI1Rights are all access rights of Landlock's first version, and landlockAllowedRights
// are the access rights that a confined thread has below its directory.
const (
	landlockABI1Rights    = unix.LANDLOCK_ACCESS_FS_MAKE_SYM<<1 - 1
	landlockAllowedRights = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR | unix.LANDLOCK_ACCESS_FS_WRITE_FILE |
		unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE |
		unix.LANDLOCK_ACCESS_FS_REFER | unix.LANDLOCK_ACCESS_FS_TRUNCATE
)

// ConfineHookProcess permanently drops system calls and capabilities that the hook does not need: the process can no longer start
// programs, use the network, inspect other processes, or change the machine. Of root's capabilities it keeps those for writing a
// task's file. A process that only serves the hook must call it at the start of main, after it has started its launcher of
// evaluators: ConfineHookProcess may execute the program again, see confine.KeepProcessCapabilities.
func ConfineHookProcess() {
	if err := confine.KeepProcessCapabilities(fileWritingCapabilities()...); err != nil {
		hclog.Default().Debug("templates are rendered by a process with all capabilities", "error", err)
	}
	confine.DenyProcessSyscalls(append(confine.ExecAndSystemAdminSyscalls(), confine.InternetSocketSyscalls()...)...)
}

// runOnThreadConfinedToDir calls access on a new thread that can only access files below accessibleDir. The thread
// exits afterwards. On a kernel without Landlock, only os.Root restricts access.
func runOnThreadConfinedToDir(accessibleDir string, access func(*os.Root) error) error {
	return osprocess.RunOnNewThread(func() error { return confineThreadAndCall(accessibleDir, access) })
}

func confineThreadAndCall(accessibleDir string, access func(*os.Root) error) error {
	root, err := os.OpenRoot(accessibleDir)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := errors.Join(confine.KeepCapabilities(fileWritingCapabilities()...), restrictThreadWithLandlock(accessibleDir)); err != nil {
		return fmt.Errorf("confine to %q: %w", accessibleDir, err)
	}
	return access(root)
}

// fileWritingCapabilities returns the capabilities for writing a file in a directory of a
// task's user, and for setting the owner and mode that the template block configures.
func fileWritingCapabilities() []uint {
	return []uint{unix.CAP_DAC_OVERRIDE, unix.CAP_CHOWN, unix.CAP_FOWNER, unix.CAP_FSETID}
}

// warnNoLandlockOnce limits the warning about a kernel without Landlock to one per process.
var warnNoLandlockOnce sync.Once

func restrictThreadWithLandlock(accessibleDir string) error {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		warnNoLandlockOnce.Do(func() {
			hclog.Default().Warn("kernel without Landlock: only path checks confine templates to their directories")
		})
		return nil
	}
	handled := uint64(landlockABI1Rights)
	for since, access := range map[uintptr]uint64{
		2: unix.LANDLOCK_ACCESS_FS_REFER, 3: unix.LANDLOCK_ACCESS_FS_TRUNCATE, 5: unix.LANDLOCK_ACCESS_FS_IOCTL_DEV,
	} {
		if version >= since {
			handled |= access
		}
	}
	attr := unix.LandlockRulesetAttr{Handled_access_fs: handled}
	rules, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr.Handled_access_fs), 0)
	if errno != 0 {
		return errno
	}
	defer unix.Close(int(rules))
	parent, err := unix.Open(accessibleDir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	beneath := unix.LandlockPathBeneathAttr{Allowed_access: handled & landlockAllowedRights, Parent_fd: int32(parent)}
	if _, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, rules, unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&beneath)), 0, 0, 0); errno != 0 {
		return errno
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, rules, 0, 0); errno != 0 {
		return errno
	}
	return nil
}
