package keeper

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// EnvSocket names the environment variable by which a plugin finds the keeper.
const EnvSocket = "NOMAD_LITE_KEEPER"

var (
	// ErrUnknown means that nobody knows, or can still find out, how a process
	// ended. It is an answer, not a failure: a caller reports it as such.
	ErrUnknown = errors.New("exit status unknown")

	// ErrNotHeld means that the keeper holds nothing under the key.
	ErrNotHeld = errors.New("no descriptor is held under this key")

	// ErrLost means that the keeper died while it worked on the request and
	// that repeating it could do the work twice. After a Spawn that is lost, the
	// child may run: it can be found by the stdio that it was given.
	ErrLost = errors.New("keeper died before it answered")

	// ErrClosed means that the client was closed.
	ErrClosed = errors.New("keeper client is closed")
)

// Command says what Spawn starts.
type Command struct {
	// Name is for error texts, for example the name of the plugin.
	Name string

	// Exec is the file to execute, through its handle, so that nobody can
	// replace it between a check and the start. It does not work for scripts.
	Exec *os.File

	// Path is executed if Exec is nil. "/proc/self/exe" means the program of
	// the client, not that of the keeper.
	Path string

	Args []string // with argv[0]; empty means Path alone
	Env  []string // all of it: nothing is inherited from the keeper
	Dir  string   // working directory; empty means "/"

	// Stdin, Stdout and Stderr become descriptors 0, 1 and 2; nil means
	// /dev/null. Nothing else is inherited. The caller closes its copies.
	Stdin, Stdout, Stderr *os.File

	// Provisional ends the child, and not what it has started, when this client is gone
	// before Confirm: no other client could find it.
	Provisional bool
}

// Status is how a process ended: by itself with ExitCode, or by Signal.
type Status struct {
	ExitCode int
	Signal   int
}

// String returns the status in words.
func (s Status) String() string {
	if s.Signal != 0 {
		return fmt.Sprintf("killed by signal %d (%s)", s.Signal, unix.SignalName(unix.Signal(s.Signal)))
	}
	return fmt.Sprintf("exit code %d", s.ExitCode)
}

// statusOf converts a wait status word, which is also field 52 of
// /proc/<pid>/stat and what a pidfd answers.
func statusOf(word int) Status {
	w := unix.WaitStatus(word)
	if w.Signaled() {
		return Status{Signal: int(w.Signal())}
	}
	return Status{ExitCode: w.ExitStatus()}
}
