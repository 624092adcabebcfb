package keeperserver

import (
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/framing"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/osprocess/processtest"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperwire"
)

// A keeper that has no free descriptors when a child ends reaps the child later, and records its exit status.
func TestExitStatusIsRecordedAfterLackOfDescriptors(t *testing.T) {
	pid, err := syscall.ForkExec("/bin/sh", []string{"sh", "-c", "exit 6"}, &syscall.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	child, err := osprocess.LookupID(pid)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := osprocess.Waitid(unix.P_PID, pid, unix.WEXITED|unix.WNOWAIT); err != nil {
		t.Fatal(err)
	}
	k := newServer(keeperwire.Setup{}, framing.Hello{})
	restore := processtest.LimitDescriptors(t, 0)
	err = k.reapChildren()
	restore()
	if err == nil {
		t.Error("without descriptors, reapChildren reports that no child is left")
	}
	if err := k.reapChildren(); err != nil {
		t.Errorf("with descriptors, reapChildren returns %v", err)
	}
	if status, known := k.exitStatuses.get(child); !known || status.ExitCode != 6 {
		t.Errorf("recorded status %v, %v; want exit code 6", status, known)
	}
}
