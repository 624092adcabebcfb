package evaluators

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/builtin/template/evaluate"
	"github.com/nomad-lite/nomad-lite/internal/confine"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// LauncherMain is the main function of the launcher, whose standard input is the connection to the hook's process. It starts
// this program with evaluatorArgs, with which it calls EvaluatorMain, and returns the exit code when the connection is closed.
func LauncherMain(connection *os.File, evaluatorArgs []string, stderr io.Writer) int {
	err := func() error {
		// This process inherits the OOM score of the hook's process, which is protected from the OOM killer until the agent
		// resets the score.
		if err := osprocess.ResetOOMScore(os.Getpid()); err != nil {
			return err
		}
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
			return fmt.Errorf("hide the memory of the process: %w", err)
		}
		confine.DenyProcessSyscalls(append(confine.SystemAdminSyscalls(), confine.InternetSocketSyscalls()...)...)
		return serveLaunches(connection, evaluatorArgs)
	}()
	return exitCode(err, stderr)
}

// EvaluatorMain is the main function of an evaluator, whose standard input is the connection to the hook's process. It gives up
// files, programs, the network and all system calls that change the machine, evaluates the templates that it receives, and
// returns the exit code when the connection is closed.
func EvaluatorMain(connection *os.File, stderr io.Writer) int {
	conn, err := net.FileConn(connection)
	if err != nil {
		return exitCode(fmt.Errorf("the hook template starts this command: %w", err), stderr)
	}
	connection.Close()
	defer conn.Close()
	return exitCode(serveEvaluations(newMessageConn(conn), giveUpRights), stderr)
}

func exitCode(err error, stderr io.Writer) int {
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

// giveUpRights limits this process, and denies it all files, programs and connections.
func giveUpRights(lim limits) error {
	os.Clearenv()            // a template reads the variables of its task only
	_, _ = time.Now().Zone() // loads the time zone, which is a file
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("hide the memory of the process: %w", err)
	}
	if lim.Nice > 0 { // without a priority of its own, an evaluator keeps that of the agent
		if err := unix.Setpriority(unix.PRIO_PROCESS, 0, lim.Nice); err != nil {
			return fmt.Errorf("lower the priority: %w", err)
		}
	}
	if err := confine.LimitProcess(lim.Memory, lim.CPU); err != nil {
		return err
	}
	debug.SetMemoryLimit(int64(lim.Memory / 2)) // the garbage collector works harder above it
	calls := slices.Concat(confine.ExecAndSystemAdminSyscalls(), confine.FileOpeningSyscalls(), confine.ProcessSignalAndIPCSyscalls())
	for family := range uint32(unix.AF_MAX) {
		if family != unix.AF_NETLINK { // sockaddr reads interfaces and routes
			calls = append(calls, confine.Syscall{Number: unix.SYS_SOCKET, CheckFirstArgument: true, FirstArgument: family})
		}
	}
	confine.DenyProcessSyscalls(calls...)
	return nil
}

// serveEvaluations sets the limits of this process and evaluates templates until the connection is closed.
func serveEvaluations(c *messageConn, setLimits func(limits) error) error {
	var lim limits
	if err := c.receive(&lim); err != nil {
		return err
	}
	failure := ""
	if err := setLimits(lim); err != nil {
		failure = err.Error()
	}
	if err := c.send(failure); err != nil {
		return err
	}
	for {
		r := &evaluate.Request{}
		if err := c.receive(r); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := c.send(evaluate.Evaluate(r)); err != nil {
			return err
		}
	}
}
