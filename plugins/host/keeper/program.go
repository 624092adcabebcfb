package keeper

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/framing"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// openExecutableLocked returns a descriptor of the file that the process p executes. p is the keeper itself, or a
// process that the keeper has started from a descriptor; for other processes the response is an error.
func (se *server) openExecutableLocked(p osprocess.ID) ([]int, *response) {
	fd, err := -1, error(nil)
	held, found := se.executableFDByProc[p]
	switch {
	case p == se.hello.Process:
		fd, err = unix.Open(selfExePath, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	case found:
		fd, err = duplicateFD(held)
	default:
		return nil, &response{Code: codeFDNotStored}
	}
	if err != nil {
		return nil, responseFromErrorOrNil(fmt.Errorf("program of process %d: %w", p.PID, err))
	}
	return []int{fd}, &response{}
}

// SameExecutable reports whether a process executes a file, as [osprocess.ID.SameExecutable] does. A process of root is
// not dumpable, so that /proc does not show its program to an agent without CAP_SYS_PTRACE, for example in a
// container. Then SameExecutable compares the descriptor that the keeper has kept since the start of the process.
func (c *Client) SameExecutable(ctx context.Context, p osprocess.ID, file *os.File) (bool, error) {
	return sameExecutable(ctx, p, file, func() (*clientConn, error) { return c.conns.WaitForConn(ctx) })
}

// sameExecutable implements Client.SameExecutable. It requests the program on the connection that connect returns.
func sameExecutable(ctx context.Context, p osprocess.ID, file *os.File, connect func() (*clientConn, error)) (bool, error) {
	same, err := p.SameExecutable(file)
	if !errors.Is(err, fs.ErrPermission) {
		return same, err
	}
	l, connErr := connect()
	if connErr != nil {
		return false, errors.Join(err, connErr)
	}
	resp, fds, callErr := l.call(ctx, &request{Op: opGetProgram, Process: p})
	if callErr == nil {
		callErr = resp.err()
	}
	if callErr != nil || len(fds) != 1 {
		framing.CloseAll(fds)
		return false, errors.Join(err, callErr) // a keeper that has replaced a dead one has no descriptor of the executable
	}
	running := os.NewFile(uintptr(fds[0]), "program")
	defer running.Close()
	return osprocess.SameContent(running, file)
}
