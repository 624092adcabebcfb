package client

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

var allocationTrials = trials{
	"List": func(t *testing.T, e *env) {
		list, m, err := e.Allocations().List(nil)
		must(t, err)
		at := slices.IndexFunc(list, func(a *api.AllocationListStub) bool { return a.ID == e.alloc.ID })
		if at < 0 || list[at].TaskStates["main"].State != "running" || m.LastIndex == 0 || !m.KnownLeader {
			t.Errorf("allocation at %d of %d, %+v", at, len(list), m)
		}
		filtered, _, err := e.Allocations().List(&api.QueryOptions{Filter: `JobID == "` + *e.job.ID + `"`})
		must(t, err)
		equal(t, "allocations of the job", len(filtered), 1)
	},
	"PrefixList": func(t *testing.T, e *env) {
		for _, digits := range []int{8, 7, 36} {
			list, _, err := e.Allocations().PrefixList(e.alloc.ID[:digits])
			must(t, err)
			if len(list) != 1 || list[0].ID != e.alloc.ID {
				t.Errorf("%d digits: %d allocations", digits, len(list))
			}
		}
	},
	"Info": func(t *testing.T, e *env) {
		alloc, m, err := e.Allocations().Info(e.alloc.ID, &api.QueryOptions{Namespace: "another"}) // an id is enough
		must(t, err)
		if alloc.Job == nil || *alloc.Job.ID != *e.job.ID || alloc.AllocatedResources == nil || alloc.Resources == nil || alloc.TaskResources["main"] == nil ||
			alloc.NodeID != e.node || m.LastIndex != alloc.ModifyIndex {
			t.Errorf("%+v at index %d", alloc, m.LastIndex)
		}
		equal(t, "group", *alloc.GetTaskGroup().Name, "group")
		_, _, err = e.Allocations().Info(unknown, nil)
		refuses(t, 404, "alloc not found", err)
		_, _, err = e.Allocations().Info("zz", nil)
		refuses(t, 500, "UUID must be 36 characters", err)
	},
	"Exec": func(t *testing.T, e *env) {
		var out, errs bytes.Buffer
		code, err := e.Allocations().Exec(t.Context(), e.alloc, "main", false, []string{"/bin/sh", "-c", "cat; echo oops >&2; exit 5"},
			strings.NewReader("typed"), &out, &errs, nil, nil)
		must(t, err)
		equal(t, "exit code", code, 5)
		equal(t, "output", out.String(), "typed")
		equal(t, "errors", errs.String(), "oops\n")

		out.Reset()
		sizes := make(chan api.TerminalSize, 1)
		sizes <- api.TerminalSize{Height: 7, Width: 43}
		code, err = e.Allocations().Exec(t.Context(), e.alloc, "main", true, []string{"/bin/sh", "-c", "until stty size | grep '7 43'; do sleep 0.02; done"},
			openInput(t), &out, io.Discard, sizes, nil)
		must(t, err)
		equal(t, "exit code on a terminal", code, 0)
		if !strings.Contains(out.String(), "7 43") {
			t.Errorf("the terminal says %q", out.String())
		}
	},
	"Stats": func(t *testing.T, e *env) {
		usage, err := e.Allocations().Stats(e.alloc, nil)
		must(t, err)
		main := usage.Tasks["main"]
		if usage.ResourceUsage == nil || usage.ResourceUsage.MemoryStats == nil || usage.ResourceUsage.CpuStats == nil || main == nil {
			t.Fatalf("%+v", usage)
		}
		if m := main.ResourceUsage.MemoryStats; m.RSS+m.Usage == 0 {
			t.Errorf("a task without memory: %+v", m)
		}
	},
	"Checks": func(t *testing.T, e *env) {
		for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) { // checks have no index
			checks, err := e.Allocations().Checks(e.alloc.ID, nil)
			must(t, err)
			equal(t, "checks", len(checks), 1)
			for id, check := range checks {
				if check.ID != id || check.Check != "open" || check.Service != *e.job.ID || check.Mode != "healthiness" {
					t.Fatalf("%+v", check)
				}
				if check.Status == "success" && check.Output == "nomad: tcp ok" {
					return
				}
				if time.Now().After(deadline) {
					t.Fatalf("%+v", check)
				}
			}
		}
	},
	"GC": func(t *testing.T, e *env) {
		refuses(t, 500, "not eligible for GC", e.Allocations().GC(e.alloc, nil))
		job := e.newJob(t, api.JobTypeBatch, "true")
		e.register(t, job)
		alloc := e.newest(t, *job.ID, api.AllocClientStatusComplete)
		must(t, e.Allocations().GC(alloc, nil))
	},
	"Restart": func(t *testing.T, e *env) {
		alloc := e.run(t, e.newJob(t, api.JobTypeService, forever))
		must(t, e.Allocations().Restart(alloc, "main", nil))
		e.restarted(t, alloc, 1)
		must(t, e.Allocations().Restart(alloc, "", nil))
		e.restarted(t, alloc, 2)
		refuses(t, 500, "Could not find task runner for task: nope", e.Allocations().Restart(alloc, "nope", nil))
	},
	"RestartAllTasks": func(t *testing.T, e *env) {
		alloc := e.run(t, e.newJob(t, api.JobTypeService, forever))
		must(t, e.Allocations().RestartAllTasks(alloc, nil))
		e.restarted(t, alloc, 1)
	},
	"Stop": func(t *testing.T, e *env) {
		alloc := e.run(t, e.newJob(t, api.JobTypeService, forever))
		stopped, err := e.Allocations().Stop(alloc, nil)
		must(t, err)
		if stopped.EvalID == "" || stopped.LastIndex == 0 {
			t.Errorf("%+v", stopped)
		}
		old := e.untilAlloc(t, alloc.ID, func(a *api.Allocation) bool { return a.ClientTerminalStatus() && a.NextAllocation != "" })
		next := e.untilAlloc(t, old.NextAllocation, func(a *api.Allocation) bool { return a.ClientStatus == api.AllocClientStatusRunning })
		equal(t, "previous allocation", next.PreviousAllocation, alloc.ID)
	},
	"Signal": func(t *testing.T, e *env) {
		e.logged(t, e.alloc, "out") // it has set its trap
		must(t, e.Allocations().Signal(e.alloc, nil, "main", "SIGUSR1"))
		e.logged(t, e.alloc, "signalled")
		refuses(t, 500, "Task not found", e.Allocations().Signal(e.alloc, nil, "nope", "SIGUSR1"))
	},
	"SetPauseState": refused(500, "Enterprise only", func(e *env) error {
		return e.Allocations().SetPauseState(e.alloc, nil, "main", "pause")
	}),
	"GetPauseState": refused(500, "Enterprise only", func(e *env) error {
		_, _, err := e.Allocations().GetPauseState(e.alloc, nil, "main")
		return err
	}),
	"Services": func(t *testing.T, e *env) {
		services, _, err := e.Allocations().Services(e.alloc.ID, nil)
		must(t, err)
		if len(services) != 1 || services[0].ServiceName != *e.job.ID || services[0].AllocID != e.alloc.ID || services[0].Address != "127.0.0.1" {
			t.Errorf("%+v", services)
		}
	},
}

