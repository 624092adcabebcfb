package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/agentconfig"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/agentsocket"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/extras"
	"github.com/nomad-lite/nomad-lite/internal/datadir"
	"github.com/nomad-lite/nomad-lite/internal/redact"
	"github.com/nomad-lite/nomad-lite/internal/safepath"
	"github.com/nomad-lite/nomad-lite/internal/shellquote"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/runtime/agent"
	"github.com/nomad-lite/nomad-lite/runtime/agent/collect"
	"github.com/nomad-lite/nomad-lite/runtime/agent/datadirectory"
	"github.com/nomad-lite/nomad-lite/runtime/agent/httpapi"
	"github.com/nomad-lite/nomad-lite/runtime/agent/otlp"
	"github.com/nomad-lite/nomad-lite/runtime/agent/ui"
	"github.com/nomad-lite/nomad-lite/runtime/job/jobspec/confined"
)

const agentHelp = `Run an agent, which runs jobs on this machine and restarts their tasks.

The agent serves Nomad's HTTP API on 127.0.0.1:4646 and on the unix socket
nomad.sock in its data directory. What it knows is in the data directory:
/var/lib/nomad-lite for root, else $XDG_STATE_HOME/nomad-lite.

Interrupt, SIGTERM and even kill -9 end the agent and leave the tasks running;
the next agent takes them over. To stop a job: nomad-lite job stop. To kill all
processes of a data directory, including processes that do not respond:
nomad-lite agent stop -all. SIGHUP reads the configuration again: log level,
certificates, telemetry, metadata and reservations of the node, plugin and hook
blocks, and when ended allocations are removed from the disk.

With -detach the command starts the agent in the background, prints its process id,
and returns when jobs can be placed, or with the error of the start; then no agent
runs. The agent appends its output to agent.log in its data directory, or to the
file of -log-file, which it does not rotate. For an agent that starts with the machine: -print-unit.

With -dev nothing is kept: when the agent ends, all tasks end, and all files go.
Jobs get the address 127.0.0.1, unless -network-interface or the configuration
names an interface.
Commands of the same user find its unix socket, and clients over TCP must show
the token in the file that the agent names. As root it serves the socket only,
unless -bind or the configuration names an address or a port, or disables acl.

Configuration files are Nomad's, in HCL or JSON. A directory stands for the
files in it. What has no meaning on one machine is named and ignored.`

type options struct {
	devMode                 bool
	configPaths             []string
	dataDir                 string
	bindAddr                string
	node                    nodeOptions
	servers                 []string
	introductionToken       string
	pluginDir               string
	logLevel                string
	logJSON                 bool
	logSourceLocation       bool
	printSystemdUnit        bool
	printServices           bool
	detach                  detachOptions
	endTasksWithoutRecord   bool
	adoptTasksWithoutRecord bool
	claimTasksOfCopiedDir   bool
	rejectWarnings          bool // a warning about the configuration is an error; no flag of this command sets it
}

// nodeOptions describe the node.
type nodeOptions struct {
	name, datacenter, region, class, pool string
	meta                                  map[string]string
	networkInterface                      string
}

