package systemtest

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"iter"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// testAgent is an agent in a process of its own, with an empty state, and a client of the agent.
// Its tasks are shell commands.
type testAgent struct {
	*api.Client
	t          testing.TB
	httpClient *http.Client // uses the same TLS configuration as the API client
	address    string
	tls        bool
	workDir    string
	nodeID     string
}

// checkAgentLog fails the test if the lines of an agent's log report a panic, and prints the stacks that follow. The
// reports of the race detector are not in the log; see package racereport.
func checkAgentLog(t testing.TB, lines iter.Seq[string]) {
	t.Helper()
	hasPanicked := false
	for line := range lines {
		hasPanicked = hasPanicked || strings.Contains(line, "panic:")
		if hasPanicked {
			t.Error("the agent says ", line)
		}
	}
}

// forEachTransport runs a test with an agent over plain TCP, and with an agent that requires and
// presents certificates. The unix socket is tested by scripts.
func forEachTransport(t *testing.T, test func(t *testing.T, s *testAgent)) {
	t.Parallel()
	for name, secure := range map[string]bool{"in the clear": false, "over TLS": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, startTestAgent(t, secure))
		})
	}
}

const testAgentConfig = `
ports {
  http = 0
}
client {
  cpu_total_compute = 1000000
  memory_total_mb   = 1000000
  disk_total_mb     = 10000000
}
plugin "raw_exec" {
  config {
    enabled = true
  }
}
`

const testAgentTLSConfig = `
tls {
  http                = true
  ca_file             = "DIR/ca.pem"
  cert_file           = "DIR/server.pem"
  key_file            = "DIR/server.key"
  verify_https_client = true
}
`

// startTestAgent starts an agent that shuts down at the end of the test. The strings in more are
// appended to its configuration.
func startTestAgent(t testing.TB, secure bool, more ...string) *testAgent {
	t.Helper()
	dir := t.TempDir()
	text := testAgentConfig + strings.Join(more, "")
	if secure {
		certificates := exec.Command("mint", "ca", "server", "client")
		certificates.Dir = dir
		if out, err := certificates.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		text += strings.ReplaceAll(testAgentTLSConfig, "DIR", dir)
	}
	config := filepath.Join(dir, "agent.hcl")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	work := t.TempDir()
	cmd := exec.Command("nomad-lite", "agent", "-dev", "-config", config)
	roomy, err := filepath.Abs(testConfigFile)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(os.Environ(), testConfigEnvVar+"="+roomy, workDirEnvVar+"="+work) // the test finds the processes of the agent by workDirEnvVar
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	address := ""
	log := bufio.NewScanner(stderr)
	for address == "" && log.Scan() {
		if found := regexp.MustCompile(`agent is ready: (https?://[^,]+)`).FindStringSubmatch(log.Text()); found != nil {
			address = found[1]
		}
	}
	logged := make(chan struct{})
	go func() {
		defer close(logged)
		checkAgentLog(t, func(yield func(string) bool) {
			for log.Scan() && yield(log.Text()) {
			}
		})
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGINT) // the agent can have exited
		<-logged
		if err := cmd.Wait(); err != nil {
			t.Error("the agent: ", err)
		}
	})
	if address == "" {
		t.Fatal("the agent is not ready")
	}
	c := &api.Config{Address: address}
	base := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{}}}
	t.Cleanup(base.CloseIdleConnections)
	if secure {
		c.TLSConfig = &api.TLSConfig{
			CACert: filepath.Join(dir, "ca.pem"), ClientCert: filepath.Join(dir, "client.pem"), ClientKey: filepath.Join(dir, "client.key"),
		}
		if err := api.ConfigureTLS(base, c.TLSConfig); err != nil {
			t.Fatal(err)
		}
	}
	client, err := api.NewClient(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	nodes, _, err := client.Nodes().List(nil)
	if err != nil || len(nodes) != 1 {
		t.Fatalf("nodes %v, %v", nodes, err)
	}
	return &testAgent{client, t, base, address, secure, work, nodes[0].ID}
}

// newShellTask returns a task that runs a script.
func newShellTask(name, script string, edit ...func(*api.Task)) *api.Task {
	task := api.NewTask(name, "raw_exec").SetConfig("command", "/bin/sh").SetConfig("args", []string{"-c", script})
	task.Resources = &api.Resources{CPU: new(1), MemoryMB: new(10)}
	for _, e := range edit {
		e(task)
	}
	return task
}

// inPrestart makes a task a prestart task.
func inPrestart(t *api.Task) { t.Lifecycle = &api.TaskLifecycle{Hook: api.TaskLifecycleHookPrestart} }

// withoutRestart makes a task fail at its first failure.
func withoutRestart(t *api.Task) {
	t.RestartPolicy = &api.RestartPolicy{Attempts: new(0), Mode: new("fail")}
}

// sleepForeverScript is a script that runs until it receives SIGTERM or SIGINT.
const sleepForeverScript = `trap 'exit 0' TERM INT; while :; do sleep 1000 & wait; done`

// run registers a job with one group of the given tasks, and waits until its allocation has the
// status. It returns the allocation.
func (s *testAgent) run(id, kind, status string, tasks ...*api.Task) *api.Allocation {
	s.t.Helper()
	group := api.NewTaskGroup("g", 1)
	for _, task := range tasks {
		group.AddTask(task)
	}
	return s.runGroup(id, kind, status, group)
}

func (s *testAgent) runGroup(id, kind, status string, group *api.TaskGroup) *api.Allocation {
	s.t.Helper()
	s.registerGroup(id, kind, group)
	return s.waitAlloc(id, status)
}

func (s *testAgent) registerGroup(id, kind string, group *api.TaskGroup) {
	s.t.Helper()
	job := api.NewServiceJob(id, id, api.GlobalRegion, 50)
	job.Type = &kind
	job.AddTaskGroup(group)
	if _, _, err := s.Jobs().Register(job, nil); err != nil {
		s.t.Fatal(err)
	}
}

// waitAlloc waits until the allocation of a job has the status, and returns it.
func (s *testAgent) waitAlloc(id, status string) *api.Allocation {
	s.t.Helper()
	var alloc *api.Allocation
	s.waitUntil(id+" is "+status, func() (string, bool) {
		stubs, _, err := s.Jobs().Allocations(id, false, nil)
		if err != nil || len(stubs) == 0 {
			return fmt.Sprint(err), false
		}
		alloc = s.readAlloc(stubs[0].ID)
		return alloc.ClientStatus + " " + alloc.ClientDescription, alloc.ClientStatus == status
	})
	return alloc
}

func (s *testAgent) readAlloc(id string) *api.Allocation {
	s.t.Helper()
	alloc, _, err := s.Allocations().Info(id, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return alloc
}

// waitUntil calls the function is until it reports true. After a timeout, the test fails with the
// text of the last call.
func (s *testAgent) waitUntil(what string, is func() (string, bool)) {
	s.t.Helper()
	last, ok := "", false
	for deadline := time.Now().Add(waitTimeout); ; time.Sleep(5 * time.Millisecond) {
		if last, ok = is(); ok {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%s: not within %v, but: %s", what, waitTimeout, last)
		}
	}
}

// isErrorResponse reports whether an error of the client is a response with this code and text.
func isErrorResponse(err error, code int, text string) bool {
	return err != nil && strings.Contains(err.Error(), fmt.Sprintf("Unexpected response code: %d (%s)", code, text))
}
