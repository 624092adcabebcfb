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
	// maxUnauthenticatedBytes limits the request bytes of all unauthenticated connections together. A
	// request uses up to 17 times as much memory: a header is a map with an entry for each of its lines.
	maxUnauthenticatedBytes = 512 << 10
	// maxLargeRequests is the number of requests with more than smallRequestBytes bytes that the server
	// processes at the same time. Further large requests wait, so that attackers use neither much memory
	// nor all processors. Most requests are smaller.
	maxLargeRequests  = 2
	smallRequestBytes = 1 << 10
	// minServeTime is how long an unauthenticated connection is served, while other connections of its
	// client wait, if the server waits for its bytes. After this time the server closes it.
	minServeTime = 2 * time.Second
	// evictedCloseDelay is how long after its eviction a connection is closed. Without the delay, clients
	// that reconnect at once would keep the server busy with evictions.
	evictedCloseDelay = 2 * time.Second
	// maxEvictedOpenConns is the maximum number of evicted connections that are open. Further evicted
	// connections are closed at once.
	maxEvictedOpenConns = 1000
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
// It serves 100 unauthenticated connections per address: a further connection waits until one of these
// authenticates or is closed. In total there are at most 1,000 unauthenticated connections. If a further
// client connects, limitListener evicts the oldest connection of the client with the most unauthenticated
// connections, so that no client blocks the others. If unauthenticated connections have sent too many bytes
// in total, limitListener evicts the connection that has sent most. The server sees the end of an evicted
// connection at once, the client only after a delay.
type limitListener struct {
	net.Listener
	maxConns, maxPerClient int
	isUnixSocket           bool // a unix socket: its file mode controls access

	mu                   sync.Mutex
	openConns            int // connections of all clients, authenticated or not
	unauthenticatedConns int // unauthenticated connections of all clients
	receivedBytes        int // bytes from all unauthenticated connections
	clients              map[string]*clientConns

	largeRequests    chan struct{} // contains one element per large request that the server processes
	evictedOpenConns atomic.Int32  // evicted connections that are not closed yet
}

// clientConns are the connections from one address.
type clientConns struct {
	authenticatedConns int
	servedConns        []*limitConn // unauthenticated connections, the oldest first
	waitingConns       []*limitConn // unauthenticated connections that are not read yet, the oldest first
}

func (c *clientConns) countUnauthenticated() int { return len(c.servedConns) + len(c.waitingConns) }

// maxConnections limits the TCP connections, and the connections of tasks.
const maxConnections = 8192

// MaxConnections returns the limit of the connections of a listener: 8192, or less if this process can open
// few files. Half of the descriptors that it can open are kept for its tasks in any case.
func MaxConnections() int {
	var openFileLimit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &openFileLimit); err != nil {
		return maxConnections
	}
	return int(min(maxConnections, openFileLimit.Cur/4))
}