// unknown is the id of nothing.
const unknown = "00000000-0000-4000-8000-000000000000"

// openInput is an input that does not end.
func openInput(t *testing.T) io.Reader {
	r, w := io.Pipe()
	t.Cleanup(func() { w.Close() })
	return r
}

// restarted waits until a task runs again that has been restarted so often.
func (e *env) restarted(t *testing.T, alloc *api.Allocation, times uint64) {
	t.Helper()
	e.untilAlloc(t, alloc.ID, func(a *api.Allocation) bool {
		s := a.TaskStates["main"]
		started := 0
		for _, event := range s.Events {
			if event.Type == api.TaskStarted {
				started++
			}
		}
		return s.State == "running" && uint64(started) == times+1
	})
}

// logged waits until a task has written a line.
func (e *env) logged(t *testing.T, alloc *api.Allocation, line string) {
	t.Helper()
	cancel := make(chan struct{})
	defer close(cancel)
	frames, errs := e.AllocFS().Logs(alloc, true, "main", "stdout", "start", 0, cancel, nil)
	e.seen(t, frames, errs, line)
}

// seen waits until frames have a text.
func (e *env) seen(t *testing.T, frames <-chan *api.StreamFrame, errs <-chan error, text string) {
	t.Helper()
	var all []byte
	for timeout := time.After(patience); ; {
		select {
		case f, ok := <-frames:
			if !ok {
				t.Fatalf("the stream ended after %q", all)
			}
			if all = append(all, f.Data...); bytes.Contains(all, []byte(text)) {
				return
			}
		case err := <-errs:
			t.Fatal(err)
		case <-timeout:
			t.Fatalf("only %q so far", all)
		}
	}
}

