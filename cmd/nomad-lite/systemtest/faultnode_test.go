package systemtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

	"github.com/nomad-lite/nomad-lite/plugins/keeper"
	"github.com/nomad-lite/nomad-lite/plugins/process"
	"github.com/nomad-lite/nomad-lite/runtime/failpoint"
	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// bystanderJob is a job that the faults must not affect.
const bystanderJob = `
job "bystander" {
  group "g" {
    task "bystander" {
      driver = %q
      config {
        command = "/bin/sleep"
        args    = ["1000"]
      }
      resources {
        cpu    = 20
        memory = 10
      }
    }
  }
}
`

// lifeJob is the job whose life is tested. Its task takes an exclusive lock, writes a diary
// of its runs, counts on its standard output, and fails once in its first run if the test
// requests it. It can be killed between any two of its commands: it only appends to files,
// and no child of its own has the lock. A hook plugin that is done after its first Prestart
// writes a ledger of the hook points of each allocation.
const lifeJob = `
job "life" {
  group "g" {
    meta {
      lite_hook_dying = jsonencode({ ledger = "%[2]s.%[3]s", done = true })
    }
    update {
      max_parallel = 0
    }
    restart {
      attempts = 1000
      delay    = "50ms"
      mode     = "fail"
    }
    task "life" {
      driver         = %[4]q
      kill_signal    = "SIGTERM"
      kill_timeout   = "%[1]s"
      shutdown_delay = "30ms"
      env {
        DIARY   = "%[2]s"
        VERSION = "%[3]s"
      }
      config {
        command = "/bin/sh"
        args    = ["-c", <<-EOT
          exec 9>>$DIARY.lock
          flock -n 9 || { echo "double $NOMAD_ALLOC_ID" >>$DIARY; exit 99; }
          data=$NOMAD_ALLOC_DIR/data
          echo >>$data/runs
          run=0
          while read x; do run=$((run+1)); done <$data/runs
          echo "start $NOMAD_ALLOC_ID $run $$" >>$DIARY
          trap 'sleep 0.05 9>&-; echo "term $NOMAD_ALLOC_ID" >>$DIARY; exit 0' TERM
          i=0
          while :; do
            i=$((i+1))
            echo $run $i
            if [ -e $DIARY.fail -a ! -e $data/failed ]; then
              echo "fail $NOMAD_ALLOC_ID $i" >>$DIARY
              : >$data/failed
              exit 7
            fi
            sleep 0.05 9>&-
          done
        EOT
        ]
      }
      resources {
        cpu    = 20
        memory = 10
      }
    }
  }
}
`

// allowance is the timeout of every wait. Only an operation that hangs takes so long.
const allowance = 2 * time.Minute

// node is a node on which faults happen.
type node struct {
	*testing.T
	fault     fault
	dir, data string
	diary     string
	log       *os.File // log file of the agents

	agent    *killableAgent // the current agent
	revived  bool
	struck   chan struct{} // closed when the fault has happened
	watched  chan struct{} // closed when the agent has exited, or the strike on it is complete
	stranger *exec.Cmd

	past      map[string]*api.Allocation // allocations as last seen
	runsAtEnd map[string]int             // number of runs of allocations that were seen to be terminal
	bystander []process.ID
}

