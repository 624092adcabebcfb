package process

import (
	"testing"

	"github.com/nomad-lite/nomad-lite/sdk"
)

// A driver that embeds a ProcessWithoutExec cannot offer exec by mistake, and has its own Stop only if
// its author writes it.
func TestCoreOffersNeitherExecNorStop(t *testing.T) {
	type task struct{ *ProcessWithoutExec }
	var embedded any = task{}
	if _, ok := embedded.(sdk.Execer); ok {
		t.Error("a task that embeds a ProcessWithoutExec is an sdk.Execer")
	}
	if _, ok := embedded.(sdk.Stopper); ok {
		t.Error("a task that embeds a ProcessWithoutExec is an sdk.Stopper")
	}
	if _, ok := embedded.(sdk.Destroyer); !ok {
		t.Error("a task that embeds a ProcessWithoutExec is no sdk.Destroyer")
	}
}

func TestRecoverWithoutExec(t *testing.T) {
	s := newStartRequest(t)
	p, err := StartWithoutExec(t.Context(), s, shellCommand(exitOnTriggerFileScript))
	if err != nil {
		t.Fatal(err)
	}
	defer destroyProcess(t, &Process{p})
	recovered, err := RecoverWithoutExec(t.Context(), s, p.Snapshot())
	if err != nil {
		t.Fatal(err)
	}
	defer recovered.pidfd.Close()
	createTriggerFile(t, s)
	if got := waitExit(t, &Process{recovered}); got != exitCodeSeven {
		t.Errorf("exit result %+v, want %+v", got, exitCodeSeven)
	}
}
