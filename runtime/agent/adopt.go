package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/orphans"
)

// newAdoption returns how allocations missing from the state are adopted; nil if the agent adopts none.
func (a *Agent) newAdoption() *orphans.Adoption {
	if a.dataDirectory.IsStateEphemeral {
		return nil
	}
	return &orphans.Adoption{
		Node:                     model.NodeFacts{ID: a.nodeID, Name: a.machine.settings.Name},
		Store:                    a.source.storeAdopted,
		EndPluginsOfEarlierAgent: a.killDriverPluginsOfEarlierAgent,
	}
}

const launchTimeoutAfterDamage = 2 * time.Second

// killDriverPluginsOfEarlierAgent kills the keeper's children with the same command as the driver's present plugin process: they
// are plugin processes of the driver with lost records. Their tasks become the keeper's children. It blocks while the driver's
// present process starts, for launchTimeoutAfterDamage at most.
func (a *Agent) killDriverPluginsOfEarlierAgent(ctx context.Context, driver string) error {
	launched, cancel := context.WithTimeout(ctx, launchTimeoutAfterDamage)
	defer cancel()
	if _, err := a.plugins.Supervisor.Driver(launched, driver); err != nil {
		return err
	}
	used := make(map[int]bool)
	var command []byte
	for _, p := range a.plugins.Supervisor.Plugins() {
		used[p.PID] = true
		if p.PID != 0 && p.Serves == (supervisor.PluginKey{Type: base.TypeDriver, Name: driver}) {
			var err error
			if command, err = osprocess.ReadArgs(p.PID); err != nil {
				return err
			}
		}
	}
	if len(command) == 0 {
		return fmt.Errorf("driver %q has no process", driver)
	}
	children, err := osprocess.Children(a.helperProcesses.keeper.Status().KeeperProcess.PID)
	if err != nil {
		return fmt.Errorf("children of the keeper: %w", err)
	}
	for _, pid := range children {
		former, err := osprocess.LookupID(pid)
		if err != nil || used[pid] {
			continue // the process has exited, or a current plugin uses it
		}
		line, err := osprocess.ReadArgs(pid)
		if err != nil || !slices.Equal(line, command) {
			continue
		}
		a.logger.Info("ending a process of a driver whose record was lost", "driver", driver, "pid", pid)
		if err := former.KillAndWait(ctx); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
	}
	return nil
}
