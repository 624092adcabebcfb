package keeperwire

import "time"

// CommandName is the last argument of the command line of a keeper.
const CommandName = "keeper"

// SetupEnvVar is the variable in which a client passes the setup to the keeper that it starts.
const SetupEnvVar = "NOMAD_LITE_KEEPER_SETUP"

// Descriptors that a client passes to the keeper that it starts.
const (
	ListenerFD = 3 // the socket that listens
	LockFD     = 4 // the file PIDFileName, locked
	DirFD      = 5 // the data directory
)

// Files of a keeper in the data directory. The socket is in a subdirectory, which may be
// removed and created again.
const (
	SocketName = "keeper.sock"
	// LockFileName is the name of a file that is locked while a client starts a keeper, and while a keeper shuts down.
	LockFileName = "keeper.lock"
	// PIDFileName is the name of the file with the keeper's osprocess.ID. The keeper locks the file as long as it runs.
	PIDFileName = "keeper.pid"
	LogFileName = "keeper.log" // stderr of the keeper: empty unless it crashed
)

// Setup is the configuration that a keeper gets at its start. Its JSON format is stable: see
// ProtocolVersion.
type Setup struct {
	Dir         string
	Ephemeral   bool
	IdleTimeout time.Duration
	// Handoff has the descriptors of the keeper that this keeper replaced by execve(2). It is nil in a keeper that
	// a client has started.
	Handoff *Handoff `json:",omitempty"`
}

// Handoff lists the open descriptors that a keeper passes to the program that it executes in its place by
// execve(2). The JSON format is stable: see ProtocolVersion.
type Handoff struct {
	ListenerFD int
	StateFD    int // a memfd with the state of the keeper in JSON
	LockFD     int
	DirFD      int
}
