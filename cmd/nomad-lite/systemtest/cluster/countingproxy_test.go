package cluster

import (
	"bytes"
	"io"
	"maps"
	"regexp"
	"sync"
	"testing"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
)

// countingProxy counts the bytes and the calls between nodes and a server. A connection
// belongs to the node whose name the client has sent: each node sends its name in its registration.
type countingProxy struct {
	t     testing.TB
	names []string // of the nodes; no name contains another

	mu    sync.Mutex
	conns []*countedConn
}

// traffic is what was sent between a node and the server.
type traffic struct {
	bytes int            // in both directions, without the headers of TCP
	calls map[string]int // of the node, by method
}

// countedConn is a connection between a node and the server. The lock of its proxy guards it.
type countedConn struct {
	traffic
	node      string // empty before the registration
	registers bool   // the client has called Node.Register; a server that calls itself does not, and sends jobs with names of nodes
	tail      []byte // last bytes that the client has sent
}

// maxCallHeader is more than the length of the header of a call, and of the name of a node.
const maxCallHeader = 128

var callHeader = regexp.MustCompile(`(?s)ServiceMethod.{1,3}?([A-Z][A-Za-z]*\.[A-Z][A-Za-z]*)[^A-Za-z]`)

// listen starts a proxy in front of a server, and returns its address.
func (p *countingProxy) listen(serverAddr string) string {
	p.t.Helper()
	return startProxy(p.t, serverAddr, func() (client, server io.Writer) {
		c := &countedConn{traffic: traffic{calls: map[string]int{}}}
		p.mu.Lock()
		p.conns = append(p.conns, c)
		p.mu.Unlock()
		count := func(countLocked func(b []byte)) io.Writer {
			return writerFunc(func(b []byte) {
				p.mu.Lock()
				defer p.mu.Unlock()
				countLocked(b)
			})
		}
		return count(func(b []byte) { c.countSentLocked(p.names, b) }), count(func(b []byte) { c.bytes += len(b) })
	})
}

type writerFunc func(b []byte)

func (f writerFunc) Write(b []byte) (int, error) { f(b); return len(b), nil }

// countSentLocked counts bytes that the client sends.
func (c *countedConn) countSentLocked(names []string, b []byte) {
	c.bytes += len(b)
	text := append(c.tail, b...)
	c.registers = c.registers || bytes.Contains(text, []byte(protocol.MethodRegisterNode))
	for _, name := range names {
		if c.registers && c.node == "" && bytes.Contains(text, []byte(name)) {
			c.node = name
		}
	}
	for _, match := range callHeader.FindAllSubmatchIndex(text, -1) {
		if match[1] > len(c.tail) { // the others were counted before
			c.calls[string(text[match[2]:match[3]])]++
		}
	}
	c.tail = bytes.Clone(text[max(0, len(text)-maxCallHeader):])
}

// trafficOf returns what a node has sent and received until now.
func (p *countingProxy) trafficOf(node string) traffic {
	p.mu.Lock()
	defer p.mu.Unlock()
	sum := traffic{calls: map[string]int{}}
	for _, c := range p.conns {
		if c.node != node {
			continue
		}
		sum.bytes += c.bytes
		for method, n := range maps.All(c.calls) {
			sum.calls[method] += n
		}
	}
	return sum
}
