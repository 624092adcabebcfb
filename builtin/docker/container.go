package docker

import (
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

// Labels of a container. labelAllocID is Nomad's label. By the labels with the prefix "nomad-lite."
// the driver distinguishes its containers from the containers of another agent.
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
	pluginConfig *pluginConfig
	taskConfig   *taskConfig
	start        *sdk.StartRequest

	// cannotBindMountReason is the reason why the driver cannot mount the sources of the container
	// itself; nil means that it can.
	cannotBindMountReason error

	containerConfig container.Config
	hostConfig      container.HostConfig
	plan            containerPlan
}

// containerPlan has the mounts that a start makes, and the options with which it creates the
// container.
type containerPlan struct {
	createOptions        *client.ContainerCreateOptions
	driverMountedSources []driverMountedSource // the driver mounts these before it creates the container
	// engineMountsTaskReplaceablePaths is true if the engine mounts paths that only the task itself could replace. No
	// other container of the task may run while the engine mounts them.
	engineMountsTaskReplaceablePaths bool
}

// planContainer returns the plan for the container of a task, or an error that names the option
// that the operator's policy or the driver rejects. cannotBindMountReason is the reason why the driver
// cannot mount sources itself; nil means that it can.
func planContainer(p *pluginConfig, t *taskConfig, start *sdk.StartRequest, cannotBindMountReason error) (*containerPlan, error) {
	b := &containerBuilder{pluginConfig: p, taskConfig: t, start: start, cannotBindMountReason: cannotBindMountReason}
	b.setImageCommandAndEnv()
	for _, set := range []func() error{b.setLogging, b.setLabels, b.setIsolation, b.setLimits, b.setMounts, b.setDevices} {
		if err := set(); err != nil {
			return nil, err
		}
	}
	networking, err := b.setNetwork()
	if err != nil {
		return nil, err
	}
	b.plan.createOptions = &client.ContainerCreateOptions{
		Name:             containerName(start),
		Config:           &b.containerConfig,
		HostConfig:       &b.hostConfig,
		NetworkingConfig: networking,
	}
	return &b.plan, nil
}

// containerName is Nomad's name for the container of a task.
func containerName(start *sdk.StartRequest) string {
	return strings.ReplaceAll(start.Name, "/", "_") + "-" + start.AllocID
}

func (b *containerBuilder) setImageCommandAndEnv() {
	c := b.taskConfig.commandConfig
	b.containerConfig.Image = b.taskConfig.Image
	b.containerConfig.Entrypoint = c.Entrypoint
	if c.Command != "" {
		b.containerConfig.Cmd = append([]string{c.Command}, c.Args...)
	} else {
		b.containerConfig.Cmd = c.Args
	}
	b.containerConfig.WorkingDir = c.WorkDir
	b.containerConfig.User = b.start.User
	b.containerConfig.Tty = c.TTY
	b.containerConfig.OpenStdin = c.Interactive
	for _, name := range slices.Sorted(maps.Keys(b.start.Env)) {
		b.containerConfig.Env = append(b.containerConfig.Env, name+"="+b.start.Env[name])
	}
	if c.Healthchecks.Disable {
		b.containerConfig.Healthcheck = &container.HealthConfig{Test: []string{"NONE"}}
	}
	b.hostConfig.GroupAdd = c.GroupAdd
	if c.Init {
		b.hostConfig.Init = &c.Init
	}
}

// addDataDirectoryLabel adds the label of the data directory. Under Nomad the data directory has no id,
// and the label is not set.
func addDataDirectoryLabel(labels map[string]string) {
	if id := sdk.DataDirectoryID(); id != "" {
		labels[labelDirectoryID] = id
	}
}

// isOfOtherRunningAgent reports whether a container belongs to another data directory whose keeper runs.
// That directory can be a copy of this agent's directory, so that allocations of both have the same
// ids. A container of a directory without a running keeper is an orphan.
func isOfOtherRunningAgent(labels map[string]string) bool {
	id := labels[labelDirectoryID]
	return id != "" && id != sdk.DataDirectoryID() && sdk.IsDataDirectoryInUse(id)
}

