package httpapi

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/acl"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// listedObject stores an object of a kind that lists contain.
type listedObject struct {
	kind string
	put  func(*store.Txn)
}

// listedObjects returns objects that belong together, have the id x, and contain text. The job comes first: in an empty
// store it gets the create index to which the other objects refer.
func listedObjects(text string) []listedObject {
	job := &api.Job{
		ID: new("x"), Name: new("x"), Namespace: new("default"), Version: new(uint64(0)), Type: new("service"), NodePool: new("x"), Priority: new(len(text) % 50),
		StatusDescription: &text, CreateIndex: new(uint64(1)), TaskGroups: []*api.TaskGroup{{Name: new("g")}},
	}
	return []listedObject{
		{"job", func(tx *store.Txn) { stored := *job; tx.PutJobAndVersion(&stored) }},
		{"evaluation", func(tx *store.Txn) {
			tx.PutEvaluation(&api.Evaluation{ID: "x", Namespace: "default", JobID: "x", DeploymentID: "x", StatusDescription: text, Priority: len(text) % 50, QueuedAllocations: map[string]int{"g": len(text)}})
		}},
		{"allocation", func(tx *store.Txn) {
			tx.PutScheduledAllocation(&api.Allocation{ID: "x", Namespace: "default", JobID: "x", Job: job, EvalID: "x", DeploymentID: "x", NodeID: "x", TaskGroup: "g", ClientStatus: "running", ClientDescription: text})
		}},
		{"deployment", func(tx *store.Txn) {
			tx.PutDeployment(&api.Deployment{ID: "x", Namespace: "default", JobID: "x", JobCreateIndex: 1, StatusDescription: text})
		}},
		{"node", func(tx *store.Txn) {
			tx.PutNodeWithStorageEvents(&api.Node{ID: "x", NodePool: "x", StatusDescription: text, Attributes: map[string]string{"os.name": text}})
		}},
		{"service", func(tx *store.Txn) {
			tx.PutService(&api.ServiceRegistration{ID: "x", Namespace: "default", ServiceName: "x", JobID: "x", AllocID: "x", Address: text})
		}},
		{"variable", func(tx *store.Txn) { tx.PutVariable(&api.Variable{Namespace: "default", Path: "x" + text}) }},
		{"namespace", func(tx *store.Txn) { tx.PutNamespace(&api.Namespace{Name: "x", Description: text}) }},
		{"volume", func(tx *store.Txn) {
			tx.PutHostVolume(&state.HostVolume{Volume: &api.HostVolume{ID: "x", Namespace: "default", Name: text}})
		}},
		{"claim", func(tx *store.Txn) {
			tx.PutVolumeClaim(&api.TaskGroupHostVolumeClaim{ID: "x", Namespace: "default", VolumeName: text})
		}},
	}
}

// A reply from the cache is the reply that an API without the cache makes from the present state, after each change.
func TestCachedListsAreUpToDate(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.OperatorToken, c.ReadOnlyToken = "operator", "reader" })
	cachedPaths := []string{
		"/v1/jobs", "/v1/allocations", "/v1/evaluations", "/v1/deployments", "/v1/nodes", "/v1/vars", "/v1/namespaces", "/v1/volumes", "/v1/volumes/claims", "/v1/service/x",
		"/v1/job/x/allocations", "/v1/job/x/evaluations", "/v1/job/x/deployments", "/v1/evaluation/x/allocations", "/v1/deployment/allocations/x", "/v1/node/pool/x/nodes", "/v1/node/pool/x/jobs",
	}
	var targets []string
	for _, path := range cachedPaths {
		targets = append(targets, path+"?namespace=*&pretty&type=host", path+"?type=host&reverse=true&per_page=1")
	}
	for r := range f.routeRequests() {
		if r.method == "GET" && r.pattern != eventsPath && !strings.HasSuffix(r.pattern, "/health") && f.send("GET", r.path, nil, "X-Nomad-Token", "operator").Header.Get("X-Nomad-Knownleader") != "" {
			targets = append(targets, r.path)
		}
	}
	targets = append(targets, "/v1/volumes?type=host", "/v1/nodes?os=true", "/v1/node/pool/x/nodes", "/v1/node/pool/x/jobs", "/v1/jobs?meta=true")
	hits := make(map[string]bool)
	check := func(after string) {
		t.Helper()
		uncached := &fixture{New(f.config), f.store, f.metrics}
		for _, target := range targets {
			for _, coding := range []string{"gzip", "identity"} {
				for _, token := range []string{"operator", "reader"} {
					header := []string{"X-Nomad-Token", token, "Accept-Encoding", coding}
					want := uncached.send("GET", target, nil, header...)
					for range 2 {
						got := f.send("GET", target, nil, header...)
						if gotText, wantText := bodyText(got), bodyText(want); gotText != wantText || got.StatusCode != want.StatusCode || fmt.Sprint(got.Header) != fmt.Sprint(want.Header) {
							t.Fatalf("after %s: %s %v: %v %.200q, want %v %.200q", after, target, header, got.Header, gotText, want.Header, wantText)
						}
						want = uncached.send("GET", target, nil, header...)
					}
				}
			}
		}
		for key := range f.listCache.replies {
			hits[key.path] = true
		}
	}
	update := func(name string, change func(*store.Txn)) {
		t.Helper()
		if _, err := f.store.Update(t.Context(), func(tx *store.Txn) error { change(tx); return nil }); err != nil {
			t.Fatal(err)
		}
		check(name)
	}
	long := strings.Repeat("long ", 400)
	for _, text := range []string{long, long + "changed"} {
		for _, o := range listedObjects(text) {
			update("a change of the "+o.kind, o.put)
		}
	}
	update("the deletion of the allocation", func(tx *store.Txn) { tx.DeleteAllocationAndQueueRemoval("x") })
	update("the deletion of the job", func(tx *store.Txn) { tx.DeleteJob("default", "x"); tx.DeleteJobVersion("default", "x", 0) })
	update("the deletion of the rest", func(tx *store.Txn) {
		tx.DeleteEvaluation("x")
		tx.DeleteDeployment("x")
		tx.DeleteService("default", "x")
		tx.DeleteNamespace("x")
		tx.DeleteHostVolume("x")
		tx.DeleteVolumeClaim("x")
	})
	for _, path := range cachedPaths {
		if !hits[path] {
			t.Errorf("the reply of %s was not in the cache", path)
		}
	}
}

