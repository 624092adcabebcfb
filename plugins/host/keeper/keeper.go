package keeper

import (
	"errors"
	"os"

	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperwire"
)

// EnvSocket is the name of the environment variable with the path of the keeper's socket,
// which plugins inherit.
const EnvSocket = "NOMAD_LITE_KEEPER"

// EnvDirectoryID is the name of the environment variable with the random id of the agent's data directory, which
// plugins inherit.
const EnvDirectoryID = "NOMAD_LITE_DIRECTORY_ID"

// Errors that are part of the keeper's responses.
var (
	ErrExitStatusUnknown = keeperwire.ErrExitStatusUnknown
	ErrFDNotStored       = keeperwire.ErrFDNotStored
)

var (
	// ErrKeeperDied means that the keeper died before it responded to a request that must
	// not be repeated, such as Spawn. The child may have been started; the caller can find
	// it by the files that it passed as stdio.
	ErrKeeperDied = errors.New("keeper died before it answered")

	// ErrClosed means that the client was closed.
	ErrClosed = errors.New("keeper client is closed")
)

// Command describes the process that Spawn starts.
type Command struct {
	// Name names the process in error texts, for example by the name of the plugin.
	Name string

	// Executable is the file to execute. It is executed by its descriptor, so that the file
	// cannot be replaced between a check and the start. This does not work for scripts.
	Executable *os.File

	// Path is the file to execute if Executable is nil. "/proc/self/exe" means the program of the process
	// that calls Spawn, not that of the keeper.
	Path string

	Args []string // arguments with argv[0]; nil means that argv[0] is Path and that there are no others
	Env  []string // the whole environment: the child inherits no variable of the keeper
	Dir  string   // working directory; empty means "/"

	// Stdin, Stdout and Stderr become descriptors 0, 1 and 2; nil means /dev/null. No other
	// descriptor is inherited. The caller closes its copies.
	Stdin, Stdout, Stderr *os.File

	// KillOnDisconnect makes the keeper kill the child and the other processes in its session, if
	// this client disconnects before it has called KeepProcessAfterDisconnect, because no other client could
	// find the child. Descendants in other sessions continue.
	KillOnDisconnect bool
}

// EndedProcess is a process whose exit the keeper has recorded.
type EndedProcess = keeperwire.EndedProcess
