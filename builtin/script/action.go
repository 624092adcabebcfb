package script

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/internal/opcount"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// scriptAction is the action that a job or the operator has configured for a hook
// point.
type scriptAction struct {
	HostCommand []string          `codec:"command"` // command on the host
	ExecInTask  []string          `codec:"exec"`    // command in the task
	URL         string            `codec:"url"`
	Method      string            `codec:"method"`
	Headers     map[string]string `codec:"headers"`
	Body        string            `codec:"body"`    // "" means that the payload is sent as JSON
	Timeout     string            `codec:"timeout"` // "" means the timeout of the hook point

	redactedURL string // URL without secrets, for messages
}

// attachmentSchema has a block for each hook point.
var attachmentSchema = func() *hclspec.Spec {
	action := func() *hclspec.Spec {
		return hclspec.Object(map[string]*hclspec.Spec{
			"command": hclspec.Attr("command", "list(string)", false),
			"exec":    hclspec.Attr("exec", "list(string)", false),
			"url":     hclspec.Attr("url", "string", false),
			"method":  hclspec.Attr("method", "string", false),
			"headers": hclspec.BlockAttrs("headers", "string", false),
			"body":    hclspec.Attr("body", "string", false),
			"timeout": hclspec.Attr("timeout", "string", false),
		})
	}
	blocks := map[string]*hclspec.Spec{}
	for point := hook.Prerun; point <= hook.Shutdown; point++ {
		blocks[point.String()] = hclspec.Block(point.String(), action(), false)
	}
	return hclspec.Object(blocks)
}()

// hasExactlyOneAction reports whether exactly one of command, exec and url is set.
func (a *scriptAction) hasExactlyOneAction() bool {
	things := 0
	for _, asked := range []bool{len(a.HostCommand) > 0, len(a.ExecInTask) > 0, a.URL != ""} {
		if asked {
			things++
		}
	}
	return things == 1
}

func (a *scriptAction) methodOrDefault() string { return cmp.Or(a.Method, http.MethodPost) }

// interpolate resolves references such as ${NOMAD_ALLOC_ID} and ${meta.owner}.
func (a *scriptAction) interpolate(ctx context.Context, host hook.Host, scope hook.Scope) (*scriptAction, error) {
	var interpolateErr error
	text := func(s string) string {
		if interpolateErr != nil || !strings.Contains(s, "${") {
			return s
		}
		filled, err := host.Interpolate(ctx, scope, s)
		if err != nil {
			interpolateErr = fmt.Errorf("interpolate %q: %w", s, err)
		}
		return filled
	}
	filled := *a
	filled.HostCommand, filled.ExecInTask, filled.Headers = nil, nil, nil
	for _, s := range a.HostCommand {
		filled.HostCommand = append(filled.HostCommand, text(s))
	}
	for _, s := range a.ExecInTask {
		filled.ExecInTask = append(filled.ExecInTask, text(s))
	}
	for key, s := range a.Headers {
		if filled.Headers == nil {
			filled.Headers = map[string]string{}
		}
		filled.Headers[key] = text(s)
	}
	filled.URL, filled.Body = text(a.URL), text(a.Body)
	filled.redactedURL = redactURL(a.URL)
	return &filled, interpolateErr
}

// redactURL returns a URL with unresolved references, without a password and
// without the query, which often has keys.
func redactURL(text string) string {
	text, _, cut := strings.Cut(text, "?")
	if cut {
		text += "?…"
	}
	scheme, rest, _ := strings.Cut(text, "://")
	if at := strings.LastIndex(rest, "@"); at >= 0 {
		return scheme + "://xxxxx" + rest[at:]
	}
	return text
}

// runHostCommand runs a command on the host, and blocks until it exits. When ctx ends, runHostCommand kills
// the process group of the command. Processes that the command leaves running after its exit are
// not killed; runHostCommand waits at most a second for output that they hold open.
func runHostCommand(ctx context.Context, command []string, payload hookPayload) (output string, err error) {
	about, err := json.Marshal(payload)
	if err != nil {
		return "", err
	}
	opcount.Count(opcount.Fork)
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir = "/"
	cmd.Env = append(payload.envList(), "PATH="+os.Getenv("PATH"), "HOME="+os.Getenv("HOME"), "LANG="+os.Getenv("LANG"))
	if traceparent := sdk.Traceparent(ctx); traceparent != "" {
		cmd.Env = append(cmd.Env, "TRACEPARENT="+traceparent)
	}
	cmd.Stdin = bytes.NewReader(about)
	var t tailBuffer
	cmd.Stdout, cmd.Stderr = &t, &t
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err = cmd.Run()
	var exitErr *exec.ExitError
	switch {
	case errors.Is(err, exec.ErrWaitDelay):
		err = nil // the command has exited; a remaining process holds its output open
	case errors.As(err, &exitErr) && exitErr.Exited():
		err = fmt.Errorf("exit code %d", exitErr.ExitCode())
	}
	return t.String(), err
}

// httpClient has no timeout, because the context of each call has one.
var httpClient = &http.Client{}

// maxResponseSize limits how many bytes of a response are read.
const maxResponseSize = 64 << 10

// sendRequest sends the HTTP request of an action, and returns the end of the response's body.
func sendRequest(ctx context.Context, a *scriptAction, payload hookPayload) (output string, err error) {
	body, kind := []byte(a.Body), "text/plain; charset=utf-8"
	if a.Body == "" && a.methodOrDefault() != http.MethodGet && a.methodOrDefault() != http.MethodHead {
		kind = "application/json"
		if body, err = json.Marshal(payload); err != nil {
			return "", err
		}
	}
	req, err := http.NewRequestWithContext(ctx, a.methodOrDefault(), a.URL, bytes.NewReader(body))
	if err != nil {
		return "", cmp.Or(errors.Unwrap(err), err) // the wrapped error does not contain the URL
	}
	if len(body) > 0 {
		req.Header.Set("Content-Type", kind)
	}
	req.Header.Set("User-Agent", "nomad-lite")
	if traceparent := sdk.Traceparent(ctx); traceparent != "" {
		req.Header.Set("traceparent", traceparent)
	}
	for key, value := range a.Headers {
		req.Header.Set(key, value)
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return "", errors.Unwrap(err) // the wrapped error does not contain the method and the URL, which the caller adds to the message
	}
	defer resp.Body.Close()
	var t tailBuffer
	_, err = io.Copy(&t, io.LimitReader(resp.Body, maxResponseSize))
	if resp.StatusCode >= http.StatusBadRequest {
		err = errors.New(resp.Status)
	}
	return t.String(), err
}
