package run

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/builtins"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/jobfile"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/localplugins"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/taskreason"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/taskview"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/terminal"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/catalog"
	"github.com/nomad-lite/nomad-lite/plugins/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/agent"
	"github.com/nomad-lite/nomad-lite/runtime/hostport"
	"github.com/nomad-lite/nomad-lite/runtime/noderunner"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/variables"
)

const runHelp = `Run a job here, in the foreground, until it ends. Several files run as one unit:
nothing starts if one is refused, all stop together, and the run ends when all
jobs have ended.

Every group runs, with as many instances as its count says. What the tasks
write goes to stdout and stderr, with the name of the task in front of each
line; where the tasks are in their life goes to stderr. The first Ctrl-C (or
SIGTERM, or SIGHUP) stops the job as Nomad does: leader first, sidecars last,
then the poststop tasks. A second one kills. The last line says why the run ended.

Without -data-dir everything is kept in a temporary directory, which is removed
at the end; if nomad-lite itself is killed, so is the job.

Exit codes: 0 the job completed, or was a service and you stopped it; 1 it
failed, or was stopped before it was complete; 2 it was refused, or the command
line made no sense, and nothing of it has run.`

type options struct {
	jobFile     jobfile.Flags
	pluginFlags localplugins.Flags
	launch      launchFlags
	environment environmentFlags
	dataDir     string
	logLevel    string
}

// NewCommand returns the command "run".
func NewCommand(s *cli.Streams) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "run [flags] FILE...",
		Short: "Run jobs here, in the foreground",
		Long:  runHelp,
		Example: `  nomad-lite run web.nomad.hcl
  nomad-lite run web.nomad.hcl db.nomad.hcl        two jobs as one unit
  nomad-lite run -var image=web:2 -var-file prod.hcl web.nomad.hcl
  nomad-lite run -now backup.nomad.hcl             a periodic job, once
  nomad-lite run -meta to=me mail.nomad.hcl        a parameterized job
  nomad-lite run -env-file dev.env -nomad-var db/main password=x web.nomad.hcl
  nomad-lite run -data-dir ./state web.nomad.hcl   keep logs and task directories
  nomad-lite run -plugin-dir ./plugins web.nomad.hcl`,
		Args: func(cmd *cobra.Command, args []string) error {
			// The flag -nomad-var can have taken the file as its second word.
			if _, err := o.environment.parseNomadVars(); err != nil {
				return wrapStartError(err)
			}
			if err := checkFileArgs(cmd, args); err != nil {
				return wrapStartError(err)
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
		return wrapStartError(exitErr)
	})
	o.jobFile.Register(cmd)
	o.pluginFlags.Register(cmd)
	o.launch.register(cmd)
	o.environment.register(cmd)
	cmd.Flags().StringVar(&o.dataDir, "data-dir", "", "keep logs and task directories in this `directory` after the run")
	cmd.Flags().StringVar(&o.logLevel, "log-level", "warn", "how much nomad-lite says about itself: trace, debug, info, warn or error")
	return cmd
}

// stopSignals stop the job. SIGQUIT (Ctrl-\) is one of them because its default action prints the
// stacks of all goroutines.
var stopSignals = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}

// errNotStarted is the error of a run that did not start and has printed the reason.
var errNotStarted = &cli.ExitError{Code: 2}

// wrapStartError converts an error to the error of a run that did not start.
func wrapStartError(err error) error {
	var exitErr *cli.ExitError
	if errors.As(err, &exitErr) {
		return &cli.ExitError{Code: 2, Err: exitErr.Err}
	}
	return &cli.ExitError{Code: 2, Err: err}
}

