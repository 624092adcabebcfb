package workload

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/builtinhooks"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

func newIdentities(pool serverPool, s *store.Store) *Identities {
	return NewIdentities(IdentitiesConfig{
		Region: "global", Pool: pool, NodeToken: func() string { return nodeToken }, Store: s,
		Records: identity.NewIssuer(identity.Config{Store: s, Region: "global"}), Logger: hclog.NewNullLogger(),
	})
}

// allocWithIdentities returns the test allocation with all kinds of identities.
func allocWithIdentities() *api.Allocation {
	group := "g"
	return &api.Allocation{
		ID: allocID, Namespace: "prod", JobID: "web", TaskGroup: group,
		Job: &api.Job{TaskGroups: []*api.TaskGroup{{Name: &group, Tasks: []*api.Task{
			{Name: "t", Identity: &api.WorkloadIdentity{Name: "default", File: true}, Identities: []*api.WorkloadIdentity{{Name: "a", File: true, TTL: time.Hour}, {Name: "unused"}}},
			{Name: "u", Identities: []*api.WorkloadIdentity{{Name: "b", Env: true}}},
		}}}},
	}
}

// signer answers Alloc.SignIdentities.
type signer struct {
	mu       sync.Mutex
	requests []*protocol.SignIdentitiesRequest
	err      error
	rejects  map[string]string // reason by identity name
	ttl      time.Duration     // identity "a" has this TTL
}

func (s *signer) answer(_ context.Context, _ string, request, response any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, out := request.(*protocol.SignIdentitiesRequest), response.(*protocol.SignIdentitiesResponse)
	s.requests = append(s.requests, r)
	if s.err != nil {
		return s.err
	}
	for _, id := range r.Identities {
		if reason := s.rejects[id.IdentityName]; reason != "" {
			out.Rejections = append(out.Rejections, &protocol.IdentityRejection{IdentityRequest: *id, Reason: reason})
			continue
		}
		signed := &protocol.SignedIdentity{IdentityRequest: *id, JWT: "jwt of " + id.WorkloadIdentifier + "/" + id.IdentityName}
		if id.IdentityName == "a" {
			signed.Expiration = time.Now().Add(s.ttl)
		}
		out.SignedIdentities = append(out.SignedIdentities, signed)
	}
	return nil
}

func (s *signer) setErr(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func TestOneCallSignsIdentitiesOfAlloc(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &signer{ttl: time.Hour}
		i := newIdentities(&fakePool{answer: s.answer}, newStore(t, signedTasks()))
		if err := i.IssueAllocTokens(t.Context(), allocWithIdentities()); err != nil {
			t.Fatal(err)
		}
		want := &protocol.SignIdentitiesRequest{
			Identities: []*protocol.IdentityRequest{
				{AllocID: allocID, WorkloadIdentifier: "t", IdentityName: "a"}, {AllocID: allocID, WorkloadIdentifier: "u", IdentityName: "b"},
			},
			ReadOptions: protocol.ReadOptions{Region: "global", AuthToken: nodeToken, MinQueryIndex: 13, MaxQueryTime: time.Minute, AllowStale: true},
		}
		if len(s.requests) != 1 || !reflect.DeepEqual(s.requests[0], want) {
			t.Errorf("requests %+v, want one: %+v", s.requests, want)
		}
		a, b := i.StoredTokensByIdentity(allocID, "t")["a"], i.StoredTokensByIdentity(allocID, "u")["b"]
		if a == nil || b == nil || a.JWT != "jwt of t/a" || b.JWT != "jwt of u/b" {
			t.Fatalf("stored tokens %v and %v", a, b)
		}
		if delay, renewable := i.RenewalDelay(a); !renewable || delay < 30*time.Minute || delay > 33*time.Minute {
			t.Errorf("renewal of a token of an hour after %v", delay)
		}
		if _, renewable := i.RenewalDelay(b); renewable || !b.ExpiresAt.IsZero() {
			t.Errorf("a token without a TTL is renewed, or expires at %v", b.ExpiresAt)
		}
		if n := len(i.StoredTokensByIdentity(allocID, "t")); n != 1 {
			t.Errorf("%d tokens of the task, want the one that it gets as a file", n)
		}
	})
}