func newNode(t *testing.T, f fault) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "faults")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{
		T: t, fault: f, dir: dir, data: filepath.Join(dir, "data"), diary: filepath.Join(dir, "diary"),
		struck: make(chan struct{}), past: map[string]*api.Allocation{}, runsAtEnd: map[string]int{},
	}
	if err := errors.Join(os.Mkdir(n.plugins(), 0o755), f.in.chown(dir)); err != nil {
		t.Fatal(err)
	}
	if err := n.makeHook("dying-hook", "dying"); err != nil {
		t.Fatal(err)
	}
	if f.external {
		if err := link("shell-driver", filepath.Join(n.plugins(), "shell-driver")); err != nil {
			t.Fatal(err)
		}
	}
	if n.log, err = os.Create(filepath.Join(dir, "log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("agents said:\n%s", n.said())
		}
		n.log.Close()
		expectNobody(t, n.data)
		if err := f.in.remove(dir); err != nil {
			t.Error(err)
		}
	})
	if f.victim.full {
		if err := errors.Join(os.Mkdir(n.data, 0o711), disk(n.data).mount(f.in)); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// makeHook installs a hook plugin under a name.
func (n *node) makeHook(program, name string) error {
	path := filepath.Join(n.dir, program)
	if err := link(program, path); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	program = path
	return os.WriteFile(filepath.Join(n.plugins(), name), fmt.Appendf(nil, "#!/bin/sh\nexec %s %s\n", program, name), 0o755)
}

func (n *node) plugins() string { return filepath.Join(n.dir, "plugins") }

// said returns the log of the agents.
func (n *node) said() string {
	text, err := os.ReadFile(n.log.Name())
	if err != nil {
		n.Error(err)
	}
	return string(text)
}

// live runs the job through its life, and returns the failpoints that were reached.
func (n *node) live() []string {
	n.stranger = exec.Command("/bin/sleep", "1000") // a process in the process group of the agent
	if err := n.stranger.Start(); err != nil {
		n.Fatal(err)
	}
	defer func() {
		if err := n.stranger.Process.Signal(syscall.Signal(0)); err != nil {
			n.Errorf("I11: a stranger's process: %v", err)
		}
		_ = n.stranger.Process.Kill()
		_ = n.stranger.Wait()
	}()
	n.start()
	n.startBystander()
	n.do("arm "+fmt.Sprint(n.fault.moment()), new(string))

	n.register(n.job("1s", "one"))
	n.await("it runs", n.lives(func(a *api.Allocation) bool { return true }))
	n.do("exec "+n.only("life"), new(string))
	n.checkLife(n.only("life"))

	if err := os.WriteFile(n.diary+".fail", nil, 0o644); err != nil {
		n.Fatal(err)
	}
	n.await("it runs again", n.lives(func(a *api.Allocation) bool { return n.diaryOf(a.ID).again }))
	if err := os.Remove(n.diary + ".fail"); err != nil {
		n.Fatal(err)
	}
	first := n.only("life")
	n.checkLife(first)

	n.register(n.job("2s", "one"))
	n.await("it is updated", n.lives(func(a *api.Allocation) bool { return *a.Job.Version == 1 }))
	if second := n.only("life"); second != first {
		n.Errorf("the update in place has replaced %s by %s", first, second)
	}
	n.checkLife(first)

	n.register(n.job("2s", "two"))
	n.await("it is replaced", n.lives(func(a *api.Allocation) bool { return a.ID != first && n.ended(first) }))
	n.checkLife(n.only("life"))

	n.do("purge life", new(string))
	n.await("it is gone", func(s allocReport) bool {
		dirs, err := os.ReadDir(filepath.Join(n.data, "alloc"))
		return err == nil && len(dirs) == 1 && len(s.Local) == 1 && s.of("life", func(*api.Allocation) bool { return true }) == nil
	})
	reached := map[string]bool{}
	n.do("reached", &reached)
	n.checkBystander()
	n.agent.end("stop")
	n.checkRemains()
	n.checkLedger("one")
	n.checkLedger("two")
	var moments []string
	for m := range reached {
		moments = append(moments, m)
	}
	return moments
}

// startBystander starts the bystander job.
func (n *node) startBystander() {
	n.Helper()
	n.register(fmt.Sprintf(bystanderJob, n.fault.driver()))
	n.await("the bystander runs", func(s allocReport) bool {
		a := s.of("bystander", running)
		if a == nil {
			return false
		}
		n.bystander = n.processes()[a.ID+"/bystander"]
		return len(n.bystander) == 1
	})
}

func (n *node) job(killTimeout, version string) string {
	return fmt.Sprintf(lifeJob, killTimeout, n.diary, version, n.fault.driver())
}

func (f fault) moment() string {
	if f.step < 0 {
		return ""
	}
	return fmt.Sprint(f.step, " ", f.phase)
}

// start starts an agent, the first or the next after a fault.
func (n *node) start() {
	n.Helper()
	tell, tellIn, err := os.Pipe()
	if err != nil {
		n.Fatal(err)
	}
	goOnOut, goOn, err := os.Pipe()
	if err != nil {
		n.Fatal(err)
	}
	cmd := n.fault.in.command("faulty-agent", n.data, n.plugins())
	cmd.Stderr = n.log
	cmd.ExtraFiles = []*os.File{tellIn, goOnOut}
	n.agent = launchKillableAgent(n.T, cmd)
	tellIn.Close()
	goOnOut.Close()
	process := cmd.Process
	watched := make(chan struct{})
	n.watched = watched
	go func() {
		defer close(watched)
		defer tell.Close()
		defer goOn.Close()
		if _, err := io.ReadFull(tell, make([]byte, 1)); err != nil {
			return // the agent has exited
		}
		n.strike(process)
		close(n.struck)
		_, _ = goOn.WriteString("!") // the agent can be dead
	}()
	n.Cleanup(func() {
		_ = process.Kill() // the test can have failed
		<-watched
	})
}

// strike kills the victims, the agent first, so that it does not see the deaths of the
// others. Then come the tasks, which must not die of a pipe without a reader.
func (n *node) strike(agent *os.Process) {
	if n.fault.victim.agent {
		_ = agent.Kill()
	}
	killed := n.strikeAll()
	needed := !n.fault.victim.agent && !n.fault.victim.sockets
	// A process has no environment for a short time during exec, and is not found then.
	for deadline := time.Now().Add(allowance); needed && len(killed) == 0 && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
		killed = n.strikeAll()
	}
	if n.fault.victim.sockets {
		// A running agent creates the directory again at once, so that the removal can fail
		// half way.
		if err := os.RemoveAll(keeper.SocketDir(n.data)); err != nil && !errors.Is(err, syscall.ENOTEMPTY) {
			n.Error(err)
		}
	}
	if next := n.fault.victim.next; next != "" {
		n.strikeNext(next, killed)
	}
	if needed && len(killed) == 0 {
		n.Errorf("there is no %s at this moment", n.fault.victim.name)
	}
}

