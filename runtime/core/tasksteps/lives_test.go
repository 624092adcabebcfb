package tasksteps

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var (
	lives = flag.Int("lives", 100_000, "number of random lives of a task")
	seed  = flag.Uint64("seed", 0, "seed of the random lives; 0 means a random one")
)

// life follows one task life by the agent's promises, independently of the table: it knows only which steps are executed,
// and what they did. The agent may crash after each step; then the next agent begins with what is stored.
type life struct {
	random *rand.Rand
	steps  int
	killed bool

	restored bool // an earlier agent has run the task

	stored    records
	process   process
	exits     int // stored exits
	decisions int // restart policy decisions about stored exits

	agent agent
}

// records is what the task's records contain.
type records struct {
	startID     bool // a start has an id, and no handle
	running     bool // a start has a handle
	exit        bool // the restart policy has not decided about an exit
	nextStartID bool // the start after the exit has an id
	dead        bool
	complete    bool
}

// process is the task's last process.
type process struct {
	mayRun       bool
	mustDestroy  bool // the driver has not destroyed it yet
	destroyTried bool // the driver was asked to destroy it after its exit
}

// agent is what one agent has done since its start.
type agent struct {
	begun, shutdown        bool
	undecidedStart         bool // the driver has not answered whether the earlier agent's start was executed
	startCalled            bool // the driver was asked to start the task, and has not answered whether the start was executed
	mustStoreHandle        bool // the driver has a process, but its handle is not stored
	mustTakeOver           bool // the earlier agent's process was not taken over
	poststart, exitedHooks bool // the hooks were called for the current process

	mayStart        bool // nothing has forbidden the start since the decision to start the task
	beforeStart     int  // completed steps before the start, since that decision
	startCalls      int  // StartTask calls since that decision
	startFailed     bool // the restart policy must decide about a failed start
	mustDie         bool // the task does not start again
	nextStartUnused bool // the agent shuts down between an exit and the next start, which may have a stored id

	mustStop    bool // a kill or a restart request has interrupted the wait for the exit
	stopStep    int  // completed stop steps
	stopFailed  bool // the stop must be repeated
	forceKilled bool

	mustAbandon                  bool // a step had an unknown result
	rerunAwaited, rerunRequested bool
	remainingDestroyed           bool
	stopHooks, shutdownHooks     int
}

var errCrash = errors.New("the agent has crashed")

// run executes one agent's steps until its run ends, it crashes or a promise is broken.
func (l *life) run(mayCrash bool) error {
	l.agent = agent{mustDie: l.stored.dead, mayStart: !l.restored}
	l.agent.undecidedStart = l.stored.startID && !l.stored.exit || l.stored.nextStartID
	step := First(l.restored)
	l.restored = true
	for step != None {
		if l.steps++; l.steps > 4000 {
			return errors.New("the life does not end")
		}
		execute := l.executeAndFollow
		// AbandonTask finds what must be ended, so the life cannot do without its result. For a task with a complete run,
		// MarkDead has no effect.
		if l.random.IntN(60) == 0 && step != AbandonTask && !(step == RecoverTask && l.stored.complete) {
			execute = l.executeWithUnknownResult
		}
		next, err := execute(step)
		if err != nil {
			return fmt.Errorf("%q: %w", step, err)
		}
		l.agent.begun = true
		step = next
		if mayCrash && l.random.IntN(40) == 0 {
			return errCrash
		}
	}
	if l.agent.stopHooks+l.agent.shutdownHooks != 1 {
		return fmt.Errorf("the Stop hooks were called %d times and the Shutdown hooks %d times", l.agent.stopHooks, l.agent.shutdownHooks)
	}
	return nil
}

// executeAndFollow executes a step, and returns the next step for its result.
func (l *life) executeAndFollow(s Step) (Step, error) {
	result, err := l.execute(s)
	if err != nil {
		return None, err
	}
	next, ok := Next(s, result)
	if !ok {
		return None, fmt.Errorf("the result cannot be %q", result)
	}
	return next, nil
}

