package httpapi

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/api/contexts"

	"github.com/nomad-lite/nomad-lite/runtime/store"
)

const (
	searchAllocID      = "ab111111-2222-4333-8444-555555555555"
	searchOtherAllocID = "ab111111-9999-4333-8444-555555555555"
	searchEvalID       = "cd111111-2222-4333-8444-555555555555"
	searchDeploymentID = "ef111111-2222-4333-8444-555555555555"
	searchNodeID       = "12111111-2222-4333-8444-555555555555"
)

func newSearchFixture(t *testing.T) *fixture {
	f := newFixture(t, nil)
	f.updateStore(t, func(tx *store.Txn) {
		web := &api.Job{
			ID: new("web"), Name: new("web"), Namespace: new("default"), Version: new(uint64(0)),
			TaskGroups: []*api.TaskGroup{{
				Name: new("front"), Services: []*api.Service{{Name: "web-http"}},
				Tasks: []*api.Task{{
					Name: "server", Config: map[string]any{"image": "nginx:Web", "command": "/bin/webserver"}, Services: []*api.Service{{Name: "my-web-admin"}},
				}},
			}},
		}
		tx.PutJobAndVersion(web)
		tx.PutJobAndVersion(&api.Job{ID: new("website"), Name: new("website"), Namespace: new("default"), Version: new(uint64(0))})
		tx.PutJobAndVersion(&api.Job{ID: new("web"), Name: new("web"), Namespace: new("prod"), Version: new(uint64(0))})
		tx.PutScheduledAllocation(&api.Allocation{ID: searchAllocID, Name: "web.front[0]", Namespace: "default", JobID: "web", Job: web})
		tx.PutScheduledAllocation(&api.Allocation{ID: searchOtherAllocID, Name: "web.front[0]", Namespace: "prod", JobID: "web", Job: web})
		tx.PutEvaluation(&api.Evaluation{ID: searchEvalID, Namespace: "default", JobID: "web"})
		tx.PutDeployment(&api.Deployment{ID: searchDeploymentID, Namespace: "default", JobID: "web"})
		tx.PutNodeWithStorageEvents(&api.Node{ID: searchNodeID, Name: "web-01", NodeClass: "webbed"})
		tx.PutNamespace(&api.Namespace{Name: "webspace"})
		tx.PutVariable(&api.Variable{Namespace: "default", Path: "web/db", Items: api.VariableItems{"k": "v"}})
	})
	return f
}

// `nomad status X` uses the only context that has an exact or a single match. (checklist 36)
func TestPrefixSearch(t *testing.T) {
	f := newSearchFixture(t)
	for _, c := range []struct {
		prefix, context, namespace string
		want                       map[contexts.Context][]string
	}{
		{"ab11", "all", "", map[contexts.Context][]string{"allocs": {searchAllocID}}},
		{"ab111", "allocs", "", map[contexts.Context][]string{"allocs": {searchAllocID}}},
		{"AB111111-22", "allocs", "", map[contexts.Context][]string{"allocs": {searchAllocID}}},
		{"ab", "allocs", "*", map[contexts.Context][]string{"allocs": {searchAllocID, searchOtherAllocID}}},
		{searchEvalID, "all", "", map[contexts.Context][]string{"evals": {searchEvalID}}},
		{"ef1", "deployment", "", map[contexts.Context][]string{"deployment": {searchDeploymentID}}},
		{"12", "nodes", "", map[contexts.Context][]string{"nodes": {searchNodeID}}},
		{"web", "all", "", map[contexts.Context][]string{"jobs": {"web", "website"}, "namespaces": {"webspace"}, "vars": {"web/db"}}},
		{"website", "all", "", map[contexts.Context][]string{"jobs": {"website"}}},
		{"web", "jobs", "*", map[contexts.Context][]string{"jobs": {"web", "website", "web"}}},
		{"def", "all", "", map[contexts.Context][]string{"namespaces": {"default"}, "node_pools": {"default"}}},
		{"nothing", "all", "", nil},
		{"x", "volumes", "", nil},
	} {
		body, _ := json.Marshal(map[string]string{"Prefix": c.prefix, "Context": c.context})
		answer := decodeReply[api.SearchResponse](t, f.send("PUT", "/v1/search?namespace="+c.namespace, strings.NewReader(string(body))))
		for context, got := range answer.Matches {
			if !slices.Equal(got, c.want[context]) || answer.Truncations[context] {
				t.Errorf("%q in %q: %s %q, want %q", c.prefix, c.context, context, got, c.want[context])
			}
		}
		for context := range c.want {
			if len(answer.Matches[context]) == 0 {
				t.Errorf("%q in %q: nothing in %s", c.prefix, c.context, context)
			}
		}
	}
	f.runRequests(t, []requestCase{
		{"an unknown context", "PUT", "/v1/search", `{"Context":"x"}`, 500, `…got "x"`},
		{"no body", "PUT", "/v1/search", "", 400, "Request body is empty"},
	})
	if r := f.send("POST", "/v1/search", strings.NewReader(`{"Prefix":"web","Context":"all"}`)); r.Header.Get("X-Nomad-Index") != "1" || r.Header.Get("X-Nomad-Knownleader") != "true" {
		t.Errorf("headers %v", r.Header)
	}
}

