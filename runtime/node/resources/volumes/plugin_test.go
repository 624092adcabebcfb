package volumes

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// withPlugin starts a Manager with a shell script as the plugin "p".
func withPlugin(t *testing.T, script string) *testManager {
	t.Helper()
	m := newTestManager(t)
	m.config.PluginDir = t.TempDir()
	text := "#!/bin/sh\nif [ $1 = fingerprint ]; then echo '{\"version\": \"1.0.0\"}'; exit; fi\n" + script
	if err := os.WriteFile(filepath.Join(m.config.PluginDir, "p"), []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	m.nextAgent()
	return m
}

func TestPluginCallsAreLimited(t *testing.T) {
	for _, c := range []struct{ name, script, want string }{
		{"output", "head -c 100000 /dev/zero", "it has printed more than 65536 bytes"},
		{"no JSON", "echo done", `is not a volume like {"path": "/an/absolute/path", "bytes": 1000}`},
		{"relative path", `echo '{"path": "x"}'`, "is not a volume like"},
		{"path that does not exist", `echo '{"path": "/no/such/volume"}'`, "the volume that it has created: look at /no: no such file"},
		{"exit code", "head -c 10000 /dev/zero | tr '\\0' x >&2; exit 7", `exit status 7: "xxxxx`},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := withPlugin(t, "if [ $1 = delete ]; then exit 0; fi\n"+c.script)
			_, err := m.CreateOrChangeVolume(t.Context(), &api.HostVolume{Name: "v", PluginID: "p"})
			if err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 5000 {
				t.Errorf("%v, want %q", err, c.want)
			}
			if list := m.config.Store.Snapshot().HostVolumes(nil, ""); len(list) != 0 {
				t.Errorf("volumes %+v", list)
			}
		})
	}
}

// A call that takes too long is killed with all its processes.
func TestPluginIsKilledWithItsProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("waits half a second for the plugin")
	}
	m := withPlugin(t, "sleep 1000 & echo $! >$DHV_PLUGIN_DIR/pid; wait")
	p, err := m.findPluginByName("p")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := p.create(ctx, pluginRequest{}); err == nil || !strings.Contains(err.Error(), "it was killed because it has not exited in time") {
		t.Error(err)
	}
	text, err := os.ReadFile(filepath.Join(m.config.PluginDir, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) || strings.Contains(string(status), ") Z ") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d of the plugin runs", pid)
		}
		time.Sleep(time.Millisecond)
	}
}

// createEnv is the environment variable that makes TestCreateUntilKilled create a volume. Its value is the state directory and,
// after a colon, the plugin directory.
const createEnv = "VOLUMES_TEST_CREATE"

