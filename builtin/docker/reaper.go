package docker

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// reaper removes containers of this agent's tasks that no task of the driver owns, for example
// because the agent lost a record. It does not remove containers of agents with another data
// directory.
type reaper struct {
	mu            sync.Mutex
	startIDsInUse map[string]bool // IDs of the starts that a task of the driver uses
	cancelReaping context.CancelFunc
}

// registerStartAndBeginReaping records a start before its container exists, or before its container is searched for.
// The first start begins the periodic search.
func (r *reaper) registerStartAndBeginReaping(d *Driver, startID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.startIDsInUse == nil {
		r.startIDsInUse = map[string]bool{}
	}
	r.startIDsInUse[startID] = true
	if id := sdk.DataDirectoryID(); r.cancelReaping == nil && id != "" {
		var ctx context.Context
		ctx, r.cancelReaping = context.WithCancel(context.Background())
		go r.reapPeriodically(ctx, d, id)
	}
}

func (r *reaper) unregisterStart(startID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.startIDsInUse, startID)
}

// unregisterUnlessRecoverable unregisters a start whose container was not found, because of err. After a recoverable
// error the start stays registered: the host searches again, and the container may run.
func (r *reaper) unregisterUnlessRecoverable(startID string, err error) {
	if err != nil && !driver.IsRecoverable(err) {
		r.unregisterStart(startID)
	}
}

func (r *reaper) stopReaping() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cancelReaping != nil {
		r.cancelReaping()
		r.cancelReaping = nil
	}
}

func (r *reaper) reapPeriodically(ctx context.Context, d *Driver, directoryID string) {
	for {
		config, engine, err := d.currentConfigAndClient()
		if err != nil || !config.GC.DanglingContainers.Enabled {
			return
		}
		select {
		case <-time.After(config.GC.DanglingContainers.period):
			if err := r.removeDanglingContainers(ctx, engine, directoryID, config.GC.DanglingContainers, hclog.Default()); err != nil {
				hclog.Default().Debug("search for containers without a task", "error", err)
			}
		case <-ctx.Done():
			return
		}
	}
}

// removeDanglingContainers removes containers that are older than the grace period.
func (r *reaper) removeDanglingContainers(ctx context.Context, engine *client.Client, directoryID string, config danglingContainerConfig, logger hclog.Logger) error {
	list, err := engine.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("label", labelStartID, labelDirectoryID+"="+directoryID)})
	if err != nil {
		return err
	}
	for _, c := range list.Items {
		r.mu.Lock()
		owned := r.startIDsInUse[c.Labels[labelStartID]] || c.Labels[labelDirectoryID] != directoryID
		r.mu.Unlock()
		if owned || time.Since(time.Unix(c.Created, 0)) < config.creationGrace {
			continue
		}
		if config.DryRun {
			logger.Info("container without a task, kept because of dry_run", "container_id", c.ID, "task", c.Labels[labelTaskName], "alloc_id", c.Labels[labelAllocID])
			continue
		}
		if err := r.removeUnusedGroupNetwork(ctx, engine, &c); err != nil {
			return err
		}
		logger.Warn("removing container without a task", "container_id", c.ID, "task", c.Labels[labelTaskName], "alloc_id", c.Labels[labelAllocID])
		if _, err := engine.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true}); err != nil && !isContainerGone(err) {
			return err
		}
	}
	return nil
}

// removeUnusedGroupNetwork removes the container that holds the network of a container without a task,
// unless another task of the allocation is in use.
func (r *reaper) removeUnusedGroupNetwork(ctx context.Context, engine *client.Client, c *container.Summary) error {
	id, ok := strings.CutPrefix(c.HostConfig.NetworkMode, "container:")
	allocID := c.Labels[labelAllocID]
	if !ok || r.hasStartOfAlloc(allocID) {
		return nil
	}
	return removeGroupNetworkContainer(ctx, engine, id, allocID)
}

// hasStartOfAlloc reports whether a start of the allocation is in use.
func (r *reaper) hasStartOfAlloc(allocID string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.startIDsInUse {
		if strings.HasPrefix(id, allocID+"/") {
			return true
		}
	}
	return false
}
