package bench

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
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
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/agentsocket"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest/programs"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/hook/hookwire"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
)

// buildBenchBinary builds the measured program. It is removed after all benchmarks.
var buildBenchBinary = sync.OnceValues(func() (path string, err error) {
	if benchBinaryDir, err = os.MkdirTemp("", "nomad-lite-bench"); err != nil {
		return "", err
	}
	return systemtest.BuildReleasedProgram(benchBinaryDir)
})

var benchBinaryDir string

// benchCommand returns a command of the measured program.
func benchCommand(b testing.TB, args ...string) *exec.Cmd {
	b.Helper()
	path, err := buildBenchBinary()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Args[0] = "nomad-lite"
	return cmd
}

// benchAgent is an agent in a process of its own.
type benchAgent struct {
	*exec.Cmd
	dir           string
	client        *api.Client
	startDuration time.Duration     // time from the start of the program until jobs can be placed
	logDone       chan struct{}     // closed when the whole log of the agent was read
	jobMeta       map[string]string // meta block of the jobs that are registered next
	env           map[string]string // env block of the jobs that are registered next
	driver        string            // driver of the jobs that are registered next; empty means raw_exec
	bridge        bool              // the allocations of the jobs that are registered next have a network of their own

	networksBefore int // number of named network namespaces before the agent
}

const benchConfig = `
ports {
  http = 0
}
client {
  cpu_total_compute = 1000000
  memory_total_mb   = 1000000
  disk_total_mb     = 10000000
  gc_max_allocs     = 100000

  gc_disk_usage_threshold = 99 # however full this machine is
}
plugin "raw_exec" {
  config {
    enabled = true
  }
}
`

// startBenchAgent starts an agent. The strings in more are appended to its configuration.
func startBenchAgent(b testing.TB, dir string, more ...string) *benchAgent {
	b.Helper()
	config := filepath.Join(b.TempDir(), "agent.hcl")
	if err := os.WriteFile(config, []byte(benchConfig+strings.Join(more, "")), 0o600); err != nil {
		b.Fatal(err)
	}
	a := &benchAgent{Cmd: benchCommand(b, "agent", "-config", config, "-data-dir", dir), dir: dir, logDone: make(chan struct{}), networksBefore: countNetworkNamespaces()}
	a.Env = append(os.Environ(), systemtest.WorkDirEnvVar+"="+dir)
	stderr, err := a.StderrPipe()
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { // if the benchmark has failed, the agent still runs
		for _, p := range systemtest.FindDataDirProcesses(dir) {
			_ = p.Signal(syscall.SIGKILL)
		}
		_ = allocdir.UnmountAndRemoveOwnDir(dir)
	})
	began := time.Now()
	if err := a.Start(); err != nil {
		b.Fatal(err)
	}
	log := bufio.NewScanner(stderr)
	for log.Scan() {
		if strings.Contains(log.Text(), "agent is ready") {
			a.startDuration = time.Since(began)
			break
		}
	}
	if a.startDuration == 0 {
		b.Fatal("the agent is not ready")
	}
	go func() {
		defer close(a.logDone)
		for log.Scan() {
		}
	}()
	if a.client, err = api.NewClient(&api.Config{Address: "unix://" + filepath.Join(dir, agentsocket.FileName)}); err != nil {
		b.Fatal(err)
	}
	return a
}

// node returns the node of the agent.
func (a *benchAgent) node(b testing.TB) *api.Node {
	b.Helper()
	nodes, _, err := a.client.Nodes().List(nil)
	if err != nil {
		b.Fatal(err)
	}
	node, _, err := a.client.Nodes().Info(nodes[0].ID, nil)
	if err != nil {
		b.Fatal(err)
	}
	return node
}

// end sends a signal to the agent and waits until the agent exits.
func (a *benchAgent) end(b testing.TB, signal syscall.Signal) {
	b.Helper()
	a.client.Close()
	if err := a.Process.Signal(signal); err != nil {
		b.Fatal(err)
	}
	<-a.logDone
	_ = a.Wait() // Wait returns an error for a killed agent
}