// strikeAll kills all existing processes of the victims, and returns them.
func (n *node) strikeAll() map[process.ID]bool {
	killed := map[process.ID]bool{}
	processes := nodeProcesses(n.data)
	slices.SortStableFunc(processes, func(p, q nodeProcess) int {
		switch {
		case isTask(p.kind) == isTask(q.kind):
			return 0
		case isTask(p.kind):
			return -1
		}
		return 1
	})
	for _, p := range processes {
		if n.fault.victim.kills(n.fault.role(p.kind)) {
			_ = p.Signal(syscall.SIGKILL)
			killed[p.ID] = true
		}
	}
	return killed
}

// strikeNext waits for a process of a kind that is not in killed, and kills it. A failpoint
// blocks one goroutine of the agent; other goroutines can have started the process since
// the first kill.
func (n *node) strikeNext(kind string, killed map[process.ID]bool) {
	for deadline := time.Now().Add(allowance); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		found := false
		for _, p := range nodeProcesses(n.data) {
			if n.fault.role(p.kind) == kind && !killed[p.ID] {
				found = true
				_ = p.Signal(syscall.SIGKILL)
			}
		}
		if found {
			return
		}
	}
	n.Errorf("there is no second %s", kind)
}

// do sends a command to the agent, or to the next agent if the agent dies meanwhile.
func (n *node) do(what string, answer any) {
	n.Helper()
	for {
		_, err := fmt.Fprintln(n.agent.in, what)
		if err == nil {
			err = n.agent.out.Decode(answer)
		}
		if err == nil {
			return
		}
		<-n.watched // otherwise the next agent would be struck, too
		_ = n.agent.cmd.Wait()
		if !n.fault.victim.agent || n.revived {
			n.Fatalf("%s: the agent has ended: %v, %v", what, err, n.agent.cmd.ProcessState)
		}
		n.revive()
	}
}

