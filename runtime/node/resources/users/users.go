package users

import (
	"fmt"
	"math/rand/v2"
	"os/user"
	"strconv"
	"sync"

	"github.com/nomad-lite/nomad-lite/internal/idrange"
)

// Task is the owner of an id.
type Task struct{ AllocID, Name string }

// Pool has the ids that tasks can get. Its methods may be called concurrently.
type Pool struct {
	ids        idrange.Range
	hasAccount func(uint32) bool

	mu     sync.Mutex
	byTask map[Task]uint32
	byID   map[uint32]Task
	next   uint32 // where the search for a free id starts
}

// NewPool returns a Pool of the ids in a range. It does not assign an id that has an account on
// this machine.
func NewPool(ids idrange.Range) *Pool {
	return &Pool{
		ids: ids, hasAccount: hasAccount,
		byTask: make(map[Task]uint32), byID: make(map[uint32]Task),
		// A random start makes it unlikely that an id which an earlier agent has released is
		// assigned again soon.
		next: ids.First + rand.Uint32N(ids.Last-ids.First+1),
	}
}

func hasAccount(id uint32) bool {
	_, err := user.LookupId(strconv.FormatUint(uint64(id), 10))
	return err == nil
}

// Acquire returns the id of a task. A task without an id gets previous, unless that is zero or
// belongs to another task now, and then an id that was not assigned for as long as possible.
func (p *Pool) Acquire(task Task, previous uint32) (uint32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if id, ok := p.byTask[task]; ok {
		return id, nil
	}
	if previous != 0 && p.assignLocked(task, previous) {
		return previous, nil
	}
	for range uint64(p.ids.Last-p.ids.First) + 1 {
		id := p.next
		if p.next++; p.next > p.ids.Last || p.next == 0 {
			p.next = p.ids.First
		}
		if _, taken := p.byID[id]; !taken && !p.hasAccount(id) && p.assignLocked(task, id) {
			return id, nil
		}
	}
	return 0, fmt.Errorf("all user ids %d-%d belong to tasks or accounts: set a larger range with client.users.dynamic_user_min and dynamic_user_max", p.ids.First, p.ids.Last)
}

// Restore assigns an id that a task had under an earlier agent, unless another task has it.
func (p *Pool) Restore(task Task, id uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.assignLocked(task, id)
}

func (p *Pool) assignLocked(task Task, id uint32) bool {
	if owner, taken := p.byID[id]; taken && owner != task {
		return false
	}
	p.byID[id], p.byTask[task] = task, id
	return true
}

// Release makes the id of a task available to other tasks. It does nothing if the task has none.
func (p *Pool) Release(task Task) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.byID, p.byTask[task])
	delete(p.byTask, task)
}
