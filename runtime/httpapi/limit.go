package httpapi

import (
	"io"
	"net"
	"sync"
	"time"
)

// tooMany is what a client is told whose connection is one too many, in the
// words of Nomad.
const tooMany = "HTTP/1.1 429 Too Many Requests\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n" +
	"Your IP is issuing too many concurrent connections, please rate limit your calls"

// crowd is a listener that has no more than so many connections open at once.
type crowd struct {
	net.Listener
	most, perClient int

	mu   sync.Mutex
	open map[string]int // by address
	all  int
}

// Limit returns a listener that refuses connections when most of them are open,
// or perClient from one address. 0 is no limit.
func Limit(l net.Listener, most, perClient int) net.Listener {
	return &crowd{Listener: l, most: most, perClient: perClient, open: make(map[string]int)}
}

func (c *crowd) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		host, _, err := net.SplitHostPort(conn.RemoteAddr().String())
		if err != nil {
			host = conn.RemoteAddr().String()
		}
		if c.enter(host) {
			return &visitor{Conn: conn, leave: sync.OnceFunc(func() { c.leave(host) })}, nil
		}
		// It has room for this; if not, there is nothing to wait for.
		_ = conn.SetWriteDeadline(time.Now().Add(time.Millisecond))
		_, _ = io.WriteString(conn, tooMany)
		conn.Close()
	}
}

func (c *crowd) enter(host string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.most > 0 && c.all >= c.most || c.perClient > 0 && c.open[host] >= c.perClient {
		return false
	}
	c.all++
	c.open[host]++
	return true
}

func (c *crowd) leave(host string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all--
	if c.open[host]--; c.open[host] == 0 {
		delete(c.open, host)
	}
}

// visitor is a connection that is counted until it is closed.
type visitor struct {
	net.Conn
	leave func()
}

func (v *visitor) Close() error {
	v.leave()
	return v.Conn.Close()
}
