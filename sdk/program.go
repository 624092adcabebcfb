package sdk

import (
	"fmt"
	"reflect"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// pluginSpec is an author's value as a plugin of its kind.
type pluginSpec struct {
	kind       string // name of the kind in messages
	otherHosts string // other hosts that support this kind, as a sentence
	info       Info
	// serve makes the service of the plugin itself.
	serve func(hclog.Logger) service
	// relay makes a service that passes every call on to conn.
	relay func(conn grpc.ClientConnInterface, gone <-chan struct{}) service
}

// service is one plugin service with its name.
type service struct {
	base base.Plugin
	name string // key in a plugin set
	glue pluginEntry
	busy func() bool // reports whether the service has state to lose
}

// pluginEntry is an entry of a plugin set.
type pluginEntry interface {
	plugin.Plugin
	plugin.GRPCPlugin
}

func (s service) register(g *grpc.Server) error {
	base.RegisterServer(g, s.base)
	return s.glue.GRPCServer(nil, g)
}

// programOf detects the kind of a value.
func programOf(impl Plugin) (*pluginSpec, error) {
	info := infoOf(impl)
	if err := info.check(); err != nil {
		return nil, err
	}
	if _, ok := impl.(Configurer); !ok && info.ConfigSchema != nil {
		return nil, fmt.Errorf("Info of %T has a ConfigSchema, and nothing takes the configuration: add Configure(context.Context, *sdk.Config) error", impl)
	}
	isDriver := reflect.ValueOf(impl).MethodByName("Start").IsValid()
	isHook := len(hook.PointsOf(impl)) > 0
	if isDriver && isHook {
		return nil, fmt.Errorf("%T has the method Start of a driver and those of a hook; a plugin is one of the two", impl)
	}
	if isDriver {
		return driverProgram(impl, info)
	}
	if err := checkMethods(reflect.TypeOf(impl), hookInterfaces); err != nil {
		return nil, err
	}
	if isHook {
		return hookProgram(impl, info)
	}
	return nil, fmt.Errorf("%T takes part in nothing: a hook has a method for at least one hook point, such as Prestart(context.Context, sdk.TaskPrestartRequest) (sdk.TaskPrestartResponse, error), and a driver has Start(context.Context, *sdk.StartRequest) (T, error)", impl)
}

func driverProgram(impl Plugin, info Info) (*pluginSpec, error) {
	if info.AttachmentSchema != nil || info.AllAllocs || info.IncludeAllocJSON || info.ReportsHealth || info.Timeouts != nil {
		return nil, fmt.Errorf("Info of %T, which is a driver, has what only hooks have", impl)
	}
	d, err := newTaskDriver(impl)
	if err != nil {
		return nil, err
	}
	if err := d.checkCapabilities(&info.Capabilities); err != nil {
		return nil, err
	}
	reach := func(b base.Plugin, d driver.Driver, busy func() bool) service {
		return service{b, driver.PluginName, &driver.GRPCPlugin{Impl: d}, busy}
	}
	return &pluginSpec{
		kind:       "task driver",
		otherHosts: " or Nomad",
		info:       info,
		serve: func(logger hclog.Logger) service {
			s := newServer(d, logger)
			return reach(s, s, s.busy)
		},
		relay: func(conn grpc.ClientConnInterface, gone <-chan struct{}) service {
			return reach(base.NewClient(conn, gone), driver.NewClient(conn, gone), always)
		},
	}, nil
}

func hookProgram(impl Plugin, info Info) (*pluginSpec, error) {
	if info.TaskSchema != nil {
		return nil, fmt.Errorf("Info of %T has a TaskSchema, which is for drivers; how a job attaches a hook is said by AttachmentSchema", impl)
	}
	s, err := newHookServer(impl)
	if err != nil {
		return nil, err
	}
	return &pluginSpec{
		kind: "hook",
		info: info,
		serve: func(hclog.Logger) service {
			// Without an agent, a hook's work for a task either continues by itself or not at
			// all, because only an agent reports the state of the task.
			return service{s, hook.PluginName, &hook.GRPCPlugin{Impl: s, Hook: impl}, never}
		},
		relay: func(conn grpc.ClientConnInterface, gone <-chan struct{}) service {
			c := hook.NewClient(conn, gone)
			return service{base.NewClient(conn, gone), hook.PluginName, &hook.GRPCPlugin{Impl: c, Hook: c}, always}
		},
	}, nil
}

func always() bool { return true }
func never() bool  { return false }
