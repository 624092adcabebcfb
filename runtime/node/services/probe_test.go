package services

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

func TestProbeHTTP(t *testing.T) {
	const address = "10.0.0.1:20000"
	// The server returns the received request as the body. The check keeps the body for this status.
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.WriteHeader(http.StatusAccepted)
		fmt.Fprintf(w, "%s %s host=%s agent=%s x=%q body=%q", r.Method, r.RequestURI, r.Host, r.UserAgent(), r.Header["X-Test"], body)
	})
	moved := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/old" {
			http.Redirect(w, r, "/new", http.StatusFound)
			return
		}
		fmt.Fprint(w, "arrived")
	})
	long := strings.Repeat("x", maxOutputSize-1) + "ü" + strings.Repeat("y", maxOutputSize)
	const echoAfterMethod = "/ host=10.0.0.1:20000 agent=nomad-lite x=[] body=\"\""
	for _, c := range []struct {
		name    string
		handler http.Handler
		check   Check
		want    probeResult
	}{
		{"200 is success, without the body", statusHandler(200, "fine"), Check{Path: "/"}, probeResult{model.CheckSuccess, 200, "nomad: http ok"}},
		{"another code below 400 is success, with the body", statusHandler(204, ""), Check{Path: "/"}, probeResult{model.CheckSuccess, 204, ""}},
		{"a redirect without a target", statusHandler(304, ""), Check{Path: "/"}, probeResult{model.CheckSuccess, 304, ""}},
		{"404 is failure, with the body", statusHandler(404, "no such page"), Check{Path: "/"}, probeResult{model.CheckFailure, 404, "no such page"}},
		{"500", statusHandler(500, "broken"), Check{Path: "/"}, probeResult{model.CheckFailure, 500, "broken"}},
		{"the body is cut", statusHandler(503, long), Check{Path: "/"}, probeResult{model.CheckFailure, 503, strings.Repeat("x", maxOutputSize-1) + "\uFFFD"}},
		{"redirects are followed", moved, Check{Path: "/old"}, probeResult{model.CheckSuccess, 200, "nomad: http ok"}},
		{"GET by default", echo, Check{Path: "/"}, probeResult{model.CheckSuccess, 202, "GET " + echoAfterMethod}},
		{"another method, in any case", echo, Check{Path: "/", Method: "post", Body: "ping"}, probeResult{model.CheckSuccess, 202, `POST / host=10.0.0.1:20000 agent=nomad-lite x=[] body="ping"`}},
		{"headers", echo, Check{Path: "/a?b=c", Header: map[string][]string{"x-test": {"1", "2"}}}, probeResult{model.CheckSuccess, 202, `GET /a?b=c host=10.0.0.1:20000 agent=nomad-lite x=["1" "2"] body=""`}},
		{"host and user agent", echo, Check{Path: "/", Header: map[string][]string{"host": {"example.com"}, "user-agent": {"me"}}}, probeResult{model.CheckSuccess, 202, `GET / host=example.com agent=me x=[] body=""`}},
		{"a path without a slash", echo, Check{Path: "up"}, probeResult{model.CheckSuccess, 202, `GET /up host=10.0.0.1:20000 agent=nomad-lite x=[] body=""`}},
		{"a path that looks like a host", echo, Check{Path: "//evil.com/x"}, probeResult{model.CheckSuccess, 202, `GET //evil.com/x host=10.0.0.1:20000 agent=nomad-lite x=[] body=""`}},
		{"an escaped path", echo, Check{Path: "/a%2Fb"}, probeResult{model.CheckSuccess, 202, `GET /a%2Fb host=10.0.0.1:20000 agent=nomad-lite x=[] body=""`}},
		{"nobody listens", nil, Check{Path: "/"}, probeResult{model.CheckFailure, 0, `nomad: Get "http://10.0.0.1:20000/": dial tcp 10.0.0.1:20000: connect: connection refused`}},
		{"a wrong escape", nil, Check{Path: "/%zz"}, probeResult{model.CheckFailure, 0, `nomad: invalid path: invalid URL escape "%zz"`}},
		{"a wrong protocol", nil, Check{Path: "/", Protocol: "ftp"}, probeResult{model.CheckFailure, 0, `nomad: invalid protocol "ftp": must be http or https`}},
		{"a wrong header", echo, Check{Path: "/", Header: map[string][]string{"a": {"b\r\nc"}}}, probeResult{model.CheckFailure, 0, `nomad: Get "http://10.0.0.1:20000/": net/http: invalid header field value for "A"`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newFakeNetwork(t)
				if c.handler != nil {
					n.serve(address, c.handler)
				}
				c.check.Type, c.check.Timeout = "http", time.Second
				if got := newProbe(&c.check, address, n.dial, nil)(t.Context()); got != c.want {
					t.Errorf("got  %v\nwant %v", got, c.want)
				}
			})
		})
	}
}

