package logs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/process"
	"github.com/nomad-lite/nomad-lite/plugins/rpcmux"
)

// errDisconnected means that the connection closed before the reply came.
var errDisconnected = errors.New("connection to the log collector is down")

// processConn is one connection to a collector process.
type processConn struct {
	*rpcmux.PendingCalls[*message]
	conn    *net.UnixConn
	process process.ID
	onEvent func(*message)
	wg      sync.WaitGroup
}

// socketNetwork is a socket type that keeps message boundaries.
const socketNetwork = "unixpacket"

// dialProcess connects to the process of the data directory, and exchanges the hello messages.
func (c *Collector) dialProcess(ctx context.Context) (*processConn, error) {
	conn, err := c.dir.Dial(socketNetwork, socketName)
	if err != nil {
		return nil, err
	}
	return c.newConn(ctx, conn)
}

// newConn exchanges the hello messages on a connection, which it owns from now on.
func (c *Collector) newConn(ctx context.Context, conn *net.UnixConn) (*processConn, error) {
	l := &processConn{PendingCalls: rpcmux.New[*message](errDisconnected, nil), conn: conn, onEvent: c.handleEvent}
	l.wg.Go(l.read)
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	hello, err := l.call(ctx, &message{Op: opHello})
	if err != nil {
		l.close()
		return nil, err
	}
	l.process = hello.Process
	return l, nil
}

func (l *processConn) close() {
	l.conn.Close()
	l.wg.Wait()
}

// call sends a request and waits for the reply.
func (l *processConn) call(ctx context.Context, m *message, fds ...int) (*message, error) {
	reply, err := l.Call(ctx, func(id uint64) error {
		m.ID = id
		return l.send(m, fds...)
	})
	if err == nil && reply.Error != "" {
		return nil, errors.New(reply.Error)
	}
	return reply, err
}

// send sends one message. It returns errDisconnected if the connection fails.
func (l *processConn) send(m *message, fds ...int) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(b) > maxMessageSize {
		return fmt.Errorf("message of %d bytes is over the limit of %d", len(b), maxMessageSize)
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if _, _, err := l.conn.WriteMsgUnix(b, oob, nil); err != nil {
		l.conn.Close()
		return errDisconnected
	}
	return nil
}

// read delivers replies and events until the connection closes.
func (l *processConn) read() {
	defer l.End()
	defer l.conn.Close()
	buf := make([]byte, maxMessageSize)
	for {
		n, err := l.conn.Read(buf)
		if err != nil || n == 0 {
			return
		}
		m, err := decodeMessage(buf[:n])
		if err != nil {
			return
		}
		if m.Op == opReply {
			l.DeliverResponse(m.ID, m)
		} else {
			l.onEvent(m)
		}
	}
}
