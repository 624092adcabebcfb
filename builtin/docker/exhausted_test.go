package docker

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess/processtest"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// A start that cannot connect to the engine for lack of descriptors is repeated.
func TestStartWithoutDescriptorsForTheEngine(t *testing.T) {
	e := newFakeEngine(t)
	d := newTestDriver(t, e.host, nil)
	restore := processtest.LimitDescriptors(t, 0)
	_, err := d.Start(t.Context(), newTestStart(t, map[string]any{"image": "app:1"}))
	restore()
	if !driver.IsResourceExhausted(err) || !driver.IsRecoverable(err) {
		t.Errorf("Start returns %v", err)
	}
}

// A start that finds no descriptor for the output of its container is repeated: the container was created and not started.
func TestStartWithoutDescriptorsForTheOutput(t *testing.T) {
	e := newFakeEngine(t)
	d := newTestDriver(t, e.host, nil)
	start := newTestStart(t, map[string]any{"image": "app:1"})
	makeTaskDirs(t, start)
	start.StdoutPath = filepath.Join(start.AllocDir, "alloc", "stdout")
	if err := os.MkdirAll(filepath.Dir(start.StdoutPath), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(start.StdoutPath, 0o600); err != nil {
		t.Fatal(err)
	}
	restore := func() {}
	e.handle("GET /images/app:1/json", reply(http.StatusOK, map[string]any{"Id": "sha256:1"}))
	e.handle("POST /containers/create", func(w http.ResponseWriter, r *http.Request) {
		restore = processtest.LimitDescriptors(t, 0)
		reply(http.StatusCreated, map[string]any{"Id": "c"})(w, r)
	})
	e.handle("DELETE /containers/c", reply(http.StatusNoContent, nil))
	_, err := d.Start(t.Context(), start)
	restore()
	if !driver.IsResourceExhausted(err) {
		t.Errorf("Start returns %v", err)
	}
	if e.count("POST /containers/c/start") > 0 || e.count("DELETE /containers/c") == 0 {
		t.Errorf("calls %q", e.calls)
	}
}
