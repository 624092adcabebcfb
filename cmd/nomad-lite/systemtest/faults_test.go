package systemtest

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/agent"
	"github.com/nomad-lite/nomad-lite/runtime/failpoint"
	"github.com/nomad-lite/nomad-lite/runtime/jobspec"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
)

var allFaults = flag.Bool("faults", false, "run the whole matrix of faults, not only a row per step")

// faultVictim is the set of processes and files that a fault hits.
type faultVictim struct {
	name       string
	killsAgent bool
	killsKind  func(kind string) bool // whether the fault kills processes of this kind, besides the agent; kinds as in nodeProcesses

	removesSocketDir bool // the directory for sockets is removed
	// secondVictimKind is the kind of the process that is killed second, as soon as a new process of
	// that kind runs. If it is empty, no second process is killed.
	secondVictimKind string

	killsNextAgent bool // the next agent is killed, too, while it starts
	fillsDisk      bool // the disk is full when the next agent starts, and has room again after that agent's death

	inAllEnvironments bool // the matrix has rows for both drivers in all environments
}

// makesDriverUnavailable reports whether the driver is unavailable for some time after the deaths.
func (v faultVictim) makesDriverUnavailable() bool { return v.secondVictimKind != "" }

func isKind(wanted string) func(string) bool { return func(kind string) bool { return kind == wanted } }

func matchesNoKind(string) bool { return false }

func isTaskKind(kind string) bool { return strings.HasSuffix(kind, "/life") }

var faultVictims = []faultVictim{
	{name: "agent", killsAgent: true, killsKind: matchesNoKind},
	{name: "driver plugin", killsKind: isKind("plugin")},
	{name: "keeper", killsKind: isKind("keeper")},
	{name: "collector", killsKind: isKind("log-collector")},
	{name: "task", killsKind: isTaskKind},
	{name: "all", killsAgent: true, killsKind: func(string) bool { return true }},
	{name: "hook plugin", killsKind: isKind("dying-hook")},
	{name: "socket directory", killsKind: matchesNoKind, removesSocketDir: true, inAllEnvironments: true},
	{name: "agent and socket directory", killsAgent: true, killsKind: matchesNoKind, removesSocketDir: true, inAllEnvironments: true},
	{name: "plugin twice", killsKind: isKind("plugin"), secondVictimKind: "plugin", inAllEnvironments: true},
	{name: "keeper and plugin within a second", killsKind: isKind("keeper"), secondVictimKind: "plugin", inAllEnvironments: true},
	{name: "agent during start", killsAgent: true, killsKind: matchesNoKind, killsNextAgent: true, inAllEnvironments: true},
	{name: "disk full at start", killsAgent: true, killsKind: matchesNoKind, fillsDisk: true, inAllEnvironments: true},
}

// fault is one row of the matrix.
type fault struct {
	step   failpoint.Step
	phase  failpoint.Phase
	victim faultVictim

	externalDriver bool // the driver is external, made with the SDK; otherwise builtin
	in             agentEnvironment
}

func (f fault) String() string {
	name := fmt.Sprintf("%v %v: %s", f.step, f.phase, f.victim.name)
	if f.victim.inAllEnvironments {
		name += ", " + f.environmentName()
	}
	return name
}

// environmentName returns the driver and the environment of the fault.
func (f fault) environmentName() string { return f.driverName() + ", " + f.in.name }

func (f fault) driverName() string {
	if f.externalDriver {
		return "shell"
	}
	return "raw_exec"
}

// victimKind returns the kind of a process as victims use it: "plugin" is the plugin of the
// driver.
func (f fault) victimKind(kind string) string {
	switch {
	case f.externalDriver && kind == "shell-driver":
		return "plugin"
	case f.externalDriver && kind == "plugin":
		return "the plugin of the other driver"
	}
	return kind
}

// killsTasks reports whether the fault can kill tasks.
func (f fault) killsTasks() bool { return f.victim.name == "task" || f.victim.name == "all" }

// canHitAnytime reports whether the fault can come at any time of the start: the failpoint
// blocks the goroutine that has accepted the job, while the allocation continues.
func (f fault) canHitAnytime() bool { return f.step == failpoint.JobAccepted }

