package peertest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/peers"
)

// buildPluginOfAuthor builds a plugin of testdata/plugins against this checkout, and returns the path of its program.
func buildPluginOfAuthor(t *testing.T, name string) string {
	t.Helper()
	repository := systemtest.RepositoryDir()
	dir := filepath.Join(t.TempDir(), name)
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(repository, "testdata/plugins", name))); err != nil {
		t.Fatal(err)
	}
	for _, arguments := range [][]string{{"mod", "edit", "-replace", "github.com/nomad-lite/nomad-lite=" + repository}, {"build", "-mod=mod", "-o", name, "."}} {
		cmd := exec.Command("go", arguments...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(arguments, " "), err, out)
		}
	}
	return filepath.Join(dir, name)
}

// TestClockPluginOfAuthor runs the driver of an author who knew only the documentation under both agents: a task continues
// when the process of the plugin is killed, runs a command, and stops.
func TestClockPluginOfAuthor(t *testing.T) {
	nomad := peers.ProgramOrSkip(t, "nomad")
	if os.Geteuid() != 0 {
		t.Skip("the stock agent needs root")
	}
	config := hostConfig{
		plugins: map[string]string{"clock": buildPluginOfAuthor(t, "clock")},
		text:    "plugin \"clock\" {\n  config {\n    max_tasks = 3\n  }\n}\n",
	}
	for _, start := range []func() (*host, error){
		func() (*host, error) { return startNomad(nomad, config) },
		func() (*host, error) { return startLite(config) },
	} {
		h, err := start()
		if err != nil {
			t.Fatal(err)
		}
		t.Run(h.name, func(t *testing.T) { h.testClockPlugin(t) })
		if err := h.stop(); err != nil {
			t.Error(err)
		}
	}
}

func (h *host) testClockPlugin(t *testing.T) {
	task := api.NewTask("main", "clock")
	task.Config = map[string]any{"every": []map[string]any{{"tick": []map[string]any{{"seconds": 1}}}}}
	alloc := h.run(t, newJob("clock", task), "it runs", isRunning)
	h.readLog(t, alloc, "main", "stdout")

	killed := 0
	for _, pid := range processesOf(filepath.Join(h.dir, "plugins")) {
		// The process of the task has the same program, and arguments.
		if command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err != nil || bytes.Contains(command, []byte("{")) || !bytes.Contains(command, []byte("clock")) {
			continue
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		killed++
	}
	if killed != 1 {
		t.Fatalf("killed %d processes of the plugin, want one", killed)
	}
	var stdout bytes.Buffer
	await(t, "a command in the recovered task", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
		defer cancel()
		stdout.Reset()
		code, err := h.Allocations().Exec(ctx, alloc, "main", false, []string{"/bin/echo", "hello"}, strings.NewReader(""), &stdout, &stdout, nil, nil)
		return err == nil && code == 0
	})
	if stdout.String() != "hello\n" {
		t.Errorf("the command has printed %q", &stdout)
	}
	if _, _, err := h.Jobs().Deregister(*alloc.Job.ID, false, nil); err != nil {
		t.Fatal(err)
	}
	ended := h.waitEnd(t, alloc)
	if state := ended.TaskStates["main"]; state.Restarts != 0 || state.State != "dead" {
		t.Errorf("the task is %s after %d restarts, want dead after none: %v", state.State, state.Restarts, allEvents(ended, "main"))
	}
}
