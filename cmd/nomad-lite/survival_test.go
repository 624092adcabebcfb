package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/docpage"
)

// survival is a row of the table in docs/explanation/what-survives.md: an event, and what follows from it.
type survival struct {
	event, kept, lost, repeated string
	duration                    string
	figure                      string // row of docs/performance.md that measures the duration, or empty
	tests                       string // names, separated by spaces; TestScripts/NAME is the script NAME
}

const notMeasured = "not measured"

var survivals = []survival{
	{
		event: "A task crashes", kept: "its directory, logs, ports and address; the other tasks of its group",
		lost: "its memory", repeated: "its start, by the `restart` block; its prestart hooks that are not done",
		duration: "some milliseconds beyond the `delay`", figure: "crash → respawn",
		tests: "TestRestartLoopLeaksNoResources TestScripts/run_restart",
	},
	{
		event: "A task exceeds its memory", kept: "the same", lost: "the same", repeated: "the same; the event is `OOM Killed`",
		duration: "the same", figure: "crash → respawn", tests: "TestMemoryLimit TestOOMKillDuringDriverOutage",
	},
	{
		event: "A driver plugin is killed", kept: "its tasks, their output and exit statuses", lost: "connections of `alloc exec`; without cgroups v2, the exit status of a task that was about to start and has ended meanwhile",
		repeated: "the call that was interrupted, after the driver has said what it has done; a start that has executed nothing, up to four times", duration: notMeasured,
		tests: "TestPluginKilledTwiceLeavesItsTasksRunning TestExitStatusSurvivesDriverOutage TestExitsAreReportedOnceDespiteKills TestShortTasks TestStartDuringWhichThePluginDies",
	},
	{
		event: "A driver plugin does not start any more", kept: "its tasks", lost: "nothing; new tasks of the driver wait",
		repeated: "the start of the plugin, after 5 s to 2 minutes", duration: "until the plugin is repaired",
		tests: "TestTasksOutliveADriverBuildThatDoesNotStart TestStopDuringAnOutageOfTheDriver",
	},
	{
		event: "A hook plugin is killed", kept: "tasks; what the hook has returned and stored", lost: "what only its process knew",
		repeated: "the call, once; clean-up calls until they succeed", duration: notMeasured, tests: "TestHookDeaths",
	},
	{
		event: "The keeper is killed", kept: "tasks, plugins, output", lost: "if the driver plugin that this keeper has started is killed too, the exit status of a task that ends before the next plugin process has found it, because no living process was its parent; before Linux 6.15, also of one that ends later",
		repeated: "nothing", duration: "some milliseconds",
		tests: "TestTasksSurviveDeaths TestNothingIsLostWhenTheKeeperIsKilled TestBatchJobWithUnknownExitStatusIsNotRerun TestShortTasks",
	},
	{
		event: "The log collector is killed", kept: "each byte of output, in its order", lost: "nothing; a task that fills its pipe waits",
		repeated: "nothing", duration: notMeasured,
		tests: "TestNothingIsLostWhenTheCollectorIsKilled TestNothingIsLostWhenTheAgentAndTheCollectorAreKilled TestStoppedCollectorHoldsTheTaskButLosesNothing",
	},
	{
		event: "The agent is killed", kept: "tasks, output, exit statuses, delays of restarts, all that the API has acknowledged; the port of the API, at which new requests wait two seconds for the next agent", lost: "requests that the agent was answering; checks, templates and launches pause",
		repeated: "steps of a start whose end was not stored; no start of a process", duration: "0.1 to 0.2 s until the next agent has 100 tasks", figure: "agent killed → 100 tasks owned",
		tests: "TestTasksSurviveDeaths TestFaults TestInterruptedStarts TestRequestsDuringRestarts TestPortIsNeverFree TestScripts/agent_restart",
	},
	{
		event: "The agent is stopped", kept: "the same", lost: "the same", repeated: "nothing", duration: "the same", figure: "agent killed → 100 tasks owned",
		tests: "TestTasksSurviveDeaths TestStoppedStartLeavesTasks TestScripts/agent_stop",
	},
	{
		event: "Agent, plugins, keeper and log collector are killed, in any pair and at any time", kept: "tasks, and what the rows above keep", lost: "what the rows above lose",
		repeated: "what the rows above repeat", duration: "the same", tests: "TestRandomKills TestRandomKillsOfUser TestFaults",
	},
	{
		event: "The program is upgraded, or goes back to the earlier version", kept: "tasks, with the same processes; the state file, if the earlier version can read it", lost: "nothing",
		repeated: "nothing", duration: "a start of the agent", figure: "the same, used data directory", tests: "TestUpgradeSample TestUpgrade TestOtherCollectorQuits",
	},
	{
		event: "The machine is rebooted", kept: "jobs, variables, volumes, directories and logs of allocations", lost: "processes; files in `secrets/`, which is in memory",
		repeated: "tasks that ran start again, and count no restart; templates are rendered again; prestart tasks only with `lite_rerun = \"reboot\"`",
		duration: "the start of the machine, and of the agent", figure: "agent exec → ready, new data directory",
		tests: "TestRestoreAfterReboot TestNetworkIsCreatedAfterReboot TestVM",
	},
	{
		event: "The power is lost", kept: "the same; the state file is consistent, and has what the API has acknowledged", lost: "the last 50 ms of events; what the kernel had not yet written of logs and files of tasks",
		repeated: "the same", duration: "the same", tests: "TestVM",
	},
	{
		event: "The disk is full, or has no free inode", kept: "running tasks; the agent starts, and stops and purges jobs", lost: "output that cannot be written for two seconds, with a line and an event that have the number of bytes",
		repeated: "nothing; new jobs are rejected", duration: "until there is space", tests: "TestFullDisk TestStartsOnFullDisk TestDiskWithoutInodes TestFullFileSystem TestConditions",
	},
	{
		event: "The state file cannot be written, for example because the disk is read-only", kept: "running tasks", lost: "nothing; a task that ends is shown as running until its end is stored",
		repeated: "nothing; jobs, stops and restarts are rejected before they have an effect; a task that ends waits with its next start", duration: "until it can be written",
		tests: "TestRestartIsRefusedWhileStateCannotBeStored TestSnapshotWithoutDisk TestExitStatusIsStoredBeforeDestroy",
	},
	{
		event: "No file descriptors or memory are left for the agent", kept: "running tasks, plugins, keeper and log collector", lost: "nothing",
		repeated: "starts wait", duration: "until there are some", tests: "TestStartWithoutDescriptorsLeavesTasks TestAgentWithoutDescriptorsKeepsCollector",
	},
	{
		event: "The state file is lost", kept: "running tasks, their output and files; copies of their allocations and jobs", lost: "other jobs, variables and history, unless a snapshot is restored",
		repeated: "nothing, until you [adopt or end the tasks](../how-to/recovery.md#the-state-file-is-lost-without-a-snapshot)", duration: "yours", tests: "TestDamagedState TestScripts/adopt_unknown TestScripts/restore_drill",
	},
	{
		event: "The state file is damaged", kept: "running tasks; each record that can be read; the bytes of the others, in quarantine", lost: "records that cannot be read, each with a line in the log",
		repeated: "nothing: a running task is adopted from the copy of its allocation, and continues as unknown if its job is lost, or if only a plugin process that was killed, too, knew it: it counts as an instance of its job until it ends", duration: "a start of the agent", figure: "the same, used data directory", tests: "TestDamagedState TestDamagedStateKeepsTasks TestUnknownInstanceLastsUntilItsTasksEnd TestScripts/agent_lost TestUnusableMetaRecordsAreQuarantined",
	},
	{
		event: "The data directory is renamed", kept: "tasks, under the new path", lost: "nothing", repeated: "nothing", duration: "a start of the agent", figure: "the same, used data directory",
		tests: "TestDataDirectoryIsFoundByEveryPath",
	},
	{
		event: "A bridge, or an interface of a namespace, is removed", kept: "running tasks, and in the mode `bridge` their addresses and ports", lost: "connections, unless the namespace keeps its interface",
		repeated: "with CNI, the calls of the plugins; if a namespace gets another address, its tasks restart with it, and their events give the reason", duration: "up to 10 seconds",
		tests: "TestRepair TestRepairNeedsOtherAddresses TestLostNetworkIsConnectedAgain TestScripts/network TestScripts/network_cni",
	},
	{
		event: "The clock of the machine steps", kept: "the remaining time of delays, deadlines and drains", lost: "launches of periodic jobs that a step forward has passed: one launch replaces them",
		repeated: "no launch", duration: "none",
		tests: "TestRescheduleDelayIgnoresClockSteps TestProgressDeadlineIgnoresClockSteps TestPeriodicJobContinuesAfterClockIsSetBack TestPeriodicJobIsLaunchedOnceAfterClockIsSetForward TestVM",
	},
	{
		event: "The servers of a node of a cluster cannot be reached", kept: "tasks; states are stored, and sent later", lost: "nothing, unless the servers give the node up and replace its allocations",
		repeated: "restarts by the `restart` block, here", duration: "until a server answers", tests: "TestTasksSurviveOutages TestLostTasksAreNotStartedTwice TestStopOnClientAfter",
	},
}

