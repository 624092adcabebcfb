package client

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
)

// Third-party programs are tested by the requests that they send. The numbers are
// the points of the API's checklist.
var programs = map[string]trial{
	// It asks for all namespaces, of what it knows by id too.
	// (checklist 39)
	"Wander": func(t *testing.T, e *env) {
		anywhere := &api.QueryOptions{Namespace: "*"}
		job := e.newJob(t, api.JobTypeService, forever)
		job.Meta = map[string]string{"k": "v"}
		id := *job.ID
		e.run(t, job)

		jobs, _, err := e.Jobs().ListOptions(&api.JobListOptions{Fields: &api.JobListFields{Meta: true}}, &api.QueryOptions{Namespace: "*", Prefix: id})
		must(t, err)
		if j := jobs[0]; j.Namespace != "default" || j.Priority != 50 || j.SubmitTime == 0 || j.Meta["k"] != "v" || j.JobSummary.Summary["group"].Running != 1 {
			t.Errorf("%+v", j)
		}
		tasks, _, err := e.Jobs().Allocations(id, true, &api.QueryOptions{Namespace: jobs[0].Namespace})
		must(t, err)
		if a := tasks[0]; a.Name != id+".group[0]" || a.NodeID != e.node || a.TaskStates["main"].StartedAt.IsZero() || !a.TaskStates["main"].FinishedAt.IsZero() {
			t.Errorf("%+v", a)
		}
		all, _, err := e.Allocations().List(anywhere)
		must(t, err)
		if len(all) == 0 {
			t.Error("no tasks")
		}
		alloc, _, err := e.Allocations().Info(tasks[0].ID, anywhere)
		must(t, err)
		if *alloc.Resources.MemoryMB != 10 || *alloc.TaskResources["main"].CPU != 10 {
			t.Errorf("resources %+v", alloc.Resources)
		}
		usage, err := e.Allocations().Stats(alloc, anywhere)
		must(t, err)
		if usage.Tasks["main"].ResourceUsage.MemoryStats == nil || usage.ResourceUsage.CpuStats == nil {
			t.Errorf("%+v", usage)
		}
		_, _, err = e.Nodes().Info(alloc.NodeID, anywhere)
		must(t, err)

		// Its logs never come from the address of the node.
		logs, err := e.Raw().Response("/v1/client/fs/logs/"+alloc.ID+"?follow=true&namespace=*&offset=1000000&origin=end&task=main&type=stdout", nil)
		must(t, err)
		defer logs.Close()
		var frame api.StreamFrame
		for decoder := json.NewDecoder(logs); !bytes.Contains(frame.Data, []byte("out\n")); {
			frame = api.StreamFrame{}
			must(t, decoder.Decode(&frame))
		}
		events, err := e.EventStream().Stream(t.Context(), map[api.Topic][]string{"Evaluation": {id}, "Job": {id}, "Allocation": {id}, "Deployment": {id}}, 0, &api.QueryOptions{Namespace: "default"})
		must(t, err)
		happened(t, events)

		var out bytes.Buffer
		code, err := e.Allocations().Exec(t.Context(), alloc, "main", true, []string{"/bin/sh", "-c", "echo hello"}, openInput(t), &out, io.Discard, nil, anywhere)
		must(t, err)
		if code != 0 || !strings.Contains(out.String(), "hello") {
			t.Errorf("exit code %d, %q", code, out.String())
		}
		must(t, e.Allocations().Restart(alloc, "main", anywhere))
		e.restarted(t, alloc, 1)
		_, err = e.Allocations().Stop(alloc, anywhere)
		must(t, err)
		e.untilAlloc(t, alloc.ID, func(a *api.Allocation) bool { return a.ClientTerminalStatus() })
		_, _, err = e.Jobs().Deregister(id, true, &api.WriteOptions{Namespace: "default"})
		must(t, err)
		_, _, err = e.Jobs().Info(id, nil)
		refuses(t, 404, "job not found", err)
	},
	// The provider compares what it reads with what it has written, byte for byte.
	// (checklist 40)
	"Terraform": func(t *testing.T, e *env) {
		job := e.newJob(t, api.JobTypeBatch, "true")
		id, in := *job.ID, &api.WriteOptions{Namespace: "default"}
		text := "# kept as it is\n" + source
		submission := &api.JobSubmission{Source: text, Format: "hcl2", VariableFlags: map[string]string{"a": "b c&d"}, Variables: "x = 1\n"}
		for version := range 2 {
			job.TaskGroups[0].Tasks[0].Env = map[string]string{"VERSION": strings.Repeat("i", version)}
			plan, _, err := e.Jobs().Plan(job, false, in)
			must(t, err)
			if plan.Diff != nil || (plan.JobModifyIndex == 0) != (version == 0) {
				t.Errorf("plan of version %d: %+v", version, plan)
			}
			written, _, err := e.Jobs().RegisterOpts(job, &api.RegisterOptions{Submission: submission}, in)
			must(t, err)
			eval, _, err := e.Evaluations().Info(written.EvalID, nil)
			must(t, err)
			equal(t, "evaluation", eval.Status, "complete")
			read, _, err := e.Jobs().Info(id, nil)
			must(t, err)
			if *read.Version != uint64(version) || *read.JobModifyIndex != written.JobModifyIndex || *read.Stop {
				t.Errorf("%+v", read)
			}
			got, _, err := e.Jobs().Submission(id, version, nil)
			must(t, err)
			if got.Source != text || got.VariableFlags["a"] != "b c&d" || got.Variables != "x = 1\n" {
				t.Errorf("%+v", got)
			}
		}
		// Others remove it; the provider finds out, and makes it again.
		_, _, err := e.Jobs().Deregister(id, true, in)
		must(t, err)
		_, _, err = e.Jobs().Info(id, nil)
		refuses(t, 404, "", err)
		plan, _, err := e.Jobs().Plan(job, false, in)
		must(t, err)
		equal(t, "index of a job that has gone", plan.JobModifyIndex, 0)
	},
	// Its scaling call sends parameters that are empty. (checklist 40)
	"TerraformDataSources": func(t *testing.T, e *env) {
		for _, path := range []string{
			"/v1/allocations?filter=ClientStatus+%3D%3D+%22running%22", "/v1/deployments", "/v1/nodes", "/v1/node/" + e.node, "/v1/namespaces", "/v1/namespace/default",
			"/v1/node/pools", "/v1/node/pool/default", "/v1/regions", "/v1/operator/scheduler/configuration", "/v1/scaling/policies?job=&type=",
			"/v1/job/" + *e.job.ID, "/v1/plugins?type=csi", "/v1/volumes?type=csi",
		} {
			var answer any
			_, err := e.Raw().Query(path, &answer, nil)
			if err != nil || answer == nil {
				t.Errorf("%s: %v, %v", path, answer, err)
			}
		}
	},
}
