package hostile

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/endurance"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/clustertest"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
)

// maxResidentKB is the memory that an agent may need while servers lie.
const maxResidentKB = 512 << 10

// Servers that change their true responses at random, and that make random requests, neither end the agent nor touch what they do
// not name: the task of another allocation continues, no file appears outside of the directories of allocations, and the agent
// runs what true responses assign to it.
//
//	make test-hostile-servers
func TestLyingServersGetNothingMore(t *testing.T) {
	if testing.Short() {
		t.Skip("starts an agent")
	}
	run := endurance.Start(t, endurance.Config{Sample: 2, Unit: "lies", Load: "1 server, 1 node"})
	w := newLyingServer(t)
	run.Each(func(seed uint64) error {
		lies, err := w.iterate(seed)
		run.Add(lies)
		return err
	})
	t.Logf("the agent has rejected %d messages", w.rejections())
}

// lyingServer is a server with a node.
type lyingServer struct {
	*clustertest.Cluster
	t       *testing.T
	node    *systemtest.PersistentAgent
	outside string // a directory in which only lies create files
	victim  string // an allocation about which the server does not lie
	runs    string // a file with the PID of each run of the victim

	mu     sync.Mutex
	random *rand.Rand
	told   int
}

func newLyingServer(t *testing.T) *lyingServer {
	server := clustertest.Start(t, clustertest.Config{HeartbeatTTL: time.Second})
	w := &lyingServer{Cluster: server.Cluster, t: t, outside: t.TempDir()}
	w.runs = filepath.Join(t.TempDir(), "runs")
	w.node = systemtest.StartClusterNode(t, server.Addr())
	if _, err := w.WaitNode(t.Context(), w.node.NodeID, func(n clustertest.Node) bool { return n.Status == "ready" }); err != nil {
		t.Fatal(err)
	}
	var err error
	if w.victim, err = w.runNext("victim", "echo $$ >> "+w.runs+"; "+systemtest.SleepForeverScript); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.endAllocs(context.Background(), w.victim); err != nil {
			t.Error(err)
		}
	})
	return w
}

func newLiarJob(id, script string) *api.Job {
	task := systemtest.NewRawExecShellTask("t", script, func(t *api.Task) {
		t.Identities = []*api.WorkloadIdentity{{Name: "named", Audience: []string{"a"}, File: true}}
		t.Templates = []*api.Template{{EmbeddedTmpl: new("x"), DestPath: new("local/x")}}
		t.Env = map[string]string{"A": "b"}
	})
	group := api.NewTaskGroup("g", 1).AddTask(task)
	group.Services = []*api.Service{{Name: "s", Provider: "nomad"}}
	return api.NewServiceJob(id, id, api.GlobalRegion, 50).AddTaskGroup(group)
}

// runNext places an allocation, and waits until it runs.
func (w *lyingServer) runNext(jobID, script string) (id string, err error) {
	id = w.PlaceAlloc(w.node.NodeID, newLiarJob(jobID, script), "g")
	ctx, cancel := context.WithTimeout(w.t.Context(), systemtest.WaitTimeout)
	defer cancel()
	_, err = w.WaitAlloc(ctx, id, func(a protocol.Allocation) bool { return a.ClientStatus == api.AllocClientStatusRunning })
	return id, err
}

// endAllocs stops allocations, and waits until the node has ended and removed them.
func (w *lyingServer) endAllocs(ctx context.Context, ids ...string) error {
	ctx, cancel := context.WithTimeout(ctx, systemtest.WaitTimeout)
	defer cancel()
	for _, id := range ids {
		w.StopAlloc(id)
	}
	for _, id := range ids {
		if _, err := w.WaitAlloc(ctx, id, func(a protocol.Allocation) bool { return a.ClientTerminalStatus() }); err != nil {
			return err
		}
	}
	w.GC()
	w.node.WaitUntil("the directories are removed", func() (string, bool) {
		for _, id := range ids {
			if _, err := os.Stat(filepath.Join(w.node.DataDir, "alloc", id)); !errors.Is(err, os.ErrNotExist) {
				return fmt.Sprint(id, err), false
			}
		}
		return "", true
	})
	return nil
}

