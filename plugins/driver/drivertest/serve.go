package drivertest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"
	plugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/nomad-lite/nomad-lite/hclspec/specpb"
	"github.com/nomad-lite/nomad-lite/plugins/proto/basepb"
	"github.com/nomad-lite/nomad-lite/plugins/proto/driverpb"
)

// Main is the main function of a plugin: `PROGRAM DIALECT [NAME FILE]` serves a driver of the dialect until the host
// stops it. With NAME and FILE, the driver has that name, and has the faults in FILE as long as FILE exists.
// A driver of the dialect Skeleton starts its own executable with the argument "executor".
func Main() {
	if len(os.Args) > 1 && os.Args[1] == executorArg {
		exitOnError(runExecutor())
		return
	}
	if len(os.Args) != 2 && len(os.Args) != 4 {
		exitOnError(errors.New("usage: wire-driver dialect [name file]"))
	}
	d := newProtocolDialectDriver(ProtocolDialect(os.Args[1]))
	if len(os.Args) == 4 {
		d.name, d.faultFile = os.Args[2], faultFilePath(os.Args[3])
	}
	if d.dialect == Old {
		exitOnError(d.serveWithoutGoPlugin())
		return
	}
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: plugin.HandshakeConfig{
			ProtocolVersion: 2, MagicCookieKey: "NOMAD_PLUGIN_MAGIC_COOKIE",
			MagicCookieValue: "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255",
		},
		Plugins: plugin.PluginSet{"driver": &grpcServicesPlugin{driver: d}},
		GRPCServer: func(options []grpc.ServerOption) *grpc.Server {
			return grpc.NewServer(append(options, d.faultInjectingServerOptions()...)...)
		},
		Logger: hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, JSONFormat: true, Output: stderr}),
	})
}

func exitOnError(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// stderr is the standard error of the process. go-plugin replaces os.Stderr while it serves.
var stderr = os.Stderr

// serveWithoutGoPlugin serves the driver without go-plugin's server, and so without its services broker, stdio and
// controller.
func (d *protocolDialectDriver) serveWithoutGoPlugin() error {
	dir, err := os.MkdirTemp("", "wire-driver")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	listener, err := net.Listen("unix", filepath.Join(dir, "plugin"))
	if err != nil {
		return err
	}
	server := grpc.NewServer(d.faultInjectingServerOptions()...)
	healthServer := health.NewServer()
	healthServer.SetServingStatus("plugin", healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(server, healthServer)
	d.registerServices(server)
	fmt.Printf("1|2|unix|%s|grpc\n", listener.Addr())
	return server.Serve(listener)
}

// grpcServicesPlugin registers the services with go-plugin's server.
type grpcServicesPlugin struct {
	plugin.NetRPCUnsupportedPlugin
	driver *protocolDialectDriver
}

func (p *grpcServicesPlugin) GRPCServer(_ *plugin.GRPCBroker, server *grpc.Server) error {
	p.driver.registerServices(server)
	return nil
}

func (*grpcServicesPlugin) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, errors.New("this program has no client")
}

func (d *protocolDialectDriver) registerServices(server *grpc.Server) {
	basepb.RegisterBasePluginServer(server, d)
	driverpb.RegisterDriverServer(server, d)
}

// PluginInfo implements the gRPC service BasePlugin, like ConfigSchema and SetConfig.
func (d *protocolDialectDriver) PluginInfo(context.Context, *basepb.PluginInfoRequest) (*basepb.PluginInfoResponse, error) {
	return &basepb.PluginInfoResponse{
		Type: basepb.PluginType_DRIVER, PluginApiVersions: []string{"v0.1.0"}, PluginVersion: "v0.1.0", Name: d.name,
	}, nil
}

func (d *protocolDialectDriver) ConfigSchema(context.Context, *basepb.ConfigSchemaRequest) (*basepb.ConfigSchemaResponse, error) {
	return &basepb.ConfigSchemaResponse{Spec: singleAttrSpec("label", false)}, nil
}

func singleAttrSpec(attr string, required bool) *specpb.Spec {
	return &specpb.Spec{Block: &specpb.Spec_Object{Object: &specpb.Object{Attributes: map[string]*specpb.Spec{
		attr: {Block: &specpb.Spec_Attr{Attr: &specpb.Attr{Name: attr, Type: "string", Required: required}}},
	}}}}
}

func (d *protocolDialectDriver) SetConfig(_ context.Context, r *basepb.SetConfigRequest) (*basepb.SetConfigResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch d.dialect {
	case Skeleton:
		host := r.NomadConfig.Driver // panics if the host sends none, as the template does
		d.executorPorts = portRange{host.ClientMinPort, host.ClientMaxPort}
	case Newest:
		d.topologyCoreCount = len(r.GetNomadConfig().GetDriver().GetTopology().GetCores())
	}
	return &basepb.SetConfigResponse{}, nil
}