// checkFileArgs accepts the paths of job files, among which standard input can be once.
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
		return wrapStartError(fmt.Errorf("log-level %q: use trace, debug, info, warn or error", o.logLevel))
	}
	nomadVars, err := o.environment.parseNomadVars()
	if err != nil {
		return wrapStartError(err)
	}
	reader, err := o.newJobReader(s, len(paths))
	if err != nil {
		return wrapStartError(err)
	}
	files, err := reader.readJobs(paths)
	if err != nil {
		return err
	}
	if err := reader.launcher.checkUsed(); err != nil {
		return wrapStartError(err)
	}
	if o.dataDir != "" {
		if o.dataDir, err = filepath.Abs(o.dataDir); err != nil {
			return wrapStartError(err)
		}
	}
	v := taskview.New(s, terminal.NewScreen(s.Out, s.Err))
	defer v.Close()
	logger := hclog.New(&hclog.LoggerOptions{Name: "nomad-lite", Level: level, Output: v})
	local, err := o.pluginFlags.Read(s)
	if err != nil {
		return wrapStartError(err)
	}
	plugins, err := local.NewCatalog(append(driverNames(files), hookNames(files)...), logger)
	if err != nil {
		return wrapStartError(err)
	}

	// Signals are caught before the agent starts, so that a signal always shuts it down in order.
	signals, release := notifySignals()
	defer release()

	config := local.AgentConfig(plugins, logger)
	config.DataDir, config.EphemeralState = o.dataDir, true
	// The directories of ended allocations are kept while their output is shown.
	config.GC = noderunner.GC{DiskUsage: 100, InodeUsage: 100}
	a, err := agent.Open(ctx, config)
	if err != nil {
		return wrapStartError(err)
	}
	r := &foregroundRun{
		agent: a, files: files, taskView: v, streams: s, signals: signals,
		optionalHooks: local.OptionalHookNames(), nomadVars: nomadVars,
		allocsEnded: make(chan struct{}),
	}
	err = errors.Join(r.run(ctx), a.Close())
	if err == nil {
		v.PrintMessage(r.successText())
	}
	return err
}

// notifySignals returns a channel that receives the signals that end a run, until release is
// called.
func notifySignals() (signals chan os.Signal, release func()) {
	signals = make(chan os.Signal, 2)
	for _, s := range stopSignals {
		// Signals that were ignored at the start, as by nohup(1) and by shells for jobs in
		// the background, stay ignored.
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
	// SIGPIPE has a handler, so that it becomes a write error, which the view handles. If SIGPIPE
	// were ignored, the tasks would inherit that.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	return signals, func() {
		signal.Stop(pipe)
		signal.Stop(signals)
	}
}

// newJobReader returns the reader of count job files.
func (o *options) newJobReader(s *cli.Streams, count int) (*jobReader, error) {
	l, err := o.launch.newLauncher(s)
	if err != nil {
		return nil, err
	}
	r := &jobReader{jobFile: o.jobFile, launcher: l, environment: o.environment, streams: s}
	if count > 1 {
		r.jobFile.Strict = false // a variable that one file declares need not be declared by the others
	}
	return r, nil
}

// foregroundRun is the jobs of a run on an open agent of this process.
type foregroundRun struct {
	agent    *agent.Agent
	files    []*jobfile.File
	taskView *taskview.View
	streams  *cli.Streams
	signals  <-chan os.Signal

	optionalHooks []string        // names of the hooks whose failure does not prevent tasks from running
	nomadVars     []*api.Variable // variables for templates

	stopReason  atomic.Pointer[string] // nil unless all allocations are being stopped
	allocsEnded chan struct{}          // closed when all allocations of the jobs have ended
}

