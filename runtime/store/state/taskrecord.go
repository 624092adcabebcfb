package state

import (
	"bytes"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/core/restart"
)

// TaskRecord is the stored form of [record.Fields] without the handles, which do not change while their starts run: each is a
// [HandleRecord] under its start's id. Its lists and maps have pointers, because go-msgpack mixes up values when it decodes a map
// of structs.
type TaskRecord struct {
	HookRecordByName      map[string]*HookRecord `store:"hooks"`
	AllocHookConfigByName map[string]string      `store:"alloc_hooks"`
	StartID               string                 `store:"start_id"`
	HandleStartID         string                 `store:"handle_of"`
	HandleOfFormat1       *HandleRecord          `store:"handle"` // a record of format 1 has its handle inside
	NetworkOverride       *NetworkOverrideRecord `store:"network"`
	HandleUnrecoverable   bool                   `store:"unrecoverable"`
	UnhandledExit         *ProcessExit           `store:"exit"`
	NextStartID           string                 `store:"next_start_id"`
	RestartState          RestartRecord          `store:"restart"`
	RunComplete           bool                   `store:"run_complete"`
	LastEnd               *ProcessExit           `store:"last_end"`
	LastStart             time.Time              `store:"last_start"`

	FirstPendingDestroy   *PendingDestroyRecord `store:"destroy"`
	LastKnownCapabilities *CapabilitiesRecord   `store:"capabilities"`

	RestartRequest           *RestartRequest `store:"restart_request"`
	KillRequested            bool            `store:"killed"`
	ReportedOnceOnlyMessages []string        `store:"reported"`
	ReadVariables            []string        `store:"variables,secret"`

	DeploymentFailure *DeploymentFailureRecord `store:"deployment_failure"`
}

// DeploymentFailureRecord is a [restart.DeploymentFailure]'s stored form.
type DeploymentFailureRecord struct {
	Time         time.Time    `store:"time"`
	DeploymentID string       `store:"deployment"`
	Task         string       `store:"task"`
	Reason       string       `store:"reason"`
	End          *ProcessExit `store:"end"`
}

// Failure returns a record's failure; nil for nil.
func (r *DeploymentFailureRecord) Failure() *restart.DeploymentFailure {
	if r == nil {
		return nil
	}
	return &restart.DeploymentFailure{Time: r.Time, DeploymentID: r.DeploymentID, Task: r.Task, Reason: r.Reason, End: (*restart.RunEnd)(r.End)}
}

// NewDeploymentFailureRecord returns a failure's record; nil for nil.
func NewDeploymentFailureRecord(f *restart.DeploymentFailure) *DeploymentFailureRecord {
	if f == nil {
		return nil
	}
	return &DeploymentFailureRecord{Time: f.Time, DeploymentID: f.DeploymentID, Task: f.Task, Reason: f.Reason, End: (*ProcessExit)(f.End)}
}

// HookRecord is a [record.HookState]'s stored form.
type HookRecord struct {
	AttachmentJSON string            `store:"attachment"`
	PrestartDone   bool              `store:"done"`
	Data           map[string]string `store:"data,secret"`
	Env            map[string]string `store:"env,secret"`
	Mounts         []MountRecord     `store:"mounts"`
	Devices        []DeviceRecord    `store:"devices"`
}

// RestartRequest is a [record.RestartRequest]'s stored form.
type RestartRequest struct {
	CountsAsFailure bool   `store:"failure"`
	Reason          string `store:"reason"`
}

// RestartRecord is a [restart.State]'s stored form.
type RestartRecord struct {
	EndsInWindow int           `store:"count"`
	WindowStart  time.Time     `store:"window_start"`
	NextStart    time.Time     `store:"next_start"`
	Delay        time.Duration `store:"delay"`
}

// ProcessExit is a [restart.RunEnd]'s stored form.
type ProcessExit struct {
	Time                   time.Time `store:"time"`
	StartFailed            bool      `store:"start_failed"`
	StatusUnknown          bool      `store:"lost"`
	Success                bool      `store:"success"`
	RestartRequested       bool      `store:"asked"`
	RestartCountsAsFailure bool      `store:"failure"`
	Stopped                bool      `store:"stopped"`
	ExitCode               int       `store:"code"`
	Signal                 int       `store:"signal"`
	OOMKilled              bool      `store:"oom_killed"`
	Error                  string    `store:"error"`
	RequestReason          string    `store:"request_reason"`
	RunsInRow              int       `store:"runs_in_row"`
	NextStart              time.Time `store:"next_start"`
	OutputStart            time.Time `store:"output_start"`
}

