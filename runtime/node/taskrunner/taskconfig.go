package taskrunner

import (
	"cmp"
	"fmt"
	"strings"
	"sync"

	"github.com/hashicorp/hcl/v2"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/hclspec/block"
	"github.com/nomad-lite/nomad-lite/internal/cgroup"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskenv"
)

// taskConfigBuilder builds the driver.TaskConfig of the task. The method buildTaskConfig belongs to the goroutine of Run; the other methods
// may be called concurrently.
type taskConfigBuilder struct {
	alloc       *Alloc
	dir         hook.TaskDir
	env         *taskenv.Builder
	task        func() Task
	description *driverDescription
	hooks       *taskHooks

	mu               sync.Mutex
	output           Output
	cgroup           cgroup.Group             // cgroup that the host has created for the driver
	networkIsolation *driver.NetworkIsolation // network namespace of the task; nil if it uses the network of the host
	networkDNS       *driver.DNSConfig        // DNS configuration of the network; nil until the network exists
}

func (b *taskConfigBuilder) setOutput(o Output) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.output = o
}

func (b *taskConfigBuilder) setCgroup(group cgroup.Group) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cgroup = group
}

func (b *taskConfigBuilder) setNetwork(isolation *driver.NetworkIsolation, dns *driver.DNSConfig) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.networkIsolation, b.networkDNS = isolation, dns
}

// buildTaskConfig returns the driver.TaskConfig for the next start, without the id of the start. It evaluates the config block anew for
// each start, because the block may refer to values that hooks have set. An error means that the job is invalid.
func (b *taskConfigBuilder) buildTaskConfig() (*driver.TaskConfig, error) {
	task := b.task()
	env := b.env.Build()
	config, err := decodeConfig(b.description.schema, task.Config, env)
	if err != nil {
		return nil, err
	}
	mounts, devices, err := b.hooks.mergeHookMountsAndDevices()
	if err != nil {
		return nil, err
	}
	resources := task.Resources
	b.mu.Lock()
	output, networkIsolation, networkDNS := b.output, b.networkIsolation, b.networkDNS
	resources.Linux.CpusetCgroup, resources.Linux.CpusetCpus = b.cgroup.Path, b.cgroup.CPUs
	b.mu.Unlock()
	return &driver.TaskConfig{
		Name:             task.Name,
		JobName:          b.alloc.JobName,
		JobID:            b.alloc.JobID,
		ParentJobID:      b.alloc.ParentJobID,
		TaskGroupName:    b.alloc.TaskGroup,
		Namespace:        b.alloc.Namespace,
		NodeName:         b.alloc.NodeName,
		NodeID:           b.alloc.NodeID,
		AllocID:          b.alloc.ID,
		DriverConfig:     config,
		Env:              env.Vars(),
		DeviceEnv:        b.hooks.deviceEnv(env),
		User:             task.User,
		AllocDir:         b.dir.AllocDir,
		StdoutPath:       output.Stdout,
		StderrPath:       output.Stderr,
		Resources:        &resources,
		Mounts:           mounts,
		Devices:          devices,
		NetworkIsolation: networkIsolation,
		DNS:              cmp.Or(networkDNS, b.alloc.DNS),
	}, nil
}

func decodeConfig(schema *hclspec.Spec, config map[string]any, env *taskenv.Env) ([]byte, error) {
	value, diags := block.Decode(schema, config, env.ConfigVars)
	if diags.HasErrors() {
		return nil, newConfigError(diags)
	}
	b, err := block.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("failed to encode config: %w", err)
	}
	return b, nil
}

// configError is the list of errors in a config block. The text has the format that Nomad's clients expect, so the first item
// is a heading, and not an error.
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
