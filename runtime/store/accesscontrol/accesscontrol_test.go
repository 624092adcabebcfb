package accesscontrol

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/acl"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
)

func openControl(t *testing.T) (*Control, *store.Store) {
	t.Helper()
	s, err := store.OpenMemory(store.Config{Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return New(Config{
		Store: s, Logger: hclog.NewNullLogger(), ResetFile: filepath.Join(t.TempDir(), "acl-bootstrap-reset"),
		MinExpirationTTL: DefaultMinExpirationTTL, MaxExpirationTTL: DefaultMaxExpirationTTL, TokenGCThreshold: DefaultTokenGCThreshold,
	}), s
}

func (c *Control) mustPutPolicy(t *testing.T, name, rules string) {
	t.Helper()
	if _, err := c.PutPolicy(t.Context(), &api.ACLPolicy{Name: name, Rules: rules}); err != nil {
		t.Fatal(err)
	}
}

func (c *Control) mustPutToken(t *testing.T, token *api.ACLToken) *api.ACLToken {
	t.Helper()
	stored, _, err := c.PutToken(t.Context(), token)
	if err != nil {
		t.Fatal(err)
	}
	return stored
}

func (c *Control) mayRead(t *testing.T, secret string) bool {
	t.Helper()
	g, err := c.FindGrant(c.config.Store.Snapshot(), nil, secret)
	return err == nil && g.Rights.Namespace("default", acl.ReadJob)
}

const readDefault = `namespace "default" { policy = "read" }`

func expectText(t *testing.T, what string, err error, status int, want string) {
	t.Helper()
	var requestErr *RequestError
	if !errors.As(err, &requestErr) || requestErr.Text != want || requestErr.Status != status {
		t.Errorf("%s: got %v, want %d %q", what, err, status, want)
	}
}

func TestBootstrapHappensOnceWithoutResetFile(t *testing.T) {
	c, s := openControl(t)
	_, err := c.Bootstrap(t.Context(), "short")
	expectText(t, "short secret", err, 400, "invalid acl token")
	first, err := c.Bootstrap(t.Context(), "")
	if err != nil || first.Type != TypeManagement {
		t.Fatal(first, err)
	}
	if g, err := c.FindGrant(s.Snapshot(), nil, first.SecretID); err != nil || !g.Rights.IsManagement() {
		t.Error(g, err)
	}
	last := s.Snapshot().ACLBootstrapIndex()
	_, err = c.Bootstrap(t.Context(), "")
	expectText(t, "again", err, 400, fmt.Sprintf("ACL bootstrap already done (reset index: %d)", last))
	for content, want := range map[string]string{
		"x":   fmt.Sprintf("ACL bootstrap already done (reset index: %d)", last),
		"100": fmt.Sprintf("Invalid bootstrap reset index (specified 100, reset index: %d)", last),
	} {
		mustWrite(t, c.config.ResetFile, content)
		_, err = c.Bootstrap(t.Context(), "")
		expectText(t, content, err, 400, want)
	}
	mustWrite(t, c.config.ResetFile, fmt.Sprintf("%d\n", last))
	second, err := c.Bootstrap(t.Context(), "bbbbbbbb-0000-4000-8000-000000000002")
	if err != nil || second.SecretID != "bbbbbbbb-0000-4000-8000-000000000002" {
		t.Fatal(second, err)
	}
	if _, err = c.Bootstrap(t.Context(), ""); err == nil {
		t.Error("the same reset file permits a third bootstrap")
	}
	if _, err := c.FindGrant(s.Snapshot(), nil, first.SecretID); err != nil {
		t.Error("the first management token is gone:", err)
	}
}

// A lost record of the bootstrap must not let everybody make a management token.
func TestTokensShowThatThereWasABootstrap(t *testing.T) {
	c, s := openControl(t)
	if _, err := s.Update(t.Context(), func(tx *store.Txn) error {
		tx.PutACLToken(&api.ACLToken{AccessorID: "a", SecretID: "b", Type: TypeManagement})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Bootstrap(t.Context(), ""); err == nil {
		t.Error("a second bootstrap")
	}
}

func mustWrite(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestChangeOfPolicyOrRoleChangesRightsAtOnce(t *testing.T) {
	c, s := openControl(t)
	c.mustPutPolicy(t, "reader", readDefault)
	role, _, err := c.PutRole(t.Context(), &api.ACLRole{Name: "readers", Policies: []*api.ACLRolePolicyLink{{Name: "reader"}, {Name: "reader"}}})
	if err != nil || len(role.Policies) != 1 {
		t.Fatal(role, err)
	}
	direct := c.mustPutToken(t, &api.ACLToken{Type: TypeClient, Policies: []string{"reader", "absent"}})
	byRole := c.mustPutToken(t, &api.ACLToken{Type: TypeClient, Roles: []*api.ACLTokenRoleLink{{Name: "readers"}, {ID: role.ID}}})
	if len(byRole.Roles) != 1 || byRole.Roles[0].ID != role.ID {
		t.Errorf("roles %+v", byRole.Roles)
	}
	expect := func(what string, wantDirect, wantByRole bool) {
		t.Helper()
		for range 2 { // the second answer is cached
			if gotDirect, gotByRole := c.mayRead(t, direct.SecretID), c.mayRead(t, byRole.SecretID); gotDirect != wantDirect || gotByRole != wantByRole {
				t.Errorf("%s: got %v and %v, want %v and %v", what, gotDirect, gotByRole, wantDirect, wantByRole)
			}
		}
	}
	old := s.Snapshot()
	expect("at first", true, true)
	c.mustPutPolicy(t, "reader", `namespace "default" { policy = "deny" }`)
	expect("denied", false, false)
	if g, err := c.FindGrant(old, nil, direct.SecretID); err != nil || !g.Rights.Namespace("default", acl.ReadJob) {
		t.Error("the old snapshot has the new rights", err)
	}
	expect("after a look at the old snapshot", false, false)
	c.mustPutPolicy(t, "reader", readDefault)
	expect("again", true, true)
	if _, err := c.DeleteRole(t.Context(), role.ID); err != nil {
		t.Fatal(err)
	}
	expect("without the role", true, false)
	if got := TokenWithCurrentRoles(s.Snapshot(), nil, byRole); len(got.Roles) != 0 {
		t.Errorf("the token has roles %+v", got.Roles)
	}
	if _, err := c.DeletePolicy(t.Context(), "reader"); err != nil {
		t.Fatal(err)
	}
	expect("without the policy", false, false)
	if _, err := c.DeleteToken(t.Context(), direct.AccessorID); err != nil {
		t.Fatal(err)
	}
	if _, err := c.FindGrant(s.Snapshot(), nil, direct.SecretID); !errors.Is(err, ErrTokenNotFound) {
		t.Errorf("a deleted token: %v", err)
	}
}

func TestAnonymousPolicyHoldsWithoutATokenOnly(t *testing.T) {
	c, s := openControl(t)
	if c.mayRead(t, "") {
		t.Error("without a policy")
	}
	c.mustPutPolicy(t, AnonymousPolicy, readDefault)
	c.mustPutPolicy(t, "node", `node { policy = "read" }`)
	token := c.mustPutToken(t, &api.ACLToken{Type: TypeClient, Policies: []string{"node"}})
	if !c.mayRead(t, "") || c.mayRead(t, token.SecretID) || c.mayRead(t, "unknown") {
		t.Error("the anonymous policy holds for others")
	}
	if g, err := c.FindGrant(s.Snapshot(), nil, ""); err != nil || len(g.PolicyNames) != 1 || g.Token != nil {
		t.Errorf("got %+v, %v", g, err)
	}
}

func TestWorkloadPolicies(t *testing.T) {
	c, s := openControl(t)
	w := identity.Workload{Namespace: "prod", JobID: "web", Group: "app", Task: "main"}
	for _, test := range []struct {
		job  *api.JobACL
		want bool
	}{
		{nil, false},
		{&api.JobACL{}, false},
		{&api.JobACL{Namespace: "prod"}, true},
		{&api.JobACL{Namespace: "default"}, false},
		{&api.JobACL{Namespace: "prod", JobID: "web"}, true},
		{&api.JobACL{Namespace: "prod", JobID: "we"}, false},
		{&api.JobACL{Namespace: "prod", JobID: "web", Group: "app"}, true},
		{&api.JobACL{Namespace: "prod", JobID: "web", Group: "db"}, false},
		{&api.JobACL{Namespace: "prod", JobID: "web", Group: "app", Task: "main"}, true},
		{&api.JobACL{Namespace: "prod", JobID: "web", Group: "app", Task: "side"}, false},
	} {
		if _, err := c.PutPolicy(t.Context(), &api.ACLPolicy{Name: "p", Rules: readDefault, JobACL: test.job}); err != nil {
			t.Fatal(err)
		}
		g := c.FindWorkloadGrant(s.Snapshot(), nil, &w)
		if got := g.Rights.Namespace("default", acl.ReadJob); got != test.want {
			t.Errorf("%+v: got %v", test.job, got)
		}
		if !g.Rights.Variable("prod", "nomad/jobs/web", acl.Read) {
			t.Error("the workload does not read its own variables")
		}
	}
}

func TestTokenExpiresAndIsCollected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := openControl(t)
		c.mustPutPolicy(t, "reader", readDefault)
		token := c.mustPutToken(t, &api.ACLToken{Type: TypeClient, Policies: []string{"reader"}, ExpirationTTL: time.Hour})
		lasting := c.mustPutToken(t, &api.ACLToken{Type: TypeClient, Policies: []string{"reader"}})
		var wg sync.WaitGroup
		wg.Go(func() { c.RunTokenCollection(t.Context()) })
		time.Sleep(time.Hour - time.Nanosecond)
		if !c.mayRead(t, token.SecretID) {
			t.Error("expired too early")
		}
		time.Sleep(time.Nanosecond)
		if _, err := c.FindGrant(s.Snapshot(), nil, token.SecretID); !errors.Is(err, ErrTokenExpired) {
			t.Errorf("after the end: %v", err)
		}
		time.Sleep(time.Hour - time.Nanosecond)
		synctest.Wait()
		if s.Snapshot().ACLToken(nil, token.AccessorID) == nil {
			t.Error("removed too early")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if s.Snapshot().ACLToken(nil, token.AccessorID) != nil {
			t.Error("an expired token is kept")
		}
		if !c.mayRead(t, lasting.SecretID) {
			t.Error("a token without an end was removed")
		}
	})
}

func TestOneTimeTokenIsExchangedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := openControl(t)
		c.mustPutPolicy(t, "reader", readDefault)
		token := c.mustPutToken(t, &api.ACLToken{Type: TypeClient, Policies: []string{"reader"}})
		first := c.CreateOneTimeToken(token).OneTimeSecretID
		second := c.CreateOneTimeToken(token).OneTimeSecretID
		if _, err := c.ExchangeOneTimeToken(first); !errors.Is(err, acl.ErrPermissionDenied) {
			t.Errorf("a replaced one: %v", err)
		}
		if got, err := c.ExchangeOneTimeToken(second); err != nil || got.SecretID != token.SecretID {
			t.Error(got, err)
		}
		if _, err := c.ExchangeOneTimeToken(second); !errors.Is(err, acl.ErrPermissionDenied) {
			t.Errorf("a second time: %v", err)
		}
		late := c.CreateOneTimeToken(token).OneTimeSecretID
		time.Sleep(OneTimeTokenTTL)
		if _, err := c.ExchangeOneTimeToken(late); !errors.Is(err, acl.ErrPermissionDenied) {
			t.Errorf("too late: %v", err)
		}
		deleted := c.CreateOneTimeToken(token).OneTimeSecretID
		if _, err := c.DeleteToken(t.Context(), token.AccessorID); err != nil {
			t.Fatal(err)
		}
		if _, err := c.ExchangeOneTimeToken(deleted); !errors.Is(err, acl.ErrPermissionDenied) {
			t.Errorf("of a deleted token: %v", err)
		}
	})
}

