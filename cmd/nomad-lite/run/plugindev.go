package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/filewatch"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/localplugins"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/plugindev"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/taskview"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/agent"
)

const pluginDevHelp = `Build a plugin, run a job with it, and replace the plugin when its sources change.

DIR, by default the current directory, has a program in Go or a Makefile, which
makes a program with the name of the directory. PATH is a program that your own
build makes. ARGS are the arguments of the program.

The job runs on an agent of this command, with a temporary data directory. It is
NAME.nomad.hcl beside the sources, or the file of -job. The output of the tasks and
of the plugin is shown. When a source changes, the plugin is built and started once
as a check: after an error the old program continues. Else its process is replaced,
the tasks continue, and the result of their recovery is shown. A job that has ended
runs again. The job follows its file, as with run -watch.

With -debug the program runs in dlv, if that is on the PATH, and starts when a client
of dlv continues it. Without dlv the command waits until a debugger is attached.
Calls of the plugin have no timeouts then. It is for plugins that use the sdk.

Ctrl-C stops the job, then the plugin and the agent. A second one kills the tasks.

Exit codes: 0 you stopped it; 1 the agent has failed; 2 the job was refused, or the
command line made no sense.`

type pluginDevOptions struct {
	options
	jobPath    string
	configPath localplugins.Flags
	debug      bool
}

// NewPluginDevCommand returns the command "plugin dev".
func NewPluginDevCommand(s *cli.Streams) *cobra.Command {
	var o pluginDevOptions
	cmd := &cobra.Command{
		Use:   "dev [flags] [DIR|PATH] [-- ARGS...]",
		Short: "Build, run and reload a plugin during development",
		Long:  pluginDevHelp,
		Example: `  nomad-lite plugin dev                              the plugin in this directory
  nomad-lite plugin dev -job test.nomad.hcl ./hello
  nomad-lite plugin dev -job test.nomad.hcl target/debug/hello -- --verbose
  nomad-lite plugin dev -debug`,
		RunE: func(cmd *cobra.Command, args []string) error {
			target := "."
			if count := cmd.ArgsLenAtDash(); count != 0 && len(args) > 0 {
				target, args = args[0], args[1:]
				if count < 0 && len(args) > 0 || count > 1 {
					return wrapStartError(errors.New("plugin dev: give one directory or program; arguments of the program come after --"))
				}
			}
			return runPluginDev(cmd.Context(), o, target, args, s)
		},
	}
	o.jobFile.Register(cmd)
	o.environment.register(cmd)
	o.configPath.RegisterConfig(cmd)
	cmd.Flags().StringVar(&o.jobPath, "job", "", "run the job in this `file`; default: NAME.nomad.hcl beside the sources")
	cmd.Flags().BoolVar(&o.debug, "debug", false, "start the plugin in dlv, or wait until a debugger is attached")
	cmd.Flags().StringVar(&o.logLevel, "log-level", "warn", "how much nomad-lite says about itself: trace, debug, info, warn or error")
	return cmd
}

