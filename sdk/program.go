package sdk

import (
	"os"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/device/devicewire"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/driver/driverwire"
	"github.com/nomad-lite/nomad-lite/plugins/hook/hookwire"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
)

// pluginSpec describes an author's driver, hook or device plugin.
type pluginSpec struct {
	kindName              string // kind of the plugin in messages, such as "task driver"
	compatibleHostsSuffix string // " or Nomad" if Nomad also supports this kind, for messages; else empty
	pluginIdentity
	// newService makes the service that calls the author's methods.
	newService func(hclog.Logger) pluginService
	// newDebugProxy makes a service that passes every call on to conn, the connection to a process that runs under a
	// debugger. gone is closed when that process has exited.
	newDebugProxy func(conn grpc.ClientConnInterface, gone <-chan struct{}) pluginService
}

// pluginService is one plugin service with its name.
type pluginService struct {
	basePlugin          base.Plugin
	pluginSetKey        string // key in a plugin set
	grpcPlugin          pluginSetEntry
	isNeededWithoutHost func() bool // isNeededWithoutHost reports whether the process must not exit, although no host is connected
}

// pluginSetEntry is an entry of a plugin set.
type pluginSetEntry interface {
	plugin.Plugin
	plugin.GRPCPlugin
}

func (s pluginService) registerGRPC(g *grpc.Server) error {
	basewire.RegisterServer(g, s.basePlugin)
	return s.grpcPlugin.GRPCServer(nil, g)
}

func newDriverSpec[T Task](impl Driver[T]) (*pluginSpec, error) {
	info := impl.Info()
	id, err := newPluginIdentity(impl, info.Name, info.Version, info.ConfigSchema)
	if err != nil {
		return nil, err
	}
	if err := validateInfoSchema("TaskSchema", info.TaskSchema); err != nil {
		return nil, err
	}
	d, err := newUntypedDriver(impl)
	if err != nil {
		return nil, err
	}
	if err := d.checkCapabilities(&info.Capabilities); err != nil {
		return nil, err
	}
	newService := func(b base.Plugin, d driver.Driver, busy func() bool) pluginService {
		return pluginService{b, driverwire.PluginName, &driverwire.GRPCPlugin{Impl: d}, busy}
	}
	return &pluginSpec{
		kindName:              "task driver",
		compatibleHostsSuffix: " or Nomad",
		pluginIdentity:        id,
		newService: func(logger hclog.Logger) pluginService {
			s := newDriverServer(d, id, info, logger)
			if socket := os.Getenv(keeper.EnvSocket); socket != "" { // Nomad has no keeper
				s.hostIsNomadLite = true
				// Without the directory, only the keeper notices its removal.
				s.dataDir, _ = keeper.OpenDataDirOfSocket(socket)
			}
			return newService(s, s, s.isNeededWithoutHost)
		},
		newDebugProxy: func(conn grpc.ClientConnInterface, gone <-chan struct{}) pluginService {
			return newService(basewire.NewClient(conn, gone), driverwire.NewClient(conn, gone), alwaysNeededWithoutHost)
		},
	}, nil
}

func newHookSpec(impl Hook) (*pluginSpec, error) {
	info := impl.Info()
	id, err := newPluginIdentity(impl, info.Name, info.Version, info.ConfigSchema)
	if err != nil {
		return nil, err
	}
	s, err := newHookServer(impl, id, info)
	if err != nil {
		return nil, err
	}
	return &pluginSpec{
		kindName:       "hook",
		pluginIdentity: id,
		newService: func(hclog.Logger) pluginService {
			// A hook is never busy: without an agent, no hook point is called, and a task loses
			// nothing when the process of a hook exits.
			return pluginService{s, hookwire.PluginName, &hookwire.GRPCPlugin{Impl: s, PointHandler: impl}, neverNeededWithoutHost}
		},
		newDebugProxy: func(conn grpc.ClientConnInterface, gone <-chan struct{}) pluginService {
			c := hookwire.NewClient(conn, gone)
			return pluginService{basewire.NewClient(conn, gone), hookwire.PluginName, &hookwire.GRPCPlugin{Impl: c, PointHandler: c}, alwaysNeededWithoutHost}
		},
	}, nil
}

func newDeviceSpec(impl Device) (*pluginSpec, error) {
	info := impl.Info()
	id, err := newPluginIdentity(impl, info.Name, info.Version, info.ConfigSchema)
	if err != nil {
		return nil, err
	}
	s, err := newDeviceServer(impl, id, info)
	if err != nil {
		return nil, err
	}
	return &pluginSpec{
		kindName:              "device",
		compatibleHostsSuffix: " or Nomad",
		pluginIdentity:        id,
		newService: func(logger hclog.Logger) pluginService {
			s.logger = logger
			// A device plugin is never busy: a reservation lasts without the process of the plugin.
			return pluginService{s, devicewire.PluginName, &devicewire.GRPCPlugin{Impl: s}, neverNeededWithoutHost}
		},
		newDebugProxy: func(conn grpc.ClientConnInterface, gone <-chan struct{}) pluginService {
			c := devicewire.NewClient(id.name, conn, gone)
			return pluginService{basewire.NewClient(conn, gone), devicewire.PluginName, &devicewire.GRPCPlugin{Impl: c}, alwaysNeededWithoutHost}
		},
	}, nil
}

func alwaysNeededWithoutHost() bool { return true }
func neverNeededWithoutHost() bool  { return false }
