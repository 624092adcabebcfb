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

// A child that has ended before it executed a program is not listed as a session leader that has ended.
func TestForkWithoutExecIsNoSessionLeader(t *testing.T) {
	pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if pid == 0 && errno == 0 { // the child, which has no Go runtime
		syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0)
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 3, 0, 0)
	}
	child, err := osprocess.LookupID(int(pid))
	if errno != 0 || err != nil {
		t.Fatal(errno, err)
	}
	if _, _, err := osprocess.Waitid(unix.P_PID, child.PID, unix.WEXITED|unix.WNOWAIT); err != nil {
		t.Fatal(err)
	}
	k := newServer(keeperwire.Setup{}, framing.Hello{})
	if resp := k.endedSessionLeaders(0); resp.Err() != nil || len(resp.EndedProcesses) != 0 {
		t.Errorf("response %+v, want no process", resp)
	}
	if status, known := k.exitStatuses.get(child); !known || status.ExitCode != 3 {
		t.Errorf("recorded status %v, %v; want exit code 3", status, known)
	}
}

// The list of session leaders that have ended is complete since the start of the keeper, and since the start of the latest
// process that is no longer in it.
func TestEndedSessionLeadersAreCompleteSince(t *testing.T) {
	before := osprocess.StartTimeNow()
	k := newServer(keeperwire.Setup{}, framing.Hello{})
	started := k.endedSessionLeaders(0).CompleteSince
	if started < before || started > osprocess.StartTimeNow() {
		t.Errorf("complete since %d, the keeper has started at %d or a tick later", started, before)
	}
	latest := started + 10
	for i := range maxSessionLeaderStatuses + 1 {
		k.exitStatuses.add(osprocess.ID{PID: 1 + i, StartTime: latest + uint64(i)}, recordedExit{}, true)
	}
	if got := k.endedSessionLeaders(0); got.CompleteSince != latest {
		t.Errorf("complete since %d, want %d", got.CompleteSince, latest)
	}
}

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
