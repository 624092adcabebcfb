package keeper

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/nomad-lite/nomad-lite/internal/framing"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperwire"
)

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
	resp, fds, callErr := l.call(ctx, &keeperwire.Request{Op: keeperwire.OpGetProgram, Process: p})
	if callErr == nil {
		callErr = resp.Err()
	}
	if callErr != nil || len(fds) != 1 {
		framing.CloseAll(fds)
		return false, errors.Join(err, callErr) // a keeper that has replaced a dead one has no descriptor of the executable
	}
	running := os.NewFile(uintptr(fds[0]), "program")
	defer running.Close()
	return osprocess.SameContent(running, file)
}
