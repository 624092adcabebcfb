package keeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/process"
	"github.com/nomad-lite/nomad-lite/plugins/safepath"
)

// execHandoff is the state that a keeper passes to the program with which it replaces itself: the
// numbers of open descriptors.
type execHandoff struct {
	Listener int `json:"listener"`
	StateFD  int `json:"estate"` // a memory file with a handoffState in JSON
	Lock     int `json:"lock,omitempty"`
	Home     int `json:"home,omitempty"`
}

// handoffState is the state that must survive an exec of another build. Unknown fields come
// from another build and are ignored.
type handoffState struct {
	Held         []storedFDRecord `json:"held,omitempty"`
	ManagedProcs []process.ID     `json:"wards,omitempty"`
	Spawned      []process.ID     `json:"spawned,omitempty"`
	Leaders      []statusRecord   `json:"leaders,omitempty"` // in the order in which they ended
	Others       []statusRecord   `json:"others,omitempty"`
}

type storedFDRecord struct {
	Key   string `json:"key"`
	FD    int    `json:"fd"`
	Drain bool   `json:"drain,omitempty"`
}

type statusRecord struct {
	Process process.ID         `json:"process"`
	Status  process.ExitStatus `json:"status"`
}

// drainDelay is how long a keeper leaves the plugins' stderr to the agent after an exec,
// because the agent is about to reconnect.
const drainDelay = 2 * time.Second

// replace executes another program in place of this one. The children, the listening socket,
// the held descriptors and the recorded statuses are kept. replace returns only on failure,
// and then the keeper continues unchanged. Clients reconnect.
func (k *server) replace(args []string, fds []int) error {
	if len(fds) != 1 || len(args) == 0 {
		return fmt.Errorf("replace keeper: %d descriptors and %d arguments came", len(fds), len(args))
	}
	// Forking, reaping and changes of the state are blocked from here on.
	k.forkMu.Lock()
	defer k.forkMu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closing {
		return errors.New("replace keeper: it is ending")
	}

	var kept []int // descriptors that must survive the exec
	defer func() {
		for _, fd := range kept {
			unix.CloseOnExec(fd)
		}
	}()
	keep := func(fd int) error {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			return err
		}
		kept = append(kept, fd)
		return nil
	}
	socket, err := duplicate(k.endpoint.listener) // File would make the accepting listener blocking
	if err != nil {
		return fmt.Errorf("replace keeper: %w", err)
	}
	defer unix.Close(socket)
	will, err := k.estateLocked().write()
	if err != nil {
		return fmt.Errorf("replace keeper: %w", err)
	}
	defer will.Close()
	next := execHandoff{Listener: socket, StateFD: int(will.Fd())}
	errs := []error{keep(next.Listener), keep(next.StateFD)}
	if k.endpoint.dir != nil {
		next.Lock, next.Home = int(k.endpoint.lock.Fd()), int(k.endpoint.dir.home.Fd())
		errs = append(errs, keep(next.Lock), keep(next.Home))
	}
	for _, h := range k.held {
		errs = append(errs, keep(h.fd))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("replace keeper: keep descriptors open: %w", err)
	}

	s := k.setup
	s.Ephemeral, s.Handoff = k.ephemeral.Load(), &next
	conf, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("replace keeper: %w", err)
	}
	env := append(RuntimeEnv(), envSetup+"="+string(conf), "GOMAXPROCS=1")
	setOOMScore(k.oomScore) // the next program must inherit the original score
	defer protect(k.oomScore)
	err = syscall.Exec(safepath.ProcPath(fds[0]), args, env)
	return fmt.Errorf("replace keeper: execute: %w", err)
}

func (k *server) estateLocked() *handoffState {
	e := &handoffState{ManagedProcs: k.managedProcs, Spawned: k.spawned, Leaders: k.known.leaders.list(), Others: k.known.others.list()}
	for key, h := range k.held {
		e.Held = append(e.Held, storedFDRecord{key, h.fd, h.drain})
	}
	return e
}

// write writes the state into a memory file and rewinds it.
func (e *handoffState) write() (*os.File, error) {
	b, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("keeper estate", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "keeper estate")
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

// take reads the state, and sets close-on-exec on its descriptors, because [closeInherited]
// closes every inherited descriptor without that flag.
func (l *execHandoff) take() (*handoffState, error) {
	if l == nil {
		return &handoffState{}, nil
	}
	f := os.NewFile(uintptr(l.StateFD), "keeper estate")
	defer f.Close()
	e := &handoffState{}
	if err := json.NewDecoder(f).Decode(e); err != nil {
		return nil, fmt.Errorf("read what the keeper before has left: %w", err)
	}
	for _, h := range e.Held {
		unix.CloseOnExec(h.FD)
	}
	return e, nil
}

// restore adds the state to a server that does not run yet.
func (e *handoffState) restore(k *server) {
	k.managedProcs, k.spawned = e.ManagedProcs, e.Spawned
	for _, s := range e.Leaders {
		k.known.add(s.Process, s.Status, true)
	}
	for _, s := range e.Others {
		k.known.add(s.Process, s.Status, false)
	}
	if len(e.Held) == 0 {
		return
	}
	for _, h := range e.Held {
		k.held[h.Key] = &storedFD{fd: h.FD, drain: h.Drain}
	}
	time.AfterFunc(drainDelay, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.agents.connected == 0 {
			k.drainLocked()
		}
	})
}

// list returns the entries, oldest first.
func (r *ring) list() []statusRecord {
	var list []statusRecord
	for i := range r.entries {
		p := r.entries[(r.next+i)%len(r.entries)]
		list = append(list, statusRecord{p, r.byProc[p]})
	}
	return list
}
