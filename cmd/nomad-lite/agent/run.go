package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/agentconfig"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/agentsocket"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
	"github.com/nomad-lite/nomad-lite/runtime/agent"
	"github.com/nomad-lite/nomad-lite/runtime/agent/clusternode"
	"github.com/nomad-lite/nomad-lite/runtime/agent/collect"
	"github.com/nomad-lite/nomad-lite/runtime/agent/config"
	"github.com/nomad-lite/nomad-lite/runtime/agent/httpapi"
	"github.com/nomad-lite/nomad-lite/runtime/agent/otlp"
	"github.com/nomad-lite/nomad-lite/runtime/core/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/pluginhooks"
)

// runningAgent is a started agent with its API, its listeners and its configuration. It handles signals and reloads.
type runningAgent struct {
	agent                *agent.Agent
	api                  *httpapi.API
	metricsCollector     *collect.MetricsCollector
	metricsExporter      *otlp.MetricsExporter // nil if no metrics are exported
	flags                options
	advertisedTCPAddress string // TCP address at which clients reach the API; "" without TCP
	listeners            *apiListeners
	streams              *cli.Streams
	logger               hclog.Logger
	systemdNotifier      systemdNotifier
	readyPipe            readyPipe
	receivedSignals      <-chan os.Signal

	reloadMu sync.Mutex // serializes reloads

	configMu sync.Mutex
	config   *config.Config // replaced as a whole by a reload, never modified

	descriptionsByPluginPID sync.Map // pid of a plugin process -> *supervisor.Description, which never changes while the process runs
}

// currentConfig returns the configuration of the last reload.
func (r *runningAgent) currentConfig() *config.Config {
	r.configMu.Lock()
	defer r.configMu.Unlock()
	return r.config
}

// runUntilStopped runs the agent and serves its API until a signal, ctx or an error of the API shuts the agent down.
func (r *runningAgent) runUntilStopped(ctx context.Context) error {
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	serving, endServing := context.WithCancel(context.WithoutCancel(ctx))
	defer endServing()
	ended := make(chan struct{}) // closed when the agent has shut down

	var wg sync.WaitGroup
	var serveErr error
	wg.Go(func() {
		if serveErr = r.api.Serve(serving, r.listeners.allListeners()...); serveErr != nil {
			stop(allocrunner.ErrShutdown)
		}
	})
	wg.Go(func() { r.announceWhenReady(running) })
	wg.Go(func() { r.pushMetrics(running) })
	wg.Go(func() { r.handleSignals(running, stop, ended) })
	r.agent.Run(running)
	close(ended)
	r.systemdNotifier.notify("STOPPING=1")
	endServing()
	wg.Wait()
	return serveErr
}

// announceWhenReady waits until jobs can be placed, and then prints that the agent is ready.
func (r *runningAgent) announceWhenReady(ctx context.Context) {
	select {
	case <-r.agent.Node().Registered():
		message := fmt.Sprintf("==> agent is ready: %s, data in %s\n", r.listeners, r.agent.DataDir())
		if address := r.nomadAddrToExport(); address != "" {
			message += fmt.Sprintf("    export NOMAD_ADDR=%s\n", address)
		}
		if r.currentConfig().LogJSON { // every line of standard error must be JSON
			r.logger.Info("agent is ready", "addresses", r.listeners.String(), "data_dir", r.agent.DataDir())
		} else {
			fmt.Fprint(r.streams.Err, message)
		}
		if r.flags.printServices {
			r.printServices()
		}
		// A script that waits for the agent can read the line in its log next.
		r.systemdNotifier.notify("READY=1")
		r.readyPipe.announce(message)
	case <-ctx.Done():
	}
}

