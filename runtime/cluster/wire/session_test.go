package wire

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/yamux"
)

type echo struct{ Text string }

// newSessionPair returns a session's two ends. Both are closed when the test ends.
func newSessionPair(t *testing.T) (node, server *Session) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	accepted := make(chan *Session, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			accepted <- nil
			return
		}
		accepted <- acceptSession(t, conn, false)
	}()
	dialer := Dialer{Logger: hclog.NewNullLogger()}
	node, err = dialer.Dial(t.Context(), listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server = <-accepted
	if server == nil {
		t.Fatal("the server did not get a session")
	}
	t.Cleanup(func() { node.Close(); server.Close() })
	return node, server
}

// acceptSession returns the server's end of a session before its first byte is read.
func acceptSession(t *testing.T, conn net.Conn, overTLS bool) *Session {
	var first [1]byte
	if _, err := io.ReadFull(conn, first[:]); err != nil || first[0] != MultiplexByte {
		t.Errorf("first byte %#x, error %v", first, err)
		return nil
	}
	mux, err := yamux.Server(conn, MultiplexSettings{}.config(hclog.NewNullLogger()))
	if err != nil {
		t.Error(err)
		return nil
	}
	return NewSession(Yamux{mux}, overTLS, hclog.NewNullLogger())
}

// serve runs s.Serve until the test ends.
func serve(t *testing.T, s *Session, methods Methods) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() { s.Serve(ctx, methods) })
	t.Cleanup(func() { cancel(); serving.Wait() })
}

var echoMethods = Methods{Calls: map[string]CallFunc{
	"Test.Echo": Method(func(_ context.Context, request *echo) (*echo, error) { return request, nil }),
	"Test.Fail": Method(func(context.Context, *echo) (*echo, error) { return nil, errors.New("node not found") }),
}}

func TestCallReturnsReplyOrErrorOfThePeer(t *testing.T) {
	node, server := newSessionPair(t)
	serve(t, server, echoMethods)
	for _, test := range []struct{ method, want, wantErr string }{
		{"Test.Echo", "hello", ""},
		{"Test.Fail", "", "node not found"},
		{"Test.Unknown", "", "rpc: can't find service Test.Unknown"},
		{"Test.Echo", "hello", ""}, // the session works after errors
	} {
		var reply echo
		err := node.Call(t.Context(), test.method, &echo{"hello"}, &reply)
		if reply.Text != test.want || (test.wantErr == "") != (err == nil) {
			t.Errorf("%s: got %q, %v", test.method, reply.Text, err)
		}
		var serverError ServerError
		if test.wantErr != "" && (!errors.As(err, &serverError) || err.Error() != test.wantErr) {
			t.Errorf("%s: got error %v, want %s", test.method, err, test.wantErr)
		}
	}
}

func TestBothEndsCallAtTheSameTime(t *testing.T) {
	node, server := newSessionPair(t)
	serve(t, node, echoMethods)
	serve(t, server, echoMethods)
	var calls sync.WaitGroup
	for i := range 100 {
		for _, s := range []*Session{node, server} {
			calls.Go(func() {
				var reply echo
				text := strings.Repeat(fmt.Sprint(i, " "), 1000)
				if err := s.Call(t.Context(), "Test.Echo", &echo{text}, &reply); err != nil || reply.Text != text {
					t.Errorf("call %d: %v, %d bytes", i, err, len(reply.Text))
				}
			})
		}
	}
	calls.Wait()
}

func TestEndOfContextInterruptsCall(t *testing.T) {
	node, server := newSessionPair(t)
	called := make(chan struct{})
	serve(t, server, Methods{Calls: map[string]CallFunc{
		"Test.Block": Method(func(ctx context.Context, _ *echo) (*echo, error) {
			close(called)
			<-ctx.Done()
			return nil, ctx.Err()
		}),
	}})
	cause := errors.New("the test ends the call")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() { <-called; cancel(cause) }()
	if err := node.Call(ctx, "Test.Block", &echo{}, &echo{}); !errors.Is(err, cause) {
		t.Errorf("got %v, want %v", err, cause)
	}
}

func TestEndOfContextInterruptsCallThatThePeerDoesNotAccept(t *testing.T) {
	node, _ := newSessionPair(t)
	cause := errors.New("the test ends the call")
	ctx, cancel := context.WithCancelCause(t.Context())
	var calls sync.WaitGroup
	for range 300 { // more than the backlog of 256 streams, which the server never accepts
		calls.Go(func() {
			if err := node.Call(ctx, "Test.Block", &echo{}, &echo{}); !errors.Is(err, cause) {
				t.Errorf("got %v, want %v", err, cause)
			}
		})
	}
	cancel(cause)
	calls.Wait()
}

