package hostile

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/builtin/docker/dockertest"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/endurance"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// A job with hostile values gets what its operator gives to it, and nothing more. A refused job is correct, one that hangs is
// not.
//
//	make test-hostile-jobs
func TestHostileJobsGetNothingMore(t *testing.T) {
	sample := 10
	if slowtest.Enabled() {
		sample = 100
	}
	testHostileJobs(t, sample, "dockerd", dockertest.StartOrSkip)
}

// As TestHostileJobsGetNothingMore, with the Docker API of podman, which has more options than that of Docker.
func TestHostileJobsOnPodman(t *testing.T) {
	if endurance.CurrentMode() == endurance.Sample {
		slowtest.Skip(t, "starts an engine")
	}
	if !systemtest.HasProgram("podman") {
		t.Skip("install podman")
	}
	testHostileJobs(t, 20, "podman", dockertest.StartPodmanOrSkip)
}

func testHostileJobs(t *testing.T, sample int, engineProgram string, startEngine func(testing.TB) *dockertest.Engine) {
	if os.Geteuid() != 0 {
		t.Skip("without root there are no networks of groups, and the agent can read only its own files")
	}
	if testing.Short() {
		t.Skip("starts agents")
	}
	run := endurance.Start(t, endurance.Config{Sample: sample, Unit: "jobs", Load: "4 jobs at a time"})
	w := newHostileWorld(t)
	var engine *dockertest.Engine
	if systemtest.HasProgram(engineProgram) && (slowtest.Enabled() || endurance.CurrentMode() != endurance.Sample) {
		engine = startEngine(t)
		w.engineSocket = strings.TrimPrefix(engine.Host, "unix://")
		probe, err := os.ReadFile(filepath.Join(w.chroot, probeInImage))
		if err != nil {
			t.Fatal(err)
		}
		engine.ImportBusyboxImageWithLinks(t, hostileImage, map[string][]byte{strings.TrimPrefix(probeInImage, "/"): probe}, linkTargetsInImage)
	}
	operators := newOperators()
	for _, o := range operators {
		o.start(t, w, engine)
	}
	if w.hasBridge {
		w.watchBridge(t)
	} else if os.Getenv("NOMAD_LITE_CI") != "" {
		t.Error("the agents have no bridge")
	}
	var countMu sync.Mutex
	count, refused := 0, 0
	run.EachParallel(func(seed uint64) error {
		r := rand.New(rand.NewPCG(seed, 0))
		o := operators[max(0, r.IntN(4)-1)] // half of the jobs have the default
		g := &jobGenerator{Rand: r, world: w, operator: o, docker: engine != nil, id: fmt.Sprint("hostile", seed)}
		j := g.job()
		if len(j.TaskGroups) == 0 {
			run.Add(1)
			return nil
		}
		allocs, err := o.runToEnd(j.Job)
		breaches := append(w.judge(o, j, allocs), w.judgeMounts()...)
		if allocs != nil { // the agent removes the files of a job that does not exist
			_, _, stopErr := o.Jobs().Deregister(*j.ID, true, nil)
			err = errors.Join(err, stopErr)
		}
		if seed%10 == 0 || err != nil {
			breaches = append(breaches, o.judgeMemory()...)
		}
		run.Add(1)
		countMu.Lock()
		count++
		if len(allocs) == 0 {
			refused++
		}
		countMu.Unlock()
		if err == nil && len(breaches) == 0 {
			return nil
		}
		t.Logf("the job of seed %d, with the operator %q, and its events: %s\n%s", seed, o.name, encodeJSON(j.Job), formatTaskEvents(allocs))
		if len(breaches) > 20 {
			breaches = append(breaches[:20], "and more")
		}
		return errors.Join(err, errors.New(strings.Join(breaches, "\n")))
	})
	t.Logf("%d of %d jobs were refused; complete probes by driver: %v", refused, count, w.probes)
	if count >= 100 && (w.probes["exec"] == 0 || engine != nil && w.probes["docker"] == 0) {
		t.Error("a driver has run no probe")
	}
}

