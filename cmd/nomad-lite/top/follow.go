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
)

// lists are all jobs and allocations.
type lists struct {
	jobs   []*api.JobListStub
	allocs []*api.AllocationListStub
	index  uint64 // all changes up to this index are in both lists
}

// update is a change of the state, or of the connection to the agent.
type update struct {
	lists  *lists  // replaces the whole state
	events []event // changes since the last update
	err    error   // the connection has failed, and is tried again
}

const (
	listTimeout = 30 * time.Second
	// streamTimeout is the time without a line of the event stream after which the agent counts as lost. An agent
	// sends a heartbeat every 30 s.
	streamTimeout  = 75 * time.Second
	maxRetryDelay  = 4 * time.Second
	maxEventLength = 64 << 20 // bytes of a line of the event stream
)

// minRetryDelay is the first delay before the agent is called again. Tests change it.
var minRetryDelay = 250 * time.Millisecond

// readLists requests all jobs and allocations.
func readLists(ctx context.Context, c *api.Client) (*lists, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	jobs, jobsMeta, err := c.Jobs().List(apiclient.QueryOptions(ctx, ""))
	if err != nil {
		return nil, apiclient.WrapError("list jobs", err)
	}
	q := apiclient.QueryOptions(ctx, "")
	q.Params = map[string]string{"resources": "true"}
	allocs, allocsMeta, err := c.Allocations().List(q)
	if err != nil {
		return nil, apiclient.WrapError("list allocations", err)
	}
	return &lists{jobs, allocs, min(jobsMeta.LastIndex, allocsMeta.LastIndex)}, nil
}

// follow sends the changes since the lists were read, until ctx ends. After an error it sends the error, and
// tries again: then the first update has new lists.
func follow(ctx context.Context, c *api.Client, from *lists, updates chan<- update) {
	send := func(u update) bool {
		select {
		case updates <- u:
			return true
		case <-ctx.Done():
			return false
		}
	}
	delay := minRetryDelay
	for {
		var err error
		if from == nil {
			if from, err = readLists(ctx, c); err == nil && !send(update{lists: from}) {
				return
			}
		}
		if err == nil {
			began := time.Now()
			err = followEvents(ctx, c, from.index, func(events []event) bool { return send(update{events: events}) })
			if time.Since(began) > maxRetryDelay {
				delay = minRetryDelay
			}
		}
		if !send(update{err: err}) {
			return
		}
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return
		}
		from, delay = nil, min(2*delay, maxRetryDelay)
	}
}

// followEvents calls each with the events after an index. It returns an error when the stream ends, or nil if each
// returns false.
func followEvents(ctx context.Context, c *api.Client, index uint64, each func([]event) bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(streamTimeout, func() { cancel(errors.New("the agent does not answer")) })
	defer silence.Stop()
	params := url.Values{"index": {fmt.Sprint(index + 1)}, "topic": {string(api.TopicJob), string(api.TopicAllocation)}}
	body, err := c.Raw().Response("/v1/event/stream?"+params.Encode(), apiclient.QueryOptions(ctx, ""))
	if err != nil {
		return apiclient.WrapError("follow events", err)
	}
	// Close blocks while another goroutine reads, and the end of the context ends the read.
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { <-ctx.Done(); body.Close() })
	defer cancel(nil)

	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxEventLength)
	for lines.Scan() {
		silence.Reset(streamTimeout)
		var batch struct{ Events []event }
		if err := json.Unmarshal(lines.Bytes(), &batch); err != nil {
			return fmt.Errorf("follow events: %w", err)
		}
		if len(batch.Events) > 0 && !each(batch.Events) {
			return nil
		}
	}
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("follow events: %w", cause)
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("follow events: %w", streaming.DescribeStreamError(err))
	}
	return errors.New("follow events: the agent has ended the stream")
}

// sample is the resource usage of an allocation. A nil usage is unknown.
type sample struct {
	allocID string
	usage   *api.AllocResourceUsage
}

// parallelSamples is the number of allocations whose usage is requested at the same time.
const parallelSamples = 4

// readUsage requests the resource usage of allocations. An allocation that cannot be read has no usage. readUsage
// calls cleanup before a panic of one of its goroutines ends the process.
func readUsage(ctx context.Context, c *api.Client, allocs []*api.Allocation, cleanup func()) []sample {
	samples := make([]sample, len(allocs))
	next := make(chan int)
	var wg sync.WaitGroup
	work := func() {
		for i := range next {
			a := allocs[i]
			used, err := c.Allocations().Stats(a, apiclient.QueryOptions(ctx, a.Namespace))
			if err != nil {
				used = nil
			}
			samples[i] = sample{a.ID, used}
		}
	}
	for range min(parallelSamples, len(allocs)) {
		wg.Go(func() { callWithCleanup(work, cleanup) })
	}
	for i := range allocs {
		next <- i
	}
	close(next)
	wg.Wait()
	return samples
}
