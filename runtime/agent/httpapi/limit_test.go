package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/agent/connlimit"
)

// addressedConn is the server's end of a pipe with the address of a client.
type addressedConn struct {
	net.Conn
	clientIP net.IP
}

func (a addressedConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: a.clientIP, Port: 1} }

// dialFrom connects to the listener from an address.
func (p pipeListener) dialFrom(ip net.IP) net.Conn {
	ours, theirs := net.Pipe()
	p <- addressedConn{theirs, ip}
	return ours
}

var (
	attackerIP     = net.IPv4(10, 0, 0, 1)
	secondClientIP = net.IPv4(10, 0, 0, 2)
)

// readingClient is a client that writes once and reads until the connection is closed.
type readingClient struct {
	net.Conn
	closed   chan struct{} // closed at the end of the connection
	lifetime time.Duration // lifetime of the connection; valid after closed is closed

	mu       sync.Mutex
	received bytes.Buffer
}

func (r *readingClient) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.received.Write(p)
}

func (r *readingClient) receivedText() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.received.String()
}

func startReadingClient(conn net.Conn, says string) *readingClient {
	l := &readingClient{Conn: conn, closed: make(chan struct{})}
	begin := time.Now()
	go io.WriteString(conn, says) // the server may never read what the client writes
	go func() {
		defer close(l.closed)
		_, _ = io.Copy(l, conn)
		l.lifetime = time.Since(begin)
	}()
	return l
}

func (r *readingClient) isOpen() bool {
	return !wait.IsClosed(r.closed)
}

func countOpenClients(all []*readingClient) (n int) {
	for _, l := range all {
		if l.isOpen() {
			n++
		}
	}
	return n
}

// newLimiter returns a limiter with the default total of connections of a process that can open many files.
func newLimiter(perClient int) *connlimit.Limiter {
	return connlimit.New(connlimit.Config{MaxConns: 8192, MaxConnsPerClient: perClient, Logger: hclog.NewNullLogger()})
}

// serveLimited serves a fixture with a token and the limits of connections.
func serveLimited(t *testing.T, perClient int) pipeListener {
	f := newFixture(t, func(c *Config) { c.OperatorToken = "secret" })
	l := make(pipeListener)
	f.serve(t, newLimiter(perClient).LimitListener(l))
	return l
}

const (
	partialHeader    = "GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nX-Half: "
	healthRequest    = "GET /v1/agent/health?type=server HTTP/1.1\r\nHost: localhost\r\n\r\n"
	requestWithToken = "GET /v1/regions HTTP/1.1\r\nHost: localhost\r\nX-Nomad-Token: secret\r\n\r\n"
)

// sendRequest sends a request and returns the status and the time of the reply.
func sendRequest(t *testing.T, conn net.Conn, says string) (int, time.Duration) {
	t.Helper()
	begin := time.Now()
	go io.WriteString(conn, says)
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Errorf("no answer after %v: %v", time.Since(begin), err)
		return 0, time.Since(begin)
	}
	answer.Body.Close()
	return answer.StatusCode, time.Since(begin)
}

// Connections that request only public paths, or send nothing, do not block another client at the same address.
func TestIdleConnectionsThatHaveNotAuthenticatedAreReplaced(t *testing.T) {
	for _, says := range []string{"", partialHeader, healthRequest} {
		synctest.Test(t, func(t *testing.T) {
			const maxUnauthenticated = 100
			f := newFixture(t, func(c *Config) { c.OperatorToken = "secret" })
			l := make(pipeListener)
			f.serve(t, connlimit.New(connlimit.Config{MaxConns: 8 * maxUnauthenticated, Logger: hclog.NewNullLogger()}).LimitListener(l))
			var all []*readingClient
			for range maxUnauthenticated {
				all = append(all, startReadingClient(l.dialFrom(attackerIP), says))
			}
			time.Sleep(time.Second)
			if n := countOpenClients(all); n != maxUnauthenticated {
				t.Errorf("%q: %d connections are open, want all", says, n)
			}
			for i, ip := range []net.IP{attackerIP, secondClientIP} {
				conn := l.dialFrom(ip)
				defer conn.Close()
				if code, took := sendRequest(t, conn, healthRequest); code != 200 || took > 0 {
					t.Errorf("%q: %v: %d after %v", says, ip, code, took)
				}
				synctest.Wait()
				if n := countOpenClients(all); n != maxUnauthenticated-1-i || all[i].isOpen() {
					t.Errorf("%q: %d connections are open, and the oldest: %v", says, n, all[i].isOpen())
				}
			}
			for _, c := range all {
				c.Close()
			}
		})
	}
}

