package clustertest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/golden"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
)

// TestErrorsAreThoseOfTheProtocol compares the errors of the scenario with the file that was written when all answers
// were those of a stock server.
func TestErrorsAreThoseOfTheProtocol(t *testing.T) {
	for _, accessControl := range []bool{false, true} {
		var out strings.Builder
		for _, s := range play(t, ownTarget{Start(t, Config{AccessControl: accessControl})}, accessControl) {
			fmt.Fprintf(&out, "%s: %s\n", s.name, s.err)
		}
		for _, s := range playOutages(t, ownTarget{Start(t, Config{AccessControl: accessControl})}) {
			fmt.Fprintf(&out, "%s: %s\n", s.name, s.err)
		}
		golden.Check(t, filepath.Join("testdata", fmt.Sprintf("errors-acl-%t.txt", accessControl)), out.String())
	}
}

// result is the result of a call that runs beside the test.
type result struct {
	response object
	err      error
}

// start makes a call and returns the channel of its result.
func (c *testClient) start(method string, request object) <-chan result {
	done := make(chan result, 1)
	go func() {
		response, err := c.call(method, request)
		done <- result{response, err}
	}()
	return done
}

// waitReceived waits until the cluster has received n calls of a method.
func waitReceived(t *testing.T, c *Cluster, method string, n int) {
	t.Helper()
	if err := c.WaitReceived(t.Context(), method, n); err != nil {
		t.Fatal(err)
	}
}

func TestPollBlocksUntilAllocationsOfTheNodeChange(t *testing.T) {
	clock := NewManualClock(time.Unix(1700000000, 0))
	s := Start(t, Config{Clock: clock, HeartbeatTTL: time.Hour})
	c, other := connect(t, s.Addr()), connect(t, s.Addr())
	c.mustJoin()
	other.mustJoin()
	first := c.mustCall("Node.GetClientAllocs", object{"NodeID": c.id})
	poll := object{"NodeID": c.id, "AllowStale": true, "MinQueryIndex": first["Index"]}
	blocked := c.start("Node.GetClientAllocs", poll)
	waitTimers := func() {
		t.Helper()
		if err := clock.WaitTimers(t.Context(), 3); err != nil { // of two nodes and the poll
			t.Fatal(err)
		}
	}
	waitTimers()

	s.PlaceAlloc(other.id, scenarioJob(), "g") // does not wake the poll
	id := s.PlaceAlloc(c.id, scenarioJob(), "g")
	woken := <-blocked
	if woken.err != nil || len(woken.response["Allocs"].(object)) != 1 || woken.response["Allocs"].(object)[id] == nil {
		t.Fatalf("poll after a placement: %v, %v", woken.response, woken.err)
	}

	poll["MinQueryIndex"], poll["MaxQueryTime"] = woken.response["Index"], int64(time.Minute)
	blocked = c.start("Node.GetClientAllocs", poll)
	waitTimers()
	clock.Advance(time.Minute)
	woken = <-blocked
	if woken.err != nil || fmt.Sprint(woken.response["Index"]) != fmt.Sprint(poll["MinQueryIndex"]) {
		t.Errorf("poll after its time: %v, %v, want the same index %v", woken.response["Index"], woken.err, poll["MinQueryIndex"])
	}
}

