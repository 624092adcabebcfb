package logs

import (
	"cmp"
	"context"
	"errors"
	"net"
	"sync"

	"github.com/nomad-lite/nomad-lite/internal/framing"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/rpcmux"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs/collectorwire"
)

// errDisconnected: the connection closed before the reply came.
var errDisconnected = errors.New("connection to the log collector is down")

// processConn is the agent's connection to a collector process.
type processConn struct {
	*rpcmux.PendingCalls[*collectorwire.Message]
	conn            *framing.Conn
	process         osprocess.ID
	protocolVersion int
	onEvent         func(*collectorwire.Message)
	wg              sync.WaitGroup
}

const socketNetwork = "unix"

// dialProcess connects to the data directory's collector process, and exchanges the hello messages.
func (c *CollectorClient) dialProcess(ctx context.Context) (*processConn, error) {
	conn, err := c.dir.DialAndCheckPeerUser(collectorwire.SocketName)
	if err != nil {
		return nil, err
	}
	return c.newProcessConn(ctx, conn)
}

// newProcessConn exchanges the hello messages on a socket. It closes the socket on an error; otherwise the connection
// owns it.
func (c *CollectorClient) newProcessConn(ctx context.Context, socket *net.UnixConn) (*processConn, error) {
	conn := framing.NewConn(socket, collectorwire.MessageLimits)
	hello, err := conn.ExchangeHello(ctx, framing.NewHello(framing.RoleAgent, c.protocolVersion()))
	if err != nil {
		conn.Close()
		return nil, err
	}
	l := &processConn{PendingCalls: rpcmux.New[*collectorwire.Message](errDisconnected, nil), conn: conn, process: hello.Process, protocolVersion: hello.Version, onEvent: c.applyProcessEvent}
	l.wg.Go(l.readLoop)
	return l, nil
}

func (c *CollectorClient) protocolVersion() int {
	return cmp.Or(c.conf.testProtocolVersion, collectorwire.ProtocolVersion)
}

func (p *processConn) close() {
	p.conn.Close()
	p.wg.Wait()
}

// call sends a request and waits for the reply.
func (p *processConn) call(ctx context.Context, m *collectorwire.Message, fds ...int) (*collectorwire.Message, error) {
	reply, err := p.Call(ctx, func(id uint64) error {
		m.ID = id
		return p.send(m, fds...)
	})
	if err == nil && reply.Error != "" {
		return nil, errors.New(reply.Error)
	}
	return reply, err
}

// send sends one message. It returns errDisconnected if the connection fails.
func (p *processConn) send(m *collectorwire.Message, fds ...int) error {
	err := p.conn.Send(m, fds...)
	if errors.Is(err, framing.ErrDown) {
		return errDisconnected
	}
	return err
}

// readLoop delivers replies and events until the connection closes.
func (p *processConn) readLoop() {
	defer p.End()
	defer p.conn.Close()
	for {
		m := &collectorwire.Message{}
		fds, err := p.conn.Receive(m)
		framing.CloseAll(fds)
		if err != nil {
			return
		}
		if m.Op == collectorwire.OpReply {
			p.DeliverResponse(m.ID, m)
		} else {
			p.onEvent(m)
		}
	}
}
