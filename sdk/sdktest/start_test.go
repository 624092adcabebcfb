package sdktest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
	"github.com/nomad-lite/nomad-lite/sdk/process"
	"github.com/nomad-lite/nomad-lite/sdk/sdktest"
)

// echoDriver runs a command that prints a text.
type echoDriver struct{ prefix string }

func (*echoDriver) Info() sdk.DriverInfo {
	return sdk.DriverInfo{
		Name:         "echo",
		StateVersion: 2,
		ConfigSchema: hclspec.Object(map[string]*hclspec.Spec{"prefix": hclspec.Attr("prefix", "string", false)}),
		TaskSchema: hclspec.Object(map[string]*hclspec.Spec{
			"text":  hclspec.Attr("text", "string", true),
			"count": hclspec.Default(hclspec.Attr("count", "number", false), hclspec.Literal("1")),
		}),
	}
}

func (d *echoDriver) Configure(_ context.Context, c *sdk.Config) error {
	var config struct {
		Prefix string `codec:"prefix"`
	}
	if err := c.Decode(&config); err != nil {
		return err
	}
	d.prefix = config.Prefix
	return nil
}

type echoTask struct{ *process.Process }

func (d *echoDriver) Start(ctx context.Context, start *sdk.StartRequest) (*echoTask, error) {
	var config struct {
		Text  string `codec:"text"`
		Count int    `codec:"count"`
	}
	if err := start.DecodeConfig(&config); err != nil {
		return nil, err
	}
	start.Event("printing")
	start.EventWithDetails("prefix", map[string]string{"text": d.prefix})
	start.EventOnce("text has no line break")
	start.Logger().Info("starting", "count", config.Count)
	script := strings.Repeat("echo \"$0\"; echo error >&2; ", config.Count) + "exec sleep 3600"
	p, err := process.Start(ctx, start, process.Command{Path: "/bin/sh", Args: []string{"-c", script, d.prefix + config.Text}})
	if err != nil {
		return nil, err
	}
	return &echoTask{p}, nil
}

func (*echoDriver) Recover(ctx context.Context, start *sdk.StartRequest) (*echoTask, error) {
	if start.StateVersion != 2 || len(start.DriverConfig) > 0 {
		return nil, fmt.Errorf("version %d and a block of %d bytes", start.StateVersion, len(start.DriverConfig))
	}
	var state process.State
	if err := start.DecodeState(&state); err != nil {
		return nil, err
	}
	p, err := process.Recover(ctx, start, state)
	if err != nil {
		return nil, err
	}
	return &echoTask{p}, nil
}

var _ sdk.Recoverer[*echoTask] = (*echoDriver)(nil)

func TestStartRequest(t *testing.T) {
	d := &echoDriver{}
	if err := d.Configure(t.Context(), sdktest.NewConfig(t, d.Info().ConfigSchema, map[string]any{"prefix": "> "})); err != nil {
		t.Fatal(err)
	}
	r := sdktest.NewStartRequest(t, d.Info(), sdktest.StartOptions{TaskName: "printer", Config: map[string]any{"text": "hello", "count": 2}})
	task, err := d.Start(t.Context(), r.StartRequest)
	if err != nil {
		t.Fatal(err)
	}
	const wantOut, wantErr = "> hello\n> hello\n", "error\nerror\n"
	for deadline := time.Now().Add(20 * time.Second); r.Stdout() != wantOut || r.Stderr() != wantErr; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("output %q and %q, want %q and %q", r.Stdout(), r.Stderr(), wantOut, wantErr)
		}
	}
	wantEvents := []sdktest.Event{
		{Message: "printing"}, {Message: "prefix", Details: map[string]string{"text": "> "}}, {Message: "text has no line break", Once: true},
	}
	if got := r.Events(); !reflect.DeepEqual(got, wantEvents) {
		t.Errorf("events %+v, want %+v", got, wantEvents)
	}
	if got := r.Logs(); !strings.Contains(got, "starting: count=2") {
		t.Errorf("logs %q", got)
	}
	if info, err := os.Stat(r.TaskDir()); err != nil || !info.IsDir() || !strings.HasSuffix(r.TaskDir(), "/"+r.AllocID+"/printer") {
		t.Errorf("directory of the task: %s, %v", r.TaskDir(), err)
	}

	recovered, err := d.Recover(t.Context(), r.NewRecovery(task.State()))
	if err != nil {
		t.Fatal(err)
	}
	if err := recovered.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if result, err := recovered.Wait(t.Context()); err != nil || result.Signal != 9 {
		t.Errorf("the recovered task: %+v, %v", result, err)
	}
	if err := task.Destroy(t.Context()); err != nil { // the process that has started the task owns its cgroups
		t.Error(err)
	}
}

