package acl

import (
	"slices"
	"strings"
)

// Rights are what a token's owner may do. They do not change. The zero value has no rights.
type Rights struct {
	isManagement bool

	namespaces  labels
	variables   labels // by namespace and path, joined with variableSeparator
	hostVolumes labels
	nodePools   labels

	agent, node, plugin, operator level
	operatorCapabilities          capabilitySet

	own *Workload // nil if no workload has these rights
}

// Workload names the task whose identity has rights.
type Workload struct{ Namespace, Job, Group, Task string }

// level is the right that a block without a label grants.
type level int

const (
	levelNone level = iota
	levelList
	levelRead
	levelWrite
	levelDeny // the highest, because it beats all others
)

var levelByPolicy = map[string]level{"list": levelList, "read": levelRead, "write": levelWrite, "deny": levelDeny}

func (l level) canList() bool  { return l >= levelList && l != levelDeny }
func (l level) canRead() bool  { return l >= levelRead && l != levelDeny }
func (l level) canWrite() bool { return l == levelWrite }

// variableSeparator separates namespace and path in a label of variables. Neither can have it.
const variableSeparator = "\x00"

// Management returns the rights of management tokens: all of them.
func Management() *Rights { return &Rights{isManagement: true} }

// Merge returns the rights of a token with several policies. Rights for one label add up, except that Deny takes all of them.
func Merge(policies ...*Rules) *Rights {
	r := new(Rights)
	namespaces, variables, hostVolumes, nodePools := labelMerger{}, labelMerger{}, labelMerger{}, labelMerger{}
	raise := func(l *level, rule *SimpleRule) {
		if rule != nil {
			*l = max(*l, levelByPolicy[rule.Policy])
		}
	}
	for _, p := range policies {
		for _, n := range p.Namespaces {
			namespaces.add(n.Name, n.Capabilities)
			if n.Variables == nil {
				continue
			}
			for _, path := range n.Variables.Paths {
				// Deny takes the rights of its own list only.
				granted := path.Capabilities
				if slices.Contains(granted, Deny) {
					granted = nil
				}
				variables.add(n.Name+variableSeparator+path.PathSpec, granted)
			}
		}
		for _, v := range p.HostVolumes {
			hostVolumes.add(v.Name, v.Capabilities)
		}
		for _, n := range p.NodePools {
			nodePools.add(n.Name, n.Capabilities)
		}
		raise(&r.agent, p.Agent)
		raise(&r.node, p.Node)
		if p.Plugin != nil && p.Plugin.Policy != "write" { // a policy of a plugin block that grants nothing, as recorded
			raise(&r.plugin, p.Plugin)
		}
		if p.Operator != nil {
			raise(&r.operator, &SimpleRule{p.Operator.Policy})
			r.operatorCapabilities |= setOf(p.Operator.Capabilities)
		}
	}
	r.namespaces, r.variables = namespaces.labels(), variables.labels()
	r.hostVolumes, r.nodePools = hostVolumes.labels(), nodePools.labels()
	return r
}

// WithWorkload returns the rights together with those that every task has: to the variables of its job, and to all services.
func (r *Rights) WithWorkload(w Workload) *Rights {
	c := *r
	c.own = &w
	return &c
}

// Workload returns the task that has the rights, or nil.
func (r *Rights) Workload() *Workload { return r.own }

// IsManagement reports whether the owner may do everything.
func (r *Rights) IsManagement() bool { return r.isManagement }

// Namespace reports whether the owner has one of the capabilities in a namespace.
func (r *Rights) Namespace(namespace string, capabilities ...Capability) bool {
	return r.isManagement || r.namespaces.find(namespace).hasAny(capabilities)
}

// AnyNamespace reports whether the owner has one of the capabilities in some namespace, whether the namespace exists or not.
func (r *Rights) AnyNamespace(capabilities ...Capability) bool {
	return r.isManagement || r.namespaces.anyHas(capabilities)
}

// SeesNamespace reports whether the owner may read a namespace itself: with any right in it.
func (r *Rights) SeesNamespace(namespace string) bool {
	return r.isManagement || r.namespaces.find(namespace) != 0
}

// SeesAnyNamespace reports whether the owner has a right in some namespace.
func (r *Rights) SeesAnyNamespace() bool { return r.isManagement || r.namespaces.anyGrants() }

