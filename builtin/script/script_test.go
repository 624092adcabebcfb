package script

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/sdk"
	"github.com/nomad-lite/nomad-lite/sdk/sdktest"
)

func TestMain(m *testing.M) {
	sdktest.Main(m, func() { sdk.ServeHook(&Hook{}) })
}

func TestContract(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a plugin in each case of the contract suite")
	}
	every := map[string]any{}
	for m := hook.Prerun; m <= hook.Shutdown; m++ {
		every[m.String()] = map[string]any{"command": []any{"true"}}
	}
	every["poststart"] = map[string]any{"exec": []any{"true"}}
	sdktest.Hook(t, sdktest.Plugin{Path: os.Args[0], Config: map[string]any{"commands": true}, Attachment: every})
}

// fakeHost is a hook host with one task. Commands in the task echo their
// arguments.
type fakeHost struct {
	hook.Host // methods that the tests do not call

	mu     sync.Mutex
	events []string
}

func (*fakeHost) Interpolate(ctx context.Context, _ hook.Scope, text string) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if strings.Contains(text, "${bad}") {
		return "", errors.New("there is no bad")
	}
	return strings.ReplaceAll(text, "${who}", "world"), nil
}

func (*fakeHost) Exec(ctx context.Context, s hook.Scope, req hook.ExecRequest) (*driver.ExecResult, error) {
	command := req.Command
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if command[0] == "missing" {
		return nil, hook.ErrTaskNotRunning
	}
	code, _ := strconv.Atoi(command[len(command)-1])
	return &driver.ExecResult{Stdout: []byte(s.Token + " runs " + strings.Join(command, " ") + "\n"), Exit: driver.ExitResult{ExitCode: code}}, nil
}

func (h *fakeHost) EmitEvent(ctx context.Context, s hook.Scope, event hook.Event) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, event.Message)
	return nil
}

// callExitedHook calls Exited of a new hook that allows commands.
func callExitedHook(t *testing.T, attachment map[string]any) (events []string, err error) {
	t.Helper()
	return callExitedHookWithContext(t.Context(), t, attachment)
}

func callExitedHookWithContext(ctx context.Context, t *testing.T, attachment map[string]any) (events []string, err error) {
	t.Helper()
	attachmentJSON, err := json.Marshal(map[string]any{"exited": attachment, "stop": nil})
	if err != nil {
		t.Fatal(err)
	}
	host := &fakeHost{}
	h := &Hook{}
	h.hostCommandsAllowed.Store(true)
	h.SetHost(host, hook.Node{})
	_, err = h.Exited(ctx, hook.TaskExitedRequest{
		RequestMeta: hook.RequestMeta{Token: "key", AttachmentJSON: attachmentJSON},
		Alloc:       hook.Alloc{ID: "1234", Name: "job.group[0]", Namespace: "default", JobID: "job", JobName: "Job", TaskGroup: "group", NodeName: "here"},
		Task:        hook.Task{Name: "web"},
		Exit:        driver.ExitResult{ExitCode: 3, Signal: 9}, WillRestart: true,
	})
	return host.events, err
}

func sh(script string, args ...any) map[string]any {
	return map[string]any{"command": append([]any{"/bin/sh", "-c", script, "sh"}, args...)}
}

