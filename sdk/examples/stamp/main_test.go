package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/sdk/sdktest"
)

func TestMain(m *testing.M) { sdktest.Main(m, main) }

func TestContract(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a plugin in each case of the contract suite")
	}
	ledger := filepath.Join(t.TempDir(), "ledger")
	sdktest.Hook(t, sdktest.Plugin{Path: os.Args[0], Attachment: map[string]any{"ledger": ledger}})
	if info, err := os.Stat(ledger); err != nil || info.Size() == 0 {
		t.Errorf("the ledger is %v, %v", info, err)
	}
}

func TestPrestartCountsItsCalls(t *testing.T) {
	ledger := filepath.Join(t.TempDir(), "ledger")
	meta := hook.RequestMeta{AttachmentJSON: fmt.Appendf(nil, `{"ledger":%q,"done":true}`, ledger)}
	task := hook.Task{Name: "web"}
	var prestartState map[string]string
	for range 2 {
		answer, err := lifecycleLogHook{}.Prestart(t.Context(), hook.TaskPrestartRequest{RequestMeta: meta, Task: task, PreviousState: prestartState, Running: prestartState != nil})
		if err != nil || !answer.Done {
			t.Fatalf("%+v, %v", answer, err)
		}
		prestartState = answer.State
	}
	if _, err := (lifecycleLogHook{}).Stop(t.Context(), hook.TaskStopRequest{RequestMeta: meta, Task: task, PreviousState: prestartState}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(ledger)
	if want := "prestart web visit=1\nprestart web visit=2 running\nstop web visits=2\n"; err != nil || string(got) != want {
		t.Errorf("the ledger says, %v:\n%swant\n%s", err, got, want)
	}
}
