package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/hcl/v2"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/builtin/rawexec"
	"github.com/nomad-lite/nomad-lite/plugins/catalog"
	"github.com/nomad-lite/nomad-lite/runtime/agent"
	"github.com/nomad-lite/nomad-lite/runtime/agent/config"
	"github.com/nomad-lite/nomad-lite/runtime/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/fingerprint"
	"github.com/nomad-lite/nomad-lite/runtime/httpapi"
	"github.com/nomad-lite/nomad-lite/runtime/jobspec/confined"
)

const agentHelp = `Run jobs on this machine, and keep them running.

The agent serves Nomad's HTTP API on 127.0.0.1:4646 and on the unix socket
nomad.sock in its data directory. What it knows is in the data directory:
/var/lib/nomad-lite for root, else $XDG_STATE_HOME/nomad-lite.

Interrupt, SIGTERM and even kill -9 end the agent and leave the tasks running;
the next agent takes them over. To stop a job: nomad-lite job stop. SIGHUP reads
the configuration again: log level, metadata and reservations of the node, and
when what has ended is removed from the disk.

With -dev nothing is kept: when the agent ends, all tasks end, and all files go.

Configuration files are Nomad's, in HCL or JSON. A directory stands for the
files in it. What has no meaning on one machine is named and ignored.`

type agentOptions struct {
	dev       bool
	configs   []string
	dataDir   string
	bind      string
	node      string
	dc        string
	region    string
	nodeClass string
	pluginDir string
	logLevel  string
	logJSON   bool
	printUnit bool
}

func newAgentCommand(s *streams) *cobra.Command {
	var o agentOptions
	cmd := &cobra.Command{
		Use:   "agent [flags]",
		Short: "Run jobs on this machine, and keep them running",
		Long:  agentHelp,
		Example: `  nomad-lite agent -dev                       try it; nothing stays
  nomad-lite agent -config /etc/nomad.d
  nomad-lite agent -print-unit > /etc/systemd/system/nomad-lite.service`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.printUnit {
				return printUnit(s.out, o)
			}
			return runAgent(cmd.Context(), o, s)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.dev, "dev", false, "keep nothing: all ends with the agent; raw_exec is enabled and no token is asked for")
	f.StringArrayVar(&o.configs, "config", nil, "configuration `file` or directory; may be repeated, later ones win")
	f.StringVar(&o.dataDir, "data-dir", "", "keep everything in this `directory`")
	f.StringVar(&o.bind, "bind", "", "`address` to listen on")
	f.StringVar(&o.node, "node", "", "`name` of the node")
	f.StringVar(&o.dc, "dc", "", "`name` of the datacenter")
	f.StringVar(&o.region, "region", "", "`name` of the region")
	f.StringVar(&o.nodeClass, "node-class", "", "`class` of the node")
	f.StringVar(&o.pluginDir, "plugin-dir", "", "take plugins from this `directory`")
	f.StringVar(&o.logLevel, "log-level", "", "how much is logged: trace, debug, info, warn or error")
	f.BoolVar(&o.logJSON, "log-json", false, "log in JSON")
	f.BoolVar(&o.printUnit, "print-unit", false, "print a systemd unit that starts this agent, with these flags")
	return cmd
}

// load reads the configuration: files first, flags over them.
func (o agentOptions) load(s *streams) (*config.Config, error) {
	c, diags := config.Load(o.configs)
	for _, d := range diags {
		kind := "warning"
		if d.Severity == hcl.DiagError {
			kind = "error"
		}
		text := strings.TrimSuffix(d.Summary, ".")
		if d.Detail != "" {
			text += ": " + d.Detail
		}
		if d.Subject != nil {
			text = d.Subject.String() + ": " + kind + ": " + text
		}
		fmt.Fprintln(s.err, text)
	}
	if diags.HasErrors() {
		return nil, &exitError{code: 1}
	}
	for _, flag := range []struct {
		value string
		field *string
	}{
		{o.dataDir, &c.DataDir},
		{o.bind, &c.BindAddr},
		{o.node, &c.Node.Name},
		{o.dc, &c.Node.Datacenter},
		{o.region, &c.Node.Region},
		{o.nodeClass, &c.Node.Class},
		{o.pluginDir, &c.PluginDir},
		{o.logLevel, &c.LogLevel},
	} {
		if flag.value != "" {
			*flag.field = flag.value
		}
	}
	c.LogJSON = c.LogJSON || o.logJSON
	if c.LogLevel == "" {
		c.LogLevel = "info"
	}
	if hclog.LevelFromString(c.LogLevel) == hclog.NoLevel {
		return nil, fmt.Errorf("log-level %q: use trace, debug, info, warn or error", c.LogLevel)
	}
	if o.dev {
		if o.dataDir != "" {
			return nil, errors.New("-dev keeps nothing: leave out -data-dir, or -dev")
		}
		c.DataDir = ""
		return c, nil
	}
	var err error
	if c.DataDir == "" {
		c.DataDir, err = defaultDataDir()
	}
	if err == nil {
		c.DataDir, err = filepath.Abs(c.DataDir)
	}
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	return c, nil
}

