package registrations

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

const nodeID = "5844aeb0-068a-191b-2651-846e6d798aa4"

// fakeServers are the servers of a cluster with one node.
type fakeServers struct {
	mu            sync.Mutex
	services      map[string]api.ServiceRegistration
	accessControl bool
	isDown        bool
	answerLost    bool            // the next call is executed, and its answer is lost
	tokenExpired  bool            // until the next heartbeat
	refused       map[string]bool // service names
	upserts       [][]string      // IDs in each call
	deletes       []string
	lastBeat      time.Time
}

func newFakeServers() *fakeServers {
	return &fakeServers{services: make(map[string]api.ServiceRegistration), refused: make(map[string]bool)}
}

var registered = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

func (f *fakeServers) Registered() <-chan struct{} { return registered }
func (f *fakeServers) Token() string               { return "jwt" }

func (f *fakeServers) Beat() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lastBeat, f.tokenExpired = time.Now(), false
}

func (f *fakeServers) LastContact() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lastBeat
}

func (f *fakeServers) Call(ctx context.Context, method string, request, _ any) error {
	select {
	case <-time.After(time.Millisecond):
	case <-ctx.Done():
		return ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.isDown {
		return errors.New("connection reset")
	}
	if f.tokenExpired {
		return wire.ServerError("Permission denied")
	}
	err := f.execute(request)
	if f.answerLost {
		f.answerLost = false
		return errors.New("EOF")
	}
	return err
}

func (f *fakeServers) execute(request any) error {
	switch r := request.(type) {
	case *protocol.UpsertServicesRequest:
		var ids []string
		for _, s := range r.Services {
			ids = append(ids, s.ID)
			if s.NodeID != nodeID || r.AuthToken != "jwt" || r.Region != "global" || s.ModifyIndex != 0 || f.refused[s.ServiceName] {
				f.upserts = append(f.upserts, ids)
				return wire.ServerError("rpc error: service refused")
			}
		}
		f.upserts = append(f.upserts, ids)
		for _, s := range r.Services {
			f.services[s.ID] = *s
		}
	case *protocol.DeleteServiceRequest:
		f.deletes = append(f.deletes, r.ID)
		s, known := f.services[r.ID]
		if known = known && s.Namespace == r.Namespace; !known && f.accessControl {
			return wire.ServerError("Permission denied")
		} else if !known {
			return wire.ServerError("service registration not found")
		}
		delete(f.services, r.ID)
	default:
		return fmt.Errorf("unexpected request %T", request)
	}
	return nil
}

// calls returns the IDs in each call the servers have executed.
func (f *fakeServers) calls() (upserts [][]string, deletes []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.upserts), slices.Clone(f.deletes)
}

