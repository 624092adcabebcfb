package wiretest

import (
	"context"
	"net"
	"sync"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
)

// pipeBacklog is how many streams an end can open before the other accepts them.
const pipeBacklog = 256

// NewPipe returns a session's two ends in memory, for tests with virtual time: its streams use net.Pipe, and it has no timers.
// The server's address is addr.
func NewPipe(addr string) (node, server wire.Multiplexer) {
	shared := &pipe{closed: make(chan struct{}), streams: make(map[net.Conn]bool)}
	a, b := make(chan net.Conn, pipeBacklog), make(chan net.Conn, pipeBacklog)
	return &pipeEnd{pipe: shared, remote: pipeAddr(addr), accept: a, opened: b}, &pipeEnd{pipe: shared, remote: "node", accept: b, opened: a}
}

// pipe is what both ends share.
type pipe struct {
	closed chan struct{}

	mu      sync.Mutex
	streams map[net.Conn]bool // each open stream's two ends
}

// pipeEnd is one end of a session.
type pipeEnd struct {
	*pipe
	remote pipeAddr
	accept <-chan net.Conn // streams opened by the other end
	opened chan<- net.Conn // streams opened by this end
}

type pipeAddr string

func (pipeAddr) Network() string  { return "pipe" }
func (a pipeAddr) String() string { return string(a) }

// pipeStream is one end of a stream.
type pipeStream struct {
	net.Conn
	pipe *pipe
}

// Close implements net.Conn.
func (s *pipeStream) Close() error {
	s.pipe.mu.Lock()
	delete(s.pipe.streams, s.Conn)
	s.pipe.mu.Unlock()
	return s.Conn.Close()
}

func (p *pipe) isClosed() bool {
	return wait.IsClosed(p.closed)
}

func (e *pipeEnd) Open() (net.Conn, error) {
	own, others := net.Pipe()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.isClosed() {
		return nil, net.ErrClosed
	}
	select {
	case e.opened <- &pipeStream{others, e.pipe}:
	default:
		return nil, &net.OpError{Op: "open", Net: e.remote.Network(), Addr: e.remote, Err: net.ErrClosed}
	}
	e.streams[own], e.streams[others] = true, true
	return &pipeStream{own, e.pipe}, nil
}

func (e *pipeEnd) AcceptContext(ctx context.Context) (net.Conn, error) {
	select {
	case stream := <-e.accept:
		return stream, nil
	case <-e.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (e *pipeEnd) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.isClosed() {
		return nil
	}
	close(e.closed)
	for stream := range e.streams {
		stream.Close()
	}
	clear(e.streams)
	return nil
}

func (e *pipeEnd) CloseChan() <-chan struct{} { return e.closed }
func (e *pipeEnd) RemoteAddr() net.Addr       { return e.remote }

func (e *pipeEnd) NumStreams() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.streams) // the end that has closed a stream first counts it until the other has closed it
}