// run registers a job with count allocations of one task.
func (a *benchAgent) run(b testing.TB, kind, id string, count int, argv ...string) {
	b.Helper()
	job := api.NewServiceJob(id, id, "global", 50)
	job.Type, job.Meta = &kind, a.jobMeta
	task := api.NewTask("t", cmp.Or(a.driver, "raw_exec")).SetConfig("command", argv[0]).SetConfig("args", argv[1:])
	task.Env = a.env
	cpu := 100 // Nomad's default
	if count > 1 {
		cpu = 1 // hundreds of such tasks must fit on the node
	}
	task.Resources = &api.Resources{CPU: &cpu, MemoryMB: new(10)}
	if a.driver == "exec" {
		task.KillSignal = "SIGKILL" // the first process of a PID namespace ignores other signals without a handler
	}
	group := api.NewTaskGroup("g", count).AddTask(task)
	group.RestartPolicy = &api.RestartPolicy{Attempts: new(1000), Interval: new(time.Hour), Delay: new(time.Duration(0)), Mode: new("fail")}
	if a.bridge {
		group.Networks = []*api.NetworkResource{{Mode: "bridge"}}
	}
	job.AddTaskGroup(group)
	if _, _, err := a.client.Jobs().Register(job, nil); err != nil {
		b.Fatal(err)
	}
}

// waitStatus waits until all allocations of a job have a status, and returns the time that this
// took.
func (a *benchAgent) waitStatus(b testing.TB, id string, count int, status string) time.Duration {
	b.Helper()
	return systemtest.WaitJobStatus(b, a.client, id, count, status)
}

// stopJob stops a job and returns the time that this took.
func (a *benchAgent) stopJob(b testing.TB, id string, count int) time.Duration {
	b.Helper()
	began := time.Now()
	if _, _, err := a.client.Jobs().Deregister(id, false, nil); err != nil {
		b.Fatal(err)
	}
	a.waitStatus(b, id, count, api.AllocClientStatusComplete)
	took := time.Since(began)
	if a.bridge {
		a.waitNetworksRemoved(b)
	}
	return took
}

// waitNetworksRemoved waits until there are no more named network namespaces than before the agent. An agent that exits leaves
// the networks of ended allocations to the next one, and here the next one has another data directory: hundreds of interfaces
// slow down everything that is measured afterwards.
func (a *benchAgent) waitNetworksRemoved(b testing.TB) {
	b.Helper()
	for deadline := time.Now().Add(time.Minute); countNetworkNamespaces() > a.networksBefore; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.Fatalf("%d network namespaces, and %d before the agent", countNetworkNamespaces(), a.networksBefore)
		}
	}
}

func countNetworkNamespaces() int {
	names, _ := os.ReadDir("/run/netns") // absent if no namespace ever had a name
	return len(names)
}

// forkPrograms starts count programs, one after the other, and returns the time that this took. end
// stops them, and returns the time that this took. They are the baselines for starting and stopping
// tasks.
func forkPrograms(b *testing.B, count int, argv ...string) (took time.Duration, end func() time.Duration) {
	b.Helper()
	began := time.Now()
	var all []*exec.Cmd
	for range count {
		cmd := exec.Command(argv[0], argv[1:]...)
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		all = append(all, cmd)
	}
	return time.Since(began), func() time.Duration {
		began := time.Now()
		for _, cmd := range all {
			_ = cmd.Process.Signal(syscall.SIGTERM)
		}
		for _, cmd := range all {
			_ = cmd.Wait() // the process was signalled
		}
		return time.Since(began)
	}
}

// createAllocDirs creates the directories and files of count allocations with one task, and
// returns the time that this took.
func createAllocDirs(b *testing.B, count int) time.Duration {
	b.Helper()
	root := b.TempDir()
	if err := allocdir.SpreadAllocDirs(root); err != nil {
		b.Fatal(err)
	}
	began := time.Now()
	for i := range count {
		for _, name := range []string{"alloc/data", "alloc/tmp", "alloc/logs", "t/local", "t/private", "t/secrets", "t/tmp"} {
			if err := os.MkdirAll(filepath.Join(root, strconv.Itoa(i), name), 0o755); err != nil {
				b.Fatal(err)
			}
		}
		for _, name := range []string{"t.stdout.0", "t.stderr.0", ".t.stdout.fifo", ".t.stderr.fifo"} {
			if err := os.WriteFile(filepath.Join(root, strconv.Itoa(i), "alloc/logs", name), nil, 0o600); err != nil {
				b.Fatal(err)
			}
		}
	}
	return time.Since(began)
}

