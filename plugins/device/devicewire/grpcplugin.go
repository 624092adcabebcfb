package devicewire

import (
	"context"

	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/nomad-lite/nomad-lite/plugins/device"
)

// PluginName is the key of GRPCPlugin in a go-plugin PluginSet.
const PluginName = "device"

// GRPCPlugin is the value for PluginName in a go-plugin PluginSet: it registers the server of the service DevicePlugin
// in a plugin, and creates the client in a host. A host leaves Impl nil, and gets a device.Plugin from Dispense.
type GRPCPlugin struct {
	plugin.NetRPCUnsupportedPlugin
	Impl device.Plugin
	Name string // name of the plugin, for the error texts of the client
}

var _ plugin.GRPCPlugin = (*GRPCPlugin)(nil)

// GRPCServer registers Impl.
func (p *GRPCPlugin) GRPCServer(_ *plugin.GRPCBroker, s *grpc.Server) error {
	RegisterServer(s, p.Impl)
	return nil
}

// GRPCClient returns a client of the device plugin. Dispense calls it with a ctx that go-plugin ends when the plugin
// process has exited.
func (p *GRPCPlugin) GRPCClient(ctx context.Context, _ *plugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return NewClient(p.Name, conn, ctx.Done()), nil
}