func TestLeaderCanBeChangedAndKilled(t *testing.T) {
	cluster := StartCluster(t, 3, Config{})
	servers := cluster.Servers()
	c := connect(t, servers[1].Addr())
	c.mustJoin()
	heartbeat := object{"NodeID": c.id, "Status": "ready"}
	stale := object{"NodeID": c.id, "AllowStale": true}
	want := func(situation, method string, request object, wanted string) {
		t.Helper()
		_, err := c.call(method, request)
		if got := fmt.Sprint(err); got != wanted {
			t.Errorf("%s: %s: got error %s, want %s", situation, method, got, wanted)
		}
	}
	servers[0].Kill()
	want("killed leader", "Node.UpdateStatus", heartbeat, "rpc error: EOF")
	want("killed leader", "Node.GetClientAllocs", object{"NodeID": c.id}, "rpc error: EOF")
	want("killed leader", "Node.GetClientAllocs", stale, "<nil>")
	cluster.SetLeader(nil)
	want("no leader", "Node.UpdateStatus", heartbeat, "No cluster leader")
	want("no leader", "Node.GetClientAllocs", stale, "<nil>")
	if response := c.mustCall("Node.GetClientAllocs", stale); response["KnownLeader"] != false {
		t.Errorf("without a leader, KnownLeader is %v", response["KnownLeader"])
	}
	cluster.SetLeader(servers[2])
	response := c.mustCall("Node.UpdateStatus", heartbeat)
	if got := response["LeaderRPCAddr"]; got != servers[2].Addr() || len(response["Servers"].([]any)) != 2 {
		t.Errorf("leader %v, servers %v", got, response["Servers"])
	}
	if err := servers[0].Restart(); err != nil {
		t.Fatal(err)
	}
	if response := c.mustCall("Node.UpdateStatus", heartbeat); len(response["Servers"].([]any)) != 3 {
		t.Errorf("servers after a restart: %v", response["Servers"])
	}
	c.dial(servers[0].Addr(), nil)
	want("restarted server", "Node.UpdateStatus", heartbeat, "<nil>")
}

func TestKilledServerInterruptsItsCalls(t *testing.T) {
	s := Start(t, Config{})
	c := connect(t, s.Addr())
	c.mustJoin()
	blocked := c.start("Node.GetClientAllocs", object{"NodeID": c.id, "MinQueryIndex": 1000})
	waitReceived(t, s.Cluster, "Node.GetClientAllocs", 1)
	s.Kill()
	if r := <-blocked; !errors.Is(r.err, wire.ErrSessionClosed) {
		t.Errorf("call of a killed server: %v", r.err)
	}
}

func TestHeartbeatsKeepANodeReady(t *testing.T) {
	clock := NewManualClock(time.Unix(1700000000, 0))
	s := Start(t, Config{Clock: clock, HeartbeatTTL: 20 * time.Second, HeartbeatGrace: 5 * time.Second})
	c := connect(t, s.Addr())
	c.mustJoin()
	status := func() string {
		n, _ := s.Node(c.id)
		return n.Status
	}
	for range 3 {
		clock.Advance(24 * time.Second)
		if _, err := c.heartbeat(); err != nil || status() != "ready" {
			t.Fatalf("status %s, error %v", status(), err)
		}
	}
	clock.Advance(25 * time.Second)
	if status() != "down" {
		t.Errorf("without a heartbeat, the node is %s", status())
	}
	if response, err := c.register(c.identity); err != nil || fmt.Sprint(response["HeartbeatTTL"]) != "0" {
		t.Errorf("registration of a node that is down: TTL %v, error %v", response["HeartbeatTTL"], err)
	}
	if _, err := c.heartbeat(); err != nil || status() != "ready" {
		t.Errorf("after a heartbeat, the node is %s: %v", status(), err)
	}

	// A new leader waits longer.
	s.SetLeader(s)
	clock.Advance(4 * time.Minute)
	if status() != "ready" {
		t.Errorf("four minutes after a change of the leader, the node is %s", status())
	}
	clock.Advance(2 * time.Minute)
	if status() != "down" {
		t.Errorf("six minutes after a change of the leader, the node is %s", status())
	}
}

func TestDisconnectedNodeLosesItsAllocationsAfterLostAfter(t *testing.T) {
	clock := NewManualClock(time.Unix(1700000000, 0))
	s := Start(t, Config{Clock: clock})
	c := connect(t, s.Addr())
	c.mustJoin()
	id := s.PlaceAlloc(c.id, scenarioJob(), "g") // lost_after is an hour
	c.mustCall("Node.UpdateAlloc", object{"Alloc": []object{{"ID": id, "NodeID": c.id, "ClientStatus": "running"}}})
	s.MissHeartbeat(c.id)
	expect := func(status, client, desired string) {
		t.Helper()
		n, _ := s.Node(c.id)
		a, _ := s.Alloc(id)
		if n.Status != status || a.ClientStatus != client || a.DesiredStatus != desired {
			t.Errorf("node %s, allocation %s, desired %s; want %s, %s, %s", n.Status, a.ClientStatus, a.DesiredStatus, status, client, desired)
		}
	}
	expect("disconnected", "unknown", "run")
	clock.Advance(59 * time.Minute)
	expect("disconnected", "unknown", "run")
	clock.Advance(time.Minute)
	expect("down", "lost", "stop")
}

