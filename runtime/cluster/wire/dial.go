package wire

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/yamux"
)

// dialTimeout limits how long the connection to a server and its TLS handshake may take, each.
const dialTimeout = 10 * time.Second

// Dialer opens sessions to servers.
type Dialer struct {
	TLS *tls.Config // nil: connections are not encrypted
	// Multiplex has the session settings; a field's zero value means yamux's default.
	Multiplex MultiplexSettings
	Logger    hclog.Logger
}

// MultiplexSettings are a session's settings, the block "rpc" in Nomad's configuration.
type MultiplexSettings struct {
	AcceptBacklog          int           // streams waiting to be accepted
	KeepAliveInterval      time.Duration // between two pings to the peer
	ConnectionWriteTimeout time.Duration // a peer that does not read for this time has failed
	StreamOpenTimeout      time.Duration // from a stream's start to its acknowledgement
	StreamCloseTimeout     time.Duration // from the close of one end to that of the other
}

// Dial connects to the server at addr, a host with a port, and returns the session. It blocks until the connection stands and,
// with TLS, its handshake is complete. A TLS 1.3 server that rejects this node's certificate does so after Dial has returned.
func (d *Dialer) Dial(ctx context.Context, addr string) (*Session, error) {
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("connect to server %s: %w", addr, err)
	}
	session, err := d.startSession(ctx, conn)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("connect to server %s: %w", addr, err)
	}
	return session, nil
}

// startSession starts a session on conn.
func (d *Dialer) startSession(ctx context.Context, conn net.Conn) (*Session, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	defer interruptAtEnd(ctx, conn)()
	if d.TLS != nil {
		if _, err := conn.Write([]byte{TLSByte}); err != nil {
			return nil, err
		}
		tlsConn := tls.Client(conn, d.TLS)
		if err := tlsConn.HandshakeContext(ctx); err != nil {
			return nil, fmt.Errorf("TLS handshake: %w", err)
		}
		conn = tlsConn
	}
	if _, err := conn.Write([]byte{MultiplexByte}); err != nil {
		return nil, err
	}
	mux, err := yamux.Client(conn, d.Multiplex.config(d.Logger))
	if err != nil {
		return nil, err
	}
	return NewSession(Yamux{mux}, d.TLS != nil, d.Logger), nil
}

// config returns the settings for yamux.
func (s MultiplexSettings) config(logger hclog.Logger) *yamux.Config {
	c := yamux.DefaultConfig()
	c.LogOutput = logger.StandardWriter(&hclog.StandardLoggerOptions{InferLevels: true})
	if s.AcceptBacklog > 0 {
		c.AcceptBacklog = s.AcceptBacklog
	}
	for _, setting := range []struct {
		value time.Duration
		field *time.Duration
	}{
		{s.KeepAliveInterval, &c.KeepAliveInterval},
		{s.ConnectionWriteTimeout, &c.ConnectionWriteTimeout},
		{s.StreamOpenTimeout, &c.StreamOpenTimeout},
		{s.StreamCloseTimeout, &c.StreamCloseTimeout},
	} {
		if setting.value > 0 {
			*setting.field = setting.value
		}
	}
	return c
}
