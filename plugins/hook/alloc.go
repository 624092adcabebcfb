package hook

import "context"

// AllocPrerun runs once, before any task of the allocation, and again when an agent
// restores the allocation. The context ends when the allocation is stopped or the agent
// shuts down. The first error ends the chain and fails the allocation; the restart
// policy does not apply.
type AllocPrerun interface {
	Prerun(ctx context.Context, req AllocPrerunRequest) (AllocPrerunResponse, error)
}

// AllocPrerunRequest holds the environment of the allocation.
type AllocPrerunRequest struct {
	RequestMeta
	Alloc Alloc
	Env   map[string]string
}

// AllocPrerunResponse is empty.
type AllocPrerunResponse struct{}

// AllocUpdate runs for each new version of the allocation, unless the new version stops it.
// Calls are in order and never overlap each other, but may overlap every other hook point.
// An error is logged; an error of a plugin is also an event.
type AllocUpdate interface {
	UpdateAlloc(ctx context.Context, req AllocUpdateRequest) (AllocUpdateResponse, error)
}

// AllocUpdateRequest holds the new version.
type AllocUpdateRequest struct {
	RequestMeta
	Alloc Alloc
	Env   map[string]string
}

// AllocUpdateResponse is empty.
type AllocUpdateResponse struct{}

// AllocPreTaskRestart runs once before the running tasks, or all tasks, of the allocation
// are restarted. It does not run for the restart of a single task. An error is logged; an
// error of a plugin is also an event.
type AllocPreTaskRestart interface {
	PreTaskRestart(ctx context.Context, req AllocPreTaskRestartRequest) (AllocPreTaskRestartResponse, error)
}

// AllocPreTaskRestartRequest names the allocation.
type AllocPreTaskRestartRequest struct {
	RequestMeta
	Alloc Alloc
}

// AllocPreTaskRestartResponse is empty.
type AllocPreTaskRestartResponse struct{}

// AllocPreKill runs before the first task of the allocation is killed, or when all tasks
// have exited by themselves. It may run without Prerun, and more than once. An error is
// logged; an error of a plugin is also an event.
type AllocPreKill interface {
	PreKill(ctx context.Context, req AllocPreKillRequest) (AllocPreKillResponse, error)
}

// AllocPreKillRequest names the allocation.
type AllocPreKillRequest struct {
	RequestMeta
	Alloc Alloc
}

// AllocPreKillResponse is empty.
type AllocPreKillResponse struct{}

// AllocPostrun runs when all tasks have ended for good, even if Prerun failed or never
// ran. It does not run when the agent shuts down. An error is logged, and the other
// hooks still run; an error of a plugin is also an event, and the call is repeated
// until it succeeds.
type AllocPostrun interface {
	Postrun(ctx context.Context, req AllocPostrunRequest) (AllocPostrunResponse, error)
}

// AllocPostrunRequest names the allocation.
type AllocPostrunRequest struct {
	RequestMeta
	Alloc Alloc
}

// AllocPostrunResponse is empty.
type AllocPostrunResponse struct{}

// AllocDestroy runs when the allocation is removed from the node. It may run without
// Prerun. An error of a hook in a plugin is logged, and the call is repeated; other
// errors are joined and returned to the caller that removes the allocation.
type AllocDestroy interface {
	Destroy(ctx context.Context, req AllocDestroyRequest) (AllocDestroyResponse, error)
}

// AllocDestroyRequest names the allocation.
type AllocDestroyRequest struct {
	RequestMeta
	Alloc Alloc
}

// AllocDestroyResponse is empty.
type AllocDestroyResponse struct{}

// AllocShutdown runs when the agent shuts down and leaves the tasks running. An error is
// logged; an error of a plugin is also an event.
type AllocShutdown interface {
	ShutdownAlloc(ctx context.Context, req AllocShutdownRequest) (AllocShutdownResponse, error)
}

// AllocShutdownRequest names the allocation.
type AllocShutdownRequest struct {
	RequestMeta
	Alloc Alloc
}

// AllocShutdownResponse is empty.
type AllocShutdownResponse struct{}
