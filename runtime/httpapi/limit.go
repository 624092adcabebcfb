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
	// smallRequestBytes is the number of bytes up to which a request does not wait for the end of
	// evicted connections. Most requests are smaller, so that attackers do not delay other clients.
	smallRequestBytes = 1 << 10
	// minServeTime is how long an unauthenticated connection that keeps the server waiting is
	// served while other connections of its client wait. Then the server closes it.
	minServeTime = 2 * time.Second
	// overdueCheckInterval is how often a waiting connection checks whether a served connection
	// is overdue.
	overdueCheckInterval = 100 * time.Millisecond
)

// tooManyConnsText is Nomad's text for a client with one connection too many.
const tooManyConnsText = "Your IP is issuing too many concurrent connections, please rate limit your calls"

const tooManyConnsResponse = "HTTP/1.1 429 Too Many Requests\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n" + tooManyConnsText

var errTooManyConns = &statusError{http.StatusTooManyRequests, tooManyConnsText}

// limitListener limits how many connections are open at once.
//
// It serves 100 unauthenticated connections per address: further connections wait until one of these
// authenticates or is closed. There are 1,000 unauthenticated connections in total. If another client
// connects then, the client with the most of them loses its oldest connection, so that no client blocks
// the others.
// When they have sent too much in total, the connection that has sent most is closed.
type limitListener struct {
	net.Listener
	maxConns, maxPerClient int
	isUnixSocket           bool // a unix socket: its file mode controls access

	mu                sync.Mutex
	openConns         int // connections of all clients, authenticated or not
	unauthenticated   int // unauthenticated connections of all clients
	receivedBytes     int // bytes from all unauthenticated connections
	evictedBytes      int // bytes from connections that were closed here and that the server still has in memory
	clients           map[string]*clientConns
	evictedBelowLimit chan struct{} // closed when evictedBytes is no longer above its limit; nil if it is not above
}

// clientConns are the connections of one address.
type clientConns struct {
	authenticated int
	served        []*limitConn // unauthenticated connections, the oldest first
	waiting       []*limitConn // unauthenticated connections that are not read yet, the oldest first
}

func (c *clientConns) unauthenticated() int { return len(c.served) + len(c.waiting) }

// LimitListener returns a listener that has at most maxConns connections open at once, of which at
// most maxPerClient are authenticated and come from one address; 0 means no limit. The limit of
// unauthenticated connections is fixed. A unix socket counts as one client, and has no such limit.
func LimitListener(l net.Listener, maxConns, maxPerClient int) net.Listener {
	return &limitListener{
		Listener: l, maxConns: maxConns, maxPerClient: maxPerClient, isUnixSocket: l.Addr().Network() == "unix", clients: make(map[string]*clientConns),
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
		c := &limitConn{Conn: conn, listener: l, host: host, serveStarted: make(chan struct{}), closed: make(chan struct{})}
		if l.addConn(c) {
			return c, nil
		}
		// The reply fits into the socket buffer; if not, the client gets none.
		_ = conn.SetWriteDeadline(time.Now().Add(time.Millisecond))
		_, _ = io.WriteString(conn, tooManyConnsResponse)
		conn.Close()
	}
}

// addConn counts a connection. It reports whether the connection is within the limits.
func (l *limitListener) addConn(c *limitConn) bool {
	l.mu.Lock()
	if l.maxConns > 0 && l.openConns >= l.maxConns {
		l.mu.Unlock()
		return false
	}
	l.openConns++
	var evicted *limitConn
	if l.isUnixSocket {
		c.startServing()
	} else {
		if l.unauthenticated >= maxUnauthenticated {
			evicted = l.oldestConnOfBusiestClient()
			l.removeUnauthenticated(evicted)
		}
		client := l.clients[c.host]
		if client == nil {
			client = &clientConns{}
			l.clients[c.host] = client
		}
		l.unauthenticated++
		c.countsReceivedBytes.Store(true)
		client.waiting = append(client.waiting, c)
		client.serveWaiting()
	}
	l.mu.Unlock()
	if evicted != nil {
		evicted.disconnect()
	}
	return true
}

