package sdktest

import (
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// NewStartRequest returns the request of a start, for a unit test that calls Start of a driver without a host. config is
// the body of the task's config block; NewStartRequest validates it by the schema, which can be nil, and adds the
// defaults, and ends the test if the body is invalid. The allocation and the task have directories, below t.TempDir(). The
// output of the task goes to regular files, at StdoutPath and StderrPath. The test may change all fields before it calls
// Start. The log of the request is part of the log of the test.
//
// events returns the events that the task has emitted until then; it may be called concurrently.
//
// [sdk.NewStartRequest] makes requests for Recover and Adopt.
func NewStartRequest(t testing.TB, schema *hclspec.Spec, config map[string]any) (start *sdk.StartRequest, events func() []driver.TaskEvent) {
	t.Helper()
	if schema == nil {
		schema = hclspec.Object(nil)
	}
	encoded, err := encodeConfig(schema, config)
	if err != nil {
		t.Fatalf("the config of the task does not fit the schema: %v", err)
	}
	var mu sync.Mutex
	var all []driver.TaskEvent
	start, err = sdk.NewStartRequest(*newTaskConfig(t, newUUID(), encoded), sdk.StartRequestOptions{
		Logger: hclog.New(&hclog.LoggerOptions{Output: t.Output(), DisableTime: true}),
		OnEvent: func(event driver.TaskEvent) {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, event)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return start, func() []driver.TaskEvent {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

// newTaskConfig returns the config of a task, and makes its directories.
func newTaskConfig(t directoryMaker, allocID string, encodedConfig []byte) *driver.TaskConfig {
	t.Helper()
	dir := filepath.Join(t.TempDir(), allocID)
	const taskName = "task"
	for _, sub := range []string{"alloc/data", "alloc/logs", "alloc/tmp", taskName + "/local", taskName + "/secrets", taskName + "/tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o777); err != nil {
			t.Fatalf("%v", err)
		}
	}
	return &driver.TaskConfig{
		ID:            allocID + "/" + taskName + "/" + newUUID()[:8],
		Name:          taskName,
		JobName:       "suite",
		JobID:         "suite",
		TaskGroupName: "group",
		Namespace:     "default",
		NodeName:      "node",
		NodeID:        newUUID(),
		AllocID:       allocID,
		DriverConfig:  encodedConfig,
		Env: map[string]string{
			"PATH":              "/usr/local/bin:/usr/bin:/bin",
			"NOMAD_ALLOC_ID":    allocID,
			"NOMAD_TASK_NAME":   taskName,
			"NOMAD_ALLOC_DIR":   filepath.Join(dir, "alloc"),
			"NOMAD_TASK_DIR":    filepath.Join(dir, taskName, "local"),
			"NOMAD_SECRETS_DIR": filepath.Join(dir, taskName, "secrets"),
		},
		AllocDir:   dir,
		StdoutPath: filepath.Join(dir, "alloc/logs/task.stdout.0"),
		StderrPath: filepath.Join(dir, "alloc/logs/task.stderr.0"),
		Resources: &driver.Resources{
			CPUShares: 100,
			MemoryMB:  128, // the minimum memory of a virtual machine of the driver qemu
			Linux:     driver.LinuxResources{CPUShares: 100, MemoryLimitBytes: 128 << 20},
		},
	}
}

// directoryMaker is a test, or a case of the suite.
type directoryMaker interface {
	Helper()
	TempDir() string
	Fatalf(format string, args ...any)
}
