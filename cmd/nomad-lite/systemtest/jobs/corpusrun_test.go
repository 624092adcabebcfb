package jobs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// corpusRunRefusals are what `nomad-lite run` may report as missing, each with the remedy that the message must have.
var corpusRunRefusals = []refusalReason{
	{"Consul Connect", `there is no Consul here, remove the connect block`},
	{"templates with Consul", `there is no Consul here: nomadVar and nomadService read`},
	{"CSI plugin", `storage plugins need a cluster, remove the block`},
	{"CSI volume", `name one in a host_volume block with csi = true in the agent.s configuration`},
	{"engine", `driver "docker" cannot be used: no Docker engine answers at .*: install one .*, start it, or set endpoint`},
	{"Java", `no Java runtime: .* install one`},
	{"driver", `there is no task driver ".*", only .* give the directory of its plugin with -plugin-dir\. Its plugin is the program `},
	{"other machine", `does not fit on this machine; change the named parts, or run it on another machine:`},
	{"periodic job", `a periodic job cannot be run: .* with -now, or give it to an agent`},
	{"parameterized job", `Add -meta `},
	{"invalid job", `task group count must not be less than minimum count in scaling policy`},
}

// TestCorpusRuns runs each job file of Nomad's own tests and demos with `nomad-lite run`, in namespaces of its own, so that the tasks
// reach no network, no engine and no process of the machine. A job is stopped soon after the start of its first task. Each file must start a task, or
// be refused with what is missing and a remedy.
func TestCorpusRuns(t *testing.T) {
	slowtest.SkipLong(t, "runs tasks of a hundred job files for seconds")
	if os.Geteuid() != 0 {
		t.Skip("needs root, for namespaces")
	}
	files, err := filepath.Glob(filepath.Join(systemtest.SharedDirOrSkip(t, "corpus", "jobspecs"), "*.nomad.hcl"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no job files: %v", err)
	}
	results := make(chan string, len(files))
	t.Run("files", func(t *testing.T) {
		for _, path := range files {
			t.Run(strings.TrimSuffix(filepath.Base(path), ".nomad.hcl"), func(t *testing.T) {
				t.Parallel()
				results <- runCorpusFile(t, path)
			})
		}
	})
	close(results)
	counts := map[string]int{}
	for result := range results {
		counts[result]++
	}
	for _, result := range slices.Sorted(maps.Keys(counts)) {
		t.Logf("%3d %s", counts[result], result)
	}
}

// runCorpusFile runs a job file and returns in which way it ended.
func runCorpusFile(t *testing.T, path string) (result string) {
	// The shell is the first process of its namespace, so that its end kills all others. kill -0 fails when wait has returned the exit
	// code of the run, and not that of the trap.
	const script = `
mount --make-rprivate / && mount -t proc proc /proc && busybox ip link set lo up || exit 99
nomad-lite run "$1" &
trap "kill -TERM $!" TERM
while kill -0 $! 2>/dev/null; do wait $!; code=$?; done
exit $code
`
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", script, "sh", path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET}
	cmd.Env = append(os.Environ(), "DOCKER_HOST=unix:///no/engine.sock", "NOMAD_ADDR=")
	var output systemtest.LockedBuffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	const started = ": Task started by client"
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = cmd.Wait() // the exit code is in ProcessState
	}()
	for !strings.Contains(output.String(), started) && ctx.Err() == nil {
		select {
		case <-exited:
		case <-time.After(50 * time.Millisecond):
			continue
		}
		break
	}
	select {
	case <-exited:
	case <-time.After(time.Second): // other tasks start, and tasks that cannot run fail
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Error(err)
		}
		<-exited
	}
	code := cmd.ProcessState.ExitCode()
	if ctx.Err() != nil {
		t.Errorf("the run hangs")
	}
	text := output.String()
	defer func() {
		if t.Failed() {
			t.Logf("exit code %d:\n%s", code, text)
		}
	}()
	if defect := regexp.MustCompile(`(?m)^goroutine \d+ |panic: |^(.*: )?exit status \d+$`).FindString(text); defect != "" {
		t.Errorf("the output has %q", defect)
	}
	switch {
	case code == 0 && strings.Contains(text, " completed: "):
		return "completed"
	case strings.Contains(text, started) && strings.Contains(text, " was stopped: SIGTERM\n"):
		return "runs"
	case code == 1 && strings.Contains(text, started) && strings.Contains(text, " failed:\n"):
		return "runs, and its task fails"
	case code == 1 && strings.Contains(text, `Install the command, or write its whole path in "command"`):
		return "names a command that is not installed"
	}
	for _, r := range corpusRunRefusals {
		if code == 2 && regexp.MustCompile(r.pattern).MatchString(text) {
			return fmt.Sprintf("refused: %s", r.name)
		}
	}
	t.Errorf("neither runs nor is refused with a remedy")
	return "wrong"
}
