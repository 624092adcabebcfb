package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/moby/moby/client"

	"github.com/nomad-lite/nomad-lite/builtin/docker/dockertest"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/endurance"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// TestScale runs many tasks of each isolating driver on one machine. They start, continue when the agent and
// all plugins are killed, are adopted by the next agent, and stop; nothing is left. It prints figures of the driver
// beside those of as many tasks of raw_exec. The machine must do nothing else.
//
//	make test-scale
func TestScale(t *testing.T) {
	if endurance.CurrentMode() == endurance.Sample {
		t.Skip("runs with make test-scale")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root, to isolate tasks")
	}
	loads := []scaleLoad{
		{driver: "docker", count: 50},
		{driver: "exec", count: 200},
		{driver: "exec", count: 100, networkMode: "bridge"},
		{driver: "docker", count: 25, networkMode: "bridge"},
	}
	run := endurance.Start(t, endurance.Config{Unit: fmt.Sprintf("of %d loads", len(loads)), Load: "25 to 200 tasks"})
	run.Each(func(seed uint64) error {
		load := loads[(seed-1)%uint64(len(loads))]
		passed := t.Run(fmt.Sprintf("%v, seed %d", load, seed), func(t *testing.T) {
			if load.driver == "docker" {
				load.engine = dockertest.StartOrSkip(t)
			}
			compareScale(t, load)
		})
		if !passed {
			return fmt.Errorf("%d tasks of %v", load.count, load)
		}
		run.Add(1)
		return nil
	})
}

// scaleLoad is what an agent runs at once.
type scaleLoad struct {
	driver      string
	count       int                // groups of one task
	networkMode string             // of the groups; empty means the network of the machine
	engine      *dockertest.Engine // of the driver docker
}

func (l scaleLoad) String() string {
	name := l.driver
	if l.networkMode != "" {
		name += ", " + l.networkMode
	}
	return name
}

// config returns the configuration of an agent with the driver.
func (l scaleLoad) config() string {
	config := "client {\n  bridge_network_name = \"scale\"\n}\nplugin \"exec\" {}\n"
	if l.engine != nil {
		config += fmt.Sprintf("plugin \"docker\" {\n  config {\n    endpoint = %q\n    gc {\n      image = false\n    }\n  }\n}\n", l.engine.Host)
	}
	return config
}

// job returns a job with count groups, whose task runs a script.
func (l scaleLoad) job(id, kind string, count int, script string) *api.Job {
	task := api.NewTask("t", l.driver).SetConfig("command", "/bin/sh").SetConfig("args", []string{"-c", script})
	if l.driver == "docker" {
		task.SetConfig("image", dockertest.Image)
	}
	task.Resources = &api.Resources{CPU: new(1), MemoryMB: new(30)}
	task.LogConfig = &api.LogConfig{MaxFiles: new(1), MaxFileSizeMB: new(1)}
	group := api.NewTaskGroup("g", count).AddTask(task)
	group.RestartPolicy = &api.RestartPolicy{Attempts: new(0), Mode: new("fail")}
	group.ReschedulePolicy = &api.ReschedulePolicy{Attempts: new(0), Unlimited: new(false)}
	if l.networkMode != "" {
		group.Networks = []*api.NetworkResource{{Mode: l.networkMode, DynamicPorts: []api.Port{{Label: "http", To: 8080}}}}
	}
	job := api.NewServiceJob(id, id, api.GlobalRegion, 50)
	job.Type = &kind
	return job.AddTaskGroup(group)
}

// scaleFigures are the durations and the memory of one load.
type scaleFigures struct {
	start, adopt, stop, clean time.Duration
	memoryMB                  float64 // of all tasks, in processes of nomad-lite
}

// compareScale prints the figures of a load beside those of as many tasks of raw_exec.
func compareScale(t *testing.T, load scaleLoad) {
	const row = "%-22s %12s %10s %10s %14s %16s\n"
	table := fmt.Sprintf(row, "", "starts per s", "adopt ms", "stop ms", "all removed ms", "kB per task")
	for _, l := range []scaleLoad{load, {driver: "raw_exec", count: load.count}} {
		figures := measureScale(t, l)
		if t.Failed() {
			return
		}
		number := func(format string, v float64) string { return fmt.Sprintf(format, v) }
		table += fmt.Sprintf(row, fmt.Sprintf("%d %v", l.count, l), number("%.1f", float64(l.count)/figures.start.Seconds()),
			number("%.0f", systemtest.Milliseconds(figures.adopt)), number("%.0f", systemtest.Milliseconds(figures.stop)), number("%.0f", systemtest.Milliseconds(figures.clean)),
			number("%.0f", figures.memoryMB*1000/float64(l.count)))
	}
	t.Log("\n" + table)
}

