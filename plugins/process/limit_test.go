package process

import (
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