// defaultDataDir is where an agent keeps everything unless somebody says
// otherwise.
func defaultDataDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/lib/nomad-lite", nil
	}
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "nomad-lite"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(home, ".local", "state", "nomad-lite"), nil
}

// agentPlugins are the plugins of an agent. What runs commands as they are must
// be enabled by somebody.
func agentPlugins(c *config.Config, dev bool, logger hclog.Logger) (*catalog.Catalog, error) {
	plugins := catalog.Config{Dir: c.PluginDir, Blocks: c.Plugins, Logger: logger}
	for _, name := range builtinNames() {
		named := slices.ContainsFunc(c.Plugins, func(b catalog.Block) bool { return b.Name == name })
		switch {
		case slices.Contains(c.DriverDeny, name), c.DriverAllow != nil && !slices.Contains(c.DriverAllow, name):
			continue
		case name != rawexec.Name && !named:
			continue // it is there for tests
		}
		builtin := catalog.Builtin{Name: name}
		if name == rawexec.Name && (dev || c.RawExec) {
			builtin.Config = map[string]any{"enabled": true}
		}
		plugins.Builtins = append(plugins.Builtins, builtin)
	}
	return catalog.New(plugins)
}

func agentConfig(c *config.Config, plugins *catalog.Catalog, logger hclog.Logger) agent.Config {
	return agent.Config{
		DataDir: c.DataDir,
		Node:    c.Node,
		Limits: allocrunner.Limits{
			MaxKillTimeout: c.MaxKillTimeout, UserDenylist: c.UserDenylist, UserCheckedDrivers: c.UserDrivers,
		},
		GC:      c.GC,
		Records: c.Records,
		Plugins: plugins,
		Version: buildVersion(),
		Logger:  logger,
	}
}

func runAgent(ctx context.Context, o agentOptions, s *streams) (err error) {
	c, err := o.load(s)
	if err != nil {
		return err
	}
	// From here on a signal must end in order what has been started.
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)

	logger := hclog.New(&hclog.LoggerOptions{
		Name: "nomad-lite", Level: hclog.LevelFromString(c.LogLevel), Output: s.err, JSONFormat: c.LogJSON,
	})
	plugins, err := agentPlugins(c, o.dev, logger)
	if err != nil {
		return err
	}
	l, err := listen(c, logger)
	if err != nil {
		return err
	}
	defer l.close()
	open := agentConfig(c, plugins, logger)
	open.Node.HTTPAddr = l.advertise(c)
	a, err := agent.Open(ctx, open)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	if open.Node.HTTPAddr == "" {
		open.Node.HTTPAddr = l.everywhere(a.Host().IP)
		a.Advertise(open.Node.HTTPAddr)
	}
	if err := l.addSocket(a.DataDir()); err != nil {
		return err
	}
	token, err := l.token(c, o.dev, a.DataDir(), s, logger)
	if err != nil {
		return err
	}
	r := &runningAgent{agent: a, options: o, config: c, streams: s, logger: logger, systemd: supervision(), signals: signals}
	r.api = httpapi.New(httpapi.Config{
		Store:     a.Store(),
		Scheduler: a.Scheduler(),
		Node:      a,
		Parser:    confined.New(jobParser),
		NodeID:    a.NodeID(),
		Region:    a.Node().Region,
		Advertise: open.Node.HTTPAddr,
		Self:      r.self,
		Version:   fingerprint.NomadVersion,
		Token:     httpapi.Secret(token),
		Names:     l.names(c, a.Host().Hostname),
		Headers:   c.HTTPHeaders,
		Logger:    logger,
	})
	return r.run(ctx, l)
}

// runningAgent is an agent that is open, and what a person can do to it.
type runningAgent struct {
	agent   *agent.Agent
	api     *httpapi.API
	options agentOptions
	config  *config.Config
	streams *streams
	logger  hclog.Logger
	systemd supervised
	signals <-chan os.Signal
}

func (r *runningAgent) run(ctx context.Context, l *listeners) error {
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	serving, endServing := context.WithCancel(context.WithoutCancel(ctx))
	defer endServing()
	ended := make(chan struct{}) // closed when nothing runs any more

	var background sync.WaitGroup
	var serveErr error
	background.Go(func() {
		if serveErr = r.api.Serve(serving, l.all()...); serveErr != nil {
			stop(allocrunner.ErrShutdown)
		}
	})
	background.Go(func() { r.announce(running, l) })
	background.Go(func() { r.obey(stop, ended) })
	r.agent.Run(running)
	close(ended)
	r.systemd.tell("STOPPING=1")
	endServing()
	background.Wait()
	return serveErr
}

// announce says that the agent is there, once jobs can be placed.
func (r *runningAgent) announce(ctx context.Context, l *listeners) {
	select {
	case <-r.agent.Registered():
		r.systemd.tell("READY=1")
		fmt.Fprintf(r.streams.err, "==> agent is ready: %s, data in %s\n", l, r.agent.DataDir())
	case <-ctx.Done():
	}
}