// runToEnd registers a job, and waits until all its allocations have ended. It returns none if the job is refused.
func (o *operator) runToEnd(job *api.Job) (allocs []*api.Allocation, err error) {
	registered, _, err := o.Jobs().Register(job, nil)
	if err != nil {
		return nil, nil // refused
	}
	change := &api.QueryOptions{WaitTime: time.Second}
	isStopped := false
	for deadline := time.Now().Add(systemtest.WaitTimeout); ; {
		evaluation, _, err := o.Evaluations().Info(registered.EvalID, nil)
		if err != nil {
			return nil, err
		}
		stubs, meta, err := o.Jobs().Allocations(*job.ID, false, change)
		if err != nil {
			return nil, err
		}
		change.WaitIndex = meta.LastIndex
		hasEnded := evaluation.Status != "pending" && len(stubs)+len(evaluation.FailedTGAllocs) >= len(job.TaskGroups)
		allocs = []*api.Allocation{}
		waits := false
		for _, stub := range stubs {
			alloc, _, err := o.Allocations().Info(stub.ID, nil)
			if err != nil {
				return allocs, err
			}
			allocs = append(allocs, alloc)
			hasEnded = hasEnded && slices.Contains([]string{api.AllocClientStatusComplete, api.AllocClientStatusFailed, api.AllocClientStatusLost}, alloc.ClientStatus)
			for _, state := range alloc.TaskStates { // an allocation has failed before its last task ends
				hasEnded = hasEnded && state.State == "dead"
				last := len(state.Events) - 1
				waits = waits || state.State == "pending" && last >= 0 && strings.Contains(state.Events[last].DisplayMessage, "Missing: ")
			}
		}
		if hasEnded {
			return allocs, nil
		}
		if waits && !isStopped { // for a file of a template, which can appear later
			isStopped = true
			if _, _, err := o.Jobs().Deregister(*job.ID, false, nil); err != nil {
				return allocs, err
			}
		}
		if time.Now().After(deadline) {
			return allocs, fmt.Errorf("hang: the job has not ended within %v", systemtest.WaitTimeout)
		}
	}
}

func formatTaskEvents(allocs []*api.Allocation) (text string) {
	for _, alloc := range allocs {
		for name, state := range alloc.TaskStates {
			text += fmt.Sprintf("%s/%s: %s\n", alloc.TaskGroup, name, systemtest.FormatEvents(state))
		}
	}
	return text
}

// This test shows that the probe detects what a task without isolation obtains, and that the oracle judges it. Without it,
// TestHostileJobsGetNothingMore would prove nothing.
func TestProbeDetectsMissingIsolation(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the probe of another user obtains less")
	}
	w := newHostileWorld(t)
	cmd := exec.Command(filepath.Join(w.chroot, probeInImage), "wait")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	targets := w.targets
	targets.ProbeTaskName, targets.WritableDirs = "job/g/t", []string{newPublicDir(t)}
	lines := runProbe(t, w, targets)
	breaches := strings.Join(w.judgeReport(&operator{}, taskFacts{driver: "exec", networkMode: "none"}, lines), "\n")
	j := &hostileJob{Job: api.NewBatchJob("job", "job", api.GlobalRegion, 50), tasks: map[string]taskFacts{"g/t": {driver: "exec"}}, uids: map[string]string{"g/t": "0"}}
	breaches += "\n" + strings.Join(w.judgeFiles(&operator{}, j, targets.WritableDirs[0]), "\n")
	for _, want := range []string{
		"user: Uid 0", "namespace: the task is in the namespace mnt", "namespace: the task is in the namespace pid", "files: the task reads a file of the machine at " + w.canary,
		"files: the task reads a file of the machine at /proc/", "files: the task writes " + w.targets.UnchangeableFile, "identity: the task becomes another by setuid 4001", "identity: the task becomes another by setgroups",
		"processes: trace of " + cmd.Path, "processes: mem of " + cmd.Path, "processes: root of " + cmd.Path, "sockets: the task connects to 127.0.0.1:", "sockets: the task connects to @nomad-lite",
		"left: a set-id file /left-job-g-t-own/chmod ", "/openat2 ", "/mknod ", "left: a device", "left: a file with capabilities", "left: a file of another user",
	} {
		if !strings.Contains(breaches, want) {
			t.Errorf("the report and the files have no breach %q:\n%s", want, breaches)
		}
	}
	if _, _, errno := unix.Syscall6(unix.SYS_FCHMODAT2, 0, 0, 0, 0, 0, 0); errno != unix.ENOSYS && !strings.Contains(breaches, "/fchmodat2 ") { // since Linux 6.6
		t.Errorf("the files have no breach of fchmodat2:\n%s", breaches)
	}
	if open, err := os.Open("/dev/kmsg"); err == nil { // containers do not have it
		open.Close()
		if !strings.Contains(breaches, "devices: the task opens /dev/kmsg") {
			t.Errorf("the report does not have /dev/kmsg:\n%s", breaches)
		}
	}
	if lines[len(lines)-1] != "done " && lines[len(lines)-1] != "done" {
		t.Errorf("the report ends with %q", lines[len(lines)-1])
	}
}
