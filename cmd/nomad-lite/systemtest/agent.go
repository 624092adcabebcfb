package systemtest

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"iter"
	"net"
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

// TestAgent is an agent in a process of its own that starts with an empty state, and a client of the agent.
type TestAgent struct {
	*api.Client
	T                testing.TB
	HTTPClient       *http.Client // uses the same UsesTLS configuration as the API client
	Address          string
	UsesTLS          bool
	ProcessMarkerDir string
	NodeID           string
}

// failOnAgentPanic fails the test if a line of an agent's log reports a panic, and prints that line and all that
// follow. The reports of the race detector are not in the log; see package racereport.
func failOnAgentPanic(t testing.TB, lines iter.Seq[string]) {
	t.Helper()
	hasPanicked := false
	for line := range lines {
		hasPanicked = hasPanicked || strings.Contains(line, "panic:")
		if hasPanicked {
			t.Error("the agent says ", line)
		}
	}
}

// RunWithPlainTCPAndTLS runs a test with an agent over plain TCP, and with an agent that requires client certificates.
// Scripts test the unix socket.
func RunWithPlainTCPAndTLS(t *testing.T, test func(t *testing.T, s *TestAgent)) {
	t.Parallel()
	for name, secure := range map[string]bool{"in the clear": false, "over TLS": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, StartTestAgent(t, secure))
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

var tokenFileInLog = regexp.MustCompile(`export NOMAD_TOKEN=\$\(cat '?(.*?)'?\)`)

const tokenlessConfig = `
acl {
  enabled = false
}
`

// StartTestAgent starts an agent that shuts down at the end of the test. It requires no token, unless extraConfig enables access
// control. The strings in extraConfig are appended to its configuration.
func StartTestAgent(t testing.TB, requireClientCerts bool, extraConfig ...string) *TestAgent {
	t.Helper()
	dir := t.TempDir()
	text := testAgentConfig + tokenlessConfig + strings.Join(extraConfig, "")
	if requireClientCerts {
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
	cmd.Env = append(os.Environ(), TestConfigEnvVar+"="+testConfigPath(), WorkDirEnvVar+"="+work) // the test finds the processes of the agent by WorkDirEnvVar
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	address, token := "", []byte(nil)
	log := bufio.NewScanner(stderr)
	for address == "" && log.Scan() {
		if found := tokenFileInLog.FindStringSubmatch(log.Text()); found != nil {
			token, err = os.ReadFile(found[1])
			if err != nil {
				t.Fatal(err)
			}
		}
		if found := regexp.MustCompile(`agent is ready: (https?://[^,]+)`).FindStringSubmatch(log.Text()); found != nil {
			address = found[1]
		}
	}
	logged, lastLine := make(chan struct{}), ""
	go func() {
		defer close(logged)
		failOnAgentPanic(t, func(yield func(string) bool) {
			for log.Scan() && yield(log.Text()) {
				lastLine = log.Text()
			}
		})
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGINT) // the agent can have exited
		<-logged
		if err := cmd.Wait(); err != nil {
			t.Errorf("the agent: %v; its last line: %s", err, lastLine)
		}
	})
	if address == "" {
		t.Fatal("the agent is not ready")
	}
	c := &api.Config{Address: address, SecretID: strings.TrimSpace(string(token))}
	base := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{}}}
	t.Cleanup(base.CloseIdleConnections)
	if requireClientCerts {
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
	self, err := client.Agent().Self() // not the list of nodes, which an agent in a cluster reads from servers
	if err != nil {
		t.Fatal(err)
	}
	return &TestAgent{client, t, base, address, requireClientCerts, work, self.Stats["client"]["node_id"]}
}

// NewRawExecShellTask returns a task of raw_exec that runs a shell script.
func NewRawExecShellTask(name, script string, edit ...func(*api.Task)) *api.Task {
	task := api.NewTask(name, "raw_exec").SetConfig("command", "/bin/sh").SetConfig("args", []string{"-c", script})
	task.Resources = &api.Resources{CPU: new(1), MemoryMB: new(10)}
	for _, e := range edit {
		e(task)
	}
	return task
}

// WithExecDriver changes a task to the driver exec.
func WithExecDriver(t *api.Task) {
	t.Driver = "exec"
	t.Resources.MemoryMB = new(32) // until it executes the task's program, nomad-lite itself needs 17 MB with the race detector, and 2 MB without
}

// AsPrestartTask changes a task to a prestart task.
func AsPrestartTask(t *api.Task) {
	t.Lifecycle = &api.TaskLifecycle{Hook: api.TaskLifecycleHookPrestart}
}

// WithoutRestart makes a task fail at its first failure, without a restart.
func WithoutRestart(t *api.Task) {
	t.RestartPolicy = &api.RestartPolicy{Attempts: new(0), Mode: new("fail")}
}

