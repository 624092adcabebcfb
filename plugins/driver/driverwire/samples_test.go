package driverwire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/proto/driverpb"
	"github.com/nomad-lite/nomad-lite/plugins/proto/taskspb"
)

// recordingTasksServer records the tasks of each call of SampleTasks.
type recordingTasksServer struct {
	tasksServer
	mu    sync.Mutex
	calls [][]string
}

func (s *recordingTasksServer) SampleTasks(req *taskspb.SampleTasksRequest, stream grpc.ServerStreamingServer[taskspb.SampleTasksResponse]) error {
	s.mu.Lock()
	s.calls = append(s.calls, slices.Sorted(slices.Values(req.GetTaskIds())))
	s.mu.Unlock()
	return s.tasksServer.SampleTasks(req, stream)
}

// callsSinceLast returns the recorded calls, and forgets them.
func (s *recordingTasksServer) callsSinceLast() [][]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.calls
	s.calls = nil
	return calls
}

// testSampling calls test with a driver that serves Tasks and has the samples of sample.
func testSampling(t *testing.T, sample func(context.Context, string) (*driver.TaskStats, error), test func(*testing.T, driver.Driver, *recordingTasksServer)) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeTasksDriver()
		f.sampleFunc = sample
		s := &recordingTasksServer{tasksServer: tasksServer{impl: f}}
		p := serveInMemory(t, func(r grpc.ServiceRegistrar) {
			driverpb.RegisterDriverServer(r, &server{impl: f, servesTasks: true})
			taskspb.RegisterTasksServer(r, s)
		})
		d := NewClient(p.conn, p.done)
		if _, err := d.Capabilities(t.Context()); err != nil {
			t.Fatal(err)
		}
		test(t, d, s)
	})
}

func openStats(t *testing.T, ctx context.Context, d driver.Driver, taskID string, interval time.Duration) <-chan *driver.TaskStats {
	t.Helper()
	samples, err := d.TaskStats(ctx, taskID, interval)
	if err != nil {
		t.Fatal(err)
	}
	return samples
}

// One call per interval samples all tasks of the interval. A stream ends with its context, and with the exit of its task.
func TestOneCallSamplesAllTasks(t *testing.T) {
	var exited atomic.Bool
	sample := func(_ context.Context, id string) (*driver.TaskStats, error) {
		if id == "b" && exited.Load() {
			return nil, io.EOF
		}
		return &driver.TaskStats{Timestamp: time.Now()}, nil
	}
	testSampling(t, sample, func(t *testing.T, d driver.Driver, s *recordingTasksServer) {
		begin := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var all []<-chan *driver.TaskStats
		for _, id := range []string{"a", "b"} {
			all = append(all, openStats(t, ctx, d, id, time.Second))
		}
		slow := openStats(t, ctx, d, "a", time.Minute)
		s.callsSinceLast()
		for tick := range 3 {
			for i, samples := range all {
				if got := (<-samples).Timestamp.Sub(begin); got != time.Duration(tick)*time.Second {
					t.Errorf("sample %d of stream %d after %v", tick, i, got)
				}
			}
		}
		if calls := s.callsSinceLast(); len(calls) != 2 || !slices.Equal(calls[0], []string{"a", "b"}) || !slices.Equal(calls[1], []string{"a", "b"}) {
			t.Errorf("calls after the first samples: %v, want two of a and b", calls)
		}
		exited.Store(true)
		if sample, ok := <-all[1]; ok {
			t.Errorf("sample of an exited task: %v", sample)
		}
		for range 3 {
			<-all[0]
		}
		synctest.Wait()
		if calls := s.callsSinceLast(); !slices.Equal(calls[len(calls)-1], []string{"a"}) {
			t.Errorf("calls after the exit: %v, want the last one of a", calls)
		}
		<-slow
		cancel()
		synctest.Wait()
		for i, samples := range []<-chan *driver.TaskStats{all[0], slow} {
			if _, ok := <-samples; ok {
				t.Errorf("stream %d was not closed at the end of its context", i)
			}
		}
		s.callsSinceLast()
		time.Sleep(time.Hour)
		if calls := s.callsSinceLast(); len(calls) > 0 {
			t.Errorf("calls without a reader: %v", calls)
		}
	})
}

