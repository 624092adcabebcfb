package logs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs/collectorwire"
)

// Output written while no collector ran is collected by an agent that never started the task.
func TestFinishCollectsWhatIsLeft(t *testing.T) {
	t.Parallel()
	limits := StreamLimits{MaxFiles: 3, MaxFileBytes: 1 << 20}
	s := newFixture(t, Config{})
	stdout, _ := s.startTask(limits)
	f := s.openFIFO(stdout)
	s.writeText(f, "before\n")
	s.awaitOutput(Stdout, "before\n")

	// The agent exits, and the collector is killed or exits by itself.
	s.collector.Close()
	_ = s.collector.LastProcess().Signal(unix.SIGKILL)
	_, _ = s.keeper.Wait(t.Context(), s.collector.LastProcess())
	s.writeText(f, "meanwhile\n")
	f.Close()

	c, err := New(Config{Keeper: s.keeper, DataDir: s.runDir, CollectorArgv: []string{"nomad-lite", "log-collector"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 2 { // the second call finds nothing to clean up
		if err := c.StopCollectionOfEarlierAgent(t.Context(), newTask(s.logDir, limits), true); err != nil {
			t.Fatal(err)
		}
		if _, b := s.readFiles(Stdout); string(b) != "before\nmeanwhile\n" {
			t.Errorf("collected %q", b)
		}
	}
	if keys, err := s.keeper.FetchStoredFDKeys(t.Context()); err != nil || len(keys) > 0 {
		t.Errorf("the keeper still holds %v, %v", keys, err)
	}
}

// The helper processes keep nothing of a task whose directory was removed.
func TestFinishWithoutADirectory(t *testing.T) {
	t.Parallel()
	limits := StreamLimits{MaxFiles: 3, MaxFileBytes: 1 << 20}
	s := newFixture(t, Config{})
	s.startTask(limits)
	s.collector.Close()
	if err := os.RemoveAll(s.logDir); err != nil {
		t.Fatal(err)
	}
	c, err := New(Config{Keeper: s.keeper, DataDir: s.runDir, CollectorArgv: []string{"nomad-lite", "log-collector"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.StopCollectionOfEarlierAgent(t.Context(), newTask(s.logDir, limits), true); err != nil {
		t.Fatal(err)
	}
	if keys, err := s.keeper.FetchStoredFDKeys(t.Context()); err != nil || len(keys) > 0 {
		t.Errorf("the keeper still holds %v, %v", keys, err)
	}
	never := newTask(t.TempDir()+"/alloc/alloc/logs", limits)
	never.Name = "never"
	if err := c.StopCollectionOfEarlierAgent(t.Context(), never, true); err != nil {
		t.Errorf("a task that was never there: %v", err)
	}
}

// A process that receives collectorwire.OpQuit exits at once and leaves its output to the next process.
func TestCollectorQuits(t *testing.T) {
	t.Parallel()
	s := newFixture(t, Config{})
	stdout, _ := s.startTask(StreamLimits{MaxFiles: 3, MaxFileBytes: 1 << 20})
	f := s.openFIFO(stdout)
	s.writeText(f, "one\n")
	s.awaitOutput(Stdout, "one\n")
	old := s.collector.LastProcess()
	l, err := s.collector.processConns.WaitForConn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := l.send(&collectorwire.Message{Op: collectorwire.OpQuit}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if status, err := s.keeper.Wait(ctx, old); err != nil || status != (osprocess.ExitStatus{}) {
		t.Errorf("it ended with %v, %v", status, err)
	}
	s.writeText(f, "two\n")
	s.awaitOutput(Stdout, "one\ntwo\n")
	// The next collector process may write output before the client has recorded that
	// process.
	for s.collector.LastProcess() == old {
		if ctx.Err() != nil {
			t.Fatalf("process %v is still the collector", old)
		}
		time.Sleep(time.Millisecond)
	}
	if now := s.collector.LastProcess(); now.Signal(unix.Signal(0)) != nil {
		t.Errorf("process %v does not run", now)
	}
	f.Close()
	s.stopTask()
}

// What a failed Stop has left of a task's collection is removed when the allocation is removed, also by a later agent.
func TestStopThatFailedIsRepeated(t *testing.T) {
	t.Parallel()
	for name, byNextAgent := range map[string]bool{"by the same agent": false, "by the next agent": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newFixture(t, Config{})
			stdout, _ := s.startTask(StreamLimits{MaxFiles: 3, MaxFileBytes: 1 << 20})
			f := s.openFIFO(stdout)
			s.writeText(f, "output\n")
			s.awaitOutput(Stdout, "output\n")
			f.Close()
			process := s.collector.LastProcess()
			suspend(t, process)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if err := s.collector.Stop(ctx, "a1", "web", true); err == nil {
				t.Fatal("a collector process that does not run has ended the collection")
			}
			if err := process.Signal(unix.SIGCONT); err != nil {
				t.Fatal(err)
			}
			c := s.collector
			if byNextAgent {
				c.Close()
				var err error
				if c, err = New(Config{Keeper: s.keeper, DataDir: s.runDir, CollectorArgv: []string{"nomad-lite", "log-collector"}}); err != nil {
					t.Fatal(err)
				}
				defer c.Close()
			}
			for range 2 { // the second call finds nothing to clean up
				if err := c.StopUnlessStopped(t.Context(), "a1", "web"); err != nil {
					t.Fatal(err)
				}
				if keys, err := s.keeper.FetchStoredFDKeys(t.Context()); err != nil || len(keys) > 0 {
					t.Errorf("the keeper still holds %v, %v", keys, err)
				}
				if c.hasTasks() {
					t.Error("the task is still collected")
				}
			}
		})
	}
}

// suspend sends SIGSTOP to a process, and waits until all its threads have stopped, which takes a moment.
func suspend(t *testing.T, p osprocess.ID) {
	t.Helper()
	if err := p.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.PID))
		if err != nil {
			t.Fatal(err)
		}
		stopped := 0
		for _, path := range stats {
			text, _ := os.ReadFile(path) // a thread that has ended has none
			if _, rest, _ := strings.Cut(string(text), ") "); strings.HasPrefix(rest, "T") {
				stopped++
			}
		}
		if len(stats) > 0 && stopped == len(stats) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d threads have stopped", stopped, len(stats))
		}
	}
}
