package taskapi

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Network is what the method Network returns for the addresses of a Listener and its connections.
const Network = "task"

// TaskAddr is the address of a Listener, or of a task connected to it.
type TaskAddr struct{ AllocID, Task string }

// Network implements net.Addr.
func (TaskAddr) Network() string { return Network }

// String implements net.Addr. The text is unique to the task.
func (a TaskAddr) String() string { return a.AllocID + "/" + a.Task }

// TaskSocketListener accepts connections on task sockets. Its methods may be called concurrently.
type TaskSocketListener struct {
	epoll *os.File

	mu       sync.Mutex
	fdByTask map[TaskAddr]int32 // socket descriptors by task
	taskByFD map[int32]TaskAddr // tasks by socket descriptor
	closed   bool
}

var _ net.Listener = (*TaskSocketListener)(nil)

// New returns a listener without sockets. The caller must close it.
func New() (*TaskSocketListener, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err == nil {
		err = unix.SetNonblock(fd, true) // lets the Go runtime's poller wait for it
	}
	if err != nil {
		return nil, fmt.Errorf("accept connections of tasks: %w", err)
	}
	return &TaskSocketListener{epoll: os.NewFile(uintptr(fd), "epoll"), fdByTask: make(map[TaskAddr]int32), taskByFD: make(map[int32]TaskAddr)}, nil
}

// AddOrReplaceSocket accepts connections on a task's socket, in place of the task's earlier socket. The descriptor
// belongs to the listener, also if AddOrReplaceSocket returns an error.
func (l *TaskSocketListener) AddOrReplaceSocket(task TaskAddr, fd int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		unix.Close(fd)
		return net.ErrClosed
	}
	l.removeSocketLocked(task)
	err := l.withEpollFD(func(epoll int) error {
		return unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
	})
	if err != nil {
		unix.Close(fd)
		return fmt.Errorf("accept connections of tasks: %w", err)
	}
	l.fdByTask[task], l.taskByFD[int32(fd)] = int32(fd), task
	return nil
}

// RemoveSocket closes a task's socket, if there is one. Accepted connections stay open.
func (l *TaskSocketListener) RemoveSocket(task TaskAddr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removeSocketLocked(task)
}

func (l *TaskSocketListener) removeSocketLocked(task TaskAddr) {
	if fd, ok := l.fdByTask[task]; ok {
		delete(l.fdByTask, task)
		delete(l.taskByFD, fd)
		unix.Close(int(fd)) // also removes the socket from the epoll instance
	}
}

// withEpollFD calls f with the epoll instance's descriptor, unless the listener is closed.
func (l *TaskSocketListener) withEpollFD(f func(epoll int) error) error {
	conn, err := l.epoll.SyscallConn()
	if err != nil {
		return err
	}
	if controlErr := conn.Control(func(fd uintptr) { err = f(int(fd)) }); controlErr != nil {
		return controlErr
	}
	return err
}

// Accept implements net.Listener. The connection's addresses are the task's [TaskAddr].
func (l *TaskSocketListener) Accept() (net.Conn, error) {
	conn, err := l.epoll.SyscallConn()
	if err != nil {
		return nil, net.ErrClosed
	}
	for {
		var events [1]unix.EpollEvent
		var waitErr error
		err := conn.Read(func(epoll uintptr) bool {
			n, err := unix.EpollWait(int(epoll), events[:], 0)
			if err != nil && !errors.Is(err, unix.EINTR) {
				waitErr = os.NewSyscallError("epoll_wait", err)
				return true
			}
			return n > 0 || errors.Is(err, unix.EINTR)
		})
		if err != nil {
			return nil, net.ErrClosed // Close was called
		}
		if waitErr != nil {
			return nil, waitErr
		}
		c, err := l.acceptFromSocket(events[0].Fd)
		if c != nil || err != nil {
			return c, err
		}
	}
}

// acceptFromSocket accepts a connection on a socket. It returns nil if no connection is pending.
func (l *TaskSocketListener) acceptFromSocket(socketFD int32) (net.Conn, error) {
	l.mu.Lock()
	task, ok := l.taskByFD[socketFD]
	if !ok {
		l.mu.Unlock()
		return nil, nil // the socket was removed
	}
	// While the lock is held, RemoveSocket cannot close the socket, so its descriptor is not reused. Accept4 does not block.
	fd, _, err := unix.Accept4(int(socketFD), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	l.mu.Unlock()
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR), errors.Is(err, unix.ECONNABORTED):
		return nil, nil
	case err != nil:
		// net/http retries after a delay if Temporary is true, as for a net.Listener error.
		return nil, &net.OpError{Op: "accept", Net: Network, Addr: task, Err: os.NewSyscallError("accept4", err)}
	}
	f := os.NewFile(uintptr(fd), "task connection")
	defer f.Close() // net.FileConn copies the descriptor
	c, err := net.FileConn(f)
	if err != nil {
		return nil, &net.OpError{Op: "accept", Net: Network, Addr: task, Err: err}
	}
	return &taskConn{UnixConn: c.(*net.UnixConn), task: task}, nil
}

// Close implements net.Listener. It closes all sockets; accepted connections stay open. It may be called twice.
func (l *TaskSocketListener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for task := range l.fdByTask {
		l.removeSocketLocked(task)
	}
	if err := l.epoll.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// Addr implements net.Listener. The address has an empty alloc ID and an empty task.
func (l *TaskSocketListener) Addr() net.Addr { return TaskAddr{} }

// taskConn is a task's connection. Its addresses name the task instead of a path: a client's path is usually empty, and
// the network "unix" means a socket that needs no token.
type taskConn struct {
	*net.UnixConn
	task TaskAddr
}

var _ syscall.Conn = (*taskConn)(nil)

func (c *taskConn) LocalAddr() net.Addr  { return c.task }
func (c *taskConn) RemoteAddr() net.Addr { return c.task }
