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

// Conn is a connection, counted until it is closed. The methods of a nil *Conn do nothing.
type Conn struct {
	net.Conn
	limiter         *Limiter
	peerIdentity    ClientIdentity
	acceptedAt      time.Time
	uncountOnce     sync.Once
	closedOrEvicted chan struct{} // closed when the connection is closed or evicted

	countsHeaderBytes     atomic.Bool  // Read counts the bytes from the client; set with limiter.mu held
	holdsLargeRequestSlot atomic.Bool  // the server processes this connection's large request, which has an element in limiter.largeRequestSlots
	isEvicted             atomic.Bool  // Evict closes the net.Conn, and Close does not
	readStartUnixNano     atomic.Int64 // Unix time in nanoseconds at which the current Read has started; 0 while no Read is in progress

	// Guarded by limiter.mu.
	countedClient                ClientIdentity
	isCounted                    bool      // countedClient's class has the connection
	isAuthenticated              bool      // CountForClient has succeeded
	isAuthenticatedRequestActive bool      // an authenticated client's request is in progress
	requestDoneAt                time.Time // end of an authenticated client's last request
}

// ConnOf returns c as a Conn, or the Conn that c wraps with TLS. It returns nil if there is none.
func ConnOf(c net.Conn) *Conn {
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	limited, _ := c.(*Conn)
	return limited
}

// PeerIdentity returns the peer's identity. The connection belongs to it until a request has authenticated.
func (c *Conn) PeerIdentity() ClientIdentity {
	if c == nil {
		return ClientIdentity{}
	}
	return c.peerIdentity
}

// CountForClient counts the connection for the current request's client; the request lasts until [Conn.OnRequestDone]. It returns
// false if the client has too many connections: the server must then reject the request and close the connection.
func (c *Conn) CountForClient(id ClientIdentity) (withinLimit bool) {
	if c == nil {
		return true
	}
	c.freeLargeRequestSlot()
	l := c.limiter
	l.mu.Lock()
	if !c.isCounted { // the connection has ended
		l.mu.Unlock()
		return true
	}
	to := &l.connsByClass[id.Class]
	ok := to.isWithinClientLimit(c, id.Name)
	var evicted *Conn
	if ok && c.countedClient != id {
		from := &l.connsByClass[c.countedClient.Class]
		from.removeConn(c) // called before addConn, because from and to can be the same class
		if evicted, ok = to.addConn(c, id.Name); ok {
			l.markUncountedLocked(evicted)
			c.countedClient = id
		} else {
			from.addConn(c, c.countedClient.Name)
		}
	}
	if ok {
		c.isAuthenticated, c.isAuthenticatedRequestActive = true, true
		to.forgetHeaderBytes(c)
		c.countsHeaderBytes.Store(false)
	}
	l.mu.Unlock()
	evicted.Evict()
	return ok
}

// OnUnauthenticatedHeaderRead must be called when the server has read the request header of an unauthenticated client. It resets
// the count of header bytes. If the request has a body, no more bytes are counted, because the server either discards the body or
// limits its size itself.
func (c *Conn) OnUnauthenticatedHeaderRead(hasBody bool) {
	if c == nil {
		return
	}
	c.freeLargeRequestSlot()
	if !c.countsHeaderBytes.Load() {
		return // the client has authenticated, or the connection has ended
	}
	c.limiter.mu.Lock()
	defer c.limiter.mu.Unlock()
	c.limiter.connsByClass[c.countedClient.Class].forgetHeaderBytes(c)
	if hasBody {
		c.countsHeaderBytes.Store(false)
	}
}

// OnRequestDone must be called when the server has handled the current request.
func (c *Conn) OnRequestDone() {
	if c == nil {
		return
	}
	c.limiter.mu.Lock()
	defer c.limiter.mu.Unlock()
	if c.isAuthenticatedRequestActive {
		c.isAuthenticatedRequestActive, c.requestDoneAt = false, time.Now()
	}
}

