package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/agentproof"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/taskapi"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

const workloadAllocID = "9a30b60a-07ff-f6ce-ec36-533c48a52b97"

// workloadFixture is an API with variables and services, and the token of a task of job "shop", group "web".
type workloadFixture struct {
	*fixture
	identities *identity.Issuer
	token      string
}

func newWorkloadFixture(t *testing.T, edit func(*Config)) *workloadFixture {
	f := &workloadFixture{}
	f.fixture = newFixture(t, func(c *Config) {
		c.OperatorToken, c.ReadOnlyToken = "operator", "reader"
		f.identities = identity.NewIssuer(identity.Config{Store: c.Store, Region: "global"})
		c.Identities = f.identities
		if edit != nil {
			edit(c)
		}
	})
	f.putAlloc(t, api.AllocClientStatusRunning)
	_, err := f.store.Update(t.Context(), func(tx *store.Txn) error {
		for _, namespace := range []string{"apps", "default"} {
			for _, path := range []string{
				"nomad/jobs", "nomad/jobs/shop", "nomad/jobs/shop/web", "nomad/jobs/shop/web/server", "nomad/jobs/shop/web/other", "nomad/jobs/shop/db",
				"nomad/jobs/shop-admin", "nomad/jobs/shop/web/server/x", "other",
			} {
				tx.PutVariable(&api.Variable{Namespace: namespace, Path: path, Items: api.VariableItems{"a": "b"}})
			}
			tx.PutService(&api.ServiceRegistration{Namespace: namespace, ID: "id-" + namespace, ServiceName: "db"})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	f.token = f.issue(t, "nomadproject.io")
	return f
}

func (f *workloadFixture) issue(t *testing.T, audience string) string {
	t.Helper()
	w := identity.Workload{Namespace: "apps", JobID: "shop", Group: "web", AllocID: workloadAllocID, Task: "server"}
	token, err := f.identities.IssueToken(t.Context(), w, &api.WorkloadIdentity{Name: "x", Audience: []string{audience}})
	if err != nil {
		t.Fatal(err)
	}
	return token.JWT
}

func (f *workloadFixture) putAlloc(t *testing.T, status string) {
	t.Helper()
	_, err := f.store.Update(t.Context(), func(tx *store.Txn) error {
		tx.PutScheduledAllocation(&api.Allocation{
			ID: workloadAllocID, Namespace: "apps", JobID: "shop", TaskGroup: "web", ClientStatus: status,
			Job: &api.Job{TaskGroups: []*api.TaskGroup{{Name: new("web"), Tasks: []*api.Task{{Name: "server"}}}}},
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestWorkloadAccess(t *testing.T) {
	f := newWorkloadFixture(t, nil)
	for target, code := range map[string]int{
		"/v1/var/nomad/jobs?namespace=apps":                        200,
		"/v1/var/nomad/jobs/shop?namespace=apps":                   200,
		"/v1/var/nomad/jobs/shop/web?namespace=apps":               200,
		"/v1/var/nomad/jobs/shop/web/server?namespace=apps":        200,
		"/v1/var/nomad/jobs/shop/web/other?namespace=apps":         403,
		"/v1/var/nomad/jobs/shop/web/server/x?namespace=apps":      403,
		"/v1/var/nomad/jobs/shop/db?namespace=apps":                403,
		"/v1/var/nomad/jobs/shop-admin?namespace=apps":             403,
		"/v1/var/nomad/jobs/shop/?namespace=apps":                  403,
		"/v1/var/nomad/jobs/shop/../shop-admin?namespace=apps":     403,
		"/v1/var/nomad/jobs%2Fshop-admin?namespace=apps":           403,
		"/v1/var/other?namespace=apps":                             403,
		"/v1/var/nomad/jobs/shop":                                  403,
		"/v1/var/nomad/jobs/shop?namespace=*":                      403,
		"/v1/var/nomad/jobs/shop?namespace=apps&namespace=default": 200,
		"/v1/vars?namespace=apps":                                  200,
		"/v1/vars":                                                 200, // an empty list
		"/v1/vars?namespace=*":                                     200, // the task's own
		"/v1/services?namespace=apps":                              200,
		"/v1/services?namespace=*":                                 200, // a task reads the services of all namespaces
		"/v1/service/db?namespace=apps":                            200,
		"/v1/service/db":                                           200,
		"/v1/agent/health?type=server":                             200,
		"/v1/nope":                                                 403,
	} {
		if r := f.send("GET", target, nil, "X-Nomad-Token", f.token); r.StatusCode != code {
			t.Errorf("%s: status %d, want %d", target, r.StatusCode, code)
		}
	}
	var list []*api.VariableMetadata
	r := f.send("GET", "/v1/vars?namespace=apps", nil, "Authorization", "Bearer "+f.token)
	if err := json.NewDecoder(r.Body).Decode(&list); err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, m := range list {
		paths = append(paths, m.Path)
	}
	if want := []string{"nomad/jobs", "nomad/jobs/shop", "nomad/jobs/shop/web", "nomad/jobs/shop/web/server"}; !reflect.DeepEqual(paths, want) {
		t.Errorf("variables %v, want %v", paths, want)
	}
}

// Every route that is not in the list rejects the token, with every method.
func TestWorkloadIsRejectedByDefault(t *testing.T) {
	f := newWorkloadFixture(t, nil)
	open := []string{"/v1/vars", "/v1/services", "/v1/service/{id...}", "/v1/agent/health", agentproof.Path} // /v1/var/x is not one of the paths
	for r := range f.routeRequests() {
		if r.isRead && (slices.Contains(open, r.pattern) || isWebUIPath(r.path)) {
			continue
		}
		if got := f.send(r.method, r.path+"?namespace=apps", strings.NewReader("{}"), "X-Nomad-Token", f.token); got.StatusCode != http.StatusForbidden {
			t.Errorf("%s %s: status %d", r.method, r.path, got.StatusCode)
		}
	}
}

func TestWorkloadTokenThatIsNotValid(t *testing.T) {
	f := newWorkloadFixture(t, nil)
	const target = "/v1/var/nomad/jobs?namespace=apps"
	for name, token := range map[string]string{
		"no token": "", "another text": "a.b.c", "a changed token": f.token[:len(f.token)-8] + "AAAAAAAA", "another audience": f.issue(t, "vault.io"),
	} {
		if r := f.send("GET", target, nil, "X-Nomad-Token", token); r.StatusCode != 403 {
			t.Errorf("%s: status %d", name, r.StatusCode)
		}
	}
	// A page of another web site has no rights, whatever it sends.
	if r := f.send("GET", target, nil, "X-Nomad-Token", f.token, "Origin", "https://example.org"); r.StatusCode != 403 {
		t.Errorf("from another site: status %d", r.StatusCode)
	}
	if r := f.send("GET", target, nil, "X-Nomad-Token", f.token); r.StatusCode != 200 {
		t.Errorf("the valid token: status %d", r.StatusCode)
	}
	f.putAlloc(t, api.AllocClientStatusComplete)
	if r := f.send("GET", target, nil, "X-Nomad-Token", f.token); r.StatusCode != 403 {
		t.Errorf("after the end of the allocation: status %d", r.StatusCode)
	}
}

// A blocking read that began before the end of the allocation does not return what was written after it.
func TestBlockingReadsEndWithAllocation(t *testing.T) {
	for _, target := range []string{"/v1/var/nomad/jobs/shop", "/v1/vars", "/v1/services", "/v1/service/db"} {
		for _, status := range []string{api.AllocClientStatusRunning, api.AllocClientStatusComplete} {
			f := newWorkloadFixture(t, nil)
			index := f.store.Snapshot().Index()
			answered := make(chan string)
			go func() {
				r := f.send("GET", fmt.Sprintf("%s?namespace=apps&index=%d&wait=60s", target, index), nil, "X-Nomad-Token", f.token)
				body, _ := io.ReadAll(r.Body)
				answered <- fmt.Sprint(r.StatusCode, " ", string(body))
			}()
			select {
			case got := <-answered:
				t.Fatalf("%s did not block: %s", target, got)
			case <-time.After(100 * time.Millisecond): // a read that begins later has the same result, but would not test what this test is for
			}
			f.putAlloc(t, status)
			_, err := f.store.Update(t.Context(), func(tx *store.Txn) error {
				tx.PutVariable(&api.Variable{Namespace: "apps", Path: "nomad/jobs/shop", Items: api.VariableItems{"a": "later"}})
				tx.PutService(&api.ServiceRegistration{Namespace: "apps", ID: "id-later", ServiceName: "db"})
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			want := "200 "
			if status == api.AllocClientStatusComplete {
				want = "403 Permission denied"
			}
			if got := <-answered; !strings.HasPrefix(got, want) {
				t.Errorf("%s, allocation %s: %s, want %s", target, status, got, want)
			}
		}
	}
}

func TestDiscovery(t *testing.T) {
	closed := newWorkloadFixture(t, nil)
	for path, codes := range map[string][3]int{keySetPath: {403, 200, 403}, discoveryPath: {403, 404, 403}} {
		for i, token := range []string{"", "operator", closed.token} {
			if r := closed.send("GET", path, nil, "X-Nomad-Token", token); r.StatusCode != codes[i] {
				t.Errorf("%s without an issuer: status %d, want %d", path, r.StatusCode, codes[i])
			}
		}
	}
	f := newWorkloadFixture(t, func(c *Config) {
		c.Identities = identity.NewIssuer(identity.Config{Store: c.Store, IssuerURL: "https://nomad.example/"})
	})
	r := f.send("GET", discoveryPath, nil)
	const want = `{"id_token_signing_alg_values_supported":["RS256"],"issuer":"https://nomad.example/",` +
		`"jwks_uri":"https://nomad.example/.well-known/jwks.json","response_types_supported":["code"],"subject_types_supported":["public"]}`
	if got := bodyText(r); r.StatusCode != 200 || got != want || r.Header.Get("Cache-Control") != "max-age=300" {
		t.Errorf("status %d, %v, %s, want %s", r.StatusCode, r.Header, got, want)
	}
	var set struct{ Keys []map[string]string }
	r = f.send("GET", keySetPath, nil)
	if err := json.NewDecoder(r.Body).Decode(&set); err != nil || len(set.Keys) != 1 || r.Header.Get("Cache-Control") != "max-age=300" {
		t.Fatalf("%v, %v, %v", set, r.Header, err)
	}
	k := set.Keys[0]
	if k["kty"] != "RSA" || k["use"] != "sig" || k["alg"] != "RS256" || k["e"] != "AQAB" || len(k["n"]) < 300 || k["kid"] == "" || len(k) != 6 {
		t.Errorf("key %v", k)
	}
}

func TestKeyWithTokensIsKept(t *testing.T) {
	f := newWorkloadFixture(t, nil)
	token, err := f.identities.IssueToken(t.Context(), identity.Workload{AllocID: workloadAllocID, Task: "server"}, &api.WorkloadIdentity{Name: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.identities.PutTokens(t.Context(), workloadAllocID, "server", map[string]*state.IdentityToken{"x": token}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.store.RotateKeys(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	path := "/v1/operator/keyring/key/" + token.KeyID
	if r := f.send("DELETE", path, nil, "X-Nomad-Token", "operator"); r.StatusCode != 409 || !strings.Contains(bodyText(r), "1 tasks have tokens") {
		t.Errorf("status %d", r.StatusCode)
	}
	if r := f.send("DELETE", path+"?force=true", nil, "X-Nomad-Token", "operator"); r.StatusCode != 200 {
		t.Errorf("with force: status %d: %s", r.StatusCode, bodyText(r))
	}
}

// The socket of a task needs a token for each request, also if the agent has no token, and has limits.
func TestTaskSocket(t *testing.T) {
	t.Parallel()
	for _, operator := range []Secret{"operator", ""} {
		f := newWorkloadFixture(t, func(c *Config) { c.OperatorToken = operator })
		l, err := taskapi.New()
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "api.sock")
		if err := l.AddOrReplaceSocket(taskapi.TaskAddr{AllocID: workloadAllocID, Task: "server"}, listenOnSocket(t, path)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error)
		go func() { served <- f.Serve(ctx, newLimiter(3).LimitListener(l)) }()
		dial := func() net.Conn {
			c, err := net.Dial("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			return c
		}
		send := func(c net.Conn, target, token string) int {
			t.Helper()
			if token != "" {
				token = "X-Nomad-Token: " + token + "\r\n"
			}
			if _, err := io.WriteString(c, "GET "+target+" HTTP/1.1\r\nHost: 127.0.0.1\r\n"+token+"\r\n"); err != nil {
				t.Fatal(err)
			}
			r, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			io.Copy(io.Discard, r.Body)
			r.Body.Close()
			return r.StatusCode
		}
		const own = "/v1/var/nomad/jobs/shop?namespace=apps"
		c := dial()
		for _, tc := range []struct {
			target, token string
			code          int
		}{
			{own, "", 401},
			{"/v1/agent/health?type=server", "", 401},
			{"/v1/jobs", "", 401},
			{own, f.token, 200},
			{"/v1/agent/health?type=server", f.token, 200},
			{"/v1/jobs", f.token, 403},
			{"/v1/var/other?namespace=apps", f.token, 403},
			{"/v1/client/allocation/x/exec?ws_handshake=true", "", 401},
		} {
			if code := send(c, tc.target, tc.token); code != tc.code {
				t.Errorf("operator token %t: %s: status %d, want %d", operator != "", tc.target, code, tc.code)
			}
		}
		if operator != "" {
			if code := send(c, "/v1/jobs", string(operator)); code != 200 {
				t.Errorf("with the operator's token: status %d", code)
			}
			send(c, own, f.token) // the connection counts for the client of its last request
		}
		if a, b, tooMany := send(dial(), own, f.token), send(dial(), own, f.token), send(dial(), own, f.token); a != 200 || b != 200 || tooMany != 429 {
			t.Errorf("status of authenticated connections: %d, %d, %d; want 429 for the fourth", a, b, tooMany)
		}
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
}
