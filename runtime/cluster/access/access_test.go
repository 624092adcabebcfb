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

func rules(rules ...*protocol.ACLNamespaceRule) *protocol.ACLPolicy {
	return &protocol.ACLPolicy{RulesJSON: &protocol.ACLRules{Namespaces: rules}}
}

func rule(name, policy string, capabilities ...string) *protocol.ACLNamespaceRule {
	return &protocol.ACLNamespaceRule{Name: name, Policy: policy, Capabilities: capabilities}
}

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
			"exec":  rules(rule("prod", "", "alloc-exec", "alloc-node-exec")),
			"write": rules(rule("prod", "write")),
		},
		roles:         map[string]*protocol.ACLRole{"r1": {ID: "r1", Policies: []*protocol.ACLRolePolicy{{Name: "exec"}, nil}}},
		claimPolicies: map[string]*protocol.ACLPolicy{"none": nil, "all": rules(rule("*", "", "alloc-node-exec"))},
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
		if (err == nil) != test.want || err != nil && !errors.Is(err, ErrPermissionDenied) {
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
		if err := c.AllocNodeExec(t.Context(), "exec", "prod"); !errors.Is(err, ErrPermissionDenied) {
			t.Errorf("got %v", err)
		}
	})
}

func TestFailureWithoutOldAnswerIsARefusal(t *testing.T) {
	servers := newFakeServers()
	servers.err = errors.New("No cluster leader")
	err := New(servers, "global").AllocNodeExec(t.Context(), "root", "prod")
	if !errors.Is(err, ErrPermissionDenied) || err.Error() != "Permission denied: read the policies of the token: No cluster leader" {
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

func TestMostSpecificRuleCounts(t *testing.T) {
	const can = capabilityNodeExec
	for _, test := range []struct {
		name  string
		rules []*protocol.ACLNamespaceRule
		want  bool
	}{
		{"no rule", nil, false},
		{"another namespace", []*protocol.ACLNamespaceRule{rule("prod", "", can)}, false},
		{"exact name", []*protocol.ACLNamespaceRule{rule("prod-api", "", can)}, true},
		{"all namespaces", []*protocol.ACLNamespaceRule{rule("*", "", can)}, true},
		{"exact name without the capability", []*protocol.ACLNamespaceRule{rule("*", "", can), rule("prod-api", "write")}, false},
		{"longer pattern grants", []*protocol.ACLNamespaceRule{rule("*", "deny"), rule("prod-*", "", can)}, true},
		{"longer pattern denies", []*protocol.ACLNamespaceRule{rule("prod-*", "deny"), rule("*", "", can)}, false},
		{"denied as capability", []*protocol.ACLNamespaceRule{rule("prod-*", "", can, "deny")}, false},
		{"denied by another policy", []*protocol.ACLNamespaceRule{rule("prod-*", "", can), rule("prod-*", "deny")}, false},
		{"denied by an earlier policy", []*protocol.ACLNamespaceRule{rule("prod-*", "deny"), rule("prod-*", "", can)}, false},
		{"pattern in the middle", []*protocol.ACLNamespaceRule{rule("p*d-*i", "", can)}, true},
		{"pattern whose parts overlap", []*protocol.ACLNamespaceRule{rule("prod-a*-api", "", can)}, false},
	} {
		policies := make(map[string]*protocol.ACLPolicy)
		for i, r := range test.rules {
			policies[fmt.Sprint(i)] = rules(r, nil)
		}
		for range 10 { // a map's policies are read in different orders
			if got, err := grants(policies, "prod-api", can); err != nil || got != test.want {
				t.Errorf("%s: got %v, %v, want %v", test.name, got, err, test.want)
			}
		}
	}
}

// Servers send some policies without their parsed rules.
func TestRulesAreReadFromText(t *testing.T) {
	for _, test := range []struct {
		text    string
		want    bool
		wantErr bool
	}{
		{`namespace "prod" {
  policy       = "read"
  capabilities = ["alloc-exec", "alloc-node-exec"]
  variables {
    path "a/*" { capabilities = ["read"] }
  }
}
node { policy = "read" }
host_volume "x" { policy = "write" }
plugin { policy = "read" }`, true, false},
		{`namespace "prod" { policy = "write" }`, false, false},
		{`namespace "*" { policy = "deny" }`, false, false},
		{``, false, false},
		{`namespace {`, false, true},
	} {
		policies := map[string]*protocol.ACLPolicy{"p": {Name: "p", Rules: test.text}}
		if got, err := grants(policies, "prod", capabilityNodeExec); got != test.want || (err != nil) != test.wantErr {
			t.Errorf("%s: got %v, %v, want %v", test.text, got, err, test.want)
		}
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
			if err != nil && !errors.Is(err, ErrPermissionDenied) {
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
