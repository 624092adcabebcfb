package replica

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// maxPort is the highest TCP and UDP port.
const maxPort = 1<<16 - 1

// Allocation statuses sent by servers.
var (
	desiredStatuses = []string{api.AllocDesiredStatusRun, api.AllocDesiredStatusStop, api.AllocDesiredStatusEvict}
	clientStatuses  = []string{
		api.AllocClientStatusPending, api.AllocClientStatusRunning, api.AllocClientStatusComplete, api.AllocClientStatusFailed,
		api.AllocClientStatusLost, api.AllocClientStatusUnknown,
	}
)

// checkAlloc returns an error, which names the field, if a server's allocation cannot be stored and run: packages that run
// allocations trust the store. old is the stored version, nil if there is none. checkAlloc makes the job canonical, as a server's
// job is.
func (r *Replica) checkAlloc(a *protocol.Allocation, old *api.Allocation) error {
	if path := pathOfNull(reflect.ValueOf(&a.Allocation)); path != "" {
		return fmt.Errorf("field %s is null", path)
	}
	switch {
	case uuid.Validate(a.ID) != nil || len(a.ID) != len(r.config.NodeID): // it is part of paths and cgroup names
		return errors.New("field ID is no UUID")
	case a.NodeID != r.config.NodeID:
		return fmt.Errorf("field NodeID is that of another node, %q", a.NodeID)
	case a.Job == nil:
		return errors.New("field Job is missing")
	case a.Job.ID == nil || *a.Job.ID != a.JobID:
		return fmt.Errorf("field JobID is %q, and Job has another ID", a.JobID)
	case a.AllocatedResources == nil:
		return errors.New("field AllocatedResources is missing: the servers are too old, Nomad 1.7 is the least")
	case !slices.Contains(desiredStatuses, a.DesiredStatus):
		return fmt.Errorf("field DesiredStatus is %q", a.DesiredStatus)
	case !slices.Contains(clientStatuses, a.ClientStatus):
		return fmt.Errorf("field ClientStatus is %q", a.ClientStatus)
	case old != nil && (old.JobID != a.JobID || old.Namespace != a.Namespace || old.TaskGroup != a.TaskGroup):
		return errors.New("field JobID, Namespace or TaskGroup has changed")
	}
	if err := checkResources(a.AllocatedResources); err != nil {
		return fmt.Errorf("field AllocatedResources: %w", err)
	}
	model.Canonicalize(a.Job)
	if *a.Job.Namespace != a.Namespace {
		return fmt.Errorf("field Namespace is %q, and Job has the namespace %q", a.Namespace, *a.Job.Namespace)
	}
	if model.FindGroup(a.Job, a.TaskGroup) == nil {
		return fmt.Errorf("field TaskGroup is %q, and Job has no such group", a.TaskGroup)
	}
	if err := model.ValidateAccepted(a.Job); err != nil {
		return fmt.Errorf("field Job: %w", err)
	}
	return nil
}

// checkResources returns an error if an amount is negative, or a port does not exist.
func checkResources(resources *api.AllocatedResources) error {
	if resources.Shared.DiskMB < 0 {
		return errors.New("the field Shared.DiskMB is negative")
	}
	networks := slices.Clone(resources.Shared.Networks)
	for name, task := range resources.Tasks {
		if task.Cpu.CpuShares < 0 || task.Memory.MemoryMB < 0 || task.Memory.MemoryMaxMB < 0 {
			return fmt.Errorf("the field Tasks[%q] has a negative amount", name)
		}
		networks = append(networks, task.Networks...)
	}
	ports := slices.Clone(resources.Shared.Ports)
	for _, network := range networks {
		for _, p := range slices.Concat(network.ReservedPorts, network.DynamicPorts) {
			ports = append(ports, api.PortMapping{Label: p.Label, Value: p.Value, To: p.To})
		}
	}
	for _, p := range ports {
		if p.Value < 0 || p.Value > maxPort || p.To < -1 || p.To > maxPort { // -1 means the same port as outside
			return fmt.Errorf("port %q has the numbers %d and %d", p.Label, p.Value, p.To)
		}
	}
	return nil
}

// pathOfNull returns the path to a nil pointer in a list or map in v, and "" if there is none. Nomad has no such value.
func pathOfNull(v reflect.Value) string {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			return pathOfNull(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			field := v.Type().Field(i)
			if !field.IsExported() {
				continue
			}
			if path := pathOfNullElement(v.Field(i)); path != "" {
				return field.Name + path
			}
		}
	}
	return ""
}

// pathOfNullElement is pathOfNull for a field, as a suffix of its name.
func pathOfNullElement(v reflect.Value) string {
	element := func(position any, v reflect.Value) string {
		if v.Kind() == reflect.Pointer && v.IsNil() {
			return fmt.Sprintf("[%v]", position)
		}
		if path := pathOfNullElement(v); path != "" {
			return fmt.Sprintf("[%v]%s", position, path)
		}
		return ""
	}
	switch v.Kind() {
	case reflect.Slice:
		if !canHaveNull(v.Type().Elem()) {
			return ""
		}
		for i := range v.Len() {
			if path := element(i, v.Index(i)); path != "" {
				return path
			}
		}
	case reflect.Map:
		if !canHaveNull(v.Type().Elem()) {
			return ""
		}
		for _, key := range v.MapKeys() {
			if path := element(key, v.MapIndex(key)); path != "" {
				return path
			}
		}
	default:
		if path := pathOfNull(v); path != "" {
			return "." + path
		}
	}
	return ""
}

// canHaveNull reports whether a type's values can have nil pointers in lists or maps.
func canHaveNull(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Struct, reflect.Slice, reflect.Map:
		return true
	}
	return false
}

// reject logs a rejected server allocation. If it is not stored, reject also reports it as failed, so that the servers replace
// it. It does so once per index. A stored allocation continues as it is. reject returns false if the servers have not accepted
// the report, so the allocation must be rejected again.
func (r *Replica) reject(ctx context.Context, a fetchedAlloc, index uint64, old *api.Allocation, reason error) (known bool) {
	r.config.Logger.Error("rejected an allocation of a server", "alloc_id", a.ID, "server", a.server, "error", reason)
	if old == nil {
		status := &protocol.AllocStatus{
			ID: a.ID, NodeID: r.config.NodeID, ClientStatus: api.AllocClientStatusFailed,
			ClientDescription: "the node rejects the allocation: " + reason.Error(), TaskStates: map[string]*api.TaskState{},
		}
		if _, err := r.callUpdateAllocs(ctx, []*protocol.AllocStatus{status}); err != nil {
			r.config.Logger.Warn("rejection of an allocation not accepted by the servers", "alloc_id", a.ID, "error", err)
			return false
		}
	}
	r.rejected[a.ID] = index
	return true
}
