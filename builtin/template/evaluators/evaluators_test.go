package evaluators

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/builtin/template/evaluate"
)

// testUserID is the user of the launcher and its evaluators in the tests of root.
const testUserID = 91234

// TestMain also serves as a launcher and as an evaluator, as the program does.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 {
		switch os.Args[1] {
		case "launcher":
			os.Exit(LauncherMain(os.Stdin, []string{"evaluator"}, os.Stderr))
		case "evaluator":
			os.Exit(EvaluatorMain(os.Stdin, os.Stderr))
		case "forbidden":
			os.Exit(exitCode(tryForbiddenCalls(), os.Stderr))
		}
	}
	os.Exit(m.Run())
}

// newTestPool returns a pool with a launcher of its own.
func newTestPool(t *testing.T) *Pool {
	t.Helper()
	l, err := StartLauncher([]string{"launcher"}, func() (uint32, error) { return testUserID, nil })
	if err == nil {
		err = l.Connect()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.conn.Close(); l.watch.Close() })
	return NewPool(l)
}

func (p *Pool) idlePIDs() (pids []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.idle {
		pids = append(pids, e.pid)
	}
	return pids
}

const (
	endlessTemplate = `{{ range loop 1000000000000 }}{{ end }}`
	hugeTemplate    = `{{ $x := "aaaaaaaa" }}{{ range loop 64 }}{{ $x = print $x $x }}{{ end }}`
)

func expectText(t *testing.T, p *Pool, text, want string) {
	t.Helper()
	r, err := p.Evaluate(t.Context(), &evaluate.Request{Text: text})
	if err != nil || string(r.Text) != want || r.Err != "" {
		t.Errorf("%s: %+v, %v", text, r, err)
	}
}

// An evaluator has the user, no capabilities, files, programs and connections, and no variables of the agent.
func TestEvaluatorHasNoRights(t *testing.T) {
	t.Setenv("AGENT_SECRET", "secret")
	p := newTestPool(t)
	expectText(t, p, `{{ env "AGENT_SECRET" }}{{ env "PATH" }}{{ env "GOMAXPROCS" }}{{ add 1 2 }}`, "3")
	pids := p.idlePIDs()
	if len(pids) != 1 {
		t.Fatalf("evaluators %v", pids)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pids[0]))
	if err != nil {
		t.Fatal(err)
	}
	lines := []string{"CapInh:\t0000000000000000", "CapPrm:\t0000000000000000", "CapAmb:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"}
	if os.Geteuid() == 0 {
		lines = append(lines, fmt.Sprintf("Uid:\t%d\t%[1]d\t%[1]d\t%[1]d", testUserID), "Groups:\t ")
	}
	for _, line := range lines {
		if !bytes.Contains(status, []byte("\n"+line+"\n")) {
			t.Errorf("no line %q:\n%s", line, status)
		}
	}
	for _, text := range []string{`{{ sprig_getHostByName "localhost" }}`, `{{ plugin "/bin/true" }}`, `{{ writeToFile "/tmp/x" "" "" "0600" "x" }}`} {
		if r, err := p.Evaluate(t.Context(), &evaluate.Request{Text: text}); err != nil || r.Err == "" {
			t.Errorf("%s: %+v, %v", text, r, err)
		}
	}
	if files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pids[0])); err == nil && os.Geteuid() == 0 {
		var open []string
		for _, f := range files {
			target, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pids[0], f.Name()))
			// Go's runtime holds the files of its cgroup's limits.
			if strings.HasPrefix(target, "/") && target != "/dev/null" && !strings.HasPrefix(target, "/sys/fs/cgroup/") {
				open = append(open, target)
			}
		}
		if len(open) > 0 {
			t.Errorf("open files: %q", open)
		}
	}
}

// tryForbiddenCalls makes the calls that an evaluator has given up, in this process.
func tryForbiddenCalls() error {
	if err := giveUpRights(limits{Memory: 256 << 20, CPU: time.Minute, Nice: 1}); err != nil {
		return err
	}
	dir := os.TempDir()
	_, open := os.Open("/etc/passwd")
	_, local := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	_, internet := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	_, ciphers := unix.Socket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0)
	_, pair := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	for what, err := range map[string]error{
		"opened a file":             open,
		"created a file":            os.WriteFile(filepath.Join(dir, "x"), nil, 0o600),
		"made a directory":          os.Mkdir(filepath.Join(dir, "x"), 0o700),
		"deleted a file":            os.Remove(filepath.Join(dir, "x")),
		"ran a program":             exec.Command("/bin/true").Run(),
		"made a Unix socket":        local,
		"talked to the network":     internet,
		"used the kernel's ciphers": ciphers,
		"made a pair of sockets":    pair,
		"signaled its parent":       unix.Kill(os.Getppid(), 0),
		"changed a mode":            unix.Fchmodat(unix.AT_FDCWD, dir, 0o700, unix.AT_SYMLINK_NOFOLLOW),
		"mounted something":         unix.Mount("none", dir, "tmpfs", 0, ""),
		"traced its parent":         unix.PtraceSeize(os.Getppid()),
	} {
		if !errors.Is(err, unix.EACCES) {
			return fmt.Errorf("it %s: %w", what, err)
		}
	}
	return nil
}