func TestClosedConnectionFailsCalls(t *testing.T) {
	node, server := newSessionPair(t)
	serve(t, server, Methods{Calls: map[string]CallFunc{
		"Test.Close": Method(func(context.Context, *echo) (*echo, error) { return nil, server.Close() }),
	}})
	if err := node.Call(t.Context(), "Test.Close", &echo{}, &echo{}); !errors.Is(err, ErrSessionClosed) {
		t.Errorf("during a call: got %v, want %v", err, ErrSessionClosed)
	}
	<-node.Closed()
	if err := node.Call(t.Context(), "Test.Close", &echo{}, &echo{}); !errors.Is(err, ErrSessionClosed) {
		t.Errorf("before a call: got %v, want %v", err, ErrSessionClosed)
	}
}

func TestStreamCarriesMessagesBothWays(t *testing.T) {
	node, server := newSessionPair(t)
	serve(t, node, Methods{Streams: map[string]StreamFunc{
		"Test.Double": func(ctx context.Context, s *Stream) {
			for {
				var message echo
				if s.Receive(&message) != nil {
					return
				}
				if s.Send(&echo{message.Text + message.Text}) != nil {
					return
				}
			}
		},
	}})
	stream, err := server.OpenStream(t.Context(), "Test.Double", &echo{"request"})
	if err != nil {
		t.Fatal(err)
	}
	var reply echo
	if err := stream.Receive(&reply); err != nil || reply.Text != "requestrequest" {
		t.Fatalf("got %q, %v", reply.Text, err)
	}
	for i := range 100 {
		if err := errors.Join(stream.Send(&echo{fmt.Sprint(i)}), stream.Receive(&reply)); err != nil || reply.Text != fmt.Sprint(i, i) {
			if reply.Text != fmt.Sprint(i)+fmt.Sprint(i) {
				t.Fatalf("got %q, %v", reply.Text, err)
			}
		}
	}
	if err := stream.Close(); err != nil {
		t.Error(err)
	}
	var serverError ServerError
	if _, err := server.OpenStream(t.Context(), "Test.Unknown", &echo{}); !errors.As(err, &serverError) ||
		err.Error() != `Unknown rpc method: "Test.Unknown"` {
		t.Errorf("unknown method: got %v", err)
	}
}

func TestInterruptFailsBlockedSendAndReceive(t *testing.T) {
	node, server := newSessionPair(t)
	results := make(chan error, 2)
	interrupted := make(chan *Stream, 1)
	serve(t, node, Methods{Streams: map[string]StreamFunc{
		"Test.Block": func(_ context.Context, s *Stream) {
			interrupted <- s
			var both sync.WaitGroup
			both.Go(func() { results <- s.Receive(nil) })
			both.Go(func() { results <- s.Send(&echo{strings.Repeat("x", 1<<20)}) }) // more than the window
			both.Wait()
		},
	}})
	stream, err := server.OpenStream(t.Context(), "Test.Block", &echo{})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	blocked := <-interrupted
	if err := <-results; err != nil { // the request
		t.Error(err)
	}
	blocked.Interrupt()
	if err := <-results; err == nil {
		t.Error("Send has not failed")
	}
	if err := blocked.Receive(nil); err == nil {
		t.Error("Receive has not failed")
	}
}

func TestServeSurvivesHostileStreams(t *testing.T) {
	node, server := newSessionPair(t)
	serve(t, node, echoMethods)
	for _, bytes := range []string{"", "\x00", "\x01", "\x01\xc1", "\x01\x81\xa3Seq", "\x05\xdb\xff\xff\xff\xff", "\x01\x82\xa3Seq\x01\xadServiceMethod\xa9Test.Echo\xc1", "\x07abc"} {
		stream, err := server.mux.Open()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Write([]byte(bytes)); err != nil {
			t.Fatal(err)
		}
		stream.Close()
		if _, err := io.Copy(io.Discard, stream); err != nil {
			t.Errorf("%q: the node did not close the stream: %v", bytes, err)
		}
	}
	var reply echo
	if err := server.Call(t.Context(), "Test.Echo", &echo{"alive"}, &reply); err != nil || reply.Text != "alive" {
		t.Errorf("afterwards: got %q, %v", reply.Text, err)
	}
}

