package allocrunner

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/golden"
	"github.com/nomad-lite/nomad-lite/runtime/core/tasksteps"
)

// TestScenarios runs allocations from start to end and compares their transcripts. Each file in
// testdata is one case: a job, a script of timed actions, and the transcript.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			runScenario(t, file)
		})
	}
}

func runScenario(t *testing.T, file string) {
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	part := func(name string) *txtar.File {
		for i := range archive.Files {
			if archive.Files[i].Name == name {
				return &archive.Files[i]
			}
		}
		return nil
	}
	if part("job.nomad.hcl") == nil || part("want") == nil {
		t.Fatalf("%s: needs job.nomad.hcl and want", file)
	}
	job := parseJob(t, string(part("job.nomad.hcl").Data))
	var got string
	synctest.Test(t, func(t *testing.T) {
		h := startHarness(t, job, func(c *testConfig) { c.Drivers.(*fakeDrivers).findsUnknownTasks = true })
		var actionLog strings.Builder
		if script := part("script"); script != nil {
			for line := range strings.Lines(string(script.Data)) {
				h.act(&actionLog, strings.Fields(line))
			}
		}
		h.wait()
		got = actionLog.String() + h.transcript() + h.stepsTranscript()
	})
	part("want").Data = []byte(got)
	golden.Check(t, file, string(txtar.Format(archive)))
}

// stepsTranscript returns each task's last steps, with each result other than done. Steps that end at the same time
// share a line.
func (h *harness) stepsTranscript() string {
	var b strings.Builder
	for _, task := range h.tasks.taskSet {
		fmt.Fprintf(&b, "steps of %s", task.Name())
		var lineTime time.Time
		for _, t := range task.Transitions() {
			if t.Step == tasksteps.None {
				continue
			}
			separator := ", "
			if !t.Time.Equal(lineTime) {
				separator = fmt.Sprintf("\n  %-6s ", h.at(t.Time))
				lineTime = t.Time
			}
			b.WriteString(separator + t.Step.String())
			if t.Result != tasksteps.Done {
				fmt.Fprintf(&b, " (%s)", t.Result)
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

// act runs one script line, which has a time, a verb and an argument. Verbs with a result add a line to the transcript.
func (h *harness) act(out *strings.Builder, words []string) {
	at := mustParseDuration(words[0])
	h.advance(at - time.Since(h.startTime))
	arg := ""
	if len(words) > 2 {
		arg = words[2]
	}
	ctx := context.Background()
	answer := func(err error) {
		took := ""
		if d := time.Since(h.startTime) - at; d > 0 {
			took = fmt.Sprintf(" after %v", d)
		}
		text := "ok"
		if err != nil {
			text = err.Error()
		}
		fmt.Fprintf(out, "%s: %s%s\n", strings.Join(words, " "), text, took)
	}
	switch words[1] {
	case "stop":
		h.Stop()
	case "stop-no-delay":
		h.tasks.skipShutdownDelay()
		h.Stop()
	case "kill":
		h.ForceKill()
	case "shutdown":
		h.cancel(ErrShutdown)
	case "cancel":
		h.cancel(nil)
	case "plugin-dies":
		h.drivers.killPlugin()
	case "restart":
		answer(h.RestartTask(ctx, arg))
	case "restart-running":
		answer(h.RestartRunning(ctx))
	case "restart-all":
		answer(h.RestartAll(ctx))
	case "signal":
		task := ""
		if len(words) > 3 {
			task = words[3]
		}
		answer(h.Signal(ctx, task, arg))
	case "look":
		fmt.Fprintf(out, "%s: %s\n", strings.Join(words, " "), strings.Join(h.taskEventTypes(arg), ", "))
	default:
		h.t.Fatalf("unknown verb %q", words[1])
	}
	synctest.Wait()
}