var fsTrials = trials{
	"List": func(t *testing.T, e *env) {
		files, _, err := e.AllocFS().List(e.alloc, "/", nil)
		must(t, err)
		for _, want := range []string{"alloc", "main"} {
			if !slices.ContainsFunc(files, func(f *api.AllocFileInfo) bool { return f.Name == want && f.IsDir }) {
				t.Errorf("%q is missing", want)
			}
		}
		_, _, err = e.AllocFS().List(e.alloc, "../..", nil)
		refuses(t, 500, "Path escapes the alloc directory", err)
	},
	"Stat": func(t *testing.T, e *env) {
		e.logged(t, e.alloc, "out")
		file, _, err := e.AllocFS().Stat(e.alloc, "alloc/logs/main.stdout.0", nil)
		must(t, err)
		if file.IsDir || file.Size < 4 || file.ModTime.IsZero() || file.ContentType == "" {
			t.Errorf("%+v", file)
		}
	},
	"ReadAt": func(t *testing.T, e *env) {
		e.logged(t, e.alloc, "out")
		r, err := e.AllocFS().ReadAt(e.alloc, "alloc/logs/main.stdout.0", 1, 2, nil)
		readsAs(t, r, err, "ut")
	},
	"Cat": func(t *testing.T, e *env) {
		alloc := e.run(t, e.newJob(t, api.JobTypeService, "echo all of it; sleep 1000"))
		e.logged(t, alloc, "all of it\n")
		r, err := e.AllocFS().Cat(alloc, "alloc/logs/main.stdout.0", nil)
		readsAs(t, r, err, "all of it\n")
	},
	"Stream": func(t *testing.T, e *env) {
		cancel := make(chan struct{})
		defer close(cancel)
		frames, errs := e.AllocFS().Stream(e.alloc, "alloc/logs/main.stdout.0", "start", 0, cancel, nil)
		e.seen(t, frames, errs, "out\n")
	},
	"Logs": func(t *testing.T, e *env) {
		cancel := make(chan struct{})
		defer close(cancel)
		frames, errs := e.AllocFS().Logs(e.alloc, true, "main", "stderr", "end", 4, cancel, nil)
		e.seen(t, frames, errs, "err\n")
		_, errs = e.AllocFS().Logs(e.alloc, false, "nope", "stdout", "start", 0, cancel, nil)
		refuses(t, 400, `unknown task name "nope"`, <-errs)
	},
}

func readsAs(t *testing.T, r io.ReadCloser, err error, want string) {
	t.Helper()
	must(t, err)
	defer r.Close()
	text, err := io.ReadAll(r)
	must(t, err)
	equal(t, "content", string(text), want)
}
