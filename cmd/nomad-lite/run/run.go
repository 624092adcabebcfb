package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/agentconfig"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/extras"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/jobfile"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/localplugins"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/taskview"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
	"github.com/nomad-lite/nomad-lite/internal/redact"
	"github.com/nomad-lite/nomad-lite/runtime/agent"
	"github.com/nomad-lite/nomad-lite/runtime/core/noderunner"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

const runHelp = `Run a job in the foreground until it ends. Several files run as one unit:
nothing starts if one is refused, all stop together, and the run ends when all
jobs have ended.

Every group runs, with as many instances as its count says. What the tasks
write goes to stdout and stderr, with the name of the task in front of each
line; where the tasks are in their life goes to stderr. The first Ctrl-C (or
SIGTERM, or SIGHUP) stops the job as Nomad does: leader first, sidecars last,
then the poststop tasks. A second one kills. The last line says why the run ended.

With -watch the run follows the job files and what they read, and restarts what
changed, until Ctrl-C.

Without -data-dir everything is kept in a temporary directory, which is removed
at the end; if nomad-lite itself is killed, so is the job.

Exit codes: 0 the job completed, or was a service and you stopped it; 1 it
failed, or was stopped before it was complete; 2 it was refused, or the command
line made no sense, and nothing of it has run.`

type options struct {
	jobFileFlags     jobfile.Flags
	pluginFlags      localplugins.Flags
	runNowFlags      runNowFlags
	environmentFlags environmentFlags
	watchFlags       watchFlags
	jsonOutput       bool
	dataDir          string
	logLevel         string
}

// NewCommand returns the command "run".
func NewCommand(s *cli.Streams) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "run [flags] FILE...",
		Short: "Run jobs in the foreground, with an agent in the same process",
		Long:  runHelp,
		Example: `  nomad-lite run web.nomad.hcl
  nomad-lite run web.nomad.hcl db.nomad.hcl        two jobs as one unit
  nomad-lite run -var image=web:2 -var-file prod.hcl web.nomad.hcl
  nomad-lite run -now backup.nomad.hcl             a periodic job, once
  nomad-lite run -meta to=me mail.nomad.hcl        a parameterized job
  nomad-lite run -env-file dev.env -nomad-var db/main password=x web.nomad.hcl
  nomad-lite run -watch -watch-path server=./bin web.nomad.hcl
  nomad-lite run -data-dir ./state web.nomad.hcl   keep logs and task directories
  nomad-lite run -plugin-dir ./plugins web.nomad.hcl`,
		Args: func(cmd *cobra.Command, args []string) error {
			// The flag -nomad-var can have taken the file as its second word.
			if _, err := o.environmentFlags.parseNomadVars(); err != nil {
				return withNotStartedCode(err)
			}
			if err := checkFileArgs(cmd, args); err != nil {
				return withNotStartedCode(err)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return run(cmd.Context(), o, args, s)
		},
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		exitErr := cli.FlagError(cmd, err)
		if missing := new(pflag.NotExistError); errors.As(err, &missing) {
			exitErr = fmt.Errorf("%w\nTo give a job to an agent: nomad-lite job run", exitErr)
		}
		return withNotStartedCode(exitErr)
	})
	o.jobFileFlags.Register(cmd)
	o.pluginFlags.Register(cmd)
	o.runNowFlags.register(cmd)
	o.environmentFlags.register(cmd)
	o.watchFlags.register(cmd)
	cmd.Flags().BoolVar(&o.jsonOutput, "json-output", false, "print a JSON object for each line of output, each event and each result")
	cmd.Flags().StringVar(&o.dataDir, "data-dir", "", "keep logs and task directories in this `directory` after the run")
	cmd.Flags().StringVar(&o.logLevel, "log-level", "warn", "how much nomad-lite says about itself: trace, debug, info, warn or error")
	return cmd
}

// stopSignals stop the job. SIGQUIT (Ctrl-\) is one of them because its default action prints the
// stacks of all goroutines.
var stopSignals = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}

// errNotStarted is the error of a run that did not start because of a reason that was printed.
var errNotStarted = &cli.ExitError{Code: cli.NotStarted.Number}

// withNotStartedCode returns err with the exit code of a run that did not start.
func withNotStartedCode(err error) error {
	var exitErr *cli.ExitError
	if errors.As(err, &exitErr) {
		return &cli.ExitError{Code: cli.NotStarted.Number, Err: exitErr.Err}
	}
	return &cli.ExitError{Code: cli.NotStarted.Number, Err: err}
}

// checkFileArgs checks that the arguments are paths of job files, and contain "-" for standard input at most once.
func checkFileArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cli.UsageError(cmd, errors.New("takes the paths of job files, or - for standard input"))
	}
	if first := slices.Index(args, "-"); first >= 0 && slices.Contains(args[first+1:], "-") {
		return cli.UsageError(cmd, errors.New("standard input (-) is one job file, and is given twice"))
	}
	return nil
}