// SleepForeverScript is a script that runs until it receives SIGTERM or SIGINT.
const SleepForeverScript = `trap 'exit 0' TERM INT; while :; do sleep 1000 & wait; done`

// RunJobUntilStatus registers a job of the type jobType with one group that has the tasks, waits until its allocation
// has the client status, and returns the allocation.
func (t *TestAgent) RunJobUntilStatus(id, jobType, clientStatus string, tasks ...*api.Task) *api.Allocation {
	t.T.Helper()
	group := api.NewTaskGroup("g", 1)
	for _, task := range tasks {
		group.AddTask(task)
	}
	return t.RunGroupUntilStatus(id, jobType, clientStatus, group)
}

// RunGroupUntilStatus registers a job of the type jobType with one group, waits until its allocation has the client
// status, and returns the allocation.
func (t *TestAgent) RunGroupUntilStatus(id, jobType, clientStatus string, group *api.TaskGroup) *api.Allocation {
	t.T.Helper()
	t.RegisterJobWithGroup(id, jobType, group)
	return t.WaitAllocStatus(id, clientStatus)
}

// RegisterJobWithGroup registers a job of the type jobType with one group.
func (t *TestAgent) RegisterJobWithGroup(id, jobType string, group *api.TaskGroup) {
	t.T.Helper()
	job := api.NewServiceJob(id, id, api.GlobalRegion, 50)
	job.Type = &jobType
	job.AddTaskGroup(group)
	if _, _, err := t.Jobs().Register(job, nil); err != nil {
		t.T.Fatal(err)
	}
}

// WaitAllocStatus waits until the allocation of a job has the client status, and returns the allocation.
func (t *TestAgent) WaitAllocStatus(jobID, clientStatus string) *api.Allocation {
	t.T.Helper()
	var alloc *api.Allocation
	change := &api.QueryOptions{WaitTime: time.Second} // the agent responds when the allocations have changed
	t.WaitUntil(jobID+" is "+clientStatus, func() (string, bool) {
		stubs, meta, err := t.Jobs().Allocations(jobID, false, change)
		if err != nil {
			return fmt.Sprint(err), false
		}
		change.WaitIndex = meta.LastIndex
		if len(stubs) == 0 {
			return "no allocation", false
		}
		if now := stubs[0]; now.ClientStatus != clientStatus {
			text := now.ClientStatus + " " + now.ClientDescription
			for name, state := range now.TaskStates {
				text += fmt.Sprintf("\n%s: %s", name, FormatEvents(state))
			}
			return text, false
		}
		alloc = t.ReadAlloc(stubs[0].ID)
		return alloc.ClientStatus + " " + alloc.ClientDescription, alloc.ClientStatus == clientStatus
	})
	return alloc
}

// FormatEvents returns the types and messages of the events of a task.
func FormatEvents(state *api.TaskState) string {
	var all []string
	for _, e := range state.Events {
		all = append(all, e.Type+": "+e.DisplayMessage)
	}
	return strings.Join(all, "; ")
}

// ReadAlloc returns an allocation.
func (t *TestAgent) ReadAlloc(id string) *api.Allocation {
	t.T.Helper()
	alloc, _, err := t.Allocations().Info(id, nil)
	if err != nil {
		t.T.Fatal(err)
	}
	return alloc
}

// sleepBetweenChecks sleeps between two checks of a condition for which a test has waited since waitStart. It sleeps
// for at least minSleep, and longer the longer the test has waited, because checks take CPU time from the processes
// under test.
func sleepBetweenChecks(waitStart time.Time, minSleep time.Duration) {
	time.Sleep(max(minSleep, min(time.Since(waitStart)/8, 20*minSleep)))
}

// WaitUntil calls check until ok is true. After WaitTimeout, the test fails with description and the last state.
func (t *TestAgent) WaitUntil(description string, check func() (state string, ok bool)) {
	t.T.Helper()
	lastState, ok := "", false
	for began := time.Now(); ; sleepBetweenChecks(began, 5*time.Millisecond) {
		if lastState, ok = check(); ok {
			return
		}
		if time.Since(began) > WaitTimeout {
			t.T.Fatalf("%s: not within %v, but: %s", description, WaitTimeout, lastState)
		}
	}
}

// IsErrorResponse reports whether an error of the API client is a response with this status code and body.
func IsErrorResponse(err error, statusCode int, body string) bool {
	return err != nil && strings.Contains(err.Error(), fmt.Sprintf("Unexpected response code: %d (%s)", statusCode, body))
}

