package sdk

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

type hookWithoutPoints struct{}

func (hookWithoutPoints) Info() HookInfo { return HookInfo{Name: "named"} }

type hookWithStop struct{ hookWithoutPoints }

func (hookWithStop) Stop(context.Context, hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	return hook.TaskStopResponse{}, nil
}

type hookWithWrongPrestart struct{ hookWithStop }

func (hookWithWrongPrestart) Prestart(context.Context, hook.TaskPrestartRequest) error { return nil }

type hookWithWrongExited struct{ hookWithoutPoints }

func (hookWithWrongExited) Exited(hook.TaskExitedRequest) error { return nil }

type hookWithWrongSetHost struct{ hookWithStop }

func (hookWithWrongSetHost) SetHost(hook.Host) {}

type hookWithTimeouts struct {
	hookWithStop
	timeouts map[hook.Point]time.Duration
}

func (h hookWithTimeouts) Info() HookInfo { return HookInfo{Name: "patient", Timeouts: h.timeouts} }

type hookWithMisspelledPrestart struct{ hookWithStop }

func (hookWithMisspelledPrestart) PreStart(context.Context, hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	return hook.TaskPrestartResponse{}, nil
}

type hookWithPointerMethod struct{ hookWithStop }

func (*hookWithPointerMethod) Exited(context.Context, hook.TaskExitedRequest) (hook.TaskExitedResponse, error) {
	return hook.TaskExitedResponse{}, nil
}

type hookWithInfo struct {
	hookWithStop
	info HookInfo
}

func (h hookWithInfo) Info() HookInfo { return h.info }

type hookWithoutName struct{ hookWithStop }

func (hookWithoutName) Info() HookInfo { return HookInfo{} }

func TestHookThatCannotBeServedIsRejected(t *testing.T) {
	for _, test := range []struct {
		hook Hook
		want string
	}{
		{hookWithoutPoints{}, "sdk.hookWithoutPoints takes part in nothing: a hook has a method for at least one hook point, such as Prestart(context.Context, hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error)"},
		{hookWithWrongPrestart{}, "the method Prestart of sdk.hookWithWrongPrestart is func(context.Context, hook.TaskPrestartRequest) error; it must be func(context.Context, hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error)"},
		{hookWithWrongExited{}, "the method Exited of sdk.hookWithWrongExited is func(hook.TaskExitedRequest) error; it must be func(context.Context, hook.TaskExitedRequest) (hook.TaskExitedResponse, error)"},
		{hookWithWrongSetHost{}, "the method SetHost of sdk.hookWithWrongSetHost is func(hook.Host); it must be func(hook.Host, hook.Node)"},
		{hookWithTimeouts{timeouts: map[hook.Point]time.Duration{hook.Exited: time.Second}}, "Info has a timeout for exited, and sdk.hookWithTimeouts takes no part in that"},
		{hookWithTimeouts{timeouts: map[hook.Point]time.Duration{hook.Stop: -1}}, "the timeout for stop in Info is -1ns"},
		{hookWithoutName{}, ".Info has no Name"},
		{hookWithMisspelledPrestart{}, "the method PreStart of sdk.hookWithMisspelledPrestart would never be called: it must have the name Prestart"},
		{hookWithPointerMethod{}, "sdk.hookWithPointerMethod has no method Exited, and *sdk.hookWithPointerMethod has: serve a pointer"},
		{hookWithInfo{info: HookInfo{Name: "x", ConfigSchema: hclspec.Object(nil)}}, "nothing takes the configuration: add Configure(context.Context, *sdk.Config) error"},
		{hookWithInfo{info: HookInfo{Name: "x", ReportsHealth: true}}, "it could never say that an allocation is healthy"},
		{hookWithInfo{info: HookInfo{Name: "x", AttachmentSchema: hclspec.Attr("a", "string", true)}}, "AttachmentSchema in Info: it is no Object"},
	} {
		if p, err := newHookSpec(test.hook); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%T: %+v, %v; want %s", test.hook, p, err, test.want)
		}
	}
}

type stubDriver[T Task] struct{}

func (stubDriver[T]) Info() DriverInfo                                      { return DriverInfo{Name: "nap"} }
func (stubDriver[T]) Start(context.Context, *StartRequest) (t T, err error) { return t, nil }

type driverWithWrongRecover struct{ stubDriver[Task] }

func (driverWithWrongRecover) Recover(context.Context) error { return nil }

