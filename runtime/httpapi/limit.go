package httpapi

import (
	"cmp"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Limits of connections whose client has not authenticated.
const (
	maxUnauthenticated          = 1000
	maxUnauthenticatedPerClient = 100
	// maxUnauthenticatedBytes limits the request bytes of these connections in total, and those of
	// evicted connections that the server still has. A request uses up to 17 times as much memory:
	// a header is a map with an entry for each of its lines.
	maxUnauthenticatedBytes = 512 << 10
	// smallRequest is the number of bytes up to which a request does not wait for the end of evicted
	// connections. Most requests are smaller, so that attackers do not delay other clients.
	smallRequest = 1 << 10
	// turnDuration is how long after its turn an unauthenticated connection that keeps the server
	// waiting is served while other connections of its client wait. Then it is closed.
	turnDuration = 2 * time.Second
	// turnInterval is how often a waiting connection checks for one whose turn is over.
	turnInterval = 100 * time.Millisecond
)

// tooMany is Nomad's text for a client with one connection too many.
const tooMany = "Your IP is issuing too many concurrent connections, please rate limit your calls"

const tooManyAnswer = "HTTP/1.1 429 Too Many Requests\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n" + tooMany

var errTooMany = &statusError{http.StatusTooManyRequests, tooMany}

// limitListener limits how many connections are open at once.
//
// It serves 100 unauthenticated connections per address: further connections are not read until it
// is their turn. There are 1,000 such connections in total. If another client connects then, the
// client with the most of them loses its oldest connection, so that no client blocks the others.
// When they have sent too much in total, the connection that has sent most is closed.
type limitListener struct {
	net.Listener
	most, perClient int
	local           bool // a unix socket: its file mode controls access

	mu              sync.Mutex
	open            int // connections of all clients, authenticated or not
	unauthenticated int // unauthenticated connections of all clients
	sent            int // bytes from all unauthenticated connections
	evicted         int // bytes from connections that were closed here and that the server still has in memory
	clients         map[string]*clientConns
	released        chan struct{} // closed when evicted is no longer above its limit; nil if it is not above
}

// clientConns are the connections of one address.
type clientConns struct {
	authenticated int
	served        []*limitConn // unauthenticated connections, the oldest first
	waiting       []*limitConn // unauthenticated connections that are not read yet, the oldest first
}

func (c *clientConns) unauthenticated() int { return len(c.served) + len(c.waiting) }

// Limit returns a listener that has at most most connections open at once, of which at most
// perClient are authenticated and come from one address; 0 means no limit. The number of
// unauthenticated connections is fixed, and is not limited for a unix socket, which counts as one
// client.
func Limit(l net.Listener, most, perClient int) net.Listener {
	return &limitListener{
		Listener: l, most: most, perClient: perClient, local: l.Addr().Network() == "unix", clients: make(map[string]*clientConns),
	}
}

func (l *limitListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		host, _, err := net.SplitHostPort(conn.RemoteAddr().String())
		if err != nil {
			host = conn.RemoteAddr().String()
		}
		c := &limitConn{Conn: conn, listener: l, host: host, turn: make(chan struct{}), closed: make(chan struct{})}
		if l.add(c) {
			return c, nil
		}
		// The reply fits into the socket buffer; if not, the client gets none.
		_ = conn.SetWriteDeadline(time.Now().Add(time.Millisecond))
		_, _ = io.WriteString(conn, tooManyAnswer)
		conn.Close()
	}
}

// add counts a connection. It reports whether the connection is within the limits.
func (l *limitListener) add(c *limitConn) bool {
	l.mu.Lock()
	if l.most > 0 && l.open >= l.most {
		l.mu.Unlock()
		return false
	}
	l.open++
	var evicted *limitConn
	if l.local {
		c.serve()
	} else {
		if l.unauthenticated >= maxUnauthenticated {
			evicted = l.oldestOfBusiest()
			l.removeUnauthenticated(evicted)
		}
		client := l.clients[c.host]
		if client == nil {
			client = &clientConns{}
			l.clients[c.host] = client
		}
		l.unauthenticated++
		c.isCounted.Store(true)
		client.waiting = append(client.waiting, c)
		client.advance()
	}
	l.mu.Unlock()
	if evicted != nil {
		evicted.end()
	}
	return true
}

