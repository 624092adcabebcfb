package cluster

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
)

var (
	manyAllocs = flag.Int("allocs", 500, "benchmarks: number of allocations that start at once")
	ownedTasks = flag.Int("tasks", 200, "benchmarks: number of running tasks whose memory is measured, and whose agent is killed")
	idleWindow = flag.Duration("idle", time.Minute, "benchmarks: time in which the bytes and the CPU time of an idle agent are counted")
)

const settleDelay = 15 * time.Second // after the start of many tasks: deployments end, and agents give memory back

// BenchmarkClusterNode compares a node with a stock client of the same server: both run at the same time, and run the same jobs in
// turn, with raw_exec. Each iteration measures every figure once for each of them, in alternating order. The result is a table
// with the medians, the least and the greatest values.
//
//	make bench-cluster
func BenchmarkClusterNode(b *testing.B) {
	stockProgram(b)
	program, err := systemtest.BuildReleasedProgram(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	proxy := &countingProxy{t: b, names: []string{"measured-node", "measured-stock"}}
	m := &clientMeasurement{
		B: b, program: program, proxy: proxy,
		cluster: startCluster(b, serverOptions{slowHeartbeats: true, proxy: proxy.listen}),
		values:  map[string]map[clientKind][]float64{},
	}
	clients := []*measuredClient{m.startNode(proxy.names[0]), m.startStock(proxy.names[1])}
	for _, c := range clients {
		m.awaitReady(c.name)
	}
	defer func() { fmt.Println("\n" + m.table()) }() // b.Log prints ten lines at most
	for round := 0; b.Loop(); round++ {
		m.measureIdle("idle", clients...)
		for _, c := range clients {
			m.measureReady(c.kind, round)
			m.measureOneTask(c, round)
			m.measureManyTasks(c, round)
			m.measureOwnedTasks(c, round)
		}
		slices.Reverse(clients)
	}
	b.ReportMetric(0, "ns/op") // an iteration measures many figures
}

// clientKind is the column of a client in the table.
type clientKind string

const (
	liteKind  clientKind = "nomad-lite"
	stockKind clientKind = "stock client"
)

// measuredClient is a client of the servers, of either kind.
type measuredClient struct {
	kind        clientKind
	name        string
	dataDir     string
	start, kill func()
	end         func()       // of a client without tasks
	processes   func() []int // without the processes of tasks
}

type clientMeasurement struct {
	*testing.B
	cluster *cluster
	proxy   *countingProxy
	program string // the released nomad-lite

	figures []string // in the order of the table
	values  map[string]map[clientKind][]float64
}

// add adds a value to a figure.
func (m *clientMeasurement) add(k clientKind, value float64, figure string, args ...any) {
	figure = fmt.Sprintf(figure, args...)
	if m.values[figure] == nil {
		m.figures = append(m.figures, figure)
		m.values[figure] = map[clientKind][]float64{}
	}
	m.values[figure][k] = append(m.values[figure][k], value)
}

func (m *clientMeasurement) table() string {
	var text strings.Builder
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "median (least-greatest)\t%s\t%s\t\n", liteKind, stockKind)
	for _, f := range m.figures {
		fmt.Fprintf(t, "%s\t", f)
		for _, k := range []clientKind{liteKind, stockKind} {
			if v := m.values[f][k]; len(v) > 0 {
				middle := systemtest.Median(v)
				fmt.Fprintf(t, "%.4g (%.4g-%.4g)\t", middle, v[0], v[len(v)-1])
			} else {
				fmt.Fprint(t, "-\t")
			}
		}
		fmt.Fprintln(t)
	}
	_ = t.Flush() // to memory
	return text.String()
}

