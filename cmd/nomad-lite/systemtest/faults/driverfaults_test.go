package faults

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/prometheus/procfs"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
	"github.com/nomad-lite/nomad-lite/plugins/driver/drivertest"
)

// driverFault is a fault of a driver's calls, in the words of package drivertest.
type driverFault struct {
	fault   string
	dialect drivertest.ProtocolDialect // empty means Plain

	// want is a regular expression for the events of a task, or for the lines of the agent's log that
	// name the driver or the job. Empty means that the fault has no effect on a task.
	want string
	// fails means that the task fails.
	fails bool
	// sets is when the driver gets the fault.
	sets faultTime
	// killsTask means that the task is killed together with the plugin.
	killsTask bool
	// interruptsStart means that the driver can exit while it starts the task, which is then run again.
	interruptsStart bool
	// untilRelaunch means that the driver has the fault until its process is replaced.
	untilRelaunch bool
}

// faultTime is when a test gives a driver its fault.
type faultTime int

const (
	beforeStart     faultTime = iota // before the task starts
	whileRunning                     // while the task runs, until it is stopped
	beforeRecovery                   // while the task runs, before the plugin is killed
	startToRecovery                  // before the task starts, and the plugin is killed while it runs
)

const (
	corruptText    = "cannot parse invalid wire-format data"
	unreportedText = "exit status unknown: the driver has stopped and destroyed the task, and WaitTask does not return"
	exitText       = "plugin is down: .*exited with code 5"
)

// driverFaults returns the faults that a test injects: all if it is slow, else one of each kind.
func driverFaults(t *testing.T) []driverFault {
	faults := []driverFault{
		// These take longest, because the agent waits 20 seconds for the driver. They start first.
		{fault: "recover-anything", want: unreportedText, sets: beforeRecovery, killsTask: true},
		{fault: "runs-forever", want: unreportedText, sets: whileRunning},
		{fault: "slow 1s"},
		{fault: "corrupt TaskConfigSchema", want: "task config schema: .*" + corruptText, fails: true},
		{fault: "corrupt Capabilities", want: "capabilities: .*" + corruptText, fails: true},
		{fault: "corrupt StartTask", want: corruptText, fails: true},
		{fault: "corrupt WaitTask", want: corruptText, sets: whileRunning},
		{fault: "corrupt StopTask", want: "stop failed.*" + corruptText, sets: whileRunning},
		{fault: "corrupt DestroyTask", want: "destroying the task is pending.*" + corruptText, sets: whileRunning},
		{fault: "oversize TaskConfigSchema"},
		{fault: "oversize Capabilities"},
		{fault: "oversize StartTask"},
		{fault: "exit-after Capabilities", want: exitText, interruptsStart: true},
		{fault: "exit-after StartTask", want: exitText, interruptsStart: true},
		{fault: "exit-after StopTask", want: exitText, sets: whileRunning},
		{fault: "exit-after DestroyTask", want: exitText, sets: whileRunning},
		{fault: "foreign-handle", sets: startToRecovery},
		{fault: "future-handle", sets: startToRecovery},
		{fault: "other-schema", want: `The argument "other" is required`, fails: true, untilRelaunch: true},
		{fault: "wait-at-once", want: "Exit Code: 0", fails: true},
		{fault: "wait-error-once", want: "refused by the driver", fails: true},
		{fault: "wait-everything", want: `Exit Code: 3, Signal: 9, Exit Message: "refused by the driver"`, fails: true},
		{fault: "endless-fingerprints", sets: whileRunning},
		{fault: "short-streams"},
		{fault: "stats-flood"},
		{fault: "stats-stop"},
		{fault: "strange-events"},
		{fault: "recover-nothing", want: "the driver does not have the task any longer, the agent has ended its processes", fails: true, sets: beforeRecovery},
		{fault: "wait-at-once; destroy-nothing", dialect: drivertest.Chroot, want: "Exit Code: 0", fails: true},
	}
	for code := 1; code <= 16; code++ {
		faults = append(faults, driverFault{fault: fmt.Sprintf("code StartTask %d", code), want: "refused by the driver", fails: true})
	}
	if !slowtest.Enabled() {
		// One fault of each kind is tested, without those for which the agent waits.
		faults = slices.DeleteFunc(faults, func(f driverFault) bool { return f.want == unreportedText })
		kind := func(f driverFault) string { kind, _, _ := strings.Cut(f.fault, " "); return kind }
		return slices.CompactFunc(faults, func(f, g driverFault) bool { return kind(f) == kind(g) })
	}
	return faults
}

