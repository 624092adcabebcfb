package cni

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// callEnvName is the environment variable with the call's id. The plugin's child processes inherit it.
const callEnvName = "NOMAD_LITE_CNI_CALL"

// killTimeout is how long killCallProcesses waits for killed processes to exit.
const killTimeout = 10 * time.Second

// callRecorder records the plugin calls in progress: each is an empty file in dir with the call's id as its name. If the agent
// dies during calls, the next agent finds and kills these calls' processes by the ids. The files need not be synced, because
// the processes do not survive a machine crash.
type callRecorder struct {
	dir string

	mu        sync.Mutex
	activeIDs map[string]bool // ids of calls that this recorder has started
}

func newCallRecorder(resultCacheDir string) *callRecorder {
	return &callRecorder{dir: filepath.Join(resultCacheDir, "calls"), activeIDs: make(map[string]bool)}
}

// KillInterruptedCalls kills the processes left from plugin calls during which an earlier agent has died. The agent's client
// had the directory resultCacheDir. No client may use the directory at the same time.
func KillInterruptedCalls(ctx context.Context, resultCacheDir string) error {
	c := newCallRecorder(resultCacheDir)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.killInterruptedCallsLocked(ctx)
}

// killInterruptedCallsLocked kills the processes of recorded, inactive calls, and deletes their records.
func (c *callRecorder) killInterruptedCallsLocked(ctx context.Context) error {
	entries, err := os.ReadDir(c.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, entry := range entries {
		if c.activeIDs[entry.Name()] {
			continue
		}
		if err := killCallProcesses(ctx, entry.Name()); err != nil {
			return err
		}
		if err := os.Remove(filepath.Join(c.dir, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

// recordCallStart kills interrupted calls' processes, and records a new call. It returns the new call's id.
func (c *callRecorder) recordCallStart(ctx context.Context) (callID string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.killInterruptedCallsLocked(ctx); err != nil {
		return "", err
	}
	id := uuid.NewString()
	if err = os.MkdirAll(c.dir, 0o700); err == nil {
		err = os.WriteFile(filepath.Join(c.dir, id), nil, 0o600)
	}
	// On a full disk, a call without a record is better than a stopped allocation with a connected namespace.
	if err != nil && !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return "", err
	}
	c.activeIDs[id] = true
	return id, nil
}

// killLeftoversAndRecordCallEnd deletes a call's record. If the plugin was killed, it first kills the call's other processes.
// After an error, the record stays, so that the next call tries again.
func (c *callRecorder) killLeftoversAndRecordCallEnd(ctx context.Context, callID string, wasPluginKilled bool) error {
	var err error
	if wasPluginKilled {
		err = killCallProcesses(ctx, callID)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.activeIDs, callID)
	if err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(c.dir, callID)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil // the disk was full when the call started
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
