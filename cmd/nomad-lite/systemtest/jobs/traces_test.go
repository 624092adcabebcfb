package jobs

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/agentsocket"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/runtime/agent/otlp/otlptest"
	"github.com/nomad-lite/nomad-lite/runtime/job/tracespan"
)

const tracesTestConfig = `
ports {
  http = 0
}
plugin "raw_exec" {
  config {
    enabled = true
  }
}
plugin "script" {
  config {
    commands = true
  }
}
plugin "quiet" {}
hook "quiet" {
  match {}
}
hook "script" {
  match {}
  config {
    prerun    = { command = ["sh", "-c", "echo $TRACEPARENT > %[1]s"] }
    poststart = { command = ["sh", "-c", "exit 7"] }
  }
}
telemetry {
  otlp {
    endpoint         = %[2]q
    protocol         = %[3]q
    task_traceparent = true
    headers {
      x-key = "s3cr3t"
    }
  }
}
`

// tracedNode is a node that exports traces to a collector.
type tracedNode struct {
	*testing.T
	dir, log string
	client   *api.Client
	agent    *exec.Cmd
	exited   chan struct{} // closed when the agent has exited
}

// newTracedNode starts a node whose hook writes its trace context to the file hook in the directory of the node.
func newTracedNode(t *testing.T, endpoint, protocol string) *tracedNode {
	t.Helper()
	n := &tracedNode{T: t, dir: systemtest.NewLeakCheckedAgentDir(t)}
	t.Cleanup(func() {
		select {
		case <-n.exited:
		default: // the test has failed
			n.stop(syscall.SIGKILL)
		}
		if t.Failed() {
			t.Logf("the agents said:\n%s", n.log)
			for _, p := range systemtest.FindDataDirProcesses(n.path("data")) {
				_ = p.Signal(syscall.SIGKILL) // the process can have exited
			}
		}
	})
	config := fmt.Sprintf(tracesTestConfig, n.path("hook"), endpoint, protocol)
	if err := os.WriteFile(n.path("agent.hcl"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(n.path("plugins"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(n.path("plugins/quiet"), []byte("#!/bin/sh\nexec quiet-hook quiet\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	n.start()
	return n
}

func (n *tracedNode) path(name string) string { return filepath.Join(n.dir, name) }

// start starts an agent and waits until it is ready.
func (n *tracedNode) start() {
	n.Helper()
	var err error
	if n.client, err = api.NewClient(&api.Config{Address: "unix://" + n.path("data/"+agentsocket.FileName)}); err != nil {
		n.Fatal(err)
	}
	n.Cleanup(n.client.Close)
	log, err := os.Create(n.path("log"))
	if err != nil {
		n.Fatal(err)
	}
	defer log.Close()
	n.agent = exec.Command("nomad-lite", "agent", "-config", n.path("agent.hcl"), "-data-dir", n.path("data"), "-plugin-dir", n.path("plugins"))
	n.agent.Stderr = log
	if err := n.agent.Start(); err != nil {
		n.Fatal(err)
	}
	agent, exited := n.agent, make(chan struct{})
	n.exited = exited
	go func() {
		defer close(exited)
		_ = agent.Wait() // a killed agent has an error
	}()
	n.await("the agent is ready", func() bool {
		text, err := os.ReadFile(log.Name())
		if err != nil {
			n.Fatal(err)
		}
		select {
		case <-n.exited:
			n.Fatalf("the agent has exited:\n%s", text)
		default:
		}
		return strings.Contains(string(text), "agent is ready")
	})
}

// stop ends the agent, and returns how long that takes.
func (n *tracedNode) stop(signal syscall.Signal) time.Duration {
	n.Helper()
	begin := time.Now()
	_ = n.agent.Process.Signal(signal) // the agent can have exited
	<-n.exited
	took := time.Since(begin)
	text, err := os.ReadFile(n.path("log"))
	if err != nil {
		n.Fatal(err)
	}
	n.log += string(text)
	return took
}

func (n *tracedNode) await(what string, done func() bool) {
	n.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			n.Fatalf("not in time: %s", what)
		}
	}
}

// register starts a job from a file and returns its allocation.
func (n *tracedNode) register(file string) *api.Allocation {
	n.Helper()
	run := exec.Command("nomad-lite", "job", "run", "-detach", file)
	run.Env = append(os.Environ(), "NOMAD_ADDR=unix://"+n.path("data/"+agentsocket.FileName))
	if out, err := run.CombinedOutput(); err != nil {
		n.Fatalf("job run: %v\n%s", err, out)
	}
	var allocs []*api.AllocationListStub
	n.await("the job has an allocation", func() bool {
		var err error
		allocs, _, err = n.client.Allocations().List(nil)
		return err == nil && len(allocs) == 1
	})
	return &api.Allocation{ID: allocs[0].ID}
}

// awaitTask waits until a task has a state.
func (n *tracedNode) awaitTask(alloc *api.Allocation, task, state string) {
	n.Helper()
	n.await(task+" is "+state, func() bool {
		now, _, err := n.client.Allocations().Info(alloc.ID, nil)
		return err == nil && now.TaskStates[task] != nil && now.TaskStates[task].State == state
	})
}

// readTimeline returns the time line of an allocation by the ids of its spans.
func (n *tracedNode) readTimeline(alloc *api.Allocation) map[string]tracespan.Span {
	n.Helper()
	var reply struct{ Spans []tracespan.Span }
	if _, err := n.client.Raw().Query("/v1/allocation/"+alloc.ID+"/timeline", &reply, nil); err != nil {
		n.Fatal(err)
	}
	spans := make(map[string]tracespan.Span)
	for _, s := range reply.Spans {
		spans[s.ID] = s
	}
	return spans
}

// awaitExport waits until all ended spans of an allocation are in its file and at the collector, because a killed agent
// loses others. It returns the time line.
func (n *tracedNode) awaitExport(alloc *api.Allocation, collector *otlptest.Collector) (spans map[string]tracespan.Span) {
	n.Helper()
	n.await("the spans are exported", func() bool {
		spans = n.readTimeline(alloc)
		written, err := os.ReadFile(n.path("data/alloc/" + alloc.ID + "/.timeline"))
		if err != nil {
			return false // the first spans are not written yet
		}
		exported := make(map[string]bool)
		for _, s := range collector.Spans() {
			exported[hex.EncodeToString(s.GetSpanId())] = true
		}
		for id, s := range spans {
			if s.End.IsZero() {
				continue
			}
			if !strings.Contains(string(written), id) || !exported[exportedID(alloc, s)] {
				return false
			}
		}
		return true
	})
	return spans
}

// exportedID returns the id of a span in the trace: the span of the placement is the root.
func exportedID(alloc *api.Allocation, s tracespan.Span) string {
	if s.Name == tracespan.Placement {
		return rootSpanID(alloc)
	}
	return s.ID
}

// rootSpanID returns the id of the root span, which is the second half of the trace id.
func rootSpanID(alloc *api.Allocation) string { return strings.ReplaceAll(alloc.ID, "-", "")[16:] }

// The trace of the README's job has all spans of its time line, over both protocols and when the agent is
// killed, and plugins and tasks get its context.
func TestTraceOfJob(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"http/protobuf", "grpc"} {
		t.Run(strings.ReplaceAll(protocol, "/", "-"), func(t *testing.T) {
			t.Parallel()
			collector := otlptest.New(t, protocol)
			n := newTracedNode(t, collector.URL, protocol)
			alloc := n.register(filepath.Join(systemtest.RepositoryDir(), "testdata/jobs/web.nomad.hcl"))
			n.awaitTask(alloc, "ask", "dead")
			environ := readTaskEnviron(t, n, alloc, "server")

			before := n.awaitExport(alloc, collector)
			n.stop(syscall.SIGKILL)
			n.start()
			n.awaitTask(alloc, "server", "running")
			if _, _, err := n.client.Jobs().Deregister("web", false, nil); err != nil {
				t.Fatal(err)
			}
			n.await("the allocation is complete", func() bool {
				now, _, err := n.client.Allocations().Info(alloc.ID, nil)
				return err == nil && now.ClientStatus == api.AllocClientStatusComplete && hasSpan(n.readTimeline(alloc), tracespan.Lifetime)
			})
			recorded := n.readTimeline(alloc)
			self, err := n.client.Agent().Self()
			if err != nil {
				t.Fatal(err)
			}
			n.stop(syscall.SIGINT)

			if len(recorded) <= len(before) {
				t.Errorf("%d spans before the agent was killed, %d after", len(before), len(recorded))
			}
			exported := compareTrace(t, collector.Spans(), recorded, alloc)
			for _, want := range []struct{ name, task, plugin, message string }{
				{"placement", "", "", ""},
				{"lifetime", "", "", ""},
				{"hook prerun", "", "alloc_dir", ""},
				{"hook prerun", "", "script", ""},
				{"hook prestart", "server", "validate", ""},
				{"hook prestart", "server", "quiet", ""},
				{"hook poststart", "server", "script", "exit code 7"},
				{"driver StartTask", "build", "raw_exec", ""},
				{"driver RecoverTask", "server", "raw_exec", ""},
				{"driver StopTask", "server", "raw_exec", ""},
				{"wait other tasks", "server", "", ""},
				{"run", "build", "raw_exec", ""},
				{"run", "server", "raw_exec", "Signal: 2"},
				{"event Started", "server", "", ""},
			} {
				if !hasExported(exported, want.name, want.task, want.plugin, want.message) {
					t.Errorf("the trace has no span %+v", want)
				}
			}

			hookContext, err := os.ReadFile(n.path("hook"))
			if err != nil {
				t.Fatal(err)
			}
			if s := findParent(exported, strings.TrimSpace(string(hookContext))); s.GetName() != "hook prerun" || otlptest.StringAttributes(s)["nomad.plugin"] != "script" {
				t.Errorf("the hook got the context %s of %v", hookContext, s)
			}
			if s := findParent(exported, environ["TRACEPARENT"]); s.GetName() != "run" || otlptest.StringAttributes(s)["nomad.task"] != "server" {
				t.Errorf("the task got the context %s of %v", environ["TRACEPARENT"], s)
			}

			text, err := json.Marshal(self)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(text), "s3cr3t") || strings.Contains(n.log, "s3cr3t") {
				t.Error("a header is in the log or in /v1/agent/self")
			}
			if got := collector.RequestHeaders()[0]["x-key"]; len(got) != 1 || got[0] != "s3cr3t" {
				t.Errorf("the collector got the header %q", got)
			}
		})
	}
}

// readTaskEnviron returns the environment of the process of a running task.
func readTaskEnviron(t *testing.T, n *tracedNode, alloc *api.Allocation, task string) map[string]string {
	t.Helper()
	environ := make(map[string]string)
	for _, p := range systemtest.FindDataDirProcesses(n.path("data")) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.PID))
		if err != nil || !strings.Contains(string(text), "NOMAD_TASK_NAME="+task+"\x00") {
			continue
		}
		for variable := range strings.SplitSeq(string(text), "\x00") {
			name, value, _ := strings.Cut(variable, "=")
			environ[name] = value
		}
	}
	if environ["NOMAD_ALLOC_ID"] != alloc.ID {
		t.Errorf("no process of task %s was found", task)
	}
	return environ
}

