package volumes

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// callEnvName is the environment variable with the call's id. The plugin's child processes inherit it.
const callEnvName = "NOMAD_LITE_VOLUME_CALL"

// killTimeout is how long killCallProcesses waits for killed processes to exit.
const killTimeout = 10 * time.Second

// pluginCallRecorder stores the id of the plugin call in progress, at most one. If the agent dies during the call, the
// kernel kills only the plugin's first process; the next agent finds and kills the others by the id.
type pluginCallRecorder struct{ store *store.Store }

// recordCallStart stores a new call's id, and returns the variable, as name=value, for the plugin's environment.
func (c pluginCallRecorder) recordCallStart(ctx context.Context) (envVar string, err error) {
	id := uuid.NewString()
	_, err = c.store.Update(context.WithoutCancel(ctx), func(tx *store.Txn) error {
		tx.PutAgentRecord(state.VolumeCallName, id)
		return nil
	})
	return callEnvName + "=" + id, err
}

// killLeftoversAndRecordCallEnd deletes a call's stored id. If the plugin was killed, it first kills the call's other
// processes.
func (c pluginCallRecorder) killLeftoversAndRecordCallEnd(ctx context.Context, envVar string, wasPluginKilled bool) error {
	if wasPluginKilled {
		if err := killCallProcesses(ctx, strings.TrimPrefix(envVar, callEnvName+"=")); err != nil {
			return err
		}
	}
	return c.deleteCallRecord(ctx)
}

// killProcessesOfInterruptedCall kills the processes left from a call during which an earlier agent has died, and deletes
// the stored id. It does nothing if no id is stored.
func (c pluginCallRecorder) killProcessesOfInterruptedCall(ctx context.Context) error {
	id := ""
	if known, err := c.store.Snapshot().ReadAgentRecord(state.VolumeCallName, &id); err != nil || !known {
		return err
	}
	if err := killCallProcesses(ctx, id); err != nil {
		return err
	}
	return c.deleteCallRecord(ctx)
}

func (c pluginCallRecorder) deleteCallRecord(ctx context.Context) error {
	_, err := c.store.Update(context.WithoutCancel(ctx), func(tx *store.Txn) error {
		tx.DeleteAgentRecord(state.VolumeCallName)
		return nil
	})
	return err
}

// killCallProcesses kills all processes with a call's id in their environment, and waits until they have exited.
func killCallProcesses(ctx context.Context, callID string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer cancel()
	if err := osprocess.KillByEnv(ctx, callEnvName+"="+callID); err != nil {
		return fmt.Errorf("end the processes of an interrupted call: %w", err)
	}
	return nil
}
