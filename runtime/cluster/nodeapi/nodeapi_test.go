package nodeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire/wiretest"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskexec"
)

const (
	testNodeID  = "11111111-1111-1111-1111-111111111111"
	testAllocID = "9a30b60a-07ff-f6ce-ec36-533c48a52b97"
)

// testAllocation returns an allocation with a running task "t".
func testAllocation() *api.Allocation {
	return &api.Allocation{
		ID: testAllocID, JobID: "web", TaskGroup: "g",
		Job: &api.Job{TaskGroups: []*api.TaskGroup{{Name: new("g"), Tasks: []*api.Task{
			{Name: "t", Actions: []*api.Action{{Name: "greet", Command: "hello"}}}, {Name: "late"}, {Name: "ended"},
		}}}},
		TaskStates: map[string]*api.TaskState{"t": {StartedAt: time.Unix(1, 0)}, "late": {}},
	}
}

// runnerFunc is the test allocation's Runner.
type runnerFunc func(ctx context.Context, exec driver.Exec) (*driver.ExitResult, error)

func (f runnerFunc) ExecStreaming(ctx context.Context, _ string, exec driver.Exec) (*driver.ExitResult, error) {
	return f(ctx, exec)
}

func newConfig(handler http.HandlerFunc, runner taskexec.Runner) Config {
	return Config{
		NodeID: testNodeID, API: handler,
		FindAlloc: func(id string) *api.Allocation {
			if id == testAllocID {
				return testAllocation()
			}
			return nil
		},
		FindRunner:     func(string) taskexec.Runner { return runner },
		RenewIdentity:  func() {},
		IdentityClaims: func() (map[string]any, error) { return map[string]any{"nomad_node_id": testNodeID}, nil },
	}
}

// newServer serves c's methods and returns the server's session. stop ends the agent.
func newServer(t *testing.T, c Config) (server *wire.Session, stop func()) {
	t.Helper()
	node, server := wiretest.NewSessions(t)
	return server, wiretest.Serve(t, node, Methods(c))
}

