package httpapi

import (
	"archive/tar"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/acl"
	"github.com/nomad-lite/nomad-lite/runtime/explain/conditions"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
)

// clusterAllocID is the id of the allocation that the node of a clusterFixture has.
const clusterAllocID = "5a1ad3b8-0c2c-7d5e-3f4d-8d4f2a1b9c0e"

// clusterFixture is an API of a node of a cluster, whose servers record what is forwarded to them.
type clusterFixture struct {
	*fixture
	cluster    *Cluster
	conditions *stubConditions
	nodeID     string
	forwarded  *http.Request // the last request that was forwarded; nil if there was none
	body       string        // of forwarded
}

func newClusterFixture(t *testing.T, edit func(*Config)) *clusterFixture {
	t.Helper()
	f := &clusterFixture{conditions: &stubConditions{}}
	f.cluster = &Cluster{
		Forward: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			text, _ := io.ReadAll(r.Body)
			f.forwarded, f.body = r, string(text)
			w.WriteHeader(http.StatusTeapot)
		}),
		ServerAddrs:          func() []string { return []string{"10.0.0.1:4647", "10.0.0.2:4647"} },
		AuthenticateWorkload: func(string) *identity.Workload { return nil },
		IsMigrateToken:       func(allocID, token string) bool { return token == "migrate "+allocID },
	}
	f.fixture = newFixture(t, func(c *Config) {
		f.nodeID = c.NodeID
		c.OperatorToken, c.ReadOnlyToken, c.Cluster, c.Conditions = "operator", "reader", f.cluster, f.conditions
		c.OptionalRoutes.EnableDebug = true
		if edit != nil {
			edit(c)
		}
	})
	group := "g"
	_, err := f.store.Update(t.Context(), func(tx *store.Txn) error {
		tx.PutNodeWithStorageEvents(&api.Node{ID: f.nodeID, Name: "n", Status: api.NodeStatusReady})
		tx.PutScheduledAllocation(&api.Allocation{
			ID: clusterAllocID, NodeID: f.nodeID, Namespace: "prod", JobID: "j", TaskGroup: group,
			Job: &api.Job{ID: new("j"), Namespace: new("prod"), TaskGroups: []*api.TaskGroup{{Name: &group, Tasks: []*api.Task{{Name: "t"}}}}},
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// send sends a request, and returns the status and the body of the reply.
func (f *clusterFixture) send(method, path, token, body string, edit ...func(*http.Request)) (int, string) {
	f.forwarded, f.body = nil, ""
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.RemoteAddr, r.Host = "127.0.0.1:5000", "127.0.0.1"
	if token != "" {
		r.Header.Set("X-Nomad-Token", token)
	}
	for _, e := range edit {
		e(r)
	}
	w := httptest.NewRecorder()
	f.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func overUnixSocket(r *http.Request) {
	*r = *r.WithContext(context.WithValue(r.Context(), unixSocketContextKey{}, true))
}

func TestNodeOfClusterForwardsWhatIsNotAboutIt(t *testing.T) {
	f := newClusterFixture(t, nil)
	const other = "66666666-2222-3333-4444-555555555555"
	for _, c := range []struct {
		method, path, body string
		want               bool // the request is forwarded
	}{
		{"GET", "/v1/jobs", "", true},
		{"PUT", "/v1/jobs", "{}", true},
		{"GET", "/v1/nodes", "", true},
		{"GET", "/v1/node/" + f.nodeID, "", true},
		{"GET", "/v1/allocation/" + clusterAllocID, "", true},
		{"GET", "/v1/agent/members", "", true},
		{"GET", "/v1/status/leader", "", true},
		{"GET", "/v1/regions", "", true},
		{"GET", "/v1/event/stream", "", true},
		{"GET", "/v1/acl/token/self", "", true},
		{"GET", "/v1/no-such-route", "", true},
		{"GET", "/.well-known/jwks.json", "", true},
		{"GET", "/other", "", false},
		{"GET", "/v1/agent/self", "", false},
		{"GET", "/v1/agent/servers", "", false},
		{"GET", "/v1/agent/health", "", false},
		{"GET", "/v1/metrics", "", false},
		{"GET", "/ui/", "", false},
		{"GET", "/v1/client/metadata", "", false},
		{"GET", "/v1/client/metadata?node_id=" + f.nodeID, "", false},
		{"GET", "/v1/client/metadata?node_id=" + other, "", true},
		{"POST", "/v1/client/metadata", `{"NodeID": "` + other + `"}`, true},
		{"POST", "/v1/client/metadata", `{"NodeID": "` + f.nodeID + `", "Meta": {"a.b": "c"}}`, false},
		{"GET", "/v1/agent/monitor?server_id=leader", "", true},
		{"GET", "/v1/client/stats?node_id=" + other, "", true},
		{"GET", "/v1/client/fs/ls/" + clusterAllocID, "", false},
		{"GET", "/v1/client/fs/ls/" + other, "", true},
		{"PUT", "/v1/client/allocation/" + other + "/restart", "{}", true},
		{"PUT", "/v1/client/allocation/" + clusterAllocID + "/restart", "{}", false},
		{"GET", "/v1/allocation/" + other + "/timeline", "", false},
		{"GET", snapshotPath(other), "", false},
	} {
		code, text := f.send(c.method, c.path, "operator", c.body)
		if got := f.forwarded != nil; got != c.want || got != (code == http.StatusTeapot) {
			t.Errorf("%s %s: forwarded %v, want %v; %d %s", c.method, c.path, got, c.want, code, text)
		}
		if f.forwarded != nil && c.method != "GET" && f.body != c.body {
			t.Errorf("%s %s: the server gets the body %q", c.method, c.path, f.body)
		}
		// The servers call the node through this handler, and must get an answer of the node.
		f.forwarded = nil
		ended, end := context.WithCancel(t.Context())
		end() // streams have no other end
		f.HandlerWithAllRights().ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ended, c.method, c.path, strings.NewReader(c.body)))
		if f.forwarded != nil {
			t.Errorf("%s %s: a request of a server is forwarded to a server", c.method, c.path)
		}
	}
}

func snapshotPath(id string) string { return strings.Replace(snapshotPattern, "{id}", id, 1) }

func TestTokensOfAgentAreNotForwarded(t *testing.T) {
	f := newClusterFixture(t, nil)
	for _, c := range []struct {
		name, token string
		edit        func(*http.Request)
		code        int
		want        string // token that the server gets
	}{
		{"the operator's token", "operator", func(*http.Request) {}, http.StatusTeapot, ""},
		{"the operator's token over the unix socket", "operator", overUnixSocket, http.StatusTeapot, ""},
		{"the read-only token over the unix socket", "reader", overUnixSocket, http.StatusTeapot, ""},
		{"a token of a user over the unix socket", "user", overUnixSocket, http.StatusTeapot, "user"},
		{"a bearer token of a user", "", func(r *http.Request) { overUnixSocket(r); r.Header.Set("Authorization", "Bearer user") }, http.StatusTeapot, "user"},
		{"the operator's token as a bearer token", "", func(r *http.Request) { r.Header.Set("Authorization", "Bearer operator") }, http.StatusTeapot, ""},
		{"a token of a user over TCP without access control", "user", func(*http.Request) {}, http.StatusForbidden, ""},
		{"no token", "", func(*http.Request) {}, http.StatusForbidden, ""},
		{"the read-only token", "reader", func(*http.Request) {}, http.StatusForbidden, ""},
		{"a session with a token in it", "", func(r *http.Request) { r.URL.RawQuery = "ws_handshake=true"; r.Header.Set("Upgrade", "websocket") }, http.StatusForbidden, ""},
	} {
		code, text := f.send("GET", "/v1/client/allocation/66666666-2222-3333-4444-555555555555/exec", c.token, "", c.edit)
		if code != c.code || (f.forwarded != nil) != (code == http.StatusTeapot) {
			t.Errorf("%s: got %d %s", c.name, code, text)
		}
		if f.forwarded != nil && (f.forwarded.Header.Get("X-Nomad-Token") != c.want || f.forwarded.Header.Get("Authorization") != "") {
			t.Errorf("%s: the server gets %v", c.name, f.forwarded.Header)
		}
	}
	if code, text := f.send("GET", "/v1/acl/token/self", "reader", ""); code != 200 || !strings.Contains(text, readOnlyTokenID) {
		t.Errorf("self of the read-only token: %d %s", code, text)
	}
}

// fakeRights permits what its token names.
type fakeRights map[string][]string

func (f fakeRights) check(token, right string) error {
	if slices.Contains(f[token], right) {
		return nil
	}
	return fmt.Errorf("%w: %s", acl.ErrPermissionDenied, right)
}

func (f fakeRights) Namespace(_ context.Context, token, namespace string, capabilities ...acl.Capability) error {
	right := namespace
	for _, c := range capabilities {
		right += " " + string(c)
	}
	return f.check(token, right)
}

func (f fakeRights) Node(_ context.Context, token string, write bool) error {
	return f.check(token, fmt.Sprintf("node %v", write))
}

func (f fakeRights) Agent(_ context.Context, token string, write bool) error {
	return f.check(token, fmt.Sprintf("agent %v", write))
}

func TestTokensOfClusterNeedTheRightOfEachRoute(t *testing.T) {
	f := newClusterFixture(t, nil)
	id := clusterAllocID
	f.cluster.AllowExec = func(_ context.Context, token, allocID, task string) error {
		if token == "exec" && allocID == id && task == "t" {
			return fmt.Errorf("%w: alloc-node-exec", acl.ErrPermissionDenied)
		}
		return nil
	}
	for _, c := range []struct{ method, path, right string }{
		{"GET", "/v1/client/stats", "node false"},
		{"GET", "/v1/client/metadata", "node false"},
		{"POST", "/v1/client/metadata", "node true"},
		{"PUT", "/v1/client/gc", "node true"},
		{"GET", "/v1/client/gc", "node true"},
		{"GET", "/v1/client/transitions", "node false"},
		{"GET", "/v1/client/allocation/" + id + "/stats", "prod read-job"},
		{"GET", "/v1/client/allocation/" + id + "/checks", "prod read-job"},
		{"GET", "/v1/client/allocation/" + id + "/gc", "prod submit-job"},
		{"PUT", "/v1/client/allocation/" + id + "/restart", "prod alloc-lifecycle"},
		{"PUT", "/v1/client/allocation/" + id + "/signal", "prod alloc-lifecycle"},
		{"GET", "/v1/client/allocation/" + id + "/exec?task=t", "prod alloc-exec"},
		{"GET", "/v1/client/fs/ls/" + id, "prod read-fs"},
		{"GET", "/v1/client/fs/cat/" + id, "prod read-fs"},
		{"GET", "/v1/client/fs/logs/" + id, "prod read-logs read-fs"},
		{"GET", "/v1/job/j/logs?namespace=prod", "prod read-logs read-fs"},
		{"GET", "/v1/job/j/logs", "default read-logs read-fs"},
		{"GET", "/v1/agent/self", "agent false"},
		{"GET", "/v1/agent/servers", "agent false"},
		{"GET", "/v1/metrics", "agent false"},
		{"GET", "/v1/agent/pprof/heap", "agent true"},
		{"PUT", "/v1/agent/reload", "agent true"},
		{"GET", "/v1/allocation/" + id + "/timeline", "prod read-job"},
	} {
		f.cluster.Rights = fakeRights{"user": {c.right}, "exec": {c.right}}
		if code, text := f.send(c.method, c.path, "user", ""); code == http.StatusForbidden {
			t.Errorf("%s %s with %s: %d %s", c.method, c.path, c.right, code, text)
		}
		for _, token := range []string{"", "other"} {
			if code, text := f.send(c.method, c.path, token, ""); code != http.StatusForbidden || text != "Permission denied: "+c.right {
				t.Errorf("%s %s with token %q: %d %s", c.method, c.path, token, code, text)
			}
		}
		if code, text := f.send(c.method, c.path, "operator", ""); code == http.StatusForbidden {
			t.Errorf("%s %s as operator: %d %s", c.method, c.path, code, text)
		}
	}
	f.cluster.Rights = fakeRights{"exec": {"prod alloc-exec"}}
	if code, text := f.send("GET", "/v1/client/allocation/"+id+"/exec?task=t", "exec", ""); code != http.StatusForbidden || !strings.Contains(text, "alloc-node-exec") {
		t.Errorf("exec without alloc-node-exec: %d %s", code, text)
	}
	if code, text := f.send("PUT", loginPath+"/secret", "exec", ""); code != http.StatusForbidden {
		t.Errorf("a login secret for a user of the cluster: %d %s", code, text)
	}
	// The servers check the token of what is forwarded, and the policy of anonymous users.
	for _, token := range []string{"exec", ""} {
		if code, _ := f.send("GET", "/v1/jobs", token, ""); code != http.StatusTeapot || f.forwarded.Header.Get("X-Nomad-Token") != token {
			t.Errorf("forwarded with token %q: %d", token, code)
		}
	}
	if code, _ := f.send("GET", "/v1/agent/health", "", ""); code != 200 {
		t.Errorf("health: %d", code)
	}
}

// Each route that is answered by the node exists, and a route below /v1/client or /v1/agent is forwarded on purpose only.
func TestTableOfNodeRoutesIsComplete(t *testing.T) {
	forwarded := []string{
		"/v1/client/identity", "/v1/client/identity/renew", "/v1/client/allocation/{id...}", "/v1/client/fs/{id...}", "/v1/agent/members", "/v1/agent/force-leave", "/v1/agent/join",
		"/v1/agent/keyring/{id...}", "/v1/agent/schedulers", "/v1/agent/schedulers/config",
	}
	f := newClusterFixture(t, nil)
	known := map[string]bool{}
	for _, rt := range f.API.routes {
		known[rt.pattern] = true
		_, local := nodeRoutes[rt.pattern]
		if !local && (strings.HasPrefix(rt.pattern, "/v1/client/") || strings.HasPrefix(rt.pattern, "/v1/agent/")) && !slices.Contains(forwarded, rt.pattern) {
			t.Errorf("%s is forwarded: add it to nodeRoutes, or to the exceptions", rt.pattern)
		}
	}
	for pattern := range nodeRoutes {
		if !known[pattern] {
			t.Errorf("%s does not exist", pattern)
		}
	}
}

func TestSelfOfNodeOfCluster(t *testing.T) {
	f := newClusterFixture(t, nil)
	_, text := f.send("GET", "/v1/agent/self", "operator", "")
	var self api.AgentSelf
	if err := json.Unmarshal([]byte(text), &self); err != nil {
		t.Fatal(err)
	}
	if got := self.Stats["client"]; got["known_servers"] != "10.0.0.1:4647,10.0.0.2:4647" || got["node_id"] != f.nodeID || self.Stats["nomad"] != nil || self.Member.Name != "" {
		t.Errorf("got %s", text)
	}
	if _, text := f.send("GET", "/v1/agent/servers", "operator", ""); text != `["10.0.0.1:4647","10.0.0.2:4647"]` {
		t.Errorf("servers: %s", text)
	}
	if code, text := f.send("GET", "/v1/agent/health", "", ""); code != 200 || text != `{"client":{"message":"ok","ok":true}}` {
		t.Errorf("health: %d %s", code, text)
	}
	f.conditions.found = []conditions.Condition{{Severity: conditions.Error, Part: conditions.Server, Summary: "The disk is full"}}
	if code, text := f.send("GET", "/v1/agent/health", "", ""); code != 500 || text != `{"client":{"message":"The disk is full","ok":false}}` {
		t.Errorf("health with a full disk: %d %s", code, text)
	}
}

func TestRequestsThatClientsRepeatThroughServerAreCutOff(t *testing.T) {
	remote := func(r *http.Request) { r.RemoteAddr = "192.0.2.7:5000" }
	isCutOff := func(f *clusterFixture, path, token string, edit ...func(*http.Request)) (cut bool) {
		defer func() { cut = recover() == http.ErrAbortHandler }()
		f.send("GET", path, token, "", edit...)
		return false
	}
	path := "/v1/client/fs/logs/" + clusterAllocID
	f := newClusterFixture(t, nil)
	if !isCutOff(f, path, "user", remote) {
		t.Error("a command on another machine gets a reply, and does not ask a server")
	}
	fromBrowser := func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-origin") }
	if isCutOff(f, path, "user") || isCutOff(f, path, "operator", remote) || isCutOff(f, "/v1/jobs", "user", remote) || isCutOff(f, path, "user", remote, fromBrowser) {
		t.Error("another request gets no reply")
	}
	withRights := newClusterFixture(t, nil)
	withRights.cluster.Rights = fakeRights{}
	standalone := newClusterFixture(t, func(c *Config) { c.Cluster = nil })
	if isCutOff(withRights, path, "user", remote) || isCutOff(standalone, path, "user", remote) {
		t.Error("an agent that checks the token itself does not reply")
	}
}

// A task of a cluster without access control reads what a task of a single agent reads, with its token.
func TestTasksOfClusterReadTheirVariables(t *testing.T) {
	f := newClusterFixture(t, nil)
	const token = "header.of.task"
	f.cluster.AuthenticateWorkload = func(got string) *identity.Workload {
		if got != token {
			return nil
		}
		return &identity.Workload{Namespace: "prod", JobID: "j", Group: "g", Task: "t", AllocID: clusterAllocID}
	}
	overTaskSocket := func(r *http.Request) {
		*r = *r.WithContext(context.WithValue(r.Context(), taskSocketContextKey{}, true))
	}
	for _, c := range []struct {
		path, token string
		want        int
	}{
		{"/v1/var/nomad/jobs/j?namespace=prod", token, http.StatusTeapot},
		{"/v1/var/nomad/jobs/k?namespace=prod", token, http.StatusForbidden},
		{"/v1/var/nomad/jobs/j", token, http.StatusForbidden},
		{"/v1/services?namespace=prod", token, http.StatusTeapot},
		{"/v1/jobs?namespace=prod", token, http.StatusForbidden},
		{"/v1/no-such-route", token, http.StatusForbidden},
		{"/v1/client/stats", token, http.StatusForbidden},
		{"/v1/var/nomad/jobs/j?namespace=prod", "another.token.here", http.StatusForbidden},
		{"/v1/var/nomad/jobs/j?namespace=prod", "", http.StatusUnauthorized},
	} {
		if code, text := f.send("GET", c.path, c.token, "", overTaskSocket); code != c.want {
			t.Errorf("%s with %q: %d %s", c.path, c.token, code, text)
		}
		if f.forwarded != nil && f.forwarded.Header.Get("X-Nomad-Token") != token {
			t.Errorf("%s: the server gets %v", c.path, f.forwarded.Header)
		}
	}
	// With access control, the servers decide, but they never see a task without a token.
	f.cluster.Rights = fakeRights{}
	for token, want := range map[string]int{token: http.StatusTeapot, "": http.StatusUnauthorized} {
		if code, text := f.send("GET", "/v1/jobs", token, "", overTaskSocket); code != want {
			t.Errorf("with access control and token %q: %d %s", token, code, text)
		}
	}
}

// dirNode is a node with the directory of one allocation.
type dirNode struct {
	stubNode
	dir *allocdir.Dir
}

func (d dirNode) AllocDir(string) (*allocdir.Dir, error) { return d.dir, nil }

func TestSnapshotOfAllocationNeedsItsToken(t *testing.T) {
	dir, err := allocdir.New(t.TempDir(), clusterAllocID)
	if err == nil {
		err = dir.Build()
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir.Path(), "alloc/data/a"), []byte("x"), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	f := newClusterFixture(t, func(c *Config) { setNode(c, dirNode{dir: dir}) })
	const other = "66666666-2222-3333-4444-555555555555"
	for _, rights := range []clusterRights{nil, fakeRights{}} {
		f.cluster.Rights = rights
		for _, c := range []struct {
			name, id, token string
			edit            []func(*http.Request)
			want            int
		}{
			{"its token", clusterAllocID, "migrate " + clusterAllocID, nil, 200},
			{"no token", clusterAllocID, "", nil, 403},
			{"a token of another allocation", clusterAllocID, "migrate " + other, nil, 403},
			{"the operator's token", clusterAllocID, "operator", nil, 403},
			{"the unix socket", clusterAllocID, "", []func(*http.Request){overUnixSocket}, 403},
			{"an allocation that is not here", other, "migrate " + other, nil, 404},
		} {
			code, text := f.send("GET", snapshotPath(c.id), c.token, "", c.edit...)
			if code != c.want || f.forwarded != nil {
				t.Errorf("%s: %d %s", c.name, code, text)
			}
			if code != 200 {
				continue
			}
			var names []string
			for r := tar.NewReader(strings.NewReader(text)); ; {
				header, err := r.Next()
				if err != nil {
					break
				}
				names = append(names, header.Name)
			}
			if want := []string{"alloc/data", "alloc/data/a"}; !reflect.DeepEqual(names, want) {
				t.Errorf("got %v, want %v", names, want)
			}
		}
	}
	standalone := newClusterFixture(t, func(c *Config) { c.Cluster = nil })
	if code, text := standalone.send("GET", snapshotPath(clusterAllocID), "operator", ""); code != http.StatusNotImplemented {
		t.Errorf("without a cluster: %d %s", code, text)
	}
}
