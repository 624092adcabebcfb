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

// allocState contains everything of an allocation that any goroutine may read or change, except for the states of its
// tasks. Its methods may be called concurrently. They call no other part of the runner and hold the lock only briefly;
// a change that must be reconciled requests a reconcile. Only waitForShutdownDelay blocks.
type allocState struct {
	groupDNS *api.DNSConfig // dns block of the group

	reconcileRequested  chan struct{}        // contains a value while a reconcile is requested; capacity 1
	nextAlloc           chan *api.Allocation // contains the newest version until it is applied; capacity 1
	stopVersionReceived chan struct{}        // closed when a version that stops the allocation is received, before it is applied
	stopRequested       chan struct{}        // closed by the first requestStop or requestForceKill
	shutdownDelayEnded  chan struct{}        // closed by the first endShutdownDelay

	mu             sync.Mutex
	alloc          *api.Allocation                // current version
	reconcileDone  chan struct{}                  // closed by the next reconcile; nil if no goroutine waits for it
	createdNetwork *state.AllocNetwork            // network that was created; nil before, and if the tasks use the network of the host
	override       statusOverride                 // status that was set permanently; the zero value if none was set
	recordedHealth *model.DeploymentHealth        // health of the allocation; nil until known
	hookReports    map[hookAttachment]health.Hook // reports of hooks about the health of the current version
	hookChain      *hooks.Chain                   // hooks of the allocation; nil until attached
	pluginHooks    []attachedPluginHook           // hooks in plugins that the allocation and its tasks have
	stopReason     stopReason                     // set before stopRequested is closed
	forceKilled    bool                           // requestForceKill was called

	// These fields are nil outside Run. The context is a field because it belongs to Run and not to the callers of the
	// requests that it cancels. The function cancels the contexts that newRunContexts returns according to
	// stopRequested and forceKilled; the caller must hold the lock.
	untilShutdown context.Context
	cancelStopped func()
}

// hookAttachment identifies a hook of one task, or of the allocation.
type hookAttachment struct {
	hook string
	task string // "" for the allocation
}

// attachedPluginHook is a hook in a plugin that a task or the allocation has.
type attachedPluginHook struct {
	hooks.Hook
	task string // "" for the allocation
	// taskCanEndEarly means that the task need not run when the allocation is healthy.
	taskCanEndEarly bool
}

// statusOverride is a client status that has precedence over the states of the tasks.
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

// requestReconcile requests a reconcile after a change of a task or of the allocation. Several requests may lead to one
// reconcile.
func (s *allocState) requestReconcile() {
	wait.Notify(s.reconcileRequested)
}

// nextReconcileDone returns a channel that is closed at the end of the next reconcile.
func (s *allocState) nextReconcileDone() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reconcileDone == nil {
		s.reconcileDone = make(chan struct{})
	}
	return s.reconcileDone
}

// wakeReconcileWaiters closes the channel that nextReconcileDone has returned.
func (s *allocState) wakeReconcileWaiters() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reconcileDone != nil {
		close(s.reconcileDone)
		s.reconcileDone = nil
	}
}

// currentAlloc returns the current version of the allocation.
func (s *allocState) currentAlloc() *api.Allocation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.alloc
}

// setAlloc replaces the current version of the allocation. Reports of hooks about the health of another deployment no
// longer count.
func (s *allocState) setAlloc(alloc *api.Allocation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if alloc.DeploymentID != s.alloc.DeploymentID {
		s.hookReports = nil
	}
	s.alloc = alloc
}

// putNextAlloc makes alloc the next version to apply, unless a newer version waits already.
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

// setNetwork sets the network that was created for the allocation, nil if its tasks use the network of the host. It
// returns the DNS settings of the tasks.
func (s *allocState) setNetwork(created *state.AllocNetwork) (taskDNS *driver.DNSConfig) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.createdNetwork = created
	return mergeTaskDNS(s.groupDNS, created)
}