// oldestConnOfBusiestClient returns the oldest unauthenticated connection of the client that has the most of them.
func (l *limitListener) oldestConnOfBusiestClient() *limitConn {
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
			if most == nil || c.receivedBytes > most.receivedBytes {
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
	if c.countsReceivedBytes.Load() {
		c.receivedBytes += n
		l.receivedBytes += n
	}
	for l.receivedBytes > maxUnauthenticatedBytes {
		most := l.largestSender()
		most.evictedBytes = most.receivedBytes
		l.evictedBytes += most.evictedBytes
		l.removeUnauthenticated(most)
		evicted = append(evicted, most)
	}
	if l.evictedBelowLimit == nil && l.evictedBytes > maxUnauthenticatedBytes {
		l.evictedBelowLimit = make(chan struct{})
	}
	released, small := l.evictedBelowLimit, c.receivedBytes <= smallRequestBytes
	l.mu.Unlock()
	for _, c := range evicted {
		c.disconnect()
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

// releaseEvictedBytes subtracts the bytes of an evicted connection that the server has closed.
func (l *limitListener) releaseEvictedBytes(c *limitConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.evictedBytes -= c.evictedBytes
	c.evictedBytes = 0
	if l.evictedBelowLimit != nil && l.evictedBytes <= maxUnauthenticatedBytes {
		close(l.evictedBelowLimit)
		l.evictedBelowLimit = nil
	}
}

// resetReceivedBytes removes the bytes that a connection has sent from the total.
func (l *limitListener) resetReceivedBytes(c *limitConn) {
	l.receivedBytes -= c.receivedBytes
	c.receivedBytes = 0
}

// serveWaiting serves waiting connections up to the limit.
func (c *clientConns) serveWaiting() {
	for len(c.waiting) > 0 && len(c.served) < maxUnauthenticatedPerClient {
		next := c.waiting[0]
		c.waiting = slices.Delete(c.waiting, 0, 1)
		c.served = append(c.served, next)
		next.startServing()
	}
}

// removeUnauthenticated removes an authenticated or closed connection from the unauthenticated connections, and
// serves the next connection.
func (l *limitListener) removeUnauthenticated(c *limitConn) {
	client := l.clients[c.host]
	if client == nil {
		return
	}
	c.countsReceivedBytes.Store(false)
	l.resetReceivedBytes(c)
	same := func(other *limitConn) bool { return other == c }
	before := client.unauthenticated()
	client.served = slices.DeleteFunc(client.served, same)
	client.waiting = slices.DeleteFunc(client.waiting, same)
	l.unauthenticated -= before - client.unauthenticated()
	client.serveWaiting()
	l.removeClientIfEmpty(c.host)
}

// removeClientIfEmpty removes the entry of a client without connections.
func (l *limitListener) removeClientIfEmpty(host string) {
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
		if len(overdue) < len(client.waiting) && served.isOverdue() {
			overdue = append(overdue, served)
		}
	}
	for _, served := range overdue {
		l.removeUnauthenticated(served)
	}
	l.mu.Unlock()
	for _, served := range overdue {
		served.disconnect()
	}
}

// removeConn removes a connection from all counts.
func (l *limitListener) removeConn(c *limitConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.openConns--
	c.isClosed = true
	if c.authenticated {
		l.clients[c.host].authenticated--
		l.removeClientIfEmpty(c.host)
		return
	}
	l.removeUnauthenticated(c)
}

// limitConn is a connection that is counted until it is closed.
type limitConn struct {
	net.Conn
	listener     *limitListener
	host         string
	serveStarted chan struct{} // closed by the listener when the connection is served
	closed       chan struct{} // closed by the first Close

	closeOnce           sync.Once
	isClosed            bool          // guarded by listener.mu
	authenticated       bool          // guarded by listener.mu
	receivedBytes       int           // bytes of the client's request; guarded by listener.mu
	evictedBytes        int           // receivedBytes at the eviction, until the server closes the connection; guarded by listener.mu
	countsReceivedBytes atomic.Bool   // bytes of the client are counted; set with listener.mu held
	isServed            atomic.Bool   // serveStarted is closed
	readTimeout         time.Duration // read timeout of the server, which starts with startServing; 0 means none
	isReading           atomic.Bool   // the server reads
	servedSince         time.Time     // time of startServing; guarded by listener.mu
}

// isOverdue reports whether the connection was served for minServeTime and the server waits for it. On a
// loaded machine the client often waits for the server: its bytes have arrived and were not read
// yet.
func (c *limitConn) isOverdue() bool {
	if !c.isReading.Load() || time.Since(c.servedSince) < minServeTime {
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

// limitConnOf returns the counted connection below a connection, nil if there is none.
func limitConnOf(c net.Conn) *limitConn {
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
	if c.authenticated || c.isClosed {
		return true
	}
	client := cmp.Or(l.clients[c.host], &clientConns{})
	if l.maxPerClient > 0 && client.authenticated >= l.maxPerClient {
		return false
	}
	c.authenticated = true
	client.authenticated++
	l.clients[c.host] = client
	l.removeUnauthenticated(c)
	return true
}

// headerReceived is called when the client has sent the header of a request: then only the header of the
// next request is counted. With a body, counting stops, because the body is either discarded or
// has its own limit.
func (c *limitConn) headerReceived(body bool) {
	if c == nil || !c.countsReceivedBytes.Load() {
		return
	}
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	c.listener.resetReceivedBytes(c)
	if body {
		c.countsReceivedBytes.Store(false)
	}
}

func (c *limitConn) startServing() {
	c.servedSince = time.Now()
	c.isServed.Store(true)
	close(c.serveStarted)
}

// SetReadDeadline keeps the time that a connection has to send its request, which starts when the
// connection is served.
func (c *limitConn) SetReadDeadline(t time.Time) error {
	if !c.isServed.Load() {
		c.readTimeout = 0
		if !t.IsZero() {
			c.readTimeout = time.Until(t)
		}
	}
	return c.Conn.SetReadDeadline(t)
}

// Read first waits until the connection is served.
func (c *limitConn) Read(p []byte) (int, error) {
	for !c.isServed.Load() {
		select {
		case <-c.serveStarted:
		case <-c.closed:
			return 0, net.ErrClosed
		case <-time.After(overdueCheckInterval):
			c.listener.closeOverdue(c)
		}
	}
	if c.readTimeout > 0 {
		if err := c.Conn.SetReadDeadline(time.Now().Add(c.readTimeout)); err != nil {
			return 0, err
		}
		c.readTimeout = 0
	}
	c.isReading.Store(true)
	n, err := c.Conn.Read(p)
	c.isReading.Store(false)
	if c.countsReceivedBytes.Load() && !c.listener.addBytes(c, n) {
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
	err := c.disconnect()
	c.listener.releaseEvictedBytes(c)
	return err
}

// disconnect closes the connection and removes it from the counts. Reads of the server fail from then on.
func (c *limitConn) disconnect() error {
	c.closeOnce.Do(func() {
		close(c.closed)
		c.listener.removeConn(c)
	})
	return c.Conn.Close()
}
