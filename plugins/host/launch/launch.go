package launch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	plugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/redact"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/device"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/hook/hookwire"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
)

// Keeper starts the process, so that it is not a child of the agent, and stores the
// descriptors that must outlive the agent. *keeper.Client implements it.
type Keeper interface {
	Spawn(context.Context, keeper.Command) (osprocess.ID, error)
	KeepProcessAfterDisconnect(context.Context, osprocess.ID) error
	Wait(context.Context, osprocess.ID) (osprocess.ExitStatus, error)
	StoreFDDrainedWithoutAgent(ctx context.Context, key string, f *os.File) error
	DuplicateStoredFD(key string) (*os.File, error)
	RemoveFD(ctx context.Context, key string) error
	SameExecutable(context.Context, osprocess.ID, *os.File) (bool, error)
}

// Config describes the plugin to start and how to connect to it.
type Config struct {
	// Name is the plugin's name in errors and in the log.
	Name string

	// Path names the file in errors. It is executed if Executable is nil.
	Path string

	// Executable is the checked file, which is executed by its descriptor.
	Executable *os.File

	Argv    []string // arguments of the process, with argv[0]
	Env     []string // environment of the process, see PluginEnviron; Start adds the variables of the handshake
	WorkDir string   // working directory of the process; "" means "/"

	// SocketDir is a private directory (0700) for the plugins' sockets. It may
	// be shared by all plugins, and must not be longer than MaxSocketDirLen.
	SocketDir string

	Keeper Keeper

	// ConfigBlock is the plugin's config block, in the form that hclspec decodes; nil means that
	// there is none. ConfigBlockPosition is the position of the block, for errors.
	ConfigBlock         map[string]any
	ConfigBlockPosition string

	// DriverConfig is the information about this machine that a driver gets; nil means that it
	// gets none.
	DriverConfig *base.ClientDriverConfig

	// HookConfig is the configuration that a hook gets: the socket of the agent, and data about the node.
	HookConfig hook.Config

	// Secrets are removed from what the plugin writes to its stderr; nil for none.
	Secrets *redact.Values

	// Logger gets the plugin's log under the plugin's name. Nil discards the log.
	Logger hclog.Logger

	// LoggedPanics records the panics that were logged with their stacks. Nil means that each panic is logged with its
	// stack.
	LoggedPanics *LoggedPanics

	// OnSpawn is called when the process has been started, before it is used, with the data that KillRecorded needs if this
	// process and the keeper die during the launch. It may be nil.
	OnSpawn func(ReattachConfig)

	// AfterCall is called after each unary call of the plugin: see basewire.CallStatsCollector. It may be nil.
	AfterCall func(method string, d time.Duration, failed bool)

	// HandshakeTimeout is the maximum time until the plugin writes its handshake line; 0 means
	// one minute. LaunchCallTimeout is the timeout of each call during the launch; 0 means 30
	// seconds.
	HandshakeTimeout  time.Duration
	LaunchCallTimeout time.Duration
}

const (
	defaultStartTimeout = time.Minute
	defaultCallTimeout  = 30 * time.Second

	shutdownTimeout = 2 * time.Second        // timeout of each of the two Shutdown calls
	exitGracePeriod = 2 * time.Second        // time between the Shutdown calls and the kill
	reapTimeout     = 2 * time.Second        // timeout of the request to the keeper for the exit status
	drainTimeout    = 300 * time.Millisecond // maximum wait for the last output of a process that has exited
)

// MaxSocketDirLen is the maximum length of Config.SocketDir in bytes: a socket address holds 107
// bytes.
const MaxSocketDirLen = 80

