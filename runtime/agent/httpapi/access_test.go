package httpapi

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/acl"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskexec"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// putInNamespaces stores a namespace, a job, an allocation, an evaluation, a deployment and a variable in each namespace. It returns
// the ids of the objects, which are the same for all kinds.
func (f *aclFixture) putInNamespaces(t testing.TB, namespaces ...string) (idByNamespace map[string]string) {
	t.Helper()
	idByNamespace = make(map[string]string)
	_, err := f.store.Update(t.Context(), func(tx *store.Txn) error {
		for _, ns := range namespaces {
			id := uuid.NewString()
			idByNamespace[ns] = id
			job := &api.Job{
				ID: new("job-" + ns), Name: new("job-" + ns), Namespace: &ns, Version: new(uint64(0)), Type: new("service"), Status: new("running"), CreateIndex: new(uint64(1)),
				TaskGroups: []*api.TaskGroup{{Name: new("group-" + ns), Tasks: []*api.Task{{Name: "task-" + ns}}}},
			}
			if ns != api.DefaultNamespace {
				tx.PutNamespace(&api.Namespace{Name: ns})
			}
			tx.PutJobAndVersion(job)
			tx.PutScheduledAllocation(&api.Allocation{ID: id, Name: "alloc-" + ns, Namespace: ns, JobID: "job-" + ns, Job: job, TaskGroup: "group-" + ns, ClientStatus: "running", NodeID: f.config.NodeID})
			tx.PutEvaluation(&api.Evaluation{ID: id, Namespace: ns, JobID: "job-" + ns})
			tx.PutDeployment(&api.Deployment{ID: id, Namespace: ns, JobID: "job-" + ns})
			tx.PutVariable(&api.Variable{Namespace: ns, Path: "var-" + ns, Items: api.VariableItems{"k": "secret"}})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return idByNamespace
}

// Each route but the open ones refuses a token without rights, or has nothing of the state in its reply.
func TestRoutesRefuseATokenWithoutRights(t *testing.T) {
	f := newACLFixture(t, nil).bootstrap(t)
	f.putNode(t)
	ids := f.putInNamespaces(t, "default", "prod")
	token := f.tokenWith(t, `namespace "elsewhere" { policy = "write" }`)
	for _, secret := range []string{token, "", unknownSecret} {
		for _, rt := range f.routes {
			if rt.access.isOpen || strings.HasPrefix(rt.pattern, "/v1/acl/") {
				continue
			}
			for _, method := range strings.Fields(rt.spaceSeparatedMethods) {
				for _, namespace := range []string{"default", "prod", "*"} {
					if namespace == "*" && method != "GET" && secret == token {
						continue // the right elsewhere counts, and the reply repeats what the request has
					}
					path := strings.NewReplacer("/v1/job/{id...}", "/v1/job/job-default", "/v1/var/{id...}", "/v1/var/var-default", "{id...}", ids["default"], "{id}", ids["default"]).Replace(rt.pattern)
					r := f.sendAs(secret, method, path+"?type=host&namespace="+namespace, `{"Job": {"ID": "job-default"}, "Prefix": "", "Text": "job", "Context": "all", "JobHCL": "x"}`)
					text := bodyText(r)
					for _, leak := range []string{"job-default", "job-prod", "alloc-", "group-", "task-", "var-default", ids["default"], ids["prod"], "no changes here"} { // the last text is that of the store, which rejects changes
						if strings.Contains(text, leak) && !strings.Contains(text, "Unknown ") && !strings.Contains(text, "not found") {
							t.Errorf("%q: %s %s in %s: status %d has %s: %s", secret, method, path, namespace, r.StatusCode, leak, text)
							break
						}
					}
					if method != "GET" && r.StatusCode < 400 && !strings.HasPrefix(path, "/v1/search") {
						t.Errorf("%q: %s %s in %s: status %d", secret, method, path, namespace, r.StatusCode)
					}
				}
			}
		}
	}
	if s := f.store.Snapshot(); len(s.Jobs(nil, "*", "")) != 2 || len(s.Variables(nil, "*", "")) != 2 {
		t.Error("an object was changed")
	}
}

func TestListsHaveOnlyVisibleObjects(t *testing.T) {
	f := newACLFixture(t, nil).bootstrap(t)
	f.putNode(t)
	ids := f.putInNamespaces(t, "default", "prod", "secret")
	reader := f.tokenWith(t, `namespace "*" {
  policy = "read"
  variables {
    path "*" { capabilities = ["read"] }
  }
}
namespace "secret" {
  policy = "deny"
  variables {
    path "*" { capabilities = ["deny"] }
  }
}
node { policy = "read" }`)
	for _, path := range []string{
		"/v1/jobs", "/v1/jobs/statuses", "/v1/jobs/health", "/v1/allocations", "/v1/evaluations", "/v1/deployments", "/v1/vars", "/v1/namespaces",
		"/v1/node/" + f.config.NodeID + "/allocations",
	} {
		for range 2 { // the second reply may come from the cache
			all := bodyText(f.sendAs(f.management, "GET", path+"?namespace=*", ""))
			some := bodyText(f.sendAs(reader, "GET", path+"?namespace=*", ""))
			if strings.Contains(some, "secret") || !strings.Contains(some, "prod") {
				t.Errorf("%s: %s", path, some)
			}
			if !strings.Contains(all, "secret") && !strings.HasPrefix(path, "/v1/node/") {
				t.Errorf("%s as management: %s", path, all)
			}
		}
	}
	for _, path := range []string{"/v1/allocation/", "/v1/evaluation/", "/v1/deployment/", "/v1/client/fs/ls/", "/v1/client/allocation/"} {
		suffix := ""
		if path == "/v1/client/allocation/" {
			suffix = "/stats"
		}
		foreign := f.sendAs(reader, "GET", path+ids["secret"]+suffix, "")
		absent := f.sendAs(reader, "GET", path+uuid.NewString()+suffix, "")
		if path == "/v1/client/fs/ls/" { // read-fs is missing in all namespaces
			if foreign.StatusCode != 403 || absent.StatusCode != 403 {
				t.Errorf("%s: %d and %d", path, foreign.StatusCode, absent.StatusCode)
			}
			continue
		}
		if foreign.StatusCode != 404 || absent.StatusCode != 404 {
			t.Errorf("%s: a foreign id is %d, an absent one %d", path, foreign.StatusCode, absent.StatusCode)
		}
	}
	var found struct{ Matches map[string][]any }
	f.mustDecode(t, f.sendAs(reader, "PUT", "/v1/search/fuzzy?namespace=*", `{"Text": "se", "Context": "all"}`), &found)
	for context, matches := range found.Matches {
		if len(matches) > 0 {
			t.Errorf("search finds %s %v", context, matches)
		}
	}
}

// A job is stored in the namespace of the query, or of the body, or in "default": the token needs the right there.
func TestRegisterNeedsTheRightInTheNamespaceOfTheJob(t *testing.T) {
	f := newACLFixture(t, nil).bootstrap(t)
	f.putInNamespaces(t, "default", "prod")
	onlyProd := f.tokenWith(t, `namespace "prod" { policy = "write" }`)
	onlyDefault := f.tokenWith(t, `namespace "default" { policy = "write" }`)
	job := func(namespace string) string {
		if namespace != "" {
			namespace = fmt.Sprintf(`, "Namespace": %q`, namespace)
		}
		return fmt.Sprintf(`{"Job": {"ID": "x", "Name": "x"%s, "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", "Driver": "mock"}]}]}}`, namespace)
	}
	for _, test := range []struct {
		query, body, token string
		refused            bool
	}{
		{"", job(""), onlyProd, true},
		{"", job(""), onlyDefault, false},
		{"?namespace=prod", job(""), onlyProd, false},
		{"?namespace=prod", job(""), onlyDefault, true},
		{"", job("prod"), onlyDefault, true},
		{"", job("prod"), onlyProd, false},
		{"?namespace=default", job("prod"), onlyProd, true},
		{"?namespace=default", job("prod"), onlyDefault, false},
		{"?namespace=prod", job("default"), onlyDefault, true},
	} {
		for _, path := range []string{"/v1/jobs", "/v1/job/x", "/v1/job/x/plan"} {
			r := f.sendAs(test.token, "PUT", path+test.query, test.body)
			if got := r.StatusCode == 403; got != test.refused {
				t.Errorf("%s%s %s: status %d %s, want refused %v", path, test.query, test.body, r.StatusCode, bodyText(r), test.refused)
			}
		}
	}
}

func TestMissingRightIsNamedForAValidTokenOnly(t *testing.T) {
	f := newACLFixture(t, nil).bootstrap(t)
	token := f.tokenWith(t, `namespace "default" { capabilities = ["list-jobs"] }`)
	for _, test := range []struct{ secret, path, want string }{
		{token, "/v1/job/web", `read-job in namespace "default"`},
		{token, "/v1/nodes", "node:read"},
		{token, "/v1/var/a", `read of variable "a" in namespace "default"`},
		{token, "/v1/acl/tokens", "management token"},
		{"", "/v1/job/web", ""},
		{unknownSecret, "/v1/job/web", ""},
	} {
		r := f.sendAs(test.secret, "GET", test.path, "")
		if got := r.Header.Get(missingRightHeader); r.StatusCode != 403 || got != test.want || bodyText(r) != "Permission denied" {
			t.Errorf("%s: status %d, header %q, want %q", test.path, r.StatusCode, got, test.want)
		}
	}
}

// Two tokens with other rights must not get each other's cached lists.
func TestCachedListIsNotSharedBetweenRights(t *testing.T) {
	f := newACLFixture(t, nil).bootstrap(t)
	for i := range 30 { // only long replies are cached
		f.putInNamespaces(t, fmt.Sprint("team-a-", i), fmt.Sprint("team-b-", i))
	}
	a, b := f.tokenWith(t, `namespace "team-a-*" { policy = "read" }`), f.tokenWith(t, `namespace "team-b-*" { policy = "read" }`)
	for range 2 {
		for _, test := range []struct{ secret, has, hasNot string }{{a, "job-team-a-", "job-team-b-"}, {b, "job-team-b-", "job-team-a-"}} {
			text := bodyText(f.sendAs(test.secret, "GET", "/v1/jobs?namespace=*", ""))
			if !strings.Contains(text, test.has) || strings.Contains(text, test.hasNot) {
				t.Errorf("want %s: %.300s", test.has, text)
			}
		}
	}
}

func TestBlockingQueryIsRefusedWhenTheRightEnds(t *testing.T) {
	for name, end := range map[string]func(*aclFixture, string){
		"token deleted": func(f *aclFixture, accessor string) { f.sendAs(f.management, "DELETE", "/v1/acl/token/"+accessor, "") },
		"policy denies": func(f *aclFixture, _ string) { f.putPolicy(t, "p", `namespace "default" { policy = "deny" }`) },
		"expired":       func(*aclFixture, string) { time.Sleep(time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newACLFixture(t, nil).bootstrap(t)
				f.putJob(t, "web")
				f.putPolicy(t, "p", `namespace "default" { policy = "read" }`)
				var token struct{ SecretID, AccessorID string }
				f.mustDecode(t, f.sendAs(f.management, "PUT", "/v1/acl/token", `{"Type": "client", "Policies": ["p"], "ExpirationTTL": "1m"}`), &token)
				for _, path := range []string{"/v1/jobs", "/v1/job/web"} {
					reply := make(chan *http.Response, 1)
					go func() { reply <- f.sendAs(token.SecretID, "GET", path+"?wait=5m&index=100000", "") }()
					synctest.Wait()
					if path == "/v1/jobs" { // both wait before the right ends
						continue
					}
					end(f, token.AccessorID)
					synctest.Wait()
					select {
					case r := <-reply:
						if r.StatusCode != 403 {
							t.Errorf("%s: status %d", path, r.StatusCode)
						}
					default:
						t.Errorf("%s still blocks", path)
					}
				}
				time.Sleep(10 * time.Minute) // ends the other query
			})
		})
	}
}

// streamUntilEnd reads a stream of a client until it ends. It returns when the stream has had a text. The trailer with the reason of
// the end follows the text of the stream.
func (f *aclFixture) streamUntilEnd(t *testing.T, secret, target, awaited string) (all <-chan string) {
	t.Helper()
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	r, err := http.NewRequestWithContext(t.Context(), "GET", server.URL+target, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Nomad-Token", secret)
	reply, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	done, seen := make(chan string, 1), make(chan struct{})
	seenByReader := seen
	go func() {
		defer reply.Body.Close()
		var text strings.Builder
		piece := make([]byte, 4096)
		for {
			n, err := reply.Body.Read(piece)
			text.Write(piece[:n])
			if seen != nil && strings.Contains(text.String(), awaited) {
				close(seen)
				seen = nil
			}
			if err != nil {
				done <- text.String() + reply.Trailer.Get(endOfStreamTrailer)
				return
			}
		}
	}()
	<-seenByReader
	return done
}

func TestEventStreamEndsWithTheRight(t *testing.T) {
	f := newACLFixture(t, nil).bootstrap(t)
	ids := f.putInNamespaces(t, "default", "secret")
	f.putPolicy(t, "p", "namespace \"*\" { policy = \"read\" }\nnamespace \"secret\" { policy = \"deny\" }")
	var token struct{ SecretID, AccessorID string }
	f.mustDecode(t, f.sendAs(f.management, "PUT", "/v1/acl/token", `{"Type": "client", "Policies": ["p"]}`), &token)
	ended := f.streamUntilEnd(t, token.SecretID, "/v1/event/stream?namespace=*&topic=Job&topic=Allocation", "job-default")
	if r := f.sendAs(f.management, "DELETE", "/v1/acl/token/"+token.AccessorID, ""); r.StatusCode != 200 {
		t.Fatal(bodyText(r))
	}
	text := <-ended // the test fails by its timeout if the stream goes on
	if !strings.Contains(text, "job-default") || strings.Contains(text, "job-secret") || strings.Contains(text, ids["secret"]) || !strings.HasSuffix(text, errRightsEnded.Error()) {
		t.Errorf("events: %s", text)
	}
	if r := f.sendAs(token.SecretID, "GET", "/v1/event/stream?topic=Job", ""); r.StatusCode != 403 {
		t.Errorf("a new stream: status %d", r.StatusCode)
	}
	other := f.tokenWith(t, `namespace "default" { policy = "read" }`)
	for query, want := range map[string]int{"topic=Node": 403, "topic=*": 403, "topic=ACLToken": 403, "topic=Job&namespace=secret": 403} {
		if r := f.sendAs(other, "GET", "/v1/event/stream?"+query, ""); r.StatusCode != want {
			t.Errorf("%s: status %d", query, r.StatusCode)
		}
	}
}

// The last frame of a monitor has the reason of its end; a monitor without frames has it in a trailer.
func TestMonitorSaysWhyItEnds(t *testing.T) {
	log := hclog.NewInterceptLogger(&hclog.LoggerOptions{Output: io.Discard})
	f := newACLFixture(t, func(c *Config) { c.MonitoredLog = log }).bootstrap(t)
	for query, want := range map[string]string{
		"":            fmt.Sprintf(`{"FileEvent":%q}`+"\n", errRightsEnded) + errRightsEnded.Error(),
		"?plain=true": errRightsEnded.Error(),
	} {
		f.putPolicy(t, "p", `agent { policy = "read" }`)
		var token struct{ SecretID string }
		f.mustDecode(t, f.sendAs(f.management, "PUT", "/v1/acl/token", `{"Type": "client", "Policies": ["p"]}`), &token)
		lines, stop := context.WithCancel(t.Context())
		go func() { // a line can be written before the monitor listens
			for lines.Err() == nil {
				log.Info("hello")
				time.Sleep(time.Millisecond)
			}
		}()
		ended := f.streamUntilEnd(t, token.SecretID, "/v1/agent/monitor"+query, "")
		f.putPolicy(t, "p", `agent { policy = "deny" }`)
		if text := <-ended; !strings.HasSuffix(text, want) {
			t.Errorf("%q: %q does not end with %q", query, text, want)
		}
		stop()
	}
}

// Only a management token sees the events of access control, which have no secrets.
func TestEventsOfAccessControl(t *testing.T) {
	f := newACLFixture(t, nil).bootstrap(t)
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	secret := f.tokenWith(t, `node { policy = "read" }`)
	var role struct{ ID string }
	f.putPolicy(t, "for-role", `node { policy = "read" }`)
	f.mustDecode(t, f.sendAs(f.management, "PUT", "/v1/acl/role", `{"Name": "r", "Policies": [{"Name": "for-role"}]}`), &role)
	f.sendAs(f.management, "DELETE", "/v1/acl/role/"+role.ID, "")
	f.sendAs(f.management, "DELETE", "/v1/acl/policy/for-role", "")
	client, err := api.NewClient(&api.Config{Address: server.URL, SecretID: f.management})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events, err := client.EventStream().Stream(ctx, map[api.Topic][]string{store.TopicACLToken: {"*"}, store.TopicACLPolicy: {"for-role"}, store.TopicACLRole: {"r"}}, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for len(got) < 6 {
		for _, e := range (<-events).Events {
			got = append(got, e.Type)
			if text := fmt.Sprint(e.Payload); strings.Contains(text, secret) || strings.Contains(text, f.management) {
				t.Errorf("an event has a secret: %s", text)
			}
		}
	}
	want := []string{"ACLTokenUpserted", "ACLTokenUpserted", "ACLPolicyUpserted", "ACLRoleUpserted", "ACLRoleDeleted", "ACLPolicyDeleted"}
	if !slices.Equal(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}
	if r := f.sendAs(secret, "GET", "/v1/event/stream?topic=ACLPolicy", ""); r.StatusCode != 403 {
		t.Errorf("topic ACLPolicy without management: status %d", r.StatusCode)
	}
}

// A client of the unix socket has all rights if it is root or the user of the agent; a client certificate alone has none.
func TestAccessControlWithoutToken(t *testing.T) {
	f := newACLFixture(t, nil).bootstrap(t)
	send := func(edit func(*http.Request)) int {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("GET", "http://localhost/v1/jobs", nil)
		edit(r)
		f.ServeHTTP(w, r)
		return w.Code
	}
	withPeer := func(peer unixSocketPeer, token string) func(*http.Request) {
		return func(r *http.Request) {
			*r = *r.WithContext(context.WithValue(r.Context(), unixSocketContextKey{}, peer))
			if token != "" {
				r.Header.Set("X-Nomad-Token", token)
			}
		}
	}
	weak := f.tokenWith(t, `node { policy = "read" }`)
	for name, test := range map[string]struct {
		edit func(*http.Request)
		want int
	}{
		"tcp":                          {func(*http.Request) {}, 403},
		"root at the socket":           {withPeer(unixSocketPeer{0, true}, ""), 200},
		"another user at the socket":   {withPeer(unixSocketPeer{4242, true}, ""), 403},
		"unknown user at the socket":   {withPeer(unixSocketPeer{0, false}, ""), 403},
		"root with a token that fails": {withPeer(unixSocketPeer{0, true}, weak), 403},
		"root with an unknown token":   {withPeer(unixSocketPeer{0, true}, unknownSecret), 403},
	} {
		if got := send(test.edit); got != test.want {
			t.Errorf("%s: status %d, want %d", name, got, test.want)
		}
	}
}

// Each route says who may use it; the zero value would refuse everybody.
func TestEachRouteHasAnAccess(t *testing.T) {
	for _, rt := range newFixture(t, nil).routes {
		if !rt.access.isOpen && rt.access.missingRight == nil {
			t.Errorf("%s %s has no access", rt.spaceSeparatedMethods, rt.pattern)
		}
	}
}

// A token without rights lacks one on each route, but where the reply has only what the token may see.
func TestEachRouteNeedsARight(t *testing.T) {
	var without []string
	for _, rt := range newFixture(t, nil).routes {
		r := &request{Request: httptest.NewRequest("PUT", "/", nil), namespace: "default", pathID: "x"}
		if !rt.access.isOpen && rt.access.missingRight(r, new(acl.Rights)) == "" && !strings.HasPrefix(rt.pattern, "/v1/acl/") {
			without = append(without, rt.pattern)
		}
	}
	slices.Sort(without)
	want := []string{
		"/v1/client/allocation/{id...}", "/v1/client/fs/{id...}", "/v1/event/stream", "/v1/namespaces", "/v1/node/pools", "/v1/search", "/v1/search/fuzzy", "/v1/service/", "/v1/var/", "/v1/var/{id...}", "/v1/vars",
	}
	if !slices.Equal(without, want) {
		t.Errorf("routes without a right %q, want %q", without, want)
	}
}

// The open routes are those of the recording, and additions that show nothing.
func TestOpenRoutes(t *testing.T) {
	var open []string
	for _, rt := range newFixture(t, nil).routes {
		if rt.access.isOpen && !strings.Contains(rt.summary, "Enterprise") {
			open = append(open, rt.pattern)
		}
	}
	slices.Sort(open)
	want := []string{
		"/", "/.well-known/jwks.json", "/.well-known/openid-configuration", "/ui/", "/ui/{id...}", "/v1/acl/bootstrap", "/v1/acl/token/onetime/exchange",
		"/v1/acl/{id...}", "/v1/agent/health", "/v1/agent/join", "/v1/agent/lite-proof", "/v1/agent/login", "/v1/client/allocation/{id}/snapshot", "/v1/openapi.json",
		"/v1/regions", "/v1/status/leader", "/v1/status/peers",
	}
	if !slices.Equal(open, want) {
		t.Errorf("open routes %q, want %q", open, want)
	}
}

// BenchmarkRequestWithAccessControl measures what a token with 100 policies adds to a request.
func BenchmarkRequestWithAccessControl(b *testing.B) {
	for _, enabled := range []bool{false, true} {
		b.Run(fmt.Sprintf("enabled=%v", enabled), func(b *testing.B) {
			secret, handler := "", http.Handler(nil)
			if enabled {
				f := newACLFixture(b, nil).bootstrap(b)
				var names []string
				for i := range 100 {
					name := fmt.Sprint("p", i)
					f.putPolicy(b, name, fmt.Sprintf("namespace \"team-%d-*\" { policy = \"read\" }\nnamespace \"default\" { policy = \"read\" }", i))
					names = append(names, fmt.Sprintf("%q", name))
				}
				var token struct{ SecretID string }
				f.mustDecode(b, f.sendAs(f.management, "PUT", "/v1/acl/token", `{"Type": "client", "Policies": [`+strings.Join(names, ",")+`]}`), &token)
				secret, handler = token.SecretID, f
			} else {
				handler = newFixture(b, nil)
			}
			for b.Loop() {
				r := httptest.NewRequest("GET", "http://localhost/v1/jobs", nil)
				r.Header.Set("X-Nomad-Token", secret)
				handler.ServeHTTP(httptest.NewRecorder(), r)
			}
		})
	}
}

// A session is refused in the session, because clients show only its errors. Browsers send their token in it.
func TestExecSessionUnderAccessControl(t *testing.T) {
	f := newACLFixture(t, nil).bootstrap(t)
	f.putInNamespaces(t, "default")
	address := f.listen(t)
	canExec := f.tokenWith(t, `namespace "default" { capabilities = ["alloc-exec"] }`)
	canRead := f.tokenWith(t, `namespace "default" { policy = "read" }`)
	path := "/v1/client/allocation/" + uuid.NewString() + `/exec?task=t&command=["true"]`
	refused, unknown := "closed 1011 Permission denied", "closed 1008 Unknown allocation"
	for _, test := range []struct{ name, query, header, handshake, want string }{
		{"the right in the header", "", canExec, "", unknown},
		{"the right in the session", "&ws_handshake=true", "", canExec, unknown},
		{"another right in the header", "", canRead, "", refused},
		{"another right in the session", "&ws_handshake=true", "", canRead, refused},
		{"an unknown token in the session", "&ws_handshake=true", "", unknownSecret, refused},
		{"an unknown token in the header", "", unknownSecret, "", refused},
		{"no token", "", "", "", refused},
	} {
		header := http.Header{}
		if test.header != "" {
			header.Set("X-Nomad-Token", test.header)
		}
		conn, _, err := websocket.Dial(t.Context(), "http://"+address+path+test.query, &websocket.DialOptions{HTTPHeader: header})
		if err != nil {
			t.Fatal(test.name, err)
		}
		c := &execSessionClient{t, conn}
		if test.query != "" {
			c.sendMessage(fmt.Sprintf(`{"version":1,"auth_token":%q}`, test.handshake))
		}
		if got := c.readMessage(); !strings.HasPrefix(got, test.want) {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
		conn.CloseNow()
	}
}

func TestExecSessionEndsWithTheRight(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	running := make(chan struct{})
	c, ended := startExecSession(t, ctx, taskexec.Command{RunInTask: func(ctx context.Context, _ driver.Exec) (*driver.ExitResult, error) {
		close(running)
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}})
	c.sendMessage(`{}`)
	<-running
	cancel(errRightsEnded)
	if got := c.readMessage(); got != "closed 1011 "+errRightsEnded.Error() {
		t.Errorf("got %s", got)
	}
	wantClosed(t, "session", ended)
}

// The client that Terraform's provider uses creates, reads, changes and deletes objects, and a second reading shows no difference.
func TestGoClientReadsWhatItHasWritten(t *testing.T) {
	f := newACLFixture(t, nil).bootstrap(t)
	client, err := api.NewClient(&api.Config{Address: "http://" + f.listen(t), SecretID: f.management})
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, description := range []string{"one", "two"} {
		policy := &api.ACLPolicy{Name: "p", Description: description, Rules: `namespace "default" { policy = "read" }`, JobACL: &api.JobACL{Namespace: "default", JobID: "web"}}
		_, err := client.ACLPolicies().Upsert(policy, nil)
		must(err)
		for range 2 {
			got, _, err := client.ACLPolicies().Info("p", nil)
			must(err)
			got.CreateIndex, got.ModifyIndex = 0, 0
			if !reflect.DeepEqual(got, policy) {
				t.Errorf("policy %+v, want %+v", got, policy)
			}
		}
	}
	role, _, err := client.ACLRoles().Create(&api.ACLRole{Name: "r", Policies: []*api.ACLRolePolicyLink{{Name: "p"}}}, nil)
	must(err)
	role.Description = "changed"
	role, _, err = client.ACLRoles().Update(role, nil)
	must(err)
	if got, _, err := client.ACLRoles().Get(role.ID, nil); err != nil || !reflect.DeepEqual(got, role) {
		t.Errorf("role %+v, want %+v, %v", got, role, err)
	}
	token, _, err := client.ACLTokens().Create(&api.ACLToken{Name: "t", Type: "client", Policies: []string{"p"}, Roles: []*api.ACLTokenRoleLink{{ID: role.ID}}, ExpirationTTL: time.Hour}, nil)
	must(err)
	token.Name = "renamed"
	token, _, err = client.ACLTokens().Update(token, nil)
	must(err)
	if got, _, err := client.ACLTokens().Info(token.AccessorID, nil); err != nil || !reflect.DeepEqual(got, token) || got.SecretID == "" {
		t.Errorf("token %+v, want %+v, %v", got, token, err)
	}
	_, err = client.ACLTokens().Delete(token.AccessorID, nil)
	must(err)
	_, err = client.ACLRoles().Delete(role.ID, nil)
	must(err)
	_, err = client.ACLPolicies().Delete("p", nil)
	must(err)
	if _, _, err := client.ACLTokens().Info(token.AccessorID, nil); err == nil {
		t.Error("a deleted token is found")
	}
}
