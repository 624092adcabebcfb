package servers_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/clustertest"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/servers"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
)

// startPool runs a pool for the servers at the given addresses until the test ends.
func startPool(t *testing.T, addrs ...string) *servers.Pool {
	t.Helper()
	dialer := wire.Dialer{Logger: hclog.NewNullLogger()}
	p := servers.New(servers.Config{Region: "global", Dial: dialer.Dial, Logger: hclog.NewNullLogger()}, addrs)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { p.Run(ctx, wire.Methods{}, nil) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return p
}

func addrsOf(c *clustertest.Cluster) (addrs []string) {
	for _, s := range c.Servers() {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}

// getNode makes a call that only a leader, or a server that reaches it, can answer.
func getNode(ctx context.Context, p *servers.Pool) error {
	request := protocol.GetNodeRequest{NodeID: "00000000-0000-0000-0000-000000000000", ReadOptions: protocol.ReadOptions{Region: "global"}}
	return p.Call(ctx, protocol.MethodGetNode, &request, &protocol.GetNodeResponse{})
}

func ping(ctx context.Context, p *servers.Pool) error {
	return p.Call(ctx, protocol.MethodPing, &protocol.PingRequest{}, &protocol.PingResponse{})
}

// waitReceived waits until a server has received a call to the method.
func waitReceived(t *testing.T, c *clustertest.Cluster, method string) error {
	_, err := c.WaitCall(t.Context(), func(call clustertest.Call) bool { return call.Method == method })
	return err
}

func TestCallsMoveToAServerThatAnswers(t *testing.T) {
	c := clustertest.StartCluster(t, 3, clustertest.Config{})
	p := startPool(t, addrsOf(c)...)
	if err := ping(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	for _, killed := range c.Servers()[:2] {
		killed.Kill()
		if err := ping(t.Context(), p); err != nil {
			t.Errorf("after server %s was killed: %v", killed.Addr(), err)
		}
		if got := p.Addrs()[0]; got == killed.Addr() {
			t.Errorf("the killed server %s is still the first", got)
		}
	}
}

func TestServerWithoutPortHasTheDefaultPort(t *testing.T) {
	for addr, want := range map[string]string{"example.com": "example.com:4647", "10.0.0.1:99": "10.0.0.1:99", "[::1]:99": "[::1]:99", "::1": "[::1]:4647", "[::1]": "[::1]:4647"} {
		if got := servers.New(servers.Config{}, []string{addr}).Addrs()[0]; got != want {
			t.Errorf("%s: got %s, want %s", addr, got, want)
		}
	}
}

func TestErrorsOfAServerAreNotRepeated(t *testing.T) {
	c := clustertest.StartCluster(t, 2, clustertest.Config{})
	p := startPool(t, addrsOf(c)...)
	c.Inject(clustertest.Fault{Method: protocol.MethodGetNode, Error: "Permission denied", Times: clustertest.Always})
	first := p.Addrs()[0]
	if err := getNode(t.Context(), p); !servers.IsPermissionDenied(err) {
		t.Errorf("got %v", err)
	}
	if calls := c.Calls(protocol.MethodGetNode); len(calls) != 1 || p.Addrs()[0] != first {
		t.Errorf("%d calls, first server %s, want one call of %s", len(calls), p.Addrs()[0], first)
	}
}

func TestCallIsRepeatedUntilThereIsALeader(t *testing.T) {
	c := clustertest.StartCluster(t, 1, clustertest.Config{})
	p := startPool(t, addrsOf(c)...)
	leader := c.Leader()
	c.SetLeader(nil)
	called := make(chan error, 1)
	go func() { called <- ping(t.Context(), p); called <- getNode(t.Context(), p) }()
	if err := <-called; err != nil {
		t.Fatal(err)
	}
	if err := waitReceived(t, c, protocol.MethodGetNode); err != nil {
		t.Fatal(err)
	}
	c.SetLeader(leader)
	if err := <-called; err != nil {
		t.Errorf("after the election: %v", err)
	}
}

func TestCutConnectionsAreOpenedAgain(t *testing.T) {
	c := clustertest.StartCluster(t, 1, clustertest.Config{})
	p := startPool(t, addrsOf(c)...)
	for _, cut := range []clustertest.CutPoint{clustertest.CutBeforeExecution, clustertest.CutBeforeResponse, clustertest.CutWithinResponse, clustertest.CutAfterResponse} {
		c.Inject(clustertest.Fault{Method: protocol.MethodPing, Cut: cut})
		if err := ping(t.Context(), p); err != nil {
			t.Errorf("cut %d: %v", cut, err)
		}
		if err := ping(t.Context(), p); err != nil {
			t.Errorf("after cut %d: %v", cut, err)
		}
	}
}

func TestCallEndsWithItsContext(t *testing.T) {
	c := clustertest.StartCluster(t, 1, clustertest.Config{})
	p := startPool(t, addrsOf(c)...)
	c.Inject(clustertest.Fault{Method: protocol.MethodPing, Hold: make(chan struct{}), Times: clustertest.Always})
	cause := errors.New("the test ends the call")
	ctx, cancel := context.WithCancelCause(t.Context())
	called := make(chan error, 1)
	go func() { called <- ping(ctx, p) }()
	if err := waitReceived(t, c, protocol.MethodPing); err != nil {
		t.Fatal(err)
	}
	cancel(cause)
	if err := <-called; !errors.Is(err, cause) {
		t.Errorf("got %v, want %v", err, cause)
	}
}

func TestEmptyListOfServersIsAnError(t *testing.T) {
	p := startPool(t)
	if err := ping(t.Context(), p); !errors.Is(err, servers.ErrNoServers) {
		t.Errorf("got %v, want %v", err, servers.ErrNoServers)
	}
}

func TestListOfAServerKeepsTheOrderIfItHasTheSameServers(t *testing.T) {
	p := servers.New(servers.Config{Logger: hclog.NewNullLogger()}, []string{"b:4647", "a:4647"})
	for _, test := range []struct{ list, want string }{
		{"a:4647 b:4647", "b:4647 a:4647"},
		{"", "b:4647 a:4647"},
		{"c:4647 b:4647", "b:4647 c:4647"}, // the server in use stays the first
	} {
		var list []*protocol.Server
		for _, addr := range strings.Fields(test.list) {
			list = append(list, &protocol.Server{RPCAdvertiseAddr: addr})
		}
		p.SetServers(list, 1)
		if got := strings.Join(p.Addrs(), " "); got != test.want {
			t.Errorf("after the list %q: got %q, want %q", test.list, got, test.want)
		}
	}
}

func TestConfiguredServersAreUsedWhenNoOtherAnswers(t *testing.T) {
	c := clustertest.StartCluster(t, 1, clustertest.Config{})
	p := startPool(t, addrsOf(c)...)
	p.SetServers([]*protocol.Server{{RPCAdvertiseAddr: "127.0.0.1:1"}, {RPCAdvertiseAddr: "127.0.0.1:2"}}, 1)
	if err := ping(t.Context(), p); err != nil {
		t.Errorf("with a list of servers that do not exist: %v", err)
	}
	if got, want := p.Addrs()[0], addrsOf(c)[0]; got != want {
		t.Errorf("the first server is %s, want %s", got, want)
	}
}

func TestWaitRetryEndsWhenAnotherCallSucceeds(t *testing.T) {
	c := clustertest.StartCluster(t, 1, clustertest.Config{})
	p := startPool(t, addrsOf(c)...)
	waited := make(chan error, 1)
	go func() { waited <- p.WaitRetry(t.Context(), time.Hour) }()
	for {
		select {
		case err := <-waited:
			if err != nil {
				t.Error(err)
			}
			return
		default:
			// A failed call and its successful repetition wake the wait, once it has begun.
			c.Inject(clustertest.Fault{Method: protocol.MethodGetNode, Error: "rpc error: EOF"})
			if err := getNode(t.Context(), p); err != nil {
				t.Fatal(err)
			}
		}
	}
}
