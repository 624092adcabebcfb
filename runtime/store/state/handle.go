package state

import "github.com/nomad-lite/nomad-lite/plugins/driver"

// HandleRecord is a [driver.Handle]'s stored form.
type HandleRecord struct {
	Version     int32             `store:"version"`
	Config      *TaskConfigRecord `store:"config"`
	State       driver.TaskState  `store:"state"`
	DriverState []byte            `store:"driver_state,secret"`
}

// TaskConfigRecord is a [driver.TaskConfig]'s stored form. It is large because the configuration is.
type TaskConfigRecord struct {
	ID            string `store:"id"`
	Name          string `store:"name"`
	JobName       string `store:"job_name"`
	JobID         string `store:"job_id"`
	ParentJobID   string `store:"parent_job_id"`
	TaskGroupName string `store:"task_group_name"`
	Namespace     string `store:"namespace"`
	NodeName      string `store:"node_name"`
	NodeID        string `store:"node_id"`
	AllocID       string `store:"alloc_id"`

	DriverConfig []byte `store:"driver_config,secret"`

	Env       map[string]string `store:"env,secret"`
	DeviceEnv map[string]string `store:"device_env,secret"`
	User      string            `store:"user"`

	AllocDir   string `store:"alloc_dir"`
	StdoutPath string `store:"stdout_path"`
	StderrPath string `store:"stderr_path"`

	Resources        *ResourcesRecord        `store:"resources"`
	Mounts           []MountRecord           `store:"mounts"`
	Devices          []DeviceRecord          `store:"devices"`
	NetworkIsolation *NetworkIsolationRecord `store:"network_isolation"`
	DNS              *DNSRecord              `store:"dns"`
}

// ResourcesRecord is the stored form of [driver.Resources].
type ResourcesRecord struct {
	CPUShares   int64                `store:"cpu_shares"`
	MemoryMB    int64                `store:"memory_mb"`
	MemoryMaxMB int64                `store:"memory_max_mb"`
	Networks    []TaskNetworkRecord  `store:"networks"`
	Linux       LinuxResourcesRecord `store:"linux"`
	Ports       []PortMappingRecord  `store:"ports"`
}

// LinuxResourcesRecord is the stored form of [driver.LinuxResources].
type LinuxResourcesRecord struct {
	CPUPeriod        int64   `store:"cpu_period"`
	CPUQuota         int64   `store:"cpu_quota"`
	CPUShares        int64   `store:"cpu_shares"`
	MemoryLimitBytes int64   `store:"memory_limit_bytes"`
	OOMScoreAdj      int64   `store:"oom_score_adj"`
	CpusetCpus       string  `store:"cpuset_cpus"`
	CpusetCgroup     string  `store:"cpuset_cgroup"`
	PercentTicks     float64 `store:"percent_ticks"`
}

// TaskNetworkRecord is a [driver.NetworkResource]'s stored form.
type TaskNetworkRecord struct {
	Device        string           `store:"device"`
	CIDR          string           `store:"cidr"`
	IP            string           `store:"ip"`
	MBits         int32            `store:"mbits"`
	ReservedPorts []TaskPortRecord `store:"reserved_ports"`
	DynamicPorts  []TaskPortRecord `store:"dynamic_ports"`
}

// TaskPortRecord is a [driver.NetworkPort]'s stored form.
type TaskPortRecord struct {
	Label string `store:"label"`
	Value int32  `store:"value"`
}

// PortMappingRecord is a [driver.PortMapping]'s stored form.
type PortMappingRecord struct {
	Label  string `store:"label"`
	Value  int32  `store:"value"`
	To     int32  `store:"to"`
	HostIP string `store:"host_ip"`
}

// MountRecord is a [driver.Mount]'s stored form.
type MountRecord struct {
	TaskPath        string `store:"task_path"`
	HostPath        string `store:"host_path"`
	Readonly        bool   `store:"readonly"`
	PropagationMode string `store:"propagation_mode"`
	SELinuxLabel    string `store:"selinux_label"`
	RequestName     string `store:"request_name"`
}

