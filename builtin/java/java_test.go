package java

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/hclspec/block"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
	"github.com/nomad-lite/nomad-lite/sdk/sdktest"
)

func TestMain(m *testing.M) {
	sdktest.Main(m, func() { sdk.ServeDriver(&Driver{}) })
}

// TestContract uses classes of the runtime itself, because the suite gives no files to its tasks.
func TestContract(t *testing.T) {
	slowtest.Skip(t, "starts a Java virtual machine in each case")
	if os.Geteuid() != 0 {
		t.Skip("isolation needs root")
	}
	if _, err := findJavaProgram(); err != nil && os.Getenv("NOMAD_LITE_CI") == "" {
		t.Skip(err)
	}
	sdktest.Driver(t, sdktest.Plugin{
		Path:   os.Args[0],
		Config: map[string]any{"allow_pid_mode": true},
		Tasks: sdktest.Tasks{
			// In a PID namespace of its own, a virtual machine that has just started would ignore the stop signal.
			LongRunning: map[string]any{"class": "sun.rmi.registry.RegistryImpl", "args": []any{"0"}, "pid_mode": "host"},
			Succeeds:    map[string]any{"class": "sun.security.tools.keytool.Main", "args": []any{"-help"}},
			Fails:       map[string]any{"class": "no.such.Class"},
		},
	})
}

func TestCommandLine(t *testing.T) {
	for _, test := range []struct {
		name string
		body map[string]any
		want []string
	}{
		{"a jar", map[string]any{"jar_path": "local/a.jar"}, []string{"-jar", "local/a.jar"}},
		{"a class", map[string]any{"class": "a.B"}, []string{"a.B"}},
		{"a class with its path", map[string]any{"class": "a.B", "class_path": "/local:/alloc/c.jar"}, []string{"-cp", "/local:/alloc/c.jar", "a.B"}},
		{"a class in a jar", map[string]any{"class": "a.B", "jar_path": "a.jar"}, []string{"-cp", "a.jar", "a.B"}},
		{"a class in a jar, with other classes", map[string]any{"class": "a.B", "class_path": "/local", "jar_path": "a.jar"}, []string{"-cp", "/local:a.jar", "a.B"}},
		{"a jar with a class path", map[string]any{"class_path": "/local", "jar_path": "a.jar"}, []string{"-cp", "/local", "-jar", "a.jar"}},
		{"options and arguments", map[string]any{"jvm_options": []any{"-Xmx1m", "-Dx=y z"}, "jar_path": "a.jar", "args": []any{"-v", "1"}},
			[]string{"-Xmx1m", "-Dx=y z", "-jar", "a.jar", "-v", "1"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := decodeTask(t, test.body)
			for range 2 { // the second command line must not share memory with the first one
				if got, err := c.javaArgs(); err != nil || !slices.Equal(got, test.want) {
					t.Errorf("the command line is %q (%v), want %q", got, err, test.want)
				}
			}
		})
	}
}

func decodeTask(t *testing.T, body map[string]any) (c taskConfig) {
	t.Helper()
	if err := hclspec.UnmarshalExact(encodeTask(t, body), &c); err != nil {
		t.Fatal(err)
	}
	return c
}

func encodeTask(t *testing.T, body map[string]any) []byte {
	t.Helper()
	value, diags := block.Decode(taskSchema, body, nil)
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	config, err := block.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func TestStartErrors(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("isolation needs root")
	}
	dir := t.TempDir()
	fakeRuntime(t, filepath.Join(dir, "jdk/bin/java"), "exit 0")
	for _, test := range []struct {
		name, path, want string
		body             map[string]any
	}{
		{"neither class nor jar", "", "jar_path or class must be specified", map[string]any{"class_path": "/local"}},
		{"no runtime", "/nonexistent", "no Java runtime: the program java is in no directory of the agent's PATH (/nonexistent)", map[string]any{"class": "A"}},
		{"a runtime that tasks do not have", dir + "/jdk/bin", "a task has the Java runtime of the agent, if chroot_env of the agent names " + dir + "/jdk or a directory above it", map[string]any{"class": "A"}},
		{"a directory that is relative", dir + "/jdk/bin", `work_dir "local" is not an absolute path in the root directory of the task`, map[string]any{"class": "A", "work_dir": "local"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.path != "" {
				t.Setenv("PATH", test.path)
			}
			alloc := filepath.Join(t.TempDir(), "java-test")
			for _, sub := range []string{"task/etc", "task/tmp"} {
				if err := os.MkdirAll(filepath.Join(alloc, sub), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			start := &sdk.StartRequest{TaskConfig: driver.TaskConfig{
				Name: "task", AllocID: "java-test", AllocDir: alloc, DriverConfig: encodeTask(t, test.body), StdoutPath: os.DevNull, StderrPath: os.DevNull,
			}}
			task, err := new(Driver).Start(t.Context(), start)
			if err == nil {
				t.Errorf("process %d has started", task.PID())
			} else if !strings.HasSuffix(err.Error(), test.want) {
				t.Errorf("the error is %q, want %q at its end", err, test.want)
			}
		})
	}
}
