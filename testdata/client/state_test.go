package client

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/api/contexts"
)

var evaluationTrials = trials{
	"List": func(t *testing.T, e *env) {
		list, _, err := e.Evaluations().List(&api.QueryOptions{Filter: `JobID == "` + *e.job.ID + `"`})
		must(t, err)
		if !slices.ContainsFunc(list, func(v *api.Evaluation) bool { return v.ID == e.alloc.EvalID }) {
			t.Errorf("evaluation %s is not among %d", e.alloc.EvalID, len(list))
		}
	},
	"PrefixList": func(t *testing.T, e *env) {
		list, _, err := e.Evaluations().PrefixList(e.alloc.EvalID[:9])
		must(t, err)
		if len(list) != 1 || list[0].ID != e.alloc.EvalID {
			t.Errorf("%d evaluations", len(list))
		}
	},
	"Count": func(t *testing.T, e *env) {
		count, _, err := e.Evaluations().Count(nil)
		must(t, err)
		if count.Count < 1 {
			t.Errorf("%+v", count)
		}
	},
	"Info": func(t *testing.T, e *env) {
		eval, m, err := e.Evaluations().Info(e.alloc.EvalID, nil)
		must(t, err)
		if eval.JobID != *e.job.ID || eval.Status != api.EvalStatusComplete || eval.TriggeredBy != "job-register" || m.LastIndex != eval.ModifyIndex {
			t.Errorf("%+v", eval)
		}
		_, _, err = e.Evaluations().Info(unknown, nil)
		refuses(t, 404, "eval not found", err)
	},
	"Delete": refused(500, "eval broker is enabled; eval broker must be paused to delete evals", func(e *env) error {
		_, err := e.Evaluations().Delete([]string{e.alloc.EvalID}, nil)
		return err
	}),
	"DeleteOpts": refused(500, "eval broker is enabled; eval broker must be paused to delete evals", func(e *env) error {
		_, _, err := e.Evaluations().DeleteOpts(&api.EvalDeleteRequest{Filter: `JobID == "x"`}, nil)
		return err
	}),
	"Allocations": func(t *testing.T, e *env) {
		list, _, err := e.Evaluations().Allocations(e.alloc.EvalID, nil)
		must(t, err)
		if len(list) != 1 || list[0].ID != e.alloc.ID {
			t.Errorf("%d allocations", len(list))
		}
	},
}

