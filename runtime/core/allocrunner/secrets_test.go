package allocrunner

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/redact"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
)

// The next agent reads the handed-out variables again, so that their values stay out of events.
func TestNextAgentKnowsSecrets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		items := map[string]string{"password": "hunter2"}
		a := startAgent(t, parseJob(t, jobTextFromParts("service", endlessTaskText)), nil)
		a.advance(time.Second)
		a.HandOutVariable("web", "", "app/db", items)
		a.HandOutVariable("", "", "app/other", nil)
		a.die()
		var mu sync.Mutex
		read := make(map[string]int)
		shared := redact.NewShared()
		b := a.startNextAgent(func(c *testConfig) {
			c.Secrets = shared
			c.VariableReader = func(_ context.Context, w identity.Workload, _, path string) (map[string]string, error) {
				mu.Lock()
				defer mu.Unlock()
				read[w.Task+" "+path]++
				if path == "app/db" {
					return items, nil
				}
				return nil, nil
			}
		})
		synctest.Wait()
		wantEqual(t, "read", read, "map[web app/db:1 web app/other:1]")
		wantEqual(t, "log of the node", shared.Text("hunter2"), redact.Placeholder)
		task, _ := b.tasks.findByName("web")
		task.EmitEvent(model.EventDriverMessage("the password hunter2 is wrong", nil, time.Now()))
		synctest.Wait()
		events := b.taskState("web").Events
		wantEqual(t, "event", events[len(events)-1].DisplayMessage, "the password <redacted> is wrong")
	})
}
