package driverwire

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"math"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/proto/driverpb"
	"github.com/nomad-lite/nomad-lite/plugins/proto/structspb"
)

// The functions with the suffix Proto set every nested message, because existing hosts and
// drivers do not check for nil. The functions with the suffix FromProto accept any missing
// field.

func taskConfigProto(c *driver.TaskConfig) *driverpb.TaskConfig {
	if c == nil {
		return nil
	}
	p := &driverpb.TaskConfig{
		Id:                   c.ID,
		Name:                 c.Name,
		MsgpackDriverConfig:  c.DriverConfig,
		Env:                  c.Env,
		DeviceEnv:            c.DeviceEnv,
		Resources:            resourcesProto(c.Resources),
		User:                 c.User,
		AllocDir:             c.AllocDir,
		StdoutPath:           c.StdoutPath,
		StderrPath:           c.StderrPath,
		TaskGroupName:        c.TaskGroupName,
		JobName:              c.JobName,
		AllocId:              c.AllocID,
		NetworkIsolationSpec: networkIsolationProto(c.NetworkIsolation),
		JobId:                c.JobID,
		Namespace:            c.Namespace,
		NodeName:             c.NodeName,
		NodeId:               c.NodeID,
		ParentJobId:          c.ParentJobID,
	}
	for _, m := range c.Mounts {
		p.Mounts = append(p.Mounts, &driverpb.Mount{
			TaskPath:        m.TaskPath,
			HostPath:        m.HostPath,
			Readonly:        m.Readonly,
			PropagationMode: m.PropagationMode,
			SelinuxLabel:    m.SELinuxLabel,
			RequestName:     m.RequestName,
		})
	}
	for _, d := range c.Devices {
		p.Devices = append(p.Devices, &driverpb.Device{
			TaskPath:          d.TaskPath,
			HostPath:          d.HostPath,
			CgroupPermissions: d.Permissions,
		})
	}
	if c.DNS != nil {
		p.Dns = &driverpb.DNSConfig{Servers: c.DNS.Servers, Searches: c.DNS.Searches, Options: c.DNS.Options}
	}
	return p
}

func taskConfigFromProto(p *driverpb.TaskConfig) *driver.TaskConfig {
	if p == nil {
		return nil
	}
	c := &driver.TaskConfig{
		ID:               p.GetId(),
		Name:             p.GetName(),
		JobName:          p.GetJobName(),
		JobID:            p.GetJobId(),
		ParentJobID:      p.GetParentJobId(),
		TaskGroupName:    p.GetTaskGroupName(),
		Namespace:        p.GetNamespace(),
		NodeName:         p.GetNodeName(),
		NodeID:           p.GetNodeId(),
		AllocID:          p.GetAllocId(),
		DriverConfig:     p.GetMsgpackDriverConfig(),
		Env:              p.GetEnv(),
		DeviceEnv:        p.GetDeviceEnv(),
		User:             p.GetUser(),
		AllocDir:         p.GetAllocDir(),
		StdoutPath:       p.GetStdoutPath(),
		StderrPath:       p.GetStderrPath(),
		Resources:        resourcesFromProto(p.GetResources()),
		NetworkIsolation: networkIsolationFromProto(p.GetNetworkIsolationSpec()),
	}
	for _, m := range p.GetMounts() {
		c.Mounts = append(c.Mounts, driver.Mount{
			TaskPath:        m.GetTaskPath(),
			HostPath:        m.GetHostPath(),
			Readonly:        m.GetReadonly(),
			PropagationMode: m.GetPropagationMode(),
			SELinuxLabel:    m.GetSelinuxLabel(),
			RequestName:     m.GetRequestName(),
		})
	}
	for _, d := range p.GetDevices() {
		c.Devices = append(c.Devices, driver.Device{
			TaskPath:    d.GetTaskPath(),
			HostPath:    d.GetHostPath(),
			Permissions: d.GetCgroupPermissions(),
		})
	}
	if dns := p.GetDns(); dns != nil {
		c.DNS = &driver.DNSConfig{Servers: dns.GetServers(), Searches: dns.GetSearches(), Options: dns.GetOptions()}
	}
	return c
}