// printServices prints the agent's services in the order in which they were opened.
func (r *runningAgent) printServices() {
	table := output.NewTable("Service", "Opened in")
	for _, s := range r.agent.Services() {
		duration := ""
		if s.Duration > 0 {
			duration = s.Duration.Round(10 * time.Microsecond).String()
		}
		table.AddRow(s.Name, duration)
	}
	page := output.NewPage(r.streams)
	page.AddTable(table)
	_ = output.PrintPage(r.streams, page) // a closed standard output must not end the agent
}

// pushMetrics sends metrics to the configured sinks. It starts when the node is registered, because metrics have labels
// with properties of the node.
func (r *runningAgent) pushMetrics(ctx context.Context) {
	select {
	case <-r.agent.Node().Registered():
		var wg sync.WaitGroup
		if r.metricsExporter != nil {
			wg.Go(func() { r.metricsCollector.PushOTLP(ctx, r.metricsExporter) })
		}
		r.metricsCollector.PushToSinks(ctx, r.logger.Named("metrics"))
		wg.Wait()
	case <-ctx.Done():
	}
}

// nomadAddrToExport returns the agent's address for NOMAD_ADDR, or "" if commands find the agent without it.
func (r *runningAgent) nomadAddrToExport() string {
	l := r.listeners
	if slices.Contains(agentsocket.DefaultSocketPaths(), l.unixSocketPath) || l.unixSocketLinkPath != "" && agentsocket.FindConnectableSocket() == l.unixSocketLinkPath {
		return ""
	}
	return "unix://" + l.unixSocketPath // where commands need no token
}

// handleSignals reloads the configuration for SIGHUP, and shuts the agent down by stop, which ends running, for any other
// signal. It returns when agentEnded is closed.
func (r *runningAgent) handleSignals(running context.Context, stop context.CancelCauseFunc, agentEnded <-chan struct{}) {
	for {
		select {
		case s := <-r.receivedSignals:
			if s == syscall.SIGHUP {
				_ = r.reloadConfig() // reloadConfig has logged the error
				continue
			}
			r.systemdNotifier.notify("STOPPING=1")
			stopsTasks := r.shutdownStopsTasks(s)
			if stopsTasks && !r.flags.devMode && r.currentConfig().Cluster.IsNode() {
				r.drainNodeUntilSignal(running, s)
				stopsTasks = false // the servers have stopped what they have moved
			}
			if !stopsTasks {
				r.logger.Info("agent is shutting down, tasks continue", "signal", s.String())
				stop(allocrunner.ErrShutdown)
				<-agentEnded
				return
			}
			r.logger.Info("agent is shutting down and stops its tasks; another signal kills them", "signal", s.String())
			stop(errors.New("agent stopped"))
			r.forceKillOnSignalOrDeadline(agentEnded)
			return
		case <-agentEnded:
			return
		}
	}
}

// shutdownStopsTasks reports whether a shutdown by this signal stops the tasks. It does so in
// development mode, or if the operator has configured that the signal drains the node.
func (r *runningAgent) shutdownStopsTasks(s os.Signal) bool {
	c := r.currentConfig()
	leaves := s == syscall.SIGINT && c.LeaveOnInterrupt || s == syscall.SIGTERM && c.LeaveOnTerminate
	return r.flags.devMode || leaves && c.DrainOnExit != nil
}

// forceKillOnSignalOrDeadline force kills the tasks at the next signal, or when the deadline of drain_on_shutdown has
// passed. It returns when agentEnded is closed.
func (r *runningAgent) forceKillOnSignalOrDeadline(agentEnded <-chan struct{}) {
	var drainDeadline <-chan time.Time
	if d := r.currentConfig().DrainOnExit; d != nil && !r.flags.devMode {
		if d.StopAllAtOnce {
			r.agent.Allocs().ForceKillAllAllocs()
		}
		if d.Deadline > 0 {
			timer := time.NewTimer(d.Deadline)
			defer timer.Stop()
			drainDeadline = timer.C
		}
	}
	if r.waitFurtherSignal(drainDeadline, agentEnded) {
		r.agent.Allocs().ForceKillAllAllocs()
		<-agentEnded
	}
}

