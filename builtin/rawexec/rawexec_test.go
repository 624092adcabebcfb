package rawexec

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/hclspec/block"
	"github.com/nomad-lite/nomad-lite/internal/osprocess/processtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
	"github.com/nomad-lite/nomad-lite/sdk/sdktest"
)

func TestMain(m *testing.M) {
	sdktest.Main(m, func() { sdk.ServeDriver(&Driver{}) })
}

func testPlugin() sdktest.Plugin {
	return sdktest.Plugin{
		Path:   os.Args[0],
		Config: map[string]any{"enabled": true},
		Tasks: sdktest.Tasks{Shell: func(script string) map[string]any {
			return map[string]any{"command": "/bin/sh", "args": []any{"-c", script}}
		}},
	}
}

func TestContract(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a plugin and tasks in each case of the contract suite")
	}
	sdktest.Driver(t, testPlugin())
}

func BenchmarkDriver(b *testing.B) { sdktest.Benchmark(b, testPlugin()) }

// TestContractUnprivileged runs the sdktest suite as an unprivileged user.
func TestContractUnprivileged(t *testing.T) {
	slowtest.Skip(t, "runs the contract suite a second time")
	const nobodyUID = 65534
	out := processtest.RunAsUser(t, nobodyUID, "^TestContract$")
	if !bytes.Contains(out, []byte("--- PASS: TestContract/")) {
		t.Errorf("no case has passed:\n%s", out)
	}
}

// newConfiguredDriver returns a driver with the given plugin block.
func newConfiguredDriver(body map[string]any) *Driver {
	d := &Driver{}
	d.config = decodeConfig[pluginConfig](configSchema, body)
	if err := d.config.ValidateAndParseIDRanges(); err != nil {
		panic(err) // the test has an invalid configuration
	}
	return d
}

func decodeConfig[C any](schema *hclspec.Spec, body map[string]any) (c C) {
	if err := hclspec.Unmarshal(encodeConfig(schema, body), &c); err != nil {
		panic(err)
	}
	return c
}

func encodeConfig(schema *hclspec.Spec, body map[string]any) []byte {
	value, diags := block.Decode(schema, body, nil)
	if diags.HasErrors() {
		panic(diags)
	}
	b, err := block.Marshal(value)
	if err != nil {
		panic(err)
	}
	return b
}

func newStartRequest(t *testing.T, body map[string]any) *sdk.StartRequest {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "task"), 0o755); err != nil {
		t.Fatal(err)
	}
	return &sdk.StartRequest{TaskConfig: driver.TaskConfig{
		Name: "task", AllocID: filepath.Base(t.TempDir()) + "rawexec-test", AllocDir: dir,
		DriverConfig: encodeConfig(taskSchema, body),
		Env:          map[string]string{"KEEP": "1", "SECRET_KEY": "2", "TOKEN": "3"},
	}}
}

var sleepConfig = map[string]any{"command": "/bin/sleep", "args": []any{"3600"}}

func TestDisabledByDefault(t *testing.T) {
	for name, test := range map[string]struct {
		body map[string]any
		on   bool
	}{
		"nothing is said":    {nil, os.Geteuid() != 0},
		"enabled by config":  {map[string]any{"enabled": true}, true},
		"disabled by config": {map[string]any{"enabled": false}, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := newConfiguredDriver(test.body)
			want := driver.HealthUndetected
			if test.on {
				want = driver.HealthHealthy
			}
			if got := d.Fingerprint(t.Context()); got.Health != want {
				t.Errorf("fingerprint %+v, want health %v", got, want)
			}
			// Start must also check whether the driver is enabled (CVE-2019-15928).
			task, err := d.Start(t.Context(), newStartRequest(t, sleepConfig))
			if err == nil {
				end(t, task)
			}
			if test.on != (err == nil) || err != nil && !strings.Contains(err.Error(), "disabled") {
				t.Errorf("start: %v", err)
			}
		})
	}
}

func end(t *testing.T, task *task) {
	t.Helper()
	if err := task.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := task.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	if err := task.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestDeniedEnvvars(t *testing.T) {
	d := newConfiguredDriver(map[string]any{"enabled": true, "denied_envvars": []any{"*_KEY"}})
	d.config.DeniedEnvvars = slices.Grow(d.config.DeniedEnvvars, 8) // capacity for an append in Start, which would change the array that all tasks share
	s := newStartRequest(t, map[string]any{"command": "/bin/sleep", "args": []any{"3600"}, "denied_envvars": []any{"TOK*"}})
	first, err := d.Start(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer end(t, first)
	second, err := d.Start(t.Context(), newStartRequest(t, map[string]any{"command": "/bin/sleep", "args": []any{"3600"}, "denied_envvars": []any{"OTHER*"}}))
	if err != nil {
		t.Fatal(err)
	}
	defer end(t, second)
	env := func(task *task) string {
		var out bytes.Buffer
		if _, err := task.Exec(t.Context(), driver.Exec{Command: []string{"/usr/bin/env"}, Stdout: &out}); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	if got, want := env(first), "KEEP=1\n"; got != want {
		t.Errorf("the environment is %q, want %q", got, want)
	}
	if got, want := first.State().(taskState).DeniedEnvvars, []string{"*_KEY", "TOK*"}; !reflect.DeepEqual(got, want) {
		t.Errorf("for the next process it remembers %q, want %q", got, want)
	}
	if got := d.config.DeniedEnvvars; len(got) != 1 {
		t.Errorf("a task has changed the plugin's own list: %q", got)
	}
}

func TestTaskConfig(t *testing.T) {
	got := decodeConfig[taskConfig](taskSchema, map[string]any{
		"command": 5, "args": []any{1, true, "x"}, "work_dir": "/tmp", "oom_score_adj": 100,
		"cgroup_v1_override": []any{map[string]any{"pids": "a/b", "cpuset": "c"}}, "cgroup_v2_override": "x.slice",
	})
	want := taskConfig{
		Command: "5", Args: []string{"1", "true", "x"}, WorkDir: "/tmp", OOMScoreAdj: 100,
		CgroupV1Override: []map[string]string{{"pids": "a/b", "cpuset": "c"}}, CgroupV2Override: "x.slice",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
