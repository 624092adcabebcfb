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

// link is one connection to a collector process.
type link struct {
	*rpcmux.PendingCalls[*message]
	conn    *net.UnixConn
	process process.ID
	event   func(*message)
	wg      sync.WaitGroup
}

// network is a socket type that keeps message boundaries.
const network = "unixpacket"

// dial connects to the process of the data directory, and exchanges the hello messages.
func (c *Collector) dial(ctx context.Context) (*link, error) {
	conn, err := c.dir.Dial(network, socketName)
	if err != nil {
		return nil, err
	}
	return c.newLink(ctx, conn)
}

// dialPrevious connects to the socket of an earlier version, which has a short path.
func dialPrevious(path string) (*net.UnixConn, error) {
	conn, err := net.DialUnix(network, nil, &net.UnixAddr{Net: network, Name: path})
	if err != nil {
		return nil, err
	}
	if err := process.SameUser(conn); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// newLink exchanges the hello messages on a connection, which it owns from now on.
func (c *Collector) newLink(ctx context.Context, conn *net.UnixConn) (*link, error) {
	l := &link{PendingCalls: rpcmux.New[*message](errDisconnected, nil), conn: conn, event: c.event}
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

func (l *link) close() {
	l.conn.Close()
	l.wg.Wait()
}

// call sends a request and waits for the reply.
func (l *link) call(ctx context.Context, m *message, fds ...int) (*message, error) {
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
func (l *link) send(m *message, fds ...int) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(b) > maxMessage {
		return fmt.Errorf("message of %d bytes is over the limit of %d", len(b), maxMessage)
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
func (l *link) read() {
	defer l.End()
	defer l.conn.Close()
	buf := make([]byte, maxMessage)
	for {
		n, err := l.conn.Read(buf)
		if err != nil || n == 0 {
			return
		}
		m, err := decode(buf[:n])
		if err != nil {
			return
		}
		if m.Op == opReply {
			l.Answer(m.ID, m)
		} else {
			l.event(m)
		}
	}
}
