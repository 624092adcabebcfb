package membership

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

func TestEachOutcomeOfEachStepHasATransition(t *testing.T) {
	for s, byOutcome := range transitions {
		for o := accepted; o <= failed; o++ {
			transition, ok := byOutcome[o]
			if !ok {
				t.Errorf("step %v has no transition for outcome %d", s, o)
			}
			if _, ok := transitions[transition.next]; !ok {
				t.Errorf("step %v, outcome %d: the next step %v has no transitions", s, o, transition.next)
			}
		}
	}
}

// TestNoFailureRepeatsWithoutPause follows each outcome but success forever: failing calls must not follow each other without a
// pause.
func TestNoFailureRepeatsWithoutPause(t *testing.T) {
	for o := denied; o <= failed; o++ {
		for first := range transitions {
			next, withoutPause := first, 0
			for range 100 {
				transition := transitions[next][o]
				if withoutPause++; transition.pause != noPause {
					withoutPause = 0
				}
				if withoutPause > 2 {
					t.Errorf("outcome %d from step %v repeats without a pause", o, first)
					break
				}
				next = transition.next
			}
		}
	}
}

const (
	region = "global"
	nodeID = "5844aeb0-068a-191b-2651-846e6d798aa4"
)

// fakePool answers calls with a script's answers, and then with success. It records the calls.
type fakePool struct {
	start time.Time

	mu     sync.Mutex
	script []answer
	calls  []string
}

// answer is a server's reply: an error, or a response.
type answer struct {
	err      error
	response protocol.NodeUpdateResponse
}

func (p *fakePool) Call(_ context.Context, method string, request, response any) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	token := ""
	switch r := request.(type) {
	case *protocol.RegisterNodeRequest:
		token = r.AuthToken
	case *protocol.UpdateNodeStatusRequest:
		token = r.AuthToken
		if r.ForceIdentityRenewal {
			token += " renew"
		}
	case *protocol.EmitNodeEventsRequest:
		token = r.NodeEvents[nodeID][0].Message
	}
	if len(token) == 36 {
		token = "secret"
	}
	p.calls = append(p.calls, strings.TrimRight(fmt.Sprintf("%4.0fs %s %s", time.Since(p.start).Seconds(), method, token), " "))
	next := answer{response: protocol.NodeUpdateResponse{HeartbeatTTL: 20 * time.Second}}
	if len(p.script) > 0 {
		next, p.script = p.script[0], p.script[1:]
	}
	if out, ok := response.(*protocol.NodeUpdateResponse); ok && next.err == nil {
		*out = next.response
	}
	return next.err
}

func (p *fakePool) CallBlocking(ctx context.Context, _ time.Duration, method string, request, response any) error {
	return p.Call(ctx, method, request, response)
}

func (p *fakePool) SetServers([]*protocol.Server, int32) {}
func (p *fakePool) Addrs() []string                      { return []string{"10.0.0.1:4647"} }

// WaitRetry waits for the maximum, so that the times in transcripts are certain.
func (p *fakePool) WaitRetry(ctx context.Context, max time.Duration) error {
	return wait.Sleep(ctx, max)
}

