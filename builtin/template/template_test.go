package template

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/sdk"
)

const greet = `{{ with nomadVar "app" }}W={{ .w }}{{ end }}` + "\n"

func singleBlock(b block) []block {
	if b.DestPath == "" {
		b.DestPath = "local/out"
	}
	return []block{b}
}

// Twenty tasks re-render after one change, each gets one signal, and none is
// restarted.
func TestTwentyTasksOneSignalEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.setVariable("app", "w", "one")
		var want []string
		for i := range 20 {
			name := fmt.Sprintf("t%02d", i)
			f.run(f.request(name, []block{
				{EmbeddedTmpl: greet, DestPath: "local/a", ChangeMode: "signal", ChangeSignal: "SIGHUP", Splay: 5 * time.Second},
				{EmbeddedTmpl: greet, DestPath: "local/b", ChangeMode: "signal", ChangeSignal: "SIGHUP", Splay: 5 * time.Second},
			}))
			want = append(want, name+": signal SIGHUP Template re-rendered")
		}
		f.setVariable("app", "w", "almost")
		time.Sleep(time.Second)
		f.setVariable("app", "w", "two")
		time.Sleep(time.Minute)
		f.expect(want...)
		for i := range 20 {
			for _, file := range []string{"a", "b"} {
				if got := f.read(fmt.Sprintf("t%02d/local/%s", i, file)); got != "W=two\n" {
					t.Errorf("task %d has %q", i, got)
				}
			}
		}
		f.stop()
	})
}

// RS-080: each change mode does its own action.
func TestChangeModes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.setVariable("app", "w", "one")
		again := f.request("again", singleBlock(block{EmbeddedTmpl: greet, Envvars: true, ChangeMode: "restart"}))
		if env := f.run(again); env["W"] != "one" || len(env) != 1 {
			t.Errorf("env %v", env)
		}
		f.run(f.request("signal", singleBlock(block{EmbeddedTmpl: greet, ChangeMode: "signal", ChangeSignal: "SIGUSR1"})))
		f.run(f.request("script", singleBlock(block{EmbeddedTmpl: greet, ChangeMode: "script", ChangeScript: &script{Command: "/bin/sh", Args: []string{"-c", "true"}, Timeout: 5 * time.Second}})))
		f.run(f.request("noop", singleBlock(block{EmbeddedTmpl: greet, ChangeMode: "noop"})))
		f.run(f.request("once", singleBlock(block{EmbeddedTmpl: greet, ChangeMode: "restart", Once: true})))
		synctest.Wait()
		f.expect()
		f.setVariable("app", "w", "two")
		time.Sleep(6 * time.Second)
		f.expect(
			"again: restart Template with change_mode restart re-rendered false",
			"signal: signal SIGUSR1 Template re-rendered",
			"script: exec [/bin/sh -c true] 5s",
			"script: event  / Template successfully ran script /bin/sh with arguments: [-c true]. Exit code: 0",
		)
		if got := f.read("noop/local/out"); got != "W=two\n" {
			t.Errorf("noop has %q", got)
		}
		if got := f.read("once/local/out"); got != "W=one\n" {
			t.Errorf("once has %q", got)
		}
		if env := f.run(again); env["W"] != "two" {
			t.Errorf("env of the restarted task: %v", env)
		}
		synctest.Wait()
		f.expect()

		f.setVariable("other", "w", "x") // no template reads the variable
		f.setVariable("app", "w", "two") // same value
		time.Sleep(time.Minute)
		f.expect()
		f.stop()
	})
}

func TestScripts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.setVariable("app", "w", "one")
		s := &script{Command: "/bin/x", RunOnFirstRender: true, FailOnError: true}
		req := f.request("web", singleBlock(block{EmbeddedTmpl: greet, ChangeMode: "script", ChangeScript: s}))
		f.run(req)
		synctest.Wait()
		f.expect("web: exec [/bin/x] 0s", "web: event  / Template successfully ran script /bin/x with arguments: []. Exit code: 0")
		f.run(req) // a restart is not the first render
		synctest.Wait()
		f.expect()
		f.exit = 3
		f.setVariable("app", "w", "two")
		time.Sleep(6 * time.Second)
		const text = "Template failed to run script /bin/x with arguments: []. Exit code: 3"
		f.expect("web: exec [/bin/x] 0s", "web: event Task hook failed / "+text, "web: kill "+text)
		f.stop()
	})
}

