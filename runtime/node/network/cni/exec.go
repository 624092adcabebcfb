package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/groupexec"
	"github.com/nomad-lite/nomad-lite/internal/opcount"
)

// pluginExec runs plugins for libcni. It records each called plugin, so that no call's processes run beside the next
// agent's calls.
type pluginExec struct {
	version.PluginDecoder
	recorder *callRecorder
}

var _ invoke.Exec = (*pluginExec)(nil)

// FindInPath implements invoke.Exec.
func (*pluginExec) FindInPath(plugin string, dirs []string) (string, error) {
	return invoke.FindInPath(plugin, dirs)
}

// ExecPlugin implements invoke.Exec. If the plugin is killed because ctx ends, ExecPlugin also kills the plugin's child
// processes. Otherwise these may continue, such as a DNS server.
func (p *pluginExec) ExecPlugin(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	callID, err := p.recorder.recordCallStart(ctx)
	if err != nil {
		return nil, err
	}
	stdout, err := runPluginWhenWritten(ctx, path, stdin, append(env, callEnvName+"="+callID))
	return stdout, errors.Join(err, p.recorder.killLeftoversAndRecordCallEnd(ctx, callID, err != nil && ctx.Err() != nil))
}

// busyRetryInterval is how often, and maxBusyRetries how many times, runPluginWhenWritten retries.
const busyRetryInterval, maxBusyRetries = time.Second, 5

// runPluginWhenWritten runs a plugin, and retries while another program is writing the plugin's file.
func runPluginWhenWritten(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	for retries := 0; ; retries++ {
		stdout, err := runPlugin(ctx, path, stdin, env)
		if !errors.Is(err, unix.ETXTBSY) || retries == maxBusyRetries {
			return stdout, err
		}
		select {
		case <-time.After(busyRetryInterval):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// runPlugin runs a plugin, and returns what it prints on standard output. It discards what a successful plugin prints on
// standard error.
func runPlugin(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	opcount.Count(opcount.Fork)
	cmd := exec.CommandContext(ctx, path)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, bytes.NewReader(stdin), &stdout, &stderr
	if err := groupexec.Run(cmd); err != nil {
		return nil, newPluginError(err, stdout.Bytes(), stderr.Bytes())
	}
	return stdout.Bytes(), nil
}

// newPluginError returns the error printed by a failed plugin, or err with the plugin's output.
func newPluginError(err error, stdout, stderr []byte) error {
	var printed types.Error
	switch {
	case json.Unmarshal(stdout, &printed) == nil && printed.Msg != "":
		return &printed
	case len(stdout)+len(stderr) == 0:
		return err
	case len(stdout) == 0:
		return fmt.Errorf("%w: %q", err, stderr)
	}
	return fmt.Errorf("%w: %q", err, stdout)
}
