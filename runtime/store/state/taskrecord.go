package state

import (
	"bytes"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/job/restart"
)

// TaskRecord is the stored form of a [LocalState]. Its lists and maps have pointers, because go-msgpack mixes up the
// values of a map of structs when it decodes.
type TaskRecord struct {
	Hooks         map[string]*HookRecord `store:"hooks"`
	AllocHooks    map[string]string      `store:"alloc_hooks"`
	StartID       string                 `store:"start_id"`
	Handle        *HandleRecord          `store:"handle"`
	Network       *NetworkOverrideRecord `store:"network"`
	Unrecoverable bool                   `store:"unrecoverable"`
	Exit          *ProcessExit           `store:"exit"`
	NextStartID   string                 `store:"next_start_id"`
	Restart       RestartRecord          `store:"restart"`
	RunComplete   bool                   `store:"run_complete"`

	Destroy      *PendingDestroyRecord `store:"destroy"`
	Capabilities *CapabilitiesRecord   `store:"capabilities"`

	RestartRequest *RestartRequest `store:"restart_request"`
	Killed         bool            `store:"killed"`
	Reported       []string        `store:"reported"`
}

// HookRecord is the stored form of a [HookState].
type HookRecord struct {
	Attachment string            `store:"attachment"`
	Done       bool              `store:"done"`
	Data       map[string]string `store:"data,secret"`
	Env        map[string]string `store:"env,secret"`
	Mounts     []MountRecord     `store:"mounts"`
	Devices    []DeviceRecord    `store:"devices"`
}

// RestartRecord is the stored form of a [restart.State].
type RestartRecord struct {
	Count       int           `store:"count"`
	WindowStart time.Time     `store:"window_start"`
	NextStart   time.Time     `store:"next_start"`
	Delay       time.Duration `store:"delay"`
}

// PendingDestroyRecord is the stored form of a [PendingDestroy].
type PendingDestroyRecord struct {
	ID        string                `store:"id"`
	Handle    *HandleRecord         `store:"handle"`
	Uncertain bool                  `store:"uncertain"`
	Next      *PendingDestroyRecord `store:"next"`
}

// TaskSecrets are the parts of a TaskRecord that can contain items of variables: the results of hooks, and the
// environment of the task.
type TaskSecrets struct {
	Hooks   map[string]*HookSecrets `store:"hooks,secret"`
	Handle  *HandleSecrets          `store:"handle,secret"`
	Destroy *HandleSecrets          `store:"destroy,secret"`
}

// HookSecrets are the secret parts of a HookRecord.
type HookSecrets struct {
	Data map[string]string `store:"data,secret"`
	Env  map[string]string `store:"env,secret"`
}

// HandleSecrets are the secret parts of a HandleRecord.
type HandleSecrets struct {
	Env         map[string]string `store:"env,secret"`
	DriverState []byte            `store:"driver_state,secret"` // nil unless the driver's state contains the environment, see containsTaskEnv
}

// NewTaskRecord returns the record of a local state. The record shares lists and maps with the state; SplitSecrets does not
// modify these.
func NewTaskRecord(s LocalState) *TaskRecord {
	r := &TaskRecord{
		AllocHooks: s.AllocHooks, StartID: s.StartID, Handle: NewHandleRecord(s.Handle), Network: (*NetworkOverrideRecord)(s.Network),
		Unrecoverable: s.HandleUnrecoverable, Exit: s.Exit, NextStartID: s.NextStartID, Restart: RestartRecord(s.RestartState), RunComplete: s.RunComplete,
		Destroy: newPendingDestroyRecord(s.FirstPendingDestroy), Capabilities: (*CapabilitiesRecord)(s.Capabilities),
		RestartRequest: s.RestartRequest, Killed: s.KillRequested, Reported: s.ReportedMessages,
	}
	if s.Hooks != nil {
		r.Hooks = make(map[string]*HookRecord, len(s.Hooks))
	}
	for name, h := range s.Hooks {
		r.Hooks[name] = &HookRecord{
			Attachment: h.AttachmentJSON, Done: h.Done, Data: h.Data, Env: h.Env,
			Mounts: newMountRecords(h.Mounts), Devices: newDeviceRecords(h.Devices),
		}
	}
	return r
}