// randomKillCount returns the number of agents that are killed at a time of their start that
// the row does not name.
func (f fault) randomKillCount() int {
	if f.victim.killsNextAgent || f.victim.fillsDisk {
		return 1
	}
	return 0
}

// isPossible reports whether the victim exists at the failpoint.
func (f fault) isPossible() bool {
	if f.victim.name != "task" {
		return true
	}
	switch f.step {
	case failpoint.HandleStored, failpoint.Poststart, failpoint.Running, failpoint.PreKill, failpoint.UpdateInPlace:
		return true
	case failpoint.StartTask:
		return f.phase == failpoint.After
	case failpoint.StopTask, failpoint.UpdateStop:
		return f.phase == failpoint.Before
	}
	return false
}

// faultMatrix returns all faults: each victim at each phase of each step, and in each
// place.
func faultMatrix() (faults []fault) {
	for _, step := range failpoint.Steps() {
		for _, phase := range failpoint.Phases {
			for _, v := range faultVictims {
				f := fault{step: step, phase: phase, victim: v}
				if !f.isPossible() {
					continue
				}
				if !v.inAllEnvironments {
					faults = append(faults, f)
					continue
				}
				for _, f.in = range allEnvironments {
					for _, f.externalDriver = range []bool{false, true} {
						faults = append(faults, f)
					}
				}
			}
		}
	}
	return faults
}

// sampleFaults returns a part of the matrix: the failpoints between an action of a driver
// and its record, with each victim, and each step once, with the victims, the phases and
// the places in turn.
func sampleFaults(faults []fault) (chosen []fault) {
	turns := map[string]int{}
	choose := func(from []fault) {
		count := func(f fault) []string {
			return []string{f.victim.name + f.phase.String(), f.victim.name + f.environmentName(), f.environmentName()}
		}
		weight := func(f fault) (all []int) {
			for _, turn := range count(f) {
				all = append(all, turns[turn])
			}
			return all
		}
		next := slices.MinFunc(from, func(f, g fault) int { return slices.Compare(weight(f), weight(g)) })
		for _, turn := range count(next) {
			turns[turn]++
		}
		chosen = append(chosen, next)
	}
	for _, step := range failpoint.Steps() {
		var otherFaults []fault
		byVictim := map[string][]fault{}
		for _, f := range faults {
			switch {
			case f.step != step:
			case step == failpoint.StartTask && f.phase == failpoint.After, step == failpoint.ExitObserved && f.phase == failpoint.Before:
				byVictim[f.victim.name] = append(byVictim[f.victim.name], f)
			default:
				otherFaults = append(otherFaults, f)
			}
		}
		for _, v := range slices.Sorted(maps.Keys(byVictim)) {
			choose(byVictim[v])
		}
		choose(otherFaults)
	}
	return chosen
}

// TestFaults kills one process of a node, or all, at a failpoint in the life of a job, and
// asserts the invariants that hold for every failpoint. The life: the job is registered,
// runs, has a session in it, fails once, is updated in place and then by a replacement, and
// is purged. TestStoppedStartLeavesTasks ends the program itself at each millisecond of its
// start, by each signal.
//
//	go test -run TestFaults ./cmd/nomad-lite/systemtest            some rows, of each step one
//	go test -run TestFaults ./cmd/nomad-lite/systemtest -faults    all rows
func TestFaults(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have task directories like an agent's")
	}
	faults := faultMatrix()
	if !*allFaults {
		faults = sampleFaults(faults)
	}
	for _, f := range faults {
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			n := newFaultNode(t, f)
			n.runJobLifecycle()
			select {
			case <-n.faultInjected:
			default:
				t.Error("the moment was not reached")
			}
		})
	}
}

// TestEachFailpointIsReached checks that the failpoints of all rows exist.
func TestEachFailpointIsReached(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have task directories like an agent's")
	}
	t.Parallel()
	n := newFaultNode(t, fault{step: -1})
	reached := n.runJobLifecycle()
	for _, step := range failpoint.Steps() {
		if step.String() == "" {
			t.Errorf("step %d has no name", step)
		}
		for _, phase := range failpoint.Phases {
			if moment := fmt.Sprint(step, " ", phase); !slices.Contains(reached, moment) {
				t.Errorf("%s: not reached", moment)
			}
		}
	}
}

