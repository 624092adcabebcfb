package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"
)

// These sockets are in the task's directory under the names that Nomad gives them, because programs of the machine
// connect to them.
const (
	monitorSocket    = "qm.sock" // QEMU's human monitor
	guestAgentSocket = "qa.sock"
)

// buttonInterval is the time between two presses of the power button. A machine ignores the button
// until its system has started, so the driver presses it again.
const buttonInterval = time.Second

// pressPowerButtonUntilExit presses the power button of the machine until the emulator closes the monitor or ctx ends.
func (t *task) pressPowerButtonUntilExit(ctx context.Context) error {
	conn, err := dialSocketInDir(ctx, t.taskDir, monitorSocket)
	if err != nil {
		return fmt.Errorf("connect to the monitor of QEMU: %w", err)
	}
	closed := make(chan struct{}) // closed when the emulator has closed the monitor, or this function closes conn
	go func() {
		defer close(closed)
		_, _ = io.Copy(io.Discard, conn) // the monitor answers with text for people; an error means that the connection is closed
	}()
	defer func() { <-closed }()
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })() // when ctx ends, ends a blocked write
	button := time.NewTicker(buttonInterval)
	defer button.Stop()
	for {
		if _, err := io.WriteString(conn, "system_powerdown\n"); err != nil {
			return nil // the emulator exits, or ctx has ended
		}
		select {
		case <-button.C:
		case <-closed:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// dialSocketInDir connects to a socket in a directory. The path of the directory can be longer than the
// maximum address of a unix socket, so the address names the directory by its open file descriptor.
func dialSocketInDir(ctx context.Context, dir, name string) (net.Conn, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return new(net.Dialer).DialContext(ctx, "unix", dirFDSocketPath(d, name))
}

// listenSocketInDir makes a socket in a directory, for root or the user of the plugin only: the monitor can start programs.
// The socket remains after the returned file is closed, so that a later process of the driver can connect.
func listenSocketInDir(dir, name string) (*os.File, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	path := filepath.Join(dir, name)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of an earlier start: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: dirFDSocketPath(d, name), Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	}
	defer listener.Close()
	listener.SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, err
	}
	return listener.File()
}

func dirFDSocketPath(dir *os.File, name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)
}