// revive starts an agent after the fault has killed the last one. For some victims the test
// first starts another agent, and kills it.
func (n *node) revive() {
	n.Helper()
	n.revived = true
	v := n.fault.victim
	if v.full {
		if err := disk(n.data).fill(); err != nil {
			n.Fatal(err)
		}
	}
	if v.restart || v.full {
		n.start()
		delay := 200*time.Millisecond + rand.N(1300*time.Millisecond) // the agent starts in the first part of the delay and runs its allocations in the rest
		if v.restart {
			delay = rand.N(300 * time.Millisecond)
		}
		time.Sleep(delay)
		n.agent.kill()
		<-n.watched
		n.Logf("an agent was killed %v after its start", delay)
	}
	if v.full {
		if err := disk(n.data).free(); err != nil {
			n.Fatal(err)
		}
	}
	n.start()
}

func (n *node) register(job string) {
	n.Helper()
	file := filepath.Join(n.dir, "job.nomad.hcl")
	if err := os.WriteFile(file, []byte(job), 0o644); err != nil {
		n.Fatal(err)
	}
	n.do("run "+file, new(string))
}

// await looks at the node until ok accepts its state.
func (n *node) await(what string, ok func(allocReport) bool) {
	n.Helper()
	var s allocReport
	for deadline := time.Now().Add(allowance); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		s = allocReport{}
		n.do("look", &s)
		n.checkTransition(s)
		if ok(s) {
			return
		}
	}
	text, _ := json.MarshalIndent(s, "", " ")
	diary, _ := os.ReadFile(n.diary)
	dirs, _ := filepath.Glob(filepath.Join(n.data, "alloc", "*"))
	n.Fatalf("I2: %s: not within %v: %s\n%s\ndirectories %v", what, allowance, text, diary, dirs)
}

// lives returns a condition: the allocation of the job runs, in the state and as a process.
func (n *node) lives(ok func(*api.Allocation) bool) func(allocReport) bool {
	return func(s allocReport) bool {
		a := s.of("life", running)
		return a != nil && ok(a) && n.diaryOf(a.ID).running(n.processes()[a.ID+"/life"])
	}
}

// only returns the id of the only allocation of a job that has the desired status run.
func (n *node) only(job string) string {
	n.Helper()
	var ids []string
	for id, a := range n.past {
		if a.JobID == job && a.DesiredStatus == api.AllocDesiredStatusRun {
			ids = append(ids, id)
		}
	}
	if len(ids) != 1 {
		n.Fatalf("allocations of job %s: %v", job, ids)
	}
	return ids[0]
}

func (n *node) processes() map[string][]process.ID { return byKind(nodeProcesses(n.data)) }

func (n *node) ended(id string) bool {
	return n.past[id].ClientStatus == api.AllocClientStatusComplete && len(n.processes()[id+"/life"]) == 0
}

// checkTransition checks that the report can follow the previous report.
func (n *node) checkTransition(s allocReport) {
	n.Helper()
	for _, a := range s.Allocs {
		was := n.past[a.ID]
		n.past[a.ID] = a
		if model.ClientTerminal(a) {
			if _, known := n.runsAtEnd[a.ID]; !known {
				n.runsAtEnd[a.ID] = len(n.diaryOf(a.ID).runs)
			}
		}
		if was == nil {
			continue
		}
		if model.ClientTerminal(was) && a.ClientStatus != was.ClientStatus || was.ServerTerminalStatus() && !a.ServerTerminalStatus() {
			n.Errorf("I9: %s was %s, %s, is %s, %s", a.ID, was.DesiredStatus, was.ClientStatus, a.DesiredStatus, a.ClientStatus)
		}
		for task, state := range a.TaskStates {
			if before := was.TaskStates[task]; before != nil && !continues(before.Events, state.Events) {
				n.Errorf("I7: events of %s were %v, are %v", a.ID, types(before.Events), types(state.Events))
			}
		}
	}
}

// continues reports whether now is before with more events at the end, sorted by time. Only
// the newest ten events are kept. A driver sets the time of its events; the agent receives
// them later, so that they can be out of order.
func continues(before, now []*api.TaskEvent) bool {
	own := slices.DeleteFunc(slices.Clone(now), func(e *api.TaskEvent) bool { return e.Type == api.TaskDriverMessage })
	if !slices.IsSortedFunc(own, func(a, b *api.TaskEvent) int { return int(a.Time - b.Time) }) {
		return false
	}
	at := 0
	if len(now) == 10 {
		at = slices.IndexFunc(before, func(e *api.TaskEvent) bool { return e.Time == now[0].Time })
	}
	if at < 0 || len(before)-at > len(now) {
		return at < 0
	}
	for i, e := range before[at:] {
		if e.Type != now[i].Type || e.Time != now[i].Time {
			return false
		}
	}
	return true
}

