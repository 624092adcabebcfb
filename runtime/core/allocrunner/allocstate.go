package allocrunner

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskrunner"
	"github.com/nomad-lite/nomad-lite/runtime/job/health"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// allocState contains all allocation data that any goroutine may read or change, except for task states. Its methods may
// be called concurrently. They call no other part of the runner and hold the lock only briefly; a change that must be
// reconciled requests a reconcile. Only waitForShutdownDelay blocks.
type allocState struct {
	groupDNS *api.DNSConfig // the group's dns block

	reconcileRequested  chan struct{}        // contains a value while a reconcile is requested; capacity 1
	nextAlloc           chan *api.Allocation // contains the newest version until it is applied; capacity 1
	stopVersionReceived chan struct{}        // closed on receiving a version that stops the allocation, before it is applied
	stopRequested       chan struct{}        // closed by the first requestStop or requestForceKill
	shutdownDelayEnded  chan struct{}        // closed by the first endShutdownDelay

	mu             sync.Mutex
	alloc          *api.Allocation                // current version
	reconcileDone  chan struct{}                  // closed by the next reconcile; nil if no goroutine waits for it
	createdNetwork *state.AllocNetwork            // created network; nil before, and if the tasks use the host's network
	override       statusOverride                 // permanently set status; the zero value if none was set
	recordedHealth *model.DeploymentHealth        // the allocation's health; nil until known
	hookReports    map[hookAttachment]health.Hook // hook reports about the current version's health
	hookChain      *hooks.Chain                   // the allocation's hooks; nil until attached
	pluginHooks    []attachedPluginHook           // plugin hooks of the allocation and its tasks
	stopReason     stopReason                     // set before stopRequested is closed
	forceKilled    bool                           // requestForceKill was called

	// These fields are nil outside Run. The context is a field because it belongs to Run and not to the callers of
	// requests that it cancels. The function cancels the contexts from newRunContexts according to stopRequested and
	// forceKilled; the caller must hold the lock.
	untilShutdown context.Context
	cancelStopped func()
}

// hookAttachment identifies a task's or the allocation's hook.
type hookAttachment struct {
	hook string
	task string // "" for the allocation
}

// attachedPluginHook is a task's or the allocation's plugin hook.
type attachedPluginHook struct {
	hooks.Hook
	task string // "" for the allocation
	// taskCanEndEarly means the task need not run when the allocation is healthy.
	taskCanEndEarly bool
}

// statusOverride is a client status with precedence over the task states.
type statusOverride struct {
	status, description string
}

func newAllocState(alloc *api.Allocation) *allocState {
	return &allocState{
		groupDNS:           groupDNS(alloc.GetTaskGroup()),
		reconcileRequested: make(chan struct{}, 1), nextAlloc: make(chan *api.Allocation, 1),
		stopVersionReceived: make(chan struct{}), stopRequested: make(chan struct{}), shutdownDelayEnded: make(chan struct{}),
		alloc: alloc,
	}
}

// requestReconcile requests a reconcile after a task or the allocation has changed. Several requests may lead to one
// reconcile.
func (s *allocState) requestReconcile() {
	wait.Notify(s.reconcileRequested)
}

// nextReconcileDone returns a channel that is closed when the next reconcile ends.
func (s *allocState) nextReconcileDone() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reconcileDone == nil {
		s.reconcileDone = make(chan struct{})
	}
	return s.reconcileDone
}

// wakeReconcileWaiters closes the channel returned by nextReconcileDone.
func (s *allocState) wakeReconcileWaiters() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reconcileDone != nil {
		close(s.reconcileDone)
		s.reconcileDone = nil
	}
}

// currentAlloc returns the allocation's current version.
func (s *allocState) currentAlloc() *api.Allocation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.alloc
}

// setAlloc replaces the allocation's current version. Hook reports about another deployment's health no longer count.
func (s *allocState) setAlloc(alloc *api.Allocation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if alloc.DeploymentID != s.alloc.DeploymentID {
		s.hookReports = nil
	}
	s.alloc = alloc
}

// putNextAlloc makes alloc the next version to apply, unless a newer version is already waiting.
func (s *allocState) putNextAlloc(alloc *api.Allocation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if alloc.ServerTerminalStatus() {
		wait.CloseUnlessClosed(s.stopVersionReceived)
	}
	select {
	case waiting := <-s.nextAlloc:
		if waiting.AllocModifyIndex > alloc.AllocModifyIndex {
			alloc = waiting
		}
	default:
	}
	s.nextAlloc <- alloc // does not block, because the channel is empty and only holders of the lock send
}

// setNetwork sets the network created for the allocation, nil if its tasks use the host's network. It returns the tasks'
// DNS settings.
func (s *allocState) setNetwork(created *state.AllocNetwork) (taskDNS *driver.DNSConfig) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.createdNetwork = created
	return mergeTaskDNS(s.groupDNS, created)
}