// A script that exceeds its timeout fails, and so does a script without a
// running process.
func TestScriptsThatCannotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.setVariable("app", "w", "one")
		s := &script{Command: "/bin/x", Timeout: 3 * time.Second, FailOnError: true}
		f.run(f.request("web", singleBlock(block{EmbeddedTmpl: greet, ChangeMode: "script", ChangeScript: s})))
		for i, c := range []struct {
			err  error
			want string
		}{
			{context.DeadlineExceeded, "It was ended after 3s"},
			{hook.ErrTaskNotRunning, hook.ErrTaskNotRunning.Error()},
		} {
			f.reply["exec"] = c.err
			f.setVariable("app", "w", fmt.Sprint(i))
			time.Sleep(6 * time.Second)
			text := "Template failed to run script /bin/x with arguments: []. " + c.want
			f.expect("web: exec [/bin/x] 3s", "web: event Task hook failed / "+text, "web: kill "+text)
		}
		f.stop()
	})
}

// RS-081: a missing variable blocks the start of the task, and an event reports
// it; a service without instances does not block.
func TestPrestartWaitsForMissingData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		var text strings.Builder
		for _, path := range []string{"a", "b", "c", "d", "e"} {
			fmt.Fprintf(&text, "{{ with nomadVar %q }}{{ .v.Value }}{{ end }}", path)
		}
		req := f.request("web", []block{{EmbeddedTmpl: text.String(), DestPath: "local/out"}, {EmbeddedTmpl: `{{ range nomadService "db" }}x{{ end }}`, DestPath: "local/db"}})
		answered := make(chan error, 1)
		go func() { _, err := f.hook.Prestart(t.Context(), req); answered <- err }()
		time.Sleep(10 * time.Second)
		f.expect("web: event Template / Missing: nomad.var.block(a@default.global), nomad.var.block(b@default.global), nomad.var.block(c@default.global), and 2 more")
		if got := f.read("web/local/db"); got != "" {
			t.Errorf("without instances: %q", got)
		}
		for _, path := range []string{"a", "b", "c", "d"} {
			f.setVariable(path, "v", path)
		}
		time.Sleep(10 * time.Second)
		f.expect("web: event Template / Missing: nomad.var.block(e@default.global)")
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
		if got := f.read("web/local/out"); got != "abcd!" {
			t.Errorf("got %q", got)
		}
		f.expect()
		f.stop()
	})
}

// RS-031: a kill ends the wait at once, and leaves no goroutine.
func TestKilledWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		ctx, kill := context.WithTimeout(t.Context(), time.Second)
		defer kill()
		begin := time.Now()
		_, err := f.hook.Prestart(ctx, f.request("web", singleBlock(block{EmbeddedTmpl: greet})))
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != time.Second {
			t.Errorf("error %v after %v", err, time.Since(begin))
		}
		if len(f.hook.tasks) != 0 {
			t.Error("the task is still known")
		}
	})
}