// Plugin is one running plugin process. Its methods may be called concurrently. The caller
// must call Stop, Close or Detach in the end.
type Plugin struct {
	cfg                Config
	logger             hclog.Logger
	goPluginClient     *plugin.Client
	conn               *grpc.ClientConn
	proc               *processHandle
	handshake          handshake
	peerVerified       atomic.Bool // handshake.addr is a unix socket on which the plugin itself listens
	info               base.Info
	apiVersion         string
	serviceClients     serviceClients
	output             processOutput
	callStatsCollector basewire.CallStatsCollector

	released chan struct{} // closed by releaseResources; go-plugin's runner then stops waiting for the process
	exit     processExit

	wg          sync.WaitGroup
	releaseOnce sync.Once

	mu          sync.Mutex
	initialConn net.Conn // the verified connection, which takeInitialConnOrDial returns to gRPC first
}

// processExit has the reason why a plugin process has exited.
type processExit struct {
	errSet chan struct{} // closed when err is set
	err    error
}

// processOutput holds the stdout and stderr of a plugin process.
type processOutput struct {
	stdoutAndStderrReadEnds [2]*os.File   // the agent's read ends of the pipes for stdout and stderr
	keeperFDKeyPrefix       string        // prefix of the keys under which the keeper stores the read ends
	stderrTail              stderrTail    // last lines of stderr
	stderrEOF               chan struct{} // closed when stderr has ended

	mu              sync.Mutex
	firstStdoutLine []byte // the first line of stdout, as far as the plugin has written it
}

// Start starts a plugin and initialises it. It blocks until the plugin is ready. After an
// error the process is killed and all resources are released; the error names the plugin
// and describes what the plugin did. The end of ctx cancels the launch, but does not affect a
// plugin that Start has returned.
func Start(ctx context.Context, cfg Config) (*Plugin, error) {
	p, err := attemptStart(ctx, cfg)
	if errors.Is(err, keeper.ErrKeeperDied) {
		// The keeper died during the spawn, and attemptStart has killed the process that may
		// have been started. The new keeper does not know that process.
		p, err = attemptStart(ctx, cfg)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.errorPrefix(), err)
	}
	return p, nil
}

func attemptStart(ctx context.Context, cfg Config) (*Plugin, error) {
	p := newPlugin(cfg)
	if err := p.start(ctx); err != nil {
		p.abortLaunch()
		return nil, err
	}
	return p, nil
}

