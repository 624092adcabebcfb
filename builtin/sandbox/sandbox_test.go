package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/internal/idrange"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// A driver that recovers a task isolates the commands in it as the task: all options are in the task's state.
func TestOptionsInState(t *testing.T) {
	o := Options{
		HostPID: true, HostIPC: true, NoPivotRoot: true, NoSyscallFilter: true, Privileges: Privileges{1 << 7, 1 << 10}, DefaultUser: "nobody",
		AllowSetuidSetgidBits: true, SetuidDeniedUIDs: idrange.Set{{First: 1, Last: 1<<32 - 1}}, SetgidDeniedGIDs: idrange.Set{{First: 0, Last: 0}, {First: 5, Last: 9}},
		InUserNamespace: true,
	}
	for i, v := 0, reflect.ValueOf(o); i < v.NumField(); i++ {
		if v.Field(i).IsZero() {
			t.Errorf("this test does not set %s", v.Type().Field(i).Name)
		}
	}
	state, err := hclspec.MarshalState(o)
	if err != nil {
		t.Fatal(err)
	}
	var got Options
	if err := hclspec.UnmarshalState(state, &got); err != nil || !reflect.DeepEqual(got, o) {
		t.Errorf("%v; got %+v, want %+v", err, got, o)
	}
}

func TestFilterIsCompiledForItsOptions(t *testing.T) {
	denied := idrange.Set{{First: 0, Last: 9}}
	setuid := Privileges{Bounding: 1 << 7}
	seen := map[string]int{}
	options := []Options{{}, {AllowSetuidSetgidBits: true}, {Privileges: setuid, SetuidDeniedUIDs: denied}, {Privileges: setuid, SetuidDeniedUIDs: idrange.Set{{First: 0, Last: 8}}}}
	for i := range 3 * len(options) {
		filter, err := options[i%len(options)].compileOrReuseSyscallFilter()
		if err != nil {
			t.Fatal(err)
		}
		if first, ok := seen[string(filter)]; ok && first != i%len(options) {
			t.Errorf("options %d and %d have the same filter", first, i%len(options))
		}
		seen[string(filter)] = i % len(options)
	}
	if len(seen) != len(options) {
		t.Errorf("%d filters for %d options", len(seen), len(options))
	}
	if a, b := mustFilter(t, options[0]), mustFilter(t, options[0]); &a[0] != &b[0] {
		t.Error("the filter of the last task is compiled again")
	}
}

func mustFilter(t *testing.T, o Options) []byte {
	t.Helper()
	filter, err := o.compileOrReuseSyscallFilter()
	if err != nil {
		t.Fatal(err)
	}
	return filter
}

// A file that the stage makes, such as /etc/hosts, covers the file of the machine there, and no file that a volume or a hook mounts.
func TestMountOfMachineFile(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(file, nil, 0o644), os.Symlink("file", link)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		mount driver.Mount
		want  bool
	}{
		{driver.Mount{HostPath: file, TaskPath: file, Readonly: true}, true},
		{driver.Mount{HostPath: file, TaskPath: link, Readonly: true}, true},
		{driver.Mount{HostPath: file, TaskPath: file}, false},
		{driver.Mount{HostPath: file, TaskPath: file, Readonly: true, RequestName: "volume"}, false},
		{driver.Mount{HostPath: dir + "/other", TaskPath: file, Readonly: true}, false},
		{driver.Mount{HostPath: file, TaskPath: dir + "/missing", Readonly: true}, false},
	} {
		s := New(&sdk.StartRequest{TaskConfig: driver.TaskConfig{Mounts: []driver.Mount{c.mount}}}, Options{})
		root, err := s.buildStageRoot()
		if err != nil || len(root.Mounts) != 1 || root.Mounts[0].IsMachineFile != c.want {
			t.Errorf("%+v: got %+v, %v", c.mount, root, err)
		}
	}
}
