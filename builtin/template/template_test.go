package template

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-lite/nomad-lite/builtin/template/evaluate"
	"github.com/nomad-lite/nomad-lite/builtin/template/evaluators"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/sdk"
)

const greetTemplate = `{{ with nomadVar "app" }}W={{ .w }}{{ end }}` + "\n"

func singleBlock(b templateBlock) []templateBlock {
	if b.DestPath == "" {
		b.DestPath = "local/out"
	}
	return []templateBlock{b}
}

// After one change of a variable, twenty tasks render their templates again.
// Each task gets one signal, and none is restarted.
func TestTwentyTasksOneSignalEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.setVariable("app", "w", "one")
		var want []string
		for i := range 20 {
			name := fmt.Sprintf("t%02d", i)
			f.startTask(f.newRequest(name, []templateBlock{
				{EmbeddedTmpl: greetTemplate, DestPath: "local/a", ChangeMode: "signal", ChangeSignal: "SIGHUP", Splay: 5 * time.Second},
				{EmbeddedTmpl: greetTemplate, DestPath: "local/b", ChangeMode: "signal", ChangeSignal: "SIGHUP", Splay: 5 * time.Second},
			}))
			want = append(want, name+": signal SIGHUP Template re-rendered")
		}
		f.setVariable("app", "w", "almost")
		time.Sleep(time.Second)
		f.setVariable("app", "w", "two")
		time.Sleep(time.Minute)
		f.expectCalls(want...)
		for i := range 20 {
			for _, file := range []string{"a", "b"} {
				if got := f.readFile(fmt.Sprintf("t%02d/local/%s", i, file)); got != "W=two\n" {
					t.Errorf("task %d has %q", i, got)
				}
			}
		}
		f.stopTasks()
	})
}

// Each change_mode performs its own action (RS-080).
func TestChangeModes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.setVariable("app", "w", "one")
		again := f.newRequest("again", singleBlock(templateBlock{EmbeddedTmpl: greetTemplate, Envvars: true, ChangeMode: "restart"}))
		if env := f.startTask(again); env["W"] != "one" || len(env) != 1 {
			t.Errorf("env %v", env)
		}
		f.startTask(f.newRequest("signal", singleBlock(templateBlock{EmbeddedTmpl: greetTemplate, ChangeMode: "signal", ChangeSignal: "SIGUSR1"})))
		f.startTask(f.newRequest("script", singleBlock(templateBlock{EmbeddedTmpl: greetTemplate, ChangeMode: "script", ChangeScript: &changeScript{Command: "/bin/sh", Args: []string{"-c", "true"}, Timeout: 5 * time.Second}})))
		f.startTask(f.newRequest("noop", singleBlock(templateBlock{EmbeddedTmpl: greetTemplate, ChangeMode: "noop"})))
		f.startTask(f.newRequest("once", singleBlock(templateBlock{EmbeddedTmpl: greetTemplate, ChangeMode: "restart", Once: true})))
		synctest.Wait()
		f.expectCalls()
		f.setVariable("app", "w", "two")
		time.Sleep(6 * time.Second)
		f.expectCalls(
			"again: restart Template with change_mode restart re-rendered false",
			"signal: signal SIGUSR1 Template re-rendered",
			"script: exec [/bin/sh -c true] 5s",
			"script: event  / Template successfully ran script /bin/sh with arguments: [-c true]. Exit code: 0",
		)
		if got := f.readFile("noop/local/out"); got != "W=two\n" {
			t.Errorf("noop has %q", got)
		}
		if got := f.readFile("once/local/out"); got != "W=one\n" {
			t.Errorf("once has %q", got)
		}
		if env := f.startTask(again); env["W"] != "two" {
			t.Errorf("env of the restarted task: %v", env)
		}
		synctest.Wait()
		f.expectCalls()

		f.setVariable("other", "w", "x") // no template reads the variable
		f.setVariable("app", "w", "two") // same value
		time.Sleep(time.Minute)
		f.expectCalls()
		f.stopTasks()
	})
}

func TestChangeScripts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.setVariable("app", "w", "one")
		s := &changeScript{Command: "/bin/x", RunOnFirstRender: true, FailOnError: true}
		req := f.newRequest("web", singleBlock(templateBlock{EmbeddedTmpl: greetTemplate, ChangeMode: "script", ChangeScript: s}))
		f.startTask(req)
		synctest.Wait()
		f.expectCalls("web: exec [/bin/x] 0s", "web: event  / Template successfully ran script /bin/x with arguments: []. Exit code: 0")
		f.startTask(req) // a restart of the task is not a first render, so no script runs
		synctest.Wait()
		f.expectCalls()
		f.scriptExitCode = 3
		f.setVariable("app", "w", "two")
		time.Sleep(6 * time.Second)
		const wantMessage = "Template failed to run script /bin/x with arguments: []. Exit code: 3"
		f.expectCalls("web: exec [/bin/x] 0s", "web: event Task hook failed / "+wantMessage, "web: kill "+wantMessage)
		f.stopTasks()
	})
}