// resourcesProto returns a message with all nested messages also for nil, because drivers read limits without a check for
// nil.
func resourcesProto(r *driver.Resources) *driverpb.Resources {
	if r == nil {
		r = &driver.Resources{}
	}
	p := &driverpb.Resources{
		AllocatedResources: &driverpb.AllocatedTaskResources{
			Cpu:    &driverpb.AllocatedCpuResources{CpuShares: r.CPUShares},
			Memory: &driverpb.AllocatedMemoryResources{MemoryMb: r.MemoryMB, MemoryMaxMb: r.MemoryMaxMB},
		},
		LinuxResources: &driverpb.LinuxResources{
			CpuPeriod:        r.Linux.CPUPeriod,
			CpuQuota:         r.Linux.CPUQuota,
			CpuShares:        r.Linux.CPUShares,
			MemoryLimitBytes: r.Linux.MemoryLimitBytes,
			OomScoreAdj:      r.Linux.OOMScoreAdj,
			CpusetCpus:       r.Linux.CpusetCpus,
			PercentTicks:     r.Linux.PercentTicks,
			CpusetCgroup:     r.Linux.CpusetCgroup,
		},
	}
	for _, n := range r.Networks {
		p.AllocatedResources.Networks = append(p.AllocatedResources.Networks, &driverpb.NetworkResource{
			Device:        n.Device,
			Cidr:          n.CIDR,
			Ip:            n.IP,
			Mbits:         n.MBits,
			ReservedPorts: networkPortsProto(n.ReservedPorts),
			DynamicPorts:  networkPortsProto(n.DynamicPorts),
		})
	}
	for _, port := range r.Ports {
		p.Ports = append(p.Ports, &driverpb.PortMapping{Label: port.Label, Value: port.Value, To: port.To, HostIp: port.HostIP})
	}
	return p
}

func resourcesFromProto(p *driverpb.Resources) *driver.Resources {
	if p == nil {
		return nil
	}
	allocated, linux := p.GetAllocatedResources(), p.GetLinuxResources()
	r := &driver.Resources{
		CPUShares:   allocated.GetCpu().GetCpuShares(),
		MemoryMB:    allocated.GetMemory().GetMemoryMb(),
		MemoryMaxMB: allocated.GetMemory().GetMemoryMaxMb(),
		Linux: driver.LinuxResources{
			CPUPeriod:        linux.GetCpuPeriod(),
			CPUQuota:         linux.GetCpuQuota(),
			CPUShares:        linux.GetCpuShares(),
			MemoryLimitBytes: linux.GetMemoryLimitBytes(),
			OOMScoreAdj:      linux.GetOomScoreAdj(),
			CpusetCpus:       linux.GetCpusetCpus(),
			CpusetCgroup:     linux.GetCpusetCgroup(),
			PercentTicks:     linux.GetPercentTicks(),
		},
	}
	for _, n := range allocated.GetNetworks() {
		r.Networks = append(r.Networks, driver.NetworkResource{
			Device:        n.GetDevice(),
			CIDR:          n.GetCidr(),
			IP:            n.GetIp(),
			MBits:         n.GetMbits(),
			ReservedPorts: networkPortsFromProto(n.GetReservedPorts()),
			DynamicPorts:  networkPortsFromProto(n.GetDynamicPorts()),
		})
	}
	for _, port := range p.GetPorts() {
		r.Ports = append(r.Ports, driver.PortMapping{Label: port.GetLabel(), Value: port.GetValue(), To: port.GetTo(), HostIP: port.GetHostIp()})
	}
	return r
}

func networkPortsProto(ports []driver.NetworkPort) []*driverpb.NetworkPort {
	var p []*driverpb.NetworkPort
	for _, port := range ports {
		p = append(p, &driverpb.NetworkPort{Label: port.Label, Value: port.Value})
	}
	return p
}

func networkPortsFromProto(p []*driverpb.NetworkPort) []driver.NetworkPort {
	var ports []driver.NetworkPort
	for _, port := range p {
		ports = append(ports, driver.NetworkPort{Label: port.GetLabel(), Value: port.GetValue()})
	}
	return ports
}