func newPlugin(cfg Config) *Plugin {
	if cfg.HandshakeTimeout == 0 {
		cfg.HandshakeTimeout = defaultStartTimeout
	}
	if cfg.LaunchCallTimeout == 0 {
		cfg.LaunchCallTimeout = defaultCallTimeout
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	return &Plugin{
		cfg:                cfg,
		logger:             cfg.Logger.Named(cfg.Name),
		released:           make(chan struct{}),
		output:             processOutput{stderrEOF: make(chan struct{})},
		exit:               processExit{errSet: make(chan struct{})},
		callStatsCollector: basewire.CallStatsCollector{AfterCall: cfg.AfterCall},
	}
}

func (c Config) errorPrefix() string {
	if c.Path == "" || c.Path == "/proc/self/exe" {
		return fmt.Sprintf("plugin %q", c.Name)
	}
	return fmt.Sprintf("plugin %q (%s)", c.Name, c.Path)
}

func (p *Plugin) start(ctx context.Context) error {
	if len(p.cfg.SocketDir) > MaxSocketDirLen {
		return fmt.Errorf("socket directory %s: longer than %d characters, a unix socket in it cannot be named", p.cfg.SocketDir, MaxSocketDirLen)
	}
	if _, err := osprocess.BootID(); err != nil {
		return err // a ReattachConfig contains the boot id, so a plugin without it could not be reattached
	}
	began := time.Now()
	p.goPluginClient = plugin.NewClient(p.fillClientConfig(&plugin.ClientConfig{
		RunnerFunc: func(_ hclog.Logger, cmd *exec.Cmd, tmp string) (runner.Runner, error) {
			// go-plugin does not remove its temporary directory after a failure.
			if err := os.Remove(tmp); err != nil {
				return nil, err
			}
			return &spawnRunner{attachedRunner: attachedRunner{p}, launchCtx: ctx, goPluginEnv: cmd.Env}, nil
		},
		UnixSocketConfig: &plugin.UnixSocketConfig{TempDir: p.cfg.SocketDir},
		// spawnRunner enforces Config.HandshakeTimeout; go-plugin's own timeout must be longer
		StartTimeout: 2 * p.cfg.HandshakeTimeout,
	}))
	if err := runSteps(ctx, p.startAndConnect, p.fetchInfoAndChooseAPIVersion, p.sendConfig, p.initServiceClient); err != nil {
		return err
	}
	raiseDescriptorLimit(p.proc, p.logger)
	p.logger.Debug("plugin started", "pid", p.proc.PID, "version", p.info.Version, "duration", time.Since(began))
	return nil
}

// raiseDescriptorLimit gives a plugin process the limit of open files of the agent: its keeper, or the agent that has
// started it, can have a lower one.
func raiseDescriptorLimit(p *processHandle, logger hclog.Logger) {
	if _, err := p.RaiseDescriptorLimit(); err != nil {
		logger.Debug("plugin keeps a lower limit of open files than the agent", "error", err)
	}
}

// runSteps runs the steps in order, until one fails.
func runSteps(ctx context.Context, steps ...func(context.Context) error) error {
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// fillClientConfig sets the options of go-plugin that are the same for a launch and a reattach.
func (p *Plugin) fillClientConfig(c *plugin.ClientConfig) *plugin.ClientConfig {
	c.HandshakeConfig = basewire.Handshake
	c.Plugins = plugin.PluginSet{}
	c.AllowedProtocols = []plugin.Protocol{plugin.ProtocolGRPC}
	c.SkipHostEnv = true
	c.Logger = hclog.NewNullLogger() // this package logs the plugin's output itself, under the plugin's name
	c.GRPCDialOptions = []grpc.DialOption{grpc.WithContextDialer(p.takeInitialConnOrDial), grpc.WithStreamInterceptor(tolerateStdioFailure), grpc.WithUnaryInterceptor(p.callStatsCollector.Intercept),
		// gRPC's connect timeout must be longer than that of the calls, whose error names
		// the call.
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: 2 * p.cfg.LaunchCallTimeout}),
	}
	return c
}

