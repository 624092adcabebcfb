package driverwire

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/proto/taskspb"
)

// WaitTasks queues the exits, so that a host that reads slowly does not block the driver.
func (s *tasksServer) WaitTasks(stream grpc.BidiStreamingServer[taskspb.WaitTasksRequest, taskspb.WaitTasksResponse]) error {
	ctx, cancel := context.WithCancel(stream.Context())
	exits := newQueue[*taskspb.WaitTasksResponse]()
	var sendWG sync.WaitGroup
	sendWG.Go(func() { _ = exits.sendUntilDone(ctx, stream.Send) }) // an error of Send ends the stream, and with it Recv
	defer sendWG.Wait()
	defer cancel()
	for {
		req, err := stream.Recv()
		if err != nil {
			return err
		}
		for _, id := range req.GetTaskIds() {
			s.impl.NotifyExit(ctx, id, func(exitResult *driver.ExitResult, err error) {
				resp := &taskspb.WaitTasksResponse{TaskId: id}
				if err != nil {
					resp.Error = err.Error()
				} else {
					resp.Response = waitTaskResponseProto(exitResult)
				}
				exits.add(resp)
			})
		}
	}
}

// queue has the values that any number of goroutines add, until one goroutine sends them. It has no limit.
type queue[T any] struct {
	mu      sync.Mutex
	values  []T
	changed chan struct{} // has a value while values may be non-empty; capacity 1
}

func newQueue[T any]() *queue[T] { return &queue[T]{changed: make(chan struct{}, 1)} }

// add appends a value. It does not block.
func (q *queue[T]) add(v T) {
	q.mu.Lock()
	q.values = append(q.values, v)
	q.mu.Unlock()
	wait.Notify(q.changed)
}

// sendUntilDone calls send with each value, in order. It returns the first error of send, or the error of ctx when ctx ends.
func (q *queue[T]) sendUntilDone(ctx context.Context, send func(T) error) error {
	for {
		select {
		case <-q.changed:
		case <-ctx.Done():
			return ctx.Err()
		}
		q.mu.Lock()
		values := q.values
		q.values = nil
		q.mu.Unlock()
		for _, v := range values {
			if err := send(v); err != nil {
				return err
			}
		}
	}
}

// exitStream is the client's stream of exits. It is opened with the first wait, and stays open until the connection ends.
// The zero value is not usable: client must be set.
type exitStream struct {
	client taskspb.TasksClient

	mu          sync.Mutex
	waitsByTask map[string][]exitWait // waits without a response; nil while no stream is open
	taskIDs     *queue[string]        // ids of the tasks to wait for in the open stream
}

// exitWait is one wait for the exit of a task.
type exitWait struct {
	ctx    context.Context
	onExit func(resp *taskspb.WaitTasksResponse, streamErr error)
}

// add calls onExit once, with the response for a task or with the error that ended the stream before the response. It
// does not block, nor must onExit. If ctx ends first, onExit may not be called.
func (e *exitStream) add(ctx context.Context, taskID string, onExit func(*taskspb.WaitTasksResponse, error)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.waitsByTask == nil {
		e.waitsByTask, e.taskIDs = map[string][]exitWait{}, newQueue[string]()
		go e.receiveUntilStreamEnds(e.taskIDs)
	}
	waits := e.waitsByTask[taskID]
	if len(waits) == 0 {
		e.taskIDs.add(taskID)
	}
	kept := make([]exitWait, 0, 1) // most tasks have one wait
	for _, w := range waits {
		if w.ctx.Err() == nil {
			kept = append(kept, w)
		}
	}
	e.waitsByTask[taskID] = append(kept, exitWait{ctx, onExit})
}

// receiveUntilStreamEnds opens the stream, and receives the responses until the stream ends. The stream ends with the
// connection at the latest.
func (e *exitStream) receiveUntilStreamEnds(taskIDs *queue[string]) {
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := e.client.WaitTasks(ctx)
	if err == nil {
		var sendWG sync.WaitGroup
		sendWG.Go(func() {
			_ = taskIDs.sendUntilDone(ctx, func(id string) error { // Recv returns the error that ends the stream
				return stream.Send(&taskspb.WaitTasksRequest{TaskIds: []string{id}})
			})
		})
		err = e.receive(stream)
		cancel()
		sendWG.Wait()
	}
	cancel()
	e.mu.Lock()
	remaining := e.waitsByTask
	e.waitsByTask, e.taskIDs = nil, nil
	e.mu.Unlock()
	for _, waits := range remaining {
		for _, w := range waits {
			w.onExit(nil, err)
		}
	}
}

func (e *exitStream) receive(stream grpc.BidiStreamingClient[taskspb.WaitTasksRequest, taskspb.WaitTasksResponse]) error {
	for {
		resp, err := stream.Recv()
		if err != nil {
			return err
		}
		e.mu.Lock()
		waits := e.waitsByTask[resp.GetTaskId()]
		delete(e.waitsByTask, resp.GetTaskId())
		e.mu.Unlock()
		for _, w := range waits {
			w.onExit(resp, nil)
		}
	}
}

// maxExitStreams is the number of streams in which a wait is sent. A wait whose streams have all ended continues as a
// call of WaitTask, whose error says what has happened to the driver.
const maxExitStreams = 2

// NotifyExit implements driver.ExitNotifier. It calls WaitTask in a goroutine if the driver does not serve Tasks.
func (c *client) NotifyExit(ctx context.Context, taskID string, onExit func(*driver.ExitResult, error)) {
	if r := c.capabilitiesCache.getIfCached(); r != nil && r.servesTasks {
		c.notifyExitByStream(ctx, taskID, maxExitStreams, onExit)
		return
	}
	go func() {
		// WaitTask reports an error of Capabilities, too, unless it was temporary.
		if r, err := c.fetchCapabilities(ctx); err == nil && r.servesTasks {
			c.notifyExitByStream(ctx, taskID, maxExitStreams, onExit)
		} else {
			onExit(c.WaitTask(ctx, taskID))
		}
	}()
}

func (c *client) notifyExitByStream(ctx context.Context, taskID string, streamsLeft int, onExit func(*driver.ExitResult, error)) {
	if streamsLeft == 0 {
		go func() { onExit(c.WaitTask(ctx, taskID)) }()
		return
	}
	c.exits.add(ctx, taskID, func(resp *taskspb.WaitTasksResponse, streamErr error) {
		switch {
		case streamErr != nil:
			c.notifyExitByStream(ctx, taskID, streamsLeft-1, onExit)
		case resp.GetError() != "":
			onExit(nil, restoreErrorType(status.Error(codes.Unknown, resp.GetError())))
		default:
			onExit(exitResultOfWaitTask(resp.GetResponse()), nil)
		}
	})
}