// A change_script that exceeds its timeout fails, and so does one whose task is
// not running.
func TestChangeScriptErrorKillsTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.setVariable("app", "w", "one")
		s := &changeScript{Command: "/bin/x", Timeout: 3 * time.Second, FailOnError: true}
		f.startTask(f.newRequest("web", singleBlock(templateBlock{EmbeddedTmpl: greetTemplate, ChangeMode: "script", ChangeScript: s})))
		for i, c := range []struct {
			err  error
			want string
		}{
			{context.DeadlineExceeded, "It was ended after 3s"},
			{hook.ErrTaskNotRunning, hook.ErrTaskNotRunning.Error()},
		} {
			f.callErrors["exec"] = c.err
			f.setVariable("app", "w", fmt.Sprint(i))
			time.Sleep(6 * time.Second)
			message := "Template failed to run script /bin/x with arguments: []. " + c.want
			f.expectCalls("web: exec [/bin/x] 3s", "web: event Task hook failed / "+message, "web: kill "+message)
		}
		f.stopTasks()
	})
}

// A missing variable blocks the start of the task, and an event reports it. A
// service without instances does not block the start (RS-081).
func TestPrestartWaitsForMissingData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		var templateText strings.Builder
		for _, path := range []string{"a", "b", "c", "d", "e"} {
			fmt.Fprintf(&templateText, "{{ with nomadVar %q }}{{ .v.Value }}{{ end }}", path)
		}
		req := f.newRequest("web", []templateBlock{{EmbeddedTmpl: templateText.String(), DestPath: "local/out"}, {EmbeddedTmpl: `{{ range nomadService "db" }}x{{ end }}`, DestPath: "local/db"}})
		answered := make(chan error, 1)
		go func() { _, err := f.hook.Prestart(t.Context(), req); answered <- err }()
		time.Sleep(10 * time.Second)
		f.expectCalls("web: event Template / Missing: nomad.var.block(a@default.global), nomad.var.block(b@default.global), nomad.var.block(c@default.global), and 2 more")
		if got := f.readFile("web/local/db"); got != "" {
			t.Errorf("without instances: %q", got)
		}
		for _, path := range []string{"a", "b", "c", "d"} {
			f.setVariable(path, "v", path)
		}
		time.Sleep(10 * time.Second)
		f.expectCalls("web: event Template / Missing: nomad.var.block(e@default.global)")
		select {
		case err := <-answered:
			t.Fatalf("it is not waited for: %v", err)
		default:
		}
		f.setVariable("e", "v", "!")
		synctest.Wait()
		if err := <-answered; err != nil {
			t.Fatal(err)
		}
		if got := f.readFile("web/local/out"); got != "abcd!" {
			t.Errorf("got %q", got)
		}
		f.expectCalls()
		f.stopTasks()
	})
}

// When the task is killed, Prestart returns immediately, and leaves no
// goroutine running (RS-031).
func TestPrestartIsCancelledWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		ctx, kill := context.WithTimeout(t.Context(), time.Second)
		defer kill()
		begin := time.Now()
		_, err := f.hook.Prestart(ctx, f.newRequest("web", singleBlock(templateBlock{EmbeddedTmpl: greetTemplate})))
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != time.Second {
			t.Errorf("error %v after %v", err, time.Since(begin))
		}
		if len(f.hook.renderersByTask) != 0 {
			t.Error("the task is still known")
		}
	})
}

