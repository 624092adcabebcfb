package cni

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// agentEnv is the environment variable that makes TestAddUntilKilled call a plugin. Its value is newSlowPlugin's directory.
const agentEnv = "NOMAD_LITE_CNI_TEST_AGENT"

// slowPlugin is a plugin that starts a process in its own session. Each call appends the pids of the plugin and the process
// to the file pids. If the file completes exists, the plugin succeeds, otherwise it waits for the process.
type slowPlugin struct{ dir string }

// newSlowPlugin creates the plugin in a new directory.
func newSlowPlugin(t *testing.T) slowPlugin {
	t.Helper()
	p := slowPlugin{t.TempDir()}
	script := fmt.Sprintf(`#!/bin/sh
cd %s
setsid sleep 1000 >/dev/null 2>&1 &
echo $$ $! >>pids
if [ -e completes ]; then echo '{"cniVersion": "1.0.0"}'; else wait; fi
`, p.dir)
	if err := os.WriteFile(filepath.Join(p.dir, "slow"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p slowPlugin) newClient() *Client {
	return New(Config{PluginDirs: []string{p.dir}}, filepath.Join(p.dir, "cache"))
}

func (p slowPlugin) endpoint() Endpoint {
	return Endpoint{AllocID: "one", NamespacePath: "/no/such/namespace", NetworkConfigJSON: []byte(`{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "slow"}]}`)}
}

// letCallsComplete makes the next calls succeed.
func (p slowPlugin) letCallsComplete(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, "completes"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// waitStarted returns the nth call's pids: the plugin's, and its child process's.
func (p slowPlugin) waitStarted(t *testing.T, n int) (plugin, child int) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		text, _ := os.ReadFile(filepath.Join(p.dir, "pids")) // the file is missing before the first call
		if lines := strings.SplitAfter(string(text), "\n"); len(lines) > n {
			if _, err := fmt.Sscan(lines[n-1], &plugin, &child); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = syscall.Kill(child, syscall.SIGKILL) })
			return plugin, child
		}
		if time.Now().After(deadline) {
			t.Fatalf("the plugin was not called %d times", n)
		}
	}
}

func running(pid int) bool {
	stat, err := osprocess.ReadStat(pid)
	return err == nil && !stat.Ended()
}

// TestAddUntilKilled is TestProcessesOfInterruptedCallAreKilled's agent, which is killed during a call.
func TestAddUntilKilled(t *testing.T) {
	p := slowPlugin{os.Getenv(agentEnv)}
	if p.dir == "" {
		t.Skip("another test starts it as a process")
	}
	_, err := p.newClient().Add(t.Context(), p.endpoint())
	t.Fatal(err)
}

// A plugin's processes are killed before the next agent calls a plugin, if the first agent has died during their call. A
// process left running by a completed call is not.
func TestProcessesOfInterruptedCallAreKilled(t *testing.T) {
	p := newSlowPlugin(t)
	agent := exec.Command("/proc/self/exe", "-test.run=^TestAddUntilKilled$")
	agent.Env = append(os.Environ(), agentEnv+"="+p.dir)
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	plugin, child := p.waitStarted(t, 1)
	if err := agent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = agent.Wait() // it was killed
	for deadline := time.Now().Add(10 * time.Second); running(plugin); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("plugin %d has outlived the agent", plugin)
		}
	}
	if !running(child) {
		t.Fatal("the process of the plugin has ended with the agent")
	}
	p.letCallsComplete(t)

	if err := p.newClient().Del(t.Context(), p.endpoint()); err != nil {
		t.Fatal(err)
	}
	if running(child) {
		t.Error("the process of the interrupted call runs beside the next call")
	}
	_, completed := p.waitStarted(t, 2)
	if _, err := p.newClient().Add(t.Context(), p.endpoint()); err != nil {
		t.Fatal(err)
	}
	if p.waitStarted(t, 3); !running(completed) {
		t.Error("the process of the completed call was killed")
	}
}

// When a call's context ends, all of its processes are killed, so that none runs beside the next call. Other allocations'
// calls at the same time continue.
func TestProcessesOfCanceledCallAreKilled(t *testing.T) {
	p := newSlowPlugin(t)
	c := p.newClient()
	add := func(ctx context.Context) (result chan error) {
		result = make(chan error, 1)
		go func() {
			_, err := c.Add(ctx, p.endpoint())
			result <- err
		}()
		return result
	}
	ctx, cancel := context.WithCancel(t.Context())
	canceled := add(ctx)
	_, canceledChild := p.waitStarted(t, 1)
	otherCtx, cancelOther := context.WithCancel(t.Context())
	other := add(otherCtx)
	_, otherChild := p.waitStarted(t, 2)
	cancel()
	if err := <-canceled; err == nil || running(canceledChild) {
		t.Errorf("%v, and the process of the canceled call is running: %v", err, running(canceledChild))
	}
	p.letCallsComplete(t)
	if err := c.Del(t.Context(), p.endpoint()); err != nil {
		t.Error(err)
	}
	if !running(otherChild) {
		t.Error("the process of another call was killed")
	}
	cancelOther()
	if err := <-other; err == nil {
		t.Error("the call has completed after its context has ended")
	}
	if files, err := os.ReadDir(c.callRecorder.dir); err != nil || len(files) > 0 {
		t.Errorf("records of ended calls: %v, %v", files, err)
	}
}

// A call's error contains what the plugin has printed.
func TestErrorOfPlugin(t *testing.T) {
	for want, script := range map[string]string{
		"no address is free; subnet 1":                      `echo '{"code": 11, "msg": "no address is free", "details": "subnet 1"}'; exit 1`,
		`exit status 2: "no iptables\n"`:                    "echo no iptables >&2; exit 2",
		`exit status 3: "not JSON\n"`:                       "echo not JSON; echo ignored >&2; exit 3",
		"plugin type=\"fails\" failed (add): exit status 4": "exit 4",
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "fails"), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		c := New(Config{PluginDirs: []string{dir}}, filepath.Join(dir, "cache"))
		_, err := c.Add(t.Context(), Endpoint{AllocID: strconv.Itoa(len(want)), NetworkConfigJSON: []byte(`{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "fails"}]}`)})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