// waitFurtherSignal blocks until a signal that is no duplicate of the first one, until a value of deadline, or until done is closed.
// It reports whether done was open.
func (r *runningAgent) waitFurtherSignal(deadline <-chan time.Time, done <-chan struct{}) bool {
	select {
	case <-time.After(cli.DuplicateSignalWindow): // a signal before this time is a duplicate of the first one
	case <-done:
		return false
	}
	for len(r.receivedSignals) > 0 {
		<-r.receivedSignals
	}
	select {
	case <-r.receivedSignals:
	case <-deadline:
	case <-done:
		return false
	}
	return true
}

// drainNodeUntilSignal lets the servers of the cluster drain this node as drain_on_shutdown says. It blocks until the node is
// drained, until the next signal, or until running ends.
func (r *runningAgent) drainNodeUntilSignal(running context.Context, received os.Signal) {
	d := r.currentConfig().DrainOnExit
	r.logger.Info("agent is shutting down: the servers drain this node first; another signal ends the wait", "signal", received.String())
	ctx, cancel := context.WithCancelCause(running)
	defer cancel(nil)
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		if err := r.agent.Cluster().Drain(ctx, clusternode.DrainOptions{Deadline: d.Deadline, Force: d.StopAllAtOnce, IgnoreSystemJobs: d.IgnoreSystemJobs}); err != nil {
			r.logger.Warn("this node is not drained, its tasks continue", "error", err)
		}
	}()
	if r.waitFurtherSignal(nil, drained) {
		cancel(errors.New("another signal has ended the wait"))
		<-drained
	}
}

// reloadConfig reads the configuration again, and applies the settings that can change while the agent runs. If the
// configuration or a certificate is invalid, it changes nothing.
func (r *runningAgent) reloadConfig() error {
	r.reloadMu.Lock()
	defer r.reloadMu.Unlock()
	c, err := r.flags.loadConfig(true, r.streams)
	if _, printed := errors.AsType[*cli.ExitError](err); printed {
		err = errors.New("its files have errors, which the lines before this one in the log name")
	}
	var pluginCatalog *catalog.Catalog
	if err == nil {
		agentconfig.KeepWaysIn(c, r.currentConfig())
		pluginCatalog, err = agentconfig.NewPluginCatalog(c, r.flags.devMode, r.logger)
	}
	if err == nil {
		err = pluginhooks.CheckRulesAgainstCatalog(c.HookRules, pluginCatalog.Entries())
	}
	if err == nil && r.listeners.certificates != nil {
		err = r.listeners.certificates.loadFiles(c.TLS, !c.Cluster.IsNode(), r.logger)
	}
	if err == nil {
		err = r.agent.Cluster().ReloadCertificates()
	}
	if err != nil {
		err = fmt.Errorf("configuration not reloaded: %w", err)
		r.logger.Error(err.Error())
		r.agent.AddNodeEvent("Configuration", err.Error())
		return err
	}
	changed := *r.currentConfig()
	if !reflect.DeepEqual(c.OTLP, changed.OTLP) {
		r.logger.Warn("the change of the block otlp in telemetry has an effect after a restart of the agent")
	}
	changed.LogLevel, changed.Telemetry, changed.GC, changed.HookRules = c.LogLevel, c.Telemetry, c.GC, c.HookRules
	changed.PluginDir, changed.Plugins = c.PluginDir, c.Plugins
	changed.TLS = c.TLS
	r.configMu.Lock()
	r.config = &changed
	r.configMu.Unlock()
	r.logger.SetLevel(hclog.LevelFromString(c.LogLevel))
	r.metricsCollector.SetSettings(c.Telemetry)
	r.agent.Reload(c.Node, c.GC, pluginCatalog, c.HookRules)
	r.logger.Info("configuration reloaded")
	return nil
}

// JobParserCommand is the name of the hidden command that parses one job file for the API, in a process with resource
// limits.
const JobParserCommand = "job-parser"