// RS-082, and errors that only other data can fix, which are left to the restart
// policy.
func TestFailures(t *testing.T) {
	for _, test := range []struct {
		name  string
		block block
		want  string
		never bool
	}{
		{"a syntax error", block{EmbeddedTmpl: "{{ if }}"}, "missing value for if", true},
		{"blocks in blocks", block{EmbeddedTmpl: strings.Repeat("{{- if 1 }}", 5000) + strings.Repeat("{{ end }}", 5000)}, "blocks are nested more than 1000 deep", true},
		{"else if in else if", block{EmbeddedTmpl: "<<if 1>>" + strings.Repeat("<< else  if 1 >>", 5000) + "<<end>>", LeftDelim: "<<", RightDelim: ">>"}, "blocks are nested more than 1000 deep", true},
		{"a function that is not there", block{EmbeddedTmpl: "{{ nope }}"}, `function "nope" not defined`, true},
		{"a file of the host", block{EmbeddedTmpl: `{{ file "/etc/passwd" }}`}, "'/etc/passwd' is outside of sandbox", true},
		{"a file of another task", block{EmbeddedTmpl: `{{ file "../other/secrets/x" }}`}, "'../other/secrets/x' is outside of sandbox", true},
		{"a denied function", block{EmbeddedTmpl: `{{ "x" | plugin "id" }}`}, "plugin: the function is disabled", true},
		{"executeTemplate", block{EmbeddedTmpl: `{{ executeTemplate "x" }}`}, "executeTemplate: the function is disabled", true},
		{"writeToFile", block{EmbeddedTmpl: `{{ "x" | writeToFile "/tmp/x" "" "" "0644" }}`}, "writeToFile: the function is disabled", true},
		{"a function that would change a value", block{EmbeddedTmpl: `{{ sprig_set (sprig_dict) "a" 1 }}`}, "sprig_set: no value changes here: use scratch.MapSet", true},
		{"Consul", block{EmbeddedTmpl: `{{ key "x" }}`}, "key: there is no Consul here", true},
		{"Vault", block{EmbeddedTmpl: `{{ with secret "x" }}{{ end }}`}, "secret: there is no Vault here", true},
		{"another namespace", block{EmbeddedTmpl: `{{ nomadVar "x@other" }}`}, "another namespace", true},
		{"source and data", block{SourcePath: "local/x", EmbeddedTmpl: "x"}, "has both source and data", true},
		{"a source outside", block{SourcePath: "/etc/passwd"}, "template source path escapes alloc directory", true},
		{"a source above", block{SourcePath: "../../../etc/passwd"}, "template source path escapes alloc directory", true},
		{"a destination above", block{EmbeddedTmpl: "x", DestPath: "../other/local/x"}, "template destination path escapes alloc directory", true},
		{"permissions", block{EmbeddedTmpl: "x", Perms: "rw"}, `perms "rw"`, true},
		{"a key that is missing", block{EmbeddedTmpl: `{{ with nomadVar "app" }}{{ .nope }}{{ end }}`, ErrMissingKey: true}, `map has no entry for key "nope"`, false},
		{"a variable of the task that is missing", block{EmbeddedTmpl: `{{ mustEnv "NOPE" }}`}, "the task has no variable NOPE", false},
		{"data of bad form", block{EmbeddedTmpl: `{{ parseJSON "{" }}`}, "unexpected end of JSON", false},
		{"an environment of bad form", block{EmbeddedTmpl: "A=1\nnonsense\n", Envvars: true}, `template with env "local/out": line 2: no = in it`, false},
		{"a source that is not there", block{SourcePath: "local/nope"}, "no such file", true},
		{"a destination that is a directory", block{EmbeddedTmpl: "x", DestPath: "local"}, `template destination "local": renameat: file exists`, false},
		{"a loop without end", block{EmbeddedTmpl: `{{ range 1000000000000 }}{{ end }}`}, "more than 100000 steps", false},
		{"templates that multiply", block{EmbeddedTmpl: exponentialTemplate()}, "more than 100000 steps", false},
		{"a template that calls itself", block{EmbeddedTmpl: `{{ define "a" }}{{ template "a" }}{{ end }}{{ template "a" }}`}, "templates call each other more than 1000 deep", false},
		{"a text that doubles", block{EmbeddedTmpl: `{{ $x := "aaaa" }}{{ range loop 64 }}{{ $x = print $x $x }}{{ end }}`}, "a value of more than 8388608 bytes", false},
		{"a file that is too large", block{EmbeddedTmpl: `{{ range loop 90000 }}0123456789012345678901234567890123456789012345678901234567890123456789{{ end }}`}, "template: local/out: more than 4194304 bytes come of it", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				f.setVariable("app", "w", "one")
				ctx, kill := context.WithTimeout(t.Context(), time.Hour)
				defer kill()
				_, err := f.hook.Prestart(ctx, f.request("web", singleBlock(test.block)))
				if err == nil || !strings.Contains(err.Error(), "Template failed: ") || !strings.Contains(err.Error(), test.want) {
					t.Fatalf("error %v", err)
				}
				if recoverable(err) == test.never {
					t.Errorf("for the restart policy: %v", !test.never)
				}
				if test.never {
					f.expect("web: kill " + err.Error())
				} else {
					f.expect()
				}
				f.stop()
			})
		})
	}
}