func networkIsolationProto(n *driver.NetworkIsolation) *driverpb.NetworkIsolationSpec {
	if n == nil {
		return nil
	}
	p := &driverpb.NetworkIsolationSpec{
		Mode:   driverpb.NetworkIsolationSpec_NetworkIsolationMode(n.Mode),
		Path:   n.Path,
		Labels: n.Labels,
	}
	if n.Hosts != nil {
		p.HostsConfig = &driverpb.HostsConfig{Hostname: n.Hosts.Hostname, Address: n.Hosts.Address}
	}
	return p
}

func networkIsolationFromProto(p *driverpb.NetworkIsolationSpec) *driver.NetworkIsolation {
	if p == nil {
		return nil
	}
	n := &driver.NetworkIsolation{Mode: driver.NetworkMode(p.GetMode()), Path: p.GetPath(), Labels: p.GetLabels()}
	if hosts := p.GetHostsConfig(); hosts != nil {
		n.Hosts = &driver.HostsConfig{Hostname: hosts.GetHostname(), Address: hosts.GetAddress()}
	}
	return n
}

func handleProto(h *driver.Handle) *driverpb.TaskHandle {
	if h == nil {
		return nil
	}
	return &driverpb.TaskHandle{
		Version:     h.Version,
		Config:      taskConfigProto(h.Config),
		State:       driverpb.TaskState(h.State),
		DriverState: h.DriverState,
	}
}

func handleFromProto(p *driverpb.TaskHandle) *driver.Handle {
	if p == nil {
		return nil
	}
	return &driver.Handle{
		Version:     p.GetVersion(),
		Config:      taskConfigFromProto(p.GetConfig()),
		State:       driver.TaskState(p.GetState()),
		DriverState: p.GetDriverState(),
	}
}

func networkOverrideProto(o *driver.NetworkOverride) (*driverpb.NetworkOverride, error) {
	if o == nil {
		return nil, nil
	}
	p := &driverpb.NetworkOverride{Addr: o.Addr, AutoAdvertise: o.AutoAdvertise}
	if len(o.PortMap) > 0 {
		p.PortMap = make(map[string]int32, len(o.PortMap))
	}
	for label, port := range o.PortMap {
		if port > math.MaxInt32 || port < math.MinInt32 {
			return nil, errors.New("port map out of bounds")
		}
		p.PortMap[label] = int32(port)
	}
	return p, nil
}

func networkOverrideFromProto(p *driverpb.NetworkOverride) *driver.NetworkOverride {
	if p == nil {
		return nil
	}
	o := &driver.NetworkOverride{Addr: p.GetAddr(), AutoAdvertise: p.GetAutoAdvertise()}
	if len(p.GetPortMap()) > 0 {
		o.PortMap = make(map[string]int, len(p.GetPortMap()))
	}
	for label, port := range p.GetPortMap() {
		o.PortMap[label] = int(port)
	}
	return o
}

// exitResultProto converts a driver.ExitResult without Err, for which the message has no field.
func exitResultProto(r *driver.ExitResult) *driverpb.ExitResult {
	if r == nil {
		r = &driver.ExitResult{}
	}
	return &driverpb.ExitResult{ExitCode: int32(r.ExitCode), Signal: int32(r.Signal), OomKilled: r.OOMKilled}
}

// errNoExitResult replaces an exit status that the driver did not send: a missing status is
// not a success.
var errNoExitResult = errors.New("driver sent no exit status")

func exitResultFromProto(p *driverpb.ExitResult) driver.ExitResult {
	if p == nil {
		return driver.ExitResult{Err: errNoExitResult}
	}
	return driver.ExitResult{ExitCode: int(p.GetExitCode()), Signal: int(p.GetSignal()), OOMKilled: p.GetOomKilled()}
}

func waitTaskResponseProto(r *driver.ExitResult) *driverpb.WaitTaskResponse {
	resp := &driverpb.WaitTaskResponse{Result: exitResultProto(r)}
	if r == nil {
		resp.Err = errNoExitResult.Error()
	} else if r.Err != nil {
		resp.Err = r.Err.Error()
	}
	return resp
}

func exitResultOfWaitTask(resp *driverpb.WaitTaskResponse) *driver.ExitResult {
	exitResult := exitResultFromProto(resp.GetResult())
	if resp.GetErr() != "" {
		exitResult.Err = errors.New(resp.GetErr())
	}
	return &exitResult
}