// PendingDestroyRecord is a [record.PendingDestroy]'s stored form.
type PendingDestroyRecord struct {
	StartID                string                `store:"id"`
	HasHandle              bool                  `store:"has_handle"`
	HandleOfFormat1        *HandleRecord         `store:"handle"`
	NotFoundIsInconclusive bool                  `store:"uncertain"`
	Next                   *PendingDestroyRecord `store:"next"`
}

// TaskSecrets are the TaskRecord parts that can contain items of variables: hook results and, in a record of format 1, the task's
// environment.
type TaskSecrets struct {
	HookSecretsByName       map[string]*HookSecrets `store:"hooks,secret"`
	HandleOfFormat1         *HandleSecrets          `store:"handle,secret"`
	PendingDestroyOfFormat1 *HandleSecrets          `store:"destroy,secret"`
	ReadVariables           []string                `store:"variables,secret"`
}

// HookSecrets are a HookRecord's secret parts.
type HookSecrets struct {
	Data stringMap `store:"data,secret"`
	Env  stringMap `store:"env,secret"`
}

// HandleSecrets are a HandleRecord's secret parts.
type HandleSecrets struct {
	Env         stringMap `store:"env,secret"`
	DriverState []byte    `store:"driver_state,secret"` // nil unless the driver's state contains the environment, see containsTaskEnv
}

// NewTaskRecord returns a record's stored form. It shares lists and maps with the record; SplitSecrets does not modify these.
func NewTaskRecord(s record.Fields) *TaskRecord {
	r := &TaskRecord{
		AllocHookConfigByName: s.AllocHookConfigByName, StartID: s.StartID, HandleStartID: s.HandleStartID(), NetworkOverride: (*NetworkOverrideRecord)(s.NetworkOverride),
		HandleUnrecoverable: s.HandleUnrecoverable, UnhandledExit: (*ProcessExit)(s.UnhandledExit), NextStartID: s.NextStartID, RestartState: RestartRecord(s.RestartState), RunComplete: s.RunComplete,
		LastEnd: (*ProcessExit)(s.LastEnd), LastStart: s.LastStart,
		FirstPendingDestroy: newPendingDestroyRecord(s.FirstPendingDestroy), LastKnownCapabilities: (*CapabilitiesRecord)(s.LastKnownCapabilities),
		RestartRequest: (*RestartRequest)(s.RestartRequest), KillRequested: s.KillRequested, ReportedOnceOnlyMessages: s.ReportedOnceOnlyMessages,
		ReadVariables: s.ReadVariables, DeploymentFailure: NewDeploymentFailureRecord(s.DeploymentFailure),
	}
	if s.HookStateByName != nil {
		r.HookRecordByName = make(map[string]*HookRecord, len(s.HookStateByName))
	}
	for name, h := range s.HookStateByName {
		r.HookRecordByName[name] = &HookRecord{
			AttachmentJSON: h.AttachmentJSON, PrestartDone: h.PrestartDone, Data: h.Data, Env: h.Env,
			Mounts: newMountRecords(h.Mounts), Devices: newDeviceRecords(h.Devices),
		}
	}
	return r
}

// Fields returns the record from its stored form. handleOf returns a start's handle, or nil if it is missing or unreadable: then
// the driver must find the task by the start's id.
func (r *TaskRecord) Fields(handleOf func(startID string) *driver.Handle) record.Fields {
	s := record.Fields{
		AllocHookConfigByName: r.AllocHookConfigByName, StartID: r.StartID, Handle: r.HandleOfFormat1.Handle(), NetworkOverride: (*driver.NetworkOverride)(r.NetworkOverride),
		HandleUnrecoverable: r.HandleUnrecoverable, UnhandledExit: (*restart.RunEnd)(r.UnhandledExit), NextStartID: r.NextStartID, RestartState: restart.State(r.RestartState), RunComplete: r.RunComplete,
		LastEnd: (*restart.RunEnd)(r.LastEnd), LastStart: r.LastStart,
		FirstPendingDestroy: r.FirstPendingDestroy.pendingDestroy(handleOf), LastKnownCapabilities: (*driver.Capabilities)(r.LastKnownCapabilities),
		RestartRequest: (*record.RestartRequest)(r.RestartRequest), KillRequested: r.KillRequested, ReportedOnceOnlyMessages: r.ReportedOnceOnlyMessages,
		ReadVariables: r.ReadVariables, DeploymentFailure: r.DeploymentFailure.Failure(),
	}
	if r.HandleStartID != "" {
		s.Handle = handleOf(r.HandleStartID)
	}
	if r.HookRecordByName != nil {
		s.HookStateByName = make(map[string]record.HookState, len(r.HookRecordByName))
	}
	for name, h := range r.HookRecordByName {
		if h != nil {
			s.HookStateByName[name] = record.HookState{
				AttachmentJSON: h.AttachmentJSON, PrestartDone: h.PrestartDone, Data: h.Data, Env: h.Env,
				Mounts: driverMounts(h.Mounts), Devices: driverDevices(h.Devices),
			}
		}
	}
	return s
}