// ReadStoredLog reads the existing log of a task from an offset relative to origin, "start" or "end".
func (t *TestAgent) ReadStoredLog(alloc *api.Allocation, task, stream, origin string, offset int64) (string, error) {
	frames, errs := t.AllocFS().Logs(alloc, false, task, stream, origin, offset, nil, nil)
	text := ""
	for {
		select {
		case f, more := <-frames:
			if !more {
				return text, nil
			}
			text += string(f.Data)
		case err := <-errs:
			return text, err
		}
	}
}

// rawResponse is an HTTP response of the agent.
type rawResponse struct {
	StatusCode int
	Header     http.Header
	Body       string
}

// SendGet sends a GET request for a path with its query.
func (t *TestAgent) SendGet(path string) rawResponse {
	t.T.Helper()
	r, err := t.HTTPClient.Get(t.Address + path)
	if err != nil {
		t.T.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.T.Fatal(err)
	}
	return rawResponse{r.StatusCode, r.Header, string(body)}
}

// ExecScriptInWebTask runs a script in the task "web" and returns the output of the script.
func (t *TestAgent) ExecScriptInWebTask(alloc *api.Allocation, script string) string {
	t.T.Helper()
	var out, stderrText bytes.Buffer
	code, err := t.Allocations().Exec(t.T.Context(), alloc, "web", false, []string{"/bin/sh", "-c", script}, strings.NewReader(""), &out, &stderrText, nil, nil)
	if err != nil || code != 0 {
		t.T.Fatalf("%s: %d, %v, %s", script, code, err, stderrText.String())
	}
	return strings.TrimSpace(out.String())
}

// EndlessReader is an input that never ends.
type EndlessReader struct{}

func (EndlessReader) Read(p []byte) (int, error) { return len(p), nil }

// agentResourceUsage is the resource usage of an agent: the number of open descriptors of all its processes, and the
// goroutines and the heap bytes of the agent process.
type agentResourceUsage struct {
	OpenDescriptors int
	Goroutines      float64
	HeapBytes       float64
}

// ReadResourceUsage returns the present resource usage of the agent.
func (t *TestAgent) ReadResourceUsage() agentResourceUsage {
	t.T.Helper()
	var l agentResourceUsage
	for pid, command := range ScriptCommandLineByPID(t.ProcessMarkerDir) {
		if !strings.HasPrefix(command, "nomad-lite") {
			continue
		}
		open, _ := os.ReadDir(filepath.Join("/proc", fmt.Sprint(pid), "fd"))
		l.OpenDescriptors += len(open)
	}
	var metrics api.MetricsSummary
	if _, err := t.Raw().Query("/v1/metrics", &metrics, nil); err != nil {
		t.T.Fatal(err)
	}
	for _, g := range metrics.Gauges {
		switch {
		case strings.HasSuffix(g.Name, "runtime.num_goroutines"):
			l.Goroutines = float64(g.Value)
		case strings.HasSuffix(g.Name, "runtime.alloc_bytes"):
			l.HeapBytes = float64(g.Value)
		}
	}
	return l
}

// RequestAndResetAfterText requests path over a new connection, reads until a line of the response contains text, and
// resets the connection.
func (t *TestAgent) RequestAndResetAfterText(path, text string) error {
	conn, err := net.Dial("tcp", strings.TrimPrefix(t.Address, "http://"))
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path); err != nil {
		return err
	}
	seen := bufio.NewScanner(conn)
	seen.Split(bufio.ScanLines)
	for seen.Scan() {
		if strings.Contains(seen.Text(), text) {
			return conn.(*net.TCPConn).SetLinger(0)
		}
	}
	return fmt.Errorf("the stream ended: %v", seen.Err())
}

// ReadNode returns the node of the agent.
func (t *TestAgent) ReadNode() *api.Node {
	t.T.Helper()
	node, _, err := t.Nodes().Info(t.NodeID, nil)
	if err != nil {
		t.T.Fatal(err)
	}
	return node
}

// WaitRunningAllocID waits until a job has a running allocation, and returns its ID.
func (t *TestAgent) WaitRunningAllocID(jobID string) string {
	t.T.Helper()
	id := ""
	t.WaitUntil(jobID+" runs", func() (string, bool) {
		stubs, _, err := t.Jobs().Allocations(jobID, false, nil)
		for _, stub := range stubs {
			if stub.ClientStatus == "running" {
				id = stub.ID
			}
		}
		return fmt.Sprint(err), id != ""
	})
	return id
}

// DialectScript is a shell script that writes a line, and one more for each SIGHUP, until it receives SIGINT or
// SIGTERM.
const DialectScript = `
trap 'echo hangup' HUP
trap 'echo stopping; exit 0' INT TERM
echo "hello from $NOMAD_TASK_NAME"
while :; do sleep 0.05; done
`
