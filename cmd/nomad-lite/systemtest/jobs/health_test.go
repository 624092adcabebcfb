package jobs

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// A driver that emits an event at each start does not hide that its task crashes again and again.
func TestCrashLoopOfADriverWithEventsIsFailing(t *testing.T) {
	slowtest.Skip(t, "watches a crash loop for 15 seconds")
	t.Parallel()
	plugins := t.TempDir()
	if out, err := exec.Command("go", "build", "-o", filepath.Join(plugins, "sleeper"), filepath.Join(systemtest.RepositoryDir(), "sdk/examples/sleeper")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s := systemtest.StartTestAgent(t, false, fmt.Sprintf("plugin_dir = %q\nplugin \"sleeper\" {}\n", plugins))
	group := api.NewTaskGroup("g", 1)
	group.RestartPolicy = &api.RestartPolicy{Attempts: new(100), Delay: new(time.Second), Interval: new(time.Hour), Mode: new("fail")}
	s.RegisterJobWithGroup("loop", "service", group.AddTask(api.NewTask("main", "sleeper").SetConfig("duration", "1s")))
	s.WaitUntil("the job fails", func() (string, bool) {
		h := apiclient.ReadJobHealth(t.Context(), s.Client, "loop", "default")
		return fmt.Sprintf("%+v", h), h != nil && h.Health == "failing"
	})
	words := make(map[string]int)
	var restarts uint64
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		h := apiclient.ReadJobHealth(t.Context(), s.Client, "loop", "default")
		if h == nil {
			t.Fatal("no health")
		}
		words[h.Health]++
		allocs, _, err := s.Jobs().Allocations("loop", false, nil)
		if err != nil {
			t.Fatal(err)
		}
		restarts = allocs[0].TaskStates["main"].Restarts
	}
	if len(words) != 1 || restarts < 2 {
		t.Errorf("health %v in %d restarts, want failing only", words, restarts)
	}
}
