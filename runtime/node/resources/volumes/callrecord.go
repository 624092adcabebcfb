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

// callVariable is the variable that has the id of the call in the environment of the plugin and of the processes that
// the plugin starts.
const callVariable = "NOMAD_LITE_VOLUME_CALL"

// killTimeout is the timeout for the end of the killed processes of a call.
const killTimeout = 10 * time.Second

// interruptibleCalls records the call that is in progress, at most one, so that the next agent kills the processes of a
// call during which this agent dies: the kernel kills only the plugin's first process.
type interruptibleCalls struct{ store *store.Store }

// start records a new call, and returns the variable for the environment of the plugin.
func (c interruptibleCalls) start(ctx context.Context) (variable string, err error) {
	id := uuid.NewString()
	_, err = c.store.Update(context.WithoutCancel(ctx), func(tx *store.Txn) error {
		tx.PutMeta(state.VolumeCallName, id)
		return nil
	})
	return callVariable + "=" + id, err
}

// end deletes the record of a call. If the plugin was killed, it kills the other processes of the call first.
func (c interruptibleCalls) end(ctx context.Context, variable string, killed bool) error {
	if killed {
		if err := killCall(ctx, strings.TrimPrefix(variable, callVariable+"=")); err != nil {
			return err
		}
	}
	return c.delete(ctx)
}

// endInterrupted kills the processes of the call during which an earlier agent has died, if there is one.
func (c interruptibleCalls) endInterrupted(ctx context.Context) error {
	id := ""
	if known, err := c.store.Snapshot().Meta(state.VolumeCallName, &id); err != nil || !known {
		return err
	}
	if err := killCall(ctx, id); err != nil {
		return err
	}
	return c.delete(ctx)
}

func (c interruptibleCalls) delete(ctx context.Context) error {
	_, err := c.store.Update(context.WithoutCancel(ctx), func(tx *store.Txn) error {
		tx.DeleteMeta(state.VolumeCallName)
		return nil
	})
	return err
}

// killCall kills the processes of a call.
func killCall(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer cancel()
	if err := osprocess.KillByEnv(ctx, callVariable+"="+id); err != nil {
		return fmt.Errorf("end the processes of an interrupted call: %w", err)
	}
	return nil
}
