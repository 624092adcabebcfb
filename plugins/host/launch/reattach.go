package launch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	plugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// ReattachConfig is the data with which another agent reattaches a running plugin.
type ReattachConfig struct {
	Protocol  string
	Network   string
	Addr      string
	Pid       int
	StartTime uint64
	BootID    string // id of the boot in which the process was started, from osprocess.BootID
	Streams   string // prefix of the keys under which the keeper stores stdout and stderr of the plugin
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
	same, err := k.SameExecutable(ctx, osprocess.ID{PID: r.Pid, StartTime: r.StartTime}, file)
	if osprocess.IsResourceExhausted(err) {
		err = fmt.Errorf("%w: %w", ErrResourceExhausted, err)
	}
	return same, err
}

// ReattachConfig returns the data with which another agent reattaches the plugin.
func (p *Plugin) ReattachConfig() ReattachConfig {
	boot, _ := osprocess.BootID() // no error is possible: Start or Reattach has cached the boot id
	return ReattachConfig{
		Protocol:  string(plugin.ProtocolGRPC),
		Network:   p.handshake.network,
		Addr:      p.handshake.addr,
		Pid:       p.proc.PID,
		StartTime: p.proc.StartTime,
		BootID:    boot,
		Streams:   p.output.keeperFDKeyPrefix,
	}
}

// Reattach connects to a running plugin if the process of the ReattachConfig still exists;
// otherwise the error is ErrProcessChanged. The plugin is identified and initialised, but
// not configured again. If the recorded process runs but cannot be used, Reattach kills that process,
// unless the caller's process lacks resources (ErrResourceExhausted). The end of ctx does not
// cancel a reattach: the plugin can have tasks, and the caller can detach the plugin afterwards.
func Reattach(ctx context.Context, cfg Config, rec ReattachConfig) (*Plugin, error) {
	ctx = context.WithoutCancel(ctx)
	p := newPlugin(cfg)
	if err := p.reattach(ctx, rec); err != nil {
		switch {
		case osprocess.IsResourceExhausted(err):
			err = fmt.Errorf("%w: %w", ErrResourceExhausted, err)
			fallthrough
		case p.proc == nil:
			p.releaseResources(true)
		default:
			p.proc.kill()
			p.Close()
		}
		return nil, fmt.Errorf("%s: reattach: %w", cfg.errorPrefix(), err)
	}
	return p, nil
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
	proc, err := openProcessHandle(osprocess.ID{PID: rec.Pid, StartTime: rec.StartTime})
	if errors.Is(err, os.ErrProcessDone) {
		return ErrProcessChanged
	}
	if err != nil {
		return err
	}
	h.addr = p.cfg.currentSocketPath(h)
	p.proc, p.handshake, p.output.keeperFDKeyPrefix = proc, h, rec.Streams

	p.fetchPipesFromKeeper()
	p.watchProcess()
	if p.output.pipeReadEnds[0] != nil {
		p.wg.Go(func() { p.readStdout(make(chan struct{})) })
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

	p.goPluginClient = plugin.NewClient(p.clientConfig(&plugin.ClientConfig{
		Reattach: &plugin.ReattachConfig{
			Protocol:     plugin.ProtocolGRPC,
			Addr:         handshakeNetAddr(h),
			Pid:          rec.Pid,
			ReattachFunc: func() (runner.AttachedRunner, error) { return attachedRunner{p}, nil },
		},
	}))
	if err := runSteps(ctx, p.startAndConnect, p.fetchInfo, p.initServiceClient); err != nil {
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

// fetchPipesFromKeeper gets the read ends of the plugin's stdout and stderr from the keeper. If the keeper does not
// store them, the plugin can be used, but its output is lost.
func (p *Plugin) fetchPipesFromKeeper() {
	for i, stream := range pipeNames {
		if f, err := p.cfg.Keeper.GetFD(p.output.keeperFDKeyPrefix + stream); err == nil {
			p.output.pipeReadEnds[i] = f
		} else {
			p.logger.Warn("stream of a running plugin is lost", "stream", stream, "error", err)
		}
	}
}

func handshakeNetAddr(h handshake) net.Addr {
	if h.network == "unix" {
		return &net.UnixAddr{Name: h.addr, Net: "unix"}
	}
	// The error is ignored: parseHandshake has accepted the address, which is a loopback
	// address.
	addr, _ := net.ResolveTCPAddr("tcp", h.addr)
	return addr
}