// networkStatus returns the allocation's network as clients see it.
func (s *allocState) networkStatus() *api.AllocNetworkStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return newNetworkStatus(s.groupDNS, s.createdNetwork)
}

// envAlloc returns a version's data for environments, with the current network.
func (s *allocState) envAlloc(alloc *api.Allocation) taskenv.Alloc {
	env := taskenv.NewAlloc(alloc)
	s.mu.Lock()
	defer s.mu.Unlock()
	env.Network = toEnvNetwork(s.createdNetwork)
	return env
}

// newReport derives the allocation's status from the tasks' states. An override has precedence. The returned report owns
// the states.
func (s *allocState) newReport(states map[string]*api.TaskState) model.AllocReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := model.AllocReport{AllocID: s.alloc.ID, TaskStates: states, NetworkStatus: newNetworkStatus(s.groupDNS, s.createdNetwork), Time: time.Now()}
	u.ClientStatus, u.ClientDescription = model.AllocClientStatus(states)
	if s.override.status != "" {
		u.ClientStatus, u.ClientDescription = s.override.status, s.override.description
	}
	u.Health = s.healthOrRecordFailedLocked(u.ClientStatus)
	if u.Terminal() {
		for _, t := range states {
			if t.FinishedAt.IsZero() {
				t.FinishedAt = u.Time
			}
		}
	}
	return u
}

func (s *allocState) currentOverride() statusOverride {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.override
}

// setPermanentOverride sets the client status permanently. Later calls have no effect, except that a status for an
// exceeded max_run_duration replaces the first one.
func (s *allocState) setPermanentOverride(o statusOverride) {
	s.mu.Lock()
	if s.override.status == "" || o.description == model.MaxRunDurationExceeded {
		s.override = o
	}
	s.mu.Unlock()
	s.requestReconcile()
}

// failAndStop sets the client status permanently to failed, and requests the stop.
func (s *allocState) failAndStop(err error, reason stopReason) {
	s.setPermanentOverride(statusOverride{api.AllocClientStatusFailed, err.Error()})
	s.requestStop(reason)
}

// setHookHealth implements [Runner.SetHookHealth].
func (s *allocState) setHookHealth(from hookAttachment, healthy bool, reason string) {
	s.mu.Lock()
	if s.hookReports == nil {
		s.hookReports = make(map[hookAttachment]health.Hook)
	}
	if !s.hookReports[from].ReportedUnhealthy {
		s.hookReports[from] = health.Hook{Name: from.hook, Task: from.task, ReportedHealthy: healthy, ReportedUnhealthy: !healthy, Reason: reason}
	}
	s.mu.Unlock()
	s.requestReconcile()
}

// hookHealthReports returns the hook reports about the current version, sorted by hook name and task, with an empty
// report for each attached hook that must report and has not. A report for the allocation counts for all its tasks.
func (s *allocState) hookHealthReports() (list []health.Hook) {
	s.mu.Lock()
	reports, hooks := maps.Clone(s.hookReports), slices.Clone(s.pluginHooks)
	s.mu.Unlock()
	for _, h := range hooks {
		_, reported := reports[hookAttachment{h.Name(), h.task}]
		_, reportedForAlloc := reports[hookAttachment{hook: h.Name()}]
		if !reported && !reportedForAlloc && !h.taskCanEndEarly && h.ReportsHealth() {
			list = append(list, health.Hook{Name: h.Name(), Task: h.task})
		}
	}
	list = slices.AppendSeq(list, maps.Values(reports))
	slices.SortFunc(list, func(a, b health.Hook) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Task, b.Task))
	})
	return list
}

// allocUnlessHealthKnown returns the allocation's current version. It returns nil if this version's health is recorded,
// or was reported by an earlier agent.
func (s *allocState) allocUnlessHealthKnown() *api.Allocation {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isHealthKnownLocked() {
		return nil
	}
	return s.alloc
}

func (s *allocState) isHealthKnownLocked() bool {
	return s.healthOfVersionLocked() != nil || s.alloc.DeploymentStatus != nil && s.alloc.DeploymentStatus.Healthy != nil
}

// recordHealth records the current version's health. A version that was stopped before it was healthy is recorded as
// unhealthy; if it has no deployment, recordHealth returns false and records nothing.
func (s *allocState) recordHealth(result health.State) (recorded bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if result == health.Stopped && s.alloc.DeploymentID == "" {
		return false
	}
	s.recordedHealth = &model.DeploymentHealth{DeploymentID: s.alloc.DeploymentID, Healthy: result == health.Healthy, DecidedAt: time.Now()}
	return true
}

// healthOfVersionLocked returns the health recorded for the current version. It is nil if none was recorded.
func (s *allocState) healthOfVersionLocked() *model.DeploymentHealth {
	if s.recordedHealth == nil || s.recordedHealth.DeploymentID != s.alloc.DeploymentID {
		return nil
	}
	return s.recordedHealth
}