func measureScale(t *testing.T, load scaleLoad) scaleFigures {
	t.Helper()
	before := machineState(t, load.engine)
	r := &scaleRun{T: t, load: load, dir: t.TempDir()}
	r.startTasks()
	r.killAgentAndPlugins()
	r.adoptTasks()
	r.stopTasks()
	r.agent.end(t, syscall.SIGTERM)
	systemtest.AssertDataDirProcessesExit(t, r.dir)
	assertMachineState(t, load.engine, before)
	return r.figures
}

// scaleRun runs the tasks of a load, and one task that ends while no agent runs.
type scaleRun struct {
	*testing.T
	load    scaleLoad
	dir     string // data directory of the agent
	agent   *benchAgent
	figures scaleFigures

	// allocations, their processes, and the containers with their names
	endingID   string
	many       []string
	processes  map[string][]osprocess.ID
	containers map[string]string
}

func (r *scaleRun) startTasks() {
	r.Helper()
	const settleDelay = 10 * time.Second
	r.agent = startBenchAgent(r, r.dir, r.load.config())
	r.register(r.load.job("ends", api.JobTypeBatch, 1, "while [ ! -e $NOMAD_ALLOC_DIR/data/go ]; do sleep 0.2; done; exit 7"))
	r.agent.waitStatus(r, "ends", 1, api.AllocClientStatusRunning)
	one := r.agent.measureMemoryMB(r, settleDelay)

	began := time.Now()
	r.register(r.load.job("many", api.JobTypeService, r.load.count, systemtest.SleepForeverScript))
	r.agent.waitStatus(r, "many", r.load.count, api.AllocClientStatusRunning)
	r.figures.start = time.Since(began)
	r.figures.memoryMB = r.agent.measureMemoryMB(r, settleDelay) - one

	r.endingID, r.many = r.allocsOf("ends")[0], r.allocsOf("many")
	r.processes = r.waitTaskProcesses("each task has its shell and its sleep", func(now map[string][]osprocess.ID) bool {
		return !slices.ContainsFunc(r.many, func(id string) bool { return len(now[id]) != 2 })
	})
	r.containers = containerIDs(r.T, r.load.engine)
}

func (r *scaleRun) killAgentAndPlugins() {
	r.Helper()
	r.agent.end(r, syscall.SIGKILL)
	processes := systemtest.GroupProcessesByKind(systemtest.FindDataDirProcesses(r.dir))
	plugins := slices.Concat(processes["plugin"], processes[systemtest.OnDemandPluginKind])
	if len(plugins) == 0 {
		r.Fatal("no plugin runs")
	}
	for _, p := range plugins {
		if err := p.Signal(syscall.SIGKILL); err != nil {
			r.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(r.dir, "alloc", r.endingID, "alloc/data/go"), nil, 0o644); err != nil {
		r.Fatal(err)
	}
	r.waitTaskProcesses("the task ends without an agent", func(now map[string][]osprocess.ID) bool { return len(now[r.endingID]) == 0 })
}

// adoptTasks starts the next agent, and asserts that it has the same tasks.
func (r *scaleRun) adoptTasks() {
	r.Helper()
	began := time.Now()
	r.agent = startBenchAgent(r, r.dir, r.load.config())
	r.agent.waitStatus(r, "many", r.load.count, api.AllocClientStatusRunning)
	r.waitAdopted()
	r.figures.adopt = time.Since(began)

	r.assertExitCode(r.endingID, 7)
	processes := r.taskProcesses()
	for _, id := range r.many {
		if !slices.Equal(processes[id], r.processes[id]) {
			r.Errorf("%v: the task of allocation %s has the processes %v, before %v", r.load, id, processes[id], r.processes[id])
		}
	}
	containers := containerIDs(r.T, r.load.engine)
	for id, name := range r.containers {
		// The agent removes the containers of the allocation that has ended.
		if containers[id] == "" && !strings.Contains(name, r.endingID) {
			r.Errorf("%v: the container %s, %s, is gone", r.load, id, name)
		}
	}
	r.assertExec(r.many[len(r.many)/2])
}

// stopTasks stops the tasks, and waits until nothing has the id of an allocation or of a container.
func (r *scaleRun) stopTasks() {
	r.Helper()
	began := time.Now()
	r.figures.stop = r.agent.stopJob(r, "many", r.load.count)
	for _, id := range []string{"many", "ends"} {
		if _, _, err := r.agent.client.Jobs().Deregister(id, true, nil); err != nil {
			r.Fatal(err)
		}
	}
	waitNothingLeft(r.T, r.dir, slices.Concat([]string{r.endingID}, r.many, slices.Collect(maps.Keys(r.containers))))
	r.figures.clean = time.Since(began)
}

func (r *scaleRun) register(job *api.Job) {
	r.Helper()
	if _, _, err := r.agent.client.Jobs().Register(job, nil); err != nil {
		r.Fatal(err)
	}
}

// allocsOf returns the ids of the allocations of a job.
func (r *scaleRun) allocsOf(job string) (ids []string) {
	r.Helper()
	allocs, _, err := r.agent.client.Jobs().Allocations(job, false, nil)
	if err != nil || len(allocs) == 0 {
		r.Fatalf("allocations of %s: %v, %v", job, allocs, err)
	}
	for _, alloc := range allocs {
		ids = append(ids, alloc.ID)
	}
	return ids
}

// waitAdopted waits until the driver has all tasks. It sends a signal that has no effect to each of them: the
// status alone is that of the state, which the agent has before the drivers recover the tasks.
func (r *scaleRun) waitAdopted() {
	r.Helper()
	next := make(chan string)
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for id := range next {
				if err := r.signalUntilAdopted(id); err != nil {
					r.Errorf("allocation %s is not adopted: %v", id, err)
				}
			}
		})
	}
	for _, id := range r.many {
		next <- id
	}
	close(next)
	workers.Wait()
}