// An error of a template kills the task (RS-082). The restart policy handles an error of a source, as in Nomad, and one of the
// machine.
func TestTemplateFailures(t *testing.T) {
	for _, test := range []struct {
		name  string
		block templateBlock
		want  string
		never bool
	}{
		{"a syntax error", templateBlock{EmbeddedTmpl: "{{ if }}"}, "missing value for if", true},
		{"blocks in blocks", templateBlock{EmbeddedTmpl: strings.Repeat("{{- if 1 }}", 11_000) + strings.Repeat("{{ end }}", 11_000)}, "a template has at most 10000 blocks", true},
		{"else if in else if", templateBlock{EmbeddedTmpl: "<<if 1>>" + strings.Repeat("<< else  if 1 >>", 11_000) + "<<end>>", LeftDelim: "<<", RightDelim: ">>"}, "a template has at most 10000 blocks", true},
		{"a function that is not there", templateBlock{EmbeddedTmpl: "{{ nope }}"}, `function "nope" not defined`, true},
		{"a file of the host", templateBlock{EmbeddedTmpl: `{{ file "/etc/passwd" }}`}, "'/etc/passwd' is outside of sandbox", true},
		{"a file that is not there", templateBlock{EmbeddedTmpl: `{{ file (print (env "NOMAD_TASK_DIR") "/x/y") }}`}, "/web/local/x: no such file or directory", true},
		{"a denied function", templateBlock{EmbeddedTmpl: `{{ plugin "id" }}`}, "error calling plugin: function is disabled", true},
		{"executeTemplate", templateBlock{EmbeddedTmpl: `{{ executeTemplate "x" }}`}, "error calling executeTemplate: function is disabled", true},
		{"writeToFile", templateBlock{EmbeddedTmpl: `{{ writeToFile "/tmp/x" "" "" "0644" "x" }}`}, "error calling writeToFile: function is disabled", true},
		{"source and data", templateBlock{SourcePath: "local/x", EmbeddedTmpl: "x"}, "has both source and data", true},
		{"a destination above", templateBlock{EmbeddedTmpl: "x", DestPath: "../other/local/x"}, "template destination path escapes alloc directory", true},
		{"a destination in the private directory", templateBlock{EmbeddedTmpl: "x", DestPath: "private/template-inputs"}, "is in the private directory of the task", true},
		{"permissions", templateBlock{EmbeddedTmpl: "x", Perms: "rw"}, `perms "rw"`, true},
		{"a key that is missing", templateBlock{EmbeddedTmpl: `{{ with nomadVar "app" }}{{ .nope }}{{ end }}`, ErrMissingKey: true}, `map has no entry for key "nope"`, true},
		{"a variable of the task that is missing", templateBlock{EmbeddedTmpl: `{{ mustEnv "NOPE" }}`}, "required environment variable NOPE is empty", true},
		{"data of bad form", templateBlock{EmbeddedTmpl: `{{ parseJSON "{" }}`}, "unexpected end of JSON", true},
		{"an environment of bad form", templateBlock{EmbeddedTmpl: "A=1\nnonsense\n", Envvars: true}, `/web/local/out": error on line 2: missing =`, true},
		{"a source outside", templateBlock{SourcePath: "/etc/passwd"}, "template source path escapes alloc directory", false},
		{"a source above", templateBlock{SourcePath: "../../../etc/passwd"}, "template source path escapes alloc directory", false},
		{"a source that is not there", templateBlock{SourcePath: "local/nope"}, "no such file", false},
		{"a destination that is a directory", templateBlock{EmbeddedTmpl: "x", DestPath: "local"}, `template destination "local": renameat: file exists`, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				f.setVariable("app", "w", "one")
				ctx, kill := context.WithTimeout(t.Context(), time.Hour)
				defer kill()
				_, err := f.hook.Prestart(ctx, f.newRequest("web", singleBlock(test.block)))
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Fatalf("error %v", err)
				}
				if isRecoverable(err) == test.never {
					t.Errorf("for the restart policy: %v", !test.never)
				}
				if test.never {
					f.expectCalls("web: kill " + err.Error())
				} else {
					f.expectCalls()
				}
				f.stopTasks()
			})
		})
	}
}

// isRecoverable reports whether the error lets the restart policy start the
// task again.
func isRecoverable(err error) bool {
	return err != nil && reflect.TypeOf(err) == reflect.TypeOf(sdk.Recoverable(errors.New("x")))
}

// New data that cause an error kill the running task.
func TestRenderErrorAfterChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.setVariable("app", "n", "1")
		req := f.newRequest("web", singleBlock(templateBlock{EmbeddedTmpl: `{{ with nomadVar "app" }}{{ parseInt .n.Value }}{{ end }}`, ChangeMode: "noop"}))
		f.startTask(req)
		f.setVariable("app", "n", "x")
		time.Sleep(time.Second)
		notes := f.takeCalls()
		if len(notes) != 1 || !strings.HasPrefix(notes[0], "web: kill Template failed: (dynamic): execute: ") {
			t.Fatalf("noted %q", notes)
		}
		if got := f.readFile("web/local/out"); got != "1" {
			t.Errorf("got %q", got)
		}
		f.stopTasks()
	})
}

// If a change requires a restart while the task is not running, the task is
// restarted after its next start, unless that start already uses the change.
func TestChangeBetweenPrestartAndStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.setVariable("app", "w", "one")
		req := f.newRequest("web", singleBlock(templateBlock{EmbeddedTmpl: greetTemplate, Envvars: true, ChangeMode: "restart"}))
		if _, err := f.hook.Prestart(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		const restartCall = "web: restart " + restartReason + " false"
		f.callErrors["restart"] = hook.ErrTaskNotRunning
		f.setVariable("app", "w", "two")
		time.Sleep(10 * time.Second)
		f.expectCalls(restartCall)
		f.callErrors["restart"] = nil
		f.callPoststart(req)
		synctest.Wait()
		f.expectCalls(restartCall)

		f.callErrors["restart"] = hook.ErrTaskNotRunning
		f.setVariable("app", "w", "three")
		time.Sleep(10 * time.Second)
		f.expectCalls(restartCall)
		if env := f.startTask(req); env["W"] != "three" {
			t.Errorf("env %v", env)
		}
		synctest.Wait()
		f.expectCalls()
		f.stopTasks()
	})
}

func TestChangeSignals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.setVariable("app", "w", "one")
		f.startTask(f.newRequest("web", singleBlock(templateBlock{EmbeddedTmpl: greetTemplate, ChangeMode: "signal", ChangeSignal: "SIGHUP"})))
		f.callErrors["signal"] = hook.ErrTaskNotRunning
		f.setVariable("app", "w", "two")
		time.Sleep(6 * time.Second)
		f.expectCalls("web: signal SIGHUP Template re-rendered", "web: event  / Template skipped signal SIGHUP: task is not running")
		f.callErrors["signal"] = errors.New("no")
		f.setVariable("app", "w", "three")
		time.Sleep(6 * time.Second)
		f.expectCalls("web: signal SIGHUP Template re-rendered", "web: kill Template failed to send signals [SIGHUP]: no")
		f.stopTasks()
	})
}

