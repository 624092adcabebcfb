package sdktest

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// tb is the part of *testing.T that cases use.
type tb interface {
	Helper()
	Context() context.Context
	Cleanup(func())
	TempDir() string
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
}

// Severity is the importance of a case. For hosts only.
type Severity string

// The severities. For hosts only.
const (
	Must   Severity = "must"   // after a failure, a host loses tasks or cannot use the plugin
	Should Severity = "should" // after a failure, hosts work, but a user or an operator loses something
	Quirk  Severity = "quirk"  // a difference from other plugins that hosts tolerate, and no failure
)

// testCase is one case of the suite, which checks one behavior of a plugin.
type testCase struct {
	id          string // id: unique among the cases of one plugin type; never reused for another check
	severity    Severity
	expectation string // name: the expected behavior
	consequence string // why: the consequence of another behavior
	docsLink    string // link: file and heading in the documentation
	run         func(t tb, h *testHost)
}

// caseResult is the result of a case that runs outside of go test. It implements tb, to which the case
// reports while it runs.
type caseResult struct {
	testCase testCase
	ctx      context.Context
	duration time.Duration

	mu       sync.Mutex
	logLines []string
	failed   bool
	skipped  bool
	cleanups []func()
}

var _ tb = (*caseResult)(nil)

// runCase runs one case outside of go test, and blocks until it has ended.
func runCase(ctx context.Context, c testCase, h *testHost) *caseResult {
	r, done := startCase(ctx, c, h)
	<-done
	return r
}

// startCase runs one case in a new goroutine, because Fatalf ends the
// goroutine. done is closed when the case and its cleanups have ended.
func startCase(ctx context.Context, c testCase, h *testHost) (r *caseResult, done <-chan struct{}) {
	ctx, cancel := context.WithCancel(ctx)
	r = &caseResult{testCase: c, ctx: ctx}
	began := time.Now()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() { r.duration = time.Since(began) }()
		defer r.runCleanups()
		defer cancel() // the context ends before the cleanups, as in package testing
		defer func() {
			if p := recover(); p != nil {
				r.Errorf("panic: %v", p)
			}
		}()
		c.run(r, h)
	}()
	return r, ended
}

// runCleanups calls the functions of Cleanup, the last one first.
func (r *caseResult) runCleanups() {
	last := len(r.cleanups) - 1
	if last < 0 {
		return
	}
	f := r.cleanups[last]
	r.cleanups = r.cleanups[:last]
	defer r.runCleanups() // deferred, because f can call Fatalf, which ends the goroutine
	f()
}

// Verdict is the outcome of a case. For hosts only.
type Verdict string

// The verdicts. For hosts only.
const (
	Pass Verdict = "PASS"
	Fail Verdict = "FAIL"
	Skip Verdict = "SKIP"
	// Differs means that a case of severity Quirk has found a difference, which is not a failure.
	Differs Verdict = "QUIRK"
)

// Result is the result of a case of the suite. For hosts only.
type Result struct {
	ID       string // ID: short name of the case, such as start.known-id
	Case     string // Case: the expected behavior
	Severity Severity
	Verdict  Verdict
	Seconds  float64
	Messages []string `json:",omitempty"` // Messages: the errors of a case that failed, or why the case was skipped

	// Why and Link are set if the case failed, or found a quirk.
	Why  string `json:",omitempty"` // Why: the consequence for hosts and users
	Link string `json:",omitempty"` // Link: path and heading in the repository's documentation
}

// publicResult returns the public form of the result. The case has ended, or was abandoned after its timeout.
func (r *caseResult) publicResult() Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.testCase
	result := Result{ID: c.id, Case: c.expectation, Severity: c.severity, Verdict: Pass, Seconds: r.duration.Seconds()}
	switch {
	case r.failed:
		result.Verdict, result.Why, result.Link = Fail, c.consequence, c.docsLink
		if c.severity == Quirk {
			result.Verdict = Differs
		}
	case r.skipped:
		result.Verdict = Skip
	}
	if result.Verdict != Pass {
		result.Messages = slices.Clone(r.logLines)
	}
	return result
}

// Write writes the result: a line, and the details of a case that did not pass.
func (r Result) Write(out io.Writer) {
	isFinding := r.Verdict == Fail || r.Verdict == Differs
	if !isFinding {
		fmt.Fprintf(out, "%s  %s  %s (%.2fs)\n", r.Verdict, r.ID, r.Case, r.Seconds)
	} else {
		fmt.Fprintf(out, "%s  %s  (%s, %.2fs)\n      expected: %s\n", r.Verdict, r.ID, r.Severity, r.Seconds, r.Case)
	}
	for i, message := range r.Messages {
		if isFinding && i == 0 {
			fmt.Fprintln(out, "      got:")
		}
		fmt.Fprintf(out, "      %s\n", strings.ReplaceAll(message, "\n", "\n      "))
	}
	if isFinding {
		fmt.Fprintf(out, "      why: %s\n      see: %s\n", r.Why, r.Link)
	}
}

func (r *caseResult) Helper() {}

func (r *caseResult) Context() context.Context { return r.ctx }

func (r *caseResult) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

func (r *caseResult) TempDir() string {
	dir, err := os.MkdirTemp("", "plugin-test")
	if err != nil {
		r.Fatalf("make a directory: %v", err)
	}
	r.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (r *caseResult) Logf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.logLines = append(r.logLines, fmt.Sprintf(format, args...))
}

func (r *caseResult) Errorf(format string, args ...any) {
	r.Logf(format, args...)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
}

func (r *caseResult) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *caseResult) Skipf(format string, args ...any) {
	r.Logf(format, args...)
	r.mu.Lock()
	r.skipped = true
	r.mu.Unlock()
	runtime.Goexit()
}
