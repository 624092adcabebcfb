package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestArm64Program executes the program for linux/arm64 under the user mode emulation of qemu: as a client of an agent, as a plugin
// of an agent, and as an agent. An agent does not start under qemu 7.2 of Debian 12: the emulation has no PR_SET_CHILD_SUBREAPER, which
// the keeper needs. The test logs it, and demands a complete job as soon as the emulation has the call. The driver under an agent of
// this machine answers, but its StartTask fails with "invalid argument" under that qemu: it is not called.
func TestArm64Program(t *testing.T) {
	skipUnlessSlow(t)
	qemu, err := exec.LookPath("qemu-aarch64")
	if err != nil {
		skipOrFail(t, fmt.Errorf("install qemu-user: %w", err))
	}
	sources, dir := t.TempDir(), t.TempDir()
	copySources(t, sources)
	o := options{version: "0.1.0", revision: "0123456789abcdef", sourceDir: sources, time: time.Unix(1790000000, 0).UTC()}
	program, native := filepath.Join(dir, "nomad-lite-arm64"), filepath.Join(dir, "nomad-lite")
	for target, path := range map[string]string{"linux/arm64": program, hostTarget(): native} {
		if err := compile(t.Context(), o, target, path); err != nil {
			t.Fatal(err)
		}
	}
	job, plugin := filepath.Join(dir, "hello.nomad.hcl"), filepath.Join(dir, "raw_exec")
	for path, text := range map[string]string{
		job:    strings.ReplaceAll(helloJob, "/usr/bin/nomad-lite", native),
		plugin: fmt.Sprintf("#!/bin/sh\nexec %s %s plugin serve raw_exec\n", qemu, program),
	} {
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	dataDir := filepath.Join(dir, "data")
	address := "NOMAD_ADDR=unix://" + filepath.Join(dataDir, "nomad.sock")
	run := func(t *testing.T, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Env = append(os.Environ(), address)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}

	t.Run("Commands", func(t *testing.T) {
		if out := run(t, qemu, program, "version"); !strings.HasPrefix(out, "nomad-lite 0.1.0\n") {
			t.Errorf("version: %s", out)
		}
		if out := run(t, qemu, program, "fmt", "-check", job); out != "" {
			t.Errorf("fmt: %s", out)
		}
	})
	t.Run("Plugin", func(t *testing.T) {
		arm, host := run(t, native, "plugin", "inspect", plugin), run(t, native, "plugin", "inspect", "raw_exec")
		_, arm, _ = strings.Cut(arm, "\nCapabilities\n")
		_, host, _ = strings.Cut(host, "\nCapabilities\n")
		if arm != host || arm == "" {
			t.Errorf("the driver for arm64 describes itself as\n%s\nwant, as the one of this machine,\n%s", arm, host)
		}
	})
	t.Run("Client", func(t *testing.T) {
		config := filepath.Join(dir, "agent.hcl")
		text := fmt.Sprintf("data_dir = %q\nports {\n  http = 0\n}\nplugin \"raw_exec\" {\n  config {\n    enabled = true\n  }\n}\n", dataDir)
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		agent := exec.Command(native, "agent", "-config", config)
		agent.Stderr = &log
		if err := agent.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := errors.Join(agent.Process.Signal(syscall.SIGTERM), agent.Wait()); err != nil || t.Failed() {
				t.Errorf("the agent: %v\n%s", err, &log)
			}
		}()
		for limit := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
			if _, err := os.Stat(filepath.Join(dataDir, "nomad.sock")); err == nil {
				break
			}
			if time.Now().After(limit) {
				t.Fatal("the agent has no socket after a minute")
			}
		}
		run(t, qemu, program, "job", "run", job)
		for limit := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
			out := run(t, qemu, program, "job", "status", "hello")
			if strings.Contains(out, "complete ") {
				break
			}
			if time.Now().After(limit) {
				t.Fatal(out)
			}
		}
		if out := run(t, qemu, program, "alloc", "logs", "-job", "hello"); !strings.HasPrefix(out, "nomad-lite 0.1.0\n") {
			t.Errorf("output of the task: %q", out)
		}
		run(t, qemu, program, "job", "stop", "-purge", "hello")
	})
	t.Run("Agent", func(t *testing.T) {
		cmd := exec.CommandContext(t.Context(), "unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
			"sh", "testdata/arm64.sh", qemu, program, job)
		out, err := cmd.CombinedOutput()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 77 {
			t.Skipf("%s", out)
		}
		if !bytes.HasPrefix(out, []byte("nomad-lite 0.1.0\n")) {
			t.Fatalf("version: %v\n%s", err, out)
		}
		if bytes.Contains(out, []byte("become child subreaper: invalid argument")) {
			t.Log("the emulation has no PR_SET_CHILD_SUBREAPER: the arm64 agent runs no task under it")
			return
		}
		if err != nil || !bytes.Contains(out, []byte("completed: every task ended successfully")) {
			t.Errorf("%v\n%s", err, out)
		}
	})
}