// wireForm returns what a peer decodes from v's message: JSON with the keys on the wire.
func wireForm(t *testing.T, v any) string {
	t.Helper()
	b, err := wire.EncodeBytes(v)
	if err != nil {
		t.Fatal(err)
	}
	var decoded any
	if err := wire.DecodeBytes(b, &decoded); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(decoded)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestCallsAreRequestsToTheAPI(t *testing.T) {
	const meta = `"Index":0 ~ "KnownLeader":false ~ "LastContact":0 ~ "NextToken":""`
	for _, test := range []struct {
		method      string
		request     any
		wantRequest string
		reply       string
		want        string // parts of the response, separated by " ~ "
	}{
		{protocol.MethodSignalAlloc, &protocol.SignalAllocRequest{AllocID: testAllocID, Task: "t", Signal: "SIGUSR1"},
			`PUT /v1/client/allocation/` + testAllocID + `/signal {"Task":"t","Signal":"SIGUSR1"}`, `{"Index":0}`, `{"Index":0}`},
		{protocol.MethodRestartAlloc, &protocol.RestartAllocRequest{AllocID: testAllocID, TaskName: "t", AllTasks: true},
			`PUT /v1/client/allocation/` + testAllocID + `/restart {"TaskName":"t","AllTasks":true}`, `{"Index":0}`, `{"Index":0}`},
		{protocol.MethodAllocStats, &protocol.AllocStatsRequest{AllocID: testAllocID, Task: "t"},
			`GET /v1/client/allocation/` + testAllocID + `/stats?task=t `,
			`{"ResourceUsage":{"MemoryStats":{"RSS":7,"Measured":["RSS"]},"CpuStats":null},"Tasks":{"t":{"Pids":{"1":null}}},"Timestamp":1700000000000000000}`,
			`"MemoryStats":{"Cache":0,"KernelMaxUsage":0,"KernelUsage":0,"MaxUsage":0,"Measured":["RSS"],"RSS":7 ~ "CpuStats":{ ~ "Pids":{"1":{"CpuStats":{ ~ "Timestamp":1700000000000000000 ~ ` + meta},
		{protocol.MethodAllocChecks, &protocol.AllocRequest{AllocID: testAllocID}, `GET /v1/client/allocation/` + testAllocID + `/checks `,
			`{"c1":{"ID":"c1","Mode":"readiness","Status":"success","StatusCode":200,"Timestamp":5}}`,
			`{"c1":{"Check":"","Group":"","ID":"c1","Mode":"readiness","Output":"","Service":"","Status":"success","StatusCode":200,"Task":"","Timestamp":5}} ~ ` + meta},
		{protocol.MethodCollectAlloc, &protocol.AllocRequest{AllocID: testAllocID}, `PUT /v1/client/allocation/` + testAllocID + `/gc `, `{}`, `{"Index":0}`},
		{protocol.MethodCollectAllocs, &protocol.NodeRequest{NodeID: testNodeID}, `PUT /v1/client/gc `, ``, `{"Index":0}`},
		{protocol.MethodHostStats, &protocol.NodeRequest{NodeID: testNodeID}, `GET /v1/client/stats `,
			`{"Timestamp":9,"Uptime":3,"CPUTicksConsumed":12.5,"Memory":null,"CPU":[{"CPU":"0","User":1,"TotalPercent":2}],"DiskStats":[{"Device":"a","Size":4}],"DeviceStats":[]}`,
			`"Memory":{"Available":0 ~ "AllocDirStats":{"Available":0 ~ "CPU":"0" ~ "TotalPercent":2 ~ "Timestamp":9 ~ "Uptime":3 ~ "CPUTicksConsumed":12.5 ~ "Device":"a" ~ ` + meta},
		{protocol.MethodListFiles, &protocol.FileRequest{AllocID: testAllocID, Path: "t/local"}, `GET /v1/client/fs/ls/` + testAllocID + `?path=t%2Flocal `,
			`[{"Name":"x","IsDir":false,"Size":4,"FileMode":"-rw-r--r--","ModTime":"2026-11-20T17:43:02.428735349Z"}]`,
			`"Name":"x" ~ "IsDir":false ~ "Size":4 ~ "FileMode":"-rw-r--r--" ~ "ContentType":"" ~ ` + meta},
		{protocol.MethodStatFile, &protocol.FileRequest{AllocID: testAllocID, Path: "/a b&c"}, `GET /v1/client/fs/stat/` + testAllocID + `?path=%2Fa+b%26c `,
			`{"Name":"x","ContentType":"text/plain; charset=utf-8"}`, `"ContentType":"text/plain; charset=utf-8" ~ ` + meta},
		{protocol.MethodApplyNodeMeta, &protocol.ApplyNodeMetaRequest{NodeID: testNodeID, Meta: map[string]*string{"a": nil}}, `POST /v1/client/metadata {"NodeID":"","Meta":{"a":null}}`,
			`{"Meta":{},"Dynamic":{"a":null},"Static":{"a":"b"}}`, `{"Dynamic":{"a":null},"Meta":{},"Static":{"a":"b"}}`},
		{protocol.MethodReadNodeMeta, &protocol.NodeRequest{}, `GET /v1/client/metadata `, `{"Meta":{"a":"b"},"Dynamic":{},"Static":{"a":"b"}}`, `{"Dynamic":{},"Meta":{"a":"b"},"Static":{"a":"b"}}`},
		{protocol.MethodGetNodeIdentity, &protocol.NodeRequest{NodeID: testNodeID}, ``, ``, `{"Claims":{"nomad_node_id":"` + testNodeID + `"}}`},
		{protocol.MethodRenewNodeIdentity, &protocol.NodeRequest{NodeID: testNodeID}, ``, ``, `{}`},
		{protocol.MethodAgentHost, &protocol.AgentRequest{NodeID: testNodeID}, `GET /v1/agent/host `, `{"AgentID":"` + testNodeID + `","HostData":{"OS":"linux","Disk":{"/":{"DiskMB":1}}}}`,
			`"AgentID":"` + testNodeID + `" ~ "OS":"linux" ~ "Disk":{"/":{"DiskMB":1,"UsedMB":0}}`},
		{protocol.MethodAgentProfile, &protocol.AgentProfileRequest{ReqType: "cpu", Seconds: 2}, `GET /v1/agent/pprof/profile?debug=0&gc=0&seconds=2 `, `bytes`,
			`"AgentID":"` + testNodeID + `" ~ "HTTPHeaders":{"Content-Type":"text/x-test"} ~ "Payload":"bytes"`},
		{protocol.MethodAgentProfile, &protocol.AgentProfileRequest{ReqType: "lookup", Profile: "heap", GC: 1, Debug: 1}, `GET /v1/agent/pprof/heap?debug=1&gc=1&seconds=0 `, `bytes`, `"Payload":"bytes"`},
	} {
		t.Run(test.method, func(t *testing.T) {
			got := ""
			server, _ := newServer(t, newConfig(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				got = r.Method + " " + r.URL.String() + " " + string(body)
				w.Header().Set("Content-Type", "text/x-test")
				io.WriteString(w, test.reply)
			}, nil))
			var response any
			if err := server.Call(t.Context(), test.method, test.request, &response); err != nil {
				t.Fatal(err)
			}
			if got != test.wantRequest {
				t.Errorf("got request %s, want %s", got, test.wantRequest)
			}
			text := wireForm(t, response)
			for part := range strings.SplitSeq(test.want, " ~ ") {
				if !strings.Contains(text, part) {
					t.Errorf("got %s, want a response with %s", text, part)
				}
			}
		})
	}
}

