package services

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/services/servicestest"
)

// nullLog is for servers with expected errors.
var nullLog = log.New(io.Discard, "", 0)

const testAllocID = "11111111-2222-3333-4444-555555555555"

// testSpec returns the spec for an allocation with two ports and these services.
func testSpec(services ...Service) *AllocServicesSpec {
	return &AllocServicesSpec{
		AllocID: testAllocID, AllocName: "j.g[0]", Namespace: "default", JobID: "j", Group: "g",
		NodeID: "node-id", Datacenter: "dc1",
		GroupHostIP: "10.0.0.1",
		Ports: []taskenv.Port{
			{Label: "http", HostPort: 20000, AllocPort: 8080, HostIP: "10.0.0.1"},
			{Label: "admin", HostPort: 20001, HostIP: "10.0.0.2"},
		},
		Services: services,
	}
}

func testService(task string, checks ...Check) Service {
	return Service{Task: task, Name: "web", PortLabel: "http", AddressMode: "auto", Checks: checks}
}

func tcpCheck(name string, interval time.Duration) Check {
	return Check{Name: name, Type: "tcp", Interval: interval, Timeout: time.Second, OnUpdate: "require_healthy"}
}

func httpCheck(name, path string, interval time.Duration) Check {
	c := tcpCheck(name, interval)
	c.Type, c.Path = "http", path
	return c
}

// fakeNetwork is a network in memory. Its servers run in the test's bubble.
type fakeNetwork struct {
	t         *testing.T
	dialDelay time.Duration // delay before each connection
	startTime time.Time

	mu        sync.Mutex
	listeners map[string]*fakeListener
	dials     map[string][]time.Duration // times by address
}

func newFakeNetwork(t *testing.T) *fakeNetwork {
	return &fakeNetwork{t: t, startTime: time.Now(), listeners: make(map[string]*fakeListener), dials: make(map[string][]time.Duration)}
}

func (n *fakeNetwork) dial(ctx context.Context, _, address string) (net.Conn, error) {
	n.mu.Lock()
	n.dials[address] = append(n.dials[address], time.Since(n.startTime))
	l, slow := n.listeners[address], n.dialDelay
	n.mu.Unlock()
	if slow > 0 {
		select {
		case <-time.After(slow):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if l == nil {
		return nil, fmt.Errorf("dial tcp %s: connect: connection refused", address)
	}
	ours, theirs := net.Pipe()
	select {
	case l.conns <- theirs:
		return ours, nil
	case <-l.closed:
		return nil, fmt.Errorf("dial tcp %s: connect: connection refused", address)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// serve starts a server at an address until close, or until the test ends.
func (n *fakeNetwork) serve(address string, h http.Handler) (close func()) {
	l := &fakeListener{address: address, conns: make(chan net.Conn), closed: make(chan struct{})}
	n.mu.Lock()
	n.listeners[address] = l
	n.mu.Unlock()
	server := &http.Server{Handler: h}
	var servingWG sync.WaitGroup
	servingWG.Go(func() { _ = server.Serve(l) })
	close = sync.OnceFunc(func() {
		n.mu.Lock()
		if n.listeners[address] == l {
			delete(n.listeners, address)
		}
		n.mu.Unlock()
		_ = server.Close()
		servingWG.Wait()
	})
	n.t.Cleanup(close)
	return close
}

func (n *fakeNetwork) dialTimes(address string) []time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]time.Duration(nil), n.dials[address]...)
}

type fakeListener struct {
	address string
	conns   chan net.Conn
	once    sync.Once
	closed  chan struct{}
}

func (l *fakeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *fakeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *fakeListener) Addr() net.Addr { return &net.TCPAddr{} }

// statusHandler replies to every request with a code and a body.
func statusHandler(code int, body string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		_, _ = w.Write([]byte(body))
	})
}

// recordingRegistry records each change, and fails a given number of times.
type recordingRegistry struct {
	servicestest.Registry
	mu                sync.Mutex
	remainingFailures int
	calls             []string
}

func (r *recordingRegistry) PutAndRemoveServices(put, remove []*api.ServiceRegistration) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.remainingFailures > 0 {
		r.remainingFailures--
		r.calls = append(r.calls, "fail")
		return errors.New("disk full")
	}
	var changeTexts []string
	for _, s := range put {
		changeTexts = append(changeTexts, "+"+strings.TrimPrefix(s.ID, "_nomad-task-"+testAllocID+"-"))
	}
	for _, s := range remove {
		changeTexts = append(changeTexts, "-"+strings.TrimPrefix(s.ID, "_nomad-task-"+testAllocID+"-"))
	}
	r.calls = append(r.calls, strings.Join(changeTexts, " "))
	return r.Registry.PutAndRemoveServices(put, remove)
}

