package sdktest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
)

// defaultCaseTimeout is several times the duration of the longest case.
const defaultCaseTimeout = 2 * time.Minute

// callReturnGracePeriod is the time between the timeout of a case, which cancels its calls, and the kill of
// its plugin. Calls that return in this time report errors, which show the call
// that hung. Tests change it.
var callReturnGracePeriod = time.Second

var errSuiteKilled = errors.New("the suite was killed")

func (h *testHost) caseTimeout() time.Duration {
	return cmp.Or(h.testedPlugin.CaseTimeout, defaultCaseTimeout)
}

// timeoutError returns the cause with which the context of a case is cancelled at the timeout.
func (h *testHost) timeoutError() error {
	return fmt.Errorf("the case did not end within %v, and its plugin was killed", h.caseTimeout())
}

// newCaseContext returns a context for a case that starts now. It ends at the timeout of the case.
func (h *testHost) newCaseContext(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeoutCause(parent, h.caseTimeout(), h.timeoutError())
	return contextWithoutDeadline{ctx}, cancel
}

// contextWithoutDeadline is a context that hides its deadline. gRPC would send the
// deadline to the plugin, which could then return a timeout error before the context of
// the suite has ended.
type contextWithoutDeadline struct{ context.Context }

func (contextWithoutDeadline) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }

// runStandaloneCase runs one case outside of go test. ended is false if the case did not
// return although its plugin was killed; its goroutine is leaked then.
func (h *testHost) runStandaloneCase(untilKill context.Context, c testCase) (r *caseResult, ended bool) {
	ctx, cancel := h.newCaseContext(untilKill)
	defer cancel()
	h.resetCaseState()
	r, done := startCase(ctx, c.withPanicReports(), h)
	select {
	case <-done:
		if ctx.Err() == nil { // the case ended before its timeout
			return r, true
		}
	case <-ctx.Done():
	}
	if untilKill.Err() == nil {
		select {
		case <-done:
		case <-time.After(callReturnGracePeriod):
		}
		r.Errorf("%v", context.Cause(ctx)) // after the errors of the calls that returned
		h.abortCase()
	}
	select {
	case <-done:
		return r, true
	case <-time.After(waitTimeout):
		return r, false
	}
}

// runCaseAsSubtest runs one case as a subtest.
func (h *testHost) runCaseAsSubtest(t *testing.T, c testCase) {
	ctx, cancel := h.newCaseContext(t.Context())
	defer cancel()
	h.resetCaseState()
	stop := context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			time.Sleep(callReturnGracePeriod)
			h.abortCase()
		}
	})
	defer stop()
	defer func() {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			t.Errorf("%v", context.Cause(ctx))
		}
	}()
	var reporter tb = &tbWithContext{t, ctx}
	if c.severity == Quirk {
		reporter = &tbWithoutFailures{reporter}
	}
	c.withPanicReports().run(reporter, h)
}

// tbWithoutFailures logs the errors of a case of severity Quirk, whose errors are no failures.
type tbWithoutFailures struct{ tb }

func (q *tbWithoutFailures) Errorf(format string, args ...any) { q.Logf("quirk: "+format, args...) }
func (q *tbWithoutFailures) Fatalf(format string, args ...any) { q.Skipf("quirk: "+format, args...) }

// withPanicReports returns the case with two calls of reportPanics: one before the cleanups of the case, which need a
// running plugin, and one after them, because the cleanups may crash the plugin.
func (c testCase) withPanicReports() testCase {
	run := c.run
	c.run = func(t tb, h *testHost) {
		t.Cleanup(func() { h.reportPanics(t) })
		defer h.reportPanics(t)
		run(t, h)
	}
	return c
}

// resetCaseState resets the fields of h that belong to one case.
func (h *testHost) resetCaseState() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.allocIDsOfCase, h.caseAborted = nil, false
	h.launchedProcesses = slices.DeleteFunc(h.launchedProcesses, func(p *pluginProcess) bool { return p.goPluginClient.Exited() })
}

func (h *testHost) isSuiteKilled() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.launchesRefused
}

// isCaseAborted reports whether the processes of the case were killed.
func (h *testHost) isCaseAborted() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.caseAborted
}