// These are the pipes over which an agent reports that it has reached the failpoint, and
// receives the permission to continue.
const (
	failpointReachedFD  = 3
	failpointContinueFD = 4
)

// runFailpointAgent is a killable agent that blocks at a failpoint after a command.
func runFailpointAgent() {
	syscall.CloseOnExec(failpointReachedFD)
	syscall.CloseOnExec(failpointContinueFD)
	tell, goOn := os.NewFile(failpointReachedFD, "tell"), os.NewFile(failpointContinueFD, "go on")
	var mu sync.Mutex
	armed, reached := "", map[string]bool{}
	failpoint.OnHit = func(s failpoint.Step, p failpoint.Phase) {
		moment := fmt.Sprint(s, " ", p)
		mu.Lock()
		reached[moment] = true
		here := moment == armed
		if here {
			armed = ""
		}
		mu.Unlock()
		if here {
			_, err := tell.WriteString("!")
			if err == nil {
				_, err = io.ReadFull(goOn, make([]byte, 1))
			}
			if err != nil {
				panic(err)
			}
		}
	}
	killableAgentCommands["arm"] = func(_ context.Context, _ *agent.Agent, moment string) any {
		mu.Lock()
		defer mu.Unlock()
		armed = moment
		return "ok"
	}
	killableAgentCommands["reached"] = func(context.Context, *agent.Agent, string) any {
		mu.Lock()
		defer mu.Unlock()
		return maps.Clone(reached) // a copy, because steps are reached while it is encoded
	}
	serveKillableAgent()
}

// killableAgentCommands are further commands of a killable agent.
var killableAgentCommands = map[string]func(ctx context.Context, a *agent.Agent, arg string) any{
	"look": func(_ context.Context, a *agent.Agent, _ string) any {
		s := a.Store().Snapshot()
		seen := allocReport{Local: s.LocalAllocations()}
		for _, alloc := range s.Allocations(nil, "") {
			seen.Allocs = append(seen.Allocs, &api.Allocation{
				ID: alloc.ID, JobID: alloc.JobID, DesiredStatus: alloc.DesiredStatus, ClientStatus: alloc.ClientStatus,
				ClientDescription: alloc.ClientDescription, TaskStates: alloc.TaskStates, Job: &api.Job{Version: alloc.Job.Version},
			})
		}
		return seen
	},
	"exec": func(ctx context.Context, a *agent.Agent, id string) any {
		runner := a.Alloc(id)
		if runner == nil {
			return "the agent has just begun"
		}
		out := &bytes.Buffer{}
		_, err := runner.ExecStreaming(ctx, "life", driver.Exec{Command: []string{"/bin/echo", "hello"}, Stdout: out})
		return fmt.Sprint(out, err)
	},
	"heap": func(context.Context, *agent.Agent, string) any {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	},
	"register": func(ctx context.Context, a *agent.Agent, path string) any {
		text, err := os.ReadFile(path)
		if err != nil {
			return err.Error()
		}
		file, _ := jobspec.Parse(jobspec.Source{Name: path, Text: text})
		_, err = a.Scheduler().Register(ctx, file.Job, scheduler.RegisterOptions{})
		return fmt.Sprint(err)
	},
	"purge": func(ctx context.Context, a *agent.Agent, job string) any {
		_, err := a.Scheduler().Deregister(ctx, scheduler.JobKey{Namespace: "default", ID: job}, scheduler.DeregisterOptions{Purge: true})
		return fmt.Sprint(err)
	},
}

// allocReport is an agent's report about its allocations.
type allocReport struct {
	Allocs []*api.Allocation
	Local  []string // allocations with records of their tasks
}

func (s allocReport) findAlloc(job string, wanted func(*api.Allocation) bool) (found *api.Allocation) {
	for _, a := range s.Allocs {
		if a.JobID == job && wanted(a) {
			found = a
		}
	}
	return found
}

func allTasksRunning(a *api.Allocation) bool {
	for _, s := range a.TaskStates {
		if s.State != model.TaskRunning {
			return false
		}
	}
	return a.DesiredStatus == api.AllocDesiredStatusRun && a.ClientStatus == api.AllocClientStatusRunning
}
