package sdk

import (
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// pluginSpec is an author's value as a plugin of its kind.
type pluginSpec struct {
	kind            string // name of the kind in messages
	compatibleHosts string // other hosts that support this kind, as a sentence
	identity
	// newService makes the service of the plugin itself.
	newService func(hclog.Logger) service
	// newDebugProxy makes a service that passes every call on to conn, a process under debug.
	newDebugProxy func(conn grpc.ClientConnInterface, gone <-chan struct{}) service
}

// service is one plugin service with its name.
type service struct {
	base       base.Plugin
	name       string // key in a plugin set
	grpcPlugin pluginSetEntry
	isBusy     func() bool // reports whether the service has state to lose
}

// pluginSetEntry is an entry of a plugin set.
type pluginSetEntry interface {
	plugin.Plugin
	plugin.GRPCPlugin
}

func (s service) register(g *grpc.Server) error {
	base.RegisterServer(g, s.base)
	return s.grpcPlugin.GRPCServer(nil, g)
}

func newDriverSpec[T Task](impl Driver[T]) (*pluginSpec, error) {
	info := impl.Info()
	id, err := newIdentity(impl, info.Name, info.Version, info.ConfigSchema)
	if err != nil {
		return nil, err
	}
	if err := checkSchema("TaskSchema", info.TaskSchema); err != nil {
		return nil, err
	}
	d, err := newTaskDriver(impl)
	if err != nil {
		return nil, err
	}
	if err := d.checkCapabilities(&info.Capabilities); err != nil {
		return nil, err
	}
	newService := func(b base.Plugin, d driver.Driver, busy func() bool) service {
		return service{b, driver.PluginName, &driver.GRPCPlugin{Impl: d}, busy}
	}
	return &pluginSpec{
		kind:            "task driver",
		compatibleHosts: " or Nomad",
		identity:        id,
		newService: func(logger hclog.Logger) service {
			s := newServer(d, id, info, logger)
			return newService(s, s, s.isBusy)
		},
		newDebugProxy: func(conn grpc.ClientConnInterface, gone <-chan struct{}) service {
			return newService(base.NewClient(conn, gone), driver.NewClient(conn, gone), alwaysBusy)
		},
	}, nil
}

func newHookSpec(impl Hook) (*pluginSpec, error) {
	info := impl.Info()
	id, err := newIdentity(impl, info.Name, info.Version, info.ConfigSchema)
	if err != nil {
		return nil, err
	}
	s, err := newHookServer(impl, id, info)
	if err != nil {
		return nil, err
	}
	return &pluginSpec{
		kind:     "hook",
		identity: id,
		newService: func(hclog.Logger) service {
			// Without an agent, a hook's work for a task either continues by itself or not at
			// all, because only an agent reports the state of the task.
			return service{s, hook.PluginName, &hook.GRPCPlugin{Impl: s, Hook: impl}, neverBusy}
		},
		newDebugProxy: func(conn grpc.ClientConnInterface, gone <-chan struct{}) service {
			c := hook.NewClient(conn, gone)
			return service{base.NewClient(conn, gone), hook.PluginName, &hook.GRPCPlugin{Impl: c, Hook: c}, alwaysBusy}
		},
	}, nil
}

func alwaysBusy() bool { return true }
func neverBusy() bool  { return false }
