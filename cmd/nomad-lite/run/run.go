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
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/noderunner"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/variables"
)

const runHelp = `Run a job here, in the foreground, until it ends.

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
		Use:   "run [flags] FILE",
		Short: "Run a job here, in the foreground",
		Long:  runHelp,
		Example: `  nomad-lite run web.nomad.hcl
  nomad-lite run -var image=web:2 -var-file prod.hcl web.nomad.hcl
  nomad-lite run -now backup.nomad.hcl             a periodic job, once
  nomad-lite run -meta to=me mail.nomad.hcl        a parameterized job
  nomad-lite run -env-file dev.env -nomad-var db/main password=x web.nomad.hcl
  nomad-lite run -data-dir ./state web.nomad.hcl   keep logs and task directories
  nomad-lite run -plugin-dir ./plugins web.nomad.hcl`,
		Args: func(cmd *cobra.Command, args []string) error {
			// The flag -nomad-var can have taken the file as its second word.
			_, err := o.environment.parseNomadVars()
			if err == nil {
				err = jobfile.OneFileArg(cmd, args)
			}
			if err != nil {
				return wrapStartError(err)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return run(cmd.Context(), o, args[0], s)
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

func run(ctx context.Context, o options, path string, s *cli.Streams) error {
	level := hclog.LevelFromString(o.logLevel)
	if level == hclog.NoLevel {
		return wrapStartError(fmt.Errorf("log-level %q: use trace, debug, info, warn or error", o.logLevel))
	}
	file, err := o.jobFile.Read(s, path, 2)
	if err != nil {
		return err
	}
	if good, err := file.CheckJob(s); err != nil || !good {
		return errors.Join(errNotStarted, err)
	}
	if err := errors.Join(o.launch.apply(file.Job, s), o.environment.addToTasks(file.Job)); err != nil {
		return wrapStartError(err)
	}
	nomadVars, err := o.environment.parseNomadVars()
	if err != nil {
		return wrapStartError(err)
	}
	if good, err := file.CheckSupported(s, nil, true); err != nil || !good {
		return errors.Join(errNotStarted, err)
	}
	for _, warning := range model.ForegroundRunWarnings(file.Job, len(nomadVars) > 0) {
		fmt.Fprintln(s.Err, "warning:", warning)
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
	plugins, err := local.NewCatalog(append(file.DriverNames(), file.HookNames()...), logger)
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
		agent: a, jobFile: file, taskView: v, streams: s, signals: signals,
		optionalHooks: local.OptionalHookNames(), nomadVars: nomadVars,

		shownModifyIndexes: make(map[string]uint64),
		allocsEnded:        make(chan struct{}),
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

// foregroundRun is one job on an open agent of this process.
type foregroundRun struct {
	agent    *agent.Agent
	jobFile  *jobfile.File
	taskView *taskview.View
	streams  *cli.Streams
	signals  <-chan os.Signal

	optionalHooks []string        // names of the hooks whose failure does not prevent tasks from running
	nomadVars     []*api.Variable // variables for templates

	shownModifyIndexes map[string]uint64      // last shown version of each allocation
	stopReason         atomic.Pointer[string] // nil unless all allocations are being stopped
	allocsEnded        chan struct{}          // closed when all allocations of the job have ended
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
	job := r.jobFile.Job
	if err := r.checkCapacity(); err != nil {
		return err
	}
	if apiclient.DesiredAllocCount(job) == 0 {
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
	if err := r.prepareNamespace(ctx, *job.Namespace); err != nil {
		return err
	}
	if _, err := r.agent.Scheduler().Register(ctx, newForegroundJob(job), scheduler.RegisterOptions{}); err != nil {
		return wrapStartError(err)
	}
	wg.Go(func() { r.handleSignals(ctx) })
	return r.watchAllocs(ctx)
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

// checkCapacity rejects a job that does not fit on this machine as a whole, because a foreground
// run does not wait for free resources.
func (r *foregroundRun) checkCapacity() error {
	fits, err := r.jobFile.CheckCapacity(r.streams, r.agent, hostport.Free)
	if err == nil && !fits {
		err = errNotStarted
	}
	return err
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

// watchAllocs shows the job's updates until all its allocations have ended and none will be
// replaced. It returns the result of the job.
func (r *foregroundRun) watchAllocs(ctx context.Context) error {
	job := r.jobFile.Job
	shown := make(chan struct{}) // closed when the view has shown all updates
	var outputReaders sync.WaitGroup
	for {
		ws := store.NewWatchSet()
		state := r.agent.Store().Snapshot()
		allocs := state.AllocationsByJob(ws, *job.Namespace, *job.ID)
		evals := state.EvaluationsByJob(ws, *job.Namespace, *job.ID)
		var changedAllocs []*api.Allocation
		for _, a := range allocs {
			if _, known := r.shownModifyIndexes[a.ID]; !known {
				changedAllocs = append(changedAllocs, a)
			}
		}
		for _, task := range r.taskView.AddTasks(changedAllocs, apiclient.DesiredAllocCount(job), r.agent.LogDir) {
			outputReaders.Go(func() { r.showTaskOutput(ctx, task, shown) })
		}
		over := true
		for _, a := range allocs {
			if r.shownModifyIndexes[a.ID] != a.ModifyIndex {
				r.shownModifyIndexes[a.ID] = a.ModifyIndex
				r.taskView.QueueUpdate(a.ID, a.TaskStates)
			}
			over = over && state.AllocationEnded(a.ID)
		}
		var blockedErr error
		for _, e := range evals {
			over = over && e.Status != api.EvalStatusPending
			if e.Status == api.EvalStatusBlocked {
				blockedErr = fmt.Errorf("job %q does not fit on this machine: %s", *job.ID, state.Evaluation(nil, e.PreviousEval).StatusDescription)
			}
		}
		if blockedErr != nil && r.stopReason.Load() == nil {
			// The job was checked to fit on the machine, so another process has taken resources
			// since then.
			r.stopAllocs(ctx, "it does not fit")
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
		return errors.Join(blockedErr, r.jobError(allocs))
	}
}

// jobError returns the error of the job, whose allocations have ended, or nil for success.
func (r *foregroundRun) jobError(allocs []*api.Allocation) error {
	stubs := make([]*api.AllocationListStub, len(allocs))
	for i, a := range allocs {
		stubs[i] = a.Stub()
	}
	return taskreason.JobError(r.jobFile.Job, taskreason.FindFailures(r.jobFile.Job, stubs, r.stopReason.Load() != nil))
}

// successText returns why the job has ended without a failure.
func (r *foregroundRun) successText() string {
	id := *r.jobFile.Job.ID
	if reason := r.stopReason.Load(); reason != nil {
		return fmt.Sprintf("job %q was stopped: %s", id, *reason)
	}
	if apiclient.DesiredAllocCount(r.jobFile.Job) == 0 {
		return fmt.Sprintf("job %q has nothing to run: the count of each group is 0", id)
	}
	return taskreason.SuccessText(id)
}

// stopAllocs requests a stop of all allocations.
func (r *foregroundRun) stopAllocs(ctx context.Context, reason string) {
	r.stopReason.CompareAndSwap(nil, &reason)
	if _, err := r.agent.Scheduler().Deregister(ctx, scheduler.KeyOf(r.jobFile.Job), scheduler.DeregisterOptions{}); err != nil {
		r.taskView.PrintMessage("the job cannot be stopped in order: " + err.Error())
		r.agent.ForceKillAllocs()
	}
}

// waitDriversReady waits until all plugins that the job may need are ready, also those that start too
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
	wanted := r.jobFile.DriverNames()
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

// checkPlugins rejects the job when a driver or hook that it needs is missing, cannot be
// started, or does not accept the job's configuration.
func (r *foregroundRun) checkPlugins(ctx context.Context) error {
	wanted := r.jobFile.DriverNames()
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
	names := slices.AppendSeq(builtins.DriverNames(), maps.Keys(drivers))
	if good, err := r.jobFile.CheckSupported(r.streams, names, true); err != nil || !good {
		return errors.Join(errNotStarted, err)
	}
	if good, err := r.jobFile.CheckDriverConfigs(ctx, r.agent, wanted, r.streams); err != nil || !good {
		return errors.Join(errNotStarted, err)
	}
	good, trouble, err := r.jobFile.CheckHookAttachments(ctx, r.agent, r.streams)
	if err != nil || !good {
		return errors.Join(errNotStarted, err)
	}
	for _, p := range r.agent.Plugins() {
		if p.Err != nil && slices.Contains(r.jobFile.HookNames(), p.Name) && !slices.Contains(r.optionalHooks, p.Name) {
			pluginErrs = append(pluginErrs, fmt.Errorf("hook %q cannot be used: %w", p.Name, p.Err))
		}
	}
	if len(pluginErrs) > 0 {
		return wrapStartError(errors.Join(pluginErrs...))
	}
	jobfile.PrintHookErrors(r.streams, trouble)
	return nil
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
