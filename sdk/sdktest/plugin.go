package sdktest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
)

// Plugin describes a driver, a hook or a device plugin to be tested.
type Plugin struct {
	Path string   // path of the program
	Args []string // arguments of the program
	Env  []string // KEY=value pairs, which the plugin gets in addition to the environment of this process

	// Config is the body of the plugin block. A block is a map, its labels are keys, and several blocks of one name without
	// labels are a []map[string]any: model "T100" { power = 20 } is {"model": {"T100": {"power": 20}}}.
	Config map[string]any

	// Tasks are the tasks that the suite starts with a driver.
	Tasks Tasks

	// Attachment is the configuration with which the suite attaches a hook. The
	// hook must accept the tasks of the suite with it.
	Attachment map[string]any

	// CaseTimeout is the timeout of one case; 0 means two minutes. A case that
	// exceeds it fails, and the plugin is killed.
	CaseTimeout time.Duration

	// OnlyCasePatterns selects cases by id: patterns of path.Match, separated by commas, such as
	// "exec.*,recover.*". Empty means all cases.
	OnlyCasePatterns string

	// ConfigEncoder encodes Config, Attachment and the bodies of Tasks; nil means that strings in them are no templates.
	// For hosts only.
	ConfigEncoder *ConfigEncoder
}

// selectCases returns the cases that p.OnlyCasePatterns selects.
func (p Plugin) selectCases(cases []testCase) (selected []testCase, err error) {
	if p.OnlyCasePatterns == "" {
		return cases, nil
	}
	patterns := strings.Split(p.OnlyCasePatterns, ",")
	for _, c := range cases {
		for _, pattern := range patterns {
			ok, err := path.Match(strings.TrimSpace(pattern), c.id)
			if err != nil {
				return nil, fmt.Errorf("select cases by %q: %w", pattern, err)
			}
			if ok {
				selected = append(selected, c)
				break
			}
		}
	}
	if len(selected) == 0 {
		return nil, fmt.Errorf("no case has an id that matches %q; an id is for example %s", p.OnlyCasePatterns, cases[0].id)
	}
	return selected, nil
}

// Tasks are bodies of a task's config block. Cases for a nil task are skipped.
type Tasks struct {
	LongRunning map[string]any // a task that runs until it is stopped
	Succeeds    map[string]any // a task that exits successfully within seconds
	Fails       map[string]any // a task that fails within seconds

	// Shell returns the body of a task that runs the script with /bin/sh. It is for
	// drivers that run commands: most cases need it. The suite also uses it for
	// LongRunning, Succeeds and Fails if they are nil.
	Shell func(script string) map[string]any
}

// Main is the TestMain function of a plugin's tests: it calls serve if the suite
// has started the test binary as the plugin, and runs the tests otherwise. The
// Plugin's Path must be os.Args[0].
func Main(m *testing.M, serve func()) {
	if os.Getenv(basewire.Handshake.MagicCookieKey) == basewire.Handshake.MagicCookieValue || os.Getenv(envServeWithoutHandshake) != "" {
		serve()
		os.Exit(0)
	}
	// A program built with -race sleeps for a second before it exits by default, and the suite
	// starts many processes of this program.
	if os.Getenv("GORACE") == "" {
		os.Setenv("GORACE", "atexit_sleep_ms=0")
	}
	os.Exit(m.Run())
}

// envServeWithoutHandshake is an environment variable that makes a test binary serve
// without the handshake cookie, as if a user had started the plugin.
const envServeWithoutHandshake = "NOMAD_LITE_SDKTEST_BY_HAND"

// slowCases are the ids of cases that wait for seconds, or start many tasks. The cases limits.* search for the processes of
// a task for seconds if the driver's tasks are not processes of this machine.
var slowCases = []string{
	"fingerprint.stays-open", "leaks.descriptors", "leaks.processes", "stats.zero-interval", "streams.stay-open",
	"limits.cgroup", "limits.memory", "limits.memory-max", "limits.reservation",
}

// Driver runs the suite for drivers as subtests of t. With -short, Driver, Hook and Device skip the cases that take seconds.
func Driver(t *testing.T, p Plugin) { runSuite(t, p, driverCases(p)) }

