package driverwire

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"google.golang.org/grpc"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/proto/driverpb"
	"github.com/nomad-lite/nomad-lite/plugins/proto/taskspb"
)

// fakeTasksDriver is a fakeDriver that serves Tasks.
type fakeTasksDriver struct {
	*fakeDriver
	waited     chan string // receives the id of each call of NotifyExit
	sampleFunc func(ctx context.Context, taskID string) (*driver.TaskStats, error)

	mu           sync.Mutex
	onExitByTask map[string]func(*driver.ExitResult, error) // the task has not exited
}

func newFakeTasksDriver(taskIDs ...string) *fakeTasksDriver {
	f := &fakeTasksDriver{fakeDriver: &fakeDriver{}, waited: make(chan string, 100), onExitByTask: map[string]func(*driver.ExitResult, error){}}
	for _, id := range taskIDs {
		f.onExitByTask[id] = nil
	}
	return f
}

func (f *fakeTasksDriver) NotifyExit(_ context.Context, id string, onExit func(*driver.ExitResult, error)) {
	f.mu.Lock()
	_, known := f.onExitByTask[id]
	if known {
		f.onExitByTask[id] = onExit
	}
	f.mu.Unlock()
	if !known {
		onExit(nil, driver.ErrTaskNotFound)
	}
	f.waited <- id
}

func (f *fakeTasksDriver) SampleTask(ctx context.Context, id string) (*driver.TaskStats, error) {
	return f.sampleFunc(ctx, id)
}

func (f *fakeTasksDriver) exit(id string, code int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.onExitByTask[id](&driver.ExitResult{ExitCode: code}, nil)
}

// waitResult is the result of one NotifyExit.
type waitResult struct {
	taskID     string
	exitResult *driver.ExitResult
	err        error
}

// notifyExits calls NotifyExit for each task. The results must be received.
func notifyExits(ctx context.Context, d driver.Driver, results chan<- waitResult, taskIDs ...string) {
	for _, id := range taskIDs {
		driver.NotifyExit(ctx, d, id, func(exitResult *driver.ExitResult, err error) { results <- waitResult{id, exitResult, err} })
	}
}

func (r waitResult) expectCode(t *testing.T, taskID string, code int) {
	t.Helper()
	if r.taskID != taskID || r.err != nil || r.exitResult.ExitCode != code {
		t.Errorf("got %+v of %q, %v, want exit code %d of %q", r.exitResult, r.taskID, r.err, code, taskID)
	}
}

// Each wait gets the exit of its task. An unknown task is an error for its own wait only. No wait is a call of WaitTask.
func TestExitsAreReportedByStream(t *testing.T) {
	f := newFakeTasksDriver("a", "b")
	d, _ := newClientOf(t, f)
	results := make(chan waitResult, 10)
	notifyExits(t.Context(), d, results, "a", "b", "unknown")
	for range 3 {
		<-f.waited
	}
	if r := <-results; r.taskID != "unknown" || !errors.Is(r.err, driver.ErrTaskNotFound) {
		t.Errorf("first result: got %+v, want %v for the task unknown", r, driver.ErrTaskNotFound)
	}
	f.exit("b", 2)
	(<-results).expectCode(t, "b", 2)
	f.exit("a", 1)
	(<-results).expectCode(t, "a", 1)
	if calls := fmt.Sprint(f.calls); calls != "[[Capabilities]]" {
		t.Errorf("calls of the service Driver: %v, want one of Capabilities", calls)
	}
}

// A canceled wait does not affect other waits for the task, nor later ones.
func TestCanceledWaitOfStream(t *testing.T) {
	f := newFakeTasksDriver("a")
	d, _ := newClientOf(t, f)
	results := make(chan waitResult, 10)
	ctx, cancel := context.WithCancel(t.Context())
	canceled := make(chan waitResult, 1)
	notifyExits(ctx, d, canceled, "a")
	<-f.waited
	notifyExits(t.Context(), d, results, "a")
	cancel()
	notifyExits(t.Context(), d, results, "a")
	f.exit("a", 3)
	(<-results).expectCode(t, "a", 3)
	(<-results).expectCode(t, "a", 3)
	if len(canceled) > 0 {
		t.Errorf("the canceled wait got %+v", <-canceled)
	}
}

