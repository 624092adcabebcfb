package sdk

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/hook/hookwire"
)

// hookServer implements hook.Plugin and base.Plugin with an author's hook.
type hookServer struct {
	basePlugin
	description *hook.Description

	mu         sync.Mutex
	hostClient *hookwire.HostClient // nil before Configure, and if the hook has no SetHost method
}

var (
	_ hook.Plugin = (*hookServer)(nil)
	_ base.Plugin = (*hookServer)(nil)
)

// newHookServer returns an error for a hook without a method for a hook point, for a method that looks like
// a method of an optional interface and does not implement it, and for a field of info that has no effect for
// this hook.
func newHookServer(impl Hook, id pluginIdentity, info HookInfo) (*hookServer, error) {
	if err := validateInfoSchema("AttachmentSchema", info.AttachmentSchema); err != nil {
		return nil, err
	}
	if err := checkOptionalMethods(reflect.TypeOf(impl), hookInterfaces); err != nil {
		return nil, err
	}
	points := hook.PointsOf(impl)
	if len(points) == 0 {
		return nil, fmt.Errorf("%T takes part in nothing: a hook has a method for at least one hook point, such as Prestart(context.Context, hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error)", impl)
	}
	s := &hookServer{
		basePlugin: basePlugin{authorPlugin: impl, pluginIdentity: id, pluginType: base.TypeHook, apiVersion: hook.APIVersion},
		description: &hook.Description{
			AllAllocs: info.AllAllocs, AttachmentSchema: info.AttachmentSchema, IncludeAllocJSON: info.IncludeAllocJSON, ReportsHealth: info.ReportsHealth,
		},
	}
	for _, point := range points {
		s.description.Subscriptions = append(s.description.Subscriptions, hook.Subscription{Point: point, Timeout: info.Timeouts[point]})
	}
	for point, timeout := range info.Timeouts {
		if _, ok := s.description.Subscription(point); !ok {
			return nil, fmt.Errorf("%T.Info has a timeout for %v, and %[1]T takes no part in that", impl, point)
		}
		if timeout <= 0 {
			return nil, fmt.Errorf("the timeout for %v in Info is %v; leave it out to have the host's", point, timeout)
		}
	}
	if _, ok := impl.(HostSetter); !ok && info.ReportsHealth {
		return nil, fmt.Errorf("%T.Info says ReportsHealth, and the hook has no SetHost(hook.Host, hook.Node): it could never say that an allocation is healthy", impl)
	}
	return s, nil
}

func (s *hookServer) Describe(context.Context) (*hook.Description, error) { return s.description, nil }

// Configure calls the author's SetHost in the first call. Later calls only connect the
// HostClient to the socket of the agent that now runs.
func (s *hookServer) Configure(_ context.Context, c hook.Config) error {
	user, ok := s.authorPlugin.(HostSetter)
	if !ok {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hostClient != nil {
		s.hostClient.SwitchAgentSocket(c.HostSocket)
		return nil
	}
	if c.HostSocket == "" {
		return errors.New("the host has no socket for what hooks ask for")
	}
	host, err := hookwire.DialHost(c.HostSocket)
	if err != nil {
		return err
	}
	s.hostClient = host
	return callSetHostRecoverPanic(user, host, c.Node)
}