var deploymentTrials = trials{
	"List": func(t *testing.T, e *env) {
		list, _, err := e.Deployments().List(nil)
		must(t, err)
		if !slices.ContainsFunc(list, func(d *api.Deployment) bool { return d.ID == e.alloc.DeploymentID }) {
			t.Errorf("deployment %s is not among %d", e.alloc.DeploymentID, len(list))
		}
	},
	"PrefixList": func(t *testing.T, e *env) {
		list, _, err := e.Deployments().PrefixList(strings.ReplaceAll(e.alloc.DeploymentID[:12], "-", ""))
		must(t, err)
		if len(list) != 1 || list[0].ID != e.alloc.DeploymentID {
			t.Errorf("%d deployments", len(list))
		}
	},
	"Info": func(t *testing.T, e *env) {
		d := e.deployed(t, *e.job.ID, api.DeploymentStatusSuccessful)
		got, m, err := e.Deployments().Info(d.ID, nil)
		must(t, err)
		if got.JobID != *e.job.ID || got.TaskGroups["group"].HealthyAllocs != 1 || m.LastIndex != got.ModifyIndex {
			t.Errorf("%+v", got)
		}
		_, _, err = e.Deployments().Info(unknown, nil)
		refuses(t, 404, "deployment not found", err)
	},
	"Allocations": func(t *testing.T, e *env) {
		list, _, err := e.Deployments().Allocations(e.alloc.DeploymentID, nil)
		must(t, err)
		if len(list) != 1 || list[0].ID != e.alloc.ID {
			t.Errorf("%d allocations", len(list))
		}
	},
	"Fail": func(t *testing.T, e *env) {
		d := e.canary(t)
		failed, _, err := e.Deployments().Fail(d.ID, nil)
		must(t, err)
		if failed.EvalID == "" || failed.DeploymentModifyIndex == 0 {
			t.Errorf("%+v", failed)
		}
		e.deployed(t, d.JobID, api.DeploymentStatusFailed)
		_, _, err = e.Deployments().Fail(d.ID, nil)
		refuses(t, 500, "can't fail terminal deployment", err)
	},
	"Pause": func(t *testing.T, e *env) {
		d := e.canary(t)
		_, _, err := e.Deployments().Pause(d.ID, true, nil)
		must(t, err)
		e.deployed(t, d.JobID, api.DeploymentStatusPaused)
		_, _, err = e.Deployments().Pause(d.ID, false, nil)
		must(t, err)
		e.deployed(t, d.JobID, api.DeploymentStatusRunning)
	},
	"PromoteAll": func(t *testing.T, e *env) {
		d := e.canary(t)
		_, _, err := e.Deployments().PromoteAll(d.ID, nil)
		must(t, err)
		e.deployed(t, d.JobID, api.DeploymentStatusSuccessful)
	},
	"PromoteGroups": func(t *testing.T, e *env) {
		d := e.canary(t)
		_, _, err := e.Deployments().PromoteGroups(d.ID, []string{"group"}, nil)
		must(t, err)
		e.deployed(t, d.JobID, api.DeploymentStatusSuccessful)
	},
	"Unblock": func(t *testing.T, e *env) {
		d := e.canary(t)
		_, _, err := e.Deployments().Unblock(d.ID, nil)
		must(t, err)
	},
	"SetAllocHealth": func(t *testing.T, e *env) {
		job := e.newJob(t, api.JobTypeService, forever)
		job.Update.HealthCheck = new("manual")
		alloc := e.run(t, job)
		set, _, err := e.Deployments().SetAllocHealth(alloc.DeploymentID, []string{alloc.ID}, nil, nil)
		must(t, err)
		if set.DeploymentModifyIndex == 0 {
			t.Errorf("%+v", set)
		}
		e.deployed(t, *job.ID, api.DeploymentStatusSuccessful)
	},
}

// canary returns a deployment that waits for its promotion.
func (e *env) canary(t *testing.T) *api.Deployment {
	t.Helper()
	job := e.newJob(t, api.JobTypeService, forever)
	job.Update.Canary = new(1)
	e.run(t, job)
	e.deployed(t, *job.ID, api.DeploymentStatusSuccessful)
	job.TaskGroups[0].Tasks[0].Env = map[string]string{"VERSION": "2"}
	e.run(t, job)
	return until(t, func(q *api.QueryOptions) (*api.Deployment, *api.QueryMeta, error) {
		return e.Jobs().LatestDeployment(*job.ID, q)
	}, func(d *api.Deployment) bool {
		return d.JobVersion == 1 && d.Status == api.DeploymentStatusRunning && d.TaskGroups["group"].HealthyAllocs == 1
	})
}

var serviceTrials = trials{
	"List": func(t *testing.T, e *env) {
		list, _, err := e.Services().List(nil)
		must(t, err)
		for _, namespace := range list {
			for _, s := range namespace.Services {
				if namespace.Namespace == "default" && s.ServiceName == *e.job.ID && slices.Equal(s.Tags, []string{"one", "two"}) {
					return
				}
			}
		}
		t.Errorf("service %s is missing", *e.job.ID)
	},
	"Get": func(t *testing.T, e *env) {
		for filter, want := range map[string]int{``: 1, `Tags contains "one"`: 1, `Tags contains "x"`: 0} {
			list, m, err := e.Services().Get(*e.job.ID, &api.QueryOptions{Filter: filter, Params: map[string]string{"choose": "1|me"}})
			must(t, err)
			if len(list) != want || m.LastIndex == 0 {
				t.Errorf("filter %q: %d instances", filter, len(list))
			}
		}
	},
	"Delete": func(t *testing.T, e *env) {
		job := e.newJob(t, api.JobTypeService, forever)
		job.TaskGroups[0].Services = []*api.Service{{Name: *job.ID, Provider: "nomad", Address: "10.0.0.1", PortLabel: "99"}}
		e.run(t, job)
		list := until(t, func(q *api.QueryOptions) ([]*api.ServiceRegistration, *api.QueryMeta, error) {
			return e.Services().Get(*job.ID, q)
		}, func(list []*api.ServiceRegistration) bool { return len(list) == 1 })
		_, err := e.Services().Delete(*job.ID, list[0].ID, nil)
		must(t, err)
		_, err = e.Services().Delete(*job.ID, list[0].ID, nil)
		refuses(t, 500, "service registration not found", err)
	},
}

