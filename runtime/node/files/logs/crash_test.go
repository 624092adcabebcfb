package logs

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/host/helperdir"
)

// roundBytes is what a task writes while a process is killed once.
const roundBytes = 5 << 20

func TestNothingIsLostWhenTheCollectorIsKilled(t *testing.T) {
	t.Parallel()
	s := newFixture(t, Config{})
	stdout, _ := s.startTask(StreamLimits{MaxFiles: 1000, MaxFileBytes: 1 << 20})
	written := killWhileWriting(t, stdout, func() {
		s.killAndAwaitReplacement(s.collector.LastProcess, s.collector.LastProcess())
	})
	s.stopTask()
	_, b := s.readFiles(Stdout)
	checkLines(t, b, written)
}

func TestNothingIsLostWhenTheKeeperIsKilled(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("writes for a second while processes are killed; TestNothingIsLostWhenTheCollectorIsKilled runs")
	}
	s := newFixture(t, Config{})
	stdout, _ := s.startTask(StreamLimits{MaxFiles: 1000, MaxFileBytes: 1 << 20})
	collector := s.collector.LastProcess()
	written := killWhileWriting(t, stdout, func() {
		s.killAndAwaitReplacement(func() osprocess.ID { return s.keeper.Status().KeeperProcess }, s.keeper.Status().KeeperProcess)
	})
	s.stopTask()
	_, b := s.readFiles(Stdout)
	checkLines(t, b, written)
	defer awaitProcessExit(t, collector)
	defer s.collector.Close() // an ephemeral collector exits without an agent
	if now := s.collector.LastProcess(); now != collector {
		t.Errorf("the collector was %v and is %v: it has nothing to do with the keeper's death", collector, now)
	}
}

// The agent's copies of the FIFOs are the only readers for a moment: without them, the task would die of SIGPIPE.
func TestNothingIsLostWhenTheKeeperAndTheCollectorAreKilled(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("writes for a second while processes are killed; TestHelpersAreKilledDuringStart runs")
	}
	s := newFixture(t, Config{})
	stdout, _ := s.startTask(StreamLimits{MaxFiles: 1000, MaxFileBytes: 1 << 20})
	keeperProcess := func() osprocess.ID { return s.keeper.Status().KeeperProcess }
	written := killWhileWriting(t, stdout, func() {
		collector := s.collector.LastProcess()
		killProcess(t, collector)
		s.killAndAwaitReplacement(keeperProcess, keeperProcess())
		awaitProcessExit(t, collector)
		s.awaitReplacement(s.collector.LastProcess, collector)
	})
	s.stopTask()
	_, b := s.readFiles(Stdout)
	checkLines(t, b, written)
	s.collector.Close() // an ephemeral collector exits without an agent
	awaitProcessExit(t, s.collector.LastProcess())
}

func TestNothingIsLostWhenTheAgentAndTheCollectorAreKilled(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("writes for a second while processes are killed; TestNothingIsLostWhenTheCollectorIsKilled runs")
	}
	s := newFixture(t, Config{})
	// The agent is another process in this test; this one only reads.
	s.collector.Close()
	stopKeeper(t, s.keeper)

	first := startAgent(t, s)
	stdout := fifoDir(s.logDir) + "/.web.stdout.fifo"
	agent := first
	written := killWhileWriting(t, stdout, func() {
		killProcess(t, agent.process)
		killProcess(t, agent.collector)
		if !agent.keeper.Alive() {
			t.Error("the keeper died with its agent")
		}
		agent = startAgent(t, s)
	})
	killProcess(t, agent.process)
	if agent.keeper != first.keeper {
		t.Errorf("the keeper was %v and is %v", first.keeper, agent.keeper)
	}
	if !agent.collector.Alive() {
		t.Error("the collector died with its agent")
	}
	s.newCollector(Config{}, false)
	s.startTask(StreamLimits{MaxFiles: 1000, MaxFileBytes: 1 << 20})
	if s.collector.LastProcess() != agent.collector {
		t.Errorf("the next agent has collector %v, want %v", s.collector.LastProcess(), agent.collector)
	}
	s.stopTask()
	_, b := s.readFiles(Stdout)
	checkLines(t, b, written)
	s.collector.Close()
	_ = agent.collector.Signal(unix.SIGKILL) // without an agent and a task, it may have exited
	_, _ = s.keeper.Wait(t.Context(), agent.collector)
}

