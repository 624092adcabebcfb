package programs

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/builtin/rawexec"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/agentconfig"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
	"github.com/nomad-lite/nomad-lite/runtime/agent"
	"github.com/nomad-lite/nomad-lite/runtime/agent/clusternode"
	"github.com/nomad-lite/nomad-lite/runtime/agent/localnode"
	"github.com/nomad-lite/nomad-lite/runtime/core/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/core/noderunner"
	"github.com/nomad-lite/nomad-lite/runtime/job/jobspec"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/pluginhooks"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
)

// EndUnknownEnv is the environment variable that makes a killable agent end the tasks of allocations that its store
// does not have.
const EndUnknownEnv = "KILLABLE_AGENT_END_UNKNOWN"

// ServersEnv is the environment variable with the address of a server of a cluster. It makes a killable agent a node of the
// cluster.
const ServersEnv = "KILLABLE_AGENT_SERVERS"

// serveKillableAgent runs an agent that executes commands from its standard input until it is killed. Its first
// argument is the data directory, and the second the directory of its external plugins. Plugins whose names end in
// -driver are drivers and the others are hooks; hooks whose names end in -warn have on_error warn.
func serveKillableAgent() {
	if err := runKillableAgent(os.Args[1], os.Args[2:]...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func runKillableAgent(dataDir string, pluginDirIfAny ...string) error {
	config := catalog.Config{Builtins: []catalog.Builtin{{Name: rawexec.Name, TasksAreHostProcesses: true, ConfigWithoutBlock: map[string]any{"enabled": true}}}}
	var hookRules []pluginhooks.OperatorRule
	if len(pluginDirIfAny) > 0 {
		config.PluginDir = pluginDirIfAny[0]
		files, err := os.ReadDir(config.PluginDir)
		if err != nil {
			return err
		}
		for _, f := range files {
			block := catalog.PluginBlock{Name: f.Name()}
			if f.Name() == "chroot-driver" {
				block.Config = map[string]any{"allow_pid_mode": true}
			}
			config.Blocks = append(config.Blocks, block)
			if strings.HasSuffix(f.Name(), "-driver") {
				continue
			}
			hookRules = append(hookRules, pluginhooks.OperatorRule{Name: f.Name(), WarnOnError: strings.HasSuffix(f.Name(), "-warn")})
		}
	}
	plugins, err := catalog.New(config)
	if err != nil {
		return err
	}
	var cluster *clusternode.Config
	if addr := os.Getenv(ServersEnv); addr != "" {
		cluster = &clusternode.Config{Servers: []string{addr}}
	}
	level := hclog.Warn
	if os.Getenv("MORTAL_DEBUG") != "" {
		level = hclog.Trace
	}
	ctx, end := context.WithCancelCause(context.Background())
	defer end(nil)
	a, err := agent.Open(ctx, agent.Config{
		DataDir:               dataDir,
		Cluster:               cluster,
		EndTasksWithoutRecord: os.Getenv(EndUnknownEnv) != "",
		Node:                  localnode.Settings{CPUMHzOverride: 100_000, MemoryMBOverride: 1_000_000, DiskMBOverride: 1_000_000},
		Plugins:               plugins,
		HookRules:             hookRules,
		DecodeTaskProcess:     agentconfig.TaskProcessFromDriverState,
		GC:                    noderunner.GCLimits{MaxAllocsOnDisk: 10_000, MaxDiskUsagePercent: 100, MaxInodeUsagePercent: 100}, // so high that no allocation that a test checks is garbage collected
		Logger:                hclog.New(&hclog.LoggerOptions{Level: level, Output: os.Stderr}),
	})
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		a.Run(ctx)
		close(ended)
	}()
	answer := json.NewEncoder(os.Stdout)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		verb, arg, _ := strings.Cut(lines.Text(), " ")
		switch verb {
		case "run":
			<-a.Node().Registered()
			text, err := os.ReadFile(arg)
			if err != nil {
				return err
			}
			file, diags := jobspec.Parse(jobspec.ParseInput{DiagnosticFileName: arg, Text: text})
			if diags.HasErrors() {
				return diags
			}
			model.Canonicalize(file.Job)
			if _, err := a.Scheduler().RegisterAndEvaluateJob(ctx, file.Job, scheduler.RegisterOptions{}); err != nil {
				return err
			}
			err = answer.Encode("ok")
			if err != nil {
				return err
			}
		case "states":
			report := newTaskReport(a)
			if err := answer.Encode(report); err != nil {
				return err
			}
		case "counts":
			report := newTaskReport(a)
			if err := answer.Encode(systemtest.TaskCounts{WithProcess: report.TasksWithProcess, Running: report.RunningTaskCount()}); err != nil {
				return err
			}
		case "leave":
			end(allocrunner.ErrShutdown)
		case "stop":
			end(nil)
		default:
			if err := answer.Encode(KillableAgentCommands[verb](ctx, a, arg)); err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			break
		}
	}
	end(nil) // without ErrShutdown, because the test has ended
	<-ended
	return a.Close()
}

func newTaskReport(a *agent.Agent) systemtest.TaskReport {
	report := systemtest.TaskReport{StateFileWrites: a.Store().CommitCount(), AllocByID: map[string]*api.Allocation{}}
	for _, alloc := range a.Store().Snapshot().Allocations(nil, "") {
		report.AllocByID[alloc.ID] = &api.Allocation{ID: alloc.ID, Name: alloc.Name, JobID: alloc.JobID, ClientStatus: alloc.ClientStatus, TaskStates: alloc.TaskStates}
		if runner := a.Allocs().AllocRunner(alloc.ID); runner != nil {
			report.TasksWithProcess += len(runner.PluginsNeededAfterShutdown())
		}
	}
	return report
}