// takeCalls returns the changes since the last call.
func (r *recordingRegistry) takeCalls() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := r.calls
	r.calls = nil
	return calls
}

// memoryCheckResultStore is a CheckResultStore in memory.
type memoryCheckResultStore struct {
	mu       sync.Mutex
	putCount int
	byID     map[string]*api.AllocCheckStatus
}

func (m *memoryCheckResultStore) StoredResultByCheckID(string) (map[string]*api.AllocCheckStatus, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	found := make(map[string]*api.AllocCheckStatus, len(m.byID))
	for id, r := range m.byID {
		found[id] = r
	}
	return found, nil
}

func (m *memoryCheckResultStore) PutCheckResult(_ string, r *api.AllocCheckStatus) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byID == nil {
		m.byID = make(map[string]*api.AllocCheckStatus)
	}
	m.byID[r.ID] = r
	m.putCount++
	return nil
}

func (m *memoryCheckResultStore) DeleteCheckResults(_ string, ids []string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		delete(m.byID, id)
	}
	return nil
}

// restartRecorder records the restarts requested by a set.
type restartRecorder struct {
	startTime time.Time
	mu        sync.Mutex
	requests  []string
}

func (r *restartRecorder) restart(_ context.Context, task, reason string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests = append(r.requests, fmt.Sprintf("+%v %s: %s", time.Since(r.startTime), task, reason))
	return nil
}

func (r *restartRecorder) allRequests() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.requests...)
}

// setFixture is a set with its fake environment. Spec and vars may be changed between two calls to the set.
type setFixture struct {
	*AllocServices
	net             *fakeNetwork
	registry        *recordingRegistry
	results         *memoryCheckResultStore
	restartRecorder *restartRecorder

	mu       sync.Mutex
	spec     *AllocServicesSpec
	taskVars map[string]map[string]string // each task's env
}

func newTestSet(t *testing.T, services ...Service) *setFixture {
	w := &setFixture{
		net:             newFakeNetwork(t),
		registry:        new(recordingRegistry),
		results:         new(memoryCheckResultStore),
		restartRecorder: &restartRecorder{startTime: time.Now()},
		spec:            testSpec(services...),
		taskVars:        make(map[string]map[string]string),
	}
	w.AllocServices = w.newSet()
	t.Cleanup(func() { w.StopChecks(true) })
	return w
}

// newSet returns a set like the next agent's.
func (s *setFixture) newSet() *AllocServices {
	return New(Config{
		AllocID: testAllocID, AllocName: "j.g[0]",
		CurrentSpec: func() *AllocServicesSpec {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.spec
		},
		CurrentEnv:         s.env,
		RestartTaskOrGroup: s.restartRecorder.restart,
		Registry:           s.registry,
		CheckResultStore:   s.results,
		Dial:               s.net.dial,
		Logger:             hclog.NewNullLogger(),
	})
}

func (s *setFixture) env(task string) *taskenv.Env {
	s.mu.Lock()
	defer s.mu.Unlock()
	node := taskenv.Node{NodeFacts: model.NodeFacts{Attributes: map[string]string{"kernel.name": "linux"}, Datacenter: "dc1"}}
	alloc := taskenv.Alloc{ID: testAllocID, Name: "j.g[0]", JobName: "j", Group: "g", Ports: s.spec.Ports}
	return taskenv.NewBuilder(node, alloc, taskenv.Task{Name: task, EnvBlock: s.taskVars[task]}).Build()
}

// setServices replaces the services, as a new job version does.
func (s *setFixture) setServices(services ...Service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := *s.spec
	next.Services = services
	s.spec = &next
}

func (s *setFixture) setVar(task, key, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taskVars[task] = map[string]string{key: value}
}

// statuses returns the check results, as "name status code output".
func (s *setFixture) statuses() []string {
	results, _, _ := s.CheckResults()
	var list []string
	for _, r := range results {
		list = append(list, fmt.Sprintf("%s %s %d %s", r.Check, r.Status, r.StatusCode, r.Output))
	}
	return list
}
