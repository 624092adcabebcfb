package history

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/hoststats"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskrunner"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
)

// fakeNode is a node with tasks from several drivers.
type fakeNode struct {
	tasks   []allocrunner.RunningTask
	drivers map[string]driver.Driver
	allocs  string // allocation directory root
}

func (n *fakeNode) AppendRunningTasks(list []allocrunner.RunningTask) []allocrunner.RunningTask {
	return append(list, n.tasks...)
}

func (n *fakeNode) Driver(ctx context.Context, name string) (driver.Driver, error) {
	if d := n.drivers[name]; d != nil {
		return d, nil
	}
	<-ctx.Done() // the plugin is starting
	return nil, ctx.Err()
}

func (*fakeNode) HostStatsWithoutDisks(context.Context) hoststats.Stats {
	return hoststats.Stats{CPU: []*hoststats.CPU{{}}, CPUTicksConsumed: 1500, Memory: &api.HostMemoryStats{Total: 9 << 20, Used: 3 << 20}}
}

func (n *fakeNode) AllocDir(id string) (*allocdir.Dir, error) { return allocdir.New(n.allocs, id) }

// samplingDriver samples all tasks with one call. It records each call's ids.
type samplingDriver struct {
	driver.Driver
	usages map[string]driver.Usage // by start id
	calls  [][]string
}

func (d *samplingDriver) SampleTaskTotals(_ context.Context, ids []string, onSample func(int, driver.TaskTotal)) error {
	d.calls = append(d.calls, ids)
	for i, id := range ids {
		if u, ok := d.usages[id]; ok {
			onSample(i, driver.TaskTotal{CPUMHz: u.CPU.TotalTicks, MemoryUsage: u.Memory.Usage, MemoryRSS: u.Memory.RSS})
		}
	}
	return nil
}

// streamingDriver has no call that samples several tasks.
type streamingDriver struct{ driver.Driver }

func newUsage(mhz float64, rss, usage uint64) driver.Usage {
	return driver.Usage{CPU: driver.CPUUsage{TotalTicks: mhz}, Memory: driver.MemoryUsage{RSS: rss, Usage: usage}}
}