func TestConcurrentStreamsOfThePeerAreLimited(t *testing.T) {
	node, server := newSessionPair(t)
	release := make(chan struct{})
	serve(t, node, Methods{Calls: map[string]CallFunc{
		"Test.Block": Method(func(context.Context, *echo) (*echo, error) { <-release; return &echo{}, nil }),
	}})
	results := make(chan error, maxPeerStreams+1)
	for range maxPeerStreams + 1 {
		go func() { results <- server.Call(t.Context(), "Test.Block", &echo{}, &echo{}) }()
	}
	if err := <-results; !errors.Is(err, ErrSessionClosed) {
		t.Errorf("call above the limit: got %v, want %v", err, ErrSessionClosed)
	}
	close(release)
	for range maxPeerStreams {
		if err := <-results; err != nil {
			t.Errorf("call below the limit: %v", err)
		}
	}
}

// A peer keeps no streams this end has closed.
func TestPeerThatClosesNoStreamsIsDisconnected(t *testing.T) {
	node, server := newSessionPair(t)
	serve(t, node, echoMethods)
	for opened := 0; ; opened++ {
		if _, err := server.mux.Open(); err != nil {
			break
		}
		if opened > 4*maxSessionStreams {
			t.Fatalf("the node has %d streams", node.StreamCount())
		}
	}
	<-node.Closed()
}

func TestLargeRequestsOfThePeerAreRejected(t *testing.T) {
	node, server := newSessionPair(t)
	serve(t, node, echoMethods)
	err := server.Call(t.Context(), "Test.Echo", make([]*echo, requestLimits.values), &echo{})
	if err == nil || !strings.Contains(err.Error(), ErrMessageTooLarge.Error()) {
		t.Errorf("many values: got %v, want %v", err, ErrMessageTooLarge)
	}
	// The node rejects a string's length without waiting for the string.
	stream, openErr := server.mux.Open()
	if openErr != nil {
		t.Fatal(openErr)
	}
	if _, err := stream.Write(binary.BigEndian.AppendUint32([]byte{CallsByte, 0xdb}, uint32(requestLimits.bytes))); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, stream); err != nil {
		t.Errorf("a long string: the node did not close the stream: %v", err)
	}
}

// authority is a test's certificate authority.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{t: t, dir: t.TempDir(), key: key}
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, a.cert, a.cert, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, a.path("ca.pem"), "CERTIFICATE", der)
	return a
}

func (a *authority) path(file string) string { return filepath.Join(a.dir, file) }

// issue writes a certificate for name with its key, and returns the paths of both.
func (a *authority) issue(name string, edit ...func(*x509.Certificate)) (certFile, keyFile string) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, e := range edit {
		e(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	encodedKey, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	certFile, keyFile = a.path(name+".pem"), a.path(name+"-key.pem")
	writePEM(a.t, certFile, "CERTIFICATE", der)
	writePEM(a.t, keyFile, "EC PRIVATE KEY", encodedKey)
	return certFile, keyFile
}

func writePEM(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestTLSVerifiesBothEnds(t *testing.T) {
	ca, otherCA := newAuthority(t), newAuthority(t)
	for _, test := range []struct {
		name                string
		serverName, ownName string // certificate names
		serverCA, ownCA     *authority
		verifyHostname      bool
		wantErr             string // contained in the error; empty means success
	}{
		{"right names", "server.global.nomad", "client.global.nomad", ca, ca, true, ""},
		{"server of another region", "server.other.nomad", "client.global.nomad", ca, ca, true, "server.other.nomad"},
		{"server of another region without verification of its name", "server.other.nomad", "client.global.nomad", ca, ca, false, ""},
		{"server of another authority", "server.global.nomad", "client.global.nomad", otherCA, ca, true, "unknown authority"},
		{"server of another authority without verification of its name", "server.global.nomad", "client.global.nomad", otherCA, ca, false, "unknown authority"},
		{"node of another authority", "server.global.nomad", "client.global.nomad", ca, otherCA, true, "certificate"},
	} {
		t.Run(test.name, func(t *testing.T) {
			serverCert, serverKey := test.serverCA.issue(test.serverName)
			pair, err := tls.LoadX509KeyPair(serverCert, serverKey)
			if err != nil {
				t.Fatal(err)
			}
			nodeCAs := x509.NewCertPool()
			nodeCAs.AddCert(mustParse(t, ca.path("ca.pem")))
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var serving sync.WaitGroup
			serving.Go(func() {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				var first [1]byte
				if _, err := io.ReadFull(conn, first[:]); err != nil || first[0] != TLSByte {
					t.Errorf("first byte %#x, error %v", first, err)
					return
				}
				tlsConn := tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: nodeCAs})
				if tlsConn.Handshake() != nil {
					return
				}
				if session := acceptSession(t, tlsConn, true); session != nil {
					session.Serve(context.Background(), echoMethods)
				}
			})
			defer serving.Wait()
			defer listener.Close()

			ownCert, ownKey := test.ownCA.issue(test.ownName)
			config, err := TLSFiles{CAFile: ca.path("ca.pem"), CertFile: ownCert, KeyFile: ownKey, Region: "global", VerifyServerHostname: test.verifyHostname}.Load()
			if err != nil {
				t.Fatal(err)
			}
			dialer := Dialer{TLS: config, Logger: hclog.NewNullLogger()}
			session, err := dialer.Dial(t.Context(), listener.Addr().String())
			if err == nil {
				err = session.Call(t.Context(), "Test.Echo", &echo{"x"}, &echo{})
				session.Close()
			}
			if (err == nil) != (test.wantErr == "") || err != nil && !strings.Contains(err.Error(), test.wantErr) {
				t.Errorf("got %v, want an error with %q", err, test.wantErr)
			}
		})
	}
}

