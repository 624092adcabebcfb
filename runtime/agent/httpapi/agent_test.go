package httpapi

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"runtime/pprof"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"
	"github.com/prometheus/common/expfmt"

	"github.com/nomad-lite/nomad-lite/internal/hoststats"
	"github.com/nomad-lite/nomad-lite/internal/metrics"
	"github.com/nomad-lite/nomad-lite/runtime/explain/conditions"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// putNode stores the node of the fixture.
func (f *fixture) putNode(t testing.TB) {
	t.Helper()
	if _, err := f.store.Update(t.Context(), func(tx *store.Txn) error {
		tx.PutNodeWithStorageEvents(&api.Node{
			ID: f.config.NodeID, Name: "n1", Datacenter: "dc1", Status: api.NodeStatusReady, NodePool: "default",
			NodeResources:     &api.NodeResources{Memory: api.NodeMemoryResources{MemoryMB: 1000}},
			ReservedResources: &api.NodeReservedResources{Memory: api.NodeReservedMemoryResources{MemoryMB: 100}},
		})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// putAlloc stores a running allocation on the fixture's node.
func (f *fixture) putAlloc(t testing.TB, job string) string {
	t.Helper()
	id := uuid.NewString()
	if _, err := f.store.Update(t.Context(), func(tx *store.Txn) error {
		tx.PutScheduledAllocation(&api.Allocation{
			ID: id, Namespace: "default", JobID: job, Job: tx.Job(nil, "default", job), TaskGroup: "g", NodeID: f.config.NodeID,
			Name: job + ".g[0]", ClientStatus: api.AllocClientStatusRunning, DesiredStatus: api.AllocDesiredStatusRun,
			AllocatedResources: &api.AllocatedResources{
				Shared: api.AllocatedSharedResources{DiskMB: 300},
				Tasks: map[string]*api.AllocatedTaskResources{"t": {
					Cpu: api.AllocatedCpuResources{CpuShares: 100}, Memory: api.AllocatedMemoryResources{MemoryMB: 256, MemoryMaxMB: 512},
				}},
			},
			TaskStates: map[string]*api.TaskState{"t": {State: "running", Restarts: 3}},
		})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return id
}

// The leader is a quoted address, and the root path redirects to the web page. (checklist 1)
func TestLeaderAndRootPage(t *testing.T) {
	f := newFixture(t, nil)
	f.runRequests(t, []requestCase{
		{"the leader is an address in quotes", "GET", "/v1/status/leader", "", 200, `"10.1.2.3:4647"`},
		{"the root leads to the page for people", "GET", "/?a=b", "", 307, ""},
		{"the page is HTML", "GET", "/ui/", "", 200, "…<!doctype html>"},
		{"what is below it too", "GET", "/ui/jobs/web@default", "", 200, "…<!doctype html>"},
	})
	if to := f.send("GET", "/?a=b", nil).Header.Get("Location"); to != "/ui/?a=b" {
		t.Errorf("the root leads to %s", to)
	}
	if r := f.send("GET", "/v1/nope", nil); r.StatusCode != 404 || bodyText(r) != "" {
		t.Errorf("an unknown path: %d", r.StatusCode)
	}
}

func TestDisabledPage(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.OptionalRoutes.DisableWebPage = true })
	for _, path := range []string{"/ui/", "/ui/jobs", "/ui/static/main.js"} {
		if r := f.send("GET", path, nil); r.StatusCode != 404 || !strings.Contains(bodyText(r), "the web page is disabled") {
			t.Errorf("%s: status %d", path, r.StatusCode)
		}
	}
}

// Each reply to a GET request for the state has an index. (checklist 2)
func TestRepliesFromTheStateHaveAnIndex(t *testing.T) {
	f := newFixture(t, nil)
	f.putNode(t)
	f.putJob(t, "web")
	for _, rt := range f.routes {
		if !rt.allowsMethod("GET") || !strings.Contains(strings.Join(rt.params, " "), "index wait") || rt.contentType != "" {
			continue // the route does not read the state
		}
		if strings.HasPrefix(rt.pattern, "/v1/acl/") {
			continue // the test of tokens reads these routes
		}
		path := strings.NewReplacer("/pool/{id}", "/pool/default", "{id...}", "web", "{id}", f.config.NodeID).Replace(rt.pattern)
		path = strings.Replace(path, "/v1/allocation/web", "/v1/allocation/"+f.config.NodeID, 1) // no such allocation exists
		h := f.send("GET", path+"?version=0", nil).Header
		if index := h.Get("X-Nomad-Index"); index == "" || index == "0" || h.Get("X-Nomad-Lastcontact") != "0" || h.Get("X-Nomad-Knownleader") != "true" {
			t.Errorf("%s: headers %v", path, h)
		}
	}
}

// A blocking query without a change returns after its wait time. (checklist 3)
func TestBlockingQueryReturnsAfterItsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, nil)
		index := f.putJob(t, "web")
		begin := time.Now()
		r := f.send("GET", "/v1/jobs?index=1&wait=2s", nil)
		if took := time.Since(begin); took < 2*time.Second || took > 2200*time.Millisecond || r.Header.Get("X-Nomad-Index") != "1" || index != 1 {
			t.Errorf("index %s after %v", r.Header.Get("X-Nomad-Index"), took)
		}
		answered := make(chan *http.Response)
		begin = time.Now()
		go func() { answered <- f.send("GET", "/v1/jobs?index=1&wait=2s", nil) }()
		time.Sleep(time.Second)
		f.putJob(t, "other")
		if r := <-answered; r.Header.Get("X-Nomad-Index") != "2" || time.Since(begin) > 1100*time.Millisecond {
			t.Errorf("index %s after %v", r.Header.Get("X-Nomad-Index"), time.Since(begin))
		}
	})
}