// tolerateStdioFailure returns Unavailable when go-plugin cannot open the stream for a
// plugin's output, so that go-plugin continues without it. For another error go-plugin
// would leak the connection.
func tolerateStdioFailure(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := streamer(ctx, desc, cc, method, opts...)
	if err != nil && method == "/plugin.GRPCStdio/StreamStdio" {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return stream, err
}

// startAndConnect starts go-plugin's client, which starts or reattaches the process by its runner, and connects to the
// process. A plugin that accepts the connection but does not respond is killed when ctx ends or the call times out,
// which unblocks go-plugin.
func (p *Plugin) startAndConnect(ctx context.Context) error {
	if _, err := p.goPluginClient.Start(); err != nil {
		return err
	}
	ctx, cancel := p.withCallTimeout(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, p.proc.kill)
	defer stop()
	protocol, err := p.goPluginClient.Client()
	if err != nil {
		return p.explainCallError(ctx, "connect", err)
	}
	p.conn = protocol.(*plugin.GRPCClient).Conn
	if ctx.Err() != nil {
		return p.explainCallError(ctx, "connect", ctx.Err())
	}
	return nil
}

// Info returns the plugin's type, name, version and API versions, as the plugin reports them.
func (p *Plugin) Info() base.Info { return p.info }

// ConfigSchema calls the plugin for the schema of its plugin block; nil means that a plugin block is not allowed.
func (p *Plugin) ConfigSchema(ctx context.Context) (*hclspec.Spec, error) {
	ctx, cancel := p.withCallTimeout(ctx)
	defer cancel()
	schema, err := basewire.NewClient(p.conn, p.proc.done).ConfigSchema(ctx)
	if err != nil {
		return nil, p.explainCallError(ctx, "ConfigSchema", err)
	}
	return schema, nil
}

// PID returns the plugin's process id.
func (p *Plugin) PID() int { return p.proc.PID }

// StartedAt returns the time at which the process started, to 10 ms; zero if it is unknown.
func (p *Plugin) StartedAt() time.Time { return p.proc.StartedAt() }

// CallStats returns the numbers and durations of the calls that this agent has made to the process, and the counts that the
// process has sent.
func (p *Plugin) CallStats() *basewire.CallStatsCollector { return &p.callStatsCollector }

// KeepAfterAgentExit lets the process continue when the agent dies. Without that call the keeper
// kills the process when the agent dies, because no later agent could find the process.
// The caller must have stored the ReattachConfig before the call.
func (p *Plugin) KeepAfterAgentExit(ctx context.Context) error {
	return p.cfg.Keeper.KeepProcessAfterDisconnect(ctx, p.proc.ID)
}

// serviceClients has the gRPC client for the type of the plugin. The clients for the other types are nil.
type serviceClients struct {
	driver          driver.Driver
	device          device.Plugin
	hook            *hookwire.Client
	hookDescription *hook.Description
}

// Driver returns the plugin's driver; nil if the plugin is not a driver.
func (p *Plugin) Driver() driver.Driver { return p.serviceClients.driver }

// Device returns the plugin's devices; nil if the plugin is not a device plugin.
func (p *Plugin) Device() device.Plugin { return p.serviceClients.device }

// Hook returns the plugin's hook and its description; nil if the plugin is not a hook.
func (p *Plugin) Hook() (*hookwire.Client, *hook.Description) {
	return p.serviceClients.hook, p.serviceClients.hookDescription
}

// Done is closed as soon as the process has ended, even if its children still run.
func (p *Plugin) Done() <-chan struct{} { return p.proc.done }

// WaitForExitReason blocks until the process has ended, and returns an error with the exit status and the
// last output. It returns an error also after exit code 0: a plugin must not exit by itself.
func (p *Plugin) WaitForExitReason() error {
	<-p.exit.errSet
	return fmt.Errorf("%s: %w", p.cfg.errorPrefix(), p.exit.err)
}

// Connected reports whether gRPC's connection to the plugin is ready. It makes no call. The
// result is false when the connection has broken, or was closed because it was idle for long.
func (p *Plugin) Connected() bool { return p.conn.GetState() == connectivity.Ready }

// CheckHealth calls the plugin's health service, and returns an error if no process listens on
// the plugin's socket. A plugin without a health service counts as reachable.
func (p *Plugin) CheckHealth(ctx context.Context) error {
	ctx, cancel := p.withCallTimeout(ctx)
	defer cancel()
	_, err := healthpb.NewHealthClient(p.conn).Check(ctx, &healthpb.HealthCheckRequest{Service: plugin.GRPCServiceName})
	if status.Code(err) == codes.Unavailable {
		conn, dialErr := p.dialAndVerifyPeer(ctx)
		if dialErr == nil {
			conn.Close()
		} else if osprocess.IsResourceExhausted(dialErr) {
			return nil // this process has no free descriptors, and cannot determine whether a process listens
		}
		return fmt.Errorf("%s: does not answer on its socket any more: %w", p.cfg.errorPrefix(), err)
	}
	return nil
}

// Kill kills the process immediately. The caller must still call Close.
func (p *Plugin) Kill() { p.proc.kill() }

// Stop shuts the plugin down: it calls the driver's Shutdown and go-plugin's controller,
// waits for the exit, and then kills the process. When ctx ends, it kills the process
// immediately. Stop blocks until all resources are released. The driver's tasks continue to
// run.
func (p *Plugin) Stop(ctx context.Context) {
	if p.serviceClients.driver != nil {
		call, cancel := context.WithTimeout(ctx, shutdownTimeout)
		if err := p.serviceClients.driver.Shutdown(call); err != nil {
			p.logger.Debug("driver shutdown", "error", err)
		}
		cancel()
	}
	call, cancel := context.WithTimeout(ctx, shutdownTimeout)
	// The error is ignored: a server that exits immediately cannot always reply.
	_ = p.conn.Invoke(call, "/plugin.GRPCController/Shutdown", &emptypb.Empty{}, &emptypb.Empty{})
	cancel()
	p.conn.Close() // a plugin without the controller service may exit when its last connection is closed

	if !p.exitsWithin(ctx, exitGracePeriod) {
		p.logger.Warn("plugin failed to exit gracefully, killed", "pid", p.proc.PID)
	}
	p.KillAndRelease()
}

// exitsWithin blocks until the process has exited, the timeout has passed or ctx ends. It
// reports whether the process has exited.
func (p *Plugin) exitsWithin(ctx context.Context, timeout time.Duration) bool {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-p.proc.done:
		return true
	case <-ctx.Done():
	case <-timer.C:
	}
	return wait.IsClosed(p.proc.done)
}