func TestChangesAreChecked(t *testing.T) {
	c, _ := openControl(t)
	c.mustPutPolicy(t, "reader", readDefault)
	token := c.mustPutToken(t, &api.ACLToken{Type: TypeClient, Policies: []string{"reader"}, ExpirationTTL: time.Hour})
	put := func(token api.ACLToken) error { _, _, err := c.PutToken(t.Context(), &token); return err }
	client := func(change func(*api.ACLToken)) error {
		token := api.ACLToken{Type: TypeClient, Policies: []string{"reader"}}
		change(&token)
		return put(token)
	}
	one := func(kind, fault string) string { return kind + " 0 invalid: 1 error occurred:\n\t* " + fault + "\n\n" }
	expectText(t, "no policies", put(api.ACLToken{Type: TypeClient}), 400, one("token", "client token missing policies or roles"))
	expectText(t, "type", put(api.ACLToken{Type: "x"}), 400, one("token", "token type must be client or management"))
	expectText(t, "negative", client(func(t *api.ACLToken) { t.ExpirationTTL = -time.Hour }), 400,
		"token 0 invalid: 3 errors occurred:\n\t* token expiration TTL '-1h0m0s' should not be negative\n\t* expiration time cannot be before create time\n\t* expiration time cannot be less than 1m0s in the future (was -1h0m0s)\n\n")
	expectText(t, "long", client(func(t *api.ACLToken) { t.ExpirationTTL = 25 * time.Hour }), 400, one("token", "expiration time cannot be more than 24h0m0s in the future (was 25h0m0s)"))
	expectText(t, "update of the TTL", client(func(t *api.ACLToken) { t.AccessorID = token.AccessorID }), 400, one("token", "cannot update expiration TTL"))
	expectText(t, "update of the end", client(func(t *api.ACLToken) { t.AccessorID, t.ExpirationTTL = token.AccessorID, time.Hour }), 400, one("token", "cannot update expiration time"))
	expectText(t, "role", client(func(t *api.ACLToken) { t.Roles = []*api.ACLTokenRoleLink{{Name: "r"}} }), 400, "cannot find role r")
	expectText(t, "absent", client(func(t *api.ACLToken) { t.AccessorID = "00000000-0000-4000-8000-00000000ffff" }), 400, "cannot find token 00000000-0000-4000-8000-00000000ffff")
	_, err := c.PutPolicy(t.Context(), &api.ACLPolicy{Name: "a b", Description: strings.Repeat("d", 257), Rules: "x {}"})
	expectText(t, "policy", err, 400, "policy 0 invalid: 3 errors occurred:\n\t* invalid name 'a b'\n\t* description longer than 256\n\t* failed to parse rules: Invalid policy: x {}\n\n")
	_, err = c.PutPolicy(t.Context(), &api.ACLPolicy{Name: "a", JobACL: &api.JobACL{Namespace: "n", Group: "g"}})
	expectText(t, "job", err, 400, one("policy", "job ID must be set to set group"))
	_, _, err = c.PutRole(t.Context(), &api.ACLRole{Name: "r", Policies: []*api.ACLRolePolicyLink{{Name: "absent"}}})
	expectText(t, "role without policy", err, 400, "cannot find policy absent")
	unchanged := *token
	unchanged.Name, unchanged.SecretID = "renamed", "another"
	stored, _, err := c.PutToken(t.Context(), &unchanged)
	if err != nil || stored.Name != "renamed" || stored.SecretID != token.SecretID {
		t.Error(stored, err)
	}
	duplicate := api.ACLToken{AccessorID: "aaaaaaaa-0000-4000-8000-00000000aa05", SecretID: token.SecretID, Type: TypeClient, Policies: []string{"reader"}}
	if err := put(duplicate); err == nil {
		t.Error("two tokens have one secret")
	}
}