func (b *containerBuilder) setLabels() error {
	labels := maps.Clone(b.taskConfig.Labels)
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
	addDataDirectoryLabel(labels)
	shortAllocID, _, _ := strings.Cut(s.AllocID, "-") // the first part of a UUID, or the whole id if it has no hyphen
	values := map[string]string{
		"job_name": s.JobName, "job_id": s.JobID, "task_group_name": s.TaskGroupName, "task_name": s.Name,
		"namespace": s.Namespace, "node_name": s.NodeName, "node_id": s.NodeID, "short_alloc_id": shortAllocID,
	}
	for _, pattern := range b.pluginConfig.ExtraLabels {
		for name, value := range values {
			if ok, err := path.Match(pattern, name); err == nil && ok {
				labels[labelPrefix+name] = value
			}
		}
	}
	b.containerConfig.Labels = labels
	return nil
}

func (b *containerBuilder) setLimits() error {
	l := b.taskConfig.limitConfig
	b.hostConfig.OomScoreAdj = b.pluginConfig.OOMScoreAdj
	if l.OOMScoreAdj != nil {
		b.hostConfig.OomScoreAdj = *l.OOMScoreAdj
	}
	b.hostConfig.CpusetCpus = l.CpusetCpus
	b.hostConfig.ShmSize = l.ShmSizeBytes
	pids := b.pluginConfig.PidsLimit
	if l.PidsLimit > 0 {
		if pids > 0 && l.PidsLimit > pids {
			return fmt.Errorf("pids_limit is %d, and the operator allows %d with pids_limit in the configuration of the driver", l.PidsLimit, pids)
		}
		pids = l.PidsLimit
	}
	if pids > 0 {
		b.hostConfig.PidsLimit = &pids
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
		b.hostConfig.Ulimits = append(b.hostConfig.Ulimits, &container.Ulimit{Name: name, Soft: softLimit, Hard: hardLimit})
	}
	if b.start.Resources == nil {
		return nil
	}
	return b.setResources(b.start.Resources)
}

const mebibyte = 1 << 20

func (b *containerBuilder) setResources(r *driver.Resources) error {
	l := b.taskConfig.limitConfig
	hardMB, softMB := r.MemoryMB, int64(0)
	switch {
	case r.MemoryMaxMB == driver.NoMemoryLimit:
		hardMB, softMB = 0, r.MemoryMB
	case r.MemoryMaxMB > r.MemoryMB:
		hardMB, softMB = r.MemoryMaxMB, r.MemoryMB
	}
	if l.MemoryHardLimitMB > 0 {
		if l.MemoryHardLimitMB < r.MemoryMB {
			return fmt.Errorf("memory_hard_limit is %d MB, less than the memory of the task, %d MB", l.MemoryHardLimitMB, r.MemoryMB)
		}
		hardMB, softMB = l.MemoryHardLimitMB, r.MemoryMB
	}
	b.hostConfig.Memory, b.hostConfig.MemoryReservation = hardMB*mebibyte, softMB*mebibyte
	b.hostConfig.MemorySwap = b.hostConfig.Memory // the limit of memory and swap together, so that the task has no swap
	if shares := r.Linux.CPUShares; shares > 0 {
		b.hostConfig.CPUShares = max(shares, 2) // the kernel accepts no smaller value
	}
	if reserved := r.Linux.CpusetCpus; reserved != "" {
		if l.CpusetCpus != "" {
			b.start.Event(fmt.Sprintf("cpuset_cpus = %q has no effect: the task has the cores %s, because its resources have cores", l.CpusetCpus, reserved))
		}
		b.hostConfig.CpusetCpus = reserved
	}
	if l.CPUHardLimit {
		const minQuota = 1000 // microseconds; the kernel accepts no smaller quota
		quota := int64(r.Linux.PercentTicks*float64(l.CPUCFSPeriod)) * int64(runtime.NumCPU())
		b.hostConfig.CPUPeriod, b.hostConfig.CPUQuota = l.CPUCFSPeriod, max(quota, minQuota)
	}
	return nil
}

func (b *containerBuilder) setDevices() error {
	devices := make([]deviceConfig, 0, len(b.taskConfig.Devices)+len(b.start.Devices))
	for i, d := range b.taskConfig.Devices {
		if d.HostPath == "" {
			return fmt.Errorf("devices: host_path of device %d is empty", i+1)
		}
		if strings.Trim(d.CgroupPermissions, "rwm") != "" {
			return fmt.Errorf("devices: cgroup_permissions of %s is %q; it can have the letters r, w and m", d.HostPath, d.CgroupPermissions)
		}
		// A device that does not exist on this machine can exist on the machine of a remote engine.
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
		b.hostConfig.Devices = append(b.hostConfig.Devices, container.DeviceMapping{
			PathOnHost: d.HostPath, PathInContainer: d.ContainerPath, CgroupPermissions: d.CgroupPermissions,
		})
	}
	return nil
}
