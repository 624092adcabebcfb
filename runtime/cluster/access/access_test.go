package access

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-lite/nomad-lite/runtime/acl"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
)

// fakeServers answers calls, and records them.
type fakeServers struct {
	identities    map[string]*protocol.ACLIdentity
	policies      map[string]*protocol.ACLPolicy
	roles         map[string]*protocol.ACLRole
	claimPolicies map[string]*protocol.ACLPolicy
	err           error

	mu    sync.Mutex
	calls []string
}

func (f *fakeServers) Call(_ context.Context, method string, request, response any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var options protocol.ReadOptions
	switch r := request.(type) {
	case *protocol.WhoAmIRequest:
		options = r.ReadOptions
		f.calls = append(f.calls, method)
	case *protocol.GetPoliciesRequest:
		options = r.ReadOptions
		f.calls = append(f.calls, method+" "+strings.Join(r.Names, ","))
	case *protocol.GetRolesRequest:
		options = r.ReadOptions
		f.calls = append(f.calls, method+" "+strings.Join(r.ACLRoleIDs, ","))
	case *protocol.GetClaimedPoliciesRequest:
		options = r.ReadOptions
		f.calls = append(f.calls, method)
	}
	if options.Region != "global" || !options.AllowStale {
		return fmt.Errorf("options %+v", options)
	}
	if f.err != nil {
		return f.err
	}
	switch r := response.(type) {
	case *protocol.WhoAmIResponse:
		if r.Identity = f.identities[options.AuthToken]; r.Identity == nil {
			return wire.ServerError("ACL token not found")
		}
	case *protocol.GetPoliciesResponse:
		r.Policies = f.policies
	case *protocol.GetRolesResponse:
		r.ACLRoles = f.roles
	case *protocol.GetClaimedPoliciesResponse:
		r.Policies = f.claimPolicies
	}
	return nil
}

func (f *fakeServers) takeCalls() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := f.calls
	f.calls = nil
	return calls
}

func policy(text string) *protocol.ACLPolicy { return &protocol.ACLPolicy{Rules: text} }

func user(policies ...string) *protocol.ACLIdentity {
	return &protocol.ACLIdentity{ACLToken: &protocol.ACLToken{Type: "client", Policies: policies}}
}

func newFakeServers() *fakeServers {
	expired := user("exec")
	expired.ACLToken.ExpirationTime = new(time.Now().Add(-time.Second))
	withRole := user()
	withRole.ACLToken.Roles = []*protocol.ACLRoleLink{{ID: "r1"}, nil, {ID: "gone"}}
	return &fakeServers{
		identities: map[string]*protocol.ACLIdentity{
			"root": {ACLToken: &protocol.ACLToken{Type: "management"}}, "exec": user("exec"), "write": user("write"), "gone": user("gone"),
			"expired": expired, "role": withRole, "workload": {Claims: map[string]any{"nomad_task": "t"}}, "nothing": {},
		},
		policies: map[string]*protocol.ACLPolicy{
			"exec":  policy(`namespace "prod" { capabilities = ["alloc-exec", "alloc-node-exec"] }`),
			"write": policy(`namespace "prod" { policy = "write" }`),
		},
		roles:         map[string]*protocol.ACLRole{"r1": {ID: "r1", Policies: []*protocol.ACLRolePolicy{{Name: "exec"}, nil}}},
		claimPolicies: map[string]*protocol.ACLPolicy{"none": nil, "all": policy(`namespace "*" { capabilities = ["alloc-node-exec"] }`)},
	}
}

func TestAllocNodeExecByKindOfToken(t *testing.T) {
	for _, test := range []struct {
		token, namespace string
		want             bool
		wantCalls        string
	}{
		{"root", "prod", true, "ACL.WhoAmI"},
		{"exec", "prod", true, "ACL.WhoAmI; ACL.GetPolicies exec"},
		{"exec", "dev", false, "ACL.WhoAmI; ACL.GetPolicies exec"},
		{"write", "prod", false, "ACL.WhoAmI; ACL.GetPolicies write"}, // "write" does not include the capability
		{"gone", "prod", false, "ACL.WhoAmI; ACL.GetPolicies gone"},
		{"expired", "prod", false, "ACL.WhoAmI"},
		{"role", "prod", true, "ACL.WhoAmI; ACL.GetRolesByID gone,r1; ACL.GetPolicies exec"},
		{"workload", "prod", true, "ACL.WhoAmI; ACL.GetClaimPolicies"},
		{"nothing", "prod", false, "ACL.WhoAmI"},
		{"unknown", "prod", false, "ACL.WhoAmI"},
	} {
		servers := newFakeServers()
		err := New(servers, "global").AllocNodeExec(t.Context(), test.token, test.namespace)
		if (err == nil) != test.want || err != nil && !errors.Is(err, acl.ErrPermissionDenied) {
			t.Errorf("%s in %s: got %v, want %v", test.token, test.namespace, err, test.want)
		}
		if got := strings.Join(servers.takeCalls(), "; "); got != test.wantCalls {
			t.Errorf("%s in %s: calls %s, want %s", test.token, test.namespace, got, test.wantCalls)
		}
	}
}

func TestAnswersAreKeptForALimitedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := newFakeServers()
		c := New(servers, "global")
		check := func(wantCalls int, want bool) {
			t.Helper()
			if err := c.AllocNodeExec(t.Context(), "exec", "prod"); (err == nil) != want {
				t.Errorf("got %v, want %v", err, want)
			}
			if calls := servers.takeCalls(); len(calls) != wantCalls {
				t.Errorf("calls %v, want %d", calls, wantCalls)
			}
		}
		check(2, true)
		time.Sleep(maxAnswerAge - time.Nanosecond)
		check(0, true)
		time.Sleep(time.Nanosecond)
		check(2, true)

		time.Sleep(maxAnswerAge)
		servers.err = errors.New("No cluster leader")
		check(2, true) // old answers
		servers.err = wire.ServerError("ACL token not found")
		check(1, false)

		servers.err = nil
		check(2, true)
		servers.policies = nil
		time.Sleep(maxAnswerAge)
		check(2, false) // the policy was deleted
	})
}

func TestCachedTokenExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := newFakeServers()
		servers.identities["exec"].ACLToken.ExpirationTime = new(time.Now().Add(time.Second))
		c := New(servers, "global")
		if err := c.AllocNodeExec(t.Context(), "exec", "prod"); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if err := c.AllocNodeExec(t.Context(), "exec", "prod"); !errors.Is(err, acl.ErrPermissionDenied) {
			t.Errorf("got %v", err)
		}
	})
}

func TestFailureWithoutOldAnswerIsARefusal(t *testing.T) {
	servers := newFakeServers()
	servers.err = errors.New("No cluster leader")
	err := New(servers, "global").AllocNodeExec(t.Context(), "root", "prod")
	if !errors.Is(err, acl.ErrPermissionDenied) || err.Error() != "Permission denied: read the policies of the token: No cluster leader" {
		t.Errorf("got %v", err)
	}
}

func TestCacheDropsTheOldestAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c cache[int]
		for i := range maxCacheEntries + 10 {
			if _, err := c.get([]string{fmt.Sprint(i)}, func([]string) (map[string]int, error) { return nil, nil }); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Microsecond)
		}
		if _, found := c.answers["9"]; len(c.answers) != maxCacheEntries || found {
			t.Errorf("%d answers, the oldest is there: %v", len(c.answers), found)
		}
		if _, found := c.answers["10"]; !found {
			t.Error("a newer answer was dropped")
		}
	})
}

func TestPolicyThatCannotBeReadRefuses(t *testing.T) {
	servers := newFakeServers()
	servers.policies["write"] = policy(`namespace {`)
	servers.policies["write"].Name = "write"
	err := New(servers, "global").Namespace(t.Context(), "write", "prod", acl.ReadJob)
	if !errors.Is(err, acl.ErrPermissionDenied) || !strings.HasPrefix(err.Error(), `Permission denied: read the policies of the token: policy "write": Failed to parse ACL Policy`) {
		t.Errorf("got %v", err)
	}
}

func TestRightsOfRequestsToTheNode(t *testing.T) {
	text := func(rules string) map[string]*protocol.ACLPolicy {
		return map[string]*protocol.ACLPolicy{"p": {Rules: rules}, "none": nil, "nothing": {}}
	}
	type rights struct{ readLogs, lifecycle, submit, readNode, writeNode, readAgent, writeAgent bool }
	for _, test := range []struct {
		rules string
		want  rights
	}{
		{``, rights{}},
		{`namespace "prod" { policy = "read" }`, rights{}},
		{`namespace "prod" { policy = "write" }`, rights{readLogs: true, lifecycle: true, submit: true}},
		{`namespace "prod" { capabilities = ["read-fs"] }`, rights{readLogs: true}},
		{`{"namespace": {"prod": {"capabilities": ["alloc-lifecycle"]}}, "node": {"policy": "write"}}`, rights{lifecycle: true, readNode: true, writeNode: true}},
		{"node { policy = \"read\" }\nagent { policy = \"write\" }", rights{readNode: true, readAgent: true, writeAgent: true}},
		{"node { policy = \"deny\" }\nagent { policy = \"read\" }", rights{readAgent: true}},
	} {
		servers := newFakeServers()
		servers.policies = text(test.rules)
		servers.identities["user"] = user("p", "none", "nothing")
		c := New(servers, "global")
		allows := func(err error) bool {
			if err != nil && !errors.Is(err, acl.ErrPermissionDenied) {
				t.Errorf("%s: %v", test.rules, err)
			}
			return err == nil
		}
		ctx := t.Context()
		got := rights{
			allows(c.Namespace(ctx, "user", "prod", "read-logs", "read-fs")), allows(c.Namespace(ctx, "user", "prod", "alloc-lifecycle")),
			allows(c.Namespace(ctx, "user", "prod", "submit-job")), allows(c.Node(ctx, "user", false)), allows(c.Node(ctx, "user", true)),
			allows(c.Agent(ctx, "user", false)), allows(c.Agent(ctx, "user", true)),
		}
		if got != test.want {
			t.Errorf("%s: got %+v, want %+v", test.rules, got, test.want)
		}
	}
	denies := text("node { policy = \"write\" }")
	denies["nothing"].Rules = "node { policy = \"deny\" }"
	servers := newFakeServers()
	servers.policies, servers.identities["user"] = denies, user("p", "nothing")
	if err := New(servers, "global").Node(t.Context(), "user", false); err == nil {
		t.Error("one of two policies denies, and the token may read nodes")
	}
	if err := New(servers, "global").Node(t.Context(), "root", true); err != nil {
		t.Errorf("a management token: %v", err)
	}
}