// taskDiary is the task's diary of one allocation.
type taskDiary struct {
	runs   []int // process ids of the runs
	run    int   // number of the last run
	failed bool
	again  bool // the task has run again after its failure
	double bool
}

func (n *node) diaryOf(id string) (d taskDiary) {
	text, err := os.ReadFile(n.diary)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		n.Error(err)
	}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if words[1] != id {
			continue
		}
		switch words[0] {
		case "start":
			d.run, _ = strconv.Atoi(words[2])
			pid, _ := strconv.Atoi(words[3])
			d.runs = append(d.runs, pid)
			d.again = d.failed
		case "fail":
			d.failed = true
		case "double":
			d.double = true
		}
	}
	return d
}

// running reports whether the last run is the only process.
func (d taskDiary) running(processes []process.ID) bool {
	return len(processes) == 1 && len(d.runs) > 0 && processes[0].PID == d.runs[len(d.runs)-1]
}

// checkLife asserts the invariants of an allocation whose task runs. The diary, the events
// and the output cannot be read atomically, so checkLife retries when they do not match: a
// fault can happen in between.
func (n *node) checkLife(id string) {
	n.Helper()
	var wrong []error
	defer func() {
		for _, err := range wrong {
			n.Error(err)
		}
	}()
	n.await("all of its life is known", func(allocReport) bool {
		wrong = n.wrongs(id)
		return len(wrong) == 0
	})
}

// wrongs returns the violations in the life of an allocation.
func (n *node) wrongs(id string) (wrong []error) {
	d, state := n.diaryOf(id), n.past[id].TaskStates["life"]
	say := func(format string, values ...any) {
		wrong = append(wrong, fmt.Errorf(format, values...))
	}
	count := map[string]int{}
	for _, e := range state.Events {
		count[e.Type]++
		if e.Type != api.TaskTerminated {
			continue
		}
		if m := e.DisplayMessage; m != "Exit Code: 7" && !(n.fault.killsTasks() && m == "Exit Code: 137, Signal: 9") {
			say("I4: %s has ended with %q", id, m)
		}
	}
	if d.double {
		say("I1: two of %s have run at once", id)
	}
	if n.fault.victim.outage() && len(state.Events) == 10 {
		return wrong // older events are dropped, and cannot be counted
	}
	// A run can be undone before it is recorded, or killed before it has written its start.
	least, most := 0, 0
	if n.fault.killsTasks() {
		least = -1
	}
	if s := n.fault.step; s == failpoint.StartTask || (s == failpoint.HandleStored || n.fault.anywhere()) && n.fault.victim.agent {
		most = 1
	}
	most += n.fault.unknownMoments()
	if unseen := len(d.runs) - count[api.TaskStarted]; unseen < least || unseen > most {
		say("I4: %d runs of which there is no event, %d to %d may be: %v", unseen, least, most, types(state.Events))
	}
	lost := count[model.TaskRestoreFailed]
	for _, e := range state.Events {
		if strings.HasPrefix(e.DisplayMessage, "exit status unknown") {
			lost++
		}
	}
	if ends := count[api.TaskTerminated] + lost; ends != count[api.TaskStarted]-1 {
		say("I4: %d ends of %d starts: %v", ends, count[api.TaskStarted], types(state.Events))
	}
	if lost > 0 && n.fault.victim.name != "all" && n.fault.victim.name != "keeper and plugin within a second" {
		say("I4: an end is not known: %v", types(state.Events))
	}
	setups := 1 + n.fault.unknownMoments()
	if n.fault.victim.agent && n.fault.step <= failpoint.Prestart {
		setups++
	}
	if c := count[api.TaskSetup]; c < 1 || c > setups {
		say("I6: the directory was set up %d times: %v", count[api.TaskSetup], types(state.Events))
	}
	if err := n.checkOutput(id, d.run); err != nil {
		say("I5: output of %s: %w", id, err)
	}
	return wrong
}

