package httpapi

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"io/fs"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/internal/hoststats"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/agent/collect"
	"github.com/nomad-lite/nomad-lite/runtime/agent/history"
	"github.com/nomad-lite/nomad-lite/runtime/core/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/core/tasksteps"
	"github.com/nomad-lite/nomad-lite/runtime/explain/conditions"
	"github.com/nomad-lite/nomad-lite/runtime/job/admission"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/taskfiles"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/fingerprint"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

func TestMain(m *testing.M) {
	// Most of the parallel tests wait and use no CPU time. The flag of the command line replaces this value.
	_ = flag.Set("test.parallel", "8")
	os.Exit(m.Run())
}

// stubNode is a node without running tasks.
type stubNode struct {
	transitionsByTask map[string][]tasksteps.Transition // of each allocation
}

func (stubNode) AllocRunner(string) *allocrunner.Runner { return nil }
func (n stubNode) TransitionsByTask(string) map[string][]tasksteps.Transition {
	return n.transitionsByTask
}
func (stubNode) RemoveDirOfEndedAlloc(context.Context, string) error { return errors.New("not here") }
func (stubNode) RemoveDirsOfAllEndedAllocs()                         {}
func (stubNode) CheckHookAttachments(context.Context, *api.Job) ([]admission.HookAttachmentFault, []error) {
	return nil, nil
}

func (stubNode) AllocDir(id string) (*allocdir.Dir, error)           { return allocdir.New(os.DevNull, id) }
func (stubNode) OpenAllocFiles(string) (*taskfiles.AllocDir, error)  { return nil, fs.ErrNotExist }
func (stubNode) Host() (h fingerprint.Host)                          { return h }
func (stubNode) HostStats(context.Context) (s hoststats.Stats)       { return s }
func (stubNode) DeviceStats(context.Context) []*api.DeviceGroupStats { return nil }
func (stubNode) Meta() (m api.NodeMetaResponse)                      { return m }

func (stubNode) TaskConfigSchema(_ context.Context, driver string) (*hclspec.Spec, error) {
	switch driver {
	case "mock":
	case "schemaless":
		return nil, nil
	default:
		return nil, errors.New("not here")
	}
	return hclspec.Object(map[string]*hclspec.Spec{"run_for": hclspec.Attr("run_for", "string", false)}), nil
}

func (stubNode) DriverCapabilities(context.Context, string) (*driver.Capabilities, error) {
	return &driver.Capabilities{MountConfigs: driver.MountConfigsNone}, nil
}

func (stubNode) SetMeta(context.Context, map[string]*string) error { return errors.New("not here") }

// testNode has all ports of a node.
type testNode interface {
	Allocs
	AllocFiles
	JobPlugins
	Metadata
	Host() fingerprint.Host
	HostStats(context.Context) hoststats.Stats
	DeviceStats(context.Context) []*api.DeviceGroupStats
}

// setNode sets the fields of an API's configuration that a node gives.
func setNode(c *Config, n testNode) {
	c.Allocs, c.Files, c.Plugins, c.Metadata, c.Host, c.HostStats, c.DeviceStats = n, n, n, n, n.Host(), n.HostStats, n.DeviceStats
}

// fixture is an API with a store and without an agent.
type fixture struct {
	*API
	store   *store.Store
	metrics *collect.MetricsCollector
}