// oldestOfBusiest returns the oldest unauthenticated connection of the client that has the most of them.
func (l *limitListener) oldestOfBusiest() *limitConn {
	var most *clientConns
	for _, client := range l.clients {
		if most == nil || client.unauthenticated() > most.unauthenticated() {
			most = client
		}
	}
	return most.served[0] // a client with waiting connections has a served one
}

// largestSender returns the unauthenticated connection that has sent most.
func (l *limitListener) largestSender() (most *limitConn) {
	for _, client := range l.clients {
		for _, c := range client.served {
			if most == nil || c.sent > most.sent {
				most = c
			}
		}
	}
	return most
}

// addBytes adds to the bytes that an unauthenticated connection has sent. It reports whether the
// server may process them. It blocks while the server still processes too many bytes of evicted
// connections, unless the request is small: on a loaded machine their memory is released long after
// their eviction.
func (l *limitListener) addBytes(c *limitConn, n int) bool {
	var evicted []*limitConn
	l.mu.Lock()
	if c.isCounted.Load() {
		c.sent += n
		l.sent += n
	}
	for l.sent > maxUnauthenticatedBytes {
		most := l.largestSender()
		most.evicted = most.sent
		l.evicted += most.evicted
		l.removeUnauthenticated(most)
		evicted = append(evicted, most)
	}
	if l.released == nil && l.evicted > maxUnauthenticatedBytes {
		l.released = make(chan struct{})
	}
	released, small := l.released, c.sent <= smallRequest
	l.mu.Unlock()
	for _, c := range evicted {
		c.end()
	}
	if released != nil && !small {
		select {
		case <-released:
		case <-c.closed:
		}
	}
	select {
	case <-c.closed:
		return false
	default:
		return true
	}
}

// release subtracts the bytes of an evicted connection that the server has closed.
func (l *limitListener) release(c *limitConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.evicted -= c.evicted
	c.evicted = 0
	if l.released != nil && l.evicted <= maxUnauthenticatedBytes {
		close(l.released)
		l.released = nil
	}
}

// resetBytes subtracts the bytes that a connection has sent.
func (l *limitListener) resetBytes(c *limitConn) {
	l.sent -= c.sent
	c.sent = 0
}

// advance serves waiting connections up to the limit.
func (c *clientConns) advance() {
	for len(c.waiting) > 0 && len(c.served) < maxUnauthenticatedPerClient {
		next := c.waiting[0]
		c.waiting = slices.Delete(c.waiting, 0, 1)
		c.served = append(c.served, next)
		next.serve()
	}
}

// removeUnauthenticated removes an authenticated or closed connection from the unauthenticated connections, and
// serves the next connection.
func (l *limitListener) removeUnauthenticated(c *limitConn) {
	client := l.clients[c.host]
	if client == nil {
		return
	}
	c.isCounted.Store(false)
	l.resetBytes(c)
	same := func(other *limitConn) bool { return other == c }
	before := client.unauthenticated()
	client.served = slices.DeleteFunc(client.served, same)
	client.waiting = slices.DeleteFunc(client.waiting, same)
	l.unauthenticated -= before - client.unauthenticated()
	client.advance()
	l.dropIfEmpty(c.host)
}

// dropIfEmpty removes the entry of a client without connections.
func (l *limitListener) dropIfEmpty(host string) {
	if client := l.clients[host]; client.authenticated+client.unauthenticated() == 0 {
		delete(l.clients, host)
	}
}

// closeOverdue closes the client's overdue connections and serves waiting connections in their place.
// Only the first waiting connection calls it.
func (l *limitListener) closeOverdue(c *limitConn) {
	var overdue []*limitConn
	l.mu.Lock()
	client := l.clients[c.host]
	if client == nil || len(client.waiting) == 0 || client.waiting[0] != c {
		l.mu.Unlock()
		return
	}
	for _, served := range client.served {
		if len(overdue) < len(client.waiting) && served.overdue() {
			overdue = append(overdue, served)
		}
	}
	for _, served := range overdue {
		l.removeUnauthenticated(served)
	}
	l.mu.Unlock()
	for _, served := range overdue {
		served.end()
	}
}

