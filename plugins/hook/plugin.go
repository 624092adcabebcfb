package hook

import (
	"context"
	"slices"
	"time"

	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/nomad-lite/nomad-lite/hclspec"
)

const (
	// APIVersion is the version of the hook protocol that this package speaks, on
	// both sides.
	APIVersion = "v1"

	// PluginName is the key of GRPCPlugin in a plugin set.
	PluginName = "hook"
)

// Plugin is what a plugin with a hook answers besides the moments, on both sides
// of the wire. Its methods may be called concurrently.
type Plugin interface {
	// Describe says what the hook takes part in. It is part of the program: the
	// answer never changes.
	Describe(ctx context.Context) (*Description, error)

	// Configure tells where the host is. It comes before the first moment, and
	// again when another agent has taken the plugin over.
	Configure(ctx context.Context, c Config) error
}

// Description says what a hook takes part in.
type Description struct {
	Moments []Subscription
	// EveryAlloc asks to be called for all allocations. Without it the hook is
	// called for what it is attached to.
	EveryAlloc bool
	// Schema is what may stand in the JSON of an attachment; nil means nothing.
	Schema *hclspec.Spec
	// WholeAlloc asks for Alloc.JSON.
	WholeAlloc bool
	// DecidesHealth says that an allocation is healthy for its deployment only when
	// the hook has said so, with Host.SetHealth.
	DecidesHealth bool
}

// Subscription is one moment of a Description.
type Subscription struct {
	Moment  Point
	Timeout time.Duration // of one call; 0 means the host's default
}

// Participation returns how the hook takes part in a moment, and whether it does.
func (d *Description) Participation(m Point) (Subscription, bool) {
	i := slices.IndexFunc(d.Moments, func(p Subscription) bool { return p.Moment == m })
	if i < 0 {
		return Subscription{}, false
	}
	return d.Moments[i], true
}

// Config is what Configure carries.
type Config struct {
	HostSocket string // path of the socket on which Host is served
	Node       Node
}

// Node says on which node a hook runs.
type Node struct {
	ID         string
	Name       string
	Datacenter string
	Region     string
	Class      string
	Pool       string
}

// GRPCPlugin is the entry of this service in the plugin set of go-plugin. A
// host leaves both fields nil, and gets a *Client from Dispense.
type GRPCPlugin struct {
	plugin.NetRPCUnsupportedPlugin
	Impl Plugin
	Hook any // has the moments
}

var _ plugin.GRPCPlugin = (*GRPCPlugin)(nil)

// GRPCServer registers Impl and Hook.
func (p *GRPCPlugin) GRPCServer(_ *plugin.GRPCBroker, s *grpc.Server) error {
	RegisterServer(s, p.Impl, p.Hook)
	return nil
}

// GRPCClient is called by Dispense; go-plugin ends ctx when the process has gone.
func (p *GRPCPlugin) GRPCClient(ctx context.Context, _ *plugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return NewClient(conn, ctx.Done()), nil
}
