package keeperwire

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/framing"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// ProtocolVersion is the version of the messages between keeper and clients. A change of their form or
// meaning needs another version, except in the stable messages:
//
//   - the requests Wait, CancelWait and ListEndedSessionLeaders of a plugin, and their responses: a plugin is
//     linked with the SDK of its own version, and the agent cannot replace it by one of another version;
//   - the request ReplaceProgram of an agent and its response, and the state that a keeper hands to
//     the program that replaces it ([Setup], and keeperserver.handoffState): this is how a keeper of another
//     version is replaced;
//   - the content of the PID file.
//
// Stable messages get further fields only, which a process of another version ignores.
const ProtocolVersion = 3

// MessageLimits limits the size of a message to twice the kernel's limit for arguments and environment.
var MessageLimits = framing.Limits{MaxSize: 4 << 20, MaxDescriptors: MaxMessageFDs}

// MaxMessageFDs is the maximum number of descriptors in one message.
const MaxMessageFDs = 64

// Op is the operation of a request.
type Op string

const (
	OpSpawn               Op = "Spawn"
	OpKeepAfterDisconnect Op = "KeepAfterDisconnect" // the request clears KillOnDisconnect of a child
	OpWait                Op = "Wait"
	OpCancelWait          Op = "CancelWait" // cancels the wait request with the same ID; it has no response itself
	// OpStoreFD makes the keeper store descriptors. While no agent is connected, the keeper resets the connections to a
	// stored socket that listens, after a delay.
	OpStoreFD        Op = "StoreFD"
	OpGetFDs         Op = "GetFDs"
	OpRemoveFD       Op = "RemoveFD"
	OpListFDs        Op = "ListFDs"
	OpGetProgram     Op = "GetProgram"     // the response has a descriptor of the file that the process executes
	OpAdoptProcesses Op = "AdoptProcesses" // the request contains the processes that an earlier keeper has started
	OpSetEphemeral   Op = "SetEphemeral"
	// OpEndWithoutTasks makes the keeper exit once this agent has disconnected and no task runs below the keeper.
	OpEndWithoutTasks Op = "EndWithoutTasks"
	// OpListEndedSessionLeaders returns the session leaders whose exits the keeper has recorded.
	OpListEndedSessionLeaders Op = "ListEndedSessionLeaders"
	// OpListParentProcesses returns the keeper and its spawned processes, if tasks run below them.
	OpListParentProcesses Op = "ListParentProcesses"
	OpReplaceProgram      Op = "ReplaceProgram" // the request contains the program to execute; no response on success
)

// Request is a message from a client.
type Request struct {
	ID      uint64
	Op      Op
	Spawn   *SpawnParams `json:",omitempty"`
	Process osprocess.ID `json:",omitzero"` // in Wait, KeepAfterDisconnect and GetProgram: the process
	// in StoreFD, GetFDs and RemoveFD: one key per descriptor.
	Keys []string `json:",omitempty"`
	// in StoreFD, for each descriptor: whether the keeper reads and drops the data while no agent is connected.
	DrainWithoutAgent []bool         `json:",omitempty"`
	ManagedProcs      []osprocess.ID `json:",omitempty"` // in AdoptProcesses: the processes
	Args              []string       `json:",omitempty"` // in ReplaceProgram: argv
	StartTime         uint64         `json:",omitempty"` // in ListEndedSessionLeaders: the lowest start time of a process
}

// SpawnParams is a keeper.Command without its files. HasExec, HasStdin, HasStdout and HasStderr
// report which files the Command has; the message has the descriptors of these files in this order.
type SpawnParams struct {
	Name      string
	Path      string `json:",omitempty"`
	Args      []string
	Env       []string
	Dir       string `json:",omitempty"`
	HasExec   bool   `json:",omitempty"`
	HasStdin  bool   `json:",omitempty"`
	HasStdout bool   `json:",omitempty"`
	HasStderr bool   `json:",omitempty"`

	KillOnDisconnect bool `json:",omitempty"`
}

// Response is a message from the keeper. The response to GetFDs has descriptors in the order of
// the request's keys.
type Response struct {
	ID    uint64
	Error string `json:",omitempty"`
	// Code identifies an error that the client handles; Error is empty then.
	Code              ResponseCode         `json:",omitempty"`
	Errno             int                  `json:",omitempty"` // the kernel's error number, if a call of the kernel has failed
	Process           osprocess.ID         `json:",omitzero"`  // in the response to Spawn: the started child
	Status            osprocess.ExitStatus `json:",omitzero"`
	Keys              []string             `json:",omitempty"`
	DrainWithoutAgent []bool               `json:",omitempty"`

	ParentProcesses []osprocess.ID `json:",omitempty"`
	EndedProcesses  []EndedProcess `json:",omitempty"`
	Ephemeral       bool           `json:",omitempty"` // in the response to FetchStoredFDKeys: the keeper is ephemeral, see keeper.Config.Ephemeral

	// In the response to ListEndedSessionLeaders: EndedProcesses lacks no session leader that was started after the tick
	// CompleteSince, and that has ended as a child of the keeper, whose pid is KeeperPID.
	CompleteSince uint64 `json:",omitempty"`
	KeeperPID     int    `json:",omitempty"`
}

// ResponseCode is an error that the client handles.
type ResponseCode string

const (
	CodeExitStatusUnknown ResponseCode = "ExitStatusUnknown"
	CodeFDNotStored       ResponseCode = "FDNotStored"
)

// Err returns the error in the response, or nil if the request has succeeded.
func (r *Response) Err() error {
	switch {
	case r.Error == "" && r.Code == "":
		return nil
	case r.Code == CodeExitStatusUnknown:
		return ErrExitStatusUnknown
	case r.Code == CodeFDNotStored:
		return ErrFDNotStored
	case r.Errno != 0:
		return fmt.Errorf("%s: %w", r.Error, unix.Errno(r.Errno))
	}
	return errors.New(r.Error)
}

// ErrExitStatusUnknown means that no process has recorded the exit status of a process,
// which can no longer be determined. It is a valid result, which callers must report as
// "unknown".
var ErrExitStatusUnknown = errors.New("exit status unknown")

// ErrFDNotStored means that the keeper stores no descriptor under the key.
var ErrFDNotStored = errors.New("no descriptor is held under this key")

// EndedProcess is a process whose exit the keeper has recorded.
type EndedProcess struct {
	Process osprocess.ID
	Cgroup  string // path of its last cgroup of version 2, relative to the mount point; empty if it is unknown
}
