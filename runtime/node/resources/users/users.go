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

// Pool assigns user ids of a range to tasks. Its methods may be called concurrently.
type Pool struct {
	idRange    idrange.Range
	hasAccount func(uint32) bool

	mu            sync.Mutex
	idsByTask     map[Task]uint32
	tasksByID     map[uint32]Task
	nextCandidate uint32 // id at which the next search for a free id starts
}

// NewPool returns a Pool of the ids in a range. It does not assign an id that has an account on
// this machine.
func NewPool(ids idrange.Range) *Pool {
	return &Pool{
		idRange: ids, hasAccount: hasAccount,
		idsByTask: make(map[Task]uint32), tasksByID: make(map[uint32]Task),
		// A random start makes it unlikely that an id which an earlier agent has released is
		// assigned again soon.
		nextCandidate: ids.First + rand.Uint32N(ids.Last-ids.First+1),
	}
}

func hasAccount(id uint32) bool {
	_, err := user.LookupId(strconv.FormatUint(uint64(id), 10))
	return err == nil
}

// Acquire returns the id of a task. If the task has no id, Acquire assigns previous, the id that the task had before. If
// previous is zero or belongs to another task, Acquire assigns the next free id of the range, so that an id is
// reused as late as possible.
func (p *Pool) Acquire(task Task, previous uint32) (uint32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if id, ok := p.idsByTask[task]; ok {
		return id, nil
	}
	if previous != 0 && p.assignLocked(task, previous) {
		return previous, nil
	}
	for range uint64(p.idRange.Last-p.idRange.First) + 1 {
		id := p.nextCandidate
		if p.nextCandidate++; p.nextCandidate > p.idRange.Last || p.nextCandidate == 0 { // 0 after an overflow of uint32
			p.nextCandidate = p.idRange.First
		}
		if _, taken := p.tasksByID[id]; !taken && !p.hasAccount(id) && p.assignLocked(task, id) {
			return id, nil
		}
	}
	return 0, fmt.Errorf("all user ids %d-%d belong to tasks or accounts: set a larger range with client.users.dynamic_user_min and dynamic_user_max", p.idRange.First, p.idRange.Last)
}

// Restore assigns an id that a task had under an earlier agent, unless another task has it.
func (p *Pool) Restore(task Task, id uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.assignLocked(task, id)
}

// assignLocked assigns an id to a task. It returns false if another task has the id.
func (p *Pool) assignLocked(task Task, id uint32) bool {
	if owner, taken := p.tasksByID[id]; taken && owner != task {
		return false
	}
	p.tasksByID[id], p.idsByTask[task] = task, id
	return true
}

// Release makes the id of a task available to other tasks. It does nothing if the task has no id.
func (p *Pool) Release(task Task) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.tasksByID, p.idsByTask[task])
	delete(p.idsByTask, task)
}
