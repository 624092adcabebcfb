package httpapi

import (
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// readOnlyFixture is an API with a token and a read-only token.
func readOnlyFixture(t *testing.T) *fixture {
	return newFixture(t, func(c *Config) { c.OperatorToken, c.ReadOnlyToken = "operator", "reader" })
}

func TestReadOnlyTokenAllowsListedRoutes(t *testing.T) {
	f := readOnlyFixture(t)
	for r := range f.routeRequests() {
		_, opened := readOnlyRoutes[r.pattern]
		opened = opened && r.isRead
		if opened && r.pattern == eventsPath { // the stream has no end
			continue
		}
		got := f.send(r.method, r.path, strings.NewReader("{}"), "X-Nomad-Token", "reader")
		if (got.StatusCode != http.StatusForbidden) != opened {
			t.Errorf("%s %s: status %d, opened by the table %t", r.method, r.path, got.StatusCode, opened)
		}
	}
	for pattern := range readOnlyRoutes {
		if !slices.ContainsFunc(f.routes, func(rt route) bool { return rt.pattern == pattern }) {
			t.Errorf("%s is in the table, and there is no such route", pattern)
		}
	}
}

func TestReadOnlyTokenAccess(t *testing.T) {
	f := readOnlyFixture(t)
	for _, tc := range []struct {
		token, target string
		code          int
	}{
		{"reader", "/v1/jobs", 200},
		{"operator", "/v1/jobs", 200},
		{"other", "/v1/jobs", 403},
		{"", "/v1/jobs", 403},
		{"reader", "/v1/vars", 403},
		{"operator", "/v1/vars", 200},
		{"reader", "/v1/jobs?filter=Meta.password+matches+%22%5Eh%22", 403},
		{"reader", "/v1/service/web?filter=Address+matches+%22%5E1%22", 200},
	} {
		if r := f.send("GET", tc.target, nil, "X-Nomad-Token", tc.token); r.StatusCode != tc.code {
			t.Errorf("%s with token %q: status %d, want %d", tc.target, tc.token, r.StatusCode, tc.code)
		}
	}
	for token, want := range map[string]string{"reader": `"AccessorID":"read-only"`, "operator": `"AccessorID":"acls-disabled"`} {
		if text := bodyText(f.send("GET", "/v1/acl/token/self", nil, "X-Nomad-Token", token)); !strings.Contains(text, want) {
			t.Errorf("the token %q is described as %s", token, text)
		}
	}
	none := newFixture(t, func(c *Config) { c.OperatorToken = "operator" })
	if r := none.send("GET", "/v1/jobs", nil); r.StatusCode != 403 {
		t.Errorf("without a read-only token and without any: status %d", r.StatusCode)
	}
	// A page of another web site may not use the read-only token.
	if r := f.send("GET", "/v1/jobs", nil, "X-Nomad-Token", "reader", "Origin", "https://example.org"); r.StatusCode != 403 {
		t.Errorf("from another site: status %d", r.StatusCode)
	}
}

const secretValue = "hunter2"

// newJobWithSecrets returns a job with a secret text in each field that the read-only token must not read.
func newJobWithSecrets() *api.Job {
	words := map[string]string{"word": secretValue}
	return &api.Job{
		ID: new("web"), Name: new("web"), Namespace: new("default"), Version: new(uint64(0)), Type: new("service"), Status: new("running"),
		Meta: words, Payload: []byte(secretValue), DispatchIdempotencyToken: new(secretValue), NomadTokenID: new(secretValue),
		Constraints: []*api.Constraint{{RTarget: secretValue}},
		Multiregion: &api.Multiregion{Regions: []*api.MultiregionRegion{{Name: "r", Meta: words}}},
		TaskGroups: []*api.TaskGroup{{
			Name: new("g"), Count: new(1), Meta: words,
			Scaling:  &api.ScalingPolicy{Policy: map[string]any{"word": secretValue}},
			Networks: []*api.NetworkResource{{CNI: &api.CNIConfig{Args: words}}},
			Volumes:  map[string]*api.VolumeRequest{"v": {Name: "v", MountOptions: &api.CSIMountOptions{MountFlags: []string{secretValue}}}},
			Services: []*api.Service{{
				Name: "web", Tags: []string{"shown-tag"}, Meta: words, CanaryMeta: words,
				Checks: []api.ServiceCheck{{Args: []string{secretValue}, Body: secretValue, Header: map[string][]string{"h": {secretValue}}}},
			}},
			Tasks: []*api.Task{{
				Name: "t", Driver: "raw_exec", Env: words, Meta: words,
				Config:    map[string]any{"args": []any{secretValue}},
				Templates: []*api.Template{{EmbeddedTmpl: new(secretValue), SourcePath: new(secretValue)}},
				Artifacts: []*api.TaskArtifact{{GetterSource: new("https://u:" + secretValue + "@x"), GetterOptions: words, GetterHeaders: words}},
				Actions:   []*api.Action{{Name: "a", Command: secretValue, Args: []string{secretValue}}},
				Secrets:   []*api.Secret{{Name: "s", Provider: "p", Path: secretValue}},
			}},
		}},
	}
}

func TestReadOnlyTokenHidesSecrets(t *testing.T) {
	f := readOnlyFixture(t)
	const gotAlloc, gotNode = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"
	job := newJobWithSecrets()
	f.updateStore(t, func(tx *store.Txn) {
		tx.PutJobAndVersion(job)
		tx.PutNodeWithStorageEvents(&api.Node{ID: gotNode, Name: "n", Meta: map[string]string{"word": secretValue}, Events: []*api.NodeEvent{{Message: secretValue}}})
		tx.PutScheduledAllocation(&api.Allocation{
			ID: gotAlloc, Namespace: "default", JobID: "web", NodeID: gotNode, TaskGroup: "g", Job: job, EvalID: "33333333-3333-3333-3333-333333333333",
			TaskStates: map[string]*api.TaskState{"t": {State: "running", Events: []*api.TaskEvent{{
				Type: "Terminated", DisplayMessage: secretValue, Message: secretValue, DriverError: secretValue, DriverMessage: secretValue, DownloadError: secretValue,
				SetupError: secretValue, ValidationError: secretValue, RestartReason: secretValue, KillReason: secretValue, KillError: secretValue, TaskSignalReason: secretValue,
				Details: map[string]string{"word": secretValue},
			}}}},
		})
		tx.PutEvaluation(&api.Evaluation{ID: "33333333-3333-3333-3333-333333333333", Namespace: "default", JobID: "web"})
		tx.PutDeployment(&api.Deployment{ID: "44444444-4444-4444-4444-444444444444", Namespace: "default", JobID: "web"})
		tx.PutService(&api.ServiceRegistration{ID: "s", ServiceName: "web", Namespace: "default", JobID: "web", AllocID: gotAlloc, NodeID: gotNode, Tags: []string{"shown-tag"}})
		tx.PutVariable(&api.Variable{Namespace: "default", Path: "path-of-a-variable", Items: api.VariableItems{"word": secretValue}})
		tx.AddScalingEvent("default", "web", "g", api.ScalingEvent{Message: secretValue, Meta: map[string]any{"word": secretValue}})
	})
	ids := map[string]string{"alloc": gotAlloc, "node": gotNode, "eval": "33333333-3333-3333-3333-333333333333", "deploy": "44444444-4444-4444-4444-444444444444"}
	for pattern := range readOnlyRoutes {
		if pattern == eventsPath {
			continue
		}
		id := "web"
		for begin, whole := range ids {
			if strings.HasPrefix(pattern, "/v1/"+begin) {
				id = whole
			}
		}
		path := strings.NewReplacer("{id...}", id, "{id}", id).Replace(pattern)
		for _, query := range []string{"", "?meta=true&resources=true&os=true&pretty"} {
			r := f.send("GET", path+query, nil, "X-Nomad-Token", "reader")
			body := bodyText(r)
			if r.StatusCode != 200 && pattern != "/v1/agent/health" {
				t.Errorf("%s: status %d: %s", path, r.StatusCode, body)
			}
			if strings.Contains(body, secretValue) {
				t.Errorf("%s shows the secret: %s", path, body)
			}
		}
	}
	for _, path := range []string{"/v1/job/web", "/v1/allocation/" + gotAlloc, "/v1/node/" + gotNode, "/v1/jobs?meta=true"} {
		if body := bodyText(f.send("GET", path, nil, "X-Nomad-Token", "operator")); !strings.Contains(body, secretValue) {
			t.Errorf("%s hides the word from the operator: %s", path, body)
		}
	}
	read := decodeReply[api.Job](t, f.send("GET", "/v1/job/web", nil, "X-Nomad-Token", "reader"))
	if g := read.TaskGroups[0]; *read.ID != "web" || *g.Count != 1 || g.Tasks[0].Driver != "raw_exec" || g.Services[0].Tags[0] != "shown-tag" {
		t.Errorf("the job lacks more than its secrets: %+v", read)
	}
}

func TestReadOnlyTokenSeesEventsWithoutSecrets(t *testing.T) {
	t.Parallel()
	f := readOnlyFixture(t)
	job := newJobWithSecrets()
	f.updateStore(t, func(tx *store.Txn) {
		tx.PutVariable(&api.Variable{Namespace: "default", Path: "path-of-a-variable", Items: api.VariableItems{"word": secretValue}})
	})
	f.updateStore(t, func(tx *store.Txn) { tx.PutJobAndVersion(job) })
	body := f.readUntil(t, eventsPath+"?topic=*&index=0", "reader", `"JobRegistered"`) // is after the event of the variable
	if !strings.Contains(body, `"JobRegistered"`) || !strings.Contains(body, "shown-tag") {
		t.Errorf("the event of the job is missing: %s", body)
	}
	if strings.Contains(body, secretValue) || strings.Contains(body, "path-of-a-variable") {
		t.Errorf("the events show a secret: %s", body)
	}
}

// Each name in readOnlyShownFields and readOnlyHiddenFields is the name of a field.
func TestReadOnlyFieldsExist(t *testing.T) {
	for _, table := range []map[reflect.Type][]string{readOnlyShownFields, readOnlyHiddenFields} {
		for of, names := range table {
			for _, name := range names {
				if !slices.ContainsFunc(jsonFieldsOf(of), func(f *jsonField) bool { return f.name == name }) {
					t.Errorf("%s has no field %s", of, name)
				}
			}
		}
	}
}
