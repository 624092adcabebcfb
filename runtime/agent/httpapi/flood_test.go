package httpapi

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
	"github.com/nomad-lite/nomad-lite/runtime/agent/connlimit"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/taskapi"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
)

// listenOnSocket returns the descriptor of a unix socket, as package allocdir makes it for a task.
func listenOnSocket(t *testing.T, path string) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err == nil {
		err = errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 512))
	}
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// dialAsUser connects to a TCP port of the loopback address with a socket of another user.
func dialAsUser(uid int, address string) (net.Conn, error) {
	type result struct {
		fd  int
		err error
	}
	results := make(chan result)
	port := 0
	if _, err := fmt.Sscanf(address, "127.0.0.1:%d", &port); err != nil {
		return nil, err
	}
	go func() {
		runtime.LockOSThread() // only this thread changes its user, and it ends with its goroutine
		if _, _, errno := syscall.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
			results <- result{err: errno}
			return
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
		}
		results <- result{fd, err}
	}()
	r := <-results
	f := os.NewFile(uintptr(r.fd), "connection")
	defer f.Close() // net.FileConn makes a copy of the descriptor
	if r.err != nil {
		return nil, r.err
	}
	return net.FileConn(f)
}

// floodClient is a client that connects in one way, and authenticates in one way.
type floodClient struct {
	name  string
	dial  func() (net.Conn, error)
	token string
	path  string // of a list that the client can read

	needsToken bool // the class of the client is unknown until it has sent its token
}

// header returns the header of a GET request.
func (c floodClient) header(path, more string) string {
	if c.token != "" {
		more += "X-Nomad-Token: " + c.token + "\r\n"
	}
	return "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + more + "\r\n"
}

// connect sends text over a new connection.
func (c floodClient) connect(text string) (net.Conn, error) {
	conn, err := c.dial()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.name, err)
	}
	_, _ = io.WriteString(conn, text) // fails if the server closes the connection early
	return conn, nil
}

// readReply returns the status and the index of a reply.
func readReply(conn net.Conn) (status int, index string, err error) {
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		return 0, "", err
	}
	reply, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, "", err
	}
	defer reply.Body.Close()
	_, err = io.Copy(io.Discard, reply.Body)
	return reply.StatusCode, reply.Header.Get("X-Nomad-Index"), err
}

// request requires that a request over a new connection has the status 200.
func (c floodClient) request(t *testing.T, path string) {
	t.Helper()
	conn, err := c.connect(c.header(path, ""))
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close()
	if status, _, err := readReply(conn); status != http.StatusOK || err != nil {
		t.Errorf("%s requests %s: status %d, %v", c.name, path, status, err)
	}
}

// floodConn is a connection of an attacker, and what the attacker has seen.
type floodConn struct {
	net.Conn
	kind string

	mu     sync.Mutex
	text   string
	closed bool
}

