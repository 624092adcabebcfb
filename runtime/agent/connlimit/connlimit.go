package connlimit

import (
	"cmp"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
)

const (
	// maxConns is the default for Config.MaxConns, if this process can open twice as many files.
	maxConns = 8192
	// maxHeaderBytes limits the bytes of all incomplete requests in a class. A request's parsed header, a map with an entry for
	// each line, uses up to 17 times as much memory.
	maxHeaderBytes = 512 << 10
	// maxLargeRequests is how many requests above smallRequestBytes bytes the server processes at the same time. Further large
	// requests wait, so that attackers can use neither much memory nor all processors. Most requests are smaller.
	maxLargeRequests  = 2
	smallRequestBytes = 1 << 10
	// minIdleTime is how long the server must have waited for a client's bytes before the connection counts as idle. A newly
	// started Read may already have received bytes.
	minIdleTime = 100 * time.Millisecond
	// closeDelay is the time from an unauthenticated client's eviction until its connection is closed. Without the delay, clients
	// that reconnect at once would keep the server busy with evictions.
	closeDelay = 2 * time.Second
)

// Config configures a Limiter.
type Config struct {
	// MaxConns is the maximum number of connections for all clients. 0 means 8192, or half of this process's open file limit if
	// that is less; the other half is for the agent's work.
	MaxConns int
	// MaxConnsPerClient is an authenticated client's maximum number of connections. 0 means 100 for a task and no limit for other
	// clients.
	MaxConnsPerClient int
	Logger            hclog.Logger
}

// Limiter limits the connections of all its listeners together. Its methods may be called concurrently.
type Limiter struct {
	logger            hclog.Logger
	largeRequestSlots chan struct{} // contains an element for each large request being processed

	mu                sync.Mutex
	connsByClass      [len(classLimits)]classConns
	delayedCloseCount int // evicted connections kept open for closeDelay, at most maxConns of the class Unauthenticated
}

// New returns a limiter without connections.
func New(c Config) *Limiter {
	l := &Limiter{logger: c.Logger, largeRequestSlots: make(chan struct{}, maxLargeRequests)}
	total := cmp.Or(c.MaxConns, defaultMaxConns())
	for i, limits := range classLimits {
		l.connsByClass[i] = classConns{
			maxConns: max(1, total*limits.eighths/8), maxConnsPerClient: limits.perClient, connsByClient: make(map[string][]*Conn), headerBytesByConn: make(map[*Conn]int),
		}
		if c.MaxConnsPerClient > 0 && ClientClass(i) != Unauthenticated {
			l.connsByClass[i].maxConnsPerClient = c.MaxConnsPerClient
		}
	}
	return l
}

func defaultMaxConns() int {
	var openFileLimit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &openFileLimit); err != nil {
		return maxConns
	}
	return int(min(maxConns, openFileLimit.Cur/2))
}

// LimitListener returns a listener on inner; the Limiter counts its connections. They have the type *Conn; see [ConnOf].
func (l *Limiter) LimitListener(inner net.Listener) net.Listener {
	if address, err := netip.ParseAddrPort(inner.Addr().String()); err == nil {
		if _, err := querySockDiag(address, netip.AddrPort{}); err != nil {
			l.logger.Warn("clients of this machine share one limit of connections over TCP, because the kernel does not report their users: load its module tcp_diag", "error", err)
		}
	}
	return &limitedListener{inner, l}
}

type limitedListener struct {
	net.Listener
	limiter *Limiter
}

// Accept closes connections that exceed the limits.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		inner, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &Conn{Conn: inner, limiter: l.limiter, acceptedAt: time.Now(), closedOrEvicted: make(chan struct{})}
		c.peerIdentity = identifyPeer(inner)
		c.countsHeaderBytes.Store(inner.LocalAddr().Network() != "unix")
		if l.limiter.countNewConn(c) {
			return c, nil
		}
		c.Evict()
	}
}

// countNewConn counts a new connection. It returns false if the connection is not within the limits.
func (l *Limiter) countNewConn(c *Conn) (withinLimits bool) {
	l.mu.Lock()
	c.countedClient = c.peerIdentity
	evicted, ok := l.connsByClass[c.peerIdentity.Class].addConn(c, c.peerIdentity.Name)
	c.isCounted = ok
	l.markUncountedLocked(evicted)
	l.mu.Unlock()
	evicted.Evict()
	return ok
}

// markUncountedLocked marks a connection as removed from its class. c may be nil.
func (l *Limiter) markUncountedLocked(c *Conn) {
	if c != nil {
		c.isCounted = false
		c.countsHeaderBytes.Store(false)
	}
}

// countHeaderBytesAndThrottle counts n bytes from an unauthenticated client. If the client's request is large,
// countHeaderBytesAndThrottle blocks until the request gets a slot, or the connection has ended.
func (l *Limiter) countHeaderBytesAndThrottle(c *Conn, n int) {
	l.mu.Lock()
	large := l.connsByClass[c.countedClient.Class].headerBytesByConn[c]+n > smallRequestBytes
	l.mu.Unlock()
	if large {
		select {
		case l.largeRequestSlots <- struct{}{}:
			c.holdsLargeRequestSlot.Store(true)
		case <-c.closedOrEvicted:
		}
	}
	var evicted []*Conn
	l.mu.Lock()
	s := &l.connsByClass[c.countedClient.Class]
	if c.countsHeaderBytes.Load() {
		s.headerBytesByConn[c] += n
		s.totalHeaderBytes += n
	}
	for s.totalHeaderBytes > maxHeaderBytes {
		largest := s.connToEvictForHeaderBytes()
		s.removeConn(largest)
		l.markUncountedLocked(largest)
		evicted = append(evicted, largest)
	}
	l.mu.Unlock()
	for _, c := range evicted {
		c.Evict()
	}
}
