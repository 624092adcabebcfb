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
	attackerIP     = net.IPv4(127, 0, 0, 1)
	secondClientIP = net.IPv4(127, 0, 0, 2)
)

// readingClient is a client that writes once and reads until the connection is closed.
type readingClient struct {
	net.Conn
	closed   chan struct{} // closed at the end of the connection
	lifetime time.Duration // lifetime of the connection; valid after closed is closed

	mu       sync.Mutex
	received bytes.Buffer
}

func (l *readingClient) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.received.Write(p)
}

func (l *readingClient) receivedText() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.received.String()
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

func (l *readingClient) isOpen() bool {
	select {
	case <-l.closed:
		return false
	default:
		return true
	}
}

func countOpenClients(all []*readingClient) (n int) {
	for _, l := range all {
		if l.isOpen() {
			n++
		}
	}
	return n
}

// newLimitedFixture serves a fixture with a token and the limits of connections.
func newLimitedFixture(t *testing.T, perClient int) (*fixture, pipeListener, *limitListener) {
	f := newFixture(t, func(c *Config) { c.Token = "secret" })
	l := make(pipeListener)
	limit := LimitListener(l, 0, perClient).(*limitListener)
	f.serve(t, limit)
	return f, l, limit
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

func TestConnectionsThatHaveNotAuthenticatedAreLimitedPerAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, l, _ := newLimitedFixture(t, 0)
		var all []*readingClient
		for range 300 {
			all = append(all, startReadingClient(l.dialFrom(attackerIP), partialHeader))
		}
		if code, took := sendRequest(t, l.dialFrom(secondClientIP), healthRequest); code != 200 || took > 0 {
			t.Errorf("another address: %d after %v", code, took)
		}
		synctest.Wait()
		if n := countOpenClients(all); n != 300 {
			t.Errorf("%d connections are open at once, want all", n)
		}
		// A new connection from the same address replaces the oldest one.
		conn := l.dialFrom(attackerIP)
		const maxQueueTime = 300 / maxUnauthenticatedPerClient * minServeTime
		if code, took := sendRequest(t, conn, requestWithToken); code != 200 || took > maxQueueTime {
			t.Errorf("the same address: %d after %v", code, took)
		}
		time.Sleep(maxQueueTime)
		synctest.Wait()
		if n := countOpenClients(all); n > maxUnauthenticatedPerClient {
			t.Errorf("%d connections are open after %v, want at most %d", n, maxQueueTime, maxUnauthenticatedPerClient)
		}
		time.Sleep(headerTimeout)
		synctest.Wait()
		if n := countOpenClients(all); n != 0 {
			t.Errorf("%d connections are open after %v", n, headerTimeout)
		}
		if code, _ := sendRequest(t, conn, requestWithToken); code != 200 {
			t.Errorf("the connection that has authenticated: %d", code)
		}
		conn.Close()
	})
}

// A client whose request a loaded agent has not read yet is not overdue.
func TestRequestsThatHaveArrivedAreNotReplaced(t *testing.T) {
	if testing.Short() {
		t.Skip("waits two seconds until connections can be replaced")
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	listener := LimitListener(tcp, 0, 0)
	var servedConns []net.Conn
	for range maxUnauthenticatedPerClient + 1 {
		client, err := net.Dial("tcp", tcp.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		if _, err := io.WriteString(client, requestWithToken); err != nil {
			t.Fatal(err)
		}
		conn, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		servedConns = append(servedConns, conn)
	}
	waiting := servedConns[maxUnauthenticatedPerClient].(*limitConn)
	read := make(chan error)
	go func() {
		if err := waiting.SetReadDeadline(time.Now().Add(minServeTime)); err != nil {
			read <- err
			return
		}
		_, err := io.ReadFull(waiting, make([]byte, len(requestWithToken)))
		read <- err
	}()
	time.Sleep(minServeTime + 3*overdueCheckInterval)
	for i, conn := range servedConns[:maxUnauthenticatedPerClient] {
		if _, err := io.ReadFull(conn, make([]byte, len(requestWithToken))); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
	}
	// From here on the server waits for bytes of the first client.
	go servedConns[0].Read(make([]byte, 1))
	if err := <-read; err != nil {
		t.Error("the connection that waited: ", err)
	}
}

// 100 connections that request only public paths do not block another client at the same address.
func TestIdleConnectionsThatHaveNotAuthenticatedAreReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, l, _ := newLimitedFixture(t, 0)
		var all []*readingClient
		for range maxUnauthenticatedPerClient {
			all = append(all, startReadingClient(l.dialFrom(attackerIP), healthRequest))
		}
		time.Sleep(2 * headerTimeout)
		synctest.Wait()
		if n := countOpenClients(all); n != maxUnauthenticatedPerClient {
			t.Errorf("%d connections are open, want all", n)
		}
		if code, took := sendRequest(t, l.dialFrom(attackerIP), requestWithToken); code != 200 || took > minServeTime {
			t.Errorf("%d after %v", code, took)
		}
		synctest.Wait()
		if n := countOpenClients(all); n != maxUnauthenticatedPerClient-1 || all[0].isOpen() {
			t.Errorf("%d connections are open, and the oldest: %v", n, all[0].isOpen())
		}
	})
}

