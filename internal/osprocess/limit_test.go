//go:build linux

package osprocess

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRaiseDescriptorLimit(t *testing.T) {
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name         string
		before, want unix.Rlimit
		needsRoot    bool
	}{
		{"a process that uses all of its lower limit", unix.Rlimit{Cur: 100, Max: 100}, own, true},
		{"a process with a soft limit of its own", unix.Rlimit{Cur: 100, Max: 200}, unix.Rlimit{Cur: 100, Max: own.Max}, true},
		{"a process with the same limits", own, own, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, _ := startSleep(t)
			if err := unix.Prlimit(p.PID, unix.RLIMIT_NOFILE, &test.before, nil); err != nil {
				t.Fatal(err)
			}
			soft, err := p.RaiseDescriptorLimit()
			if err != nil && test.needsRoot {
				t.Skip("a hard limit cannot be raised here: ", err)
			}
			var after unix.Rlimit
			if err := unix.Prlimit(p.PID, unix.RLIMIT_NOFILE, nil, &after); err != nil {
				t.Fatal(err)
			}
			if err != nil || after != test.want || soft != after.Cur {
				t.Errorf("limits %+v and soft limit %d, error %v, want %+v", after, soft, err, test.want)
			}
		})
	}
	p, exited := startSleep(t)
	if err := p.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-exited
	if _, err := p.RaiseDescriptorLimit(); err == nil {
		t.Error("no error for a process that has ended")
	}
}

// The test runs itself again, because a lowered hard limit stays.
func TestRaiseOwnDescriptorLimit(t *testing.T) {
	if os.Getenv("RAISE_OWN_LIMIT") == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestRaiseOwnDescriptorLimit$", "-test.v")
		cmd.Env = append(os.Environ(), "RAISE_OWN_LIMIT=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	lowered := unix.Rlimit{Cur: 200, Max: 200}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &lowered); err != nil {
		t.Fatal(err)
	}
	soft, raiseErr := RaiseOwnDescriptorLimit()
	var after unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &after); err != nil {
		t.Fatal(err)
	}
	if raiseErr != nil && (after != lowered || soft != 200) {
		t.Errorf("after the error %q: limits %+v, result %d", raiseErr, after, soft)
	}
	if raiseErr == nil && (after.Max <= 200 || after.Cur != after.Max || soft != after.Cur) {
		t.Errorf("limits %+v, result %d, want more than 200", after, soft)
	}
	if isRoot := os.Geteuid() == 0; !isRoot && !errors.Is(raiseErr, unix.EPERM) {
		t.Errorf("without the capability: error %v, want %v", raiseErr, unix.EPERM)
	}
}
