package faults

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	execdriver "github.com/nomad-lite/nomad-lite/builtin/exec"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// faultVictim is the set of processes and files that a fault hits.
type faultVictim struct {
	name             string
	killsAgent       bool
	killsProcessKind func(kind string) bool // reports whether the fault also kills processes of this kind; the kinds are those of FindDataDirProcesses

	removesSocketDir bool // the fault removes the directory of the sockets
	// secondVictimKind is the kind of the process that is killed second, as soon as a new process
	// of that kind runs; "" means that no second process is killed.
	secondVictimKind string

	killsNextAgent bool // the fault also kills the next agent, while it starts
	fillsDisk      bool // the disk is full when the next agent starts, until that agent is killed

	inAllEnvironments bool // the fault is tested with both drivers in all environments
}

// makesDriverUnavailable reports whether the driver is unavailable for some time after the fault.
func (v faultVictim) makesDriverUnavailable() bool { return v.secondVictimKind != "" }

func matchesProcessKind(wanted string) func(string) bool {
	return func(kind string) bool { return kind == wanted }
}

func matchesNoProcessKind(string) bool { return false }

func isTaskProcessKind(kind string) bool { return strings.HasSuffix(kind, "/life") }

var faultVictims = []faultVictim{
	{name: "agent", killsAgent: true, killsProcessKind: matchesNoProcessKind},
	{name: "driver plugin", killsProcessKind: matchesProcessKind("plugin")},
	{name: "keeper", killsProcessKind: matchesProcessKind("keeper")},
	{name: "collector", killsProcessKind: matchesProcessKind("log-collector")},
	{name: "task", killsProcessKind: isTaskProcessKind},
	{name: "all", killsAgent: true, killsProcessKind: func(string) bool { return true }},
	{name: "hook plugin", killsProcessKind: matchesProcessKind("dying-hook")},
	{name: systemtest.VolumePluginVictim, killsProcessKind: matchesProcessKind(systemtest.VolumePluginKind)},
	{name: "socket directory", killsProcessKind: matchesNoProcessKind, removesSocketDir: true, inAllEnvironments: true},
	{name: "agent and socket directory", killsAgent: true, killsProcessKind: matchesNoProcessKind, removesSocketDir: true, inAllEnvironments: true},
	{name: "plugin twice", killsProcessKind: matchesProcessKind("plugin"), secondVictimKind: "plugin", inAllEnvironments: true},
	{name: "keeper and plugin within a second", killsProcessKind: matchesProcessKind("keeper"), secondVictimKind: "plugin", inAllEnvironments: true},
	{name: "agent during start", killsAgent: true, killsProcessKind: matchesNoProcessKind, killsNextAgent: true, inAllEnvironments: true},
	{name: "disk full at start", killsAgent: true, killsProcessKind: matchesNoProcessKind, fillsDisk: true, inAllEnvironments: true},
}

// fault is one row of the fault matrix.
type fault struct {
	step   failpoint.Step
	phase  failpoint.Phase
	victim faultVictim

	externalDriver bool // the driver is an external one, built with the SDK, and not a builtin
	onBridge       bool // the agent creates and connects a network namespace
	withVolumes    bool // the job has volumes also if its step does not need them
	inCluster      bool // the allocations come from servers, and not from the scheduler of the agent
	in             agentEnvironment
}

func (f fault) String() string {
	name := fmt.Sprintf("%v %v: %s", f.step, f.phase, f.victim.name)
	if f.victim.inAllEnvironments {
		name += ", " + f.environmentName()
	}
	if f.withVolumes {
		name += ", with volumes"
	}
	if f.inCluster {
		name += ", in a cluster"
	}
	return name
}

// environmentName returns the names of the driver and of the environment.
func (f fault) environmentName() string { return f.driverName() + ", " + f.in.name }

func (f fault) driverName() string {
	switch {
	case f.externalDriver:
		return "shell"
	case f.hasVolumes():
		return execdriver.Name
	}
	return "raw_exec"
}

