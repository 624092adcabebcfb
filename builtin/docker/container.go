package docker

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/nomad-lite/nomad-lite/internal/safepath"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// Labels of a container. The first is Nomad's. The others let the driver find its
// own containers beside the containers of another agent.
const (
	labelPrefix   = "com.hashicorp.nomad."
	labelAllocID  = labelPrefix + "alloc_id"
	labelTaskName = "nomad-lite.task_name"
	labelStartID  = "nomad-lite.start_id"
	// labelDirectoryID has the random id of the agent's data directory.
	labelDirectoryID = "nomad-lite.directory_id"
)

// containerBuilder turns one start of a task into the options of its container. It does not
// call the engine.
type containerBuilder struct {
	plugin *pluginConfig
	task   *taskConfig
	start  *sdk.StartRequest

	// noBind is why the driver cannot mount the sources of the container itself; nil if it can.
	noBind error

	config container.Config
	host   container.HostConfig
	plan   containerPlan
}

// containerPlan is what a start does for a container.
type containerPlan struct {
	options *client.ContainerCreateOptions
	sources []boundSource // mounted by the driver before it creates the container
	// hasOwnSources: the engine mounts paths that only the task itself could replace. No other container of the task can run
	// while it does.
	hasOwnSources bool
}

// buildContainer returns the plan for the container of a task, or an error that names the option that the operator's policy or
// the driver refuses. noBind is why the driver cannot mount sources itself; nil if it can.
func buildContainer(p *pluginConfig, t *taskConfig, start *sdk.StartRequest, noBind error) (*containerPlan, error) {
	b := &containerBuilder{plugin: p, task: t, start: start, noBind: noBind}
	b.setCommand()
	for _, set := range []func() error{b.setLogging, b.setLabels, b.setIsolation, b.setLimits, b.setMounts, b.setDevices} {
		if err := set(); err != nil {
			return nil, err
		}
	}
	networking, err := b.setNetwork()
	if err != nil {
		return nil, err
	}
	b.plan.options = &client.ContainerCreateOptions{
		Name:             containerName(start),
		Config:           &b.config,
		HostConfig:       &b.host,
		NetworkingConfig: networking,
	}
	return &b.plan, nil
}

// containerName is Nomad's name for the container of a task.
func containerName(start *sdk.StartRequest) string {
	return strings.ReplaceAll(start.Name, "/", "_") + "-" + start.AllocID
}

func (b *containerBuilder) setCommand() {
	c := b.task.commandConfig
	b.config.Image = b.task.Image
	b.config.Entrypoint = c.Entrypoint
	if c.Command != "" {
		b.config.Cmd = append([]string{c.Command}, c.Args...)
	} else {
		b.config.Cmd = c.Args
	}
	b.config.WorkingDir = c.WorkDir
	b.config.User = b.start.User
	b.config.Tty = c.TTY
	b.config.OpenStdin = c.Interactive
	for _, name := range slices.Sorted(maps.Keys(b.start.Env)) {
		b.config.Env = append(b.config.Env, name+"="+b.start.Env[name])
	}
	if c.Healthchecks.Disable {
		b.config.Healthcheck = &container.HealthConfig{Test: []string{"NONE"}}
	}
	b.host.GroupAdd = c.GroupAdd
	if c.Init {
		b.host.Init = &c.Init
	}
}

// setDirectoryLabel adds the label of the data directory. Under Nomad there is none.
func setDirectoryLabel(labels map[string]string) {
	if id := sdk.DirectoryID(); id != "" {
		labels[labelDirectoryID] = id
	}
}

// isOfOtherAgent reports whether a container belongs to another data directory whose keeper runs. The directory can be a copy of
// this one, so that allocations of both have the same ids. A container of a directory without a keeper is a leftover.
func isOfOtherAgent(labels map[string]string) bool {
	id := labels[labelDirectoryID]
	return id != "" && id != sdk.DirectoryID() && sdk.IsDirectoryActive(id)
}

