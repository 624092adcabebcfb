package services

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// Check outputs that Nomad clients compare with these texts.
const (
	pendingOutput     = "nomad: waiting to run"
	tcpSuccessOutput  = "nomad: tcp ok"
	httpSuccessOutput = "nomad: http ok"
	grpcSuccessOutput = "nomad: grpc ok"
)

// maxOutputSize limits a check's output in bytes. The rest of a response body is dropped.
const maxOutputSize = 3 << 10

// userAgent is the User-Agent header of HTTP checks.
const userAgent = "nomad-lite"

// DialFunc opens a connection; net.Dialer.DialContext implements it.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// ExecFunc runs a command in a task, and returns its exit status and its output. The command is killed after the timeout.
type ExecFunc func(ctx context.Context, task string, command []string, timeout time.Duration) (*driver.ExecResult, error)

// probeResult is the result of one check run.
type probeResult struct {
	status         string
	httpStatusCode int
	output         string
}

func failureResult(err error) probeResult {
	return probeResult{status: model.CheckFailure, output: "nomad: " + toValidUTF8(err.Error())}
}

// probe runs a check once and returns the result, after the check's timeout at the latest.
type probe func(context.Context) probeResult

// newProbe returns the probe for a check that connects to an address or runs a command in a task. Different checks' probes share
// no HTTP transport.
func newProbe(c *Check, address string, dial DialFunc, exec ExecFunc) probe {
	var run probe
	switch strings.ToLower(c.Type) {
	case "tcp":
		run = newTCPProbe(address, dial)
	case "http":
		run = newHTTPProbe(c, address, dial)
	case "grpc":
		run = newGRPCProbe(c, address, dial)
	case "script":
		run = newScriptProbe(c, exec)
	default:
		return alwaysFailingProbe(fmt.Errorf("invalid check type (%q), must be one of tcp, http, grpc, script", c.Type))
	}
	return func(ctx context.Context) probeResult {
		ctx, cancel := context.WithTimeoutCause(ctx, c.Timeout, timeoutError(c.Timeout))
		defer cancel()
		return run(ctx)
	}
}

// timeoutError is the error for a check that exceeded its timeout.
type timeoutError time.Duration

func (t timeoutError) Error() string { return fmt.Sprintf("no answer within %v", time.Duration(t)) }

// timeoutErrorOr returns ctx's timeoutError if the timeout has passed, and err otherwise.
func timeoutErrorOr(ctx context.Context, err error) error {
	if late, ok := context.Cause(ctx).(timeoutError); ok {
		return late
	}
	return err
}

func alwaysFailingProbe(err error) probe {
	return func(context.Context) probeResult { return failureResult(err) }
}

func newTCPProbe(address string, dial DialFunc) probe {
	return func(ctx context.Context) probeResult {
		conn, err := dial(ctx, "tcp", address)
		if err != nil {
			return failureResult(timeoutErrorOr(ctx, err))
		}
		_ = conn.Close() // the check succeeds if the connection is accepted, so nothing is sent
		return probeResult{status: model.CheckSuccess, output: tcpSuccessOutput}
	}
}

// newGRPCProbe returns a probe that calls a gRPC server's health service (https://grpc.io/docs/guides/health-checking).
func newGRPCProbe(c *Check, address string, dial DialFunc) probe {
	security := insecure.NewCredentials()
	if c.GRPCUseTLS {
		security = credentials.NewTLS(&tls.Config{InsecureSkipVerify: c.TLSSkipVerify})
	}
	return func(ctx context.Context) probeResult {
		conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(security), grpc.WithUserAgent(userAgent),
			grpc.WithNoProxy(), grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return dial(ctx, "tcp", address) }))
		if err != nil {
			return failureResult(err)
		}
		defer conn.Close()
		answer, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: c.GRPCService})
		if s := status.Convert(err); err != nil {
			return failureResult(timeoutErrorOr(ctx, fmt.Errorf("gRPC status %v: %s", s.Code(), s.Message())))
		}
		if answer.Status != grpc_health_v1.HealthCheckResponse_SERVING {
			return failureResult(fmt.Errorf("gRPC service %q has the status %v", c.GRPCService, answer.Status))
		}
		return probeResult{status: model.CheckSuccess, output: grpcSuccessOutput}
	}
}