func (r *scaleRun) signalUntilAdopted(id string) error {
	for deadline := time.Now().Add(systemtest.WaitTimeout); ; time.Sleep(5 * time.Millisecond) {
		err := r.agent.client.Allocations().Signal(&api.Allocation{ID: id}, nil, "t", "SIGCONT")
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// assertExitCode waits for the end of a task, and asserts its exit status.
func (r *scaleRun) assertExitCode(id string, want int) {
	r.Helper()
	var state *api.TaskState
	for deadline := time.Now().Add(systemtest.WaitTimeout); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		alloc, _, err := r.agent.client.Allocations().Info(id, nil)
		if err != nil {
			r.Fatal(err)
		}
		if state = alloc.TaskStates["t"]; state.State == model.TaskDead {
			break
		}
	}
	if state.State != model.TaskDead || !systemtest.HasEventText(state, fmt.Sprintf("Exit Code: %d", want)) {
		r.Errorf("the task that ended without an agent: %s, %v", state.State, systemtest.EventTypesWithoutLimitWarnings(state.Events))
	}
}

// assertExec asserts that a command runs in a task.
func (r *scaleRun) assertExec(id string) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), systemtest.WaitTimeout)
	defer cancel()
	alloc, _, err := r.agent.client.Allocations().Info(id, nil)
	if err != nil {
		r.Fatal(err)
	}
	var out bytes.Buffer
	code, err := r.agent.client.Allocations().Exec(ctx, alloc, "t", false, []string{"/bin/sh", "-c", "echo $NOMAD_ALLOC_ID"}, strings.NewReader(""), &out, &out, nil, nil)
	if code != 0 || err != nil || strings.TrimSpace(out.String()) != id {
		r.Errorf("exec in %s: %d, %v, %s", id, code, err, out.String())
	}
}

// taskProcesses returns the processes of the tasks, by the ids of their allocations.
func (r *scaleRun) taskProcesses() map[string][]osprocess.ID {
	r.Helper()
	found := map[string][]osprocess.ID{}
	for _, pid := range allPIDs(r.T) {
		environ, err := osprocess.ReadEnv(pid)
		if err != nil {
			continue // the process has exited
		}
		for v := range bytes.SplitSeq(environ, []byte{0}) {
			if id, ok := bytes.CutPrefix(v, []byte("NOMAD_ALLOC_ID=")); ok && (string(id) == r.endingID || slices.Contains(r.many, string(id))) {
				if p, err := osprocess.LookupID(pid); err == nil && p.Alive() {
					found[string(id)] = append(found[string(id)], p)
				}
			}
		}
	}
	return found
}

