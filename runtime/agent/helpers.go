package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/runtime/agent/datadirectory"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs/collectorwire"
)

// helperProcesses are an agent's helper processes, and its data directory's sockets.
type helperProcesses struct {
	dataDirectory  *datadirectory.Directory
	isTaskExpected bool                     // a task starts soon after start, so the log collector is started without one
	sockets        *datadirectory.SocketDir // nil before start
	keeper         *keeper.Client           // nil until the keeper runs
	logCollector   *logs.CollectorClient    // nil until the log collector runs
	logger         hclog.Logger
}

// start starts the keeper and the log collector. The caller must call close, also after
// an error.
func (h *helperProcesses) start(ctx context.Context) (err error) {
	d := h.dataDirectory
	if h.sockets, err = datadirectory.MakeAndOpenSocketDir(d.Path, h.logger); err != nil {
		return err
	}
	h.keeper, err = keeper.ConnectOrStart(ctx, keeper.Config{
		DataDir:    d.Path,
		KeeperArgv: datadirectory.KeeperArgs,
		Ephemeral:  d.IsTemporary,
		Logger:     h.logger,
	})
	if err != nil {
		return fmt.Errorf("start keeper: %w", err)
	}
	h.sockets.SetKeeper(h.keeper)
	if d.IsTemporary {
		// A killed agent's keeper continues until all processes have ended. It holds the data directory's lock, so that the
		// directory is not removed earlier.
		if err := h.keeper.StoreFD(ctx, datadirectory.LockFile, d.Lock()); err != nil {
			return fmt.Errorf("hand the lock to the keeper: %w", err)
		}
	}
	h.logCollector, err = logs.New(logs.Config{
		Keeper:        h.keeper,
		DataDir:       d.Path,
		CollectorArgv: []string{datadirectory.HelperArgv0, collectorwire.CommandName},
		Logger:        h.logger,

		StartProcessWithoutTask: h.isTaskExpected,
	})
	if err != nil {
		return fmt.Errorf("start log collector: %w", err)
	}
	return nil
}

// close shuts down the helper processes, unless tasks may run, and closes the connections to the helper processes. If only
// processes without a record in the state run, the keeper shuts down after these have exited.
func (h *helperProcesses) close(d *remainingProcessDecider) error {
	var errs []error
	if h.logCollector != nil {
		errs = append(errs, h.logCollector.Close())
	}
	if h.keeper != nil {
		remaining := new(remainingProcesses)
		if !h.dataDirectory.IsStateEphemeral {
			remaining = d.decidedOrDecide(h.keeper)
		}
		var err error
		h.dataDirectory.KeeperEnded, err = h.shutDownKeeperUnlessTasksMayRun(remaining)
		errs = append(errs, err, h.keeper.Close())
	}
	if h.sockets != nil {
		errs = append(errs, h.sockets.Close())
		if h.dataDirectory.KeeperEnded && !h.dataDirectory.IsTemporary {
			errs = append(errs, h.sockets.Remove())
		}
	}
	return errors.Join(errs...)
}

// shutDownKeeperUnlessTasksMayRun shuts down the keeper and all its descendants, unless tasks may run. keeperEnded
// reports whether it has shut down the keeper.
func (h *helperProcesses) shutDownKeeperUnlessTasksMayRun(remaining *remainingProcesses) (keeperEnded bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), keeperTimeout)
	defer cancel()
	if !h.dataDirectory.IsStateEphemeral {
		if remaining.taskMayRun {
			return false, nil
		}
		// A plugin that has exited since remainingProcessDecider.decideRemainingProcesses was called may have left a process
		// behind.
		parents, err := h.keeper.ListProcessesThatMayHaveTasks(ctx)
		if err != nil {
			return false, nil // the keeper may have tasks, so it continues
		}
		if len(parents) > 0 {
			return false, h.keeper.RequestExitWhenNoTasks(ctx)
		}
	}
	if err := h.keeper.SetEphemeral(ctx); err != nil {
		return false, err
	}
	return true, nil
}

// logKeepersOfLostDir logs the keepers of an earlier, lost data directory: their tasks run beside this agent's tasks.
func logKeepersOfLostDir(dataDir string, logger hclog.Logger) {
	for _, p := range keeper.FindWithLostDir(dataDir) {
		logger.Warn("the keeper of a lost data directory runs, with its plugins and tasks: to end them, stop the agent, run 'nomad-lite agent stop -all' for the data directory, and start the agent again", "pid", p.PID, "dir", dataDir)
	}
}
