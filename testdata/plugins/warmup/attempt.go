package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// attempt makes one request to the task, or executes the command in it.
func (w *warmup) attempt(ctx context.Context, req hook.TaskPoststartRequest, p *plan) error {
	if p.http != nil {
		return w.request(ctx, req, p.http)
	}
	deadline, _ := ctx.Deadline()
	result, err := w.host.Exec(ctx, req.Scope(), hook.ExecRequest{Command: p.command, Timeout: max(time.Until(deadline), time.Millisecond)})
	if err != nil {
		return fmt.Errorf("%s: %w", p.command[0], err)
	}
	if result.Exit.ExitCode != 0 || result.Exit.Signal != 0 {
		output := strings.TrimSpace(string(result.Stdout) + string(result.Stderr))
		return fmt.Errorf("%s: exit code %d: %.200s", p.command[0], result.Exit.ExitCode, output)
	}
	return nil
}

var client = &http.Client{
	// The header can have a password, which belongs to the task only.
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	Transport:     &http.Transport{DisableKeepAlives: true},
}

func (w *warmup) request(ctx context.Context, req hook.TaskPoststartRequest, c *httpConfig) error {
	address := req.Env["NOMAD_ADDR_"+c.Port]
	if address == "" {
		return fmt.Errorf("the task has no port %q", c.Port)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+c.Path, nil)
	if err != nil {
		return err
	}
	if c.Header != nil {
		// Read for each attempt: an operator can correct it.
		variable, err := w.host.Variable(ctx, req.Scope(), hook.VariableRequest{Path: c.Header.Variable})
		if err != nil {
			return fmt.Errorf("variable %s: %w", c.Header.Variable, err)
		}
		value, ok := variable.Items[c.Header.Item]
		if !ok {
			return fmt.Errorf("variable %s has no item %s", c.Header.Variable, c.Header.Item)
		}
		r.Header.Set(c.Header.Name, value)
	}
	response, err := client.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<20))
	if response.StatusCode < 200 || response.StatusCode > 299 {
		return fmt.Errorf("GET %s: %s", c.Path, response.Status)
	}
	return nil
}
