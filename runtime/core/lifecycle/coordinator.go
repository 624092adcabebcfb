package lifecycle

import (
	"sync"

	"github.com/hashicorp/go-hclog"
)

// Task is one task of the allocation.
type Task struct {
	Name  string
	Stage Stage

	// Dependencies and Rerun are used by an ExtendedGroup; a Coordinator ignores them.
	Dependencies []Dependency // the task's conditions in addition to its stage
	Rerun        RerunPolicy  // when an ephemeral prestart or poststart task runs again
}

// Coordinator holds the phase of one allocation, and one gate per stage. Its
// methods may be called concurrently, and do not block.
type Coordinator struct {
	logger hclog.Logger
	tasks  []Task
	gates  map[Stage]*Gate

	mu    sync.Mutex // mu is locked before a gate's lock
	phase Phase
}

// NewCoordinator returns a coordinator in phase Init, with all gates closed. Task names must be
// unique. The coordinator keeps tasks.
func NewCoordinator(logger hclog.Logger, tasks []Task) *Coordinator {
	c := &Coordinator{logger: logger, tasks: tasks, gates: make(map[Stage]*Gate)}
	for _, t := range tasks {
		if c.gates[t.Stage] == nil {
			c.gates[t.Stage] = new(Gate)
		}
	}
	return c
}

// Gate returns the gate for a stage: its tasks wait there before each start, restarts included. It
// is nil if the allocation has no such task.
func (c *Coordinator) Gate(stage Stage) *Gate { return c.gates[stage] }

// Phase returns the current phase.
func (c *Coordinator) Phase() Phase {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.phase
}

// ObserveTaskStates updates the phase from all tasks' current states, by task name. A missing task
// counts as pending. Callers must pass the snapshots in order, and may omit some.
func (c *Coordinator) ObserveTaskStates(states map[string]State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.enterPhaseLocked(c.phase.Next(c.toStageStates(states)))
}

// ReturnToInit returns to the phase Init and closes all gates. The phase ends when ObserveTaskStates has
// received states in which all tasks are pending. The caller must stop the tasks, and must handle a task
// that does not become pending.
func (c *Coordinator) ReturnToInit() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.enterPhaseLocked(PhaseInit)
}

// Restore determines an allocation's phase after it ran under an earlier agent. It replaces the
// first ObserveTaskStates call, and works even if tasks are not pending.
func (c *Coordinator) Restore(states map[string]State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.enterPhaseLocked(PhasePrestart.Next(c.toStageStates(states)))
}

func (c *Coordinator) toStageStates(states map[string]State) StateSetByStage {
	var stageStates StateSetByStage
	for _, t := range c.tasks {
		stageStates.AddTask(t.Stage, states[t.Name])
	}
	return stageStates
}

func (c *Coordinator) enterPhaseLocked(next Phase) {
	if next == c.phase {
		return
	}
	c.logger.Debug("phase changed", "from", c.phase, "to", next)
	c.phase = next
	for stage, gate := range c.gates {
		gate.SetOpen(next.OpensStage(stage))
	}
}
