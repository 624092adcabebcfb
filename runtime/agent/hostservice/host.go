package hostservice

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"google.golang.org/grpc"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/hook/hookwire"
	"github.com/nomad-lite/nomad-lite/runtime/core/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/workloaddata"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
)

// Config configures a HostService.
type Config struct {
	Listener      net.Listener // the hook socket's listener; only this user can open the socket
	CapabilityKey CapabilityTokenKey
	// FindAllocRunner returns an allocation's runner, or nil if this node has no record of it or has not yet restored it.
	FindAllocRunner func(id string) *allocrunner.Runner
	// PreviousAllocsLoaded is closed when FindAllocRunner returns the earlier agent's allocations.
	PreviousAllocsLoaded <-chan struct{}
	Data                 workloaddata.Source
	Logger               hclog.Logger
}

// HostService implements hook.Host for a node's plugins.
type HostService struct {
	config       Config
	server       *grpc.Server
	goroutinesWG sync.WaitGroup
	callLimiter  callLimiter
}

var _ hook.Host = (*HostService)(nil)

// StartHostService starts serving. The caller must call Close, which closes the listener.
func StartHostService(c Config) *HostService {
	h := &HostService{config: c, server: grpc.NewServer(grpc.MaxRecvMsgSize(maxRequestBytes), grpc.MaxConcurrentStreams(maxCalls), grpc.WaitForHandlers(true))}
	hookwire.RegisterHost(h.server, h)
	h.goroutinesWG.Go(func() {
		if err := h.server.Serve(c.Listener); err != nil {
			c.Logger.Error("hooks can no longer reach the agent", "error", err)
		}
	})
	return h
}

// Close ends all calls and blocks until they have returned. A hook's blocking call reconnects to the next agent.
func (h *HostService) Close() {
	h.server.Stop()
	h.goroutinesWG.Wait()
}

// authorizedCall has a token's claims, with the call's runner and target task.
type authorizedCall struct {
	tokenClaims
	runner     *allocrunner.Runner
	targetTask string // "" for all tasks of the allocation
}

// authorize verifies a call's token. A task's token is valid for this task alone.
func (h *HostService) authorize(ctx context.Context, s hook.Scope) (authorizedCall, error) {
	verified, err := h.config.CapabilityKey.VerifyToken(s.Token)
	if err != nil {
		return authorizedCall{}, err
	}
	select {
	case <-h.config.PreviousAllocsLoaded:
	case <-ctx.Done():
		return authorizedCall{}, ctx.Err()
	}
	c := authorizedCall{tokenClaims: verified, runner: h.config.FindAllocRunner(verified.AllocID), targetTask: s.Task}
	switch {
	case c.runner == nil:
		return authorizedCall{}, fmt.Errorf("%w: its allocation has ended", hook.ErrPermissionDenied)
	case verified.Task != "" && s.Task != "" && s.Task != verified.Task:
		return authorizedCall{}, fmt.Errorf("%w: it is for task %q", hook.ErrPermissionDenied, verified.Task)
	case verified.Task != "":
		c.targetTask = verified.Task
	}
	select {
	case <-c.tokenScopeEndedOrShutdown():
		if c.scopeContinuesAfterShutdown() {
			return authorizedCall{}, errStopping
		}
		return authorizedCall{}, fmt.Errorf("%w: what it was for has ended", hook.ErrPermissionDenied)
	default:
		return c, nil
	}
}

// errStopping means agent shutdown. The token stays valid.
var errStopping = fmt.Errorf("%w: the agent is about to end", hook.ErrPermissionDenied)

// tokenScopeEndedOrShutdown returns a channel that is closed when the token expires or the agent shuts down.
func (c authorizedCall) tokenScopeEndedOrShutdown() <-chan struct{} {
	if c.Task != "" {
		return c.runner.TaskDone(c.Task)
	}
	return c.runner.Done()
}

// scopeContinuesAfterShutdown reports whether the allocation or task continues under the next agent.
func (c authorizedCall) scopeContinuesAfterShutdown() bool {
	if c.Task == "" {
		return !c.runner.EndedForGood()
	}
	t := c.runner.Status().TaskStates[c.Task]
	return t != nil && t.State != model.TaskDead
}

// tokenExpired reports whether the token has expired, under any agent.
func (c authorizedCall) tokenExpired() bool {
	select {
	case <-c.tokenScopeEndedOrShutdown():
		return !c.scopeContinuesAfterShutdown()
	default:
		return false
	}
}

