package clustertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
)

// join starts a server and a node that has joined.
func join(t *testing.T) (*Server, *testClient) {
	t.Helper()
	s := Start(t, Config{})
	c := connect(t, s.Addr())
	c.mustJoin()
	return s, c
}

const emit = "Node.EmitEvents"

// event is a request that writes an event, whose execution can be seen in the node.
func (c *testClient) event() object {
	return object{"NodeEvents": object{c.id: []object{{"Message": "event", "Subsystem": "Driver"}}}}
}

// events returns how many calls of emit were executed.
func events(t *testing.T, s *Server, c *testClient) int {
	t.Helper()
	n, known := s.Node(c.id)
	if !known {
		t.Fatal("no node")
	}
	return len(n.Events) - 1 // without its registration
}

func TestFaultsCutTheConnection(t *testing.T) {
	for point, test := range map[CutPoint]struct{ answered, executed bool }{
		CutBeforeExecution: {}, CutBeforeResponse: {executed: true}, CutWithinResponse: {executed: true}, CutAfterResponse: {true, true},
	} {
		s, c := join(t)
		s.Inject(Fault{Method: emit, Cut: point})
		_, err := c.call(emit, c.event())
		if test.answered && err != nil || !test.answered && !errors.Is(err, wire.ErrSessionClosed) {
			t.Errorf("cut point %d: %v", point, err)
		}
		if got := events(t, s, c) == 1; got != test.executed {
			t.Errorf("cut point %d: executed %t", point, got)
		}
		if recorded := s.Calls(emit)[0]; (recorded.Error == "") != test.answered {
			t.Errorf("cut point %d: recorded with the error %q", point, recorded.Error)
		}
		<-c.session.Closed()
		c.dial(s.Addr(), nil)
		if _, err := c.call(emit, c.event()); err != nil {
			t.Errorf("cut point %d: call after the fault: %v", point, err)
		}
	}
}

func TestFaultsReplaceAnswers(t *testing.T) {
	s, c := join(t)
	poll := object{"NodeID": c.id}

	s.Inject(Fault{Method: emit, Error: "No cluster leader"})
	if _, err := c.call(emit, c.event()); fmt.Sprint(err) != "No cluster leader" || events(t, s, c) != 0 {
		t.Errorf("error in place of the execution: %v, %d events", err, events(t, s, c))
	}
	s.Inject(Fault{Method: emit, Error: "rpc error: EOF", Execute: true})
	if _, err := c.call(emit, c.event()); fmt.Sprint(err) != "rpc error: EOF" || events(t, s, c) != 1 {
		t.Errorf("error after the execution: %v, %d events", err, events(t, s, c))
	}
	s.Inject(Fault{Method: "Node.GetClientAllocs", Times: 2, Edit: func(response map[string]any) {
		response["Index"], response["Unknown"] = 3, map[string]any{"field": []any{nil}}
		delete(response, "MigrateTokens")
	}})
	for range 2 {
		response := c.mustCall("Node.GetClientAllocs", poll)
		if fmt.Sprint(response["Index"]) != "3" || response["Unknown"] == nil || response["MigrateTokens"] != nil {
			t.Errorf("edited answer: %v", response)
		}
	}
	if response := c.mustCall("Node.GetClientAllocs", poll); response["Unknown"] != nil {
		t.Errorf("answer after the fault: %v", response)
	}
	s.Inject(Fault{Method: "Node.GetClientAllocs", Raw: bytes.Repeat([]byte{0xc1}, 100)})
	if response, err := c.call("Node.GetClientAllocs", poll); err == nil {
		t.Errorf("hostile bytes were decoded: %v", response)
	}
	s.Inject(Fault{Method: "Node.GetClientAllocs", Repeat: 2})
	if _, err := c.call("Node.GetClientAllocs", poll); err != nil {
		t.Errorf("repeated answer: %v", err)
	}
	remove := s.Inject(Fault{Times: Always, Error: "down"})
	if _, err := c.call("Status.Ping", nil); fmt.Sprint(err) != "down" {
		t.Errorf("fault for all methods: %v", err)
	}
	remove()
	if _, err := c.call("Status.Ping", nil); err != nil {
		t.Errorf("removed fault: %v", err)
	}
}