// measureNoopCommand returns the start time of the program with a command that does nothing.
func measureNoopCommand(b *testing.B) float64 {
	b.Helper()
	return systemtest.Milliseconds(measureTime(b, benchCommand(b, "version").Run))
}

// BenchmarkAgentReady measures the time from exec until jobs can be placed, with an empty
// data directory and with a used one.
func BenchmarkAgentReady(b *testing.B) {
	measureNoopCommand(b) // the first run loads the program into the page cache
	stoppedJobs := b.TempDir()
	a := startBenchAgent(b, stoppedJobs)
	for i := range sized(1000) {
		id := fmt.Sprint("stopped-", i)
		a.run(b, "service", id, 0, "/bin/true")
		if _, _, err := a.client.Jobs().Deregister(id, false, nil); err != nil {
			b.Fatal(err)
		}
	}
	a.end(b, syscall.SIGINT)
	for b.Loop() {
		dir, floor := b.TempDir(), measureNoopCommand(b)
		for _, name := range []string{"ready, fresh", "ready, warm"} {
			a := startBenchAgent(b, dir)
			addBenchSample(b, name, systemtest.Milliseconds(a.startDuration), floor)
			a.end(b, syscall.SIGINT)
		}
		a := startBenchAgent(b, stoppedJobs)
		addBenchSample(b, "ready, stopped jobs", systemtest.Milliseconds(a.startDuration), floor)
		a.end(b, syscall.SIGINT)
		without := startBenchAgent(b, b.TempDir())
		without.end(b, syscall.SIGINT)
		broken := startBenchAgent(b, b.TempDir(), writeBrokenPlugins(b))
		addBenchSample(b, "ready, broken plugins", systemtest.Milliseconds(broken.startDuration), systemtest.Milliseconds(without.startDuration))
		broken.end(b, syscall.SIGINT)
	}
	path, err := buildBenchBinary()
	if err != nil {
		b.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		b.Fatal(err)
	}
	addBenchSample(b, "binary", float64(info.Size())/1e6, missingBaselineValue)
}

// writeBrokenPlugins writes 20 plugins that do not start, and returns the configuration that starts them.
func writeBrokenPlugins(b *testing.B) string {
	b.Helper()
	dir := b.TempDir()
	var config strings.Builder
	fmt.Fprintf(&config, "plugin_dir = %q\n", dir)
	for i := range 20 {
		script := []string{
			"exit 3", "echo hello; exec sleep 1000", "exec sleep 1000", "echo '1|2|unix|/nonexistent/socket|grpc|'; exec sleep 1000", "kill -9 $$",
		}[i%5]
		name := fmt.Sprint("broken-", i)
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			b.Fatal(err)
		}
		fmt.Fprintf(&config, "plugin %q {}\n", name)
	}
	return config.String()
}

// BenchmarkAllocationBursts starts and stops many allocations at once. It measures the time until
// the API reports the new status of all of them.
func BenchmarkAllocationBursts(b *testing.B) {
	for b.Loop() {
		for _, count := range []int{100, 2000} {
			figure := fmt.Sprint(count)
			count = sized(count)
			rate := func(d time.Duration) float64 { return float64(count) / d.Seconds() }
			a := startBenchAgent(b, b.TempDir())
			began := time.Now()
			a.run(b, "service", "sleep", count, "/bin/sleep", "1000")
			a.waitStatus(b, "sleep", count, api.AllocClientStatusRunning)
			up := time.Since(began)
			forked, kill := forkPrograms(b, count, "/bin/sleep", "1000")
			floor, made := systemtest.Milliseconds(kill()), createAllocDirs(b, count)
			addBenchSample(b, figure+" sleeping", rate(up), rate(made+forked))
			addBenchSample(b, "stop, "+figure, systemtest.Milliseconds(a.stopJob(b, "sleep", count)), floor)

			began = time.Now()
			a.run(b, "batch", "true", count, "/bin/true")
			a.waitStatus(b, "true", count, api.AllocClientStatusComplete)
			done := time.Since(began)
			forked, wait := forkPrograms(b, count, "/bin/true")
			addBenchSample(b, figure+" complete", rate(done), rate(made+forked+wait()))

			if figure == "100" {
				a.run(b, "service", "again", count, "/bin/sleep", "1000")
				a.waitStatus(b, "again", count, api.AllocClientStatusRunning)
				a.end(b, syscall.SIGKILL)
				a = startBenchAgent(b, a.dir)
				addBenchSample(b, "stop, re-adopted", systemtest.Milliseconds(a.stopJob(b, "again", count)), floor)
			}
			a.end(b, syscall.SIGINT)
		}
	}
}

