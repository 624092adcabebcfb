package hostile

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// leaveSetuidScript leaves set-user-id programs of root and devices in the directories of a task.
const leaveSetuidScript = `set -e
for d in $NOMAD_ALLOC_DIR/data $NOMAD_TASK_DIR; do
  cp /usr/bin/id $d/id
  chmod 6755 $d/id
  mknod $d/zero c 1 5
  chmod 666 $d/zero
  touch $d/ready
done
`

// setuidAgent is an agent whose tasks leave set-user-id programs for an account that they admit to their directories.
type setuidAgent struct {
	*systemtest.PersistentAgent
	running map[string]string // the allocation of each job
}

// A set-user-id program and a device that a task of root leaves behind have no effect for another account, and the directory of the
// allocations is mounted once, in all lives of an agent.
func TestSetuidProgramsOfTasks(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only tasks of root can make set-user-id programs of another user")
	}
	if testing.Short() {
		t.Skip("it starts the agent several times")
	}
	steps := 6
	if slowtest.Enabled() {
		steps = 40
	}
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	s := &setuidAgent{systemtest.StartPersistentAgent(t, nil), map[string]string{}}
	history := []string{"start a"}
	defer func() { t.Logf("seed %d: %s", seed, strings.Join(history, ", ")) }()
	s.start("a")
	s.check(1)
	for range steps {
		job := string('a' + rune(r.IntN(3)))
		events := map[string]func(){
			"start":     func() { s.start(job) },
			"stop":      func() { s.stop(job, false) },
			"purge":     func() { s.stop(job, true) },
			"collect":   func() { s.collect() },
			"kill":      func() { s.SignalAndWait(unix.SIGKILL); s.check(1); s.StartAndWaitReady() },
			"terminate": func() { s.terminate(); s.StartAndWaitReady() },
		}
		names := slices.Sorted(maps.Keys(events))
		event := names[r.IntN(len(names))]
		history = append(history, event+" "+job)
		events[event]()
		s.check(1)
	}
	for job := range maps.Clone(s.running) {
		s.stop(job, false)
	}
	s.SignalAndWait(unix.SIGKILL)
	s.StartAndWaitReady()
	s.check(1)
	s.terminate()
	s.StartAndWaitReady() // the cleanup ends it
}

// terminate ends the agent, and checks that no mount remains when all allocations have ended.
func (s *setuidAgent) terminate() {
	s.T.Helper()
	s.SignalAndWait(unix.SIGTERM)
	if len(s.running) > 0 {
		s.check(1)
		return
	}
	// An agent that ends at once after the last task leaves the end of the allocation, and the mount, to the next agent. On a slow
	// machine, an agent that ends as soon as it is ready does so, too.
	pause := time.Millisecond
	s.WaitUntil("an agent without allocations leaves no mount on their directory", func() (string, bool) {
		if s.countMounts() == 0 {
			return "", true
		}
		s.StartAndWaitReady()
		time.Sleep(pause)
		pause *= 2
		s.SignalAndWait(unix.SIGTERM)
		return s.readMounts(), false
	})
}

func (s *setuidAgent) start(job string) {
	s.T.Helper()
	task := systemtest.NewRawExecShellTask("main", leaveSetuidScript+systemtest.SleepForeverScript, func(t *api.Task) {
		t.Meta = map[string]string{"lite_users": strconv.Itoa(intruderUser)}
	})
	s.running[job] = s.RunJobUntilStatus(job, "service", "running", task).ID
	s.WaitUntil("the task has left its programs", func() (string, bool) {
		_, err := os.Stat(filepath.Join(s.allocDir(job), "main/local/ready"))
		return fmt.Sprint(err), err == nil
	})
}

func (s *setuidAgent) stop(job string, purge bool) {
	s.T.Helper()
	id := s.running[job]
	if id == "" {
		return
	}
	delete(s.running, job)
	if _, _, err := s.Jobs().Deregister(job, purge, nil); err != nil {
		s.T.Fatal(err)
	}
	s.WaitUntil("the secrets of "+job+" are unmounted", func() (string, bool) {
		table := s.readMounts()
		return table, !strings.Contains(table, id)
	})
}

func (s *setuidAgent) collect() {
	s.T.Helper()
	if err := s.System().GarbageCollect(); err != nil {
		s.T.Fatal(err)
	}
}

func (s *setuidAgent) allocDir(job string) string {
	return filepath.Join(s.DataDir, "alloc", s.running[job])
}

