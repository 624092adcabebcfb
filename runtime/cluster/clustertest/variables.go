package clustertest

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// PutVariable writes a variable.
func (c *Cluster) PutVariable(namespace, path string, items map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := [2]string{namespace, path}
	index, now := c.writeLocked("variables"), c.clock.Now().UnixNano()
	v := &api.Variable{Namespace: namespace, Path: path, CreateIndex: index, ModifyIndex: index, CreateTime: now, ModifyTime: now, Items: maps.Clone(items)}
	if old, known := c.variables[key]; known {
		v.CreateIndex, v.CreateTime = old.CreateIndex, old.CreateTime
	}
	c.variables[key] = v
}

// DeleteVariable removes a variable, if it exists.
func (c *Cluster) DeleteVariable(namespace, path string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.variables, [2]string{namespace, path})
	c.writeLocked("variables")
}

// rejectsNodeToken fails the test if a node sends its own token for a variable, and reports whether it does: a server of
// Nomad 2.0 with access control crashes.
func (c *Cluster) rejectsNodeToken(r *request, method string) bool {
	if r.caller.kind != nodeCaller && r.caller.kind != expiredNode {
		return false
	}
	c.t.Errorf("node %s has sent %s with the token of a node, which crashes a server of Nomad 2.0", r.caller.nodeID, method)
	return true
}

// readVariable answers Variables.Read.
func (c *Cluster) readVariable(r *request) (answer, error) {
	var get struct{ Path string }
	if err := r.decode(&get); err != nil {
		return answer{}, err
	}
	namespace := cmp.Or(r.Namespace, "default")
	if c.rejectsNodeToken(r, "Variables.Read") || c.config.AccessControl && !c.mayReadVariable(r.caller, namespace, get.Path) {
		return answer{}, errPermissionDenied
	}
	v, known := c.variables[[2]string{namespace, get.Path}]
	if !known {
		return answer{body: object{"Data": nil}, index: c.tableIndexLocked("variables")}, nil
	}
	data := variableMetadata(v)
	data["Items"] = v.Items
	return answer{body: object{"Data": data}, index: v.ModifyIndex}, nil
}

func variableMetadata(v *api.Variable) object {
	return object{
		"Namespace": v.Namespace, "Path": v.Path, "CreateIndex": v.CreateIndex, "ModifyIndex": v.ModifyIndex,
		"CreateTime": v.CreateTime, "ModifyTime": v.ModifyTime, "Lock": nil,
	}
}

// listVariables answers Variables.List.
func (c *Cluster) listVariables(r *request) (answer, error) {
	if c.rejectsNodeToken(r, "Variables.List") {
		return answer{}, errPermissionDenied
	}
	namespace := cmp.Or(r.Namespace, "default")
	data := []object{}
	for _, key := range slices.SortedFunc(maps.Keys(c.variables), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }) {
		if namespace != "*" && key[0] != namespace || !strings.HasPrefix(key[1], r.Prefix) {
			continue
		}
		if !c.config.AccessControl || c.mayReadVariable(r.caller, key[0], key[1]) {
			data = append(data, variableMetadata(c.variables[key]))
		}
	}
	return answer{body: object{"Data": data}, index: c.tableIndexLocked("variables")}, nil
}

// mayReadVariable reports whether the caller may read a variable: a task may read those of its job.
func (c *Cluster) mayReadVariable(by caller, namespace, path string) bool {
	if by.kind == userCaller {
		return by.isManagement() || allowVariable(by.token.rules, namespace, path)
	}
	if by.kind != taskCaller || by.claims.Namespace != namespace {
		return false
	}
	a, known := c.allocs[by.claims.AllocationID]
	if !known {
		return false // it was removed while the call was blocked
	}
	own := "nomad/jobs"
	for _, part := range []string{"", "/" + a.JobID, "/" + a.TaskGroup, "/" + by.claims.Task} {
		own += part
		if path == own {
			return true
		}
	}
	return allowVariable(c.policiesOfTaskLocked(by.claims), namespace, path)
}
