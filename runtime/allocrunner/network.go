package allocrunner

import (
	"context"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// networkHook returns the hook for the network of the allocation, nil if its tasks use the network
// of the host.
func (b *hookBuilder) networkHook() hooks.Hook {
	network := model.GroupNetwork(b.config.Alloc.GetTaskGroup())
	if network == nil || b.config.Host.Networks == nil {
		return nil
	}
	tasks := make([]hooks.NetworkTask, len(b.tasks))
	for i, t := range b.tasks {
		tasks[i] = hooks.NetworkTask{Name: t.Name(), Driver: t.Task().Driver, Capabilities: func(ctx context.Context) (driver.Capabilities, error) {
			err := t.Prepare(ctx)
			return t.Capabilities(), err
		}}
	}
	return hooks.NewNetwork(hooks.NetworkConfig{
		Manager:   b.config.Host.Networks,
		Network:   network,
		Hostname:  func() string { return b.hooks.envBuilders.allocEnv().Replace(network.Hostname) },
		Tasks:     tasks,
		Reuse:     b.config.Restored && !b.config.Rebooted,
		Set:       b.setNetworkIsolation,
		EmitEvent: b.tasks.emitEvent,
	})
}

// restoreNetwork passes the network that an earlier agent has created to the tasks, because an
// allocation that is being stopped calls no Prerun hook before its poststop tasks.
func (b *hookBuilder) restoreNetwork() {
	if b.config.Host.Networks != nil && !b.config.Rebooted && model.GroupNetwork(b.config.Alloc.GetTaskGroup()) != nil {
		b.setNetworkIsolation(b.config.Host.Networks.Existing(b.config.Alloc.ID))
	}
}

func (b *hookBuilder) setNetworkIsolation(isolation *driver.NetworkIsolation) {
	for _, t := range b.tasks {
		t.SetNetworkIsolation(isolation)
	}
}