// networkStatus returns the network of the allocation as clients see it.
func (s *allocState) networkStatus() *api.AllocNetworkStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return newNetworkStatus(s.groupDNS, s.createdNetwork)
}

// envAlloc returns the data of a version of the allocation for environments, with the current network.
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

// setPermanentOverride sets the client status permanently. After the first call further calls have no effect, except
// that a status for an exceeded max_run_duration replaces the first one.
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

// hookHealthReports returns the reports of hooks about the current version, sorted by hook name and task, with an empty
// report for each attached hook that must report and has not. A report for the allocation counts for all of its tasks.
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

// allocUnlessHealthKnown returns the current version of the allocation. It returns nil if the health of this version is
// recorded, or was reported by an earlier agent.
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

// recordHealth records the health of the current version. A version that was stopped before it was healthy is recorded as
// unhealthy; recordHealth returns false and records nothing if that version has no deployment.
func (s *allocState) recordHealth(result health.State) (recorded bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if result == health.Stopped && s.alloc.DeploymentID == "" {
		return false
	}
	s.recordedHealth = &model.DeploymentHealth{DeploymentID: s.alloc.DeploymentID, Healthy: result == health.Healthy, DecidedAt: time.Now()}
	return true
}

// healthOfVersionLocked returns the health that was recorded for the current version. It is nil if none was recorded.
func (s *allocState) healthOfVersionLocked() *model.DeploymentHealth {
	if s.recordedHealth == nil || s.recordedHealth.DeploymentID != s.alloc.DeploymentID {
		return nil
	}
	return s.recordedHealth
}

// healthOrRecordFailedLocked returns the health for a report with the given client status: the recorded health or nil. An
// allocation that has failed in a deployment without known health is recorded as unhealthy first.
func (s *allocState) healthOrRecordFailedLocked(clientStatus string) *model.DeploymentHealth {
	if clientStatus == api.AllocClientStatusFailed && s.alloc.DeploymentID != "" && !s.isHealthKnownLocked() {
		s.recordedHealth = &model.DeploymentHealth{DeploymentID: s.alloc.DeploymentID, DecidedAt: time.Now()}
	}
	return s.healthOfVersionLocked()
}

// setHooks sets the hooks of the allocation. It is called once, before any hook is called.
func (s *allocState) setHooks(chain *hooks.Chain) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hookChain = chain
}

// hooks returns the hooks of the allocation, nil before setHooks.
func (s *allocState) hooks() *hooks.Chain {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hookChain
}

// addPluginHooks adds hooks of the HookFactory that a task has, or that the allocation has if task is nil.
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

// pluginHookNames returns the names of the hooks that were passed to addPluginHooks, each name once.
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
// cancelUntilShutdown cancels all three, requestForceKill cancels untilKill, and requestStop cancels untilStop, which
// is the context of all work before the tasks run.
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

// releaseRunContexts makes goInRun reject calls. The caller must cancel the contexts that newRunContexts has returned.
func (s *allocState) releaseRunContexts() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.untilShutdown, s.cancelStopped = nil, nil
}

// goInRun starts a goroutine that calls f with a context that Run cancels before it returns. It returns false and does
// not call f outside Run. After releaseRunContexts the caller waits for wg.
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

// requestStop requests the stop. Only the reason of the first request is used.
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

// currentStop returns the reason of the stop, and reports whether requestForceKill was called.
func (s *allocState) currentStop() (reason stopReason, forceKilled bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopReason, s.forceKilled
}

// waitForShutdownDelay waits for the shutdown_delay of the group, which gives clients of the group's services time to
// notice the deregistration. It returns early after endShutdownDelay, and when ctx is done.
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

// endShutdownDelay makes the current calls of waitForShutdownDelay and all later calls return at once.
func (s *allocState) endShutdownDelay() {
	s.mu.Lock()
	defer s.mu.Unlock()
	wait.CloseUnlessClosed(s.shutdownDelayEnded)
}