func newFixture(t testing.TB, edit func(*Config)) *fixture {
	t.Helper()
	dir := t.TempDir()
	s, err := store.Open(t.Context(), store.Config{StateFilePath: filepath.Join(dir, "state.db"), KeyFile: filepath.Join(dir, "keyring.json"), Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	c := Config{Store: s, Conditions: &stubConditions{}, NodeID: uuid.NewString(), Region: api.GlobalRegion, AdvertiseAddr: "10.1.2.3:4646", Logger: hclog.NewNullLogger()}
	setNode(&c, stubNode{})
	usage, err := history.OpenFile(filepath.Join(dir, "history"), history.DefaultSize)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { usage.Close() })
	c.History = fileHistory{usage}
	c.Scheduler = scheduler.New(scheduler.Config{Store: rejectingStore{s}, Logger: hclog.NewNullLogger()})
	if edit != nil {
		edit(&c)
	}
	collector := collect.New(s, collect.Sources{
		Allocs: c.Allocs, HostStats: c.HostStats, Plugins: func() []supervisor.PluginStatus { return nil },
		Conditions: conditions.NewTracker(func() conditions.Facts { return conditions.Facts{Now: time.Now()} }),
	}, c.NodeID)
	c.Metrics = collector
	return &fixture{New(c), s, collector}
}

// stubConditions has fixed conditions.
type stubConditions struct{ found []conditions.Condition }

func (c *stubConditions) Report() conditions.Report {
	return conditions.Report{LookedAt: time.Unix(0, 0).UTC(), Conditions: c.found}
}

// fileHistory is a history without a recorder.
type fileHistory struct{ *history.File }

func (h fileHistory) Series(_ context.Context, p history.Period, keysByGroup map[string][]history.Key) (map[string]*history.Series, error) {
	return h.ReadSeries(p, keysByGroup)
}

// rejectingStore rejects all changes.
type rejectingStore struct{ *store.Store }

func (rejectingStore) Update(context.Context, func(*store.Txn) error) (uint64, error) {
	return 0, &scheduler.RequestError{Kind: scheduler.RequestInvalid, Text: "no changes here"}
}

func (f *fixture) putJob(t *testing.T, id string) uint64 {
	t.Helper()
	index, err := f.store.Update(t.Context(), func(tx *store.Txn) error {
		tx.PutJobAndVersion(&api.Job{ID: &id, Name: &id, Namespace: new("default"), Version: new(uint64(0)), Type: new("service")})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return index
}

// routeRequest is a request that a route serves.
type routeRequest struct {
	method, path string
	pattern      string // of the route
	isRead       bool   // the method is GET or HEAD
}

// routeRequests returns a request for each route and each method that it serves.
func (f *fixture) routeRequests() iter.Seq[routeRequest] {
	return func(yield func(routeRequest) bool) {
		for _, rt := range f.routes {
			path := strings.NewReplacer("{id...}", "x", "{id}", "x").Replace(rt.pattern)
			for _, method := range []string{"GET", "HEAD", "PUT", "POST", "DELETE", "PATCH"} {
				isRead, servedAs := method == "GET" || method == "HEAD", method
				if isRead {
					servedAs = "GET"
				}
				served, _, ok, _ := findRoute(f.routes, servedAs, path)
				if ok && !yield(routeRequest{method, path, served.pattern, isRead}) {
					return
				}
			}
		}
	}
}

func (f *fixture) send(method, target string, body io.Reader, header ...string) *http.Response {
	r := httptest.NewRequest(method, target, body)
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
		} else {
			r.Header.Set(header[i], header[i+1])
		}
	}
	if r.Host == "example.com" { // the default of httptest
		r.Host = "127.0.0.1:4646"
	}
	w := httptest.NewRecorder()
	f.ServeHTTP(w, r)
	return w.Result()
}

func bodyText(r *http.Response) string {
	b, _ := io.ReadAll(r.Body)
	return string(b)
}

func TestEachRouteIsFound(t *testing.T) {
	f := newFixture(t, nil)
	seen := make(map[string]bool)
	for _, rt := range f.routes {
		path := strings.NewReplacer("{id...}", "a/b", "{id}", "x").Replace(rt.pattern)
		for method := range strings.FieldsSeq(rt.spaceSeparatedMethods) {
			got, id, found, _ := findRoute(f.routes, method, path)
			if !found || got.pattern != rt.pattern {
				t.Errorf("%s %s leads to %q", method, path, got.pattern)
			}
			if strings.Contains(rt.pattern, "{id") && id != "a/b" && id != "x" {
				t.Errorf("%s %s: id %q", method, path, id)
			}
			if key := method + " " + rt.pattern; seen[key] {
				t.Errorf("%s is there twice", key)
			} else {
				seen[key] = true
			}
		}
	}
}

func TestReplies(t *testing.T) {
	f := newFixture(t, nil)
	f.putJob(t, "a/b")
	for _, c := range []struct {
		name, method, target, body string
		header                     []string
		code                       int
		want                       string
	}{
		{"a job whose id has a slash", "GET", "/v1/job/a%2Fb", "", nil, 200, ""},
		{"its allocations", "GET", "/v1/job/a%2Fb/allocations", "", nil, 200, "[]"},
		{"no deployment is null", "GET", "/v1/job/a%2Fb/deployment", "", nil, 200, "null"},
		{"an unknown job", "GET", "/v1/job/nope", "", nil, 404, "job not found"},
		{"versions of an unknown job", "GET", "/v1/job/nope/versions", "", nil, 404, "job versions not found"},
		{"a job of another namespace", "GET", "/v1/job/a%2Fb?namespace=x", "", nil, 404, "job not found"},
		{"an unknown path", "GET", "/v1/nope", "", nil, 404, ""},
		{"a wrong method", "POST", "/v1/nodes", "", nil, 405, "Invalid method"},
		{"an id that is none", "GET", "/v1/allocation/zz", "", nil, 500, "alloc lookup failed: index error: UUID must be 36 characters"},
		{"an unknown allocation", "GET", "/v1/allocation/" + uuid.NewString(), "", nil, 404, "alloc not found"},
		{"a wrong index", "GET", "/v1/jobs?index=x", "", nil, 400, "Invalid index"},
		{"a wrong wait", "GET", "/v1/jobs?wait=x", "", nil, 400, "Invalid wait time"},
		{"a wrong stale", "GET", "/v1/jobs?stale=x", "", nil, 400, "Expect `true` or `false` for `stale` query string parameter"},
		{"an empty stale", "GET", "/v1/jobs?prefix=zz&stale=", "", nil, 200, "[]"},
		{"another region", "GET", "/v1/jobs?region=mars", "", nil, 500, "No path to region"},
		{"a registration without body", "PUT", "/v1/jobs", "", nil, 400, "Request body is empty"},
		{"one without a job", "PUT", "/v1/jobs", "{}", nil, 400, "Job must be specified"},
		{"one without an id", "PUT", "/v1/jobs", `{"Job":{}}`, nil, 400, "Job ID hasn't been provided"},
		{"one for another job", "PUT", "/v1/job/x", `{"Job":{"ID":"y"}}`, nil, 400, "Job ID does not match name"},
		{"one that is not valid", "PUT", "/v1/jobs", `{"Job":{"ID":"y","Type":"batch"}}`, nil, 500, "1 error occurred:\n\t* Missing job task groups\n\n"},
		{"a purge that is no truth value", "DELETE", "/v1/job/x?purge=zz", "", nil, 500, `Failed to parse value of "purge" (zz) as a bool: strconv.ParseBool: parsing "zz": invalid syntax`},
		{"a restart of what is not there", "PUT", "/v1/client/allocation/x/restart", "", nil, 404, `Unknown allocation "x"`},
		{"the leader", "GET", "/v1/status/leader", "", nil, 200, `"10.1.2.3:4647"`},
		{"an answer for people", "GET", "/v1/regions?pretty", "", nil, 200, "[\n    \"global\"\n]\n"},

		{"a name that is not ours", "GET", "/v1/regions", "", []string{"Host", "evil.example:4646"}, 403, "Host evil.example:4646 is not a name of this agent"},
		{"localhost", "GET", "/v1/regions", "", []string{"Host", "localhost:4646"}, 200, ""},
		{"an IPv6 address", "GET", "/v1/regions", "", []string{"Host", "[::1]:4646"}, 200, ""},
		{"another web site", "GET", "/v1/regions", "", []string{"Origin", "https://evil.example"}, 403, "requests of other web sites are not answered"},
		{"another web site without an origin", "GET", "/v1/regions", "", []string{"Sec-Fetch-Site", "cross-site"}, 403, "requests of other web sites are not answered"},
		{"our own web page", "GET", "/v1/regions", "", []string{"Origin", "http://127.0.0.1:4646"}, 200, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := f.send(c.method, c.target, strings.NewReader(c.body), c.header...)
			got := bodyText(r)
			if r.StatusCode != c.code || c.want != "" && got != c.want {
				t.Errorf("%d %q, want %d %q", r.StatusCode, got, c.code, c.want)
			}
			if kind := r.Header.Get("Content-Type"); c.code != 200 && kind != "text/plain; charset=utf-8" {
				t.Errorf("an error has content type %q", kind)
			}
		})
	}
}

