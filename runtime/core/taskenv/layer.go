package taskenv

import (
	"maps"
	"slices"
)

// layeredVars is an environment built layer by layer; later layers have precedence.
type layeredVars struct {
	vars                 map[string]string
	inputs               *envInputs // source for the secret values and node attributes in references
	remainingInsertBytes int        // how many more bytes references may insert
}

// setVar sets one variable under the name that cleanPortOrMetaVarName returns.
func (v *layeredVars) setVar(key, value string) { v.vars[cleanPortOrMetaVarName(key)] = value }

// lookupReference returns the value of a variable, a secret block key or a node attribute.
func (v *layeredVars) lookupReference(name string) (string, bool) {
	return lookupReference(v.vars, v.inputs, name)
}

func lookupReference(env map[string]string, in *envInputs, name string) (string, bool) {
	if value, ok := env[name]; ok {
		return value, true
	}
	if clean := cleanPortOrMetaVarName(name); clean != name {
		if value, ok := env[clean]; ok {
			return value, true
		}
	}
	if value, ok := in.valueBySecretReference[name]; ok {
		return value, true
	}
	return in.node.LookupProperty(name)
}

// addLayer adds variables with precedence over all earlier layers. Their values may refer to variables in earlier layers
// and to each other in any order. A reference in a cycle has the value from the earlier layers: PATH = "/x:${PATH}"
// extends the earlier PATH; without an earlier value, the reference is unchanged.
func (v *layeredVars) addLayer(layer map[string]string) {
	layer = cleanPortAndMetaVarNames(layer)
	if !anyValueHasReference(layer) { // most layers have no references
		maps.Copy(v.vars, layer)
		return
	}
	plan := planResolution(layer)
	resolved := make(map[string]string, len(layer))
	for _, key := range plan.keysInResolveOrder {
		resolved[key] = expandReferences(layer[key], &v.remainingInsertBytes, func(name string) (string, bool) {
			if target, ok := referencedKey(layer, name); ok && plan.cycleNumberByKey[target] != plan.cycleNumberByKey[key] {
				return resolved[target], true // the target precedes key in keysInResolveOrder, so it is resolved already
			}
			return v.lookupReference(name)
		})
	}
	maps.Copy(v.vars, resolved)
}

// anyValueHasReference reports whether any value has a reference.
func anyValueHasReference(layer map[string]string) bool {
	for _, value := range layer {
		if _, _, end := nextReference(value, 0); end >= 0 {
			return true
		}
	}
	return false
}

// referencedKey returns the key in layer for a reference with this name, false if there is none.
func referencedKey(layer map[string]string, name string) (string, bool) {
	if _, ok := layer[name]; ok {
		return name, true
	}
	clean := cleanPortOrMetaVarName(name)
	_, ok := layer[clean]
	return clean, ok
}

// cleanPortAndMetaVarNames replaces the invalid characters in all keys. If two keys become equal, a
// previously valid key has precedence; if none was valid, the last key in alphabetical order has.
// It does not change layer.
func cleanPortAndMetaVarNames(layer map[string]string) map[string]string {
	var invalidKeys []string
	for key := range layer {
		if cleanPortOrMetaVarName(key) != key {
			invalidKeys = append(invalidKeys, key)
		}
	}
	if len(invalidKeys) == 0 {
		return layer
	}
	out := maps.Clone(layer)
	slices.Sort(invalidKeys)
	for _, key := range invalidKeys {
		delete(out, key)
		clean := cleanPortOrMetaVarName(key)
		if _, exists := layer[clean]; !exists {
			out[clean] = layer[key]
		}
	}
	return out
}

// resolutionPlan holds the order in which a layer's references are resolved, and which references form cycles.
type resolutionPlan struct {
	keysInResolveOrder []string       // keys in resolution order: each after the keys it refers to, except in cycles
	cycleNumberByKey   map[string]int // key -> its cycle's number; keys with the same number form a cycle
}

// planResolution finds the cycles with Tarjan's algorithm for strongly connected components. The result depends only on
// the layer, not on the map's iteration order.
func planResolution(layer map[string]string) resolutionPlan {
	c := resolutionPlan{cycleNumberByKey: make(map[string]int, len(layer))}
	index := make(map[string]int, len(layer)) // order in which each key is first visited, from 1
	var visitStack []string

	var visitKey func(key string) (low int)
	visitKey = func(key string) int {
		low := len(index) + 1
		index[key] = low
		visitStack = append(visitStack, key)
		bottom := len(visitStack) - 1

		text := layer[key]
		for name, _, end := nextReference(text, 0); end >= 0; name, _, end = nextReference(text, end) {
			target, ok := referencedKey(layer, name)
			if !ok {
				continue
			}
			if index[target] == 0 {
				low = min(low, visitKey(target))
			} else if _, closed := c.cycleNumberByKey[target]; !closed {
				low = min(low, index[target])
			}
		}

		if low == index[key] { // the key is the root of its strongly connected component
			for _, member := range visitStack[bottom:] {
				c.cycleNumberByKey[member] = low
			}
			members := slices.Clone(visitStack[bottom:])
			slices.Sort(members)
			c.keysInResolveOrder = append(c.keysInResolveOrder, members...)
			visitStack = visitStack[:bottom]
		}
		return low
	}
	for _, key := range slices.Sorted(maps.Keys(layer)) {
		if index[key] == 0 {
			visitKey(key)
		}
	}
	return c
}
