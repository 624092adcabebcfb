package basewire

import (
	"context"
	"math"

	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/nomad-lite/nomad-lite/plugins/base"
)

// Handshake lets a plugin detect that a host has started it. The values are part of the
// task driver protocol.
var Handshake = plugin.HandshakeConfig{
	ProtocolVersion:  2,
	MagicCookieKey:   "NOMAD_PLUGIN_MAGIC_COOKIE",
	MagicCookieValue: "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255",
}

// PluginName is the key of GRPCPlugin in a go-plugin PluginSet.
const PluginName = "base"

// GRPCPlugin is the value for PluginName in a go-plugin PluginSet: it registers the server of the service base in a
// plugin, and creates the client in a host. A host leaves Impl nil, and gets a base.Plugin from Dispense.
type GRPCPlugin struct {
	plugin.NetRPCUnsupportedPlugin
	Impl base.Plugin
}

var _ plugin.GRPCPlugin = (*GRPCPlugin)(nil)

// GRPCServer registers Impl.
func (p *GRPCPlugin) GRPCServer(_ *plugin.GRPCBroker, s *grpc.Server) error {
	RegisterServer(s, p.Impl)
	return nil
}

// GRPCClient returns a client of the plugin. Dispense calls it with a ctx that go-plugin ends when the plugin process
// has exited.
func (p *GRPCPlugin) GRPCClient(ctx context.Context, _ *plugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return NewClient(conn, ctx.Done()), nil
}

// NewServerWithoutSizeLimits is the GRPCServer of a plugin.ServeConfig. It accepts messages of any size:
// with the library's limit of 4 MiB a task with a large environment does not start.
func NewServerWithoutSizeLimits(opts []grpc.ServerOption) *grpc.Server {
	return grpc.NewServer(append(opts, grpc.MaxRecvMsgSize(math.MaxInt32), grpc.MaxSendMsgSize(math.MaxInt32))...)
}
