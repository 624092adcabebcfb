package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
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

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/catalog"
	"github.com/nomad-lite/nomad-lite/plugins/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/agent"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/noderunner"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

const runHelp = `Run a job here, in the foreground, until it ends.

Every group runs, with as many instances as its count says. What the tasks
write goes to stdout and stderr, with the name of the task in front of each
line; where the tasks are in their life goes to stderr. The first Ctrl-C (or
SIGTERM, or SIGHUP) stops the job as Nomad does: leader first, sidecars last,
then the poststop tasks. A second one kills.

Without -data-dir everything is kept in a temporary directory, which is removed
at the end; if nomad-lite itself is killed, so is the job.

Exit codes: 0 the job completed, or was a service and you stopped it; 1 it
failed, or was stopped before it was complete; 2 it was refused, or the command
line made no sense, and nothing of it has run.`

type runOptions struct {
	file     jobFileFlags
	plugins  pluginFlags
	dataDir  string
	logLevel string
}

func newRunCommand(s *streams) *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run [flags] FILE",
		Short: "Run a job here, in the foreground",
		Long:  runHelp,
		Example: `  nomad-lite run web.nomad.hcl
  nomad-lite run -var image=web:2 -var-file prod.hcl web.nomad.hcl
  nomad-lite run -data-dir ./state web.nomad.hcl   keep logs and task directories
  nomad-lite run -plugin-dir ./plugins web.nomad.hcl`,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := oneJobFile(cmd, args); err != nil {
				return refused(err)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return run(cmd.Context(), o, args[0], s)
		},
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		said := flagError(cmd, err)
		if missing := new(pflag.NotExistError); errors.As(err, &missing) {
			said = fmt.Errorf("%w\nTo give a job to an agent: nomad-lite job run", said)
		}
		return refused(said)
	})
	o.file.register(cmd)
	o.plugins.register(cmd)
	cmd.Flags().StringVar(&o.dataDir, "data-dir", "", "keep logs and task directories in this `directory` after the run")
	cmd.Flags().StringVar(&o.logLevel, "log-level", "warn", "how much nomad-lite says about itself: trace, debug, info, warn or error")
	return cmd
}

// stopSignals stop the job. SIGQUIT (Ctrl-\\) is one of them because its default action
// prints the stacks of all goroutines.
var stopSignals = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}

// errRefused is the error of a run that did not start and has printed the reason.
var errRefused = &exitError{code: 2}

// refused returns the error of a run that did not start.
func refused(err error) error {
	var said *exitError
	if errors.As(err, &said) {
		return &exitError{code: 2, err: said.err}
	}
	return &exitError{code: 2, err: err}
}

func run(ctx context.Context, o runOptions, path string, s *streams) error {
	level := hclog.LevelFromString(o.logLevel)
	if level == hclog.NoLevel {
		return refused(fmt.Errorf("log-level %q: use trace, debug, info, warn or error", o.logLevel))
	}
	file, err := o.file.read(s, path, 2)
	if err != nil {
		return err
	}
	if good, err := file.check(s); err != nil || !good {
		return errors.Join(errRefused, err)
	}
	if good, err := file.refuse(s, nil, true); err != nil || !good {
		return errors.Join(errRefused, err)
	}
	for _, warning := range model.ForegroundWarnings(file.job) {
		fmt.Fprintln(s.err, "warning:", warning)
	}
	if o.dataDir != "" {
		if o.dataDir, err = filepath.Abs(o.dataDir); err != nil {
			return refused(err)
		}
	}
	v := newView(s, newScreen(s))
	defer v.close()
	logger := hclog.New(&hclog.LoggerOptions{Name: "nomad-lite", Level: level, Output: v})
	local, err := o.plugins.read(s)
	if err != nil {
		return refused(err)
	}
	plugins, err := local.catalog(append(file.drivers(), file.hooks()...), logger)
	if err != nil {
		return refused(err)
	}

	// From here on a signal must shut down in order what has been started.
	signals, release := awaitSignals()
	defer release()

	config := local.agent(plugins, logger)
	config.DataDir, config.Forget = o.dataDir, true
	// The directories of ended allocations are kept while their output is shown.
	config.GC = noderunner.GC{DiskUsage: 100, InodeUsage: 100}
	a, err := agent.Open(ctx, config)
	if err != nil {
		return refused(err)
	}
	r := &foregroundRun{
		agent: a, file: file, view: v, streams: s, signals: signals,
		dispensable: local.dispensable(),

		seen:  make(map[string]uint64),
		ended: make(chan struct{}),
	}
	return errors.Join(r.run(ctx), a.Close())
}

