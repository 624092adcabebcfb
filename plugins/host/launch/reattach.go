package launch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"
	plugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
)

// ReattachConfig is the data with which another agent reattaches a running plugin.
type ReattachConfig struct {
	Protocol        string
	Network         string
	Addr            string
	Pid             int
	StartTimeTicks  uint64
	BootID          string // id of the boot in which the process was started, from osprocess.BootID
	StreamKeyPrefix string // prefix of the keys under which the keeper stores stdout and stderr of the plugin
}

// IsFromThisBoot reports whether r was recorded since the last boot. Otherwise its pid belongs to
// an unrelated process. The error can be ErrResourceExhausted.
func (r ReattachConfig) IsFromThisBoot() (bool, error) {
	id, err := osprocess.BootID()
	if osprocess.IsResourceExhausted(err) {
		err = fmt.Errorf("%w: %w", ErrResourceExhausted, err)
	}
	return err == nil && r.BootID == id, err
}

// ErrProcessChanged means that the process of a ReattachConfig no longer exists. Another process can have
// the same pid; it gets no signal.
var ErrProcessChanged = errors.New("the recorded plugin process is gone")

// ErrResourceExhausted means that this process has no free descriptors or memory. The
// recorded plugin may still run, and can be reattached later.
var ErrResourceExhausted = errors.New("out of descriptors or memory")

// RunsExecutable reports whether the process of a ReattachConfig executes the file, as
// [keeper.Client.SameExecutable] does. The error can be ErrResourceExhausted.
func (r ReattachConfig) RunsExecutable(ctx context.Context, k Keeper, file *os.File) (bool, error) {
	same, err := k.SameExecutable(ctx, osprocess.ID{PID: r.Pid, StartTime: r.StartTimeTicks}, file)
	if osprocess.IsResourceExhausted(err) {
		err = fmt.Errorf("%w: %w", ErrResourceExhausted, err)
	}
	return same, err
}

// ReattachConfig returns the data with which another agent reattaches the plugin.
func (p *Plugin) ReattachConfig() ReattachConfig {
	boot, _ := osprocess.BootID() // no error is possible: Start or Reattach has cached the boot id
	return ReattachConfig{
		Protocol:        string(plugin.ProtocolGRPC),
		Network:         p.handshake.network,
		Addr:            p.handshake.addr,
		Pid:             p.proc.PID,
		StartTimeTicks:  p.proc.StartTime,
		BootID:          boot,
		StreamKeyPrefix: p.output.keeperFDKeyPrefix,
	}
}

// ReattachOrKill connects to a running plugin if the process of the ReattachConfig still exists;
// otherwise the error is ErrProcessChanged. The plugin is identified and initialised, but
// not configured again. If the recorded process runs but cannot be used, ReattachOrKill kills that process,
// unless the caller's process lacks resources (ErrResourceExhausted). If the process has exited or was
// killed, ReattachOrKill removes its output streams from the keeper, and its socket. The end of ctx does not
// cancel a reattach: the plugin can have tasks, and the caller can detach the plugin afterwards.
func ReattachOrKill(ctx context.Context, cfg Config, rec ReattachConfig) (*Plugin, error) {
	ctx = context.WithoutCancel(ctx)
	p := newPlugin(cfg)
	if err := p.reattach(ctx, rec); err != nil {
		switch {
		case osprocess.IsResourceExhausted(err):
			err = fmt.Errorf("%w: %w", ErrResourceExhausted, err)
			fallthrough
		case p.proc == nil:
			p.releaseResources(true)
			if errors.Is(err, ErrProcessChanged) {
				rec.removeLeftoverStreamsAndSocket(cfg.Keeper, cfg.SocketDir, p.logger)
			}
		default:
			p.proc.kill()
			p.KillAndRelease()
			rec.removeLeftoverStreamsAndSocket(cfg.Keeper, cfg.SocketDir, p.logger) // Close does not remove a socket on which no process listened
		}
		return nil, fmt.Errorf("%s: reattach: %w", cfg.errorPrefix(), err)
	}
	return p, nil
}

// KillRecorded kills the process of a ReattachConfig from this boot if it still exists, and removes what it has left behind: its
// output streams in the keeper, and its socket in socketDir. If the plugin cannot have tasks, KillRecorded kills all processes in
// the session of the process. It waits up to two seconds for the exit, and reports whether the process existed.
func KillRecorded(rec ReattachConfig, mayHaveTasks bool, k Keeper, socketDir string, logger hclog.Logger) (existed bool) {
	proc, err := openProcessHandle(osprocess.ID{PID: rec.Pid, StartTime: rec.StartTimeTicks})
	if err == nil {
		defer proc.close()
		if mayHaveTasks {
			proc.kill()
		} else {
			proc.KillSession()
		}
		if !proc.EndsWithin(exitGracePeriod) {
			logger.Error("plugin process does not die", "pid", proc.PID)
		}
	}
	rec.removeLeftoverStreamsAndSocket(k, socketDir, logger)
	return err == nil
}