func (c *floodConn) read() {
	for b := make([]byte, 4<<10); ; {
		n, err := c.Conn.Read(b)
		c.mu.Lock()
		c.text += string(b[:n])
		c.closed = c.closed || err != nil
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (c *floodConn) state() (text string, closed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text, c.closed
}

const floodBlocking = "blocking query"

// floodRequest returns what an attacker sends over a connection of a random kind.
func (c floodClient) floodRequest(random *rand.Rand) (kind, text string) {
	switch random.IntN(6) {
	case 0:
		return "idle", ""
	case 1:
		return "half sent", partialHeader
	case 2:
		return "terminal", c.header("/v1/client/allocation/x/exec?ws_handshake=true", "Connection: Upgrade\r\nUpgrade: websocket\r\n"+
			"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n")
	case 3:
		return "event stream", c.header("/v1/event/stream", "")
	default:
		return floodBlocking, c.header(c.path+"&index=1000000&wait=5m", "")
	}
}

// flood is an API with the listeners of an agent, and clients of them.
type flood struct {
	*fixture
	*testing.T
	random    *rand.Rand
	perClient int
	operators []floodClient // an operator at the unix socket, and if users of TCP clients are known, operators over TCP
	others    []floodClient // tasks, readers and accounts that do not attack
	attackers []floodClient
	isCrowded bool // the attackers are more users than there are places for clients without a token
}

// floodTotal is the limit of the connections of a flood. The numbers of connections of tasks is three eighths.
const floodTotal = 64

func newFlood(t *testing.T, seed uint64) *flood {
	var identities *identity.Issuer
	f := &flood{T: t, random: rand.New(rand.NewPCG(seed, 0))}
	f.fixture = newFixture(t, func(c *Config) {
		c.OperatorToken, c.ReadOnlyToken = "operator", "reader"
		identities = identity.NewIssuer(identity.Config{Store: c.Store, Region: "global"})
		c.Identities = identities
	})
	if f.random.IntN(2) == 0 {
		f.perClient = 4 + f.random.IntN(5)
	}
	var log strings.Builder
	limiter := connlimit.New(connlimit.Config{MaxConns: floodTotal, MaxConnsPerClient: f.perClient, Logger: hclog.New(&hclog.LoggerOptions{Output: &log})})
	dir := t.TempDir()
	socket := filepath.Join(dir, "nomad.sock")
	unixListener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	tcpListener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tasks, err := taskapi.New()
	if err != nil {
		t.Fatal(err)
	}
	tcp := tcpListener.Addr().String()
	dialTCP := func(uid int) func() (net.Conn, error) {
		return func() (net.Conn, error) { return dialAsUser(uid, tcp) }
	}
	f.operators = []floodClient{{name: "operator, unix socket", dial: func() (net.Conn, error) { return net.Dial("unix", socket) }, path: "/v1/vars?namespace=apps"}}
	group := &api.TaskGroup{Name: new("web")}
	var taskClients []floodClient
	for i := range 4 {
		name := fmt.Sprint("task", i)
		group.Tasks = append(group.Tasks, &api.Task{Name: name})
		w := identity.Workload{Namespace: "apps", JobID: "shop", Group: "web", AllocID: workloadAllocID, Task: name}
		token, err := identities.IssueToken(t.Context(), w, &api.WorkloadIdentity{Name: "x", Audience: []string{"nomadproject.io"}})
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, name)
		if err := tasks.AddOrReplaceSocket(taskapi.TaskAddr{AllocID: workloadAllocID, Task: name}, listenOnSocket(t, path)); err != nil {
			t.Fatal(err)
		}
		taskClients = append(taskClients, floodClient{
			name: name, dial: func() (net.Conn, error) { return net.Dial("unix", path) }, token: token.JWT, path: "/v1/vars?namespace=apps",
		})
	}
	f.change(func(tx *store.Txn) {
		tx.PutScheduledAllocation(&api.Allocation{
			ID: workloadAllocID, Namespace: "apps", JobID: "shop", TaskGroup: "web", ClientStatus: api.AllocClientStatusRunning,
			Job: &api.Job{TaskGroups: []*api.TaskGroup{group}},
		})
	})
	listeners := []net.Listener{limiter.LimitListener(unixListener), limiter.LimitListener(tcpListener), limiter.LimitListener(tasks)}
	f.serve(t, listeners...)

	// One task floods at its socket, and perhaps over TCP, and others do not attack.
	const accountUID, pageUID, taskUID = 54321, 55001, 55002
	f.attackers = append(f.attackers, taskClients[0])
	f.others = append(f.others, taskClients[1], taskClients[2])
	if f.random.IntN(2) == 0 {
		f.attackers = append(f.attackers, taskClients[3])
	}
	if os.Geteuid() != 0 || log.Len() > 0 {
		return f // over TCP, all clients would be one
	}
	overTCP := func(c floodClient, uid int) floodClient {
		c.name, c.dial, c.needsToken = fmt.Sprintf("%s, TCP, uid %d", c.name, uid), dialTCP(uid), true
		return c
	}
	operator := floodClient{name: "operator", dial: dialTCP(0), token: "operator", path: "/v1/vars?namespace=apps"}
	f.operators = append(f.operators, operator, overTCP(operator, pageUID))
	f.others = append(f.others, overTCP(taskClients[1], taskUID))
	account := floodClient{name: "account", path: "/v1/agent/health?type=server"}
	reader := floodClient{name: "reader", token: "reader", path: "/v1/jobs?namespace=apps"}
	if f.isCrowded = f.random.IntN(3) == 0; f.isCrowded {
		for i := range 40 { // more users than places
			f.attackers = append(f.attackers, overTCP(account, accountUID+i), overTCP(reader, accountUID+i))
		}
		return f
	}
	for _, c := range []floodClient{taskClients[0], account, reader} {
		if f.random.IntN(2) == 0 {
			f.attackers = append(f.attackers, overTCP(c, accountUID))
		}
	}
	return f
}

func (f *flood) change(edit func(*store.Txn)) {
	f.Helper()
	if _, err := f.store.Update(f.Context(), func(tx *store.Txn) error { edit(tx); return nil }); err != nil {
		f.Fatal(err)
	}
}

// requestAll sends a request of each client that does not attack. Many users could delay a user that has sent no token yet.
func (f *flood) requestAll() {
	f.Helper()
	for _, c := range append(f.operators, f.others...) {
		if f.isCrowded && c.needsToken {
			continue
		}
		c.request(f.T, c.path)
		if c.token == "operator" {
			floodClient{name: c.name + ", page", dial: c.dial}.request(f.T, "/ui/")
		}
	}
}

// run floods the API while other clients send requests and wait for replies.
func (f *flood) run() {
	// These queries wait before the flood, and end after it.
	var waiting []net.Conn
	var waitingClients []string
	for _, c := range append(f.operators, f.others...) {
		conn, err := c.connect(c.header(c.path, "")) // a request that has been answered has identified the client
		if err != nil {
			f.Fatal(err)
		}
		_, index, err := readReply(conn)
		if err == nil {
			_, err = io.WriteString(conn, c.header(c.path+"&index="+index+"&wait=5m", ""))
		}
		if err != nil {
			f.Fatalf("%s: %v", c.name, err)
		}
		defer conn.Close()
		waiting, waitingClients = append(waiting, conn), append(waitingClients, c.name)
	}

	var floodWG, readersWG sync.WaitGroup
	conns := make([][]*floodConn, len(f.attackers))
	for i, a := range f.attackers {
		random := rand.New(rand.NewPCG(f.random.Uint64(), 0))
		floodWG.Go(func() {
			for range 1 + random.IntN(2*floodTotal/min(len(f.attackers), 16)) {
				kind, text := a.floodRequest(random)
				conn, err := a.connect(text)
				if err != nil {
					f.Error(err)
					return
				}
				c := &floodConn{Conn: conn, kind: kind}
				conns[i] = append(conns[i], c)
				readersWG.Go(c.read)
			}
		})
	}
	done := make(chan struct{})
	go func() { floodWG.Wait(); close(done) }()
	for ended := false; !ended; {
		f.requestAll()
		select {
		case <-done:
			ended = true
		default:
		}
	}
	f.requestAll()
	f.checkTasks(conns)

	f.change(func(tx *store.Txn) {
		tx.PutVariable(&api.Variable{Namespace: "apps", Path: "nomad/jobs", Items: api.VariableItems{"a": "b"}})
	})
	for i, conn := range waiting {
		if status, _, err := readReply(conn); status != http.StatusOK || err != nil {
			f.Errorf("the query of %s that waited during the flood: status %d, %v", waitingClients[i], status, err)
		}
	}
	for _, all := range conns {
		for _, c := range all {
			c.Close()
		}
	}
	readersWG.Wait()
}

// checkTasks requires that the waiting queries of the tasks that attack are within the limits, and that refused queries
// have a reply with a remedy.
func (f *flood) checkTasks(conns [][]*floodConn) {
	f.Helper()
	const maxOfTasks = floodTotal * 3 / 8
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		waiting, total := make(map[string]int), 0 // by token: a task has one limit for its socket and TCP
		for i, all := range conns {
			for _, c := range all {
				switch text, closed := c.state(); {
				case c.kind != floodBlocking || !strings.Contains(f.attackers[i].token, "."):
				case text == "" && !closed:
					waiting[f.attackers[i].token]++
					total++
				case text != "" && !strings.HasPrefix(text, "HTTP/1.1 200") && !strings.Contains(text, "http_max_conns_per_client"):
					f.Errorf("%s: reply %q", f.attackers[i].name, text)
				}
			}
		}
		within := total <= maxOfTasks
		for _, n := range waiting {
			within = within && (f.perClient == 0 || n <= f.perClient)
		}
		if within {
			return
		}
		if time.Now().After(deadline) {
			f.Fatalf("queries that wait by task: %v, want at most %d of each and %d in total", waiting, f.perClient, maxOfTasks)
		}
	}
}

// Random clients open random connections of all kinds. Requests of the operator, of other tasks and of the page are
// answered, and queries that wait lose no connection.
func TestFloodsDoNotDelayOthers(t *testing.T) {
	schedules := 3
	if slowtest.LongEnabled() {
		schedules = 100
	}
	if testing.Short() {
		t.Skip("waits until connections that were closed with a delay are closed")
	}
	for range schedules {
		seed := rand.Uint64()
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			newFlood(t, seed).run()
		})
	}
}
