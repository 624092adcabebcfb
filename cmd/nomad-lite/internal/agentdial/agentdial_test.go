package agentdial

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/agentproof"
)

const (
	token    = "operator"
	otherUID = 4242
)

// listener is a listener that stores all that clients send to it.
type listener struct {
	net.Listener
	mu          sync.Mutex
	received    strings.Builder
	connections int
}

type recordingConn struct {
	net.Conn
	l *listener
}

func (c recordingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	c.l.received.Write(p[:n])
	return n, err
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.connections++
	return recordingConn{c, l}, nil
}

func (l *listener) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.received.String()
}

func (l *listener) connectionCount() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.connections
}

func listen(t *testing.T, address string) *listener {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Skip(err) // without IPv6
	}
	t.Cleanup(func() { l.Close() })
	return &listener{Listener: l}
}

// serveHTTP serves a handler until the end of the test.
func serveHTTP(t *testing.T, l net.Listener, h http.HandlerFunc) {
	server := &http.Server{Handler: h}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
}

// agentHandler is an agent that knows a token.
func agentHandler(knownToken string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != agentproof.Path {
			fmt.Fprint(w, "agent")
			return
		}
		q := r.URL.Query()
		proof := agentproof.Compute(knownToken, q.Get("nonce"), r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr).AddrPort(), netip.MustParseAddrPort(r.RemoteAddr))
		_ = json.NewEncoder(w).Encode(agentproof.ConnectionProof{Proof: proof})
	}
}

// serveEach calls f for each connection of a listener.
func serveEach(l net.Listener, f func(net.Conn)) {
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go f(c)
		}
	}()
}

// relayTo copies all bytes of clients to another address, and back.
func relayTo(address string) func(net.Conn) {
	return func(c net.Conn) {
		defer c.Close()
		to, err := net.Dial("tcp", address)
		if err != nil {
			return
		}
		defer to.Close()
		go io.Copy(to, c)
		io.Copy(c, to)
	}
}

// reply replies to each request with a text, and closes the connection.
func reply(text string) func(net.Conn) {
	return func(c net.Conn) {
		defer c.Close()
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			io.WriteString(c, text)
		}
	}
}