// authorizeAndRateLimit is authorize with a rate limit, for state-changing calls.
func (h *HostService) authorizeAndRateLimit(ctx context.Context, s hook.Scope) (authorizedCall, error) {
	c, err := h.authorize(ctx, s)
	if err == nil {
		err = h.callLimiter.countStateChange(c.tokenClaims)
	}
	return c, err
}

// authorizeTaskAndAwaitRestored is authorize for a call that needs a task and its process.
func (h *HostService) authorizeTaskAndAwaitRestored(ctx context.Context, s hook.Scope) (authorizedCall, error) {
	c, err := h.authorize(ctx, s)
	if err == nil && c.targetTask == "" {
		return c, fmt.Errorf("%w: name one, because the token is for an allocation", hook.ErrTaskNotRunning)
	}
	if err != nil {
		return c, err
	}
	select {
	case <-c.runner.TasksRestored(): // until the runner is restored, a running task appears not to run
		return c, nil
	case <-ctx.Done():
		return c, ctx.Err()
	}
}

// toHookError maps runner errors to package hook errors.
func toHookError(err error) error {
	if errors.Is(err, allocrunner.ErrNotRunning) || errors.Is(err, allocrunner.ErrTaskNotFound) {
		return fmt.Errorf("%w: %w", hook.ErrTaskNotRunning, err)
	}
	return err
}

// Exec implements hook.Host.
func (h *HostService) Exec(ctx context.Context, s hook.Scope, req hook.ExecRequest) (*driver.ExecResult, error) {
	c, err := h.authorizeTaskAndAwaitRestored(ctx, s)
	if err != nil {
		return nil, err
	}
	if len(req.Command) == 0 {
		return nil, errors.New("there is no command to be run")
	}
	end, err := h.callLimiter.countRunningCall(c.tokenClaims, execCalls)
	if err != nil {
		return nil, err
	}
	defer end()
	timeout := req.Timeout
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	} else if deadline, ok := ctx.Deadline(); ok {
		timeout = time.Until(deadline)
	}
	result, err := c.runner.Exec(ctx, c.targetTask, req.Command, timeout)
	return result, toHookError(err)
}

// Stats implements hook.Host.
func (h *HostService) Stats(ctx context.Context, s hook.Scope, interval time.Duration) (<-chan hook.Usage, error) {
	c, err := h.authorizeTaskAndAwaitRestored(ctx, s)
	if err != nil {
		return nil, h.blockIfAgentStops(ctx, err)
	}
	if interval <= 0 {
		interval = time.Second
	}
	interval = max(interval, 100*time.Millisecond)
	end, err := h.callLimiter.countRunningCall(c.tokenClaims, statsCalls)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	stream, exited, err := c.runner.SampleTaskStats(ctx, c.targetTask, interval)
	if err != nil {
		cancel()
		end()
		return nil, toHookError(err)
	}
	usage := make(chan hook.Usage)
	h.goroutinesWG.Go(func() {
		defer end()
		defer close(usage)
		defer cancel()
		for {
			for sample := range stream {
				select {
				case usage <- toHookUsage(sample):
				case <-ctx.Done():
					return
				}
			}
			// The sample stream has ended: the driver plugin may have exited, or the agent may be shutting down.
			select {
			case <-exited:
				return
			case <-ctx.Done():
				return
			case <-time.After(interval):
			}
			next, of, err := c.runner.SampleTaskStats(ctx, c.targetTask, interval)
			switch {
			case of != exited, c.tokenExpired():
				return
			case err == nil:
				stream = next
			}
		}
	})
	return usage, nil
}

func toHookUsage(s *driver.TaskStats) hook.Usage {
	return hook.Usage{
		Time: s.Timestamp, CPUPercent: s.Total.CPU.Percent, CPUMHz: s.Total.CPU.TotalTicks,
		MemoryRSS: s.Total.Memory.RSS, MemoryUsage: s.Total.Memory.Usage,
	}
}

// State implements hook.Host.
func (h *HostService) State(ctx context.Context, s hook.Scope) (*hook.AllocState, error) {
	c, err := h.authorize(ctx, s)
	if err != nil {
		return nil, err
	}
	status := c.runner.Status()
	state := &hook.AllocState{
		ClientStatus: status.ClientStatus, ClientDescription: status.ClientDescription,
		DesiredStatus: c.runner.Alloc().DesiredStatus, Tasks: make(map[string]hook.TaskState, len(status.TaskStates)),
	}
	for name, t := range status.TaskStates {
		state.Tasks[name] = toHookTaskState(t)
	}
	return state, nil
}