func TestFaultsDelayCallsAndAnswers(t *testing.T) {
	s, c := join(t)
	hold, holdResponse := make(chan struct{}), make(chan struct{})
	s.Inject(Fault{Method: emit, Hold: hold, HoldResponse: holdResponse})
	first := c.start(emit, c.event())
	waitReceived(t, s.Cluster, emit, 1)
	if events(t, s, c) != 0 {
		t.Error("a held call was executed")
	}
	if _, err := c.call(emit, c.event()); err != nil || events(t, s, c) != 1 {
		t.Errorf("a later call did not overtake: %v", err)
	}
	close(hold)
	if _, err := s.WaitNode(t.Context(), c.id, func(n Node) bool { return len(n.Events) == 3 }); err != nil {
		t.Error(err)
	}
	select {
	case r := <-first:
		t.Fatalf("answer before its channel was closed: %v", r)
	default:
	}
	close(holdResponse)
	if r := <-first; r.err != nil {
		t.Error(r.err)
	}
}

func TestFaultDelayFollowsTheClock(t *testing.T) {
	clock := NewManualClock(time.Unix(1700000000, 0))
	s := Start(t, Config{Clock: clock})
	c := connect(t, s.Addr())
	s.Inject(Fault{Method: "Status.Ping", Delay: time.Minute})
	ping := c.start("Status.Ping", nil)
	if err := clock.WaitTimers(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	clock.Advance(time.Minute - 1)
	select {
	case r := <-ping:
		t.Fatalf("answer before the time: %v", r)
	default:
	}
	clock.Advance(1)
	if r := <-ping; r.err != nil {
		t.Error(r.err)
	}
}

func TestRejectedConnections(t *testing.T) {
	s, c := join(t)
	s.RejectConnections(true, []byte("\x06garbage that is not yamux"))
	<-c.session.Closed()
	dialed := connect(t, s.Addr())
	if _, err := dialed.call("Status.Ping", nil); err == nil {
		t.Error("call on a rejected connection has succeeded")
	}
	s.RejectConnections(false, nil)
	c.dial(s.Addr(), nil)
	if _, err := c.heartbeat(); err != nil {
		t.Error(err)
	}
}

func TestCallsAreLogged(t *testing.T) {
	s, c := join(t)
	c.call("Node.Nothing", nil)
	calls := s.Calls("Node.Register", "Node.Nothing")
	if len(calls) != 2 || calls[0].Method != "Node.Register" || calls[1].Error != "rpc: can't find method Node.Nothing" {
		t.Fatalf("calls %v", calls)
	}
	register := calls[0]
	if !register.Done() || register.RequestBytes < 500 || register.ResponseBytes < 800 || register.Response["SignedIdentity"] != c.identity ||
		register.Request["Node"].(object)["ID"] != c.id || register.Server != s {
		t.Errorf("registration %+v", register)
	}
	if err := s.WaitCalls(t.Context(), "Node.UpdateStatus", 1); err != nil {
		t.Error(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.WaitCall(ended, func(call Call) bool { return call.Method == "Node.Deregister" }); !errors.Is(err, context.Canceled) {
		t.Errorf("wait for a call that is not made: %v", err)
	}
	if received, sent := s.Traffic(); received < int64(register.RequestBytes) || sent < int64(register.ResponseBytes) {
		t.Errorf("traffic %d, %d", received, sent)
	}
}

func TestNothingOutlivesTheTest(t *testing.T) {
	t.Run("inner", func(t *testing.T) {
		cluster := StartCluster(t, 3, Config{})
		for _, s := range cluster.Servers() {
			c := connect(t, s.Addr())
			c.mustJoin()
			c.start("Node.GetClientAllocs", object{"NodeID": c.id, "MinQueryIndex": 1000})
		}
		waitReceived(t, cluster, "Node.GetClientAllocs", 3)
	})
	var stacks strings.Builder
	if err := pprof.Lookup("goroutine").WriteTo(&stacks, 2); err != nil {
		t.Fatal(err)
	}
	for _, stack := range strings.Split(stacks.String(), "\n\n") {
		if strings.Contains(stack, "clustertest.(*Server)") || strings.Contains(stack, "clustertest.(*session)") || strings.Contains(stack, "clustertest.(*Cluster)") {
			t.Errorf("goroutine outlives the test:\n%s", stack)
		}
	}
}