func TestProbeTCP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNetwork(t)
		check := Check{Type: "tcp", Timeout: 2 * time.Second}
		run := newProbe(&check, "10.0.0.1:1", n.dial, nil)
		if got, want := run(t.Context()), (probeResult{model.CheckFailure, 0, "nomad: dial tcp 10.0.0.1:1: connect: connection refused"}); got != want {
			t.Errorf("without a listener: %v, want %v", got, want)
		}
		n.serve("10.0.0.1:1", statusHandler(200, ""))
		if got, want := run(t.Context()), (probeResult{model.CheckSuccess, 0, "nomad: tcp ok"}); got != want {
			t.Errorf("with a listener: %v, want %v", got, want)
		}
		n.dialDelay = time.Minute
		begin := time.Now()
		if got, want := run(t.Context()), (probeResult{model.CheckFailure, 0, "nomad: no answer within 2s"}); got != want || time.Since(begin) != 2*time.Second {
			t.Errorf("slow: %v after %v, want %v", got, time.Since(begin), want)
		}
		check.Type = "ttl"
		if got, want := newProbe(&check, "", n.dial, nil)(t.Context()), (probeResult{model.CheckFailure, 0, `nomad: invalid check type ("ttl"), must be one of tcp, http, grpc, script`}); got != want {
			t.Errorf("ttl: %v, want %v", got, want)
		}
	})
}

func TestProbeScript(t *testing.T) {
	for name, c := range map[string]struct {
		check  Check
		result driver.ExecResult
		err    error
		want   probeResult
	}{
		"status 0":                              {result: driver.ExecResult{Stdout: []byte("fine\n"), Stderr: []byte("x")}, want: probeResult{model.CheckSuccess, 0, "fine\nx"}},
		"status 1":                              {result: driver.ExecResult{Stdout: []byte("slow"), Exit: driver.ExitResult{ExitCode: 1}}, want: probeResult{model.CheckFailure, 0, "slow"}},
		"status 1, and warnings are ignored":    {check: Check{OnUpdate: "ignore_warnings"}, result: driver.ExecResult{Exit: driver.ExitResult{ExitCode: 1}}, want: probeResult{model.CheckSuccess, 0, ""}},
		"status 2, and warnings are ignored":    {check: Check{OnUpdate: "ignore_warnings"}, result: driver.ExecResult{Exit: driver.ExitResult{ExitCode: 2}}, want: probeResult{model.CheckFailure, 0, ""}},
		"output that is cut, and no valid text": {result: driver.ExecResult{Stdout: []byte("\xff" + strings.Repeat("x", maxOutputSize))}, want: probeResult{model.CheckSuccess, 0, "\uFFFD" + strings.Repeat("x", maxOutputSize-1)}},
		"a task that does not run":              {err: errors.New("task not running"), want: probeResult{model.CheckFailure, 0, `nomad: script in task "web": task not running`}},
	} {
		t.Run(name, func(t *testing.T) {
			c.check.Type, c.check.ScriptTask, c.check.Command, c.check.Args, c.check.Timeout = "script", "web", "/bin/check", []string{"-a"}, time.Second
			exec := func(_ context.Context, task string, command []string, timeout time.Duration) (*driver.ExecResult, error) {
				if task != "web" || !slices.Equal(command, []string{"/bin/check", "-a"}) || timeout != time.Second {
					t.Errorf("task %q, command %q, timeout %v", task, command, timeout)
				}
				return &c.result, c.err
			}
			if got := newProbe(&c.check, "", nil, exec)(t.Context()); got != c.want {
				t.Errorf("got  %v\nwant %v", got, c.want)
			}
		})
	}
}

func TestProbeGRPC(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	statuses := health.NewServer()
	statuses.SetServingStatus("ready", grpc_health_v1.HealthCheckResponse_SERVING)
	statuses.SetServingStatus("stopped", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, statuses)
	var serverWG sync.WaitGroup
	serverWG.Go(func() { _ = server.Serve(listener) }) // ends with Stop
	defer serverWG.Wait()
	defer server.Stop()
	probe := func(c Check) probeResult {
		c.Type, c.Timeout = "grpc", 10*time.Second
		return newProbe(&c, listener.Addr().String(), new(net.Dialer).DialContext, nil)(t.Context())
	}
	for service, want := range map[string]probeResult{
		"":        {model.CheckSuccess, 0, "nomad: grpc ok"},
		"ready":   {model.CheckSuccess, 0, "nomad: grpc ok"},
		"stopped": {model.CheckFailure, 0, `nomad: gRPC service "stopped" has the status NOT_SERVING`},
		"absent":  {model.CheckFailure, 0, "nomad: gRPC status NotFound: unknown service"},
	} {
		if got := probe(Check{GRPCService: service}); got != want {
			t.Errorf("service %q: %v, want %v", service, got, want)
		}
	}
	if got := probe(Check{GRPCUseTLS: true}); got.status != model.CheckFailure {
		t.Errorf("TLS to a server without: %v", got)
	}
}