// recoverable reports whether the restart policy may retry.
func recoverable(err error) bool {
	return err != nil && reflect.TypeOf(err) == reflect.TypeOf(sdk.Recoverable(errors.New("x")))
}

// exponentialTemplate returns a short template with an exponential run time.
func exponentialTemplate() string {
	var b strings.Builder
	for i := range 40 {
		fmt.Fprintf(&b, `{{ define "t%d" }}{{ template "t%d" }}{{ template "t%d" }}{{ end }}`, i, i+1, i+1)
	}
	b.WriteString(`{{ define "t40" }}{{ end }}{{ template "t0" }}`)
	return b.String()
}

// An error while the task is running counts as a failure for the restart policy,
// and so does the next start, until the data are valid again.
func TestErrorOnChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.setVariable("app", "n", "1")
		req := f.request("web", singleBlock(block{EmbeddedTmpl: `{{ with nomadVar "app" }}{{ parseInt .n }}{{ end }}`, ChangeMode: "noop"}))
		f.run(req)
		f.setVariable("app", "n", "x")
		time.Sleep(time.Second)
		notes := f.takeCalls()
		if len(notes) != 1 || !strings.HasPrefix(notes[0], "web: restart Template failed: ") || !strings.HasSuffix(notes[0], " true") {
			t.Fatalf("noted %q", notes)
		}
		if _, err := f.hook.Prestart(t.Context(), req); !recoverable(err) {
			t.Errorf("error %v", err)
		}
		f.setVariable("app", "n", "2")
		f.run(req)
		if got := f.read("web/local/out"); got != "2" {
			t.Errorf("got %q", got)
		}
		f.expect()
		f.stop()
	})
}

// A restart that finds no running process is done after the next start, unless
// that process starts with the change.
func TestChangeBetweenPrestartAndStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.setVariable("app", "w", "one")
		req := f.request("web", singleBlock(block{EmbeddedTmpl: greet, Envvars: true, ChangeMode: "restart"}))
		if _, err := f.hook.Prestart(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		const restarted = "web: restart " + reasonRestart + " false"
		f.reply["restart"] = hook.ErrTaskNotRunning
		f.setVariable("app", "w", "two")
		time.Sleep(10 * time.Second)
		f.expect(restarted)
		f.reply["restart"] = nil
		f.poststart(req)
		synctest.Wait()
		f.expect(restarted)

		f.reply["restart"] = hook.ErrTaskNotRunning
		f.setVariable("app", "w", "three")
		time.Sleep(10 * time.Second)
		f.expect(restarted)
		if env := f.run(req); env["W"] != "three" {
			t.Errorf("env %v", env)
		}
		synctest.Wait()
		f.expect()
		f.stop()
	})
}

func TestSignals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.setVariable("app", "w", "one")
		f.run(f.request("web", singleBlock(block{EmbeddedTmpl: greet, ChangeMode: "signal", ChangeSignal: "SIGHUP"})))
		f.reply["signal"] = hook.ErrTaskNotRunning
		f.setVariable("app", "w", "two")
		time.Sleep(6 * time.Second)
		f.expect("web: signal SIGHUP Template re-rendered", "web: event  / Template skipped signal SIGHUP: task is not running")
		f.reply["signal"] = errors.New("no")
		f.setVariable("app", "w", "three")
		time.Sleep(6 * time.Second)
		f.expect("web: signal SIGHUP Template re-rendered", "web: kill Template failed to send signals [SIGHUP]: no")
		f.stop()
	})
}

// After the death of the process and of the agent, data that have changed in the
// meantime count as a change; unchanged data do not.
func TestRecoveredTemplates(t *testing.T) {
	for _, test := range []struct {
		name   string
		change bool
		want   []string
	}{
		{"nothing has changed", false, nil},
		{"the variable has changed", true, []string{"web: restart " + reasonRestart + " false"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				f.setVariable("app", "w", "one")
				s := &script{Command: "/bin/x", RunOnFirstRender: true}
				req := f.request("web", []block{
					{EmbeddedTmpl: greet, DestPath: "local/env", Envvars: true, ChangeMode: "restart"},
					{EmbeddedTmpl: "static", DestPath: "local/s", ChangeMode: "script", ChangeScript: s},
				})
				f.run(req)
				synctest.Wait()
				f.takeCalls()
				f.stop()
				f.start()
				if test.change {
					f.setVariable("app", "w", "two")
				}
				req.Running = true
				if env := f.run(req); env["W"] != "one" {
					t.Errorf("env of the running task: %v", env)
				}
				time.Sleep(time.Minute)
				f.expect(test.want...)
				f.stop()
			})
		})
	}
}

