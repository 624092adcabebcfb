package clustertest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	goversion "github.com/hashicorp/go-version"
	"github.com/hashicorp/yamux"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire/wiretest"
)

// handshakeTimeout limits the first byte and the TLS handshake of a connection, each.
const handshakeTimeout = 5 * time.Second

// Server is one server of a Cluster.
type Server struct {
	*Cluster
	addr           string
	received, sent atomic.Int64

	// The fields below are guarded by Cluster.mu.

	listener  io.Closer // nil while the server is killed
	untilKill context.Context
	kill      context.CancelFunc // ends untilKill and closes all connections
	sessions  map[*session]bool
	greeting  []byte // sent to each new connection, which is then closed
	reject    bool   // closes each new connection
}

// session is a connection of a node.
type session struct {
	server *Server
	mux    wire.Multiplexer
	peer   *wire.Session
	nodes  map[string]uint64 // for each node that has used the session first: the value of Cluster.lastUse then
}

// Addr returns the address of the server, host and port. It stays the same after Kill and Restart.
func (s *Server) Addr() string { return s.addr }

// Traffic returns the bytes that all connections of nodes have carried, with TLS and the headers of streams.
func (s *Server) Traffic() (received, sent int64) { return s.received.Load(), s.sent.Load() }

// Kill closes the listener and all connections. A leader that was killed stays the leader for the other servers, which
// answer forwarded calls with "rpc error: EOF", until the test calls SetLeader. Kill may be called twice.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener == nil {
		return
	}
	s.listener.Close()
	s.listener = nil
	s.kill()
	s.closeSessionsLocked()
	s.changedLocked()
}

// Restart starts a killed server again at its address.
func (s *Server) Restart() error { return s.start(s.addr) }

// DropConnections closes all connections of nodes. Nodes can connect again.
func (s *Server) DropConnections() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closeSessionsLocked()
}

// RejectConnections closes all connections, and new ones as soon as they are made, until it is called with false.
// greeting is sent on new connections before.
func (s *Server) RejectConnections(reject bool, greeting []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reject, s.greeting = reject, greeting
	if reject {
		s.closeSessionsLocked()
	}
}

func (s *Server) closeSessionsLocked() {
	for each := range s.sessions {
		each.mux.Close()
	}
	clear(s.sessions)
}

// start starts the server at addr.
func (s *Server) start(addr string) error {
	if s.config.InMemory {
		return s.startListening(io.NopCloser(nil), addr)
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("start a server at %s: %w", addr, err)
	}
	if err := s.startListening(listener, listener.Addr().String()); err != nil {
		listener.Close()
		return err
	}
	ctx := s.untilKill
	s.serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			s.serving.Go(func() { s.serveConn(ctx, &countingConn{conn, s}) })
		}
	})
	return nil
}

// startListening makes the server one that runs at addr.
func (s *Server) startListening(listener io.Closer, addr string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.listener != nil {
		return errors.New("the server runs, or the test has ended")
	}
	s.listener, s.addr = listener, addr
	s.untilKill, s.kill = context.WithCancel(s.ctx)
	s.sessions = map[*session]bool{}
	return nil
}

// Dial connects a node to the server at addr, in a cluster with Config.InMemory. It implements the Dial of servers.Config.
func (c *Cluster) Dial(_ context.Context, addr string) (*wire.Session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.servers, func(s *Server) bool { return s.addr == addr })
	if i < 0 || c.servers[i].listener == nil || c.servers[i].reject {
		return nil, fmt.Errorf("connect to server %s: %w", addr, syscall.ECONNREFUSED)
	}
	s := c.servers[i]
	node, server := wiretest.NewPipe(addr)
	s.serving.Go(func() { s.serveSession(s.untilKill, server) })
	return wire.NewSession(node, false, hclog.NewNullLogger()), nil
}

// countingConn counts the bytes of a connection.
type countingConn struct {
	net.Conn
	server *Server
}

func (c *countingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.server.received.Add(int64(n))
	return n, err
}

func (c *countingConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.server.sent.Add(int64(n))
	return n, err
}

