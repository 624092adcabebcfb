package hookwire

import (
	"context"

	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// PluginName is the key of GRPCPlugin in a go-plugin PluginSet.
const PluginName = "hook"

// GRPCPlugin is the value for PluginName in a go-plugin PluginSet: it registers the server of the service Hook in a
// plugin, and creates the client in a host. A host leaves both fields nil, and gets a *Client from Dispense.
type GRPCPlugin struct {
	plugin.NetRPCUnsupportedPlugin
	Impl         hook.Plugin
	PointHandler any // implements the interfaces of the hook points at which it is called
}

var _ plugin.GRPCPlugin = (*GRPCPlugin)(nil)

// GRPCServer registers Impl and PointHandler.
func (p *GRPCPlugin) GRPCServer(_ *plugin.GRPCBroker, s *grpc.Server) error {
	RegisterServer(s, p.Impl, p.PointHandler)
	return nil
}

// GRPCClient returns a client of the hook. Dispense calls it with a ctx that go-plugin ends when the plugin process
// has exited.
func (p *GRPCPlugin) GRPCClient(ctx context.Context, _ *plugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return NewClient(conn, ctx.Done()), nil
}