// LimitListener returns a listener that has at most maxConns connections open at once, of which at
// most maxPerClient are authenticated and come from one address; 0 means no limit. The limit of
// unauthenticated connections is fixed. A unix socket counts as one client, and has no such limit.
func LimitListener(l net.Listener, maxConns, maxPerClient int) net.Listener {
	return &limitListener{
		Listener: l, maxConns: maxConns, maxPerClient: maxPerClient, isUnixSocket: l.Addr().Network() == "unix",
		clients: make(map[string]*clientConns), largeRequests: make(chan struct{}, maxLargeRequests),
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
		c := &limitConn{Conn: conn, listener: l, host: host, serveStarted: make(chan struct{}), closedOrEvicted: make(chan struct{})}
		if l.addConn(c) {
			return c, nil
		}
		// The write does not block if the reply fits into the socket buffer; otherwise the client gets
		// no reply.
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
	var evictedConn *limitConn
	if l.isUnixSocket {
		c.startServing()
	} else {
		if l.unauthenticatedConns >= maxUnauthenticated {
			evictedConn = l.oldestConnOfBusiestClient()
			l.removeUnauthenticated(evictedConn)
		}
		client := l.clients[c.host]
		if client == nil {
			client = &clientConns{}
			l.clients[c.host] = client
		}
		l.unauthenticatedConns++
		c.countsReceivedBytes.Store(true)
		client.waitingConns = append(client.waitingConns, c)
		client.serveWaitingConns()
	}
	l.mu.Unlock()
	if evictedConn != nil {
		evictedConn.evict()
	}
	return true
}

// oldestConnOfBusiestClient returns the oldest unauthenticated connection of the client that has the most of them.
func (l *limitListener) oldestConnOfBusiestClient() *limitConn {
	var busiestClient *clientConns
	for _, client := range l.clients {
		if busiestClient == nil || client.countUnauthenticated() > busiestClient.countUnauthenticated() {
			busiestClient = client
		}
	}
	return busiestClient.servedConns[0] // a client that has waiting connections also has a served connection
}

// largestSender returns the unauthenticated connection that has sent most.
func (l *limitListener) largestSender() (most *limitConn) {
	for _, client := range l.clients {
		for _, c := range client.servedConns {
			if most == nil || c.receivedBytes > most.receivedBytes {
				most = c
			}
		}
	}
	return most
}

// countReceivedBytes increases the number of bytes that an unauthenticated connection has sent. If the request is
// large, countReceivedBytes blocks until the server may process its bytes, or until the connection has ended.
func (l *limitListener) countReceivedBytes(c *limitConn, n int) {
	l.mu.Lock()
	large := c.receivedBytes+n > smallRequestBytes
	l.mu.Unlock()
	if large {
		select {
		case l.largeRequests <- struct{}{}:
			c.processingLargeRequest.Store(true)
		case <-c.closedOrEvicted:
		}
	}
	var evictedConns []*limitConn
	l.mu.Lock()
	if c.countsReceivedBytes.Load() {
		c.receivedBytes += n
		l.receivedBytes += n
	}
	for l.receivedBytes > maxUnauthenticatedBytes {
		most := l.largestSender()
		l.removeUnauthenticated(most)
		evictedConns = append(evictedConns, most)
	}
	l.mu.Unlock()
	for _, c := range evictedConns {
		c.evict()
	}
}

// markBytesProcessed is called when the server has processed the bytes that it has read from the connection. Several
// calls have the effect of one.
func (c *limitConn) markBytesProcessed() {
	if c.processingLargeRequest.Swap(false) {
		<-c.listener.largeRequests
	}
}

// resetReceivedBytes subtracts the bytes that a connection has sent from the total of all connections.
func (l *limitListener) resetReceivedBytes(c *limitConn) {
	l.receivedBytes -= c.receivedBytes
	c.receivedBytes = 0
}

// serveWaitingConns serves waiting connections up to the limit.
func (c *clientConns) serveWaitingConns() {
	for len(c.waitingConns) > 0 && len(c.servedConns) < maxUnauthenticatedPerClient {
		next := c.waitingConns[0]
		c.waitingConns = slices.Delete(c.waitingConns, 0, 1)
		c.servedConns = append(c.servedConns, next)
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
	before := client.countUnauthenticated()
	client.servedConns = slices.DeleteFunc(client.servedConns, same)
	client.waitingConns = slices.DeleteFunc(client.waitingConns, same)
	l.unauthenticatedConns -= before - client.countUnauthenticated()
	client.serveWaitingConns()
	l.removeClientIfEmpty(c.host)
}

// removeClientIfEmpty removes the entry of a client without connections.
func (l *limitListener) removeClientIfEmpty(host string) {
	if client := l.clients[host]; client.authenticatedConns+client.countUnauthenticated() == 0 {
		delete(l.clients, host)
	}
}

// closeOverdue closes the client's overdue connections and serves waiting connections in their place.
// Only the first waiting connection calls it.
func (l *limitListener) closeOverdue(c *limitConn) {
	var overdueConns []*limitConn
	l.mu.Lock()
	client := l.clients[c.host]
	if client == nil || len(client.waitingConns) == 0 || client.waitingConns[0] != c {
		l.mu.Unlock()
		return
	}
	for _, served := range client.servedConns {
		if len(overdueConns) < len(client.waitingConns) && served.isOverdue() {
			overdueConns = append(overdueConns, served)
		}
	}
	for _, served := range overdueConns {
		l.removeUnauthenticated(served)
	}
	l.mu.Unlock()
	for _, served := range overdueConns {
		served.evict()
	}
}

// removeConn removes a connection from all counts.
func (l *limitListener) removeConn(c *limitConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.openConns--
	if c.authenticated {
		l.clients[c.host].authenticatedConns--
		l.removeClientIfEmpty(c.host)
		return
	}
	l.removeUnauthenticated(c)
}

// limitConn is a connection that is counted until it is closed.
type limitConn struct {
	net.Conn
	listener        *limitListener
	host            string
	serveStarted    chan struct{} // closed by the listener when the connection is served
	closedOrEvicted chan struct{} // closed when the connection is closed or evicted

	endOnce                sync.Once
	isEvicted              atomic.Bool   // the connection is evicted: limitListener closes it
	authenticated          bool          // guarded by listener.mu
	receivedBytes          int           // bytes of the client's request; guarded by listener.mu
	countsReceivedBytes    atomic.Bool   // the bytes that the client sends are counted; set with listener.mu held
	processingLargeRequest atomic.Bool   // the server processes a large request of this connection, which has an element in listener.largeRequests
	isServed               atomic.Bool   // serveStarted is closed
	readTimeout            time.Duration // the server's read timeout, measured from startServing; 0 means none
	readStarted            atomic.Int64  // start of the Read that is in progress, in nanoseconds of Unix time; 0 if none is
	servedSince            time.Time     // when startServing was called; guarded by listener.mu
}

// isOverdue reports whether the connection was served for minServeTime and the server waits for bytes of
// the client. On a loaded machine the client often waits for the server instead: its bytes have arrived,
// but the server has not read them yet.
func (c *limitConn) isOverdue() bool {
	started := c.readStarted.Load()
	// A Read that started just now can have consumed the bytes already.
	if started == 0 || time.Since(time.Unix(0, started)) < overdueCheckInterval || time.Since(c.servedSince) < minServeTime {
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

// limitConnOf returns the limitConn that a connection is or wraps, nil if there is none.
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
	if c.authenticated || c.hasEnded() {
		return true
	}
	client := cmp.Or(l.clients[c.host], &clientConns{})
	if l.maxPerClient > 0 && client.authenticatedConns >= l.maxPerClient {
		return false
	}
	c.authenticated = true
	c.markBytesProcessed()
	client.authenticatedConns++
	l.clients[c.host] = client
	l.removeUnauthenticated(c)
	return true
}

// headerReceived is called when the server has read the header of a request. From then on, only the bytes
// of the next header are counted. If the request has a body, no more bytes are counted, because the body is
// either discarded or has its own limit.
func (c *limitConn) headerReceived(body bool) {
	if c == nil {
		return
	}
	c.markBytesProcessed()
	if !c.countsReceivedBytes.Load() {
		return // the connection is authenticated or evicted
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

// SetReadDeadline sets the read deadline of the connection. Before the connection is served it stores the
// timeout, which starts when the connection is served.
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
	c.markBytesProcessed()
	for !c.isServed.Load() {
		select {
		case <-c.serveStarted:
		case <-c.closedOrEvicted:
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
	c.readStarted.Store(time.Now().UnixNano())
	n, err := c.Conn.Read(p)
	c.readStarted.Store(0)
	if c.countsReceivedBytes.Load() {
		c.listener.countReceivedBytes(c, n)
	}
	if c.hasEnded() {
		c.markBytesProcessed()
		return 0, net.ErrClosed
	}
	return n, err
}

// CloseWrite closes the sending direction, so that a client can read the reply to a request whose body was
// not read.
func (c *limitConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// Close implements net.Conn. The server calls it when it no longer needs the connection.
func (c *limitConn) Close() error {
	c.end()
	c.markBytesProcessed()
	if c.isEvicted.Load() {
		return nil
	}
	return c.Conn.Close()
}

// end removes the connection from the counts. Reads of the server fail from then on.
func (c *limitConn) end() {
	c.endOnce.Do(func() {
		close(c.closedOrEvicted)
		c.listener.removeConn(c)
	})
}

func (c *limitConn) hasEnded() bool {
	select {
	case <-c.closedOrEvicted:
		return true
	default:
		return false
	}
}

// evict ends the connection for the server at once, and closes it for the client after evictedCloseDelay.
func (c *limitConn) evict() {
	if c == nil {
		return
	}
	c.isEvicted.Store(true)
	c.end()
	closeConn := func() {
		c.listener.evictedOpenConns.Add(-1)
		c.Conn.Close()
	}
	half, ok := c.Conn.(interface{ CloseRead() error })
	if c.listener.evictedOpenConns.Add(1) > maxEvictedOpenConns || !ok || half.CloseRead() != nil {
		closeConn()
		return
	}
	time.AfterFunc(evictedCloseDelay, closeConn)
}
