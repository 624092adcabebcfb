//go:build unix

package terminal

import (
	"errors"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// InterruptibleInput is a reader of a terminal whose blocked Read can be ended by Close. Several readers can therefore
// use the terminal one after the other: a blocked read of an os.File could not be ended, and would consume the next
// key.
type InterruptibleInput struct {
	fd         int
	mu         sync.Mutex // held by Read
	wakeWriter *os.File   // write end of the pipe wakeReader
	wakeReader *os.File   // readable after Close
	closed     bool
}

// NewInterruptibleInput returns a reader of a file, which stays open when the reader is closed.
func NewInterruptibleInput(file *os.File) (*InterruptibleInput, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	return &InterruptibleInput{fd: int(file.Fd()), wakeReader: r, wakeWriter: w}, nil
}

// Read blocks until the file has input. After Close it returns io.EOF.
func (i *InterruptibleInput) Read(p []byte) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return 0, io.EOF
	}
	ready := []unix.PollFd{{Fd: int32(i.wakeReader.Fd()), Events: unix.POLLIN}, {Fd: int32(i.fd), Events: unix.POLLIN}}
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
func (i *InterruptibleInput) Close() error {
	err := i.wakeWriter.Close()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed = true
	return errors.Join(err, i.wakeReader.Close())
}