func TestGiveUpRights(t *testing.T) {
	cmd := exec.Command(os.Args[0], "forbidden")
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// A template that loops for ever, or takes all memory, is killed in a shared evaluator and then alone, and delays no other one.
func TestLimits(t *testing.T) {
	p := newTestPool(t)
	p.limitsWhenAlone.cpu, p.limitsWhenAlone.wall, p.limitsWhenShared.wall = 500*time.Millisecond, 5*time.Minute, 5*time.Minute // the machine may be busy
	var others sync.WaitGroup
	stop := make(chan struct{})
	slowest := time.Duration(0)
	others.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
			begin := time.Now()
			expectText(t, p, "{{ add 1 2 }}", "3")
			slowest = max(slowest, time.Since(begin))
		}
	})
	for name, text := range map[string]string{"endless": endlessTemplate, "huge": hugeTemplate} {
		for where, evaluateText := range map[string]func(context.Context, *evaluate.Request) (*evaluate.Result, error){"shared": p.Evaluate, "alone": p.EvaluateAlone} {
			r, err := evaluateText(t.Context(), &evaluate.Request{Text: text})
			if _, ok := errors.AsType[*LimitError](err); !ok {
				t.Errorf("%s, %s: %.100v, %v", name, where, r, err)
			}
		}
	}
	close(stop)
	others.Wait()
	t.Logf("slowest evaluation of another template: %v", slowest)
}

// The output and the data of a template have limits, and an evaluation that exceeds them ends no evaluator.
func TestSizeLimits(t *testing.T) {
	p := newTestPool(t)
	p.limitsWhenShared.cpu, p.limitsWhenShared.wall, p.limitsWhenShared.memory = time.Minute, 5*time.Minute, 1<<30 // the race detector takes a lot
	r, err := p.Evaluate(t.Context(), &evaluate.Request{Text: `{{ range loop 17 }}{{ env "MIB" }}{{ end }}`, Env: map[string]string{"MIB": strings.Repeat("a", 1<<20)}})
	if err != nil || r.Err != "the output has more than 16 MiB" {
		t.Errorf("output of 17 MiB: %.100v, %v", r, err)
	}
	pids := p.idlePIDs()
	if len(pids) != 1 {
		t.Errorf("evaluators %v, want the same one", pids)
	}
	data := evaluate.Datum{Query: evaluate.Query{Kind: evaluate.File, Name: "/a"}, Value: evaluate.Value{Exists: true, Text: strings.Repeat("a", maxMessageSize)}}
	_, err = p.Evaluate(t.Context(), &evaluate.Request{Text: "x", Data: []evaluate.Datum{data}})
	if limit, ok := errors.AsType[*LimitError](err); !ok || limit.Limit != "96 MiB of data" {
		t.Errorf("data of 96 MiB: %v", err)
	}
}

// A template can wait for no lock, and fill no result without limit.
func TestTemplatesCannotLockOrFillResults(t *testing.T) {
	p := newTestPool(t)
	r, err := p.Evaluate(t.Context(), &evaluate.Request{Text: `{{ if scratch.TryLock }}{{ scratch.Get "a" }}{{ end }}`})
	if err != nil || !strings.Contains(r.Err, "can't evaluate field TryLock") {
		t.Errorf("lock: %.200v, %v", r, err)
	}
	r, err = p.EvaluateAlone(t.Context(), &evaluate.Request{Text: `{{ importedServices (sprig_repeat 30000000 "x") }}`})
	if err != nil || len(r.Missing) != 1 || len(r.Missing[0]) > 10_000 {
		t.Errorf("long name: %.200v, %v", r, err)
	}
	r, err = p.EvaluateAlone(t.Context(), &evaluate.Request{Text: `{{ range loop 20000 }}{{ if nomadVarExists (print .) }}{{ end }}{{ end }}`})
	if err != nil || len(r.Unknown) != 10_000 || !strings.Contains(r.Err, "at most 10000 variables") {
		t.Errorf("many names: %.200v, %v", r, err)
	}
	r, err = p.EvaluateAlone(t.Context(), &evaluate.Request{Text: `{{ sprig_fail (sprig_repeat 5000000 "x") }}`})
	if err != nil || len(r.Err) < 1000 || len(r.Err) > 20_000 {
		t.Errorf("long error: %.200v, %v", r, err)
	}
}