// measureFirstInstruction returns the time in milliseconds until a program that it starts has read the clock.
func measureFirstInstruction(b *testing.B) float64 {
	b.Helper()
	began := time.Now()
	out, err := exec.Command("/bin/sh", "-c", "date +%s%N").Output()
	if err != nil {
		b.Fatal(err)
	}
	return systemtest.Milliseconds(systemtest.ParseTimestamp(b, out).Sub(began))
}

// pausedStarts is the number of starts after a pause that BenchmarkOneTask measures.
const pausedStarts = 5

// BenchmarkOneTask measures the time that a user waits for one task.
func BenchmarkOneTask(b *testing.B) {
	a := startBenchAgent(b, b.TempDir())
	defer a.end(b, syscall.SIGINT)
	round := 0
	for b.Loop() {
		round++
		id, file := fmt.Sprint("one-", round), filepath.Join(b.TempDir(), "stamps")
		began := time.Now()
		a.run(b, "service", id, 1, "/bin/sh", "-c", "date +%s%N > "+file+"; exec sleep 1000")
		a.waitStatus(b, id, 1, api.AllocClientStatusRunning)
		running := time.Now()
		first := systemtest.WaitTimestamps(b, file, 1)[0]
		addBenchSample(b, "first instruction", systemtest.Milliseconds(first.Sub(began)), measureFirstInstruction(b))
		call := func() error { _, err := a.client.Status().Leader(); return err }
		addBenchSample(b, "said to run", systemtest.Milliseconds(running.Sub(first)), systemtest.Milliseconds(measureTime(b, call)))
		a.stopJob(b, id, 1)

		if round <= pausedStarts {
			settle(4 * time.Second) // after a second without work, the processes of a node return memory
			began, id = time.Now(), id+"-paused"
			paused := filepath.Join(b.TempDir(), "stamps")
			a.run(b, "service", id, 1, "/bin/sh", "-c", "date +%s%N > "+paused+"; exec sleep 1000")
			a.waitStatus(b, id, 1, api.AllocClientStatusRunning)
			first := systemtest.WaitTimestamps(b, paused, 1)[0]
			took := first.Sub(began)
			a.stopJob(b, id, 1)
			settle(4 * time.Second) // a machine that did nothing starts a program later, too
			addBenchSample(b, "first instruction, pause", systemtest.Milliseconds(took), measureFirstInstruction(b))
		}

		id, file = fmt.Sprint("crash-", round), filepath.Join(b.TempDir(), "stamps")
		a.run(b, "service", id, 1, "/bin/sh", "-c", "date +%s%N >> "+file)
		times := systemtest.WaitTimestamps(b, file, 11)
		var restartDelays, baselines []float64
		for i := range times[1:] {
			restartDelays = append(restartDelays, systemtest.Milliseconds(times[i+1].Sub(times[i])))
			baselines = append(baselines, systemtest.Milliseconds(measureTime(b, exec.Command("/bin/sh", "-c", "date +%s%N").Run)))
		}
		addBenchSample(b, "respawn", systemtest.Median(restartDelays), systemtest.Median(baselines))
		a.stopJob(b, id, 1)
	}
}