// executeWithUnknownResult executes a step and returns a result without a row in the table, unless the agent shuts
// down. A stop step does nothing.
func (l *life) executeWithUnknownResult(s Step) (Step, error) {
	a := &l.agent
	next, _ := Next(s, NoResult)
	if next != ForceKill {
		result, err := l.execute(s)
		if err != nil {
			return None, err
		}
		if right, ok := Next(s, result); ok && a.shutdown && result != Done {
			return right, nil
		}
	}
	l.killed = true
	switch next {
	case AbandonTask:
		a.mustAbandon = true
	case ForceKill:
		a.forceKilled = true
	case MarkDead:
		a.mayStart, a.mustDie = false, true
	case DestroyRemaining:
		a.rerunRequested, a.rerunAwaited = false, true
	}
	return next, nil
}

// abandon ends the life after an unknown result: the driver destroys a start without a stored handle, and a process is
// stopped.
func (l *life) abandon() (Result, error) {
	stored, p := &l.stored, &l.process
	if !l.agent.mustAbandon {
		return broken("no step had an unknown result")
	}
	undecided := l.agent.undecidedStart || stored.startID && !stored.exit
	l.agent = agent{begun: true}
	if undecided {
		stored.startID, stored.nextStartID, p.mustDestroy = false, false, true
	}
	switch {
	case stored.exit:
		p.mayRun, p.destroyTried = false, true
		return ExitFound, nil
	case stored.running:
		l.agent.poststart, l.agent.mustStop = true, true
		*p = process{mayRun: true, mustDestroy: true}
		return ProcessFound, nil
	}
	p.mayRun, l.agent.mustDie = false, true
	return Done, nil
}

// interruption returns how a kill or a shutdown interrupts a step, if one does.
func (l *life) interruption() (Result, bool) {
	switch l.random.IntN(30) {
	case 0:
		l.agent.shutdown = true
	case 1, 2:
		l.killed = true
	}
	switch {
	case l.agent.shutdown:
		return AgentShutdown, true
	case l.killed:
		return Killed, true
	}
	return Done, false
}

// isShutDown reports whether a shutdown ends a step that a kill does not end.
func (l *life) isShutDown() bool {
	r, _ := l.interruption()
	return r == AgentShutdown
}

func broken(promise string) (Result, error) { return Done, errors.New(promise) }

