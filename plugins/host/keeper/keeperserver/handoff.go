package keeperserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/safepath"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperwire"
)

// handoffState is the state that a keeper passes to another build of the keeper that it executes. The JSON format is
// stable: see keeperwire.ProtocolVersion.
type handoffState struct {
	Version      int // protocol version of the keeper that has written the state
	StoredFDs    []storedFDRecord
	ManagedProcs []osprocess.ID
	SpawnedProcs []osprocess.ID
	Programs     []programFDRecord
	// Both lists of statuses are in the order in which the processes ended.
	SessionLeaderStatuses []exitStatusRecord
	NonLeaderStatuses     []exitStatusRecord
}

type storedFDRecord struct {
	Key               string
	FD                int
	DrainWithoutAgent bool
}

// programFDRecord is the descriptor of the program of a spawned process.
type programFDRecord struct {
	Process osprocess.ID
	FD      int
}

type exitStatusRecord struct {
	Process osprocess.ID
	Status  osprocess.ExitStatus
	Cgroup  string `json:",omitempty"` // see EndedProcess.Cgroup
}

// drainDelay is the time after execNewProgram during which the keeper does not drain the plugins' output, because the
// agent is about to reconnect and to read the output.
const drainDelay = 2 * time.Second

// execNewProgram executes another program in place of this one. The children, the listening socket,
// the stored descriptors and the recorded statuses are kept. execNewProgram returns only on failure,
// and then the keeper continues unchanged. Clients reconnect.
func (se *server) execNewProgram(args []string, programFDs []int) error {
	if len(programFDs) != 1 || len(args) == 0 {
		return fmt.Errorf("replace keeper: %d descriptors and %d arguments came", len(programFDs), len(args))
	}
	// While the locks are held, no goroutine forks, reaps a child or changes the state.
	se.forkMu.Lock()
	defer se.forkMu.Unlock()
	se.mu.Lock()
	defer se.mu.Unlock()
	if se.rejectSpawns {
		return errors.New("replace keeper: it is ending")
	}

	var inheritableFDs []int // descriptors whose close-on-exec flag was cleared
	defer func() {
		for _, fd := range inheritableFDs {
			unix.CloseOnExec(fd)
		}
	}()
	keep := func(fd int) error {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			return err
		}
		inheritableFDs = append(inheritableFDs, fd)
		return nil
	}
	socket, err := keeperwire.DuplicateFile(se.endpoint.listener) // listener.File would make the listening socket blocking
	if err != nil {
		return fmt.Errorf("replace keeper: %w", err)
	}
	defer unix.Close(socket)
	stateFile, err := se.newHandoffStateLocked().writeMemfd()
	if err != nil {
		return fmt.Errorf("replace keeper: %w", err)
	}
	defer stateFile.Close()
	next := keeperwire.Handoff{ListenerFD: socket, StateFD: int(stateFile.Fd()), LockFD: int(se.endpoint.lockedPIDFile.Fd()), DirFD: int(se.endpoint.dataDir.Handle().Fd())}
	errs := []error{keep(next.ListenerFD), keep(next.StateFD), keep(next.LockFD), keep(next.DirFD)}
	for _, h := range se.storedFDByKey {
		errs = append(errs, keep(h.fd))
	}
	for _, fd := range se.executableFDByProc {
		errs = append(errs, keep(fd))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("replace keeper: keep descriptors open: %w", err)
	}

	s := se.setup
	s.Ephemeral, s.Handoff = se.ephemeral.Load(), &next
	conf, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("replace keeper: %w", err)
	}
	env := append(osprocess.GoRuntimeEnv(), keeperwire.SetupEnvVar+"="+string(conf), "GOMAXPROCS=1")
	osprocess.SetOOMScore(se.childOOMScore) // the new program protects itself, and uses the score that it inherits for its children
	defer osprocess.LowerOOMScoreAgain(se.childOOMScore)
	err = syscall.Exec(safepath.ProcPath(programFDs[0]), args, env)
	return fmt.Errorf("replace keeper: execute: %w", err)
}

func (se *server) newHandoffStateLocked() *handoffState {
	e := &handoffState{Version: se.hello.Version, ManagedProcs: se.adoptedProcs, SpawnedProcs: se.spawnedProcs, SessionLeaderStatuses: se.exitStatuses.sessionLeaders.recordsOldestFirst(), NonLeaderStatuses: se.exitStatuses.nonSessionLeaders.recordsOldestFirst()}
	for key, h := range se.storedFDByKey {
		e.StoredFDs = append(e.StoredFDs, storedFDRecord{key, h.fd, h.drainWithoutAgent})
	}
	for p, fd := range se.executableFDByProc {
		e.Programs = append(e.Programs, programFDRecord{p, fd})
	}
	return e
}

// writeMemfd writes the state into a memfd, and sets the offset back to the start of the
// file.
func (ha *handoffState) writeMemfd() (*os.File, error) {
	b, err := json.Marshal(ha)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("keeper state", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "keeper state")
	if _, err := f.Write(b); err != nil {
		f.Close()
		return nil, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// readHandoffState reads the handoffState, and sets close-on-exec on the descriptors in it, because [closeFDsWithoutCloexec]
// closes every inherited descriptor without that flag.
func readHandoffState(ex *keeperwire.Handoff) (*handoffState, error) {
	if ex == nil {
		return &handoffState{}, nil
	}
	f := os.NewFile(uintptr(ex.StateFD), "keeper state")
	defer f.Close()
	e := &handoffState{}
	if err := json.NewDecoder(f).Decode(e); err != nil {
		return nil, fmt.Errorf("read the state of the replaced keeper: %w", err)
	}
	if e.Version == 0 {
		return nil, errors.New("the state of the replaced keeper has no version")
	}
	for _, h := range e.StoredFDs {
		unix.CloseOnExec(h.FD)
	}
	for _, r := range e.Programs {
		unix.CloseOnExec(r.FD)
	}
	return e, nil
}

// restoreTo copies the state to a server whose method run was not called yet.
func (ha *handoffState) restoreTo(k *server) {
	k.adoptedProcs, k.spawnedProcs = ha.ManagedProcs, ha.SpawnedProcs
	for _, r := range ha.Programs {
		k.executableFDByProc[r.Process] = r.FD
	}
	for _, s := range ha.SessionLeaderStatuses {
		k.exitStatuses.add(s.Process, recordedExit{s.Status, s.Cgroup}, true)
	}
	for _, s := range ha.NonLeaderStatuses {
		k.exitStatuses.add(s.Process, recordedExit{status: s.Status}, false)
	}
	if len(ha.StoredFDs) == 0 {
		return
	}
	for _, h := range ha.StoredFDs {
		k.storedFDByKey[h.Key] = newStoredFD(h.FD, h.DrainWithoutAgent)
	}
	time.AfterFunc(drainDelay, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.agentConns.connectedCount == 0 {
			k.startAllDrainsLocked()
		}
	})
}

// recordsOldestFirst returns the recorded statuses, oldest first.
func (r *exitStatusRing) recordsOldestFirst() []exitStatusRecord {
	var list []exitStatusRecord
	for i := range r.processes {
		p := r.processes[(r.oldestIndex+i)%len(r.processes)]
		exit := r.exitByProc[p]
		list = append(list, exitStatusRecord{p, exit.status, exit.cgroup})
	}
	return list
}
