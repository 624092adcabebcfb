package admission

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// unsupportedPartCollector walks a job and collects refusals for parts this program cannot run.
type unsupportedPartCollector struct {
	drivers   []string // nil means unknown
	namespace string
	refusals  []Refusal
	// mayHaveCSIVolume reports whether the node has, or may have, a directory for a CSI volume; nil means that it has none.
	mayHaveCSIVolume func(source string) bool
}

// childPath returns the path to a part inside the block at path.
func childPath(path []string, elements ...string) []string { return slices.Concat(path, elements) }

func (c *unsupportedPartCollector) addRefusal(kind refusalKindIndex, path []string, args ...any) {
	c.refusals = append(c.refusals, newRefusal(kind, path, args...))
}

// unsupportedParts returns the job parts this program cannot run. It does not repeat errors from model.Validate.
func unsupportedParts(job *api.Job, node Node, flags CheckOptions) []Refusal {
	c := &unsupportedPartCollector{drivers: node.DriverNames, namespace: *job.Namespace}
	if c.mayHaveCSIVolume = node.hasCSIVolume; node.Features == nil && node.HasCSIVolume == nil {
		c.mayHaveCSIVolume = func(string) bool { return true }
	}
	if own := cmp.Or(node.Region, api.GlobalRegion); *job.Region != own {
		c.addRefusal(otherRegion, []string{"region"}, *job.Region, own)
	}
	if job.Stop != nil && *job.Stop {
		c.addRefusal(stoppedJob, nil)
	}
	if job.Periodic != nil && !flags.RunsPeriodicJobNow {
		c.addRefusal(periodicJob, []string{"periodic"})
	}
	for _, g := range job.TaskGroups {
		c.checkGroup(g)
	}
	return c.refusals
}

// UnsupportedPartsOfGroup returns why a cluster's client node cannot run a job's group in a namespace, one text for each part
// with scope Everywhere. Extra identity claims are not refused, because the cluster's servers sign them.
func UnsupportedPartsOfGroup(namespace string, g *api.TaskGroup) (reasons []string) {
	c := &unsupportedPartCollector{namespace: namespace}
	c.checkGroup(g)
	for _, r := range c.refusals {
		if r.Kind.Scope == Everywhere && r.Kind != &refusalKinds[identityClaims] {
			reasons = append(reasons, r.reason())
		}
	}
	return reasons
}

func (c *unsupportedPartCollector) checkGroup(g *api.TaskGroup) {
	path := []string{"group", *g.Name}
	c.checkNetworks(path, g)
	c.checkServices(path, g.Services)
	c.checkConsulBlock(path, g.Consul, slices.Concat(g.Services, servicesOfTasks(g)))
	for _, label := range slices.Sorted(maps.Keys(g.Volumes)) {
		if v := g.Volumes[label]; v.Type == model.VolumeTypeCSI && (c.mayHaveCSIVolume == nil || !c.mayHaveCSIVolume(v.Source)) {
			c.addRefusal(csiVolume, childPath(path, "volume", label), v.Source)
		}
	}
	for _, t := range g.Tasks {
		c.checkTask(childPath(path, "task", t.Name), t)
	}
}

// checkNetworks refuses networks with an unknown mode, and those the group's first network makes ineffective.
func (c *unsupportedPartCollector) checkNetworks(path []string, g *api.TaskGroup) {
	for i, n := range g.Networks {
		network := childPath(path, "network", strconv.Itoa(i))
		switch {
		case !model.IsKnownNetworkMode(n.Mode):
			c.addRefusal(unknownNetworkMode, childPath(network, "mode"), n.Mode)
		case i > 0 && !model.IsHostNetworkMode(n.Mode):
			c.addRefusal(furtherNetwork, childPath(network, "mode"), n.Mode)
		case n.Hostname != "" && model.IsHostNetworkMode(n.Mode):
			c.addRefusal(hostHostname, childPath(network, "hostname"))
		}
	}
}

// checkServices refuses services that would not be registered: a client that waits for such a service would wait forever.
func (c *unsupportedPartCollector) checkServices(path []string, services []*api.Service) {
	for i, s := range services {
		if s.Connect != nil {
			c.addRefusal(connect, childPath(path, "service", strconv.Itoa(i), "connect"))
		}
	}
}

// checkConsulBlock refuses a Consul namespace or partition for services: the node's catalog has only job namespaces, so clients
// would find the services in another one than the block names.
func (c *unsupportedPartCollector) checkConsulBlock(path []string, block *api.Consul, services []*api.Service) {
	if block == nil || !slices.ContainsFunc(services, func(s *api.Service) bool { return s.Provider == api.ServiceProviderConsul }) {
		return
	}
	for _, field := range []struct{ name, value string }{{"namespace", block.Namespace}, {"partition", block.Partition}} {
		if field.value != "" {
			c.addRefusal(consulNamespace, childPath(path, "consul", field.name), field.name, field.value)
		}
	}
}