func (r *scaleRun) waitTaskProcesses(what string, ok func(map[string][]osprocess.ID) bool) map[string][]osprocess.ID {
	r.Helper()
	for deadline := time.Now().Add(systemtest.WaitTimeout); ; time.Sleep(50 * time.Millisecond) {
		now := r.taskProcesses()
		if ok(now) {
			return now
		}
		if time.Now().After(deadline) {
			r.Fatalf("%s: not within %v: %v", what, systemtest.WaitTimeout, now)
		}
	}
}

func allPIDs(t *testing.T) (pids []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// containerIDs returns the names of all containers of an engine by their ids, those that have exited, too.
func containerIDs(t *testing.T, engine *dockertest.Engine) map[string]string {
	t.Helper()
	all := map[string]string{}
	if engine == nil {
		return all
	}
	list, err := engine.ContainerList(t.Context(), client.ContainerListOptions{All: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list.Items {
		all[c.ID] = strings.Join(c.Names, " ")
	}
	return all
}

// machineState returns what an agent and its tasks could leave on the machine: mounts, network interfaces, rules of
// nftables, sockets, containers and images.
func machineState(t *testing.T, engine *dockertest.Engine) []string {
	t.Helper()
	var all []string
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		const mountPoint = 4 // index of the field
		all = append(all, "mount "+strings.Fields(line)[mountPoint])
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range interfaces {
		all = append(all, "interface "+i.Name)
	}
	rules, err := exec.Command("nft", "--stateless", "list", "ruleset").Output()
	if err != nil {
		t.Fatalf("install nftables: %v", err)
	}
	for line := range strings.Lines(string(rules)) {
		all = append(all, "rule "+strings.TrimSpace(line))
	}
	sockets, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(sockets)) {
		const flags, path, listening = 3, 7, "00010000" // indices of fields; sockets without a name have fewer fields
		if fields := strings.Fields(line); len(fields) > path && fields[flags] == listening {
			all = append(all, "socket "+fields[path])
		}
	}
	if engine == nil {
		return all
	}
	images, err := engine.ImageList(t.Context(), client.ImageListOptions{All: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range images.Items {
		if slices.Contains(image.RepoTags, "nomad-lite/pause:1") {
			continue // the driver keeps the image of the containers that hold networks
		}
		all = append(all, fmt.Sprint("image ", image.ID, image.RepoTags))
	}
	for id, name := range containerIDs(t, engine) {
		all = append(all, fmt.Sprint("container ", id, name))
	}
	return all
}

// waitNothingLeft waits until nothing on the machine has one of the ids of allocations and containers.
func waitNothingLeft(t *testing.T, dir string, ids []string) {
	t.Helper()
	var left []string
	for deadline := time.Now().Add(systemtest.WaitTimeout); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if left = leftovers(t, dir, ids); len(left) == 0 {
			return
		}
	}
	t.Errorf("%d are left: %q", len(left), left[:min(20, len(left))])
}

// leftovers returns the processes, cgroups, network namespaces and directories of allocations that have one of the ids.
func leftovers(t *testing.T, dir string, ids []string) (left []string) {
	t.Helper()
	named := func(text string) bool {
		return slices.ContainsFunc(ids, func(id string) bool { return strings.Contains(text, id) })
	}
	for _, pid := range allPIDs(t) {
		environ, _ := osprocess.ReadEnv(pid)
		args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if named(string(environ)) || named(string(args)) {
			left = append(left, fmt.Sprintf("process %d %q", pid, args))
		}
	}
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && named(entry.Name()) {
			left = append(left, path)
		}
		return nil // a cgroup that was removed meanwhile is not left
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, parent := range []string{"/run/netns", filepath.Join(dir, "alloc")} {
		entries, err := os.ReadDir(parent)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		for _, entry := range entries {
			if named(entry.Name()) {
				left = append(left, filepath.Join(parent, entry.Name()))
			}
		}
	}
	return left
}

// assertMachineState waits until the machine has nothing that it did not have before.
func assertMachineState(t *testing.T, engine *dockertest.Engine, before []string) {
	t.Helper()
	var left []string
	for deadline := time.Now().Add(systemtest.WaitTimeout); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		left = machineState(t, engine)
		for _, entry := range before {
			if i := slices.Index(left, entry); i >= 0 {
				left = slices.Delete(left, i, i+1)
			}
		}
		if len(left) == 0 {
			return
		}
	}
	t.Errorf("%d are left: %q", len(left), left[:min(20, len(left))])
}