// measureUnaryCall returns the duration of a gRPC call to a hook that does nothing, over a unix
// socket within this process.
func measureUnaryCall(b *testing.B) float64 {
	b.Helper()
	l, err := net.Listen("unix", filepath.Join(b.TempDir(), "s"))
	if err != nil {
		b.Fatal(err)
	}
	server := grpc.NewServer()
	hookwire.RegisterServer(server, nil, programs.NoopHookPlugin{})
	go func() { _ = server.Serve(l) }() // the server runs until Stop
	defer server.Stop()
	conn, err := grpc.NewClient("unix:"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	client := hookwire.NewClient(conn, make(chan struct{}))
	var callTimes []float64
	for range 100 {
		callTimes = append(callTimes, systemtest.Milliseconds(measureTime(b, func() error {
			_, err := client.Prestart(b.Context(), hook.TaskPrestartRequest{})
			return err
		})))
	}
	return systemtest.Median(callTimes)
}

// BenchmarkHooks measures the time that hooks in processes of their own add to the start of
// a task.
func BenchmarkHooks(b *testing.B) {
	program, err := exec.LookPath("quiet-hook")
	if err != nil {
		b.Fatal(err)
	}
	plugins, blocks := b.TempDir(), ""
	for i := range 3 {
		name := fmt.Sprint("quiet", i)
		if err := os.WriteFile(filepath.Join(plugins, name), fmt.Appendf(nil, "#!/bin/sh\nexec %s %s\n", program, name), 0o755); err != nil {
			b.Fatal(err)
		}
		blocks += fmt.Sprintf("plugin %q {}\n", name)
	}
	idle := filepath.Join(plugins, "idle-hook")
	if out, err := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", idle, filepath.Join(systemtest.RepositoryDir(), "sdk/examples/sidelog")).CombinedOutput(); err != nil {
		b.Fatalf("build: %v\n%s", err, out)
	}
	if err := os.Chmod(plugins, 0o755); err != nil {
		b.Fatal(err)
	}
	a := startBenchAgent(b, b.TempDir(), fmt.Sprintf("plugin_dir = %q\nplugin \"idle-hook\" {}\n", plugins)+blocks)
	defer a.end(b, syscall.SIGINT)
	attach := func(hooks int) {
		a.jobMeta = map[string]string{}
		for i := range hooks {
			a.jobMeta[fmt.Sprint("lite_hook_quiet", i)] = ""
		}
	}
	round := 0
	// A task that exits at once is restarted repeatedly, and each restart calls Prestart.
	starts := func(hooks int) (delaysByHookCount []float64) {
		round++
		id, file := fmt.Sprint("again-", round), filepath.Join(b.TempDir(), "stamps")
		attach(hooks)
		a.run(b, "service", id, 1, "/bin/sh", "-c", "date +%s%N >> "+file)
		times := systemtest.WaitTimestamps(b, file, 41)
		a.stopJob(b, id, 1)
		for i := range times[1:] {
			delaysByHookCount = append(delaysByHookCount, systemtest.Milliseconds(times[i+1].Sub(times[i])))
		}
		return delaysByHookCount
	}
	starts(3) // this first run starts the hook plugins, and is not measured
	for b.Loop() {
		var delaysByHookCount [4][]float64
		for range 5 {
			for _, hooks := range []int{0, 1, 3} {
				delaysByHookCount[hooks] = append(delaysByHookCount[hooks], starts(hooks)...)
			}
		}
		none := systemtest.Median(delaysByHookCount[0])
		floor := measureUnaryCall(b)
		addBenchSample(b, "1 hook", systemtest.Median(delaysByHookCount[1])-none, floor)
		addBenchSample(b, "3 hooks", systemtest.Median(delaysByHookCount[3])-none, 3*floor)
		allocCount := sized(500)
		rates := [2]float64{}
		for hooks := range rates {
			round++
			id := fmt.Sprint("many-", round)
			attach(hooks)
			began := time.Now()
			a.run(b, "batch", id, allocCount, "/bin/true")
			a.waitStatus(b, id, allocCount, api.AllocClientStatusComplete)
			rates[hooks] = float64(allocCount) / time.Since(began).Seconds()
		}
		addBenchSample(b, "500 with a hook", rates[1], rates[0])
		for _, p := range systemtest.FindDataDirProcesses(a.dir) {
			if p.Kind == "idle-hook" {
				addBenchSample(b, "idle hook", float64(systemtest.ReadMemoryKiB(b, p.PID))/1000*1.024, missingBaselineValue)
			}
		}
	}
}

