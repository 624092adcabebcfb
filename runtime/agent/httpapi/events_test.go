package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// streamRecorder ends the context of a request when the response contains a text.
type streamRecorder struct {
	*httptest.ResponseRecorder
	lastText string
	end      func()
}

func (r *streamRecorder) Write(p []byte) (int, error) {
	n, err := r.ResponseRecorder.Write(p)
	if strings.Contains(r.Body.String(), r.lastText) {
		r.end()
	}
	return n, err
}

// readUntil returns the response of a request. A stream ends after the write that completes lastText.
func (f *fixture) readUntil(t *testing.T, path, token, lastText string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r := httptest.NewRequestWithContext(ctx, "GET", path, nil)
	r.Host = "localhost"
	r.Header.Set("X-Nomad-Token", token)
	w := &streamRecorder{httptest.NewRecorder(), lastText, cancel}
	f.ServeHTTP(w, r)
	return w.Body.String()
}

// serve starts a server on a listener. At the end of the test it stops the server and waits until the
// server has ended.
func (f *fixture) serve(t *testing.T, listeners ...net.Listener) {
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- f.Serve(ctx, listeners...) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

func (f *fixture) listen(t *testing.T) (address string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.serve(t, l)
	// The goroutines of the server must have started before a test counts goroutines.
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(conn); err != nil {
		t.Fatal(err)
	}
	return l.Addr().String()
}

func (f *fixture) putVariable(t *testing.T, path string) uint64 {
	return f.updateStore(t, func(tx *store.Txn) { tx.PutVariable(&api.Variable{Namespace: "default", Path: path}) })
}

// eventClient is a client of the event stream that reads the raw response.
type eventClient struct {
	net.Conn
	lines *bufio.Scanner
}

// openEventStream requests the event stream, and returns after it has read the headers of the response.
func openEventStream(conn net.Conn, query string) (*eventClient, error) {
	if _, err := fmt.Fprintf(conn, "GET /v1/event/stream?%s HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept-Encoding: gzip\r\n\r\n", query); err != nil {
		return nil, err
	}
	w := &eventClient{conn, bufio.NewScanner(conn)}
	w.lines.Buffer(nil, 1<<20)
	for want := []string{"HTTP/1.1 200 OK", "Content-Type: application/json", "Cache-Control: no-cache", "Transfer-Encoding: chunked"}; w.lines.Scan(); {
		line := w.lines.Text()
		switch {
		case line == "" && len(want) > 0:
			return nil, fmt.Errorf("the headers lack %q", want)
		case line == "":
			return w, nil
		case strings.HasPrefix(line, "Content-Encoding"):
			return nil, errors.New("a stream is compressed")
		}
		want = slices.DeleteFunc(want, func(header string) bool { return header == line })
	}
	return nil, errors.Join(w.lines.Err(), io.ErrUnexpectedEOF)
}

// nextLine returns the next line of JSON.
func (c *eventClient) nextLine() (string, error) {
	for c.lines.Scan() {
		if line := c.lines.Text(); strings.HasPrefix(line, "{") { // the condition skips the lengths of HTTP chunks
			return line, nil
		}
	}
	return "", errors.Join(c.lines.Err(), io.EOF)
}

func (c *eventClient) wantEvents(t *testing.T, what string) (events []api.Event) {
	t.Helper()
	line, err := c.nextLine()
	if err != nil {
		t.Fatal(err)
	}
	var batch api.Events
	if err := json.Unmarshal([]byte(line), &batch); err != nil {
		t.Fatal(err)
	}
	var eventKeys []string
	for _, e := range batch.Events {
		if e.Index != batch.Index {
			t.Errorf("event at %d in a line of %d", e.Index, batch.Index)
		}
		eventKeys = append(eventKeys, fmt.Sprint(e.Topic, ":", e.Key))
	}
	if got := strings.Join(eventKeys, " "); got != what {
		t.Fatalf("events %q, want %q", got, what)
	}
	return batch.Events
}

// The event stream starts with {}, sends heartbeats, and replays events at index 0. (checklist 34)
func TestEventStream(t *testing.T) {
	f := newFixture(t, nil)
	address := f.listen(t)
	open := func(query string) *eventClient {
		t.Helper()
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		w, err := openEventStream(conn, query)
		if err != nil {
			t.Fatal(err)
		}
		w.wantEvents(t, "") // the first line is a heartbeat
		return w
	}
	f.putJob(t, "web")
	f.updateStore(t, func(tx *store.Txn) {
		tx.SetEventOperation("PlanResult")
		tx.PutScheduledAllocation(&api.Allocation{ID: "a", Namespace: "default", JobID: "web", Job: &api.Job{ID: new("web"), Namespace: new("default")}})
		tx.PutEvaluation(&api.Evaluation{ID: "e", Namespace: "default", JobID: "web"})
		tx.PutNodeWithStorageEvents(&api.Node{ID: "n"})
	})
	f.putVariable(t, "v")

	w := open("index=0") // past events are replayed before new ones
	w.wantEvents(t, "Job:web")
	all := w.wantEvents(t, "Allocation:a Evaluation:e Node:n")
	if e := all[0]; e.Type != "PlanResult" || !slices.Equal(e.FilterKeys, []string{"web", ""}) {
		t.Errorf("%+v", e)
	}
	if a, err := all[0].Allocation(); err != nil || a.ID != "a" || a.Job != nil {
		t.Errorf("%+v, %v", a, err)
	}
	w.wantEvents(t, "Variable:v")
	f.putVariable(t, "w")
	w.wantEvents(t, "Variable:w")

	w = open("topic=Allocation:web&topic=Job:db&topic=Evaluation:web")
	w.wantEvents(t, "Allocation:a Evaluation:e")
	f.putJob(t, "db")
	w.wantEvents(t, "Job:db")

	open("index=3").wantEvents(t, "Variable:v")
	open("latest=2").wantEvents(t, "Variable:w") // and db, which is the second one
	open("latest=1").wantEvents(t, "Job:db")     // the last change
	open("latest=3").wantEvents(t, "Variable:v") // three changes of one event each
	open("latest=5").wantEvents(t, "Variable:v") // the change before has three
	open("latest=6").wantEvents(t, "Allocation:a Evaluation:e Node:n")
	open("latest=99").wantEvents(t, "Job:web")
	w = open("index=99") // an index in the future
	f.putJob(t, "more")
	w.wantEvents(t, "Job:more")
	open("namespace=prod").wantEvents(t, "Node:n")
	open("namespace=*&topic=Job").wantEvents(t, "Job:web")

	f.runRequests(t, []requestCase{
		{"an index that is none", "GET", "/v1/event/stream?index=x", "", 400, "…Unable to parse index: "},
		{"a topic that is none", "GET", "/v1/event/stream?topic=a:b:c", "", 400, "Invalid topic query: error parsing topics: Invalid key value pair for topic, topic: a:b:c"},
	})
}

// Traefik watches services with these requests.
func TestTraefikEventStream(t *testing.T) {
	f := newFixture(t, nil)
	client, err := api.NewClient(&api.Config{Address: "http://" + f.listen(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	stream, err := client.EventStream().Stream(t.Context(), map[api.Topic][]string{api.TopicService: {"*"}}, 0, &api.QueryOptions{Namespace: "default"})
	if err != nil {
		t.Fatal(err)
	}
	f.updateStore(t, func(tx *store.Txn) {
		tx.PutService(&api.ServiceRegistration{Namespace: "default", ID: "s", ServiceName: "web", JobID: "j"})
	})
	f.updateStore(t, func(tx *store.Txn) { tx.DeleteService("default", "s") })
	for _, want := range []string{"ServiceRegistration", "ServiceDeregistration"} {
		batch := <-stream
		if batch.Err != nil || batch.Events[0].Type != want || !slices.Equal(batch.Events[0].FilterKeys, []string{"j", "web"}) {
			t.Fatalf("%+v, want %s", batch, want)
		}
		if s, err := batch.Events[0].Service(); err != nil || s.ServiceName != "web" {
			t.Errorf("%+v, %v", s, err)
		}
	}
}

// checkGoroutineLeaks returns a function that waits until there are no more goroutines and file descriptors than
// when checkGoroutineLeaks was called.
func checkGoroutineLeaks(t *testing.T) (gone func()) {
	descriptors := func() int {
		open, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(open)
	}
	goroutines, open := runtime.NumGoroutine(), descriptors()
	return func() {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); runtime.NumGoroutine() > goroutines || descriptors() > open; {
			if time.Now().After(deadline) {
				t.Fatalf("%d goroutines, %d before; %d descriptors, %d before", runtime.NumGoroutine(), goroutines, descriptors(), open)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// A thousand clients that disconnect, some of them without a FIN, leave no resources.
func TestDisconnectedEventClientsLeakNothing(t *testing.T) {
	f := newFixture(t, nil)
	address := f.listen(t)
	f.putVariable(t, "v")
	var memBefore runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&memBefore)
	gone := checkGoroutineLeaks(t)
	goroutines := runtime.NumGoroutine()

	clients := make([]net.Conn, 1000)
	errs := make([]error, len(clients))
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			if clients[i], errs[i] = net.Dial("tcp", address); errs[i] != nil {
				return
			}
			w, err := openEventStream(clients[i], "index=0")
			for range 2 { // reads the heartbeat and the event
				if err == nil {
					_, err = w.nextLine()
				}
			}
			errs[i] = err
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if n := runtime.NumGoroutine() - goroutines; n < len(clients) {
		t.Errorf("only %d goroutines for %d clients: who serves them?", n, len(clients))
	}
	for i, c := range clients {
		if i%2 == 0 {
			_ = c.(*net.TCPConn).SetLinger(0) // a reset
		}
		c.Close()
	}
	gone()
	var memAfter runtime.MemStats
	for range 3 { // net/http pools objects in sync.Pool, which more than one collection empties
		runtime.GC()
	}
	runtime.ReadMemStats(&memAfter)
	if grown := int64(memAfter.HeapAlloc) - int64(memBefore.HeapAlloc); grown > 4<<20 {
		t.Errorf("the heap has grown by %d bytes", grown)
	}
}

// pipeListener is a listener whose connections have no buffers.
type pipeListener chan net.Conn

func (p pipeListener) Accept() (net.Conn, error) {
	c, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (p pipeListener) Close() error {
	close(p)
	return nil
}

func (p pipeListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// A client that does not read is disconnected, and blocks no other client.
func TestStuckEventClientIsDisconnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, nil)
		l := make(pipeListener)
		f.serve(t, l)
		client := func() *eventClient {
			ours, theirs := net.Pipe()
			l <- theirs
			w, err := openEventStream(ours, "")
			if err != nil {
				t.Fatal(err)
			}
			w.wantEvents(t, "")
			return w
		}
		stuck, lively := client(), client()
		f.putVariable(t, "v")
		lively.wantEvents(t, "Variable:v")
		begin := time.Now()
		synctest.Wait()
		time.Sleep(writeTimeout + time.Second)
		synctest.Wait()
		_ = stuck.SetReadDeadline(time.Now().Add(time.Second))
		for err := error(nil); !errors.Is(err, io.EOF); {
			if _, err = stuck.nextLine(); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("after %v the client is still there", time.Since(begin))
			}
		}
		lively.Close()
		stuck.Close()
	})
}

// `monitor -log-level DEBUG` shows new log lines, and the monitor ends when its client
// disconnects.
// (checklist 35)
func TestMonitorStreamsNewLogLines(t *testing.T) {
	log := hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: "agent", Output: io.Discard, Level: hclog.Info})
	f := newFixture(t, func(c *Config) { c.MonitoredLog, c.Logger = log, log })
	client, err := api.NewClient(&api.Config{Address: "http://" + f.listen(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	gone := checkGoroutineLeaks(t)
	log.Debug("before anybody looks")
	for _, c := range []struct{ level, plain string }{{"DEBUG", "false"}, {"warn", "false"}, {"DEBUG", "true"}} {
		stop := make(chan struct{})
		// The command line sends all parameters, some of them empty.
		params := map[string]string{"log_level": c.level, "log_json": "false", "log_include_location": "false", "node_id": "", "server_id": "", "plain": c.plain}
		var receivedText string
		read := func(want string) {
			t.Helper()
			frames, errs := client.Agent().Monitor(stop, &api.QueryOptions{Params: params})
			for !strings.Contains(receivedText, want) {
				log.Debug("quiet") // the monitor may start to follow the log only now
				log.Warn("loud")
				select {
				case frame := <-frames:
					receivedText += string(frame.Data)
				case err := <-errs:
					t.Fatal(err)
				}
			}
			close(stop)
			// The client's Monitor looks at stop after each frame.
			log.Warn("loud")
			for range frames { // the client's Monitor blocks until its frames are read
			}
		}
		if c.plain == "true" { // the Go client cannot decode plain text
			body, err := client.Raw().Response("/v1/agent/monitor?plain=true&log_level=DEBUG", nil)
			if err != nil {
				t.Fatal(err)
			}
			log.Warn("loud")
			line, err := bufio.NewReader(body).ReadString('\n')
			if err != nil || !strings.Contains(line, "[WARN]  agent: loud") && !strings.Contains(line, "[DEBUG]") {
				t.Errorf("line %q, %v", line, err)
			}
			body.Close()
			continue
		}
		read("[WARN]  agent: loud")
		if quiet := strings.Contains(receivedText, "[DEBUG] agent: quiet"); quiet != (c.level == "DEBUG") || strings.Contains(receivedText, "before") {
			t.Errorf("level %s: %q", c.level, receivedText)
		}
	}
	client.Close()
	gone()
	f.runRequests(t, []requestCase{
		{"an unknown level", "GET", "/v1/agent/monitor?log_level=zz", "", 400, "Unknown log level: zz"},
		{"two targets", "GET", "/v1/agent/monitor?node_id=x&server_id=y", "", 400, "Cannot target node and server simultaneously"},
	})
}

// TestCompactEvents checks that a compact stream has the fields that a list of events shows and no others, also after the complete events
// were encoded for other clients.
func TestCompactEvents(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.OperatorToken, c.ReadOnlyToken = "operator", "reader" })
	f.updateStore(t, func(tx *store.Txn) {
		state := &api.TaskState{State: "dead", Failed: true, Restarts: 2, Events: []*api.TaskEvent{{Type: "Started"}, {Type: "Terminated", DisplayMessage: "Exit Code: 3"}}}
		tx.PutScheduledAllocation(&api.Allocation{
			ID: "a", Name: "web.g[0]", Namespace: "default", JobID: "web", ClientStatus: "failed", TaskStates: map[string]*api.TaskState{"main": state},
			AllocatedResources: &api.AllocatedResources{}, Job: &api.Job{ID: new("web"), Namespace: new("default")},
		})
		tx.PutNodeWithStorageEvents(&api.Node{ID: "n", Name: "host", Status: "ready", Attributes: map[string]string{"a": "long"}, Drivers: map[string]*api.DriverInfo{"exec": {Healthy: true}}})
	})
	f.putJob(t, "web")
	for range 2 { // the events are encoded once for several clients
		for _, c := range []struct{ token, query, allocation string }{
			{"operator", "", ""},
			{"operator", "&compact=true", `{"ClientDescription":"","ClientStatus":"failed","CreateTime":0,"DeploymentID":"","DesiredDescription":"","DesiredStatus":"","Healthy":null,"ID":"a","JobID":"web","ModifyTime":0,"Name":"web.g[0]","Namespace":"default","NodeID":"","TaskGroup":"","TaskStates":{"main":{"Events":[{"DisplayMessage":"Exit Code: 3","Time":0,"Type":"Terminated"}],`},
			{"reader", "&compact=true", `{"ClientDescription":"","ClientStatus":"failed","CreateTime":0,"DeploymentID":"","DesiredDescription":"","DesiredStatus":"","Healthy":null,"ID":"a","JobID":"web","ModifyTime":0,"Name":"web.g[0]","Namespace":"default","NodeID":"","TaskGroup":"","TaskStates":{"main":{"Events":[{"DisplayMessage":"","Time":0,"Type":"Terminated"}],`},
		} {
			text := f.readUntil(t, "/v1/event/stream?topic=*"+c.query, c.token, `"Key":"web"`)
			for _, long := range []string{"AllocatedResources", "Attributes", "TaskGroups", "Started"} {
				if strings.Contains(text, long) != (c.allocation == "") {
					t.Errorf("%s as %s: %s in %s", c.query, c.token, long, text)
				}
			}
			if !strings.Contains(text, c.allocation) {
				t.Errorf("%s as %s: got %s, want %s", c.query, c.token, text, c.allocation)
			}
		}
	}
	for query, want := range map[string]string{"compact=x": "as a bool", "latest=x": "latest must be", "latest=0": "latest must be", "latest=1&index=1": "latest must be"} {
		if r := f.send("GET", "/v1/event/stream?"+query, nil, "X-Nomad-Token", "operator"); r.StatusCode != 400 || !strings.Contains(bodyText(r), want) {
			t.Errorf("%s: status %d", query, r.StatusCode)
		}
	}
}

func TestEventStreamIsDisabled(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.OptionalRoutes.DisableEventStream = true })
	f.runRequests(t, []requestCase{
		{"disabled", "GET", "/v1/event/stream", "", 501, "the event stream is disabled: remove enable_event_broker = false from the server block of the agent's configuration"},
	})
}