// victimKind maps the kind of a process to a kind in faultVictims: "plugin" is the plugin of the
// driver.
func (f fault) victimKind(kind string) string {
	switch {
	case f.externalDriver && kind == "shell-driver", f.hasVolumes() && kind == "chroot-driver":
		return "plugin"
	case (f.externalDriver || f.hasVolumes()) && kind == "plugin":
		return "the plugin of the other driver"
	}
	return kind
}

// networkMode returns the network mode of the job: an external driver creates a namespace, which is a file and
// cannot be connected, and the agent creates and connects the namespace for a builtin driver if the fault hits that.
func (f fault) networkMode() string {
	switch {
	case f.externalDriver:
		return "none"
	case f.onBridge || slices.Contains(bridgeSteps, f.step):
		return "bridge"
	}
	return "host"
}

// bridgeSteps are the steps in which the agent creates, connects or disconnects a network namespace.
var bridgeSteps = []failpoint.Step{failpoint.StepNamespace, failpoint.StepConnectNetwork, failpoint.StepForwardPorts, failpoint.StepDisconnectNetwork}

// hasVolumes reports whether the job has volumes. Its driver is exec then, because raw_exec mounts nothing.
func (f fault) hasVolumes() bool { return f.withVolumes || slices.Contains(volumeSteps, f.step) }

// killsTasks reports whether the fault can kill tasks.
func (f fault) killsTasks() bool { return f.victim.name == "task" || f.victim.name == "all" }

// canHitAnytime reports whether the fault can come at any time of the task's start: the failpoint
// blocks only the goroutine that has accepted the job, or that sends states, while the allocation runs.
func (f fault) canHitAnytime() bool {
	return f.step == failpoint.StepJobAccepted || f.step == failpoint.StepStatesSent
}

// randomKillCount returns how many agents the fault kills at a random time of their start.
func (f fault) randomKillCount() int {
	if f.victim.killsNextAgent || f.victim.fillsDisk {
		return 1
	}
	return 0
}

// isPossible reports whether the job reaches the failpoint, and the victim exists there.
func (f fault) isPossible() bool {
	if f.step == failpoint.StepNetwork && !f.externalDriver || slices.Contains(bridgeSteps, f.step) && (f.externalDriver || f.in.uid != 0 || f.in.noCgroups) {
		return false // namespaces need root, and the mount namespace of the machine
	}
	if f.hasVolumes() && (f.externalDriver || f.in.uid != 0 || f.in.noCgroups) {
		return false // the driver needs root, and the plugin of the volumes the mount namespace of the machine
	}
	isClusterStep := f.step == failpoint.StepAllocsPulled || f.step == failpoint.StepStatesSent
	if f.inCluster && (f.hasVolumes() || f.step == failpoint.StepJobAccepted) || !f.inCluster && isClusterStep {
		return false // servers accept the jobs of a cluster, and do not have the dynamic host volumes of this node
	}
	if f.victim.name == systemtest.VolumePluginVictim {
		return f.phase == failpoint.PhaseDuring && (f.step == failpoint.StepVolumeCreate || f.step == failpoint.StepVolumeDelete)
	}
	if f.victim.name != "task" {
		return true
	}
	switch f.step {
	case failpoint.StepHandleStored, failpoint.StepPoststart, failpoint.StepRunning, failpoint.StepPreKill, failpoint.StepUpdateInPlace:
		return true
	case failpoint.StepStartTask:
		return f.phase == failpoint.PhaseAfter
	case failpoint.StepStopTask, failpoint.StepUpdateStop:
		return f.phase == failpoint.PhaseBefore
	}
	return false
}