func newStoreWithNode(t *testing.T) *store.Store {
	t.Helper()
	s, err := store.OpenMemory(store.Config{Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	putNode(t, s, func(*api.Node) {})
	return s
}

func putNode(t *testing.T, s *store.Store, change func(*api.Node)) {
	t.Helper()
	_, err := s.Update(t.Context(), func(tx *store.Txn) error {
		node := &api.Node{ID: nodeID, Name: "one", Datacenter: "dc1", NodePool: "default", Attributes: map[string]string{"kernel.name": "linux"}}
		if old := tx.Node(nil, nodeID); old != nil {
			copied := *old
			node = &copied
		}
		change(node)
		tx.PutNodeWithStorageEvents(node)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func granted(identity string, index uint64) answer {
	r := protocol.NodeUpdateResponse{HeartbeatTTL: 20 * time.Second}
	r.Index = index
	if identity != "" {
		r.SignedIdentity = &identity
	}
	return answer{response: r}
}

func refused(text string) answer { return answer{err: wire.ServerError(text)} }

func TestTranscripts(t *testing.T) {
	noServer := answer{err: errors.New("connection refused")}
	for _, test := range []struct {
		name       string
		registered bool // an earlier agent was registered
		script     []answer
		duration   time.Duration
		want       string
	}{
		{
			name: "first registration, and a heartbeat before each time is over", script: []answer{granted("jwt1", 8), granted("", 9)}, duration: 40 * time.Second,
			want: `
   0s Node.Register intro
   0s Node.UpdateStatus jwt1
  18s Node.UpdateStatus jwt1
  36s Node.UpdateStatus jwt1`,
		},
		{
			name: "identity is renewed by a heartbeat", script: []answer{granted("jwt1", 8), granted("jwt2", 9)}, duration: 20 * time.Second,
			want: `
   0s Node.Register intro
   0s Node.UpdateStatus jwt1
  18s Node.UpdateStatus jwt2`,
		},
		{
			name: "servers are away", script: []answer{noServer, noServer, noServer, granted("jwt1", 8)}, duration: 13 * time.Second,
			want: `
   0s Node.Register intro
   2s Node.Register intro
   6s Node.Register intro
  12s Node.Register intro
  12s Node.UpdateStatus jwt1`,
		},
		{
			name: "introduction is refused until the operator has made a token", script: []answer{refused("Permission denied"), granted("jwt1", 8)}, duration: 31 * time.Second,
			want: `
   0s Node.Register intro
  30s Node.Register intro
  30s Node.UpdateStatus jwt1`,
		},
		{
			name: "node is purged", registered: true, script: []answer{granted("", 8), granted("", 0), refused("node not found"), granted("jwt1", 8)}, duration: 19 * time.Second,
			want: `
   0s Node.Register jwt0
   0s Node.UpdateStatus jwt0
  18s Node.UpdateStatus jwt0
  18s Node.Register jwt0
  18s Node.UpdateStatus jwt1`,
		},
		{
			name: "keys of the cluster are lost", registered: true, script: []answer{refused("Permission denied"), granted("jwt1", 8)}, duration: 3 * time.Second,
			want: `
   0s Node.Register jwt0
   2s Node.Register intro
   2s Node.UpdateStatus jwt1`,
		},
		{
			name: "identity has expired", registered: true, script: []answer{granted("", 0), refused("Permission denied"), granted("jwt1", 0)}, duration: 19 * time.Second,
			want: `
   0s Node.Register jwt0
   0s Node.UpdateStatus jwt0
   0s Node.UpdateStatus secret
  18s Node.UpdateStatus jwt1`,
		},
		{
			name: "another machine has the id", registered: true, script: []answer{refused("node secret ID does not match. Not registering node.")}, duration: 29 * time.Second,
			want: `
   0s Node.Register jwt0`,
		},
		{
			name: "heartbeats fail until after the servers have given up", registered: true, script: []answer{granted("", 0), granted("", 0), noServer, noServer, noServer, noServer, noServer, noServer, noServer, noServer}, duration: 70 * time.Second,
			want: `
   0s Node.Register jwt0
   0s Node.UpdateStatus jwt0
  18s Node.UpdateStatus jwt0
  20s Node.UpdateStatus jwt0
  22s Node.UpdateStatus jwt0
  24s Node.UpdateStatus jwt0
  26s Node.UpdateStatus jwt0
  28s Node.UpdateStatus jwt0
  30s Node.UpdateStatus jwt0
  44s Node.UpdateStatus jwt0
  60s Node.UpdateStatus jwt0`,
		},
		{
			name: "response that no server sends", registered: true, script: []answer{granted("", 0), {response: protocol.NodeUpdateResponse{HeartbeatTTL: -1}}, granted("", 0)}, duration: 3 * time.Second,
			want: `
   0s Node.Register jwt0
   0s Node.UpdateStatus jwt0
   2s Node.UpdateStatus jwt0`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStoreWithNode(t)
				if test.registered {
					putMembership(t, s, state.ClusterMembership{Region: region, NodeSecret: "65890b40-ad34-158c-5f7d-d8cbd280c626", Identity: "jwt0", Registered: true, LastContact: time.Now()})
				}
				pool := &fakePool{start: time.Now(), script: test.script}
				runMember(t, s, pool, func(*Member) { time.Sleep(test.duration) })
				if got, want := "\n"+strings.Join(pool.calls, "\n"), test.want; got != want {
					t.Errorf("calls:%s\nwant:%s", got, want)
				}
			})
		})
	}
}

// Each response to a heartbeat claims that the next one is due at once.
func TestServersCannotCauseHeartbeatsWithoutPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool := &fakePool{start: time.Now()}
		for range 1000 {
			pool.script = append(pool.script, answer{})
		}
		runMember(t, newStoreWithNode(t), pool, func(*Member) { time.Sleep(time.Second) })
		if got, most := len(pool.calls), int(2+time.Second/minBeatInterval); got > most {
			t.Errorf("%d calls in a second, want at most %d", got, most)
		}
	})
}

func TestResponsesThatNoServerSendsAreRejected(t *testing.T) {
	many := make([]*protocol.Server, maxServers+1)
	for i := range many {
		many[i] = &protocol.Server{RPCAdvertiseAddr: "10.0.0.1:4647"}
	}
	for field, r := range map[string]protocol.NodeUpdateResponse{
		"HeartbeatTTL":   {HeartbeatTTL: -time.Second},
		"Servers has":    {Servers: many},
		"Servers[0]":     {Servers: []*protocol.Server{{RPCAdvertiseAddr: strings.Repeat("a", maxAddrBytes+1)}}},
		"Servers[1]":     {Servers: []*protocol.Server{many[0], nil}},
		"SignedIdentity": {SignedIdentity: new(strings.Repeat("a", maxIdentityBytes+1))},
	} {
		if err := checkResponse(&r); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: got %v", field, err)
		}
	}
	if err := checkResponse(&protocol.NodeUpdateResponse{HeartbeatTTL: time.Second, Servers: many[:maxServers], SignedIdentity: new("jwt")}); err != nil {
		t.Error(err)
	}
}