// startNode starts a node and does not wait for it.
func (m *clientMeasurement) startNode(name string) *measuredClient {
	n := m.cluster.newNode(m, name)
	n.program = m.program
	n.startProcess()
	return &measuredClient{
		kind: liteKind, name: name, dataDir: n.dataDir,
		start: n.startProcess, kill: func() { n.end(unix.SIGKILL) }, end: func() { n.end(unix.SIGTERM) },
		processes: func() (pids []int) {
			for _, p := range systemtest.FindDataDirProcesses(n.dir) { // not dataDir, which the environment of the agent does not have
				if !strings.Contains(p.Kind, "/") {
					pids = append(pids, p.PID)
				}
			}
			return pids
		},
	}
}

// startStock starts a stock client and does not wait for it.
func (m *clientMeasurement) startStock(name string) *measuredClient {
	s := m.cluster.startStockClient(name)
	program := stockProgram(m)
	return &measuredClient{
		kind: stockKind, name: name, dataDir: filepath.Join(s.dir, "data"), start: s.start, kill: s.kill, end: s.kill,
		processes: func() (pids []int) {
			for pid := range systemtest.ScriptCommandLineByPID(s.dir) {
				if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && exe == program {
					pids = append(pids, pid)
				}
			}
			return pids
		},
	}
}

// awaitReady waits until the server has the node as ready.
func (m *clientMeasurement) awaitReady(name string) {
	m.Helper()
	began, index := time.Now(), uint64(0)
	for time.Since(began) < systemtest.MeasurementTimeout {
		nodes, meta, err := m.cluster.api().Nodes().List(&api.QueryOptions{WaitIndex: index, WaitTime: time.Minute})
		m.cluster.check(err)
		if slices.ContainsFunc(nodes, func(n *api.NodeListStub) bool { return n.Name == name && n.Status == "ready" }) {
			return
		}
		index = meta.LastIndex
	}
	m.Fatalf("node %s is not ready", name)
}

// measureReady measures a start with an empty data directory.
func (m *clientMeasurement) measureReady(kind clientKind, round int) {
	name := fmt.Sprintf("started-%d-%d", len(kind), round)
	start := m.startNode
	if kind == stockKind {
		start = m.startStock
	}
	began := time.Now()
	c := start(name)
	m.awaitReady(name)
	m.add(kind, systemtest.Milliseconds(time.Since(began)), "process start -> ready node, ms")
	c.end()
	m.cluster.eventually("all processes of "+name+" have exited", func() error {
		if left := c.processes(); len(left) > 0 {
			return fmt.Errorf("%d are left", len(left))
		}
		return nil
	})
}

// run registers a job whose allocations run on a client.
func (m *clientMeasurement) run(c *measuredClient, kind, id string, count int, argv ...string) {
	m.Helper()
	task := api.NewTask("t", "raw_exec").SetConfig("command", argv[0]).SetConfig("args", argv[1:])
	task.Resources = &api.Resources{CPU: new(1), MemoryMB: new(10)}
	task.LogConfig = &api.LogConfig{MaxFiles: new(1), MaxFileSizeMB: new(1)}
	group := api.NewTaskGroup("g", count).AddTask(task)
	group.EphemeralDisk = &api.EphemeralDisk{SizeMB: new(10)}
	job := api.NewServiceJob(id, id, api.GlobalRegion, 50).AddTaskGroup(group)
	job.Type, job.Datacenters = &kind, []string{"*"}
	job.Constrain(api.NewConstraint("${node.unique.name}", "=", c.name))
	m.cluster.register(job)
}

// remove removes a job, and waits until the client has removed all directories of allocations.
func (m *clientMeasurement) remove(c *measuredClient, id string) {
	m.Helper()
	_, _, err := m.cluster.api().Jobs().Deregister(id, true, nil)
	m.cluster.check(err)
	m.cluster.eventually("the allocations of "+c.name+" are removed", func() error {
		err := m.cluster.api().System().GarbageCollect()
		dirs, dirErr := os.ReadDir(filepath.Join(c.dataDir, "alloc"))
		if len(dirs) > 0 {
			err = fmt.Errorf("%d directories are left", len(dirs))
		}
		return errors.Join(err, dirErr)
	})
}

// usage is what a client has used until now.
type usage struct {
	traffic
	cpu time.Duration // of its processes, and of those that they have waited for
}

