package logs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs/collectorwire"
)

// startStep is a moment in a start.
type startStep string

const (
	stepNoneHasFIFOs   startStep = "no helper process has the FIFOs"
	stepKeeperHasFIFOs startStep = "only the keeper has the FIFOs"
	stepTaskRuns       startStep = "the task runs"
)

// steppedKeeper is a keeper's client that calls onStep before and after it stores FIFOs.
type steppedKeeper struct {
	*keeper.Client
	onStep func(startStep)
}

func (s steppedKeeper) StoreFDs(ctx context.Context, fileByKey map[string]*os.File, drainWithoutAgent bool) error {
	s.onStep(stepNoneHasFIFOs)
	err := s.Client.StoreFDs(ctx, fileByKey, drainWithoutAgent)
	s.onStep(stepKeeperHasFIFOs)
	return err
}

// countOpen returns how many of a process's descriptors refer to each path.
func countOpen(t *testing.T, pid int, paths ...string) []int {
	t.Helper()
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil // the process has exited
	}
	counts := make([]int, len(paths))
	for _, entry := range entries {
		target, err := os.Readlink(filepath.Join(dir, entry.Name()))
		if i := slices.Index(paths, target); err == nil && i >= 0 {
			counts[i]++
		}
	}
	return counts
}

// countRequests returns how many requests the collector process got from this agent on the current connection, with this one.
func (fi *fixture) countRequests() (n uint64) {
	fi.t.Helper()
	l, err := fi.collector.processConns.WaitForConn(fi.t.Context())
	if err == nil {
		_, err = l.Call(fi.t.Context(), func(id uint64) error {
			n = id
			return l.send(&collectorwire.Message{Op: collectorwire.OpStats, ID: id})
		})
	}
	if err != nil {
		fi.t.Fatal(err)
	}
	return n
}

// A task's first start needs one message to the keeper and one to the collector process, and each next one a message to the
// collector process.
func TestMessagesAndDescriptorsOfStart(t *testing.T) {
	s := newEmptyFixture(t)
	var stored atomic.Int64
	s.wrapKeeper = func(k *keeper.Client) keeperClient {
		return steppedKeeper{k, func(step startStep) {
			if step == stepNoneHasFIFOs {
				stored.Add(1)
			}
		}}
	}
	s.newCollector(Config{StartProcessWithoutTask: true}, true)
	limits := StreamLimits{MaxFiles: 3, MaxFileBytes: 1 << 20}
	for i, wantStored := range []int64{1, 0} {
		before := s.countRequests()
		stdout, stderr := s.startTask(limits)
		if requests := s.countRequests() - before - 1; requests != 1 {
			t.Errorf("start %d: %d messages to the collector process, want 1", i, requests)
		}
		if got := stored.Swap(0); got != wantStored {
			t.Errorf("start %d: %d messages to the keeper, want %d", i, got, wantStored)
		}
		for _, p := range []struct {
			name string
			pid  int
			want []int
		}{
			{"agent", os.Getpid(), []int{1, 1, 1}},
			{"collector", s.collector.LastProcess().PID, []int{1, 1, 1}},
			{"keeper", s.keeper.Status().KeeperProcess.PID, []int{1, 1, 0}},
		} {
			if got := countOpen(t, p.pid, stdout, stderr, s.logDir); !slices.Equal(got, p.want) {
				t.Errorf("start %d: the %s has %d descriptors of stdout, stderr and log directory, want %d", i, p.name, got, p.want)
			}
		}
	}
	s.stopTask()
}

