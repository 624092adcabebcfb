package main

import (
	"encoding/json"
	"path/filepath"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

const metaKey = "lite_hook_warmup"

// siblings returns the other tasks of the allocation whose job attaches the hook. The host takes the first
// report of health for all tasks of an allocation, so that the hook itself must wait for the last of them.
// Tasks to which an operator attaches the hook by a block are not in the JSON.
func siblings(alloc hook.Alloc, task string) ([]string, error) {
	if len(alloc.JSON) == 0 {
		return nil, nil
	}
	type block struct {
		Name      string
		Meta      map[string]string
		Lifecycle *struct {
			Hook    string
			Sidecar bool
		}
	}
	var a struct {
		Job struct {
			block
			TaskGroups []struct {
				block
				Tasks []block
			}
		}
	}
	if err := json.Unmarshal(alloc.JSON, &a); err != nil {
		return nil, err
	}
	var names []string
	for _, group := range a.Job.TaskGroups {
		if group.Name != alloc.TaskGroup {
			continue
		}
		for _, t := range group.Tasks {
			attached := false
			for _, meta := range []map[string]string{a.Job.Meta, group.Meta, t.Meta} {
				_, has := meta[metaKey]
				attached = attached || has
			}
			if l := t.Lifecycle; l != nil && !l.Sidecar { // it need not run while the allocation is healthy
				continue
			}
			if attached && t.Name != task {
				names = append(names, t.Name)
			}
		}
	}
	return names, nil
}

// allWarm reports whether the siblings of a task that is warm are warm, too, by their records.
func allWarm(req hook.TaskPoststartRequest) (bool, error) {
	names, err := siblings(req.Alloc, req.Task.Name)
	if err != nil {
		return false, err
	}
	for _, name := range names {
		r, err := loadRecord(filepath.Join(req.Dir.AllocDir, name, filepath.Base(req.Dir.PrivateDir)))
		if err != nil || !r.Warm {
			return false, err
		}
	}
	return true, nil
}
