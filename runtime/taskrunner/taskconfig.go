package taskrunner

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/taskenv"
)

// taskConfig returns the driver's config for the next start, without its id. The config
// block is evaluated at each start, because it may refer to values that hooks have set. An error
// means that the job is invalid.
func (r *Runner) taskConfig() (*driver.TaskConfig, error) {
	task := r.Task()
	env := r.env.Build()
	config, err := decodeConfig(r.schema, task.Config, env)
	if err != nil {
		return nil, err
	}
	mounts, devices := r.hookMounts()
	resources := task.Resources
	r.mu.Lock()
	output := r.output
	resources.Linux.CpusetCgroup = r.cgroup
	r.mu.Unlock()
	return &driver.TaskConfig{
		Name:             r.name,
		JobName:          r.alloc.JobName,
		JobID:            r.alloc.JobID,
		ParentJobID:      r.alloc.ParentJobID,
		TaskGroupName:    r.alloc.TaskGroup,
		Namespace:        r.alloc.Namespace,
		NodeName:         r.alloc.NodeName,
		NodeID:           r.alloc.NodeID,
		AllocID:          r.alloc.ID,
		DriverConfig:     config,
		Env:              env.Vars(),
		User:             task.User,
		AllocDir:         r.dir.AllocDir,
		StdoutPath:       output.Stdout,
		StderrPath:       output.Stderr,
		Resources:        &resources,
		Mounts:           mounts,
		Devices:          devices,
		NetworkIsolation: r.alloc.NetworkIsolation,
		DNS:              r.alloc.DNS,
	}, nil
}

// newStartID returns the id of one start of a task. Drivers use it as a key, so it must
// never repeat, even across restarts of the agent and the plugin.
func newStartID(allocID, task string) string {
	var b [4]byte
	rand.Read(b[:]) // never fails
	return fmt.Sprintf("%s/%s/%s", allocID, task, hex.EncodeToString(b[:]))
}

func decodeConfig(schema *hclspec.Spec, config map[string]any, env *taskenv.Env) ([]byte, error) {
	value, diags := schema.Decode(config, env.ConfigVars)
	if diags.HasErrors() {
		return nil, newConfigError(diags)
	}
	b, err := hclspec.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("failed to encode config: %w", err)
	}
	return b, nil
}

// configError is the list of errors in a config block, with the format that Nomad's
// clients expect: the first item is a heading.
type configError []string

func newConfigError(diags hcl.Diagnostics) configError {
	e := configError{"failed to parse config: "}
	for _, d := range diags {
		if d.Severity == hcl.DiagError {
			e = append(e, d.Summary+": "+d.Detail)
		}
	}
	return e
}

func (e configError) Error() string {
	return fmt.Sprintf("%d errors occurred:\n\t* %s\n\n", len(e), strings.Join(e, "\n\t* "))
}

// hookMounts merges the mounts and devices of the hooks, in the order of the hooks. If
// several hooks use the same path in the task, the last hook wins.
func (r *Runner) hookMounts() (mounts []driver.Mount, devices []driver.Device) {
	for _, h := range r.hooks.Hooks() {
		record := r.local.Hooks[h.Name()]
		for _, m := range record.Mounts {
			mounts = slices.DeleteFunc(mounts, func(o driver.Mount) bool { return o.TaskPath == m.TaskPath })
			mounts = append(mounts, m)
		}
		for _, d := range record.Devices {
			devices = slices.DeleteFunc(devices, func(o driver.Device) bool { return o.TaskPath == d.TaskPath })
			devices = append(devices, d)
		}
	}
	return mounts, devices
}
