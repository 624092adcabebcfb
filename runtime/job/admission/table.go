package admission

import (
	"fmt"
	"slices"
	"strings"
)

// CallerKind is the program part that asks whether a job can run.
type CallerKind uint8

const (
	API        CallerKind = iota // registers, plans or validates a job from a request
	Submit                       // reads a job file and sends the job to an agent
	Validate                     // reads a job file and runs nothing
	Foreground                   // runs a job file without an agent
	callers
)

// RefusalEffect is a refusal's consequence for a caller.
type RefusalEffect uint8

const (
	Accepts RefusalEffect = iota // the caller ignores the refusal
	Warns                        // the caller prints the refusal and continues
	Rejects                      // the caller prints the refusal and rejects the job
)

// RefusalScope decides a refusal's effect for each caller.
type RefusalScope uint8

const (
	// Everywhere means neither an agent nor a foreground run can run the part.
	Everywhere RefusalScope = iota
	// InFiles means a mistake that Nomad's API accepts but Nomad's command line rejects.
	InFiles
	// InForeground means an agent runs the part and a foreground run cannot.
	InForeground
	// UntilInstalled means an agent places the part when the missing program is there.
	UntilInstalled
	// OnNode means the node does not meet a requirement: an agent places the job when the node has changed.
	OnNode
	// ByDriver means a driver's capabilities exclude the part: an agent accepts the job with a warning, as Nomad does, because
	// another driver version can be installed before the task starts.
	ByDriver
)

// scopes has a refusal's effects by scope, and the prefix for a warning's text.
var scopes = [...]struct {
	effects [callers]RefusalEffect
	warning string
}{
	Everywhere:     {effects: [callers]RefusalEffect{API: Rejects, Submit: Rejects, Validate: Rejects, Foreground: Rejects}},
	InFiles:        {effects: [callers]RefusalEffect{API: Accepts, Submit: Rejects, Validate: Rejects, Foreground: Rejects}},
	InForeground:   {effects: [callers]RefusalEffect{API: Accepts, Submit: Accepts, Validate: Warns, Foreground: Rejects}, warning: "in the foreground (nomad-lite run), "},
	UntilInstalled: {effects: [callers]RefusalEffect{API: Accepts, Submit: Accepts, Validate: Warns, Foreground: Rejects}},
	OnNode:         {effects: [callers]RefusalEffect{API: Accepts, Submit: Warns, Validate: Rejects, Foreground: Rejects}},
	ByDriver:       {effects: [callers]RefusalEffect{API: Warns, Submit: Accepts, Validate: Rejects, Foreground: Rejects}},
}

// RefusalKind is one kind of job part this program or the node cannot run.
type RefusalKind struct {
	// ID identifies the refusal. It never changes.
	ID string
	// RefusedPart is the refused job part.
	RefusedPart string
	// Remedy states what the user can do instead.
	Remedy string
	Scope  RefusalScope

	// reasonFormat is the format for Refusal.Text before the remedy. It is empty if the code composes the whole text, because the
	// text depends on the node or on a plugin.
	reasonFormat string
}

// EffectFor returns the refusal's effect for a caller.
func (r *RefusalKind) EffectFor(c CallerKind) RefusalEffect { return scopes[r.Scope].effects[c] }

// RefusalKinds returns all kinds in ID order.
func RefusalKinds() []RefusalKind {
	rows := slices.Clone(refusalKinds[:])
	slices.SortFunc(rows, func(a, b RefusalKind) int { return strings.Compare(a.ID, b.ID) })
	return rows
}

type refusalKindIndex uint8

const (
	unknownNetworkMode refusalKindIndex = iota
	furtherNetwork
	hostHostname
	connect
	consulNamespace
	csiPlugin
	csiVolume
	configSize
	secretProvider
	secretPath
	secretConfig
	identityClaims
	otherRegion
	stoppedJob
	periodicJob
	missingDriver
	missingHook
	hookAttachment
	portLabel
	datacenter
	constraint
	networkMode
	hostNetwork
	hostVolume
	driverMounts
	driverNetwork
	networkCreators
)

