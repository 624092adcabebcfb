package sdktest

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestPanicIsFoundAtTheStartOfALine(t *testing.T) {
	for text, want := range map[string]int{
		"":                                    -1,
		"a\nb":                                -1,
		"panic: x":                            0,
		"a\npanic: x":                         2,
		"no panic: here\npanic: x":            15,
		"fatal error: a\npanic: x":            0,
		"{\"@message\":\"panic: x\"}\nmore\n": -1,
	} {
		if got := findPanicIndex(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

// The suite ends although a case ignores the end of its context: it leaks the
// goroutine of the case.
func TestCaseThatIgnoresItsContextIsLeaked(t *testing.T) {
	defer func(timeout, period time.Duration) { waitTimeout, callReturnGracePeriod = timeout, period }(waitTimeout, callReturnGracePeriod)
	waitTimeout, callReturnGracePeriod = 50*time.Millisecond, 50*time.Millisecond
	p := faultyDriverPlugin("")
	p.CaseTimeout = 50 * time.Millisecond
	h := newTestHost(p)
	defer h.closeHostAndPlugins()
	release := make(chan struct{})
	defer close(release)
	r, ended := h.runStandaloneCase(context.Background(), testCase{id: "waits", run: func(tb, *testHost) { <-release }})
	if ended {
		t.Error("it has ended")
	}
	var out strings.Builder
	r.publicResult().Write(&out)
	if want := "the case did not end within 50ms, and its plugin was killed"; !strings.HasPrefix(out.String(), "FAIL  waits  (") || !strings.Contains(out.String(), want) {
		t.Errorf("%s, want %s", out.String(), want)
	}
}

func TestCheckThatIsKilledStartsNothing(t *testing.T) {
	kill, end := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	end(why)
	if err := CheckUntil(t.Context(), kill, io.Discard, faultyDriverPlugin("")); !errors.Is(err, why) {
		t.Errorf("%v, want %v", err, why)
	}
}

// A process that does not respond to its shutdown is killed.
func TestStopKillsProcessThatHangs(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits five seconds for the response of a process")
	}
	h := newTestHost(faultyDriverPlugin(""))
	defer h.closeHostAndPlugins()
	p, err := h.launchUnconfiguredPlugin()
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(p.pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		p.shutDownOrKill()
	}()
	select {
	case <-stopped:
	case <-time.After(4 * shutdownTimeout):
		_ = unix.Kill(p.pid, unix.SIGKILL) // the process can have exited meanwhile
		t.Error("the process was not killed")
	}
}