func TestToken(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.OperatorToken = "secret" })
	for _, c := range []struct {
		name   string
		target string
		header []string
		code   int
	}{
		{"none", "/v1/regions", nil, 403},
		{"a wrong one", "/v1/regions", []string{"X-Nomad-Token", "secre"}, 403},
		{"the right one", "/v1/regions", []string{"X-Nomad-Token", "secret"}, 200},
		{"as a bearer", "/v1/regions", []string{"Authorization", "bearer secret"}, 200},
		{"as a password", "/v1/regions", []string{"Authorization", "Basic secret"}, 403},
		{"none, for the health", "/v1/agent/health?type=server", nil, 200},
		{"none, for what is not there", "/v1/nope", nil, 403},
	} {
		t.Run(c.name, func(t *testing.T) {
			if r := f.send("GET", c.target, nil, c.header...); r.StatusCode != c.code {
				t.Errorf("status %d, want %d", r.StatusCode, c.code)
			}
		})
	}
}

// Without a token, a client gets only the public paths.
func TestRoutesRequireToken(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.OperatorToken = "secret" })
	for r := range f.routeRequests() {
		isPublic := publicPaths[r.path] || isWebUIPath(r.path)
		if got := f.send(r.method, r.path, strings.NewReader("{}")); !isPublic && got.StatusCode != http.StatusForbidden {
			t.Errorf("%s %s: status %d", r.method, r.path, got.StatusCode)
		}
	}
}

