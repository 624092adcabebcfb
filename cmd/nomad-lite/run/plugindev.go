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
	"github.com/nomad-lite/nomad-lite/internal/redact"
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
	jobPath           string
	pluginConfigFlags localplugins.Flags
	useDebugger       bool
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
					return withNotStartedCode(errors.New("plugin dev: give one directory or program; arguments of the program come after --"))
				}
			}
			return runPluginDev(cmd.Context(), o, target, args, s)
		},
	}
	o.jobFileFlags.Register(cmd)
	o.environmentFlags.register(cmd)
	o.pluginConfigFlags.RegisterConfigFlag(cmd)
	cmd.Flags().StringVar(&o.jobPath, "job", "", "run the job in this `file`; default: NAME.nomad.hcl beside the sources")
	cmd.Flags().BoolVar(&o.useDebugger, "debug", false, "start the plugin in dlv, or wait until a debugger is attached")
	cmd.Flags().StringVar(&o.logLevel, "log-level", "warn", "how much nomad-lite says about itself: trace, debug, info, warn or error")
	return cmd
}

func runPluginDev(ctx context.Context, o pluginDevOptions, dirOrProgram string, pluginArgs []string, s *cli.Streams) (err error) {
	level := hclog.LevelFromString(o.logLevel)
	if level == hclog.NoLevel {
		return withNotStartedCode(fmt.Errorf("log-level %q: use trace, debug, info, warn or error", o.logLevel))
	}
	project, err := plugindev.OpenProject(dirOrProgram)
	if err != nil {
		return withNotStartedCode(fmt.Errorf("plugin dev: %w", err))
	}
	local, err := o.pluginConfigFlags.ReadConfig(s)
	if err != nil {
		return withNotStartedCode(err)
	}
	pluginDir, err := plugindev.NewDevPluginDir(project, local, pluginArgs)
	if err != nil {
		return withNotStartedCode(err)
	}
	defer func() { err = errors.Join(err, pluginDir.Close()) }()
	pluginDir.Debuggable = o.useDebugger

	v := o.newView(s)
	defer v.Close()
	signals, release := catchStopSignals()
	defer release()
	// A signal ends this context, so that it interrupts the build before the job runs. Later, a signal stops the job
	// first.
	starting, releaseStarting := signal.NotifyContext(ctx, stopSignals...)
	defer releaseStarting()
	p := &devPlugin{pluginDir: pluginDir, watcher: filewatch.New(project.WatchPaths(), project.IsIgnoredByWatch), taskView: v}
	if !p.buildUntilProgramStarts(starting) {
		return nil
	}
	if o.useDebugger {
		p.debugger = &plugindev.Debugger{
			PluginName: pluginDir.PluginKey().Name, SocketPath: pluginDir.DebugSocketPath(), ProgramArgs: pluginArgs, UserInput: s.In, Print: v.QueueMessage,
		}
		if err := p.debugger.Start(starting, pluginDir.ProgramPath()); err != nil {
			if starting.Err() != nil {
				return nil
			}
			return withNotStartedCode(err)
		}
		defer func() { err = errors.Join(err, p.debugger.Stop()) }()
		name, value := p.debugger.AttachEnvVar()
		if err := os.Setenv(name, value); err != nil { // the agent of this process reads the variable
			return err
		}
	}
	if starting.Err() != nil {
		return nil
	}
	return o.runJobUntilSignal(ctx, p, signals, &pluginDevLogWriter{view: v, minAgentLogLevel: level, pluginLineMarker: "nomad-lite." + pluginDir.ProgramFileName() + ":"}, s)
}

// runJobUntilSignal runs the job with the plugin until a signal stops it.
func (o *pluginDevOptions) runJobUntilSignal(ctx context.Context, p *devPlugin, signals chan os.Signal, log *pluginDevLogWriter, s *cli.Streams) error {
	path := o.jobPath
	if path == "" {
		found, err := p.pluginDir.Project.FindJobFile(p.pluginDir.PluginKey().Name)
		if err != nil {
			return withNotStartedCode(fmt.Errorf("plugin dev: %w", err))
		}
		path = found
	}
	nomadVars, err := o.environmentFlags.parseNomadVars()
	if err != nil {
		return withNotStartedCode(err)
	}
	reader, err := o.newJobReader(s, 1)
	if err != nil {
		return withNotStartedCode(err)
	}
	files, err := reader.readAndAdaptJobs(ctx, []string{path})
	if err != nil {
		return err
	}
	local := p.pluginDir.PluginsForAgent()
	secrets := redact.NewShared()
	logger := hclog.New(&hclog.LoggerOptions{Name: "nomad-lite", Level: min(log.minAgentLogLevel, hclog.Debug), Output: secrets.Writer(log)})
	a, err := openAgent(ctx, local, files, logger, func(c *agent.Config) {
		// The cache identifies a program by its content, which changes while this agent runs.
		c.PluginDescriptionCacheFile = ""
		c.NoPluginTimeouts, c.Secrets = o.useDebugger, secrets
	})
	if err != nil {
		return err
	}
	r := &foregroundRun{
		agent: a, jobFiles: files, jobFilePaths: []string{path}, jobReader: *reader, taskView: p.taskView, streams: s, logger: logger, signals: signals,
		hooksAllowedToFail: local.OptionalHookNames(), nomadVars: nomadVars,
		isWatchingFiles: true, devPlugin: p,
		allAllocsEnded: make(chan struct{}),
	}
	if err := errors.Join(r.runJobs(ctx), a.Close()); err != nil {
		return err
	}
	_ = r.showResultsAndJoinFailures() // the error is ignored, because the user has stopped the job
	return nil
}

