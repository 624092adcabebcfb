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

// testCase is a named check of a plugin.
type testCase struct {
	name string
	run  func(t tb, h *testHost)
}

// caseResult is the result of a case that runs without go test. While the case
// runs, the case reports to it as to a testing.TB.
type caseResult struct {
	name     string
	ctx      context.Context
	duration time.Duration

	mu       sync.Mutex
	logLines []string
	failed   bool
	skipped  bool
	cleanups []func()
}

var _ tb = (*caseResult)(nil)

// runCase runs one case, and blocks until it has ended.
func runCase(ctx context.Context, c testCase, h *testHost) *caseResult {
	r, done := startCase(ctx, c, h)
	<-done
	return r
}

// startCase runs one case in a new goroutine, because Fatalf ends the
// goroutine. done is closed when the case and its cleanups have ended.
func startCase(ctx context.Context, c testCase, h *testHost) (r *caseResult, done <-chan struct{}) {
	ctx, cancel := context.WithCancel(ctx)
	r = &caseResult{name: c.name, ctx: ctx}
	began := time.Now()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() { r.duration = time.Since(began) }()
		defer r.cleanUp()
		defer cancel() // cancelled before the cleanups, as in package testing
		defer func() {
			if p := recover(); p != nil {
				r.Errorf("panic: %v", p)
			}
		}()
		c.run(r, h)
	}()
	return r, ended
}

func (r *caseResult) cleanUp() {
	last := len(r.cleanups) - 1
	if last < 0 {
		return
	}
	f := r.cleanups[last]
	r.cleanups = r.cleanups[:last]
	defer r.cleanUp() // also if f calls Fatalf
	f()
}

// Verdict is the outcome of a case.
type Verdict string

// The verdicts.
const (
	Pass Verdict = "PASS"
	Fail Verdict = "FAIL"
	Skip Verdict = "SKIP"
)

// Result is the result of a case of the suite.
type Result struct {
	Case     string
	Verdict  Verdict
	Seconds  float64
	Messages []string `json:",omitempty"` // why the case failed, or was skipped
}

// result returns the result of a case that has ended, or that its timeout has ended.
func (r *caseResult) result() Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	result := Result{Case: r.name, Verdict: Pass, Seconds: r.duration.Seconds()}
	switch {
	case r.failed:
		result.Verdict = Fail
	case r.skipped:
		result.Verdict = Skip
	}
	if result.Verdict != Pass {
		result.Messages = slices.Clone(r.logLines)
	}
	return result
}

func (r Result) write(out io.Writer) {
	fmt.Fprintf(out, "%s  %s (%.2fs)\n", r.Verdict, r.Case, r.Seconds)
	for _, message := range r.Messages {
		fmt.Fprintf(out, "      %s\n", strings.ReplaceAll(message, "\n", "\n      "))
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