// DeviceRecord is a [driver.Device]'s stored form.
type DeviceRecord struct {
	TaskPath    string `store:"task_path"`
	HostPath    string `store:"host_path"`
	Permissions string `store:"permissions"`
}

// NetworkIsolationRecord is a [driver.NetworkIsolation]'s stored form.
type NetworkIsolationRecord struct {
	Mode   driver.NetworkMode `store:"mode"`
	Path   string             `store:"path"`
	Labels map[string]string  `store:"labels"`
	Hosts  *HostsRecord       `store:"hosts"`
}

// HostsRecord is a [driver.HostsConfig]'s stored form.
type HostsRecord struct {
	Hostname string `store:"hostname"`
	Address  string `store:"address"`
}

// DNSRecord is a [driver.DNSConfig]'s stored form.
type DNSRecord struct {
	Servers  []string `store:"servers"`
	Searches []string `store:"searches"`
	Options  []string `store:"options"`
}

// NetworkOverrideRecord is a [driver.NetworkOverride]'s stored form.
type NetworkOverrideRecord struct {
	PortMap       map[string]int `store:"port_map"`
	Addr          string         `store:"addr"`
	AutoAdvertise bool           `store:"auto_advertise"`
}

// CapabilitiesRecord is the stored form of [driver.Capabilities].
type CapabilitiesRecord struct {
	SendSignals           bool                 `store:"send_signals"`
	Exec                  bool                 `store:"exec"`
	FSIsolation           driver.FSIsolation   `store:"fs_isolation"`
	NetworkIsolationModes []driver.NetworkMode `store:"network_isolation_modes"`
	MustCreateNetwork     bool                 `store:"must_create_network"`
	MountConfigs          driver.MountConfigs  `store:"mount_configs"`
	DisableLogCollection  bool                 `store:"disable_log_collection"`
	DynamicWorkloadUsers  bool                 `store:"dynamic_workload_users"`
}

// NewHandleRecord returns a handle's record, nil for nil. The record shares lists and maps with the handle.
func NewHandleRecord(h *driver.Handle) *HandleRecord {
	if h == nil {
		return nil
	}
	return &HandleRecord{Version: h.Version, Config: newTaskConfigRecord(h.Config), State: h.State, DriverState: h.DriverState}
}

// Handle returns a record's handle, nil for nil.
func (r *HandleRecord) Handle() *driver.Handle {
	if r == nil {
		return nil
	}
	return &driver.Handle{Version: r.Version, Config: r.Config.taskConfig(), State: r.State, DriverState: r.DriverState}
}

func newTaskConfigRecord(c *driver.TaskConfig) *TaskConfigRecord {
	if c == nil {
		return nil
	}
	return &TaskConfigRecord{
		ID: c.ID, Name: c.Name, JobName: c.JobName, JobID: c.JobID, ParentJobID: c.ParentJobID,
		TaskGroupName: c.TaskGroupName, Namespace: c.Namespace, NodeName: c.NodeName, NodeID: c.NodeID, AllocID: c.AllocID,
		DriverConfig: c.DriverConfig, Env: c.Env, DeviceEnv: c.DeviceEnv, User: c.User,
		AllocDir: c.AllocDir, StdoutPath: c.StdoutPath, StderrPath: c.StderrPath,
		Resources: newResourcesRecord(c.Resources), Mounts: newMountRecords(c.Mounts), Devices: newDeviceRecords(c.Devices),
		NetworkIsolation: newNetworkIsolationRecord(c.NetworkIsolation), DNS: (*DNSRecord)(c.DNS),
	}
}

func (r *TaskConfigRecord) taskConfig() *driver.TaskConfig {
	if r == nil {
		return nil
	}
	return &driver.TaskConfig{
		ID: r.ID, Name: r.Name, JobName: r.JobName, JobID: r.JobID, ParentJobID: r.ParentJobID,
		TaskGroupName: r.TaskGroupName, Namespace: r.Namespace, NodeName: r.NodeName, NodeID: r.NodeID, AllocID: r.AllocID,
		DriverConfig: r.DriverConfig, Env: r.Env, DeviceEnv: r.DeviceEnv, User: r.User,
		AllocDir: r.AllocDir, StdoutPath: r.StdoutPath, StderrPath: r.StderrPath,
		Resources: r.Resources.resources(), Mounts: driverMounts(r.Mounts), Devices: driverDevices(r.Devices),
		NetworkIsolation: r.NetworkIsolation.networkIsolation(), DNS: (*driver.DNSConfig)(r.DNS),
	}
}