var namespaceTrials = trials{
	"List": func(t *testing.T, e *env) {
		list, _, err := e.Namespaces().List(nil)
		must(t, err)
		if !slices.ContainsFunc(list, func(n *api.Namespace) bool { return n.Name == "default" }) {
			t.Error("no default namespace")
		}
	},
	"PrefixList": func(t *testing.T, e *env) {
		list, _, err := e.Namespaces().PrefixList("defau", nil)
		must(t, err)
		equal(t, "namespaces", len(list), 1)
	},
	"Info": func(t *testing.T, e *env) {
		n, _, err := e.Namespaces().Info("default", nil)
		must(t, err)
		equal(t, "name", n.Name, "default")
		_, _, err = e.Namespaces().Info("nope", nil)
		refuses(t, 404, "Namespace not found", err)
	},
	"Register": func(t *testing.T, e *env) {
		const name = "client-register"
		job := e.newJob(t, api.JobTypeBatch, "true")
		job.Namespace = new(name)
		_, _, err := e.Jobs().Register(job, nil)
		refuses(t, 500, `is in nonexistent namespace "client-register"`, err)
		_, err = e.Namespaces().Register(&api.Namespace{Name: name, Description: "for a test"}, nil)
		must(t, err)
		_, _, err = e.Jobs().Register(job, nil)
		must(t, err)
		within := func(ok func([]*api.AllocationListStub) bool) {
			until(t, func(q *api.QueryOptions) ([]*api.AllocationListStub, *api.QueryMeta, error) {
				q.Namespace = name
				return e.Jobs().Allocations(*job.ID, false, q)
			}, ok)
		}
		within(func(list []*api.AllocationListStub) bool { return len(list) == 1 && list[0].ClientStatus == "complete" })
		_, _, err = e.Jobs().Info(*job.ID, nil)
		refuses(t, 404, "job not found", err)
		_, _, err = e.Jobs().Deregister(*job.ID, true, &api.WriteOptions{Namespace: name})
		must(t, err)
		within(func(list []*api.AllocationListStub) bool { return len(list) == 0 })
		_, err = e.Namespaces().Delete(name, nil)
		must(t, err)
	},
	"Delete": func(t *testing.T, e *env) {
		_, err := e.Namespaces().Register(&api.Namespace{Name: "client-delete"}, nil)
		must(t, err)
		v := api.NewVariable("in/it")
		v.Namespace, v.Items["key"] = "client-delete", "value"
		_, _, err = e.Variables().Create(v, nil)
		must(t, err)
		_, err = e.Namespaces().Delete("client-delete", nil)
		refuses(t, 500, "in/it", err)
		_, err = e.Variables().Delete("in/it", &api.WriteOptions{Namespace: "client-delete"})
		must(t, err)
		_, err = e.Namespaces().Delete("client-delete", nil)
		must(t, err)
		_, err = e.Namespaces().Delete("default", nil)
		refuses(t, 400, "can not delete default namespace", err)
	},
}