// faultyDriverNode is an agent with one driver for each fault.
type faultyDriverNode struct{ *systemtest.PersistentAgent }

// Each fault of a driver is in the events of its task or in the log with the name of the driver or the job, and
// leaves no process of the task. The tasks of other drivers continue, and the driver works when its fault ends.
func TestFaultyDrivers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have task directories like an agent's")
	}
	t.Parallel()
	files := t.TempDir()
	plugins := map[string]string{}
	name := func(i int) string { return fmt.Sprintf("faulty-%d", i) }
	faults := driverFaults(t)
	for i, fault := range faults {
		plugins[name(i)] = fmt.Sprintf("wire-driver %s %s %s", cmp.Or(fault.dialect, drivertest.Plain), name(i), filepath.Join(files, name(i)))
	}
	n := &faultyDriverNode{systemtest.StartPersistentAgent(t, plugins)}
	bystander := n.RunJobUntilStatus("bystander", "service", api.AllocClientStatusRunning, systemtest.NewRawExecShellTask("main", systemtest.SleepForeverScript))
	t.Run("faults", func(t *testing.T) {
		for i, fault := range faults {
			t.Run(fault.fault, func(t *testing.T) {
				t.Parallel()
				n.test(t, name(i), filepath.Join(files, name(i)), fault)
			})
		}
	})
	if now := n.ReadAlloc(bystander.ID); now.ClientStatus != api.AllocClientStatusRunning || now.TaskStates["main"].Restarts != 0 {
		t.Errorf("the bystander is %s, with %d restarts", now.ClientStatus, now.TaskStates["main"].Restarts)
	}
}