func TestConnectionsThatHaveNotAuthenticatedAreLimitedInTotal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, l, limit := newLimitedFixture(t, 0)
		byAddress := make(map[byte][]*readingClient)
		for host := byte(10); host < 20; host++ {
			for range maxUnauthenticated / 10 {
				byAddress[host] = append(byAddress[host], startReadingClient(l.dialFrom(net.IPv4(127, 0, 0, host)), partialHeader))
			}
		}
		synctest.Wait()
		conn := l.dialFrom(secondClientIP)
		if code, took := sendRequest(t, conn, healthRequest); code != 200 || took > 0 {
			t.Errorf("one more address: %d after %v", code, took)
		}
		synctest.Wait()
		open := 0
		for host, all := range byAddress {
			n := countOpenClients(all)
			if open += n; n < len(all)-1 {
				t.Errorf("127.0.0.%d has lost %d connections", host, len(all)-n)
			}
		}
		limit.mu.Lock()
		counted := limit.unauthenticatedConns
		limit.mu.Unlock()
		if open != maxUnauthenticated-1 || counted != maxUnauthenticated {
			t.Errorf("%d connections are open besides the last one, and %d counted; want %d", open, counted, maxUnauthenticated-1)
		}
		conn.Close()
	})
}

// The test opens as many connections as exec sessions and followed logs of one address need.
func TestAuthenticatedConnectionsHaveNoLimitUnlessConfigured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, l, limit := newLimitedFixture(t, 0)
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
		time.Sleep(time.Second)
		synctest.Wait()
		if limit.openConns != 0 || limit.unauthenticatedConns != 0 || len(limit.clients) != 0 {
			t.Errorf("after the end %d connections are counted, %d of them not authenticated, of %d addresses", limit.openConns, limit.unauthenticatedConns, len(limit.clients))
		}
	})
	synctest.Test(t, func(t *testing.T) {
		_, l, _ := newLimitedFixture(t, 3)
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

// All connections of a unix socket count as connections of one client. They are never delayed.
func TestConnectionsOfUnixSocketAreLimitedOnlyByConfiguration(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.Token = "secret" })
	path := t.TempDir() + "/s"
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	f.serve(t, LimitListener(listener, 0, maxUnauthenticatedPerClient+20))
	var statusCodes [600]int
	for range maxUnauthenticatedPerClient + 21 {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		code, _ := sendRequest(t, conn, "GET /v1/regions HTTP/1.1\r\nHost: localhost\r\n\r\n")
		statusCodes[code]++
	}
	if statusCodes[200] != maxUnauthenticatedPerClient+20 || statusCodes[429] != 1 {
		t.Errorf("%d connections have an answer, %d were refused", statusCodes[200], statusCodes[429])
	}
}

