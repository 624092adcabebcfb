package builtinhooks

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

var (
	_ hook.AllocPrerun  = (*NetworkHook)(nil)
	_ hook.AllocPostrun = (*NetworkHook)(nil)
)

// NetworkManager creates and destroys allocation networks; network.Manager implements it.
type NetworkManager interface {
	ActiveNetwork(allocID string) *state.AllocNetwork
	Create(ctx context.Context, request state.AllocNetwork, reportOutage func(error)) (*state.AllocNetwork, error)
	Destroy(ctx context.Context, allocID string) error
}

// NetworkTask is a task in an allocation with a network.
type NetworkTask struct {
	Name, Driver string
	// DriverCapabilities returns the driver's capabilities. It may block while the driver starts.
	DriverCapabilities func(context.Context) (driver.Capabilities, error)
}

// NetworkHookConfig configures the hook for one allocation.
type NetworkHookConfig struct {
	Manager    NetworkManager
	NewRequest func() state.AllocNetwork // returns the job's request, interpolated, without the driver
	Tasks      []NetworkTask
	// ReuseExisting means that a network created by an earlier agent still exists.
	ReuseExisting bool
	SetNetwork    func(*state.AllocNetwork) // passes the network to all tasks; nil means no isolation
	EmitEvent     func(*api.TaskEvent)      // emits an event on all tasks
}

// NetworkHook creates an allocation's shared network, and destroys it when the tasks have ended. It is for groups that do not use
// the host network.
type NetworkHook struct {
	hooks.BuiltinHookDefaults
	config NetworkHookConfig
}

// NewNetworkHook returns the hook for one allocation.
func NewNetworkHook(c NetworkHookConfig) *NetworkHook { return &NetworkHook{config: c} }

// Name implements Hook.
func (*NetworkHook) Name() string { return "network" }

// NoDeadline implements Hook: to create a network, a driver may have to pull an image.
func (*NetworkHook) NoDeadline() bool { return true }

// Prerun implements hook.AllocPrerun.
func (n *NetworkHook) Prerun(ctx context.Context, req hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	if existing := n.config.Manager.ActiveNetwork(req.Alloc.ID); existing != nil && n.config.ReuseExisting {
		n.config.SetNetwork(existing)
		return hook.AllocPrerunResponse{}, nil
	}
	request := n.config.NewRequest()
	var err error
	if request.NamespaceDriver, err = n.checkTasksAndFindNetworkDriver(ctx, request.Mode); err != nil {
		return hook.AllocPrerunResponse{}, err
	}
	point := failpoint.EnterStep(failpoint.StepNetwork)
	created, err := n.config.Manager.Create(ctx, request, func(err error) {
		n.config.EmitEvent(model.EventWaitingForDriver(err.Error()))
	})
	point.Leave()
	if err != nil {
		return hook.AllocPrerunResponse{}, err
	}
	n.config.SetNetwork(created)
	return hook.AllocPrerunResponse{}, nil
}

// checkTasksAndFindNetworkDriver returns the driver that creates the namespace, "" if the agent does. It returns an error if a
// task's driver does not support the network mode.
func (n *NetworkHook) checkTasksAndFindNetworkDriver(ctx context.Context, networkMode string) (string, error) {
	var creator *NetworkTask
	for _, task := range n.config.Tasks {
		c, err := task.DriverCapabilities(ctx)
		if err != nil {
			return "", fmt.Errorf("task %s: %w", task.Name, err)
		}
		if !slices.Contains(c.NetworkIsolationModes, driver.NetworkGroup) {
			return "", fmt.Errorf("task %s does not support %q networking mode", task.Name, networkMode)
		}
		// Without root no namespace can be made for the group. Each task needs one from its own driver.
		if networkMode == "none" && os.Geteuid() != 0 && !c.MustCreateNetwork && !slices.Contains(c.NetworkIsolationModes, driver.NetworkNone) {
			return "", fmt.Errorf("task %s does not support %q networking mode under an agent that is not root: run the agent as root, or use a driver such as exec", task.Name, networkMode)
		}
		switch {
		case !c.MustCreateNetwork:
		case creator == nil:
			creator = &task
		case creator.Driver != task.Driver:
			return "", fmt.Errorf("tasks %s and %s want to initiate networking but only one driver can do so", creator.Name, task.Name)
		}
	}
	if creator == nil {
		return "", nil
	}
	return creator.Driver, nil
}

// postrunTimeout limits how long an ending allocation waits for its network.
const postrunTimeout = 10 * time.Second

// Postrun implements hook.AllocPostrun.
func (n *NetworkHook) Postrun(ctx context.Context, req hook.AllocPostrunRequest) (hook.AllocPostrunResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, postrunTimeout)
	defer cancel()
	err := n.config.Manager.Destroy(ctx, req.Alloc.ID)
	if err != nil {
		n.config.EmitEvent(model.EventHookFailed(n.Name(), fmt.Sprintf("postrun: network not destroyed, trying again: %v", err)))
	}
	return hook.AllocPostrunResponse{}, err
}
