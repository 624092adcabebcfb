package sdk

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// hookServer implements hook.Plugin and base.Plugin with an author's hook.
type hookServer struct {
	basePlugin
	description *hook.Description

	mu   sync.Mutex
	host *hook.HostClient // nil before Configure, and if the author does not call the host
}

var (
	_ hook.Plugin = (*hookServer)(nil)
	_ base.Plugin = (*hookServer)(nil)
)

// newHookServer requires a value with at least one hook point.
func newHookServer(impl Plugin) (*hookServer, error) {
	s := &hookServer{basePlugin: newBasePlugin(impl, base.TypeHook, hook.APIVersion)}
	s.description = &hook.Description{AllAllocs: s.info.AllAllocs, Schema: s.info.AttachmentSchema, IncludeAllocJSON: s.info.IncludeAllocJSON, ReportsHealth: s.info.ReportsHealth}
	for _, point := range hook.PointsOf(impl) {
		s.description.Subscriptions = append(s.description.Subscriptions, hook.Subscription{Point: point, Timeout: s.info.Timeouts[point]})
	}
	for point, timeout := range s.info.Timeouts {
		if _, ok := s.description.Subscription(point); !ok {
			return nil, fmt.Errorf("Info has a timeout for %v, and %T takes no part in that", point, impl)
		}
		if timeout <= 0 {
			return nil, fmt.Errorf("the timeout for %v in Info is %v; leave it out to have the host's", point, timeout)
		}
	}
	if _, ok := impl.(HostSetter); !ok && s.info.ReportsHealth {
		return nil, fmt.Errorf("Info says ReportsHealth, and %T has no SetHost(sdk.Host, sdk.Node): it could never say that an allocation is healthy", impl)
	}
	return s, nil
}

func (s *hookServer) Describe(context.Context) (*hook.Description, error) { return s.description, nil }

// Configure passes the host to the author once: the client connects to later agents by
// itself.
func (s *hookServer) Configure(_ context.Context, c hook.Config) error {
	user, ok := s.impl.(HostSetter)
	if !ok {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.host != nil {
		s.host.Move(c.HostSocket)
		return nil
	}
	if c.HostSocket == "" {
		return errors.New("the host has no socket for what hooks ask for")
	}
	host, err := hook.DialHost(c.HostSocket)
	if err != nil {
		return err
	}
	s.host = host
	return authorSetHost(user, host, c.Node)
}