// send sends a request with the token and a body to a listener.
func send(t *testing.T, d Dialer, address string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	d.Dial = new(net.Dialer).DialContext
	client := &http.Client{Transport: &http.Transport{DialContext: d.DialContext}}
	defer client.CloseIdleConnections()
	r, err := http.NewRequestWithContext(ctx, "PUT", "http://"+address+"/v1/var/a?path=query", strings.NewReader("item"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Nomad-Token", d.Token)
	response, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return string(text), err
}

// checkRefused fails the test unless the request was not sent, and the error names the user of this process. It has the pid,
// too, unless the listener has closed the connection before the error looks for it.
func checkRefused(t *testing.T, l *listener, err error) {
	t.Helper()
	unverified := new(UnverifiedError)
	if !errors.As(err, &unverified) {
		t.Errorf("error %v", err)
	} else if runtime.GOOS == "linux" && !strings.Contains(unverified.Error(), " of uid ") {
		t.Errorf("the error names no user: %v", err)
	}
	got := l.text()
	for _, secret := range []string{token, "item", "query", "/v1/var"} {
		if strings.Contains(got, secret) {
			t.Errorf("the listener got %q", got)
		}
	}
}

func TestListenerIsCheckedBeforeTheRequest(t *testing.T) {
	notFound := http.NotFound
	for name, c := range map[string]struct {
		serve func(*testing.T, *listener)
		want  string // the reply to the request without a given address; "" if the request is not sent
		named string // the same with a given address; the listener's user is the caller
	}{
		"an agent with the token":     {func(t *testing.T, l *listener) { serveHTTP(t, l, agentHandler(token)) }, "agent", "agent"},
		"an agent with another token": {func(t *testing.T, l *listener) { serveHTTP(t, l, agentHandler("other")) }, "", "agent"},
		"a server without the route":  {func(t *testing.T, l *listener) { serveHTTP(t, l, notFound) }, "", "404 page not found\n"},
		"a server with the old proof": {serveProofOf(netip.MustParseAddrPort("127.0.0.1:1")), "", "old"},
		"a server that closes":        {func(t *testing.T, l *listener) { serveEach(l, reply("HTTP/1.0 404 Not Found\r\n\r\nnone")) }, "", "none"},
		"no HTTP":                     {func(t *testing.T, l *listener) { serveEach(l, reply("SSH-2.0-OpenSSH\r\n")) }, "", ""},
		"an endless header": {func(t *testing.T, l *listener) {
			serveEach(l, reply("HTTP/1.1 200 OK\r\nA: "+strings.Repeat("x", 1<<20)))
		}, "", ""},
		"a connection that is closed":  {func(t *testing.T, l *listener) { serveEach(l, func(c net.Conn) { c.Close() }) }, "", ""},
		"a relay to the agent":         {func(t *testing.T, l *listener) { serveEach(l, relayTo(agentAt(t, "127.0.0.1:0"))) }, "", "agent"},
		"a relay from another address": {func(t *testing.T, l *listener) { serveEach(l, relayTo(agentAt(t, "127.0.0.2:0"))) }, "", "agent"},
		"a relay across a start":       {relayAcrossStart, "", "agent"},
		"a relay through [::1]":        {func(t *testing.T, l *listener) { serveEach(l, relayTo(agentAt(t, "[::1]:0"))) }, "", "agent"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, address := range []string{"127.0.0.1:0", "[::1]:0", "[::]:0"} {
				l := listen(t, address)
				c.serve(t, l)
				target := strings.Replace(l.Addr().String(), "[::]", "[::ffff:127.0.0.1]", 1)
				got, err := send(t, Dialer{Token: token}, target)
				if got != c.want {
					t.Errorf("%s: reply %q, %v, want %q", target, got, err, c.want)
				}
				if c.want == "" {
					checkRefused(t, l, err)
				} else if n := l.connectionCount(); n != 1 {
					t.Errorf("%s: %d connections, want 1", target, n)
				}
				if got, err := send(t, Dialer{Token: token, AddressIsGiven: true}, target); got != c.named {
					t.Errorf("%s, given: reply %q, %v, want %q", target, got, err, c.named)
				}
			}
		})
	}
}

// agentAt starts an agent with the token, and returns its address.
func agentAt(t *testing.T, address string) string {
	l := listen(t, address)
	serveHTTP(t, l, agentHandler(token))
	return l.Addr().String()
}

// relayAcrossStart accepts one connection, and relays it to an agent that then takes the address. The addresses of the two
// connections differ only in the port of the client. Later clients reach the agent itself.
func relayAcrossStart(t *testing.T, l *listener) {
	address := l.Addr().String()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		l.Close()
		agent, err := net.Listen("tcp", address)
		if err != nil {
			t.Error(err)
			c.Close()
			return
		}
		serveHTTP(t, agent, agentHandler(token))
		relayTo(agent.Addr().String())(c)
	}()
}

// serveProofOf serves a proof for a connection to another address.
func serveProofOf(agent netip.AddrPort) func(*testing.T, *listener) {
	return func(t *testing.T, l *listener) {
		serveHTTP(t, l, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != agentproof.Path {
				fmt.Fprint(w, "old")
				return
			}
			_ = json.NewEncoder(w).Encode(agentproof.ConnectionProof{Proof: agentproof.Compute(token, r.URL.Query().Get("nonce"), agent, netip.MustParseAddrPort(r.RemoteAddr))})
		})
	}
}