// When the hook has been restarted, data that have changed in the meantime count
// as a change; unchanged data do not.
func TestRecoveredTemplates(t *testing.T) {
	for _, test := range []struct {
		name   string
		change bool
		want   []string
	}{
		{"nothing has changed", false, nil},
		{"the variable has changed", true, []string{"web: restart " + restartReason + " false"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				f.setVariable("app", "w", "one")
				s := &changeScript{Command: "/bin/x", RunOnFirstRender: true}
				req := f.newRequest("web", []templateBlock{
					{EmbeddedTmpl: greetTemplate, DestPath: "local/env", Envvars: true, ChangeMode: "restart"},
					{EmbeddedTmpl: "static", DestPath: "local/s", ChangeMode: "script", ChangeScript: s},
				})
				f.startTask(req)
				synctest.Wait()
				f.takeCalls()
				f.stopTasks()
				f.newHook()
				if test.change {
					f.setVariable("app", "w", "two")
				}
				req.Running = true
				if env := f.startTask(req); env["W"] != "one" {
					t.Errorf("env of the running task: %v", env)
				}
				time.Sleep(time.Minute)
				f.expectCalls(test.want...)
				f.stopTasks()
			})
		})
	}
}

// When the process of the hook dies after it has written a file, the next process performs the action of the change, unless
// the action was performed or the task has started again.
func TestLostActionIsPerformedByNextProcess(t *testing.T) {
	const restartCall = "web: restart " + restartReason + " false"
	for _, test := range []struct {
		name         string
		mode         string
		hangs        bool     // the process dies during the action
		startsAgain  bool     // the task starts again before the process dies
		recordIsLost bool     // the task was started by a version of the hook without the record
		dataComeBack bool     // the variable does not exist while the next process starts
		first, next  []string // calls of the first and of the next process
	}{
		{name: "restart not answered", mode: "restart", hangs: true, first: []string{restartCall}, next: []string{restartCall}},
		{name: "restart not carried out", mode: "restart", first: []string{restartCall}, next: []string{restartCall}},
		{name: "restart carried out", mode: "restart", startsAgain: true, first: []string{restartCall}},
		{name: "no record", mode: "restart", recordIsLost: true, first: []string{restartCall}},
		{name: "signal not answered", mode: "signal", hangs: true, first: []string{"web: signal SIGHUP Template re-rendered"}, next: []string{"web: signal SIGHUP Template re-rendered"}},
		{name: "signal not answered, then no data", mode: "signal", hangs: true, dataComeBack: true, first: []string{"web: signal SIGHUP Template re-rendered"}, next: []string{"web: signal SIGHUP Template re-rendered"}},
		{name: "signal sent", mode: "signal", first: []string{"web: signal SIGHUP Template re-rendered"}},
		{name: "script not answered", mode: "script", hangs: true, first: []string{"web: exec [/bin/x] 0s"}, next: []string{
			"web: exec [/bin/x] 0s", "web: event  / Template successfully ran script /bin/x with arguments: []. Exit code: 0"}},
		{name: "noop", mode: "noop"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				f.setVariable("app", "w", "one")
				req := f.newRequest("web", singleBlock(templateBlock{
					EmbeddedTmpl: greetTemplate, ChangeMode: test.mode, ChangeSignal: "SIGHUP", ChangeScript: &changeScript{Command: "/bin/x"},
				}))
				f.startTask(req)
				if test.hangs {
					f.callErrors["restart"], f.callErrors["signal"], f.callErrors["exec"] = errCallHangs, errCallHangs, errCallHangs
				}
				f.setVariable("app", "w", "two")
				time.Sleep(10 * time.Second)
				if test.startsAgain {
					f.startTask(req)
					synctest.Wait()
				}
				f.expectCalls(test.first...)
				f.stopTasks()
				if test.recordIsLost {
					if err := os.Remove(filepath.Join(req.Dir.PrivateDir, "template-applied")); err != nil {
						t.Fatal(err)
					}
				}

				clear(f.callErrors)
				f.newHook()
				if test.dataComeBack {
					f.changeData(func() { clear(f.variables) })
				}
				req.Running = true
				f.startTask(req)
				time.Sleep(time.Minute)
				if test.dataComeBack {
					f.expectCalls()
					f.setVariable("app", "w", "two")
					time.Sleep(time.Minute)
				}
				f.expectCalls(test.next...)
				if got := f.readFile("web/local/out"); got != "W=two\n" {
					t.Errorf("file has %q", got)
				}
				f.stopTasks()
			})
		})
	}
}