// NewCommand returns the command "agent".
func NewCommand(s *cli.Streams) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "agent [flags]",
		Short: "Run an agent, which runs jobs on this machine",
		Long:  agentHelp,
		Example: `  nomad-lite agent -dev                       try it; nothing stays
  nomad-lite agent -config /etc/nomad.d
  nomad-lite agent -detach                    in the background; returns when it is ready
  nomad-lite agent -print-unit > /etc/systemd/system/nomad-lite.service`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.printSystemdUnit {
				return writeSystemdUnit(s.Out, cmd.Flags())
			}
			if o.detach.enabled {
				return startDetached(cmd.Context(), o, cmd.Flags(), s)
			}
			if o.detach.logFile != "" {
				fmt.Fprintln(s.Err, "warning: -log-file has no effect without -detach: the log is written to standard error; systemd passes it to the journal")
			}
			return runAgent(cmd.Context(), o, s)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.devMode, "dev", false, "keep nothing: all ends with the agent; raw_exec is enabled")
	f.StringArrayVar(&o.configPaths, "config", nil, "configuration `file` or directory; may be repeated, later ones win")
	f.StringVar(&o.dataDir, "data-dir", "", "keep everything in this `directory`")
	f.StringVar(&o.bindAddr, "bind", "", "`address` to listen on")
	f.StringVar(&o.node.name, "node", "", "`name` of the node")
	f.StringVar(&o.node.datacenter, "dc", "", "`name` of the datacenter")
	f.StringVar(&o.node.region, "region", "", "`name` of the region")
	f.StringVar(&o.node.class, "node-class", "", "`class` of the node")
	f.StringVar(&o.node.pool, "node-pool", "", "`name` of the pool that the node is in")
	f.StringSliceVar(&o.servers, "servers", nil, "join the cluster of these servers, `host:port,...`; may be repeated")
	f.StringVar(&o.introductionToken, "client-intro-token", os.Getenv("NOMAD_CLIENT_INTRO_TOKEN"), "`token` with which the node registers with servers for the first time")
	f.Lookup("client-intro-token").DefValue = ""
	f.StringToStringVar(&o.node.meta, "meta", nil, "metadata of the node, as `name=value`; may be repeated")
	f.StringVar(&o.node.networkInterface, "network-interface", "", "`name` of the interface whose address tasks get (with -dev, lo)")
	f.StringVar(&o.pluginDir, "plugin-dir", "", "take plugins from this `directory`")
	f.StringVar(&o.logLevel, "log-level", "", "how much is logged: trace, debug, info, warn or error")
	f.BoolVar(&o.logJSON, "log-json", false, "log in JSON")
	f.BoolVar(&o.logSourceLocation, "log-include-location", false, "say where in the program each line of the log comes from")
	f.BoolVar(&o.claimTasksOfCopiedDir, "claim-tasks", false, "make a data directory that is a copy the owner of the running tasks in its state")
	f.BoolVar(&o.adoptTasksWithoutRecord, "adopt-unknown", false, "take over the tasks that run in the data directory and whose jobs the state has lost, with their jobs")
	f.BoolVar(&o.endTasksWithoutRecord, "end-unknown", false, "end the tasks that run in the data directory and that the state has lost")
	f.BoolVar(&o.printSystemdUnit, "print-unit", false, "print a systemd unit that starts this agent, with these flags")
	f.BoolVar(&o.printServices, "services", false, "print the services of the agent, and how long each took to open, when the agent is ready")
	f.BoolVar(&o.detach.enabled, "detach", false, "start the agent in the background, and return when it is ready")
	f.DurationVar(&o.detach.timeout, "detach-timeout", time.Minute, "`duration` that the agent has to become ready, with -detach")
	f.StringVar(&o.detach.logFile, "log-file", "", "`file` to which the agent appends its output, with -detach")
	cmd.MarkFlagsMutuallyExclusive("adopt-unknown", "end-unknown")
	for _, name := range []string{"dev", "adopt-unknown", "end-unknown", "claim-tasks", "detach"} {
		cmd.MarkFlagsMutuallyExclusive("print-unit", name) // systemd would give the order to each start of the agent
	}
	cmd.AddCommand(newStopCommand(s))
	return cmd
}