func newPendingDestroyRecord(d *record.PendingDestroy) *PendingDestroyRecord {
	if d == nil {
		return nil
	}
	return &PendingDestroyRecord{StartID: d.StartID, HasHandle: d.Handle != nil, NotFoundIsInconclusive: d.NotFoundIsInconclusive, Next: newPendingDestroyRecord(d.Next)}
}

func (r *PendingDestroyRecord) pendingDestroy(handleOf func(startID string) *driver.Handle) *record.PendingDestroy {
	if r == nil {
		return nil
	}
	d := &record.PendingDestroy{
		StartID: r.StartID, Handle: r.HandleOfFormat1.Handle(), NotFoundIsInconclusive: r.NotFoundIsInconclusive, Next: r.Next.pendingDestroy(handleOf),
	}
	if r.HasHandle {
		d.Handle = handleOf(r.StartID)
		d.NotFoundIsInconclusive = d.NotFoundIsInconclusive || d.Handle == nil // without the handle the driver may not find the task
	}
	return d
}

// allocIDEnvVar is an environment variable set for every task.
const allocIDEnvVar = "NOMAD_ALLOC_ID"

// containsTaskEnv reports whether a driver's state contains the environment of its task, as with many third-party Nomad
// drivers. The state of other drivers is not sealed, because a task with sealed driver state cannot be recovered without the
// key.
func containsTaskEnv(driverState []byte) bool {
	return bytes.Contains(driverState, []byte(allocIDEnvVar))
}

// SplitSecrets removes the secrets from the record and returns them. The result is nil if there are none.
func (r *TaskRecord) SplitSecrets() *TaskSecrets {
	var s TaskSecrets
	for name, h := range r.HookRecordByName {
		if h == nil || h.Data == nil && h.Env == nil {
			continue
		}
		if s.HookSecretsByName == nil {
			s.HookSecretsByName = make(map[string]*HookSecrets)
		}
		s.HookSecretsByName[name] = &HookSecrets{Data: h.Data, Env: h.Env}
		h.Data, h.Env = nil, nil
	}
	s.ReadVariables, r.ReadVariables = r.ReadVariables, nil
	if s.HookSecretsByName == nil && s.ReadVariables == nil {
		return nil
	}
	return &s
}

// SplitSecrets removes the secrets from the record and returns them. The result is nil if there are none.
func (r *HandleRecord) SplitSecrets() *HandleSecrets {
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
	for name, secret := range s.HookSecretsByName {
		if h := r.HookRecordByName[name]; h != nil && secret != nil {
			h.Data, h.Env = secret.Data, secret.Env
		}
	}
	r.ReadVariables = s.ReadVariables
	if s.HandleOfFormat1 != nil && r.HandleOfFormat1 != nil {
		r.HandleOfFormat1.JoinSecrets(*s.HandleOfFormat1)
	}
	if d := r.FirstPendingDestroy; s.PendingDestroyOfFormat1 != nil && d != nil && d.HandleOfFormat1 != nil {
		d.HandleOfFormat1.JoinSecrets(*s.PendingDestroyOfFormat1)
	}
}

// JoinSecrets adds the secrets that SplitSecrets has removed.
func (r *HandleRecord) JoinSecrets(s HandleSecrets) {
	if r.Config != nil {
		r.Config.Env = s.Env
	}
	if s.DriverState != nil {
		r.DriverState = s.DriverState
	}
}