// Hook runs the suite for hooks as subtests of t.
func Hook(t *testing.T, p Plugin) { runSuite(t, p, hookCases()) }

// Device runs the suite for device plugins as subtests of t. The cases for devices are skipped if
// the plugin finds none on this machine.
func Device(t *testing.T, p Plugin) { runSuite(t, p, deviceCases()) }

func runSuite(t *testing.T, p Plugin, cases []testCase) {
	cases, err := p.selectCases(cases)
	if err != nil {
		t.Fatal(err)
	}
	h := newTestHost(p)
	t.Cleanup(h.closeHostAndPlugins)
	for _, c := range cases {
		t.Run(c.id, func(t *testing.T) {
			if testing.Short() && slices.Contains(slowCases, c.id) {
				t.Skip("takes seconds")
			}
			h.runCaseAsSubtest(t, c)
		})
	}
}

// Check runs the suite for the type of the plugin and writes a line per case to
// out: PASS, FAIL, SKIP or QUIRK, the name, and the reasons; then a summary. The error
// has the number of failed cases. When ctx ends, the suite ends after the
// current case, and the error is the cause of ctx.
//
// If the Plugin has no Tasks, and the task config of the driver has command and
// args, the suite uses these to run commands.
func Check(ctx context.Context, out io.Writer, p Plugin) error {
	return CheckUntil(ctx, context.Background(), out, p)
}

// CheckUntil is Check with a second context: when untilKill ends, CheckUntil kills the processes
// of the plugin and of its tasks, and returns without waiting for the end of the current
// case. For hosts only.
func CheckUntil(ctx, untilKill context.Context, out io.Writer, p Plugin) error {
	counts := make(map[Verdict]int)
	err := CheckEach(ctx, untilKill, p, func(r Result) {
		counts[r.Verdict]++
		r.Write(out)
	})
	if failed := new(failedCasesError); err == nil || errors.As(err, &failed) {
		fmt.Fprintf(out, "\n%d passed, %d failed, %d skipped", counts[Pass], counts[Fail], counts[Skip])
		if counts[Differs] > 0 {
			fmt.Fprintf(out, ", %d with a quirk, which is no failure", counts[Differs])
		}
		fmt.Fprintln(out)
	}
	return err
}

// failedCasesError is the error of a suite that has run all cases, of which some have failed.
type failedCasesError struct{ failedCount, totalCount int }

func (e *failedCasesError) Error() string {
	return fmt.Sprintf("%d of %d cases failed", e.failedCount, e.totalCount)
}

// CheckEach is CheckUntil without text: it calls onResult after each case. For hosts only.
func CheckEach(ctx, untilKill context.Context, p Plugin, onResult func(Result)) error {
	h := newTestHost(p)
	defer h.closeHostAndPlugins()
	defer context.AfterFunc(untilKill, h.killProcessesOfCase)()
	var cases []testCase
	kind, err := h.detectTypeAndAddShellTasks(untilKill)
	switch {
	case err != nil:
		launchErr := err
		p.OnlyCasePatterns = "" // the reason is shown whatever the cases are
		cases = []testCase{{"launch.info", Must, "the handshake succeeds", "A host cannot use the plugin.", linkLaunch, func(t tb, _ *testHost) { t.Fatalf("%v", launchErr) }}}
	case kind == base.TypeHook:
		cases = hookCases()
	case kind == base.TypeDevice:
		cases = deviceCases()
	default:
		cases = driverCases(h.testedPlugin)
	}
	if cases, err = p.selectCases(cases); err != nil {
		return err
	}
	var counts failedCasesError
	for _, c := range cases {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r, ended := h.runStandaloneCase(untilKill, c)
		if untilKill.Err() != nil {
			h.killProcessesOfCase() // second kill, of a plugin process that was being started during the first one
			return context.Cause(untilKill)
		}
		result := r.publicResult()
		onResult(result)
		switch result.Verdict {
		case Fail:
			counts.failedCount++
			counts.totalCount++
		case Pass, Differs:
			counts.totalCount++
		}
		if !ended {
			return fmt.Errorf("the case %s did not end, although its plugin was killed", c.id)
		}
	}
	if counts.failedCount > 0 {
		return &counts
	}
	return nil
}