// A restart that an agent has accepted and not carried out is requested again from the next agent, although the process of
// the hook has survived.
func TestRestartIsRequestedAgainFromNextAgent(t *testing.T) {
	const restartCall = "web: restart " + restartReason + " false"
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.setVariable("app", "w", "one")
		req := f.newRequest("web", singleBlock(templateBlock{EmbeddedTmpl: greetTemplate, ChangeMode: "restart"}))
		f.startTask(req)
		f.setVariable("app", "w", "two")
		time.Sleep(10 * time.Second)
		f.expectCalls(restartCall)

		running := req
		running.Running = true
		f.startTask(running)
		synctest.Wait()
		f.expectCalls(restartCall)

		f.startTask(req) // the restart is carried out
		f.startTask(running)
		synctest.Wait()
		f.expectCalls()
		f.stopTasks()
	})
}

// A file that the task has changed is written again by the next process, with one action.
func TestFileChangedByTaskCausesOneAction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.setVariable("app", "w", "one")
		req := f.newRequest("web", []templateBlock{
			{EmbeddedTmpl: greetTemplate, DestPath: "local/a", ChangeMode: "signal", ChangeSignal: "SIGHUP"},
			{EmbeddedTmpl: greetTemplate, DestPath: "local/b", ChangeMode: "signal", ChangeSignal: "SIGUSR1", Once: true},
		})
		f.startTask(req)
		f.stopTasks()
		for _, name := range []string{"a", "b"} {
			if err := os.WriteFile(filepath.Join(req.Dir.LocalDir, name), []byte("x"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		f.newHook()
		req.Running = true
		f.startTask(req)
		time.Sleep(time.Minute)
		f.expectCalls("web: signal SIGHUP Template re-rendered")
		f.stopTasks()
	})
}

// A change of one template's data does not render the other templates again,
// although their output depends on the time.
func TestUnaffectedTemplatesAreNotRendered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.setVariable("app", "w", "one")
		f.startTask(f.newRequest("web", []templateBlock{
			{EmbeddedTmpl: `{{ timestamp }}`, DestPath: "local/time", ChangeMode: "restart"},
			{EmbeddedTmpl: greetTemplate, DestPath: "local/w", ChangeMode: "signal", ChangeSignal: "SIGHUP"},
		}))
		for i := range 3 {
			f.setVariable("app", "w", fmt.Sprint(i))
			time.Sleep(6 * time.Second)
			f.expectCalls("web: signal SIGHUP Template re-rendered")
			if got, want := f.readFile("web/local/w"), fmt.Sprintf("W=%d\n", i); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		f.stopTasks()
	})
}

// An output that is always another one is no change while its data are the same, neither for a later process nor after a change of
// other data.
func TestNondeterministicOutputIsNoChange(t *testing.T) {
	for _, expression := range []string{
		`timestamp "2006-01-02T15:04:05.000000000"`, "sprig_randInt 0 1000000000", `sprig_shuffle "abcdefghijklmnopqrstuvwxyz"`, `sprig_bcrypt "x"`,
		`sprig_htpasswd "a" "b"`, `sprig_genPrivateKey "ed25519"`, `sprig_encryptAES "key" "text"`, `(sprig_genCAWithKey "x" 1 (sprig_genPrivateKey "ecdsa")).Cert`,
	} {
		t.Run(expression, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				f.setVariable("app", "w", "one")
				f.setVariable("other", "w", "one")
				req := f.newRequest("web", []templateBlock{
					{EmbeddedTmpl: greetTemplate + "{{" + expression + "}}", DestPath: "local/out", ChangeMode: "restart"},
					{EmbeddedTmpl: `{{ with nomadVar "other" }}{{ .w }}{{ end }}`, DestPath: "local/other", ChangeMode: "noop"},
				})
				f.startTask(req)
				first := f.readFile("web/local/out")
				f.stopTasks()
				f.newHook()
				time.Sleep(time.Hour)
				req.Running = true
				f.startTask(req)
				time.Sleep(time.Minute)
				f.setVariable("other", "w", "two")
				time.Sleep(time.Minute)
				f.expectCalls()
				if got := f.readFile("web/local/out"); got != first {
					t.Errorf("rendered again: %q after %q", got, first)
				}
				f.setVariable("app", "w", "two")
				time.Sleep(time.Minute)
				f.expectCalls("web: restart " + restartReason + " false")
				if got := f.readFile("web/local/out"); !strings.HasPrefix(got, "W=two\n") || strings.TrimPrefix(got, "W=two\n") == strings.TrimPrefix(first, "W=one\n") {
					t.Errorf("after a change %q, before %q", got, first)
				}
				f.stopTasks()

				// A file that an earlier version has rendered is kept, too.
				first = f.readFile("web/local/out")
				if err := os.Remove(filepath.Join(req.Dir.PrivateDir, "template-inputs")); err != nil {
					t.Fatal(err)
				}
				f.newHook()
				f.startTask(req)
				time.Sleep(time.Minute)
				if got := f.readFile("web/local/out"); got != first {
					t.Errorf("rendered again after an upgrade: %q after %q", got, first)
				}
				f.stopTasks()
				f.takeCalls()
			})
		})
	}
}

// Deleting a variable does not affect a running task.
func TestDeletedVariable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.setVariable("app", "w", "one")
		f.startTask(f.newRequest("web", singleBlock(templateBlock{EmbeddedTmpl: greetTemplate, ChangeMode: "restart"})))
		f.changeData(func() { delete(f.variables, "app") })
		time.Sleep(time.Minute)
		f.expectCalls()
		if got := f.readFile("web/local/out"); got != "W=one\n" {
			t.Errorf("got %q", got)
		}
		f.stopTasks()
	})
}