func servicesOfTasks(g *api.TaskGroup) (all []*api.Service) {
	for _, t := range g.Tasks {
		all = append(all, t.Services...)
	}
	return all
}

func (c *unsupportedPartCollector) checkTask(path []string, t *api.Task) {
	if t.Driver != "" && c.drivers != nil && !slices.Contains(c.drivers, t.Driver) {
		c.refusals = append(c.refusals, newRefusalWithText(missingDriver, childPath(path, "driver"), missingDriverText(t.Driver, c.drivers)))
	}
	if n := hclspec.CountValues(t.Config); n > hclspec.MaxValues {
		c.addRefusal(configSize, childPath(path, "config"), n, hclspec.MaxValues)
	}
	c.checkServices(path, t.Services)
	c.checkConsulBlock(path, t.Consul, t.Services)
	for _, s := range t.Secrets {
		c.checkSecret(childPath(path, "secret", s.Name), s)
	}
	if t.CSIPluginConfig != nil {
		c.addRefusal(csiPlugin, childPath(path, "csi_plugin"))
	}
	// Such an identity's tokens would lack claims the job asks for.
	for _, id := range append([]*api.WorkloadIdentity{t.Identity}, t.Identities...) {
		if id != nil && len(id.ExtraClaims) > 0 {
			c.addRefusal(identityClaims, childPath(path, "identity"), id.Name)
		}
	}
}

// checkSecret refuses secrets that cannot be read from a variable on this node.
func (c *unsupportedPartCollector) checkSecret(path []string, s *api.Secret) {
	if s.Provider != "" && s.Provider != model.ProviderNomad {
		c.addRefusal(secretProvider, childPath(path, "provider"), s.Provider)
		return
	}
	if err := model.ValidateVariablePath(s.Path); err != nil && s.Path != "" {
		c.addRefusal(secretPath, childPath(path, "path"), s.Name, err)
	}
	for _, key := range slices.Sorted(maps.Keys(s.Config)) {
		if namespace, isText := s.Config[key].(string); key != "namespace" || !isText || namespace != c.namespace {
			c.addRefusal(secretConfig, childPath(path, "config"), key)
		}
	}
}

func missingDriverText(name string, drivers []string) string {
	instead := ""
	if advice, ok := driverAlternatives[name]; ok {
		instead = ". " + advice
	}
	known := slices.Compact(slices.Sorted(slices.Values(drivers)))
	if len(known) == 0 {
		return fmt.Sprintf("there is no task driver %q: give the directory of its plugin with -plugin-dir%s", name, instead)
	}
	return fmt.Sprintf("there is no task driver %q, only %s: use one of these, or give the directory of its plugin with -plugin-dir%s",
		name, strings.Join(known, ", "), instead)
}

// driverAlternatives suggest drivers instead of drivers that are builtin in Nomad or in common use, but not available here.
// Program names are those in the plugins' releases.
var driverAlternatives = map[string]string{
	"docker": "It starts with the agent if there is a Docker engine at DOCKER_HOST or /var/run/docker.sock by then, or a plugin block \"docker\" in the agent's configuration",
	"exec":   "An agent of root has it, and another agent with a plugin block \"exec\" in its configuration. raw_exec takes command and args, too, and does not isolate the task",
	"java":   "An agent of root has it if the program java is in its PATH. raw_exec runs the command java, and does not isolate the task",
	"exec2":  "Its plugin is the program nomad-driver-exec2",
	"pledge": "Its plugin is the program nomad-pledge-driver",
	"podman": "Its plugin is the program nomad-driver-podman",
	"qemu":   "An agent has it if the program qemu-system-x86_64 is in its PATH and raw_exec is enabled, or with a plugin block \"qemu\" in its configuration",
}

// refuseHookFaults returns a Refusal for each HookAttachmentFault.
func refuseHookFaults(faults []HookAttachmentFault) (refusals []Refusal) {
	for _, f := range faults {
		kind := hookAttachment
		if f.IsHookMissing {
			kind = missingHook
		}
		refusals = append(refusals, newRefusalWithText(kind, f.Attachment.MetaKeyPath, fmt.Sprintf("meta %s%s: %v", model.HookPrefix, f.Attachment.Hook, f.Err)))
	}
	return refusals
}

// RefuseUnknownPortLabels returns the group services and checks that name a port label missing in the group's network. Nomad's
// API accepts such a job and registers the service without a port. The job need not be canonical. The effects are those for the
// caller Submit.
func RefuseUnknownPortLabels(job *api.Job) (refusals []Refusal) {
	for _, f := range model.UnknownGroupPortLabelFaults(job) {
		r := newRefusalWithText(portLabel, f.Path, f.Text)
		r.Effect = r.Kind.EffectFor(Submit)
		refusals = append(refusals, r)
	}
	return refusals
}
