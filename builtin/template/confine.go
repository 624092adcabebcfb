package template

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/confine"
	"github.com/nomad-lite/nomad-lite/internal/opcount"
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

// StartEvaluatorAndConfineProcess permanently drops system calls and capabilities that the hook does not need: the
// process can no longer start programs, use the network, inspect other processes, or change
// the machine. Of root's capabilities it keeps those for writing a task's file. A process
// that only serves the hook must call StartEvaluatorAndConfineProcess at the start of main:
// StartEvaluatorAndConfineProcess may execute the program again, see confine.KeepProcessCapabilities.
//
// As root it starts this program with evaluatorArgs under the user id that reserveUserID returns, and returns the
// process, in which templates are evaluated; the program calls EvaluatorProcessMain. Otherwise it returns nil.
func StartEvaluatorAndConfineProcess(evaluatorArgs []string, reserveUserID func() (uint32, error)) *EvaluatorProcess {
	evaluator, err := startOrInheritEvaluator(evaluatorArgs, reserveUserID)
	if err != nil {
		hclog.Default().Warn("templates are evaluated by the process that writes their files", "error", err)
	}
	if err := confine.KeepProcessCapabilities(fileWritingCapabilities()...); err != nil {
		hclog.Default().Debug("templates are rendered by a process with all capabilities", "error", err)
	}
	confine.DenyProcessSyscalls(append(confine.ExecAndSystemAdminSyscalls(), confine.InternetSocketSyscalls()...)...)
	return connectEvaluatorAndExitWithIt(evaluator)
}

// evaluatorVariable is the environment variable with the file descriptor of the connection to the
// evaluator process. It passes the connection on when KeepProcessCapabilities executes the program
// again.
const evaluatorVariable = "NOMAD_LITE_TEMPLATE_EVALUATOR"

// startOrInheritEvaluator starts the evaluator process and returns the connection to it; nil without root. In the
// second execution of the program it returns the connection to the process that the first one has started.
func startOrInheritEvaluator(args []string, reserveUserID func() (uint32, error)) (*os.File, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	if text := os.Getenv(evaluatorVariable); text != "" {
		fd, err := strconv.Atoi(text)
		if err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(fd), "evaluator"), os.Unsetenv(evaluatorVariable)
	}
	id, err := reserveUserID()
	if err != nil {
		return nil, err
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	own, other := os.NewFile(uintptr(fds[0]), "evaluator"), os.NewFile(uintptr(fds[1]), "evaluator")
	defer other.Close()
	opcount.Count(opcount.Fork)
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0], cmd.Dir, cmd.Stdin, cmd.Stderr = os.Args[0], "/", other, os.Stderr
	cmd.Env = []string{} // no variables of the plugin: a template sees only the variables of its task
	for _, name := range []string{"TZ", "GODEBUG", "GORACE", "GOCOVERDIR", "GOTRACEBACK"} {
		if value, set := os.LookupEnv(name); set {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: id, Gid: id}}
	err = cmd.Start()
	if err == nil {
		_, err = unix.FcntlInt(own.Fd(), unix.F_SETFD, 0) // the connection must stay open when KeepProcessCapabilities executes the program again
	}
	if err == nil {
		err = os.Setenv(evaluatorVariable, strconv.Itoa(int(own.Fd())))
	}
	if err != nil {
		own.Close() // the evaluator process exits when the connection is closed
		return nil, err
	}
	return own, nil
}

// connectEvaluatorAndExitWithIt returns the process at the other end of a connection, and closes the connection, which
// can be nil. When that process exits, this process exits too, and the agent starts both again.
func connectEvaluatorAndExitWithIt(connection *os.File) *EvaluatorProcess {
	if connection == nil {
		return nil
	}
	_ = os.Unsetenv(evaluatorVariable) // Unsetenv fails only for an invalid name
	conn, err := net.FileConn(connection)
	connection.Close()
	if err != nil {
		hclog.Default().Warn("templates are evaluated by the process that writes their files", "error", err)
		return nil
	}
	return newEvaluatorProcess(conn, func() {
		hclog.Default().Error("the process that evaluates templates has exited")
		os.Exit(1)
	})
}

