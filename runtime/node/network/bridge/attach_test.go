package bridge

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"

	"github.com/nomad-lite/nomad-lite/internal/netns"
)

// attachTogether executes Attach calls as one group, and returns their results in the order of the endpoints.
func attachTogether(t testing.TB, b *Bridge, endpoints []Endpoint) (statuses []NamespaceStatus, errs []error) {
	t.Helper()
	statuses, errs = make([]NamespaceStatus, len(endpoints)), make([]error, len(endpoints))
	b.attachCalls.executorMu.Lock() // until all calls wait
	var calls sync.WaitGroup
	for i, e := range endpoints {
		calls.Go(func() { statuses[i], errs[i] = b.Attach(e) })
	}
	waiting := func() int {
		b.attachCalls.mu.Lock()
		defer b.attachCalls.mu.Unlock()
		return len(b.attachCalls.waiting)
	}
	for deadline := time.Now().Add(10 * time.Second); waiting() < len(endpoints); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d calls wait", waiting(), len(endpoints))
		}
	}
	b.attachCalls.executorMu.Unlock()
	calls.Wait()
	return statuses, errs
}

// The error of one namespace is no error of the others that are connected together with it.
func TestAttachErrorConcernsOneCall(t *testing.T) {
	if testing.Short() {
		t.Skip("creates network namespaces; TestNamespacesReachEachOther and TestMasquerade run")
	}
	b := New(testConfig)
	attach(t, b, "owner", ForwardedPort{Label: "http", HostPort: 80, NamespacePort: 8080})
	var endpoints []Endpoint
	for i := range 40 { // more than maxAttachedTogether
		endpoints = append(endpoints, newEndpoint(t, b, fmt.Sprint("group-", i), ForwardedPort{Label: "http", HostPort: 20000 + i, NamespacePort: 8080}))
	}
	const conflict, twin, gone = 3, 5, 7
	endpoints[conflict].Ports[0].HostPort = 80
	endpoints[twin].Ports[0].HostPort = 20004 // of another one in the group
	endpoints[gone].NamespacePath = netns.Path("missing")
	statuses, errs := attachTogether(t, b, endpoints)
	used := map[netip.Addr]bool{}
	for i, err := range errs {
		inUse := new(PortInUseError)
		switch {
		case i == conflict:
			if !errors.As(err, &inUse) || inUse.OwnerAllocID != "owner" {
				t.Errorf("with a port of another allocation: %v", err)
			}
		case i == twin || i == 4: // the calls can be in any order
			if errs[twin] == nil == (errs[4] == nil) || err != nil && !errors.As(err, &inUse) {
				t.Errorf("with the port of another call: %v, %v", errs[twin], errs[4])
			}
		case i == gone:
			if err == nil {
				t.Error("without a namespace: no error")
			}
		case err != nil:
			t.Errorf("%s: %v", endpoints[i].AllocID, err)
		}
		if err == nil && (used[statuses[i].IPv4Address] || used[statuses[i].IPv6Address]) {
			t.Errorf("%s has addresses of another namespace: %v", endpoints[i].AllocID, statuses[i])
		}
		used[statuses[i].IPv4Address], used[statuses[i].IPv6Address] = err == nil, err == nil
	}
	for _, i := range []int{0, 39} {
		serve(t, endpoints[i].AllocID)
		checkAnswer(t, "forwarded", outside, "tcp", fmt.Sprintf("%s:%d", machineAddress, 20000+i), endpoints[i].AllocID+" "+outsideAddress)
	}
	checkAnswer(t, "the owner of the port", outside, "tcp", machineAddress+":80", "owner "+outsideAddress)
}

