package hookwire

import (
	"strings"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/proto/hookpb"
)

// sanitizeUTF8 replaces invalid UTF-8 in a text, which may contain the output of a program, because protobuf rejects
// invalid UTF-8.
func sanitizeUTF8(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

func nodeProto(n hook.Node) *hookpb.Node {
	return &hookpb.Node{Id: n.ID, Name: n.Name, Datacenter: n.Datacenter, Region: n.Region, Class: n.Class, Pool: n.Pool}
}

func nodeFromProto(p *hookpb.Node) hook.Node {
	return hook.Node{
		ID: p.GetId(), Name: p.GetName(), Datacenter: p.GetDatacenter(), Region: p.GetRegion(), Class: p.GetClass(), Pool: p.GetPool(),
	}
}

// requestMetaFromProto returns the RequestMeta of a request.
func requestMetaFromProto(r interface {
	GetToken() string
	GetAttachment() []byte
	GetTraceparent() string
}) hook.RequestMeta {
	return hook.RequestMeta{Token: r.GetToken(), AttachmentJSON: r.GetAttachment(), Traceparent: r.GetTraceparent()}
}

func allocProto(a hook.Alloc) *hookpb.Alloc {
	return &hookpb.Alloc{
		Id: a.ID, Name: a.Name, Namespace: a.Namespace, JobId: a.JobID, JobName: a.JobName, JobType: a.JobType,
		TaskGroup: a.TaskGroup, NodeId: a.NodeID, NodeName: a.NodeName, Meta: a.Meta, Json: a.JSON,
	}
}

func allocFromProto(p *hookpb.Alloc) hook.Alloc {
	return hook.Alloc{
		ID: p.GetId(), Name: p.GetName(), Namespace: p.GetNamespace(), JobID: p.GetJobId(), JobName: p.GetJobName(), JobType: p.GetJobType(),
		TaskGroup: p.GetTaskGroup(), NodeID: p.GetNodeId(), NodeName: p.GetNodeName(), Meta: p.GetMeta(), JSON: p.GetJson(),
	}
}

func taskProto(t hook.Task) *hookpb.Task {
	return &hookpb.Task{
		Name: t.Name, Driver: t.Driver, User: t.User, Lifecycle: t.Lifecycle, Sidecar: t.Sidecar, Leader: t.Leader, Meta: t.Meta,
	}
}

func taskFromProto(p *hookpb.Task) hook.Task {
	return hook.Task{
		Name: p.GetName(), Driver: p.GetDriver(), User: p.GetUser(), Lifecycle: p.GetLifecycle(), Sidecar: p.GetSidecar(), Leader: p.GetLeader(), Meta: p.GetMeta(),
	}
}

func taskDirProto(d hook.TaskDir) *hookpb.TaskDir {
	return &hookpb.TaskDir{
		AllocDir: d.AllocDir, Dir: d.Dir, SharedAllocDir: d.SharedAllocDir, SharedTaskDir: d.SharedTaskDir, LocalDir: d.LocalDir, LogDir: d.LogDir,
		SecretsDir: d.SecretsDir, PrivateDir: d.PrivateDir, MountsAllocDir: d.UnveiledAllocDir, MountsTaskDir: d.UnveiledTaskDir, MountsSecretsDir: d.UnveiledSecretsDir,
	}
}

func taskDirFromProto(p *hookpb.TaskDir) hook.TaskDir {
	return hook.TaskDir{
		AllocDir: p.GetAllocDir(), Dir: p.GetDir(), SharedAllocDir: p.GetSharedAllocDir(), SharedTaskDir: p.GetSharedTaskDir(), LocalDir: p.GetLocalDir(), LogDir: p.GetLogDir(),
		SecretsDir: p.GetSecretsDir(), PrivateDir: p.GetPrivateDir(), UnveiledAllocDir: p.GetMountsAllocDir(), UnveiledTaskDir: p.GetMountsTaskDir(), UnveiledSecretsDir: p.GetMountsSecretsDir(),
	}
}

func resourcesProto(r driver.Resources) *hookpb.Resources {
	p := &hookpb.Resources{
		CpuShares: r.CPUShares, MemoryMb: r.MemoryMB, MemoryMaxMb: r.MemoryMaxMB, CpusetCpus: r.Linux.CpusetCpus, CpusetCgroup: r.Linux.CpusetCgroup,
	}
	for _, port := range r.Ports {
		p.Ports = append(p.Ports, &hookpb.Port{Label: port.Label, Value: port.Value, To: port.To, HostIp: port.HostIP})
	}
	return p
}

func resourcesFromProto(p *hookpb.Resources) driver.Resources {
	r := driver.Resources{
		CPUShares: p.GetCpuShares(), MemoryMB: p.GetMemoryMb(), MemoryMaxMB: p.GetMemoryMaxMb(),
		Linux: driver.LinuxResources{CpusetCpus: p.GetCpusetCpus(), CpusetCgroup: p.GetCpusetCgroup()},
	}
	for _, port := range p.GetPorts() {
		r.Ports = append(r.Ports, driver.PortMapping{Label: port.GetLabel(), Value: port.GetValue(), To: port.GetTo(), HostIP: port.GetHostIp()})
	}
	return r
}

func networkProto(n *driver.NetworkOverride) *hookpb.Network {
	if n == nil {
		return nil
	}
	p := &hookpb.Network{Address: n.Addr, AutoAdvertise: n.AutoAdvertise}
	if len(n.PortMap) > 0 {
		p.PortMap = make(map[string]int32, len(n.PortMap))
	}
	for label, port := range n.PortMap {
		p.PortMap[label] = int32(port)
	}
	return p
}

func networkFromProto(p *hookpb.Network) *driver.NetworkOverride {
	if p == nil {
		return nil
	}
	n := &driver.NetworkOverride{Addr: p.GetAddress(), AutoAdvertise: p.GetAutoAdvertise()}
	if len(p.GetPortMap()) > 0 {
		n.PortMap = make(map[string]int, len(p.GetPortMap()))
	}
	for label, port := range p.GetPortMap() {
		n.PortMap[label] = int(port)
	}
	return n
}

func allocRequestProto(m hook.RequestMeta, a hook.Alloc, env map[string]string) *hookpb.AllocRequest {
	return &hookpb.AllocRequest{Alloc: allocProto(a), Token: m.Token, Attachment: m.AttachmentJSON, Traceparent: m.Traceparent, Env: env}
}

func taskRequestProto(m hook.RequestMeta, a hook.Alloc, t hook.Task, env map[string]string) *hookpb.TaskRequest {
	return &hookpb.TaskRequest{Alloc: allocProto(a), Token: m.Token, Attachment: m.AttachmentJSON, Traceparent: m.Traceparent, Task: taskProto(t), Env: env}
}

func preKillingRequestProto(r hook.TaskPreKillingRequest) *hookpb.TaskRequest {
	p := taskRequestProto(r.RequestMeta, r.Alloc, r.Task, nil)
	p.StartId, p.PreviousState = r.StartID, r.PreviousState
	return p
}

func prestartRequestProto(r hook.TaskPrestartRequest) *hookpb.PrestartRequest {
	return &hookpb.PrestartRequest{
		Alloc: allocProto(r.Alloc), Token: r.Token, Attachment: r.AttachmentJSON, Traceparent: r.Traceparent, Task: taskProto(r.Task), Dir: taskDirProto(r.Dir),
		Env: r.Env, Resources: resourcesProto(r.Resources), PreviousState: r.PreviousState, Running: r.Running,
	}
}

func prestartResponseFromProto(p *hookpb.PrestartResponse) hook.TaskPrestartResponse {
	r := hook.TaskPrestartResponse{Env: p.GetEnv(), State: p.GetState(), Done: p.GetDone()}
	for _, m := range p.GetMounts() {
		r.Mounts = append(r.Mounts, driver.Mount{
			TaskPath: m.GetTaskPath(), HostPath: m.GetHostPath(), Readonly: m.GetReadonly(),
			PropagationMode: m.GetPropagationMode(), SELinuxLabel: m.GetSelinuxLabel(),
		})
	}
	for _, d := range p.GetDevices() {
		r.Devices = append(r.Devices, driver.Device{TaskPath: d.GetTaskPath(), HostPath: d.GetHostPath(), Permissions: d.GetPermissions()})
	}
	return r
}

func prestartResponseProto(r hook.TaskPrestartResponse) *hookpb.PrestartResponse {
	p := &hookpb.PrestartResponse{Env: r.Env, State: r.State, Done: r.Done}
	for _, m := range r.Mounts {
		p.Mounts = append(p.Mounts, &hookpb.Mount{
			TaskPath: m.TaskPath, HostPath: m.HostPath, Readonly: m.Readonly, PropagationMode: m.PropagationMode, SelinuxLabel: m.SELinuxLabel,
		})
	}
	for _, d := range r.Devices {
		p.Devices = append(p.Devices, &hookpb.Device{TaskPath: d.TaskPath, HostPath: d.HostPath, Permissions: d.Permissions})
	}
	return p
}

func poststartRequestProto(r hook.TaskPoststartRequest) *hookpb.PoststartRequest {
	return &hookpb.PoststartRequest{
		Alloc: allocProto(r.Alloc), Token: r.Token, Attachment: r.AttachmentJSON, Traceparent: r.Traceparent, Task: taskProto(r.Task), Dir: taskDirProto(r.Dir),
		Env: r.Env, Network: networkProto(r.Network), Repeated: r.Repeated, StartId: r.StartID, PreviousState: r.PreviousState,
	}
}

func exitedRequestProto(r hook.TaskExitedRequest) *hookpb.ExitedRequest {
	p := &hookpb.ExitedRequest{
		Alloc: allocProto(r.Alloc), Token: r.Token, Attachment: r.AttachmentJSON, Traceparent: r.Traceparent, Task: taskProto(r.Task),
		ExitCode: int32(r.Exit.ExitCode), Signal: int32(r.Exit.Signal), OomKilled: r.Exit.OOMKilled, WillRestart: r.WillRestart,
		StartId: r.StartID, PreviousState: r.PreviousState,
	}
	if r.Exit.Err != nil {
		p.Error = r.Exit.Err.Error()
	}
	return p
}

func stopRequestProto(r hook.TaskStopRequest) *hookpb.StopRequest {
	return &hookpb.StopRequest{
		Alloc: allocProto(r.Alloc), Token: r.Token, Attachment: r.AttachmentJSON, Traceparent: r.Traceparent, Task: taskProto(r.Task), Dir: taskDirProto(r.Dir),
		PreviousState: r.PreviousState,
	}
}
