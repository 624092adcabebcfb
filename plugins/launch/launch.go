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

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/keeper"
)

// Keeper starts the process, so that it is not our child, and holds what must
// outlive us. *keeper.Client is one.
type Keeper interface {
	Spawn(context.Context, keeper.Command) (keeper.Process, error)
	Confirm(context.Context, keeper.Process) error
	Wait(context.Context, keeper.Process) (keeper.Status, error)
	StoreDrainedFD(ctx context.Context, key string, f *os.File) error
	GetFD(key string) (*os.File, error)
	RemoveFD(ctx context.Context, key string) error
}

// Config says what to start and how to talk to it.
type Config struct {
	// Name is the plugin's name in errors and in the log.
	Name string

	// Path names the file in errors. It is executed if Exec is nil.
	Path string

	// Exec is the checked file; the process is made from this handle.
	Exec *os.File

	Args []string // with argv[0]
	Env  []string // see Environ; the variables of the handshake are added
	Dir  string   // working directory; "" means the keeper's default

	// SocketDir is a private directory (0700) for the plugins' sockets. It may
	// be shared by all plugins, and must not be longer than MaxSocketDir.
	SocketDir string

	Keeper Keeper

	// Settings is the plugin's config block, in the shape that hclspec decodes;
	// nil means that there is none. SettingsFrom says where it stands.
	Settings     map[string]any
	SettingsFrom string

	// Host is what a driver is told about this machine; nil is allowed.
	Host *base.DriverConfig

	// Hooks is what a hook is told: where its host is.
	Hooks hook.Config

	// Logger gets the plugin's log under the plugin's name. Nil means silence.
	Logger hclog.Logger

	// StartTimeout is the time until the handshake line, 0 means one minute.
	// CallTimeout is the time for each call up to Init, 0 means 30 seconds.
	StartTimeout time.Duration
	CallTimeout  time.Duration
}

const (
	defaultStartTimeout = time.Minute
	defaultCallTimeout  = 30 * time.Second

	shutdownTimeout = 2 * time.Second // of each of the two Shutdown calls
	exitGrace       = 2 * time.Second // between them and the kill
	reapTimeout     = 2 * time.Second // for the keeper to tell the exit status
	drainTimeout    = 300 * time.Millisecond
)

// MaxSocketDir is the longest path of a Config.SocketDir: the address of a socket has
// room for 107 bytes.
const MaxSocketDir = 80

// Plugin is one running plugin process. Its methods may be called concurrently.
// One of Stop, Close and Detach must be called in the end.
type Plugin struct {
	cfg          Config
	logger       hclog.Logger
	client       *plugin.Client
	conn         *grpc.ClientConn
	proc         *process
	addr         handshake
	peerVerified atomic.Bool // the plugin itself listens on addr, which is a unix socket
	info         base.Info
	version      string
	driver       driver.Driver
	hook         *hook.Client
	takes        *hook.Description // of hook
	words        tail
	pipes        [2]*os.File // our read ends of the plugin's stdout and stderr
	fdKey        string      // what the keeper holds them under

	detached   chan struct{} // closed by release: go-plugin must let go of the process
	stderrDone chan struct{} // closed when stderr has ended
	ended      chan struct{} // closed when exit is set
	exit       error

	wg      sync.WaitGroup
	release sync.Once

	mu          sync.Mutex
	line        []byte   // the beginning of stdout, up to the first line end
	initialConn net.Conn // the connection that was checked, until gRPC takes it
}

// Start starts the plugin and makes it ready for use. The error names the
// plugin and says what it did; nothing is left of it then. The context bounds
// the launch, not the life of the plugin.
func Start(ctx context.Context, cfg Config) (*Plugin, error) {
	p, err := startOnce(ctx, cfg)
	if errors.Is(err, keeper.ErrLost) {
		// the keeper died over it; the next one knows nothing of a first try,
		// and what that may have started has nobody to talk to
		p, err = startOnce(ctx, cfg)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.subject(), err)
	}
	return p, nil
}

func startOnce(ctx context.Context, cfg Config) (*Plugin, error) {
	p := newPlugin(cfg)
	if err := p.start(ctx); err != nil {
		p.abort()
		return nil, err
	}
	return p, nil
}