// awaitSignals returns a channel that receives the signals that end a run, until release is
// called.
func awaitSignals() (signals chan os.Signal, release func()) {
	signals = make(chan os.Signal, 2)
	for _, s := range stopSignals {
		// Signals that were ignored at the start, as by nohup(1) and by shells for jobs in
		// the background, stay ignored.
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
	// With a handler, SIGPIPE becomes a write error, which the view handles. If the run
	// ignored SIGPIPE, the tasks would inherit that.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	return signals, func() {
		signal.Stop(pipe)
		signal.Stop(signals)
	}
}

// foregroundRun is one job on an open agent of this process.
type foregroundRun struct {
	agent   *agent.Agent
	file    *jobFile
	view    *view
	streams *streams
	signals <-chan os.Signal

	dispensable []string // hooks without which tasks run, too

	seen    map[string]uint64 // last shown version of each allocation
	stopped atomic.Bool
	ended   chan struct{} // closed when all allocations of the job have ended
}

func (r *foregroundRun) run(ctx context.Context) error {
	if err := r.agent.Ready(ctx); err != nil {
		return err
	}
	if err := r.awaitDrivers(ctx); err != nil {
		return err
	}
	if err := r.checkPlugins(ctx); err != nil {
		return err
	}
	job := r.file.job
	if err := r.checkRoom(); err != nil {
		return err
	}
	if instances(job) == 0 {
		r.view.note(fmt.Sprintf("job %q has nothing to run: the count of each group is 0", *job.ID))
		return nil
	}

	var background sync.WaitGroup
	defer background.Wait()
	agentCtx, endAgent := context.WithCancel(ctx)
	defer endAgent()
	background.Go(func() { r.agent.Run(agentCtx) })
	select {
	case <-r.agent.Registered():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	// The store is new, so the job's namespace does not exist yet.
	if _, err := r.agent.Store().Update(ctx, func(tx *store.Txn) error {
		tx.PutNamespace(&api.Namespace{Name: *job.Namespace})
		return nil
	}); err != nil {
		return err
	}
	if _, err := r.agent.Scheduler().Register(ctx, inForeground(job), scheduler.RegisterOptions{}); err != nil {
		return refused(err)
	}
	background.Go(func() { r.obey(ctx) })
	return r.watch(ctx)
}

// checkRoom rejects a job that does not fit on this machine as a whole: a foreground run
// does not wait for room.
func (r *foregroundRun) checkRoom() error {
	fits, err := r.file.checkRoom(r.streams, r.agent, scheduler.PortFree)
	if err == nil && !fits {
		err = errRefused
	}
	return err
}

// checkRoom prints which parts of a valid canonical job do not fit on the machine of an
// idle agent. It reports whether the job fits.
func (j *jobFile) checkRoom(s *streams, a *agent.Agent, portFree func(int) bool) (bool, error) {
	node := scheduler.Node{NodeFacts: a.Node().NodeFacts, IP: a.Host().IP}
	heading := fmt.Sprintf("job %q does not fit on this machine:", *j.job.ID)
	if fits, err := j.checkNode(s, heading, node); err != nil || !fits {
		return false, err
	}
	_, err := scheduler.Place(j.job, node, scheduler.Env{
		NewID:    uuid.NewString,
		PortFree: portFree,
		Pick:     rand.IntN,
		Now:      time.Now,
	})
	if err != nil {
		fmt.Fprintf(s.err, "%s\n%v\n", heading, err)
	}
	return err == nil, nil
}

func instances(job *api.Job) int {
	n := 0
	for _, g := range job.TaskGroups {
		n += valueOf(valueOf(g).Count)
	}
	return n
}

// inForeground returns the job as a foreground run executes it: a failed allocation is
// replaced only if the file has a block for that. Nomad's default, one more attempt or
// unlimited attempts, would delay the report of the failure.
func inForeground(job *api.Job) *api.Job {
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

// watch shows the job's updates until all allocations have ended and none will follow, and
// returns how the job ended.
func (r *foregroundRun) watch(ctx context.Context) error {
	job := r.file.job
	shown := make(chan struct{}) // closed when the view has all updates
	var output sync.WaitGroup
	for {
		ws := store.NewWatchSet()
		state := r.agent.Store().Snapshot()
		allocs := state.AllocationsByJob(ws, *job.Namespace, *job.ID)
		evals := state.EvaluationsByJob(ws, *job.Namespace, *job.ID)
		var news []*api.Allocation
		for _, a := range allocs {
			if _, known := r.seen[a.ID]; !known {
				news = append(news, a)
			}
		}
		for _, task := range r.view.show(news, instances(job), r.agent.LogDir) {
			output.Go(func() { r.follow(ctx, task, shown) })
		}
		over := true
		for _, a := range allocs {
			if r.seen[a.ID] != a.ModifyIndex {
				r.seen[a.ID] = a.ModifyIndex
				r.view.update(a.ID, a.TaskStates)
			}
			over = over && agent.Ended(state.Reader, a.ID)
		}
		var queued error
		for _, e := range evals {
			over = over && e.Status != api.EvalStatusPending
			if e.Status == api.EvalStatusBlocked {
				queued = fmt.Errorf("job %q does not fit on this machine: %s", *job.ID, state.Evaluation(nil, e.PreviousEval).StatusDescription)
			}
		}
		if queued != nil && !r.stopped.Load() {
			// Another process has taken the resources since checkRoom.
			r.stop(ctx)
			continue
		}
		if !over {
			if err := ws.WatchCtx(ctx); err != nil {
				return context.Cause(ctx)
			}
			continue
		}
		close(r.ended)
		r.await(func() {
			r.view.showNews()
			close(shown)
			output.Wait()
		})
		return errors.Join(queued, verdict(job, allocs, r.stopped.Load()))
	}
}

// stop requests a stop of all allocations.
func (r *foregroundRun) stop(ctx context.Context) {
	r.stopped.Store(true)
	if _, err := r.agent.Scheduler().Deregister(ctx, scheduler.KeyOf(r.file.job), scheduler.DeregisterOptions{}); err != nil {
		r.view.note("the job cannot be stopped in order: " + err.Error())
		r.agent.Kill()
	}
}

// awaitDrivers waits for plugins of this job that start more slowly than a node would wait
// for. The launch timeout of each plugin limits the wait.
func (r *foregroundRun) awaitDrivers(ctx context.Context) error {
	said := false
	for {
		changed := r.agent.Changed()
		slow := r.slowPlugins()
		if len(slow) == 0 {
			return nil
		}
		if !said {
			r.view.note("waiting for plugin " + strings.Join(slow, ", "))
			said = true
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

// slowPlugins returns the plugins that have not launched yet and that this job may need:
// by its name, or because a driver is missing that such a plugin can provide.
func (r *foregroundRun) slowPlugins() []string {
	wanted := r.file.drivers()
	plugins := r.agent.Plugins()
	missing := slices.ContainsFunc(wanted, func(driver string) bool {
		return !slices.ContainsFunc(plugins, func(p supervisor.Plugin) bool {
			return p.Serves == supervisor.PluginKey{Type: base.TypeDriver, Name: driver}
		})
	})
	var slow []string
	for _, p := range plugins {
		if p.Reported {
			continue
		}
		if missing && p.Serves.Name == "" || slices.Contains(wanted, strings.TrimPrefix(p.Name, catalog.DriverPrefix)) {
			slow = append(slow, p.Name)
		}
	}
	return slow
}

// flushTimeout is the time after which Ctrl-C discards the last output. An earlier signal
// was meant for the job.
const flushTimeout = time.Second

// await waits until the last output is written, or until a signal discards it: a terminal
// or a pager can block it.
func (r *foregroundRun) await(output func()) {
	read := make(chan struct{})
	go func() {
		defer close(read)
		output()
	}()
	select {
	case <-read:
		return
	case <-time.After(flushTimeout):
	}
	for len(r.signals) > 0 {
		<-r.signals
	}
	r.view.note("the last output waits for its reader; once more to give it up")
	select {
	case <-read:
	case <-r.signals:
		r.view.abandon()
	}
}

// checkPlugins rejects the job when a driver or hook that it needs is missing, cannot be
// started, or does not accept the job's configuration.
func (r *foregroundRun) checkPlugins(ctx context.Context) error {
	wanted := r.file.drivers()
	drivers := r.agent.Drivers()
	var broken []error
	for _, name := range wanted {
		if d, ok := drivers[name]; ok && !(d.Detected && d.Healthy) {
			broken = append(broken, fmt.Errorf("driver %q cannot be used: %s", name, d.Description))
		}
	}
	for _, p := range r.agent.Plugins() {
		if p.Err != nil && slices.Contains(wanted, strings.TrimPrefix(p.Name, catalog.DriverPrefix)) {
			broken = append(broken, p.Err)
		}
	}
	if len(broken) > 0 {
		return refused(errors.Join(broken...))
	}
	names := slices.AppendSeq(builtinDrivers(), maps.Keys(drivers))
	if good, err := r.file.refuse(r.streams, names, true); err != nil || !good {
		return errors.Join(errRefused, err)
	}
	if good, err := r.file.askDrivers(ctx, r.agent, wanted, r.streams); err != nil || !good {
		return errors.Join(errRefused, err)
	}
	good, trouble, err := r.file.askHooks(ctx, r.agent, r.streams)
	if err != nil || !good {
		return errors.Join(errRefused, err)
	}
	for _, p := range r.agent.Plugins() {
		if p.Err != nil && slices.Contains(r.file.hooks(), p.Name) && !slices.Contains(r.dispensable, p.Name) {
			broken = append(broken, fmt.Errorf("hook %q cannot be used: %w", p.Name, p.Err))
		}
	}
	if len(broken) > 0 {
		return refused(errors.Join(broken...))
	}
	r.streams.warnOfHooks(trouble)
	return nil
}

// echo is the time in which one signal can arrive twice: timeout(1) sends it to a process
// and to its group, and a shell passes on the SIGHUP of its terminal.
const echo = 100 * time.Millisecond

// obey stops the job at the first signal, and force kills it at the second. The third exits
// nomad-lite, if the kill is delayed.
func (r *foregroundRun) obey(ctx context.Context) {
	select {
	case <-r.signals:
	case <-r.view.unheard:
	case <-r.ended:
		return
	}
	r.view.note("stopping the job; once more to kill it")
	r.stop(ctx)
	select {
	case <-time.After(echo):
	case <-r.ended:
		return
	}
	for len(r.signals) > 0 {
		<-r.signals
	}
	select {
	case <-r.signals:
	case <-r.ended:
		return
	}
	signal.Reset(stopSignals...)
	r.view.note("killing the job")
	r.agent.Kill()
}