// A change of one template's data does not change other templates, although the
// time has changed.
func TestUnaffectedTemplatesAreNotRendered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.setVariable("app", "w", "one")
		f.run(f.request("web", []block{
			{EmbeddedTmpl: `{{ timestamp }} {{ sprig_now }}`, DestPath: "local/time", ChangeMode: "restart"},
			{EmbeddedTmpl: greet, DestPath: "local/w", ChangeMode: "signal", ChangeSignal: "SIGHUP"},
		}))
		for i := range 3 {
			f.setVariable("app", "w", fmt.Sprint(i))
			time.Sleep(6 * time.Second)
			f.expect("web: signal SIGHUP Template re-rendered")
			if got, want := f.read("web/local/w"), fmt.Sprintf("W=%d\n", i); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		f.stop()
	})
}

// The time and random numbers do not count as changes: not for a later process,
// and random numbers not after a change of other data. No two templates have the
// same random numbers.
func TestTimeAndRandomNumbersAreStable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.setVariable("app", "w", "one")
		const random = `{{ sprig_randAlphaNum 20 }} {{ sprig_uuidv4 }}`
		req := f.request("web", []block{
			{EmbeddedTmpl: greet + `{{ timestamp }} {{ sprig_date "15:04:05.000000000" sprig_now }}`, DestPath: "local/time", ChangeMode: "restart"},
			{EmbeddedTmpl: greet + random, DestPath: "local/random", ChangeMode: "noop"},
			{EmbeddedTmpl: greet + random, DestPath: "local/other", ChangeMode: "noop"},
		})
		f.run(req)
		read := func(name string) string {
			return strings.TrimPrefix(strings.TrimPrefix(f.read("web/local/"+name), "W=one\n"), "W=two\n")
		}
		at, number := read("time"), read("random")
		if number == read("other") {
			t.Errorf("two templates have the random numbers %s", number)
		}
		f.stop()
		f.start()
		time.Sleep(time.Hour)
		req.Running = true
		f.run(req)
		time.Sleep(time.Minute)
		f.expect()
		f.setVariable("app", "w", "two")
		time.Sleep(time.Minute)
		f.expect("web: restart " + reasonRestart + " false")
		if got := read("time"); got == at {
			t.Errorf("after a change the time is still %s", got)
		}
		if got := read("random"); got != number {
			t.Errorf("after a change the random numbers are %s, not %s", got, number)
		}
		f.stop()

		other := f.request("other", []block{{EmbeddedTmpl: random, DestPath: "local/random"}})
		f.start()
		f.run(other)
		if f.read("other/local/random") == number {
			t.Errorf("two tasks have the random numbers %s", number)
		}
		f.stop()
	})
}

// Deleting a variable does not affect a running task.
func TestDeletedVariable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.setVariable("app", "w", "one")
		f.run(f.request("web", singleBlock(block{EmbeddedTmpl: greet, ChangeMode: "restart"})))
		f.change(func() { delete(f.variables, "app") })
		time.Sleep(time.Minute)
		f.expect()
		if got := f.read("web/local/out"); got != "W=one\n" {
			t.Errorf("got %q", got)
		}
		f.stop()
	})
}

func TestRenderTemplatesOnRestart(t *testing.T) {
	for _, again := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t)
			req := f.request("web", singleBlock(block{EmbeddedTmpl: `{{ timestamp "unix" }}`}), map[string]any{"render_templates": again})
			f.run(req)
			before := f.read("web/local/out")
			time.Sleep(time.Hour)
			f.run(req)
			if got := f.read("web/local/out"); (got != before) != again {
				t.Errorf("render_templates %v: %q after %q", again, got, before)
			}
			f.stop()
		})
	}
}