// checkOutput returns an error unless the output holds 1, 2, 3 … of each run, up to the run
// last.
func (n *node) checkOutput(id string, last int) error {
	text, err := os.ReadFile(filepath.Join(n.data, "alloc", id, "alloc", "logs", "life.stdout.0"))
	if err != nil {
		return err
	}
	run, next := 0, 1
	for line := range strings.Lines(string(text)) {
		var r, i int
		if _, err := fmt.Sscanf(line, "%d %d\n", &r, &i); err != nil {
			return fmt.Errorf("line %q", line)
		}
		if r != run || i == 1 && n.fault.victim.full { // a run cannot be counted on a full disk
			run, next = r, 1
		}
		if i != next {
			return fmt.Errorf("run %d: %d in the place of %d", r, i, next)
		}
		next++
	}
	if run != last {
		return fmt.Errorf("the last run is %d of %d", run, last)
	}
	return nil
}

// checkBystander asserts that nothing has happened to the bystander job.
func (n *node) checkBystander() {
	n.Helper()
	if n.fault.victim.name == "all" {
		return
	}
	id := n.only("bystander")
	if is := n.processes()[id+"/bystander"]; !slices.Equal(is, n.bystander) {
		n.Errorf("I10: the bystander is %v, was %v", is, n.bystander)
	}
	events := types(slices.DeleteFunc(slices.Clone(n.past[id].TaskStates["bystander"].Events), func(e *api.TaskEvent) bool {
		return isLimitEvent(e) || n.fault.victim.outage() && e.Type == api.TaskDriverMessage
	}))
	if got := fmt.Sprint(events); got != "[Received Task Setup Started]" {
		n.Errorf("I10: events of the bystander: %s", got)
	}
}

// isLimitEvent reports whether an event is about a limit that cannot be enforced in the
// environment of the task.
func isLimitEvent(e *api.TaskEvent) bool {
	return e.Type == api.TaskDriverMessage && strings.Contains(e.DisplayMessage, " limit not enforced here: ")
}

// checkLedger asserts that the hook was called for the life of an allocation: once at the
// hook points that were done, and at the cleanup points with the state of the earlier
// calls.
func (n *node) checkLedger(version string) {
	n.Helper()
	ledger, err := os.ReadFile(n.diary + "." + version)
	if err != nil {
		n.Error(err)
	}
	count := map[string]int{}
	for line := range strings.Lines(string(ledger)) {
		count[strings.TrimSuffix(line, "\n")]++
	}
	most := 1
	if s := n.fault.step; s == failpoint.TaskDir || s == failpoint.Prestart || n.fault.anywhere() {
		most = 2 // the answer was not on the disk yet: consecutive hooks share a commit
	}
	most += n.fault.unknownMoments()
	if called := count["prestart x"]; called < 1 || called > most || count["prestart xx"] > 0 {
		n.Errorf("I6: a hook that is done after Prestart was called %d times of %s:\n%s", called, version, ledger)
	}
	for _, cleanup := range []string{"stop x", "postrun", "destroy"} {
		if count[cleanup] == 0 {
			n.Errorf("I3: the hook was not told %q of %s:\n%s", cleanup, version, ledger)
		}
	}
}

// checkRemains asserts that ended allocations leave nothing behind.
func (n *node) checkRemains() {
	n.Helper()
	for id, runs := range n.runsAtEnd {
		if now := len(n.diaryOf(id).runs); now != runs {
			n.Errorf("I2: %s has ended, and was started again: %d runs, then %d", id, runs, now)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		n.Fatal(err)
	}
	for id, a := range n.past {
		groups, _ := filepath.Glob("/sys/fs/cgroup/*/nomad/" + id + ".*")
		scopes, _ := filepath.Glob("/sys/fs/cgroup/nomad.slice/*/" + id + ".*")
		if len(groups)+len(scopes) > 0 {
			n.Errorf("I3: cgroups of %s are left: %v", id, append(groups, scopes...))
		}
		if a.JobID == "life" && bytes.Contains(mounts, []byte(id)) {
			n.Errorf("I3: mounts of %s are left", id)
		}
	}
}