func TestScriptActions(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if r.URL.Path == "/bad" {
			w.WriteHeader(http.StatusTeapot)
		}
		if r.URL.Path == "/long" {
			fmt.Fprint(w, strings.Repeat("x", 10<<20))
			return
		}
		fmt.Fprintf(w, "%s %s %q %s", r.Method, r.Header.Get("X-Key"), r.Header.Get("Content-Type"), body)
	}))
	defer server.Close()
	about := `{"hook_point":"exited","alloc_id":"1234","alloc_name":"job.group[0]","namespace":"default","job_id":"job","job_name":"Job","group":"group","node_id":"","node_name":"here","task":"web","exit":{"code":3,"signal":9,"oom_killed":false,"will_restart":true}}`
	with := func(m map[string]any, key string, value any) map[string]any { m[key] = value; return m }
	for _, test := range []struct {
		name   string
		action map[string]any
		event  string
		err    string // expected error; "" means that an event is expected
	}{
		{"a command's output is an event", sh("echo hello $1; echo all >&2", "${who}"), "exited: /bin/sh: hello world\nall", ""},
		{"a command without output is one too", sh("true"), "exited: /bin/sh", ""},
		{"a command reads what has happened", sh("cat"), "exited: /bin/sh: " + about, ""},
		{"or has it in its environment", sh(`echo $HOOK_POINT $NOMAD_ALLOC_ID $NOMAD_TASK_NAME $HOOK_EXIT_CODE $HOOK_EXIT_SIGNAL $HOOK_OOM_KILLED $HOOK_WILL_RESTART $SECRET`), "exited: /bin/sh: exited 1234 web 3 9 false true", ""},
		{"a command that fails", sh("echo broken; exit 4"), "", "/bin/sh: exit code 4: broken"},
		{"a command that is killed", sh("kill -TERM $$"), "", "/bin/sh: signal: terminated"},
		{"a command that is not there", map[string]any{"command": []any{"/no/such/thing"}}, "", "/no/such/thing: fork/exec /no/such/thing: no such file or directory"},
		{"a command that takes too long", with(sh("sleep 3600"), "timeout", "50ms"), "", "/bin/sh: no end within 50ms"},
		{"an odd time", with(sh("true"), "timeout", "soon"), "", `timeout: "soon" is not a time such as "5s"`},
		{"only the end of much output is told", sh("yes | head -c 10000000; printf 'the end'"), "exited: /bin/sh: " + strings.TrimSpace(strings.Repeat("y\n", 600)[1200-(maxOutputSize-7):]+"the end"), ""},
		{"output that is no text", sh(`printf 'a\377\000b'`), "exited: /bin/sh: ab", ""},
		{"a reference to nothing", sh("echo ${bad}"), "", `interpolate "echo ${bad}": there is no bad`},
		{"a command in the task", map[string]any{"exec": []any{"echo", "${who}", "0"}}, "exited: echo: key runs echo world 0", ""},
		{"a command in the task that fails", map[string]any{"exec": []any{"test", "5"}}, "", "test: exit code 5: key runs test 5"},
		{"a command in a task that does not run", map[string]any{"exec": []any{"missing"}}, "", "missing: the task does not run"},
		{"a call posts what has happened", map[string]any{"url": server.URL}, "exited: POST " + server.URL + `: POST  "application/json" ` + about, ""},
		{"a call as it is asked for", map[string]any{"url": server.URL, "method": "PUT", "body": "hello ${who}", "headers": map[string]any{"X-Key": "for ${who}"}}, "exited: PUT " + server.URL + `: PUT for world "text/plain; charset=utf-8" hello world`, ""},
		{"a call that gets", map[string]any{"url": server.URL, "method": "GET"}, "exited: GET " + server.URL + `: GET  ""`, ""},
		{"a call that fails", map[string]any{"url": server.URL + "/bad"}, "", "POST " + server.URL + `/bad: 418 I'm a teapot: POST  "application/json" ` + about},
		{"a long response", map[string]any{"url": server.URL + "/long"}, "exited: POST " + server.URL + "/long: " + strings.Repeat("x", maxOutputSize), ""},
		{"nobody there", map[string]any{"url": "http://127.0.0.1:1/"}, "", "POST http://127.0.0.1:1/: dial tcp 127.0.0.1:1: connect: connection refused"},
		{"a secret in a URL", map[string]any{"url": server.URL + "/${who}/bad?key=1", "method": "GET"}, "exited: GET " + server.URL + `/${who}/bad?…: GET  ""`, ""},
		{"a password in a URL", map[string]any{"url": "http://joe:pass@127.0.0.1:1/"}, "", "POST http://xxxxx@127.0.0.1:1/: dial tcp 127.0.0.1:1: connect: connection refused"},
		{"a URL that is none", map[string]any{"url": "http://joe:pass@h:x/"}, "", `POST http://xxxxx@h:x/: invalid port ":x" after host`},
		{"another protocol", map[string]any{"url": "file:///etc/passwd"}, "", `unsupported protocol scheme "file"`},
		{"two things at once", map[string]any{"url": server.URL, "exec": []any{"true"}}, "", "exited: say one of command, exec and url"},
		{"nothing", map[string]any{}, "", "exited: say one of command, exec and url"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("SECRET", "of the plugin")
			events, err := callExitedHook(t, test.action)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) || len(events) > 0 {
					t.Errorf("error %v, events %q; want the error %q", err, events, test.err)
				}
				return
			}
			if err != nil || len(events) != 1 || events[0] != test.event {
				t.Errorf("error %v, events %q; want the event %q", err, events, test.event)
			}
		})
	}
}

