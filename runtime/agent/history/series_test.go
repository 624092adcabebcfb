package history

import (
	"path/filepath"
	"reflect"
	"testing"
	"time"
)

// newTestSeries returns a series with steps of 30 seconds. A negative number is unknown.
func newTestSeries(times []int64, cpu []float64, memory, disk []int64, restarts []uint32) *Series {
	s := &Series{Interval: 30 * time.Second, Times: times, Restarts: restarts}
	size := func(n int64) *uint64 {
		if n < 0 {
			return nil
		}
		return new(uint64(n))
	}
	for i := range times {
		s.CPU = append(s.CPU, nil)
		if cpu[i] >= 0 {
			s.CPU[i] = &cpu[i]
		}
		s.Memory, s.Disk = append(s.Memory, size(memory[i])), append(s.Disk, size(disk[i]))
	}
	return s
}

func TestReadSeries(t *testing.T) {
	f := openTestFile(t, filepath.Join(t.TempDir(), "history"), headerSize+100*entrySize)
	task, other, job := TaskKey("a1", "web"), TaskKey("a2", "web"), JobKey("default", "web")
	at := func(seconds int64) time.Time { return time.Unix(1700000010+seconds, 0) } // a step's start
	for _, s := range []struct {
		seconds int64
		entries []Entry
	}{
		{0, []Entry{{Key: task, Job: job, CPUMHz: 100, MemoryKiB: 3, DiskKiB: UnknownSize}, {Key: NodeKey, CPUMHz: 900, MemoryKiB: 7, DiskKiB: 8}}},
		{10, []Entry{{Key: task, Job: job, CPUMHz: 200, MemoryKiB: 2, DiskKiB: 5, Restarts: 1}, {Key: other, Job: job, CPUMHz: 50, MemoryKiB: 4, DiskKiB: UnknownSize, Restarts: 2}}},
		{20, []Entry{{Key: task, Job: job, CPUMHz: -1, MemoryKiB: 1, DiskKiB: 5, Restarts: 1}}},
		{120, []Entry{{Key: task, Job: job, CPUMHz: -1, MemoryKiB: UnknownSize, DiskKiB: UnknownSize, Restarts: 4}}},
	} {
		if err := f.Append(at(s.seconds), s.entries); err != nil {
			t.Fatal(err)
		}
	}
	period := NewPeriod(at(120), 10*time.Minute, 21)
	if period.Step != 30*time.Second {
		t.Fatalf("step %v", period.Step)
	}
	got, err := f.ReadSeries(period, map[string][]Key{"task": {task}, "tasks": {task, other}, "job": {job}, "node": {NodeKey}, "none": {TaskKey("a3", "none")}})
	if err != nil {
		t.Fatal(err)
	}
	first, last := at(0).UnixMilli(), at(120).UnixMilli()
	both := newTestSeries([]int64{first, last}, []float64{175, -1}, []int64{6 << 10, -1}, []int64{5 << 10, -1}, []uint32{1, 4})
	want := map[string]*Series{
		"job":   both,
		"tasks": both,
		"task":  newTestSeries([]int64{first, last}, []float64{150, -1}, []int64{3 << 10, -1}, []int64{5 << 10, -1}, []uint32{1, 4}),
		"node":  newTestSeries([]int64{first}, []float64{900}, []int64{7 << 10}, []int64{8 << 10}, []uint32{0}),
	}
	if !reflect.DeepEqual(got, want) {
		for name, s := range got {
			t.Errorf("%s: %+v", name, *s)
		}
	}
}

func TestPeriodHasNoMoreStepsThanItsLimit(t *testing.T) {
	for _, duration := range []time.Duration{time.Minute, time.Hour, Retention} {
		for _, most := range []int{2, 24, 360} {
			p := NewPeriod(time.Unix(1700000003, 0), duration, most)
			if steps := len(p.Steps()); steps > most || p.Step%Interval != 0 {
				t.Errorf("%v with at most %d steps: %d steps of %v", duration, most, steps, p.Step)
			}
		}
	}
}