func (b *containerBuilder) setLabels() error {
	labels := maps.Clone(b.task.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	for name := range labels {
		if strings.HasPrefix(name, labelPrefix) || strings.HasPrefix(name, "nomad-lite.") {
			return fmt.Errorf("labels: %q is reserved for the driver; choose another name", name)
		}
	}
	s := b.start
	labels[labelAllocID], labels[labelTaskName], labels[labelStartID] = s.AllocID, s.Name, s.ID
	setDirectoryLabel(labels)
	shortAllocID, _, _ := strings.Cut(s.AllocID, "-") // an id without a hyphen is used whole
	values := map[string]string{
		"job_name": s.JobName, "job_id": s.JobID, "task_group_name": s.TaskGroupName, "task_name": s.Name,
		"namespace": s.Namespace, "node_name": s.NodeName, "node_id": s.NodeID, "short_alloc_id": shortAllocID,
	}
	for _, pattern := range b.plugin.ExtraLabels {
		for name, value := range values {
			if ok, err := path.Match(pattern, name); err == nil && ok {
				labels[labelPrefix+name] = value
			}
		}
	}
	b.config.Labels = labels
	return nil
}

// setLogging sets the log driver of the container from the task, or from the plugin if the task sets none.
func (b *containerBuilder) setLogging() error {
	l := b.plugin.Logging
	if t := b.task.Logging; t.Type != "" || t.Driver != "" || len(t.Config) > 0 {
		l = loggingConfig{Type: cmp.Or(t.Type, t.Driver), Config: t.Config}
		if _, ok := l.Config["path"]; ok && !b.plugin.Volumes.Enabled {
			return fmt.Errorf("logging: path is refused, because an engine writes the output to this file of the host: %s", volumesDisabledText)
		}
	}
	b.host.LogConfig = container.LogConfig{Type: cmp.Or(l.Type, "json-file"), Config: l.Config}
	return nil
}

func (b *containerBuilder) setLimits() error {
	l := b.task.limitConfig
	b.host.OomScoreAdj = b.plugin.OOMScoreAdj
	if l.OOMScoreAdj != nil {
		b.host.OomScoreAdj = *l.OOMScoreAdj
	}
	b.host.CpusetCpus = l.CpusetCpus
	b.host.ShmSize = l.ShmSize
	pids := b.plugin.PidsLimit
	if l.PidsLimit > 0 {
		if pids > 0 && l.PidsLimit > pids {
			return fmt.Errorf("pids_limit is %d, and the operator allows %d with pids_limit in the configuration of the driver", l.PidsLimit, pids)
		}
		pids = l.PidsLimit
	}
	if pids > 0 {
		b.host.PidsLimit = &pids
	}
	for _, name := range slices.Sorted(maps.Keys(l.Ulimit)) {
		soft, hard, ok := strings.Cut(l.Ulimit[name], ":")
		if !ok {
			hard = soft
		}
		softLimit, softErr := strconv.ParseInt(soft, 10, 64)
		hardLimit, hardErr := strconv.ParseInt(hard, 10, 64)
		if softErr != nil || hardErr != nil {
			return fmt.Errorf("ulimit: %s is %q; it must be a number, or soft:hard", name, l.Ulimit[name])
		}
		b.host.Ulimits = append(b.host.Ulimits, &container.Ulimit{Name: name, Soft: softLimit, Hard: hardLimit})
	}
	if b.start.Resources == nil {
		return nil
	}
	return b.setResources(b.start.Resources)
}

const mebibyte = 1 << 20

func (b *containerBuilder) setResources(r *driver.Resources) error {
	l := b.task.limitConfig
	hardMB, softMB := r.MemoryMB, int64(0)
	switch {
	case r.MemoryMaxMB == driver.NoMemoryLimit:
		hardMB, softMB = 0, r.MemoryMB
	case r.MemoryMaxMB > r.MemoryMB:
		hardMB, softMB = r.MemoryMaxMB, r.MemoryMB
	}
	if l.MemoryHardLimit > 0 {
		if l.MemoryHardLimit < r.MemoryMB {
			return fmt.Errorf("memory_hard_limit is %d MB, less than the memory of the task, %d MB", l.MemoryHardLimit, r.MemoryMB)
		}
		hardMB, softMB = l.MemoryHardLimit, r.MemoryMB
	}
	b.host.Memory, b.host.MemoryReservation = hardMB*mebibyte, softMB*mebibyte
	b.host.MemorySwap = b.host.Memory // the limit of memory and swap together: no swap
	if shares := r.Linux.CPUShares; shares > 0 {
		b.host.CPUShares = max(shares, 2) // the least that the kernel accepts
	}
	if reserved := r.Linux.CpusetCpus; reserved != "" {
		if l.CpusetCpus != "" {
			b.start.Event(fmt.Sprintf("cpuset_cpus = %q has no effect: the task has the cores %s, because its resources have cores", l.CpusetCpus, reserved), nil)
		}
		b.host.CpusetCpus = reserved
	}
	if l.CPUHardLimit {
		const minQuota = 1000 // microseconds; the kernel refuses less
		quota := int64(r.Linux.PercentTicks*float64(l.CPUCFSPeriod)) * int64(runtime.NumCPU())
		b.host.CPUPeriod, b.host.CPUQuota = l.CPUCFSPeriod, max(quota, minQuota)
	}
	return nil
}

func (b *containerBuilder) setDevices() error {
	devices := make([]deviceConfig, 0, len(b.task.Devices)+len(b.start.Devices))
	for i, d := range b.task.Devices {
		if d.HostPath == "" {
			return fmt.Errorf("devices: host_path of device %d is empty", i+1)
		}
		if strings.Trim(d.CgroupPermissions, "rwm") != "" {
			return fmt.Errorf("devices: cgroup_permissions of %s is %q; it can have the letters r, w and m", d.HostPath, d.CgroupPermissions)
		}
		// A device that does not exist here can be one of another machine, on which the engine is.
		if _, err := safepath.Locate(d.HostPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("devices: %w", err)
		}
		devices = append(devices, d)
	}
	for _, d := range b.start.Devices {
		devices = append(devices, deviceConfig{HostPath: d.HostPath, ContainerPath: d.TaskPath, CgroupPermissions: d.Permissions})
	}
	for _, d := range devices {
		if d.ContainerPath == "" {
			d.ContainerPath = d.HostPath
		}
		if d.CgroupPermissions == "" {
			d.CgroupPermissions = "rwm"
		}
		b.host.Devices = append(b.host.Devices, container.DeviceMapping{
			PathOnHost: d.HostPath, PathInContainer: d.ContainerPath, CgroupPermissions: d.CgroupPermissions,
		})
	}
	return nil
}
