package sdktest

import (
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/internal/cgroup"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// StartOptions are the options of [NewStartRequest]. The zero value requests the start of a task "task" with an empty
// config block.
type StartOptions struct {
	Config   map[string]any // body of the config block
	TaskName string         // empty means "task"
}

// StartRequest is a start of a task for a test, with what the driver and the task have written.
type StartRequest struct {
	*sdk.StartRequest

	task         *testTask
	stateVersion int32
	logs         lockedBuffer

	mu     sync.Mutex
	events []Event
}

// Event is an event that a driver has sent about a task.
type Event struct {
	Message string
	Details map[string]string // details of EventWithDetails
	Once    bool              // the event was sent by EventOnce
}

// NewStartRequest returns a request with which a test calls Start or Adopt of a driver, without a host. info is the
// result of the driver's Info. The test fails if the config does not fit TaskSchema.
//
// The directories of the task exist, the output of the task has a reader, and the request has an environment and resources. The
// test can change the fields of the request before it passes StartRequest.StartRequest to the driver. When the test ends,
// the processes of the task are killed that have NOMAD_ALLOC_ID in their environment or are in its cgroups, and the cgroups and
// the directories are removed.
func NewStartRequest(t testing.TB, info sdk.DriverInfo, options StartOptions) *StartRequest {
	t.Helper()
	encoded := encodeConfigOrFail(t, "TaskSchema", info.TaskSchema, options.Config)
	if options.TaskName == "" {
		options.TaskName = "task"
	}
	allocID := newUUID()
	config := newTaskDirsAndConfig(t, allocID, options.TaskName, encoded)
	r := &StartRequest{stateVersion: max(info.StateVersion, 1), task: &testTask{t: t, config: config, stdout: &lockedBuffer{}, stderr: &lockedBuffer{}}}
	t.Cleanup(func() {
		killProcessesByEnv("NOMAD_ALLOC_ID=" + allocID)
		if err := cgroup.Open(cgroup.Options{}).KillAndRemove(allocID, options.TaskName); err != nil {
			t.Errorf("remove the cgroups of the task: %v", err)
		}
	})
	r.task.makeOutputFIFOs()
	r.StartRequest = r.newRequest(*config, nil)
	return r
}

// newRequest returns the request of a Recover if state is not nil.
func (r *StartRequest) newRequest(config driver.TaskConfig, state any) *sdk.StartRequest {
	r.task.t.Helper()
	config.Env = maps.Clone(config.Env) // a request that is changed does not change the others
	options := sdk.StartRequestOptions{
		Logger:  hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, Output: &r.logs, DisableTime: true}),
		OnEvent: r.addEvent,
		State:   state,
	}
	if state != nil {
		options.StateVersion = r.stateVersion
	}
	request, err := sdk.NewStartRequest(config, options)
	if err != nil {
		r.task.t.Fatalf("%v", err)
	}
	return request
}

// NewRecovery returns the request with which a host calls Recover for the start, in another process of the plugin and after
// a restart of the host: without the config block. state is what State of the task has returned.
func (r *StartRequest) NewRecovery(state any) *sdk.StartRequest {
	r.task.t.Helper()
	config := r.TaskConfig
	config.DriverConfig = nil
	return r.newRequest(config, state)
}

func (r *StartRequest) addEvent(e driver.TaskEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	event := Event{Message: e.Message}
	for key, value := range e.Annotations {
		if key == driver.OnceAnnotation {
			event.Once = true
			continue
		}
		if event.Details == nil {
			event.Details = map[string]string{}
		}
		event.Details[key] = value
	}
	r.events = append(r.events, event)
}

// Events returns the events that were sent until now, oldest first.
func (r *StartRequest) Events() []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	events := slices.Clone(r.events)
	for i := range events {
		events[i].Details = maps.Clone(events[i].Details)
	}
	return events
}

// Logs returns the lines that were written to Logger until now, of all levels, without times.
func (r *StartRequest) Logs() string { return r.logs.String() }

// Stdout returns what was written to StdoutPath until now.
func (r *StartRequest) Stdout() string { return r.task.stdout.String() }

// Stderr returns what was written to StderrPath until now.
func (r *StartRequest) Stderr() string { return r.task.stderr.String() }

// NewConfig returns a configuration with which a test calls Configure of a plugin. schema is ConfigSchema of the plugin, and
// body is the body of the plugin block, in the form of Plugin.Config. The test fails if the body does not fit the schema.
func NewConfig(t testing.TB, schema *hclspec.Spec, body map[string]any) *sdk.Config {
	t.Helper()
	return sdk.NewConfig(encodeConfigOrFail(t, "ConfigSchema", schema, body))
}

// encodeConfigOrFail returns nil for a nil schema, with which a body is an error.
func encodeConfigOrFail(t testing.TB, name string, schema *hclspec.Spec, body map[string]any) []byte {
	t.Helper()
	if schema == nil {
		if len(body) > 0 {
			t.Fatalf("a config block was given, and Info has no %s", name)
		}
		return nil
	}
	encoded, err := encodeMsgpack(schema, body)
	if err != nil {
		t.Fatalf("the config does not fit %s: %v", name, err)
	}
	return encoded
}