// EvaluatorProcessMain is the main function of the evaluator process. It permanently drops the system
// calls that it does not need, evaluates templates for the hook's process at the other end of the
// connection, and returns the exit code when the connection is closed.
func EvaluatorProcessMain(connection *os.File, stderr io.Writer) int {
	err := func() error {
		// This process inherits the OOM score of the hook's process, which is protected from the
		// OOM killer until the agent resets the score.
		if err := osprocess.ResetOOMScore(os.Getpid()); err != nil {
			return err
		}
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
			return fmt.Errorf("hide the memory of the process: %w", err)
		}
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{}); err != nil {
			return fmt.Errorf("limit the size of files: %w", err)
		}
		_, _ = time.Now().Zone() // loads the time zone before the threads lose access to the zone file
		conn, err := net.FileConn(connection)
		if err != nil {
			return fmt.Errorf("the hook template starts this command: %w", err)
		}
		connection.Close()
		calls := append(confine.ExecAndSystemAdminSyscalls(), confine.InternetSocketSyscalls()...)
		confine.DenyProcessSyscalls(append(calls, confine.Syscall{Number: unix.SYS_SOCKET, CheckFirstArgument: true, FirstArgument: unix.AF_UNIX})...)
		return serveEvaluations(conn)
	}()
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

// noAccessibleDir is passed to runOnThreadConfinedToDir for calls that need no files. They get a nil root.
const noAccessibleDir = ""

// runOnThreadConfinedToDir calls access on a new thread that can only access files below accessibleDir. The thread
// exits afterwards. On a kernel without Landlock, only os.Root restricts access.
func runOnThreadConfinedToDir(accessibleDir string, access func(*os.Root) error) error {
	return osprocess.RunOnNewThread(func() error { return confineThreadAndCall(accessibleDir, access) })
}

func confineThreadAndCall(accessibleDir string, access func(*os.Root) error) error {
	var root *os.Root
	if accessibleDir != noAccessibleDir {
		var err error
		if root, err = os.OpenRoot(accessibleDir); err != nil {
			return err
		}
		defer root.Close()
	}
	if err := errors.Join(confine.KeepCapabilities(fileAccessCapabilities(accessibleDir)...), restrictThreadWithLandlock(accessibleDir)); err != nil {
		return fmt.Errorf("confine to %q: %w", accessibleDir, err)
	}
	return access(root)
}

// fileAccessCapabilities returns the capabilities that a thread needs to read and write files
// below dir.
func fileAccessCapabilities(dir string) []uint {
	if dir == noAccessibleDir {
		return nil
	}
	return fileWritingCapabilities()
}

// fileWritingCapabilities returns the capabilities for writing a file in a directory of a
// task's user, and for setting the owner and mode that the template block configures.
func fileWritingCapabilities() []uint {
	return []uint{unix.CAP_DAC_OVERRIDE, unix.CAP_CHOWN, unix.CAP_FOWNER, unix.CAP_FSETID}
}

// warnNoLandlockOnce logs at most once per process that the kernel has no
// Landlock.
var warnNoLandlockOnce sync.Once

func restrictThreadWithLandlock(accessibleDir string) error {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		warnNoLandlockOnce.Do(func() {
			hclog.Default().Warn("templates are kept in their directories by this program alone: this kernel has no landlock")
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
	if accessibleDir != noAccessibleDir {
		parent, err := unix.Open(accessibleDir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(parent)
		beneath := unix.LandlockPathBeneathAttr{Allowed_access: handled & landlockAllowedRights, Parent_fd: int32(parent)}
		if _, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, rules, unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&beneath)), 0, 0, 0); errno != 0 {
			return errno
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, rules, 0, 0); errno != 0 {
		return errno
	}
	return nil
}