// killProcessesOfCase kills the plugin processes and the tasks of the case, and makes further launches fail.
func (h *testHost) killProcessesOfCase() {
	h.mu.Lock()
	h.launchesRefused = true
	h.mu.Unlock()
	h.abortCase()
}

// abortCase kills the plugin processes, and the tasks of the case.
func (h *testHost) abortCase() {
	h.mu.Lock()
	h.caseAborted = true
	launched, allocs := slices.Clone(h.launchedProcesses), slices.Clone(h.allocIDsOfCase)
	h.mu.Unlock()
	for _, p := range launched {
		p.isKilledBySuite.Store(true)
	}
	killProcessesByEnv(h.processEnvEntry)
	for _, id := range allocs {
		killProcessesByEnv("NOMAD_ALLOC_ID=" + id)
	}
}

// shutdownTimeout is the time after which a plugin process that is shut down and has not exited is killed.
const shutdownTimeout = 5 * time.Second

// shutDownOrKill shuts the process down, and kills it after shutdownTimeout. go-plugin's Kill alone would wait without limit for
// the response of a process that hangs.
func (p *pluginProcess) shutDownOrKill() {
	timer := time.AfterFunc(shutdownTimeout, p.sendSIGKILL)
	defer timer.Stop()
	p.goPluginClient.Kill()
}

// kill kills the process with SIGKILL at once, while go-plugin's Kill would first
// wait for a response of the process.
func (p *pluginProcess) kill() {
	p.sendSIGKILL()
	p.goPluginClient.Kill()
}

func (p *pluginProcess) sendSIGKILL() {
	if !p.goPluginClient.Exited() {
		_ = unix.Kill(p.pid, unix.SIGKILL) // fails if the process has ended
	}
}

// reportPanics fails the case for each panic that crashed a plugin process, and for each
// panic of a plugin's method that the SDK has logged and converted into an error.
func (h *testHost) reportPanics(t tb) {
	t.Helper()
	if h.isSuiteKilled() {
		return
	}
	h.sharedProcessStartMu.Lock()
	if p := h.sharedProcess; p != nil && !p.isKilledBySuite.Load() && p.hasExitedOrDisconnected() {
		h.sharedProcess = nil
		t.Errorf("%s", p.crashReport())
		p.kill()
		p.stderrBytesChecked = len(p.stderr.String())
	}
	h.sharedProcessStartMu.Unlock()
	h.mu.Lock()
	launched := slices.Clone(h.launchedProcesses)
	h.mu.Unlock()
	for _, p := range launched {
		text := p.stderr.String()
		text, p.stderrBytesChecked = text[min(p.stderrBytesChecked, len(text)):], len(text)
		if findPanicIndex(text) >= 0 && !p.isKilledBySuite.Load() {
			t.Errorf("%s", p.crashReport())
		}
		for line := range strings.Lines(text) {
			var log struct {
				Message string `json:"@message"`
				Method  string `json:"method"`
				Panic   string `json:"panic"`
				Stack   string `json:"stack"`
			}
			if json.Unmarshal([]byte(line), &log) == nil && log.Message == basewire.PanicMessage {
				t.Errorf("method %s panicked: %s\n%s", log.Method, log.Panic, log.Stack)
			}
		}
	}
}

// hasExitedOrDisconnected reports whether the process has exited, or its connection has closed.
func (p *pluginProcess) hasExitedOrDisconnected() bool {
	if p.goPluginClient.Exited() {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), callReturnGracePeriod)
	defer cancel()
	_, err := p.baseClient.PluginInfo(ctx)
	return errors.Is(err, base.ErrPluginDown)
}

// findPanicIndex returns the index of the first panic message or fatal error of the Go runtime in text, or -1.
func findPanicIndex(text string) int {
	at := -1
	for _, start := range []string{"panic: ", "fatal error: "} {
		for i := 0; ; {
			j := strings.Index(text[i:], start)
			if j < 0 {
				break
			}
			if j += i; (j == 0 || text[j-1] == '\n') && (at < 0 || j < at) {
				at = j
			}
			i = j + len(start)
		}
	}
	return at
}
