package programs

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/agent"
	"github.com/nomad-lite/nomad-lite/runtime/job/jobspec"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// Over the first of these pipes an agent reports that it has reached the failpoint. It continues when it can read a
// byte from the second.
const (
	failpointReachedFD  = 3
	failpointContinueFD = 4
)

// runFailpointAgent runs a killable agent that blocks when it reaches the failpoint that the command "arm" names.
func runFailpointAgent() {
	syscall.CloseOnExec(failpointReachedFD)
	syscall.CloseOnExec(failpointContinueFD)
	tell, goOn := os.NewFile(failpointReachedFD, "tell"), os.NewFile(failpointContinueFD, "go on")
	var mu sync.Mutex
	armed, reached := "", map[string]bool{}
	failpoint.OnHit = func(s failpoint.Step, p failpoint.Phase) {
		moment := fmt.Sprint(s, " ", p)
		mu.Lock()
		reached[moment] = true
		here := moment == armed
		if here {
			armed = ""
		}
		mu.Unlock()
		if here {
			_, err := tell.WriteString("!")
			if err == nil {
				_, err = io.ReadFull(goOn, make([]byte, 1))
			}
			if err != nil {
				panic(err)
			}
		}
	}
	KillableAgentCommands["arm"] = func(_ context.Context, _ *agent.Agent, moment string) any {
		mu.Lock()
		defer mu.Unlock()
		armed = moment
		return "ok"
	}
	KillableAgentCommands["reached"] = func(context.Context, *agent.Agent, string) any {
		mu.Lock()
		defer mu.Unlock()
		return maps.Clone(reached) // a copy, because the map can change while the answer is encoded
	}
	serveKillableAgent()
}

// KillableAgentCommands maps the names of additional commands of a killable agent to the functions that return the
// answers.
var KillableAgentCommands = map[string]func(ctx context.Context, a *agent.Agent, arg string) any{
	"look": func(ctx context.Context, a *agent.Agent, _ string) any {
		waitStateChangeBriefly(ctx, a.Store())
		s := a.Store().Snapshot()
		reportedIndex = s.Index()
		seen := AllocReport{AllocIDsWithRunnerRecords: s.AllocIDsWithLocalRecords()}
		for _, alloc := range s.Allocations(nil, "") {
			seen.Allocs = append(seen.Allocs, &api.Allocation{
				ID: alloc.ID, JobID: alloc.JobID, DesiredStatus: alloc.DesiredStatus, ClientStatus: alloc.ClientStatus,
				ClientDescription: alloc.ClientDescription, TaskStates: alloc.TaskStates, Job: &api.Job{Version: alloc.Job.Version},
			})
		}
		return seen
	},
	"exec": func(ctx context.Context, a *agent.Agent, id string) any {
		runner := a.Allocs().AllocRunner(id)
		if runner == nil {
			return "the agent has just begun"
		}
		out := &bytes.Buffer{}
		_, err := runner.ExecStreaming(ctx, "life", driver.Exec{Command: []string{"/bin/echo", "hello"}, Stdout: out})
		return fmt.Sprint(out, err)
	},
	"heap": func(context.Context, *agent.Agent, string) any {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	},
	"register": func(ctx context.Context, a *agent.Agent, path string) any {
		text, err := os.ReadFile(path)
		if err != nil {
			return err.Error()
		}
		file, _ := jobspec.Parse(jobspec.ParseInput{DiagnosticFileName: path, Text: text})
		model.Canonicalize(file.Job)
		_, err = a.Scheduler().RegisterAndEvaluateJob(ctx, file.Job, scheduler.RegisterOptions{})
		return fmt.Sprint(err)
	},
	"await-registration": func(ctx context.Context, a *agent.Agent, _ string) any {
		select {
		case <-a.Node().Registered():
		case <-ctx.Done():
		}
		return "ok"
	},
	"purge": func(ctx context.Context, a *agent.Agent, job string) any {
		_, err := a.Scheduler().DeregisterJob(ctx, scheduler.JobKey{Namespace: "default", ID: job}, scheduler.DeregisterOptions{Purge: true})
		return fmt.Sprint(err)
	},
}

// reportedIndex is the index of the state in the last AllocReport.
var reportedIndex uint64

// waitStateChangeBriefly waits until the state differs from that of the last AllocReport, but only for a short time,
// because tests also wait for files and processes. Reports of an unchanged state would take most of the CPU time of a
// test.
func waitStateChangeBriefly(ctx context.Context, s *store.Store) {
	ctx, cancel := context.WithTimeout(ctx, 40*time.Millisecond)
	defer cancel()
	_ = s.WaitForIndex(ctx, reportedIndex+1) // an error means that nothing has changed
}

// AllocReport is an agent's report about its allocations.
type AllocReport struct {
	Allocs                    []*api.Allocation
	AllocIDsWithRunnerRecords []string // ids of the allocations with runner records in the store
}

// FindAlloc returns an allocation of the job for which wanted returns true, or nil if there is none.
func (r AllocReport) FindAlloc(jobID string, wanted func(*api.Allocation) bool) (found *api.Allocation) {
	for _, a := range r.Allocs {
		if a.JobID == jobID && wanted(a) {
			found = a
		}
	}
	return found
}
