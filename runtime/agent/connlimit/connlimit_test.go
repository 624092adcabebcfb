package connlimit

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/wait"
)

// address is the address at one end of a pipe.
type address struct{ network, text string }

func (a address) Network() string { return a.network }
func (a address) String() string  { return a.text }

// peerConn is the server's end of a pipe with an address for its peer.
type peerConn struct {
	net.Conn
	peer address
}

func (c peerConn) LocalAddr() net.Addr  { return address{c.peer.network, "server"} }
func (c peerConn) RemoteAddr() net.Addr { return c.peer }

// pipes is a listener with pipes as connections.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (p pipes) Close() error   { close(p); return nil }
func (p pipes) Addr() net.Addr { return address{"pipe", "server"} }

func newLimiter(total, perClient int) *Limiter {
	return New(Config{MaxConns: total, MaxConnsPerClient: perClient, Logger: hclog.NewNullLogger()})
}

// record is what a simulation knows about one connection, without the Limiter's counts.
type record struct {
	client  net.Conn
	conn    *Conn
	id      ClientIdentity
	joined  int       // order in which the class got the connection
	active  time.Time // when the server last waited for another byte
	busy    bool
	refused bool // the reply to the last request

	mu    sync.Mutex
	ended bool // the server can no longer read
}

func (r *record) isOpen() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.ended
}

// simulation has a Limiter's random clients, and the records of their connections.
type simulation struct {
	*testing.T
	random    *rand.Rand
	inner     pipes
	perClient int
	max       map[ClientClass]int
	conns     []*record
	events    int
	history   []string
}

// serve reads a connection like net/http, which also reads while a request is in progress. Each byte starts a request, and is the
// index of its identity.
func (s *simulation) serve(r *record, ids []ClientIdentity) {
	defer r.conn.Close()
	for b := make([]byte, 1); ; {
		if _, err := r.conn.Read(b); err != nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.ended = true
			return
		}
		r.conn.OnUnauthenticatedHeaderRead(false)
		r.refused = !r.conn.CountForClient(ids[b[0]])
	}
}

// check compares the records after a connection of id has joined, or was refused, with those before: before has the previously
// open connections.
func (s *simulation) check(before []*record, newcomer *record, id ClientIdentity, refused bool) {
	s.Helper()
	counts, total, largest := map[string]int{id.Name: 1}, 0, 1
	for _, r := range before {
		if r.id.Class == id.Class && r != newcomer {
			counts[r.id.Name]++
			total++
			largest = max(largest, counts[r.id.Name])
		}
	}
	var lost []*record
	for _, r := range before {
		if r != newcomer && !r.isOpen() {
			lost = append(lost, r)
		}
	}
	full, overShare := total == s.max[id.Class], s.perClient > 0 && id.Class != Unauthenticated && newcomer != nil && counts[id.Name] > s.perClient
	idle := func(name string) (oldest *record) {
		for _, r := range before {
			isIdle := r != newcomer && r.id == ClientIdentity{id.Class, name} && !r.busy && time.Since(r.active) >= minIdleTime
			if isIdle && (oldest == nil || r.joined < oldest.joined) {
				oldest = r
			}
		}
		return oldest
	}
	switch {
	case refused && len(lost) > 0:
		s.fail("%v was refused, and %v lost a connection", id, lost[0].id)
	case refused:
		if !overShare && !(full && counts[id.Name] == largest && idle(id.Name) == nil) {
			s.fail("%v was refused with %d of %d connections, the largest client has %d", id, counts[id.Name]-1, total, largest)
		}
	case overShare:
		s.fail("%v has %d connections", id, counts[id.Name])
	case !full && len(lost) > 0 || full && len(lost) != 1:
		s.fail("%v joined %d of %d connections, and %d were lost", id, total, s.max[id.Class], len(lost))
	case full:
		victim := lost[0]
		first := idle(victim.id.Name)
		switch {
		case victim.id.Class != id.Class || counts[victim.id.Name] != largest:
			s.fail("%v lost a connection to %v, and the largest client has %d", victim.id, id, largest)
		case first == nil && victim.id == id:
			s.fail("%v has no idle connection, and lost a connection to itself", id)
		case first != nil && victim != first:
			s.fail("%v lost a connection that is not its oldest idle one", victim.id)
		case first == nil && slices.ContainsFunc(before, func(r *record) bool { return r != newcomer && r.id == victim.id && r.joined > victim.joined }):
			s.fail("%v has no idle connection, and has not lost its newest", victim.id)
		}
	}
	s.conns = slices.DeleteFunc(s.conns, func(r *record) bool { return !r.isOpen() })
}

