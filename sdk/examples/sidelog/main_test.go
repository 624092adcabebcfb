package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/sdk/sdktest"
)

func TestMain(m *testing.M) { sdktest.Main(m, main) }

func TestContract(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a plugin in each case of the contract suite")
	}
	sdktest.Hook(t, sdktest.Plugin{
		Path:       os.Args[0],
		Attachment: map[string]any{"command": []any{"uname", "-a"}, "interval": "5ms"},
	})
}

// fakeHost has one task.
type fakeHost struct {
	hook.Host // methods that the test does not call
	samples   chan hook.Usage

	mu     sync.Mutex
	events []string
}

func (h *fakeHost) Exec(_ context.Context, _ hook.Scope, req hook.ExecRequest) (*driver.ExecResult, error) {
	return &driver.ExecResult{Stdout: []byte("ran " + strings.Join(req.Command, " ") + "\n"), Exit: driver.ExitResult{ExitCode: 3}}, nil
}

func (h *fakeHost) EmitEvent(_ context.Context, s hook.Scope, event hook.Event) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, s.Token+": "+event.Message)
	return nil
}

func (h *fakeHost) Stats(ctx context.Context, _ hook.Scope, _ time.Duration) (<-chan hook.Usage, error) {
	c := make(chan hook.Usage)
	go func() {
		defer close(c)
		for {
			select {
			case sample := <-h.samples:
				c <- sample
			case <-ctx.Done():
				return
			}
		}
	}()
	return c, nil
}

func TestTaskIsWatchedUntilItExits(t *testing.T) {
	h := &fakeHost{samples: make(chan hook.Usage)}
	s := &usageLogHook{}
	s.SetHost(h, hook.Node{})
	dir := t.TempDir()
	meta := hook.RequestMeta{Token: "key", AttachmentJSON: []byte(`{"command":["ls","-l"],"interval":"1m"}`)}
	task := hook.Task{Name: "web"}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for range 2 { // the second Poststart is from an agent that has restored the task
		if _, err := s.Poststart(t.Context(), hook.TaskPoststartRequest{RequestMeta: meta, Task: task, Dir: hook.TaskDir{LogDir: dir}}); err != nil {
			t.Fatal(err)
		}
		h.samples <- hook.Usage{Time: at, CPUPercent: 12.34, MemoryUsage: 3 << 20}
	}
	h.samples <- hook.Usage{Time: at, MemoryUsage: 2 << 20}
	if _, err := s.Exited(t.Context(), hook.TaskExitedRequest{RequestMeta: meta, Task: task}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Stop(t.Context(), hook.TaskStopRequest{RequestMeta: meta, Task: task}); err != nil || len(s.watchesByTask) > 0 {
		t.Errorf("in the end %d tasks are watched, %v", len(s.watchesByTask), err)
	}

	if want := []string{"key: ls: exit code 3: ran ls -l", "key: ls: exit code 3: ran ls -l", "key: it used 3 MB of memory at most"}; !slices.Equal(h.events, want) {
		t.Errorf("it says %q, want %q", h.events, want)
	}
	got, err := os.ReadFile(filepath.Join(dir, "web.side.log"))
	line := "2026-01-02T03:04:05Z cpu 12.3 % memory 3072 kB\n"
	if want := line + line + "2026-01-02T03:04:05Z cpu 0.0 % memory 2048 kB\n"; err != nil || string(got) != want {
		t.Errorf("the log says, %v:\n%swant\n%s", err, got, want)
	}
}

func TestInvalidIntervalIsRejected(t *testing.T) {
	for _, text := range []string{"", "soon", "0s", "-1s"} {
		_, err := (&usageLogHook{}).Poststart(t.Context(), hook.TaskPoststartRequest{RequestMeta: hook.RequestMeta{AttachmentJSON: []byte(`{"interval":"` + text + `"}`)}})
		if err == nil || !strings.Contains(err.Error(), "interval: ") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
