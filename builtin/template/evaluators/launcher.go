package evaluators

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/opcount"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// Launcher is the connection to the process that starts evaluators. It is safe for concurrent use after Connect.
type Launcher struct {
	file *os.File // the connection before Connect

	mu    sync.Mutex
	conn  *net.UnixConn
	watch *net.UnixConn // second net.Conn of the connection, for Wait: a blocked read would block start's reads on conn
}

// launcherFDVariable is the environment variable with the file descriptor of the connection to the launcher. It passes the
// connection on when the hook's process executes its program again.
const launcherFDVariable = "NOMAD_LITE_TEMPLATE_LAUNCHER"

// StartLauncher starts the launcher: this program with args, which must call LauncherMain. Under root, the launcher runs as the user id that
// userID returns. After the program has executed itself again, StartLauncher returns the launcher of the first execution. The caller
// then drops its rights and calls Connect.
func StartLauncher(args []string, userID func() (uint32, error)) (*Launcher, error) {
	if text := os.Getenv(launcherFDVariable); text != "" {
		fd, err := strconv.Atoi(text)
		if err != nil {
			return nil, err
		}
		return &Launcher{file: os.NewFile(uintptr(fd), "launcher")}, nil
	}
	own, other, err := socketPair(unix.SOCK_SEQPACKET)
	if err != nil {
		return nil, err
	}
	defer other.Close()
	cmd := newHelperCommand(args)
	cmd.Stdin, cmd.Stderr = other, os.Stderr
	if os.Geteuid() == 0 {
		id, err := userID()
		if err != nil {
			own.Close()
			return nil, err
		}
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: id, Gid: id}
	}
	err = cmd.Start()
	if err == nil {
		_, err = unix.FcntlInt(own.Fd(), unix.F_SETFD, 0) // the connection stays open when the process executes its program again
	}
	if err == nil {
		err = os.Setenv(launcherFDVariable, strconv.Itoa(int(own.Fd())))
	}
	if err != nil {
		own.Close() // the launcher exits when the connection is closed
		return nil, fmt.Errorf("start the launcher of template evaluators: %w", err)
	}
	return &Launcher{file: own}, nil
}

// Connect prepares the connection. It must be called once, after the last execution of the program.
func (l *Launcher) Connect() (err error) {
	_ = os.Unsetenv(launcherFDVariable) // Unsetenv fails only for an invalid name
	defer l.file.Close()
	if l.watch, err = newUnixConn(l.file); err != nil {
		return err
	}
	l.conn, err = newUnixConn(l.file)
	return err
}

// newHelperCommand returns the command that starts this program with args and without the environment of this process, of which
// a template could read variables.
func newHelperCommand(args []string) *exec.Cmd {
	opcount.Count(opcount.Fork)
	// /proc/self/exe is this binary, even if a newer binary has replaced it at its path.
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0], cmd.Dir = os.Args[0], "/"
	cmd.Env = append(osprocess.GoRuntimeEnv(), "GOTRACEBACK=none", "GOMAXPROCS=1")
	if zone, ok := os.LookupEnv("TZ"); ok { // an empty TZ is UTC, and none is the zone of the machine
		cmd.Env = append(cmd.Env, "TZ="+zone)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	return cmd
}

// socketPair returns the two ends of a Unix socket.
func socketPair(kind int) (own, other *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return os.NewFile(uintptr(fds[0]), "evaluators"), os.NewFile(uintptr(fds[1]), "evaluators"), nil
}

// toUnixConn converts a file, which it closes, into a connection.
func toUnixConn(file *os.File) (*net.UnixConn, error) {
	defer file.Close()
	return newUnixConn(file)
}

// newUnixConn returns a connection that has a duplicate of the file.
func newUnixConn(file *os.File) (*net.UnixConn, error) {
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, err
	}
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		conn.Close()
		return nil, fmt.Errorf("%T is not a Unix socket", conn)
	}
	return unixConn, nil
}

// Wait blocks until the launcher has exited. It must be called once.
func (l *Launcher) Wait() {
	var poll [1]byte
	raw, err := l.watch.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(fd uintptr) bool {
		n, _, err := unix.Recvfrom(int(fd), poll[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return err == nil && n == 0 || err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR)
	})
}

// start starts an evaluator. The evaluator is killed when lifeline is closed, also by the exit of this process.
func (l *Launcher) start() (conn *net.UnixConn, lifeline *os.File, pid int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.conn.Write([]byte{'s'}); err != nil {
		return nil, nil, 0, err
	}
	text, rights := make([]byte, 1024), make([]byte, unix.CmsgSpace(2*4))
	n, rightsLen, _, _, err := l.conn.ReadMsgUnix(text, rights)
	if err != nil {
		return nil, nil, 0, err
	}
	files, err := parseRights(rights[:rightsLen])
	if err != nil || len(files) != 2 {
		return nil, nil, 0, errors.New(cmp.Or(string(text[:n]), "the launcher has exited"))
	}
	if pid, err = strconv.Atoi(string(text[:n])); err == nil {
		conn, err = toUnixConn(files[0])
	}
	if err != nil {
		files[1].Close()
		return nil, nil, 0, err
	}
	return conn, files[1], pid, nil
}

func parseRights(rights []byte) ([]*os.File, error) {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil || len(messages) != 1 {
		return nil, err
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for _, fd := range fds {
		unix.CloseOnExec(fd)
		files = append(files, os.NewFile(uintptr(fd), "evaluator"))
	}
	return files, nil
}

// serveLaunches starts an evaluator for each request, until the connection is closed.
func serveLaunches(connection *os.File, evaluatorArgs []string) error {
	conn, err := toUnixConn(connection)
	if err != nil {
		return err
	}
	defer conn.Close()
	// An evaluator is killed when the thread that has started it exits.
	runtime.LockOSThread()
	var request [1]byte
	for {
		if n, err := conn.Read(request[:]); err != nil || n == 0 {
			return nil // the hook's process has exited
		}
		text, rights := "", []byte(nil)
		own, lifeline, pid, err := startEvaluator(evaluatorArgs)
		if err != nil {
			text = err.Error()
		} else {
			text, rights = strconv.Itoa(pid), unix.UnixRights(int(own.Fd()), int(lifeline.Fd()))
		}
		_, _, err = conn.WriteMsgUnix([]byte(text), rights, nil)
		if rights != nil {
			own.Close()
			lifeline.Close()
		}
		if err != nil {
			return err
		}
	}
}

// startEvaluator starts an evaluator, and returns the connection to it and the lifeline at whose end it is killed.
func startEvaluator(args []string) (conn, lifeline *os.File, pid int, err error) {
	own, other, err := socketPair(unix.SOCK_STREAM)
	if err != nil {
		return nil, nil, 0, err
	}
	defer other.Close()
	watched, lifeline, err := os.Pipe()
	if err != nil {
		own.Close()
		return nil, nil, 0, err
	}
	cmd := newHelperCommand(args)
	cmd.Stdin = other
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if err := cmd.Start(); err != nil {
		own.Close()
		watched.Close()
		lifeline.Close()
		return nil, nil, 0, err
	}
	go func() {
		var end [1]byte
		_, _ = watched.Read(end[:]) // returns when the lifeline is closed
		_ = cmd.Process.Kill()      // an error means that the process has exited
	}()
	go func() {
		_ = cmd.Wait() // the hook's process sees the end of the connection
		watched.Close()
	}()
	return own, lifeline, cmd.Process.Pid, nil
}