// wait delays a change until further changes have settled, up to a maximum.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.setVariable("app", "w", "0")
		f.run(f.request("web", singleBlock(block{EmbeddedTmpl: greet, ChangeMode: "noop", Wait: &wait{Min: 10 * time.Second, Max: 25 * time.Second}})))
		for i := range 6 { // every 6 seconds, the last after 30
			f.setVariable("app", "w", fmt.Sprint(i+1))
			time.Sleep(6 * time.Second)
			want := "W=0\n"
			if i >= 4 {
				want = "W=5\n"
			}
			if got := f.read("web/local/out"); got != want {
				t.Errorf("after %d changes %q, want %q", i+1, got, want)
			}
		}
		f.stop()
	})
}

// The scope of an agent that has shut down is not valid for the next agent:
// pending calls wait for a new scope.
func TestScopeIsRenewed(t *testing.T) {
	for _, capability := range []string{"new", "web"} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t)
			f.setVariable("app", "w", "one")
			req := f.request("web", singleBlock(block{EmbeddedTmpl: greet, ChangeMode: "signal", ChangeSignal: "SIGHUP"}))
			f.run(req)
			f.reply["signal"] = hook.ErrPermissionDenied
			f.setVariable("app", "w", "two")
			time.Sleep(time.Minute)
			f.expect("web: signal SIGHUP Template re-rendered")
			f.reply["signal"] = nil
			req.Token, req.Running = capability, true
			f.run(req)
			synctest.Wait()
			f.expect(capability + ": signal SIGHUP Template re-rendered")
			f.stop()
		})
	}
}