// isIdleLocked reports whether the server waits for the client's next bytes. On a loaded machine the client often waits for the
// server instead: the client's bytes have arrived, but the server has not read them yet.
func (c *Conn) isIdleLocked() bool {
	since := c.readStartUnixNano.Load()
	if c.isAuthenticatedRequestActive || since == 0 || time.Since(time.Unix(0, since)) < minIdleTime || time.Since(c.requestDoneAt) < minIdleTime {
		return false
	}
	unread := 0
	if conn, ok := c.Conn.(syscall.Conn); ok {
		if raw, err := conn.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { unread, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }) // fails only if the connection is closed
		}
	}
	return unread == 0
}

// freeLargeRequestSlot frees the connection's large-request slot, if it has one. It is called when the server has processed the
// bytes read from the connection.
func (c *Conn) freeLargeRequestSlot() {
	if c.holdsLargeRequestSlot.Swap(false) {
		<-c.limiter.largeRequestSlots
	}
}

// errEnded is an error after which net/http sends no reply.
var errEnded = &net.OpError{Op: "read", Err: net.ErrClosed}

// Read implements net.Conn. It fails when the connection was evicted.
func (c *Conn) Read(p []byte) (int, error) {
	c.freeLargeRequestSlot()
	c.readStartUnixNano.Store(time.Now().UnixNano())
	n, err := c.Conn.Read(p)
	c.readStartUnixNano.Store(0)
	if c.countsHeaderBytes.Load() {
		c.limiter.countHeaderBytesAndThrottle(c, n)
	}
	select {
	case <-c.closedOrEvicted:
		c.freeLargeRequestSlot()
		return 0, errEnded
	default:
		return n, err
	}
}

// Write implements net.Conn. It fails when the connection was evicted, because the cancelled request's handler could write an
// incomplete reply.
func (c *Conn) Write(p []byte) (int, error) {
	select {
	case <-c.closedOrEvicted:
		return 0, net.ErrClosed
	default:
		return c.Conn.Write(p)
	}
}

// CloseWrite closes the connection's sending direction. A client can then read the reply to a request even if the server has not
// read its body.
func (c *Conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// Close implements net.Conn. The server calls it when it no longer needs the connection.
func (c *Conn) Close() error {
	c.uncountAndFailReadsAndWrites()
	c.freeLargeRequestSlot()
	if c.isEvicted.Load() {
		return nil
	}
	return c.Conn.Close()
}

// uncountAndFailReadsAndWrites removes the connection from the limiter's counts. From then on Read and Write fail.
func (c *Conn) uncountAndFailReadsAndWrites() {
	c.uncountOnce.Do(func() {
		close(c.closedOrEvicted)
		c.limiter.mu.Lock()
		defer c.limiter.mu.Unlock()
		if c.isCounted {
			c.limiter.connsByClass[c.countedClient.Class].removeConn(c)
			c.limiter.markUncountedLocked(c)
		}
	})
}

// Evict makes the server's Read and Write fail at once, and closes the connection. If the client has not authenticated, the
// connection is closed for the client after closeDelay.
func (c *Conn) Evict() {
	if c == nil {
		return
	}
	c.isEvicted.Store(true)
	c.uncountAndFailReadsAndWrites()
	l := c.limiter
	l.mu.Lock()
	delay := !c.isAuthenticated && l.delayedCloseCount < l.connsByClass[Unauthenticated].maxConns
	if delay {
		l.delayedCloseCount++
	}
	l.mu.Unlock()
	closeConn := func() {
		c.Conn.Close()
		if delay {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.delayedCloseCount--
		}
	}
	half, ok := c.Conn.(interface{ CloseRead() error })
	if !delay || !ok || half.CloseRead() != nil {
		closeConn()
		return
	}
	time.AfterFunc(closeDelay, closeConn)
}
