package client

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

var nodeTrials = trials{
	"Identity": func(t *testing.T, e *env) {}, // see NodeIdentity
	"Meta":     func(t *testing.T, e *env) {}, // see NodeMeta
	"List": func(t *testing.T, e *env) {
		list, m, err := e.Nodes().List(&api.QueryOptions{Params: map[string]string{"os": "true", "resources": "true"}})
		must(t, err)
		if len(list) != 1 || list[0].Attributes["os.name"] == "" || list[0].NodeResources == nil || !list[0].Drivers["raw_exec"].Healthy || m.LastIndex == 0 {
			t.Errorf("%+v", list)
		}
	},
	"PrefixList": func(t *testing.T, e *env) {
		list, _, err := e.Nodes().PrefixList(e.node[:7])
		must(t, err)
		equal(t, "nodes", len(list), 1)
	},
	"PrefixListOpts": func(t *testing.T, e *env) {
		list, _, err := e.Nodes().PrefixListOpts(e.node[:8], &api.QueryOptions{Filter: `Status != "ready"`})
		must(t, err)
		equal(t, "nodes", len(list), 0)
	},
	"Info": func(t *testing.T, e *env) {
		n, m, err := e.Nodes().Info(e.node, nil)
		must(t, err)
		if n.ID != e.node || n.Attributes["kernel.name"] != "linux" || n.NodeResources == nil || len(n.Events) == 0 || m.LastIndex != n.ModifyIndex {
			t.Errorf("%+v", n)
		}
		// Over a unix socket there is no address where no token would be wanted.
		equal(t, "has an address", n.HTTPAddr != "", !strings.HasPrefix(os.Getenv("NOMAD_ADDR"), "unix:"))
		_, _, err = e.Nodes().Info(unknown, nil)
		refuses(t, 404, "node not found", err)
	},
	"UpdateDrain": func(t *testing.T, e *env) {
		alloc := e.run(t, e.newJob(t, api.JobTypeService, forever))
		started, err := e.Nodes().UpdateDrain(e.node, &api.DrainSpec{Deadline: 10 * time.Second}, false, nil)
		must(t, err)
		if started.LastIndex == 0 {
			t.Errorf("%+v", started)
		}
		e.untilAlloc(t, alloc.ID, func(a *api.Allocation) bool { return a.ClientTerminalStatus() })
		e.endDrain(t)
		e.newest(t, alloc.JobID, api.AllocClientStatusRunning)
	},
	"UpdateDrainOpts": func(t *testing.T, e *env) {
		_, err := e.Nodes().UpdateDrainOpts(e.node, &api.DrainOptions{DrainSpec: &api.DrainSpec{Deadline: -1}, Meta: map[string]string{"why": "test"}}, nil)
		must(t, err)
		n := until(t, func(q *api.QueryOptions) (*api.Node, *api.QueryMeta, error) { return e.Nodes().Info(e.node, q) },
			func(n *api.Node) bool {
				return n.DrainStrategy == nil && n.LastDrain != nil && n.LastDrain.Status == "complete"
			})
		equal(t, "eligibility", n.SchedulingEligibility, api.NodeSchedulingIneligible)
		equal(t, "metadata", n.LastDrain.Meta["why"], "test")
		e.endDrain(t)
	},
	"MonitorDrain": func(t *testing.T, e *env) {
		e.run(t, e.newJob(t, api.JobTypeService, forever))
		started, err := e.Nodes().UpdateDrain(e.node, &api.DrainSpec{Deadline: 10 * time.Second}, false, nil)
		must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		for message := range e.Nodes().MonitorDrain(ctx, e.node, started.LastIndex, false) {
			if message.Level == api.MonitorMsgLevelError {
				t.Error(message)
			}
		}
		must(t, ctx.Err())
		e.endDrain(t)
	},
	"ToggleEligibility": func(t *testing.T, e *env) {
		off, err := e.Nodes().ToggleEligibility(e.node, false, nil)
		must(t, err)
		if off.NodeModifyIndex == 0 || off.LastIndex == 0 {
			t.Errorf("%+v", off)
		}
		job := e.newJob(t, api.JobTypeBatch, "true")
		e.register(t, job)
		list, _, err := e.Jobs().Allocations(*job.ID, false, nil)
		must(t, err)
		equal(t, "allocations on a node that is not eligible", len(list), 0)
		_, err = e.Nodes().ToggleEligibility(e.node, true, nil)
		must(t, err)
		e.newest(t, *job.ID, api.AllocClientStatusComplete)
	},
	"Allocations": func(t *testing.T, e *env) {
		list, _, err := e.Nodes().Allocations(e.node, nil)
		must(t, err)
		for _, a := range list {
			if a.ID == e.alloc.ID && a.Job != nil && a.TaskResources["main"] != nil {
				return
			}
		}
		t.Errorf("allocation %s is not whole among %d", e.alloc.ID, len(list))
	},
	"CSIVolumes": func(t *testing.T, e *env) {
		list, err := e.Nodes().CSIVolumes(e.node, nil)
		must(t, err)
		equal(t, "volumes", len(list), 0)
	},
	"ForceEvaluate": func(t *testing.T, e *env) {
		_, _, err := e.Nodes().ForceEvaluate(e.node, nil)
		must(t, err)
	},
	"Stats": func(t *testing.T, e *env) {
		s, err := e.Nodes().Stats(e.node, nil)
		must(t, err)
		if s.Memory == nil || s.Memory.Total == 0 || len(s.CPU) == 0 || s.Uptime == 0 {
			t.Errorf("%+v", s)
		}
		_, err = e.Nodes().Stats(unknown, nil)
		refuses(t, 404, "Unknown node "+unknown, err)
	},
	"GC": func(t *testing.T, e *env) { must(t, e.Nodes().GC(e.node, nil)) },
	// The answer has a body, because Allocations().GC wants one: the work is done,
	// and this client complains.
	"GcAlloc": func(t *testing.T, e *env) {
		job := e.newJob(t, api.JobTypeBatch, "true")
		e.register(t, job)
		alloc := e.newest(t, *job.ID, api.AllocClientStatusComplete)
		if err := e.Nodes().GcAlloc(alloc.ID, nil); err == nil {
			t.Error("the client takes a body that it does not want")
		}
		_, _, err := e.AllocFS().List(alloc, "/", nil)
		refuses(t, 404, "", err)
	},
	"Purge": refused(500, "", func(e *env) error {
		_, _, err := e.Nodes().Purge(e.node, nil)
		return err
	}),
}

