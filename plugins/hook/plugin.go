package hook

import (
	"context"
	"slices"
	"time"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/base"
)

// APIVersion is the version of the hook protocol, for base.Info.APIVersions. For hosts only.
const APIVersion = "v1"

// ErrPluginDown means that the plugin process has exited. The caller requests another
// process from the supervisor. For hosts only.
var ErrPluginDown = base.ErrPluginDown

// Plugin is the part of the contract that every hook plugin implements, whatever its hook
// points. Package sdk implements Plugin for authors. Both the host's client and the
// implementation in the plugin process implement it. Its methods may be called concurrently. For hosts only.
type Plugin interface {
	// Describe returns the hook points and options of the hook. The response must never
	// change while the process runs.
	Describe(ctx context.Context) (*Description, error)

	// Configure passes the address of the host. It is called before the first hook point,
	// and again after another agent has reattached the plugin.
	Configure(ctx context.Context, c Config) error
}

// Description holds the hook points and options of a hook. For hosts only.
type Description struct {
	Subscriptions []Subscription
	// AllAllocs requests calls for all allocations. Without it the hook is only called
	// for the allocations and tasks that it is attached to.
	AllAllocs bool
	// AttachmentSchema is the schema of the JSON of an attachment; nil means that an attachment must have no
	// configuration.
	AttachmentSchema *hclspec.Spec
	// IncludeAllocJSON requests that the field Alloc.JSON of requests is set.
	IncludeAllocJSON bool
	// ReportsHealth means that an allocation is healthy for its deployment only after the
	// hook has reported it, with Host.SetHealth.
	ReportsHealth bool
}

// Subscription is one hook point of a Description. For hosts only.
type Subscription struct {
	Point   Point
	Timeout time.Duration // limit for one call; 0 means the host's default
}

// Subscription returns the subscription to a hook point, and whether there is one.
func (d *Description) Subscription(p Point) (Subscription, bool) {
	i := slices.IndexFunc(d.Subscriptions, func(s Subscription) bool { return s.Point == p })
	if i < 0 {
		return Subscription{}, false
	}
	return d.Subscriptions[i], true
}

// Config is the argument of Configure. For hosts only.
type Config struct {
	HostSocket string // path of the unix socket on which the agent serves Host
	Node       Node
}

// Node describes the node on which a hook runs.
type Node struct {
	ID         string
	Name       string
	Datacenter string
	Region     string
	Class      string
	Pool       string
}