// If no token is configured, a complete request authenticates a client.
func TestCompleteRequestAuthenticatesWithoutTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, nil)
		l := make(pipeListener)
		limit := LimitListener(l, 0, 0).(*limitListener)
		f.serve(t, limit)
		state := func() (unauthenticated, authenticated int) {
			synctest.Wait()
			limit.mu.Lock()
			defer limit.mu.Unlock()
			return limit.unauthenticatedConns, limit.clients[attackerIP.String()].authenticatedConns
		}
		for i, says := range []string{
			"GET /v1/regions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhalf",
			"PUT /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhalf",
		} {
			conn := l.dialFrom(attackerIP)
			half := startReadingClient(conn, says)
			if unauthenticated, authenticated := state(); unauthenticated != 1 || authenticated != i {
				t.Errorf("with half of a request: %d not authenticated, %d authenticated", unauthenticated, authenticated)
			}
			io.WriteString(conn, "!")
			if unauthenticated, authenticated := state(); unauthenticated != 0 || authenticated != i+1 || half.receivedText() == "" {
				t.Errorf("with all of it: %d not authenticated, %d authenticated, answer %q", unauthenticated, authenticated, half.receivedText())
			}
			defer conn.Close()
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
				_, l, _ := newLimitedFixture(t, 0)
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
	f := newFixture(t, func(c *Config) { c.Token = "secret" })
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
			var b memoryBudget
			b.freeBytes.Store(maxBodyMemory)
			got, taken, err := b.readAll(bytes.NewReader(want), size)
			if err != nil || !bytes.Equal(got, want) || taken < int64(length) || b.freeBytes.Load() != maxBodyMemory-taken {
				t.Errorf("%d bytes, announced as %d: %d bytes, %d taken, %d free, %v", length, size, len(got), taken, b.freeBytes.Load(), err)
			}
		}
	}
	var b memoryBudget
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
	f.serve(t, LimitListener(listener, 0, 0))
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

// The request bytes of unauthenticated connections are limited in total; connections that sent few
// bytes stay open.
func TestHeadersOfClientsWithoutTokenAreLimitedInTotal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, l, limit := newLimitedFixture(t, 0)
		var smallSenders, largeSenders []*readingClient
		for range 50 {
			smallSenders = append(smallSenders, startReadingClient(l.dialFrom(secondClientIP), partialHeader))
		}
		const headerSize = maxHeaderBytes - 1<<10
		for host := byte(10); host < 20; host++ {
			for range 50 {
				largeSenders = append(largeSenders, startReadingClient(l.dialFrom(net.IPv4(127, 0, 0, host)), partialHeader+strings.Repeat("x", headerSize)))
			}
		}
		synctest.Wait()
		if open := countOpenClients(largeSenders); open < maxUnauthenticatedBytes/maxHeaderBytes-1 || open*headerSize > maxUnauthenticatedBytes {
			t.Errorf("%d connections are open that have sent %d bytes", open, headerSize)
		}
		if n := countOpenClients(smallSenders); n != len(smallSenders) {
			t.Errorf("%d connections are open that have sent little, want %d", n, len(smallSenders))
		}
		if code, took := sendRequest(t, l.dialFrom(attackerIP), requestWithToken); code != 200 || took > 0 {
			t.Errorf("a client with a token: %d after %v", code, took)
		}
		time.Sleep(2 * headerTimeout)
		synctest.Wait()
		limit.mu.Lock()
		defer limit.mu.Unlock()
		if limit.receivedBytes != 0 {
			t.Errorf("%d bytes are counted of connections that are closed", limit.receivedBytes)
		}
	})
}

// The server processes bytes of few large requests at the same time. Small requests do not wait.
func TestLargeRequestsAreProcessedOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := make(pipeListener)
		limit := LimitListener(l, 0, 0).(*limitListener)
		defer limit.Close()
		var openConns, servedConns []net.Conn
		var doneChans []chan error
		for i := range maxLargeRequests + 3 {
			go func() { openConns = append(openConns, l.dialFrom(net.IPv4(127, 0, 1, byte(i)))) }()
			conn, err := limit.Accept()
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			servedConns = append(servedConns, conn)
			size := 2 * smallRequestBytes
			if i == maxLargeRequests+2 {
				size = smallRequestBytes
			}
			read := make(chan error, 1)
			doneChans = append(doneChans, read)
			go openConns[i].Write(make([]byte, size))
			go func() {
				_, err := conn.Read(make([]byte, size))
				read <- err
			}()
		}
		defer func() {
			for i := range servedConns {
				servedConns[i].Close()
				servedConns[i].Close()
				openConns[i].Close()
			}
			if n := len(limit.largeRequests); n != 0 || limit.receivedBytes != 0 {
				t.Errorf("%d large requests and %d bytes count of connections that are closed", n, limit.receivedBytes)
			}
		}()
		processed := func() (n int) {
			synctest.Wait()
			for _, d := range doneChans[:maxLargeRequests+2] {
				n += len(d)
			}
			return n
		}
		if n := processed(); n != maxLargeRequests || len(doneChans[maxLargeRequests+2]) != 1 {
			t.Fatalf("the server processes %d large requests, want %d, and %d small ones, want 1", n, maxLargeRequests, len(doneChans[maxLargeRequests+2]))
		}
		go servedConns[0].Read(make([]byte, 1)) // the server has processed the first request
		if n := processed(); n != maxLargeRequests+1 {
			t.Fatalf("%d large requests were processed or are, want %d", n, maxLargeRequests+1)
		}
		servedConns[1].Close()
		if n := processed(); n != maxLargeRequests+2 {
			t.Fatalf("%d large requests were processed or are, want %d", n, maxLargeRequests+2)
		}
	})
}