func (n *faultyDriverNode) test(t *testing.T, driver, file string, fault driverFault) {
	// This part of the test has its own failures.
	n = &faultyDriverNode{&systemtest.PersistentAgent{TestAgent: &systemtest.TestAgent{Client: n.Client, T: t, ProcessMarkerDir: n.ProcessMarkerDir}, LogFile: n.LogFile}}
	setFault := func() {
		if err := os.WriteFile(file, []byte(fault.fault), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	early := fault.sets == beforeStart || fault.sets == startToRecovery
	if early {
		setFault()
	}
	job := driver + "-faulty"
	restarts := 0
	if fault.interruptsStart {
		restarts = 3
	}
	n.registerDriverJob(job, driver, restarts)
	status := api.AllocClientStatusRunning
	if fault.fails && early {
		status = api.AllocClientStatusFailed
	}
	alloc := n.WaitAllocStatus(job, status)
	task := systemtest.PIDsOfAlloc(t, alloc.ID)
	if !early {
		setFault()
	}
	if fault.sets == beforeRecovery || fault.sets == startToRecovery {
		n.killPlugin(driver, func() {
			for _, pid := range task {
				if fault.killsTask {
					_ = syscall.Kill(pid, syscall.SIGKILL) // a child of the script can have ended
				}
			}
		})
		if fault.fails {
			n.WaitAllocStatus(job, api.AllocClientStatusFailed)
		}
	}
	if _, _, err := n.Jobs().Deregister(job, false, nil); err != nil {
		t.Fatal(err)
	}
	n.WaitUntil("the allocation has ended", func() (string, bool) {
		now := n.ReadAlloc(alloc.ID)
		return now.ClientStatus, now.ClientTerminalStatus()
	})
	n.WaitUntil("the task has no process", func() (string, bool) {
		left := systemtest.PIDsOfAlloc(t, alloc.ID)
		return fmt.Sprint(left, " of ", task), len(left) == 0
	})
	n.WaitUntil("the cause is reported", func() (string, bool) {
		text := n.reports(alloc.ID, driver)
		return text, regexp.MustCompile(fault.want).MatchString(text)
	})
	state := n.ReadAlloc(alloc.ID).TaskStates["main"]
	var interrupted uint64 // starts
	for _, e := range state.Events {
		if fault.interruptsStart && strings.Contains(e.DisplayMessage, "exit status unknown: the agent or the driver exited during the start") {
			interrupted++
		}
	}
	if !fault.fails && (state.Failed || state.Restarts != interrupted) {
		t.Errorf("the task has failed, or has %d restarts in place of %d: %s", state.Restarts, interrupted, n.reports(alloc.ID, driver))
	}

	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if fault.untilRelaunch {
		n.killPlugin(driver, func() {})
	}
	job = driver + "-good"
	n.registerDriverJob(job, driver, 0)
	good := n.WaitAllocStatus(job, api.AllocClientStatusRunning)
	if _, _, err := n.Jobs().Deregister(job, false, nil); err != nil {
		t.Fatal(err)
	}
	n.WaitAllocStatus(job, api.AllocClientStatusComplete)
	if state := n.ReadAlloc(good.ID).TaskStates["main"]; state.Failed || state.Restarts != 0 {
		t.Errorf("without the fault: failed %v, %d restarts", state.Failed, state.Restarts)
	}
}

// reports returns the events of the allocation, and the lines of the log that name the driver or its job.
func (n *faultyDriverNode) reports(alloc, driver string) string {
	var text strings.Builder
	for _, state := range n.ReadAlloc(alloc).TaskStates {
		for _, e := range state.Events {
			fmt.Fprintln(&text, e.Type, e.DisplayMessage)
		}
	}
	log, err := os.ReadFile(n.LogFile)
	if err != nil {
		n.T.Fatal(err)
	}
	named := regexp.MustCompile(`\b` + driver + `\b`)
	for line := range strings.Lines(string(log)) {
		if named.MatchString(line) {
			text.WriteString(line)
		}
	}
	return text.String()
}

// killPlugin kills the plugin of a driver, and waits for the next plugin process. Before the plugin is killed, it is
// stopped, and the function meanwhile is called.
func (n *faultyDriverNode) killPlugin(driver string, meanwhile func()) {
	n.T.Helper()
	killed := n.driverProcess(driver)
	if err := syscall.Kill(killed, syscall.SIGSTOP); err != nil {
		n.T.Fatalf("stop driver %s, process %d: %v", driver, killed, err)
	}
	n.WaitUntil("each thread of the plugin has stopped", func() (string, bool) { // the signal stops them one after another
		threads, err := procfs.AllThreads(killed)
		if err != nil {
			return err.Error(), false
		}
		for _, thread := range threads {
			if stat, err := thread.Stat(); err == nil && stat.State != "T" {
				return fmt.Sprint("thread ", thread.PID, " is ", stat.State), false
			}
		}
		return "", true
	})
	meanwhile()
	if err := syscall.Kill(killed, syscall.SIGKILL); err != nil {
		n.T.Fatalf("kill driver %s, process %d: %v", driver, killed, err)
	}
	n.WaitUntil("another plugin process", func() (string, bool) {
		now := n.driverProcess(driver)
		return fmt.Sprint(now), now != 0 && now != killed
	})
}

// driverProcess returns the plugin process of a driver, 0 if there is none.
func (n *faultyDriverNode) driverProcess(driver string) int {
	for pid, command := range systemtest.ScriptCommandLineByPID(n.ProcessMarkerDir) {
		if strings.Contains(command, " "+driver+" ") {
			return pid
		}
	}
	return 0
}

// registerDriverJob registers a job whose task may fail a number of times.
func (n *faultyDriverNode) registerDriverJob(job, driver string, restarts int) {
	n.T.Helper()
	task := api.NewTask("main", driver).SetConfig("script", systemtest.DialectScript)
	task.Resources = &api.Resources{CPU: new(1), MemoryMB: new(10)}
	task.KillTimeout = new(time.Second)
	group := api.NewTaskGroup("g", 1).AddTask(task)
	group.RestartPolicy = &api.RestartPolicy{Attempts: new(restarts), Delay: new(time.Duration(0)), Mode: new("fail")}
	group.ReschedulePolicy = &api.ReschedulePolicy{Attempts: new(0), Unlimited: new(false)}
	n.RegisterJobWithGroup(job, "service", group)
}
