package process

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// RlimitInfinity is no limit, as a value of an [Rlimit].
const RlimitInfinity = uint64(unix.RLIM_INFINITY)

// Rlimit is a limit of setrlimit(2). The unit depends on the resource.
type Rlimit struct {
	Soft uint64 `codec:"soft"` // limit that the kernel enforces; the process can raise it up to Hard
	Hard uint64 `codec:"hard"`
}

// rlimitResources has the resources by the names that prlimit(1) and container engines use.
var rlimitResources = map[string]int{
	"as":         unix.RLIMIT_AS,
	"core":       unix.RLIMIT_CORE,
	"cpu":        unix.RLIMIT_CPU,
	"data":       unix.RLIMIT_DATA,
	"fsize":      unix.RLIMIT_FSIZE,
	"locks":      unix.RLIMIT_LOCKS,
	"memlock":    unix.RLIMIT_MEMLOCK,
	"msgqueue":   unix.RLIMIT_MSGQUEUE,
	"nice":       unix.RLIMIT_NICE,
	"nofile":     unix.RLIMIT_NOFILE,
	"nproc":      unix.RLIMIT_NPROC,
	"rss":        unix.RLIMIT_RSS,
	"rtprio":     unix.RLIMIT_RTPRIO,
	"rttime":     unix.RLIMIT_RTTIME,
	"sigpending": unix.RLIMIT_SIGPENDING,
	"stack":      unix.RLIMIT_STACK,
}

func checkRlimits(limits map[string]Rlimit) error {
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		if _, ok := rlimitResources[name]; !ok {
			return fmt.Errorf("rlimit %q is unknown; possible are %s", name, strings.Join(slices.Sorted(maps.Keys(rlimitResources)), ", "))
		}
		if l := limits[name]; l.Soft > l.Hard {
			return fmt.Errorf("rlimit %q: the soft limit %d exceeds the hard limit %d", name, l.Soft, l.Hard)
		}
	}
	return nil
}

// forkWithRlimits calls fork, and sets the limits of the child before its program runs. If a limit
// cannot be set, it kills the child, which the caller must reap. The goroutine must be locked to
// its thread, because only the thread that has forked the child can trace it.
func forkWithRlimits(sys *syscall.SysProcAttr, limits map[string]Rlimit, fork func() (pid int, err error)) error {
	sys.Ptrace = true // the child stops when the kernel has loaded its program
	pid, err := fork()
	if err != nil {
		return err
	}
	if err := setRlimitsOfTracedChild(pid, limits); err != nil {
		unix.Kill(pid, unix.SIGKILL)
		return fmt.Errorf("%v", err) // %v hides the errno, for which the caller would try the fork again
	}
	return nil
}

// setRlimitsOfTracedChild waits until a traced child has loaded its program, sets its limits, and lets it
// run. It returns nil for a child that is killed in the meantime.
func setRlimitsOfTracedChild(pid int, limits map[string]Rlimit) error {
	for {
		// WNOWAIT does not reap a child that was killed: its parent's Wait needs the exit status.
		_, status, err := osprocess.Waitid(unix.P_PID, pid, unix.WEXITED|unix.WSTOPPED|unix.WNOWAIT)
		if err != nil {
			return fmt.Errorf("wait for the start of process %d: %w", pid, err)
		}
		if status.Signal == int(unix.SIGTRAP) {
			break
		}
		if err := unix.PtraceCont(pid, status.Signal); err == unix.ESRCH {
			return nil // the child has ended
		} else if err != nil {
			return fmt.Errorf("continue process %d: %w", pid, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		l := unix.Rlimit{Cur: limits[name].Soft, Max: limits[name].Hard}
		if err := unix.Prlimit(pid, rlimitResources[name], &l, nil); err != nil && err != unix.ESRCH {
			return fmt.Errorf("set rlimit %q to %d, %d: %w", name, l.Cur, l.Max, err)
		}
	}
	if err := unix.PtraceDetach(pid); err != nil && err != unix.ESRCH {
		return fmt.Errorf("continue process %d: %w", pid, err)
	}
	return nil
}
