package keeper

import (
	"errors"
	"os"
)

// EnvSocket names the environment variable by which a plugin finds the keeper.
const EnvSocket = "NOMAD_LITE_KEEPER"

var (
	// ErrExitStatusUnknown means that the exit status of a process is unknown and cannot be found out.
	// It is a result, not a failure: a caller reports it as such.
	ErrExitStatusUnknown = errors.New("exit status unknown")

	// ErrFDNotStored means that the keeper holds nothing under the key.
	ErrFDNotStored = errors.New("no descriptor is held under this key")

	// ErrKeeperDied means that the keeper died while it worked on the request, and that repeating
	// the request could do the work twice. After a lost Spawn the child may run; the caller
	// can find it by the stdio that it passed.
	ErrKeeperDied = errors.New("keeper died before it answered")

	// ErrClosed means that the client was closed.
	ErrClosed = errors.New("keeper client is closed")
)

// Command describes the process that Spawn starts.
type Command struct {
	// Name is for error texts, for example the name of the plugin.
	Name string

	// HasExec is the file to execute, by its descriptor, so that the file cannot be replaced
	// between a check and the start. Exec does not work for scripts.
	Exec *os.File

	// Path is executed if Exec is nil. "/proc/self/exe" means the client's program, not the
	// keeper's.
	Path string

	Args []string // with argv[0]; empty means Path alone
	Env  []string // the whole environment: the child inherits no variable of the keeper
	Dir  string   // working directory; empty means "/"

	// Stdin, Stdout and Stderr become descriptors 0, 1 and 2; nil means /dev/null. No other
	// descriptor is inherited. The caller closes its copies.
	Stdin, Stdout, Stderr *os.File

	// KillOnDisconnect makes the keeper kill the child, but not the child's descendants, if this
	// client disconnects before Confirm: no other client could find the child.
	KillOnDisconnect bool
}