// StderrClosed returns a channel that is closed when no process has the write end of the plugin's stderr. If a child
// of the plugin has inherited stderr, that can be long after Done: then the caller should call Close as late as
// possible, because after Close the child is killed by SIGPIPE when it writes to stderr.
func (p *Plugin) StderrClosed() <-chan struct{} { return p.output.stderrEOF }

// KillAndRelease kills the process if the process is alive, and releases all resources. It may be called twice,
// also after Detach, and blocks until all resources are released.
func (p *Plugin) KillAndRelease() {
	select {
	case <-p.released:
		p.wg.Wait()
		return
	default:
	}
	p.proc.kill()
	if !p.exitsWithin(context.Background(), exitGracePeriod) {
		p.logger.Error("plugin process does not die", "pid", p.proc.PID)
	} else {
		<-p.exit.errSet
	}
	p.releaseResources(false)
}

// abortLaunch closes the plugin after a failed launch, and kills all processes in the plugin's session: no task can be
// running.
func (p *Plugin) abortLaunch() {
	if p.proc == nil {
		p.releaseResources(false)
		return
	}
	p.proc.KillSession()
	p.KillAndRelease()
}

// Detach releases the plugin and leaves it running for another agent, which reattaches it with
// the ReattachConfig.
func (p *Plugin) Detach() { p.releaseResources(true) }

// releaseResources releases the agent's resources for the plugin. If keepRunning is true, the process
// continues, and the keeper still stores the read ends of its stdout and stderr.
func (p *Plugin) releaseResources(keepRunning bool) {
	p.releaseOnce.Do(func() {
		close(p.released) // go-plugin's goroutines wait for detached
		if p.conn != nil {
			p.conn.Close()
		}
		p.mu.Lock()
		if p.initialConn != nil {
			p.initialConn.Close()
		}
		p.mu.Unlock()
		if !keepRunning {
			ctx, cancel := context.WithTimeout(context.Background(), reapTimeout)
			defer cancel()
			if p.output.keeperFDKeyPrefix != "" {
				for _, stream := range pipeNames {
					_ = p.cfg.Keeper.RemoveFD(ctx, p.output.keeperFDKeyPrefix+stream)
				}
			}
			// Only the plugin's own socket is removed: processes that the plugin has
			// started can outlive it, and may have sockets in the same directory.
			if p.peerVerified.Load() && filepath.Dir(p.handshake.addr) == p.cfg.SocketDir {
				_ = os.Remove(p.handshake.addr) // the error is ignored: a plugin that has shut down has removed its socket
			}
			if p.goPluginClient != nil {
				p.goPluginClient.Kill() // the process has exited; go-plugin's Kill waits for its goroutines
			}
		}
		for _, f := range p.output.stdoutAndStderrReadEnds {
			if f != nil {
				f.Close()
			}
		}
		if p.proc != nil {
			p.proc.close()
		}
	})
	p.wg.Wait()
}

// pipeNames are the suffixes of the keys under which the keeper stores stdout and stderr of a plugin, in the order of
// processOutput.stdoutAndStderrReadEnds.
var pipeNames = [2]string{"stdout", "stderr"}