// A connection that is evicted while the server processes its large request does not delay other large
// requests until the end of its own.
func TestHeaderOfEvictedConnectionEndsItsProcessing(t *testing.T) {
	l := make(pipeListener)
	limit := LimitListener(l, 0, 0).(*limitListener)
	defer limit.Close()
	clients := make(chan net.Conn, 1)
	go func() { clients <- l.dialFrom(attackerIP) }()
	conn, err := limit.Accept()
	if err != nil {
		t.Fatal(err)
	}
	client := <-clients
	defer client.Close()
	go client.Write(make([]byte, 2*smallRequestBytes))
	if _, err := conn.Read(make([]byte, 2*smallRequestBytes)); err != nil {
		t.Fatal(err)
	}
	served := conn.(*limitConn)
	served.evict()
	if n := len(limit.largeRequests); n != 1 {
		t.Fatalf("%d large requests are processed, want 1", n)
	}
	served.headerReceived(false)
	if n := len(limit.largeRequests); n != 0 {
		t.Errorf("%d large requests are processed after the header, want 0", n)
	}
}

// halfClosedConn is the server's end of a pipe with the method CloseRead, which TCP connections have.
type halfClosedConn struct{ addressedConn }

func (c halfClosedConn) CloseRead() error { return c.SetReadDeadline(time.Now()) }

// After an eviction, the connection of a client is closed with a delay, so that a client that reconnects at
// the close does so late.
func TestEvictedConnectionsAreClosedAfterDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, l, limit := newLimitedFixture(t, 0)
		count := 2*maxUnauthenticatedBytes/maxHeaderBytes + maxEvictedOpenConns
		large := partialHeader + strings.Repeat("x", maxHeaderBytes-1<<10)
		var evictedClients []*readingClient
		for i := range count {
			ours, theirs := net.Pipe()
			l <- halfClosedConn{addressedConn{theirs, net.IPv4(127, 0, 1, byte(i))}}
			evictedClients = append(evictedClients, startReadingClient(ours, large))
			synctest.Wait()
		}
		limit.mu.Lock()
		served := limit.unauthenticatedConns
		limit.mu.Unlock()
		if n := countOpenClients(evictedClients) - served; n != maxEvictedOpenConns {
			t.Errorf("%d evicted connections are open, want %d", n, maxEvictedOpenConns)
		}
		time.Sleep(evictedCloseDelay)
		synctest.Wait()
		if n := countOpenClients(evictedClients); n != served {
			t.Errorf("%d connections are open after the delay, want the %d that are served", n, served)
		}
		if n := limit.evictedOpenConns.Load(); n != 0 {
			t.Errorf("%d evicted connections count as open", n)
		}
		for _, c := range evictedClients {
			if !c.isOpen() && c.lifetime != 0 && c.lifetime < evictedCloseDelay {
				t.Fatalf("an evicted connection was closed after %v", c.lifetime)
			}
			c.Close()
		}
	})
}

// The counted bytes of a client that repeats requests for public paths do not grow.
func TestRequestsThatAreCompleteAreNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, l, limit := newLimitedFixture(t, 0)
		conn := l.dialFrom(attackerIP)
		long := strings.Replace(healthRequest, "\r\n\r\n", "\r\nX-Long: "+strings.Repeat("x", maxHeaderBytes/2)+"\r\n\r\n", 1)
		for range 2 * maxUnauthenticatedBytes / maxHeaderBytes {
			if code, _ := sendRequest(t, conn, long); code != 200 {
				t.Fatalf("status %d", code)
			}
		}
		limit.mu.Lock()
		defer limit.mu.Unlock()
		if limit.receivedBytes != 0 {
			t.Errorf("%d bytes are counted", limit.receivedBytes)
		}
		conn.Close()
	})
}