func formatSurvivals() string {
	var b strings.Builder
	b.WriteString("\n| Event | Kept | Lost | Done again | How long | Tests |\n| --- | --- | --- | --- | --- | --- |\n")
	for _, s := range survivals {
		duration := s.duration
		if s.figure != "" {
			duration = fmt.Sprintf("%s ([%s](../performance.md#all-figures))", s.duration, s.figure)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | `%s` |\n", s.event, s.kept, s.lost, s.repeated, duration, strings.Join(strings.Fields(s.tests), "`, `"))
	}
	return b.String() + "\n"
}

// docs/explanation/what-survives.md has the table of survivals. Each row has tests that exist, and a figure of docs/performance.md if
// its duration is measured.
func TestReferenceSurvivals(t *testing.T) {
	names := findTestNames(t)
	scripts, err := filepath.Glob("systemtest/*/testdata/script/*.txtar")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("%d scripts, error: %v", len(scripts), err)
	}
	for _, path := range scripts {
		names["TestScripts/"+strings.TrimSuffix(filepath.Base(path), ".txtar")] = true
	}
	performance, err := os.ReadFile("../../docs/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range survivals {
		if s.kept == "" || s.lost == "" || s.repeated == "" || s.duration == "" || s.tests == "" {
			t.Errorf("%s: the row is not complete", s.event)
		}
		for _, test := range strings.Fields(s.tests) {
			if !names[test] {
				t.Errorf("%s: there is no test %s", s.event, test)
			}
		}
		if s.figure != "" && !strings.Contains(string(performance), "\n| "+s.figure+" |") {
			t.Errorf("%s: docs/performance.md has no figure %q", s.event, s.figure)
		}
	}
	docpage.CheckPart(t, "explanation/what-survives.md", formatSurvivals())
}