// execute does what the task runner does in one step, and returns an error if the step breaks a promise.
func (l *life) execute(s Step) (Result, error) {
	a, stored, p := &l.agent, &l.stored, &l.process
	switch {
	case a.shutdown && s != DropUnusedStartID && s != CallShutdownHooks:
		return broken("a step after the shutdown of the agent")
	case a.stopHooks+a.shutdownHooks > 0:
		return broken("a step after the last hooks")
	case stored.complete && s != RecoverTask && s != DestroyRemaining && s != CallStopHooks && s != CallShutdownHooks:
		return broken("a task whose run is complete continues")
	case s == AbandonTask:
		return l.abandon()
	case a.undecidedStart && s != RecoverTask && s != QueryEarlierStart && s != CallShutdownHooks,
		a.startCalled && s != QueryStart && s != CallShutdownHooks:
		return broken("the driver has not answered whether a start was executed")
	case a.mustStoreHandle && s != StoreHandle:
		return broken("the handle of a process is not stored")
	case a.mustTakeOver && s != TakeOverProcess:
		return broken("a process is not taken over")
	case a.startFailed && s != DecideRestart:
		return broken("no decision about a failed start")
	case a.rerunRequested && s != DecideRerun:
		return broken("no decision about a rerun")
	}
	switch s {
	case RecoverTask:
		return l.recoverTask()
	case QueryEarlierStart:
		return l.queryEarlierStart()
	case TakeOverProcess:
		if !a.mustTakeOver {
			return broken("there is no process of an earlier agent")
		}
		a.mustTakeOver = false
		return Done, nil
	case AwaitRestartDelay, AwaitStartGate, AwaitDriver, CallPrestartHooks, StoreStartID, AwaitPluginTasks, StartTask:
		return l.executeBeforeProcess(s)
	case QueryStart:
		return l.queryStart()
	case StoreHandle:
		if !a.mustStoreHandle || stored.running {
			return broken("no handle to store")
		}
		a.mustStoreHandle, stored.running, stored.startID = false, true, false
		return Done, nil
	case CallPoststartHooks:
		if !stored.running || a.poststart {
			return broken("the Poststart hooks are called once per process and agent")
		}
		a.poststart = true
		return Done, nil
	case AwaitExit:
		if !stored.running || !a.poststart || !p.mayRun || a.mustStop {
			return broken("there is no process, or its Poststart hooks were not called, or it must stop")
		}
		r, is := l.interruption()
		a.mustStop = r == Killed || !is && l.random.IntN(4) == 0
		switch {
		case is:
			return r, nil
		case a.mustStop:
			return RestartRequested, nil
		}
		p.mayRun = false
		return Done, nil
	case CallPreKillingHooks, AwaitShutdownDelay, StopTask, AwaitStopRetry, AwaitExitAfterStop, DestroyWithoutExit, ForceKill:
		return l.executeStop(s)
	case RecordExit:
		if stored.exit || p.mayRun || !p.mustDestroy {
			return broken("no exit to store")
		}
		if l.random.IntN(20) == 0 && l.isShutDown() { // before the records could be stored
			return AgentShutdown, nil
		}
		if a.mustStop {
			return broken("the process must stop")
		}
		stored.exit, stored.running, stored.startID, stored.nextStartID = true, false, false, l.random.IntN(2) == 0 && !l.killed
		l.exits++
		return Done, nil
	case DestroyProcess:
		if !stored.exit || p.destroyTried {
			return broken("the exit is not stored, or the process is destroyed")
		}
		p.destroyTried, p.mustDestroy = true, l.random.IntN(10) == 0
		return Done, nil
	case CallExitedHooks:
		if !stored.exit || a.exitedHooks || !p.destroyTried {
			return broken("no exit, or its process is not destroyed, or the Exited hooks were called for it")
		}
		if l.isShutDown() {
			a.nextStartUnused = true
			return AgentShutdown, nil
		}
		a.exitedHooks = true
		return Done, nil
	case DecideRestart:
		return l.decideRestart()
	case MarkDead:
		if !a.mustDie {
			return broken("the task may start again")
		}
		*stored, a.mustDie = records{dead: true}, false
		return Done, nil
	case AwaitRerun:
		if !stored.dead || a.rerunAwaited || a.mustDie {
			return broken("the task is not dead, or was not asked again for a rerun")
		}
		if l.random.IntN(3) == 0 {
			a.rerunRequested = true
			return RerunRequested, nil
		}
		a.rerunAwaited = true
		if r, is := l.interruption(); is {
			return r, nil
		}
		return NoRerun, nil
	case DecideRerun:
		if !a.rerunRequested {
			return broken("no rerun is requested")
		}
		a.rerunRequested = false
		if l.killed || l.random.IntN(4) == 0 {
			a.rerunAwaited = true
			return NoRestart, nil
		}
		stored.dead = false
		a.mayStart, a.beforeStart, a.startCalls = true, 0, 0
		return Restart, nil
	case DestroyRemaining:
		if !stored.complete && !a.rerunAwaited || a.remainingDestroyed {
			return broken("the allocation may ask for a rerun, or the step is repeated")
		}
		if l.isShutDown() {
			return AgentShutdown, nil
		}
		p.mustDestroy, a.remainingDestroyed = false, true
		return Done, nil
	case CallStopHooks:
		if !a.remainingDestroyed {
			return broken("the driver has not destroyed the last process")
		}
		stored.complete = true
		a.stopHooks++
		return Done, nil
	case DropUnusedStartID:
		if !a.nextStartUnused {
			return broken("the next agent needs the id of the start, or there is none")
		}
		stored.startID, stored.nextStartID, a.nextStartUnused = false, false, false
		return Done, nil
	case CallShutdownHooks:
		if !a.shutdown {
			return broken("the agent does not shut down")
		}
		if a.nextStartUnused {
			return broken("the next agent would ask for a start that was not ordered")
		}
		a.shutdownHooks++
		return Done, nil
	}
	return broken("there is no such step")
}