// Each run tests whether the service accepts connections. No connection stays open.
func TestProbeHTTPConnectsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNetwork(t)
		n.serve("a:1", statusHandler(200, ""))
		check := Check{Type: "http", Path: "/", Timeout: time.Second}
		run := newProbe(&check, "a:1", n.dial, nil)
		for range 3 {
			run(t.Context())
		}
		if got := len(n.dialTimes("a:1")); got != 3 {
			t.Errorf("%d connections for 3 runs", got)
		}
	})
}

func TestProbeHTTPTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNetwork(t)
		n.serve("a:1", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
		check := Check{Type: "http", Path: "/", Timeout: 3 * time.Second}
		begin := time.Now()
		got := newProbe(&check, "a:1", n.dial, nil)(t.Context())
		if want := (probeResult{model.CheckFailure, 0, "nomad: no answer within 3s"}); got != want || time.Since(begin) != 3*time.Second {
			t.Errorf("%v after %v, want %v", got, time.Since(begin), want)
		}
	})
}

// tls_skip_verify applies to one check only: the other checks still verify the certificate.
func TestTLSIsNotShared(t *testing.T) {
	server := httptest.NewUnstartedServer(statusHandler(200, ""))
	server.Config.ErrorLog = nullLog
	server.StartTLS()
	defer server.Close()
	address := server.Listener.Addr().String()
	check := func(skip bool) probeResult {
		c := Check{Type: "http", Protocol: "https", Path: "/", Timeout: 5 * time.Second, TLSSkipVerify: skip}
		return newProbe(&c, address, new(net.Dialer).DialContext, nil)(context.Background())
	}
	for _, skip := range []bool{false, true, false, true} {
		got := check(skip)
		if ok := got.status == model.CheckSuccess; ok != skip {
			t.Errorf("tls_skip_verify %v: %v", skip, got)
		}
		if !skip && !strings.Contains(got.output, "certificate") {
			t.Errorf("the fault is not named: %v", got)
		}
	}
}

// For any check values from a job or its environment, the check connects to the service's address, its output is text, and it
// does not panic.
func FuzzProbeHTTP(f *testing.F) {
	f.Add("/health", "GET", "Host", "example.com", "http")
	f.Add("//evil.com/", "post", "X", "a\r\nb", "https")
	f.Add("http://evil.com:80/", "", "", "", "")
	f.Add("@evil.com/%2f?x=1#y", "CONNECT", "Content-Length", "-1", "HTTP")
	f.Add("/%00\x00", "A B", "Transfer-Encoding", "chunked", "ws")
	f.Add(":@[::1]", "TRACE", "Connection", "Upgrade", "http")
	f.Add("?\x19", "GET", "", "", "")
	f.Add("/a${X}", "${X}", "X-${X}", "${X}${attr.a}", "http")
	f.Fuzz(func(t *testing.T, path, method, name, value, protocol string) {
		const address = "10.0.0.1:20000"
		if u, err := newCheckURL(protocol, address, path); err == nil {
			again, err := url.Parse(u.String())
			if err != nil || again.Host != address || again.User != nil || u.Scheme != "http" && u.Scheme != "https" {
				t.Fatalf("path %q leads to %q (%v)", path, u, err)
			}
		}
		check := Check{
			Type: "http", Path: path, Method: method, Protocol: protocol, Timeout: time.Second,
			Header: map[string][]string{name: {value}},
		}
		// References to the environment also insert arbitrary texts.
		env := taskenv.NewBuilder(taskenv.Node{NodeFacts: model.NodeFacts{Attributes: map[string]string{"a": name}}}, taskenv.Alloc{}, taskenv.Task{EnvBlock: map[string]string{"X": value}}).Build()
		check = check.interpolate(env)
		if u, err := newCheckURL(check.Protocol, address, check.Path); err == nil && u.Host != address {
			t.Fatalf("path %q leads to %q", check.Path, u)
		}
		dial := func(_ context.Context, _, to string) (net.Conn, error) {
			if to != address {
				t.Errorf("path %q connects to %q", path, to)
			}
			ours, theirs := net.Pipe()
			go serveOneResponse(theirs)
			return ours, nil
		}
		got := newProbe(&check, address, dial, nil)(context.Background())
		if got.status != model.CheckSuccess && got.status != model.CheckFailure || !utf8.ValidString(got.output) {
			t.Errorf("outcome %+v", got)
		}
	})
}

// serveOneResponse writes a fixed reply to the first request.
func serveOneResponse(conn net.Conn) {
	defer conn.Close()
	buf := make([]byte, 64<<10)
	if _, err := conn.Read(buf); err == nil {
		_, _ = io.WriteString(conn, "HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n\xff\xfe")
	}
}