// A sample that does not come delays neither the first nor the later samples of other tasks.
func TestHangingSampleDelaysNoOtherTask(t *testing.T) {
	var hang atomic.Bool
	sample := func(ctx context.Context, id string) (*driver.TaskStats, error) {
		if hang.Load() && id[:4] == "hang" {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return &driver.TaskStats{Timestamp: time.Now()}, nil
	}
	testSampling(t, sample, func(t *testing.T, d driver.Driver, s *recordingTasksServer) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		good := openStats(t, ctx, d, "good", time.Second)
		for i := range maxConcurrentSamples + 1 {
			openStats(t, ctx, d, "hang"+string(rune('a'+i)), time.Second)
		}
		hang.Store(true)
		for range 4 {
			last := time.Now()
			if sample := <-good; sample.Timestamp.Sub(last) > time.Second+2*slowSampleAfter {
				t.Errorf("sample after %v", sample.Timestamp.Sub(last))
			}
		}
		for _, ids := range s.callsSinceLast()[maxConcurrentSamples+3:] {
			if !slices.Equal(ids, []string{"good"}) {
				t.Errorf("a call samples %v, although earlier calls still sample all but the task good", ids)
			}
		}
	})
}

// TaskStats returns the error that the driver has in the place of the first sample.
func TestErrorOfSample(t *testing.T) {
	unsupported := &driver.Error{Err: errors.New("stats not implemented for driver")}
	sample := func(_ context.Context, id string) (*driver.TaskStats, error) {
		if id == "unknown" {
			return nil, driver.ErrTaskNotFound
		}
		return nil, unsupported
	}
	testSampling(t, sample, func(t *testing.T, d driver.Driver, _ *recordingTasksServer) {
		if _, err := d.TaskStats(t.Context(), "unknown", time.Second); !errors.Is(err, driver.ErrTaskNotFound) {
			t.Errorf("unknown task: %v", err)
		}
		_, err := d.TaskStats(t.Context(), "a", time.Second)
		if e, ok := errors.AsType[*driver.Error](err); !ok || e.Recoverable || !errors.Is(err, driver.ErrStatsNotImplemented) {
			t.Errorf("driver without statistics: %v", err)
		}
	})
}

func TestSamplesEndWithPlugin(t *testing.T) {
	f := newFakeTasksDriver()
	f.sampleFunc = func(context.Context, string) (*driver.TaskStats, error) { return &driver.TaskStats{}, nil }
	d, p := newClientOf(t, f)
	if _, err := d.Capabilities(t.Context()); err != nil {
		t.Fatal(err)
	}
	samples := openStats(t, t.Context(), d, "a", time.Millisecond)
	<-samples
	p.die()
	for range samples {
	}
}

// One call samples the totals of all tasks.
func TestSampleTaskTotals(t *testing.T) {
	sample := func(ctx context.Context, id string) (*driver.TaskStats, error) {
		switch {
		case id == "exited":
			return nil, io.EOF
		case id == "absent":
			return nil, nil
		case !driver.IsTotalsOnly(ctx):
			return nil, errors.New("the context does not ask for totals only")
		}
		return &driver.TaskStats{Timestamp: time.Now(), Total: driver.Usage{CPU: driver.CPUUsage{TotalTicks: 5}, Memory: driver.MemoryUsage{RSS: 7, Usage: 8}}, ByPID: map[string]driver.Usage{"1": {}}}, nil
	}
	testSampling(t, sample, func(t *testing.T, d driver.Driver, s *recordingTasksServer) {
		got := map[int]driver.TaskTotal{}
		err := d.(driver.TasksSampler).SampleTaskTotals(t.Context(), []string{"absent", "a", "exited"}, func(i int, total driver.TaskTotal) { got[i] = total })
		if want := map[int]driver.TaskTotal{1: {CPUMHz: 5, MemoryUsage: 8, MemoryRSS: 7}}; err != nil || !maps.Equal(got, want) {
			t.Errorf("got %v, %v; want %v", got, err, want)
		}
		if calls := s.callsSinceLast(); len(calls) != 1 {
			t.Errorf("calls: %v", calls)
		}
		if sample, err := d.(driver.TaskSampler).SampleTask(t.Context(), "a"); err == nil {
			t.Errorf("SampleTask asks for totals only: %v", sample)
		}
	})
	d, _ := newClientOf(t, &fakeDriver{})
	if err := d.(driver.TasksSampler).SampleTaskTotals(t.Context(), []string{"a"}, nil); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("driver without Tasks: %v", err)
	}
}

