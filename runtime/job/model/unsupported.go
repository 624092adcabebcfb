package model

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/hclspec"
)

// UnsupportedPart is a part of a job that this build cannot run.
type UnsupportedPart struct {
	// Path is the path of the block or attribute, in the form of Fault.Path.
	Path []string
	// Reason states which part is rejected, why, and what to do instead.
	Reason string
	// ForegroundOnly means that an agent accepts the job, because an agent can wait: for the
	// time of a launch, or for a change of the node.
	ForegroundOnly bool
	// NeverPlaced means that an agent accepts the job, but never places it.
	NeverPlaced bool
	// MissingDriver means that the part is a driver that is not there. It can be installed before the job runs.
	MissingDriver bool
}

// UnsupportedParts returns the parts of a canonical job that a run in the foreground does
// not support, in the order of the job. Most are unsupported by this build in general. It
// does not repeat errors of Validate.
//
// hasDriver reports whether there is a task driver of that name; drivers, if given, are the names that
// are suggested to the user.
func UnsupportedParts(job *api.Job, hasDriver func(name string) bool, drivers ...string) []UnsupportedPart {
	if job == nil {
		return nil
	}
	r := &unsupportedChecker{faultReport: newFaultReport(), hasDriver: hasDriver, drivers: drivers, namespace: val(job.Namespace)}
	r.checkJob(job)
	all := make([]UnsupportedPart, 0, len(*r.faults))
	for _, f := range *r.faults {
		all = append(all, UnsupportedPart{Path: f.Path, Reason: f.Text, ForegroundOnly: f.foregroundOnly, NeverPlaced: f.neverPlaced, MissingDriver: f.missingDriver})
	}
	return all
}

type unsupportedChecker struct {
	*faultReport
	hasDriver func(string) bool
	drivers   []string
	namespace string
}

// addUnsupported adds the reason why a block of the job is refused.
func addUnsupported(r *faultReport, what, instead string) {
	r.add("%s is not supported by this build of nomad-lite: %s", what, instead)
}

func (r *unsupportedChecker) checkJob(job *api.Job) {
	if region := val(job.Region); region != api.GlobalRegion {
		r.atPath("region").add("the region %q does not exist: there is only the region %q here, remove the attribute", region, api.GlobalRegion).foregroundOnly = true
	}
	if val(job.Stop) {
		r.add("the job is marked as stopped: remove Stop from it").foregroundOnly = true
	}
	if job.Periodic != nil {
		r.atPath("periodic").add("a periodic job cannot be run: there is no agent that would start it at its times. Run it once, now, with -now, or give it to an agent: nomad-lite agent, nomad-lite job run").foregroundOnly = true
	}
	for _, g := range job.TaskGroups {
		r.checkGroup(g)
	}
}

func (r *unsupportedChecker) checkGroup(g *api.TaskGroup) {
	at := r.atPath("group", val(g.Name))
	r.checkNetworks(at, g)
	rejectServices(at, g.Services)
	for _, label := range slices.Sorted(maps.Keys(g.Volumes)) {
		if g.Volumes[label].Type == volumeTypeCSI {
			addUnsupported(at.atPath("volume", label), "a CSI volume", `storage plugins need a cluster. Use a host volume: write type = "host", and name a directory of this machine in a host_volume block of the agent's configuration`)
		}
	}
	for _, t := range g.Tasks {
		r.checkTask(at.atPath("task", t.Name), t)
	}
}

// checkNetworks rejects networks whose mode does not exist, and those that the first network of the group
// makes ineffective.
func (r *unsupportedChecker) checkNetworks(group *faultReport, g *api.TaskGroup) {
	for i, n := range g.Networks {
		at := group.atPath("network", positionText(i))
		switch {
		case !isKnownMode(n.Mode):
			addUnsupported(at.atPath("mode"), fmt.Sprintf("network mode %q", n.Mode), `write "host", "bridge", "none" or "cni/" with the name of a CNI network`)
		case i > 0 && !isHostNetworking(n.Mode):
			addUnsupported(at.atPath("mode"), fmt.Sprintf("network mode %q of a further network", n.Mode), "the first network of a group has its mode, remove this one")
		case n.Hostname != "" && isHostNetworking(n.Mode):
			at.atPath("hostname").add(`hostname cannot be set on task group using "host" networking mode: remove it`)
		}
	}
}

