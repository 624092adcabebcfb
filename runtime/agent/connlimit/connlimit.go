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
	// maxConns is the total of a Limiter, if this process can open enough files.
	maxConns = 8192
	// maxHeaderBytes limits the bytes of all incomplete requests of a class. A request uses up to 17 times as much
	// memory: a header is a map with an entry for each of its lines.
	maxHeaderBytes = 512 << 10
	// maxLargeRequests is the number of requests with more than smallRequestBytes bytes that the server
	// processes at the same time. Further large requests wait, so that attackers use neither much memory
	// nor all processors. Most requests are smaller.
	maxLargeRequests  = 2
	smallRequestBytes = 1 << 10
	// minIdleTime is how long the server has waited for the bytes of an idle client. A Read that started just now can
	// have consumed the bytes already.
	minIdleTime = 100 * time.Millisecond
	// closeDelay is how long after its eviction a connection of a client that has not authenticated is closed. Without
	// the delay, clients that reconnect at once would keep the server busy with evictions.
	closeDelay = 2 * time.Second
)

// Config configures a Limiter.
type Config struct {
	// Total is the number of connections of all clients; 0 means 8192, or half of the files that this process
	// can open if these are fewer. The other half is kept for its tasks.
	Total int
	// PerClient is how many connections each client can have that has authenticated; 0 means 100 for a task, and
	// no limit for other clients.
	PerClient int
	Logger    hclog.Logger
}

// Limiter limits the connections of all its listeners together. Its methods may be called concurrently.
type Limiter struct {
	logger        hclog.Logger
	largeRequests chan struct{} // contains an element for each large request that the server processes

	mu      sync.Mutex
	classes [len(classLimits)]class
	delayed int // evicted connections that are still open, at most as many as Unauthenticated can have
}

// New returns a limiter without connections.
func New(c Config) *Limiter {
	l := &Limiter{logger: c.Logger, largeRequests: make(chan struct{}, maxLargeRequests)}
	total := cmp.Or(c.Total, defaultTotal())
	for i, limits := range classLimits {
		l.classes[i] = class{
			maxConns: max(1, total*limits.eighths/8), perClient: limits.perClient, clients: make(map[string][]*Conn), headerBytes: make(map[*Conn]int),
		}
		if c.PerClient > 0 && Class(i) != Unauthenticated {
			l.classes[i].perClient = c.PerClient
		}
	}
	return l
}

func defaultTotal() int {
	var openFileLimit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &openFileLimit); err != nil {
		return maxConns
	}
	return int(min(maxConns, openFileLimit.Cur/2))
}

// Listen returns a listener whose connections are counted. Each is a *Conn, which [Of] returns.
func (l *Limiter) Listen(inner net.Listener) net.Listener {
	if address, err := netip.ParseAddrPort(inner.Addr().String()); err == nil {
		if _, err := queryTCPSocket(address, netip.AddrPort{}); err != nil {
			l.logger.Warn("clients of this machine share one limit of connections over TCP, because the kernel does not report their users: load its module tcp_diag", "error", err)
		}
	}
	return &listener{inner, l}
}

type listener struct {
	net.Listener
	limiter *Limiter
}

// Accept closes connections that are not within the limits.
func (l *listener) Accept() (net.Conn, error) {
	for {
		inner, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &Conn{Conn: inner, limiter: l.limiter, acceptedAt: time.Now(), ended: make(chan struct{})}
		c.origin = identifyPeer(inner)
		c.countsHeader.Store(inner.LocalAddr().Network() != "unix")
		if l.limiter.admit(c) {
			return c, nil
		}
		c.Evict()
	}
}

// admit counts a new connection. It returns false if the connection is not within the limits.
func (l *Limiter) admit(c *Conn) bool {
	l.mu.Lock()
	c.identity = c.origin
	evicted, ok := l.classes[c.origin.Class].add(c, c.origin.Name)
	c.counted = ok
	l.uncountLocked(evicted)
	l.mu.Unlock()
	evicted.Evict()
	return ok
}

// uncountLocked is called when the class of a connection, which may be nil, no longer has the connection.
func (l *Limiter) uncountLocked(c *Conn) {
	if c != nil {
		c.counted = false
		c.countsHeader.Store(false)
	}
}

// countHeader counts bytes of a client that has not authenticated. If its request is large, countHeader blocks until
// the server may process the bytes, or until the connection has ended.
func (l *Limiter) countHeader(c *Conn, n int) {
	l.mu.Lock()
	large := l.classes[c.identity.Class].headerBytes[c]+n > smallRequestBytes
	l.mu.Unlock()
	if large {
		select {
		case l.largeRequests <- struct{}{}:
			c.isLarge.Store(true)
		case <-c.ended:
		}
	}
	var evicted []*Conn
	l.mu.Lock()
	s := &l.classes[c.identity.Class]
	if c.countsHeader.Load() {
		s.headerBytes[c] += n
		s.headerTotal += n
	}
	for s.headerTotal > maxHeaderBytes {
		largest := s.largestSender()
		s.remove(largest)
		l.uncountLocked(largest)
		evicted = append(evicted, largest)
	}
	l.mu.Unlock()
	for _, c := range evicted {
		c.Evict()
	}
}
