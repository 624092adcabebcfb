package taskenv

import (
	"slices"
)

// Env is a task's or an allocation's environment at one point in time. It never changes and is safe
// for concurrent use.
type Env struct {
	inputs *envInputs
	vars   map[string]string
}

func newEnv(in *envInputs) *Env { return &Env{inputs: in, vars: buildEnv(in)} }

// Vars returns all variables. The map belongs to e and must not be changed.
func (e *Env) Vars() map[string]string { return e.vars }

// SortedKeyValues returns all variables as "key=value", sorted.
func (e *Env) SortedKeyValues() []string {
	list := make([]string, 0, len(e.vars))
	for key, value := range e.vars {
		list = append(list, key+"="+value)
	}
	slices.Sort(list)
	return list
}

// ReplaceReferences replaces every ${name} in s that is a variable, a secret block value (secret.<name>.<key>) or a node
// attribute (node.*, attr.*, meta.*), and leaves the other text unchanged. It is for all job fields except a task's
// config, for which see [Env.TaskConfigHCLVars].
func (e *Env) ReplaceReferences(s string) string {
	remaining := maxInsertedBytes
	return expandReferences(s, &remaining, e.lookupReference)
}

// UnresolvedReferences returns the names of the references in s that have no value and that ReplaceReferences leaves unchanged,
// without ${ and }.
func (e *Env) UnresolvedReferences(s string) (names []string) {
	for _, name := range References(s) {
		if _, known := e.lookupReference(name); !known {
			names = append(names, name)
		}
	}
	return names
}

func (e *Env) lookupReference(name string) (string, bool) {
	return lookupReference(e.vars, e.inputs, name)
}