func TestCommandsOnTheHostMustBeAllowed(t *testing.T) {
	h := &Hook{}
	h.SetHost(&fakeHost{}, hook.Node{})
	ran := filepath.Join(t.TempDir(), "ran")
	_, err := h.Prerun(t.Context(), hook.AllocPrerunRequest{RequestMeta: hook.RequestMeta{AttachmentJSON: fmt.Appendf(nil, `{"prerun":{"command":["touch",%q]}}`, ran)}})
	if err == nil || !strings.Contains(err.Error(), `plugin "script" { config { commands = true } }`) {
		t.Errorf("prerun: %v", err)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("the command was run")
	}
}

func TestHookPointsWithoutActionDoNothing(t *testing.T) {
	host := &fakeHost{}
	h := &Hook{}
	h.SetHost(host, hook.Node{})
	meta := hook.RequestMeta{AttachmentJSON: []byte(`{"exited":{"exec":["true"]},"stop":null}`)}
	if _, err := h.Stop(t.Context(), hook.TaskStopRequest{RequestMeta: meta}); err != nil {
		t.Error(err)
	}
	if _, err := h.Stop(t.Context(), hook.TaskStopRequest{}); err != nil {
		t.Error(err)
	}
	if len(host.events) > 0 {
		t.Errorf("events %q", host.events)
	}
}

func TestPrestartIsNotRepeatedForARunningTask(t *testing.T) {
	host := &fakeHost{}
	h := &Hook{}
	h.SetHost(host, hook.Node{})
	meta := hook.RequestMeta{AttachmentJSON: []byte(`{"prestart":{"exec":["true"]}}`)}
	for _, running := range []bool{false, true} {
		if _, err := h.Prestart(t.Context(), hook.TaskPrestartRequest{RequestMeta: meta, Running: running}); err != nil {
			t.Error(err)
		}
	}
	if want := []string{"prestart: true: runs true"}; !slices.Equal(host.events, want) {
		t.Errorf("events %q, want %q", host.events, want)
	}
}

// TestChildOfAKilledCommandIsKilled checks that the child of a killed
// command is killed too.
func TestChildOfAKilledCommandIsKilled(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	ctx, kill := context.WithCancel(t.Context())
	defer kill()
	ended := make(chan error)
	go func() {
		_, err := callExitedHookWithContext(ctx, t, sh("sleep 3600 & echo $! > $1; wait", file))
		ended <- err
	}()
	var pidFileContent []byte
	for deadline := time.Now().Add(time.Minute); !strings.HasSuffix(string(pidFileContent), "\n"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the command does not begin")
		}
		pidFileContent, _ = os.ReadFile(file)
	}
	kill()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(pidFileContent)))
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute)
	for {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(stat), ") Z") {
			return
		}
		if time.Now().After(deadline) {
			_ = syscall.Kill(pid, syscall.SIGKILL) // the child can have exited meanwhile
			t.Fatalf("the child lives: %s", stat)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// TestRemainingChildDoesNotBlock checks that the hook does not wait for a
// process that the command has left running.
func TestRemainingChildDoesNotBlock(t *testing.T) {
	if testing.Short() {
		t.Skip("waits a second for the output of the child")
	}
	events, err := callExitedHook(t, sh("sleep 3 & echo done"))
	if want := []string{"exited: /bin/sh: done"}; err != nil || !slices.Equal(events, want) {
		t.Errorf("error %v, events %q, want %q", err, events, want)
	}
}

// The input of a command shows whether Poststart is repeated for the same
// start.
func TestCommandSeesRepeatedPoststart(t *testing.T) {
	host := &fakeHost{}
	h := &Hook{}
	h.hostCommandsAllowed.Store(true)
	h.SetHost(host, hook.Node{})
	attachmentJSON, err := json.Marshal(map[string]any{"poststart": sh(`echo repeated=$HOOK_REPEATED; grep -o '"repeated":[a-z]*'; true`)})
	if err != nil {
		t.Fatal(err)
	}
	for _, repeated := range []bool{false, true} {
		if _, err := h.Poststart(t.Context(), hook.TaskPoststartRequest{RequestMeta: hook.RequestMeta{AttachmentJSON: attachmentJSON}, Repeated: repeated}); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := fmt.Sprintf("%q", host.events), `["poststart: /bin/sh: repeated=" "poststart: /bin/sh: repeated=true\n\"repeated\":true"]`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
