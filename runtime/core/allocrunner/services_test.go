package allocrunner

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/golden"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/services"
	"github.com/nomad-lite/nomad-lite/runtime/node/services/servicestest"
)

// TestServices runs allocations with services from start to end and compares the effects:
// registrations, check results, health and events. A file in testdata/services has the same format as a
// file in testdata; job2.nomad.hcl is for the verb update.
func TestServices(t *testing.T) {
	files, err := filepath.Glob("testdata/services/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			runServices(t, file)
		})
	}
}

func runServices(t *testing.T, file string) {
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	parts := make(map[string]*txtar.File)
	for i := range archive.Files {
		parts[archive.Files[i].Name] = &archive.Files[i]
	}
	job := parseJob(t, string(parts["job.nomad.hcl"].Data))
	next := job
	if p := parts["job2.nomad.hcl"]; p != nil {
		next = parseJob(t, string(p.Data))
	}
	var got string
	synctest.Test(t, func(t *testing.T) {
		serviceNetwork := &fakeServiceNetwork{startTime: time.Now(), listeners: make(map[string]*pipeListener)}
		defer serviceNetwork.closeAll()
		h := startHarness(t, job, func(c *testConfig) {
			grantPorts(c.Alloc)
			c.Alloc.DeploymentID = "deployment-1"
			c.Services, c.DialCheckTarget = serviceNetwork, serviceNetwork.dial
		})
		var actionLog strings.Builder
		for line := range strings.Lines(string(parts["script"].Data)) {
			words := strings.Fields(line)
			if !serviceNetwork.act(h, &actionLog, words, next) {
				h.act(&actionLog, words)
			}
		}
		h.wait()
		got = actionLog.String() + h.transcript() + "health\n" + h.healthHistory() + "services\n" + serviceNetwork.transcript()
		if left := serviceNetwork.ServicesByAllocation(testAllocID); len(left) > 0 {
			t.Errorf("still registered: %v", left)
		}
	})
	parts["want"].Data = []byte(got)
	golden.Check(t, file, string(txtar.Format(archive)))
}

// grantPorts assigns numbers from 20000 up to the group's ports.
func grantPorts(alloc *api.Allocation) {
	shared := &alloc.AllocatedResources.Shared
	for _, n := range alloc.GetTaskGroup().Networks {
		granted := &api.NetworkResource{IP: "10.0.0.1"}
		shared.Networks = append(shared.Networks, granted)
		for _, p := range append(n.ReservedPorts, n.DynamicPorts...) {
			shared.Ports = append(shared.Ports, api.PortMapping{Label: p.Label, Value: 20000 + len(shared.Ports), To: p.To, HostIP: granted.IP})
		}
	}
}

// fakeServiceNetwork has an allocation's service registrations, and simulates the servers that respond to its checks.
type fakeServiceNetwork struct {
	servicestest.Registry
	startTime time.Time
	serversWG sync.WaitGroup

	mu        sync.Mutex
	listeners map[string]*pipeListener // by port
	log       []string
	dialCount int
}

func (f *fakeServiceNetwork) PutAndRemoveServices(put, remove []*api.ServiceRegistration) error {
	f.mu.Lock()
	var changeTexts []string
	for _, s := range put {
		changeTexts = append(changeTexts, fmt.Sprintf("+%s=%s:%d%v", shortID(s), s.Address, s.Port, s.Tags))
	}
	for _, s := range remove {
		changeTexts = append(changeTexts, "-"+shortID(s))
	}
	f.log = append(f.log, fmt.Sprintf("  +%-5v %s\n", time.Since(f.startTime).Round(time.Millisecond), strings.Join(changeTexts, " ")))
	f.mu.Unlock()
	return f.Registry.PutAndRemoveServices(put, remove)
}

func shortID(s *api.ServiceRegistration) string {
	return strings.TrimPrefix(s.ID, "_nomad-task-"+testAllocID+"-")
}

func (f *fakeServiceNetwork) transcript() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.log, "")
}

// act runs a script line with one of the service verbs: serve PORT [CODE], close PORT, checks, dials, update.
func (f *fakeServiceNetwork) act(h *harness, out *strings.Builder, words []string, next *api.Job) bool {
	switch words[1] {
	case "serve", "close", "checks", "dials", "update":
	default:
		return false
	}
	h.advance(mustParseDuration(words[0]) - time.Since(h.startTime))
	switch words[1] {
	case "serve":
		code := http.StatusOK
		if len(words) > 3 {
			code, _ = strconv.Atoi(words[3])
		}
		f.serve(words[2], code)
	case "close":
		f.mu.Lock()
		l := f.listeners[words[2]]
		delete(f.listeners, words[2])
		f.mu.Unlock()
		l.end()
	case "checks":
		fmt.Fprintf(out, "%s checks:\n", words[0])
		for _, c := range h.Checks() {
			fmt.Fprintf(out, "  %s/%s of %s%s, %s: %s %d %s\n", c.Service, c.Check, c.Group, prefixUnlessEmpty(" ", c.Task), c.Mode, c.Status, c.StatusCode, strings.TrimSpace(c.Output))
		}
	case "dials":
		f.mu.Lock()
		fmt.Fprintf(out, "%s dials: %d\n", words[0], f.dialCount)
		f.dialCount = 0
		f.mu.Unlock()
	case "update":
		alloc := *h.Alloc()
		alloc.AllocModifyIndex++
		alloc.Job = next
		alloc.DeploymentID = fmt.Sprintf("deployment-%d", alloc.AllocModifyIndex+1)
		h.Update(&alloc)
	}
	synctest.Wait()
	return true
}

func prefixUnlessEmpty(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}