func runPluginDev(ctx context.Context, o pluginDevOptions, target string, args []string, s *cli.Streams) (err error) {
	level := hclog.LevelFromString(o.logLevel)
	if level == hclog.NoLevel {
		return wrapStartError(fmt.Errorf("log-level %q: use trace, debug, info, warn or error", o.logLevel))
	}
	project, err := plugindev.OpenProject(target)
	if err != nil {
		return wrapStartError(fmt.Errorf("plugin dev: %w", err))
	}
	local, err := o.configPath.Read(s)
	if err != nil {
		return wrapStartError(err)
	}
	workshop, err := plugindev.NewWorkshop(project, local, args)
	if err != nil {
		return wrapStartError(err)
	}
	defer func() { err = errors.Join(err, workshop.Close()) }()
	workshop.Debuggable = o.debug

	v := o.newView(s)
	defer v.Close()
	signals, release := notifySignals()
	defer release()
	// This context is for the time before the job runs. Later, a signal stops the job first.
	starting, releaseStarting := signal.NotifyContext(ctx, stopSignals...)
	defer releaseStarting()
	p := &pluginUnderWork{workshop: workshop, watcher: filewatch.New(project.Sources(), project.IsIgnored), taskView: v}
	if !p.buildFirst(starting) {
		return nil
	}
	if o.debug {
		p.debugger = &plugindev.Debugger{
			Name: workshop.Key().Name, Socket: workshop.Socket(), Args: args, In: s.In, Print: v.PrintMessage,
		}
		if err := p.debugger.Start(starting, workshop.Program()); err != nil {
			if starting.Err() != nil {
				return nil
			}
			return wrapStartError(err)
		}
		defer func() { err = errors.Join(err, p.debugger.Stop()) }()
		name, value := p.debugger.Env()
		if err := os.Setenv(name, value); err != nil { // the plugin process of the agent inherits it
			return err
		}
	}
	if starting.Err() != nil {
		return nil
	}
	return o.runJob(ctx, p, signals, &pluginLogWriter{view: v, level: level, prefix: "nomad-lite." + workshop.Name() + ":"}, s)
}

// runJob runs the job with the plugin until a signal stops it.
func (o *pluginDevOptions) runJob(ctx context.Context, p *pluginUnderWork, signals chan os.Signal, log *pluginLogWriter, s *cli.Streams) error {
	path := o.jobPath
	if path == "" {
		found, err := p.workshop.Project.FindJob(p.workshop.Key().Name)
		if err != nil {
			return wrapStartError(fmt.Errorf("plugin dev: %w", err))
		}
		path = found
	}
	nomadVars, err := o.environment.parseNomadVars()
	if err != nil {
		return wrapStartError(err)
	}
	reader, err := o.newJobReader(s, 1)
	if err != nil {
		return wrapStartError(err)
	}
	files, err := reader.readJobs(ctx, []string{path})
	if err != nil {
		return err
	}
	local := p.workshop.AgentPlugins()
	logger := hclog.New(&hclog.LoggerOptions{Name: "nomad-lite", Level: min(log.level, hclog.Debug), Output: log})
	a, err := openAgent(ctx, local, files, logger, func(c *agent.Config) {
		// The file has the descriptions of programs by their content, which changes under this agent.
		c.PluginCacheFile = ""
		c.NoPluginTimeouts = o.debug
	})
	if err != nil {
		return err
	}
	r := &foregroundRun{
		agent: a, files: files, paths: []string{path}, reader: *reader, taskView: p.taskView, streams: s, logger: logger, signals: signals,
		optionalHooks: local.OptionalHookNames(), nomadVars: nomadVars,
		watching: true, plugin: p,
		allocsEnded: make(chan struct{}),
	}
	if err := errors.Join(r.run(ctx), a.Close()); err != nil {
		return err
	}
	_ = r.showResults() // the results are shown; the user has stopped the job, which is no failure
	return nil
}

// pluginLogWriter writes the log lines of the plugin from the level debug, and those of nomad-lite from another
// level.
type pluginLogWriter struct {
	view   *taskview.View
	level  hclog.Level
	prefix string // of the plugin's lines, after the level
}

// Write implements io.Writer.
func (w *pluginLogWriter) Write(line []byte) (int, error) { return w.view.Write(line) }

// LevelWrite implements hclog.LevelWriter.
func (w *pluginLogWriter) LevelWrite(level hclog.Level, line []byte) (int, error) {
	if level < w.level && !strings.Contains(string(line), " "+w.prefix) {
		return len(line), nil
	}
	return w.view.Write(line)
}

// pluginUnderWork is a plugin that its author changes while a job uses it.
type pluginUnderWork struct {
	workshop *plugindev.Workshop
	watcher  *filewatch.Watcher
	debugger *plugindev.Debugger // nil without -debug
	taskView *taskview.View
}

// waitChange blocks until the sources have changed. It returns false when ctx ends.
func (p *pluginUnderWork) waitChange(ctx context.Context) bool {
	return p.watcher.Wait(ctx, p.workshop.Project.Sources()) != nil
}