func (r *foregroundRun) run(ctx context.Context) error {
	if err := r.agent.WaitReady(ctx); err != nil {
		return err
	}
	if err := r.waitDriversReady(ctx); err != nil {
		return err
	}
	if err := r.checkPlugins(ctx); err != nil {
		return err
	}
	if err := r.checkCapacity(); err != nil {
		return err
	}
	if !slices.ContainsFunc(r.files, func(f *jobfile.File) bool { return apiclient.DesiredAllocCount(f.Job) > 0 }) {
		return nil
	}

	var wg sync.WaitGroup
	defer wg.Wait()
	agentCtx, endAgent := context.WithCancel(ctx)
	defer endAgent()
	wg.Go(func() { r.agent.Run(agentCtx) })
	select {
	case <-r.agent.Node().Registered():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := r.registerJobs(ctx); err != nil {
		return err
	}
	wg.Go(func() { r.handleSignals(ctx) })
	return r.watchAllocs(ctx)
}

// registerJobs gives the jobs to the scheduler. It prepares their namespaces first, because the jobs start at once.
func (r *foregroundRun) registerJobs(ctx context.Context) error {
	for _, f := range r.files {
		if err := r.prepareNamespace(ctx, *f.Job.Namespace); err != nil {
			return err
		}
	}
	for _, f := range r.files {
		if _, err := r.agent.Scheduler().Register(ctx, newForegroundJob(f.Job), scheduler.RegisterOptions{}); err != nil {
			return wrapStartError(err)
		}
	}
	return nil
}

// prepareNamespace creates a namespace, because the store is new, and the variables in it.
func (r *foregroundRun) prepareNamespace(ctx context.Context, name string) error {
	if _, err := r.agent.Store().Update(ctx, func(tx *store.Txn) error {
		tx.PutNamespace(&api.Namespace{Name: name})
		return nil
	}); err != nil {
		return err
	}
	vars := variables.New(r.agent.Store(), hclog.NewNullLogger())
	for _, v := range r.nomadVars {
		copied := *v
		copied.Namespace = name
		if _, err := vars.Put(ctx, &copied, nil); err != nil {
			return fmt.Errorf("-nomad-var %s: %w", v.Path, err)
		}
	}
	return nil
}

// checkCapacity rejects jobs that do not fit on this machine as a whole, because a foreground
// run does not wait for free resources.
func (r *foregroundRun) checkCapacity() error {
	checks := r.files
	if len(r.files) > 1 {
		checks = append(slices.Clip(checks), combineJobs(r.files))
	}
	for _, f := range checks {
		if fits, err := f.CheckCapacity(r.streams, r.agent, hostport.Free); err != nil || !fits {
			return errors.Join(errNotStarted, err)
		}
	}
	return nil
}

// newForegroundJob returns the job as a foreground run executes it: a failed allocation is
// replaced only if the file has a block for that. Nomad's default, one more attempt or
// unlimited attempts, would delay the report of the failure.
func newForegroundJob(job *api.Job) *api.Job {
	next := *job
	next.TaskGroups = slices.Clone(job.TaskGroups)
	for i, g := range next.TaskGroups {
		if p := g.ReschedulePolicy; p == nil || !reflect.DeepEqual(p, api.NewDefaultReschedulePolicy(*job.Type)) {
			continue
		}
		group, never := *g, *g.ReschedulePolicy
		never.Attempts, never.Unlimited = new(0), new(false)
		group.ReschedulePolicy = &never
		next.TaskGroups[i] = &group
	}
	return &next
}

// watchAllocs shows the updates of the jobs until all their allocations have ended and none will be
// replaced. It returns the result of the jobs.
func (r *foregroundRun) watchAllocs(ctx context.Context) error {
	shown := make(chan struct{}) // closed when the view has shown all updates
	var outputReaders sync.WaitGroup
	jobs := make([]*foregroundJob, len(r.files))
	for i, f := range r.files {
		rows := taskview.JobRows{Position: i, Instances: apiclient.DesiredAllocCount(f.Job)}
		if len(r.files) > 1 {
			rows.LabelPrefix = *f.Job.ID + "/"
		}
		jobs[i] = &foregroundJob{job: f.Job, rows: rows, shown: make(map[string]uint64)}
	}
	var blockedErr error
	for {
		ws := store.NewWatchSet()
		state := r.agent.Store().Snapshot()
		over := true
		for _, j := range jobs {
			j.read(ws, state)
			for _, task := range r.taskView.AddTasks(j.newAllocs(), j.rows, r.agent.LogDir) {
				outputReaders.Go(func() { r.showTaskOutput(ctx, task, shown) })
			}
			j.showUpdates(r.taskView)
			over = over && j.isOver(state)
			if blockedErr == nil {
				blockedErr = j.blockedError(state)
			}
		}
		if blockedErr != nil && r.stopReason.Load() == nil {
			// The jobs were checked to fit on the machine, so another process has taken resources
			// since then.
			r.stopAllocs(ctx, "they do not fit on this machine")
			continue
		}
		if !over {
			if err := ws.WatchCtx(ctx); err != nil {
				return context.Cause(ctx)
			}
			continue
		}
		close(r.allocsEnded)
		r.waitOutputWritten(func() {
			r.taskView.ShowUpdates()
			close(shown)
			outputReaders.Wait()
		})
		results := []error{blockedErr}
		for _, j := range jobs {
			results = append(results, j.result(r.stopReason.Load() != nil))
		}
		return errors.Join(results...)
	}
}

// successText returns why the run has ended without a failure, with a line for each job.
func (r *foregroundRun) successText() string {
	lines := make([]string, len(r.files))
	for i, f := range r.files {
		id, reason := *f.Job.ID, r.stopReason.Load()
		switch {
		case apiclient.DesiredAllocCount(f.Job) == 0:
			lines[i] = fmt.Sprintf("job %q has nothing to run: the count of each group is 0", id)
		case reason != nil:
			lines[i] = fmt.Sprintf("job %q was stopped: %s", id, *reason)
		default:
			lines[i] = taskreason.SuccessText(id)
		}
	}
	return strings.Join(lines, "\n")
}

// stopAllocs requests a stop of all allocations.
func (r *foregroundRun) stopAllocs(ctx context.Context, reason string) {
	r.stopReason.CompareAndSwap(nil, &reason)
	for _, f := range r.files {
		if _, err := r.agent.Scheduler().Deregister(ctx, scheduler.KeyOf(f.Job), scheduler.DeregisterOptions{}); err != nil {
			r.taskView.PrintMessage("the job cannot be stopped in order: " + err.Error())
			r.agent.ForceKillAllocs()
			return
		}
	}
}

// waitDriversReady waits until all plugins that the jobs may need are ready, also those that start too
// slowly for the agent to wait for them. The launch timeout of each plugin limits the wait.
func (r *foregroundRun) waitDriversReady(ctx context.Context) error {
	reported := false
	for {
		changed := r.agent.PluginsChanged()
		slow := r.findUnreadyPlugins()
		if len(slow) == 0 {
			return nil
		}
		if !reported {
			r.taskView.PrintMessage("waiting for plugin " + strings.Join(slow, ", "))
			reported = true
		}
		select {
		case <-changed:
		case <-r.signals:
			return fmt.Errorf("stopped while it waited for plugin %s: nothing has run", strings.Join(slow, ", "))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// findUnreadyPlugins returns the plugins that are not ready yet and that the job may need: the plugin
// has the name of a driver of the job, provides such a driver, or may provide a driver that no
// launched plugin provides.
func (r *foregroundRun) findUnreadyPlugins() []string {
	wanted := driverNames(r.files)
	plugins := r.agent.Plugins()
	missing := slices.ContainsFunc(wanted, func(driver string) bool {
		return !slices.ContainsFunc(plugins, func(p supervisor.Plugin) bool {
			return p.Serves == supervisor.PluginKey{Type: base.TypeDriver, Name: driver}
		})
	})
	var slowNames []string
	for _, p := range plugins {
		if p.StateKnown {
			continue
		}
		// A plugin that has launched provides its driver only after the driver's first fingerprint.
		provides := p.Serves.Type == base.TypeDriver && slices.Contains(wanted, p.Serves.Name)
		named := slices.Contains(wanted, strings.TrimPrefix(p.Name, catalog.DriverPrefix))
		if provides || named || missing && p.Serves.Name == "" {
			slowNames = append(slowNames, p.Name)
		}
	}
	return slowNames
}

// outputFlushTimeout is the time after the end of the job in which Ctrl-C still counts as meant for the
// job. Later it discards the output that is not written yet.
const outputFlushTimeout = time.Second

// waitOutputWritten waits until the last output is written, or until a signal discards it, because a
// terminal or a pager can block the output.
func (r *foregroundRun) waitOutputWritten(writeOutput func()) {
	read := make(chan struct{})
	go func() {
		defer close(read)
		writeOutput()
	}()
	select {
	case <-read:
		return
	case <-time.After(outputFlushTimeout):
	}
	for len(r.signals) > 0 {
		<-r.signals
	}
	r.taskView.PrintMessage("the last output waits for its reader; once more to give it up")
	select {
	case <-read:
	case <-r.signals:
		r.taskView.DiscardOutput()
	}
}

// checkPlugins rejects the jobs when a driver or hook that they need is missing, cannot be
// started, or does not accept a job's configuration.
func (r *foregroundRun) checkPlugins(ctx context.Context) error {
	wanted := driverNames(r.files)
	drivers := r.agent.Drivers()
	var pluginErrs []error
	for _, name := range wanted {
		if d, ok := drivers[name]; ok && !(d.Detected && d.Healthy) {
			pluginErrs = append(pluginErrs, fmt.Errorf("driver %q cannot be used: %s", name, d.Description))
		}
	}
	for _, p := range r.agent.Plugins() {
		if p.Err != nil && slices.Contains(wanted, strings.TrimPrefix(p.Name, catalog.DriverPrefix)) {
			pluginErrs = append(pluginErrs, p.Err)
		}
	}
	if len(pluginErrs) > 0 {
		return wrapStartError(errors.Join(pluginErrs...))
	}
	var hookErrs []error
	for _, f := range r.files {
		errs, err := r.checkPluginConfigs(ctx, f)
		if err != nil {
			return err
		}
		hookErrs = append(hookErrs, errs...)
	}
	for _, p := range r.agent.Plugins() {
		if p.Err != nil && slices.Contains(hookNames(r.files), p.Name) && !slices.Contains(r.optionalHooks, p.Name) {
			pluginErrs = append(pluginErrs, fmt.Errorf("hook %q cannot be used: %w", p.Name, p.Err))
		}
	}
	if len(pluginErrs) > 0 {
		return wrapStartError(errors.Join(pluginErrs...))
	}
	jobfile.PrintHookErrors(r.streams, hookErrs)
	return nil
}

// checkPluginConfigs rejects a job whose drivers are missing, or whose drivers or hooks do not accept its
// configuration. hookErrs holds the errors of hooks that could not be started.
func (r *foregroundRun) checkPluginConfigs(ctx context.Context, f *jobfile.File) (hookErrs []error, err error) {
	names := slices.AppendSeq(builtins.DriverNames(), maps.Keys(r.agent.Drivers()))
	if good, err := f.CheckSupported(r.streams, names, true); err != nil || !good {
		return nil, errors.Join(errNotStarted, err)
	}
	if good, err := f.CheckDriverConfigs(ctx, r.agent, f.DriverNames(), r.streams); err != nil || !good {
		return nil, errors.Join(errNotStarted, err)
	}
	good, hookErrs, err := f.CheckHookAttachments(ctx, r.agent, r.streams)
	if err != nil || !good {
		return nil, errors.Join(errNotStarted, err)
	}
	return hookErrs, nil
}

// handleSignals stops the job at the first signal, and force kills it at the second. The third exits
// nomad-lite, if the kill is delayed.
func (r *foregroundRun) handleSignals(ctx context.Context) {
	var reason string
	select {
	case s := <-r.signals:
		reason = unix.SignalName(s.(syscall.Signal))
	case <-r.taskView.BrokenPipe:
		reason = "the reader of its output is gone"
	case <-r.allocsEnded:
		return
	}
	r.taskView.PrintMessage("stopping the job; once more to kill it")
	r.stopAllocs(ctx, reason)
	select {
	case <-time.After(cli.DuplicateSignalWindow):
	case <-r.allocsEnded:
		return
	}
	for len(r.signals) > 0 {
		<-r.signals
	}
	select {
	case <-r.signals:
	case <-r.allocsEnded:
		return
	}
	signal.Reset(stopSignals...)
	r.taskView.PrintMessage("killing the job")
	r.agent.ForceKillAllocs()
}
