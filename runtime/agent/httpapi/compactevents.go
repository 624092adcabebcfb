package httpapi

import (
	"maps"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

// The payloads of events for a client that shows a list of them, an addition to Nomad's API. The complete object of a new
// allocation has some kilobytes, and one change can place hundreds.

type compactJob struct {
	ID, Namespace, Type, Status string
	ParentID                    string
	Version                     uint64
	Stop, Stable                bool
	SubmitTime                  int64
}

type compactAllocation struct {
	ID, Namespace, Name, JobID, TaskGroup, NodeID string
	ClientStatus, ClientDescription               string
	DesiredStatus, DesiredDescription             string
	DeploymentID                                  string
	Healthy                                       *bool
	TaskStates                                    map[string]compactTaskState
	CreateTime, ModifyTime                        int64
}

type compactTaskState struct {
	State    string
	Failed   bool
	Restarts uint64
	Events   []compactTaskEvent // the last one
}

type compactTaskEvent struct {
	Type           string
	Time           int64
	DisplayMessage string
}

type compactNode struct {
	ID, Name, Status, StatusDescription string
	SchedulingEligibility               string
	Drain                               bool
	Drivers                             map[string]compactDriver
	StatusUpdatedAt                     int64
}

type compactDriver struct {
	Detected, Healthy bool
	HealthDescription string
}

// compactPayload returns the fields of the payload of an event that a list of events shows.
func compactPayload(payload map[string]any) map[string]any {
	compact := maps.Clone(payload)
	for name, object := range payload {
		switch o := object.(type) {
		case *api.Job:
			compact[name] = compactJob{
				ID: pointer.Value(o.ID), Namespace: pointer.Value(o.Namespace), Type: pointer.Value(o.Type), Status: pointer.Value(o.Status), ParentID: pointer.Value(o.ParentID),
				Version: pointer.Value(o.Version), Stop: pointer.Value(o.Stop), Stable: pointer.Value(o.Stable), SubmitTime: pointer.Value(o.SubmitTime),
			}
		case *api.Allocation:
			compact[name] = newCompactAllocation(o)
		case *api.Node:
			compact[name] = newCompactNode(o)
		}
	}
	return compact
}

func newCompactAllocation(a *api.Allocation) compactAllocation {
	c := compactAllocation{
		ID: a.ID, Namespace: a.Namespace, Name: a.Name, JobID: a.JobID, TaskGroup: a.TaskGroup, NodeID: a.NodeID,
		ClientStatus: a.ClientStatus, ClientDescription: a.ClientDescription, DesiredStatus: a.DesiredStatus, DesiredDescription: a.DesiredDescription,
		DeploymentID: a.DeploymentID, Healthy: pointer.Value(a.DeploymentStatus).Healthy, TaskStates: map[string]compactTaskState{},
		CreateTime: a.CreateTime, ModifyTime: a.ModifyTime,
	}
	for name, state := range a.TaskStates {
		if state == nil {
			continue
		}
		compact := compactTaskState{State: state.State, Failed: state.Failed, Restarts: state.Restarts}
		if n := len(state.Events); n > 0 {
			e := state.Events[n-1]
			compact.Events = []compactTaskEvent{{e.Type, e.Time, e.DisplayMessage}}
		}
		c.TaskStates[name] = compact
	}
	return c
}

func newCompactNode(n *api.Node) compactNode {
	c := compactNode{
		ID: n.ID, Name: n.Name, Status: n.Status, StatusDescription: n.StatusDescription, SchedulingEligibility: n.SchedulingEligibility,
		Drain: n.Drain || n.DrainStrategy != nil, Drivers: map[string]compactDriver{}, StatusUpdatedAt: n.StatusUpdatedAt,
	}
	for name, d := range n.Drivers {
		if d != nil {
			c.Drivers[name] = compactDriver{d.Detected, d.Healthy, d.HealthDescription}
		}
	}
	return c
}