func putMembership(t *testing.T, s *store.Store, m state.ClusterMembership) {
	t.Helper()
	if _, err := s.Update(t.Context(), func(tx *store.Txn) error { tx.PutAgentRecord(state.ClusterMembershipName, m); return nil }); err != nil {
		t.Fatal(err)
	}
}

// runMember runs a Member while during runs.
func runMember(t *testing.T, s nodeStore, pool *fakePool, during func(*Member)) {
	t.Helper()
	m, err := New(t.Context(), Config{Region: region, NodeID: nodeID, IntroductionToken: "intro", Pool: pool, Store: s, Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { m.Run(ctx, nil) })
	during(m)
	cancel()
	running.Wait()
}

func TestChangesOfTheNodeAreRegisteredTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStoreWithNode(t)
		pool := &fakePool{start: time.Now(), script: []answer{granted("jwt1", 8)}}
		runMember(t, s, pool, func(m *Member) {
			time.Sleep(5 * time.Second)
			putNode(t, s, func(n *api.Node) { n.Meta = map[string]string{"a": "1"} })
			time.Sleep(time.Second)
			putNode(t, s, func(n *api.Node) { n.Meta = map[string]string{"a": "2"} })
			time.Sleep(5 * time.Second)
			putNode(t, s, func(n *api.Node) { n.Drain = !n.Drain }) // servers do not get this field
			putNode(t, s, func(n *api.Node) {
				n.Events = append(n.Events, &api.NodeEvent{Message: "driver exec is unhealthy", Subsystem: "Driver", CreateIndex: s.Snapshot().Index() + 1})
			})
			time.Sleep(time.Second)
			m.RenewIdentity()
			time.Sleep(time.Second)
		})
		want := `
   0s Node.Register intro
   0s Node.UpdateStatus jwt1
   7s Node.Register jwt1
   7s Node.UpdateStatus jwt1
  11s Node.EmitEvents driver exec is unhealthy
  12s Node.UpdateStatus jwt1 renew`
		if got := "\n" + strings.Join(pool.calls, "\n"); got != want {
			t.Errorf("calls:%s\nwant:%s", got, want)
		}
	})
}

// fullStore is a store that cannot be written while it is full.
type fullStore struct {
	*store.Store
	isFull atomic.Bool
}

func (s *fullStore) Update(ctx context.Context, fn func(*store.Txn) error) (uint64, error) {
	if s.isFull.Load() {
		return 0, errors.New("no space left on device")
	}
	return s.Store.Update(ctx, fn)
}

// A node with a full disk has contact with the servers, and must not stop allocations as if it had none.
func TestFullDiskIsNoLossOfContact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fullStore{Store: newStoreWithNode(t)}
		pool := &fakePool{start: time.Now(), script: []answer{granted("jwt1", 8)}}
		for range 1000 {
			pool.script = append(pool.script, answer{response: protocol.NodeUpdateResponse{HeartbeatTTL: 8 * time.Second}})
		}
		runMember(t, s, pool, func(m *Member) {
			<-m.Registered()
			s.isFull.Store(true)
			time.Sleep(5 * time.Minute)
			if alone := time.Since(m.LastContact()); alone > time.Minute {
				t.Errorf("the last contact was %v ago", alone)
			}
		})
	})
}

func TestCredentialsSurviveTheAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStoreWithNode(t)
		var secret string
		pool := &fakePool{start: time.Now(), script: []answer{granted("jwt1", 8)}}
		runMember(t, s, pool, func(m *Member) { <-m.Registered(); secret = m.Secret() })
		runMember(t, s, &fakePool{start: time.Now()}, func(m *Member) {
			select {
			case <-m.Registered():
			default:
				t.Error("the node does not count as registered")
			}
			if m.Token() != "jwt1" || m.Secret() != secret || secret == "" {
				t.Errorf("token %q, secret %q, want jwt1 and %q", m.Token(), m.Secret(), secret)
			}
		})
		if got := KnownServers(s); len(got) != 1 || got[0] != "10.0.0.1:4647" {
			t.Errorf("known servers %q", got)
		}
		_, err := New(t.Context(), Config{Region: "other", NodeID: nodeID, Store: s})
		if err == nil || !strings.Contains(err.Error(), `write region = "global"`) {
			t.Errorf("with another region: got error %v", err)
		}
	})
}
