package hostile

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/agent"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
)

// apiClient is a client of the API that connects to an address, and sends a token.
type apiClient struct{ name, network, address, token string }

// send sends a GET request over a new connection.
func (c apiClient) send(path string) (net.Conn, error) {
	conn, err := net.Dial(c.network, c.address)
	for errors.Is(err, syscall.EAGAIN) { // the agent has not accepted the last connections yet
		time.Sleep(time.Millisecond)
		conn, err = net.Dial(c.network, c.address)
	}
	if err != nil {
		return nil, err
	}
	_, _ = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: localhost\r\nX-Nomad-Token: %s\r\n\r\n", path, c.token) // fails if the agent closes the connection early
	return conn, nil
}

// requestOK requires that a request has the status 200.
func (c apiClient) requestOK(t *testing.T, path string) {
	t.Helper()
	conn, err := c.send(path)
	if err != nil {
		t.Errorf("%s: %v", c.name, err)
		return
	}
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(systemtest.WaitTimeout))
	reply, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Errorf("%s: no reply to %s: %v", c.name, path, err)
		return
	}
	reply.Body.Close()
	if reply.StatusCode != http.StatusOK {
		t.Errorf("%s: status %d of %s", c.name, reply.StatusCode, path)
	}
}

// A task opens blocking queries with its token, at its socket and over TCP. Each above its limit has the status 429,
// and requests of other tasks, of the page and of the operator are answered.
func TestTaskCannotTakeConnectionsOfOthers(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("opens a thousand connections")
	}
	const queries, maxQueries = 700, 100
	g := systemtest.StartTokenProtectedAgent(t, false, "sh", "-c", `ulimit -n 2048; exec "$0" "$@"`) // fewer connections fill the limits
	client, err := api.NewClient(&api.Config{Address: "unix://" + g.SocketPath})
	if err != nil {
		t.Fatal(err)
	}
	s := &systemtest.TestAgent{Client: client, T: t}
	withToken := func(task *api.Task) { task.Identity = &api.WorkloadIdentity{File: true} }
	run := func(name string) *api.Task {
		return systemtest.NewRawExecShellTask(name, systemtest.SleepForeverScript, withToken, func(task *api.Task) {
			if os.Geteuid() == 0 {
				systemtest.WithExecDriver(task)
			}
		})
	}
	alloc := s.RunJobUntilStatus("flood", api.JobTypeService, "running", run("attacker"), run("neighbour"))
	t.Cleanup(func() {
		if _, _, err := s.Jobs().Deregister("flood", true, nil); err != nil {
			t.Error(err)
		}
		s.WaitUntil("the tasks have ended", func() (string, bool) {
			allocs, _, err := s.Allocations().List(nil)
			return fmt.Sprint(err), err == nil && (len(allocs) == 0 || allocs[0].ClientStatus == api.AllocClientStatusComplete)
		})
	})
	readToken := func(path ...string) string {
		text, err := os.ReadFile(filepath.Join(append([]string{g.DataDir}, path...)...))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	taskClients := func(name string) (socket, tcp apiClient) {
		token := readToken("alloc", alloc.ID, name, "secrets", "nomad_token")
		dir, err := os.Open(filepath.Join(g.DataDir, "alloc", alloc.ID, name, "secrets"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { dir.Close() })
		return apiClient{name, "unix", fmt.Sprintf("/proc/self/fd/%d/api.sock", dir.Fd()), token}, // the path is too long for an address
			apiClient{name + " over TCP", "tcp", g.Address, token}
	}
	attackerSocket, attackerTCP := taskClients("attacker")
	neighbourSocket, neighbourTCP := taskClients("neighbour")

	var mu sync.Mutex
	unanswered := 2 * queries
	var refusal string
	var readers, floods sync.WaitGroup
	var conns []net.Conn
	for _, attacker := range []apiClient{attackerSocket, attackerTCP} {
		floods.Go(func() {
			for range queries {
				conn, err := attacker.send("/v1/vars?index=1000000000&wait=5m")
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				conns = append(conns, conn)
				mu.Unlock()
				readers.Go(func() {
					text, _ := io.ReadAll(conn) // an error means that the agent has closed the connection
					mu.Lock()
					defer mu.Unlock()
					unanswered--
					if len(text) > 0 {
						refusal = string(text)
					}
				})
			}
		})
	}
	floods.Wait()
	neighbourSocket.requestOK(t, "/v1/vars")
	for _, path := range []string{"/v1/jobs", "/ui/jobs"} {
		apiClient{"operator", "unix", g.SocketPath, ""}.requestOK(t, path)
	}
	// All clients over TCP have the user of this test: the agent distinguishes them when it has read their tokens.
	s.WaitUntil("queries above the limit have ended", func() (string, bool) {
		mu.Lock()
		defer mu.Unlock()
		return fmt.Sprint(unanswered), unanswered <= maxQueries
	})
	neighbourTCP.requestOK(t, "/v1/vars")
	for _, path := range []string{"/v1/jobs", "/ui/jobs"} {
		apiClient{"operator over TCP", "tcp", g.Address, readToken(agent.TokenFile)}.requestOK(t, path)
	}
	mu.Lock()
	if !strings.HasPrefix(refusal, "HTTP/1.1 429") || !strings.Contains(refusal, "http_max_conns_per_client") {
		t.Errorf("a query above the limit has the reply %q", refusal)
	}
	mu.Unlock()
	for _, c := range conns {
		c.Close()
	}
	readers.Wait()
}