// The test opens as many connections as exec sessions and followed logs of one address need.
func TestAuthenticatedConnectionsHaveNoLimitUnlessConfigured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := serveLimited(t, 0)
		var all []*readingClient
		for range 600 {
			all = append(all, startReadingClient(l.dialFrom(attackerIP), requestWithToken))
		}
		time.Sleep(headerTimeout)
		synctest.Wait()
		if n := countOpenClients(all); n != 600 {
			t.Errorf("%d connections are open, want all", n)
		}
		for _, one := range all {
			if !strings.HasPrefix(one.receivedText(), "HTTP/1.1 200") {
				t.Errorf("answer %q", one.receivedText())
			}
			one.Close()
		}
	})
	synctest.Test(t, func(t *testing.T) {
		l := serveLimited(t, 3)
		var all []*readingClient
		for range 50 { // connections whose requests have no token are not counted
			all = append(all, startReadingClient(l.dialFrom(attackerIP), healthRequest))
		}
		for range 3 {
			conn := l.dialFrom(attackerIP)
			defer conn.Close()
			if code, _ := sendRequest(t, conn, requestWithToken); code != 200 {
				t.Errorf("a connection within the limit: %d", code)
			}
		}
		if code, _ := sendRequest(t, l.dialFrom(attackerIP), requestWithToken); code != http.StatusTooManyRequests {
			t.Errorf("a connection above the limit: %d", code)
		}
		if code, _ := sendRequest(t, l.dialFrom(secondClientIP), requestWithToken); code != 200 {
			t.Errorf("another address: %d", code)
		}
		synctest.Wait()
		if n := countOpenClients(all); n != 50 {
			t.Errorf("%d connections are open, want 50", n)
		}
	})
}

// All connections of a user to the unix socket count as connections of one client.
func TestConnectionsOfUnixSocketAreLimitedOnlyByConfiguration(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.OperatorToken = "secret" })
	path := t.TempDir() + "/s"
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	const perClient = 120
	f.serve(t, newLimiter(perClient).LimitListener(listener))
	var statusCodes [600]int
	for range perClient + 1 {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		code, _ := sendRequest(t, conn, "GET /v1/regions HTTP/1.1\r\nHost: localhost\r\n\r\n")
		statusCodes[code]++
	}
	if statusCodes[200] != perClient || statusCodes[429] != 1 {
		t.Errorf("%d connections have an answer, %d were refused", statusCodes[200], statusCodes[429])
	}
}

// A connection counts for the client of its last token, and each client has a limit of its own.
func TestConnectionsCountForTheClientOfTheirToken(t *testing.T) {
	f := newWorkloadFixture(t, nil)
	l := make(pipeListener)
	f.serve(t, newLimiter(1).LimitListener(l))
	connect := func(ip net.IP) net.Conn {
		conn := l.dialFrom(ip)
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	request := func(token string) string {
		return "GET /v1/services?namespace=apps HTTP/1.1\r\nHost: localhost\r\nX-Nomad-Token: " + token + "\r\n\r\n"
	}
	first := connect(attackerIP)
	for _, c := range []struct {
		name, token string
		conn        net.Conn
		code        int
	}{
		{"the first of the operator", "operator", first, 200},
		{"the second of the operator", "operator", connect(attackerIP), 429},
		{"the operator at another address", "operator", connect(secondClientIP), 200},
		{"the first of a reader", "reader", connect(attackerIP), 200},
		{"the second of a reader", "reader", connect(attackerIP), 429},
		{"the first of a task", f.token, connect(attackerIP), 200},
		{"the second of a task, at another address", f.token, connect(secondClientIP), 429},
		{"the connection of the operator, with the token of a task", f.token, first, 429},
	} {
		if code, _ := sendRequest(t, c.conn, request(c.token)); code != c.code {
			t.Errorf("%s: status %d, want %d", c.name, code, c.code)
		}
	}
}

// If no token is configured, a complete request authenticates a client.
func TestCompleteRequestAuthenticatesWithoutTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, nil)
		l := make(pipeListener)
		f.serve(t, newLimiter(2).LimitListener(l))
		var conns []net.Conn
		var incomplete []*readingClient
		for _, says := range []string{
			"GET /v1/regions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhalf",
			"PUT /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhalf",
			"GET /v1/regions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhalf",
		} {
			conn := l.dialFrom(attackerIP)
			defer conn.Close()
			conns, incomplete = append(conns, conn), append(incomplete, startReadingClient(conn, says))
		}
		synctest.Wait()
		for i, want := range []string{"HTTP/1.1 200", "HTTP/1.1 400", "HTTP/1.1 429"} {
			if got := incomplete[i].receivedText(); got != "" {
				t.Errorf("half of request %d: %q", i, got)
			}
			io.WriteString(conns[i], "!")
			synctest.Wait()
			if got := incomplete[i].receivedText(); !strings.HasPrefix(got, want) {
				t.Errorf("all of request %d: %q, want %s", i, got, want)
			}
		}
	})
}