func run(ctx context.Context, o options, paths []string, s *cli.Streams) error {
	level := hclog.LevelFromString(o.logLevel)
	if level == hclog.NoLevel {
		return withNotStartedCode(fmt.Errorf("log-level %q: use trace, debug, info, warn or error", o.logLevel))
	}
	nomadVars, err := o.environmentFlags.parseNomadVars()
	if err != nil {
		return withNotStartedCode(err)
	}
	reader, err := o.newJobReader(s, len(paths))
	if err != nil {
		return withNotStartedCode(err)
	}
	files, err := reader.readAndAdaptJobs(ctx, paths)
	if err != nil {
		return err
	}
	if err := errors.Join(reader.runNowRewriter.rejectUnusedFlags(), o.watchFlags.checkWatchedPaths(paths, files)); err != nil {
		return withNotStartedCode(err)
	}
	if o.dataDir != "" {
		if o.dataDir, err = filepath.Abs(o.dataDir); err != nil {
			return withNotStartedCode(err)
		}
	}
	v := o.newView(s)
	defer v.Close()
	secrets := redact.NewShared()
	logger := hclog.New(&hclog.LoggerOptions{Name: "nomad-lite", Level: level, Output: secrets.Writer(v)})
	local, err := o.pluginFlags.ReadConfig(s)
	if err != nil {
		return withNotStartedCode(err)
	}

	// Signals are caught before the agent starts, so that even an early signal shuts the agent down in order.
	signals, release := catchStopSignals()
	defer release()

	a, err := openAgent(ctx, local, files, logger, func(c *agent.Config) {
		c.DataDir, c.Secrets, c.InitialSchedulerConfig = o.dataDir, secrets, model.NewOversubscribingSchedulerConfig()
		c.Extensions = extras.AppendTraceExport(nil, agentconfig.TraceExportConfig(local.Config, logger))
		if os.Getenv("OTEL_METRICS_EXPORTER") == "otlp" {
			logger.Warn("OTEL_METRICS_EXPORTER is ignored: only an agent exports metrics")
		}
	})
	if err != nil {
		return err
	}
	r := &foregroundRun{
		agent: a, jobFiles: files, jobFilePaths: paths, jobReader: *reader, taskView: v, streams: s, logger: logger, signals: signals,
		hooksAllowedToFail: local.OptionalHookNames(), nomadVars: nomadVars,
		isWatchingFiles: o.watchFlags.watchesFiles(), watchedPaths: o.watchFlags.parseWatchPathArgs(),
		allAllocsEnded: make(chan struct{}),
	}
	warnOnceOfPublicAddresses(a.PublicAddressesOfPorts(), files, logger)
	err = errors.Join(r.runJobs(ctx), a.Close())
	return errors.Join(err, r.showResultsAndJoinFailures())
}

// openAgent opens an agent that has the drivers and hooks of the jobs. configure can change the agent's configuration.
func openAgent(ctx context.Context, local localplugins.PluginConfig, files []*jobfile.File, logger hclog.Logger, configure func(*agent.Config)) (*agent.Agent, error) {
	plugins, err := local.NewCatalog(append(driverNamesOfJobs(files), hookNamesOfJobs(files)...), logger)
	if err != nil {
		return nil, withNotStartedCode(err)
	}
	config := local.NewAgentConfig(plugins, logger)
	config.EphemeralState = true
	// The directories of ended allocations are kept while their output is shown.
	config.GC = noderunner.GCLimits{MaxDiskUsagePercent: 100, MaxInodeUsagePercent: 100}
	configure(&config)
	// A signal ends the waits for the locks of other runs. It also is in the channel of catchStopSignals.
	waiting, release := signal.NotifyContext(ctx, slices.DeleteFunc(slices.Clone(stopSignals), signal.Ignored)...)
	defer release()
	a, err := agent.Open(waiting, config)
	if err != nil {
		return nil, withNotStartedCode(err)
	}
	return a, nil
}

// catchStopSignals returns a channel that receives the signals that stop a run, until release is called.
func catchStopSignals() (signals chan os.Signal, release func()) {
	signals = make(chan os.Signal, 2)
	for _, s := range stopSignals {
		// Signals that were ignored at the start, as by nohup(1) and by shells for jobs in
		// the background, stay ignored.
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
	// SIGPIPE has a handler, so that a write to a closed pipe returns an error, which the view handles. If SIGPIPE were
	// ignored, the tasks would inherit that.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	return signals, func() {
		signal.Stop(pipe)
		signal.Stop(signals)
	}
}

// newView returns the view that the flags select, which the caller must close.
func (o *options) newView(s *cli.Streams) *taskview.View {
	if o.jsonOutput {
		return taskview.NewJSONView(s)
	}
	return taskview.New(s, terminal.NewLiveScreenOrNil(s.Out, s.Err))
}

func (o *options) newJobReader(s *cli.Streams, fileCount int) (*jobReader, error) {
	l, err := o.runNowFlags.newRunNowRewriter(s)
	if err != nil {
		return nil, err
	}
	r := &jobReader{jobFileFlags: o.jobFileFlags, runNowRewriter: l, environmentFlags: o.environmentFlags, streams: s}
	if o.dataDir != "" {
		r.jobFileFlags.DataDirs = []string{o.dataDir}
	}
	if fileCount > 1 {
		r.jobFileFlags.HCL2Strict = false // a variable that one file declares need not be declared by the others
	}
	return r, nil
}