func toHookTaskState(t *api.TaskState) hook.TaskState {
	state := hook.TaskState{State: t.State, Failed: t.Failed, Restarts: t.Restarts, StartedAt: t.StartedAt, FinishedAt: t.FinishedAt}
	for _, e := range t.Events {
		state.Events = append(state.Events, hook.Event{
			Type: e.Type, Time: time.Unix(0, e.Time), Message: e.DisplayMessage, Details: e.Details,
			OperationID: model.EventOperationID(e), Ongoing: model.IsEventOfOngoingOperation(e),
		})
	}
	return state
}

// Interpolate implements hook.Host.
func (h *HostService) Interpolate(ctx context.Context, s hook.Scope, text string) (string, error) {
	c, err := h.authorize(ctx, s)
	if err != nil {
		return "", err
	}
	return c.runner.Interpolate(c.targetTask, text), nil
}

// EmitEvent implements hook.Host.
func (h *HostService) EmitEvent(ctx context.Context, s hook.Scope, event hook.Event) error {
	c, err := h.authorizeAndRateLimit(ctx, s)
	if err != nil {
		return err
	}
	if err := event.Validate(); err != nil {
		return err
	}
	details := make(map[string]string, len(event.Details))
	for key, detail := range event.Details {
		details[truncateText(key)] = truncateText(detail)
	}
	e := model.EventHookMessage(event.Type, truncateText(event.Message), details)
	if event.OperationID != "" {
		model.SetEventOperation(e, truncateText(event.OperationID), event.Ongoing)
	}
	return toHookError(c.runner.EmitEvent(c.targetTask, e))
}

// truncateText limits a text kept as long as the task.
func truncateText(text string) string {
	if len(text) > maxTextBytes {
		return strings.ToValidUTF8(text[:maxTextBytes], "") + "…"
	}
	return text
}

// Restart implements hook.Host.
func (h *HostService) Restart(ctx context.Context, s hook.Scope, req hook.RestartRequest) error {
	c, err := h.authorizeAndRateLimit(ctx, s)
	if err != nil {
		return err
	}
	return toHookError(c.runner.RestartAsyncWithReason(ctx, c.targetTask, c.reasonOrDefault(req.Reason), req.CountAsFailure))
}

// Signal implements hook.Host.
func (h *HostService) Signal(ctx context.Context, s hook.Scope, req hook.SignalRequest) error {
	c, err := h.authorizeAndRateLimit(ctx, s)
	if err != nil {
		return err
	}
	return toHookError(c.runner.SignalWithReason(ctx, c.targetTask, req.Signal, c.reasonOrDefault(req.Reason)))
}

// Kill implements hook.Host.
func (h *HostService) Kill(ctx context.Context, s hook.Scope, req hook.KillRequest) error {
	c, err := h.authorize(ctx, s) // no rate limit: a task dies once
	if err != nil {
		return err
	}
	return toHookError(c.runner.KillAsFailedWithReason(c.targetTask, c.reasonOrDefault(req.Reason)))
}

// reasonOrDefault returns the reason for task events: text, or a sentence that names the hook if text is empty.
func (c authorizedCall) reasonOrDefault(text string) string {
	if text == "" {
		return fmt.Sprintf("Hook %q asked for it", c.Hook)
	}
	return truncateText(text)
}

// SetHealth implements hook.Host.
func (h *HostService) SetHealth(ctx context.Context, s hook.Scope, req hook.SetHealthRequest) error {
	c, err := h.authorizeAndRateLimit(ctx, s)
	if err != nil {
		return err
	}
	return toHookError(c.runner.SetHookHealth(c.Hook, c.targetTask, req.Healthy, truncateText(req.Reason)))
}

// StoreState implements hook.Host.
func (h *HostService) StoreState(ctx context.Context, s hook.Scope, state map[string]string) error {
	c, err := h.authorizeAndRateLimit(ctx, s)
	if err != nil {
		return err
	}
	if c.targetTask == "" {
		return errors.New("state is stored for a task: name one, because the token is for an allocation")
	}
	if err := hook.ValidateState(state); err != nil {
		return err
	}
	return toHookError(c.runner.StoreHookState(ctx, c.Hook, c.targetTask, state))
}

// readWhenNewer reads data, and blocks until its index is higher than afterIndex.
func readWhenNewer[T any](ctx context.Context, h *HostService, s hook.Scope, afterIndex uint64, read func(context.Context, store.WatchSet, identity.Workload) (T, uint64, error)) (answer T, index uint64, err error) {
	if afterIndex > 0 {
		c, err := h.authorize(ctx, s)
		if err != nil {
			return answer, 0, h.blockIfAgentStops(ctx, err)
		}
		end, err := h.callLimiter.countRunningCall(c.tokenClaims, watchCalls)
		if err != nil {
			return answer, 0, err
		}
		defer end()
	}
	for {
		c, err := h.authorize(ctx, s) // the token is verified each time, because it may have expired
		if err != nil {
			return answer, 0, h.blockIfAgentStops(ctx, err)
		}
		answer, index, err = readAndWatch(ctx, c, afterIndex, read)
		if err != nil {
			return answer, index, err
		}
		if afterIndex == 0 || index > afterIndex {
			return answer, index, nil
		}
	}
}

