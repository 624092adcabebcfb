package sdktest

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/base"
)

// Plugin is a driver or a hook to be tested.
type Plugin struct {
	Path string   // of the program
	Args []string // what it is started with
	Env  []string // KEY=value, added to the environment of this process

	// Config is the body of the plugin block.
	Config map[string]any

	// Tasks are what a driver is made to run.
	Tasks Tasks

	// Attachment is the configuration with which a hook is attached, such that
	// it does not refuse the tasks of the suite.
	Attachment map[string]any

	// CaseTimeout is how long one case can take; 0 means two minutes. A case that
	// takes longer fails, and the plugin is killed.
	CaseTimeout time.Duration
}

// Tasks are bodies of a task's config block. What is nil is not tested.
type Tasks struct {
	Runs  map[string]any // a task that runs until it is stopped
	Ends  map[string]any // one that ends by itself within seconds, and well
	Fails map[string]any // one that ends by itself within seconds, and not well

	// Shell makes a task of a script for /bin/sh, for a driver that runs
	// commands: most of the suite is for these. What of the above is nil is then
	// made by it.
	Shell func(script string) map[string]any
}

// Main is for TestMain: it makes the test binary serve as the plugin, by serve,
// when the suite starts it again, and runs the tests otherwise. The Plugin's Path
// is then os.Args[0].
func Main(m *testing.M, serve func()) {
	if os.Getenv(base.Handshake.MagicCookieKey) == base.Handshake.MagicCookieValue || os.Getenv(envByHand) != "" {
		serve()
		os.Exit(0)
	}
	// A program built with -race otherwise sleeps for a second before it exits, and
	// the suite ends many.
	if os.Getenv("GORACE") == "" {
		os.Setenv("GORACE", "atexit_sleep_ms=0")
	}
	os.Exit(m.Run())
}

// envByHand makes a test binary serve without the cookie, as if a person had
// started the plugin.
const envByHand = "NOMAD_LITE_SDKTEST_BY_HAND"

// Driver runs the suite for drivers as subtests of t.
func Driver(t *testing.T, p Plugin) { run(t, p, driverCases(p)) }

// Hook runs the suite for hooks as subtests of t.
func Hook(t *testing.T, p Plugin) { run(t, p, hookCases()) }

func run(t *testing.T, p Plugin, cases []testCase) {
	h := newHost(p)
	t.Cleanup(h.close)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { h.test(t, c) })
	}
}

// Check runs the suite for what the plugin is and writes a line per case to out: PASS, FAIL or SKIP,
// the name, and the reasons; then a sum. The error counts what has failed. When
// ctx ends, the suite ends after the case that runs, and the error is its cause.
//
// Of a Plugin without Tasks, a driver whose task config has command and args is
// taken for one that runs commands.
func Check(ctx context.Context, out io.Writer, p Plugin) error {
	return CheckUntil(ctx, context.Background(), out, p)
}

// CheckUntil is Check that also ends when kill ends: at once, in the middle of a case.
// The processes of the plugin and of its tasks are killed then.
func CheckUntil(ctx, kill context.Context, out io.Writer, p Plugin) error {
	h := newHost(p)
	defer h.close()
	defer context.AfterFunc(kill, h.kill)()
	cases := hookCases()
	switch kind, err := h.guess(kill); {
	case err != nil:
		cases = []testCase{{name: "starts as hosts start it", run: func(t tb, _ *host) { t.Fatalf("%v", err) }}}
	case kind == base.TypeDriver:
		cases = driverCases(h.plugin)
	}
	var passed, failed, skipped int
	for _, c := range cases {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r, ended := h.check(kill, c)
		if kill.Err() != nil {
			h.kill() // again: a plugin process could have been about to start
			return context.Cause(kill)
		}
		r.write(out)
		switch {
		case r.failed:
			failed++
		case r.skipped:
			skipped++
		default:
			passed++
		}
		if !ended {
			return fmt.Errorf("the case %q does not end, although its plugin was killed", c.name)
		}
	}
	fmt.Fprintf(out, "\n%d passed, %d failed, %d skipped\n", passed, failed, skipped)
	if failed > 0 {
		return fmt.Errorf("%d of %d cases failed", failed, passed+failed)
	}
	return nil
}
