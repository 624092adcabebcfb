package httpapi

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/nodeapi"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire/wiretest"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskexec"
)

// newClusterServer returns the session of a server of a cluster that calls the API of f.
func newClusterServer(t *testing.T, f *fixture) *wire.Session {
	t.Helper()
	node, server := wiretest.NewSessions(t)
	wiretest.Serve(t, node, nodeapi.Methods(nodeapi.Config{
		NodeID: f.config.NodeID, API: f.HandlerWithAllRights(),
		FindAlloc:  func(id string) *api.Allocation { return f.store.Snapshot().Allocation(nil, id) },
		FindRunner: func(string) taskexec.Runner { return nil },
	}))
	return server
}

// streamPayloads returns the payloads of a stream of the node until its end, and its error.
func streamPayloads(t *testing.T, server *wire.Session, method string, request any) (payloads []string, failure *protocol.StreamError) {
	t.Helper()
	s, err := server.OpenStream(t.Context(), method, request)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for {
		var m protocol.StreamMessage
		switch err := s.Receive(&m); {
		case errors.Is(err, io.EOF):
			return payloads, failure
		case err != nil:
			t.Fatal(err)
		case m.Error != nil:
			failure = m.Error
		default:
			payloads = append(payloads, string(m.Payload))
		}
	}
}

// Servers of a cluster get the replies of the API in their own messages.
func TestServersOfClusterReadFiles(t *testing.T) {
	n := newFilesNode(t)
	f := newFixture(t, func(c *Config) { setNode(c, n); c.OperatorToken = "secret" })
	server := newClusterServer(t, f)
	alloc := f.putAllocation(t)
	content := strings.Repeat("0123456789abcdef", 200<<10/16)
	n.write(t, alloc.ID, "web/local/x", content)

	var list protocol.ListFilesResponse
	if err := server.Call(t.Context(), protocol.MethodListFiles, &protocol.FileRequest{AllocID: alloc.ID, Path: "web/local"}, &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Files) != 1 || list.Files[0].Name != "x" || list.Files[0].Size != int64(len(content)) || list.Files[0].FileMode != "-rw-r--r--" || list.Files[0].ModTime.IsZero() {
		t.Errorf("got files %+v", list.Files)
	}
	var stat protocol.StatFileResponse
	if err := server.Call(t.Context(), protocol.MethodStatFile, &protocol.FileRequest{AllocID: alloc.ID, Path: "web/local/x"}, &stat); err != nil {
		t.Fatal(err)
	}
	if stat.Info.ContentType != "text/plain; charset=utf-8" {
		t.Errorf("got %+v", stat.Info)
	}

	file := protocol.StreamFileRequest{AllocID: alloc.ID, Path: "web/local/x", PlainText: true}
	payloads, failure := streamPayloads(t, server, protocol.MethodStreamFile, &file)
	if strings.Join(payloads, "") != content || len(payloads) < 3 || failure != nil {
		t.Errorf("got %d messages, error %v", len(payloads), failure)
	}
	file.PlainText = false
	payloads, failure = streamPayloads(t, server, protocol.MethodStreamFile, &file)
	got := ""
	for _, p := range payloads {
		var frame api.StreamFrame
		if err := json.Unmarshal([]byte(p), &frame); err != nil {
			t.Fatalf("a message that is not one JSON object: %v", err)
		}
		got += string(frame.Data)
		if frame.File != "web/local/x" || frame.Offset != int64(len(got)) {
			t.Errorf("got frame of %s at %d after %d bytes", frame.File, frame.Offset, len(got))
		}
	}
	if got != content || failure != nil {
		t.Errorf("got %d bytes, error %v", len(got), failure)
	}
}