// lyingMethods are the methods whose responses the server changes.
var lyingMethods = []string{
	protocol.MethodGetClientAllocs, protocol.MethodGetAllocs, protocol.MethodGetAllocs, protocol.MethodGetAllocs, protocol.MethodUpdateNodeStatus,
	protocol.MethodRegisterNode, protocol.MethodUpdateAllocs, protocol.MethodSignIdentities, protocol.MethodUpsertServices,
}

// iterate lies for some heartbeats. It returns the number of lies.
func (w *lyingServer) iterate(seed uint64) (lies int, err error) {
	w.mu.Lock()
	w.random, w.told = rand.New(rand.NewPCG(seed, 0)), 0
	w.mu.Unlock()
	var remove []func()
	for range 3 {
		method := lyingMethods[w.random.IntN(len(lyingMethods))]
		fault := clustertest.Fault{Method: method, Times: clustertest.Always, Edit: w.edit}
		if w.random.IntN(4) == 0 {
			fault.Times, fault.Raw = 2, w.noise()
		}
		remove = append(remove, w.Inject(fault))
	}
	var placed []string
	for i := range 4 {
		placed = append(placed, w.PlaceAlloc(w.node.NodeID, newLiarJob(fmt.Sprint("lie-", seed, "-", i), systemtest.SleepForeverScript), "g"))
	}
	for range 10 {
		w.request()
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), systemtest.WaitTimeout)
	defer cancel()
	received := len(w.Calls(protocol.MethodUpdateNodeStatus))
	if err := w.WaitReceived(ctx, protocol.MethodUpdateNodeStatus, received+3); err != nil {
		return 0, err
	}
	for _, f := range remove {
		f()
	}
	for _, id := range placed { // the node reads them again
		w.SetDesired(id, "run", "a true response")
	}
	next, err := w.runNext(fmt.Sprint("true-", seed), systemtest.SleepForeverScript)
	if err == nil {
		err = w.endAllocs(w.t.Context(), append(placed, next)...)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.told, errors.Join(err, w.check())
}

// edit changes a response.
func (w *lyingServer) edit(response map[string]any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.random.IntN(3) == 0 {
		return
	}
	for range 1 + w.random.IntN(3) {
		w.told++
		w.mutate(response)
	}
}