func TestRenderTemplatesOnRestart(t *testing.T) {
	for _, again := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t)
			req := f.newRequest("web", singleBlock(templateBlock{EmbeddedTmpl: `{{ timestamp "unix" }}`}), map[string]any{"render_templates": again})
			f.startTask(req)
			before := f.readFile("web/local/out")
			time.Sleep(time.Hour)
			f.startTask(req)
			if got := f.readFile("web/local/out"); (got != before) != again {
				t.Errorf("render_templates %v: %q after %q", again, got, before)
			}
			f.stopTasks()
		})
	}
}

// The option wait delays the handling of a change until no further change has occurred for
// its minimum, or until its maximum.
func TestWaitDelaysRendering(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.setVariable("app", "w", "0")
		f.startTask(f.newRequest("web", singleBlock(templateBlock{EmbeddedTmpl: greetTemplate, ChangeMode: "noop", Wait: &waitConfig{Min: 10 * time.Second, Max: 25 * time.Second}})))
		for i := range 6 { // a change every 6 seconds, until 30 seconds have passed
			f.setVariable("app", "w", fmt.Sprint(i+1))
			time.Sleep(6 * time.Second)
			want := "W=0\n"
			if i >= 4 {
				want = "W=5\n"
			}
			if got := f.readFile("web/local/out"); got != want {
				t.Errorf("after %d changes %q, want %q", i+1, got, want)
			}
		}
		f.stopTasks()
	})
}

// The next agent rejects the scope of an agent that has shut down. Pending
// calls are repeated with the scope of a new request.
func TestDeniedCallIsRepeatedWithNewScope(t *testing.T) {
	for _, capability := range []string{"new", "web"} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t)
			f.setVariable("app", "w", "one")
			req := f.newRequest("web", singleBlock(templateBlock{EmbeddedTmpl: greetTemplate, ChangeMode: "signal", ChangeSignal: "SIGHUP"}))
			f.startTask(req)
			f.callErrors["signal"] = hook.ErrPermissionDenied
			f.setVariable("app", "w", "two")
			time.Sleep(time.Minute)
			f.expectCalls("web: signal SIGHUP Template re-rendered")
			f.callErrors["signal"] = nil
			req.Token, req.Running = capability, true
			f.startTask(req)
			synctest.Wait()
			f.expectCalls(capability + ": signal SIGHUP Template re-rendered")
			f.stopTasks()
		})
	}
}

func TestDestinationPaths(t *testing.T) {
	f := newFixture(t)
	outside := filepath.Join(t.TempDir(), "outside")
	req := f.newRequest("web", []templateBlock{
		{EmbeddedTmpl: "1", DestPath: "local/deep/er/x", Perms: "4750"},
		{EmbeddedTmpl: "2", DestPath: outside},
		{EmbeddedTmpl: "3", DestPath: "${NOMAD_SECRETS_DIR}/x"},
		{EmbeddedTmpl: "4", DestPath: "${NOMAD_ALLOC_DIR}/x"},
		{EmbeddedTmpl: "5", DestPath: "local/${attr.kernel.name}"},
		{EmbeddedTmpl: "6", DestPath: "local/link"},
		{SourcePath: "${NOMAD_TASK_DIR}/source", DestPath: "local/rendered", LeftDelim: "<<", RightDelim: ">>"},
	})
	if err := os.Symlink("/etc/passwd", filepath.Join(req.Dir.LocalDir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(req.Dir.LocalDir, "source"), []byte(`<< env "GREETING" >> {{ }}`), 0o644); err != nil {
		t.Fatal(err)
	}
	f.startTask(req)
	defer f.stopTasks()
	for path, want := range map[string]string{
		"web/local/deep/er/x": "1", "web" + outside: "2", "web/secrets/x": "3", "alloc/x": "4", "web/local/linux": "5", "web/local/link": "6",
		"web/local/rendered": "hello {{ }}",
	} {
		if got := f.readFile(path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	info, err := os.Lstat(filepath.Join(f.dir, "web/local/deep/er/x"))
	if err != nil || info.Mode() != 0o750 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if info, err := os.Lstat(filepath.Join(f.dir, "web/local/link")); err != nil || !info.Mode().IsRegular() {
		t.Errorf("the link: %v, %v", info, err)
	}
}

// flakyEvaluators are evaluators of which none can be started while broken is set.
type flakyEvaluators struct {
	directEvaluators
	broken atomic.Bool
}

func (e *flakyEvaluators) Evaluate(ctx context.Context, r *evaluate.Request) (*evaluate.Result, error) {
	if e.broken.Load() {
		return nil, &evaluators.UnavailableError{Err: errors.New("no processes left")}
	}
	return e.directEvaluators.Evaluate(ctx, r)
}

// A running task keeps its files while no evaluator can be started, and gets the change afterwards.
func TestChangeWaitsForEvaluators(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		flaky := &flakyEvaluators{}
		f.hook.Evaluators = flaky
		f.setVariable("app", "w", "one")
		f.startTask(f.newRequest("web", singleBlock(templateBlock{EmbeddedTmpl: greetTemplate, ChangeMode: "noop"})))
		flaky.broken.Store(true)
		f.setVariable("app", "w", "two")
		time.Sleep(time.Minute)
		f.expectCalls()
		if got := f.readFile("web/local/out"); got != "W=one\n" {
			t.Errorf("got %q", got)
		}
		flaky.broken.Store(false)
		time.Sleep(time.Minute)
		f.expectCalls()
		if got := f.readFile("web/local/out"); got != "W=two\n" {
			t.Errorf("got %q", got)
		}
		f.stopTasks()
	})
}

// A request that is cancelled late does not stop the renderer that the next request uses.
func TestCancelledRequestLeavesRendererToNextOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		req := f.newRequest("web", singleBlock(templateBlock{EmbeddedTmpl: greetTemplate}))
		ctx, cancel := context.WithCancel(t.Context())
		first, next := make(chan error), make(chan error)
		go func() {
			_, err := f.hook.Prestart(ctx, req)
			first <- err
		}()
		synctest.Wait() // it waits for the variable
		go func() {
			_, err := f.hook.Prestart(t.Context(), req)
			next <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		synctest.Wait()
		f.setVariable("app", "w", "one")
		if err := <-next; err != nil || f.readFile("web/local/out") != "W=one\n" {
			t.Errorf("next request: %v, file %q", err, f.readFile("web/local/out"))
		}
		f.setVariable("app", "w", "two")
		time.Sleep(time.Minute)
		if got := f.readFile("web/local/out"); got != "W=two\n" {
			t.Errorf("file %q", got)
		}
		f.takeCalls()
		f.stopTasks()
	})
}

