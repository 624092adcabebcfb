package model

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

// checkServerAdmission reports errors a server without Vault, Consul and a licence returns before it validates the job.
func checkServerAdmission(r *faultReport, job *api.Job, limits JobLimits, existingNamespaces []*api.Namespace) {
	for _, g := range job.TaskGroups {
		checkConnectSidecarNetwork(r.atPath("group", pointer.Value(g.Name)), g)
	}
	rejectVault(r, job)
	for _, g := range job.TaskGroups {
		at := r.atPath("group", pointer.Value(g.Name))
		rejectNonDefaultConsulCluster(at, g.Consul, g.Services)
		for _, t := range g.Tasks {
			rejectNonDefaultConsulCluster(at.atPath("task", t.Name), t.Consul, t.Services)
		}
	}
	name := pointer.Value(job.Namespace)
	if i := slices.IndexFunc(existingNamespaces, func(n *api.Namespace) bool { return n.Name == name }); i >= 0 {
		checkNamespaceCapabilities(r, job, existingNamespaces[i])
	} else if name != api.DefaultNamespace {
		r.atPath("namespace").addFault("job %q is in nonexistent namespace %q", pointer.Value(job.ID), name)
	}
	if pool := pointer.Value(job.NodePool); pool != api.NodePoolDefault && pool != api.NodePoolAll {
		r.atPath("node_pool").addFault("job %q is in nonexistent node pool %q", pointer.Value(job.ID), pool).hint = func() string {
			return fmt.Sprintf(": there is only the node pool %q here, remove the attribute", api.NodePoolDefault)
		}
	}
	if total := sumGroupCounts(job); total > limits.MaxTotalCount {
		r.addFault("total count was greater than configured job_max_count: %d > %d", total, limits.MaxTotalCount)
	}
}

// rejectEnterpriseFeatures reports errors the server returns after it has validated the job.
func rejectEnterpriseFeatures(r *faultReport, job *api.Job) {
	for _, g := range job.TaskGroups {
		for _, t := range g.Tasks {
			at := r.atPath("group", pointer.Value(g.Name), "task", t.Name)
			if t.Resources != nil && t.Resources.NUMA != nil && t.Resources.NUMA.Affinity != "none" {
				at.atPath("resources", "numa").addFault("numa scheduling requires Nomad Enterprise")
			}
			if t.Schedule != nil {
				at.atPath("schedule").addFault("task schedules requires Nomad Enterprise")
			}
		}
	}
}

// checkConnectSidecarNetwork rejects sidecars that cannot join their group's network.
func checkConnectSidecarNetwork(r *faultReport, g *api.TaskGroup) {
	mode := ""
	if len(g.Networks) > 0 {
		mode = g.Networks[0].Mode
	}
	if mode == "bridge" || strings.HasPrefix(mode, "cni/") {
		return
	}
	for i, s := range g.Services {
		if s.Connect != nil && s.Connect.SidecarService != nil {
			r.atPath("service", positionText(i), "connect").addFault(
				`connect sidecar: invalid network mode for Consul Connect: group %q uses network mode %q; must be "bridge" or "cni/*"`,
				pointer.Value(g.Name), mode).hint = func() string { return ". There is no Consul here: remove the connect block" }
		}
	}
}

func rejectVault(r *faultReport, job *api.Job) {
	missing := false
	for _, g := range job.TaskGroups {
		for _, t := range g.Tasks {
			if t.Vault == nil {
				continue
			}
			at := r.atPath("group", pointer.Value(g.Name), "task", t.Name, "vault")
			if t.Vault.Cluster != defaultClusterName {
				at.addFault("non-default Vault cluster requires Nomad Enterprise")
			} else if !missing {
				missing = true
				at.addFault("Vault %q not enabled but used in the job", defaultClusterName).hint = func() string {
					return ": there is no Vault here, remove the vault block"
				}
			}
		}
	}
}

// defaultClusterName names the only Consul or Vault cluster without a licence.
const defaultClusterName = "default"

func rejectNonDefaultConsulCluster(r *faultReport, block *api.Consul, services []*api.Service) {
	if block != nil && block.Cluster != defaultClusterName {
		r.atPath("consul").addFault("non-default Consul cluster requires Nomad Enterprise")
	}
	for i, s := range services {
		if s.Provider == api.ServiceProviderConsul && s.Cluster != defaultClusterName {
			r.atPath("service", positionText(i)).addFault("non-default Consul cluster requires Nomad Enterprise")
		}
	}
}

func sumGroupCounts(job *api.Job) int {
	total := 0
	for _, g := range job.TaskGroups {
		count := max(pointer.Value(g.Count), 0)
		if count > math.MaxInt-total {
			return math.MaxInt
		}
		total += count
	}
	return total
}