// buildFirst builds the program until it starts. It returns false when ctx ends.
func (p *pluginUnderWork) buildFirst(ctx context.Context) bool {
	for {
		_, err := p.workshop.Update(ctx)
		switch {
		case ctx.Err() != nil:
			return false
		case err == nil:
			return true
		}
		p.taskView.PrintMessage(err.Error())
		p.taskView.PrintMessage("waiting for changes of files; Ctrl-C ends the command")
		if !p.waitChange(ctx) {
			return false
		}
	}
}

// followPlugin replaces the plugin's process when its sources change, until ctx ends.
func (r *foregroundRun) followPlugin(ctx context.Context, jobs []*foregroundJob) {
	p := r.plugin
	for p.waitChange(ctx) {
		changed, err := p.workshop.Update(ctx)
		if err == nil && changed {
			err = r.replacePlugin(ctx, jobs)
		} else if err != nil && ctx.Err() == nil {
			p.taskView.PrintMessage(err.Error())
			p.taskView.PrintMessage(p.workshop.Name() + ": the old program continues")
			continue
		}
		if err != nil && ctx.Err() == nil {
			p.taskView.PrintMessage(fmt.Sprintf("%s: %v", p.workshop.Name(), err))
		}
	}
}

// replacePlugin starts the new program, shows what happened to the tasks, and runs jobs again that have ended.
func (r *foregroundRun) replacePlugin(ctx context.Context, jobs []*foregroundJob) error {
	p := r.plugin
	before, err := r.pluginProcess()
	if err != nil {
		return err
	}
	tasks := r.runningPluginTasks(jobs)
	if p.debugger != nil {
		p.taskView.PrintMessage(p.workshop.Name() + " has changed: the debugger starts again")
		if err := p.debugger.Stop(); err != nil {
			return err
		}
		if err := p.debugger.Start(ctx, p.workshop.Program()); err != nil {
			return err
		}
	}
	if err := r.agent.RestartPlugin(ctx, p.workshop.Name()); err != nil {
		return err
	}
	after, err := r.waitPluginReplaced(ctx, before.PID)
	if err != nil {
		return err
	}
	p.taskView.PrintMessage(fmt.Sprintf("%s: process %d is replaced by %d%s", p.workshop.Name(), before.PID, after.PID, r.describeRecovery(ctx, after, tasks)))
	state := r.agent.Store().Snapshot()
	for _, j := range jobs {
		ended := !slices.ContainsFunc(state.AllocationsByJob(nil, *j.job.Namespace, *j.job.ID), func(a *api.Allocation) bool { return !state.AllocationEnded(a.ID) })
		if !ended {
			continue
		}
		if err := r.runAgain(ctx, j); err != nil && !errors.Is(err, errStopped) {
			return fmt.Errorf("job %q is not started again%s", *j.job.ID, unprintedText(err))
		}
	}
	return nil
}

// pluginProcess returns the state of the plugin.
func (r *foregroundRun) pluginProcess() (supervisor.Plugin, error) {
	plugins := r.agent.Plugins()
	i := slices.IndexFunc(plugins, func(p supervisor.Plugin) bool { return p.Name == r.plugin.workshop.Name() && !p.Builtin })
	if i < 0 {
		return supervisor.Plugin{}, fmt.Errorf("the agent has no plugin %s", r.plugin.workshop.Name())
	}
	return plugins[i], nil
}

// waitPluginReplaced blocks until the plugin has another process than the one with a pid.
func (r *foregroundRun) waitPluginReplaced(ctx context.Context, pid int) (supervisor.Plugin, error) {
	for {
		changed := r.agent.PluginsChanged()
		p, err := r.pluginProcess()
		switch {
		case err != nil || p.Err != nil:
			return p, cmp.Or(err, p.Err)
		case p.PID != 0 && p.PID != pid:
			return p, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return p, context.Cause(ctx)
		}
	}
}
