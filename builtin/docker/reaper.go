package docker

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/nomad-lite/nomad-lite/sdk"
)

// reaper removes containers of this agent's tasks that no task of the driver owns, for
// example because the agent lost a record. Containers of agents of other data directories stay.
type reaper struct {
	mu     sync.Mutex
	starts map[string]bool // ids of starts that are in use
	cancel context.CancelFunc
}

// add records a start before its container exists. The first start begins the periodic
// search.
func (r *reaper) add(d *Driver, startID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.starts == nil {
		r.starts = map[string]bool{}
	}
	r.starts[startID] = true
	if id := sdk.DirectoryID(); r.cancel == nil && id != "" {
		var ctx context.Context
		ctx, r.cancel = context.WithCancel(context.Background())
		go r.run(ctx, d, id)
	}
}

func (r *reaper) remove(startID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.starts, startID)
}

func (r *reaper) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cancel != nil {
		r.cancel()
		r.cancel = nil
	}
}

func (r *reaper) run(ctx context.Context, d *Driver, directoryID string) {
	for {
		config, engine, err := d.current()
		if err != nil || !config.GC.DanglingContainers.Enabled {
			return
		}
		select {
		case <-time.After(config.GC.DanglingContainers.period):
			if err := r.removeDangling(ctx, engine, directoryID, config.GC.DanglingContainers, hclog.Default()); err != nil {
				hclog.Default().Debug("search for containers without a task", "error", err)
			}
		case <-ctx.Done():
			return
		}
	}
}

// removeDangling removes containers that are older than the grace period.
func (r *reaper) removeDangling(ctx context.Context, engine *client.Client, directoryID string, config danglingConfig, logger hclog.Logger) error {
	list, err := engine.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("label", labelStartID, labelDirectoryID+"="+directoryID)})
	if err != nil {
		return err
	}
	for _, c := range list.Items {
		r.mu.Lock()
		owned := r.starts[c.Labels[labelStartID]] || c.Labels[labelDirectoryID] != directoryID
		r.mu.Unlock()
		if owned || time.Since(time.Unix(c.Created, 0)) < config.creationGrace {
			continue
		}
		if config.DryRun {
			logger.Info("container without a task, kept because of dry_run", "container_id", c.ID, "task", c.Labels[labelTaskName], "alloc_id", c.Labels[labelAllocID])
			continue
		}
		if err := r.removeNetwork(ctx, engine, &c); err != nil {
			return err
		}
		logger.Warn("removing container without a task", "container_id", c.ID, "task", c.Labels[labelTaskName], "alloc_id", c.Labels[labelAllocID])
		if _, err := engine.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true}); err != nil && !isGone(err) {
			return err
		}
	}
	return nil
}

// removeNetwork removes the container that holds the network of a container without a task,
// unless another task of the allocation is in use.
func (r *reaper) removeNetwork(ctx context.Context, engine *client.Client, c *container.Summary) error {
	id, ok := strings.CutPrefix(c.HostConfig.NetworkMode, "container:")
	allocID := c.Labels[labelAllocID]
	if !ok || r.hasAlloc(allocID) {
		return nil
	}
	return removeNetworkContainer(ctx, engine, id, allocID)
}

// hasAlloc reports whether a start of the allocation is in use.
func (r *reaper) hasAlloc(allocID string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.starts {
		if strings.HasPrefix(id, allocID+"/") {
			return true
		}
	}
	return false
}