func TestRecorder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		noSample := func(time.Duration) *driver.TaskStats { return nil }
		observed := func(maxAge time.Duration) *driver.TaskStats {
			if maxAge > Interval {
				t.Errorf("a sample can be %v old", maxAge)
			}
			return &driver.TaskStats{Total: newUsage(30, 3<<10, 0)}
		}
		newTask := func(name, driverName string, restarts uint64) allocrunner.RunningTask {
			return allocrunner.RunningTask{AllocID: "a1", Namespace: "default", JobID: "web", Name: name, RecentSample: noSample,
				RunningProcess: taskrunner.RunningProcess{Driver: driverName, StartID: "start of " + name, Restarts: restarts}}
		}
		sampling := &samplingDriver{usages: map[string]driver.Usage{
			"start of cgroup": newUsage(10, 1<<10, 9<<10), "start of process": newUsage(20, 2<<10, 0), "start of wrong": newUsage(math.NaN(), 4<<10, 0),
		}}
		node := &fakeNode{allocs: t.TempDir(), drivers: map[string]driver.Driver{"sampling": sampling, "streaming": streamingDriver{}}}
		node.tasks = []allocrunner.RunningTask{
			newTask("cgroup", "sampling", 2), newTask("process", "sampling", math.MaxUint64), newTask("wrong", "sampling", 0), newTask("ending", "sampling", 0),
			newTask("observed", "streaming", 0), newTask("unobserved", "streaming", 0), newTask("starting", "starting", 1),
		}
		node.tasks[4].RecentSample = observed
		r := NewRecorder(filepath.Join(t.TempDir(), "history"), hclog.NewNullLogger())
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan struct{})
		go func() { r.Run(ctx, node); close(done) }()
		begin := time.Now()
		time.Sleep(openDelay + 2*Interval + sampleTimeout + time.Second)
		<-r.opened

		var times []time.Duration
		var entries []Entry
		if err := r.file.Read(begin, time.Now(), func(t time.Time, all []Entry) {
			times, entries = append(times, t.Sub(begin).Round(time.Second)), slices.Clone(all)
		}); err != nil {
			t.Fatal(err)
		}
		first := openDelay + Interval // the starting driver does not delay the sample time
		if !slices.Equal(times, []time.Duration{first, first + Interval}) {
			t.Errorf("samples after %v", times)
		}
		job := JobKey("default", "web")
		want := []Entry{
			{Key: TaskKey("a1", "cgroup"), Job: job, CPUMHz: 10, MemoryKiB: 9, Restarts: 2},
			{Key: TaskKey("a1", "process"), Job: job, CPUMHz: 20, MemoryKiB: 2, Restarts: math.MaxUint32},
			{Key: TaskKey("a1", "wrong"), Job: job, CPUMHz: -1, MemoryKiB: 4},
			{Key: TaskKey("a1", "ending"), Job: job, CPUMHz: -1, MemoryKiB: UnknownSize},
			{Key: TaskKey("a1", "observed"), Job: job, CPUMHz: 30, MemoryKiB: 3},
			{Key: TaskKey("a1", "unobserved"), Job: job, CPUMHz: -1, MemoryKiB: UnknownSize},
			{Key: TaskKey("a1", "starting"), Job: job, CPUMHz: -1, MemoryKiB: UnknownSize, Restarts: 1},
			{Key: NodeKey, CPUMHz: 1500, MemoryKiB: 3 << 10, DiskKiB: UnknownSize},
		}
		for i := range entries {
			if entries[i].Key != NodeKey {
				entries[i].DiskKiB = 0 // has a separate test
			}
		}
		if !slices.Equal(entries, want) {
			t.Errorf("got  %+v\nwant %+v", entries, want)
		}
		if len(sampling.calls) != 2 || len(sampling.calls[0]) != 4 {
			t.Errorf("calls %v, want one for each sample", sampling.calls)
		}
		cancel()
		<-done
	})
}

// A query before the file is open waits for it.
func TestQueryOpensFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRecorder(filepath.Join(t.TempDir(), "history"), hclog.NewNullLogger())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { r.Run(ctx, &fakeNode{}); close(done) }()
		begin := time.Now()
		if all, err := r.Series(ctx, NewPeriod(begin, time.Hour, 10), map[string][]Key{"node": {NodeKey}}); err != nil || len(all) != 0 || time.Since(begin) >= openDelay {
			t.Errorf("after %v: %v, %v", time.Since(begin), all, err)
		}
		cancel()
		<-done
	})
}