func capabilitiesProto(c *driver.Capabilities) *driverpb.DriverCapabilities {
	if c == nil {
		c = &driver.Capabilities{}
	}
	p := &driverpb.DriverCapabilities{
		SendSignals:          c.SendSignals,
		Exec:                 c.Exec,
		FsIsolation:          driverpb.DriverCapabilities_FSIsolation(c.FSIsolation),
		MustCreateNetwork:    c.MustCreateNetwork,
		MountConfigs:         driverpb.DriverCapabilities_MountConfigs(c.MountConfigs),
		DisableLogCollection: c.DisableLogCollection,
		DynamicWorkloadUsers: c.DynamicWorkloadUsers,
	}
	for _, mode := range c.NetworkIsolationModes {
		p.NetworkIsolationModes = append(p.NetworkIsolationModes, driverpb.NetworkIsolationSpec_NetworkIsolationMode(mode))
	}
	return p
}

func capabilitiesFromProto(p *driverpb.DriverCapabilities) *driver.Capabilities {
	c := &driver.Capabilities{
		SendSignals:          p.GetSendSignals(),
		Exec:                 p.GetExec(),
		FSIsolation:          driver.FSIsolation(p.GetFsIsolation()),
		MustCreateNetwork:    p.GetMustCreateNetwork(),
		MountConfigs:         driver.MountConfigs(p.GetMountConfigs()),
		DisableLogCollection: p.GetDisableLogCollection(),
		DynamicWorkloadUsers: p.GetDynamicWorkloadUsers(),
	}
	if c.FSIsolation < driver.FSIsolationNone || c.FSIsolation > driver.FSIsolationUnveil {
		c.FSIsolation = driver.FSIsolationNone
	}
	for _, mode := range p.GetNetworkIsolationModes() {
		c.NetworkIsolationModes = append(c.NetworkIsolationModes, driver.NetworkMode(mode))
	}
	return c
}

func fingerprintProto(f driver.Fingerprint) (*driverpb.FingerprintResponse, error) {
	p := &driverpb.FingerprintResponse{
		Health:            driverpb.FingerprintResponse_HealthState(f.Health),
		HealthDescription: f.HealthDescription,
	}
	if f.Err != nil {
		p.Err = f.Err.Error()
	}
	if len(f.Attributes) > 0 {
		p.Attributes = make(map[string]*structspb.Attribute, len(f.Attributes))
	}
	for name, a := range f.Attributes {
		attribute, err := basewire.AttributeProto(a.Value, a.Unit)
		if err != nil {
			return nil, fmt.Errorf("fingerprint attribute %q: %w", name, err)
		}
		p.Attributes[name] = attribute
	}
	return p, nil
}

func fingerprintFromProto(p *driverpb.FingerprintResponse) driver.Fingerprint {
	f := driver.Fingerprint{Health: driver.Health(p.GetHealth()), HealthDescription: p.GetHealthDescription()}
	if p.GetErr() != "" {
		f.Err = errors.New(p.GetErr())
	}
	if len(p.GetAttributes()) > 0 {
		f.Attributes = make(map[string]driver.Attribute, len(p.GetAttributes()))
	}
	for name, attribute := range p.GetAttributes() {
		if value := basewire.AttributeValue(attribute); value != nil {
			f.Attributes[name] = driver.Attribute{Value: value, Unit: attribute.GetUnit()}
		}
	}
	return f
}

func taskStatusProto(s *driver.TaskStatus) (*driverpb.InspectTaskResponse, error) {
	if s == nil {
		s = &driver.TaskStatus{}
	}
	override, err := networkOverrideProto(s.NetworkOverride)
	if err != nil {
		return nil, err
	}
	attributes, err := withStartAttribute(s.DriverAttributes, s.StartStatus)
	if err != nil {
		return nil, err
	}
	return &driverpb.InspectTaskResponse{
		Task: &driverpb.TaskStatus{
			Id:          s.ID,
			Name:        s.Name,
			State:       driverpb.TaskState(s.State),
			StartedAt:   timestamppb.New(s.StartedAt),
			CompletedAt: timestamppb.New(s.CompletedAt),
			Result:      exitResultProto(s.ExitResult),
		},
		Driver:          &driverpb.TaskDriverStatus{Attributes: attributes},
		NetworkOverride: override,
	}, nil
}