func (c *Check) isScript() bool { return strings.EqualFold(c.Type, "script") }

// exitStatusWarning is a script's exit status for a service that works but needs attention.
const exitStatusWarning = 1

func newScriptProbe(c *Check, exec ExecFunc) probe {
	if exec == nil {
		return alwaysFailingProbe(errors.New("scripts cannot run here"))
	}
	return func(ctx context.Context) probeResult {
		result, err := exec(ctx, c.ScriptTask, append([]string{c.Command}, c.Args...), c.Timeout)
		if err != nil {
			return failureResult(fmt.Errorf("script in task %q: %w", c.ScriptTask, timeoutErrorOr(ctx, err)))
		}
		output := slices.Concat(result.Stdout, result.Stderr)
		output = output[:min(len(output), maxOutputSize)]
		status := model.CheckFailure
		if code := result.Exit.ExitCode; code == 0 || code == exitStatusWarning && c.OnUpdate == api.OnUpdateIgnoreWarn {
			status = model.CheckSuccess
		}
		return probeResult{status: status, output: toValidUTF8(string(output))}
	}
}

func newHTTPProbe(c *Check, address string, dial DialFunc) probe {
	target, err := newCheckURL(c.Protocol, address, c.Path)
	if err != nil {
		return alwaysFailingProbe(err)
	}
	method := strings.ToUpper(c.Method)
	if method == "" {
		method = http.MethodGet
	}
	client := &http.Client{Transport: &http.Transport{
		DialContext:       dial,
		DisableKeepAlives: true, // each run tests whether the service accepts connections
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: c.TLSSkipVerify},
	}}
	return func(ctx context.Context) probeResult {
		req, err := http.NewRequestWithContext(ctx, method, target.String(), strings.NewReader(c.Body))
		if err != nil {
			return failureResult(err)
		}
		addRequestHeaders(req, c.Header)
		resp, err := client.Do(req)
		if err != nil {
			return failureResult(timeoutErrorOr(ctx, err))
		}
		defer resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return probeResult{model.CheckSuccess, resp.StatusCode, httpSuccessOutput}
		}
		// The read error is ignored: the output is the received part of the body.
		body, _ := io.ReadAll(io.LimitReader(resp.Body, maxOutputSize))
		result := probeResult{model.CheckSuccess, resp.StatusCode, toValidUTF8(string(body))}
		if resp.StatusCode >= http.StatusBadRequest {
			result.status = model.CheckFailure
		}
		return result
	}
}

func addRequestHeaders(req *http.Request, header map[string][]string) {
	for _, name := range slices.Sorted(maps.Keys(header)) {
		for _, value := range header[name] {
			req.Header.Add(name, value)
		}
	}
	if host := req.Header.Get("Host"); host != "" {
		req.Host = host // net/http ignores a Host in the header
	}
	if req.Header.Get("User-Agent") == "" {
		req.Header.Set("User-Agent", userAgent)
	}
}

// newCheckURL returns an HTTP check's URL. The path cannot change the URL's host, which is hostPort: "//host/" is a path, not
// another host.
func newCheckURL(protocol, hostPort, path string) (*url.URL, error) {
	u := &url.URL{Scheme: strings.ToLower(protocol), Host: hostPort}
	switch u.Scheme {
	case "":
		u.Scheme = "http"
	case "http", "https":
	default:
		return nil, fmt.Errorf("invalid protocol %q: must be http or https", protocol)
	}
	path, _, _ = strings.Cut(path, "#")
	path, u.RawQuery, _ = strings.Cut(path, "?")
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	unescaped, err := url.PathUnescape(path)
	if err != nil {
		return nil, fmt.Errorf("invalid path: %w", err)
	}
	u.Path, u.RawPath = unescaped, path
	if _, err := url.Parse(u.String()); err != nil {
		return nil, fmt.Errorf("invalid path: %w", err)
	}
	return u, nil
}

// toValidUTF8 replaces invalid UTF-8 with U+FFFD.
func toValidUTF8(s string) string {
	return strings.ToValidUTF8(s, "\uFFFD")
}