// pluginDevLogWriter is the output of the agent's logger. It shows the plugin's log lines from the level debug, and
// nomad-lite's own from the level of -log-level.
type pluginDevLogWriter struct {
	view             *taskview.View
	minAgentLogLevel hclog.Level
	pluginLineMarker string // text after the level in the plugin's log lines
}

// Write implements io.Writer.
func (w *pluginDevLogWriter) Write(line []byte) (int, error) { return w.view.Write(line) }

// LevelWrite implements hclog.LevelWriter.
func (w *pluginDevLogWriter) LevelWrite(level hclog.Level, line []byte) (int, error) {
	if level < w.minAgentLogLevel && !strings.Contains(string(line), " "+w.pluginLineMarker) {
		return len(line), nil
	}
	return w.view.Write(line)
}

// devPlugin is the plugin of `plugin dev`, whose sources its author changes while a job uses it.
type devPlugin struct {
	pluginDir *plugindev.DevPluginDir
	watcher   *filewatch.Watcher
	debugger  *plugindev.Debugger // nil without -debug
	taskView  *taskview.View
}

// waitForSourceChange blocks until the sources have changed. It returns false when ctx ends.
func (p *devPlugin) waitForSourceChange(ctx context.Context) bool {
	return p.watcher.WaitForSettledChange(ctx, p.pluginDir.Project.WatchPaths()) != nil
}

// buildUntilProgramStarts builds the program after each change of its sources, until a build succeeds and the program
// starts. It returns false when ctx ends.
func (p *devPlugin) buildUntilProgramStarts(ctx context.Context) bool {
	for {
		_, err := p.pluginDir.BuildTryStartAndInstall(ctx)
		switch {
		case ctx.Err() != nil:
			return false
		case err == nil:
			return true
		}
		p.taskView.QueueMessage(err.Error())
		p.taskView.QueueMessage("waiting for changes of files; Ctrl-C ends the command")
		if !p.waitForSourceChange(ctx) {
			return false
		}
	}
}

// rebuildAndReplaceOnChanges builds the program and replaces the plugin's process each time the sources change, until
// ctx ends.
func (r *foregroundRun) rebuildAndReplaceOnChanges(ctx context.Context, jobs []*foregroundJob) {
	p := r.devPlugin
	for p.waitForSourceChange(ctx) {
		changed, err := p.pluginDir.BuildTryStartAndInstall(ctx)
		if err == nil && changed {
			err = r.replacePluginAndRerunJobs(ctx, jobs)
		} else if err != nil && ctx.Err() == nil {
			p.taskView.QueueMessage(err.Error())
			p.taskView.QueueMessage(p.pluginDir.ProgramFileName() + ": the old program continues")
			continue
		}
		if err != nil && ctx.Err() == nil {
			p.taskView.QueueMessage(fmt.Sprintf("%s: %v", p.pluginDir.ProgramFileName(), err))
		}
	}
}

// replacePluginAndRerunJobs replaces the plugin's process by one of the new program, shows whether the running tasks
// were recovered, and runs ended jobs again.
func (r *foregroundRun) replacePluginAndRerunJobs(ctx context.Context, jobs []*foregroundJob) error {
	p := r.devPlugin
	before, err := r.readPluginState()
	if err != nil {
		return err
	}
	tasks := r.runningTasksUsingPlugin(jobs)
	if p.debugger != nil {
		p.taskView.QueueMessage(p.pluginDir.ProgramFileName() + " has changed: the debugger starts again")
		if err := p.debugger.Stop(); err != nil {
			return err
		}
		if err := p.debugger.Start(ctx, p.pluginDir.ProgramPath()); err != nil {
			return err
		}
	}
	if err := r.agent.Supervisor().Restart(ctx, p.pluginDir.ProgramFileName()); err != nil {
		return err
	}
	after, err := r.waitPluginReplaced(ctx, before.PID)
	if err != nil {
		return err
	}
	p.taskView.QueueMessage(fmt.Sprintf("%s: process %d is replaced by %d%s", p.pluginDir.ProgramFileName(), before.PID, after.PID, r.waitAndDescribeRecovery(ctx, after, tasks)))
	state := r.agent.Store().Snapshot()
	for _, j := range jobs {
		ended := !slices.ContainsFunc(state.AllocationsByJob(nil, *j.initialJob.Namespace, *j.initialJob.ID), func(a *api.Allocation) bool { return !state.AllocationEnded(a.ID) })
		if !ended {
			continue
		}
		if err := r.rereadAndRerunJob(ctx, j); err != nil && !errors.Is(err, errStopped) {
			return fmt.Errorf("job %q is not started again%s", *j.initialJob.ID, formatReasonUnlessPrinted(err))
		}
	}
	return nil
}

// readPluginState returns the agent's state of the plugin.
func (r *foregroundRun) readPluginState() (supervisor.PluginStatus, error) {
	plugins := r.agent.Supervisor().Plugins()
	i := slices.IndexFunc(plugins, func(p supervisor.PluginStatus) bool {
		return p.Name == r.devPlugin.pluginDir.ProgramFileName() && !p.Builtin
	})
	if i < 0 {
		return supervisor.PluginStatus{}, fmt.Errorf("the agent has no plugin %s", r.devPlugin.pluginDir.ProgramFileName())
	}
	return plugins[i], nil
}

// waitPluginReplaced blocks until the plugin has a process with another PID.
func (r *foregroundRun) waitPluginReplaced(ctx context.Context, oldPID int) (supervisor.PluginStatus, error) {
	for {
		changed := r.agent.Supervisor().InfoChanged()
		p, err := r.readPluginState()
		switch {
		case err != nil || p.Err != nil:
			return p, cmp.Or(err, p.Err)
		case p.PID != 0 && p.PID != oldPID:
			return p, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return p, context.Cause(ctx)
		}
	}
}