func taskStatusFromProto(p *driverpb.InspectTaskResponse) *driver.TaskStatus {
	task := p.GetTask()
	s := &driver.TaskStatus{
		ID:               task.GetId(),
		Name:             task.GetName(),
		State:            driver.TaskState(task.GetState()),
		StartedAt:        timeFromProto(task.GetStartedAt()),
		CompletedAt:      timeFromProto(task.GetCompletedAt()),
		DriverAttributes: p.GetDriver().GetAttributes(),
		NetworkOverride:  networkOverrideFromProto(p.GetNetworkOverride()),
	}
	if task.GetResult() != nil {
		exitResult := exitResultFromProto(task.GetResult())
		s.ExitResult = &exitResult
	}
	if value, ok := s.DriverAttributes[startAttribute]; ok {
		delete(s.DriverAttributes, startAttribute) // users see the other attributes
		s.StartStatus = startStatusFromText(value)
	}
	return s
}

// startAttribute is the key of DriverAttributes with the driver.StartStatus. Its value is one of the texts below, or the
// handle of the task: the message of the protocol in base64.
const (
	startAttribute    = "nomad-lite.start"
	startPendingText  = "pending"
	startNotFoundText = "not found"
)

// withStartAttribute returns the attributes with the value of start under the reserved key startAttribute, and without
// a value that the driver's author has set under that key.
func withStartAttribute(attributes map[string]string, start *driver.StartStatus) (map[string]string, error) {
	if _, reserved := attributes[startAttribute]; start == nil && !reserved {
		return attributes, nil
	}
	all := maps.Clone(attributes)
	if all == nil {
		all = make(map[string]string, 1)
	}
	delete(all, startAttribute)
	switch {
	case start == nil:
	case start.Phase == driver.StartPending:
		all[startAttribute] = startPendingText
	case start.Phase == driver.StartNotFound:
		all[startAttribute] = startNotFoundText
	default:
		handle, err := proto.Marshal(handleProto(start.Handle))
		if err != nil {
			return nil, fmt.Errorf("encode the handle of the task: %w", err)
		}
		all[startAttribute] = base64.StdEncoding.EncodeToString(handle)
	}
	return all, nil
}

// startStatusFromText decodes the value of startAttribute. It returns nil for a value that package sdk does not write.
func startStatusFromText(text string) *driver.StartStatus {
	switch text {
	case startPendingText:
		return &driver.StartStatus{Phase: driver.StartPending}
	case startNotFoundText:
		return &driver.StartStatus{Phase: driver.StartNotFound}
	}
	encoded, err := base64.StdEncoding.DecodeString(text)
	handle := &driverpb.TaskHandle{}
	if err != nil || proto.Unmarshal(encoded, handle) != nil || handle.GetVersion() < 1 || handle.GetConfig().GetId() == "" {
		return nil
	}
	return &driver.StartStatus{Phase: driver.StartReturned, Handle: handleFromProto(handle)}
}

// timeFromProto returns the zero time for an absent timestamp and for the timestamp of the
// zero time.
func timeFromProto(p *timestamppb.Timestamp) time.Time {
	if p == nil {
		return time.Time{}
	}
	return p.AsTime()
}

func taskStatsProto(id string, s *driver.TaskStats) *driverpb.TaskStats {
	if s == nil {
		s = &driver.TaskStats{}
	}
	p := &driverpb.TaskStats{
		Id:               id,
		Timestamp:        timestamppb.New(s.Timestamp),
		AggResourceUsage: usageProto(s.Total),
	}
	if len(s.ByPID) > 0 {
		p.ResourceUsageByPid = make(map[string]*driverpb.TaskResourceUsage, len(s.ByPID))
	}
	for pid, usage := range s.ByPID {
		p.ResourceUsageByPid[pid] = usageProto(usage)
	}
	return p
}

