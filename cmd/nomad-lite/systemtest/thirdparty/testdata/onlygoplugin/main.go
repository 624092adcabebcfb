// Command onlygoplugin serves go-plugin and nothing else. Its size and memory are the baseline for those of plugins.
package main

import (
	"context"

	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
)

func main() {
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: plugin.HandshakeConfig{
			ProtocolVersion:  2,
			MagicCookieKey:   "NOMAD_PLUGIN_MAGIC_COOKIE",
			MagicCookieValue: "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255",
		},
		Plugins:    plugin.PluginSet{"base": &noService{}},
		GRPCServer: plugin.DefaultGRPCServer,
	})
}

// noService registers no service.
type noService struct{ plugin.NetRPCUnsupportedPlugin }

func (*noService) GRPCServer(*plugin.GRPCBroker, *grpc.Server) error { return nil }

func (*noService) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, nil
}