// Whichever helper processes are killed at a step of a start, the task has readers, and no output is lost.
func TestHelpersAreKilledDuringStart(t *testing.T) {
	t.Parallel()
	for _, at := range []startStep{stepNoneHasFIFOs, stepKeeperHasFIFOs, stepTaskRuns} {
		for _, victims := range [][]string{{"keeper"}, {"collector"}, {"keeper", "collector"}} {
			t.Run(fmt.Sprintf("%s, %v", at, victims), func(t *testing.T) {
				t.Parallel()
				s := newEmptyFixture(t)
				kill := func(step startStep) {
					if step != at {
						return
					}
					for _, victim := range victims {
						p := s.collector.LastProcess()
						if victim == "keeper" {
							p = s.keeper.Status().KeeperProcess
						}
						killProcess(t, p)
					}
				}
				s.wrapKeeper = func(k *keeper.Client) keeperClient { return steppedKeeper{k, kill} }
				s.newCollector(Config{StartProcessWithoutTask: true}, true)
				s.countRequests() // the collector process is connected
				collector := s.collector.LastProcess()
				defer awaitProcessExit(t, collector)

				stdout, stderr := s.startTask(StreamLimits{MaxFiles: 3, MaxFileBytes: 1 << 20})
				out, err := s.openFIFO(stdout), s.openFIFO(stderr)
				kill(stepTaskRuns)
				s.writeText(out, "out\n")
				s.writeText(err, "err\n")
				s.awaitOutput(Stdout, "out\n")
				s.awaitOutput(Stderr, "err\n")
				for _, p := range []func() osprocess.ID{s.collector.LastProcess, func() osprocess.ID { return s.keeper.Status().KeeperProcess }} {
					for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
						got := countOpen(t, p().PID, stdout, stderr)
						if slices.Equal(got, []int{1, 1}) {
							break
						}
						if time.Now().After(end) {
							t.Fatalf("process %d has %d descriptors of the FIFOs, want one each", p().PID, got)
						}
					}
				}
				out.Close()
				err.Close()
				s.stopTask()
				s.collector.Close() // an ephemeral collector exits without an agent
				awaitProcessExit(t, s.collector.LastProcess())
			})
		}
	}
}

// haltingAgentMain is agentMain that blocks at a step of the start.
func haltingAgentMain(args []string) error {
	run, dir, at := args[0], args[1], startStep(args[2])
	k, err := keeper.ConnectOrStart(context.Background(), keeper.Config{DataDir: run, KeeperArgv: []string{"nomad-lite", "keeper"}})
	if err != nil {
		return err
	}
	var c *CollectorClient
	halt := func(step startStep) {
		if step == at {
			fmt.Println(k.Status().KeeperProcess.PID, c.LastProcess().PID)
			select {}
		}
	}
	c, err = New(Config{Keeper: steppedKeeper{k, halt}, DataDir: run, CollectorArgv: []string{"nomad-lite", "log-collector"}, StartProcessWithoutTask: true})
	if err != nil {
		return err
	}
	if _, err := c.processConns.WaitForConn(context.Background()); err != nil {
		return err
	}
	_, _, err = c.Start(context.Background(), newTask(dir, StreamLimits{MaxFiles: 3, MaxFileBytes: 1 << 20}))
	halt(stepTaskRuns)
	return err
}

// Whichever processes are killed together with the agent at a step of a start, the next agent starts the task, or adopts it.
func TestAgentIsKilledDuringStart(t *testing.T) {
	t.Parallel()
	for _, at := range []startStep{stepNoneHasFIFOs, stepKeeperHasFIFOs, stepTaskRuns} {
		for _, victims := range [][]string{nil, {"keeper"}, {"collector"}, {"keeper", "collector"}} {
			t.Run(fmt.Sprintf("%s, agent and %v", at, victims), func(t *testing.T) {
				t.Parallel()
				s := newEmptyFixture(t)
				agent := startProgramWithIDs(t, "/proc/self/exe", "halting-agent", s.runDir, s.logDir, string(at))
				killProcess(t, agent.process)
				if !agent.process.EndsWithin(time.Minute) { // its children are then this process's
					t.Fatal("the agent does not end")
				}
				for _, victim := range victims {
					p := agent.collector
					if victim == "keeper" {
						p = agent.keeper
					}
					killProcess(t, p)
					awaitProcessExit(t, p)
				}
				s.newCollector(Config{}, false)
				defer s.makeKeeperEphemeral()
				stdout, _ := s.startTask(StreamLimits{MaxFiles: 3, MaxFileBytes: 1 << 20})
				out := s.openFIFO(stdout)
				s.writeText(out, "out\n")
				s.awaitOutput(Stdout, "out\n")
				out.Close()
				s.stopTask()
				s.collector.Close()
				_ = s.collector.LastProcess().Signal(unix.SIGKILL) // without an agent and a task, it may have exited
				awaitProcessExit(t, s.collector.LastProcess())
			})
		}
	}
}
