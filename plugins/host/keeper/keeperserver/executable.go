package keeperserver

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperwire"
)

// openExecutableLocked returns a descriptor of the file that the process p executes. p is the keeper itself, or a
// process that the keeper has started from a descriptor; for other processes the response is an error.
func (se *server) openExecutableLocked(p osprocess.ID) ([]int, *keeperwire.Response) {
	fd, err := -1, error(nil)
	held, found := se.executableFDByProc[p]
	switch {
	case p == se.hello.Process:
		fd, err = unix.Open("/proc/self/exe", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	case found:
		fd, err = keeperwire.DuplicateFD(held)
	default:
		return nil, &keeperwire.Response{Code: keeperwire.CodeFDNotStored}
	}
	if err != nil {
		return nil, responseFromErrorOrNil(fmt.Errorf("program of process %d: %w", p.PID, err))
	}
	return []int{fd}, &keeperwire.Response{}
}