func (s *simulation) fail(format string, args ...any) {
	s.Helper()
	s.Fatalf("%s\n%s", strings.Join(s.history, "\n"), fmt.Sprintf(format, args...))
}

func (s *simulation) run(seed uint64) {
	limiter := newLimiter(40, s.perClient)
	listener := limiter.LimitListener(s.inner)
	accepted := make(chan net.Conn)
	go func() {
		defer close(accepted)
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	s.Cleanup(func() { // from a failed schedule
		for _, r := range s.conns {
			r.client.Close()
		}
		if s.Failed() {
			listener.Close()
		}
	})
	ids := []ClientIdentity{{Operator, "token"}, {Operator, "10.0.0.1"}, {Guest, "10.0.0.1"}, {Guest, "10.0.0.2"}, {Task, "a"}, {Task, "b"}, {Task, "c"}}
	peers := []address{{"unix", "operator"}, {"pipe", "10.0.0.1:1"}, {"pipe", "10.0.0.2:1"}, {"pipe", "10.0.0.3:1"}, {"task", "a"}, {"task", "b"}}
	for s.events = range 300 {
		// Few clients send most requests, so that classes are full.
		time.Sleep(time.Duration(s.random.IntN(3)) * minIdleTime / 2)
		open := slices.Clone(s.conns)
		if len(open) == 0 || s.random.IntN(3) == 0 {
			peer := peers[min(s.random.IntN(len(peers)), s.random.IntN(len(peers)))]
			id := ClientIdentity{Unauthenticated, strings.TrimSuffix(peer.text, ":1")}
			switch peer.network {
			case "unix":
				id = ClientIdentity{Operator, "unix socket"}
			case "task":
				id.Class = Task
			}
			s.history = append(s.history, fmt.Sprintf("%v connects", id))
			ours, theirs := net.Pipe()
			s.inner <- peerConn{theirs, peer}
			synctest.Wait()
			select {
			case c := <-accepted:
				r := &record{client: ours, conn: ConnOf(c), id: id, joined: s.events, active: time.Now()}
				s.conns = append(s.conns, r)
				go s.serve(r, ids)
				synctest.Wait()
				s.check(open, nil, id, false)
			default:
				s.check(open, nil, id, true)
			}
			continue
		}
		r := open[s.random.IntN(len(open))]
		switch at := s.random.IntN(len(ids)); {
		case s.random.IntN(12) == 0:
			s.history = append(s.history, fmt.Sprintf("a connection of %v is closed", r.id))
			r.client.Close()
			synctest.Wait()
			if r.isOpen() {
				s.fail("the server reads a closed connection")
			}
			s.conns = slices.DeleteFunc(s.conns, func(other *record) bool { return other == r })
		case r.busy:
			s.history = append(s.history, fmt.Sprintf("a request of %v ends", r.id))
			r.conn.OnRequestDone()
			r.busy, r.active = false, time.Now()
		default:
			id := ids[at]
			s.history = append(s.history, fmt.Sprintf("%v sends a request as %v", r.id, id))
			if _, err := r.client.Write([]byte{byte(at)}); err != nil {
				s.fail("write of %v: %v", r.id, err)
			}
			synctest.Wait()
			r.active = time.Now()
			switch {
			case id != r.id:
				s.check(open, r, id, r.refused)
			case r.refused && s.perClient == 0:
				s.fail("%v was refused, without a limit", id)
			}
			if r.refused {
				r.client.Close()
				synctest.Wait()
				s.conns = slices.DeleteFunc(s.conns, func(other *record) bool { return other == r })
				continue
			}
			if id != r.id {
				r.id, r.joined = id, s.events
			}
			r.busy = true
		}
	}
	for _, r := range s.conns {
		r.client.Close()
	}
	listener.Close()
	synctest.Wait()
	limiter.mu.Lock()
	defer limiter.mu.Unlock()
	for class := range limiter.connsByClass {
		if c := &limiter.connsByClass[class]; c.connCount != 0 || len(c.connsByClient) != 0 || c.totalHeaderBytes != 0 || len(c.headerBytesByConn) != 0 {
			s.fail("class %d counts %d connections of %d clients and %d bytes, and all are closed", class, c.connCount, len(c.connsByClient), c.totalHeaderBytes)
		}
	}
	if limiter.delayedCloseCount != 0 {
		s.fail("%d evicted connections are counted, and all are closed", limiter.delayedCloseCount)
	}
}

// Random clients connect, send requests and disconnect. A client loses a connection only if its class is full and no client in
// the class has more connections, and loses no busy one while another is idle.
func TestClassesAreFair(t *testing.T) {
	schedules := 60
	if testing.Short() {
		schedules = 10
	}
	for range schedules {
		seed := rand.Uint64()
		synctest.Test(t, func(t *testing.T) {
			s := &simulation{T: t, random: rand.New(rand.NewPCG(seed, 0)), inner: make(pipes), max: map[ClientClass]int{Unauthenticated: 5, Task: 15, Guest: 10, Operator: 10}}
			s.history = append(s.history, fmt.Sprint("seed ", seed))
			if s.random.IntN(2) == 0 {
				s.perClient = 1 + s.random.IntN(8)
			}
			s.run(seed)
		})
	}
}

// client is a pipe client that reads until the connection is closed.
type client struct {
	net.Conn
	closed   chan struct{} // closed when the connection ends
	lifetime time.Duration // valid after closed is closed
}

func (c *client) isOpen() bool {
	return !wait.IsClosed(c.closed)
}

// server accepts connections and reads them.
type server struct {
	*Limiter
	inner pipes
	conns []*Conn
}

// connect returns a client that has sent bytes, and adds its connection to the server.
func (s *server) connect(t *testing.T, peer address, wrap func(peerConn) net.Conn, bytes int) *client {
	t.Helper()
	ours, theirs := net.Pipe()
	c := &client{Conn: ours, closed: make(chan struct{})}
	begin := time.Now()
	listener := s.LimitListener(s.inner)
	go func() { s.inner <- wrap(peerConn{theirs, peer}) }()
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	conn := ConnOf(accepted)
	s.conns = append(s.conns, conn)
	go func() {
		defer conn.Close()
		_, _ = io.Copy(io.Discard, conn) // fails when the connection is evicted
	}()
	go ours.Write(make([]byte, bytes)) // the server may never read what the client writes
	go func() {
		defer close(c.closed)
		_, _ = io.Copy(io.Discard, ours)
		c.lifetime = time.Since(begin)
	}()
	synctest.Wait()
	return c
}

func plain(c peerConn) net.Conn { return c }

// The bytes in incomplete requests are limited in total. The client that has sent most in all its requests loses a connection.
// Clients that have sent less lose none, although one of their requests is larger.
func TestIncompleteRequestsAreLimitedInTotal(t *testing.T) {
	for _, size := range []int{smallRequestBytes / 2, 15 << 10} {
		synctest.Test(t, func(t *testing.T) {
			s := &server{Limiter: newLimiter(16*maxHeaderBytes/size, 0), inner: make(pipes)}
			others := []*client{
				s.connect(t, address{"pipe", "10.0.0.1:1"}, plain, smallRequestBytes),
				s.connect(t, address{"task", "a"}, plain, smallRequestBytes),
			}
			const attackers = 4
			var conns []*client
			for i := range 2 * maxHeaderBytes / size {
				conns = append(conns, s.connect(t, address{"pipe", fmt.Sprintf("10.0.1.%d:1", i%attackers)}, plain, size))
			}
			open := 0
			for _, c := range conns {
				if c.isOpen() {
					open++
				}
			}
			if n := open * size; n > maxHeaderBytes || n < maxHeaderBytes-attackers*size-len(others)*smallRequestBytes {
				t.Errorf("%d connections are open that have sent %d bytes", open, size)
			}
			for i, c := range others {
				if !c.isOpen() {
					t.Errorf("client %d, which has sent little, was evicted", i)
				}
			}
			// A complete request, and an authenticated client, count no bytes.
			for i, c := range s.conns {
				if i%2 == 0 {
					c.OnUnauthenticatedHeaderRead(false)
				} else {
					c.CountForClient(ClientIdentity{Operator, "token"})
				}
			}
			for class := range s.connsByClass {
				if n := s.connsByClass[class].totalHeaderBytes; n != 0 {
					t.Errorf("%d bytes of complete requests are counted", n)
				}
			}
			for _, c := range append(conns, others...) {
				c.Close()
			}
		})
	}
}

// Other clients' incomplete requests do not evict a request from the agent's user.
func TestIncompleteRequestsDoNotEvictOperators(t *testing.T) {
	l := newLimiter(maxConns, 0)
	admit := func(id ClientIdentity) *Conn {
		c := &Conn{Conn: peerConn{}, limiter: l, peerIdentity: id, closedOrEvicted: make(chan struct{})}
		c.countsHeaderBytes.Store(true)
		l.countNewConn(c)
		return c
	}
	for i := range 1000 { // each from another address
		l.countHeaderBytesAndThrottle(admit(ClientIdentity{Unauthenticated, fmt.Sprint(i)}), maxHeaderBytes/1000)
	}
	operator := admit(ClientIdentity{Operator, "uid 0"})
	if l.countHeaderBytesAndThrottle(operator, smallRequestBytes); !operator.isCounted {
		t.Error("the request of the operator is evicted")
	}
}

// The server processes few large requests at the same time, from one Read of a connection to the next. Small requests do not
// wait.
func TestLargeRequestsAreProcessedOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(maxConns, 0)
		var conns []*Conn
		var done []chan error
		for i := range maxLargeRequests + 4 {
			ours, theirs := net.Pipe()
			defer ours.Close()
			c := &Conn{Conn: theirs, limiter: l, peerIdentity: ClientIdentity{Unauthenticated, fmt.Sprint(i)}, closedOrEvicted: make(chan struct{})}
			c.countsHeaderBytes.Store(true)
			l.countNewConn(c)
			size := 2 * smallRequestBytes
			if i == maxLargeRequests+3 {
				size = smallRequestBytes
			}
			conns, done = append(conns, c), append(done, make(chan error, 1))
			go ours.Write(make([]byte, size))
			go func() {
				_, err := c.Read(make([]byte, size))
				done[i] <- err
			}()
			synctest.Wait()
		}
		processed := func() (n int) {
			synctest.Wait()
			for _, d := range done[:maxLargeRequests+3] {
				n += len(d)
			}
			return n
		}
		want := maxLargeRequests
		if n := processed(); n != want || len(done[maxLargeRequests+3]) != 1 {
			t.Fatalf("the server processes %d large requests, want %d, and %d small ones, want 1", n, want, len(done[maxLargeRequests+3]))
		}
		for name, next := range map[string]func(){
			"another Read":                                func() { go conns[0].Read(make([]byte, 1)) },
			"the end of the connection":                   func() { conns[1].Close() },
			"an evicted connection whose header was read": func() { conns[2].Evict(); conns[2].OnUnauthenticatedHeaderRead(false) },
		} {
			next()
			want++
			if n := processed(); n != want {
				t.Fatalf("after %s %d large requests were processed or are, want %d", name, n, want)
			}
		}
		for _, c := range conns {
			c.Close()
			c.Close()
		}
		synctest.Wait()
		if n := len(l.largeRequestSlots); n != 0 || l.connsByClass[Unauthenticated].totalHeaderBytes != 0 {
			t.Errorf("%d large requests and %d bytes count of connections that are closed", n, l.connsByClass[Unauthenticated].totalHeaderBytes)
		}
	})
}

