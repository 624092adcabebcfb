package volumes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/groupexec"
	"github.com/nomad-lite/nomad-lite/internal/opcount"
	"github.com/nomad-lite/nomad-lite/internal/safepath"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
)

// Plugin call timeouts, which are Nomad's.
const (
	fingerprintTimeout = 5 * time.Second
	callTimeout        = time.Minute
)

// pluginRequest has a plugin call's parameters.
type pluginRequest struct {
	volumeID, volumeName, namespace    string
	nodeID, nodePool                   string
	minCapacityBytes, maxCapacityBytes int64
	parameters                         map[string]string
	createdPath                        string // the created volume's path; empty before the first create call has succeeded
	alreadyCreated                     bool   // an earlier create call has succeeded
}

// createResult is a create call's result, as an external plugin prints it.
type createResult struct {
	Path          string `json:"path"`
	CapacityBytes int64  `json:"bytes"`
}

// volumePlugin makes and deletes volumes. Both methods may be called again for a volume, for example to complete an
// interrupted call.
type volumePlugin interface {
	create(context.Context, pluginRequest) (createResult, error)
	delete(context.Context, pluginRequest) error
}

// externalPlugin is a program in the plugin directory.
type externalPlugin struct {
	catalogEntry catalog.Entry
	pluginDir    string
	volumesDir   string
	callRecorder pluginCallRecorder
	logger       hclog.Logger
}

// runForVersion runs the program to get the plugin's version.
func (e *externalPlugin) runForVersion(ctx context.Context) (version string, err error) {
	var reply struct {
		Version string `json:"version"`
	}
	ctx, cancel := context.WithTimeout(ctx, fingerprintTimeout)
	defer cancel()
	out, err := e.runProgram(ctx, "fingerprint", nil)
	if err != nil {
		return "", err
	}
	if err := json.Unmarshal(out, &reply); err != nil || reply.Version == "" {
		return "", fmt.Errorf(`its output %q is not a version like {"version": "0.0.1"}`, out)
	}
	return reply.Version, nil
}

// create implements plugin.
func (e *externalPlugin) create(ctx context.Context, r pluginRequest) (createResult, error) {
	parameters, err := parametersEnvVar(r.parameters)
	if err != nil {
		return createResult{}, err
	}
	out, err := e.runAsRecordedCall(ctx, "create", append(r.commonEnvVars(), parameters,
		"DHV_CAPACITY_MIN_BYTES="+strconv.FormatInt(r.minCapacityBytes, 10),
		"DHV_CAPACITY_MAX_BYTES="+strconv.FormatInt(r.maxCapacityBytes, 10)))
	if err != nil {
		return createResult{}, err
	}
	var result createResult
	if err := json.Unmarshal(out, &result); err != nil || !filepath.IsAbs(result.Path) || result.CapacityBytes < 0 {
		return createResult{}, fmt.Errorf(`its output %q is not a volume like {"path": "/an/absolute/path", "bytes": 1000}`, out)
	}
	if _, err := safepath.Locate(result.Path); err != nil {
		return createResult{}, fmt.Errorf("the volume that it has created: %w", err)
	}
	return result, nil
}

// delete implements plugin.
func (e *externalPlugin) delete(ctx context.Context, r pluginRequest) error {
	parameters, err := parametersEnvVar(r.parameters)
	if err != nil {
		return err
	}
	_, err = e.runAsRecordedCall(ctx, "delete", append(r.commonEnvVars(), parameters, "DHV_CREATED_PATH="+r.createdPath))
	return err
}

func (r pluginRequest) commonEnvVars() []string {
	return []string{
		"DHV_NAMESPACE=" + r.namespace, "DHV_VOLUME_NAME=" + r.volumeName, "DHV_VOLUME_ID=" + r.volumeID,
		"DHV_NODE_ID=" + r.nodeID, "DHV_NODE_POOL=" + r.nodePool,
	}
}

func parametersEnvVar(parameters map[string]string) (string, error) {
	if parameters == nil {
		parameters = map[string]string{}
	}
	text, err := json.Marshal(parameters)
	return "DHV_PARAMETERS=" + string(text), err
}

// inheritedEnvNames are the agent's environment variables that a plugin inherits.
var inheritedEnvNames = []string{"PATH", "HOME", "LANG", "TMPDIR"}

// runAsRecordedCall runs the program with an operation that changes a volume. If the program is killed because ctx ends,
// runAsRecordedCall also kills the program's child processes. Otherwise these may continue, such as a mounted file
// system's server.
func (e *externalPlugin) runAsRecordedCall(ctx context.Context, operation string, env []string) ([]byte, error) {
	variable, err := e.callRecorder.recordCallStart(ctx)
	if err != nil {
		return nil, err
	}
	out, err := e.runProgram(ctx, operation, append(env, variable))
	return out, errors.Join(err, e.callRecorder.killLeftoversAndRecordCallEnd(ctx, variable, err != nil && ctx.Err() != nil))
}

// runProgram runs the program with an operation, and returns what it prints on standard output. When ctx ends, the process
// and its process group are killed.
func (e *externalPlugin) runProgram(ctx context.Context, operation string, env []string) ([]byte, error) {
	binary, err := e.catalogEntry.OpenAndCheck(ctx, e.logger)
	if err != nil {
		return nil, err
	}
	defer binary.Close()
	opcount.Count(opcount.Fork)
	cmd := exec.CommandContext(ctx, binary.Path, operation)
	if !binary.IsScript { // executes the open file, which has a checked owner and mode, even if its name was replaced
		cmd.Path = "/proc/self/fd/3"
		cmd.ExtraFiles = []*os.File{binary.File}
	}
	cmd.Dir = "/"
	for _, name := range inheritedEnvNames {
		if value, found := os.LookupEnv(name); found {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	cmd.Env = append(append(cmd.Env, env...), "DHV_OPERATION="+operation, "DHV_VOLUMES_DIR="+e.volumesDir, "DHV_PLUGIN_DIR="+e.pluginDir)
	stdout, stderr := limitedBuffer{maxBytes: 64 << 10}, limitedBuffer{maxBytes: 4 << 10}
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = groupexec.Run(cmd)
	e.logger.Debug("host volume plugin called", "plugin", e.catalogEntry.Name, "operation", operation, "error", err, "stderr", stderr.String())
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, fmt.Errorf("it was killed because it has not exited in time%s", stderr.errorSuffix())
	case err != nil:
		return nil, fmt.Errorf("%w%s", err, stderr.errorSuffix())
	case stdout.overflowed:
		return nil, fmt.Errorf("it has printed more than %d bytes", stdout.maxBytes)
	}
	return stdout.keptBytes.Bytes(), nil
}

// limitedBuffer keeps the first maxBytes bytes written to it, and discards the others.
type limitedBuffer struct {
	keptBytes  bytes.Buffer
	maxBytes   int
	overflowed bool // bytes were discarded
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	kept := min(len(p), b.maxBytes-b.keptBytes.Len())
	b.overflowed = b.overflowed || kept < len(p)
	b.keptBytes.Write(p[:kept])
	return len(p), nil
}

func (b *limitedBuffer) String() string { return strings.TrimSpace(b.keptBytes.String()) }

// errorSuffix returns the kept text as the end of an error message: empty, or a colon and the quoted text.
func (b *limitedBuffer) errorSuffix() string {
	if text := b.String(); text != "" {
		return fmt.Sprintf(": %q", text)
	}
	return ""
}