// TestCreateUntilKilled is TestProcessesOfInterruptedCallAreKilled's agent, which is killed during a call.
func TestCreateUntilKilled(t *testing.T) {
	dir, pluginDir, found := strings.Cut(os.Getenv(createEnv), ":")
	if !found {
		t.Skip("another test starts it as a process")
	}
	s, err := store.Open(t.Context(), store.Config{StateFilePath: filepath.Join(dir, "state.db"), Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	m := New(Config{Store: s, NodeID: "n", VolumesDir: dir, PluginDir: pluginDir, IsVolumeInAgentConfig: func(string) bool { return false }, OnVolumesOrPluginsChange: func() {}, Logger: hclog.NewNullLogger()})
	m.RestoreVolumesAndPlugins(t.Context())
	t.Fatal(m.CreateOrChangeVolume(t.Context(), &api.HostVolume{Name: "v", PluginID: "p"}))
}

// A plugin's child process is killed before the next agent repeats the call during which the first agent has died. A process left
// running by a completed call is not.
func TestProcessesOfInterruptedCallAreKilled(t *testing.T) {
	m := withPlugin(t, `sleep 1000 >/dev/null 2>&1 &
echo $! >>$DHV_PLUGIN_DIR/.pids
if [ -e $DHV_PLUGIN_DIR/.completes ]; then echo '{"path": "'$DHV_PLUGIN_DIR'"}'; else wait; fi`)
	dir := filepath.Dir(m.config.VolumesDir)
	if err := m.config.Store.Close(); err != nil {
		t.Fatal(err)
	}
	// waitStarted returns the process started by the plugin in its nth call.
	waitStarted := func(n int) int {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
			text, _ := os.ReadFile(filepath.Join(m.config.PluginDir, ".pids")) // the file is missing before the first call
			if lines := strings.Fields(string(text)); len(lines) >= n && strings.HasSuffix(string(text), "\n") {
				pid, err := strconv.Atoi(lines[n-1])
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
				return pid
			}
			if time.Now().After(deadline) {
				t.Fatalf("the plugin was not called %d times", n)
			}
		}
	}
	running := func(pid int) bool {
		stat, err := osprocess.ReadStat(pid)
		return err == nil && !stat.Ended()
	}

	agent := exec.Command("/proc/self/exe", "-test.run=^TestCreateUntilKilled$")
	agent.Env = append(os.Environ(), createEnv+"="+dir+":"+m.config.PluginDir)
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	interrupted := waitStarted(1)
	if err := agent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = agent.Wait() // it was killed
	if !running(interrupted) {
		t.Fatal("the process of the plugin has ended with the agent")
	}
	if err := os.WriteFile(filepath.Join(m.config.PluginDir, ".completes"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var err error
	if m.config.Store, err = store.Open(t.Context(), store.Config{StateFilePath: filepath.Join(dir, "state.db"), Logger: hclog.NewNullLogger()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.config.Store.Close() })
	m.nextAgent()
	if running(interrupted) {
		t.Error("the process of the interrupted call runs beside the repeated call")
	}
	repeated := waitStarted(2)
	m.nextAgent()
	if waitStarted(3); !running(repeated) {
		t.Error("the process of the completed call was killed")
	}
}

// If the plugin can neither create nor delete a volume, the volume stays visible until it is deleted.
func TestHalfCreatedVolumeStaysVisible(t *testing.T) {
	m := withPlugin(t, "if [ -e $DHV_PLUGIN_DIR/ok ]; then exit 0; fi; exit 1")
	if _, err := m.CreateOrChangeVolume(t.Context(), &api.HostVolume{Name: "v", PluginID: "p"}); err == nil {
		t.Fatal("created")
	}
	list := m.config.Store.Snapshot().HostVolumes(nil, "")
	if len(list) != 1 || list[0].Volume.State != api.HostVolumeStateUnavailable || list[0].PendingOperation != state.HostVolumeDelete {
		t.Fatalf("volumes %+v", list)
	}
	m.nextAgent()
	if m.stored(list[0].Volume.ID) == nil {
		t.Fatal("the next agent has forgotten the volume")
	}
	if err := os.WriteFile(filepath.Join(m.config.PluginDir, "ok"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m.nextAgent()
	if v := m.stored(list[0].Volume.ID); v != nil {
		t.Errorf("volume %+v", v.Volume)
	}
}

// A volume is forgotten with force although its plugin fails, or is missing.
func TestForcedDeletion(t *testing.T) {
	m := withPlugin(t, "if [ $1 = delete ]; then exit 1; fi; echo '{\"path\": \"'$DHV_PLUGIN_DIR'\"}'")
	v := m.mustCreate(api.HostVolume{Name: "v", PluginID: "p"})
	if err := os.Remove(filepath.Join(m.config.PluginDir, "p")); err != nil {
		t.Fatal(err)
	}
	m.nextAgent()
	if err := m.DeleteUnusedVolume(t.Context(), "default", v.ID, false); err == nil || !strings.Contains(err.Error(), `this node has no host volume plugin "p"`) {
		t.Errorf("deletion without the plugin: %v", err)
	}
	if err := m.DeleteUnusedVolume(t.Context(), "default", v.ID, true); err != nil || m.stored(v.ID) != nil {
		t.Errorf("deletion with force: %v", err)
	}
}

func TestUnsafePluginIsNotUsed(t *testing.T) {
	m := withPlugin(t, "exit 0")
	if m.PluginVersionByName()["p"] != "1.0.0" {
		t.Fatalf("plugins %v", m.PluginVersionByName())
	}
	if err := os.Chmod(filepath.Join(m.config.PluginDir, "p"), 0o777); err != nil {
		t.Fatal(err)
	}
	m.nextAgent()
	if versions := m.PluginVersionByName(); len(versions) != 1 || versions["mkdir"] == "" {
		t.Errorf("plugins %v", versions)
	}
}

// A failed change leaves the volume as it was, and usable.
func TestFailedChangeKeepsTheVolume(t *testing.T) {
	m := withPlugin(t, "if [ -e $DHV_PLUGIN_DIR/fail ]; then exit 1; fi; echo '{\"path\": \"'$DHV_PLUGIN_DIR'\", \"bytes\": 5}'")
	v := m.mustCreate(api.HostVolume{Name: "v", PluginID: "p"})
	if err := os.WriteFile(filepath.Join(m.config.PluginDir, "fail"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	change := api.HostVolume{ID: v.ID, Name: "v", PluginID: "p", RequestedCapacityMinBytes: 10, RequestedCapabilities: []*api.HostVolumeCapability{{AccessMode: "single-node-multi-writer"}}}
	if _, err := m.CreateOrChangeVolume(t.Context(), &change); err == nil {
		t.Fatal("changed")
	}
	if s := m.stored(v.ID); s == nil || !s.IsReady() || s.PendingOperation != "" || s.Volume.RequestedCapacityMinBytes != 0 || s.Volume.RequestedCapabilities[0].AccessMode != "single-node-writer" || s.Volume.CapacityBytes != 5 {
		t.Errorf("%+v", s)
	}
	if _, err := m.CreateOrChangeVolume(t.Context(), &api.HostVolume{Name: "x", PluginID: "p", Parameters: map[string]string{"a": strings.Repeat("x", 70000)}}); err == nil || !strings.Contains(err.Error(), "the parameters have 70001 bytes") {
		t.Error(err)
	}
}

// A request that comes while the agent starts waits for the plugins: a deletion with force would otherwise forget a volume if its
// plugin has not been found yet.
func TestRequestsWaitForRestore(t *testing.T) {
	m := withPlugin(t, `dir=$DHV_PLUGIN_DIR/.volume
case $1 in
create) mkdir -p $dir; echo "{\"path\": \"$dir\", \"bytes\": 1}" ;;
delete) rmdir $dir ;;
esac`)
	v := m.mustCreate(api.HostVolume{Name: "v", PluginID: "p"})
	m.Manager = New(m.config)
	for name, request := range map[string]func(context.Context) error{
		"create": func(ctx context.Context) error {
			_, err := m.CreateOrChangeVolume(ctx, &api.HostVolume{Name: "w", PluginID: "p"})
			return err
		},
		"register": func(ctx context.Context) error {
			_, err := m.RegisterOrChangeVolume(ctx, &api.HostVolume{Name: "w", HostPath: "/"})
			return err
		},
		"delete": func(ctx context.Context) error { return m.DeleteUnusedVolume(ctx, "default", v.ID, true) },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if err := request(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s before Restore: %v", name, err)
		}
		cancel()
	}
	m.RestoreVolumesAndPlugins(t.Context())
	if err := m.DeleteUnusedVolume(t.Context(), "default", v.ID, true); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(v.HostPath); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory of the deleted volume: %v", err)
	}
}

// interruptedVolumePlugin is a script for the plugin "p"; its volume is the plugin directory. Each call appends a line with its
// operation and the smallest capacity to the file .calls. While the file .fails exists, create fails.
const interruptedVolumePlugin = `cd $DHV_PLUGIN_DIR
echo $1$DHV_CAPACITY_MIN_BYTES >>.calls
if [ $1 = create ]; then
	[ ! -e .fails ] || exit 1
	echo '{"path": "'$DHV_PLUGIN_DIR'"}'
fi`

// interruptOperation stores a volume as an agent leaves it if it dies during an operation.
func (m *testManager) interruptOperation(v *api.HostVolume, operation state.HostVolumeOperation) {
	m.t.Helper()
	m.write(func(tx *store.Txn) { tx.PutHostVolume(&state.HostVolume{Volume: v, PendingOperation: operation}) })
}

func (m *testManager) setPluginFile(name string, exists bool) {
	m.t.Helper()
	path := filepath.Join(m.config.PluginDir, name)
	err := os.Remove(path)
	if exists {
		err = os.WriteFile(path, nil, 0o600)
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

// While an external plugin cannot be used, its volumes are unavailable, because they may not be mounted. The agent that finds
// the plugin again completes the interrupted operations.
func TestVolumesOfMissingPlugin(t *testing.T) {
	m := withPlugin(t, interruptedVolumePlugin)
	ready := m.mustCreate(api.HostVolume{Name: "ready", PluginID: "p"})
	changed := *m.mustCreate(api.HostVolume{Name: "changed", PluginID: "p"})
	changed.RequestedCapacityMinBytes = 7
	created := api.HostVolume{ID: uuid.NewString(), Name: "created", Namespace: "default", PluginID: "p", NodeID: "n", State: api.HostVolumeStatePending}
	deleted := api.HostVolume{ID: uuid.NewString(), Name: "deleted", Namespace: "default", PluginID: "p", NodeID: "n", State: api.HostVolumeStateUnavailable, HostPath: m.config.PluginDir}
	m.interruptOperation(&changed, state.HostVolumeCreate)
	m.interruptOperation(&created, state.HostVolumeCreate)
	m.interruptOperation(&deleted, state.HostVolumeDelete)

	program := filepath.Join(m.config.PluginDir, "p")
	if err := os.Rename(program, program+".hidden"); err != nil {
		t.Fatal(err)
	}
	m.nextAgent()
	for _, id := range []string{ready.ID, changed.ID, created.ID, deleted.ID} {
		if v := m.stored(id); v == nil || v.Volume.State != api.HostVolumeStateUnavailable {
			t.Errorf("without the plugin: %+v", v)
		}
	}
	if err := errors.Join(os.Rename(program+".hidden", program), os.Remove(filepath.Join(m.config.PluginDir, ".calls"))); err != nil {
		t.Fatal(err)
	}
	m.nextAgent()
	for _, id := range []string{ready.ID, changed.ID, created.ID} {
		if v := m.stored(id); v == nil || !v.IsReady() || v.PendingOperation != "" || v.Volume.HostPath != m.config.PluginDir {
			t.Errorf("with the plugin: %+v", v)
		}
	}
	if v := m.stored(deleted.ID); v != nil {
		t.Errorf("the interrupted deletion was not repeated: %+v", v)
	}
	text, err := os.ReadFile(filepath.Join(m.config.PluginDir, ".calls"))
	calls := strings.Split(strings.TrimSpace(string(text)), "\n")
	slices.Sort(calls)
	if !slices.Equal(calls, []string{"create0", "create0", "create7", "delete"}) {
		t.Errorf("calls %q, %v", calls, err)
	}
}

// If a volume's interrupted change cannot be repeated, it is unavailable, because the plugin may not have mounted it. Its data
// stays, and the client can repeat the change.
func TestInterruptedChangeThatFails(t *testing.T) {
	m := withPlugin(t, interruptedVolumePlugin)
	v := *m.mustCreate(api.HostVolume{Name: "v", PluginID: "p"})
	change := v
	change.RequestedCapacityMinBytes = 7
	m.interruptOperation(&change, state.HostVolumeCreate)
	m.setPluginFile(".fails", true)
	m.nextAgent()
	if s := m.stored(v.ID); s == nil || s.Volume.State != api.HostVolumeStateUnavailable || s.Volume.HostPath != v.HostPath {
		t.Fatalf("after the failed repetition: %+v", s)
	}
	m.setPluginFile(".fails", false)
	changed := m.mustCreate(api.HostVolume{ID: v.ID, Name: "v", PluginID: "p", RequestedCapacityMinBytes: 8})
	if changed.State != api.HostVolumeStateReady || changed.RequestedCapacityMinBytes != 8 {
		t.Errorf("after the change of the client: %+v", changed)
	}
}

// A volume that an agent has not created completely is deleted if the next agent cannot create it either.
func TestInterruptedCreationThatFails(t *testing.T) {
	m := withPlugin(t, interruptedVolumePlugin)
	v := api.HostVolume{ID: uuid.NewString(), Name: "v", Namespace: "default", PluginID: "p", NodeID: "n", State: api.HostVolumeStatePending}
	m.interruptOperation(&v, state.HostVolumeCreate)
	m.setPluginFile(".fails", true)
	m.nextAgent()
	text, err := os.ReadFile(filepath.Join(m.config.PluginDir, ".calls"))
	if s := m.stored(v.ID); s != nil || err != nil || string(text) != "create0\ndelete\n" {
		t.Errorf("record %+v, calls %q, %v", s, text, err)
	}
}