// Dates have the time zone of the agent.
func TestEvaluatorHasTimeZone(t *testing.T) {
	t.Setenv("TZ", "America/New_York")
	expectText(t, newTestPool(t), `{{ sprig_toDate "2006-01-02" "2020-01-01" }}`, "2020-01-01 00:00:00 -0500 EST")
}

// An idle evaluator that has died is replaced.
func TestDeadIdleEvaluatorIsReplaced(t *testing.T) {
	p := newTestPool(t)
	expectText(t, p, "x", "x")
	for _, pid := range p.idlePIDs() {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		for unix.Kill(pid, 0) == nil { // until the launcher has reaped it
			time.Sleep(time.Millisecond)
		}
	}
	expectText(t, p, "y", "y")
}

// An evaluator that is killed during an evaluation is replaced, and the evaluation repeated.
func TestKilledEvaluatorIsReplaced(t *testing.T) {
	p := newTestPool(t)
	p.limitsWhenShared.cpu, p.limitsWhenShared.wall = time.Minute, time.Minute
	expectText(t, p, "x", "x")
	pids := p.idlePIDs()
	done := make(chan struct{})
	go func() {
		defer close(done)
		expectText(t, p, `{{ range loop 300000 }}{{ end }}ok`, "ok")
	}()
	for len(p.idlePIDs()) > 0 { // until the evaluation has taken it
		time.Sleep(time.Millisecond)
	}
	if err := unix.Kill(pids[0], unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-done
}

// An evaluator without an evaluation exits, and so does one whose evaluation is cancelled.
func TestEvaluatorsExit(t *testing.T) {
	p := newTestPool(t)
	p.idleTime = 50 * time.Millisecond
	expectText(t, p, "x", "x")
	pids := p.idlePIDs()
	p.limitsWhenShared.cpu = time.Minute
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := p.Evaluate(ctx, &evaluate.Request{Text: endlessTemplate}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("cancelled: %v", err)
	}
	for _, pid := range pids {
		waitGone(t, pid)
	}
}

// When the hook's process exits, so do the launcher and its evaluators. When the launcher is killed, its evaluators exit.
func TestLauncherExit(t *testing.T) {
	for _, closes := range []bool{true, false} {
		p := newTestPool(t)
		waited := make(chan struct{})
		go func() { p.launcher.Wait(); close(waited) }()
		time.Sleep(10 * time.Millisecond) // until it waits
		expectText(t, p, "x", "x")
		pids := p.idlePIDs()
		parent := parentOf(t, pids[0])
		if closes {
			for _, e := range p.idle {
				e.lifeline.Close()
			}
		} else if err := unix.Kill(parent, unix.SIGKILL); err != nil {
			t.Fatal(err)
		} else {
			<-waited
			waitGone(t, pids[0])
			_, err := p.Evaluate(t.Context(), &evaluate.Request{Text: "x"})
			if _, ok := errors.AsType[*UnavailableError](err); !ok {
				t.Errorf("an evaluation without launcher: %v", err)
			}
		}
		waitGone(t, pids[0])
	}
}

func parentOf(t *testing.T, pid int) (parent int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "PPid:")
	if _, err := fmt.Sscan(rest, &parent); err != nil {
		t.Fatal(err)
	}
	return parent
}

func waitGone(t *testing.T, pid int) {
	t.Helper()
	for range 500 {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || bytes.Contains(status, []byte(") Z ")) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("process %d is still there", pid)
}

func BenchmarkEvaluate(b *testing.B) {
	l, err := StartLauncher([]string{"launcher"}, func() (uint32, error) { return testUserID, nil })
	if err == nil {
		err = l.Connect()
	}
	if err != nil {
		b.Fatal(err)
	}
	p := NewPool(l)
	r := &evaluate.Request{Text: `{{ with nomadVar "app" }}{{ .w }}{{ end }}{{ env "A" }}`, Env: map[string]string{"A": "1"}}
	b.Run("process", func(b *testing.B) {
		for b.Loop() {
			if _, err := p.Evaluate(b.Context(), r); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("direct", func(b *testing.B) {
		for b.Loop() {
			evaluate.Evaluate(r)
		}
	})
}
