package plugindev

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/sdk"
)

const (
	// debugPollInterval is the time between two checks whether a debugged program listens, or has a debugger.
	debugPollInterval = 50 * time.Millisecond
	// debuggerExitTimeout is how long Stop waits for the debugger to exit before it kills the debugger.
	debuggerExitTimeout = 2 * time.Second
)

// Debugger starts a plugin program under the debugger dlv, or so that the user can attach another debugger. A host
// started with the variable that Env returns connects to this program in place of starting the plugin.
type Debugger struct {
	PluginName  string   // name of the driver, hook or device plugin
	SocketPath  string   // path of the socket on which the program listens for its host
	ProgramArgs []string // arguments of the program
	// UserInput is the user's input. If it is a file, a line or the end of the input ends the wait for a debugger. If
	// not, there is no wait.
	UserInput io.Reader
	// Print shows a message, or a line of the program's output, to the user.
	Print func(string)

	cmd    *exec.Cmd     // nil if no process was started
	exited chan struct{} // closed when cmd has exited
	// debuggedProcessID identifies the process that listens on SocketPath; it is zero until the program listens. Under
	// dlv it is a child of cmd.
	debuggedProcessID osprocess.ID
}

// AttachEnvVar returns the environment variable by which a host attaches to the process instead of starting the plugin.
func (d *Debugger) AttachEnvVar() (name, value string) {
	return sdk.EnvDebug, d.PluginName + "=" + d.SocketPath
}

// Start starts the program, and blocks until it listens for a host. With dlv on the PATH, the program starts in
// dlv and waits for the first command of a client. Without dlv, Start waits until a debugger is attached, or for
// a line of input.
func (d *Debugger) Start(ctx context.Context, programPath string) error {
	dlv, err := exec.LookPath("dlv")
	hasDelve := err == nil
	if hasDelve {
		args := []string{"exec", "--headless", "--accept-multiclient", "--api-version=2", "--listen=127.0.0.1:0", programPath}
		if len(d.ProgramArgs) > 0 {
			args = append(append(args, "--"), d.ProgramArgs...)
		}
		d.cmd = exec.Command(dlv, args...)
	} else {
		d.cmd = exec.Command(programPath, d.ProgramArgs...)
	}
	if err := d.startProcess(); err != nil {
		return err
	}
	if err := d.waitListeningAndSetProcessID(ctx); err != nil {
		return errors.Join(err, d.Stop())
	}
	if hasDelve {
		return nil
	}
	d.Print(fmt.Sprintf(`%[1]s runs as process %[2]d; there is no dlv: go install github.com/go-delve/delve/cmd/dlv@latest
attach a debugger (dlv attach %[2]d, or gdb -p %[2]d), or press Enter to continue without one`, d.PluginName, d.debuggedProcessID.PID))
	return d.waitAttachedOrUserLine(ctx)
}

// startProcess starts cmd in a process group of its own, and passes its output to Print.
func (d *Debugger) startProcess() error {
	name, value := d.AttachEnvVar()
	d.cmd.Env = append(os.Environ(), name+"="+value)
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C must reach only nomad-lite, which stops the process last
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	d.cmd.Stdout, d.cmd.Stderr = write, write
	if err := errors.Join(d.cmd.Start(), write.Close()); err != nil {
		return errors.Join(fmt.Errorf("debug %s: %w", d.PluginName, err), read.Close())
	}
	d.exited, d.debuggedProcessID = make(chan struct{}), osprocess.ID{}
	var output sync.WaitGroup
	output.Go(func() {
		defer read.Close()
		for lines := bufio.NewScanner(read); lines.Scan(); {
			d.printLine(lines.Text())
		}
	})
	cmd, exited := d.cmd, d.exited // copies, because Stop can change the fields while the goroutine runs
	go func() {
		defer close(exited)
		_ = cmd.Wait() // cmd.ProcessState has the result
		output.Wait()
	}()
	return nil
}

// printLine shows a line of the debugger or of the program.
func (d *Debugger) printLine(line string) {
	if address, ok := strings.CutPrefix(line, "API server listening at: "); ok {
		d.Print(fmt.Sprintf("%s waits in the debugger: dlv connect %s, then continue", d.PluginName, address))
		return
	}
	d.Print(d.PluginName + ": " + line)
}

// waitListeningAndSetProcessID blocks until the program listens on the socket.
func (d *Debugger) waitListeningAndSetProcessID(ctx context.Context) error {
	for {
		conn, err := net.Dial("unix", d.SocketPath)
		if err == nil {
			peer, err := osprocess.PeerCredentials(conn.(*net.UnixConn))
			if err == nil {
				d.debuggedProcessID, err = osprocess.LookupID(int(peer.Pid))
			}
			if err = errors.Join(err, conn.Close()); err != nil {
				return fmt.Errorf("debug %s: %w", d.PluginName, err)
			}
			return nil
		}
		select {
		case <-time.After(debugPollInterval):
		case <-d.exited:
			return fmt.Errorf("debug %s: the process has ended (%s) before it listened for a host: is the plugin built with the sdk?", d.PluginName, d.cmd.ProcessState)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// waitAttachedOrUserLine blocks until a debugger is attached to the program, or the user's input has a line or ends.
func (d *Debugger) waitAttachedOrUserLine(ctx context.Context) error {
	input, _ := d.UserInput.(*os.File)
	for !d.isTraced() && !pollForLineOrEOF(input) {
		select {
		case <-time.After(debugPollInterval):
		case <-d.exited:
			return fmt.Errorf("debug %s: the process has ended: %s", d.PluginName, d.cmd.ProcessState)
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), d.Stop())
		}
	}
	return nil
}

// isTraced reports whether a debugger is attached to the program.
func (d *Debugger) isTraced() bool {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.debuggedProcessID.PID)) // an error means that the process has exited
	for line := range strings.Lines(string(status)) {
		if tracer, ok := strings.CutPrefix(line, "TracerPid:"); ok {
			return strings.TrimSpace(tracer) != "0"
		}
	}
	return false
}

// pollForLineOrEOF reads the available input without blocking, and reports whether it contains a line end or the end of
// the input. Without a file it returns true.
func pollForLineOrEOF(input *os.File) bool {
	if input == nil {
		return true
	}
	poll := []unix.PollFd{{Fd: int32(input.Fd()), Events: unix.POLLIN}}
	if n, err := unix.Poll(poll, 0); n == 0 || err != nil {
		return false
	}
	text := make([]byte, 1024)
	n, err := input.Read(text)
	return err != nil || strings.Contains(string(text[:n]), "\n")
}

// Stop terminates the debugger and the program, and removes the socket. It does nothing if no process was started.
func (d *Debugger) Stop() error {
	if d.cmd == nil {
		return nil
	}
	group := -d.cmd.Process.Pid
	_ = syscall.Kill(group, syscall.SIGTERM) // an error means that the process group has exited
	select {
	case <-d.exited:
	case <-time.After(debuggerExitTimeout):
		_ = syscall.Kill(group, syscall.SIGKILL)
	}
	d.cmd = nil
	err := os.Remove(d.SocketPath)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if d.debuggedProcessID.PID == 0 {
		return err
	}
	// A debugger that was killed can leave its program behind.
	return errors.Join(err, d.debuggedProcessID.KillAndWait(context.Background()))
}