// faultMatrix returns all faults of nodes whose allocations come from one source: each victim at each phase of each step,
// and some victims in each environment.
func faultMatrix(inCluster bool) (faults []fault) {
	for _, step := range failpoint.Steps() {
		for _, phase := range failpoint.Phases {
			for _, v := range faultVictims {
				f := fault{step: step, phase: phase, victim: v, externalDriver: step == failpoint.StepNetwork, inCluster: inCluster}
				if !v.inAllEnvironments {
					if f.isPossible() {
						faults = append(faults, f)
					}
					if f.withVolumes = slices.Contains(mountedVolumeSteps, step); f.withVolumes && f.isPossible() {
						faults = append(faults, f)
					}
					continue
				}
				for _, f.in = range allAgentEnvironments {
					for _, f.externalDriver = range []bool{false, true} {
						if f.isPossible() {
							faults = append(faults, f)
						}
					}
				}
			}
		}
	}
	return faults
}

// sampleFaults returns a part of the matrix: all victims at the failpoints between an action of a
// driver and its record, and one fault of each other step, with the victims, phases and
// environments in turn.
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
			case step == failpoint.StepStartTask && f.phase == failpoint.PhaseAfter, step == failpoint.StepExitObserved && f.phase == failpoint.PhaseBefore:
				byVictim[f.victim.name] = append(byVictim[f.victim.name], f)
			default:
				otherFaults = append(otherFaults, f)
			}
		}
		for _, v := range slices.Sorted(maps.Keys(byVictim)) {
			choose(byVictim[v])
		}
		if len(otherFaults) > 0 { // a step of the other source
			choose(otherFaults)
		}
	}
	return chosen
}

// onePerVictim returns one fault of each victim, at the failpoint between the start of a task and its record if the victim
// exists there.
func onePerVictim(faults []fault) (chosen []fault) {
	for _, v := range faultVictims {
		i := slices.IndexFunc(faults, func(f fault) bool {
			return f.victim.name == v.name && (f.step == failpoint.StepStartTask && f.phase == failpoint.PhaseAfter || v.name == systemtest.VolumePluginVictim)
		})
		if i >= 0 { // servers create no volumes
			chosen = append(chosen, faults[i])
		}
	}
	return chosen
}

// TestFaults kills one process of a node, or all, at a failpoint in the lifecycle of a job,
// and asserts the invariants that hold for every failpoint. In its lifecycle, the job is
// registered, runs, has an exec session, fails once, is updated in place and then by a
// replacement, and is purged. The allocations come from the scheduler of the agent, or from servers of a cluster. Without slow
// tests there is a row of each victim, and in a cluster one of each that kills the agent. TestAllFaults and
// TestAllFaultsInCluster have all rows of the fault matrix.
func TestFaults(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have task directories like an agent's")
	}
	faults := slices.Concat(sampleFaults(faultMatrix(false)), sampleFaults(faultMatrix(true)))
	if !slowtest.Enabled() {
		ofAgent := slices.DeleteFunc(onePerVictim(faultMatrix(true)), func(f fault) bool { return !f.victim.killsAgent })
		faults = append(onePerVictim(faultMatrix(false)), ofAgent...)
	}
	for _, f := range faults {
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			newFaultNode(t, f).testFault()
		})
	}
}

// testFault injects the fault into the lifecycle of a job.
func (n *faultNode) testFault() {
	n.runJobLifecycle()
	select {
	case <-n.faultInjected:
	default:
		n.Error("the moment was not reached")
	}
}

// TestEachFailpointIsReached checks that the life of a job reaches each failpoint.
func TestEachFailpointIsReached(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have task directories like an agent's")
	}
	t.Parallel()
	// One job has its network created by a driver, one by the agent, one has volumes, and one comes from servers.
	reached := newFaultNode(t, fault{step: -1, externalDriver: true}).runJobLifecycle()
	reached = append(reached, newFaultNode(t, fault{step: -1, onBridge: true}).runJobLifecycle()...)
	reached = append(reached, newFaultNode(t, fault{step: -1, withVolumes: true}).runJobLifecycle()...)
	reached = append(reached, newFaultNode(t, fault{step: -1, inCluster: true}).runJobLifecycle()...)
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

func allTasksRunning(a *api.Allocation) bool {
	for _, s := range a.TaskStates {
		if s.State != model.TaskRunning {
			return false
		}
	}
	return a.DesiredStatus == api.AllocDesiredStatusRun && a.ClientStatus == api.AllocClientStatusRunning
}
