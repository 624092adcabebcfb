package model

import (
	"strings"

	"github.com/hashicorp/nomad/api"
)

// NodeFacts are the node properties a job can refer to. The maps are shared and must not be changed; a changed node gets new
// maps.
type NodeFacts struct {
	ID, Name, Datacenter, Region, Class, Pool string
	Attributes, Meta                          map[string]string
}

// NodeFactsOf returns a stored node's facts for placement. Their field Region is empty.
func NodeFactsOf(n *api.Node) NodeFacts {
	return NodeFacts{ID: n.ID, Name: n.Name, Datacenter: n.Datacenter, Class: n.NodeClass, Pool: n.NodePool, Attributes: n.Attributes, Meta: n.Meta}
}

// NodePropertyNames names the properties every node has.
var NodePropertyNames = []string{"node.unique.id", "node.unique.name", "node.datacenter", "node.region", "node.class", "node.pool"}

// LookupProperty returns the property with the given name: a job file's reference without the braces.
func (n *NodeFacts) LookupProperty(name string) (value string, ok bool) {
	switch name {
	case "node.unique.id":
		return n.ID, true
	case "node.unique.name":
		return n.Name, true
	case "node.datacenter":
		return n.Datacenter, true
	case "node.region":
		return n.Region, n.Region != "" // Region is empty in the facts for placement
	case "node.class":
		return n.Class, true
	case "node.pool":
		return n.Pool, true
	}
	if key, attr := strings.CutPrefix(name, "attr."); attr {
		value, ok = n.Attributes[key]
	} else if key, meta := strings.CutPrefix(name, "meta."); meta {
		value, ok = n.Meta[key]
	}
	return value, ok
}

// ResolveConstraintTarget returns the value of a constraint target: a literal, or a reference to the node.
func (n *NodeFacts) ResolveConstraintTarget(target string) (value string, ok bool) {
	name, reference := strings.CutPrefix(target, "${")
	if !reference {
		return target, true
	}
	return n.LookupProperty(strings.TrimSuffix(name, "}"))
}