// obey does what signals ask for, until the agent has ended.
func (r *runningAgent) obey(stop context.CancelCauseFunc, ended <-chan struct{}) {
	for {
		select {
		case s := <-r.signals:
			if s == syscall.SIGHUP {
				r.reload()
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
			r.hurry(ended)
			return
		case <-ended:
			return
		}
	}
}

// stopsTasks decides what becomes of the tasks: they go on, unless nothing is to
// stay, or the operator wants the node drained when it leaves.
func (r *runningAgent) stopsTasks(s os.Signal) bool {
	leaves := s == syscall.SIGINT && r.config.LeaveOnInterrupt || s == syscall.SIGTERM && r.config.LeaveOnTerminate
	return r.options.dev || leaves && r.config.Drain != nil
}

// hurry kills the tasks at the next signal, or when their time is up.
func (r *runningAgent) hurry(ended <-chan struct{}) {
	var deadline <-chan time.Time
	if d := r.config.Drain; d != nil && !r.options.dev {
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
	case <-time.After(echo): // the same one, by another way
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

// reload takes over what may change while the agent runs.
func (r *runningAgent) reload() {
	c, err := r.options.load(r.streams)
	if err != nil {
		r.logger.Error("configuration not reloaded", "error", err)
		return
	}
	r.config.LogLevel = c.LogLevel
	r.logger.SetLevel(hclog.LevelFromString(c.LogLevel))
	r.agent.Reload(c.Node, c.GC)
	r.logger.Info("configuration reloaded")
}

// self is the configuration for everybody to see: what is named here has no
// secrets.
func (r *runningAgent) self() map[string]any {
	c, node := r.config, r.agent.Node()
	var plugins []map[string]any
	for _, p := range r.agent.Plugins() {
		plugins = append(plugins, map[string]any{"Name": p.Name})
	}
	return map[string]any{
		"Region": node.Region, "Datacenter": node.Datacenter, "NodeName": node.Name, "BindAddr": c.BindAddr,
		"DataDir": r.agent.DataDir(), "LogLevel": c.LogLevel, "DevMode": r.options.dev, "PluginDir": c.PluginDir, "Plugins": plugins,
		"LeaveOnInt": c.LeaveOnInterrupt, "LeaveOnTerm": c.LeaveOnTerminate,
		"ACL":     map[string]any{"Enabled": false},
		"Client":  map[string]any{"Enabled": true, "NodeClass": node.Class, "NodePool": node.Pool, "Meta": node.Meta},
		"Server":  map[string]any{"Enabled": true},
		"UI":      map[string]any{"Enabled": false, "ShowCLIHints": false},
		"Version": map[string]any{"Version": fingerprint.NomadVersion, "VersionPrerelease": "", "VersionMetadata": "lite." + buildVersion(), "Revision": ""},
	}
}

// printUnit writes a unit for systemd. Stopping it must stop the agent and leave
// the tasks, whose cgroups are ours to manage.
func printUnit(w io.Writer, o agentOptions) error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the program: %w", err)
	}
	line := []string{program, "agent"}
	add := func(name, value string, isPath bool) error {
		if value == "" {
			return nil
		}
		if isPath {
			if value, err = filepath.Abs(value); err != nil {
				return err
			}
		}
		line = append(line, "-"+name, value)
		return nil
	}
	var errs []error
	for _, c := range o.configs {
		errs = append(errs, add("config", c, true))
	}
	errs = append(errs, add("data-dir", o.dataDir, true), add("bind", o.bind, false), add("node", o.node, false), add("dc", o.dc, false),
		add("region", o.region, false), add("node-class", o.nodeClass, false), add("plugin-dir", o.pluginDir, true), add("log-level", o.logLevel, false))
	if o.logJSON {
		line = append(line, "-log-json")
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for i, word := range line {
		line[i] = unitWord(word)
	}
	_, err = fmt.Fprintf(w, unitText, strings.Join(line, " "))
	return err
}

// unitWord is a word of a command line as systemd reads it.
func unitWord(word string) string {
	escaped := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "%", "%%", "$", "$$").Replace(word)
	if strings.ContainsAny(escaped, " \t\"'\\;") {
		return `"` + escaped + `"`
	}
	return escaped
}

const unitText = `[Unit]
Description=nomad-lite agent
Documentation=https://github.com/nomad-lite/nomad-lite
Wants=network-online.target
After=network-online.target

[Service]
Type=notify
ExecStart=%s
ExecReload=/bin/kill -HUP $MAINPID
# Only the agent is stopped: tasks go on, and so do the processes that watch them.
KillMode=process
KillSignal=SIGINT
TimeoutStopSec=30
Restart=on-failure
RestartSec=2
# The cgroups of the tasks are made by the agent.
Delegate=yes
LimitNOFILE=1048576
LimitNPROC=infinity
TasksMax=infinity
OOMScoreAdjust=-999

[Install]
WantedBy=multi-user.target
`