// A missing or malformed body is rejected with status 400. (checklist 4)
func TestMissingOrPartialBodyIsRejected(t *testing.T) {
	f := newFixture(t, nil)
	for _, path := range []string{"/v1/jobs", "/v1/job/x/revert", "/v1/job/x/stable"} {
		f.runRequests(t, []requestCase{
			{"no body, " + path, "PUT", path, "", 400, "Request body is empty"},
			{"half a body, " + path, "PUT", path, `{"Job": {`, 400, "…unexpected end of JSON input"},
		})
	}
}

// Requests succeed with region=global, any token, and namespace=* for an object with an id. (checklist 37)
func TestRegionNamespaceAndToken(t *testing.T) {
	f := newFixture(t, nil)
	f.putNode(t)
	f.putJob(t, "web")
	alloc := f.putAlloc(t, "web")
	for _, c := range []struct {
		name, target string
		header       []string
	}{
		{"the region global", "/v1/jobs?region=global", nil},
		{"any region, for the client", "/v1/client/stats?region=mars", nil},
		{"any token", "/v1/jobs", []string{"X-Nomad-Token", "zzz"}},
		{"any token of bearers", "/v1/jobs", []string{"Authorization", "Bearer zzz"}},
		{"a password", "/v1/jobs", []string{"Authorization", "Basic YTpi"}},
		{"all namespaces, for an allocation", "/v1/allocation/" + alloc + "?namespace=*", nil},
		{"another namespace, for an allocation", "/v1/allocation/" + alloc + "?namespace=x", nil},
		{"all namespaces, for a node", "/v1/node/" + f.config.NodeID + "?namespace=*", nil},
		{"what Prometheus sends", "/v1/services?namespace=default&region=global&stale=", nil},
	} {
		if r := f.send("GET", c.target, nil, c.header...); r.StatusCode != 200 {
			t.Errorf("%s: %d %s", c.name, r.StatusCode, bodyText(r))
		}
	}
}

// The parameter pretty indents a reply, and a client that accepts gzip gets gzip. (checklist 41)
func TestPrettyAndCompressedReplies(t *testing.T) {
	f := newFixture(t, nil)
	f.putNode(t)
	f.putJob(t, "web")
	f.putAlloc(t, "web")
	f.putAlloc(t, "web")
	f.runRequests(t, []requestCase{
		{"indented", "GET", "/v1/regions?pretty", "", 200, "[\n    \"global\"\n]\n"},
		{"indented with a value", "GET", "/v1/regions?pretty=1", "", 200, "[\n    \"global\"\n]\n"},
		{"not indented", "GET", "/v1/regions?pretty=0", "", 200, `["global"]`},
	})
	r := f.send("GET", "/v1/allocations?resources=true", nil, "Accept-Encoding", "deflate, gzip;q=1.0")
	z, err := gzip.NewReader(r.Body)
	if err != nil {
		t.Fatalf("%v, headers %v", err, r.Header)
	}
	var stubs []api.AllocationListStub
	if err := json.NewDecoder(z).Decode(&stubs); err != nil || len(stubs) != 2 {
		t.Errorf("%d, %v", len(stubs), err)
	}
	for _, refuses := range []string{"", "identity", "gzip;q=0"} {
		if r := f.send("GET", "/v1/allocations?resources=true", nil, "Accept-Encoding", refuses); r.Header.Get("Content-Encoding") != "" {
			t.Errorf("compressed for %q", refuses)
		}
	}
	// Errors, replies without a body and streams are not compressed.
	for _, target := range []string{"/v1/nope", "/v1/operator/license", "/v1/metrics?format=prometheus"} {
		if r := f.send("GET", target, nil, "Accept-Encoding", "gzip"); r.Header.Get("Content-Encoding") != "" {
			t.Errorf("%s is compressed", target)
		}
	}
}