// BenchmarkLogFollower measures the time from the moment when a task writes a line until a client
// that follows the log has received the line.
func BenchmarkLogFollower(b *testing.B) {
	a := startBenchAgent(b, b.TempDir())
	defer a.end(b, syscall.SIGINT)
	a.run(b, "service", "lines", 1, "/bin/sh", "-c", "while :; do date +%s%N; sleep 0.05; done")
	a.waitStatus(b, "lines", 1, api.AllocClientStatusRunning)
	allocs, _, err := a.client.Jobs().Allocations("lines", false, nil)
	if err != nil {
		b.Fatal(err)
	}
	alloc, _, err := a.client.Allocations().Info(allocs[0].ID, nil)
	if err != nil {
		b.Fatal(err)
	}
	cancel := make(chan struct{})
	frames, errs := a.client.AllocFS().Logs(alloc, true, "t", api.FSLogNameStdout, api.OriginEnd, 0, cancel, nil)
	follow := func() time.Duration {
		for {
			select {
			case f := <-frames:
				if len(f.Data) > 0 {
					return time.Since(systemtest.ParseTimestamp(b, f.Data))
				}
			case err := <-errs:
				b.Fatal(err)
			}
		}
	}
	follow() // reads the existing output
	for b.Loop() {
		line := systemtest.Milliseconds(follow())
		text, err := exec.Command("/bin/sh", "-c", "date +%s%N").Output() // the baseline: a line that arrives through a pipe
		if err != nil {
			b.Fatal(err)
		}
		addBenchSample(b, "line to follower", line, systemtest.Milliseconds(time.Since(systemtest.ParseTimestamp(b, text))))
	}
	close(cancel)
	a.stopJob(b, "lines", 1)
}