// Lines of an env file that lose characters get an event, without the value, which may be a part of a secret.
func TestEnvLossesHaveEvents(t *testing.T) {
	f := newFixture(t)
	f.setVariable("app", "w", "pa#ss")
	env := f.startTask(f.newRequest("web", []templateBlock{
		{EmbeddedTmpl: "A=1\nB=x\"y\"\n", DestPath: "local/a", Envvars: true},
		{EmbeddedTmpl: greetTemplate, DestPath: "local/b", Envvars: true},
	}))
	defer f.stopTasks()
	if !maps.Equal(env, map[string]string{"A": "1", "B": "xy", "W": "pa"}) {
		t.Errorf("environment %q", env)
	}
	f.expectCalls(`web: event Template / Template "local/a": line 2: variable B loses quotes, or the text after #`,
		`web: event Template / Template "local/b": line 1: variable W loses quotes, or the text after #`)
}

// A symbolic link cannot lead a template out of the directory of the task
// (R10).
func TestLinks(t *testing.T) {
	f := newFixture(t)
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]templateBlock{
		"writes through a directory": {EmbeddedTmpl: "x", DestPath: "local/link/secret"},
		"makes a directory":          {EmbeddedTmpl: "x", DestPath: "local/link/new/x"},
		"reads a file":               {EmbeddedTmpl: `{{ file (print (env "NOMAD_TASK_DIR") "/link/secret") }}`},
		"reads a source":             {SourcePath: "local/link/secret"},
	} {
		req := f.newRequest("web", singleBlock(b))
		_ = os.Symlink(outside, filepath.Join(req.Dir.LocalDir, "link"))
		if _, err := f.hook.Prestart(t.Context(), req); err == nil || !strings.Contains(err.Error(), "escapes") && !strings.Contains(err.Error(), "outside of sandbox") {
			t.Errorf("%s: %v", name, err)
		}
		f.stopTasks()
	}
	if content, err := os.ReadFile(filepath.Join(outside, "secret")); err != nil || string(content) != "secret" {
		t.Errorf("outside: %q, %v", content, err)
	}
	if entries, _ := os.ReadDir(outside); len(entries) != 1 {
		t.Errorf("outside: %v", entries)
	}
}

func TestFileChangeIsRendered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		req := f.newRequest("web", singleBlock(templateBlock{EmbeddedTmpl: `{{ file (print (env "NOMAD_TASK_DIR") "/in") }}`, ChangeMode: "noop"}))
		in := filepath.Join(req.Dir.LocalDir, "in")
		if err := os.WriteFile(in, []byte("one"), 0o644); err != nil {
			t.Fatal(err)
		}
		f.startTask(req)
		if err := os.WriteFile(in, []byte("three"), 0o644); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if got := f.readFile("web/local/out"); got != "three" {
			t.Errorf("got %q", got)
		}
		f.stopTasks()
	})
}

