package users

import (
	"fmt"
	"math/rand/v2"
	"os/user"
	"strconv"
	"sync"

	"github.com/nomad-lite/nomad-lite/internal/idrange"
)

// Task identifies a task that can have a user id.
type Task struct{ AllocID, Name string }

// UIDPool assigns user ids from a range to tasks. Its methods may be called concurrently.
type UIDPool struct {
	idRange    idrange.Range
	hasAccount func(uint32) bool

	mu               sync.Mutex
	uidByTask        map[Task]uint32
	taskByUID        map[uint32]Task
	nextCandidateUID uint32 // id at which the next search for a free id starts
}

// NewPool returns a UIDPool for the ids in a range. It does not assign an id with an account on this machine.
func NewPool(ids idrange.Range) *UIDPool {
	return &UIDPool{
		idRange: ids, hasAccount: hasAccount,
		uidByTask: make(map[Task]uint32), taskByUID: make(map[uint32]Task),
		// With a random start, an id released by an earlier agent is unlikely to be assigned again soon.
		nextCandidateUID: ids.First + rand.Uint32N(ids.Last-ids.First+1),
	}
}

func hasAccount(uid uint32) bool {
	_, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
	return err == nil
}

// Acquire returns a task's id. If the task has no id, Acquire assigns previousUID, the task's former id. If
// previousUID is zero or belongs to another task, Acquire assigns the next free id in the range, so that an id is
// reused as late as possible.
func (p *UIDPool) Acquire(task Task, previousUID uint32) (uint32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if id, ok := p.uidByTask[task]; ok {
		return id, nil
	}
	if previousUID != 0 && p.assignUnlessTakenLocked(task, previousUID) {
		return previousUID, nil
	}
	for range uint64(p.idRange.Last-p.idRange.First) + 1 {
		id := p.nextCandidateUID
		if p.nextCandidateUID++; p.nextCandidateUID > p.idRange.Last || p.nextCandidateUID == 0 { // 0 after a uint32 overflow
			p.nextCandidateUID = p.idRange.First
		}
		if _, taken := p.taskByUID[id]; !taken && !p.hasAccount(id) && p.assignUnlessTakenLocked(task, id) {
			return id, nil
		}
	}
	return 0, fmt.Errorf("all user ids %d-%d belong to tasks or accounts: set a larger range with client.users.dynamic_user_min and dynamic_user_max", p.idRange.First, p.idRange.Last)
}

// RestoreUnlessTaken assigns a task's id from an earlier agent, unless another task has it.
func (p *UIDPool) RestoreUnlessTaken(task Task, uid uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.assignUnlessTakenLocked(task, uid)
}

// assignUnlessTakenLocked assigns an id to a task. It returns false if another task has the id.
func (p *UIDPool) assignUnlessTakenLocked(task Task, uid uint32) bool {
	if owner, taken := p.taskByUID[uid]; taken && owner != task {
		return false
	}
	p.taskByUID[uid], p.uidByTask[task] = task, uid
	return true
}

// Release makes a task's id available to other tasks. It does nothing if the task has no id.
func (p *UIDPool) Release(task Task) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.taskByUID, p.uidByTask[task])
	delete(p.uidByTask, task)
}
