package httpapi

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// listRequest is a request for a list.
func listRequest(t testing.TB, query string) *request {
	values, err := url.ParseQuery(query)
	if err != nil {
		t.Fatal(err)
	}
	hr, err := http.NewRequestWithContext(t.Context(), "GET", "/v1/x", nil)
	if err != nil {
		t.Fatal(err)
	}
	r := &request{Request: hr, query: values}
	if err := r.parseCommonParams(api.GlobalRegion); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestPagination(t *testing.T) {
	jobs := func() (jobs []*api.Job) {
		for _, id := range []string{"b.1", "a", "c"} {
			jobs = append(jobs, &api.Job{ID: &id, Namespace: new("default"), Priority: new(50)})
		}
		jobs[1].Periodic = &api.PeriodicConfig{}
		return append(jobs, &api.Job{ID: new("a"), Namespace: new("another"), Meta: map[string]string{"k": "v"}})
	}
	for _, c := range []struct {
		name, query string
		want        string
		next        string
	}{
		{"all, by namespace and name", "", "another/a default/a default/b.1 default/c", ""},
		{"the other way round", "reverse=true", "default/c default/b.1 default/a another/a", ""},
		{"any other word is no reverse", "reverse=1", "another/a default/a default/b.1 default/c", ""},
		{"a page", "per_page=2", "another/a default/a", "default.b.1"},
		{"the next page", "per_page=2&next_token=default.b.1", "default/b.1 default/c", ""},
		{"a page from behind", "per_page=2&reverse=true", "default/c default/b.1", "default.a"},
		{"the next page from behind", "per_page=2&reverse=true&next_token=default.a", "default/a another/a", ""},
		{"a token of what has gone", "next_token=default.aa", "default/b.1 default/c", ""},
		{"a token that is none", "next_token=zzz", "another/a default/a default/b.1 default/c", ""},
		{"a filter", `filter=ID != "a"`, "default/b.1 default/c", ""},
		{"a filter goes before a page", `per_page=1&filter=ID == "a"`, "another/a", "default.a"},
		{"what is nil", `filter=Periodic is nil`, "another/a default/b.1 default/c", ""},
		{"what is not nil", `filter=Periodic is not nil`, "default/a", ""},
		{"the filter of job dispatch", `filter=ParentID == "" and ParameterizedJob is not nil`, "", ""},
		{"a number that is not set is zero", `filter=Priority == 0`, "another/a", ""},
		{"a word in a map", `filter="k" in Meta`, "another/a", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := listRequest(t, (&url.URL{Path: c.query}).EscapedPath())
			got, err := listPage(r, jobs(), func(j *api.Job) sortKey { return newNameSortKey(*j.Namespace, *j.ID) }, func(j *api.Job) string { return *j.Namespace + "/" + *j.ID })
			if err != nil {
				t.Fatal(err)
			}
			if strings.Join(got, " ") != c.want || r.nextToken != c.next || got == nil {
				t.Errorf("got %q, next %q, want %q, %q", got, r.nextToken, c.want, c.next)
			}
		})
	}
}

func TestPaginationByCreation(t *testing.T) {
	allocs := func() []*api.Allocation {
		return []*api.Allocation{{ID: "a", CreateIndex: 10}, {ID: "c", CreateIndex: 9}, {ID: "b", CreateIndex: 9}}
	}
	for _, c := range []struct{ name, query, want, next string }{
		{"by the index as a number", "per_page=1", "b", "9.c"},
		{"from the token on", "per_page=5&next_token=9.c", "c a", ""},
		{"by id when there is a prefix", "per_page=1&prefix=x", "a", "b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := listRequest(t, c.query)
			got, err := listPage(r, allocs(), func(a *api.Allocation) sortKey { return r.newCreationSortKey(a.CreateIndex, a.ID) }, func(a *api.Allocation) string { return a.ID })
			if strings.Join(got, " ") != c.want || r.nextToken != c.next || err != nil {
				t.Errorf("got %q, next %q, %v, want %q, %q", got, r.nextToken, err, c.want, c.next)
			}
		})
	}
}