func TestTimesAreSentInBinaryForm(t *testing.T) {
	server, _ := newServer(t, newConfig(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, `{"ModTime":"2026-11-20T17:43:02.428735349Z"}`)
	}, nil))
	var response struct{ Info struct{ ModTime []byte } }
	if err := server.Call(t.Context(), protocol.MethodStatFile, &protocol.FileRequest{AllocID: testAllocID}, &response); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("%x", response.Info.ModTime); got != "010000000ee2927da6198dfb75ffff" {
		t.Errorf("got %s", got)
	}
}

func TestErrorsOfCallsHaveTheFormThatServersExpect(t *testing.T) {
	alloc := &protocol.AllocRequest{AllocID: testAllocID}
	for _, test := range []struct {
		method  string
		request any
		code    int
		reply   string
		want    string
	}{
		{protocol.MethodAllocStats, alloc, 404, `Unknown allocation "x"`, `Unknown allocation "x"`},
		{protocol.MethodAllocStats, alloc, 403, `Permission denied`, `Permission denied`},
		{protocol.MethodAllocStats, alloc, 400, `bad`, `RPC Error:: 400,bad`},
		{protocol.MethodAllocStats, alloc, 404, `no data`, `RPC Error:: 404,no data`},
		{protocol.MethodAllocStats, alloc, 500, `task not running`, `task not running`},
		{protocol.MethodAllocStats, alloc, 200, `nonsense`, `decode the reply of /v1/client/allocation/` + testAllocID + `/stats: invalid character 'o' in literal null (expecting 'u')`},
		{protocol.MethodStatFile, alloc, 404, `stat /d/x: no such file or directory`, `stat /d/x: no such file or directory`},
		{protocol.MethodCollectAlloc, alloc, 404, `Unknown allocation "x"`, `No such allocation on client, or allocation not eligible for GC`},
		{protocol.MethodCollectAlloc, alloc, 500, `No such allocation on client, or allocation not eligible for GC`, `No such allocation on client, or allocation not eligible for GC`},
		{protocol.MethodSignalAlloc, &protocol.AllocRequest{}, 0, ``, `RPC Error:: 400,must provide a valid alloc id`},
		{protocol.MethodListFiles, &protocol.AllocRequest{AllocID: "../" + testAllocID}, 0, ``, `RPC Error:: 400,must provide a valid alloc id`},
		{protocol.MethodListFiles, &protocol.FileRequest{AllocID: testAllocID, Path: "t/Secrets/../secrets"}, 0, ``, `RPC Error:: 403,Reading secret file prohibited: t/Secrets/../secrets`},
		{protocol.MethodListFiles, &protocol.FileRequest{AllocID: testAllocID, Path: "/t//private/x"}, 0, ``, `RPC Error:: 403,Reading private file prohibited: /t//private/x`},
		{protocol.MethodSetPauseState, alloc, 0, ``, `RPC Error:: 501,this node does not pause tasks: task schedules are a feature of Nomad Enterprise`},
		{protocol.MethodGetPauseState, alloc, 0, ``, `RPC Error:: 501,this node does not pause tasks: task schedules are a feature of Nomad Enterprise`},
		{protocol.MethodReadNodeMeta, &protocol.NodeRequest{NodeID: "other"}, 0, ``, `Unknown node other`},
		{protocol.MethodCollectAllocs, &protocol.NodeRequest{NodeID: "other"}, 0, ``, `Unknown node other`},
		{protocol.MethodRenewNodeIdentity, &protocol.NodeRequest{NodeID: "other"}, 0, ``, `Unknown node other`},
		{protocol.MethodAgentHost, &protocol.NodeRequest{}, 403, `Permission denied`, `Permission denied`},
		{protocol.MethodAgentProfile, &protocol.AgentProfileRequest{ReqType: "x"}, 0, ``, `RPC Error:: 400,unknown type of profile "x"`},
		{protocol.MethodAgentProfile, &protocol.AgentProfileRequest{ReqType: "lookup", Profile: "a/b"}, 0, ``, `RPC Error:: 404,Unknown profile`},
		{"HostVolume.Create", alloc, 0, ``, `rpc: can't find service HostVolume.Create`},
		{"CSI.NodeDetachVolume", alloc, 0, ``, `rpc: can't find service CSI.NodeDetachVolume`},
	} {
		server, _ := newServer(t, newConfig(func(w http.ResponseWriter, r *http.Request) {
			if test.code == 0 {
				t.Errorf("%s: the API got %s", test.method, r.URL)
				return
			}
			w.WriteHeader(test.code)
			io.WriteString(w, test.reply)
		}, nil))
		var response any
		err := server.Call(t.Context(), test.method, test.request, &response)
		var serverErr wire.ServerError
		if !errors.As(err, &serverErr) || string(serverErr) != test.want {
			t.Errorf("%s: got %v, want %s", test.method, err, test.want)
		}
	}
}