func hasSpan(spans map[string]tracespan.Span, name string) bool {
	for _, s := range spans {
		if s.Name == name {
			return true
		}
	}
	return false
}

// compareTrace checks that a trace has the same spans as a time line, and returns the exported spans by
// their ids.
func compareTrace(t *testing.T, spans []*tracepb.Span, recorded map[string]tracespan.Span, alloc *api.Allocation) map[string]*tracepb.Span {
	t.Helper()
	traceID := strings.ReplaceAll(alloc.ID, "-", "")
	root := rootSpanID(alloc)
	byExportedID := make(map[string]tracespan.Span)
	for _, s := range recorded {
		byExportedID[exportedID(alloc, s)] = s
	}
	exported := make(map[string]*tracepb.Span)
	for _, s := range spans {
		id, parent := hex.EncodeToString(s.GetSpanId()), hex.EncodeToString(s.GetParentSpanId())
		was, found := byExportedID[id]
		if !found || exported[id] != nil {
			t.Errorf("span %q of %v was exported, and is in the time line: %v", s.GetName(), otlptest.StringAttributes(s), found)
		}
		exported[id] = s
		if got := hex.EncodeToString(s.GetTraceId()); got != traceID {
			t.Errorf("span %q is in the trace %s", s.GetName(), got)
		}
		if want := root; id != root && parent != want || id == root && parent != "" {
			t.Errorf("span %q has the parent %q, want %q", s.GetName(), parent, want)
		}
		if failed := was.Error != "" || was.Failed; failed != (s.GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR) {
			t.Errorf("span %q has the status %v, the time line %+v", s.GetName(), s.GetStatus(), was)
		}
		attributes := otlptest.StringAttributes(s)
		if attributes["nomad.task"] != was.Task || attributes["nomad.plugin"] != was.Plugin || attributes["nomad.job.id"] != "web" || attributes["nomad.alloc.id"] != alloc.ID {
			t.Errorf("span %q has the attributes %v, the time line %+v", s.GetName(), attributes, was)
		}
		if got := time.Duration(s.GetEndTimeUnixNano() - s.GetStartTimeUnixNano()); got != max(was.End.Sub(was.Start), 0) {
			t.Errorf("span %q lasted %v, in the time line %v", s.GetName(), got, was.End.Sub(was.Start))
		}
	}
	for id, s := range byExportedID {
		if exported[id] == nil && !s.End.IsZero() {
			t.Errorf("not exported: %+v", s)
		}
	}
	return exported
}