// removeLeftoverStreamsAndSocket removes what an exited plugin has left behind. The socket of an interrupted launch has
// no recorded name, but usually the prefix of go-plugin.
func (r ReattachConfig) removeLeftoverStreamsAndSocket(k Keeper, socketDir string, logger hclog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), reapTimeout)
	defer cancel()
	var errs []error
	if r.StreamKeyPrefix != "" {
		for _, stream := range pipeNames {
			errs = append(errs, k.RemoveFD(ctx, r.StreamKeyPrefix+stream))
		}
	}
	switch {
	case r.Network == "unix" && r.Addr != "":
		errs = append(errs, removeUnboundSockets(socketDir, filepath.Base(r.Addr)))
	case r.Addr == "":
		errs = append(errs, removeUnboundSockets(socketDir, "plugin"))
	}
	if err := errors.Join(errs...); err != nil {
		logger.Debug("a plugin that has exited has left files or descriptors behind", "pid", r.Pid, "error", err)
	}
}

func (p *Plugin) reattach(ctx context.Context, rec ReattachConfig) error {
	if thisBoot, err := rec.IsFromThisBoot(); err != nil {
		return err
	} else if rec.Pid <= 0 || !thisBoot {
		return ErrProcessChanged
	}
	// The stored ReattachConfig may be damaged, so its address is validated like that of a
	// handshake line.
	h, err := parseHandshake(fmt.Sprintf("%d|%d|%s|%s|%s|", coreProtocolVersion, appProtocolVersion, rec.Network, rec.Addr, rec.Protocol))
	if err != nil {
		return fmt.Errorf("%w: %v", ErrProcessChanged, err)
	}
	proc, err := openProcessHandle(osprocess.ID{PID: rec.Pid, StartTime: rec.StartTimeTicks})
	if errors.Is(err, os.ErrProcessDone) {
		return ErrProcessChanged
	}
	if err != nil {
		return err
	}
	h.addr = p.cfg.currentSocketPath(h)
	p.proc, p.handshake, p.output.keeperFDKeyPrefix = proc, h, rec.StreamKeyPrefix

	p.fetchOrReopenPipes(ctx)
	p.startProcessWatchers()
	if p.output.stdoutAndStderrReadEnds[0] != nil {
		p.wg.Go(func() { p.readFirstLineAndDrainStdout(make(chan struct{})) })
	}

	call, cancel := p.withCallTimeout(ctx)
	defer cancel()
	conn, err := p.dialAndVerifyPeer(call)
	if err != nil {
		return explainDialError(p.handshake, err)
	}
	p.mu.Lock()
	p.initialConn = conn
	p.mu.Unlock()

	p.goPluginClient = plugin.NewClient(p.fillClientConfig(&plugin.ClientConfig{
		Reattach: &plugin.ReattachConfig{
			Protocol:     plugin.ProtocolGRPC,
			Addr:         handshakeNetAddr(h),
			Pid:          rec.Pid,
			ReattachFunc: func() (runner.AttachedRunner, error) { return attachedRunner{p}, nil },
		},
	}))
	if err := runSteps(ctx, p.startAndConnect, p.fetchInfoAndChooseAPIVersion, p.initServiceClient); err != nil {
		return err
	}
	raiseDescriptorLimit(p.proc, p.logger)
	p.logger.Debug("plugin reattached", "pid", p.proc.PID, "version", p.info.Version)
	return nil
}

// currentSocketPath returns the path of a plugin's socket. It prefers the socket with the recorded
// name in Config.SocketDir: the directory may have been renamed since the plugin was
// started, and another data directory may have the recorded path.
func (c Config) currentSocketPath(h handshake) string {
	if h.network == "unix" && filepath.Dir(h.addr) != c.SocketDir {
		path := filepath.Join(c.SocketDir, filepath.Base(h.addr))
		if _, err := os.Lstat(path); err == nil {
			return path
		}
	}
	return h.addr
}

// fetchOrReopenPipes gets the read ends of the plugin's stdout and stderr from the keeper. If the keeper does not store
// them, it has replaced one that died together with the agent, and fetchOrReopenPipes opens them again. If that fails,
// the plugin can be used, but its output is lost, and a plugin that does not handle SIGPIPE dies when it writes.
func (p *Plugin) fetchOrReopenPipes(ctx context.Context) {
	endOfWait := time.Now().Add(dyingReaderTimeout)
	for i, stream := range pipeNames {
		key := p.output.keeperFDKeyPrefix + stream
		f, err := p.cfg.Keeper.DuplicateStoredFD(key)
		if errors.Is(err, keeper.ErrFDNotStored) {
			err = wait.WhileError(ctx, errPipeHasReader, time.Until(endOfWait), func() error {
				f, err = p.proc.reopenOutputPipe(i + 1)
				return err
			})
			if err == nil {
				if err := p.cfg.Keeper.StoreFDDrainedWithoutAgent(ctx, key, f); err != nil {
					p.logger.Warn("the stream of a running plugin is not stored, and ends with the agent", "stream", stream, "error", err)
				}
			}
		}
		if err != nil {
			p.logger.Warn("stream of a running plugin is lost", "stream", stream, "error", err)
			continue
		}
		p.output.stdoutAndStderrReadEnds[i] = f
	}
}

// dyingReaderTimeout is how long to wait for a process that still has the read end of a plugin's output. A killed keeper has
// it until its last thread has ended, and so has a child process of a killed agent until it executes its program.
const dyingReaderTimeout = 2 * time.Second

func handshakeNetAddr(h handshake) net.Addr {
	if h.network == "unix" {
		return &net.UnixAddr{Name: h.addr, Net: "unix"}
	}
	// The error is ignored: parseHandshake has accepted the address, which is a loopback
	// address.
	addr, _ := net.ResolveTCPAddr("tcp", h.addr)
	return addr
}
