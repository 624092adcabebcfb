package faults

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"

	execdriver "github.com/nomad-lite/nomad-lite/builtin/exec"
	"github.com/nomad-lite/nomad-lite/builtin/rawexec"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
)

// killScenario is a change of a node that is under way while its processes are killed.
type killScenario struct {
	name  string
	needs func(*killNode) bool // reports whether the scenario is possible; nil means always

	// start begins the scenario, whose job has the id. It returns a function that returns nil when the scenario has reached its
	// result, and is called until then.
	start func(n *killNode, random *rand.Rand, job string) (finish func() error)
}

func needsRootAgent(n *killNode) bool { return n.in.uid == 0 }

// killScenarios are the scenarios besides the clock steps, which affect the whole machine.
var killScenarios = []killScenario{
	{name: "artifacts", start: startArtifacts},
	{name: "canaries", start: startCanaries},
	{name: "memory", needs: needsRootAgent, start: startMemoryPressure},
	{name: "devices", start: startUnhealthyDevices},
}

// clockScenario steps the clock of the machine and back.
var clockScenario = killScenario{name: "clock", start: startClockStep}

// scenarioScript records the start and the end of a task that may run once, and executes the commands of a scenario between.
const scenarioScript = `
record=$NOMAD_ALLOC_DIR/data/record
echo start >>$record
%s
echo end >>$record
`

// newScenarioGroup returns a group of tasks that may run once.
func newScenarioGroup(n *killNode, name, driver string, count, memory int, commands string) *api.TaskGroup {
	task := api.NewTask(killTask, driver).SetConfig("command", "/bin/sh").SetConfig("args", []string{"-c", fmt.Sprintf(scenarioScript, commands)})
	// With CPU 1 a task would have the share of each of the 100 counting tasks, and need minutes.
	task.Resources = &api.Resources{CPU: new(100), MemoryMB: new(memory)}
	task.LogConfig = &api.LogConfig{MaxFiles: new(1), MaxFileSizeMB: new(1)}
	task.KillTimeout = new(time.Second)
	task.Env = map[string]string{"NODE": n.dataDir()}
	group := api.NewTaskGroup(name, count).AddTask(task)
	group.EphemeralDisk = &api.EphemeralDisk{SizeMB: new(10)}
	group.RestartPolicy = &api.RestartPolicy{Attempts: new(0), Mode: new("fail")}
	group.ReschedulePolicy = &api.ReschedulePolicy{Attempts: new(0), Unlimited: new(false)}
	return group
}

// mustRegister registers a job of a scenario, while no process is killed.
func (n *killNode) mustRegister(job *api.Job) {
	n.Helper()
	if err := n.register(job); err != nil {
		n.Fatalf("register %s: %v", *job.ID, err)
	}
}

