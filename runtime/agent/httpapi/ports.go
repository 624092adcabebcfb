package httpapi

import (
	"context"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/core/tasksteps"
	"github.com/nomad-lite/nomad-lite/runtime/job/admission"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/taskfiles"
)

// Allocs are the node's allocations. noderunner.Runner implements it.
type Allocs interface {
	// AllocRunner returns an allocation's runner, or nil if the node has none.
	AllocRunner(allocID string) *allocrunner.Runner
	// TransitionsByTask returns the last transitions of each task of an allocation that runs or ended recently. It
	// returns nil if the node has no transitions of the allocation.
	TransitionsByTask(allocID string) map[string][]tasksteps.Transition
	// RemoveDirOfEndedAlloc removes an ended allocation from the disk, RemoveDirsOfAllEndedAllocs all ended allocations.
	RemoveDirOfEndedAlloc(ctx context.Context, allocID string) error
	RemoveDirsOfAllEndedAllocs()
}

// AllocFiles are the allocations' files. agent.AllocFiles implements it.
type AllocFiles interface {
	// AllocDir returns an allocation's directory, which may not exist. It fails only if the id is not valid.
	AllocDir(allocID string) (*allocdir.Dir, error)
	// OpenAllocFiles opens the directory of an allocation, whether or not it runs. The error is
	// fs.ErrNotExist if the directory does not exist.
	OpenAllocFiles(allocID string) (*taskfiles.AllocDir, error)
}

// JobPlugins are the plugins that check jobs. agentplugins.Manager implements it.
type JobPlugins interface {
	// CheckHookAttachments checks the hooks that a canonical job attaches. It returns the mistakes in the
	// attachments, and the errors of hooks that cannot be checked now.
	CheckHookAttachments(context.Context, *api.Job) (faults []admission.HookAttachmentFault, unreachable []error)
	// TaskConfigSchema returns the schema of a driver's task config block.
	TaskConfigSchema(ctx context.Context, driverName string) (*hclspec.Spec, error)
	// DriverCapabilities returns the capabilities of a driver.
	DriverCapabilities(ctx context.Context, driverName string) (*driver.Capabilities, error)
}

// Metadata is the node's metadata. localnode.Node implements it.
type Metadata interface {
	Meta() api.NodeMetaResponse
	// SetMeta changes the metadata permanently.
	SetMeta(context.Context, map[string]*string) error
}