// remove removes a connection from all counts.
func (l *limitListener) remove(c *limitConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	c.ended = true
	if c.authenticated {
		l.clients[c.host].authenticated--
		l.dropIfEmpty(c.host)
		return
	}
	l.removeUnauthenticated(c)
}

// limitConn is a connection that is counted until it is closed.
type limitConn struct {
	net.Conn
	listener *limitListener
	host     string
	turn     chan struct{} // closed by the listener when the connection is served
	closed   chan struct{} // closed by the first Close

	ending        sync.Once
	ended         bool          // guarded by listener.mu
	authenticated bool          // guarded by listener.mu
	sent          int           // bytes of the client's request; guarded by listener.mu
	evicted       int           // sent at the eviction, until the server closes the connection; guarded by listener.mu
	isCounted     atomic.Bool   // bytes of the client are counted; set with listener.mu held
	served        atomic.Bool   // turn is closed
	readTimeout   time.Duration // read timeout of the server from the turn of the connection; 0 means none
	reading       atomic.Bool   // the server reads
	since         time.Time     // start of its turn; guarded by listener.mu
}

// overdue reports whether the turn of the connection is over and the server waits for it. On a
// loaded machine the client often waits for the server: its bytes have arrived and were not read
// yet.
func (c *limitConn) overdue() bool {
	if !c.reading.Load() || time.Since(c.since) < turnDuration {
		return false
	}
	unread := 0
	if conn, ok := c.Conn.(syscall.Conn); ok {
		if raw, err := conn.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { unread, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }) // fails for a closed connection
		}
	}
	return unread == 0
}

// connOf returns the counted connection below a connection, nil if there is none.
func connOf(c net.Conn) *limitConn {
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	limited, _ := c.(*limitConn)
	return limited
}

// authenticate counts the connection as authenticated. It reports whether the client is within its
// limit; it may be called again.
func (c *limitConn) authenticate() bool {
	if c == nil {
		return true
	}
	l := c.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.authenticated || c.ended {
		return true
	}
	client := cmp.Or(l.clients[c.host], &clientConns{})
	if l.perClient > 0 && client.authenticated >= l.perClient {
		return false
	}
	c.authenticated = true
	client.authenticated++
	l.clients[c.host] = client
	l.removeUnauthenticated(c)
	return true
}

// request is called when the client has sent the header of a request: then only the header of the
// next request is counted. With a body, counting stops, because the body is either discarded or
// has its own limit.
func (c *limitConn) request(body bool) {
	if c == nil || !c.isCounted.Load() {
		return
	}
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	c.listener.resetBytes(c)
	if body {
		c.isCounted.Store(false)
	}
}

func (c *limitConn) serve() {
	c.since = time.Now()
	c.served.Store(true)
	close(c.turn)
}

// SetReadDeadline keeps the time that a connection has to send its request, which starts with its
// turn.
func (c *limitConn) SetReadDeadline(t time.Time) error {
	if !c.served.Load() {
		c.readTimeout = 0
		if !t.IsZero() {
			c.readTimeout = time.Until(t)
		}
	}
	return c.Conn.SetReadDeadline(t)
}

// Read first waits for the turn of the connection.
func (c *limitConn) Read(p []byte) (int, error) {
	for !c.served.Load() {
		select {
		case <-c.turn:
		case <-c.closed:
			return 0, net.ErrClosed
		case <-time.After(turnInterval):
			c.listener.closeOverdue(c)
		}
	}
	if c.readTimeout > 0 {
		if err := c.Conn.SetReadDeadline(time.Now().Add(c.readTimeout)); err != nil {
			return 0, err
		}
		c.readTimeout = 0
	}
	c.reading.Store(true)
	n, err := c.Conn.Read(p)
	c.reading.Store(false)
	if c.isCounted.Load() && !c.listener.addBytes(c, n) {
		return 0, net.ErrClosed
	}
	return n, err
}

// CloseWrite lets a client read the reply to a request whose body was not read.
func (c *limitConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// Close implements net.Conn. The server calls it when it no longer needs the connection.
func (c *limitConn) Close() error {
	err := c.end()
	c.listener.release(c)
	return err
}

// end closes the connection and removes it from the counts. Reads of the server fail from then on.
func (c *limitConn) end() error {
	c.ending.Do(func() {
		close(c.closed)
		c.listener.remove(c)
	})
	return c.Conn.Close()
}