func TestAbortedReplyIsAnError(t *testing.T) {
	server, _ := newServer(t, newConfig(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, nil))
	var response any
	if err := server.Call(t.Context(), protocol.MethodReadNodeMeta, &protocol.NodeRequest{}, &response); err == nil || err.Error() != errReplyAborted.Error() {
		t.Errorf("got %v", err)
	}
}

// openStream starts one of the node's streaming methods. The stream is closed when the test ends.
func openStream(t *testing.T, server *wire.Session, method string, request any) *wire.Stream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	s, err := server.OpenStream(ctx, method, request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// receive returns the next message: the payload, an error as "code text", or "end".
func receive(t *testing.T, s *wire.Stream) string {
	t.Helper()
	var m protocol.StreamMessage
	switch err := s.Receive(&m); {
	case errors.Is(err, io.EOF):
		return "end"
	case err != nil:
		t.Fatal(err)
	case m.Error != nil && m.Error.Code != nil:
		return fmt.Sprint(*m.Error.Code, " ", m.Error.Message)
	case m.Error != nil:
		return "no code " + m.Error.Message
	}
	return string(m.Payload)
}

func wantMessages(t *testing.T, s *wire.Stream, want ...string) {
	t.Helper()
	for _, w := range want {
		if got := receive(t, s); got != w {
			t.Fatalf("got %s, want %s", got, w)
		}
	}
}

func flush(w http.ResponseWriter, text string) {
	io.WriteString(w, text)
	_ = http.NewResponseController(w).Flush()
}

func TestFramesOfLogsAreMessagesUntilTheServerCloses(t *testing.T) {
	const frame = `{"Data":"aGVsbG8K","File":"alloc/logs/t.stdout.0","Offset":6}`
	requested, ended := make(chan string, 1), make(chan error, 1)
	server, _ := newServer(t, newConfig(func(w http.ResponseWriter, r *http.Request) {
		requested <- r.URL.String()
		_ = http.NewResponseController(w).Flush() // the headers
		flush(w, frame)
		flush(w, "{}\n")
		<-r.Context().Done()
		ended <- context.Cause(r.Context())
	}, nil))
	s := openStream(t, server, protocol.MethodStreamLogs, &protocol.StreamLogsRequest{AllocID: testAllocID, Task: "t", LogType: "stdout", Origin: "start", Follow: true})
	wantMessages(t, s, frame, "{}")
	if got, want := <-requested, "/v1/client/fs/logs/"+testAllocID+"?follow=true&offset=0&origin=start&plain=false&task=t&type=stdout"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	s.Close()
	wantMessages(t, s, "end")
	if err := <-ended; !errors.Is(err, errStreamClosed) {
		t.Errorf("the request ended with %v", err)
	}
}

func TestPlainTextIsSentAsBytes(t *testing.T) {
	long := strings.Repeat("0123456789abcdef", 3*maxPayloadBytes/16) + "\n"
	got := ""
	server, _ := newServer(t, newConfig(func(w http.ResponseWriter, r *http.Request) {
		got = r.URL.String()
		flush(w, " x=s3\n")
		io.WriteString(w, "not flushed ")
		io.WriteString(w, long)
		io.WriteString(w, "end")
	}, nil))
	s := openStream(t, server, protocol.MethodStreamFile, &protocol.StreamFileRequest{AllocID: testAllocID, Path: "t/local/x", Limit: 4, Offset: 1, Origin: "end", PlainText: true})
	wantMessages(t, s, " x=s3\n", "not flushed ", long[:maxPayloadBytes], long[:maxPayloadBytes], long[:maxPayloadBytes], "\n", "end", "end")
	if want := "/v1/client/fs/stream/" + testAllocID + "?follow=false&limit=4&offset=1&origin=end&path=t%2Flocal%2Fx&plain=true"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestMonitorSendsLinesOfTheLog(t *testing.T) {
	got := ""
	server, _ := newServer(t, newConfig(func(w http.ResponseWriter, r *http.Request) {
		got = r.URL.String()
		flush(w, `{"Data":"YQo=","FileEvent":"log"}`+"\n")
	}, nil))
	s := openStream(t, server, protocol.MethodMonitorAgent, &protocol.MonitorAgentRequest{NodeID: testNodeID, LogLevel: "debug", LogJSON: true})
	wantMessages(t, s, `{"Data":"YQo=","FileEvent":"log"}`, "end")
	if want := "/v1/agent/monitor?log_include_location=false&log_json=true&log_level=debug&plain=false"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestErrorsOfStreams(t *testing.T) {
	server, _ := newServer(t, newConfig(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(404)
		flush(w, `task "t" not started yet. `)
		io.WriteString(w, "No logs available")
	}, nil))
	for _, test := range []struct {
		method  string
		request any
		want    string
	}{
		{protocol.MethodStreamLogs, &protocol.StreamLogsRequest{}, "400 must provide a valid alloc id"},
		{protocol.MethodStreamLogs, &protocol.StreamLogsRequest{AllocID: "x"}, `404 Unknown allocation "x"`},
		{protocol.MethodStreamLogs, &protocol.StreamLogsRequest{AllocID: testAllocID}, `404 task "t" not started yet. No logs available`},
		{protocol.MethodStreamFile, &protocol.StreamFileRequest{}, "400 must provide a valid alloc id"},
		{protocol.MethodStreamFile, &protocol.StreamFileRequest{AllocID: "x"}, `404 Unknown allocation "x"`},
		{protocol.MethodStreamFile, &protocol.StreamFileRequest{AllocID: testAllocID}, `400 must provide a file path`},
		{protocol.MethodMonitorAgent, &protocol.MonitorAgentRequest{NodeID: "x"}, `404 Unknown node x`},
		{protocol.MethodExportAgentMonitor, &protocol.MonitorAgentRequest{}, `400 the log of this agent is not kept: it goes to standard error`},
	} {
		wantMessages(t, openStream(t, server, test.method, test.request), test.want, "end")
	}
	var serverErr wire.ServerError
	if _, err := server.OpenStream(t.Context(), "No.Such", &protocol.AllocRequest{}); !errors.As(err, &serverErr) || string(serverErr) != `Unknown rpc method: "No.Such"` {
		t.Errorf("unknown method: got %v", err)
	}
}

// If a server closes its end while the node waits for its window, the stream must end.
func TestServerClosesStreamThatItDoesNotRead(t *testing.T) {
	ended := make(chan error, 1)
	started := make(chan struct{})
	server, _ := newServer(t, newConfig(func(w http.ResponseWriter, r *http.Request) {
		block := strings.Repeat("x", maxPayloadBytes)
		for i := 0; ; i++ {
			if i == 2 {
				close(started)
			}
			if _, err := io.WriteString(w, block); err != nil {
				ended <- err
				return
			}
			if err := http.NewResponseController(w).Flush(); err != nil {
				ended <- err
				return
			}
		}
	}, nil))
	s := openStream(t, server, protocol.MethodStreamLogs, &protocol.StreamLogsRequest{AllocID: testAllocID, PlainText: true, Follow: true})
	<-started
	s.Close()
	if err := <-ended; err == nil {
		t.Error("the write has not failed")
	}
}

// The session ends while streams are open: Serve returns, so no goroutine and no command is left.
func TestEndOfSessionEndsStreamsAndCommands(t *testing.T) {
	started, ended := make(chan struct{}, 2), make(chan struct{}, 2)
	untilEnd := func(ctx context.Context) {
		started <- struct{}{}
		<-ctx.Done()
		ended <- struct{}{}
	}
	node, server := wiretest.NewSessions(t)
	served := make(chan struct{})
	go func() {
		defer close(served)
		node.Serve(context.Background(), Methods(newConfig(
			func(_ http.ResponseWriter, r *http.Request) { untilEnd(r.Context()) },
			runnerFunc(func(ctx context.Context, _ driver.Exec) (*driver.ExitResult, error) {
				untilEnd(ctx)
				return nil, ctx.Err()
			}))))
	}()
	openStream(t, server, protocol.MethodStreamLogs, &protocol.StreamLogsRequest{AllocID: testAllocID, Follow: true})
	openStream(t, server, protocol.MethodExec, &protocol.ExecRequest{AllocID: testAllocID, Task: "t", Cmd: []string{"sleep"}})
	<-started
	<-started
	server.Close()
	<-ended
	<-ended
	<-served
}

func TestExecSession(t *testing.T) {
	server, _ := newServer(t, newConfig(nil, runnerFunc(func(_ context.Context, e driver.Exec) (*driver.ExitResult, error) {
		if !slices.Equal(e.Command, []string{"/bin/sh", "-c", "read x"}) || e.TTY {
			return nil, fmt.Errorf("command %v, tty %v", e.Command, e.TTY)
		}
		line := make([]byte, 4)
		if _, err := io.ReadFull(e.Stdin, line); err != nil {
			return nil, err
		}
		fmt.Fprint(e.Stderr, "err\n")
		fmt.Fprintf(e.Stdout, "got %s", line)
		if rest, err := io.ReadAll(e.Stdin); err != nil || len(rest) > 0 {
			return nil, fmt.Errorf("got %q, %v after the input", rest, err)
		}
		return &driver.ExitResult{ExitCode: 3}, nil
	})))
	s := openStream(t, server, protocol.MethodExec, &protocol.ExecRequest{AllocID: testAllocID, Task: "t", Cmd: []string{"/bin/sh", "-c", "read x"}})
	// A server's generated code sends more keys.
	leftovers := map[string]any{"Setup": nil, "TtySize": nil, "XXX_NoUnkeyedLiteral": map[string]any{}, "XXX_sizecache": 0, "XXX_unrecognized": nil}
	leftovers["Stdin"] = map[string]any{"Data": "abc\n", "Close": false, "XXX_sizecache": 0}
	if err := s.Send(leftovers); err != nil {
		t.Fatal(err)
	}
	wantMessages(t, s, `{"stderr":{"data":"ZXJyCg=="}}`, `{"stdout":{"data":"Z290IGFiYwo="}}`)
	for _, m := range []any{&protocol.ExecInput{}, &protocol.ExecInput{Stdin: &protocol.ExecStdin{Close: true}}} {
		if err := s.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	wantMessages(t, s, `{"stdout":{"close":true}}`, `{"stderr":{"close":true}}`, `{"exited":true,"result":{"exit_code":3}}`, "end")
}

func TestExecMessageHasNomadsBytes(t *testing.T) {
	got, err := wire.EncodeBytes(&protocol.StreamMessage{Payload: []byte(`{"stderr":{"data":"ZXJyCg=="}}`)})
	if want := "\x82\xa5Error\xc0\xa7Payload\xbe" + `{"stderr":{"data":"ZXJyCg=="}}`; err != nil || string(got) != want {
		t.Errorf("got %x, %v, want %x", got, err, want)
	}
}

func TestExecWithTerminal(t *testing.T) {
	server, _ := newServer(t, newConfig(nil, runnerFunc(func(_ context.Context, e driver.Exec) (*driver.ExitResult, error) {
		size := <-e.Resize
		fmt.Fprint(e.Stdout, size.Height, e.TTY, e.Command)
		return &driver.ExitResult{}, nil
	})))
	s := openStream(t, server, protocol.MethodExec, &protocol.ExecRequest{AllocID: testAllocID, JobID: "web", Task: "t", Action: "greet", Tty: true})
	if err := s.Send(&protocol.ExecInput{TtySize: &protocol.ExecTtySize{Height: 30, Width: 100}}); err != nil {
		t.Fatal(err)
	}
	wantMessages(t, s, `{"stdout":{"data":"MzAgdHJ1ZSBbaGVsbG9d"}}`, `{"stdout":{"close":true}}`, `{"exited":true,"result":{}}`, "end")
}

func TestExecChecksInOrder(t *testing.T) {
	failing := runnerFunc(func(context.Context, driver.Exec) (*driver.ExitResult, error) {
		return nil, errors.New("failed to start command: fork/exec /no/such: no such file or directory")
	})
	denied := func(_ context.Context, token, allocID, task string) error {
		return fmt.Errorf("Permission denied: %s %s %s", token, allocID[:4], task)
	}
	for _, test := range []struct {
		name    string
		request protocol.ExecRequest
		edit    func(*Config)
		want    string
	}{
		{"no id", protocol.ExecRequest{}, func(c *Config) { c.DisableRemoteExec = true }, "400 must provide a valid alloc id"},
		{"unknown id", protocol.ExecRequest{AllocID: "x"}, func(c *Config) { c.DisableRemoteExec = true }, `404 Unknown allocation "x"`},
		{"disabled", protocol.ExecRequest{AllocID: testAllocID}, func(c *Config) { c.DisableRemoteExec = true; c.AllowExec = denied }, "no code Permission denied"},
		{"denied", protocol.ExecRequest{AllocID: testAllocID, ReadOptions: protocol.ReadOptions{AuthToken: "token"}}, func(c *Config) { c.AllowExec = denied }, "no code Permission denied: token 9a30 "},
		{"no task", protocol.ExecRequest{AllocID: testAllocID, JobID: "other"}, nil, "400 must provide task name"},
		{"other job", protocol.ExecRequest{AllocID: testAllocID, JobID: "other", Task: "t", Action: "no"}, nil, "400 job other does not have allocation " + testAllocID},
		{"unknown action", protocol.ExecRequest{AllocID: testAllocID, JobID: "web", Task: "t", Action: "no"}, nil, "400 action no not found in task t"},
		{"no command", protocol.ExecRequest{AllocID: testAllocID, Task: "no"}, nil, "400 command is not present"},
		{"unknown task", protocol.ExecRequest{AllocID: testAllocID, Task: "no", Cmd: []string{"x"}}, nil, `400 unknown task name "no"`},
		{"not started", protocol.ExecRequest{AllocID: testAllocID, Task: "late", Cmd: []string{"x"}}, nil, `404 task "late" not started yet.`},
		{"not running", protocol.ExecRequest{AllocID: testAllocID, Task: "t", Cmd: []string{"x"}}, func(c *Config) { c.FindRunner = func(string) taskexec.Runner { return nil } }, `404 task "t" is not running.`},
		{"does not start", protocol.ExecRequest{AllocID: testAllocID, Task: "t", Cmd: []string{"/no/such"}}, nil, "500 failed to start command: fork/exec /no/such: no such file or directory"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newConfig(nil, failing)
			if test.edit != nil {
				test.edit(&c)
			}
			server, _ := newServer(t, c)
			wantMessages(t, openStream(t, server, protocol.MethodExec, &test.request), test.want, "end")
		})
	}
}

// A server that closes its end kills the command, also while the command reads no input or its output is not read.
func TestServerThatClosesExecKillsCommand(t *testing.T) {
	for name, run := range map[string]func(started chan<- struct{}, e driver.Exec){
		"idle":        func(started chan<- struct{}, _ driver.Exec) { close(started) },
		"reads input": func(started chan<- struct{}, e driver.Exec) { close(started); _, _ = io.Copy(io.Discard, e.Stdin) },
		"writes output": func(started chan<- struct{}, e driver.Exec) {
			_, _ = e.Stdout.Write([]byte("x"))
			close(started)
			for {
				if _, err := e.Stdout.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			started, killed := make(chan struct{}), make(chan error, 1)
			server, _ := newServer(t, newConfig(nil, runnerFunc(func(ctx context.Context, e driver.Exec) (*driver.ExitResult, error) {
				run(started, e)
				<-ctx.Done()
				killed <- context.Cause(ctx)
				return nil, ctx.Err()
			})))
			s := openStream(t, server, protocol.MethodExec, &protocol.ExecRequest{AllocID: testAllocID, Task: "t", Cmd: []string{"x"}})
			for range 3 {
				if err := s.Send(&protocol.ExecInput{Stdin: &protocol.ExecStdin{Data: []byte("typed")}}); err != nil {
					t.Fatal(err)
				}
			}
			<-started
			s.Close()
			if err := <-killed; !errors.Is(err, taskexec.ErrClientGone) {
				t.Errorf("killed because of %v", err)
			}
		})
	}
}

func TestAgentThatStopsKillsCommand(t *testing.T) {
	started, killed := make(chan struct{}), make(chan struct{})
	server, stop := newServer(t, newConfig(nil, runnerFunc(func(ctx context.Context, e driver.Exec) (*driver.ExitResult, error) {
		close(started)
		<-ctx.Done()
		close(killed)
		return nil, ctx.Err()
	})))
	openStream(t, server, protocol.MethodExec, &protocol.ExecRequest{AllocID: testAllocID, Task: "t", Cmd: []string{"x"}})
	<-started
	stop()
	<-killed
}

// Every server request gets an answer.
func FuzzRequests(f *testing.F) {
	for _, v := range []any{
		&protocol.ExecRequest{AllocID: testAllocID, Cmd: []string{"x"}}, &protocol.StreamFileRequest{AllocID: testAllocID, Path: "../x"}, &protocol.ApplyNodeMetaRequest{Meta: map[string]*string{"a": nil}},
		&protocol.AgentProfileRequest{ReqType: "lookup", Profile: "../heap"}, &protocol.SignalAllocRequest{AllocID: "a?b#c%zz"}, &protocol.ExecInput{Stdin: &protocol.ExecStdin{Data: []byte("x")}},
	} {
		b, err := wire.EncodeBytes(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte{0x81, 0xa7, 'A', 'l', 'l', 'o', 'c', 'I', 'D', 0xdb, 0xff, 0xff, 0xff, 0xff})
	methods := Methods(newConfig(func(w http.ResponseWriter, r *http.Request) {
		if rest, found := strings.CutPrefix(r.URL.Path, "/v1/"); !found || strings.Contains(rest, "//") {
			f.Errorf("path %q", r.URL.Path)
		}
		io.WriteString(w, "{}")
	}, nil))
	n := &node{newConfig(nil, nil)}
	f.Fuzz(func(t *testing.T, message []byte) {
		for name, call := range methods.Calls {
			response, err := call(t.Context(), func(dst any) error { return wire.DecodeBytes(message, dst) })
			if err == nil && response == nil {
				t.Errorf("%s: no response", name)
			}
		}
		var r protocol.ExecRequest
		if wire.DecodeBytes(message, &r) == nil {
			_, _ = n.findCommand(t.Context(), &r)
		}
		var in protocol.ExecInput
		if wire.DecodeBytes(message, &in) == nil {
			_ = toInput(in)
		}
	})
}
