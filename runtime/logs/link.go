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

	"github.com/nomad-lite/nomad-lite/plugins/keeper"
)

// errDown means that the connection ended before the answer came.
var errDown = errors.New("connection to the log collector is down")

// link is one connection to a collector process.
type link struct {
	conn    *net.UnixConn
	process keeper.Process
	event   func(*message)
	wg      sync.WaitGroup
	done    chan struct{} // closed by read

	mu      sync.Mutex
	last    uint64
	pending map[uint64]chan *message // nil once the connection is down
}

// dial connects and says hello.
func (c *Collector) dial(ctx context.Context, address *net.UnixAddr) (*link, error) {
	conn, err := net.DialUnix("unixpacket", nil, address)
	if err != nil {
		return nil, err
	}
	if err := keeper.SameUser(conn); err != nil {
		conn.Close()
		return nil, err
	}
	l := &link{conn: conn, event: c.event, done: make(chan struct{}), pending: map[uint64]chan *message{}}
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
	ch := make(chan *message, 1)
	l.mu.Lock()
	if l.pending == nil {
		l.mu.Unlock()
		return nil, l.down()
	}
	l.last++
	m.ID = l.last
	l.pending[m.ID] = ch
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		delete(l.pending, m.ID)
		l.mu.Unlock()
	}()

	if err := l.send(m, fds...); errors.Is(err, errDown) {
		return nil, l.down()
	} else if err != nil {
		return nil, err
	}
	select {
	case reply, ok := <-ch:
		if !ok {
			return nil, l.down()
		}
		if reply.Error != "" {
			return nil, errors.New(reply.Error)
		}
		return reply, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// down is the error of a call on a connection that has ended, or is about to: once
// it is returned, ended says so too.
func (l *link) down() error {
	<-l.done
	return errDown
}

// ended reports whether no reply will come any more.
func (l *link) ended() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// send sends one message. A failure of the connection is errDown.
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
		return errDown
	}
	return nil
}

// read hands out replies and events until the connection ends.
func (l *link) read() {
	defer close(l.done)
	buf := make([]byte, maxMessage)
	for {
		n, err := l.conn.Read(buf)
		if err != nil || n == 0 {
			break
		}
		m, err := decode(buf[:n])
		if err != nil {
			break
		}
		if m.Op != opReply {
			l.event(m)
			continue
		}
		l.mu.Lock()
		ch := l.pending[m.ID]
		delete(l.pending, m.ID)
		l.mu.Unlock()
		if ch != nil {
			ch <- m // has room for one, and gets one
		}
	}
	l.conn.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ch := range l.pending {
		close(ch)
	}
	l.pending = nil
}
