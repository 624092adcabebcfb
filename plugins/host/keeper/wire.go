package keeper

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/framing"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// protocolVersion is the version of the messages between keeper and clients. A change of their form or
// meaning needs another version, except in the stable messages:
//
//   - the requests Wait, CancelWait and ListEndedSessionLeaders of a plugin, and their responses: a plugin is
//     linked with the SDK of its own version, and the agent cannot replace it by one of another version;
//   - the request ReplaceProgram of an agent and its response, and the state that a keeper hands to
//     the program that replaces it ([keeperSetup], [handoffState]): this is how a keeper of another
//     version is replaced;
//   - the content of the PID file.
//
// Stable messages get further fields only, which a process of another version ignores.
const protocolVersion = 2

// messageLimits limits the size of a message to twice the kernel's limit for arguments and environment.
var messageLimits = framing.Limits{MaxSize: 4 << 20, MaxDescriptors: maxMessageFDs}

const (
	maxMessageFDs   = 64   // maximum number of descriptors in one message
	maxWaitsPerConn = 8192 // maximum number of wait requests without a response per connection
)

// op is the operation of a request.
type op string

const (
	opSpawn               op = "Spawn"
	opKeepAfterDisconnect op = "KeepAfterDisconnect" // the request clears KillOnDisconnect of a child
	opWait                op = "Wait"
	opCancelWait          op = "CancelWait" // cancels the wait request with the same ID; it has no response itself
	opStoreFD             op = "StoreFD"
	opGetFDs              op = "GetFDs"
	opRemoveFD            op = "RemoveFD"
	opListFDs             op = "ListFDs"
	opGetProgram          op = "GetProgram"     // the response has a descriptor of the file that the process executes
	opAdoptProcesses      op = "AdoptProcesses" // the request contains the processes that an earlier keeper has started
	opSetEphemeral        op = "SetEphemeral"
	// opEndWithoutTasks makes the keeper exit once this agent has disconnected and no task runs below the keeper.
	opEndWithoutTasks op = "EndWithoutTasks"
	// opListEndedSessionLeaders returns the session leaders whose exits the keeper has recorded.
	opListEndedSessionLeaders op = "ListEndedSessionLeaders"
	// opListParentProcesses returns the keeper and its spawned processes, if tasks run below them.
	opListParentProcesses op = "ListParentProcesses"
	opReplaceProgram      op = "ReplaceProgram" // the request contains the program to execute; no response on success
)

// request is a message from a client.
type request struct {
	ID      uint64
	Op      op
	Spawn   *spawnParams `json:",omitempty"`
	Process osprocess.ID `json:",omitzero"` // in Wait, KeepAfterDisconnect and GetProgram: the process
	// in StoreFD, GetFDs and RemoveFD: one key per descriptor.
	Keys []string `json:",omitempty"`
	// in StoreFD, for each descriptor: whether the keeper reads and drops the data while no agent is connected.
	DrainWithoutAgent []bool         `json:",omitempty"`
	ManagedProcs      []osprocess.ID `json:",omitempty"` // in AdoptProcesses: the processes
	Args              []string       `json:",omitempty"` // in ReplaceProgram: argv
	StartTime         uint64         `json:",omitempty"` // in ListEndedSessionLeaders: the lowest start time of a process
}

// spawnParams is a Command without its files. HasExec, HasStdin, HasStdout and HasStderr
// report which files the Command has; the message has the descriptors of these files in this order.
type spawnParams struct {
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

// response is a message from the keeper. The response to GetFDs has descriptors in the order of
// the request's keys.
type response struct {
	ID    uint64
	Error string `json:",omitempty"`
	// Code identifies an error that the client handles; Error is empty then.
	Code              responseCode         `json:",omitempty"`
	Errno             int                  `json:",omitempty"` // the kernel's error number, if a call of the kernel has failed
	Process           osprocess.ID         `json:",omitzero"`  // in the response to Spawn: the started child
	Status            osprocess.ExitStatus `json:",omitzero"`
	Keys              []string             `json:",omitempty"`
	DrainWithoutAgent []bool               `json:",omitempty"`

	ParentProcesses []osprocess.ID `json:",omitempty"`
	EndedProcesses  []EndedProcess `json:",omitempty"`
	Ephemeral       bool           `json:",omitempty"` // in the response to FetchStoredFDKeys: the keeper is ephemeral, see Config.Ephemeral
}

// responseCode is an error that the client handles.
type responseCode string

const (
	codeExitStatusUnknown responseCode = "ExitStatusUnknown"
	codeFDNotStored       responseCode = "FDNotStored"
)

// err returns the error in the response, or nil if the request has succeeded.
func (r *response) err() error {
	switch {
	case r.Error == "" && r.Code == "":
		return nil
	case r.Code == codeExitStatusUnknown:
		return ErrExitStatusUnknown
	case r.Code == codeFDNotStored:
		return ErrFDNotStored
	case r.Errno != 0:
		return fmt.Errorf("%s: %w", r.Error, unix.Errno(r.Errno))
	}
	return errors.New(r.Error)
}

// duplicateFile returns a duplicate of the file's descriptor.
func duplicateFile(f syscall.Conn) (int, error) {
	raw, err := f.SyscallConn() // f.Fd() would make the open file blocking, also for other processes
	if err != nil {
		return -1, fmt.Errorf("duplicate descriptor: %w", err)
	}
	fd := -1
	var dupErr error
	err = raw.Control(func(n uintptr) { fd, dupErr = duplicateFD(int(n)) })
	if err = errors.Join(err, dupErr); err != nil {
		return -1, fmt.Errorf("duplicate descriptor: %w", err)
	}
	return fd, nil
}

func duplicateFD(fd int) (int, error) {
	return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
}

// keeperDialer connects a plugin to its keeper. The plugin gets socketPath in its environment. After the first
// connection, dataDirHandle stays open and the socket is looked up in that directory, because the data directory may
// be moved, and another data directory may get the same path.
type keeperDialer struct {
	socketPath    string
	dataDirHandle *os.File // the data directory, opened with O_PATH; nil before the first connection
}

// dial connects to the socket and verifies that the listening process belongs to this user.
func (s *keeperDialer) dial() (*net.UnixConn, error) {
	if s.dataDirHandle != nil {
		return dialInDir(s.dataDirHandle, s.socketPath)
	}
	home, err := openDirHandle(filepath.Dir(filepath.Dir(s.socketPath)))
	if err != nil {
		return nil, err
	}
	conn, err := dialInDir(home, s.socketPath)
	if err != nil {
		home.Close()
		return nil, err
	}
	s.dataDirHandle = home
	return conn, nil
}

// dialInDir connects to the socket whose path, relative to the open directory dataDir, has the last two elements of
// socketPath. The address of a socket is short, and socketPath may be longer.
func dialInDir(dataDir *os.File, socketPath string) (*net.UnixConn, error) {
	name := filepath.Join(filepath.Base(filepath.Dir(socketPath)), filepath.Base(socketPath))
	conn, err := net.DialUnix("unix", nil, unixAddrInDir("unix", dataDir, name))
	if err != nil {
		return nil, err
	}
	if err := osprocess.CheckPeerUser(conn); err != nil {
		conn.Close()
		return nil, fmt.Errorf("keeper socket %s: %w", socketPath, err)
	}
	return conn, nil
}

func (s *keeperDialer) closeDataDir() {
	if s.dataDirHandle != nil {
		s.dataDirHandle.Close()
		s.dataDirHandle = nil
	}
}
