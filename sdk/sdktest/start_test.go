package sdktest_test

import (
	"errors"
	"os"
	"testing"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
	"github.com/nomad-lite/nomad-lite/sdk/sdktest"
)

var greetingSchema = hclspec.Object(map[string]*hclspec.Spec{
	"name":  hclspec.Attr("name", "string", true),
	"count": hclspec.Default(hclspec.Attr("count", "number", false), hclspec.Literal("3")),
})

func TestNewStartRequest(t *testing.T) {
	start, events := sdktest.NewStartRequest(t, greetingSchema, map[string]any{"name": "you"})
	var config struct {
		Name  string `codec:"name"`
		Count int    `codec:"count"`
	}
	if err := start.DecodeConfig(&config); err != nil || config.Name != "you" || config.Count != 3 {
		t.Errorf("config %+v, %v", config, err)
	}
	for _, dir := range []string{start.TaskDir(), start.Env["NOMAD_TASK_DIR"], start.Env["NOMAD_ALLOC_DIR"]} {
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			t.Errorf("directory %s: %v", dir, err)
		}
	}
	start.Logger().Info("a line of the log")
	start.Event("one")
	start.EventWithDetails("two", map[string]string{"a": "b"})
	if got := events(); len(got) != 2 || got[0].Message != "one" || got[1].Annotations["a"] != "b" || got[0].TaskID != start.ID {
		t.Errorf("events %+v", got)
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