func hasExported(spans map[string]*tracepb.Span, name, task, plugin, message string) bool {
	for _, s := range spans {
		a := otlptest.StringAttributes(s)
		if s.GetName() == name && a["nomad.task"] == task && a["nomad.plugin"] == plugin && strings.Contains(s.GetStatus().GetMessage(), message) &&
			(message != "") == (s.GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR) {
			return true
		}
	}
	return false
}

// findParent returns the span that a trace context names as the parent.
func findParent(spans map[string]*tracepb.Span, traceparent string) *tracepb.Span {
	parts := strings.Split(traceparent, "-")
	if len(parts) != 4 || parts[0] != "00" || parts[3] != "01" {
		return nil
	}
	s := spans[parts[2]]
	if hex.EncodeToString(s.GetTraceId()) != parts[1] {
		return nil
	}
	return s
}

// An agent whose collector is unreachable, does not answer or fails runs jobs like an agent without a collector, and
// shuts down in limited time.
func TestAgentWithUnusableCollector(t *testing.T) {
	failing := otlptest.NewHTTP(t, func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusInternalServerError)
		return true
	})
	job := filepath.Join(t.TempDir(), "job.nomad.hcl")
	if err := os.WriteFile(job, []byte(tracesTestJob), 0o600); err != nil {
		t.Fatal(err)
	}
	var without time.Duration
	for _, test := range []struct{ name, endpoint string }{
		{"without", ""},
		{"gone", otlptest.ClosedURL(t)},
		{"silent", otlptest.NewHanging(t).URL},
		{"failing", failing.URL},
	} {
		cmd := exec.Command("nomad-lite", "run", job)
		cmd.Env = append(os.Environ(), "OTEL_EXPORTER_OTLP_ENDPOINT="+test.endpoint, "OTEL_EXPORTER_OTLP_HEADERS=x-key=s3cr3t")
		begin := time.Now()
		out, err := cmd.CombinedOutput()
		took := time.Since(begin)
		t.Logf("%s: %v", test.name, took)
		if err != nil || !strings.Contains(string(out), "key is []") || strings.Contains(string(out), "s3cr3t") {
			t.Errorf("%s: %v\n%s", test.name, err, out)
		}
		// At its end, an agent waits at most two seconds until the collector has accepted the last spans.
		if without = cmp.Or(without, took); took > without+10*time.Second {
			t.Errorf("%s: the run took %v, %v without a collector", test.name, took, without)
		}
	}
}

const tracesTestJob = `
job "batch" {
  type = "batch"
  group "g" {
    count = 3
    task "t" {
      driver = "raw_exec"
      config {
        command = "sh"
        args    = ["-c", "echo key is [$OTEL_EXPORTER_OTLP_HEADERS]"]
      }
    }
  }
}
`