func newPlugin(cfg Config) *Plugin {
	if cfg.StartTimeout == 0 {
		cfg.StartTimeout = defaultStartTimeout
	}
	if cfg.CallTimeout == 0 {
		cfg.CallTimeout = defaultCallTimeout
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	return &Plugin{
		cfg:        cfg,
		logger:     cfg.Logger.Named(cfg.Name),
		detached:   make(chan struct{}),
		stderrDone: make(chan struct{}),
		ended:      make(chan struct{}),
	}
}

func (c Config) subject() string {
	if c.Path == "" || c.Path == "/proc/self/exe" {
		return fmt.Sprintf("plugin %q", c.Name)
	}
	return fmt.Sprintf("plugin %q (%s)", c.Name, c.Path)
}

func (p *Plugin) start(ctx context.Context) error {
	if len(p.cfg.SocketDir) > MaxSocketDir {
		return fmt.Errorf("socket directory %s: longer than %d characters, a unix socket in it cannot be named", p.cfg.SocketDir, MaxSocketDir)
	}
	if _, err := keeper.BootID(); err != nil {
		return err // without it the next agent could not reattach the plugin
	}
	began := time.Now()
	p.client = plugin.NewClient(p.clientConfig(&plugin.ClientConfig{
		RunnerFunc: func(_ hclog.Logger, cmd *exec.Cmd, tmp string) (runner.Runner, error) {
			// go-plugin would leave it behind after a failure
			if err := os.Remove(tmp); err != nil {
				return nil, err
			}
			return &launcher{attached: attached{p}, ctx: ctx, env: cmd.Env}, nil
		},
		UnixSocketConfig: &plugin.UnixSocketConfig{TempDir: p.cfg.SocketDir},
		// the launcher keeps the real limit
		StartTimeout: 2 * p.cfg.StartTimeout,
	}))
	if err := runSteps(ctx, p.connect, p.identify, p.configure, p.init); err != nil {
		return err
	}
	p.logger.Debug("plugin started", "pid", p.proc.PID, "version", p.info.Version, "duration", time.Since(began))
	return nil
}

// runSteps takes steps up to the first that fails.
func runSteps(ctx context.Context, steps ...func(context.Context) error) error {
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// clientConfig adds what a launch and a reattach have in common.
func (p *Plugin) clientConfig(c *plugin.ClientConfig) *plugin.ClientConfig {
	c.HandshakeConfig = base.Handshake
	c.Plugins = plugin.PluginSet{}
	c.AllowedProtocols = []plugin.Protocol{plugin.ProtocolGRPC}
	c.SkipHostEnv = true
	c.Logger = hclog.NewNullLogger() // everything that it says is said here, with names
	c.GRPCDialOptions = []grpc.DialOption{grpc.WithContextDialer(p.dial), grpc.WithStreamInterceptor(stdioMayFail),
		// A call has a timeout of its own, whose error says what did not answer.
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: 2 * p.cfg.CallTimeout}),
	}
	return c
}