// healthHistory returns the reported health values, and when they changed.
func (h *harness) healthHistory() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var b strings.Builder
	var lastHealth *model.DeploymentHealth
	for _, u := range h.reportedUpdates {
		if u.Health == nil && lastHealth != nil {
			fmt.Fprintf(&b, "  %-6s unknown\n", h.at(u.Time))
		}
		if u.Health != nil && (lastHealth == nil || *u.Health != *lastHealth) {
			fmt.Fprintf(&b, "  %-6s healthy %v in %s\n", h.at(u.Health.DecidedAt), u.Health.Healthy, u.Health.DeploymentID)
		}
		lastHealth = u.Health
	}
	return b.String()
}

func (f *fakeServiceNetwork) dial(ctx context.Context, _, address string) (net.Conn, error) {
	_, port, _ := net.SplitHostPort(address)
	f.mu.Lock()
	f.dialCount++
	l := f.listeners[port]
	f.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("dial tcp %s: connect: connection refused", address)
	}
	ours, theirs := net.Pipe()
	select {
	case l.conns <- theirs:
		return ours, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (f *fakeServiceNetwork) serve(port string, code int) {
	l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/missing" {
			http.NotFound(w, r)
			return
		}
		w.WriteHeader(code)
		fmt.Fprintf(w, "answer %d", code)
	})}
	l.end = func() { _ = server.Close() }
	f.serversWG.Go(func() { _ = server.Serve(l) })
	f.mu.Lock()
	f.listeners[port] = l
	f.mu.Unlock()
}

func (f *fakeServiceNetwork) closeAll() {
	f.mu.Lock()
	for _, l := range f.listeners {
		l.end()
	}
	f.mu.Unlock()
	f.serversWG.Wait()
}

type pipeListener struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
	end    func()
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

func TestNewServicesSpec(t *testing.T) {
	job := parseJob(t, `
job "j" {
  group "g" {
    network {
      port "http" {
        to = 8080
      }
    }
    service {
      provider    = "nomad"
      port        = "http"
      address     = "example.com"
      tags        = ["a"]
      canary_tags = ["b"]
      on_update   = "ignore"
      check {
        type            = "http"
        port            = "http"
        address_mode    = "alloc"
        protocol        = "https"
        method          = "POST"
        path            = "/x"
        body            = "y"
        interval        = "3s"
        timeout         = "2s"
        tls_skip_verify = true
        header {
          K = ["v"]
        }
      }
      check_restart {
        limit = 3
        grace = "4s"
      }
    }
    task "web" {
      driver = "fake"
      config {}
      service {
        name     = "own"
        provider = "nomad"
        port     = "db"
      }
    }
    task "other" {
      driver = "fake"
      config {}
    }
  }
}`)
	job.TaskGroups[0].Services = append(job.TaskGroups[0].Services, &api.Service{Name: "c", Provider: "consul", TaskName: "other", Checks: []api.ServiceCheck{
		{Name: "s", Type: "script", Command: "/bin/a", Args: []string{"b"}, TaskName: "web", SuccessBeforePassing: 2, FailuresBeforeCritical: 3},
		{Name: "g", Type: "grpc", GRPCService: "s", GRPCUseTLS: true},
	}})
	alloc := newAllocation(job)
	grantPorts(alloc)
	alloc.DeploymentStatus = &api.AllocDeploymentStatus{Canary: true}
	alloc.AllocatedResources.Tasks["web"].Networks = []*api.NetworkResource{{IP: "10.0.0.2", DynamicPorts: []api.Port{{Label: "db", Value: 30000}}}}
	port := taskenv.Port{Label: "http", HostPort: 20000, AllocPort: 8080, HostIP: "10.0.0.1"}
	want := &services.AllocServicesSpec{
		AllocID: testAllocID, AllocName: "j.g[0]", Namespace: "default", JobID: "j", Group: "g",
		NodeID: "node-id", Datacenter: "dc1", IsCanary: true,
		GroupHostIP: "10.0.0.1", Ports: []taskenv.Port{port},
		NetworkByTask: map[string]services.TaskNetwork{"web": {IP: "10.0.0.2", Ports: []taskenv.Port{{Label: "db", HostPort: 30000, HostIP: "10.0.0.2"}}}},
		NamespaceIPv4: "172.26.0.2", NamespaceIPv6: "fd00::2",
		Services: []services.Service{
			{
				Name: "j-g", PortLabel: "http", Address: "example.com", AddressMode: "auto", Tags: []string{"a"}, CanaryTags: []string{"b"},
				Checks: []services.Check{{
					Name: `service: "j-g" check`, Type: "http", PortLabel: "http", AddressMode: "alloc", OnUpdate: "ignore",
					Interval: 3 * time.Second, Timeout: 2 * time.Second, Protocol: "https", Method: "POST", Path: "/x", Body: "y",
					Header: map[string][]string{"K": {"v"}}, TLSSkipVerify: true,
					Restart: services.CheckRestart{Limit: 3, Grace: 4 * time.Second},
				}},
			},
			{Name: "c", Checks: []services.Check{
				{Name: "s", Type: "script", Command: "/bin/a", Args: []string{"b"}, ScriptTask: "web", SuccessesToPass: 2, FailuresToFail: 3, AffectsHealthOfTask: "web"},
				{Name: "g", Type: "grpc", ScriptTask: "other", GRPCService: "s", GRPCUseTLS: true, AffectsHealthOfTask: "other"},
			}},
			{Task: "web", Name: "own", PortLabel: "db", AddressMode: "auto"},
		},
	}
	got := services.NewSpec(alloc, "dc1", &api.AllocNetworkStatus{Address: "172.26.0.2", AddressIPv6: "fd00::2"})
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}