// failingTB records the failure of a test that it stands for.
type failingTB struct {
	testing.TB
	message string
}

type testFailed struct{}

func (f *failingTB) Helper() {}

func (f *failingTB) Fatalf(format string, args ...any) {
	f.message = fmt.Sprintf(format, args...)
	panic(testFailed{})
}

func TestConfigsThatDoNotFitFailTheTest(t *testing.T) {
	info := (&echoDriver{}).Info()
	for name, test := range map[string]struct {
		call func(t testing.TB)
		want string
	}{
		"a config without a required argument": {func(t testing.TB) { sdktest.NewStartRequest(t, info, sdktest.StartOptions{}) }, `TaskSchema: .*"text"`},
		"an unknown argument": {func(t testing.TB) {
			sdktest.NewConfig(t, info.ConfigSchema, map[string]any{"postfix": "x"})
		}, `ConfigSchema: .*"postfix"`},
		"a config without a schema": {func(t testing.TB) { sdktest.NewConfig(t, nil, map[string]any{"prefix": "x"}) }, "Info has no ConfigSchema"},
	} {
		t.Run(name, func(t *testing.T) {
			f := &failingTB{TB: t}
			func() {
				defer func() {
					if p := recover(); p != nil && p != any(testFailed{}) {
						panic(p)
					}
				}()
				test.call(f)
			}()
			if !regexp.MustCompile(test.want).MatchString(f.message) {
				t.Errorf("the test fails with %q, want %q", f.message, test.want)
			}
		})
	}
}

func TestRequestOfRecover(t *testing.T) {
	type taskState struct {
		PID int `codec:"pid"`
	}
	start, err := sdk.NewStartRequest(driver.TaskConfig{Name: "web"}, sdk.StartRequestOptions{State: taskState{PID: 7}})
	if err != nil {
		t.Fatal(err)
	}
	var state taskState
	if err := start.DecodeState(&state); err != nil || state.PID != 7 || start.StateVersion != 1 {
		t.Errorf("state %+v of version %d, %v", state, start.StateVersion, err)
	}
	start, _ = sdk.NewStartRequest(driver.TaskConfig{}, sdk.StartRequestOptions{})
	if err := start.DecodeState(&state); err == nil || errors.Is(err, sdk.ErrNotExecuted) {
		t.Errorf("the state of a new start: %v", err)
	}
}

// A block is a map, its labels are keys, and several blocks of one name without labels are a list: the form of docs/reference/devices.md.
func TestConfigWithBlocks(t *testing.T) {
	schema := hclspec.Object(map[string]*hclspec.Spec{
		"models": hclspec.BlockMap("model", []string{"name"}, hclspec.Object(map[string]*hclspec.Spec{
			"attributes": hclspec.BlockAttrs("attributes", "string", false),
		})),
		"pins": hclspec.BlockList("pin", hclspec.Object(map[string]*hclspec.Spec{"number": hclspec.Attr("number", "number", true)}), 0, 0),
	})
	type config struct {
		Models map[string]struct {
			Attributes map[string]string `codec:"attributes"`
		} `codec:"models"`
		Pins []struct {
			Number int `codec:"number"`
		} `codec:"pins"`
	}
	var c config
	err := sdktest.NewConfig(t, schema, map[string]any{
		"model": map[string]any{
			"T100": map[string]any{"attributes": map[string]any{"power": "20 mW"}},
			"T200": map[string]any{"attributes": map[string]any{"power": "1 W"}},
		},
		"pin": []map[string]any{{"number": 7}, {"number": 8}},
	}).Decode(&c)
	if err != nil || len(c.Models) != 2 || c.Models["T100"].Attributes["power"] != "20 mW" || len(c.Pins) != 2 || c.Pins[1].Number != 8 {
		t.Errorf("%+v, %v", c, err)
	}
}
