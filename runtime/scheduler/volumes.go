package scheduler

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// missingVolumes is the name of unmet requests for host volumes in the placement metrics.
const missingVolumes = "missing compatible host volumes"

// checkVolumes returns an error if the node lacks a host volume that an allocation with the given name requests. It is not
// part of checkFeasible, because a running allocation has its volumes mounted and continues without them on the node.
func (p *allocPlacer) checkVolumes(g *api.TaskGroup, allocName string) error {
	var errs []error
	for _, v := range model.HostVolumeRequests(g, allocName, &p.node.NodeFacts) {
		if err := checkVolume(v, &p.node); err != nil {
			errs = append(errs, &filteredError{missingVolumes, fmt.Errorf("volume %q: %w", v.Label, err)})
		}
	}
	return errors.Join(errs...)
}

// unmetVolumes returns the volume blocks of a group whose host volumes the node lacks for one of the group's allocations.
func unmetVolumes(path []string, job *api.Job, g *api.TaskGroup, node *Node) []UnmetConstraint {
	var all []UnmetConstraint
	reported := make(map[string]bool)
	for i := range *g.Count {
		for _, v := range model.HostVolumeRequests(g, allocName(job, g, i), &node.NodeFacts) {
			if err := checkVolume(v, node); err != nil && !reported[v.Label] {
				reported[v.Label] = true
				all = append(all, UnmetConstraint{Path: append(slices.Clip(path), "volume", v.Label), Err: err, text: missingVolumes})
			}
		}
	}
	return all
}

// checkVolume returns an error if the node does not have the host volume of a request, or it does not admit the request.
func checkVolume(v model.HostVolumeRequest, node *Node) error {
	found := node.HostVolumes[v.Source]
	switch {
	case v.Source == "":
		return fmt.Errorf("the source %q is not set on this node", v.VolumeRequest.Source)
	case found == nil && len(node.HostVolumes) == 0:
		return fmt.Errorf("this node has no host volume %q, and no other: name its directory in a host_volume block of the agent's configuration", v.Source)
	case found == nil:
		return fmt.Errorf("this node has no host volume %q, only %s: name its directory in a host_volume block of the agent's configuration",
			v.Source, joinTruncated(slices.Sorted(maps.Keys(node.HostVolumes))))
	case found.ReadOnly && !v.ReadOnly:
		return fmt.Errorf("the host volume %q is read-only on this node: write read_only = true in the volume block", v.Source)
	}
	return nil
}