// The operator's wait applies to template blocks without wait; wait_bounds
// apply to blocks with wait.
func TestEffectiveWait(t *testing.T) {
	const s = time.Second
	for _, test := range []struct {
		name        string
		block       *waitConfig
		limits      operatorSettings
		least, most time.Duration
	}{
		{"nobody says anything", nil, operatorSettings{}, 5 * s, 240 * s},
		{"the operator does", nil, operatorSettings{DefaultWait: &waitConfig{Min: s, Max: 3 * s}}, s, 3 * s},
		{"the operator says the least only", nil, operatorSettings{DefaultWait: &waitConfig{Min: s}}, s, 4 * s},
		{"the bounds are not for the operator", nil, operatorSettings{DefaultWait: &waitConfig{Min: s, Max: 3 * s}, WaitBounds: waitConfig{Min: 2 * s, Max: 2 * s}}, s, 3 * s},
		{"the bounds are not for those who say nothing", nil, operatorSettings{WaitBounds: waitConfig{Min: 10 * s}}, 5 * s, 240 * s},
		{"the block does", &waitConfig{Min: s, Max: 2 * s}, operatorSettings{DefaultWait: &waitConfig{Min: 9 * s, Max: 9 * s}}, s, 2 * s},
		{"the block waits too little", &waitConfig{Min: s, Max: 20 * s}, operatorSettings{WaitBounds: waitConfig{Min: 2 * s}}, 2 * s, 20 * s},
		{"the block waits too long", &waitConfig{Min: s, Max: 20 * s}, operatorSettings{WaitBounds: waitConfig{Max: 3 * s}}, s, 3 * s},
		{"the most that follows from the least is bound too", &waitConfig{Min: s}, operatorSettings{WaitBounds: waitConfig{Max: 3 * s}}, s, 3 * s},
		{"the least is never above the most", &waitConfig{Min: s, Max: s}, operatorSettings{WaitBounds: waitConfig{Min: 9 * s, Max: 3 * s}}, 9 * s, 9 * s},
	} {
		b := templateBlock{Wait: test.block}
		if shortest, maxWait := b.effectiveWait(&test.limits); shortest != test.least || maxWait != test.most {
			t.Errorf("%s: %v to %v, want %v to %v", test.name, shortest, maxWait, test.least, test.most)
		}
	}
}

func TestTemplateLimits(t *testing.T) {
	outside := t.TempDir()
	if err := errors.Join(
		os.WriteFile(filepath.Join(outside, "file"), []byte("of the machine"), 0o600),
		os.Symlink(filepath.Join(outside, "file"), filepath.Join(outside, "link")),
		os.WriteFile(filepath.Join(outside, "source"), []byte("{{ env `GREETING` }}"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name   string
		block  templateBlock
		limits map[string]any
		want   string
		fails  string
	}{
		{"a function that the operator denies", templateBlock{EmbeddedTmpl: `{{ env "GREETING" }}`}, map[string]any{"function_denylist": []string{"env"}}, "", "error calling env: function is disabled"},
		{"a pattern", templateBlock{EmbeddedTmpl: `{{ sprig_upper "x" }}`}, map[string]any{"function_denylist": []string{"sprig_*"}}, "", "error calling sprig_upper: function is disabled"},
		{"executeTemplate with a list without it", templateBlock{EmbeddedTmpl: `{{ define "x" }}hello{{ end }}{{ executeTemplate "x" }}`}, map[string]any{"function_denylist": []string{}}, "hello", ""},
		{"another one", templateBlock{EmbeddedTmpl: `{{ env "GREETING" }}`}, map[string]any{"function_denylist": []string{"file"}}, "hello", ""},
		{"a list without those that nobody may call", templateBlock{EmbeddedTmpl: `{{ plugin "x" }}`}, map[string]any{"function_denylist": []string{}}, "", "error calling plugin: function is disabled"},
		{"a file of the machine", templateBlock{EmbeddedTmpl: `{{ file "` + outside + `/file" }}`}, map[string]any{"disable_file_sandbox": true}, "of the machine", ""},
		{"a link to one", templateBlock{EmbeddedTmpl: `{{ file "` + outside + `/link" }}`}, map[string]any{"disable_file_sandbox": true}, "of the machine", ""},
		{"a file of the allocation", templateBlock{EmbeddedTmpl: `{{ file (print (env "NOMAD_TASK_DIR") "/../../alloc/x") }}`}, map[string]any{"disable_file_sandbox": true}, "shared", ""},
		{"a source of the machine", templateBlock{SourcePath: outside + "/source"}, map[string]any{"disable_file_sandbox": true}, "hello", ""},
		{"a destination stays inside", templateBlock{EmbeddedTmpl: "x", DestPath: "../../x"}, map[string]any{"disable_file_sandbox": true}, "", "template destination path escapes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFixture(t)
			req := f.newRequest("web", singleBlock(test.block), map[string]any{"limits": test.limits})
			if err := os.WriteFile(filepath.Join(req.Dir.SharedAllocDir, "x"), []byte("shared"), 0o644); err != nil {
				t.Fatal(err)
			}
			ctx, kill := context.WithCancel(t.Context())
			defer kill()
			f.onKill = kill
			_, err := f.hook.Prestart(ctx, req)
			defer f.stopTasks()
			switch {
			case test.fails == "" && (err != nil || f.readFile("web/local/out") != test.want):
				t.Errorf("got %v", err)
			case test.fails != "":
				if notes := f.takeCalls(); len(notes) != 1 || !strings.Contains(notes[0], test.fails) {
					t.Errorf("got %v, noted %q, want %q", err, notes, test.fails)
				}
			}
		})
	}
}