func newResourcesRecord(c *driver.Resources) *ResourcesRecord {
	if c == nil {
		return nil
	}
	return &ResourcesRecord{
		CPUShares: c.CPUShares, MemoryMB: c.MemoryMB, MemoryMaxMB: c.MemoryMaxMB,
		Networks: convertAll(c.Networks, newTaskNetworkRecord),
		Linux:    LinuxResourcesRecord(c.Linux),
		Ports:    convertAll(c.Ports, func(p driver.PortMapping) PortMappingRecord { return PortMappingRecord(p) }),
	}
}

func (r *ResourcesRecord) resources() *driver.Resources {
	if r == nil {
		return nil
	}
	return &driver.Resources{
		CPUShares: r.CPUShares, MemoryMB: r.MemoryMB, MemoryMaxMB: r.MemoryMaxMB,
		Networks: convertAll(r.Networks, TaskNetworkRecord.networkResource),
		Linux:    driver.LinuxResources(r.Linux),
		Ports:    convertAll(r.Ports, func(p PortMappingRecord) driver.PortMapping { return driver.PortMapping(p) }),
	}
}

func newTaskNetworkRecord(n driver.NetworkResource) TaskNetworkRecord {
	toRecord := func(p driver.NetworkPort) TaskPortRecord { return TaskPortRecord(p) }
	return TaskNetworkRecord{
		Device: n.Device, CIDR: n.CIDR, IP: n.IP, MBits: n.MBits,
		ReservedPorts: convertAll(n.ReservedPorts, toRecord), DynamicPorts: convertAll(n.DynamicPorts, toRecord),
	}
}

func (r TaskNetworkRecord) networkResource() driver.NetworkResource {
	toPort := func(p TaskPortRecord) driver.NetworkPort { return driver.NetworkPort(p) }
	return driver.NetworkResource{
		Device: r.Device, CIDR: r.CIDR, IP: r.IP, MBits: r.MBits,
		ReservedPorts: convertAll(r.ReservedPorts, toPort), DynamicPorts: convertAll(r.DynamicPorts, toPort),
	}
}

func newMountRecords(mounts []driver.Mount) []MountRecord {
	return convertAll(mounts, func(m driver.Mount) MountRecord { return MountRecord(m) })
}

func driverMounts(records []MountRecord) []driver.Mount {
	return convertAll(records, func(r MountRecord) driver.Mount { return driver.Mount(r) })
}

func newDeviceRecords(devices []driver.Device) []DeviceRecord {
	return convertAll(devices, func(d driver.Device) DeviceRecord { return DeviceRecord(d) })
}

func driverDevices(records []DeviceRecord) []driver.Device {
	return convertAll(records, func(r DeviceRecord) driver.Device { return driver.Device(r) })
}

func newNetworkIsolationRecord(n *driver.NetworkIsolation) *NetworkIsolationRecord {
	if n == nil {
		return nil
	}
	return &NetworkIsolationRecord{Mode: n.Mode, Path: n.Path, Labels: n.Labels, Hosts: (*HostsRecord)(n.Hosts)}
}

func (r *NetworkIsolationRecord) networkIsolation() *driver.NetworkIsolation {
	if r == nil {
		return nil
	}
	return &driver.NetworkIsolation{Mode: r.Mode, Path: r.Path, Labels: r.Labels, Hosts: (*driver.HostsConfig)(r.Hosts)}
}

// convertAll converts a list's elements. The result is nil for nil.
func convertAll[T, R any](list []T, convert func(T) R) []R {
	if list == nil {
		return nil
	}
	converted := make([]R, len(list))
	for i, element := range list {
		converted[i] = convert(element)
	}
	return converted
}
