//go:build unix

package terminal

import (
	"errors"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Input reads a file until it is closed, for a terminal that several readers share one after the other: a
// blocked read of an os.File cannot be ended, and would take the next key from the next reader.
type Input struct {
	fd      int
	mu      sync.Mutex // held by Read
	closing *os.File   // write end of wake
	wake    *os.File   // readable after Close
	closed  bool
}

// NewInput returns a reader of a file, which stays open when the reader is closed.
func NewInput(file *os.File) (*Input, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	return &Input{fd: int(file.Fd()), wake: r, closing: w}, nil
}

// Read blocks until the file has input. After Close it returns io.EOF.
func (i *Input) Read(p []byte) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return 0, io.EOF
	}
	ready := []unix.PollFd{{Fd: int32(i.wake.Fd()), Events: unix.POLLIN}, {Fd: int32(i.fd), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(ready, -1)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, os.NewSyscallError("poll", err)
		case ready[0].Revents != 0:
			return 0, io.EOF
		}
		n, err := unix.Read(i.fd, p)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			continue
		case err != nil:
			return 0, os.NewSyscallError("read", err)
		case n == 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

// Close ends a blocked Read. It must be called once.
func (i *Input) Close() error {
	err := i.closing.Close()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed = true
	return errors.Join(err, i.wake.Close())
}
