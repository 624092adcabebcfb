package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk/sdktest"
)

// TestMain runs the tests, or the plugin, or the process of a task.
func TestMain(m *testing.M) {
	if isTicker() {
		main()
	}
	sdktest.Main(m, main)
}

type body = map[string]any

func every(seconds int, more body) body {
	config := body{"every": body{"tick": body{"seconds": seconds}}}
	for k, v := range more {
		config[k] = v
	}
	return config
}

func TestContract(t *testing.T) {
	sdktest.Driver(t, sdktest.Plugin{
		Path:   os.Args[0],
		Config: body{"max_tasks": 200, "timezone": "UTC"},
		Tasks: sdktest.Tasks{
			LongRunning: every(1, nil),
			Succeeds:    every(1, body{"lines": 1}),
			Fails:       every(1, body{"lines": 1, "exit_code": 3}),
		},
	})
}

func TestConfigure(t *testing.T) {
	for name, test := range map[string]struct {
		body body
		want string // part of the error; empty means none
	}{
		"empty":            {body{}, ""},
		"good":             {body{"max_tasks": 3, "timezone": "UTC"}, ""},
		"no tasks":         {body{"max_tasks": 0}, "max_tasks is 0"},
		"fraction":         {body{"max_tasks": 1.5}, "max_tasks"},
		"unknown zone":     {body{"timezone": "Mars/Base"}, `timezone "Mars/Base" is unknown`},
		"zone outside":     {body{"timezone": "../../etc/passwd"}, "is no name of a time zone"},
		"no zone":          {body{"timezone": ""}, "is no name of a time zone"},
		"file, not a zone": {body{"timezone": "zone.tab"}, "is unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			c.zones = zoneDirs{t.TempDir()}
			if err := os.WriteFile(filepath.Join(c.zones[0], "zone.tab"), []byte("text"), 0o600); err != nil {
				t.Fatal(err)
			}
			before := c.config
			err := c.Configure(t.Context(), sdktest.NewConfig(t, c.Info().ConfigSchema, test.body))
			expect(t, err, test.want)
			if err != nil && c.config != before {
				t.Errorf("a refused configuration is in use: %+v", c.config)
			}
		})
	}
}

func expect(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("error: %v", err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("error %v, want %q", err, want)
	}
}

func TestBadTaskConfig(t *testing.T) {
	for name, test := range map[string]struct {
		body body
		want string
	}{
		"nothing":  {body{}, `needs a block every "NAME" or at`},
		"seconds":  {body{"every": body{"slow": body{"seconds": 0}}}, `config: every "slow": seconds is 0`},
		"jitter":   {body{"every": body{"slow": body{"seconds": 1, "jitter": "much"}}}, `config: every "slow": jitter is "much"`},
		"too much": {body{"every": body{"slow": body{"seconds": 1, "jitter": "1s"}}}, `jitter is 1s`},
		"hour":     {body{"at": []any{body{"hour": 1}, body{"hour": 24}}}, "config: at (block 2): hour is 24"},
		"minute":   {body{"at": []any{body{"hour": 1, "minute": -1}}}, "config: at (block 1): minute is -1"},
		"format":   {every(1, body{"output": body{"format": "iso"}}), `config: output: format is "iso"`},
		"to":       {every(1, body{"output": body{"to": "file"}}), `config: output: to is "file"`},
		"fraction": {body{"every": body{"half": body{"seconds": 0.5}}}, "seconds"},
		"large":    {every(1, body{"exit_code": 256}), "config: exit_code is 256"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			start := sdktest.NewStartRequest(t, c.Info(), sdktest.StartOptions{Config: test.body})
			task, err := c.Start(t.Context(), start.StartRequest)
			if err == nil {
				task.Kill(t.Context())
			}
			expect(t, err, test.want)
			t.Log(err)
			if driver.IsRecoverable(err) {
				t.Error("the error is recoverable: the task would be tried again")
			}
			if c.running != 0 {
				t.Errorf("%d tasks count", c.running)
			}
		})
	}
}