// stdioMayFail lets go-plugin go on without its stdio stream, whatever the
// reason: with another error than Unavailable it would leak the connection.
func stdioMayFail(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := streamer(ctx, desc, cc, method, opts...)
	if err != nil && method == "/plugin.GRPCStdio/StreamStdio" {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return stream, err
}

// connect starts go-plugin's client, and with it the process. A plugin that
// accepts the connection and then says nothing is killed when ctx or the call's
// time ends, which ends everything that go-plugin waits for.
func (p *Plugin) connect(ctx context.Context) error {
	if _, err := p.client.Start(); err != nil {
		return err
	}
	ctx, cancel := p.callContext(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, p.proc.kill)
	defer stop()
	protocol, err := p.client.Client()
	if err != nil {
		return p.explainCall(ctx, "connect", err)
	}
	p.conn = protocol.(*plugin.GRPCClient).Conn
	if ctx.Err() != nil {
		return p.explainCall(ctx, "connect", ctx.Err())
	}
	return nil
}

// Info is what the plugin says about itself.
func (p *Plugin) Info() base.Info { return p.info }

// PID is the plugin's process id.
func (p *Plugin) PID() int { return p.proc.PID }

// Confirm lets the process outlive this one. Until then it ends when this one dies, because
// none would find it: the caller has stored Record.
func (p *Plugin) Confirm(ctx context.Context) error {
	return p.cfg.Keeper.Confirm(ctx, p.proc.Process)
}

// Driver is the driver in the plugin; nil if it is no driver.
func (p *Plugin) Driver() driver.Driver { return p.driver }

// Hook is the hook in the plugin, and what it takes part in; nil if it is none.
func (p *Plugin) Hook() (*hook.Client, *hook.Description) { return p.hook, p.takes }

// Done is closed as soon as the process has ended, whatever its children do.
func (p *Plugin) Done() <-chan struct{} { return p.proc.done }

// Exit waits until Done, and then says how the process ended and what it said
// last. It is an error also after a good exit: a plugin does not end by itself.
func (p *Plugin) Exit() error {
	<-p.ended
	return fmt.Errorf("%s: %w", p.cfg.subject(), p.exit)
}

// Connected reports whether the connection to the plugin stands, as far as is
// known without asking. It does not when it was lost, or not used for long.
func (p *Plugin) Connected() bool { return p.conn.GetState() == connectivity.Ready }

// CheckHealth asks the plugin's health service, and returns an error when
// there is nobody on its socket. A plugin without that service is reachable.
func (p *Plugin) CheckHealth(ctx context.Context) error {
	ctx, cancel := p.callContext(ctx)
	defer cancel()
	_, err := healthpb.NewHealthClient(p.conn).Check(ctx, &healthpb.HealthCheckRequest{Service: plugin.GRPCServiceName})
	if status.Code(err) == codes.Unavailable {
		conn, dialErr := p.open(ctx)
		if dialErr == nil {
			conn.Close()
		} else if keeper.Exhausted(dialErr) {
			return nil // not known: it is our fault
		}
		return fmt.Errorf("%s: does not answer on its socket any more: %w", p.cfg.subject(), err)
	}
	return nil
}

// Kill ends the process at once. Close is still due.
func (p *Plugin) Kill() { p.proc.kill() }

// Stop ends the plugin as the protocol wants it: the driver's Shutdown, the
// controller's Shutdown, a grace period, the kill. When ctx ends the kill comes
// at once. Tasks are not touched.
func (p *Plugin) Stop(ctx context.Context) {
	if p.driver != nil {
		call, cancel := context.WithTimeout(ctx, shutdownTimeout)
		if err := p.driver.Shutdown(call); err != nil {
			p.logger.Debug("driver shutdown", "error", err)
		}
		cancel()
	}
	call, cancel := context.WithTimeout(ctx, shutdownTimeout)
	// its error is ignored: a server that stops at once cannot always answer
	_ = p.conn.Invoke(call, "/plugin.GRPCController/Shutdown", &emptypb.Empty{}, &emptypb.Empty{})
	cancel()
	p.conn.Close() // a server without that service may end with its last client

	if !p.waitDone(ctx, exitGrace) {
		p.logger.Warn("plugin failed to exit gracefully, killed", "pid", p.proc.PID)
	}
	p.Close()
}

// waitDone waits for the end of the process, for d and until ctx ends.
func (p *Plugin) waitDone(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-p.proc.done:
		return true
	case <-ctx.Done():
	case <-timer.C:
	}
	select {
	case <-p.proc.done:
		return true
	default:
		return false
	}
}

// StderrClosed is closed when nobody holds the write end of the plugin's stderr any
// more. After Done that is at once, unless a child of the plugin has it: then
// Close should wait as long as it can, for that child's sake.
func (p *Plugin) StderrClosed() <-chan struct{} { return p.stderrDone }

// Close kills the process if it is alive, and gives back everything. It may be
// called twice, also after Detach, and blocks until all is given back.
func (p *Plugin) Close() {
	select {
	case <-p.detached:
		p.wg.Wait()
		return
	default:
	}
	p.proc.kill()
	if !p.waitDone(context.Background(), exitGrace) {
		p.logger.Error("plugin process does not die", "pid", p.proc.PID)
	} else {
		<-p.ended
	}
	p.releaseOnce(false)
}

// abort is Close for a launch that has failed at any point.
func (p *Plugin) abort() {
	if p.proc == nil {
		p.releaseOnce(false)
		return
	}
	p.proc.killSession()
	p.Close()
}

// Detach lets go of the plugin and leaves it running for another agent, which
// finds it with the Record.
func (p *Plugin) Detach() { p.releaseOnce(true) }

