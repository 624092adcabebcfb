package services

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// Outputs of checks that clients of Nomad compare with these texts.
const (
	pendingOutput     = "nomad: waiting to run"
	tcpSuccessOutput  = "nomad: tcp ok"
	httpSuccessOutput = "nomad: http ok"
)

// maxOutputSize is how many bytes of a response body are kept as the output of a check.
const maxOutputSize = 3 << 10

// userAgent is the User-Agent header of HTTP checks.
const userAgent = "nomad-lite"

// DialFunc opens a connection; net.Dialer.DialContext implements it.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// probeResult is the result of one run of a check.
type probeResult struct {
	status         string
	httpStatusCode int
	output         string
}

func failureResult(err error) probeResult {
	return probeResult{status: model.CheckFailure, output: "nomad: " + toValidUTF8(err.Error())}
}

// probe is a function that runs a check once and returns the result, after the check's timeout at the latest.
type probe func(context.Context) probeResult

// newProbe returns the probe of a check that connects to an address. Probes of several checks share no HTTP
// transport.
func newProbe(c *Check, address string, dial DialFunc) probe {
	var run probe
	switch strings.ToLower(c.Type) {
	case "tcp":
		run = newTCPProbe(address, dial)
	case "http":
		run = newHTTPProbe(c, address, dial)
	default:
		return alwaysFailingProbe(fmt.Errorf("invalid check type (%q), must be one of tcp, http", c.Type))
	}
	return func(ctx context.Context) probeResult {
		ctx, cancel := context.WithTimeoutCause(ctx, c.Timeout, timeoutError(c.Timeout))
		defer cancel()
		return run(ctx)
	}
}

// timeoutError is the error of a check that exceeded its timeout.
type timeoutError time.Duration

func (t timeoutError) Error() string { return fmt.Sprintf("no answer within %v", time.Duration(t)) }

// timeoutErrorOr returns the timeoutError of ctx if the timeout has passed, and err otherwise.
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
		// The error of the read is ignored: the output is the part of the body that has arrived.
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

// newCheckURL returns the URL of an HTTP check. The path cannot change the host of the URL, which is hostPort:
// "//host/" is a path, not another host.
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

// toValidUTF8 replaces invalid UTF-8 by U+FFFD.
func toValidUTF8(s string) string {
	return strings.ToValidUTF8(s, "\uFFFD")
}