var variableTrials = trials{
	"Create": func(t *testing.T, e *env) {
		v := variable(t, e, "create")
		if v.CreateIndex == 0 || v.CreateTime == 0 || v.Items["key"] != "value" {
			t.Errorf("%+v", v.Metadata())
		}
	},
	"CheckedCreate": func(t *testing.T, e *env) {
		variable(t, e, "checked-create")
		_, _, err := e.Variables().CheckedCreate(&api.Variable{Path: "client/checked-create", Items: api.VariableItems{"key": "other"}}, nil)
		conflicts(t, err)
	},
	"Read": func(t *testing.T, e *env) {
		variable(t, e, "read")
		v, m, err := e.Variables().Read("client/read", nil)
		must(t, err)
		if v.Items["key"] != "value" || m.LastIndex != v.ModifyIndex {
			t.Errorf("%+v", v.Metadata())
		}
		if _, _, err = e.Variables().Read("client/nope", nil); !errors.Is(err, api.ErrVariablePathNotFound) {
			t.Errorf("error %v", err)
		}
	},
	"Peek": func(t *testing.T, e *env) {
		v, _, err := e.Variables().Peek("client/nope", nil)
		must(t, err)
		if v != nil {
			t.Error("something from nowhere")
		}
	},
	"Update": func(t *testing.T, e *env) {
		v := variable(t, e, "update")
		again, _, err := e.Variables().Update(&api.Variable{Path: v.Path, Items: api.VariableItems{"key": "2"}}, nil)
		must(t, err)
		if again.Items["key"] != "2" || again.CreateIndex != v.CreateIndex || again.ModifyIndex <= v.ModifyIndex || again.CreateTime != v.CreateTime {
			t.Errorf("%+v after %+v", again.Metadata(), v.Metadata())
		}
	},
	"CheckedUpdate": func(t *testing.T, e *env) {
		v := variable(t, e, "checked-update")
		_, _, err := e.Variables().CheckedUpdate(v, nil)
		must(t, err)
		_, _, err = e.Variables().CheckedUpdate(v, nil)
		conflicts(t, err)
	},
	"Delete": func(t *testing.T, e *env) {
		v := variable(t, e, "delete")
		for range 2 { // that it is gone already is no error
			_, err := e.Variables().Delete(v.Path, nil)
			must(t, err)
		}
	},
	"CheckedDelete": func(t *testing.T, e *env) {
		v := variable(t, e, "checked-delete")
		_, err := e.Variables().CheckedDelete(v.Path, v.ModifyIndex+1, nil)
		conflicts(t, err)
		_, err = e.Variables().CheckedDelete(v.Path, v.ModifyIndex, nil)
		must(t, err)
	},
	"List": func(t *testing.T, e *env) {
		variable(t, e, "list")
		list, _, err := e.Variables().List(&api.QueryOptions{Filter: `Path == "client/list"`, Namespace: "*"})
		must(t, err)
		equal(t, "variables", len(list), 1)
	},
	"PrefixList": func(t *testing.T, e *env) {
		variable(t, e, "prefix/one")
		variable(t, e, "prefix/two")
		q := &api.QueryOptions{PerPage: 1}
		list, m, err := e.Variables().PrefixList("client/prefix/", q)
		must(t, err)
		if len(list) != 1 || list[0].Path != "client/prefix/one" || m.NextToken == "" {
			t.Fatalf("%d variables, next token %q", len(list), m.NextToken)
		}
		q.NextToken = m.NextToken
		list, m, err = e.Variables().PrefixList("client/prefix/", q)
		must(t, err)
		if len(list) != 1 || list[0].Path != "client/prefix/two" || m.NextToken != "" {
			t.Errorf("%d variables, next token %q", len(list), m.NextToken)
		}
	},
	"GetItems": func(t *testing.T, e *env) {
		items, _, err := e.Variables().GetItems(variable(t, e, "get-items").Path, nil)
		must(t, err)
		equal(t, "item", (*items)["key"], "value")
	},
	"GetVariableItems": func(t *testing.T, e *env) {
		items, _, err := e.Variables().GetVariableItems(variable(t, e, "get-variable-items").Path, nil)
		must(t, err)
		equal(t, "item", items["key"], "value")
	},
	"AcquireLock": func(t *testing.T, e *env) {
		v := locked(t, e, "acquire")
		_, _, err := e.Variables().AcquireLock(&api.Variable{Path: v.Path}, nil)
		refuses(t, 409, "attempting to modify locked variable", err)
		_, _, err = e.Variables().Update(&api.Variable{Path: v.Path, Items: api.VariableItems{"key": "other"}}, nil)
		refuses(t, 409, "attempting to modify locked variable", err)
		v.Items = api.VariableItems{"key": "of the holder"}
		v, _, err = e.Variables().Update(v, nil)
		must(t, err)
		equal(t, "item", v.Items["key"], "of the holder")
	},
	"RenewLock": func(t *testing.T, e *env) {
		v := locked(t, e, "renew")
		m, _, err := e.Variables().RenewLock(v, nil)
		must(t, err)
		equal(t, "lock", m.Lock.ID, v.LockID())
		_, _, err = e.Variables().RenewLock(&api.Variable{Path: v.Path, Lock: &api.VariableLock{ID: unknown}}, nil)
		refuses(t, 409, "", err)
	},
	"ReleaseLock": func(t *testing.T, e *env) {
		v := locked(t, e, "release")
		free, _, err := e.Variables().ReleaseLock(v, nil)
		must(t, err)
		if free.Lock != nil {
			t.Error("it is locked")
		}
		_, _, err = e.Variables().ReleaseLock(v, nil)
		refuses(t, 409, "variable doesn't hold a lock", err)
	},
}

