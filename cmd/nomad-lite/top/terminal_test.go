package top

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/hashicorp/nomad/api"
	"golang.org/x/term"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
)

// panicEnvVar makes the test binary run the command, with a client that panics at a request whose path contains the
// value, or with a table that panics at Enter if the value is "update". With "exit" it only initializes the packages.
const panicEnvVar = "TOP_TEST_PANIC_AT"

// panickingTransport panics at a request whose path contains a text.
type panickingTransport string

func (p panickingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.Contains(r.URL.Path, string(p)) {
		panic("test of a panic")
	}
	return http.DefaultTransport.RoundTrip(r)
}

func TestMain(m *testing.M) {
	if at := os.Getenv(panicEnvVar); at != "" {
		runCommand(at)
	}
	drawDelay, minRetryDelay = time.Millisecond, 10*time.Millisecond
	os.Exit(m.Run())
}

func runCommand(panicAt string) {
	if panicAt == "exit" {
		os.Exit(0)
	}
	c, err := api.NewClient(&api.Config{Address: os.Getenv("NOMAD_ADDR"), HttpClient: &http.Client{Transport: panickingTransport(panicAt)}})
	if err != nil {
		panic(err)
	}
	u := newUI(c, &cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, options{usageInterval: 100 * time.Millisecond})
	if panicAt == "update" {
		u.tableView.collapsedRows = nil // Enter writes to a nil map
	}
	listed := &jobAndAllocLists{jobs: []*api.JobListStub{newJobStub("web", "running")}, allocs: []*api.AllocationListStub{newStub(1, "web", "web", 0, "t")}}
	if err := u.runUntilQuit(context.Background(), os.Stdin, os.Stdout, listed); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// terminalSession is the command in a process of its own, on a pseudo-terminal.
type terminalSession struct {
	t           *testing.T
	cmd         *exec.Cmd
	stderr      bytes.Buffer
	master, tty *os.File
	modeBefore  *term.State

	mu     sync.Mutex
	output []byte // all that the terminal got
}

func startOnTerminal(t *testing.T, panicAt string) *terminalSession {
	t.Helper()
	master, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	s := &terminalSession{t: t, master: master, tty: tty, cmd: exec.Command(os.Args[0])}
	if s.modeBefore, err = term.GetState(int(tty.Fd())); err != nil {
		t.Fatal(err)
	}
	if err := pty.Setsize(master, &pty.Winsize{Rows: 24, Cols: 80}); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() { // the end of the terminal ends it
		defer close(read)
		chunk := make([]byte, 4096)
		for n, err := master.Read(chunk); err == nil; n, err = master.Read(chunk) {
			s.mu.Lock()
			s.output = append(s.output, chunk[:n]...)
			s.mu.Unlock()
		}
	}()
	s.cmd.Env = append(os.Environ(), panicEnvVar+"="+panicAt, "NOMAD_ADDR="+newFilledAgent(t).server.URL, "TERM=xterm")
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = tty, tty, &s.stderr
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // SIGTSTP goes to the group
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timeout := time.AfterFunc(time.Minute, func() { _ = s.cmd.Process.Kill() }) // fails only after the exit
	t.Cleanup(func() {
		timeout.Stop()
		_ = s.cmd.Process.Kill() // it has exited
		tty.Close()
		master.Close()
		<-read
	})
	return s
}

func (s *terminalSession) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.output)
}

func (s *terminalSession) press(keys string) {
	s.t.Helper()
	if _, err := s.master.WriteString(keys); err != nil {
		s.t.Fatal(err)
	}
}

func (s *terminalSession) wait(what string, ok func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
			s.t.Fatalf("not %s: %q\nprocess %s\n%s", what, s.text(), stat, &s.stderr)
		}
	}
}

// waitShown waits until the table has been drawn count times on the alternate screen of a terminal in raw mode.
func (s *terminalSession) waitShown(count int) {
	s.t.Helper()
	s.wait(fmt.Sprintf("shown %d times", count), func() bool {
		return s.isModeOn("1049") && !s.isModeOn("25") && *s.mode() != *s.modeBefore && strings.Count(s.text(), "MEMORY") == count
	})
}

// waitRestored waits until the terminal is as it was before the command.
func (s *terminalSession) waitRestored() {
	s.t.Helper()
	s.wait("restored", func() bool {
		return !s.isModeOn("1049") && s.isModeOn("25") && !s.isModeOn("2004") && !s.isModeOn("1000") && *s.mode() == *s.modeBefore &&
			strings.Count(s.text(), "\x1b[>1u") == strings.Count(s.text(), "\x1b[<1u") && strings.LastIndex(s.text(), "\x1b[>4m") >= strings.LastIndex(s.text(), "\x1b[>4;2m")
	})
}

