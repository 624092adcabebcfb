package driverwire

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/proto/taskspb"
)

// A call of SampleTasks takes up to maxConcurrentSamples samples at a time, to save memory. A sample that takes longer than
// slowSampleAfter does not count, so that it does not delay other tasks.
const (
	maxConcurrentSamples = 8
	slowSampleAfter      = 100 * time.Millisecond
)

func (s *tasksServer) SampleTasks(req *taskspb.SampleTasksRequest, stream grpc.ServerStreamingServer[taskspb.SampleTasksResponse]) error {
	if req.GetTotalsOnly() {
		s.sampleTotals(req.GetTaskIds(), stream)
		return stream.Context().Err()
	}
	ctx := stream.Context()
	var samplesWG sync.WaitGroup
	defer samplesWG.Wait()
	var sendMu sync.Mutex
	free := make(chan struct{}, maxConcurrentSamples)
	for _, id := range req.GetTaskIds() {
		select {
		case free <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		samplesWG.Go(func() {
			release := sync.OnceFunc(func() { <-free })
			defer release()
			defer time.AfterFunc(slowSampleAfter, release).Stop()
			resp := s.sample(ctx, id)
			sendMu.Lock()
			defer sendMu.Unlock()
			_ = stream.Send(resp) // an error ends ctx
		})
	}
	return nil
}

// sampleTotals samples the totals of tasks, and sends those of many tasks in one response. It starts no goroutine, timer or response
// for each task, because these cost more than most samples: a worker samples many tasks, and is replaced while it waits for a slow
// sample.
func (s *tasksServer) sampleTotals(taskIDs []string, stream grpc.ServerStreamingServer[taskspb.SampleTasksResponse]) {
	ctx := driver.WithTotalsOnly(stream.Context())
	sender := &totalsSender{stream: stream}
	defer sender.sendNow()
	var workersWG sync.WaitGroup
	defer workersWG.Wait()
	var next atomic.Int64 // position of the next task
	var sampleUntilReplaced func()
	sampleUntilReplaced = func() {
		replaced := make(chan struct{})
		slow := time.AfterFunc(slowSampleAfter, func() {
			sender.sendNow()
			workersWG.Go(sampleUntilReplaced)
			close(replaced)
		})
		for ctx.Err() == nil {
			if !slow.Stop() {
				<-replaced // until then workersWG must not be done
				return
			}
			i := next.Add(1) - 1
			if i >= int64(len(taskIDs)) {
				return
			}
			slow.Reset(slowSampleAfter)
			if stats, err := s.impl.SampleTask(ctx, taskIDs[i]); err == nil && stats != nil {
				sender.add(int(i), stats)
			}
		}
		if !slow.Stop() {
			<-replaced
		}
	}
	for range min(maxConcurrentSamples, len(taskIDs)) {
		workersWG.Go(sampleUntilReplaced)
	}
}

// maxTotalsPerResponse limits the size of a response.
const maxTotalsPerResponse = 500

// totalsSender collects totals for responses.
type totalsSender struct {
	stream grpc.ServerStreamingServer[taskspb.SampleTasksResponse]

	mu     sync.Mutex
	totals []*taskspb.TaskTotal // not sent yet
	isLate bool                 // further samples are sent at once, because others can take long
}

// add adds the sample of the task at a position of the request.
func (s *totalsSender) add(position int, stats *driver.TaskStats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := &stats.Total
	s.totals = append(s.totals, &taskspb.TaskTotal{Task: uint32(position), CpuMhz: u.CPU.TotalTicks, MemoryUsage: u.Memory.Usage, MemoryRss: u.Memory.RSS})
	if s.isLate || len(s.totals) == maxTotalsPerResponse {
		s.sendLocked()
	}
}

// sendNow sends the totals, and makes add send further ones at once.
func (s *totalsSender) sendNow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isLate = true
	s.sendLocked()
}

// sendLocked requires mu.
func (s *totalsSender) sendLocked() {
	if len(s.totals) > 0 {
		_ = s.stream.Send(&taskspb.SampleTasksResponse{Totals: s.totals}) // an error ends the context of the stream
		s.totals = nil
	}
}