// serveConn serves one connection until either end closes it, or ctx ends.
func (s *Server) serveConn(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	raw := conn
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	defer stop()

	s.mu.Lock()
	reject, greeting := s.reject, s.greeting
	s.mu.Unlock()
	if reject {
		conn.Write(greeting)
		return
	}
	conn, err := s.handshake(ctx, conn)
	if err != nil {
		return
	}
	config := yamux.DefaultConfig()
	config.LogOutput = io.Discard
	mux, err := yamux.Server(conn, config)
	if err != nil {
		return
	}
	s.serveSession(ctx, wire.Yamux{Session: mux})
}

// serveSession serves one session until either end closes it, or ctx ends.
func (s *Server) serveSession(ctx context.Context, mux wire.Multiplexer) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer mux.Close()
	each := &session{
		server: s, mux: mux, nodes: map[string]uint64{},
		peer: wire.NewSession(mux, s.config.TLS != nil, hclog.NewNullLogger()),
	}
	s.mu.Lock()
	alive := s.listener != nil && !s.reject
	if alive {
		s.sessions[each] = true
	}
	s.mu.Unlock()
	if !alive {
		return
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.sessions, each)
		s.changedLocked()
	}()
	for {
		stream, err := mux.AcceptContext(ctx)
		if err != nil {
			return
		}
		s.serving.Go(func() {
			defer stream.Close()
			each.serveStream(ctx, stream)
		})
	}
}

// handshake reads the first bytes of a connection, and returns the connection below the session.
func (s *Server) handshake(ctx context.Context, conn net.Conn) (net.Conn, error) {
	if err := conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return nil, err
	}
	first, err := readByte(conn)
	if err != nil {
		return nil, err
	}
	if s.config.TLS != nil {
		if first != wire.TLSByte {
			return nil, errors.New("connection without TLS")
		}
		tlsConn := tls.Server(conn, s.config.TLS)
		if err := tlsConn.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		conn = tlsConn
		if first, err = readByte(conn); err != nil {
			return nil, err
		}
	}
	if first != wire.MultiplexByte {
		return nil, fmt.Errorf("first byte %#x", first)
	}
	return conn, conn.SetDeadline(time.Time{})
}

func readByte(r io.Reader) (byte, error) {
	var b [1]byte
	_, err := io.ReadFull(r, b[:])
	return b[0], err
}

// Call calls a method of the node, on the session that was the last to be used by the node for the first time. Its error
// is a wire.ServerError if the node has answered with an error, or if the servers have no session of the node.
func (c *Cluster) Call(ctx context.Context, nodeID, method string, request, response any) error {
	each, err := c.sessionOf(nodeID)
	if err != nil {
		return err
	}
	return each.peer.Call(ctx, method, request, response)
}

// OpenStream opens a streaming method of the node, on the same session as Call. The caller must close the stream. The
// end of ctx interrupts the stream.
func (c *Cluster) OpenStream(ctx context.Context, nodeID, method string, request any) (*wire.Stream, error) {
	each, err := c.sessionOf(nodeID)
	if err != nil {
		return nil, err
	}
	return each.peer.OpenStream(ctx, method, request)
}

// sessionOf returns the session for calls of a node.
func (c *Cluster) sessionOf(nodeID string) (*session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, known := c.nodes[nodeID]
	if !known {
		return nil, wire.ServerError("Unknown node " + nodeID)
	}
	version, err := goversion.NewVersion(n.Attributes["nomad.version"])
	if err != nil {
		return nil, wire.ServerError("Unable to determine Nomad version")
	}
	if version.LessThan(goversion.Must(goversion.NewVersion("0.8.0-rc1"))) {
		return nil, wire.ServerError("Node does not support RPC; requires 0.8 or later")
	}
	var newest *session
	for _, s := range c.servers {
		for each := range s.sessions {
			if use := each.nodes[nodeID]; use > 0 && !wait.IsClosed(each.mux.CloseChan()) && (newest == nil || use > newest.nodes[nodeID]) {
				newest = each
			}
		}
	}
	if newest == nil {
		return nil, wire.ServerError("No path to node")
	}
	return newest, nil
}

// useLocked notes that a node has used the session.
func (each *session) useLocked(nodeID string) {
	if each.nodes[nodeID] == 0 {
		each.server.lastUse++
		each.nodes[nodeID] = each.server.lastUse
	}
}