func (m *clientMeasurement) usageOf(c *measuredClient) usage {
	m.Helper()
	u := usage{traffic: m.proxy.trafficOf(c.name)}
	for _, pid := range c.processes() {
		u.cpu += cpuTime(pid)
	}
	return u
}

// cpuTime returns the processor time of a process and of the children that it has waited for; 0 if the process has exited.
func cpuTime(pid int) (sum time.Duration) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	const utime, cstime, ticksPerSecond = 11, 14, 100 // indices of fields after the name
	for _, field := range strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))[utime : cstime+1] {
		ticks, _ := strconv.Atoi(field) // the kernel writes numbers
		sum += time.Duration(ticks) * time.Second / ticksPerSecond
	}
	return sum
}

// addUsage adds what a client has used since before.
func (m *clientMeasurement) addUsage(c *measuredClient, before usage, description string) {
	m.Helper()
	after := m.usageOf(c)
	m.add(c.kind, (after.cpu - before.cpu).Seconds(), "%s: CPU s", description)
	m.add(c.kind, float64(after.bytes-before.bytes)/1000, "%s: kB on the wire", description)
	for _, method := range []string{protocol.MethodGetClientAllocs, protocol.MethodGetAllocs, protocol.MethodUpdateAllocs} {
		m.add(c.kind, float64(after.calls[method]-before.calls[method]), "%s: calls of %s", description, method)
	}
}

// measureIdle measures clients that have nothing to do, at the same time.
func (m *clientMeasurement) measureIdle(description string, clients ...*measuredClient) {
	m.Helper()
	time.Sleep(settleDelay)
	before := map[*measuredClient]usage{}
	for _, c := range clients {
		before[c] = m.usageOf(c)
		m.addMemory(c, description)
	}
	time.Sleep(*idleWindow)
	perHour := time.Hour.Seconds() / idleWindow.Seconds()
	for _, c := range clients {
		after := m.usageOf(c)
		m.add(c.kind, float64(after.bytes-before[c].bytes)/1000*perHour, "%s: kB per hour, from %v", description, *idleWindow)
		m.add(c.kind, (after.cpu-before[c].cpu).Seconds()*perHour, "%s: CPU s per hour, from %v", description, *idleWindow)
	}
}

// addMemory adds the memory of all processes of a client.
func (m *clientMeasurement) addMemory(c *measuredClient, description string) {
	m.Helper()
	kib := 0
	pids := c.processes()
	for _, pid := range pids {
		kib += systemtest.ReadMemoryKiB(m, pid)
	}
	const megabyte = 1000 / 1.024 // in KiB
	m.add(c.kind, float64(kib)/megabyte, "%s: anonymous and shared memory, MB", description)
	m.add(c.kind, float64(len(pids)), "%s: processes", description)
}

// measureOneTask measures tasks that start alone.
func (m *clientMeasurement) measureOneTask(c *measuredClient, round int) {
	m.Helper()
	for i := range 5 {
		id, file := fmt.Sprintf("one-%s-%d-%d", c.name, round, i), filepath.Join(m.TempDir(), "stamp")
		m.run(c, api.JobTypeBatch, id, 1, "/bin/sh", "-c", "date +%s%N >"+file)
		systemtest.WaitJobStatus(m, m.cluster.api(), id, 1, api.AllocClientStatusComplete)
		reported := time.Now()
		first := systemtest.WaitTimestamps(m, file, 1)[0]
		allocs, err := m.cluster.allocs(id)
		m.cluster.check(err)
		m.add(c.kind, systemtest.Milliseconds(first.Sub(time.Unix(0, allocs[0].CreateTime))), "allocation placed -> first instruction, ms")
		m.add(c.kind, systemtest.Milliseconds(reported.Sub(first)), "first instruction of a short task -> server has its end, ms")
		m.remove(c, id)
	}
}

