// Package wiretest connects a node and a server for tests.
package wiretest

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/yamux"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
)

// NewSessions returns a session's two ends over TCP. Both are closed when the test ends.
func NewSessions(t testing.TB) (node, server *wire.Session) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	accepted := make(chan *wire.Session, 1)
	go func() { accepted <- accept(t, listener) }()
	dialer := wire.Dialer{Logger: hclog.NewNullLogger()}
	node, err = dialer.Dial(t.Context(), listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { node.Close() })
	if server = <-accepted; server == nil {
		t.FailNow()
	}
	t.Cleanup(func() { server.Close() })
	return node, server
}

// accept returns the server's end of the next session, or nil after an error, which it reports.
func accept(t testing.TB, listener net.Listener) *wire.Session {
	conn, err := listener.Accept()
	if err != nil {
		t.Error(err)
		return nil
	}
	var first [1]byte
	if _, err := io.ReadFull(conn, first[:]); err != nil || first[0] != wire.MultiplexByte {
		t.Errorf("first byte %#x, error %v", first, err)
		return nil
	}
	config := yamux.DefaultConfig()
	config.LogOutput = io.Discard
	mux, err := yamux.Server(conn, config)
	if err != nil {
		t.Error(err)
		return nil
	}
	return wire.NewSession(wire.Yamux{Session: mux}, false, hclog.NewNullLogger())
}

// Serve runs s.Serve until the test ends, or until the returned function is called. That function blocks until Serve has
// returned.
func Serve(t testing.TB, s *wire.Session, methods wire.Methods) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() { s.Serve(ctx, methods) })
	stop = func() { cancel(); serving.Wait() }
	t.Cleanup(stop)
	return stop
}