func TestNextStatus(t *testing.T) {
	for _, test := range []struct {
		name, status string
		event        statusEvent
		facts        nodeFacts
		want         string
	}{
		{"first heartbeat", statusInitializing, heartbeatReceived, nodeFacts{reported: true}, statusReady},
		{"heartbeat before the report of allocations", statusInitializing, heartbeatReceived, nodeFacts{}, statusInitializing},
		{"later heartbeat", statusReady, heartbeatReceived, nodeFacts{reported: true}, statusReady},
		{"heartbeat of a disconnected node", statusDisconnected, heartbeatReceived, nodeFacts{reported: true}, statusInitializing},
		{"heartbeat of a node that is down", statusDown, heartbeatReceived, nodeFacts{}, statusReady},
		{"missed", statusReady, heartbeatMissed, nodeFacts{}, statusDown},
		{"missed with an allocation that can reconnect", statusReady, heartbeatMissed, nodeFacts{reconnectable: true}, statusDisconnected},
		{"all allocations lost", statusDisconnected, allLost, nodeFacts{}, statusDown},
	} {
		if got := nextStatus(test.status, test.event, test.facts); got != test.want {
			t.Errorf("%s: got %s, want %s", test.name, got, test.want)
		}
	}
}

func TestIntroduction(t *testing.T) {
	for _, test := range []struct {
		name                string
		token               func(*Server) string
		none, warn, refused bool // whether each enforcement rejects; refused is for strict
	}{
		{"no token", func(*Server) string { return "" }, false, false, true},
		{"matching token", func(s *Server) string { return s.IntroductionToken("default", "node-one", time.Minute) }, false, false, false},
		{"token for any name", func(s *Server) string { return s.IntroductionToken("default", "", time.Minute) }, false, false, false},
		{"token for another name", func(s *Server) string { return s.IntroductionToken("default", "other", time.Minute) }, false, true, true},
		{"token for another pool", func(s *Server) string { return s.IntroductionToken("other", "node-one", time.Minute) }, false, true, true},
		{"garbage", func(*Server) string { return "garbage" }, true, true, true},
		{"token of another cluster", func(*Server) string { return Start(t, Config{}).IntroductionToken("default", "", time.Minute) }, true, true, true},
	} {
		for enforcement, rejects := range map[Introduction]bool{IntroductionNone: test.none, IntroductionWarn: test.warn, IntroductionStrict: test.refused} {
			s := Start(t, Config{Introduction: enforcement})
			_, err := connect(t, s.Addr()).register(test.token(s))
			if rejects != (err != nil) || err != nil && err.Error() != "Permission denied" {
				t.Errorf("%s, enforcement %d: %v", test.name, enforcement, err)
			}
		}
	}
}

