package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// agent is an agent of its own, with this hook.
type agent struct {
	t   *testing.T
	dir string
	cmd *exec.Cmd
}

const jobFile = `job "e2e" {
  group "g" {
    restart {
      attempts = 3
      delay    = "0s"
    }
    task "t" {
      driver = "raw_exec"
      meta {
        lite_hook_warmup = jsonencode({ exec = { command = ["/bin/sh", "-c", "%s"] }, interval = "100ms" })
      }
      config {
        command = "/bin/sleep"
        args    = ["1h"]
      }
    }
  }
}`

func newAgent(t *testing.T) *agent {
	if testing.Short() {
		t.Skip("starts an agent")
	}
	if _, err := exec.LookPath("nomad-lite"); err != nil {
		t.Skip(err)
	}
	dir, err := os.MkdirTemp("", "warmup") // short: it has unix sockets
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{t: t, dir: dir}
	if err := os.Mkdir(filepath.Join(dir, "plugins"), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-o", filepath.Join(dir, "plugins", "warmup"), ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	a.start()
	t.Cleanup(func() {
		if out, err := exec.Command("nomad-lite", "agent", "stop", "-all", filepath.Join(dir, "state")).CombinedOutput(); err != nil {
			t.Logf("%v: %s", err, out)
		}
		_ = a.cmd.Wait()
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(dir, "log"))
			t.Logf("%s", log)
		}
		_ = os.RemoveAll(dir)
	})
	return a
}

func (a *agent) start() {
	a.t.Helper()
	log, err := os.OpenFile(filepath.Join(a.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		a.t.Fatal(err)
	}
	defer log.Close()
	a.cmd = exec.Command("nomad-lite", "agent", "-config", "agent.hcl", "-data-dir", filepath.Join(a.dir, "state"), "-plugin-dir", filepath.Join(a.dir, "plugins"))
	a.cmd.Stdout, a.cmd.Stderr = log, log
	if err := a.cmd.Start(); err != nil {
		a.t.Fatal(err)
	}
	a.eventually("the agent answers", func() bool { return a.try("status") == nil })
}

func (a *agent) kill() {
	_ = a.cmd.Process.Kill()
	_ = a.cmd.Wait()
}

func (a *agent) command(args ...string) *exec.Cmd {
	c := exec.Command("nomad-lite", args...)
	c.Env = append(os.Environ(), "NOMAD_ADDR=unix://"+filepath.Join(a.dir, "state", "nomad.sock"))
	return c
}

func (a *agent) try(args ...string) error { return a.command(args...).Run() }

func (a *agent) must(stdin string, args ...string) string {
	a.t.Helper()
	c := a.command(args...)
	c.Stdin = strings.NewReader(stdin)
	out, err := c.CombinedOutput()
	if err != nil {
		a.t.Fatalf("nomad-lite %v: %v\n%s", args, err, out)
	}
	return string(out)
}

func (a *agent) eventually(what string, ok func() bool) {
	a.t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			a.t.Fatalf("not within 30s: %s", what)
		}
	}
}

// alloc returns the id of the job's newest allocation.
func (a *agent) alloc() string {
	a.t.Helper()
	var allocs []struct{ ID string }
	if err := json.Unmarshal([]byte(a.must("", "job", "allocs", "-json", "e2e")), &allocs); err != nil || len(allocs) == 0 {
		a.t.Fatal(err, allocs)
	}
	return allocs[0].ID
}

func (a *agent) record(alloc string) record {
	r, _ := loadRecord(filepath.Join(a.dir, "state", "alloc", alloc, "t", "private"))
	return r
}

// pluginPID finds the process of this test's plugin, by the path of its program.
func (a *agent) pluginPID() int {
	links, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, link := range links {
		if path, err := os.Readlink(link); err == nil && path == filepath.Join(a.dir, "plugins", "warmup") {
			var pid int
			fmt.Sscanf(link, "/proc/%d/exe", &pid)
			return pid
		}
	}
	return 0
}

func TestStateSurvivesRestarts(t *testing.T) {
	a := newAgent(t)
	executed := filepath.Join(a.dir, "executed") // a line for each command in the task
	lines := func() int { content, _ := os.ReadFile(executed); return bytes.Count(content, []byte("\n")) }
	a.must(fmt.Sprintf(jobFile, "echo >>"+executed), "job", "run", "-")
	alloc := a.alloc()
	expect := func(after string, starts int) {
		t.Helper()
		a.eventually("warmed up after "+after, func() bool {
			r := a.record(alloc)
			return r.Warm && r.Start == starts && r.Warmups == starts
		})
		time.Sleep(time.Second) // for a warm-up that should not be
		if r := a.record(alloc); lines() != starts || r.Warmups != starts {
			t.Fatalf("after %s: %d commands, record %+v", after, lines(), r)
		}
	}
	expect("the start", 1)

	old := a.pluginPID()
	plugin, err := os.FindProcess(old)
	if err != nil || old == 0 || plugin.Kill() != nil {
		t.Fatal("no plugin to kill", old, err)
	}
	a.eventually("another process of the plugin", func() bool { pid := a.pluginPID(); return pid != 0 && pid != old })
	expect("kill -9 of the plugin", 1)

	a.must("", "alloc", "restart", alloc)
	expect("a restart of the task", 2)

	a.kill()
	a.start()
	expect("kill -9 of the agent", 2)

	a.must("", "alloc", "restart", alloc)
	expect("a restart of the task under the next agent", 3)
}

func TestTimeoutFailsTask(t *testing.T) {
	a := newAgent(t)
	a.must(fmt.Sprintf(jobFile, "echo cold; exit 3"), "job", "run", "-detach", "-")
	alloc := a.alloc()
	a.eventually("the task has failed", func() bool {
		out := a.must("", "alloc", "status", alloc)
		return strings.Contains(out, "not warmed up within 6s: /bin/sh: exit code 3: cold") && strings.Contains(out, "= failed")
	})
	t.Log(a.must("", "alloc", "status", alloc))
}