func (s *setuidAgent) readMounts() string {
	s.T.Helper()
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		s.T.Fatal(err)
	}
	return string(table)
}

// countMounts returns the number of mounts on the directory of the allocations.
func (s *setuidAgent) countMounts() int {
	s.T.Helper()
	return strings.Count(s.readMounts(), " "+filepath.Join(s.DataDir, "alloc")+" ")
}

// check checks the number of mounts on the directory of the allocations, and that the programs and devices of running tasks give
// another account nothing.
func (s *setuidAgent) check(wantMounts int) {
	s.T.Helper()
	if got := s.countMounts(); got != wantMounts {
		s.T.Errorf("%d mounts on the directory of the allocations, want %d:\n%s", got, wantMounts, s.readMounts())
	}
	for job := range s.running {
		for _, dir := range []string{"alloc/data", "main/local"} {
			program, device := filepath.Join(s.allocDir(job), dir, "id"), filepath.Join(s.allocDir(job), dir, "zero")
			out, err := asIntruder(program).CombinedOutput()
			if err != nil || strings.Contains(string(out), "root") || !strings.Contains(string(out), "uid="+strconv.Itoa(intruderUser)) {
				s.T.Errorf("%s prints %q for another account, %v", program, out, err)
			}
			if out, err := asIntruder("head", "-c", "1", device).CombinedOutput(); !strings.Contains(string(out), "Permission denied") {
				s.T.Errorf("%s gives %q to another account, %v", device, out, err)
			}
		}
	}
}

// asIntruder returns a command that another account runs.
func asIntruder(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = "/"
	cmd.Env = []string{"LC_ALL=C"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: intruderUser, Gid: intruderUser}}
	return cmd
}

// An agent that cannot keep set-user-id programs from having an effect says so at its start, and runs.
func TestAgentSaysThatSetuidProgramsHaveAnEffect(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("an agent that is not root mounts nothing")
	}
	if testing.Short() {
		t.Skip("it starts several agents")
	}
	const allow = "client {\n options {\n \"alloc_dir.allow_setuid\" = \"true\"\n }\n}\n"
	for _, c := range []struct {
		name, config, want string
		machine, agent     []string // commands that run the first process of the agent's machine, and the agent
	}{
		{name: "nothing to say"},
		{name: "allowed by the operator", config: allow, want: "alloc_dir.allow_setuid"},
		{name: "own mount namespace", machine: []string{"unshare", "--pid", "--fork", "--mount-proc"}, agent: []string{"unshare", "--mount"},
			want: "the agent has a mount namespace of its own"},
		{name: "may not mount", agent: []string{"setpriv", "--bounding-set=-sys_admin"}, want: "the agent needs the capability CAP_SYS_ADMIN"},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := filepath.Join(t.TempDir(), "agent.hcl")
			if err := os.WriteFile(config, []byte(c.config), 0o600); err != nil {
				t.Fatal(err)
			}
			const script = `"$@" 2>log &
until grep -q 'agent is ready' log || ! kill -0 $!; do sleep 0.05; done
kill -INT $!
wait $!`
			args := slices.Concat(c.machine, []string{"sh", "-c", script, "sh"}, c.agent, []string{"nomad-lite", "agent", "-dev", "-config", config})
			for _, program := range []string{args[0], slices.Concat(c.agent, args)[0]} {
				if _, err := exec.LookPath(program); err != nil {
					t.Skip(err)
				}
			}
			cmd := exec.Command(args[0], args[1:]...)
			cmd.Dir = t.TempDir()
			cmd.Env = append(os.Environ(), systemtest.WorkDirEnvVar+"="+cmd.Dir, "TMPDIR="+cmd.Dir)
			out, err := cmd.CombinedOutput()
			log, readErr := os.ReadFile(filepath.Join(cmd.Dir, "log"))
			if err := errors.Join(err, readErr); err != nil {
				t.Fatalf("%v\n%s\n%s", err, out, log)
			}
			said := slices.DeleteFunc(strings.Split(string(log), "\n"), func(line string) bool { return !strings.Contains(line, "set-user-id programs") })
			if (c.want != "") != (len(said) == 1) || len(said) == 1 && !strings.Contains(said[0], c.want) {
				t.Errorf("the agent says %q, want %q", said, c.want)
			}
			if table, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(table), cmd.Dir) {
				t.Errorf("mounts are left: %s, %v", table, err)
			}
		})
	}
}
