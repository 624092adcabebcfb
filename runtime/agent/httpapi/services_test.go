package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// updateStore changes the store.
func (f *fixture) updateStore(t *testing.T, change func(*store.Txn)) uint64 {
	t.Helper()
	index, err := f.store.Update(t.Context(), func(tx *store.Txn) error {
		change(tx)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return index
}

// requestCase is a request with its expected reply.
type requestCase struct {
	name, method, target, body string
	code                       int
	want                       string // the complete reply, or an ellipsis and a part of the reply; empty matches any reply
}

// runRequests sends requests one after the other.
func (f *fixture) runRequests(t *testing.T, calls []requestCase) {
	for _, c := range calls {
		t.Run(c.name, func(t *testing.T) {
			t.Helper()
			r := f.send(c.method, c.target, strings.NewReader(c.body))
			got := bodyText(r)
			part, partly := strings.CutPrefix(c.want, "…")
			if r.StatusCode != c.code || partly && !strings.Contains(got, part) || !partly && c.want != "" && got != c.want {
				t.Errorf("%d %q, want %d %q", r.StatusCode, got, c.code, c.want)
			}
		})
	}
}

func decodeReply[T any](t *testing.T, r *http.Response) (v T) {
	t.Helper()
	whole := bodyText(r)
	if err := json.Unmarshal([]byte(whole), &v); err != nil || r.StatusCode != 200 {
		t.Fatalf("status %d, %v: %s", r.StatusCode, err, whole)
	}
	return v
}

// newServiceFixture returns a fixture with two instances of a service, another service, and a service of
// the same name in another namespace.
func newServiceFixture(t *testing.T) *fixture {
	f := newFixture(t, nil)
	f.updateStore(t, func(tx *store.Txn) {
		for i, s := range []api.ServiceRegistration{
			{Namespace: "default", ServiceName: "web", Tags: []string{"blue", "traefik.enable=true"}},
			{Namespace: "default", ServiceName: "web", Tags: []string{"blue", "green"}},
			{Namespace: "default", ServiceName: "db"},
			{Namespace: "prod", ServiceName: "web", Tags: []string{"prod"}},
		} {
			s.ID, s.AllocID, s.NodeID, s.Datacenter = fmt.Sprint("id-", i), fmt.Sprint("alloc-", i), f.config.NodeID, "dc1"
			s.Address, s.Port = "10.0.0.1", 8000+i
			tx.PutService(&s)
		}
	})
	return f
}

// Requests of `service list`, `service info` and `service delete`. (checklist 33)
func TestServiceCommands(t *testing.T) {
	f := newServiceFixture(t)
	list := func(namespace, services string) string {
		return `{"Namespace":"` + namespace + `","Services":[` + services + `]}`
	}
	web := `{"ServiceName":"web","Tags":["blue","green","traefik.enable=true"]}`
	db := `{"ServiceName":"db","Tags":[]}`
	f.runRequests(t, []requestCase{
		{"names with the tags of all instances", "GET", "/v1/services", "", 200, "[" + list("default", db+","+web) + "]"},
		{"names of all namespaces", "GET", "/v1/services?namespace=*", "", 200, "[" + list("default", db+","+web) + "," + list("prod", `{"ServiceName":"web","Tags":["prod"]}`) + "]"},
		{"names of a namespace without any", "GET", "/v1/services?namespace=x", "", 200, "[]"},
		{"a name that there is not finds no other", "GET", "/v1/services?prefix=wob", "", 200, "[]"},
		{"instances by tag", "GET", `/v1/service/web?filter=Tags+contains+"green"`, "", 200, `…"ID":"id-1"`},
		{"instances without that tag", "GET", `/v1/service/web?filter=Tags+contains+"x"`, "", 200, "[]"},
		{"a service that there is not", "GET", "/v1/service/x", "", 200, "[]"},
		{"an instance without tags", "GET", "/v1/service/db", "", 200, `…"Tags":[]`},
		{"a name without namespace is one of the default", "GET", "/v1/service/web?namespace=*", "", 200, "[]"},
		{"a page", "GET", "/v1/service/web?per_page=1&next_token=default.id-1", "", 200, `…"ID":"id-1"`},
		{"no name", "GET", "/v1/service/", "", 400, "missing service name"},
		{"two names", "GET", "/v1/service/web/id-0", "", 400, "invalid URI"},
		{"three", "DELETE", "/v1/service/web/id-0/x", "", 400, "invalid URI"},
		{"no id", "DELETE", "/v1/service/web", "", 400, "missing service id"},
		{"no name but an id", "DELETE", "/v1/service//id-0", "", 400, "missing service name"},
		{"an unknown instance", "DELETE", "/v1/service/web/id-9", "", 500, "service registration not found"},
		{"one of another service", "DELETE", "/v1/service/web/id-2", "", 500, "service registration not found"},
		{"one of another namespace", "DELETE", "/v1/service/web/id-3", "", 500, "service registration not found"},
		{"an instance", "DELETE", "/v1/service/web/id-0", "", 200, ""},
		{"it is gone", "DELETE", "/v1/service/web/id-0", "", 500, "service registration not found"},
	})
}

func TestChooseServices(t *testing.T) {
	f := newFixture(t, nil)
	f.updateStore(t, func(tx *store.Txn) {
		for i := range 30 {
			tx.PutService(&api.ServiceRegistration{Namespace: "default", ServiceName: "web", ID: fmt.Sprintf("id-%02d", i)})
		}
	})
	chosen := func(choose string) (ids []string) {
		for _, s := range decodeReply[[]api.ServiceRegistration](t, f.send("GET", "/v1/service/web?choose="+choose, nil)) {
			ids = append(ids, s.ID)
		}
		return ids
	}
	mine := chosen("3|me")
	if len(mine) != 3 || !slices.Equal(mine, chosen("3|me")) || !slices.Equal(mine[:1], chosen("1|me")) {
		t.Errorf("chosen %v", mine)
	}
	if n := len(chosen("99|me")); n != 30 {
		t.Errorf("%d of 30", n)
	}
	// Different keys select different instances, and each instance is selected by some key.
	firsts := make(map[string]int)
	for i := range 300 {
		firsts[chosen(fmt.Sprint("1|client-", i))[0]]++
	}
	for id, n := range firsts {
		if n > 30 {
			t.Errorf("%s was chosen %d times of 300", id, n)
		}
	}
	if len(firsts) < 25 {
		t.Errorf("only %d of 30 are ever chosen", len(firsts))
	}
	// The removal of an instance does not change the selection for keys that selected other instances.
	f.updateStore(t, func(tx *store.Txn) { tx.DeleteService("default", mine[0]) })
	if again := chosen("2|me"); !slices.Equal(again, mine[1:]) {
		t.Errorf("chosen %v after %v", again, mine)
	}
	for _, wrong := range []string{"3", "x|me", "0|me", "-1|me", "3|me|you", "|"} {
		if r := f.send("GET", "/v1/service/web?choose="+wrong, nil); r.StatusCode != 400 || bodyText(r) != "Parameter for choose must be in form '<number>|<key>'" {
			t.Errorf("choose=%s: %d", wrong, r.StatusCode)
		}
	}
}

// Traefik and Prometheus send these requests.
func TestServiceDiscoveryClients(t *testing.T) {
	f := newServiceFixture(t)
	for _, c := range []struct{ client, list, service string }{
		{"traefik", "/v1/services?stale=", `/v1/service/%s?filter=Tags+contains+"traefik.enable=true"&stale=`},
		{"prometheus", "/v1/services?namespace=default&region=global&stale=", "/v1/service/%s?namespace=default&region=global&stale="},
	} {
		t.Run(c.client, func(t *testing.T) {
			lists := decodeReply[[]api.ServiceRegistrationListStub](t, f.send("GET", c.list, nil))
			targets := 0
			for _, list := range lists {
				for _, s := range list.Services {
					r := f.send("GET", fmt.Sprintf(c.service, s.ServiceName), nil)
					if r.Header.Get("X-Nomad-Index") == "" {
						t.Error("no index")
					}
					for _, reg := range decodeReply[[]api.ServiceRegistration](t, r) {
						if reg.Address == "" || reg.Port == 0 || reg.Datacenter == "" || reg.NodeID == "" || reg.Namespace != "default" || reg.ServiceName != s.ServiceName || reg.ID == "" {
							t.Errorf("%+v", reg)
						}
						targets++
					}
				}
			}
			if want := map[string]int{"traefik": 1, "prometheus": 3}[c.client]; targets != want {
				t.Errorf("%d targets, want %d", targets, want)
			}
		})
	}
}

// The parameter passing selects the instances whose checks have all succeeded last, and its blocking queries return when a
// check changes that.
func TestPassingServices(t *testing.T) {
	f := newServiceFixture(t)
	const job = "_nomad-task-alloc-"
	put := func(statuses map[string]string) { // task -> status of its check
		f.updateStore(t, func(tx *store.Txn) {
			for task, status := range statuses {
				tx.PutCheckResult("alloc-x", &api.AllocCheckStatus{ID: "check-" + task, Service: "api", Task: task, Status: status})
			}
		})
	}
	f.updateStore(t, func(tx *store.Txn) {
		tx.PutScheduledAllocation(&api.Allocation{ID: "alloc-x", Namespace: "default"})
		for _, owner := range []string{"group-g", "one", "two"} {
			tx.PutService(&api.ServiceRegistration{Namespace: "default", ServiceName: "api", ID: job + "x-" + owner + "-api-http", AllocID: "alloc-x"})
		}
	})
	read := func(query string) (owners []string, index string) {
		r := f.send("GET", "/v1/service/api?"+query, nil)
		index = r.Header.Get("X-Nomad-Index")
		for _, s := range decodeReply[[]api.ServiceRegistration](t, r) {
			owners = append(owners, strings.TrimSuffix(strings.TrimPrefix(s.ID, job+"x-"), "-api-http"))
		}
		return owners, index
	}
	for _, c := range []struct {
		statuses     map[string]string
		query        string
		want         []string
		changesIndex bool
	}{
		{nil, "passing=true", []string{"group-g", "one", "two"}, false}, // without checks
		{map[string]string{"": "pending", "one": "pending"}, "passing=true", []string{"two"}, true},
		{map[string]string{"one": "success"}, "passing=true", []string{"one", "two"}, true},
		{map[string]string{"one": "failure"}, "passing=true", []string{"two"}, true},
		{map[string]string{"": "failure"}, "passing=true", []string{"two"}, false}, // it did not pass before
		{nil, "", []string{"group-g", "one", "two"}, false},
		{nil, "passing=false", []string{"group-g", "one", "two"}, false},
	} {
		_, before := read("")
		put(c.statuses)
		got, after := read(c.query)
		if !slices.Equal(got, c.want) || before != after != c.changesIndex {
			t.Errorf("%v, %q: instances of %q, want %q; index %s -> %s", c.statuses, c.query, got, c.want, before, after)
		}
	}
	_, index := read("")
	done := make(chan []string)
	go func() {
		owners, _ := read("passing=true&wait=1m&index=" + index)
		done <- owners
	}()
	put(map[string]string{"one": "success"})
	if owners := <-done; !slices.Equal(owners, []string{"one", "two"}) {
		t.Errorf("blocking query: instances of %q", owners)
	}
	if r := f.send("GET", "/v1/service/api?passing=x", nil); r.StatusCode != 500 { // as all booleans of Nomad's API
		t.Errorf("status %d", r.StatusCode)
	}
}
