package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/hoststats"
	"github.com/nomad-lite/nomad-lite/runtime/explain/conditions"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// vmModeClock is the mode in which a virtual machine sets its clock while an agent runs.
const vmModeClock = "clock"

const vmStepClock = "clock steps"

// testVMClockSteps tests an agent in a virtual machine whose clock is set forward and back.
func testVMClockSteps(t *testing.T, m vm) {
	reports, rest := m.boot(t, vmModeClock, nil)
	report, ok := reports[vmStepClock]
	if !ok || !strings.HasPrefix(report.result, "ok") {
		t.Errorf("%s\n%s\n%s", report.result, report.output, rest)
	} else if testing.Verbose() {
		t.Logf("%s\n%s", report.result, report.output)
	}
}

// clockPeriodicJob is a periodic job that is launched every two seconds.
const clockPeriodicJob = `job "tick" {
  type = "batch"
  periodic {
    crons = ["*/2 * * * * * *"]
  }
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
`

// clockRescheduleJob is a job whose failed allocation is rescheduled after five seconds.
const clockRescheduleJob = `job "fails" {
  type = "batch"
  group "g" {
    restart {
      attempts = 0
    }
    reschedule {
      attempts       = 0
      delay          = "5s"
      delay_function = "constant"
      unlimited      = true
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "exit 1"]
      }
    }
  }
}
`

// runClockSteps runs an agent in the virtual machine, sets the clock and uses up its memory, and checks that
// launches and reschedules continue, and that the agent reports both.
func runClockSteps() error {
	dir, err := os.MkdirTemp("", "clock")
	if err != nil {
		return err
	}
	for name, text := range map[string]string{
		"agent.hcl": "plugin \"raw_exec\" {\n  config {\n    enabled = true\n  }\n}\nports {\n  http = 0\n}\n",
		"tick.hcl":  clockPeriodicJob, "fails.hcl": clockRescheduleJob,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	command := func(args ...string) *exec.Cmd {
		return &exec.Cmd{
			Path: "/proc/self/exe", Args: append([]string{"nomad-lite"}, args...), Dir: dir, Stdout: os.Stdout, Stderr: os.Stderr,
			Env: []string{"PATH=/usr/bin:/bin", "HOME=/root", "NOMAD_ADDR=unix://" + dir + "/d/nomad.sock"},
		}
	}
	agent := command("agent", "-config", "agent.hcl", "-data-dir", filepath.Join(dir, "d"))
	if err := agent.Start(); err != nil {
		return err
	}
	defer func() { _ = agent.Process.Kill() }()
	client, err := api.NewClient(&api.Config{Address: "unix://" + dir + "/d/nomad.sock"})
	if err != nil {
		return err
	}
	soon := func(what string, holds func() bool) error {
		for end := time.Now().Add(90 * time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
			if holds() {
				return nil
			}
		}
		return fmt.Errorf("not within 90s: %s", what)
	}
	if err := soon("the agent answers", func() bool { _, err := client.Status().Leader(); return err == nil }); err != nil {
		return err
	}
	for _, file := range []string{"tick.hcl", "fails.hcl"} {
		if err := command("job", "run", "-detach", file).Run(); err != nil {
			return fmt.Errorf("run %s: %w", file, err)
		}
	}
	newest := func(job string) (index uint64) {
		jobs, _, _ := client.Jobs().ListOptions(nil, &api.QueryOptions{Prefix: job})
		for _, j := range jobs {
			if j.ParentID == job {
				index = max(index, j.CreateIndex)
			}
		}
		allocs, _, _ := client.Jobs().Allocations(job, true, nil)
		for _, a := range allocs {
			index = max(index, a.CreateIndex)
		}
		return index
	}
	showJob := func(job string) error {
		errs := []error{command("job", "status", "-verbose", "-evals", job).Run()}
		allocs, _, _ := client.Jobs().Allocations(job, true, nil)
		for _, a := range allocs {
			errs = append(errs, command("alloc", "status", "-timeline", a.ID).Run())
		}
		return errors.Join(errs...)
	}
	hasCondition := func(kind string) func() bool {
		return func() bool {
			var report conditions.Report
			_, err := client.Raw().Query("/v1/agent/conditions", &report, nil)
			return err == nil && slices.ContainsFunc(report.Conditions, func(c conditions.Condition) bool { return c.Kind == kind })
		}
	}
	goOn := func(after string) error {
		began := time.Now()
		for range 2 {
			for _, job := range []string{"tick", "fails"} {
				before := newest(job)
				if err := soon(job+" goes on "+after, func() bool { return newest(job) > before }); err != nil {
					return errors.Join(err, showJob(job))
				}
			}
		}
		fmt.Printf("%s: both went on twice in %v\n", after, time.Since(began).Round(time.Millisecond))
		return nil
	}
	if err := goOn("before any step"); err != nil {
		return err
	}
	for _, step := range []struct {
		name string
		by   time.Duration
	}{
		{"after the clock was set a year ahead", 365 * 24 * time.Hour},
		{"after it was corrected", -365 * 24 * time.Hour},
		{"after it was set an hour back", -time.Hour},
		{"after it was set an hour ahead", time.Hour},
	} {
		now := unix.NsecToTimespec(time.Now().Add(step.by).UnixNano())
		if err := unix.ClockSettime(unix.CLOCK_REALTIME, &now); err != nil {
			return fmt.Errorf("set the clock: %w", err)
		}
		if err := goOn(step.name); err != nil {
			return err
		}
		if err := soon("the clock step is a condition "+step.name, hasCondition("ClockStepped")); err != nil {
			return err
		}
	}
	if err := useMemory(func() error {
		return errors.Join(soon("the lack of memory is a condition", hasCondition("MemoryLow")), command("status").Run())
	}); err != nil {
		return err
	}
	if err := suspendVM(); err != nil {
		fmt.Printf("this machine cannot be suspended: %v\n", err)
		return nil
	}
	return goOn("after a suspend")
}

// useMemory calls f while almost all memory of the machine is in use.
func useMemory(f func() error) error {
	file, err := store.OpenUnnamedFile("")
	if err != nil {
		return err
	}
	defer file.Close()
	size := int64(hoststats.Memory().Available)
	if err := unix.Fallocate(int(file.Fd()), 0, 0, size-size/50); err != nil {
		return fmt.Errorf("allocate memory: %w", err)
	}
	return f()
}

// suspendVM suspends the virtual machine until its real time clock wakes it.
func suspendVM() error {
	states, err := os.ReadFile("/sys/power/state")
	if err != nil {
		return err
	}
	state := ""
	for _, name := range []string{"mem", "freeze"} {
		if strings.Contains(string(states), name) {
			state = name
			break
		}
	}
	if state == "" {
		return fmt.Errorf("/sys/power/state has %q", states)
	}
	if err := os.WriteFile("/sys/class/rtc/rtc0/wakealarm", []byte("+5"), 0o200); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	asleep := make(chan error, 1)
	go func() { asleep <- os.WriteFile("/sys/power/state", []byte(state), 0o200) }()
	select {
	case err := <-asleep:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
