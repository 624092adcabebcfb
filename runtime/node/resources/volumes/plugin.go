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
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/safepath"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
)

// Timeouts of the calls of a plugin, which are Nomad's.
const (
	fingerprintTimeout = 5 * time.Second
	callTimeout        = time.Minute
)

// request is what a plugin gets for one call.
type request struct {
	id, name, namespace string
	nodeID, nodePool    string
	minBytes, maxBytes  int64
	parameters          map[string]string
	path                string // path of the created volume; set for a delete call
	ready               bool   // the volume was created by an earlier call
}

// created is the result of a create call, in the form in which an external plugin prints it.
type created struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
}

// plugin makes and deletes volumes. Both methods may be called again for a volume, and then complete what an interrupted
// call has left.
type plugin interface {
	create(context.Context, request) (created, error)
	delete(context.Context, request) error
}

// external is a program in the plugin directory.
type external struct {
	entry      catalog.Entry
	pluginDir  string
	volumesDir string
	calls      interruptibleCalls
	logger     hclog.Logger
}

// fingerprint returns the version of the plugin.
func (e *external) fingerprint(ctx context.Context) (string, error) {
	var reply struct {
		Version string `json:"version"`
	}
	ctx, cancel := context.WithTimeout(ctx, fingerprintTimeout)
	defer cancel()
	out, err := e.run(ctx, "fingerprint", nil)
	if err != nil {
		return "", err
	}
	if err := json.Unmarshal(out, &reply); err != nil || reply.Version == "" {
		return "", fmt.Errorf(`its output %q is not a version like {"version": "0.0.1"}`, out)
	}
	return reply.Version, nil
}

// create implements plugin.
func (e *external) create(ctx context.Context, r request) (created, error) {
	parameters, err := encodeParameters(r.parameters)
	if err != nil {
		return created{}, err
	}
	out, err := e.call(ctx, "create", append(r.env(), parameters,
		"DHV_CAPACITY_MIN_BYTES="+strconv.FormatInt(r.minBytes, 10),
		"DHV_CAPACITY_MAX_BYTES="+strconv.FormatInt(r.maxBytes, 10)))
	if err != nil {
		return created{}, err
	}
	var result created
	if err := json.Unmarshal(out, &result); err != nil || !filepath.IsAbs(result.Path) || result.Bytes < 0 {
		return created{}, fmt.Errorf(`its output %q is not a volume like {"path": "/an/absolute/path", "bytes": 1000}`, out)
	}
	if _, err := safepath.Locate(result.Path); err != nil {
		return created{}, fmt.Errorf("the volume that it has created: %w", err)
	}
	return result, nil
}

// delete implements plugin.
func (e *external) delete(ctx context.Context, r request) error {
	parameters, err := encodeParameters(r.parameters)
	if err != nil {
		return err
	}
	_, err = e.call(ctx, "delete", append(r.env(), parameters, "DHV_CREATED_PATH="+r.path))
	return err
}

func (r request) env() []string {
	return []string{
		"DHV_NAMESPACE=" + r.namespace, "DHV_VOLUME_NAME=" + r.name, "DHV_VOLUME_ID=" + r.id,
		"DHV_NODE_ID=" + r.nodeID, "DHV_NODE_POOL=" + r.nodePool,
	}
}

func encodeParameters(parameters map[string]string) (string, error) {
	if parameters == nil {
		parameters = map[string]string{}
	}
	text, err := json.Marshal(parameters)
	return "DHV_PARAMETERS=" + string(text), err
}

// inheritedEnv are the variables of the agent that a plugin inherits.
var inheritedEnv = []string{"PATH", "HOME", "LANG", "TMPDIR"}

// call runs the program with an operation that changes a volume. If it is killed because ctx ends, so are the processes that it
// has started. Only then; a program may leave processes running, such as the server of a mounted file system.
func (e *external) call(ctx context.Context, operation string, env []string) ([]byte, error) {
	variable, err := e.calls.start(ctx)
	if err != nil {
		return nil, err
	}
	out, err := e.run(ctx, operation, append(env, variable))
	return out, errors.Join(err, e.calls.end(ctx, variable, err != nil && ctx.Err() != nil))
}

// run runs the program with an operation, and returns what it prints on standard output. When ctx ends, the process and
// its process group are killed.
func (e *external) run(ctx context.Context, operation string, env []string) ([]byte, error) {
	binary, err := e.entry.Open(e.logger)
	if err != nil {
		return nil, err
	}
	defer binary.Close()
	cmd := exec.CommandContext(ctx, binary.Path, operation)
	if !binary.IsScript { // the checked file is executed, also if another one has replaced it
		cmd.Path = "/proc/self/fd/3"
		cmd.ExtraFiles = []*os.File{binary.File}
	}
	cmd.Dir = "/"
	for _, name := range inheritedEnv {
		if value, found := os.LookupEnv(name); found {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	cmd.Env = append(append(cmd.Env, env...), "DHV_OPERATION="+operation, "DHV_VOLUMES_DIR="+e.volumesDir, "DHV_PLUGIN_DIR="+e.pluginDir)
	stdout, stderr := limitedBuffer{limit: 64 << 10}, limitedBuffer{limit: 4 << 10}
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	runtime.LockOSThread() // the kernel sends the signal when the thread that has started the process ends
	defer runtime.UnlockOSThread()
	err = cmd.Run()
	e.logger.Debug("host volume plugin called", "plugin", e.entry.Name, "operation", operation, "error", err, "stderr", stderr.String())
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, fmt.Errorf("it was killed because it has not exited in time%s", stderr.suffix())
	case err != nil && !errors.Is(err, exec.ErrWaitDelay):
		return nil, fmt.Errorf("%w%s", err, stderr.suffix())
	case stdout.overflow:
		return nil, fmt.Errorf("it has printed more than %d bytes", stdout.limit)
	}
	return stdout.data.Bytes(), nil
}

// limitedBuffer keeps the first bytes that are written to it.
type limitedBuffer struct {
	data     bytes.Buffer
	limit    int
	overflow bool
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	kept := min(len(p), b.limit-b.data.Len())
	b.overflow = b.overflow || kept < len(p)
	b.data.Write(p[:kept])
	return len(p), nil
}

func (b *limitedBuffer) String() string { return strings.TrimSpace(b.data.String()) }

// suffix returns the text as the end of an error message.
func (b *limitedBuffer) suffix() string {
	if text := b.String(); text != "" {
		return fmt.Sprintf(": %q", text)
	}
	return ""
}