type driverWithoutCreateNetwork struct{ stubDriver[Task] }

func (driverWithoutCreateNetwork) DestroyNetwork(context.Context, DestroyNetworkRequest) error {
	return nil
}

type minimalTask struct{}

func (minimalTask) Wait(context.Context) (driver.ExitResult, error) { return driver.ExitResult{}, nil }
func (minimalTask) Kill(context.Context) error                      { return nil }

type taskWithWrongSignal struct{ minimalTask }

func (taskWithWrongSignal) Signal(string) error { return nil }

type taskWithWrongStats struct{ minimalTask }

func (taskWithWrongStats) Stats(context.Context) (driver.Usage, error) { return driver.Usage{}, nil }

// killableTask is a task with a wrong signature that records whether it was killed.
type killableTask struct {
	taskWithWrongSignal
	killed *bool
}

func (t killableTask) Kill(context.Context) error { *t.killed = true; return nil }

// driverOfInterface starts a task whose type only Start determines.
type driverOfInterface struct {
	stubDriver[Task]
	task Task
}

func (d driverOfInterface) Start(context.Context, *StartRequest) (Task, error)   { return d.task, nil }
func (d driverOfInterface) Recover(context.Context, *StartRequest) (Task, error) { return d.task, nil }

func TestMethodsOfTasksAreCheckedIfTIsAnInterface(t *testing.T) {
	const want = "the method Signal of sdk.killableTask is func(string) error; it must be func(context.Context, string) error"
	killed := false
	d, err := newUntypedDriver[Task](driverOfInterface{task: killableTask{killed: &killed}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.recoverMethod(t.Context(), nil); err == nil || err.Error() != want || !driver.IsRecoverable(err) || killed {
		t.Errorf("Recover: %v, killed %v", err, killed)
	}
	if _, err := d.startMethod(t.Context(), nil); err == nil || err.Error() != want || !killed {
		t.Errorf("Start: %v, killed %v", err, killed)
	}
	d, err = newUntypedDriver[Task](driverOfInterface{task: minimalTask{}})
	if err != nil {
		t.Fatal(err)
	}
	if task, err := d.startMethod(t.Context(), nil); task != (minimalTask{}) || err != nil {
		t.Errorf("Start of a right type: %v, %v", task, err)
	}
}

type driverWithInfo struct {
	stubDriver[Task]
	info DriverInfo
}

func (d driverWithInfo) Info() DriverInfo { return d.info }

func TestDriverThatCannotBeServedIsRejected(t *testing.T) {
	for _, test := range []struct {
		driver interface{ newSpec() (*pluginSpec, error) }
		want   string
	}{
		{driverCase[Task]{driverWithWrongRecover{}}, "the method Recover of sdk.driverWithWrongRecover is func(context.Context) error; it must be func(context.Context, *sdk.StartRequest) (sdk.Task, error)"},
		{driverCase[Task]{driverWithoutCreateNetwork{}}, "sdk.driverWithoutCreateNetwork has the method DestroyNetwork, and not all of sdk.NetworkManager"},
		{driverCase[taskWithWrongSignal]{stubDriver[taskWithWrongSignal]{}}, "the method Signal of sdk.taskWithWrongSignal is func(string) error; it must be func(context.Context, string) error"},
		{driverCase[taskWithWrongStats]{stubDriver[taskWithWrongStats]{}}, "the method Stats of sdk.taskWithWrongStats is func(context.Context) (driver.Usage, error); it must be func(context.Context) (driver.TaskStats, error)"},
		{driverCase[Task]{driverWithInfo{}}, ".Info has no Name"},
		{driverCase[Task]{driverWithInfo{info: DriverInfo{Name: "x", ConfigSchema: hclspec.Object(nil)}}}, "nothing takes the configuration: add Configure(context.Context, *sdk.Config) error"},
		{driverCase[Task]{driverWithInfo{info: DriverInfo{Name: "x", TaskSchema: hclspec.Attr("a", "string", true)}}}, "TaskSchema in Info: it is no Object"},
		{driverCase[Task]{driverWithInfo{info: DriverInfo{Name: "x", Capabilities: driver.Capabilities{SendSignals: true}}}}, "sdk.driverWithInfo.Info declares the capability SendSignals, and sdk.Task does not implement sdk.Signaler"},
		{driverCase[Task]{driverWithInfo{info: DriverInfo{Name: "x", Capabilities: driver.Capabilities{Exec: true}}}}, "sdk.driverWithInfo.Info declares the capability Exec, and sdk.Task does not implement sdk.Execer"},
		{driverCase[Task]{driverWithInfo{info: DriverInfo{Name: "x", Capabilities: driver.Capabilities{MustCreateNetwork: true}}}}, "sdk.driverWithInfo.Info declares the capability MustCreateNetwork, and sdk.driverWithInfo does not implement sdk.NetworkManager"},
	} {
		if p, err := test.driver.newSpec(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%T: %+v, %v; want %s", test.driver, p, err, test.want)
		}
	}
}

// driverCase makes drivers with different task types usable in one table of
// tests.
type driverCase[T Task] struct{ driver Driver[T] }

func (c driverCase[T]) newSpec() (*pluginSpec, error) { return newDriverSpec(c.driver) }

func TestValidPluginsHaveTheirKind(t *testing.T) {
	for _, test := range []struct {
		plugin interface{ newSpec() (*pluginSpec, error) }
		want   string
	}{
		{hookCase{hookWithStop{}}, "hook"},
		{hookCase{hookWithTimeouts{timeouts: map[hook.Point]time.Duration{hook.Stop: time.Hour}}}, "hook"},
		{driverCase[*sleepingTask]{&minimalDriver{}}, "task driver"},
		{driverCase[*allMethodsTask]{&allMethodsDriver{}}, "task driver"},
	} {
		if p, err := test.plugin.newSpec(); err != nil || p.kindName != test.want {
			t.Errorf("%T: %+v, %v; want a %s", test.plugin, p, err, test.want)
		}
	}
}

type hookCase struct{ hook Hook }

func (c hookCase) newSpec() (*pluginSpec, error) { return newHookSpec(c.hook) }

func TestHookTimeoutsAreDescribed(t *testing.T) {
	h := hookWithTimeouts{timeouts: map[hook.Point]time.Duration{hook.Stop: time.Hour}}
	s, err := newHookServer(h, pluginIdentity{}, h.Info())
	if err != nil {
		t.Fatal(err)
	}
	d, err := s.Describe(t.Context())
	if want := (hook.Subscription{Point: hook.Stop, Timeout: time.Hour}); err != nil || len(d.Subscriptions) != 1 || d.Subscriptions[0] != want {
		t.Errorf("it takes part in %+v, %v; want %+v", d.Subscriptions, err, want)
	}
}

// expectedErrorComment matches a comment with an expected error of the compiler.
var expectedErrorComment = regexp.MustCompile(`(?m)// ERROR "(.*)"$`)

// The program in testdata/wrong has mistakes of plugin authors. A comment at the end of each
// line with a mistake has the error of the compiler.
func TestWrongSignatureDoesNotCompile(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("no go command on this machine")
	}
	const invalidPluginSourcePath = "testdata/wrong/wrong.go"
	text, err := os.ReadFile(invalidPluginSourcePath)
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "build", "-gcflags=-e", "-o", os.DevNull, "./testdata/wrong").CombinedOutput()
	if err == nil {
		t.Fatal("testdata/wrong compiles")
	}
	var expectedErrors int
	for i, line := range strings.Split(string(text), "\n") {
		place := fmt.Sprintf("%s:%d:", invalidPluginSourcePath, i+1)
		want := expectedErrorComment.FindStringSubmatch(line)
		switch found := strings.Contains(string(out), place); {
		case want == nil && found:
			t.Errorf("%s has an error that no comment expects", place)
		case want != nil && !regexp.MustCompile(regexp.QuoteMeta(place)+`\d+: .*`+want[1]).Match(out):
			t.Errorf("%s has no error that matches %q", place, want[1])
		}
		if want != nil {
			expectedErrors++
		}
	}
	if expectedErrors == 0 {
		t.Error("no error is expected in " + invalidPluginSourcePath)
	}
	if t.Failed() {
		t.Logf("output of the compiler:\n%s", out)
	}
}

// The suggested command has the arguments of the plugin as words of a shell.
func TestSuggestedCommandQuotesArguments(t *testing.T) {
	args := os.Args
	defer func() { os.Args = args }()
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"./hello"}, "./hello"},
		{[]string{"./my plugin", "-root", "/a b", "it's", ""}, `'./my plugin' -- -root '/a b' 'it'\''s' ''`},
	} {
		os.Args = tt.args
		if got := ownCommandLineForPluginTest(); got != tt.want {
			t.Errorf("%q: %s, want %s", tt.args, got, tt.want)
		}
	}
}
