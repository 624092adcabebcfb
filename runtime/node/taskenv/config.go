package taskenv

import (
	"strings"

	"github.com/zclconf/go-cty/cty"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// ConfigVars returns the variables for the HCL engine, which evaluates a task's config:
// each variable as nested objects, one per part of its dotted name; the object env with
// all variables by their full names; the object secret with the values of secret blocks;
// and the objects node, attr and meta with the facts of the node.
//
// If a name is both a value and the prefix of others, the tree wins. A name with an empty part
// ("a..b"), or with more than 100 parts, is available only in env.
func (e *Env) ConfigVars() map[string]cty.Value {
	root := make(dottedNameTree)
	for key, value := range e.vars {
		root.insert(key, value)
	}
	for name, value := range e.in.secrets {
		root.insert(name, value)
	}
	n := &e.in.node
	for _, name := range model.NodePropertyNames {
		value, _ := n.Lookup(name)
		root.insert(name, value)
	}
	for key, value := range n.Attributes {
		root.insert("attr."+key, value)
		root.insert("node.attr."+key, value)
	}
	for key, value := range n.Meta {
		root.insert("meta."+key, value)
		root.insert("node.meta."+key, value)
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

// maxNameParts limits the depth of the trees, and with it the size of the stack.
const maxNameParts = 100

// dottedNameTree is a level of names; a branch is a tree or a leaf.
type dottedNameTree map[string]*dottedNameNode

type dottedNameNode struct {
	leafValue string
	children  dottedNameTree // nil for a leaf
}

// insert adds one dotted name. It ignores a name with an empty part or with more than maxNameParts
// parts.
func (t dottedNameTree) insert(name, value string) {
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
			b.leafValue = value
			return
		}
		if b.children == nil {
			b.children = make(dottedNameTree)
		}
		t, name = b.children, rest
	}
}

func (b *dottedNameNode) toCty() cty.Value {
	if b.children == nil {
		return cty.StringVal(b.leafValue)
	}
	object := make(map[string]cty.Value, len(b.children))
	for name, child := range b.children {
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