// interruptedTasksServer ends its first streams after one request each, as if they were cut.
type interruptedTasksServer struct {
	tasksServer
	mu   sync.Mutex
	cuts int // streams that are still to be cut
}

func (s *interruptedTasksServer) WaitTasks(stream grpc.BidiStreamingServer[taskspb.WaitTasksRequest, taskspb.WaitTasksResponse]) error {
	s.mu.Lock()
	cut := s.cuts > 0
	s.cuts--
	s.mu.Unlock()
	if cut {
		_, err := stream.Recv()
		return errors.Join(errors.New("the stream is cut"), err)
	}
	return s.tasksServer.WaitTasks(stream)
}

// The end of a stream over a live connection loses no wait: the next stream, or a call of WaitTask, continues it.
func TestWaitContinuesAfterCutStream(t *testing.T) {
	for cuts := range maxExitStreams + 1 {
		t.Run(fmt.Sprint(cuts), func(t *testing.T) {
			f := newFakeTasksDriver("a")
			f.waitFunc = func(context.Context) (*driver.ExitResult, error) {
				f.waited <- "call of WaitTask"
				return &driver.ExitResult{ExitCode: 4}, nil
			}
			p := serveOnSocket(t, func(s grpc.ServiceRegistrar) {
				driverpb.RegisterDriverServer(s, &server{impl: f, servesTasks: true})
				taskspb.RegisterTasksServer(s, &interruptedTasksServer{tasksServer: tasksServer{impl: f}, cuts: cuts})
			})
			results := make(chan waitResult, 10)
			notifyExits(t.Context(), NewClient(p.conn, p.done), results, "a")
			waited := <-f.waited
			if byCall := waited != "a"; byCall != (cuts == maxExitStreams) {
				t.Errorf("after %d cuts the driver got %q", cuts, waited)
			}
			if waited == "a" {
				f.exit("a", 4)
			}
			(<-results).expectCode(t, "a", 4)
		})
	}
}

func TestWaitOfStreamEndsWithPlugin(t *testing.T) {
	f := newFakeTasksDriver("a", "b")
	d, p := newClientOf(t, f)
	results := make(chan waitResult, 10)
	notifyExits(t.Context(), d, results, "a", "b")
	<-f.waited
	<-f.waited
	p.die()
	for range 2 {
		if r := <-results; r.err != driver.ErrPluginDown {
			t.Errorf("got %+v, want %v", r, driver.ErrPluginDown)
		}
	}
}

// A driver that does not announce the service gets no call of it: it could log the call as an error.
func TestTasksIsCalledOnlyIfAnnounced(t *testing.T) {
	f := newFakeTasksDriver("a")
	f.exitResult = &driver.ExitResult{ExitCode: 5}
	p := serveOnSocket(t, func(s grpc.ServiceRegistrar) {
		driverpb.RegisterDriverServer(s, &server{impl: f})
		taskspb.RegisterTasksServer(s, &tasksServer{impl: f})
	})
	results := make(chan waitResult, 10)
	c := NewClient(p.conn, p.done)
	for range 2 {
		notifyExits(t.Context(), c, results, "a")
		(<-results).expectCode(t, "a", 5)
	}
	if len(f.waited) > 0 {
		t.Error("the client has called the service Tasks of a driver that does not announce it")
	}
}

// A host that does not read the stream does not block the driver, and gets all exits later.
func TestHostThatDoesNotReadExitsBlocksNoTask(t *testing.T) {
	const n = 5000 // more than the buffers of a connection hold
	var ids []string
	for i := range n {
		ids = append(ids, fmt.Sprintf("00000000-0000-0000-0000-000000000000/task/%08d", i))
	}
	f := newFakeTasksDriver(ids...)
	f.waited = make(chan string, n)
	_, p := newClientOf(t, f)
	stream, err := taskspb.NewTasksClient(p.conn).WaitTasks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&taskspb.WaitTasksRequest{TaskIds: ids}); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		<-f.waited
		f.exit(ids[i], i) // blocks if the queue has a limit
	}
	for i := range n {
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if resp.GetTaskId() != ids[i] || resp.GetResponse().GetResult().GetExitCode() != int32(i) {
			t.Fatalf("response %d: got %v", i, resp)
		}
	}
}
