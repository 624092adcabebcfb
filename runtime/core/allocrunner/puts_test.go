package allocrunner

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// putLog is a store that counts its task puts.
type putLog struct {
	*memoryStore
	mu    sync.Mutex
	count int
	waits []string // durabilities of puts with a waiting caller
}

func (p *putLog) add(h state.Durability) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.count++
	if h != state.DurabilityAsync {
		p.waits = append(p.waits, map[state.Durability]string{state.DurabilityGrouped: "grouped", state.DurabilitySync: "sync"}[h])
	}
}

func (p *putLog) PutTaskState(alloc, task string, s *api.TaskState, h state.Durability) state.WaitDurableFunc {
	p.add(h)
	return p.memoryStore.PutTaskState(alloc, task, s, h)
}

func (p *putLog) PutTask(alloc, task string, fields record.Fields, s *api.TaskState, h state.Durability) state.WaitDurableFunc {
	p.add(h)
	return p.memoryStore.PutTask(alloc, task, fields, s, h)
}

// take describes the puts since the last call.
func (p *putLog) take() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer func() { p.count, p.waits = 0, nil }()
	return fmt.Sprintf("%d puts, waits: %s", p.count, strings.Join(p.waits, " "))
}

// Each put with a waiting caller is a disk write, so their number limits how many tasks a machine can start.
func TestPutsOfTask(t *testing.T) {
	const start = "5 puts, waits: sync grouped"
	synctest.Test(t, func(t *testing.T) {
		store := &putLog{memoryStore: &memoryStore{}}
		h := startHarness(t, parseJob(t, job("service", endlessTaskText)), func(c *testConfig) { c.Store = store })
		h.advance(time.Second)
		wantEqual(t, "start", store.take(), start)
		if err := h.RestartTask(t.Context(), "web"); err != nil {
			t.Fatal(err)
		}
		h.advance(time.Second)
		wantEqual(t, "requested restart", store.take(), "4 puts, waits: sync sync grouped")
		h.Stop()
		h.wait()
		wantEqual(t, "stop", store.take(), "5 puts, waits: sync sync")
	})
	synctest.Test(t, func(t *testing.T) {
		store := &putLog{memoryStore: &memoryStore{}}
		h := startHarness(t, parseJob(t, job("batch", oneRestartText+"task \"web\" {\n driver = \"fake\"\n config {\n run_for = \"10s\"\n exit_codes = [1, 1]\n }\n}")), func(c *testConfig) { c.Store = store })
		h.advance(5 * time.Second)
		wantEqual(t, "start", store.take(), start)
		h.advance(10 * time.Second)
		wantEqual(t, "exit and restart without a delay", store.take(), "3 puts, waits: sync grouped")
		h.advance(10 * time.Second)
		h.wait()
		wantEqual(t, "last exit", store.take(), "5 puts, waits: sync sync")
	})
}