// rejectServices rejects services that would not be registered: a client that waits for such a
// service would wait forever. A service is never registered with another provider than the job
// names.
func rejectServices(r *faultReport, services []*api.Service) {
	for i, s := range services {
		at := r.atPath("service", positionText(i))
		switch {
		case s.Connect != nil:
			addUnsupported(at.atPath("connect"), "Consul Connect", "there is no Consul here, remove the connect block")
		case s.Provider == api.ServiceProviderConsul:
			fault := at.add("service %q would be registered with Consul, the provider when none is named, and there is no Consul here: write provider = \"nomad\" to have it registered here, or remove the service block", s.Name)
			fault.foregroundOnly, fault.neverPlaced = true, true
		}
	}
}

func (r *unsupportedChecker) checkTask(at *faultReport, t *api.Task) {
	if t.Driver != "" && !r.hasDriver(t.Driver) {
		at.atPath("driver").add("%s", r.missingDriverText(t.Driver)).missingDriver = true
	}
	if n := hclspec.CountValues(t.Config); n > hclspec.MaxValues {
		at.atPath("config").add("the config block holds %d values, and %d are allowed: put long lists into a file that the task reads", n, hclspec.MaxValues)
	}
	rejectServices(at, t.Services)
	for _, s := range t.Secrets {
		r.checkSecret(at.atPath("secret", s.Name), s)
	}
	if t.CSIPluginConfig != nil {
		addUnsupported(at.atPath("csi_plugin"), "a CSI plugin", "storage plugins need a cluster, remove the block to run the task as such")
	}
	r.checkIdentities(at, t)
}

// checkSecret rejects secrets that cannot be read from a variable of this node.
func (r *unsupportedChecker) checkSecret(at *faultReport, s *api.Secret) {
	if s.Provider != "" && s.Provider != ProviderNomad {
		addUnsupported(at.atPath("provider"), fmt.Sprintf("the secret provider %q", s.Provider),
			`the values of a secret are the items of a variable of this node: write provider = "nomad", and store them with nomad-lite var put`)
		return
	}
	if err := ValidateVariablePath(s.Path); err != nil && s.Path != "" {
		at.atPath("path").add("secret %q: %v: write the path of a variable", s.Name, err)
	}
	for _, key := range slices.Sorted(maps.Keys(s.Config)) {
		if namespace, isText := s.Config[key].(string); key != "namespace" || !isText || namespace != r.namespace {
			addUnsupported(at.atPath("config"), fmt.Sprintf("%q in the config of a secret", key), "a task reads the variables of the namespace of its job. Remove the attribute")
		}
	}
}

func (r *unsupportedChecker) missingDriverText(name string) string {
	instead := ""
	if advice, ok := driverAlternatives[name]; ok {
		instead = ". " + advice
	}
	known := SuggestedDrivers(r.drivers)
	if len(known) == 0 {
		return fmt.Sprintf("there is no task driver %q: give the directory of its plugin with -plugin-dir%s", name, instead)
	}
	return fmt.Sprintf("there is no task driver %q, only %s: use one of these, or give the directory of its plugin with -plugin-dir%s",
		name, strings.Join(known, ", "), instead)
}

// SuggestedDrivers returns the sorted names of the drivers that can run a user's task. The driver mock_driver
// cannot: it simulates tasks.
func SuggestedDrivers(names []string) []string {
	known := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == "mock_driver" })
	slices.Sort(known)
	return slices.Compact(known)
}

// driverAlternatives are suggestions for drivers that are builtin in Nomad or in common use, but
// not available here.
var driverAlternatives = map[string]string{
	"docker": "It starts with the agent if there is a Docker engine at DOCKER_HOST or /var/run/docker.sock by then, or a plugin block \"docker\" in the agent's configuration",
	"exec":   "An agent of root has it, and another agent with a plugin block \"exec\" in its configuration. raw_exec takes command and args, too, and does not isolate the task",
	"java":   "An agent of root has it if the program java is in its PATH. raw_exec runs the command java, and does not isolate the task",
	"podman": "Its plugin is the program nomad-driver-podman",
	"qemu":   "An agent has it if the program qemu-system-x86_64 is in its PATH and raw_exec is enabled, or with a plugin block \"qemu\" in its configuration",
}

// checkIdentities rejects identities whose tokens would lack claims that the job asks for.
func (r *unsupportedChecker) checkIdentities(at *faultReport, t *api.Task) {
	for _, id := range append([]*api.WorkloadIdentity{t.Identity}, t.Identities...) {
		if id != nil && len(id.ExtraClaims) > 0 {
			addUnsupported(at.atPath("identity"), fmt.Sprintf("identity %q with extra_claims", id.Name), "a namespace defines such claims, and the namespaces of this node define none, so the tokens would not have them. Remove extra_claims")
		}
	}
}