func TestStart(t *testing.T) {
	for name, test := range map[string]struct {
		more           body
		stdout, stderr string
		code           int
	}{
		"defaults": {body{"lines": 1}, "1 tick 2", "", 0},
		"stderr":   {body{"lines": 1, "exit_code": 3, "output": body{"to": "stderr"}}, "", "1 tick 2", 3},
		"unix":     {body{"lines": 1, "output": body{"format": "unix"}}, "1 tick 1", "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newClock()
			start := sdktest.NewStartRequest(t, c.Info(), sdktest.StartOptions{Config: every(1, test.more)})
			task, err := c.Start(t.Context(), start.StartRequest)
			if err != nil {
				t.Fatalf("%v; log:\n%s", err, start.Logs())
			}
			result, err := task.Wait(t.Context())
			if err != nil || result.ExitCode != test.code || result.Signal != 0 {
				t.Errorf("result %+v, error %v", result, err)
			}
			eventually(t, func() bool {
				return strings.HasPrefix(start.Stdout(), test.stdout) && strings.HasPrefix(start.Stderr(), test.stderr)
			})
			if test.stdout == "" && start.Stdout() != "" || test.stderr == "" && start.Stderr() != "" {
				t.Errorf("stdout %q, stderr %q", start.Stdout(), start.Stderr())
			}
			if events := start.Events(); len(events) == 0 || events[0].Message != "clock started: tick every 1s" {
				t.Errorf("events: %+v", events)
			}
			if err := task.Destroy(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not in time")
		}
	}
}

// TestRecover lets another value of the driver take a task over while it runs, and a
// third one after it has ended.
func TestRecover(t *testing.T) {
	first := newClock()
	start := sdktest.NewStartRequest(t, first.Info(), sdktest.StartOptions{
		Config: every(1, body{"lines": 2, "exit_code": 7}),
	})
	task, err := first.Start(t.Context(), start.StartRequest)
	if err != nil {
		t.Fatal(err)
	}
	state := task.State()
	for _, when := range []string{"running", "ended"} {
		next := newClock()
		again, err := next.Recover(t.Context(), start.NewRecovery(state))
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		was, is := task.Attributes(), again.Attributes()
		if is["pid"] != was["pid"] || is["timezone"] != "UTC" || next.running != 1 {
			t.Errorf("%s: attributes %v instead of %v, %d tasks", when, is, was, next.running)
		}
		result, err := again.Wait(t.Context())
		if err != nil || result.ExitCode != 7 {
			t.Errorf("%s: result %+v, error %v", when, result, err)
		}
		if next.running != 0 {
			t.Errorf("%s: %d tasks count after the end", when, next.running)
		}
	}
	if err := task.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	// Without the process, the file with the exit code is left.
	again, err := newClock().Recover(t.Context(), start.NewRecovery(state))
	if err != nil {
		t.Fatal(err)
	}
	if result, err := again.Wait(t.Context()); err != nil || result.ExitCode != 7 {
		t.Errorf("after the process: result %+v, error %v", result, err)
	}
	if err := again.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	if err := again.Signal(t.Context(), "SIGHUP"); err == nil {
		t.Error("an ended task accepts a signal")
	}
	// Another process has written the file, or none.
	if err := os.WriteFile(filepath.Join(start.TaskDir(), exitName), []byte(`{"pid": 1, "code": 7}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := newClock().Recover(t.Context(), start.NewRecovery(state)); err == nil {
		t.Error("a guess")
	}
}

func TestMaxTasks(t *testing.T) {
	c := newClock()
	if err := c.Configure(t.Context(), sdktest.NewConfig(t, c.Info().ConfigSchema, body{"max_tasks": 1})); err != nil {
		t.Fatal(err)
	}
	request := func() *sdktest.StartRequest {
		return sdktest.NewStartRequest(t, c.Info(), sdktest.StartOptions{Config: every(1, nil)})
	}
	task, err := c.Start(t.Context(), request().StartRequest)
	if err != nil {
		t.Fatal(err)
	}
	second := request()
	_, err = c.Start(t.Context(), second.StartRequest)
	expect(t, err, "1 tasks run already")
	if !driver.IsRecoverable(err) {
		t.Error("the error is not recoverable")
	}
	go func() { _ = task.Kill(t.Context()) }()
	if result, err := task.Wait(t.Context()); err != nil || result.Signal != 9 {
		t.Errorf("result %+v, error %v", result, err)
	}
	task, err = c.Start(t.Context(), second.StartRequest)
	if err != nil {
		t.Fatal(err)
	}
	if err := task.Kill(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestSignals(t *testing.T) {
	c := newClock()
	start := sdktest.NewStartRequest(t, c.Info(), sdktest.StartOptions{Config: every(1, nil)})
	task, err := c.Start(t.Context(), start.StartRequest)
	if err != nil {
		t.Fatal(err)
	}
	// The process handles signals a moment after its start, and before its first line.
	eventually(t, func() bool { return strings.Contains(start.Stdout(), "1 tick ") })
	for signal, line := range map[string]string{"SIGHUP": "- signal 1 ", "SIGUSR1": "- signal 10 "} {
		if err := task.Signal(t.Context(), signal); err != nil {
			t.Error(err)
		}
		eventually(t, func() bool { return strings.Contains(start.Stdout(), line) })
	}
	if err := task.Signal(t.Context(), "SIGNONE"); err == nil {
		t.Error("an unknown signal is no error")
	}
	sample, err := task.Stats(t.Context())
	if err != nil || sample.Total.Memory.RSS == 0 {
		t.Errorf("sample %+v, error %v", sample, err)
	}
	var out strings.Builder
	result, err := task.Exec(t.Context(), driver.Exec{
		Command: []string{"/bin/sh", "-c", "echo hello; exit 4"}, Stdout: &out, Stderr: &out,
	})
	if err != nil || result.ExitCode != 4 || out.String() != "hello\n" {
		t.Errorf("exec: %+v, error %v, output %q", result, err, out.String())
	}
	if err := task.Signal(t.Context(), ""); err != nil {
		t.Error(err)
	}
	if result, err := task.Wait(t.Context()); err != nil || !result.Successful() {
		t.Errorf("result %+v, error %v", result, err)
	}
}

func TestFingerprint(t *testing.T) {
	c := newClock()
	dir := filepath.Join(t.TempDir(), "zoneinfo")
	c.zones = zoneDirs{dir}
	if f := c.Fingerprint(t.Context()); f.Health != driver.HealthHealthy || f.Attributes["driver.clock.max_tasks"].Value != 10 {
		t.Errorf("with UTC: %+v", f)
	}
	if err := c.Configure(t.Context(), sdktest.NewConfig(t, c.Info().ConfigSchema, body{"timezone": "Europe/Berlin"})); err != nil {
		t.Fatal(err)
	}
	if f := c.Fingerprint(t.Context()); f.Health != driver.HealthUnhealthy || !strings.Contains(f.HealthDescription, "tzdata") {
		t.Errorf("without data: %+v", f)
	}
	start := sdktest.NewStartRequest(t, c.Info(), sdktest.StartOptions{Config: every(1, nil)})
	if _, err := c.Start(t.Context(), start.StartRequest); !driver.IsRecoverable(err) {
		t.Errorf("Start without data: %v", err)
	}
	data, err := os.ReadFile("/usr/share/zoneinfo/Europe/Berlin")
	if err != nil {
		t.Skip(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "Europe"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "Europe", "Berlin"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	if f := c.Fingerprint(t.Context()); f.Health != driver.HealthHealthy || f.Attributes["driver.clock.timezone"].Value != "Europe/Berlin" {
		t.Errorf("with data: %+v", f)
	}
}

func TestTimes(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Skip(err)
	}
	noon := daily{Hour: 12}
	for from, want := range map[string]string{
		"2026-03-28T12:00:00+01:00": "2026-03-29T12:00:00+02:00", // 23 hours
		"2026-03-28T11:59:59+01:00": "2026-03-28T12:00:00+01:00",
		"2026-12-31T23:00:00+01:00": "2027-01-01T12:00:00+01:00",
	} {
		now, err := time.Parse(time.RFC3339, from)
		if err != nil {
			t.Fatal(err)
		}
		if got := noon.next(now.In(berlin)).Format(time.RFC3339); got != want {
			t.Errorf("after %s: %s, want %s", from, got, want)
		}
	}
	e := tick{Period: 2 * time.Second, Jitter: time.Second}
	least := e.wait(func(int64) int64 { return 0 })
	most := e.wait(func(n int64) int64 { return n - 1 })
	if least != time.Second || most != 3*time.Second {
		t.Errorf("from %s to %s", least, most)
	}
}