// Requests that only a cluster can serve get replies that Nomad's own client accepts.
func TestClusterRoutes(t *testing.T) {
	f := newFixture(t, nil)
	f.putNode(t)
	f.runRequests(t, []requestCase{
		{"to join", "PUT", "/v1/agent/join?address=x", "", 200, `{"error":"clustering is not supported","num_joined":0,"warning":""}`},
		{"to make somebody leave", "PUT", "/v1/agent/force-leave?node=x", "", 501, ""},
		{"keys of gossip", "GET", "/v1/agent/keyring/list", "", 501, ""},

		{"a peer", "DELETE", "/v1/operator/raft/peer", "", 501, ""},
		{"a state to restore", "PUT", "/v1/operator/snapshot", "", 501, "…stop it"},
		{"policies", "GET", "/v1/acl/policies", "", 400, "ACL support disabled"},
		{"a login", "POST", "/v1/acl/login", "{}", 400, "ACL support disabled"},
		{"the token of everybody", "GET", "/v1/acl/token/self", "", 200, `…"AccessorID":"acls-disabled"`},
		{"quotas", "GET", "/v1/quotas", "", 501, "Nomad Enterprise only endpoint"},
		{"a quota", "GET", "/v1/quota/x", "", 501, "Nomad Enterprise only endpoint"},
		{"sentinel", "GET", "/v1/sentinel/policies", "", 501, "Nomad Enterprise only endpoint"},
		{"recommendations", "GET", "/v1/recommendations", "", 501, "Nomad Enterprise only endpoint"},
		{"utilization", "POST", "/v1/operator/utilization", "", 501, "Nomad Enterprise only endpoint"},
		{"the license", "GET", "/v1/operator/license", "", 204, ""},
		{"volumes", "GET", "/v1/volumes", "", 200, "[]"},
		{"volumes of the host", "GET", "/v1/volumes?type=host", "", 200, "[]"},
		{"volumes of another kind", "GET", "/v1/volumes?type=x", "", 404, "resource not found"},
		{"claims", "GET", "/v1/volumes/claims", "", 200, "[]"},
		{"a volume", "GET", "/v1/volume/csi/x", "", 404, "volume not found"},
		{"a new CSI volume", "PUT", "/v1/volume/csi/x/create", "{}", 501, "there are no CSI volumes here: use a host volume"},
		{"plugins", "GET", "/v1/plugins?type=csi", "", 200, "[]"},
		{"a plugin", "GET", "/v1/plugin/csi/x", "", 404, "plugin not found"},
		{"garbage by another method", "POST", "/v1/system/gc", "", 405, "Invalid method"},
		{"summaries", "PUT", "/v1/system/reconcile/summaries", "", 200, ""},
		{"the log of before", "GET", "/v1/agent/monitor/export", "", 400, ""},
		{"profiles without debugging", "GET", "/v1/agent/pprof/heap", "", 403, "Permission denied"},
		{"the host without debugging", "GET", "/v1/agent/host", "", 403, "Permission denied"},
	})

	client, err := api.NewClient(&api.Config{Address: "http://" + f.listen(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	members, err := client.Agent().Members()
	if err != nil || len(members.Members) != 1 || members.Members[0].Name != "n1.global" || members.Members[0].Status != "alive" {
		t.Fatalf("members %+v, %v", members, err)
	}
	leader, err := client.Status().RegionLeader(members.Members[0].Tags["region"])
	if m := members.Members[0]; err != nil || leader != m.Addr+":"+m.Tags["port"] {
		t.Errorf("the leader is %q, %v", leader, err)
	}
	peers, err := client.Status().Peers()
	if err != nil || len(peers) != 1 || peers[0] != leader {
		t.Errorf("peers %q, %v", peers, err)
	}
	raft, err := client.Operator().RaftGetConfiguration(nil)
	if err != nil || len(raft.Servers) != 1 || !raft.Servers[0].Leader {
		t.Errorf("raft %+v, %v", raft, err)
	}
	pilot, _, err := client.Operator().AutopilotGetConfiguration(nil)
	if err != nil || pilot.LastContactThreshold != 200*time.Millisecond {
		t.Errorf("autopilot %+v, %v", pilot, err)
	}
	allHealthy, _, err := client.Operator().AutopilotServerHealth(nil)
	if err != nil || !allHealthy.Healthy || len(allHealthy.Servers) != 1 || allHealthy.Servers[0].ID != f.config.NodeID {
		t.Errorf("autopilot %+v, %v", allHealthy, err)
	}
	plans, _, err := client.Operator().SchedulerGetConfiguration(nil)
	if err != nil || plans.SchedulerConfig.SchedulerAlgorithm != api.SchedulerAlgorithmBinpack {
		t.Errorf("scheduler %+v, %v", plans, err)
	}
	workers, err := client.Agent().GetSchedulerWorkersInfo(nil)
	if err != nil || len(workers.Schedulers) != 1 {
		t.Errorf("schedulers %+v, %v", workers, err)
	}
	if err := client.System().ReconcileSummaries(); err != nil {
		t.Error(err)
	}
	if joined, err := client.Agent().Join("10.0.0.1"); err == nil || joined != 0 || !strings.Contains(err.Error(), "clustering is not supported") {
		t.Errorf("joined %d, %v", joined, err)
	}
}

func TestAgentSelf(t *testing.T) {
	reloads := 0
	f := newFixture(t, func(c *Config) {
		c.AgentFuncs.ConfigWithoutSecrets = func() map[string]any {
			return map[string]any{"Region": "global", "Datacenter": "dc1", "Token": c.OperatorToken, "UI": map[string]any{"ShowCLIHints": false}}
		}
		c.AgentFuncs.Reload = func() error { reloads++; return errors.New("not today") }
		c.OperatorToken = "hush-hush"
	})
	f.putNode(t)
	f.putJob(t, "web")
	f.putAlloc(t, "web")
	client, err := api.NewClient(&api.Config{Address: "http://" + f.listen(t), SecretID: "hush-hush"})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	self, err := client.Agent().Self()
	if err != nil || self.Stats["client"]["node_id"] != f.config.NodeID || self.Stats["client"]["num_allocations"] != "1" || self.Config["Token"] != redactedText {
		t.Errorf("%+v, %v", self, err)
	}
	for name, got := range map[string]func() (string, error){"global": client.Agent().Region, "dc1": client.Agent().Datacenter, "n1.global": client.Agent().NodeName} {
		if text, err := got(); text != name || err != nil {
			t.Errorf("%q, %v, want %q", text, err, name)
		}
	}
	if _, err := client.Raw().Write("/v1/agent/reload", nil, nil, nil); err == nil || !strings.Contains(err.Error(), "not today") || reloads != 1 {
		t.Errorf("%d reloads, %v", reloads, err)
	}
}

func TestHealthFollowsConditions(t *testing.T) {
	found := &stubConditions{}
	f := newFixture(t, func(c *Config) { c.Conditions = found })
	f.runRequests(t, []requestCase{
		{"all is well", "GET", "/v1/agent/health", "", 200, `{"client":{"message":"ok","ok":true},"server":{"message":"ok","ok":true}}`},
	})
	found.found = []conditions.Condition{
		{Kind: "DiskFull", Severity: conditions.Error, Part: conditions.Server, Summary: "The disk is full", Remedy: "Remove files"},
		{Kind: "PluginDown", Severity: conditions.Warning, Part: conditions.Client, Summary: "Plugin a does not run: its output", Remedy: "Wait"},
		{Kind: "PluginDown", Severity: conditions.Warning, Part: conditions.Client, Summary: "Plugin b does not run: its output", Remedy: "Wait"},
	}
	f.runRequests(t, []requestCase{
		{"an error", "GET", "/v1/agent/health", "", 500, `{"client":{"message":"ok, with warnings: PluginDown","ok":true},"server":{"message":"The disk is full","ok":false}}`},
		{"another part", "GET", "/v1/agent/health?type=client", "", 200, `{"client":{"message":"ok, with warnings: PluginDown","ok":true}}`},
		{"the conditions", "GET", "/v1/agent/conditions", "", 200, `{"Conditions":[` +
			`{"Kind":"DiskFull","Remedy":"Remove files","Severity":"error","Since":null,"Summary":"The disk is full"},` +
			`{"Kind":"PluginDown","Remedy":"Wait","Severity":"warning","Since":null,"Summary":"Plugin a does not run: its output"},` +
			`{"Kind":"PluginDown","Remedy":"Wait","Severity":"warning","Since":null,"Summary":"Plugin b does not run: its output"}],"LookedAt":"1970-01-01T00:00:00Z"}`},
	})
}

func TestDebugging(t *testing.T) {
	t.Setenv("SOMEBODYS_TOKEN", "xyzzy")
	f := newFixture(t, func(c *Config) { c.OptionalRoutes.EnableDebug = true })
	f.putNode(t)
	host := bodyText(f.send("GET", "/v1/agent/host", nil))
	if strings.Contains(host, "xyzzy") || !strings.Contains(host, `"SOMEBODYS_TOKEN":"<redacted>"`) {
		t.Errorf("the environment is shown: %s", host)
	}
	f.runRequests(t, []requestCase{
		{"a profile", "GET", "/v1/agent/pprof/heap?debug=1", "", 200, "…heap profile"},
		{"the arguments", "GET", "/v1/agent/pprof/cmdline", "", 200, "…" + os.Args[0]},
		{"one that there is not", "GET", "/v1/agent/pprof/nope", "", 404, "Unknown profile"},
		{"of another node", "GET", "/v1/agent/pprof/heap?node_id=x", "", 404, "Unknown node x"},
	})
}

// The stock command line stores the body of each profile as it is.
func TestProfilesAreBinary(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.OptionalRoutes.EnableDebug = true })
	f.putNode(t)
	gzipMagic, traceMagic := "\x1f\x8b", "go 1."
	for target, start := range map[string]string{"heap": gzipMagic, "heap?gc=1": gzipMagic, "profile?seconds=0.1": gzipMagic, "trace?seconds=0.1": traceMagic} {
		r := f.send("GET", "/v1/agent/pprof/"+target, nil, "Accept-Encoding", "identity")
		name, _, _ := strings.Cut(target, "?")
		if got := bodyText(r); r.StatusCode != 200 || !strings.HasPrefix(got, start) || r.Header.Get("Content-Disposition") != "attachment; filename="+name {
			t.Errorf("%s: status %d, %v, body of %d bytes", target, r.StatusCode, r.Header, len(got))
		}
	}
	if err := pprof.StartCPUProfile(io.Discard); err != nil {
		t.Fatal(err)
	}
	defer pprof.StopCPUProfile()
	r := f.send("GET", "/v1/agent/pprof/profile?seconds=0.1", nil)
	if got := bodyText(r); r.StatusCode != 500 || !strings.Contains(got, "cpu profiling already in use") || r.Header.Get("Content-Disposition") != "" {
		t.Errorf("a second profile: status %d, %v, %s", r.StatusCode, r.Header, got)
	}
}

// nodeWithStats is a node with host statistics.
type nodeWithStats struct{ stubNode }

func (nodeWithStats) HostStats(context.Context) hoststats.Stats {
	disk := &api.HostDiskStats{Device: "/dev/vda", Size: 1 << 30}
	return hoststats.Stats{
		Uptime: 7, Memory: &api.HostMemoryStats{Total: 1 << 30}, CPU: []*hoststats.CPU{{CPU: "cpu0", TotalPercent: 50, Measured: true}},
		DiskStats: []*api.HostDiskStats{disk, disk}, // a device that is mounted twice is listed twice
	}
}

func TestMetrics(t *testing.T) {
	f := newFixture(t, func(c *Config) { setNode(c, nodeWithStats{}) })
	f.putNode(t)
	f.putJob(t, "web")
	alloc := f.putAlloc(t, "web")
	node := `datacenter="dc1",host="n1",node_class="none",node_id="` + f.config.NodeID + `",node_pool="default",node_scheduling_eligibility="",node_status="ready"`
	task := `{alloc_id="` + alloc + `",host="n1",job="web",namespace="default",task="t",task_group="g"}`
	want := []string{
		"nomad_client_allocated_memory{" + node + "} 256",
		"nomad_client_host_memory_total{" + node + "} 1.073741824e+09",
		`nomad_client_host_cpu_total_percent{cpu="cpu0",` + node + "} 50",
		`nomad_client_host_disk_size{datacenter="dc1",disk="/dev/vda",host="n1",`,
		"nomad_client_uptime{" + node + "} 7",
		"nomad_client_allocs_memory_allocated" + task + " 2.68435456e+08",
		"nomad_client_allocs_restart" + task + " 3",
		"# TYPE nomad_client_allocs_restart counter",
		`nomad_nomad_job_status_dead{host="n1"} 1`,
		`nomad_nomad_job_summary_running{host="n1",job="web",namespace="default",task_group="g"} 1`,
		"\ngo_goroutines ",
	}
	r := f.send("GET", "/v1/metrics?format=prometheus", nil)
	got := bodyText(r)
	for _, line := range want {
		if !strings.Contains(got, line) {
			t.Errorf("there is no %s in\n%s", line, got)
		}
	}
	if kind := r.Header.Get("Content-Type"); r.StatusCode != 200 || !strings.HasPrefix(kind, "text/plain") {
		t.Errorf("%d %s", r.StatusCode, kind)
	}

	if some := bodyText(f.send("GET", "/v1/metrics?format=prometheus&name[]=go_goroutines", nil)); !strings.Contains(some, "\ngo_goroutines ") || strings.Contains(some, "nomad_") {
		t.Errorf("one metric by its name is:\n%s", some)
	}
	binary := f.send("GET", "/v1/metrics?format=prometheus", nil, "Accept", string(expfmt.NewFormat(expfmt.TypeProtoDelim)))
	if kind := expfmt.ResponseFormat(binary.Header); kind.FormatType() != expfmt.TypeProtoDelim || strings.Contains(bodyText(binary), "# TYPE") {
		t.Errorf("who wants protobuf is given %q", kind)
	}

	var s api.MetricsSummary
	if err := json.Unmarshal([]byte(bodyText(f.send("GET", "/v1/metrics", nil))), &s); err != nil || len(s.Gauges) < 20 || !slices.ContainsFunc(s.Counters, func(c api.SampledValue) bool { return c.Name == "nomad.client.allocs.restart" && c.Sum == 3 }) {
		t.Fatalf("%d gauges, %d counters, %v", len(s.Gauges), len(s.Counters), err)
	}
	for _, g := range s.Gauges {
		if g.Name == "nomad.client.unallocated.memory" && g.Value != 1000-100-256 {
			t.Errorf("%v MB are left", g.Value)
		}
	}

	f.metrics.SetSettings(metrics.Settings{OmitPrometheusFormat: true, OmitNodeMetrics: true, OmitAllocationMetrics: true})
	f.runRequests(t, []requestCase{{"switched off", "GET", "/v1/metrics?format=prometheus", "", 415, "Prometheus is not enabled"}})
	if all := bodyText(f.send("GET", "/v1/metrics", nil)); strings.Contains(all, "client.host") || strings.Contains(all, "client.allocs") || !strings.Contains(all, "job_summary") {
		t.Error("what is switched off is shown, or more is")
	}
}

// A follower of the log that reads too slowly loses lines, and receives their number. Writers of the log
// never wait.
func TestSlowMonitorClient(t *testing.T) {
	f := &monitorSink{lines: make(chan []byte, 2), droppedLineCount: make(chan int, 1)}
	for range 10 {
		if _, err := f.Write([]byte("line\n")); err != nil {
			t.Fatal(err)
		}
	}
	var receivedText bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	_ = f.forwardLines(ctx, func(line []byte) error {
		receivedText.Write(line)
		if strings.Count(receivedText.String(), "\n") == 3 {
			cancel()
		}
		return nil
	}, nil)
	if got := receivedText.String(); strings.Count(got, "line\n") != 2 || !strings.Contains(got, "8 lines were dropped") {
		t.Errorf("%q", got)
	}
	f.Write([]byte("more\n"))
	if err := f.forwardLines(t.Context(), func([]byte) error { return io.ErrClosedPipe }, nil); err != nil {
		t.Error(err) // the client has disconnected without an error
	}
}
