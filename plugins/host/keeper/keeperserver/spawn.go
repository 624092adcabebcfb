package keeperserver

import (
	"cmp"
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/safepath"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperwire"
)

// handleSpawn starts a child with the descriptors fds of the request, and does not close fds.
func (se *server) handleSpawn(p *keeperwire.SpawnParams, fds []int) *keeperwire.Response {
	if p == nil {
		return &keeperwire.Response{Error: "spawn: no command"}
	}
	child, err := se.startChild(p, fds)
	if err != nil {
		return responseFromErrorOrNil(fmt.Errorf("spawn %q: %w", p.Name, err))
	}
	return &keeperwire.Response{Process: child}
}

// startChild starts a child of the keeper.
func (se *server) startChild(p *keeperwire.SpawnParams, fds []int) (child osprocess.ID, err error) {
	exec, stdio, err := assignFDs(p, fds)
	if err != nil {
		return osprocess.ID{}, err
	}
	path := p.Path
	if exec >= 0 {
		path = safepath.ProcPath(exec)
	}
	attr := &syscall.ProcAttr{Dir: cmp.Or(p.Dir, "/"), Env: p.Env, Sys: &syscall.SysProcAttr{Setsid: true}}
	if attr.Env == nil {
		attr.Env = []string{}
	}
	null := -1
	for _, fd := range stdio {
		if fd < 0 && null < 0 {
			if null, err = unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
				return osprocess.ID{}, fmt.Errorf("open /dev/null: %w", err)
			}
			defer unix.Close(null)
		}
		if fd < 0 {
			fd = null
		}
		// Programs expect that their stdio blocks, but Go has set O_NONBLOCK for its pipes.
		_ = unix.SetNonblock(fd, false)
		attr.Files = append(attr.Files, uintptr(fd))
	}
	argv := p.Args
	if len(argv) == 0 {
		argv = []string{path}
	}
	keptExec := -1
	if exec >= 0 {
		if keptExec, err = keeperwire.DuplicateFD(exec); err != nil {
			return osprocess.ID{}, fmt.Errorf("duplicate descriptor of the program: %w", err)
		}
		defer func() {
			if err != nil {
				unix.Close(keptExec)
			}
		}()
	}

	se.forkMu.Lock()
	defer se.forkMu.Unlock()
	if se.rejectSpawns {
		return osprocess.ID{}, errors.New("the keeper is ending")
	}
	osprocess.SetOOMScore(se.childOOMScore)
	pid, err := syscall.ForkExec(path, argv, attr)
	osprocess.LowerOOMScoreAgain(se.childOOMScore)
	if err != nil {
		return osprocess.ID{}, err
	}
	if child, err = osprocess.LookupID(pid); err != nil {
		// LookupID failed because /proc cannot be read: the child cannot have been reaped
		// while forkMu is held.
		_ = unix.Kill(pid, unix.SIGKILL)
		return child, fmt.Errorf("read start time of pid %d: %w", pid, err)
	}
	se.mu.Lock()
	defer se.mu.Unlock()
	se.spawnedProcs = append(se.spawnedProcs, child)
	if keptExec >= 0 {
		se.executableFDByProc[child] = keptExec
	}
	return child, nil
}

// assignFDs returns which of the received descriptors is the executable, and which are stdin, stdout and stderr; -1
// means that the request has no such descriptor.
func assignFDs(p *keeperwire.SpawnParams, fds []int) (exec int, stdio []int, err error) {
	announced := [...]bool{p.HasExec, p.HasStdin, p.HasStdout, p.HasStderr}
	assigned := make([]int, len(announced))
	n := 0
	for i, there := range announced {
		assigned[i] = -1
		if there {
			if n < len(fds) {
				assigned[i] = fds[n]
			}
			n++
		}
	}
	if n != len(fds) {
		return -1, nil, fmt.Errorf("%d descriptors came, %d were announced", len(fds), n)
	}
	return assigned[0], assigned[1:], nil
}
