package hook

import "context"

// AllocPrerun runs once, before any task of the allocation, and again when an
// agent takes the allocation over. The context ends when the allocation is stopped
// or the agent shuts down. The first error ends the chain and fails the allocation;
// the restart policy has no say.
type AllocPrerun interface {
	Prerun(ctx context.Context, req AllocPrerunRequest) error
}

// AllocPrerunRequest comes with the environment of the allocation.
type AllocPrerunRequest struct {
	RequestMeta
	Alloc Alloc
	Env   map[string]string
}

// AllocUpdate runs for each new version of the allocation that shall go on
// running. Calls are in order and never overlap each other, but may overlap
// every other moment. An error is logged, and an event if the hook is a plugin.
type AllocUpdate interface {
	UpdateAlloc(ctx context.Context, req AllocUpdateRequest) error
}

// AllocUpdateRequest comes with the new version.
type AllocUpdateRequest struct {
	RequestMeta
	Alloc Alloc
	Env   map[string]string
}

// AllocPreTaskRestart runs once before the running tasks, or all tasks, of the
// allocation are restarted; not for the restart of a single task. An error is
// logged, and an event if the hook is a plugin.
type AllocPreTaskRestart interface {
	PreTaskRestart(ctx context.Context, req AllocPreTaskRestartRequest) error
}

// AllocPreTaskRestartRequest names the allocation.
type AllocPreTaskRestartRequest struct {
	RequestMeta
	Alloc Alloc
}

// AllocPreKill runs before the first task of the allocation is killed, or when
// all have ended by themselves. It may come without Prerun, and more than once.
// An error is logged, and an event if the hook is a plugin.
type AllocPreKill interface {
	PreKill(ctx context.Context, req AllocPreKillRequest) error
}

// AllocPreKillRequest names the allocation.
type AllocPreKillRequest struct {
	RequestMeta
	Alloc Alloc
}

// AllocPostrun runs when all tasks have ended for good, also when Prerun failed
// or never ran; not when the agent shuts down. An error is logged, and the
// other hooks still run; that of a plugin is an event, and the call is made again
// until it succeeds.
type AllocPostrun interface {
	Postrun(ctx context.Context, req AllocPostrunRequest) error
}

// AllocPostrunRequest names the allocation.
type AllocPostrunRequest struct {
	RequestMeta
	Alloc Alloc
}

// AllocDestroy runs when the allocation is removed from the node. It may come
// without Prerun. An error of a hook in a plugin is logged, and the call is made
// again; others are joined and returned to who removes it.
type AllocDestroy interface {
	Destroy(ctx context.Context, req AllocDestroyRequest) error
}

// AllocDestroyRequest names the allocation.
type AllocDestroyRequest struct {
	RequestMeta
	Alloc Alloc
}

// AllocShutdown runs when the agent goes and leaves the tasks running. An
// error is logged, and an event if the hook is a plugin.
type AllocShutdown interface {
	ShutdownAlloc(ctx context.Context, req AllocShutdownRequest) error
}

// AllocShutdownRequest names the allocation.
type AllocShutdownRequest struct {
	RequestMeta
	Alloc Alloc
}