// killWhileWriting makes a task write, and calls strike repeatedly. It returns how many bytes the task has written.
func killWhileWriting(t *testing.T, path string, strike func()) (written int) {
	t.Helper()
	rounds := 20
	if testing.Short() {
		rounds = 5
	}
	task := exec.Command("/proc/self/exe", "lines", path, fmt.Sprint(roundBytes))
	task.Stderr = os.Stderr
	stdin, err := task.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := task.Start(); err != nil {
		t.Fatal(err)
	}
	for i := range rounds {
		// Each round makes the task write some megabytes, which takes longer than the longest
		// delay before a kill.
		if _, err := stdin.Write([]byte{'x'}); err != nil {
			t.Error(err)
			break
		}
		time.Sleep(time.Duration(i%5) * time.Millisecond)
		strike()
	}
	stdin.Close()
	if err := task.Wait(); err != nil {
		t.Errorf("the task: %v", err)
	}
	return rounds * roundBytes
}

// killAndAwaitReplacement kills a process and waits for its replacement.
func (fi *fixture) killAndAwaitReplacement(now func() osprocess.ID, old osprocess.ID) {
	fi.t.Helper()
	killProcess(fi.t, old)
	fi.awaitReplacement(now, old)
}

func (fi *fixture) awaitReplacement(now func() osprocess.ID, old osprocess.ID) {
	fi.t.Helper()
	for end := time.Now().Add(time.Minute); now() == old; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			fi.t.Fatalf("nobody replaces process %d", old.PID)
		}
	}
}

func killProcess(t *testing.T, p osprocess.ID) {
	t.Helper()
	if err := p.Signal(unix.SIGKILL); err != nil {
		t.Fatalf("kill %d: %v", p.PID, err)
	}
}

// agentProcess is an agent in its own process.
type agentProcess struct {
	process, keeper, collector osprocess.ID
}

func startAgent(t *testing.T, s *fixture) agentProcess {
	t.Helper()
	return startAgentExecutable(t, s, "/proc/self/exe")
}

// startAgentExecutable starts an agent from another executable, or with a collector process of another
// version.
func startAgentExecutable(t *testing.T, s *fixture, program string, version ...string) agentProcess {
	t.Helper()
	return startProgramWithIDs(t, program, append([]string{"agent", s.runDir, s.logDir}, version...)...)
}

// startProgramWithIDs starts an agent, which prints the pids of its keeper and its collector process.
func startProgramWithIDs(t *testing.T, program string, args ...string) agentProcess {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	var a agentProcess
	var pids [2]int
	if _, err := fmt.Fscan(out, &pids[0], &pids[1]); err != nil {
		t.Fatal(err)
	}
	for i, to := range []*osprocess.ID{&a.keeper, &a.collector} {
		if *to, err = osprocess.LookupID(pids[i]); err != nil {
			t.Fatal(err)
		}
	}
	if a.process, err = osprocess.LookupID(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	return a
}

// One collector process serves a data directory, by whatever path the next agent opens it, and
// even if its socket was removed. No byte is lost or doubled.
func TestOneCollectorServesADirectory(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		same   bool // the agent connects to the process and does not replace it
		change func(s *fixture) error
	}{
		{"a symbolic link", true, func(s *fixture) error {
			link := s.runDir + ".link"
			defer func() { s.runDir = link }()
			return os.Symlink(s.runDir, link)
		}},
		{"a directory that was moved", true, func(s *fixture) error {
			moved := s.runDir + ".moved"
			defer func() { s.runDir = moved }()
			return os.Rename(s.runDir, moved)
		}},
		{"a socket directory that was removed", false, func(s *fixture) error {
			return os.RemoveAll(helperdir.SocketDir(s.runDir))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newPersistentFixture(t, Config{})
			defer func() { s.makeKeeperEphemeral() }()
			stdout, _ := s.startTask(StreamLimits{MaxFiles: 3, MaxFileBytes: 1 << 20})
			out := s.openFIFO(stdout)
			var want strings.Builder
			write := func() {
				for range 100 {
					text := numberedLine(strings.Count(want.String(), "\n"))
					want.WriteString(text)
					s.writeText(out, text)
				}
			}
			write()
			s.awaitOutput(Stdout, want.String())
			first, held := s.collector.LastProcess(), s.keeper.Status().KeeperProcess
			s.collector.Close()
			s.keeper.Close()
			if err := tt.change(s); err != nil {
				t.Fatal(err)
			}
			write()
			s.newCollector(Config{}, false)
			s.startTask(StreamLimits{MaxFiles: 3, MaxFileBytes: 1 << 20})
			write()
			s.awaitOutput(Stdout, want.String())
			if got := s.keeper.Status().KeeperProcess; got != held {
				t.Errorf("the keeper is %v, was %v", got, held)
			}
			if got := s.collector.LastProcess(); (got == first) != tt.same || got != first && first.Alive() {
				t.Errorf("the process is %v, was %v, which is alive: %v", got, first, first.Alive())
			}
		})
	}
}