// The number of nftables transactions does not depend on the number of namespaces that are connected together, and the tables are
// written only if another program has changed the ruleset.
func TestAttachTransactions(t *testing.T) {
	if testing.Short() {
		t.Skip("creates network namespaces; TestNamespacesReachEachOther and TestMasquerade run")
	}
	b, other := New(testConfig), New(testConfig)
	_, first := attach(t, b, "first")
	checkTransactions := func(what string, want uint32, do func()) {
		t.Helper()
		before := rulesetGeneration()
		do()
		if got := rulesetGeneration() - before; before == 0 || got != want {
			t.Errorf("%s: %d transactions, want %d", what, got, want)
		}
	}
	attachNew := func(b *Bridge, ids ...string) func() {
		var endpoints []Endpoint
		for i, id := range ids {
			endpoints = append(endpoints, newEndpoint(t, b, id, ForwardedPort{Label: "http", HostPort: 21000 + len(id)*100 + i, NamespacePort: 8080}))
		}
		return func() {
			if _, errs := attachTogether(t, b, endpoints); errors.Join(errs...) != nil {
				t.Error(errors.Join(errs...))
			}
		}
	}
	checkTransactions("one more namespace", 1, attachNew(b, "a"))
	checkTransactions("four namespaces", 1, attachNew(b, "b1", "b2", "b3", "b4"))
	checkTransactions("a connected namespace", 0, func() {
		if again, err := b.Attach(Endpoint{AllocID: "first", NamespacePath: netns.Path("first")}); err != nil || again != first {
			t.Errorf("%v, %v, want %v", again, err, first)
		}
	})
	checkTransactions("another agent's first namespace", 2, attachNew(other, "others"))
	checkTransactions("after another agent's", 2, attachNew(b, "after"))
	if err := deleteNftablesTablesIfExist(testConfig.Name); err != nil { // as by nft flush ruleset
		t.Fatal(err)
	}
	checkTransactions("after the tables were deleted", 2, attachNew(b, "flushed"))
	checkAnswer(t, "an earlier namespace may send", "b1", "tcp", at(first.IPv4Address, 8080), "first "+addressOf(t, "b1").String())
}

// Another program removes the tables between the check of the ruleset's generation and the transaction.
func TestTablesAreWrittenAgainAfterFailedTransaction(t *testing.T) {
	if testing.Short() {
		t.Skip("creates network namespaces; TestNamespacesReachEachOther and TestMasquerade run")
	}
	b := New(testConfig)
	owner := Endpoint{AllocID: "owner", NamespacePath: netns.Path("owner"), Ports: []ForwardedPort{{Label: "http", HostPort: 80, NamespacePort: 8080}}}
	attach(t, b, "owner", owner.Ports...)
	for _, n := range []int{1, 3} {
		if err := deleteNftablesTablesIfExist(testConfig.Name); err != nil {
			t.Fatal(err)
		}
		b.firewall.generation = rulesetGeneration() // as if the tables had been deleted after the check
		var endpoints []Endpoint
		for i := range n {
			endpoints = append(endpoints, newEndpoint(t, b, fmt.Sprint("of-", n, "-", i), ForwardedPort{Label: "http", HostPort: 22000 + 10*n + i, NamespacePort: 8080}))
		}
		if _, errs := attachTogether(t, b, endpoints); errors.Join(errs...) != nil {
			t.Errorf("%d together: %v", n, errs)
		}
		if _, err := b.Attach(owner); err != nil {
			t.Error(err)
		}
		id := endpoints[0].AllocID
		serve(t, id)
		checkAnswer(t, "a new port", outside, "tcp", fmt.Sprintf("%s:%d", machineAddress, endpoints[0].Ports[0].HostPort), id+" "+outsideAddress)
		checkAnswer(t, "the port of before", outside, "tcp", machineAddress+":80", "owner "+outsideAddress)
	}
	conflict := newEndpoint(t, b, "conflict", ForwardedPort{Label: "http", HostPort: 80, NamespacePort: 8080})
	b.firewall.generation-- // as if another program had changed the ruleset
	_, errs := attachTogether(t, b, []Endpoint{conflict, owner})
	if inUse := new(PortInUseError); !errors.As(errs[0], &inUse) || errs[1] != nil {
		t.Errorf("a port in use: %v", errs)
	}
}

const (
	attachingVariable  = "NOMAD_LITE_BRIDGE_TEST_ATTACHING" // prefix of the allocations that a test process connects
	attachedPerProcess = 200
)

func endpointOfProcess(prefix string, i int) Endpoint {
	id := fmt.Sprint(prefix, "-", i)
	return Endpoint{AllocID: id, NamespacePath: netns.Path(id), Ports: []ForwardedPort{{Label: "http", HostPort: 20000 + int(prefix[0])*attachedPerProcess + i, NamespacePort: 8080}}}
}