func variable(t *testing.T, e *env, name string) *api.Variable {
	t.Helper()
	path := "client/" + name
	v, _, err := e.Variables().CheckedCreate(&api.Variable{Path: path, Items: api.VariableItems{"key": "value"}}, nil)
	must(t, err)
	t.Cleanup(func() {
		if _, err := e.Variables().Delete(path, nil); err != nil {
			t.Error(err)
		}
	})
	return v
}

// locked returns a variable and its lock, which ends with the test.
func locked(t *testing.T, e *env, name string) *api.Variable {
	t.Helper()
	v, _, err := e.Variables().AcquireLock(&api.Variable{Path: variable(t, e, name).Path, Lock: &api.VariableLock{TTL: "10s"}}, nil)
	must(t, err)
	if v.LockID() == "" || v.Items["key"] != "value" {
		t.Fatalf("%+v", v.Metadata())
	}
	t.Cleanup(func() { _, _, _ = e.Variables().ReleaseLock(v, nil) }) // the test may have done so
	return v
}

func conflicts(t *testing.T, err error) {
	t.Helper()
	var conflict api.ErrCASConflict
	if !errors.As(err, &conflict) || conflict.Conflict.Items["key"] != "value" {
		t.Errorf("error %v", err)
	}
}

var searchTrials = trials{
	"PrefixSearch": func(t *testing.T, e *env) {
		for context, id := range map[contexts.Context]string{
			contexts.Allocs: e.alloc.ID, contexts.Deployments: e.alloc.DeploymentID, contexts.Evals: e.alloc.EvalID, contexts.Jobs: *e.job.ID,
			contexts.Nodes: e.node, contexts.Namespaces: "default", contexts.NodePools: "default",
		} {
			for _, in := range []contexts.Context{context, contexts.All} {
				found, _, err := e.Search().PrefixSearch(id, in, nil)
				must(t, err)
				if !slices.Contains(found.Matches[context], id) || found.Truncations[context] {
					t.Errorf("%s %q in %s: %v", context, id, in, found.Matches)
				}
			}
		}
	},
	"FuzzySearch": func(t *testing.T, e *env) {
		id := *e.job.ID
		for context, want := range map[contexts.Context]api.FuzzyMatch{
			contexts.Jobs:     {ID: id, Scope: []string{"default", id}},
			contexts.Allocs:   {ID: e.alloc.Name, Scope: []string{"default", e.alloc.ID}},
			contexts.Services: {ID: id, Scope: []string{"default", id, "group"}},
		} {
			found, _, err := e.Search().FuzzySearch(strings.TrimPrefix(id, "client-"), context, nil)
			must(t, err)
			if len(found.Matches[context]) != 1 || found.Matches[context][0].ID != want.ID || !slices.Equal(found.Matches[context][0].Scope, want.Scope) {
				t.Errorf("%s: %+v, want %+v", context, found.Matches[context], want)
			}
		}
		_, _, err := e.Search().FuzzySearch("x", contexts.All, nil)
		refuses(t, 500, "fuzzy search query must be at least 2 characters, got 1", err)
	},
}

