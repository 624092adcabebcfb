package basewire

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/hclspec/specwire"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/proto/basepb"
)

// NewClient returns the host's client of a plugin; processExited must be closed when the plugin
// process has exited. A spec or a configuration that is absent on the wire is nil.
func NewClient(conn grpc.ClientConnInterface, processExited <-chan struct{}) base.Plugin {
	c := NewConn(conn, processExited)
	return &client{conn: c, pb: basepb.NewBasePluginClient(c)}
}

type client struct {
	conn *Conn
	pb   basepb.BasePluginClient
}

func (c *client) PluginInfo(ctx context.Context) (*base.Info, error) {
	resp, err := c.pb.PluginInfo(ctx, &basepb.PluginInfoRequest{})
	if err != nil {
		return nil, c.conn.ConvertErr(ctx, err)
	}
	return &base.Info{
		Type:        base.Type(resp.GetType()),
		APIVersions: resp.GetPluginApiVersions(),
		Version:     resp.GetPluginVersion(),
		Name:        resp.GetName(),
	}, nil
}

func (c *client) ConfigSchema(ctx context.Context) (*hclspec.Spec, error) {
	resp, err := c.pb.ConfigSchema(ctx, &basepb.ConfigSchemaRequest{})
	if err != nil {
		return nil, c.conn.ConvertErr(ctx, err)
	}
	spec, err := specwire.FromProto(resp.GetSpec())
	if err != nil {
		return nil, fmt.Errorf("config schema: %w", err)
	}
	return spec, nil
}

func (c *client) SetConfig(ctx context.Context, config *base.Config) error {
	req := &basepb.SetConfigRequest{MsgpackConfig: config.MsgpackConfig, PluginApiVersion: config.APIVersion}
	if config.Driver != nil {
		req.NomadConfig = &basepb.NomadConfig{Driver: driverConfigProto(config.Driver)}
	}
	_, err := c.pb.SetConfig(ctx, req)
	return c.conn.ConvertErr(ctx, err)
}

// RegisterServer registers the plugin's server on s.
func RegisterServer(s grpc.ServiceRegistrar, impl base.Plugin) {
	basepb.RegisterBasePluginServer(s, &server{impl: impl})
}

type server struct {
	basepb.UnimplementedBasePluginServer
	impl base.Plugin
}

func (s *server) PluginInfo(ctx context.Context, _ *basepb.PluginInfoRequest) (*basepb.PluginInfoResponse, error) {
	info, err := s.impl.PluginInfo(ctx)
	if err != nil {
		return nil, err
	}
	return &basepb.PluginInfoResponse{
		Type:              basepb.PluginType(info.Type),
		PluginApiVersions: info.APIVersions,
		PluginVersion:     info.Version,
		Name:              info.Name,
	}, nil
}

func (s *server) ConfigSchema(ctx context.Context, _ *basepb.ConfigSchemaRequest) (*basepb.ConfigSchemaResponse, error) {
	spec, err := s.impl.ConfigSchema(ctx)
	if err != nil {
		return nil, err
	}
	return &basepb.ConfigSchemaResponse{Spec: specwire.Proto(spec)}, nil
}

func (s *server) SetConfig(ctx context.Context, req *basepb.SetConfigRequest) (*basepb.SetConfigResponse, error) {
	config := &base.Config{
		MsgpackConfig: req.GetMsgpackConfig(),
		APIVersion:    req.GetPluginApiVersion(),
		Driver:        driverConfigFromProto(req.GetNomadConfig().GetDriver()),
	}
	if err := s.impl.SetConfig(ctx, config); err != nil {
		// The prefix "SetConfig failed" is part of the protocol: hosts and their tests
		// search for it.
		return nil, fmt.Errorf("SetConfig failed: %w", err)
	}
	return &basepb.SetConfigResponse{}, nil
}

func driverConfigProto(c *base.ClientDriverConfig) *basepb.NomadDriverConfig {
	return &basepb.NomadDriverConfig{
		ClientMaxPort: c.ClientMaxPort,
		ClientMinPort: c.ClientMinPort,
		Topology:      topologyProto(c.Topology),
	}
}

func driverConfigFromProto(p *basepb.NomadDriverConfig) *base.ClientDriverConfig {
	if p == nil {
		return nil
	}
	return &base.ClientDriverConfig{
		ClientMaxPort: p.GetClientMaxPort(),
		ClientMinPort: p.GetClientMinPort(),
		Topology:      topologyFromProto(p.GetTopology()),
	}
}

func topologyProto(t *base.Topology) *basepb.ClientTopology {
	if t == nil {
		return nil
	}
	p := &basepb.ClientTopology{
		NodeIds:                t.NodeIDs,
		Distances:              &basepb.ClientTopologySLIT{Dimension: uint32(len(t.Distances))},
		OverrideTotalCompute:   t.OverrideTotalCompute,
		OverrideWitholdCompute: t.OverrideWithholdCompute,
	}
	for _, row := range t.Distances {
		// Each row is padded to the same length, because the message has the values of all
		// rows in one list.
		full := make([]uint32, len(t.Distances))
		copy(full, row)
		p.Distances.Values = append(p.Distances.Values, full...)
	}
	for _, core := range t.Cores {
		p.Cores = append(p.Cores, &basepb.ClientTopologyCore{
			SocketId:   core.SocketID,
			NodeId:     core.NodeID,
			CoreId:     core.CoreID,
			CoreGrade:  basepb.CoreGrade(core.Grade),
			Disable:    core.Disable,
			BaseSpeed:  core.BaseSpeed,
			MaxSpeed:   core.MaxSpeed,
			GuessSpeed: core.GuessSpeed,
		})
	}
	return p
}

func topologyFromProto(p *basepb.ClientTopology) *base.Topology {
	if p == nil {
		return nil
	}
	t := &base.Topology{
		NodeIDs:                 p.GetNodeIds(),
		OverrideTotalCompute:    p.GetOverrideTotalCompute(),
		OverrideWithholdCompute: p.GetOverrideWitholdCompute(),
	}
	// The length of the list limits the number of rows, because a message can have any
	// dimension.
	values, width := p.GetDistances().GetValues(), int(p.GetDistances().GetDimension())
	for len(t.Distances) < width && len(values) >= width {
		t.Distances = append(t.Distances, values[:width:width])
		values = values[width:]
	}
	for _, core := range p.GetCores() {
		t.Cores = append(t.Cores, base.Core{
			SocketID:   core.GetSocketId(),
			NodeID:     core.GetNodeId(),
			CoreID:     core.GetCoreId(),
			Grade:      base.CoreGrade(core.GetCoreGrade()),
			Disable:    core.GetDisable(),
			BaseSpeed:  core.GetBaseSpeed(),
			MaxSpeed:   core.GetMaxSpeed(),
			GuessSpeed: core.GetGuessSpeed(),
		})
	}
	return t
}