// A client without a token gets its reply at once: the server does not wait for its body.
func TestBodiesOfClientsWithoutTokenAreNotRead(t *testing.T) {
	for name, c := range map[string]struct{ says, want string }{
		"an open path":            {"GET /v1/agent/health?type=server HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\nhalf", "HTTP/1.1 200"},
		"an open path, in chunks": {"GET /v1/agent/health?type=server HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", "HTTP/1.1 200"},
		"a read":                  {"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\nhalf", "HTTP/1.1 403"},
		"a write":                 {"PUT /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\nhalf", "HTTP/1.1 403"},
		"a page of another site":  {"PUT /v1/jobs HTTP/1.1\r\nHost: localhost\r\nOrigin: http://x\r\nContent-Length: 100000\r\n\r\nhalf", "HTTP/1.1 403"},
		"a large write":           {"PUT /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16000000\r\n\r\nhalf", "HTTP/1.1 403"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := serveLimited(t, 0)
				client := startReadingClient(l.dialFrom(attackerIP), c.says)
				time.Sleep(time.Millisecond)
				synctest.Wait()
				if got := client.receivedText(); !strings.HasPrefix(got, c.want) || !strings.Contains(got, "Connection: close") {
					t.Errorf("answer %q, want %s", got, c.want)
				}
				<-client.closed
				if client.lifetime > 2*time.Second {
					t.Errorf("the connection is closed after %v", client.lifetime)
				}
			})
		})
	}
}

// A message that a client sends before the token of its websocket session is limited to a small size.
func TestMessageBeforeTokenOfWebsocketIsLimited(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.OperatorToken = "secret" })
	server := httptest.NewServer(f)
	defer server.Close()
	for _, size := range []int{maxHandshakeBytes - 100, 4 * maxHandshakeBytes} {
		conn, _, err := websocket.Dial(t.Context(), server.URL+"/v1/client/allocation/x/exec?ws_handshake=true", nil)
		if err != nil {
			t.Fatal(err)
		}
		message, err := conn.Writer(t.Context(), websocket.MessageText)
		if err != nil {
			t.Fatal(err)
		}
		_, err = fmt.Fprintf(message, `{"version":1,"auth_token":%q}`, strings.Repeat("x", size))
		begin := time.Now()
		if size < maxHandshakeBytes {
			if err := errors.Join(err, message.Close()); err != nil {
				t.Fatal(err)
			}
			// The server closes the session because the message has a wrong token.
			if _, _, err := conn.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusPolicyViolation {
				t.Errorf("%d bytes: %v", size, err)
			}
		} else if _, _, err := conn.Read(t.Context()); err == nil || time.Since(begin) > execTokenTimeout/2 {
			// The server does not wait for the end of a message that is too large.
			t.Errorf("half a message of more than %d bytes: %v after %v", size, err, time.Since(begin))
		}
		conn.CloseNow()
	}
}

// blockingBody is a body that blocks after its first part.
type blockingBody struct {
	io.Reader
	readsStarted *sync.WaitGroup
	unblock      chan struct{} // closed when the second part of the body may be read
	blocked      bool
}

func newBlockingBody(size int, came *sync.WaitGroup, rest chan struct{}) *blockingBody {
	came.Add(1)
	return &blockingBody{Reader: io.LimitReader(spaceReader{}, int64(size)), readsStarted: came, unblock: rest}
}

func (b *blockingBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err != nil && !b.blocked {
		b.blocked = true
		b.readsStarted.Done()
		<-b.unblock
	}
	return n, err
}

// spaceReader is endless white space, which JSON ignores.
type spaceReader struct{}

func (spaceReader) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

