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
)

// The results of a check. Clients of Nomad know the texts.
const (
	StatusPending = "pending"
	StatusSuccess = "success"
	StatusFailure = "failure"

	outputPending = "nomad: waiting to run"
	outputTCP     = "nomad: tcp ok"
	outputHTTP    = "nomad: http ok"
)

// maxBody is how much of a body is kept as the output of a check.
const maxBody = 3 << 10

// userAgent is how the servers that are checked know us.
const userAgent = "nomad-lite"

// Dial opens a connection; net.Dialer.DialContext does it.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// outcome is what one run of a check has found.
type outcome struct {
	status string
	code   int
	output string
}

func failure(err error) outcome {
	return outcome{status: StatusFailure, output: "nomad: " + printable(err.Error())}
}

// probe runs a check once, which takes no longer than its timeout.
type probe func(context.Context) outcome

// newProbe returns the probe of a resolved check. What it holds belongs to this
// check alone: the settings of one have no effect on another.
func newProbe(c *Check, address string, dial Dial) probe {
	var run probe
	switch strings.ToLower(c.Type) {
	case "tcp":
		run = probeTCP(address, dial)
	case "http":
		run = probeHTTP(c, address, dial)
	default:
		return alwaysFails(fmt.Errorf("invalid check type (%q), must be one of tcp, http", c.Type))
	}
	return func(ctx context.Context) outcome {
		ctx, cancel := context.WithTimeoutCause(ctx, c.Timeout, timedOut(c.Timeout))
		defer cancel()
		return run(ctx)
	}
}

// timedOut is the error of a check that has taken too long.
type timedOut time.Duration

func (t timedOut) Error() string { return fmt.Sprintf("no answer within %v", time.Duration(t)) }

// cause says in our words what a timeout means.
func cause(ctx context.Context, err error) error {
	if late, ok := context.Cause(ctx).(timedOut); ok {
		return late
	}
	return err
}

func alwaysFails(err error) probe {
	return func(context.Context) outcome { return failure(err) }
}

func probeTCP(address string, dial Dial) probe {
	return func(ctx context.Context) outcome {
		conn, err := dial(ctx, "tcp", address)
		if err != nil {
			return failure(cause(ctx, err))
		}
		_ = conn.Close() // it has served its purpose
		return outcome{status: StatusSuccess, output: outputTCP}
	}
}

func probeHTTP(c *Check, address string, dial Dial) probe {
	target, err := checkURL(c.Protocol, address, c.Path)
	if err != nil {
		return alwaysFails(err)
	}
	method := strings.ToUpper(c.Method)
	if method == "" {
		method = http.MethodGet
	}
	client := &http.Client{Transport: &http.Transport{
		DialContext:       dial,
		DisableKeepAlives: true, // each run shows whether the service takes connections
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: c.TLSSkipVerify},
	}}
	return func(ctx context.Context) outcome {
		req, err := http.NewRequestWithContext(ctx, method, target.String(), strings.NewReader(c.Body))
		if err != nil {
			return failure(err)
		}
		setHeader(req, c.Header)
		resp, err := client.Do(req)
		if err != nil {
			return failure(cause(ctx, err))
		}
		defer resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return outcome{StatusSuccess, resp.StatusCode, outputHTTP}
		}
		// What has arrived of a body that breaks off says more than that it did.
		body, _ := io.ReadAll(io.LimitReader(resp.Body, maxBody))
		result := outcome{StatusSuccess, resp.StatusCode, printable(string(body))}
		if resp.StatusCode >= http.StatusBadRequest {
			result.status = StatusFailure
		}
		return result
	}
}

func setHeader(req *http.Request, header map[string][]string) {
	for _, name := range slices.Sorted(maps.Keys(header)) {
		for _, value := range header[name] {
			req.Header.Add(name, value)
		}
	}
	if host := req.Header.Get("Host"); host != "" {
		req.Host = host // net/http takes it from here alone
	}
	if req.Header.Get("User-Agent") == "" {
		req.Header.Set("User-Agent", userAgent)
	}
}

// checkURL puts the address of a check together. Whatever path is, the result
// leads to the address: "//host/" is a path, not another host.
func checkURL(protocol, address, path string) (*url.URL, error) {
	u := &url.URL{Scheme: strings.ToLower(protocol), Host: address}
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

// printable makes text of what a server has sent.
func printable(s string) string {
	return strings.ToValidUTF8(s, "\uFFFD")
}
