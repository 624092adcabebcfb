package hookwire

import (
	"context"

	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// PluginName is the key of GRPCPlugin in a plugin set.
const PluginName = "hook"

// GRPCPlugin is the entry of this service in the plugin set of go-plugin. A
// host leaves both fields nil, and gets a *Client from Dispense.
type GRPCPlugin struct {
	plugin.NetRPCUnsupportedPlugin
	Impl hook.Plugin
	Hook any // Hook: implements the interfaces of the hook points
}

var _ plugin.GRPCPlugin = (*GRPCPlugin)(nil)

// GRPCServer registers Impl and Hook.
func (p *GRPCPlugin) GRPCServer(_ *plugin.GRPCBroker, s *grpc.Server) error {
	RegisterServer(s, p.Impl, p.Hook)
	return nil
}

// GRPCClient is called by Dispense; go-plugin ends ctx when the process has exited.
func (p *GRPCPlugin) GRPCClient(ctx context.Context, _ *plugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return NewClient(conn, ctx.Done()), nil
}