func TestDefaultIdentityIsThatOfAlloc(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool := &fakePool{}
		i := newIdentities(pool, newStore(t, state.ClusterAlloc{IdentityByTask: map[string]string{"t": taskJWT("t")}}))
		token, err := i.IssueToken(t.Context(), workloadOf("t"), &api.WorkloadIdentity{Name: "default"})
		if err != nil || token.JWT != taskJWT("t") {
			t.Errorf("token %v, error %v", token, err)
		}
		if _, err := i.IssueToken(t.Context(), workloadOf("u"), &api.WorkloadIdentity{Name: "default"}); !errors.Is(err, builtinhooks.ErrIdentityRejected) {
			t.Errorf("error %v for a task without an identity", err)
		}
		if n := pool.callCount(); n > 0 {
			t.Errorf("%d calls for the default identity", n)
		}
	})
}

func TestFailureToSign(t *testing.T) {
	rejection := map[string]string{"b": "identity not found"}
	for _, c := range []struct {
		name     string
		err      error
		rejects  map[string]string
		rejected bool
		want     string
	}{
		{"rejected", nil, rejection, true, `identity "b" of task "u": identity not found`},
		{"servers before 1.7", wire.ServerError("rpc: can't find method Alloc.SignIdentities"), nil, true, "Nomad 1.7 or later"},
		{"refused", wire.ServerError("Permission denied"), nil, false, "Permission denied"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &signer{err: c.err, rejects: c.rejects, ttl: time.Hour}
				i := newIdentities(&fakePool{answer: s.answer}, newStore(t, signedTasks()))
				err := i.IssueAllocTokens(t.Context(), allocWithIdentities())
				if err == nil || errors.Is(err, builtinhooks.ErrIdentityRejected) != c.rejected || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v, want %q, rejected: %v", err, c.want, c.rejected)
				}
				if stored := i.StoredTokensByIdentity(allocID, "t"); len(stored) > 0 {
					t.Errorf("stored %v", stored)
				}
			})
		})
	}
}

func TestAllocWaitsForServersToSign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &signer{err: errUnreachable, ttl: time.Hour}
		i := newIdentities(&fakePool{answer: s.answer}, newStore(t, signedTasks()))
		if _, err := i.IssueToken(t.Context(), workloadOf("t"), &api.WorkloadIdentity{Name: "a"}); !errors.Is(err, builtinhooks.ErrIssuerUnreachable) {
			t.Errorf("error %v of a renewal, want ErrIssuerUnreachable", err)
		}
		time.AfterFunc(time.Hour, func() { s.setErr(nil) })
		if err := i.IssueAllocTokens(t.Context(), allocWithIdentities()); err != nil {
			t.Error(err)
		}
		s.setErr(wire.ServerError("Permission denied")) // until a heartbeat has renewed the node's identity
		time.AfterFunc(time.Second, func() { s.setErr(nil) })
		if err := i.IssueAllocTokens(t.Context(), allocWithIdentities()); err != nil {
			t.Error(err)
		}
		s.setErr(wire.ServerError("No cluster leader"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := i.IssueAllocTokens(ctx, allocWithIdentities()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v, want that of the context", err)
		}
	})
}

// With a clock ahead of the servers', a new token seems to have expired. It must not be renewed all the time.
func TestRenewalWithWrongClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &signer{ttl: -time.Hour}
		i := newIdentities(&fakePool{answer: s.answer}, newStore(t, signedTasks()))
		token, err := i.IssueToken(t.Context(), workloadOf("t"), &api.WorkloadIdentity{Name: "a"})
		if err != nil {
			t.Fatal(err)
		}
		if delay, renewable := i.RenewalDelay(token); !renewable || delay < minRenewalDelay-time.Second {
			t.Errorf("renewal after %v", delay)
		}
	})
}