func TestServersOfClusterGetErrorsOfTheAPI(t *testing.T) {
	n := newFilesNode(t)
	f := newFixture(t, func(c *Config) { setNode(c, n) })
	server := newClusterServer(t, f)
	alloc := f.putAllocation(t)
	n.write(t, alloc.ID, "web/secrets/x", "secret")
	for _, test := range []struct {
		method  string
		request any
		want    string
	}{
		{protocol.MethodAllocStats, &protocol.AllocStatsRequest{AllocID: "x"}, `Unknown allocation "x"`},
		{protocol.MethodListFiles, &protocol.FileRequest{AllocID: alloc.ID, Path: "../x"}, "Path escapes the alloc directory"},
		{protocol.MethodStatFile, &protocol.FileRequest{AllocID: alloc.ID, Path: "no"}, "stat " + n.dir + "/" + alloc.ID + "/no: no such file or directory"},
		{protocol.MethodStatFile, &protocol.FileRequest{AllocID: alloc.ID}, "RPC Error:: 400,must provide a file name"},
		{protocol.MethodRestartAlloc, &protocol.RestartAllocRequest{AllocID: alloc.ID, TaskName: "no"}, `Could not find task`},
		{protocol.MethodCollectAlloc, &protocol.AllocRequest{AllocID: "x"}, "No such allocation on client, or allocation not eligible for GC"},
		{protocol.MethodApplyNodeMeta, &protocol.ApplyNodeMetaRequest{}, "RPC Error:: 400,missing required Meta object"},
		{protocol.MethodApplyNodeMeta, &protocol.ApplyNodeMetaRequest{Meta: map[string]*string{"a b": nil}}, `RPC Error:: 400,"a b" is invalid; metadata keys must be valid dotted hcl identifiers`},
		{protocol.MethodAgentProfile, &protocol.AgentProfileRequest{ReqType: protocol.ProfileCommand}, "Permission denied"},
		{protocol.MethodAgentHost, &protocol.AgentRequest{}, "Permission denied"},
	} {
		var response any
		if err := server.Call(t.Context(), test.method, test.request, &response); err == nil || !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %s", test.method, err, test.want)
		}
	}
	logs := func(task, logType, origin string) *protocol.StreamLogsRequest {
		return &protocol.StreamLogsRequest{AllocID: alloc.ID, Task: task, LogType: logType, Origin: origin}
	}
	for _, test := range []struct {
		method  string
		request any
		code    int64
		want    string
	}{
		{protocol.MethodStreamLogs, logs("", "x", "x"), 400, "must provide task name"},
		{protocol.MethodStreamLogs, logs("no", "x", "x"), 400, "must provide log type (stdout/stderr)"},
		{protocol.MethodStreamLogs, logs("no", "stdout", "x"), 400, "origin must be start or end"},
		{protocol.MethodStreamLogs, logs("no", "stdout", "end"), 400, `unknown task name "no"`},
		{protocol.MethodStreamLogs, logs("web", "stdout", ""), 404, `task "web" not started yet. No logs available`},
		{protocol.MethodStreamFile, &protocol.StreamFileRequest{AllocID: alloc.ID, Path: "no"}, 400, "stat "},
		{protocol.MethodStreamFile, &protocol.StreamFileRequest{AllocID: alloc.ID, Path: "web", PlainText: true}, 400, `file "web" is a directory`},
		{protocol.MethodStreamFile, &protocol.StreamFileRequest{AllocID: alloc.ID, Path: "web/secrets/x", PlainText: true}, 500, "Reading secret file prohibited: web/secrets/x"},
		{protocol.MethodMonitorAgent, &protocol.MonitorAgentRequest{LogLevel: "x"}, 400, "Unknown log level: x"},
		{protocol.MethodExec, &protocol.ExecRequest{AllocID: alloc.ID, Task: "web", Cmd: []string{"x"}}, 404, `task "web" not started yet.`},
	} {
		payloads, failure := streamPayloads(t, server, test.method, test.request)
		if len(payloads) > 0 || failure == nil || failure.Code == nil || *failure.Code != test.code || !strings.HasPrefix(failure.Message, test.want) {
			t.Errorf("%s: got %v, %+v, want %d %s", test.method, payloads, failure, test.code, test.want)
		}
	}
}

func TestServersOfClusterReadNode(t *testing.T) {
	log := hclog.NewInterceptLogger(&hclog.LoggerOptions{Output: io.Discard, Level: hclog.Debug})
	f := newFixture(t, func(c *Config) { setNode(c, newFilesNode(t)); c.MonitoredLog, c.OptionalRoutes.EnableDebug = log, true })
	server := newClusterServer(t, f)
	var meta protocol.NodeMetaResponse
	if err := server.Call(t.Context(), protocol.MethodApplyNodeMeta, &protocol.ApplyNodeMetaRequest{NodeID: f.config.NodeID, Meta: map[string]*string{"a.b": new("c")}}, &meta); err != nil {
		t.Fatal(err)
	}
	if v := meta.Dynamic["a.b"]; v == nil || *v != "c" || meta.Static == nil {
		t.Errorf("got %+v", meta)
	}
	var stats protocol.HostStatsResponse
	if err := server.Call(t.Context(), protocol.MethodHostStats, &protocol.NodeRequest{NodeID: f.config.NodeID}, &stats); err != nil || stats.HostStats.Memory == nil {
		t.Errorf("got %+v, %v", stats.HostStats, err)
	}
	var profile protocol.AgentProfileResponse
	err := server.Call(t.Context(), protocol.MethodAgentProfile, &protocol.AgentProfileRequest{ReqType: protocol.ProfileLookup, Profile: "goroutine", Debug: 1}, &profile)
	if err != nil || !strings.HasPrefix(string(profile.Payload), "goroutine profile: ") || profile.AgentID != f.config.NodeID || profile.HTTPHeaders["Content-Type"] != "text/plain; charset=utf-8" {
		t.Errorf("got %q, %v, %v", profile.Payload, profile.HTTPHeaders, err)
	}

	s, err := server.OpenStream(t.Context(), protocol.MethodMonitorAgent, &protocol.MonitorAgentRequest{LogLevel: "debug"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for { // a heartbeat follows the registration of the monitor
		var m protocol.StreamMessage
		if err := s.Receive(&m); err != nil {
			t.Fatal(err)
		}
		if string(m.Payload) == "{}" {
			log.Debug("a line of the log")
			continue
		}
		var frame api.StreamFrame
		if err := json.Unmarshal(m.Payload, &frame); err != nil || frame.FileEvent != "log" {
			t.Fatalf("got %s, %v", m.Payload, err)
		}
		if strings.Contains(string(frame.Data), "a line of the log") {
			break
		}
	}
	s.Close()
	for {
		if err := s.Receive(nil); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}