// attachAsAgent connects the namespaces of one of the two agents of TestKilledAgentsShareBridge, and returns the exit code.
func attachAsAgent(prefix string) int {
	b := New(testConfig)
	errs := make([]error, attachedPerProcess)
	var calls sync.WaitGroup
	for i := range errs {
		calls.Go(func() { _, errs[i] = b.Attach(endpointOfProcess(prefix, i)) })
	}
	calls.Wait()
	if err := errors.Join(errs...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// Two agents connect 200 namespaces each, while they are killed and started again. No address and no port is used twice.
func TestKilledAgentsShareBridge(t *testing.T) {
	if testing.Short() {
		t.Skip("connects four hundred namespaces")
	}
	b := New(testConfig)
	prefixes := []string{"a", "b"}
	var ids []string
	for _, prefix := range prefixes {
		for i := range attachedPerProcess {
			ids = append(ids, endpointOfProcess(prefix, i).AllocID)
			if err := netns.Create(ids[len(ids)-1]); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Cleanup(func() {
		detachAtOnce(t, b, ids)
		for _, id := range ids {
			if err := netns.Remove(id); err != nil {
				t.Error(err)
			}
		}
	})
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	var agents sync.WaitGroup
	for n, prefix := range prefixes {
		random := rand.New(rand.NewPCG(uint64(seed), uint64(n)))
		agents.Go(func() {
			for kills := 4; ; kills-- {
				var stderr bytes.Buffer
				agent := exec.Command("/proc/self/exe")
				agent.Env, agent.Stderr = append(os.Environ(), attachingVariable+"="+prefix), &stderr
				if err := agent.Start(); err != nil {
					t.Error(err)
					return
				}
				if kills > 0 {
					time.Sleep(time.Duration(random.Int64N(int64(300 * time.Millisecond))))
					_ = agent.Process.Kill() // fails if the agent has connected all
				}
				if err := agent.Wait(); kills == 0 {
					if err != nil {
						t.Errorf("agent %s: %v\n%s", prefix, err, &stderr)
					}
					return
				}
			}
		})
	}
	agents.Wait()

	interfaces, err := listInterfaces()
	if err != nil {
		t.Fatal(err)
	}
	owner := map[netip.Addr]string{}
	for _, link := range interfaces {
		id, status := parseInterfaceAlias(link.Attrs().Alias)
		if id == "" {
			continue
		}
		for _, address := range []netip.Addr{status.IPv4Address, status.IPv6Address} {
			if other := owner[address]; other != "" {
				t.Errorf("%s and %s have the address %s", other, id, address)
			}
			owner[address] = id
		}
	}
	if len(owner) != 2*len(ids) {
		t.Errorf("%d addresses, want %d", len(owner), 2*len(ids))
	}
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	table := newPortForwardingTable(testConfig.Name)
	for _, family := range families {
		elements, err := c.GetSetElements(newPortMap(table, family, false))
		if err != nil {
			t.Fatal(err)
		}
		targets := map[string]bool{}
		for _, e := range elements {
			address, ok := netip.AddrFromSlice(e.Val[:len(e.Val)-4])
			if !ok || owner[address] != e.Comment {
				t.Errorf("a port of %s is forwarded to %s, which belongs to %s", e.Comment, address, owner[address])
			}
			targets[e.Comment] = true
		}
		if len(targets) != len(ids) || len(elements) != len(forwardedProtocols)*len(ids) {
			t.Errorf("%d ports of %d namespaces are forwarded, want two of each of %d", len(elements), len(targets), len(ids))
		}
	}
}

// addressOf returns an allocation's IPv4 address.
func addressOf(t *testing.T, allocID string) netip.Addr {
	t.Helper()
	interfaces, err := listInterfaces()
	if err != nil {
		t.Fatal(err)
	}
	return findStatusOfAlloc(interfaces, allocID).IPv4Address
}

// BenchmarkAttachMany connects the namespaces of allocations that start at once.
func BenchmarkAttachMany(b *testing.B) {
	for _, n := range []int{1, 50, 200} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			bridge := New(testConfig)
			attach(b, bridge, "other")
			for b.Loop() {
				b.StopTimer()
				endpoints := make([]Endpoint, n)
				for i := range endpoints {
					id := fmt.Sprint("bench-", i)
					if err := netns.Create(id); err != nil {
						b.Fatal(err)
					}
					endpoints[i] = Endpoint{AllocID: id, NamespacePath: netns.Path(id), Ports: []ForwardedPort{{Label: "http", HostPort: 20000 + i, NamespacePort: 8080}}}
				}
				b.StartTimer()
				var calls sync.WaitGroup
				for _, e := range endpoints {
					calls.Go(func() {
						if _, err := bridge.Attach(e); err != nil {
							b.Error(err)
						}
					})
				}
				calls.Wait()
				b.StopTimer()
				for _, e := range endpoints {
					calls.Go(func() {
						if err := errors.Join(bridge.Detach(e.AllocID), netns.Remove(e.AllocID)); err != nil {
							b.Error(err)
						}
					})
				}
				calls.Wait()
				b.StartTimer()
			}
			b.ReportMetric(float64(b.N*n)/b.Elapsed().Seconds(), "attaches/s")
		})
	}
}