// Without a token there is no proof, so that only a listener of root or of the caller at a given address gets a request.
func TestWithoutTokenOnlyTheUserCounts(t *testing.T) {
	l := listen(t, "127.0.0.1:0")
	serveHTTP(t, l, agentHandler(token))
	_, err := send(t, Dialer{}, l.Addr().String())
	checkRefused(t, l, err)
	if l.text() != "" {
		t.Errorf("the listener got %q", l.text())
	}
	if got, err := send(t, Dialer{AddressIsGiven: true}, l.Addr().String()); got != "agent" {
		t.Errorf("given: %q, %v", got, err)
	}
}

func TestMuteListenerGetsOnlyTheChallenge(t *testing.T) {
	l := listen(t, "127.0.0.1:0")
	d := Dialer{Token: token, AddressIsGiven: true, Dial: new(net.Dialer).DialContext}
	ctx, cancel := context.WithCancelCause(t.Context())
	serveEach(l, func(c net.Conn) {
		defer c.Close()
		http.ReadRequest(bufio.NewReader(c))
		cancel(errors.New("the test has seen the challenge"))
		<-t.Context().Done()
	})
	_, err := d.DialContext(ctx, "tcp", l.Addr().String())
	checkRefused(t, l, err)
}

func TestAllowUnverifiedSendsAtOnce(t *testing.T) {
	l := listen(t, "127.0.0.1:0")
	serveHTTP(t, l, http.NotFound)
	if got, err := send(t, Dialer{Token: token, AllowUnverified: true}, l.Addr().String()); got == "" {
		t.Error(err)
	}
	if strings.Contains(l.text(), agentproof.Path) {
		t.Errorf("the listener got %q", l.text())
	}
}

// A listener of another user gets nothing, also at a given address. The user counts that has accepted the connection.
func TestListenerOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to accept connections as another user")
	}
	for _, text := range []string{"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone", "HTTP/1.0 404 Not Found\r\n\r\nnone"} {
		for _, withToken := range []string{token, ""} {
			l := listen(t, "127.0.0.1:0")
			acceptAs(t, otherUID, l, reply(text))
			d := Dialer{Token: withToken, AddressIsGiven: true}
			_, err := send(t, d, l.Addr().String())
			checkRefused(t, l, err)
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("of uid %d", otherUID)) {
				t.Errorf("error %v", err)
			}
			d.AllowUnverified = true
			if got, err := send(t, d, l.Addr().String()); got != "none" {
				t.Errorf("allowed: %q, %v", got, err)
			}
		}
	}
}

// acceptAs calls f for each connection of a listener, which a thread of another user accepts.
func acceptAs(t *testing.T, uid int, l *listener, f func(net.Conn)) {
	t.Helper()
	file, err := l.Listener.(*net.TCPListener).File() // sets no blocking mode: accept of this thread blocks
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan error)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // only this thread changes its user, and it ends with its goroutine
		if _, _, errno := syscall.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
			started <- errno
			return
		}
		started <- nil
		for {
			fd, _, err := unix.Accept4(int(file.Fd()), unix.SOCK_CLOEXEC)
			if err != nil {
				return
			}
			socket := os.NewFile(uintptr(fd), "accepted")
			c, err := net.FileConn(socket)
			socket.Close()
			if err == nil {
				go f(recordingConn{c, l})
			}
		}
	}()
	t.Cleanup(func() {
		unix.Shutdown(int(file.Fd()), unix.SHUT_RDWR) // ends accept
		<-ended
		file.Close()
	})
	if err := <-started; err != nil {
		t.Fatal(err)
	}
}

func TestOtherMachinesAreNotChecked(t *testing.T) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		network, ok := a.(*net.IPNet)
		if !ok || network.IP.IsLoopback() || network.IP.To4() == nil {
			continue
		}
		l := listen(t, net.JoinHostPort(network.IP.String(), "0"))
		serveHTTP(t, l, http.NotFound)
		if got, err := send(t, Dialer{Token: token}, l.Addr().String()); got == "" {
			t.Error(err)
		}
		return
	}
	t.Skip("the machine has only loopback addresses")
}