// A driver that was built before the field totals_only sends one response for each task.
func TestSampleTaskTotalsOfEarlierDriver(t *testing.T) {
	f := newFakeTasksDriver()
	f.sampleFunc = func(context.Context, string) (*driver.TaskStats, error) {
		return &driver.TaskStats{Total: driver.Usage{Memory: driver.MemoryUsage{RSS: 7}}, ByPID: map[string]driver.Usage{"1": {}}}, nil
	}
	p := serveInMemory(t, func(r grpc.ServiceRegistrar) {
		driverpb.RegisterDriverServer(r, &server{impl: f, servesTasks: true})
		taskspb.RegisterTasksServer(r, &earlierTasksServer{tasksServer{impl: f}})
	})
	got := map[int]driver.TaskTotal{}
	err := NewClient(p.conn, p.done).(driver.TasksSampler).SampleTaskTotals(t.Context(), []string{"a"}, func(i int, total driver.TaskTotal) { got[i] = total })
	if want := map[int]driver.TaskTotal{0: {MemoryRSS: 7}}; err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
}

// earlierTasksServer ignores the field totals_only.
type earlierTasksServer struct{ tasksServer }

func (s *earlierTasksServer) SampleTasks(req *taskspb.SampleTasksRequest, stream grpc.ServerStreamingServer[taskspb.SampleTasksResponse]) error {
	return s.tasksServer.SampleTasks(&taskspb.SampleTasksRequest{TaskIds: req.GetTaskIds()}, stream)
}

// A task whose sample hangs does not delay the samples of other tasks, whose number is larger than that of one response.
func TestHangingTotalDelaysNoOtherTask(t *testing.T) {
	sample := func(ctx context.Context, id string) (*driver.TaskStats, error) {
		if id == "hangs" {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return &driver.TaskStats{}, nil
	}
	testSampling(t, sample, func(t *testing.T, d driver.Driver, _ *recordingTasksServer) {
		ids := []string{"hangs"}
		for i := range maxTotalsPerResponse + 3 {
			ids = append(ids, fmt.Sprint(i))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begin, sampled := time.Now(), 0
		err := d.(driver.TasksSampler).SampleTaskTotals(ctx, ids, func(int, driver.TaskTotal) {
			if sampled++; time.Since(begin) > 2*slowSampleAfter {
				t.Errorf("sample %d after %v", sampled, time.Since(begin))
			}
		})
		if sampled != len(ids)-1 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%d of %d samples, %v", sampled, len(ids), err)
		}
	})
}

// BenchmarkSampleTaskTotals measures the cost of the calls, without the work of the driver.
func BenchmarkSampleTaskTotals(b *testing.B) {
	f := newFakeTasksDriver()
	f.sampleFunc = func(context.Context, string) (*driver.TaskStats, error) {
		return &driver.TaskStats{Timestamp: time.Now()}, nil
	}
	d, _ := newClientOf(b, f)
	ids := make([]string, 1000)
	for i := range ids {
		ids[i] = fmt.Sprintf("c0ffee00-0000-4000-8000-00000000%04d/web/12345678", i)
	}
	b.ReportAllocs()
	for b.Loop() {
		n := 0
		if err := d.(driver.TasksSampler).SampleTaskTotals(b.Context(), ids, func(int, driver.TaskTotal) { n++ }); err != nil || n != len(ids) {
			b.Fatal(n, err)
		}
	}
}