func TestFileThatCannotBeOpened(t *testing.T) {
	r := NewRecorder(filepath.Join(t.TempDir(), "missing", "history"), hclog.NewNullLogger())
	r.onceQuery.Do(func() { close(r.queried) })
	r.Run(t.Context(), &fakeNode{})
	if _, err := r.Series(t.Context(), NewPeriod(time.Now(), time.Hour, 10), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}

// All tasks' files are measured soon after their start, and then one time in diskRounds samples each.
func TestDiskUsageIsMeasuredInTurn(t *testing.T) {
	node := &fakeNode{allocs: t.TempDir()}
	const tasks = 100
	for i := range tasks {
		id := string(rune('a'+i/26)) + string(rune('a'+i%26))
		node.tasks = append(node.tasks, allocrunner.RunningTask{AllocID: id, Name: "t"})
		dir := filepath.Join(node.allocs, id, "t")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "file"), make([]byte, 8192), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := NewRecorder("", hclog.NewNullLogger())
	r.node = node
	round := func() []Entry {
		entries := make([]Entry, tasks)
		for i := range entries {
			entries[i] = Entry{Key: TaskKey(node.tasks[i].AllocID, "t"), DiskKiB: UnknownSize}
		}
		return r.addDiskUsage(node.tasks, entries)
	}
	count := func(entries []Entry, size uint32) (n int) {
		for _, e := range entries {
			if e.DiskKiB == size {
				n++
			}
		}
		return n
	}
	for range diskRounds {
		if before, now := len(r.diskByKey), len(round()); now != tasks || len(r.diskByKey)-before > 2*(tasks/diskRounds+1) {
			t.Fatalf("%d entries, and %d measurements more than before", now, len(r.diskByKey)-before)
		}
	}
	if got := count(round(), 8); got != tasks {
		t.Errorf("%d tasks are measured", got)
	}
	for _, task := range node.tasks {
		if err := os.WriteFile(filepath.Join(node.allocs, task.AllocID, "t", "more"), make([]byte, 4096), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := count(round(), 12); got > tasks/4 {
		t.Errorf("one sample measures %d of %d tasks", got, tasks)
	}
	for range diskRounds - 1 {
		round()
	}
	if got := count(round(), 12); got != tasks {
		t.Errorf("%d tasks are measured again", got)
	}
	node.tasks = node.tasks[:10]
	r.addDiskUsage(node.tasks, make([]Entry, 10))
	if len(r.diskByKey) > 20 {
		t.Errorf("%d measurements of 10 tasks are kept", len(r.diskByKey))
	}
}

func TestMeasureAllocDir(t *testing.T) {
	root := t.TempDir()
	outside := filepath.Join(t.TempDir(), "outside")
	for path, size := range map[string]int{
		filepath.Join(root, "a1/t/local/deep/file"): 8192, filepath.Join(root, "a1/t/tmp/file"): 4096, filepath.Join(root, "a1/other/file"): 65536,
		filepath.Join(root, "a1/alloc/logs/t.stdout.0"): 4096, filepath.Join(root, "a1/alloc/logs/t.stderr.0"): 4096, filepath.Join(root, "a1/alloc/logs/other.stdout.0"): 65536,
		filepath.Join(root, "a1/alloc/data/file"): 16384, filepath.Join(outside, "file"): 1 << 20,
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, link := range []string{"a1/t/link", "a1/alloc/data/link"} {
		if err := os.Symlink(outside, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := allocdir.New(root, "a1")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := measureAllocDir(dir, "t"); err != nil || got != (diskUsage{task: 20480, shared: 16384}) {
		t.Errorf("got %+v, %v", got, err)
	}
	missing, err := allocdir.New(root, "a2")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := measureAllocDir(missing, "t"); err != nil || got != (diskUsage{}) {
		t.Errorf("missing directory: %+v, %v", got, err)
	}
	deep := filepath.Join(root, "a1/t")
	for range maxMeasuredDepth + 1 {
		deep = filepath.Join(deep, "d")
	}
	if err := os.MkdirAll(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := measureAllocDir(dir, "t"); !errors.Is(err, errTooManyFiles) {
		t.Errorf("deep directory: %v", err)
	}
	m := &diskMeter{left: 3}
	if _, err := m.measure(filepath.Join(root, "a1/alloc"), nil); !errors.Is(err, errTooManyFiles) {
		t.Errorf("many files: %v", err)
	}
}

// A bind mount, such as /usr in an isolated task's directory, does not count.
func TestMeasureAllocDirSkipsMounts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount")
	}
	root, host := t.TempDir(), t.TempDir()
	mounted := filepath.Join(root, "a1/t/usr")
	for path, size := range map[string]int{filepath.Join(root, "a1/t/local/file"): 4096, filepath.Join(host, "file"): 1 << 20, filepath.Join(mounted, "hidden"): 0} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount(host, mounted, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(mounted, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	dir, err := allocdir.New(root, "a1")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := measureAllocDir(dir, "t"); err != nil || got != (diskUsage{task: 4096}) {
		t.Errorf("got %+v, %v", got, err)
	}
}
