package httpapi

import (
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// Requests of `var put` (twice), `var put -force`, `var get`, `var list` and `var purge`. (checklist 31)
func TestVariableCommands(t *testing.T) {
	f := newFixture(t, nil)
	put := `{"Namespace":"default","Path":"ignored","Items":{"user":"me","password":"s3cret"}}`
	f.runRequests(t, []requestCase{
		{"read of nothing", "GET", "/v1/var/app/db", "", 404, "variable not found"},
		{"put", "PUT", "/v1/var/app/db?cas=0", put, 200, `…"Items":{"password":"s3cret","user":"me"},"ModifyIndex":1`},
		{"put again", "PUT", "/v1/var/app/db?cas=0", strings.Replace(put, `"me"`, `"you"`, 1), 409, `…"Items":{"password":"s3cret","user":"me"},"ModifyIndex":1`},
		{"put -force", "POST", "/v1/var/app/db", strings.Replace(put, `"me"`, `"you"`, 1), 200, `…"user":"you"`},
		{"put -check-index", "PUT", "/v1/var/app/db?cas=2", put, 200, `…"ModifyIndex":3`},
		{"get", "GET", "/v1/var/app/db", "", 200, `…"Path":"app/db"`},
		{"list has no items", "GET", "/v1/vars?prefix=app/", "", 200, ""},
		{"purge with a wrong index", "DELETE", "/v1/var/app/db?cas=1", "", 409, `…"ModifyIndex":3`},
		{"purge", "DELETE", "/v1/var/app/db?cas=3", "", 204, ""},
		{"purge of nothing", "DELETE", "/v1/var/app/db", "", 204, ""},
		{"put over nothing with an index", "PUT", "/v1/var/app/db?cas=3", put, 409, `…"ModifyIndex":0`},

		{"no items", "PUT", "/v1/var/p", `{"Path":"p"}`, 400, "variable missing required Items object"},
		{"empty items", "PUT", "/v1/var/p", `{"Items":{}}`, 400, "variable missing required Items object"},
		{"null", "PUT", "/v1/var/p", `null`, 400, "variable missing required Items object"},
		{"no body", "PUT", "/v1/var/p", "", 400, "Request body is empty"},
		{"no variable", "PUT", "/v1/var/p", "[]", 400, "…cannot unmarshal"},
		{"a bad path", "PUT", "/v1/var/a%20b", put, 400, `invalid path "a b"`},
		{"a reserved path", "PUT", "/v1/var/nomad/secret", put, 400, `only paths at "nomad/jobs" or "nomad/job-templates" and below are valid paths under the top-level "nomad" directory`},
		{"no path", "GET", "/v1/var/", "", 400, "missing variable path"},
		{"an index that is none", "PUT", "/v1/var/p?cas=x", put, 400, `can not parse cas: strconv.ParseUint: parsing "x": invalid syntax`},
		{"another method", "PATCH", "/v1/var/p", put, 400, "Invalid method"},
		{"two operations", "PUT", "/v1/var/p?lock-renew&lock-acquire", put, 400, "multiple lock operations"},
		{"too large", "PUT", "/v1/var/p", `{"Items":{"k":"` + strings.Repeat("x", 64<<10) + `"}}`, 400, "…must not be longer than 65536 bytes"},
		{"far too large", "PUT", "/v1/var/p", `{"Items":{"k":"` + strings.Repeat("x", maxVariableBody) + `"}}`, 413, ""},
	})
}

func TestVariableHeaders(t *testing.T) {
	f := newFixture(t, nil)
	body := `{"Items":{"k":"v"}}`
	for _, c := range []struct{ method, target, index string }{
		{"PUT", "/v1/var/p?cas=0", "1"},
		{"PUT", "/v1/var/q", "2"},
		{"PUT", "/v1/var/p?cas=0", "1"}, // the index of the variable that is stored already
		{"GET", "/v1/var/p", "1"},
		{"GET", "/v1/var/nope", "2"},
		{"GET", "/v1/vars", "2"},
		{"DELETE", "/v1/var/p", "3"},
	} {
		r := f.send(c.method, c.target, strings.NewReader(body))
		if got := r.Header.Get("X-Nomad-Index"); got != c.index {
			t.Errorf("%s %s: index %q, want %s", c.method, c.target, got, c.index)
		}
		if r.StatusCode == 204 && (bodyText(r) != "" || r.Header.Get("Content-Length") != "") {
			t.Errorf("%s %s: something is in what has no content", c.method, c.target)
		}
	}
}

// The namespace in the body has precedence, and need not exist. Terraform sets the namespace only in the
// body. (checklist 32)
func TestNamespaceOfBodyHasPrecedence(t *testing.T) {
	f := newFixture(t, nil)
	f.runRequests(t, []requestCase{
		{"in the body only", "PUT", "/v1/var/p", `{"Namespace":"prod","Items":{"k":"1"}}`, 200, `…"Namespace":"prod"`},
		{"in both", "PUT", "/v1/var/p?namespace=other", `{"Namespace":"prod","Items":{"k":"2"}}`, 200, `…"Namespace":"prod"`},
		{"in the query only", "PUT", "/v1/var/q?namespace=other", `{"Items":{"k":"3"}}`, 200, `…"Namespace":"other"`},
		{"not in the default one", "GET", "/v1/var/p", "", 404, ""},
		{"read", "GET", "/v1/var/p?namespace=prod", "", 200, `…"k":"2"`},
		{"no wildcard for one", "GET", "/v1/var/p?namespace=*", "", 404, "variable not found"},
		{"nor to write one", "PUT", "/v1/var/p?namespace=*", `{"Items":{"k":"1"}}`, 400, ""},
	})
	all := decodeReply[[]api.VariableMetadata](t, f.send("GET", "/v1/vars?namespace=*", nil))
	if len(all) != 2 || all[0].Namespace != "other" || all[1].Namespace != "prod" {
		t.Errorf("%+v", all)
	}
}

// Terraform creates, reads, changes and destroys a variable without an index, and
// detects that another client has removed it.
// (checklist 40)
func TestTerraformVariableRequests(t *testing.T) {
	f := newFixture(t, nil)
	f.runRequests(t, []requestCase{
		{"create", "PUT", "/v1/var/tf", `{"Namespace":"default","Path":"tf","Items":{"k":"1"}}`, 200, `…"k":"1"`},
		{"refresh", "GET", "/v1/var/tf?namespace=default", "", 200, `…"k":"1"`},
		{"change", "PUT", "/v1/var/tf", `{"Namespace":"default","Path":"tf","Items":{"k":"2"}}`, 200, `…"k":"2"`},
		{"destroy", "DELETE", "/v1/var/tf?namespace=default", "", 204, ""},
		{"it is gone", "GET", "/v1/var/tf?namespace=default", "", 404, ""},
		{"a namespace", "PUT", "/v1/namespace", `{"Name":"tf","Description":"d","Quota":"","Capabilities":{"EnabledTaskDrivers":null}}`, 200, ""},
		{"refresh of it", "GET", "/v1/namespace/tf", "", 200, `…"Description":"d"`},
		{"destroy it", "DELETE", "/v1/namespace/tf", "", 200, ""},
		{"it is gone, too", "GET", "/v1/namespace/tf", "", 404, "Namespace not found"},
	})
}

// Lists, searches and rejected changes return neither the items of variables nor the credentials of locks.
func TestSecretsStayInVariables(t *testing.T) {
	f := newFixture(t, nil)
	v := decodeReply[api.Variable](t, f.send("PUT", "/v1/var/p?lock-acquire", strings.NewReader(`{"Items":{"k":"s3cret"}}`)))
	for _, c := range []requestCase{
		{method: "GET", target: "/v1/vars"},
		{method: "GET", target: `/v1/vars?filter=Items.k+==+"s3cret"`}, // the filter would disclose the items bit by bit
		{method: "PUT", target: "/v1/search", body: `{"Prefix":"p","Context":"all"}`},
		{method: "PUT", target: "/v1/var/p", body: `{"Items":{"k":"n3w"}}`},
		{method: "PUT", target: "/v1/var/a%20b", body: `{"Items":{"k":"n3w"}}`},
		{method: "DELETE", target: "/v1/var/p"},
	} {
		if got := bodyText(f.send(c.method, c.target, strings.NewReader(c.body))); strings.Contains(got, "s3cret") || strings.Contains(got, "n3w") || strings.Contains(got, v.LockID()) {
			t.Errorf("%s %s: %s", c.method, c.target, got)
		}
	}
	if got := bodyText(f.send("PUT", "/v1/var/p?cas=0", strings.NewReader(`{"Items":{}}`))); strings.Contains(got, v.LockID()) {
		t.Errorf("a conflict shows the lock: %s", got)
	}
}

func TestNamespaces(t *testing.T) {
	f := newFixture(t, nil)
	f.runRequests(t, []requestCase{
		{"the default is there", "GET", "/v1/namespaces", "", 200, `…"Name":"default"`},
		{"it can be read", "GET", "/v1/namespace/default", "", 200, `…"Description":"Default shared namespace"`},
		{"it cannot be deleted", "DELETE", "/v1/namespace/default", "", 400, "can not delete default namespace"},
		{"it can be described", "PUT", "/v1/namespace/default", `{"Name":"default","Description":"mine"}`, 200, ""},
		{"and is there once", "GET", "/v1/namespaces?prefix=def", "", 200, `…"Description":"mine"`},
		{"make one", "PUT", "/v1/namespace", `{"Name":"prod","Meta":{"k":"v"}}`, 200, ""},
		{"read it", "GET", "/v1/namespace/prod", "", 200, `…"Meta":{"k":"v"}`},
		{"a prefix", "GET", "/v1/namespaces?prefix=x", "", 200, "[]"},
		{"a filter", "GET", `/v1/namespaces?filter=Name+==+"prod"`, "", 200, `…"Name":"prod"`},
		{"an unknown one", "GET", "/v1/namespace/x", "", 404, "Namespace not found"},
		{"delete an unknown one", "DELETE", "/v1/namespace/x", "", 404, "Namespace not found"},
		{"no name", "PUT", "/v1/namespace", `{}`, 400, `…invalid name ""`},
		{"a bad name", "PUT", "/v1/namespace", `{"Name":"a b"}`, 400, `…invalid name "a b"`},
		{"another name", "PUT", "/v1/namespace/x", `{"Name":"y"}`, 400, "Namespace name does not match request path"},
		{"much to say", "PUT", "/v1/namespace", `{"Name":"y","Description":"` + strings.Repeat("x", 257) + `"}`, 400, "description longer than 256"},
		{"a quota", "PUT", "/v1/namespace", `{"Name":"y","Quota":"q"}`, 400, "…Enterprise"},
		{"a node pool", "PUT", "/v1/namespace", `{"Name":"y","NodePoolConfiguration":{"Default":"gpu"}}`, 400, "…invalid node pool configuration: Node Pools Governance is unlicensed."},
		{"clusters", "PUT", "/v1/namespace", `{"Name":"y","VaultConfiguration":{"Denied":["x"]}}`, 400, "…invalid vault configuration: Multi-Cluster Vault is unlicensed."},
		{"what is so anyhow", "PUT", "/v1/namespace", `{"Name":"prod","Meta":{"k":"v"},"NodePoolConfiguration":{"Default":"default"},"ConsulConfiguration":{"Default":"default"}}`, 200, ""},
	})
	if all := decodeReply[[]api.Namespace](t, f.send("GET", "/v1/namespaces", nil)); len(all) != 2 || all[0].Name != "default" || all[1].Name != "prod" {
		t.Errorf("%+v", all)
	}
}

func TestNamespaceInUse(t *testing.T) {
	f := newFixture(t, nil)
	job := func(status string) *api.Job {
		return &api.Job{ID: new("web"), Namespace: new("prod"), Version: new(uint64(0)), Status: &status}
	}
	alloc := func(status string) *api.Allocation {
		return &api.Allocation{ID: "11111111-2222-4333-8444-555555555555", Namespace: "prod", JobID: "web", ClientStatus: status, Job: job("dead")}
	}
	f.updateStore(t, func(tx *store.Txn) {
		tx.PutNamespace(&api.Namespace{Name: "prod"})
		tx.PutJobAndVersion(job("running"))
		tx.PutScheduledAllocation(alloc("running"))
		tx.PutVariable(&api.Variable{Namespace: "prod", Path: "p"})
	})
	for _, c := range []struct {
		want string
		next func(*store.Txn)
	}{
		{`namespace "prod" has a job that is running, "web": stop it first`, func(tx *store.Txn) { tx.PutJobAndVersion(job("dead")) }},
		{`namespace "prod" has an allocation that is running, 11111111-2222-4333-8444-555555555555: stop it first`, func(tx *store.Txn) { tx.PutScheduledAllocation(alloc("complete")) }},
		{`namespace "prod" has a variable, "p": purge it first`, func(tx *store.Txn) { tx.DeleteVariable("prod", "p") }},
	} {
		if r := f.send("DELETE", "/v1/namespace/prod", nil); r.StatusCode != 500 || bodyText(r) != c.want {
			t.Errorf("%d, want %q", r.StatusCode, c.want)
		}
		f.updateStore(t, c.next)
	}
	if r := f.send("DELETE", "/v1/namespace/prod", nil); r.StatusCode != 200 {
		t.Errorf("%d %s", r.StatusCode, bodyText(r))
	}
}
