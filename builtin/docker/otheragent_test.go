package docker

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// startKeeper starts a process that looks like the keeper of the data directory with an id.
func startKeeper(t *testing.T, directoryID string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "owner"), []byte(`{"id":"`+directoryID+`"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "keeper"), 0o600); err != nil {
		t.Fatal(err)
	}
	opened, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	pidFile, err := os.Create(filepath.Join(dir, "keeper.pid"))
	if err != nil {
		t.Fatal(err)
	}
	defer pidFile.Close()
	cmd := exec.Command("cat", "keeper") // it blocks, because no process writes to the FIFO
	cmd.Dir, cmd.ExtraFiles = dir, []*os.File{opened, pidFile}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	id, err := osprocess.LookupID(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(id)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pidFile.Write(text); err != nil {
		t.Fatal(err)
	}
}

// A copy of a data directory has allocations with the same ids. Its agent removes no container of the other agent, as long as
// the keeper of that agent runs.
func TestSweepKeepsContainersOfAnotherAgent(t *testing.T) {
	t.Setenv("NOMAD_LITE_DIRECTORY_ID", "own")
	startKeeper(t, "active")
	e := newFakeEngine(t)
	var containers []any
	for id, directory := range map[string]string{"c-own": "own", "c-ended": "ended", "c-active": "active", "c-unlabelled": ""} {
		labels := map[string]any{labelAllocID: "alloc", labelTaskName: "web"}
		if directory != "" {
			labels[labelDirectoryID] = directory
		}
		containers = append(containers, map[string]any{"Id": id, "Labels": labels})
		e.handle("DELETE /containers/"+id, reply(http.StatusNoContent, nil))
	}
	e.handle("GET /containers/json", reply(http.StatusOK, containers))
	if found, err := newTestDriver(t, e.host, nil).Sweep(t.Context(), sdk.SweepRequest{AllocID: "alloc", TaskName: "web"}); !found || err != nil {
		t.Errorf("Sweep returns %t, %v", found, err)
	}
	for id, want := range map[string]int{"c-own": 1, "c-ended": 1, "c-active": 0, "c-unlabelled": 1} {
		if got := e.count("DELETE /containers/" + id); got != want {
			t.Errorf("the container %q was removed %d times, want %d", id, got, want)
		}
	}
}
