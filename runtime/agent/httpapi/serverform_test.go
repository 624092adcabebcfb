package httpapi

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// Replies have the fields that the types of Nomad's client lack, with correct values.
func TestServerOnlyFields(t *testing.T) {
	t.Parallel()
	b := newClientFixture(t, nil)
	if _, err := b.store.Update(t.Context(), func(tx *store.Txn) error {
		tx.PutNamespace(&api.Namespace{Name: "dev"})
		tx.PutVariable(&api.Variable{Namespace: "dev", Path: "empty"})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	written, _, err := b.Jobs().RegisterOpts(newJob("web", "service", "app", withCount(2), func(j *api.Job) {
		j.Priority = new(70)
		j.Update.Canary, j.Update.AutoPromote = new(1), new(true)
	}), &api.RegisterOptions{EvalPriority: 60}, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, d := b.waitEvaluation(t, written.EvalID)
	var one struct {
		EvalPriority int
		TaskGroups   map[string]struct {
			DesiredTotal int
			AutoPromote  bool
		}
	}
	complete := func(where, answer string) {
		t.Helper()
		if err := json.Unmarshal([]byte(strings.Trim(answer, "[]")), &one); err != nil {
			t.Fatalf("%s: %v in %s", where, err, answer)
		}
		if g := one.TaskGroups["app"]; one.EvalPriority != 60 || !g.AutoPromote || g.DesiredTotal != 2 {
			t.Errorf("%s: %+v", where, one)
		}
	}
	get := func(path string) string { return bodyText(b.send("GET", path, nil)) }
	for _, path := range []string{"/v1/deployment/" + d.ID, "/v1/deployments", "/v1/job/web/deployment", "/v1/job/web/deployments"} {
		complete(path, get(path))
	}
	stream, err := b.EventStream().Stream(t.Context(), map[api.Topic][]string{api.TopicDeployment: {"*"}}, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	batch := <-stream
	if batch.Err != nil {
		t.Fatal(batch.Err)
	}
	payload, err := json.Marshal(batch.Events[0].Payload["Deployment"])
	if err != nil {
		t.Fatal(err)
	}
	complete("event", string(payload))

	for path, want := range map[string]string{
		"/v1/namespace/dev":           `"Hash":"`,
		"/v1/namespaces":              `"Hash":"`,
		"/v1/node/pools":              `"Hash":"`,
		"/v1/node/pool/all":           `"Hash":"`,
		"/v1/var/empty?namespace=dev": `"CreateTime":0,"ModifyIndex"`, // the reply has no items between these fields
	} {
		if got := get(path); !strings.Contains(got, want) {
			t.Errorf("%s: %s is not in %s", path, want, got)
		}
	}
	job := &api.Job{Namespace: new("dev"), TaskGroups: []*api.TaskGroup{{Services: []*api.Service{{Name: "web"}}}}}
	if got, err := encodeNomadJSON([]*api.Job{newJob("first", "service", "app"), job}); err != nil || !strings.Contains(string(got), `"Name":"web","Namespace":"dev","OnUpdate":`) {
		t.Errorf("a service has not the namespace of its job: %s, %v", got, err)
	}
	if pool, _, err := b.NodePools().Info("all", nil); err != nil || pool.Name != "all" {
		t.Errorf("%+v, %v", pool, err)
	}
	if a, b := newNamespaceView(&api.Namespace{Name: "a", ModifyIndex: 1}), newNamespaceView(&api.Namespace{Name: "a", ModifyIndex: 2}); string(a.Hash) != string(b.Hash) {
		t.Error("the hash of what is the same differs")
	}
}
