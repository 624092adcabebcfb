package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/agentconfig"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/agentsocket"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/cli"
	"github.com/nomad-lite/nomad-lite/plugins/catalog"
	"github.com/nomad-lite/nomad-lite/runtime/agent"
	"github.com/nomad-lite/nomad-lite/runtime/agent/config"
	"github.com/nomad-lite/nomad-lite/runtime/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/hookplugin"
	"github.com/nomad-lite/nomad-lite/runtime/httpapi"
)

// runningAgent is an open agent and the operations on it that signals and the API offer.
type runningAgent struct {
	agent   *agent.Agent
	api     *httpapi.API
	options options
	address string // address of the API for commands
	listen  *listeners
	streams *cli.Streams
	logger  hclog.Logger
	systemd systemdNotifier
	signals <-chan os.Signal

	reloading sync.Mutex // serializes reloads

	mu     sync.Mutex
	config *config.Config // replaced as a whole, never modified
}

// settings returns the current configuration.
func (r *runningAgent) settings() *config.Config {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.config
}

func (r *runningAgent) run(ctx context.Context) error {
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	serving, endServing := context.WithCancel(context.WithoutCancel(ctx))
	defer endServing()
	ended := make(chan struct{}) // closed when the agent has shut down

	var background sync.WaitGroup
	var serveErr error
	background.Go(func() {
		if serveErr = r.api.Serve(serving, r.listen.all()...); serveErr != nil {
			stop(allocrunner.ErrShutdown)
		}
	})
	background.Go(func() { r.announce(running) })
	background.Go(func() { r.handleSignals(stop, ended) })
	r.agent.Run(running)
	close(ended)
	r.systemd.tell("STOPPING=1")
	endServing()
	background.Wait()
	return serveErr
}

// announce prints that the agent is ready, once jobs can be placed.
func (r *runningAgent) announce(ctx context.Context) {
	select {
	case <-r.agent.Node().Registered():
		r.systemd.tell("READY=1")
		fmt.Fprintf(r.streams.Err, "==> agent is ready: %s, data in %s\n", r.listen, r.agent.DataDir())
		if address := r.hidden(); address != "" {
			fmt.Fprintf(r.streams.Err, "    export NOMAD_ADDR=%s\n", address)
		}
	case <-ctx.Done():
	}
}

// hidden returns the address of an agent that commands do not find by default, else "".
func (r *runningAgent) hidden() string {
	switch {
	case slices.Contains(agentsocket.DefaultPaths(), r.listen.socket):
		return ""
	case r.listen.link != "" && agentsocket.Find() == r.listen.link:
		return ""
	case !r.options.dev || r.listen.tcp == nil: // this agent needs no token
		return "unix://" + r.listen.socket
	case r.listen.String() == "http://"+net.JoinHostPort(loopback, strconv.Itoa(defaultHTTPPort)) && agentsocket.Find() == "":
		return ""
	}
	return r.listen.String()
}

// handleSignals handles signals until the agent has shut down.
func (r *runningAgent) handleSignals(stop context.CancelCauseFunc, ended <-chan struct{}) {
	for {
		select {
		case s := <-r.signals:
			if s == syscall.SIGHUP {
				_ = r.reload() // reload has logged the error
				continue
			}
			r.systemd.tell("STOPPING=1")
			if !r.stopsTasks(s) {
				r.logger.Info("agent is ending, tasks go on", "signal", s.String())
				stop(allocrunner.ErrShutdown)
				<-ended
				return
			}
			r.logger.Info("agent is ending, and its tasks with it; once more to kill them", "signal", s.String())
			stop(errors.New("agent stopped"))
			r.forceKill(ended)
			return
		case <-ended:
			return
		}
	}
}

// stopsTasks reports whether a shutdown by this signal stops the tasks. They continue,
// unless the agent leaves nothing behind, or the operator wants the node drained on
// shutdown.
func (r *runningAgent) stopsTasks(s os.Signal) bool {
	c := r.settings()
	leaves := s == syscall.SIGINT && c.LeaveOnInterrupt || s == syscall.SIGTERM && c.LeaveOnTerminate
	return r.options.dev || leaves && c.Drain != nil
}

// forceKill force kills the tasks at the next signal, or when the drain deadline has passed.
func (r *runningAgent) forceKill(ended <-chan struct{}) {
	var deadline <-chan time.Time
	if d := r.settings().Drain; d != nil && !r.options.dev {
		if d.Force {
			r.agent.Kill()
		}
		if d.Deadline > 0 {
			timer := time.NewTimer(d.Deadline)
			defer timer.Stop()
			deadline = timer.C
		}
	}
	select {
	case <-time.After(cli.DuplicateSignalWindow): // the same signal, delivered in another way
	case <-ended:
		return
	}
	for len(r.signals) > 0 {
		<-r.signals
	}
	select {
	case <-r.signals:
	case <-deadline:
	case <-ended:
		return
	}
	r.agent.Kill()
	<-ended
}

// reload applies the settings that can change while the agent runs. It applies none if the
// configuration or a certificate is invalid.
func (r *runningAgent) reload() error {
	r.reloading.Lock()
	defer r.reloading.Unlock()
	c, err := r.options.load(r.streams)
	var plugins *catalog.Catalog
	if err == nil {
		plugins, err = agentconfig.Plugins(c, r.options.dev, r.logger)
	}
	if err == nil {
		err = hookplugin.CheckRules(c.Hooks, plugins.Entries())
	}
	if err == nil && r.listen.certificates != nil {
		err = r.listen.certificates.load(c.TLS, r.logger)
	}
	if err != nil {
		err = fmt.Errorf("configuration not reloaded: %w", err)
		r.logger.Error(err.Error())
		return err
	}
	changed := *r.settings()
	changed.LogLevel, changed.Telemetry, changed.GC, changed.Hooks = c.LogLevel, c.Telemetry, c.GC, c.Hooks
	changed.PluginDir, changed.Plugins = c.PluginDir, c.Plugins
	c.TLS.HTTP = changed.TLS.HTTP // TLS cannot be turned on or off on an open listener
	changed.TLS = c.TLS
	r.mu.Lock()
	r.config = &changed
	r.mu.Unlock()
	r.logger.SetLevel(hclog.LevelFromString(c.LogLevel))
	r.api.SetTelemetry(c.Telemetry)
	r.agent.Reload(c.Node, c.GC, plugins, c.Hooks)
	r.logger.Info("configuration reloaded")
	return nil
}

// JobParserCommand is the name of the process that reads one job file for the API, with
// limits.
const JobParserCommand = "job-parser"