func TestInvalidFilter(t *testing.T) {
	f := newFixture(t, nil)
	f.putJob(t, "web")
	for _, c := range []struct{ name, filter, want string }{
		{"no expression", "===", "failed to create result paginator: failed to read filter expression: "},
		{"an unknown field", `Nope == "x"`, `failed to read result page: error finding value in datum: /Nope at part 0: couldn't find key: struct field with name "Nope"`},
		{"a comparison that the library does not survive", `Periodic matches "x"`, "failed to read result page: filter "},
		{"a very long one", strings.Repeat(`ID == "x" or `, 1000) + `ID == "y"`, "failed to create result paginator: failed to read filter expression: "},
		{"a very deep one", strings.Repeat("(", 4000) + `ID == "x"` + strings.Repeat(")", 4000), "failed to create result paginator: failed to read filter expression: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			// A request with an invalid filter does not block.
			r := f.send("GET", "/v1/jobs?index=999999&filter="+url.QueryEscape(c.filter), nil)
			if got := bodyText(r); r.StatusCode != http.StatusBadRequest || !strings.HasPrefix(got, c.want) {
				t.Errorf("%d %q, want 400 %q", r.StatusCode, got, c.want)
			}
		})
	}
}

func TestPrefixOfUUIDs(t *testing.T) {
	f := newFixture(t, nil)
	const id = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
	if _, err := f.store.Update(t.Context(), func(tx *store.Txn) error {
		tx.PutEvaluation(&api.Evaluation{ID: id, Namespace: "default"})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for prefix, want := range map[string]bool{
		"0": true, "0a1": true, "0A1B": true, "0a1b2c3d": true, "0a1b2c3d-": true, "0a1b2c3d4e5": true, "0a1b2c3d-4e5f-6": true,
		strings.ReplaceAll(id, "-", ""): true, id: true, "0a1b2c3e": false, "zz": false,
	} {
		r := f.send("GET", "/v1/evaluations?prefix="+prefix, nil)
		if got := strings.Contains(bodyText(r), id); r.StatusCode != 200 || got != want {
			t.Errorf("prefix %q: found %v, status %d", prefix, got, r.StatusCode)
		}
	}
}

// FuzzFilter searches for expressions that crash or block the agent.
func FuzzFilter(f *testing.F) {
	for _, seed := range []string{
		`ID == "x"`, `Periodic is not nil`, `"k" in Meta`, `any TaskGroups as g { g.Name == "web" }`, `all Meta as k, v { v matches "a+" }`,
		`not (Status == "running" and Priority != 5)`, `TaskGroups.0.Tasks.0.Config.args contains "x"`, `Payload is empty`,
	} {
		f.Add(seed)
	}
	job := &api.Job{
		ID: new("x"), Status: new("running"), Meta: map[string]string{"k": "v"}, Payload: []byte("p"),
		TaskGroups: []*api.TaskGroup{{Name: new("web"), Tasks: []*api.Task{{Name: "t", Config: map[string]any{"args": []any{"a", 1, nil}}}}}},
	}
	f.Fuzz(func(t *testing.T, expression string) {
		r := listRequest(t, "filter="+url.QueryEscape(expression))
		begin := time.Now()
		got, err := listPage(r, []*api.Job{job, job}, func(j *api.Job) sortKey { return newNameSortKey("", *j.ID) }, objectAsStub)
		if took := time.Since(begin); took > time.Minute {
			t.Errorf("%q takes %v", expression, took)
		}
		if err == nil && len(got) == 1 {
			t.Error("the same job is one and is not")
		}
		if err != nil && !isBadRequest(err) {
			t.Errorf("%q: %v is nobody's fault", expression, err)
		}
	})
}