// readAndWatch reads data. If its index is not higher than afterIndex, it then blocks until the data may have changed, or the
// call's scope has ended.
func readAndWatch[T any](ctx context.Context, c authorizedCall, afterIndex uint64, read func(context.Context, store.WatchSet, identity.Workload) (T, uint64, error)) (answer T, index uint64, err error) {
	ctx, cancel := context.WithCancel(ctx) // read watches until its context ends
	defer cancel()
	ws := store.NewWatchSet()
	answer, index, err = read(ctx, ws, identity.NewWorkload(c.runner.Alloc(), c.targetTask))
	if err != nil {
		return answer, 0, err
	}
	index = max(index, 1) // index 0 in a request means not to wait
	if afterIndex == 0 || index > afterIndex {
		return answer, index, nil
	}
	ws.Add(c.tokenScopeEndedOrShutdown())
	return answer, index, ws.WatchCtx(ctx)
}

// blockIfAgentStops returns err, unless it is errStopping: then it blocks until the agent shutdown has ended the call, so that
// the hook's client reconnects to the next agent instead of returning an error.
func (h *HostService) blockIfAgentStops(ctx context.Context, err error) error {
	if !errors.Is(err, errStopping) {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// Variable implements hook.Host.
func (h *HostService) Variable(ctx context.Context, s hook.Scope, req hook.VariableRequest) (hook.VariableResponse, error) {
	if err := model.ValidateVariablePath(req.Path); err != nil {
		return hook.VariableResponse{}, err
	}
	v, index, err := readWhenNewer(ctx, h, s, req.AfterIndex, func(ctx context.Context, ws store.WatchSet, w identity.Workload) (*api.Variable, uint64, error) {
		v, index, err := h.config.Data.Variable(ctx, ws, w, req.Namespace, req.Path)
		if runner := h.config.FindAllocRunner(w.AllocID); runner != nil && v != nil {
			runner.HandOutVariable(w.Task, req.Namespace, req.Path, v.Items)
		}
		return v, index, err
	})
	response := hook.VariableResponse{Index: index}
	if err == nil && v != nil {
		response.Metadata = newVariableMetadata(v.Metadata())
		response.Items = make(map[string]string, len(v.Items)) // not nil, because the variable exists
		maps.Copy(response.Items, v.Items)
	}
	return response, err
}

func newVariableMetadata(m *api.VariableMetadata) hook.VariableMetadata {
	return hook.VariableMetadata{
		Namespace: m.Namespace, Path: m.Path, CreateIndex: m.CreateIndex, ModifyIndex: m.ModifyIndex,
		CreateTime: time.Unix(0, m.CreateTime), ModifyTime: time.Unix(0, m.ModifyTime),
	}
}

// Variables implements hook.Host.
func (h *HostService) Variables(ctx context.Context, s hook.Scope, req hook.VariablesRequest) (hook.VariablesResponse, error) {
	list, index, err := readWhenNewer(ctx, h, s, req.AfterIndex, func(ctx context.Context, ws store.WatchSet, w identity.Workload) ([]*api.VariableMetadata, uint64, error) {
		return h.config.Data.Variables(ctx, ws, w, req.Namespace, req.Prefix)
	})
	response := hook.VariablesResponse{Index: index}
	for _, m := range list {
		response.Paths = append(response.Paths, m.Path)
		response.Variables = append(response.Variables, newVariableMetadata(m))
	}
	return response, err
}

// Services implements hook.Host.
func (h *HostService) Services(ctx context.Context, s hook.Scope, req hook.ServicesRequest) (hook.ServicesResponse, error) {
	r, index, err := readWhenNewer(ctx, h, s, req.AfterIndex, func(ctx context.Context, ws store.WatchSet, w identity.Workload) (r hook.ServicesResponse, index uint64, err error) {
		consulIndex := uint64(0)
		if req.InPlaceOfConsul {
			var has bool
			if has, consulIndex = h.config.Data.HasConsulServices(ws, w); !has {
				return hook.ServicesResponse{NoConsul: true}, consulIndex, nil
			}
		}
		r.Services, index, err = h.config.Data.Services(ctx, ws, w, req.Name)
		return r, max(index, consulIndex), err
	})
	r.Index = index
	return r, err
}