// A peer in a server's place gets no call from a node with TLS unless it has a server's certificate.
func TestTLSRejectsPeersThatAreNoServers(t *testing.T) {
	ca := newAuthority(t)
	unchanged := func(*x509.Certificate) {}
	expire := func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }
	forClients := func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }
	for _, test := range []struct {
		name           string
		certName       string
		edit           func(*x509.Certificate)
		maxVersion     uint16
		verifyHostname bool
		wantErr        string
	}{
		{"a node", "client.global.nomad", unchanged, 0, true, "client.global.nomad"},
		{"a user", "cli.global.nomad", unchanged, 0, true, "cli.global.nomad"},
		{"a certificate for clients", "server.global.nomad", forClients, 0, true, "key usage"},
		{"a certificate for clients without verification of its name", "server.global.nomad", forClients, 0, false, "key usage"},
		{"an expired certificate", "server.global.nomad", expire, 0, true, "expired"},
		{"an expired certificate without verification of its name", "server.global.nomad", expire, 0, false, "expired"},
		{"TLS 1.1", "server.global.nomad", unchanged, tls.VersionTLS11, true, "protocol version"},
		{"TLS 1.1 without verification of its name", "server.global.nomad", unchanged, tls.VersionTLS11, false, "protocol version"},
		{"no TLS", "", nil, 0, true, "TLS handshake"},
	} {
		t.Run(test.name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var config *tls.Config
			if test.certName != "" {
				pair, err := tls.LoadX509KeyPair(ca.issue(test.certName, test.edit))
				if err != nil {
					t.Fatal(err)
				}
				config = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS10, MaxVersion: test.maxVersion}
			}
			received := make(chan []byte, 1) // what the node has sent after the handshake
			go func() {
				defer close(received)
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				var first [1]byte
				io.ReadFull(conn, first[:])
				if config == nil {
					conn.Write([]byte("\x06 answers without a handshake"))
					return
				}
				tlsConn := tls.Server(conn, config)
				if tlsConn.Handshake() == nil {
					text, _ := io.ReadAll(tlsConn)
					received <- text
				}
			}()
			ownCert, ownKey := ca.issue("client.global.nomad")
			own, err := TLSFiles{CAFile: ca.path("ca.pem"), CertFile: ownCert, KeyFile: ownKey, Region: "global", VerifyServerHostname: test.verifyHostname}.Load()
			if err != nil {
				t.Fatal(err)
			}
			dialer := Dialer{TLS: own, Logger: hclog.NewNullLogger()}
			session, err := dialer.Dial(t.Context(), listener.Addr().String())
			if err == nil {
				session.Close()
			}
			listener.Close()
			if err == nil || !strings.Contains(err.Error(), test.wantErr) {
				t.Errorf("got %v, want an error with %q", err, test.wantErr)
			}
			if text := <-received; len(text) > 0 {
				t.Errorf("the node has sent %q", text)
			}
		})
	}
}

func mustParse(t *testing.T, path string) *x509.Certificate {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}