// halfClosedConn is the server's end of a pipe with the method CloseRead, which TCP connections have.
type halfClosedConn struct{ peerConn }

func (c halfClosedConn) CloseRead() error { return c.SetReadDeadline(time.Now()) }

// After an eviction, an unauthenticated client's connection is closed with a delay, so that a client that reconnects at the close
// does so late.
func TestEvictedConnectionsAreClosedAfterDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{Limiter: newLimiter(maxConns, 0), inner: make(pipes)}
		var clients []*client
		const maxDelayed = maxConns / 8
		for i := range maxDelayed + 20 {
			peer := address{"pipe", "10.0.0.1:1"}
			if i%2 == 0 {
				peer = address{"task", "a"}
			}
			clients = append(clients, s.connect(t, peer, func(c peerConn) net.Conn { return halfClosedConn{c} }, 1))
		}
		s.conns[0].CountForClient(ClientIdentity{Task, "a"})
		for _, c := range s.conns {
			c.Evict()
			if _, err := c.Write([]byte("HTTP/1.1 200 OK")); err == nil {
				t.Error("the reply to a cancelled request was sent")
			}
		}
		synctest.Wait()
		open := 0
		for _, c := range clients {
			if c.isOpen() {
				open++
			}
		}
		if open != maxDelayed || clients[0].isOpen() {
			t.Errorf("%d evicted connections are open, want %d; that of a task: %t", open, maxDelayed, clients[0].isOpen())
		}
		time.Sleep(closeDelay)
		synctest.Wait()
		for _, c := range clients {
			if c.isOpen() || c.lifetime != 0 && c.lifetime < closeDelay {
				t.Fatalf("an evicted connection is open, or was closed after %v", c.lifetime)
			}
		}
		if s.delayedCloseCount != 0 {
			t.Errorf("%d evicted connections count as open", s.delayedCloseCount)
		}
	})
}
