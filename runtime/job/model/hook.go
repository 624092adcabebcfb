package model

import (
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

// HookPrefix starts the meta keys that attach hooks to a job, a group or a task; the hook's name follows. The value is the hook's
// configuration in JSON, or empty.
const HookPrefix = "lite_hook_"

// HookAttachment is one meta key with which a job attaches a hook.
type HookAttachment struct {
	MetaKeyPath []string // has the form of JobFault.Path
	Group       string   // Group is "" for the job
	Task        string   // Task is "" for a group or the job
	Hook        string
	ConfigJSON  string
}

// HookAttachments returns a canonical job's hook attachments.
func HookAttachments(job *api.Job) (list []HookAttachment) {
	add := func(meta map[string]string, group, task string, path ...string) {
		for _, key := range slices.Sorted(maps.Keys(meta)) {
			if name, ok := strings.CutPrefix(key, HookPrefix); ok {
				list = append(list, HookAttachment{slices.Concat(path, []string{"meta", key}), group, task, name, meta[key]})
			}
		}
	}
	add(job.Meta, "", "")
	for _, g := range job.TaskGroups {
		add(g.Meta, pointer.Value(g.Name), "", "group", pointer.Value(g.Name))
		for _, t := range g.Tasks {
			add(t.Meta, pointer.Value(g.Name), t.Name, "group", pointer.Value(g.Name), "task", t.Name)
		}
	}
	return list
}
