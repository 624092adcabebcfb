package faults

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

const killedTemplatesConfig = `
client {
  template {
    wait {
      min = "10ms"
      max = "100ms"
    }
  }
}
`

// Twenty tasks have a template with a variable and a random number. While the variable changes, the agent, the hook's process, its
// launcher and its evaluators are killed: each task gets the last value. Afterwards a kill restarts no task and renders no file again.
func TestTemplatesSurviveKills(t *testing.T) {
	slowtest.Skip(t, "kills processes for a minute")
	const taskCount = 20
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	s := systemtest.StartPersistentAgent(t, nil, killedTemplatesConfig)
	put := func(value string) {
		t.Helper()
		s.WaitUntil("the variable is written", func() (string, bool) {
			_, _, err := s.Variables().Update(&api.Variable{Path: "app", Items: map[string]string{"w": value}}, nil)
			return fmt.Sprint(err), err == nil
		})
	}
	put("start")
	task := systemtest.NewRawExecShellTask("t", systemtest.SleepForeverScript, func(task *api.Task) {
		task.Templates = []*api.Template{{
			EmbeddedTmpl: new(`{{ with nomadVar "app" }}{{ .w }}{{ end }} {{ sprig_randInt 0 1000000000 }}`), DestPath: new("local/out"), ChangeMode: new("restart"), Splay: new(time.Duration(0)),
		}}
		task.Resources = &api.Resources{CPU: new(1), MemoryMB: new(10)}
	})
	s.RegisterJobWithGroup("templates", "service", &api.TaskGroup{Name: new("g"), Count: new(taskCount), Tasks: []*api.Task{task}})
	allocs := func() []*api.AllocationListStub {
		list, _, err := s.Jobs().Allocations("templates", false, nil)
		if err != nil {
			return nil
		}
		return list
	}
	// state describes the file and the restarts of each task.
	state := func() (contents []string, restarts uint64, running int) {
		for _, a := range allocs() {
			content, _ := os.ReadFile(filepath.Join(s.DataDir, "alloc", a.ID, "t", "local", "out")) // none exists before the first rendering
			contents = append(contents, a.ID+" "+string(content))
			if ts := a.TaskStates["t"]; ts != nil && ts.State == "running" {
				running++
				restarts += ts.Restarts
			}
		}
		return contents, restarts, running
	}
	waitValue := func(value string) (contents []string, restarts uint64) {
		t.Helper()
		s.WaitUntil("each task runs with "+value, func() (string, bool) {
			var running int
			contents, restarts, running = state()
			good := 0
			for _, c := range contents {
				if strings.Contains(c, " "+value+" ") {
					good++
				}
			}
			return fmt.Sprintf("seed %d: %d of %d files, %d tasks run", seed, good, len(contents), running), good == taskCount && running == taskCount
		})
		return contents, restarts
	}
	waitValue("start")
	// kill kills one process of the agent or of the hook, if there is such a process now.
	kill := func(kind int) {
		if kind == 0 {
			s.SignalAndWait(unix.SIGKILL)
			s.StartAndWaitReady()
			return
		}
		for _, p := range systemtest.FindDataDirProcesses(s.DataDir) {
			args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID)) // empty after its exit
			if !strings.Contains(string(args), "serve\x00template") {
				continue
			}
			pids := []int{p.PID}
			for range kind - 1 { // the launcher, then its evaluators
				children, err := osprocess.Children(pids[0])
				if err != nil || len(children) == 0 {
					break
				}
				pids = children
			}
			_ = unix.Kill(pids[r.IntN(len(pids))], unix.SIGKILL) // an error means that it has exited
		}
	}
	const changes, kinds = 200, 4
	for i := range changes {
		put(fmt.Sprint("value-", i))
		if r.IntN(3) == 0 {
			kill(r.IntN(kinds))
		}
		time.Sleep(time.Duration(r.IntN(100)) * time.Millisecond)
	}
	kill(0) // an agent waits up to two minutes before it starts a hook again that has died several times without a call
	waitValue(fmt.Sprint("value-", changes-1))
	time.Sleep(2 * time.Second) // restarts of the last changes
	contents, restarts := waitValue(fmt.Sprint("value-", changes-1))
	for i := range 3 * kinds {
		kill(i % kinds)
		time.Sleep(500 * time.Millisecond)
	}
	time.Sleep(2 * time.Second)
	after, restartsAfter := waitValue(fmt.Sprint("value-", changes-1))
	if restartsAfter != restarts || strings.Join(after, "\n") != strings.Join(contents, "\n") {
		t.Errorf("seed %d: kills without a change: %d restarts after %d, files\n%s\nafter\n%s", seed, restartsAfter, restarts, strings.Join(after, "\n"), strings.Join(contents, "\n"))
	}
	t.Logf("seed %d: %d changes, %d restarts of %d tasks", seed, changes, restarts, taskCount)
}
