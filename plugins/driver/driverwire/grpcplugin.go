package driverwire

import (
	"context"

	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// PluginName is the key of GRPCPlugin in a plugin set.
const PluginName = "driver"

// GRPCPlugin is the entry of this service in the plugin set of go-plugin. A
// host leaves Impl nil, and gets a Driver from Dispense.
type GRPCPlugin struct {
	plugin.NetRPCUnsupportedPlugin
	Impl driver.Driver
}

var _ plugin.GRPCPlugin = (*GRPCPlugin)(nil)

// GRPCServer registers Impl.
func (p *GRPCPlugin) GRPCServer(_ *plugin.GRPCBroker, s *grpc.Server) error {
	RegisterServer(s, p.Impl)
	return nil
}

// GRPCClient is called by Dispense; go-plugin ends ctx when the process has exited.
func (p *GRPCPlugin) GRPCClient(ctx context.Context, _ *plugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return NewClient(conn, ctx.Done()), nil
}
