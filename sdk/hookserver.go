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
	s.description = &hook.Description{EveryAlloc: s.info.EveryAlloc, Schema: s.info.AttachmentSchema, WholeAlloc: s.info.WholeAlloc, DecidesHealth: s.info.DecidesHealth}
	for _, m := range hook.PointsOf(impl) {
		s.description.Moments = append(s.description.Moments, hook.Subscription{Moment: m, Timeout: s.info.Timeouts[m]})
	}
	for m, timeout := range s.info.Timeouts {
		if _, ok := s.description.Participation(m); !ok {
			return nil, fmt.Errorf("Info has a timeout for %v, and %T takes no part in that", m, impl)
		}
		if timeout <= 0 {
			return nil, fmt.Errorf("the timeout for %v in Info is %v; leave it out to have the host's", m, timeout)
		}
	}
	if _, ok := impl.(HostSetter); !ok && s.info.DecidesHealth {
		return nil, fmt.Errorf("Info says DecidesHealth, and %T has no SetHost(sdk.Host, sdk.Node): it could never say that an allocation is healthy", impl)
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