func (s *terminalSession) mode() *term.State {
	s.t.Helper()
	state, err := term.GetState(int(s.tty.Fd()))
	if err != nil {
		s.t.Fatal(err)
	}
	return state
}

var privateMode = regexp.MustCompile(`\x1b\[\?(\d+)([hl])`)

// isModeOn reports whether the private mode with this number is on. The cursor, 25, is on at the start.
func (s *terminalSession) isModeOn(number string) bool {
	on := number == "25"
	for _, m := range privateMode.FindAllStringSubmatch(s.text(), -1) {
		if m[1] == number {
			on = m[2] == "h"
		}
	}
	return on
}

// Each process of the program initializes the library: also the keeper and the plugins, on the terminal of an agent.
func TestPackagesLeaveTerminalAlone(t *testing.T) {
	s := startOnTerminal(t, "exit")
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("the process ended with %v: %s", err, &s.stderr)
	}
	if _, err := s.tty.WriteString("end"); err != nil {
		t.Fatal(err)
	}
	s.wait("ended", func() bool { return strings.HasSuffix(s.text(), "end") })
	if s.text() != "end" || *s.mode() != *s.modeBefore {
		t.Errorf("the terminal got %q before main", s.text())
	}
}

func TestExitRestoresTerminal(t *testing.T) {
	for name, leave := range map[string]func(*terminalSession) error{
		"q":       func(s *terminalSession) error { s.press("q"); return nil },
		"Ctrl-C":  func(s *terminalSession) error { s.press("\x03"); return nil },
		"SIGINT":  func(s *terminalSession) error { return s.cmd.Process.Signal(syscall.SIGINT) },
		"SIGTERM": func(s *terminalSession) error { return s.cmd.Process.Signal(syscall.SIGTERM) },
		"SIGHUP":  func(s *terminalSession) error { return s.cmd.Process.Signal(syscall.SIGHUP) },
	} {
		t.Run(name, func(t *testing.T) {
			if name == "SIGHUP" && signal.Ignored(syscall.SIGHUP) {
				t.Skip("SIGHUP is ignored, as under nohup, and so it is in the command")
			}
			s := startOnTerminal(t, "nowhere")
			s.waitShown(1)
			if err := leave(s); err != nil {
				t.Fatal(err)
			}
			if err := s.cmd.Wait(); err != nil {
				t.Errorf("the command ended with %v: %s", err, &s.stderr)
			}
			s.waitRestored()
		})
	}
}

// The terminal of the test sends no SIGHUP when it is closed.
func TestClosedTerminalEndsCommand(t *testing.T) {
	s := startOnTerminal(t, "nowhere")
	s.waitShown(1)
	if err := s.master.Close(); err != nil {
		t.Fatal(err)
	}
	// The screen is drawn again, so that the reader of the test returns, which has the file open.
	if err := s.cmd.Process.Signal(syscall.SIGWINCH); err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(20*time.Second, func() { _ = s.cmd.Process.Kill() }).Stop() // fails only after the exit
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("the command ended with %v: %s", err, &s.stderr)
	}
}

// TestSuspendRestoresTerminal checks that the terminal is usable while the process is stopped, and that the table is
// shown again.
func TestSuspendRestoresTerminal(t *testing.T) {
	s := startOnTerminal(t, "nowhere")
	s.waitShown(1)
	s.press("\x1a")
	s.waitRestored()
	s.wait("stopped", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
		return err == nil && bytes.Contains(stat, []byte(") T "))
	})
	if err := s.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	s.wait("shown again", func() bool {
		return s.isModeOn("1049") && *s.mode() != *s.modeBefore && strings.Count(s.text(), "MEMORY") > 1
	})
	s.press("q")
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("the command ended with %v: %s", err, &s.stderr)
	}
	s.waitRestored()
}

// TestPanicRestoresTerminal checks that the terminal is usable after a panic in each kind of goroutine.
func TestPanicRestoresTerminal(t *testing.T) {
	for name, c := range map[string]struct{ at, keys string }{
		"a request for samples": {"/stats", ""},
		"the event stream":      {"/event/stream", ""},
		"a command":             {"/timeline", "jt"},
		"the event loop":        {"update", "\r"},
	} {
		t.Run(name, func(t *testing.T) {
			s := startOnTerminal(t, c.at)
			if c.keys != "" {
				s.waitShown(1)
				s.press(c.keys)
			}
			// The process may end with the error of the program before bubbletea has printed the stack of a command's panic.
			if err := s.cmd.Wait(); err == nil || !strings.Contains(s.stderr.String(), "panic") {
				t.Errorf("ended with %v and %s, want a panic", err, &s.stderr)
			}
			s.waitRestored()
		})
	}
}