var eventTrials = trials{
	"Stream": func(t *testing.T, e *env) {
		job := e.newJob(t, api.JobTypeService, forever)
		topics := map[api.Topic][]string{api.TopicJob: {*job.ID}, api.TopicEvaluation: {*job.ID}, api.TopicAllocation: {*job.ID}, api.TopicDeployment: {*job.ID}}
		live, err := e.EventStream().Stream(t.Context(), topics, 0, &api.QueryOptions{})
		must(t, err)
		e.run(t, job)
		e.deployed(t, *job.ID, api.DeploymentStatusSuccessful)
		first := happened(t, live)
		replayed, err := e.EventStream().Stream(t.Context(), topics, first, &api.QueryOptions{})
		must(t, err)
		equal(t, "first index again", happened(t, replayed), first)

		_, _, err = e.Jobs().Deregister(*job.ID, true, nil)
		must(t, err)
		event := next(t, live, func(event api.Event) bool { return event.Type == "JobDeregistered" && event.Topic == api.TopicJob })
		gone, deleted, err := event.DeregisteredJob()
		must(t, err)
		if !deleted || *gone.ID != *job.ID {
			t.Errorf("%+v, deleted %t", gone, deleted)
		}

		nodes, err := e.EventStream().Stream(t.Context(), map[api.Topic][]string{api.TopicNode: {e.node}}, event.Index, &api.QueryOptions{})
		must(t, err)
		_, err = e.Nodes().Meta().Apply(&api.NodeMetaApplyRequest{NodeID: e.node, Meta: map[string]*string{"streamed": new("yes")}}, nil)
		must(t, err)
		next(t, nodes, func(event api.Event) bool {
			n, err := event.Node()
			must(t, err)
			return n.Meta["streamed"] == "yes"
		})
	},
}

// next waits for an event.
func next(t *testing.T, stream <-chan *api.Events, wanted func(api.Event) bool) api.Event {
	t.Helper()
	for batch := range stream {
		must(t, batch.Err)
		if at := slices.IndexFunc(batch.Events, wanted); at >= 0 {
			return batch.Events[at]
		}
	}
	t.Fatal("the stream ended")
	return api.Event{}
}

// happened waits for the events of a job that runs, and returns the first index.
func happened(t *testing.T, stream <-chan *api.Events) (first uint64) {
	t.Helper()
	seen := make(map[string]bool)
	for !seen["registered"] || !seen["running"] || !seen["evaluated"] || !seen["successful"] {
		batch, ok := <-stream
		if !ok || batch.Err != nil {
			t.Fatalf("the stream ended: %+v", batch)
		}
		if first == 0 {
			first = batch.Index
		}
		for _, event := range batch.Events {
			equal(t, "index", event.Index, batch.Index)
			switch event.Topic {
			case api.TopicJob:
				job, err := event.Job()
				must(t, err)
				seen["registered"] = seen["registered"] || event.Type == "JobRegistered" && *job.ID == event.Key
			case api.TopicAllocation:
				alloc, err := event.Allocation()
				must(t, err)
				seen["running"] = seen["running"] || alloc.ClientStatus == "running" && alloc.Job == nil
			case api.TopicEvaluation:
				eval, err := event.Evaluation()
				must(t, err)
				seen["evaluated"] = seen["evaluated"] || eval.Status == "complete"
			case api.TopicDeployment:
				d, err := event.Deployment()
				must(t, err)
				seen["successful"] = seen["successful"] || d.Status == "successful"
			}
		}
	}
	return first
}