func runAgent(ctx context.Context, o options, s *cli.Streams) (err error) {
	started := time.Now()
	readyPipe := takeReadyPipeFromEnv()
	c, err := o.loadConfig(false, s)
	if err != nil {
		return err
	}
	// Signals are caught before the agent starts, so that a signal always shuts it down in order.
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	// A signal also ends the waits for what a killed agent still has: its port and its locks.
	waiting, release := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer release()

	secrets := redact.NewShared()
	logger := newLogger(c, secrets, s)
	plugins, err := agentconfig.NewPluginCatalog(c, o.devMode, logger)
	if err != nil {
		return err
	}
	l, err := newAPIListeners(c, o.devMode, logger)
	if err != nil {
		return err
	}
	defer l.closeAndRemoveSocketFiles()
	open := agentconfig.New(c, plugins, logger)
	traces, exportedMetrics := agentconfig.TraceAndMetricExportConfigs(c, logger)
	usageHistory := new(extras.UsageHistory)
	open.Extensions = extras.AppendTraceExport([]agent.Extension{usageHistory}, traces)
	open.EndTasksWithoutRecord, open.AdoptTasksWithoutRecord, open.ClaimTasksOfCopiedDataDir = o.endTasksWithoutRecord, o.adoptTasksWithoutRecord, o.claimTasksOfCopiedDir
	open.Secrets = secrets
	open.Cluster = agentconfig.ClusterConfig(c)
	open.Node.APIUsesTLS = l.certificates != nil
	if l.certificates != nil {
		open.Certificates = l.certificates.current
	}
	if shouldServeTCP(c, o.devMode) {
		open.OnKeeperRunning = func(ctx context.Context, k *keeper.Client) error { return l.listenTCP(ctx, k, c, logger) }
	}
	a, err := agent.Open(waiting, open)
	if err != nil {
		return addRemedyForCopiedDataDir(err)
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	advertisedAddress := ""
	if open.Cluster == nil || l.otherNodesCanConnect(c) { // commands on other machines would connect to their own loopback address
		advertisedAddress = cmp.Or(l.advertisedTCPAddress(c), l.tcpAddressWithIP(a.Host().IP))
		a.Node().SetAdvertisedHTTPAddr(advertisedAddress)
	}
	if public := a.PublicAddressesOfPorts(); len(public) > 0 && a.StoredNodeIP() != a.Host().IP {
		agentconfig.WarnOfPublicAddresses(logger, public)
	}
	if err := l.addUnixSocket(a.DataDir(), c.SocketGroup, logger); err != nil {
		return err
	}
	if o.devMode {
		dir := datadir.Temporary(os.Geteuid())
		if err := safepath.CheckDir(dir); err != nil {
			logger.Warn("commands find this agent only with NOMAD_ADDR", "error", err)
		} else if err := l.addSocketLinkUnlessServed(filepath.Join(dir, agentsocket.FileName)); err != nil {
			return err
		}
	}
	l.taskAPISocketListener = l.connLimiter.LimitListener(a.TaskAPIListener())
	token, readToken, err := l.loadOrMakeTokens(c, a.DataDir(), s, logger)
	if err != nil {
		return err
	}
	r := &runningAgent{
		agent: a, flags: o, advertisedTCPAddress: advertisedAddress, listeners: l, config: c, streams: s, logger: logger,
		systemdNotifier: takeSystemdNotifierFromEnv(), readyPipe: readyPipe, receivedSignals: signals,
	}
	r.metricsCollector = collect.New(a.Store(), collect.Sources{
		Allocs: a.Allocs(), HostStats: a.HostSampler().Sample, Plugins: a.Supervisor().Plugins, Conditions: a.Conditions(),
		Keeper: a.Keeper(), LogCollector: a.LogCollector(),
	}, a.Node().ID())
	r.metricsCollector.SetSettings(c.Telemetry)
	if exportedMetrics.IsExportEnabled() {
		node := a.Node().TaskEnvNode()
		r.metricsExporter, err = otlp.NewMetricsExporter(exportedMetrics, otlp.AgentFacts{
			Version: open.Version, NodeID: node.ID, NodeName: node.Name, Datacenter: node.Datacenter, Region: node.Region, HostName: a.Host().Hostname,
		}, started, logger)
		if err != nil {
			return err
		}
		defer r.metricsExporter.Close()
	}
	writeSnapshot := func(ctx context.Context, omitKeys bool) (*os.File, error) {
		f, _, err := a.WriteSnapshot(ctx, omitKeys)
		return f, err
	}
	apiConfig := a.APIConfig()
	apiConfig.History = usageHistory
	apiConfig.Metrics, apiConfig.JobParser = r.metricsCollector, confined.NewChildProcessParser("nomad-lite", JobParserCommand)
	apiConfig.AdvertiseAddr, apiConfig.AcceptedHostNames = advertisedAddress, l.acceptedHostNames(c, a.Host().Hostname)
	apiConfig.AgentFuncs = httpapi.AgentFuncs{ConfigWithoutSecrets: r.configForAPI, Reload: r.reloadConfig, WriteSnapshot: writeSnapshot, DescribePlugins: func() any { return r.pluginReport() }, PluginsChanged: a.Supervisor().InfoChanged, RestartPlugin: a.Supervisor().Restart}
	apiConfig.MonitoredLog, apiConfig.Secrets = logger, secrets
	apiConfig.OptionalRoutes = httpapi.OptionalRoutes{EnableDebug: c.EnableDebug, DisableWebPage: c.DisableWebPage, WebPageLabel: ui.Label(c.WebPageLabel), DisableEventStream: c.DisableEventStream}
	apiConfig.Search = httpapi.SearchLimits(c.Search)
	apiConfig.OperatorToken, apiConfig.ReadOnlyToken, apiConfig.DisableRemoteExec = token, readToken, c.DisableRemoteExec
	apiConfig.AccessControl = newAccessControl(c, a.Store(), a.DataDir(), logger)
	if apiConfig.AuditLog, err = openAuditLog(c, a.DataDir(), logger); err != nil {
		return err
	}
	apiConfig.ReplyHeaders, apiConfig.TLSHandshakeTimeout = c.HTTPHeaders, c.TLSHandshakeTimeout
	r.api = httpapi.New(apiConfig)
	a.Cluster().SetAPI(r.api.HandlerWithAllRights(), a.Allocs().AllocRunner)
	return r.runUntilStopped(ctx)
}

// addRemedyForCopiedDataDir adds to an error about a data directory that is a copy of another one what the operator can
// do.
func addRemedyForCopiedDataDir(err error) error {
	var copyErr *datadirectory.CopyError
	if !errors.As(err, &copyErr) {
		return err
	}
	remedy := "If no agent will run there again, start this agent once with -claim-tasks, which makes this directory the owner of the tasks"
	if copyErr.OwnerAgentPID != 0 {
		remedy = fmt.Sprintf("The agent with pid %d runs there: stop it, if this directory must become the owner of its tasks", copyErr.OwnerAgentPID)
	}
	return fmt.Errorf("%w\n%s. To see the state: nomad-lite operator state inspect %s", err, remedy, shellquote.Quote(copyErr.CopyDir))
}