// releaseOnce ends our part of the plugin.
func (p *Plugin) releaseOnce(leave bool) {
	p.release.Do(func() {
		close(p.detached) // go-plugin's goroutines end now
		if p.conn != nil {
			p.conn.Close()
		}
		p.mu.Lock()
		if p.initialConn != nil {
			p.initialConn.Close()
		}
		p.mu.Unlock()
		if !leave {
			ctx, cancel := context.WithTimeout(context.Background(), reapTimeout)
			defer cancel()
			if p.fdKey != "" {
				for _, stream := range pipeNames {
					_ = p.cfg.Keeper.RemoveFD(ctx, p.fdKey+stream)
				}
			}
			// Only the plugin's own socket: processes that the plugin started
			// may have theirs in the same directory, and outlive it.
			if p.peerVerified.Load() && filepath.Dir(p.addr.addr) == p.cfg.SocketDir {
				_ = os.Remove(p.addr.addr)
			}
			if p.client != nil {
				p.client.Kill() // the process is dead; this waits for go-plugin's goroutines
			}
		}
		for _, f := range p.pipes {
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

// pipeNames are the streams that the keeper holds, in the order of Plugin.sinks.
var pipeNames = [2]string{"stdout", "stderr"}

// watch starts the goroutines that look after the process.
func (p *Plugin) watch() {
	p.wg.Go(func() {
		if !p.proc.watch() {
			return // detached
		}
		p.exit = p.exitError()
		close(p.ended)
	})
	if p.pipes[1] != nil {
		p.wg.Go(func() {
			defer close(p.stderrDone)
			relay(p.pipes[1], p.logger, &p.words)
		})
	} else {
		close(p.stderrDone)
	}
}

// exitError asks the keeper for the status of the dead process.
func (p *Plugin) exitError() error {
	ctx, cancel := context.WithTimeout(context.Background(), reapTimeout)
	defer cancel()
	what := ""
	status, err := p.cfg.Keeper.Wait(ctx, p.proc.Process)
	switch {
	case err != nil:
		what = "exited with unknown status"
	case status.Signal != 0:
		what = "was " + status.String()
	default:
		what = "exited with " + strings.Replace(status.String(), "exit code", "code", 1)
	}
	select {
	case <-p.stderrDone:
	case <-p.detached:
	case <-time.After(drainTimeout):
	}
	return withStderr(what, &p.words)
}

func (p *Plugin) callContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, p.cfg.CallTimeout, errNoAnswer)
}

var errNoAnswer = errors.New("no answer")

// explainCall says why a call of the handshake phase failed.
func (p *Plugin) explainCall(ctx context.Context, call string, err error) error {
	cause := context.Cause(ctx)
	switch {
	// the plugin knows the deadline too, and may be the first to notice
	case errors.Is(cause, errNoAnswer), cause == nil && errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: no answer within %s", call, p.cfg.CallTimeout)
	case cause != nil:
		return fmt.Errorf("%s: %w", call, cause)
	}
	if status.Code(err) == codes.Unavailable || errors.Is(err, driver.ErrPluginDown) {
		// the death of the process may be known a moment later
		if p.waitDone(ctx, time.Second) {
			<-p.ended
			return fmt.Errorf("%s: %w", call, p.exit)
		}
		if cause := context.Cause(ctx); cause == nil {
			return fmt.Errorf("%s: the process runs, and nothing answers gRPC on its socket %s", call, p.addr.addr)
		}
	}
	return fmt.Errorf("%s: %w", call, err)
}

// dial gives gRPC its connection: first the one that was checked.
func (p *Plugin) dial(ctx context.Context, _ string) (net.Conn, error) {
	p.mu.Lock()
	conn := p.initialConn
	p.initialConn = nil
	p.mu.Unlock()
	if conn != nil {
		return conn, nil
	}
	return p.open(ctx)
}

// open connects to the plugin's socket and makes sure who is on it.
func (p *Plugin) open(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, p.addr.network, p.addr.addr)
	if err != nil {
		return nil, err
	}
	if uc, ok := conn.(*net.UnixConn); ok {
		if err := checkPeer(uc, p.proc.PID); err != nil {
			conn.Close()
			return nil, fmt.Errorf("socket %s: %w", p.addr.addr, err)
		}
		p.peerVerified.Store(true)
	}
	return conn, nil
}