// AnyNodePool reports whether the owner has a right for some node pool.
func (r *Rights) AnyNodePool() bool { return r.isManagement || r.nodePools.anyGrants() }

// AnyVariable reports whether the owner has one of the capabilities for some variable.
func (r *Rights) AnyVariable(capabilities ...Capability) bool {
	return r.isManagement || r.own != nil || r.variables.anyHas(capabilities)
}

// AnyVariableIn reports whether the owner has one of the capabilities for some variable in a namespace or, for "*", in any namespace.
func (r *Rights) AnyVariableIn(namespace string, capabilities ...Capability) bool {
	if namespace == "*" || r.isManagement || r.own != nil && r.own.Namespace == namespace {
		return r.AnyVariable(capabilities...)
	}
	set := setOf(capabilities)
	isIn := func(label string) bool {
		of, _, _ := strings.Cut(label, variableSeparator)
		return newPattern(of, 0).matches(namespace)
	}
	for label, granted := range r.variables.exact {
		if granted&set != 0 && isIn(label) {
			return true
		}
	}
	return slices.ContainsFunc(r.variables.patterns, func(p pattern) bool { return p.set&set != 0 && isIn(p.label) })
}

// Service reports whether the owner may read the services of a namespace. A workload reads all of them.
func (r *Rights) Service(namespace string) bool {
	return r.own != nil || r.Namespace(namespace, ReadJob)
}

// Variable reports whether the owner has one of the capabilities for a variable: Read, Write, List, Destroy.
func (r *Rights) Variable(namespace, path string, capabilities ...Capability) bool {
	return r.isManagement || r.variables.find(namespace+variableSeparator+path).hasAny(capabilities) || r.own.reads(namespace, path, capabilities)
}

// reads reports whether a workload has one of the capabilities for a variable of its job, without a policy.
func (w *Workload) reads(namespace, path string, capabilities []Capability) bool {
	if w == nil || namespace != w.Namespace || !slices.Contains(capabilities, Read) && !slices.Contains(capabilities, List) {
		return false
	}
	own := []string{"nomad/jobs", w.Job, w.Group, w.Task}
	for i := range own {
		if path == strings.Join(own[:i+1], "/") {
			return true
		}
	}
	return false
}

// HostVolume reports whether the owner has one of the capabilities for a host volume: MountReadOnly, MountReadWrite.
func (r *Rights) HostVolume(name string, capabilities ...Capability) bool {
	return r.isManagement || r.hostVolumes.find(name).hasAny(capabilities)
}

// NodePool reports whether the owner has one of the capabilities for a node pool: Read, Write, Delete.
func (r *Rights) NodePool(name string, capabilities ...Capability) bool {
	return r.isManagement || r.nodePools.find(name).hasAny(capabilities)
}

// ReadsNodes reports whether the owner may read nodes.
func (r *Rights) ReadsNodes() bool { return r.isManagement || r.node.canRead() }

// WritesNodes reports whether the owner may change nodes.
func (r *Rights) WritesNodes() bool { return r.isManagement || r.node.canWrite() }

// ReadsAgents reports whether the owner may read agents.
func (r *Rights) ReadsAgents() bool { return r.isManagement || r.agent.canRead() }

// WritesAgents reports whether the owner may change agents.
func (r *Rights) WritesAgents() bool { return r.isManagement || r.agent.canWrite() }

// ListsPlugins reports whether the owner may list plugins.
func (r *Rights) ListsPlugins() bool { return r.isManagement || r.plugin.canList() }

// ReadsPlugins reports whether the owner may read plugins.
func (r *Rights) ReadsPlugins() bool { return r.isManagement || r.plugin.canRead() }

// ReadsOperator reports whether the owner may read the settings of operators.
func (r *Rights) ReadsOperator() bool { return r.isManagement || r.operator.canRead() }

// WritesOperator reports whether the owner may change the settings of operators.
func (r *Rights) WritesOperator() bool { return r.isManagement || r.operator.canWrite() }

// Operator reports whether the owner has one of the capabilities of operators: SnapshotSave, KeyringRead and so on.
func (r *Rights) Operator(capabilities ...Capability) bool {
	return r.isManagement || r.operator != levelDeny && r.operatorCapabilities.hasAny(capabilities)
}