// do changes the servers.
func (f *fakeServers) do(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// node is a node with one agent after another.
type node struct {
	t       *testing.T
	servers *fakeServers
	store   *store.Store
	refused []string // reports of onRefused; guarded by servers.mu

	*Registrations
	stop func() // ends the agent
}

// startNode starts a node in a synctest bubble. It ends when the test ends.
func startNode(t *testing.T, f *fakeServers) *node {
	t.Helper()
	s, err := store.OpenMemory(store.Config{Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, servers: f, store: s}
	n.startAgent()
	t.Cleanup(func() {
		n.stop()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

func (n *node) startAgent() {
	n.Registrations = New(Config{
		Region: "global", NodeID: nodeID, Pool: n.servers, Member: n.servers, Store: n.store, Logger: hclog.NewNullLogger(),
	})
	onRefused := func(s *api.ServiceRegistration, reason error) {
		n.servers.do(func() { n.refused = append(n.refused, s.AllocID+" "+s.ServiceName+": "+reason.Error()) })
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	r := n.Registrations
	running.Go(func() { r.Run(ctx, onRefused) })
	n.stop = func() { cancel(); running.Wait() }
}

func (n *node) reports() []string {
	n.servers.mu.Lock()
	defer n.servers.mu.Unlock()
	return slices.Clone(n.refused)
}

func service(alloc, name string, tags ...string) *api.ServiceRegistration {
	return &api.ServiceRegistration{
		ID: "_nomad-task-" + alloc + "-" + name, ServiceName: name, Namespace: "prod", NodeID: nodeID, Datacenter: "dc1", JobID: "web",
		AllocID: alloc, Tags: tags, Address: "192.0.2.2", Port: 80,
	}
}

func (n *node) change(put, remove []*api.ServiceRegistration) {
	n.t.Helper()
	start := time.Now()
	if err := n.PutAndRemoveServices(put, remove); err != nil {
		n.t.Fatal(err)
	}
	if d := time.Since(start); d > 0 {
		n.t.Errorf("a change has waited for %v", d)
	}
}

// checkServers checks that the servers have exactly the given services.
func (n *node) checkServers(want ...*api.ServiceRegistration) {
	n.t.Helper()
	n.servers.mu.Lock()
	defer n.servers.mu.Unlock()
	expected := make(map[string]api.ServiceRegistration)
	for _, s := range want {
		expected[s.ID] = *withoutIndexes(s)
	}
	if !reflect.DeepEqual(n.servers.services, expected) {
		n.t.Errorf("the servers have %v, want %v", n.servers.services, expected)
	}
}

// checkNothingLeft checks that the state has no removal the servers have executed.
func (n *node) checkNothingLeft() {
	n.t.Helper()
	if left := n.store.Snapshot().AgentRecordNames(state.ClusterServiceRemovalPrefix); len(left) > 0 {
		n.t.Errorf("records left: %v", left)
	}
}

func TestServersGetChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServers()
		n := startNode(t, f)
		a, b := service("a", "web"), service("b", "db", "x")
		n.change([]*api.ServiceRegistration{a, b}, nil)
		time.Sleep(100 * time.Millisecond)
		n.checkServers(a, b)
		if upserts, _ := f.calls(); !reflect.DeepEqual(upserts, [][]string{{a.ID, b.ID}}) {
			t.Errorf("calls %v, want one for both services", upserts)
		}
		changed := service("b", "db", "y")
		n.change([]*api.ServiceRegistration{changed}, []*api.ServiceRegistration{a})
		time.Sleep(100 * time.Millisecond)
		n.checkServers(changed)
		n.checkNothingLeft()
		time.Sleep(24 * time.Hour)
		if upserts, deletes := f.calls(); len(upserts) != 2 || len(deletes) != 1 {
			t.Errorf("%d and %d calls without further changes", len(upserts), len(deletes))
		}
		// Removing an ended allocation's records removes its services.
		if _, err := n.store.Update(t.Context(), func(tx *store.Txn) error { tx.DeleteRunnerRecordsAndServices("b"); return nil }); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		n.checkServers()
	})
}

func TestChangesWhileServersAreAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServers()
		n := startNode(t, f)
		a, b := service("a", "web"), service("b", "db")
		n.change([]*api.ServiceRegistration{a}, nil)
		time.Sleep(time.Second)
		f.do(func() { f.isDown = true })
		n.change([]*api.ServiceRegistration{b}, []*api.ServiceRegistration{a})
		time.Sleep(time.Hour)
		f.do(func() { f.isDown = false })
		time.Sleep(maxUnreachableDelay + time.Second)
		n.checkServers(b)
		n.checkNothingLeft()
	})
}

// The next agent sends everything, including the earlier agent's removals.
func TestNextAgentSendsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServers()
		n := startNode(t, f)
		a, b := service("a", "web"), service("b", "db")
		n.change([]*api.ServiceRegistration{a, b}, nil)
		time.Sleep(time.Second)
		f.do(func() { f.isDown = true })
		n.change(nil, []*api.ServiceRegistration{a})
		time.Sleep(time.Minute)
		n.stop()
		f.do(func() { f.isDown = false; delete(f.services, b.ID) })
		n.startAgent()
		time.Sleep(time.Second)
		n.checkServers(b)
		n.checkNothingLeft()
	})
}

func TestResend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServers()
		n := startNode(t, f)
		a := service("a", "web")
		n.change([]*api.ServiceRegistration{a}, nil)
		time.Sleep(time.Second)
		f.do(func() { clear(f.services) }) // the servers had given up the node
		n.Resend()
		n.Resend()
		time.Sleep(time.Second)
		n.checkServers(a)
	})
}

func TestRefusedServiceStopsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServers()
		f.refused["bad"] = true
		n := startNode(t, f)
		bad, a, c := service("b", "bad"), service("a", "web"), service("c", "db")
		n.change([]*api.ServiceRegistration{bad, a, c}, nil)
		time.Sleep(time.Second)
		n.checkServers(a, c)
		n.change(nil, []*api.ServiceRegistration{a})
		time.Sleep(100 * time.Millisecond) // less than the pause after a refusal
		n.checkServers(c)
		time.Sleep(time.Hour)
		if want := []string{"b bad: rpc error: service refused"}; !slices.Equal(n.reports(), want) {
			t.Errorf("reports %q, want %q", n.reports(), want)
		}
		if upserts, _ := f.calls(); len(upserts) > 200 {
			t.Errorf("%d calls in an hour", len(upserts))
		}
		f.do(func() { f.refused["bad"] = false })
		time.Sleep(2 * maxRefusedDelay)
		n.checkServers(bad, c)
	})
}

// Servers with access control deny the removal of unknown registrations, and everything to a node with an expired identity.
func TestDeniedRemoval(t *testing.T) {
	for _, expired := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeServers()
			f.accessControl = true
			n := startNode(t, f)
			a := service("a", "web")
			f.do(func() { f.tokenExpired = expired })
			n.change([]*api.ServiceRegistration{a}, nil)
			time.Sleep(10 * time.Second)
			n.checkServers(a)
			if reports := n.reports(); len(reports) > 0 {
				t.Errorf("reports %q of a denial that a heartbeat has ended", reports)
			}
			if expired {
				f.do(func() { f.tokenExpired = true })
			} else {
				f.do(func() { clear(f.services) })
			}
			n.change(nil, []*api.ServiceRegistration{a})
			time.Sleep(time.Minute)
			n.checkServers()
			n.checkNothingLeft()
			if _, deletes := f.calls(); len(deletes) > 2 {
				t.Errorf("%d calls", len(deletes))
			}
		})
	}
}

// The servers have removed a service, their answer is lost, and the service is registered again as it was.
func TestServiceIsRegisteredAgainAfterLostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServers()
		n := startNode(t, f)
		a := service("a", "web")
		n.change([]*api.ServiceRegistration{a}, nil)
		time.Sleep(time.Second)
		f.do(func() { f.answerLost = true })
		n.change(nil, []*api.ServiceRegistration{a})
		time.Sleep(2 * time.Millisecond)
		n.checkServers()
		n.change([]*api.ServiceRegistration{service("a", "web")}, nil)
		time.Sleep(time.Minute)
		n.checkServers(a)
	})
}

// Whatever fails in between, the servers finally have the same as the store.
func TestServersFollowStore(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 0))
				f := newFakeServers()
				f.accessControl = random.IntN(2) == 0
				n := startNode(t, f)
				have := make(map[string]*api.ServiceRegistration)
				for range 400 {
					switch random.IntN(12) {
					case 0:
						f.do(func() { f.isDown = !f.isDown })
					case 1:
						f.do(func() { f.answerLost = true })
					case 2:
						if time.Since(f.LastContact()) > time.Minute {
							f.do(func() { f.tokenExpired = true })
						}
					case 3:
						n.stop()
						n.startAgent()
					case 4:
						f.do(func() { clear(f.services) })
						n.Resend()
					default:
						s := service(fmt.Sprint(random.IntN(4)), fmt.Sprint("s", random.IntN(3)), fmt.Sprint(random.IntN(3)))
						if have[s.ID] != nil && random.IntN(2) == 0 {
							n.change(nil, []*api.ServiceRegistration{have[s.ID]})
							delete(have, s.ID)
						} else {
							n.change([]*api.ServiceRegistration{s}, nil)
							have[s.ID] = s
						}
					}
					time.Sleep(time.Duration(random.IntN(2000)) * time.Millisecond)
				}
				f.do(func() { f.isDown, f.answerLost, f.tokenExpired = false, false, false })
				time.Sleep(10 * time.Minute)
				n.checkServers(slices.Collect(maps.Values(have))...)
				n.checkNothingLeft()
			})
		})
	}
}
