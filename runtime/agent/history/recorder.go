package history

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/hoststats"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
)

// Node is the sampled part of the node.
type Node interface {
	// AppendRunningTasks appends to list all tasks with a running process.
	AppendRunningTasks(list []allocrunner.RunningTask) []allocrunner.RunningTask
	// Driver returns the driver with a name. It blocks while the plugin is starting.
	Driver(ctx context.Context, name string) (driver.Driver, error)
	// HostStatsWithoutDisks returns the machine's resource usage without DiskStats.
	HostStatsWithoutDisks(context.Context) hoststats.Stats
	// AllocDir returns an allocation's directory, which may not exist.
	AllocDir(allocID string) (*allocdir.Dir, error)
}

// sampleTimeout is how long a sample waits for a driver. A task without a driver sample has an entry with unknown usage.
const sampleTimeout = 5 * time.Second

// openDelay is how long Run waits for the first query until it reads the file, so that the agent's start comes first.
const openDelay = 2 * time.Second

// diskRounds is how many samples lie between two measurements of a task's files: five minutes.
const diskRounds = 30

// Recorder samples a node, and records the samples in a file. The methods but Run may be called concurrently, also before Run.
type Recorder struct {
	path   string
	logger hclog.Logger

	queried   chan struct{} // closed by the first query
	onceQuery sync.Once     // closes queried

	opened  chan struct{} // closed by Run when file and openErr are set
	file    *File
	openErr error

	// These fields belong to Run's goroutine. node is Run's argument. tasks, entries and earlierDisk are kept for their memory only: a sample of 1,000
	// tasks without them is 0.5 MB of garbage, and collecting it costs more than the sample.
	node        Node
	round       uint64
	diskByKey   map[Key]uint32 // file size in KiB, by the task's key, or by an allocation's key for its shared files
	earlierDisk map[Key]uint32
	tasks       []allocrunner.RunningTask
	entries     []Entry
	writeFailed bool // the last sample was not written
}

// NewRecorder returns a recorder with a file at path.
func NewRecorder(path string, logger hclog.Logger) *Recorder {
	return &Recorder{path: path, logger: logger.Named("history"), queried: make(chan struct{}), opened: make(chan struct{}), diskByKey: make(map[Key]uint32), earlierDisk: make(map[Key]uint32)}
}