// BenchmarkLogs measures the throughput of a task's output.
func BenchmarkLogs(b *testing.B) {
	a := startBenchAgent(b, b.TempDir())
	defer a.end(b, syscall.SIGINT)
	round := 0
	for b.Loop() {
		round++
		const id, blockSize = "flood", 64 << 10
		blocks := sized(16384)
		logSize := float64(blocks * blockSize)
		argv := []string{"/bin/dd", "if=/dev/zero", "bs=64k", fmt.Sprint("count=", blocks), "status=none"}
		name := fmt.Sprint(id, round)
		a.run(b, "batch", name, 1, argv...)
		a.waitStatus(b, name, 1, api.AllocClientStatusComplete)
		allocs, _, err := a.client.Jobs().Allocations(name, false, nil)
		if err != nil {
			b.Fatal(err)
		}
		state := allocs[0].TaskStates["t"]
		file := filepath.Join(b.TempDir(), "flood")
		floor := measureTime(b, exec.Command(argv[0], append(argv[1:], "of="+file)...).Run)
		addBenchSample(b, "log throughput", logSize/1e9/state.FinishedAt.Sub(state.StartedAt).Seconds(), logSize/1e9/floor.Seconds())
		if err := os.Remove(file); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkManyLogs measures how fairly the log collector moves the output of 100 tasks that write at once: how much longer the
// slowest writes than the median. The floor is that of programs that write files.
func BenchmarkManyLogs(b *testing.B) {
	a := startBenchAgent(b, b.TempDir())
	defer a.end(b, syscall.SIGINT)
	round := 0
	for b.Loop() {
		round++
		count, blocks := sized(100), sized(320) // 20 MB each
		slowest := func(start func(argv ...string), output string) float64 {
			dir := b.TempDir()
			signal, stamps := filepath.Join(dir, "go"), filepath.Join(dir, "stamps")
			script := fmt.Sprintf("echo ready >> %[2]s; until test -e %[1]s; do sleep 0.05; done; dd if=/dev/zero bs=64k count=%[3]d status=none%[4]s; date +%%s%%N >> %[2]s.ends",
				signal, stamps, blocks, strings.ReplaceAll(output, "DIR", dir))
			start("/bin/sh", "-c", script)
			for ready := 0; ready < count; time.Sleep(10 * time.Millisecond) {
				text, _ := os.ReadFile(stamps) // absent until the first is ready
				ready = bytes.Count(text, []byte("\n"))
			}
			began := time.Now()
			if err := os.WriteFile(signal, nil, 0o600); err != nil {
				b.Fatal(err)
			}
			var durations []float64
			for _, end := range systemtest.WaitTimestamps(b, stamps+".ends", count) {
				durations = append(durations, end.Sub(began).Seconds())
			}
			return slices.Max(durations) / systemtest.Median(durations)
		}
		id := fmt.Sprint("floods-", round)
		figure := slowest(func(argv ...string) { a.run(b, "batch", id, count, argv...) }, "")
		a.waitStatus(b, id, count, api.AllocClientStatusComplete)
		var wait func() time.Duration
		floor := slowest(func(argv ...string) { _, wait = forkPrograms(b, count, argv...) }, " of=DIR/$$")
		wait()
		addBenchSample(b, "log fairness", figure, floor)
	}
}

// BenchmarkExec measures the execution of a command in a task by a client of the API: the
// websocket, the driver, the process, and the answer.
func BenchmarkExec(b *testing.B) {
	a := startBenchAgent(b, b.TempDir())
	defer a.end(b, syscall.SIGINT)
	a.run(b, "service", "exec", 1, "/bin/sleep", "1000")
	a.waitStatus(b, "exec", 1, api.AllocClientStatusRunning)
	allocs, _, err := a.client.Jobs().Allocations("exec", false, nil)
	if err != nil {
		b.Fatal(err)
	}
	alloc := &api.Allocation{ID: allocs[0].ID, NodeID: allocs[0].NodeID, Namespace: allocs[0].Namespace}
	for b.Loop() {
		for _, tty := range []bool{false, true} {
			floor := systemtest.Milliseconds(measureTime(b, exec.Command("/bin/true").Run))
			took := measureTime(b, func() error {
				code, err := a.client.Allocations().Exec(b.Context(), alloc, "t", tty, []string{"/bin/true"}, strings.NewReader(""), io.Discard, io.Discard, nil, nil)
				if code != 0 {
					err = errors.Join(err, fmt.Errorf("exit code %d", code))
				}
				return err
			})
			addBenchSample(b, map[bool]string{false: "exec", true: "exec, terminal"}[tty], systemtest.Milliseconds(took), floor)
		}
	}
	a.stopJob(b, "exec", 1)
}

// BenchmarkRunToFirstInstruction measures the time from the start of `nomad-lite run` to
// the first instruction of a task.
func BenchmarkRunToFirstInstruction(b *testing.B) {
	const job = `job "bench" {
  type = "batch"
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/date"
        args    = ["+%s%N"]
      }
    }
  }
}
`
	file := filepath.Join(b.TempDir(), "bench.nomad.hcl")
	if err := os.WriteFile(file, []byte(job), 0o644); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		var runTimes []float64
		for _, cmd := range []*exec.Cmd{benchCommand(b, "run", file), exec.Command("/bin/date", "+%s%N")} {
			began := time.Now()
			out, err := cmd.Output()
			if err != nil {
				b.Fatal(err)
			}
			runTimes = append(runTimes, systemtest.Milliseconds(systemtest.ParseTimestamp(b, out).Sub(began)))
		}
		addBenchSample(b, "run", runTimes[0], runTimes[1])
	}
}

// BenchmarkRecovery kills an agent with running tasks, and measures the time from the start of
// the next agent until it has recovered all of them.
func BenchmarkRecovery(b *testing.B) {
	for _, c := range []struct {
		figure    string
		taskCount int
		victim    string
	}{
		{"recovery", 100, ""},
		{"recovery, plugin", 100, "plugin"},
		{"recovery, collector", 100, "log-collector"},
		{"recovery, another build", 100, ""},
		{"recovery, 2000", sized(2000), ""},
	} {
		b.Run(c.figure, func(b *testing.B) {
			dir := b.TempDir()
			data, programs := filepath.Join(dir, "data"), []string{"/proc/self/exe", "/proc/self/exe"}
			if strings.HasSuffix(c.figure, "build") {
				programs[1] = systemtest.CopyBinaryAsOtherBuild(b)
			}
			m := systemtest.StartKillableAgent(b, programs[0], data)
			job := strings.Replace(fmt.Sprintf(systemtest.ManyTasksJob, c.taskCount), "exec 3<> <(:); while", "exec sleep 1000; while", 1)
			m.RegisterJobs(dir, strings.Replace(job, "cpu    = 20", "cpu = 1", 1))
			m.WaitTaskCounts(c.taskCount)
			for b.Loop() {
				slices.Reverse(programs)
				m.KillAndWait()
				for _, p := range systemtest.GroupProcessesByKind(systemtest.FindDataDirProcesses(data))[c.victim] {
					_ = p.Signal(syscall.SIGKILL)
				}
				began := time.Now()
				m = systemtest.StartKillableAgent(b, programs[0], data)
				m.WaitTaskCounts(c.taskCount)
				addBenchSample(b, c.figure, systemtest.Milliseconds(time.Since(began)), measureNoopCommand(b))
			}
			m.SendExitCommandAndWait("stop")
		})
	}
}

// BenchmarkEndedAllocations measures the memory that an agent keeps per ended allocation.
func BenchmarkEndedAllocations(b *testing.B) {
	dir := b.TempDir()
	m := systemtest.StartKillableAgent(b, "/proc/self/exe", filepath.Join(dir, "data"))
	complete := func(id string, allocCount int) (heap int) {
		m.RegisterJobs(dir, fmt.Sprintf(trueCommandJob, id, allocCount))
		m.WaitTaskReport("all are complete", func(v systemtest.TaskReport) bool {
			n := 0
			for _, alloc := range v.AllocByID {
				if alloc.JobID == id && alloc.ClientStatus == api.AllocClientStatusComplete {
					n++
				}
			}
			return n == allocCount
		})
		time.Sleep(2 * time.Second) // late reports
		m.SendCommand("heap", &heap)
		return heap
	}
	round := 0
	for b.Loop() {
		round++
		// The first 1000 allocations make the agent allocate the memory that does not depend on the
		// number of ended allocations: for the allocations that run at once, and for the stored
		// events.
		allocCount := sized(1000)
		heapBefore := complete(fmt.Sprint("first-", round), allocCount)
		heapAfter := complete(fmt.Sprint("then-", round), allocCount)
		addBenchSample(b, "finished", float64(heapAfter-heapBefore)/float64(allocCount)/1000, missingBaselineValue)
	}
	m.SendExitCommandAndWait("stop")
}

// BenchmarkStateWrites counts how often the state is written in the life of a task; a write
// waits for the disk twice.
func BenchmarkStateWrites(b *testing.B) {
	dir := b.TempDir()
	m := systemtest.StartKillableAgent(b, "/proc/self/exe", filepath.Join(dir, "data"))
	round := 0
	for b.Loop() {
		round++
		for _, count := range []int{1, 100} {
			id := fmt.Sprintf("syncs-%d-%d", round, count)
			var beforeReport, afterReport systemtest.TaskReport
			m.SendCommand("states", &beforeReport)
			m.RegisterJobs(dir, fmt.Sprintf(trueCommandJob, id, count))
			m.WaitTaskReport("all are complete", func(v systemtest.TaskReport) bool {
				afterReport = v
				complete := 0
				for _, alloc := range v.AllocByID {
					if alloc.JobID == id && alloc.ClientStatus == api.AllocClientStatusComplete {
						complete++
					}
				}
				return complete == count
			})
			addBenchSample(b, fmt.Sprintf("syncs per life, %d", count), 2*float64(afterReport.StateFileWrites-beforeReport.StateFileWrites)/float64(count), missingBaselineValue)
		}
	}
	m.SendExitCommandAndWait("stop")
}

const trueCommandJob = `
job %q {
  type = "batch"
  group "g" {
    count = %d
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      resources {
        cpu    = 20
        memory = 10
      }
    }
  }
}
`

// measureTime returns the time that do takes.
func measureTime(b *testing.B, do func() error) time.Duration {
	b.Helper()
	began := time.Now()
	if err := do(); err != nil {
		b.Fatal(err)
	}
	return time.Since(began)
}