// healthOrRecordFailedLocked returns the health for a report with the given client status: the recorded health or nil.
// If an allocation has failed in a deployment without known health, it is first recorded as unhealthy.
func (s *allocState) healthOrRecordFailedLocked(clientStatus string) *model.DeploymentHealth {
	if clientStatus == api.AllocClientStatusFailed && s.alloc.DeploymentID != "" && !s.isHealthKnownLocked() {
		s.recordedHealth = &model.DeploymentHealth{DeploymentID: s.alloc.DeploymentID, DecidedAt: time.Now()}
	}
	return s.healthOfVersionLocked()
}

// setHooks sets the allocation's hooks. It is called once, before any hook is called.
func (s *allocState) setHooks(chain *hooks.Chain) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hookChain = chain
}

// hooks returns the allocation's hooks, nil before setHooks.
func (s *allocState) hooks() *hooks.Chain {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hookChain
}

// addPluginHooks adds a task's hooks from the HookFactory, or the allocation's if task is nil.
func (s *allocState) addPluginHooks(task *api.Task, list []hooks.OrderedHook) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range list {
		attached := attachedPluginHook{Hook: o.Hook}
		if task != nil {
			attached.task, attached.taskCanEndEarly = task.Name, task.Lifecycle != nil && !task.Lifecycle.Sidecar
		}
		s.pluginHooks = append(s.pluginHooks, attached)
	}
}

// pluginHookNames returns the names of all hooks passed to addPluginHooks, each name once.
func (s *allocState) pluginHookNames() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := make([]string, len(s.pluginHooks))
	for i, h := range s.pluginHooks {
		names[i] = h.Name()
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// newRunContexts returns three contexts for Run. untilKill is derived from untilShutdown, and untilStop from untilKill.
// cancelUntilShutdown cancels all three, requestForceKill cancels untilKill, and requestStop cancels untilStop. All work
// before the tasks run uses untilStop.
func (s *allocState) newRunContexts(ctx context.Context) (untilShutdown, untilKill, untilStop context.Context, cancelUntilShutdown context.CancelCauseFunc) {
	untilShutdown, cancelUntilShutdown = context.WithCancelCause(context.WithoutCancel(ctx))
	untilKill, cancelUntilKill := context.WithCancelCause(untilShutdown)
	untilStop, cancelUntilStop := context.WithCancelCause(untilKill)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.untilShutdown = untilShutdown
	s.cancelStopped = func() {
		if s.forceKilled {
			cancelUntilKill(taskrunner.ErrKilled) // cancels untilStop too, so that no goroutine starts a graceful stop
		}
		if s.isStopRequested() {
			cancelUntilStop(taskrunner.ErrKilled)
		}
	}
	s.cancelStopped()
	return untilShutdown, untilKill, untilStop, cancelUntilShutdown
}

// releaseRunContexts makes goInRun reject calls. The caller must cancel the contexts from newRunContexts.
func (s *allocState) releaseRunContexts() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.untilShutdown, s.cancelStopped = nil, nil
}

// goInRun calls f in a new goroutine, with a context that Run cancels before it returns. Outside Run it returns false
// and does not call f. After releaseRunContexts the caller waits for wg.
func (s *allocState) goInRun(wg *sync.WaitGroup, f func(ctx context.Context)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx := s.untilShutdown
	if ctx == nil {
		return false
	}
	wg.Go(func() { f(ctx) })
	return true
}

// requestStop requests the stop. Only the first request's reason is used.
func (s *allocState) requestStop(reason stopReason) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requestStopLocked(reason)
}

// requestForceKill requests a stop without hooks, kill order and delays.
func (s *allocState) requestForceKill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forceKilled = true
	s.requestStopLocked(stopReason{})
}

func (s *allocState) requestStopLocked(reason stopReason) {
	if !s.isStopRequested() {
		s.stopReason = reason
		close(s.stopRequested)
	}
	if s.cancelStopped != nil {
		s.cancelStopped()
	}
}

func (s *allocState) isStopRequested() bool { return wait.IsClosed(s.stopRequested) }

// currentStop returns the stop reason, and reports whether requestForceKill was called.
func (s *allocState) currentStop() (reason stopReason, forceKilled bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopReason, s.forceKilled
}

// waitForShutdownDelay waits for the group's shutdown_delay, which gives clients of its services time to notice the
// deregistration. It returns early after endShutdownDelay, and when ctx is done.
func (s *allocState) waitForShutdownDelay(ctx context.Context) {
	delay := pointer.Value(s.currentAlloc().GetTaskGroup().ShutdownDelay)
	if delay == 0 {
		return
	}
	select {
	case <-time.After(delay):
	case <-s.shutdownDelayEnded:
	case <-ctx.Done():
	}
}

// endShutdownDelay makes all current and later waitForShutdownDelay calls return at once.
func (s *allocState) endShutdownDelay() {
	s.mu.Lock()
	defer s.mu.Unlock()
	wait.CloseUnlessClosed(s.shutdownDelayEnded)
}