func (s *tasksServer) sample(ctx context.Context, taskID string) *taskspb.SampleTasksResponse {
	resp := &taskspb.SampleTasksResponse{TaskId: taskID}
	stats, err := s.impl.SampleTask(ctx, taskID)
	if err == nil && stats != nil {
		err = stats.Validate()
	}
	var driverErr *driver.Error
	switch {
	case err == io.EOF:
		resp.Ended = true
	case err != nil:
		resp.Error, resp.Unrecoverable = err.Error(), errors.As(err, &driverErr) && !driverErr.Recoverable
	case stats != nil:
		resp.Stats = taskStatsProto(taskID, stats)
	}
	return resp
}

// readSample returns what SampleTask of the driver has returned.
func readSample(resp *taskspb.SampleTasksResponse) (*driver.TaskStats, error) {
	switch {
	case resp.GetEnded():
		return nil, io.EOF
	case resp.GetError() != "":
		err := restoreErrorType(status.Error(codes.Unknown, resp.GetError()))
		if resp.GetUnrecoverable() {
			err = &driver.Error{Err: err}
		}
		return nil, err
	case resp.GetStats() == nil:
		return nil, nil
	}
	return taskStatsFromProto(resp.GetStats()), nil
}

// SampleTask implements driver.TaskSampler, for a driver that serves Tasks.
func (c *client) SampleTask(ctx context.Context, taskID string) (sample *driver.TaskStats, err error) {
	err = c.sampleTasks(ctx, &taskspb.SampleTasksRequest{TaskIds: []string{taskID}}, func(resp *taskspb.SampleTasksResponse) error {
		sample, err = readSample(resp)
		return err
	})
	return sample, err
}

// SampleTaskTotals implements driver.TasksSampler.
func (c *client) SampleTaskTotals(ctx context.Context, taskIDs []string, onSample func(int, driver.TaskTotal)) error {
	r, err := c.fetchCapabilities(ctx)
	if err != nil {
		return err
	}
	if !r.servesTasks {
		return errors.ErrUnsupported
	}
	return c.sampleTasks(ctx, &taskspb.SampleTasksRequest{TaskIds: taskIDs, TotalsOnly: true}, func(resp *taskspb.SampleTasksResponse) error {
		for _, t := range resp.GetTotals() {
			if i := int(t.GetTask()); i < len(taskIDs) {
				onSample(i, driver.TaskTotal{CPUMHz: t.GetCpuMhz(), MemoryUsage: t.GetMemoryUsage(), MemoryRSS: t.GetMemoryRss()})
			}
		}
		usage, i := resp.GetStats().GetAggResourceUsage(), slices.Index(taskIDs, resp.GetTaskId())
		if usage != nil && i >= 0 { // of a driver that sends no totals
			onSample(i, driver.TaskTotal{CPUMHz: usage.GetCpu().GetTotalTicks(), MemoryUsage: usage.GetMemory().GetUsage(), MemoryRSS: usage.GetMemory().GetRss()})
		}
		return nil
	})
}

// sampleTasks calls SampleTasks, and onResponse with each response until it returns an error.
func (c *client) sampleTasks(ctx context.Context, req *taskspb.SampleTasksRequest, onResponse func(*taskspb.SampleTasksResponse) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.tasks.SampleTasks(ctx, req)
	for err == nil {
		var resp *taskspb.SampleTasksResponse
		if resp, err = stream.Recv(); err == nil {
			if err := onResponse(resp); err != nil {
				return err
			}
		}
	}
	if err == io.EOF {
		return nil
	}
	return c.convertErr(ctx, err)
}

// taskSampler samples all tasks that have the same interval. It exists while it has subscriptions. samplersMu of the client
// guards the maps.
type taskSampler struct {
	interval            time.Duration
	cancel              context.CancelFunc // ends sampleUntilCanceled and the calls that still sample tasks
	subscriptionsByTask map[string][]*sampleSubscription
	pending             map[string]bool // tasks in a call of SampleTasks that has no response for them yet
}

// sampleSubscription is one call of TaskStats.
type sampleSubscription struct {
	samples chan *driver.TaskStats // capacity 1: a reader that is late gets the newest sample
	stop    func() bool            // stops the function that waits for the end of the caller's context
}

