package taskenv

import (
	"strings"

	"github.com/zclconf/go-cty/cty"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// TaskConfigHCLVars returns the variables for the HCL engine, which evaluates a task's config: each variable as nested
// objects, one per part in its dotted name; the object env with all variables by their full names; the object secret with
// the values from secret blocks; and the objects node, attr and meta with the node's facts.
//
// If a name is both a variable and the prefix of longer names, the object with the longer names has precedence. A name with
// an empty part ("a..b"), or with more than 100 parts, is available only in env.
func (e *Env) TaskConfigHCLVars() map[string]cty.Value {
	root := make(dottedNameTree)
	for key, value := range e.vars {
		root.insertNameUnlessInvalid(key, value)
	}
	for name, value := range e.inputs.valueBySecretReference {
		root.insertNameUnlessInvalid(name, value)
	}
	n := &e.inputs.node
	for _, name := range model.NodePropertyNames {
		value, _ := n.LookupProperty(name)
		root.insertNameUnlessInvalid(name, value)
	}
	for key, value := range n.Attributes {
		root.insertNameUnlessInvalid("attr."+key, value)
		root.insertNameUnlessInvalid("node.attr."+key, value)
	}
	for key, value := range n.Meta {
		root.insertNameUnlessInvalid("meta."+key, value)
		root.insertNameUnlessInvalid("node.meta."+key, value)
	}

	config := make(map[string]cty.Value, len(root)+1)
	for name, node := range root {
		config[name] = node.toCty()
	}
	env := make(map[string]cty.Value, len(e.vars))
	for key, value := range e.vars {
		env[key] = cty.StringVal(value)
	}
	config["env"] = ctyMapValue(env)
	return config
}

// maxNameParts limits the depth of a dottedNameTree, and thereby toCty's recursion.
const maxNameParts = 100

// dottedNameTree maps the next part of dotted names to a node, which holds a value or a further level.
type dottedNameTree map[string]*dottedNameNode

type dottedNameNode struct {
	value    string
	children dottedNameTree // nil for a leaf
}

// insertNameUnlessInvalid adds one dotted name. It ignores a name with an empty part or with more than maxNameParts
// parts.
func (t dottedNameTree) insertNameUnlessInvalid(name, value string) {
	if strings.Count(name, ".") >= maxNameParts || strings.Contains("."+name+".", "..") {
		return
	}
	for {
		part, rest, more := strings.Cut(name, ".")
		b := t[part]
		if b == nil {
			b = new(dottedNameNode)
			t[part] = b
		}
		if !more {
			b.value = value
			return
		}
		if b.children == nil {
			b.children = make(dottedNameTree)
		}
		t, name = b.children, rest
	}
}

func (d *dottedNameNode) toCty() cty.Value {
	if d.children == nil {
		return cty.StringVal(d.value)
	}
	object := make(map[string]cty.Value, len(d.children))
	for name, child := range d.children {
		object[name] = child.toCty()
	}
	return cty.ObjectVal(object)
}

func ctyMapValue(m map[string]cty.Value) cty.Value {
	if len(m) == 0 {
		return cty.MapValEmpty(cty.String)
	}
	return cty.MapVal(m)
}