// measureManyTasks measures the start and the end of many allocations at once.
func (m *clientMeasurement) measureManyTasks(c *measuredClient, round int) {
	m.Helper()
	id, description := fmt.Sprintf("many-%s-%d", c.name, round), fmt.Sprintf("%d batch allocs", *manyAllocs)
	m.runMeasured(c, api.JobTypeBatch, id, description, *manyAllocs, api.AllocClientStatusComplete, "exit 0")
	m.remove(c, id)
}

// measureOwnedTasks measures a client that has many running tasks: their start, the idle client, the next agent after a kill, and
// their end.
func (m *clientMeasurement) measureOwnedTasks(c *measuredClient, round int) {
	m.Helper()
	id, description := fmt.Sprintf("owned-%s-%d", c.name, round), fmt.Sprintf("%d tasks", *ownedTasks)
	m.runMeasured(c, api.JobTypeService, id, description, *ownedTasks, api.AllocClientStatusRunning, systemtest.SleepForeverScript)
	m.measureIdle(description, c)
	processes := m.taskProcesses(c)

	c.kill()
	began := time.Now()
	c.start()
	m.signalAll(id)
	m.add(c.kind, systemtest.Milliseconds(time.Since(began)), "agent killed with %s: start -> each accepts a signal through the server, ms", description)
	began = time.Now()
	m.signalAll(id)
	m.add(c.kind, systemtest.Milliseconds(time.Since(began)), "signals to %s, ms", description)
	if now := m.taskProcesses(c); !slices.Equal(now, processes) {
		m.Errorf("the tasks of %s have other processes after the kill of the agent: %v, before %v", c.name, now, processes)
	}

	began = time.Now()
	_, _, err := m.cluster.api().Jobs().Deregister(id, false, nil)
	m.cluster.check(err)
	systemtest.WaitJobStatus(m, m.cluster.api(), id, *ownedTasks, api.AllocClientStatusComplete)
	m.add(c.kind, time.Since(began).Seconds(), "%s: s until all are stopped", description)
	m.remove(c, id)
}

// runMeasured runs a job on a client, and measures the time until the server shows the status for all allocations.
func (m *clientMeasurement) runMeasured(c *measuredClient, kind, id, description string, count int, status, script string) {
	m.Helper()
	before := m.usageOf(c)
	began := time.Now()
	m.run(c, kind, id, count, "/bin/sh", "-c", script)
	systemtest.WaitJobStatus(m, m.cluster.api(), id, count, status)
	m.add(c.kind, time.Since(began).Seconds(), "%s: s until the server has all %s", description, status)
	m.addUsage(c, before, description)
}

// taskProcesses returns the shells of the tasks of a client, sorted.
func (m *clientMeasurement) taskProcesses(c *measuredClient) (shells []osprocess.ID) {
	m.Helper()
	dir := filepath.Join(c.dataDir, "alloc")
	entries, err := os.ReadDir("/proc")
	m.cluster.check(err)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		args, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		environ, _ := osprocess.ReadEnv(pid)
		if !strings.Contains(string(args), "while :; do sleep") || !strings.Contains(string(environ), dir) {
			continue
		}
		if p, err := osprocess.LookupID(pid); err == nil {
			shells = append(shells, p)
		}
	}
	return shells
}

// signalAll sends a signal without an effect to each task of a job through the server, until the client accepts it.
func (m *clientMeasurement) signalAll(jobID string) {
	m.Helper()
	allocs, err := m.cluster.allocs(jobID)
	m.cluster.check(err)
	next := make(chan string)
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for id := range next {
				m.signal(id)
			}
		})
	}
	for _, a := range allocs {
		next <- a.ID
	}
	close(next)
	workers.Wait()
}

func (m *clientMeasurement) signal(allocID string) {
	for deadline := time.Now().Add(systemtest.MeasurementTimeout); ; time.Sleep(5 * time.Millisecond) {
		err := m.cluster.api().Allocations().Signal(&api.Allocation{ID: allocID}, nil, "t", "SIGCONT")
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			m.Errorf("allocation %s accepts no signal: %v", allocID, err)
			return
		}
	}
}