// startProcessWatchers starts the goroutines that wait for the process and relay its stderr.
func (p *Plugin) startProcessWatchers() {
	p.wg.Go(func() {
		if !p.proc.waitAndCloseDone() {
			return // detached
		}
		p.exit.err = p.fetchExitError()
		close(p.exit.errSet)
	})
	if p.output.stdoutAndStderrReadEnds[1] != nil {
		p.wg.Go(func() {
			defer close(p.output.stderrEOF)
			relayStderrToLog(p.output.stdoutAndStderrReadEnds[1], p.cfg.Secrets, p.logger, &p.output.stderrTail, &panicLogger{loggedPanics: p.cfg.LoggedPanics, pluginName: p.cfg.Name, logger: p.logger})
		})
	} else {
		close(p.output.stderrEOF)
	}
}

// fetchExitError requests the exit status of the dead process from the keeper, and returns an error with the status and
// the last lines of stderr.
func (p *Plugin) fetchExitError() error {
	ctx, cancel := context.WithTimeout(context.Background(), reapTimeout)
	defer cancel()
	reason := ""
	status, err := p.cfg.Keeper.Wait(ctx, p.proc.ID)
	switch {
	case err != nil:
		reason = "exited with unknown status"
	case status.Signal != 0:
		reason = "was " + status.String()
	default:
		reason = "exited with " + strings.Replace(status.String(), "exit code", "code", 1)
	}
	select {
	case <-p.output.stderrEOF:
	case <-p.released:
	case <-time.After(drainTimeout):
	}
	return errorWithStderr(reason, &p.output.stderrTail, time.Now().Add(-maxLastWordsAge))
}

// maxLastWordsAge is how long before the exit of a plugin a line of its stderr can have been read that may say why it has
// exited. Older lines are about its work.
const maxLastWordsAge = 10 * time.Second

// withCallTimeout returns a context with the timeout of one call to the plugin. When the timeout ends the context, its
// cause is errNoAnswer.
func (p *Plugin) withCallTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, p.cfg.LaunchCallTimeout, errNoAnswer)
}

var errNoAnswer = errors.New("no answer")

// explainCallError returns an error that describes why a call during the launch failed.
func (p *Plugin) explainCallError(ctx context.Context, method string, err error) error {
	cause := context.Cause(ctx)
	switch {
	// The plugin also gets the deadline, and can return DeadlineExceeded before ctx has
	// ended.
	case errors.Is(cause, errNoAnswer), cause == nil && errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: no answer within %s", method, p.cfg.LaunchCallTimeout)
	case cause != nil:
		return fmt.Errorf("%s: %w", method, cause)
	}
	if status.Code(err) == codes.Unavailable || errors.Is(err, driver.ErrPluginDown) {
		// The connection can break shortly before this process notices the exit of the
		// plugin.
		if p.exitsWithin(ctx, time.Second) {
			<-p.exit.errSet
			return fmt.Errorf("%s: %w", method, p.exit.err)
		}
		if cause := context.Cause(ctx); cause == nil {
			return fmt.Errorf("%s: the process runs, and nothing answers gRPC on its socket %s", method, p.handshake.addr)
		}
	}
	return fmt.Errorf("%s: %w", method, err)
}

// takeInitialConnOrDial returns a connection for gRPC. The first call returns initialConn, and each later call connects
// again.
func (p *Plugin) takeInitialConnOrDial(ctx context.Context, _ string) (net.Conn, error) {
	p.mu.Lock()
	conn := p.initialConn
	p.initialConn = nil
	p.mu.Unlock()
	if conn != nil {
		return conn, nil
	}
	return p.dialAndVerifyPeer(ctx)
}

// dialAndVerifyPeer connects to the plugin's socket, and checks that the plugin's process
// listens on it.
func (p *Plugin) dialAndVerifyPeer(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, p.handshake.network, p.handshake.addr)
	if err != nil {
		return nil, err
	}
	if uc, ok := conn.(*net.UnixConn); ok {
		if err := checkPeerInSession(uc, p.proc.PID); err != nil {
			conn.Close()
			return nil, fmt.Errorf("socket %s: %w", p.handshake.addr, err)
		}
		p.peerVerified.Store(true)
	}
	return conn, nil
}