// LocalState returns the local state of a record.
func (r *TaskRecord) LocalState() LocalState {
	s := LocalState{
		AllocHooks: r.AllocHooks, StartID: r.StartID, Handle: r.Handle.Handle(), Network: (*driver.NetworkOverride)(r.Network),
		HandleUnrecoverable: r.Unrecoverable, Exit: r.Exit, NextStartID: r.NextStartID, RestartState: restart.State(r.Restart), RunComplete: r.RunComplete,
		FirstPendingDestroy: r.Destroy.pendingDestroy(), Capabilities: (*driver.Capabilities)(r.Capabilities),
		RestartRequest: r.RestartRequest, KillRequested: r.Killed, ReportedMessages: r.Reported,
	}
	if r.Hooks != nil {
		s.Hooks = make(map[string]HookState, len(r.Hooks))
	}
	for name, h := range r.Hooks {
		if h != nil {
			s.Hooks[name] = HookState{
				AttachmentJSON: h.Attachment, Done: h.Done, Data: h.Data, Env: h.Env,
				Mounts: driverMounts(h.Mounts), Devices: driverDevices(h.Devices),
			}
		}
	}
	return s
}

func newPendingDestroyRecord(d *PendingDestroy) *PendingDestroyRecord {
	if d == nil {
		return nil
	}
	return &PendingDestroyRecord{ID: d.StartID, Handle: NewHandleRecord(d.Handle), Uncertain: d.NotFoundIsInconclusive, Next: newPendingDestroyRecord(d.Next)}
}

func (r *PendingDestroyRecord) pendingDestroy() *PendingDestroy {
	if r == nil {
		return nil
	}
	return &PendingDestroy{StartID: r.ID, Handle: r.Handle.Handle(), NotFoundIsInconclusive: r.Uncertain, Next: r.Next.pendingDestroy()}
}

// allocIDEnvVar is an environment variable that every task has.
const allocIDEnvVar = "NOMAD_ALLOC_ID"

// containsTaskEnv reports whether the state of a driver contains the environment of its task, as with many
// third-party Nomad drivers. The state of other drivers is not sealed, because a task whose driver state is
// sealed cannot be recovered without the key.
func containsTaskEnv(state []byte) bool { return bytes.Contains(state, []byte(allocIDEnvVar)) }

// SplitSecrets removes the secrets from the record and returns them. The result is nil if there are none.
func (r *TaskRecord) SplitSecrets() *TaskSecrets {
	var s TaskSecrets
	for name, h := range r.Hooks {
		if h == nil || h.Data == nil && h.Env == nil {
			continue
		}
		if s.Hooks == nil {
			s.Hooks = make(map[string]*HookSecrets)
		}
		s.Hooks[name] = &HookSecrets{Data: h.Data, Env: h.Env}
		h.Data, h.Env = nil, nil
	}
	s.Handle = r.Handle.splitSecrets()
	if r.Destroy != nil {
		s.Destroy = r.Destroy.Handle.splitSecrets()
	}
	if s.Hooks == nil && s.Handle == nil && s.Destroy == nil {
		return nil
	}
	return &s
}

func (r *HandleRecord) splitSecrets() *HandleSecrets {
	if r == nil {
		return nil
	}
	var s HandleSecrets
	if r.Config != nil {
		s.Env, r.Config.Env = r.Config.Env, nil
	}
	if containsTaskEnv(r.DriverState) {
		s.DriverState, r.DriverState = r.DriverState, nil
	}
	if s.Env == nil && s.DriverState == nil {
		return nil
	}
	return &s
}

// JoinSecrets adds the secrets that SplitSecrets has removed.
func (r *TaskRecord) JoinSecrets(s TaskSecrets) {
	for name, secret := range s.Hooks {
		if h := r.Hooks[name]; h != nil && secret != nil {
			h.Data, h.Env = secret.Data, secret.Env
		}
	}
	r.Handle.joinSecrets(s.Handle)
	if r.Destroy != nil {
		r.Destroy.Handle.joinSecrets(s.Destroy)
	}
}

func (r *HandleRecord) joinSecrets(s *HandleSecrets) {
	if r == nil || s == nil {
		return
	}
	if r.Config != nil {
		r.Config.Env = s.Env
	}
	if s.DriverState != nil {
		r.DriverState = s.DriverState
	}
}