func TestBodiesOfAllRequestsHaveOneLimit(t *testing.T) {
	f := newFixture(t, nil) // no token is configured
	ask := func(body io.Reader) int {
		r := httptest.NewRequest("PUT", "/v1/jobs/parse", body)
		r.Host, r.ContentLength = "localhost", maxJobBytes
		w := httptest.NewRecorder()
		f.ServeHTTP(w, r)
		return w.Code
	}
	var arrivedWG, all sync.WaitGroup
	rest := make(chan struct{})
	const bodySize = maxJobBytes / 2
	for range maxBodyMemory / bodySize {
		body := newBlockingBody(bodySize-maxReadChunk, &arrivedWG, rest)
		all.Go(func() {
			if code := ask(body); code != http.StatusBadRequest && code != http.StatusServiceUnavailable { // the body has no job
				t.Errorf("a body within the limit: %d", code)
			}
		})
	}
	arrivedWG.Wait()
	if code := ask(io.LimitReader(spaceReader{}, bodySize)); code != http.StatusServiceUnavailable {
		t.Errorf("a body above the limit: %d", code)
	}
	// A request without a body reserves no memory.
	if r := f.send("GET", "/v1/regions", nil); r.StatusCode != 200 {
		t.Errorf("a request without a body: %d", r.StatusCode)
	}
	close(rest)
	all.Wait()
	if free := f.bodyBudget.freeBytes.Load(); free != maxBodyMemory {
		t.Errorf("%d bytes are free in the end, want %d", free, maxBodyMemory)
	}
	if code := ask(io.LimitReader(spaceReader{}, maxJobBytes)); code != http.StatusBadRequest {
		t.Errorf("the largest body: %d", code)
	}
}

func TestReadAllReadsWholeBody(t *testing.T) {
	for _, length := range []int{0, 1, 511, 512, 513, maxReadChunk - 1, maxReadChunk, maxReadChunk + 1, 5*maxReadChunk + 17} {
		want := bytes.Repeat([]byte("0123456789abcdefg"), length/17+1)[:length]
		for _, size := range []int64{-1, int64(length)} {
			var b sharedMemoryBudget
			b.freeBytes.Store(maxBodyMemory)
			got, taken, err := b.readAll(bytes.NewReader(want), size)
			if err != nil || !bytes.Equal(got, want) || taken < int64(length) || b.freeBytes.Load() != maxBodyMemory-taken {
				t.Errorf("%d bytes, announced as %d: %d bytes, %d taken, %d free, %v", length, size, len(got), taken, b.freeBytes.Load(), err)
			}
		}
	}
	var b sharedMemoryBudget
	b.freeBytes.Store(maxBodyMemory)
	cut := io.MultiReader(strings.NewReader("half"), &failingReader{})
	if text, taken, err := b.readAll(cut, 8); err != io.ErrUnexpectedEOF || text != nil || taken != 0 || b.freeBytes.Load() != maxBodyMemory {
		t.Errorf("a body that was cut off: %q, %d taken, %d free, %v", text, taken, b.freeBytes.Load(), err)
	}
}

type failingReader struct{}

func (*failingReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// The largest header that the server reads has the documented size.
func TestHeadersHaveALimit(t *testing.T) {
	t.Parallel() // net/http waits half a second before it closes the connection
	f := newFixture(t, nil)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.serve(t, newLimiter(0).LimitListener(listener))
	for size, want := range map[int]int{maxHeaderBytes - 200: 200, maxHeaderBytes + 1: http.StatusRequestHeaderFieldsTooLarge} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, "GET", "http://"+listener.Addr().String()+"/v1/regions", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Large", strings.Repeat("x", size))
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("a header of %d bytes: %d, want %d", size, answer.StatusCode, want)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

// The counted bytes of a client that repeats requests for public paths do not grow.
func TestRequestsThatAreCompleteAreNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := serveLimited(t, 0)
		conn := l.dialFrom(attackerIP)
		long := strings.Replace(healthRequest, "\r\n\r\n", "\r\nX-Long: "+strings.Repeat("x", maxHeaderBytes/2)+"\r\n\r\n", 1)
		const allHeaders = 512 << 10 // the limit of the limiter
		for range 2 * allHeaders / maxHeaderBytes {
			if code, _ := sendRequest(t, conn, long); code != 200 {
				t.Fatalf("status %d", code)
			}
		}
		conn.Close()
	})
}