const notSupported = " is not supported by this build of nomad-lite: "

var refusalKinds = [...]RefusalKind{
	unknownNetworkMode: {
		ID: "unknown-network-mode", RefusedPart: "a network mode that does not exist",
		reasonFormat: "network mode %q" + notSupported,
		Remedy:       `write "host", "bridge", "none" or "cni/" with the name of a CNI network`,
	},
	furtherNetwork: {
		ID: "further-network", RefusedPart: "a mode of the second or a later network of a group",
		reasonFormat: "network mode %q of a further network" + notSupported,
		Remedy:       "the first network of a group has its mode, remove this one",
	},
	hostHostname: {
		ID: "host-network-hostname", RefusedPart: "a hostname for the network mode host",
		reasonFormat: `hostname cannot be set on task group using "host" networking mode: `,
		Remedy:       "remove it",
	},
	connect: {
		ID: "consul-connect", RefusedPart: "a connect block",
		reasonFormat: "Consul Connect" + notSupported,
		Remedy:       "there is no Consul here, remove the connect block",
	},
	consulNamespace: {
		ID: "consul-namespace", RefusedPart: "a namespace or a partition of Consul for services",
		reasonFormat: "the %s %q of Consul" + notSupported,
		Remedy:       "there is no Consul here, and this node registers services in the namespace of their job. Remove the consul block",
	},
	csiPlugin: {
		ID: "csi-plugin", RefusedPart: "a csi_plugin block",
		reasonFormat: "a CSI plugin" + notSupported,
		Remedy:       "storage plugins need a cluster, remove the block to run the task as such",
	},
	csiVolume: {
		ID: "csi-volume", RefusedPart: "a volume of type csi without a directory that stands in for it",
		reasonFormat: "the CSI volume %q needs a directory of this machine in its place, because storage plugins need a cluster: ",
		Remedy:       `name one in a host_volume block with csi = true in the agent's configuration`,
	},
	configSize: {
		ID: "config-size", RefusedPart: "a config block with too many values",
		reasonFormat: "the config block holds %d values, and %d are allowed: ",
		Remedy:       "put long lists into a file that the task reads",
	},
	secretProvider: {
		ID: "secret-provider", RefusedPart: "a secret of another provider than nomad",
		reasonFormat: "the secret provider %q" + notSupported,
		Remedy:       `the values of a secret are the items of a variable of this node: write provider = "nomad", and store them with nomad-lite var put`,
	},
	secretPath: {
		ID: "secret-path", RefusedPart: "a path of a secret that no variable can have",
		reasonFormat: "secret %q: %v: ",
		Remedy:       "write the path of a variable",
	},
	secretConfig: {
		ID: "secret-config", RefusedPart: "a config of a secret that names another namespace, or anything else",
		reasonFormat: "%q in the config of a secret" + notSupported,
		Remedy:       "a task reads the variables of the namespace of its job. Remove the attribute",
	},
	identityClaims: {
		ID: "identity-claims", RefusedPart: "an identity with extra_claims",
		reasonFormat: "identity %q with extra_claims" + notSupported,
		Remedy:       "a namespace defines such claims, and the namespaces of this node define none, so the tokens would not have them. Remove extra_claims",
	},
	otherRegion: {
		ID: "other-region", RefusedPart: "a region that the node is not in", Scope: InForeground,
		reasonFormat: "the region %q does not exist: there is only the region %q here, ",
		Remedy:       "remove the attribute",
	},
	stoppedJob: {
		ID: "stopped-job", RefusedPart: "a job that is marked as stopped", Scope: InForeground,
		reasonFormat: "the job is marked as stopped: ",
		Remedy:       "remove Stop from it",
	},
	periodicJob: {
		ID: "periodic-job", RefusedPart: "a periodic block", Scope: InForeground,
		reasonFormat: "a periodic job cannot be run: there is no agent that would start it at its times. ",
		Remedy:       "Run it once, now, with -now, or give it to an agent: nomad-lite agent, nomad-lite job run",
	},
	missingDriver: {
		ID: "missing-driver", RefusedPart: "a driver that the node does not have", Scope: UntilInstalled,
		Remedy: "use another driver, or give the directory of its plugin with -plugin-dir",
	},
	missingHook: {
		ID: "missing-hook", RefusedPart: "an attachment of a hook that the node does not have",
		Remedy: "give the directory of the hook's program with -plugin-dir, for an agent name it in a plugin block too, or remove the key from meta",
	},
	hookAttachment: {
		ID: "hook-attachment", RefusedPart: "an attachment that its hook does not accept",
		Remedy: "correct the value of the key in meta: the documentation of the hook has its schema",
	},
	portLabel: {
		ID: "unknown-port-label", RefusedPart: "a port label of a group's service that the group's network does not have", Scope: InFiles,
		Remedy: "name a port of the network block, or add the port there",
	},
	datacenter: {
		ID: "other-datacenter", RefusedPart: "datacenters or a node pool that exclude the node", Scope: OnNode,
		Remedy: "name the datacenter and the node pool of the node, or remove the attributes",
	},
	constraint: {
		ID: "unmet-constraint", RefusedPart: "a constraint that the node does not satisfy", Scope: OnNode,
		Remedy: "change the constraint, or give the node the property",
	},
	networkMode: {
		ID: "missing-network-mode", RefusedPart: "a network mode that the node does not have", Scope: OnNode,
		Remedy: `correct the reason of "degraded" in the log of the agent, or use mode = "host"`,
	},
	hostNetwork: {
		ID: "missing-host-network", RefusedPart: "a host network that the node does not have", Scope: OnNode,
		Remedy: "add a host_network block to the client block of the agent's configuration, or leave out host_network",
	},
	hostVolume: {
		ID: "missing-host-volume", RefusedPart: "a host volume that the node does not have, or has as read-only", Scope: OnNode,
		Remedy: "name an existing directory in a host_volume block of the agent's configuration",
	},
	driverMounts: {
		ID: "driver-without-mounts", RefusedPart: "a volume_mount of a task whose driver does not mount volumes", Scope: ByDriver,
		reasonFormat: "the driver %q does not mount volumes: ",
		Remedy:       "use a driver that does, such as exec or docker, or remove the block. A driver without isolation, such as raw_exec, reads the directory of the volume at its path on the machine",
	},
	driverNetwork: {
		ID: "driver-without-networks", RefusedPart: "a network mode of a group with a task whose driver uses the network of the machine only", Scope: ByDriver,
		reasonFormat: "the driver %q of task %q does not support the network mode %q: ",
		Remedy:       `use mode = "host", or another driver`,
	},
	networkCreators: {
		ID: "several-network-drivers", RefusedPart: "a network mode of a group with tasks of two drivers that create networks", Scope: ByDriver,
		reasonFormat: "the drivers %q and %q of tasks %q and %q both create the network of their group, and only one can: ",
		Remedy:       `use one driver for both tasks, move one of them to another group, or use mode = "host"`,
	},
}

// Refusal is a job part that cannot run, with its effect for Check's caller.
type Refusal struct {
	Kind *RefusalKind
	Path []string // path of the block or attribute, in the form of model.JobFault.Path
	// Text states which part is refused, why, and what to do instead.
	Text   string
	Effect RefusalEffect
}

// WarningText returns the refusal's text as a warning, for a caller that accepts the job.
func (r Refusal) WarningText() string { return scopes[r.Kind.Scope].warning + r.Text }

// reason returns the refusal's text without the remedy.
func (r Refusal) reason() string {
	return strings.TrimSuffix(strings.TrimSuffix(r.Text, r.Kind.Remedy), ": ")
}

// newRefusal returns a refusal with its kind's text.
func newRefusal(kind refusalKindIndex, path []string, args ...any) Refusal {
	r := &refusalKinds[kind]
	return Refusal{Kind: r, Path: path, Text: fmt.Sprintf(r.reasonFormat, args...) + r.Remedy}
}

// newRefusalWithText returns a refusal with the given text, for a kind without a reasonFormat.
func newRefusalWithText(kind refusalKindIndex, path []string, text string) Refusal {
	return Refusal{Kind: &refusalKinds[kind], Path: path, Text: text}
}