// mutate changes one value in a message.
func (w *lyingServer) mutate(message map[string]any) {
	type place struct {
		value any
		set   func(any)
	}
	var places []place
	var walk func(v any, set func(any))
	walkMap := func(m map[string]any) {
		for _, key := range sortedKeys(m) {
			if key != "Index" && key != "HeartbeatTTL" { // they say when the server wants the next call, for which the test would wait
				walk(m[key], func(next any) { m[key] = next })
			}
		}
	}
	walk = func(v any, set func(any)) {
		places = append(places, place{v, set})
		switch v := v.(type) {
		case map[string]any:
			walkMap(v)
		case []any:
			for i := range v {
				walk(v[i], func(next any) { v[i] = next })
			}
		}
	}
	walkMap(message)
	if len(places) == 0 {
		return
	}
	at := places[w.random.IntN(len(places))]
	at.set(w.lie(at.value))
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// lie returns a value in the place of another.
func (w *lyingServer) lie(true any) any {
	deep := any(nil)
	for range 200 {
		deep = map[string]any{"x": []any{deep}}
	}
	escape := filepath.Join(w.outside, "escaped")
	up := strings.Repeat("../", 20)
	lies := []any{
		nil, true, int64(-1), int64(math.MinInt64), uint64(math.MaxUint64), int64(1) << 33, 0.5, false, "", "x", []any{}, map[string]any{}, deep,
		up + escape, escape, "..", ".", "a/../../b", "\x00", "\xff\xfe", "\n2026-11-26 [ERROR] forged", w.victim, strings.Repeat("a", 1<<20), []any{nil, nil},
		slices.Repeat([]any{map[string]any{}}, 100000), map[string]any{up + escape: nil, w.victim: int64(1)}, "${env[\"HOME\"]}", "run", "unknown", "failed",
		map[string]any{"ID": "x", "Name": "../x", "Job": nil, "NodeID": w.node.NodeID}, "55555555-2222-3333-4444-555555555555",
	}
	switch v := true.(type) {
	case []any:
		lies = append(lies, slices.Concat(v, v), append(slices.Clone(v), nil), v[:len(v)/2])
	case string:
		lies = append(lies, v+"/../../"+v, strings.ToUpper(v), v+v)
	case int64:
		lies = append(lies, -v, v+1, v-1, v*1000)
	case map[string]any:
		lies = append(lies, map[string]any{"\x00": v})
	}
	return lies[w.random.IntN(len(lies))]
}

// noise returns bytes in the place of a response.
func (w *lyingServer) noise() []byte {
	message, err := wire.EncodeBytes(map[string]any{"Error": "", "Seq": uint64(1), "ServiceMethod": "x"})
	if err != nil {
		w.t.Fatal(err)
	}
	for range 1 + w.random.IntN(64) {
		message = append(message, byte(w.random.IntN(256)))
	}
	message[w.random.IntN(len(message))] = byte(w.random.IntN(256))
	return message[:1+w.random.IntN(len(message))]
}

// nodeCalls and nodeStreams are methods of the node. The server stops no task with them.
var (
	nodeCalls = []string{
		protocol.MethodAllocStats, protocol.MethodAllocChecks, protocol.MethodHostStats, protocol.MethodListFiles, protocol.MethodStatFile,
		protocol.MethodReadNodeMeta, protocol.MethodGetNodeIdentity, protocol.MethodAgentHost, "Node.NoSuchMethod", protocol.MethodCollectAlloc,
	}
	nodeStreams = []string{protocol.MethodExec, protocol.MethodStreamLogs, protocol.MethodStreamFile, protocol.MethodMonitorAgent, "Node.NoSuchStream"}
)

// request makes a random request. It does not wait for the end of a stream.
func (w *lyingServer) request() {
	w.mu.Lock()
	message := map[string]any{
		"AllocID": w.victim, "Task": "t", "Path": "alloc/../../../../../../etc/passwd", "NodeID": w.node.NodeID, "LogType": "stdout", "Origin": "start", "Offset": int64(-5),
		"Limit": int64(-1), "PlainText": true, "Cmd": []any{"true"}, "Region": "global", "LogLevel": "trace",
	}
	for range w.random.IntN(4) {
		w.told++
		w.mutate(message)
	}
	call, stream := nodeCalls[w.random.IntN(len(nodeCalls))], nodeStreams[w.random.IntN(len(nodeStreams))]
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Second)
	defer cancel()
	var reply any
	_ = w.Call(ctx, w.node.NodeID, call, message, &reply) // an error is an answer
	opened, err := w.OpenStream(ctx, w.node.NodeID, stream, message)
	if err == nil {
		opened.Close()
	}
}

// check returns an error about what a lie has obtained.
func (w *lyingServer) check() error {
	var errs []error
	if found, err := os.ReadDir(w.outside); err != nil || len(found) > 0 {
		errs = append(errs, fmt.Errorf("files outside of allocations: %v, %v", found, err))
	}
	allocs, err := os.ReadDir(filepath.Join(w.node.DataDir, "alloc"))
	if err != nil || len(allocs) != 1 || allocs[0].Name() != w.victim {
		errs = append(errs, fmt.Errorf("directories of allocations: %v, %v; want that of %s", allocs, err, w.victim))
	}
	runs, err := os.ReadFile(w.runs)
	pid, parseErr := strconv.Atoi(strings.TrimSpace(string(runs)))
	if _, statErr := os.Stat(fmt.Sprintf("/proc/%d", pid)); errors.Join(err, parseErr, statErr) != nil {
		errs = append(errs, fmt.Errorf("the victim has the runs %q: %w", runs, errors.Join(err, parseErr, statErr)))
	}
	if kb, err := residentKB(w.node.PID()); err != nil || kb > maxResidentKB {
		errs = append(errs, fmt.Errorf("the agent has %d KB of memory, %w", kb, err))
	}
	return errors.Join(errs...)
}

// residentKB returns the resident memory of a process.
func residentKB(pid int) (int, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	return strconv.Atoi(strings.Fields(rest + " ?")[0])
}

// rejections returns how many messages the log of the agent has as rejected.
func (w *lyingServer) rejections() int {
	log, err := os.ReadFile(w.node.LogFile)
	if err != nil {
		w.t.Error(err)
	}
	return strings.Count(string(log), "rejected ")
}