// Run opens the file, and appends a sample of the node each Interval, until ctx ends. It is called once.
func (r *Recorder) Run(ctx context.Context, node Node) {
	r.node = node
	select {
	case <-r.queried:
	case <-time.After(openDelay):
	case <-ctx.Done():
	}
	r.file, r.openErr = OpenFile(r.path, DefaultSize)
	close(r.opened)
	if r.openErr != nil {
		r.logger.Warn("usage of tasks is not recorded", "error", r.openErr)
		return
	}
	defer r.file.Close()
	ticker := time.NewTicker(Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			r.record(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// Series is [File.ReadSeries] for the recorder's file. It waits until Run has opened the file.
func (r *Recorder) Series(ctx context.Context, p Period, keysByGroup map[string][]Key) (map[string]*Series, error) {
	r.onceQuery.Do(func() { close(r.queried) })
	select {
	case <-r.opened:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if r.openErr != nil {
		return nil, r.openErr
	}
	return r.file.ReadSeries(p, keysByGroup)
}

func (r *Recorder) record(ctx context.Context) {
	now := time.Now()
	entries := r.sample(ctx)
	if ctx.Err() != nil {
		return // the sample may be incomplete
	}
	err := r.file.Append(now, entries)
	if err != nil && !r.writeFailed {
		r.logger.Warn("usage of tasks is not recorded until the file can be written", "error", err)
	}
	r.writeFailed = err != nil
}

// sample returns the current usage of the node and all running tasks.
func (r *Recorder) sample(ctx context.Context) []Entry {
	r.tasks = r.node.AppendRunningTasks(r.tasks[:0])
	tasks := r.tasks
	defer clear(tasks)
	entries := slices.Grow(r.entries[:0], len(tasks)+len(tasks)/2+1)[:len(tasks)] // with room for shared files and the node
	r.entries = entries
	indexesByDriver := make(map[string][]int)
	for i := range tasks {
		t := &tasks[i]
		entries[i] = Entry{
			Key: TaskKey(t.AllocID, t.Name), Job: JobKey(t.Namespace, t.JobID), CPUMHz: -1, MemoryKiB: UnknownSize, DiskKiB: UnknownSize,
			Restarts: uint32(min(t.Restarts, math.MaxUint32)),
		}
		indexesByDriver[t.Driver] = append(indexesByDriver[t.Driver], i)
	}
	var driversWG sync.WaitGroup
	for name, indexes := range indexesByDriver {
		driversWG.Go(func() { r.sampleTasksOfDriver(ctx, name, tasks, indexes, entries) })
	}
	driversWG.Wait()
	entries = r.addDiskUsage(tasks, entries)
	return append(entries, r.sampleNode(ctx))
}

// sampleTasksOfDriver sets the usage in the entries with the given task indexes, which have the driver. A driver that samples a
// task only by a separate stream is not called: its tasks have the sample that others have received.
func (r *Recorder) sampleTasksOfDriver(ctx context.Context, name string, tasks []allocrunner.RunningTask, indexes []int, entries []Entry) {
	ctx, cancel := context.WithTimeout(ctx, sampleTimeout)
	defer cancel()
	d, err := r.node.Driver(ctx, name)
	if err == nil {
		err = sampleTotals(ctx, d, tasks, indexes, entries)
	}
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		for _, i := range indexes {
			if sample := tasks[i].RecentSample(Interval); sample != nil {
				u := &sample.Total
				entries[i].setUsage(driver.TaskTotal{CPUMHz: u.CPU.TotalTicks, MemoryUsage: u.Memory.Usage, MemoryRSS: u.Memory.RSS})
			}
		}
	case err != nil && ctx.Err() == nil:
		r.logger.Debug("no usage of the tasks of a driver", "driver", name, "error", err)
	}
}

// sampleTotals sets the usage in the entries with the given task indexes.
func sampleTotals(ctx context.Context, d driver.Driver, tasks []allocrunner.RunningTask, indexes []int, entries []Entry) error {
	sampler, ok := d.(driver.TasksSampler)
	if !ok {
		return errors.ErrUnsupported
	}
	ids := make([]string, len(indexes))
	for n, i := range indexes {
		ids[n] = tasks[i].StartID
	}
	return sampler.SampleTaskTotals(ctx, ids, func(n int, total driver.TaskTotal) { entries[indexes[n]].setUsage(total) })
}

// setUsage sets the CPU and memory usage. The memory is the cgroup's, with the page cache, as in `alloc status -stats`, or the
// processes' resident memory if there is no cgroup.
func (e *Entry) setUsage(u driver.TaskTotal) {
	if mhz := float32(u.CPUMHz); mhz >= 0 && mhz <= math.MaxFloat32 { // not a NaN from a driver
		e.CPUMHz = mhz
	}
	e.MemoryKiB = ToKiB(u.MemoryRSS)
	if u.MemoryUsage > 0 {
		e.MemoryKiB = ToKiB(u.MemoryUsage)
	}
}

// addDiskUsage sets the file size in the tasks' entries, and appends an entry for each allocation with shared files. It measures
// only some tasks' files in each round, so that the work is spread over time.
func (r *Recorder) addDiskUsage(tasks []allocrunner.RunningTask, entries []Entry) []Entry {
	r.round++
	newMeasurements := len(tasks)/diskRounds + 1 // tasks without a measurement that are measured now
	clear(r.earlierDisk)
	keep := r.earlierDisk
	for i := range tasks {
		key, shared := entries[i].Key, TaskKey(tasks[i].AllocID, "")
		_, measured := r.diskByKey[key]
		switch {
		case !measured && newMeasurements > 0:
			newMeasurements--
			r.measureDisk(tasks[i], key, shared)
		case measured && (uint64(key)+r.round)%diskRounds == 0:
			r.measureDisk(tasks[i], key, shared)
		}
		if size, ok := r.diskByKey[key]; ok {
			keep[key], entries[i].DiskKiB = size, size
		}
		if size, ok := r.diskByKey[shared]; ok {
			if _, added := keep[shared]; !added && size > 0 {
				entries = append(entries, Entry{Key: shared, Job: entries[i].Job, CPUMHz: -1, MemoryKiB: UnknownSize, DiskKiB: size})
			}
			keep[shared] = size
		}
	}
	r.diskByKey, r.earlierDisk = keep, r.diskByKey
	return entries
}

func (r *Recorder) measureDisk(t allocrunner.RunningTask, key, shared Key) {
	r.diskByKey[key] = UnknownSize
	dir, err := r.node.AllocDir(t.AllocID)
	if err != nil {
		return
	}
	usage, err := measureAllocDir(dir, t.Name)
	if err != nil {
		r.logger.Debug("size of the files of a task is unknown", "alloc_id", t.AllocID, "task", t.Name, "error", err)
		return
	}
	r.diskByKey[key], r.diskByKey[shared] = ToKiB(usage.task), ToKiB(usage.shared)
}

func (r *Recorder) sampleNode(ctx context.Context) Entry {
	e := Entry{Key: NodeKey, CPUMHz: -1, MemoryKiB: UnknownSize, DiskKiB: UnknownSize}
	stats := r.node.HostStatsWithoutDisks(ctx)
	if len(stats.CPU) > 0 {
		e.CPUMHz = float32(stats.CPUTicksConsumed)
	}
	if stats.Memory != nil && stats.Memory.Total > 0 {
		e.MemoryKiB = ToKiB(stats.Memory.Used)
	}
	if stats.AllocDirStats != nil {
		e.DiskKiB = ToKiB(stats.AllocDirStats.Used)
	}
	return e
}