func TestDestinations(t *testing.T) {
	f := newFixture(t)
	outside := filepath.Join(t.TempDir(), "outside")
	req := f.request("web", []block{
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
	f.run(req)
	defer f.stop()
	for path, want := range map[string]string{
		"web/local/deep/er/x": "1", "web" + outside: "2", "web/secrets/x": "3", "alloc/x": "4", "web/local/linux": "5", "web/local/link": "6",
		"web/local/rendered": "hello {{ }}",
	} {
		if got := f.read(path); got != want {
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

// R10: a link cannot lead out of the directory of the task.
func TestLinks(t *testing.T) {
	f := newFixture(t)
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]block{
		"writes through a directory": {EmbeddedTmpl: "x", DestPath: "local/link/secret"},
		"makes a directory":          {EmbeddedTmpl: "x", DestPath: "local/link/new/x"},
		"reads a file":               {EmbeddedTmpl: `{{ file "local/link/secret" }}`},
		"reads a source":             {SourcePath: "local/link/secret"},
	} {
		req := f.request("web", singleBlock(b))
		_ = os.Symlink(outside, filepath.Join(req.Dir.LocalDir, "link"))
		if _, err := f.hook.Prestart(t.Context(), req); err == nil || !strings.Contains(err.Error(), "escapes") {
			t.Errorf("%s: %v", name, err)
		}
		f.stop()
	}
	if content, err := os.ReadFile(filepath.Join(outside, "secret")); err != nil || string(content) != "secret" {
		t.Errorf("outside: %q, %v", content, err)
	}
	if entries, _ := os.ReadDir(outside); len(entries) != 1 {
		t.Errorf("outside: %v", entries)
	}
}

func TestFileIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		req := f.request("web", singleBlock(block{EmbeddedTmpl: `{{ file "local/in" }}`, ChangeMode: "noop"}))
		in := filepath.Join(req.Dir.LocalDir, "in")
		if err := os.WriteFile(in, []byte("one"), 0o644); err != nil {
			t.Fatal(err)
		}
		f.run(req)
		if err := os.WriteFile(in, []byte("three"), 0o644); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if got := f.read("web/local/out"); got != "three" {
			t.Errorf("got %q", got)
		}
		f.stop()
	})
}

// The operator's wait applies to blocks without wait; wait_bounds apply to
// blocks with wait.
func TestSettleTime(t *testing.T) {
	const s = time.Second
	for _, test := range []struct {
		name        string
		block       *wait
		limits      limits
		least, most time.Duration
	}{
		{"nobody says anything", nil, limits{}, 5 * s, 240 * s},
		{"the operator does", nil, limits{Wait: &wait{Min: s, Max: 3 * s}}, s, 3 * s},
		{"the operator says the least only", nil, limits{Wait: &wait{Min: s}}, s, 4 * s},
		{"the bounds are not for the operator", nil, limits{Wait: &wait{Min: s, Max: 3 * s}, WaitBounds: wait{Min: 2 * s, Max: 2 * s}}, s, 3 * s},
		{"the bounds are not for those who say nothing", nil, limits{WaitBounds: wait{Min: 10 * s}}, 5 * s, 240 * s},
		{"the block does", &wait{Min: s, Max: 2 * s}, limits{Wait: &wait{Min: 9 * s, Max: 9 * s}}, s, 2 * s},
		{"the block waits too little", &wait{Min: s, Max: 20 * s}, limits{WaitBounds: wait{Min: 2 * s}}, 2 * s, 20 * s},
		{"the block waits too long", &wait{Min: s, Max: 20 * s}, limits{WaitBounds: wait{Max: 3 * s}}, s, 3 * s},
		{"the most that follows from the least is bound too", &wait{Min: s}, limits{WaitBounds: wait{Max: 3 * s}}, s, 3 * s},
		{"the least is never above the most", &wait{Min: s, Max: s}, limits{WaitBounds: wait{Min: 9 * s, Max: 3 * s}}, 9 * s, 9 * s},
	} {
		b := block{Wait: test.block}
		if least, most := b.quiet(&test.limits); least != test.least || most != test.most {
			t.Errorf("%s: %v to %v, want %v to %v", test.name, least, most, test.least, test.most)
		}
	}
}

func TestLimits(t *testing.T) {
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
		block  block
		limits map[string]any
		want   string
		fails  string
	}{
		{"a function that the operator denies", block{EmbeddedTmpl: `{{ env "GREETING" }}`}, map[string]any{"function_denylist": []string{"env"}}, "", "env: the function is disabled"},
		{"one of Go", block{EmbeddedTmpl: `{{ and 1 2 }}`}, map[string]any{"function_denylist": []string{"and"}}, "", "and: the function is disabled"},
		{"another one", block{EmbeddedTmpl: `{{ env "GREETING" }}`}, map[string]any{"function_denylist": []string{"file"}}, "hello", ""},
		{"a list without those that nobody may call", block{EmbeddedTmpl: `{{ plugin "x" }}`}, map[string]any{"function_denylist": []string{}}, "", "plugin: the function is disabled"},
		{"a file of the machine", block{EmbeddedTmpl: `{{ file "` + outside + `/file" }}`}, map[string]any{"disable_file_sandbox": true}, "of the machine", ""},
		{"a link to one", block{EmbeddedTmpl: `{{ file "` + outside + `/link" }}`}, map[string]any{"disable_file_sandbox": true}, "of the machine", ""},
		{"a file above", block{EmbeddedTmpl: `{{ file "../alloc/x" }}`}, map[string]any{"disable_file_sandbox": true}, "shared", ""},
		{"a source of the machine", block{SourcePath: outside + "/source"}, map[string]any{"disable_file_sandbox": true}, "hello", ""},
		{"a destination stays inside", block{EmbeddedTmpl: "x", DestPath: "../../x"}, map[string]any{"disable_file_sandbox": true}, "", "template destination path escapes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFixture(t)
			req := f.request("web", singleBlock(test.block), map[string]any{"limits": test.limits})
			if err := os.WriteFile(filepath.Join(req.Dir.SharedAllocDir, "x"), []byte("shared"), 0o644); err != nil {
				t.Fatal(err)
			}
			ctx, kill := context.WithCancel(t.Context())
			defer kill()
			f.killed = kill
			_, err := f.hook.Prestart(ctx, req)
			defer f.stop()
			switch {
			case test.fails == "" && (err != nil || f.read("web/local/out") != test.want):
				t.Errorf("got %v", err)
			case test.fails != "":
				if notes := f.takeCalls(); len(notes) != 1 || !strings.Contains(notes[0], test.fails) {
					t.Errorf("got %v, noted %q, want %q", err, notes, test.fails)
				}
			}
		})
	}
}