func (l *life) recoverTask() (Result, error) {
	a, stored := &l.agent, &l.stored
	if a.begun {
		return broken("only the first step of an agent is about an earlier agent")
	}
	switch {
	case l.random.IntN(30) == 0:
		a.shutdown = true
		return AgentShutdown, nil
	case stored.complete:
		return RunComplete, nil
	case stored.dead:
		return TaskDead, nil
	case a.undecidedStart && l.random.IntN(2) == 0:
		return StartUndecided, nil
	}
	return l.decideEarlierStart()
}

func (l *life) queryEarlierStart() (Result, error) {
	if !l.agent.undecidedStart || l.stored.dead {
		return broken("no start is undecided")
	}
	if l.isShutDown() {
		return AgentShutdown, nil
	}
	if !l.killed && l.random.IntN(2) == 0 {
		return NoAnswer, nil
	}
	if l.stored.exit && l.stored.nextStartID && l.random.IntN(4) == 0 { // the policy decides about the exit before the answer, and ends the task
		l.decisions++
		l.stored, l.process.mustDestroy = records{dead: true}, true
		l.agent.undecidedStart, l.agent.mustDie = false, true
		return TaskDead, nil
	}
	r, err := l.decideEarlierStart()
	if r == Done {
		r = NothingExecuted
	}
	return r, err
}

// decideEarlierStart decides about the earlier agent's start, and returns what that agent has left.
func (l *life) decideEarlierStart() (Result, error) {
	a, stored, p := &l.agent, &l.stored, &l.process
	if a.undecidedStart {
		a.undecidedStart, stored.nextStartID = false, false
		if stored.startID { // the driver has the task, or has executed nothing
			stored.running, stored.startID = p.mayRun, false
			if !p.mayRun && p.mustDestroy { // executed, with an unknown exit status
				stored.exit = true
				l.exits++
			}
		}
	}
	switch {
	case stored.exit:
		p.destroyTried = true
		return ExitFound, nil
	case stored.running:
		a.mustTakeOver = true
		p.mustDestroy, p.destroyTried = true, false
		p.mayRun = true // the agent learns about an exit by waiting for it
		return ProcessFound, nil
	}
	a.mayStart = true
	return Done, nil
}

// executeBeforeProcess executes a step between the decision to start the task and the start.
func (l *life) executeBeforeProcess(s Step) (Result, error) {
	a, stored, p := &l.agent, &l.stored, &l.process
	order := []Step{AwaitRestartDelay, AwaitStartGate, AwaitDriver, CallPrestartHooks, StoreStartID, AwaitPluginTasks, StartTask}
	i := slices.Index(order, s)
	if s == AwaitStartGate && a.beforeStart == 0 && !a.begun {
		a.beforeStart = 1 // the first start of a new task has no delay
	}
	switch {
	case p.mayRun:
		return broken("a start beside a process that may run")
	case stored.exit:
		return broken("a start without a decision about the exit")
	case !a.mayStart || a.mustDie || stored.dead:
		return broken("a start without a decision of the restart policy")
	case i != a.beforeStart:
		return broken("a step before the start is missing or repeated")
	case s == StartTask && !stored.startID:
		return broken("a start whose id is not stored")
	}
	if r, is := l.interruption(); is && s != StartTask {
		a.mayStart, a.mustDie, a.nextStartUnused = false, r == Killed, r == AgentShutdown
		return r, nil
	}
	if s != StartTask {
		if i >= 2 && l.random.IntN(8) == 0 {
			l.failStart()
			return Failed, nil
		}
		a.beforeStart++
		switch s {
		case AwaitDriver:
			p.mustDestroy = false // the driver has destroyed an earlier process
		case StoreStartID:
			stored.startID, stored.nextStartID = true, false
		}
		return Done, nil
	}
	if a.startCalls++; a.startCalls > maxStartCalls {
		return broken("a start is repeated too often")
	}
	switch {
	case a.shutdown: // during the call; the driver has executed it or not
		*p = process{mayRun: l.random.IntN(2) == 0}
		p.mustDestroy, a.startCalled = p.mayRun, true
		return AgentShutdown, nil
	case l.killed && l.random.IntN(2) == 0: // the start was destroyed
		*p, stored.startID, a.mayStart, a.mustDie = process{mustDestroy: l.random.IntN(4) == 0}, false, false, true
		return Killed, nil
	case l.random.IntN(8) == 0:
		l.failStart()
		return Failed, nil
	case l.random.IntN(4) == 0:
		*p = process{mayRun: l.random.IntN(2) == 0}
		p.mustDestroy, a.startCalled = p.mayRun, true
		return PluginDied, nil
	}
	*p = process{mayRun: true, mustDestroy: true}
	l.startExecuted()
	a.mustStoreHandle = true
	return Done, nil
}