func TestStrictIntroductionAcceptsKnownAndPurgedNodes(t *testing.T) {
	clock := NewManualClock(time.Unix(1700000000, 0))
	s := Start(t, Config{Introduction: IntroductionStrict, Clock: clock, NodeIdentityTTL: time.Hour})
	c := connect(t, s.Addr())
	if _, err := c.register(s.IntroductionToken("default", "", time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.register(""); err != nil {
		t.Errorf("known node without a token: %v", err)
	}
	s.PurgeNode(c.id)
	if _, err := c.register(c.identity); err != nil {
		t.Errorf("purged node with its identity: %v", err)
	}
	clock.Advance(2 * time.Hour)
	if _, err := c.call("Node.UpdateStatus", object{"NodeID": c.id, "Status": "ready"}); fmt.Sprint(err) != "Permission denied" {
		t.Errorf("heartbeat with an expired identity: %v", err)
	}
	expired := c.identity
	if response, err := c.register(expired); err != nil || response["SignedIdentity"] == nil {
		t.Errorf("registration with an expired identity: %v", err)
	}
	s.PurgeNode(c.id)
	if _, err := c.register(expired); fmt.Sprint(err) != "Permission denied" {
		t.Errorf("purged node with an expired identity: %v", err)
	}
}

func TestIdentityIsRenewed(t *testing.T) {
	clock := NewManualClock(time.Unix(1700000000, 0))
	s := Start(t, Config{Clock: clock, NodeIdentityTTL: 3 * time.Hour, HeartbeatTTL: 10 * time.Hour})
	c := connect(t, s.Addr())
	c.mustJoin()
	renewed := func(request object) bool {
		request["NodeID"], request["Status"] = c.id, "ready"
		return c.mustCall("Node.UpdateStatus", request)["SignedIdentity"] != nil
	}
	if renewed(object{}) || !renewed(object{"ForceIdentityRenewal": true}) || !renewed(object{"AuthToken": c.secret}) {
		t.Error("a heartbeat renews the identity if it is forced or authenticated by the secret only")
	}
	clock.Advance(2*time.Hour - time.Minute)
	if renewed(object{}) {
		t.Error("identity renewed although more than a third of its life is left")
	}
	clock.Advance(2 * time.Minute)
	if !renewed(object{}) {
		t.Error("identity not renewed although less than a third of its life is left")
	}
}

func TestProfiles(t *testing.T) {
	for _, test := range []struct {
		profile                       Profile
		identity, signs, usesTopology bool
	}{{Version20, true, true, true}, {Version110, false, true, true}, {Version16, false, false, false}} {
		s := Start(t, Config{Profile: test.profile})
		c := connect(t, s.Addr())
		c.mustJoin()
		if (c.identity != "") != test.identity {
			t.Errorf("profile %d: identity %q", test.profile, c.identity)
		}
		_, err := c.call("Alloc.SignIdentities", object{"Identities": []object{{"AllocID": "x"}}})
		if test.signs != (err == nil) || err != nil && err.Error() != "rpc: can't find method Alloc.SignIdentities" {
			t.Errorf("profile %d: SignIdentities: %v", test.profile, err)
		}
		n, _ := s.Node(c.id)
		if got := n.Record.NodeResources.Processors != nil && n.Record.NodeResources.Processors.Topology != nil; got != test.usesTopology {
			t.Errorf("profile %d: topology is used: %t", test.profile, got)
		}
	}
}

func TestNodeTokenForAVariableFailsTheTest(t *testing.T) {
	failures := &failureRecorder{TB: t}
	s := Start(failures, Config{})
	c := connect(t, s.Addr())
	c.mustJoin()
	c.call("Variables.Read", object{"Path": "nomad/jobs/web"})
	c.call("Variables.List", object{"AuthToken": c.secret})
	if failures.count != 2 {
		t.Errorf("%d failures, want 2", failures.count)
	}
}

// failureRecorder counts failures in place of failing. Its calls are made by one goroutine after the other.
type failureRecorder struct {
	testing.TB
	count int
}

func (r *failureRecorder) Errorf(string, ...any) { r.count++ }

func TestServerCallsTheNewestSession(t *testing.T) {
	s := Start(t, Config{})
	c := connect(t, s.Addr())
	serve := func(name string) {
		session := c.session
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan struct{})
		go func() {
			defer close(served)
			session.Serve(ctx, wire.Methods{
				Calls: map[string]wire.CallFunc{"Test.Name": wire.Method(func(context.Context, *object) (*object, error) { return &object{"Name": name}, nil })},
				Streams: map[string]wire.StreamFunc{"Test.Echo": func(_ context.Context, s *wire.Stream) {
					var message object
					if s.Receive(&message) == nil {
						s.Send(message) // the test notices a missing answer
					}
				}},
			})
		}()
		t.Cleanup(func() { cancel(); <-served })
	}
	want := func(situation, wanted, wantedErr string) {
		t.Helper()
		var response object
		err := s.Call(t.Context(), c.id, "Test.Name", object{}, &response)
		if name, _ := response["Name"].(string); name != wanted || (err != nil || wantedErr != "") && fmt.Sprint(err) != wantedErr {
			t.Errorf("%s: got %q, %v", situation, name, err)
		}
	}
	want("unknown node", "", "Unknown node "+c.id)
	serve("first")
	c.mustJoin()
	want("one session", "first", "")
	first := c.session
	c.dial(s.Addr(), nil)
	serve("second")
	c.heartbeat()
	want("two sessions", "second", "")
	second := c.session
	c.session = first
	c.heartbeat()
	want("first session used again", "second", "")
	stream, err := s.OpenStream(t.Context(), c.id, "Test.Echo", object{"Text": "hello"})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var echo object
	if err := stream.Receive(&echo); err != nil || echo["Text"] != "hello" {
		t.Errorf("stream: %v, %v", echo, err)
	}
	second.Close()
	if err := s.wait(t.Context(), "the end of the session", func() bool { return len(s.sessions) == 1 }); err != nil {
		t.Fatal(err)
	}
	want("second session closed", "first", "")
	s.DropConnections()
	want("no session", "", "No path to node")
}

func TestPurgeAndCollectionRemoveAllocations(t *testing.T) {
	s := Start(t, Config{})
	c := connect(t, s.Addr())
	c.mustJoin()
	first, second := s.PlaceAlloc(c.id, scenarioJob(), "g"), s.PlaceAlloc(c.id, scenarioJob(), "g")
	polled := func() object { return c.mustCall("Node.GetClientAllocs", object{"NodeID": c.id})["Allocs"].(object) }
	if len(polled()) != 2 {
		t.Fatalf("allocations %v", polled())
	}
	s.StopAlloc(first)
	c.mustCall("Node.UpdateAlloc", object{"Alloc": []object{{"ID": first, "NodeID": c.id, "ClientStatus": "complete"}}})
	ended, err := s.WaitAlloc(t.Context(), first, func(a protocol.Allocation) bool { return a.ClientStatus == "complete" })
	if err != nil || ended.DesiredStatus != "stop" {
		t.Errorf("stopped allocation: %s, %v", ended.DesiredStatus, err)
	}
	s.GC()
	if allocs := polled(); len(allocs) != 1 || allocs[second] == nil {
		t.Errorf("after the collection: %v", allocs)
	}
	s.PurgeNode(c.id)
	if allocs := polled(); len(allocs) != 0 {
		t.Errorf("after the purge of the node: %v", allocs)
	}
	c.mustJoin()
	if a, _ := s.Alloc(second); len(polled()) != 1 || a.DesiredStatus != "stop" || a.ClientStatus != "lost" {
		t.Errorf("after the second registration: %v, %s, %s", polled(), a.DesiredStatus, a.ClientStatus)
	}
	s.PurgeJob("default", "web")
	if allocs := polled(); len(allocs) != 0 {
		t.Errorf("after the purge of the job: %v", allocs)
	}
}

func TestMigrateTokenIsSentForAnAllocationOfAnotherNode(t *testing.T) {
	s := Start(t, Config{})
	source, c := connect(t, s.Addr()), connect(t, s.Addr())
	source.mustJoin()
	c.mustJoin()
	previous := s.PlaceAlloc(source.id, scenarioJob(), "g")
	id := s.Place(Placement{NodeID: c.id, Job: scenarioJob(), Group: "g", Previous: previous})
	want, err := MigrateToken(previous, source.secret)
	if err != nil {
		t.Fatal(err)
	}
	tokens := c.mustCall("Node.GetClientAllocs", object{"NodeID": c.id})["MigrateTokens"].(object)
	if tokens[id] != want || len(want) != 88 {
		t.Errorf("tokens %v, want %q for %s", tokens, want, id)
	}
}

func TestTLS(t *testing.T) {
	authority := NewAuthority(t)
	s := Start(t, Config{TLS: authority.ServerConfig("global", true)})
	dir := t.TempDir()
	for _, test := range []struct {
		name    string
		rejects bool
	}{{"client.global.nomad", false}, {"client.other.nomad", true}} {
		files := authority.NodeFiles(dir, test.name, "global")
		files.VerifyServerHostname = true
		config, err := files.Load()
		if err != nil {
			t.Fatal(err)
		}
		c := &testClient{t: t}
		c.dial(s.Addr(), config)
		if _, err := c.call("Status.Ping", nil); (err != nil) != test.rejects {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	plain := connect(t, s.Addr())
	if _, err := plain.call("Status.Ping", nil); err == nil {
		t.Error("a server with TLS has answered without it")
	}
}