func taskStatsFromProto(p *driverpb.TaskStats) *driver.TaskStats {
	s := &driver.TaskStats{Timestamp: timeFromProto(p.GetTimestamp()), Total: usageFromProto(p.GetAggResourceUsage())}
	if len(p.GetResourceUsageByPid()) > 0 {
		s.ByPID = make(map[string]driver.Usage, len(p.GetResourceUsageByPid()))
	}
	for pid, usage := range p.GetResourceUsageByPid() {
		s.ByPID[pid] = usageFromProto(usage)
	}
	return s
}

func usageProto(u driver.Usage) *driverpb.TaskResourceUsage {
	return &driverpb.TaskResourceUsage{
		Cpu: &driverpb.CPUUsage{
			SystemMode:       u.CPU.System,
			UserMode:         u.CPU.User,
			TotalTicks:       u.CPU.TotalTicks,
			ThrottledPeriods: u.CPU.ThrottledPeriods,
			ThrottledTime:    u.CPU.ThrottledTime,
			Percent:          u.CPU.Percent,
			MeasuredFields:   measuredFieldsToProto[driverpb.CPUUsage_Fields](u.CPU.Measured, driver.MeasurableCPUFields()),
		},
		Memory: &driverpb.MemoryUsage{
			Rss:            u.Memory.RSS,
			Cache:          u.Memory.Cache,
			MaxUsage:       u.Memory.MaxUsage,
			KernelUsage:    u.Memory.KernelUsage,
			KernelMaxUsage: u.Memory.KernelMaxUsage,
			Usage:          u.Memory.Usage,
			Swap:           u.Memory.Swap,
			MeasuredFields: measuredFieldsToProto[driverpb.MemoryUsage_Fields](u.Memory.Measured, driver.MeasurableMemoryFields()),
		},
	}
}

func usageFromProto(p *driverpb.TaskResourceUsage) driver.Usage {
	cpu, memory := p.GetCpu(), p.GetMemory()
	return driver.Usage{
		CPU: driver.CPUUsage{
			System:           cpu.GetSystemMode(),
			User:             cpu.GetUserMode(),
			Percent:          cpu.GetPercent(),
			TotalTicks:       cpu.GetTotalTicks(),
			ThrottledPeriods: cpu.GetThrottledPeriods(),
			ThrottledTime:    cpu.GetThrottledTime(),
			Measured:         measuredFieldsFromProto(cpu.GetMeasuredFields(), driver.MeasurableCPUFields()),
		},
		Memory: driver.MemoryUsage{
			RSS:            memory.GetRss(),
			Cache:          memory.GetCache(),
			Swap:           memory.GetSwap(),
			Usage:          memory.GetUsage(),
			MaxUsage:       memory.GetMaxUsage(),
			KernelUsage:    memory.GetKernelUsage(),
			KernelMaxUsage: memory.GetKernelMaxUsage(),
			Measured:       measuredFieldsFromProto(memory.GetMeasuredFields(), driver.MeasurableMemoryFields()),
		},
	}
}

func measuredFieldsToProto[N ~int32](measured, namesByNumber []string) []N {
	var fieldNumbers []N
	for _, name := range measured {
		for n := range namesByNumber {
			if namesByNumber[n] == name {
				fieldNumbers = append(fieldNumbers, N(n))
			}
		}
	}
	return fieldNumbers
}

func measuredFieldsFromProto[N ~int32](numbers []N, namesByNumber []string) []string {
	var fieldNames []string
	for _, n := range numbers {
		if n >= 0 && int(n) < len(namesByNumber) {
			fieldNames = append(fieldNames, namesByNumber[n])
		}
	}
	return fieldNames
}

func taskEventProto(e *driver.TaskEvent) *driverpb.DriverTaskEvent {
	return &driverpb.DriverTaskEvent{
		TaskId:      e.TaskID,
		AllocId:     e.AllocID,
		TaskName:    e.TaskName,
		Timestamp:   timestamppb.New(e.Timestamp),
		Message:     e.Message,
		Annotations: e.Annotations,
	}
}

func taskEventFromProto(p *driverpb.DriverTaskEvent) *driver.TaskEvent {
	return &driver.TaskEvent{
		TaskID:      p.GetTaskId(),
		AllocID:     p.GetAllocId(),
		TaskName:    p.GetTaskName(),
		Timestamp:   timeFromProto(p.GetTimestamp()),
		Message:     p.GetMessage(),
		Annotations: p.GetAnnotations(),
	}
}