// endDrain makes the node eligible again, and waits for the job of all trials.
func (e *env) endDrain(t *testing.T) {
	t.Helper()
	_, err := e.Nodes().UpdateDrain(e.node, nil, true, nil)
	must(t, err)
	e.newest(t, *e.job.ID, api.AllocClientStatusRunning)
}

var nodeMetaTrials = trials{
	"Apply": func(t *testing.T, e *env) {
		r, err := e.Nodes().Meta().Apply(&api.NodeMetaApplyRequest{NodeID: e.node, Meta: map[string]*string{"client": new("test")}}, nil)
		must(t, err)
		if r.Meta["client"] != "test" || *r.Dynamic["client"] != "test" {
			t.Errorf("%+v", r)
		}
		r, err = e.Nodes().Meta().Apply(&api.NodeMetaApplyRequest{NodeID: e.node, Meta: map[string]*string{"client": nil}}, nil)
		must(t, err)
		if _, there := r.Meta["client"]; there {
			t.Errorf("%+v", r)
		}
	},
	"Read": func(t *testing.T, e *env) {
		_, err := e.Nodes().Meta().Read(e.node, nil)
		must(t, err)
	},
}

var nodeIdentityTrials = trials{
	"Get": refused(501, "", func(e *env) error {
		_, err := e.Nodes().Identity().Get(&api.NodeIdentityGetRequest{NodeID: e.node}, nil)
		return err
	}),
	"Renew": refused(501, "", func(e *env) error {
		_, err := e.Nodes().Identity().Renew(&api.NodeIdentityRenewRequest{NodeID: e.node}, nil)
		return err
	}),
}