func (l *life) failStart() {
	l.agent.startFailed, l.agent.mayStart, l.stored.startID = true, false, false
}

func (l *life) startExecuted() {
	a := &l.agent
	a.mayStart, a.poststart, a.exitedHooks, a.startCalled = false, false, false, false
}

// queryStart asks about a start during which the plugin has died.
func (l *life) queryStart() (Result, error) {
	a, stored, p := &l.agent, &l.stored, &l.process
	if !a.startCalled {
		return broken("no start is undecided")
	}
	r, is := l.interruption()
	switch {
	case r == AgentShutdown:
		return r, nil
	case is: // the driver destroys the start, or must destroy it later
		*p, stored.startID, a.startCalled, a.mayStart, a.mustDie = process{mustDestroy: l.random.IntN(4) == 0}, false, false, false, true
		return r, nil
	case l.random.IntN(4) == 0:
		return NoAnswer, nil
	case p.mayRun:
		l.startExecuted()
		if l.random.IntN(3) == 0 {
			p.mayRun = false
			return ExitUnknown, nil
		}
		a.mustStoreHandle = true
		return ProcessFound, nil
	}
	a.startCalled = false
	if a.startCalls == maxStartCalls {
		l.failStart()
		return Failed, nil
	}
	a.beforeStart-- // the driver is awaited again
	return NothingExecuted, nil
}

const maxStartCalls = 2 // StartTask calls per start: fewer than in an agent, so that enough lives reach the last one

// stopOrder has the stop steps executed once, before the steps that may be repeated.
var stopOrder = []Step{CallPreKillingHooks, AwaitShutdownDelay, StopTask}

// executeStop executes a step in stopping a process.
func (l *life) executeStop(s Step) (Result, error) {
	a, p := &l.agent, &l.process
	switch {
	case !a.mustStop || !a.poststart || !l.stored.running:
		return broken("a stop that nobody has requested, or without a process")
	case a.forceKilled != (s == ForceKill):
		return broken("a force kill without its request, or the request without the force kill")
	case s == ForceKill:
		p.mayRun, a.mustStop, a.stopStep, a.stopFailed, a.forceKilled = false, false, 0, false, false
		return Done, nil
	case s == AwaitStopRetry && !a.stopFailed:
		return broken("no stop has failed")
	case slices.Contains(stopOrder, s) && (a.stopStep >= len(stopOrder) || stopOrder[a.stopStep] != s || a.stopFailed),
		(s == AwaitExitAfterStop || s == DestroyWithoutExit) && (a.stopFailed || a.stopStep < len(stopOrder)):
		return broken("a step of the stop is missing or repeated")
	}
	killed := l.killed
	r, _ := l.interruption()
	switch {
	case r == AgentShutdown:
		return r, nil
	case r == Killed && l.random.IntN(8) == 0:
		a.forceKilled = true
		return ForceKilled, nil
	}
	switch s {
	case CallPreKillingHooks, AwaitShutdownDelay:
		if !killed && l.killed && s == AwaitShutdownDelay {
			a.stopStep = 0
			return Killed, nil
		}
		a.stopStep++
	case StopTask:
		if l.random.IntN(4) == 0 {
			a.stopFailed = true
			return []Result{NoAnswer, Failed}[l.random.IntN(2)], nil
		}
		a.stopStep++
	case AwaitStopRetry:
		a.stopFailed = false
		if l.random.IntN(4) == 0 {
			if !l.killed {
				a.mustStop, a.stopStep = false, 0
				return RestartFailed, nil
			}
			a.stopStep++
			return AttemptsUsedUp, nil
		}
	case AwaitExitAfterStop:
		switch l.random.IntN(6) {
		case 0:
			a.stopStep--
			return DriverUnavailable, nil
		case 1:
			a.stopStep++
			return ExitNotReported, nil
		}
		p.mayRun, a.mustStop, a.stopStep = false, false, 0
	case DestroyWithoutExit:
		if a.stopStep != len(stopOrder)+1 {
			return broken("a destroy of a process whose exit may be reported")
		}
		if l.random.IntN(4) == 0 {
			a.stopStep -= 2
			return Failed, nil
		}
		p.mayRun, a.mustStop, a.stopStep = false, false, 0
	}
	return Done, nil
}

