package connlimit

import (
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Conn is a connection that is counted until it is closed. The methods of a nil *Conn do nothing.
type Conn struct {
	net.Conn
	limiter    *Limiter
	origin     Identity
	acceptedAt time.Time
	endOnce    sync.Once
	ended      chan struct{} // closed when the connection is closed or evicted

	countsHeader atomic.Bool  // the bytes that the client sends are counted; set with limiter.mu held
	isLarge      atomic.Bool  // the server processes a large request of this connection, which has an element in limiter.largeRequests
	isEvicted    atomic.Bool  // the limiter closes the connection
	readSince    atomic.Int64 // start of the Read that is in progress, in nanoseconds of Unix time; 0 if none is

	// Guarded by limiter.mu.
	identity      Identity
	counted       bool      // the class of the identity has the connection
	authenticated bool      // Identify has succeeded
	busy          bool      // a request of a client that has authenticated is in progress
	doneAt        time.Time // end of the last such request
}

// Of returns the Conn that a connection of a server is or wraps, nil if there is none.
func Of(c net.Conn) *Conn {
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	limited, _ := c.(*Conn)
	return limited
}

// Origin returns the identity of the peer, to which the connection belongs until a request has authenticated.
func (c *Conn) Origin() Identity {
	if c == nil {
		return Identity{}
	}
	return c.origin
}

// Identify counts the connection for the client that has sent the current request, which lasts until
// [Conn.RequestDone]. It returns false if the client has too many connections: the server must then reject the request and
// close the connection.
func (c *Conn) Identify(id Identity) bool {
	if c == nil {
		return true
	}
	c.endLargeRequest()
	l := c.limiter
	l.mu.Lock()
	if !c.counted { // the connection has ended
		l.mu.Unlock()
		return true
	}
	to := &l.classes[id.Class]
	ok := to.hasShare(c, id.Name)
	var evicted *Conn
	if ok && c.identity != id {
		from := &l.classes[c.identity.Class]
		from.remove(c) // first, because both can be the same class
		if evicted, ok = to.add(c, id.Name); ok {
			l.uncountLocked(evicted)
			c.identity = id
		} else {
			from.add(c, c.identity.Name)
		}
	}
	if ok {
		c.authenticated, c.busy = true, true
		to.endHeader(c)
		c.countsHeader.Store(false)
	}
	l.mu.Unlock()
	evicted.Evict()
	return ok
}

// HeaderReceived is called when the server has read the header of a request. From then on, only the bytes
// of the next header are counted. If the request has a body, no more bytes are counted, because the body is
// either discarded or has its own limit.
func (c *Conn) HeaderReceived(hasBody bool) {
	if c == nil {
		return
	}
	c.endLargeRequest()
	if !c.countsHeader.Load() {
		return // the client has authenticated, or the connection has ended
	}
	c.limiter.mu.Lock()
	defer c.limiter.mu.Unlock()
	c.limiter.classes[c.identity.Class].endHeader(c)
	if hasBody {
		c.countsHeader.Store(false)
	}
}

// RequestDone is called when the server has handled the current request.
func (c *Conn) RequestDone() {
	if c == nil {
		return
	}
	c.limiter.mu.Lock()
	defer c.limiter.mu.Unlock()
	if c.busy {
		c.busy, c.doneAt = false, time.Now()
	}
}

// isIdleLocked reports whether the server waits for the next bytes of the client. On a loaded machine the client often
// waits for the server instead: its bytes have arrived, but the server has not read them yet.
func (c *Conn) isIdleLocked() bool {
	since := c.readSince.Load()
	if c.busy || since == 0 || time.Since(time.Unix(0, since)) < minIdleTime || time.Since(c.doneAt) < minIdleTime {
		return false
	}
	unread := 0
	if conn, ok := c.Conn.(syscall.Conn); ok {
		if raw, err := conn.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { unread, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }) // an error is ignored: the connection is closed
		}
	}
	return unread == 0
}

// endLargeRequest is called when the server has processed the bytes that it has read from the connection. Several
// calls have the effect of one.
func (c *Conn) endLargeRequest() {
	if c.isLarge.Swap(false) {
		<-c.limiter.largeRequests
	}
}

// errEnded is an error after which net/http sends no reply.
var errEnded = &net.OpError{Op: "read", Err: net.ErrClosed}

// Read implements net.Conn. It fails when the connection was evicted.
func (c *Conn) Read(p []byte) (int, error) {
	c.endLargeRequest()
	c.readSince.Store(time.Now().UnixNano())
	n, err := c.Conn.Read(p)
	c.readSince.Store(0)
	if c.countsHeader.Load() {
		c.limiter.countHeader(c, n)
	}
	select {
	case <-c.ended:
		c.endLargeRequest()
		return 0, errEnded
	default:
		return n, err
	}
}

// Write implements net.Conn. It fails when the connection was evicted: the request is cancelled then, and its handler
// could write the reply to a query that has not ended.
func (c *Conn) Write(p []byte) (int, error) {
	select {
	case <-c.ended:
		return 0, net.ErrClosed
	default:
		return c.Conn.Write(p)
	}
}

// CloseWrite closes the sending direction, so that a client can read the reply to a request whose body was
// not read.
func (c *Conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// Close implements net.Conn. The server calls it when it no longer needs the connection.
func (c *Conn) Close() error {
	c.end()
	c.endLargeRequest()
	if c.isEvicted.Load() {
		return nil
	}
	return c.Conn.Close()
}

// end removes the connection from the counts. Reads of the server fail from then on.
func (c *Conn) end() {
	c.endOnce.Do(func() {
		close(c.ended)
		c.limiter.mu.Lock()
		defer c.limiter.mu.Unlock()
		if c.counted {
			c.limiter.classes[c.identity.Class].remove(c)
			c.limiter.uncountLocked(c)
		}
	})
}

// Evict ends the connection for the server at once. The client of a connection that has not authenticated sees the
// end after closeDelay.
func (c *Conn) Evict() {
	if c == nil {
		return
	}
	c.isEvicted.Store(true)
	c.end()
	l := c.limiter
	l.mu.Lock()
	delay := !c.authenticated && l.delayed < l.classes[Unauthenticated].maxConns
	if delay {
		l.delayed++
	}
	l.mu.Unlock()
	closeConn := func() {
		c.Conn.Close()
		if delay {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.delayed--
		}
	}
	half, ok := c.Conn.(interface{ CloseRead() error })
	if !delay || !ok || half.CloseRead() != nil {
		closeConn()
		return
	}
	time.AfterFunc(closeDelay, closeConn)
}