// sendInBackground sends a GET request, and delivers the reply to the channel.
func (f *fixture) sendInBackground(target string) <-chan *http.Response {
	reply := make(chan *http.Response, 1)
	go func() { reply <- f.send("GET", target, nil) }()
	return reply
}

// A blocking query for a list reads nothing from the state until the list changes.
func TestBlockingListQueryReadsNothingUntilAChange(t *testing.T) {
	f := newFixture(t, nil)
	reads := 0
	f.routes = []route{{"GET", "/v1/list", openToAll(), func(r *request) (any, error) {
		return r.blockingListQuery(f.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
			reads++
			return s.Jobs(ws, "default", ""), s.LatestTableIndex(ws, store.Jobs), nil
		})
	}, routeDoc{}}}
	f.putJob(t, strings.Repeat("long", 400))
	first := f.send("GET", "/v1/list", nil)
	index, text := first.Header.Get("X-Nomad-Index"), bodyText(first)
	if again := f.send("GET", "/v1/list?index="+index+"&wait=20ms&stale=true", nil); bodyText(again) != text || again.Header.Get("X-Nomad-Index") != index || reads != 1 {
		t.Errorf("%d reads for a list that does not change", reads)
	}
	reply := f.sendInBackground("/v1/list?index=" + index)
	f.putJob(t, "new")
	if got := <-reply; got.Header.Get("X-Nomad-Index") != "2" || !strings.Contains(bodyText(got), `"new"`) || reads != 2 {
		t.Errorf("%d reads for a list that has changed once, index %s", reads, got.Header.Get("X-Nomad-Index"))
	}
}

// Replies for clients whose rights limit a list are not shared, nor those for different views of the objects.
func TestListCacheKey(t *testing.T) {
	keyOf := func(target, accepts string, rights clientRights) (listCacheKey, bool) {
		u, err := url.Parse(target)
		if err != nil {
			t.Fatal(err)
		}
		if rights.acl == nil {
			rights.acl = acl.Management()
		}
		r := &request{Request: &http.Request{URL: u, Header: http.Header{"Accept-Encoding": {accepts}}}, query: u.Query(), rights: rights}
		return r.listCacheKey()
	}
	all, _ := keyOf("/v1/vars?prefix=a&index=3&wait=5s", "gzip", clientRights{})
	if same, ok := keyOf("/v1/vars?stale=&prefix=a", "gzip", clientRights{}); !ok || same != all {
		t.Errorf("key %+v, want %+v", same, all)
	}
	var keys []listCacheKey
	for _, c := range []struct {
		target, accepts string
		rights          clientRights
	}{{"/v1/vars?prefix=b", "gzip", clientRights{}}, {"/v1/jobs?prefix=a", "gzip", clientRights{}}, {"/v1/vars?prefix=a", "", clientRights{}}, {"/v1/vars?prefix=a", "gzip", clientRights{isReadOnly: true}},
		{"/v1/vars?prefix=a", "gzip", clientRights{acl: new(acl.Rights)}}, {"/v1/vars?prefix=a", "gzip", clientRights{acl: acl.Merge(&acl.Rules{})}}} {
		key, ok := keyOf(c.target, c.accepts, c.rights)
		if !ok || key == all || slices.Contains(keys, key) {
			t.Errorf("%+v: key %+v", c, key)
		}
		keys = append(keys, key)
	}
	if _, ok := keyOf("/v1/vars", "", clientRights{isClusterUser: true}); ok {
		t.Error("the reply for a user of the cluster is shared")
	}
}

func TestListCacheIsBoundedAndReleasedWhenIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l listCache
		key := func(i int) listCacheKey { return listCacheKey{path: fmt.Sprint(i)} }
		for i := range 20 {
			l.put(key(i), &cachedList{body: make([]byte, 1<<20)})
			time.Sleep(time.Millisecond)
			l.get(key(0))
		}
		if l.size > maxListCacheSize || l.size < maxListCacheSize-2<<20 || l.get(key(0)) == nil || l.get(key(19)) == nil || l.get(key(1)) != nil {
			t.Errorf("%d bytes in %d replies", l.size, len(l.replies))
		}
		if l.put(key(20), &cachedList{body: make([]byte, maxListCacheSize)}); l.get(key(20)) != nil || l.get(key(19)) == nil {
			t.Error("a reply that needs the whole cache is kept")
		}
		time.Sleep(2*listCacheIdleTime + time.Second)
		synctest.Wait()
		if len(l.replies) > 0 || l.size != 0 || l.expireTimer != nil {
			t.Errorf("%d bytes in %d replies after the idle time", l.size, len(l.replies))
		}
	})
}