func TestFuzzySearch(t *testing.T) {
	f := newSearchFixture(t)
	search := func(in, context string) map[contexts.Context][]api.FuzzyMatch {
		return decodeReply[api.FuzzySearchResponse](t, f.send("PUT", "/v1/search/fuzzy", strings.NewReader(fmt.Sprintf(`{"Text":%q,"Context":%q}`, in, context)))).Matches
	}
	want := map[contexts.Context]string{
		"jobs":       "[{web [default web]} {website [default website]}]",
		"allocs":     "[{web.front[0] [default " + searchAllocID + "]}]",
		"services":   "[{web-http [default web front]} {my-web-admin [default web front server]}]",
		"images":     "[{nginx:Web [default web front server]}]",
		"commands":   "[{/bin/webserver [default web front server]}]",
		"nodes":      "[{web-01 [" + searchNodeID + "]}]",
		"classes":    "[{webbed [" + searchNodeID + "]}]",
		"namespaces": "[{webspace []}]",
		"vars":       "[{web/db [default web/db]}]",
	}
	for context, found := range search("wEb", "all") {
		if got := fmt.Sprint(found); got != want[context] && (len(found) > 0 || want[context] != "") {
			t.Errorf("%s: %s, want %s", context, got, want[context])
		}
	}
	for _, c := range []struct{ text, context, want string }{
		{"ront", "groups", "[{front [default web]}]"},
		{"er", "tasks", "[{server [default web front]}]"},
		{"ef1", "deployment", "[{" + searchDeploymentID + " []}]"},
	} {
		if got := fmt.Sprint(search(c.text, c.context)[contexts.Context(c.context)]); got != c.want {
			t.Errorf("%q in %s: %s, want %s", c.text, c.context, got, c.want)
		}
	}
	f.runRequests(t, []requestCase{
		{"too short", "PUT", "/v1/search/fuzzy", `{"Text":"w","Context":"all"}`, 500, "fuzzy search query must be at least 2 characters, got 1"},
		{"an unknown context", "PUT", "/v1/search/fuzzy", `{"Text":"web","Context":"x"}`, 500, `…got "x"`},
	})
}

// The operator limits fuzzy searches, and no others.
func TestSearchLimits(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.Search = SearchLimits{MaxObjects: 5, MaxMatches: 3, MinTextLen: 4} })
	for i := range 8 {
		f.putJob(t, fmt.Sprintf("job-%02d", i))
	}
	answer := decodeReply[api.FuzzySearchResponse](t, f.send("PUT", "/v1/search/fuzzy", strings.NewReader(`{"Text":"ob-0","Context":"jobs"}`)))
	if got := answer.Matches["jobs"]; len(got) != 3 || !answer.Truncations["jobs"] {
		t.Errorf("%v, truncated %v", got, answer.Truncations)
	}
	f.runRequests(t, []requestCase{
		{"too short", "PUT", "/v1/search/fuzzy", `{"Text":"ob-","Context":"all"}`, 500, "fuzzy search query must be at least 4 characters, got 3"},
		{"an object beyond the limit", "PUT", "/v1/search/fuzzy", `{"Text":"job-07","Context":"jobs"}`, 200, `…"Matches":{"jobs":null},"NextToken":"","Truncations":{"jobs":false}}`},
		{"by prefix", "PUT", "/v1/search", `{"Prefix":"job-07","Context":"jobs"}`, 200, `…"Matches":{"jobs":["job-07"]},"NextToken":"","Truncations":{"jobs":false}}`},
	})
	disabled := newFixture(t, func(c *Config) { c.Search = SearchLimits{DisableFuzzy: true} })
	disabled.runRequests(t, []requestCase{
		{"disabled", "PUT", "/v1/search/fuzzy", `{"Text":"job","Context":"all"}`, 500, "fuzzy search is not enabled"},
		{"by prefix", "PUT", "/v1/search", `{"Prefix":"job","Context":"jobs"}`, 200, `…"Matches":{"jobs":null},"NextToken":"","Truncations":{"jobs":false}}`},
	})
}

func TestSearchIsTruncated(t *testing.T) {
	f := newFixture(t, nil)
	for i := range 21 {
		f.putJob(t, fmt.Sprintf("job-%02d", i))
	}
	answer := decodeReply[api.SearchResponse](t, f.send("PUT", "/v1/search", strings.NewReader(`{"Prefix":"job","Context":"jobs"}`)))
	if got := answer.Matches["jobs"]; len(got) != 20 || got[0] != "job-00" || !answer.Truncations["jobs"] {
		t.Errorf("%d matches, %v", len(got), answer.Truncations)
	}
}

// An empty list is encoded as [], not as null. (checklist 42)
func TestEmptyListsAreNotNull(t *testing.T) {
	f := newFixture(t, nil)
	lists := 0
	for _, rt := range f.routes {
		if rt.responseType == nil || rt.responseType.Kind().String() != "slice" || !slices.Contains(strings.Fields(rt.spaceSeparatedMethods), "GET") || strings.Contains(rt.pattern, "{") {
			continue
		}
		r := f.send("GET", rt.pattern, nil)
		if got := bodyText(r); r.StatusCode == 200 && !strings.HasPrefix(got, "[") {
			t.Errorf("%s: %d %s", rt.pattern, r.StatusCode, got)
		}
		lists++
	}
	if lists < 10 {
		t.Errorf("only %d lists", lists)
	}
}