// sampleRegularly implements TaskStats of a driver that serves Tasks.
func (c *client) sampleRegularly(ctx context.Context, taskID string, interval time.Duration) (<-chan *driver.TaskStats, error) {
	first, err := c.SampleTask(ctx, taskID)
	s := &sampleSubscription{samples: make(chan *driver.TaskStats, 1)}
	if err == io.EOF {
		close(s.samples)
		return s.samples, nil
	}
	if err != nil {
		return nil, err
	}
	if first != nil {
		s.samples <- first
	}
	c.samplersMu.Lock()
	defer c.samplersMu.Unlock()
	sampler := c.samplers[interval]
	if sampler == nil {
		untilUnused, cancel := context.WithCancel(context.WithoutCancel(ctx))
		sampler = &taskSampler{interval: interval, cancel: cancel, subscriptionsByTask: map[string][]*sampleSubscription{}, pending: map[string]bool{}}
		c.samplers[interval] = sampler
		go c.sampleUntilCanceled(untilUnused, sampler)
	}
	sampler.subscriptionsByTask[taskID] = append(sampler.subscriptionsByTask[taskID], s)
	s.stop = context.AfterFunc(ctx, func() { c.unsubscribe(sampler, taskID, s) })
	return s.samples, nil
}

// unsubscribe ends a subscription. It does nothing if the subscription has ended.
func (c *client) unsubscribe(sampler *taskSampler, taskID string, s *sampleSubscription) {
	c.samplersMu.Lock()
	defer c.samplersMu.Unlock()
	all := sampler.subscriptionsByTask[taskID]
	for i, other := range all {
		if other == s {
			close(s.samples)
			sampler.subscriptionsByTask[taskID] = append(all[:i:i], all[i+1:]...)
		}
	}
	if len(sampler.subscriptionsByTask[taskID]) == 0 {
		c.removeTaskLocked(sampler, taskID)
	}
}

// removeTaskLocked removes a task without subscriptions, and the sampler with its last task. The caller holds samplersMu.
func (c *client) removeTaskLocked(sampler *taskSampler, taskID string) {
	delete(sampler.subscriptionsByTask, taskID)
	if len(sampler.subscriptionsByTask) == 0 && c.samplers[sampler.interval] == sampler {
		delete(c.samplers, sampler.interval)
		sampler.cancel()
	}
}

// sampleUntilCanceled makes a call of SampleTasks at each tick, for the tasks that no earlier call still samples.
func (c *client) sampleUntilCanceled(ctx context.Context, sampler *taskSampler) {
	ticker := time.NewTicker(sampler.interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		c.samplersMu.Lock()
		var ids []string
		for id := range sampler.subscriptionsByTask {
			if !sampler.pending[id] {
				ids = append(ids, id)
				sampler.pending[id] = true
			}
		}
		c.samplersMu.Unlock()
		if len(ids) > 0 {
			go c.sampleOnce(ctx, sampler, ids)
		}
	}
}

// sampleOnce samples tasks, and sends the samples to the subscriptions. It ends the subscriptions of a task that has
// exited, whose sample is an error, or whose response is missing because the stream has ended.
func (c *client) sampleOnce(ctx context.Context, sampler *taskSampler, taskIDs []string) {
	missing := map[string]bool{}
	for _, id := range taskIDs {
		missing[id] = true
	}
	_ = c.sampleTasks(ctx, &taskspb.SampleTasksRequest{TaskIds: taskIDs}, func(resp *taskspb.SampleTasksResponse) error { // the tasks without a response show the error
		if id := resp.GetTaskId(); missing[id] {
			delete(missing, id)
			sample, err := readSample(resp)
			c.publishSample(sampler, id, sample, err)
		}
		return nil
	})
	for id := range missing {
		c.publishSample(sampler, id, nil, driver.ErrPluginDown)
	}
}

// publishSample sends a sample to the subscriptions of a task, or ends them if err is not nil.
func (c *client) publishSample(sampler *taskSampler, taskID string, sample *driver.TaskStats, err error) {
	c.samplersMu.Lock()
	defer c.samplersMu.Unlock()
	delete(sampler.pending, taskID)
	for _, s := range sampler.subscriptionsByTask[taskID] {
		switch {
		case err != nil:
			s.stop()
			close(s.samples)
		case sample != nil:
			select {
			case <-s.samples: // the reader is late
			default:
			}
			s.samples <- sample
		}
	}
	if err != nil {
		c.removeTaskLocked(sampler, taskID)
	}
}
