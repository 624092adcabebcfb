package top

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/streaming"
	"github.com/nomad-lite/nomad-lite/internal/wait"
)

// jobAndAllocLists are the lists of all jobs and allocations.
type jobAndAllocLists struct {
	jobs              []*api.JobListStub
	allocs            []*api.AllocationListStub
	containsUpToIndex uint64 // both lists contain all changes up to this index
}

// stateUpdate is a change of the cluster's state, or an error of the connection to the agent.
type stateUpdate struct {
	newLists      *jobAndAllocLists // nil, or the new state that replaces the known one
	events        []streamedEvent   // changes since the last update
	connectionErr error             // why the connection has failed; followChangesReconnecting connects again
}

const (
	listTimeout = 30 * time.Second
	// streamTimeout is the time without a line of the event stream after which the agent counts as unreachable. An
	// agent sends a heartbeat every 30 s.
	streamTimeout  = 75 * time.Second
	maxRetryDelay  = 4 * time.Second
	maxEventLength = 64 << 20 // bytes of a line of the event stream
)

// minRetryDelay is the delay before the first attempt to connect to the agent again. Tests change it.
var minRetryDelay = 250 * time.Millisecond

// readJobAndAllocLists requests all jobs and allocations.
func readJobAndAllocLists(ctx context.Context, c *api.Client) (*jobAndAllocLists, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	jobs, jobsMeta, err := c.Jobs().List(apiclient.QueryOptions(ctx, ""))
	if err != nil {
		return nil, apiclient.WrapErrorWithAdvice("list jobs", err)
	}
	q := apiclient.QueryOptions(ctx, "")
	q.Params = map[string]string{"resources": "true"}
	allocs, allocsMeta, err := c.Allocations().List(q)
	if err != nil {
		return nil, apiclient.WrapErrorWithAdvice("list allocations", err)
	}
	return &jobAndAllocLists{jobs, allocs, min(jobsMeta.LastIndex, allocsMeta.LastIndex)}, nil
}

// followChangesReconnecting sends the changes since initialLists were read, until ctx ends. When the connection fails,
// it sends the error, connects again, and then sends new lists first.
func followChangesReconnecting(ctx context.Context, c *api.Client, initialLists *jobAndAllocLists, send func(stateUpdate)) {
	for delay := minRetryDelay; ctx.Err() == nil; {
		var err error
		if initialLists == nil {
			if initialLists, err = readJobAndAllocLists(ctx, c); err == nil {
				send(stateUpdate{newLists: initialLists})
			}
		}
		if err == nil {
			began := time.Now()
			err = followEvents(ctx, c, initialLists.containsUpToIndex, func(events []streamedEvent) { send(stateUpdate{events: events}) })
			if time.Since(began) > maxRetryDelay {
				delay = minRetryDelay
			}
		}
		send(stateUpdate{connectionErr: err})
		_ = wait.Sleep(ctx, delay) // fails only when ctx ends, which the loop checks
		initialLists, delay = nil, min(2*delay, maxRetryDelay)
	}
}

// followHealth calls setHealth with the health of all jobs, and again when it changes, until ctx ends. It returns early if the
// agent does not report the health.
func followHealth(ctx context.Context, c *api.Client, setHealth func(jobHealths)) {
	q := apiclient.QueryOptions(ctx, "")
	for delay := minRetryDelay; ctx.Err() == nil; {
		healthByJob, index, err := apiclient.WatchHealthOfAllJobs(c, q)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			setHealth(healthByJob)
			q.WaitIndex, delay = index, minRetryDelay
			continue
		case apiclient.IsNotFound(err):
			return
		}
		q.WaitIndex = 0
		_ = wait.Sleep(ctx, delay) // fails only when ctx ends, which the loop checks
		delay = min(2*delay, maxRetryDelay)
	}
}

// conditionsInterval is the time between two requests of pollConditions. The agent looks as often.
const conditionsInterval = 10 * time.Second

// pollConditions calls set with the conditions of the agent, in intervals, until ctx ends.
func pollConditions(ctx context.Context, c *api.Client, set func(conditions)) {
	for ctx.Err() == nil {
		set(apiclient.ReadConditions(ctx, c))
		_ = wait.Sleep(ctx, conditionsInterval) // fails only when ctx ends, which the loop checks
	}
}

// followEvents calls handle with the events after afterIndex. It returns an error when the stream or ctx ends.
func followEvents(ctx context.Context, c *api.Client, afterIndex uint64, handle func([]streamedEvent)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(streamTimeout, func() { cancel(errors.New("the agent does not answer")) })
	defer silence.Stop()
	params := url.Values{"index": {fmt.Sprint(afterIndex + 1)}, "topic": {string(api.TopicJob), string(api.TopicAllocation)}}
	body, err := c.Raw().Response("/v1/event/stream?"+params.Encode(), apiclient.QueryOptions(ctx, ""))
	if err != nil {
		return apiclient.WrapErrorWithAdvice("follow events", err)
	}
	// Close blocks while the scanner reads, so another goroutine calls it after the end of the context, which ends the
	// read.
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { <-ctx.Done(); body.Close() })
	defer cancel(nil)

	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxEventLength)
	for lines.Scan() {
		silence.Reset(streamTimeout)
		var batch struct{ Events []streamedEvent }
		if err := json.Unmarshal(lines.Bytes(), &batch); err != nil {
			return fmt.Errorf("follow events: %w", err)
		}
		if len(batch.Events) > 0 {
			silence.Stop() // a shell can block the table for any time
			handle(batch.Events)
			silence.Reset(streamTimeout)
		}
	}
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("follow events: %w", cause)
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("follow events: %w", streaming.RewriteBrokenStreamError(err))
	}
	return errors.New("follow events: the agent has ended the stream")
}

// allocSample is the resource usage of an allocation's tasks. usage is nil if it could not be read.
type allocSample struct {
	allocID string
	usage   *api.AllocResourceUsage
}

// parallelSamples is the number of allocations whose usage is requested in parallel.
const parallelSamples = 4

// readAllocUsage requests the resource usage of allocations. If one of its goroutines panics, readAllocUsage calls
// cleanupOnPanic before the panic ends the process.
func readAllocUsage(ctx context.Context, c *api.Client, allocs []*api.Allocation, cleanupOnPanic func()) []allocSample {
	samples := make([]allocSample, len(allocs))
	next := make(chan int)
	var wg sync.WaitGroup
	work := func() {
		for i := range next {
			a := allocs[i]
			used, err := c.Allocations().Stats(a, apiclient.QueryOptions(ctx, a.Namespace))
			if err != nil {
				used = nil
			}
			samples[i] = allocSample{a.ID, used}
		}
	}
	for range min(parallelSamples, len(allocs)) {
		wg.Go(func() { callWithPanicCleanup(work, cleanupOnPanic) })
	}
	for i := range allocs {
		next <- i
	}
	close(next)
	wg.Wait()
	return samples
}