func (l *life) decideRestart() (Result, error) {
	a, stored := &l.agent, &l.stored
	switch {
	case l.process.mayRun:
		return broken("a decision about a process that may run")
	case stored.exit && !a.exitedHooks:
		return broken("a decision before the Exited hooks")
	case !stored.exit && !a.startFailed:
		return broken("a decision about nothing")
	}
	if stored.exit {
		l.decisions++
	}
	a.beforeStart, a.startCalls, a.exitedHooks, a.startFailed = 0, 0, false, false
	restart := !l.killed && l.random.IntN(4) > 0
	stored.startID = restart && stored.nextStartID && !l.process.mustDestroy
	stored.exit, stored.nextStartID = false, false
	a.mayStart, a.mustDie, stored.dead = restart, !restart, !restart
	if restart {
		return Restart, nil
	}
	return NoRestart, nil
}

// live lets a task live through some agents. It returns the number of steps, and the first broken promise.
func live(random *rand.Rand) (steps int, err error) {
	l := &life{random: random}
	for {
		err = l.run(l.steps < 300)
		if err != nil && err != errCrash {
			return l.steps, err
		}
		if err == nil && l.stored.complete {
			break
		}
		if l.steps > 200 {
			l.killed = true // a kill ends each life
		}
	}
	if l.exits != l.decisions {
		return l.steps, fmt.Errorf("%d exits, and %d decisions about exits", l.exits, l.decisions)
	}
	return l.steps, nil
}

// In random lives, with kills, shutdowns and agent crashes, the table keeps the agent's promises.
func TestRandomLives(t *testing.T) {
	first := *seed
	if first == 0 {
		first = uint64(time.Now().UnixNano())
	}
	steps := 0
	for i := range *lives {
		n, err := live(rand.New(rand.NewPCG(first+uint64(i), 0)))
		if err != nil {
			t.Fatalf("seed %d: %v", first+uint64(i), err)
		}
		steps += n
	}
	t.Logf("%d lives of %d steps in all, seed %d", *lives, steps, first)
}

// Each change to one table row breaks a promise in some life, so TestRandomLives would find it.
func TestRandomLivesFindEachChangedRow(t *testing.T) {
	original := table
	defer func() { table = original }()
	changed, missed := 0, 0
	for s := RecoverTask; s < stepCount; s++ {
		for r, right := range original[s].next {
			for wrong := None; wrong < stepCount; wrong++ {
				if wrong == right {
					continue
				}
				table = original
				table[s].next = maps.Clone(original[s].next)
				table[s].next[r] = wrong
				changed++
				if !isFound() {
					missed++
					t.Errorf("nothing is broken if %q with the result %q leads to %q and not to %q", s, r, wrong, right)
				}
			}
		}
	}
	t.Logf("%d changed rows, %d not found", changed, missed)
}

func isFound() bool {
	for i := range 20_000 {
		if _, err := live(rand.New(rand.NewPCG(uint64(i), 1))); err != nil {
			return true
		}
	}
	return false
}