// ranOnce returns an error until a task of an allocation has ended. It checks that the task has run once, and that the
// exit was reported with the message, or is unknown. A start that was interrupted before the first command counts as a run whose
// exit status is unknown.
func (n *killNode) ranOnce(alloc *api.AllocationListStub, message string) error {
	n.Helper()
	if !apiclient.HasTerminalClientStatus(alloc) {
		return fmt.Errorf("%s is %s: %q", alloc.ID, alloc.ClientStatus, eventMessages(alloc.TaskStates[killTask]))
	}
	record, err := os.ReadFile(n.allocPath(alloc.ID, "data/record"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		n.Fatal(err)
	}
	messages := eventMessages(alloc.TaskStates[killTask])
	reported := func(text string) bool {
		return slices.ContainsFunc(messages, func(m string) bool { return strings.Contains(m, text) })
	}
	unknown := reported("exit status unknown")
	if starts := strings.Count(string(record), "start\n"); starts > 1 || !unknown && (starts == 0 || !reported(message)) {
		n.Fatalf("%s, group %s: %d runs, want one with %q: %q", alloc.ID, alloc.TaskGroup, starts, message, messages)
	}
	return nil
}

// isStartInterrupted reports whether the driver died while it started the task of an allocation, before the first command.
// By the rule for such starts the task counts as executed, with an unknown exit status, and the allocation fails.
func (n *killNode) isStartInterrupted(alloc *api.AllocationListStub) bool {
	_, err := os.Stat(n.allocPath(alloc.ID, "data/record"))
	return alloc.ClientStatus == api.AllocClientStatusFailed && errors.Is(err, os.ErrNotExist) &&
		systemtest.HasEventText(alloc.TaskStates[killTask], "exit status unknown")
}

// allocsOf returns the allocations of a job, which must be as many as count.
func (n *killNode) allocsOf(job string, count int) ([]*api.AllocationListStub, error) {
	list, _, err := n.client.Jobs().Allocations(job, true, nil)
	if err == nil && len(list) != count {
		err = fmt.Errorf("%d allocations of %s, want %d", len(list), job, count)
	}
	return list, err
}

const (
	slowChunks    = 20
	slowChunkSize = 8 << 10
	slowPause     = 100 * time.Millisecond
)

// slowChunk returns a part of the artifact with a name.
func slowChunk(name string, i int) []byte {
	line := fmt.Sprintf("%s %d\n", name, i)
	return []byte(strings.Repeat(line, slowChunkSize/len(line)))
}

// serveSlowly serves the artifact of the request's path in seconds.
func serveSlowly(w http.ResponseWriter, r *http.Request) {
	for i := range slowChunks {
		if _, err := w.Write(slowChunk(r.URL.Path, i)); err != nil {
			return
		}
		w.(http.Flusher).Flush()
		time.Sleep(slowPause)
	}
}

// startArtifacts starts tasks whose artifacts are downloaded while processes are killed. Each task records the checksum of what
// it has found.
func startArtifacts(n *killNode, random *rand.Rand, job string) func() error {
	const count = 3
	driver := rawexec.Name
	if needsRootAgent(n) && random.IntN(2) == 0 {
		driver = execdriver.Name
	}
	group := newScenarioGroup(n, "g", driver, count, 64, `cd $NOMAD_TASK_DIR; ls -A >>$NOMAD_ALLOC_DIR/data/files; sha256sum <artifact >>$NOMAD_ALLOC_DIR/data/sum`)
	group.Tasks[0].Artifacts = []*api.TaskArtifact{{GetterSource: new(n.fileServer + "/slow/" + job + "/artifact")}}
	n.mustRegister(api.NewBatchJob(job, job, api.GlobalRegion, 50).AddTaskGroup(group))
	sum := sha256.New()
	for i := range slowChunks {
		sum.Write(slowChunk("/slow/"+job+"/artifact", i))
	}
	want := fmt.Sprintf("%x  -\n", sum.Sum(nil))
	return func() error {
		list, err := n.allocsOf(job, count)
		for _, alloc := range list {
			if err == nil {
				err = n.ranOnce(alloc, "Exit Code: 0")
			}
			if err != nil {
				return err
			}
			if n.isStartInterrupted(alloc) {
				continue
			}
			files, _ := os.ReadFile(n.allocPath(alloc.ID, "data/files")) // the comparison reports a missing file
			got, _ := os.ReadFile(n.allocPath(alloc.ID, "data/sum"))
			if string(got) != want || string(files) != "artifact\n" {
				n.Fatalf("%s: the task has found the files %q, the artifact has the checksum %q, want %q", alloc.ID, files, got, want)
			}
		}
		return err
	}
}

// startCanaries updates a running job. The update has a canary, which the scenario promotes when it is healthy.
func startCanaries(n *killNode, random *rand.Rand, job string) func() error {
	const count = 2
	newVersion := func(version string) *api.Job {
		group := newScenarioGroup(n, "g", rawexec.Name, count, 32, "trap 'exit 0' TERM INT; while :; do sleep 1; done # "+version)
		group.Update = &api.UpdateStrategy{
			Canary: new(1), MaxParallel: new(count), MinHealthyTime: new(300 * time.Millisecond),
			HealthyDeadline: new(5 * time.Minute), ProgressDeadline: new(10 * time.Minute), AutoPromote: new(false), AutoRevert: new(false),
		}
		return api.NewServiceJob(job, job, api.GlobalRegion, 50).AddTaskGroup(group)
	}
	n.mustRegister(newVersion("first"))
	n.waitNoError("the first version of "+job+" is deployed", func() error {
		d, _, err := n.client.Jobs().LatestDeployment(job, nil)
		if err == nil && (d == nil || d.Status != api.DeploymentStatusSuccessful) {
			err = fmt.Errorf("deployment %v", d)
		}
		return err
	})
	n.mustRegister(newVersion("second"))
	return func() error {
		d, _, err := n.client.Jobs().LatestDeployment(job, nil)
		if err != nil {
			return err
		}
		if d == nil || d.JobVersion != 1 {
			return fmt.Errorf("deployment %v", d)
		}
		if state := d.TaskGroups["g"]; d.Status == api.DeploymentStatusRunning && !state.Promoted && state.HealthyAllocs == 1 {
			if _, _, err := n.client.Deployments().PromoteAll(d.ID, nil); err != nil {
				return err
			}
		}
		if d.Status == api.DeploymentStatusFailed || d.Status == api.DeploymentStatusCancelled {
			return n.checkFailedDeployment(d)
		}
		if d.Status != api.DeploymentStatusSuccessful {
			return fmt.Errorf("deployment %s: %s, %+v", d.Status, d.StatusDescription, d.TaskGroups["g"])
		}
		list, err := n.allocsOf(job, 2*count)
		if err != nil {
			return err
		}
		return n.checkVersions(list, count)
	}
}

// checkFailedDeployment checks that a deployment failed because a start was interrupted, and that no task ran twice.
func (n *killNode) checkFailedDeployment(d *api.Deployment) error {
	list, _, err := n.client.Jobs().Allocations(d.JobID, true, nil)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(list, func(a *api.AllocationListStub) bool { return a.JobVersion == 1 && n.isStartInterrupted(a) }) {
		n.Fatalf("deployment of %s: %s: %s", d.JobID, d.Status, d.StatusDescription)
	}
	for _, alloc := range list {
		record, _ := os.ReadFile(n.allocPath(alloc.ID, "data/record")) // the record of an interrupted start is missing
		if strings.Count(string(record), "start\n") > 1 {
			n.Fatalf("%s, version %d: record %q; %q", alloc.ID, alloc.JobVersion, record, eventMessages(alloc.TaskStates[killTask]))
		}
	}
	return nil
}

// checkVersions checks that the tasks of the second version of a job run, and the tasks of the first version have ended, each
// after one run.
func (n *killNode) checkVersions(list []*api.AllocationListStub, count int) error {
	running := 0
	for _, alloc := range list {
		record, _ := os.ReadFile(n.allocPath(alloc.ID, "data/record")) // the comparison reports a missing file
		if len(record) == 0 {
			return fmt.Errorf("%s, version %d has not executed its first command", alloc.ID, alloc.JobVersion)
		}
		if string(record) != "start\n" {
			n.Fatalf("%s, version %d: record %q; %q", alloc.ID, alloc.JobVersion, record, eventMessages(alloc.TaskStates[killTask]))
		}
		switch {
		case alloc.ClientStatus == api.AllocClientStatusFailed:
			n.Fatalf("%s, version %d has failed: %q", alloc.ID, alloc.JobVersion, eventMessages(alloc.TaskStates[killTask]))
		case alloc.JobVersion == 0 && !apiclient.HasTerminalClientStatus(alloc):
			return fmt.Errorf("%s of the first version is %s", alloc.ID, alloc.ClientStatus)
		case alloc.JobVersion == 1 && alloc.ClientStatus == api.AllocClientStatusRunning:
			running++
		}
	}
	if running != count {
		return fmt.Errorf("%d allocations of the second version run, want %d", running, count)
	}
	return nil
}

// startMemoryPressure starts tasks that exceed their memory, and a task beside them that uses almost all of its memory.
func startMemoryPressure(n *killNode, random *rand.Rand, job string) func() error {
	const count = 3
	driver := rawexec.Name
	if random.IntN(2) == 0 {
		driver = execdriver.Name
	}
	pause := fmt.Sprintf("sleep %d.%d; ", random.IntN(3), random.IntN(10))
	exceeding := newScenarioGroup(n, "exceeding", driver, count, 32, pause+`x=$(head -c 200000000 /dev/zero | tr '\0' x)`)
	using := newScenarioGroup(n, "using", driver, 1, 96, `x=$(head -c 20000000 /dev/zero | tr '\0' x); while [ ! -e $NOMAD_ALLOC_DIR/data/go ]; do sleep 0.3; done`)
	n.mustRegister(api.NewBatchJob(job, job, api.GlobalRegion, 50).AddTaskGroup(exceeding).AddTaskGroup(using))
	return func() error {
		list, err := n.allocsOf(job, count+1)
		if err != nil {
			return err
		}
		// The task beside the others ends after them.
		slices.SortFunc(list, func(a, b *api.AllocationListStub) int { return strings.Compare(a.TaskGroup, b.TaskGroup) })
		for _, alloc := range list {
			message := "OOM Killed"
			if alloc.TaskGroup == "using" {
				message = "Exit Code: 0"
				if err := os.WriteFile(n.allocPath(alloc.ID, "data/go"), nil, 0o644); err != nil {
					return err
				}
			}
			if err := n.ranOnce(alloc, message); err != nil {
				return err
			}
		}
		return nil
	}
}

// startUnhealthyDevices makes all devices unhealthy, and starts a task that needs one. It starts when the devices are healthy
// again; running tasks keep their devices.
func startUnhealthyDevices(n *killNode, _ *rand.Rand, job string) func() error {
	if err := os.Rename(n.deviceNode(), n.hiddenDeviceNode()); err != nil {
		n.Fatal(err)
	}
	n.waitNoError("all devices are unhealthy", n.devicesUnhealthy)
	group := newScenarioGroup(n, "g", killDevices.in(n).driver, 1, 64, `echo x >$WIDGET_DEVICES || exit 3`)
	requestKillDevice(n, group)
	n.mustRegister(api.NewBatchJob(job, job, api.GlobalRegion, 50).AddTaskGroup(group))
	return func() error {
		if err := os.Rename(n.hiddenDeviceNode(), n.deviceNode()); err != nil && !errors.Is(err, os.ErrNotExist) {
			n.Fatal(err)
		}
		list, err := n.allocsOf(job, 1)
		if err != nil {
			return err
		}
		return n.ranOnce(list[0], "Exit Code: 0")
	}
}

// devicesUnhealthy returns an error until the agent reports all devices as unhealthy.
func (n *killNode) devicesUnhealthy() error {
	nodes, _, err := n.client.Nodes().List(nil)
	if err != nil {
		return err
	}
	node, _, err := n.client.Nodes().Info(nodes[0].ID, nil)
	if err != nil {
		return err
	}
	for _, group := range node.NodeResources.Devices {
		for _, device := range group.Instances {
			if device.Healthy {
				return fmt.Errorf("device %s is healthy", device.ID)
			}
		}
	}
	return nil
}

// startClockStep steps the clock of the machine by up to 30 seconds, and back after a few seconds.
func startClockStep(n *killNode, random *rand.Rand, _ string) func() error {
	by := time.Duration(random.Int64N(int64(2*maxClockStep))) - maxClockStep
	step := exec.Command("step-clock", by.String(), clockStepTime.String())
	step.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // it steps the clock back also if the test is interrupted
	if err := step.Start(); err != nil {
		n.Fatal(err)
	}
	n.Logf("the clock is stepped by %v for %v", by, clockStepTime)
	return step.Wait
}

const (
	maxClockStep  = 30 * time.Second
	clockStepTime = 4 * time.Second
)