func TestBodyTooLarge(t *testing.T) {
	f := newFixture(t, nil)
	r := f.send("PUT", "/v1/job/x/dispatch", strings.NewReader(strings.Repeat("x", maxBodyBytes+1)))
	if r.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("status %d", r.StatusCode)
	}
}

func TestCompression(t *testing.T) {
	f := newFixture(t, nil)
	for range 20 {
		f.putJob(t, uuid.NewString())
	}
	r := f.send("GET", "/v1/jobs", nil, "Accept-Encoding", "gzip")
	if r.Header.Get("Content-Encoding") != "gzip" {
		t.Fatal("a long answer is not compressed")
	}
	z, err := gzip.NewReader(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	var jobs []api.JobListStub
	if err := json.NewDecoder(z).Decode(&jobs); err != nil || len(jobs) != 20 || jobs[0].JobSummary == nil {
		t.Errorf("%d jobs, %v", len(jobs), err)
	}
	if r := f.send("GET", "/v1/regions", nil, "Accept-Encoding", "gzip"); r.Header.Get("Content-Encoding") != "" {
		t.Error("a short answer is compressed")
	}
}

func TestBlockingQuery(t *testing.T) {
	f := newFixture(t, nil)
	index := f.putJob(t, "web")
	r := f.send("GET", "/v1/job/web", nil)
	if got := r.Header.Get("X-Nomad-Index"); got != "1" || index != 1 {
		t.Fatalf("index %q", got)
	}
	if r.Header.Get("X-Nomad-Lastcontact") != "0" || r.Header.Get("X-Nomad-Knownleader") != "true" {
		t.Errorf("headers %v", r.Header)
	}

	// A request with the current index blocks until its wait time has passed.
	begin := time.Now()
	if r := f.send("GET", "/v1/job/web?index=1&wait=50ms", nil); r.StatusCode != 200 || time.Since(begin) < 50*time.Millisecond {
		t.Errorf("status %d after %v", r.StatusCode, time.Since(begin))
	}

	// A change of another object does not end the blocking query, a change of the job does.
	answered := make(chan *http.Response)
	go func() { answered <- f.send("GET", "/v1/job/web?index=1&wait=60s", nil) }()
	f.putJob(t, "other")
	select {
	case <-answered:
		t.Fatal("answered for another job")
	case <-time.After(50 * time.Millisecond):
	}
	f.putJob(t, "web")
	if r := <-answered; r.Header.Get("X-Nomad-Index") != "3" {
		t.Errorf("index %q", r.Header.Get("X-Nomad-Index"))
	}

	// A blocking query for an object that does not exist yet returns when the object is created.
	go func() { answered <- f.send("GET", "/v1/job/new?index=3&wait=60s", nil) }()
	f.putJob(t, "new")
	if r := <-answered; r.StatusCode != 200 {
		t.Errorf("status %d", r.StatusCode)
	}
}

func TestServeEndsBlockingRequests(t *testing.T) {
	f := newFixture(t, nil)
	asked := make(chan struct{})
	f.routes = []route{{"GET", "/v1/job/{id...}", openToAll(), func(r *request) (any, error) {
		close(asked)
		return (&jobReadHandler{f.store}).read(r)
	}, routeDoc{}}}
	index := f.putJob(t, "web")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error)
	go func() { served <- f.Serve(ctx, l) }()
	client, err := api.NewClient(&api.Config{Address: "http://" + l.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	answered := make(chan error)
	go func() {
		_, _, err := client.Jobs().Info("web", &api.QueryOptions{WaitIndex: index, WaitTime: time.Minute})
		answered <- err
	}()
	<-asked
	cancel()
	for _, c := range []<-chan error{answered, served} {
		select {
		case err := <-c:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Fatal("it goes on")
		}
	}
}
