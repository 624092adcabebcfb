package launch

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	plugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/keeper"
	proc "github.com/nomad-lite/nomad-lite/plugins/process"
)

var (
	_ runner.Runner         = (*launcher)(nil)
	_ runner.AttachedRunner = (*attached)(nil)
)

// attached is what go-plugin sees of a process that runs.
type attached struct{ p *Plugin }

// Wait returns when the process has ended, or when we have let go of it.
func (a attached) Wait(context.Context) error {
	select {
	case <-a.p.proc.done:
	case <-a.p.detached:
	}
	return nil
}

func (a attached) Kill(context.Context) error {
	a.p.proc.kill()
	return nil
}

func (a attached) ID() string {
	if a.p.proc == nil {
		return ""
	}
	return strconv.Itoa(a.p.proc.PID)
}

func (attached) PluginToHost(network, addr string) (string, string, error) { return network, addr, nil }
func (attached) HostToPlugin(network, addr string) (string, string, error) { return network, addr, nil }

// launcher starts the process for go-plugin, and reads the plugin's streams
// itself. go-plugin sees a stdout with one sound handshake line and an empty
// stderr, both ending with the process: so neither a hostile line nor a child
// that holds a stream can do harm, and Wait is called at once.
type launcher struct {
	attached
	ctx context.Context // of the launch: go-plugin makes one of its own
	env []string        // what go-plugin adds
}

// Start starts the process and returns when its handshake line is there and
// somebody listens on the socket. go-plugin hands the error on as it is.
func (l *launcher) Start(context.Context) error {
	p := l.p
	ctx, cancel := context.WithTimeoutCause(l.ctx, p.cfg.StartTimeout, errNoAnswer)
	defer cancel()
	if err := l.spawn(ctx); err != nil {
		return err
	}
	lines := make(chan struct{})
	p.watch()
	p.wg.Go(func() { p.readStdout(lines) })

	line, err := p.awaitLine(ctx, lines)
	if err != nil {
		return err
	}
	if p.addr, err = parseHandshake(line); err != nil {
		if p.waitDone(ctx, 100*time.Millisecond) {
			<-p.ended
			return fmt.Errorf("%w; it %w", err, p.exit)
		}
		return err
	}
	conn, err := p.open(ctx)
	if err != nil {
		if p.waitDone(ctx, 100*time.Millisecond) {
			<-p.ended
			return fmt.Errorf("after its handshake line it %w", p.exit)
		}
		return explainDial(p.addr, err)
	}
	p.mu.Lock()
	p.initialConn = conn
	p.mu.Unlock()
	return nil
}

func (l *launcher) spawn(ctx context.Context) error {
	p := l.p
	var writers [2]*os.File
	for i := range writers {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		p.pipes[i], writers[i] = r, w
		defer w.Close()
	}
	// Before the start: a plugin that writes when no reader is left dies of SIGPIPE.
	p.fdKey = fmt.Sprintf("plugin/%s/%s/", p.cfg.Name, rand.Text()[:8])
	for i, stream := range pipeNames {
		if err := p.cfg.Keeper.StoreDrainedFD(ctx, p.fdKey+stream, p.pipes[i]); err != nil {
			return fmt.Errorf("hold %s: %w", stream, err)
		}
	}
	env := append(append([]string(nil), p.cfg.Env...), l.env...)
	kp, err := spawnWritten(ctx, p.cfg.Keeper, keeper.Command{
		Name:   p.cfg.Name,
		Exec:   p.cfg.Exec,
		Path:   p.cfg.Path,
		Args:   p.cfg.Args,
		Env:    withSocketDir(env, p.cfg.SocketDir),
		Dir:    p.cfg.Dir,
		Stdout: writers[0],
		Stderr: writers[1],

		Provisional: true,
	})
	if errors.Is(err, keeper.ErrLost) {
		return errors.Join(err, endLost(writers[0]))
	}
	if err != nil {
		return explainSpawn(err, p.cfg.Path, p.cfg.Exec)
	}
	p.proc, err = openProcess(kp)
	if err == nil {
		// Agent and keeper may be protected; a plugin that were would hand it on to
		// downloads, commands and tasks, before any code of theirs can undo it.
		if resetErr := proc.ResetOOMScore(kp.PID); resetErr != nil {
			p.logger.Warn("plugin is protected from the lack of memory as the agent is", "error", resetErr)
		}
	}
	switch {
	case errors.Is(err, errProcessGone):
		// it has died already, and the keeper has reaped it
		p.proc, err = goneProcess(kp), nil
	case err != nil:
		_ = kp.Signal(unix.SIGKILL) // it may be gone by now
	}
	return err
}

// spawnWritten starts a program. One that is open for writing is tried again for a quarter
// of a second: it has just been installed, and a child that its writer has forked holds the
// file until it executes something.
func spawnWritten(ctx context.Context, k Keeper, command keeper.Command) (keeper.Process, error) {
	for delay := time.Millisecond; ; delay *= 2 {
		process, err := k.Spawn(ctx, command)
		if !errors.Is(err, unix.ETXTBSY) || delay > 128*time.Millisecond {
			return process, err
		}
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return keeper.Process{}, err
		}
	}
}

// endLost kills the plugin that a keeper may have started before it died and could not
// name: the process that has our pipe as its stdout. It searches five times in 50 ms: a
// child that the keeper had forked at its death gets the pipe a moment later.
func endLost(stdout *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(stdout.Fd()), &st); err != nil {
		return err
	}
	pipe := fmt.Sprintf("pipe:[%d]", st.Ino)
	for range 5 {
		links, err := filepath.Glob("/proc/[0-9]*/fd/1")
		if err != nil {
			return err
		}
		for _, link := range links {
			pid, err := strconv.Atoi(strings.Split(link, "/")[2])
			if err != nil {
				return err
			}
			p, err := keeper.ProcessOf(pid) // before the look at its stdout: the number may be given away
			if target, linkErr := os.Readlink(link); linkErr != nil || target != pipe {
				continue // another process, perhaps of another user, or it has ended
			}
			if err == nil {
				err = p.Signal(unix.SIGKILL)
			}
			if err != nil && !errors.Is(err, os.ErrProcessDone) {
				return fmt.Errorf("end what the keeper has started: process %d: %w", pid, err)
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil
}

// withSocketDir replaces go-plugin's temporary directory.
func withSocketDir(env []string, dir string) []string {
	prefix := plugin.EnvUnixSocketDir + "="
	for i, v := range env {
		if strings.HasPrefix(v, prefix) {
			env[i] = prefix + dir
		}
	}
	return env
}

// readStdout collects the first line, closes lines when it is there, and
// drains stdout for good.
func (p *Plugin) readStdout(lines chan<- struct{}) {
	buf := make([]byte, maxHandshake)
	complete := false
	for {
		n, err := p.pipes[0].Read(buf)
		if !complete {
			p.mu.Lock()
			p.line = append(p.line, buf[:n]...)
			if i := strings.IndexByte(string(p.line), '\n'); i >= 0 {
				p.line, complete = p.line[:i], true
			}
			complete = complete || len(p.line) >= maxHandshake || err != nil
			p.mu.Unlock()
			if complete {
				close(lines)
			}
		}
		if err != nil {
			return
		}
	}
}

// awaitLine waits for the first line of stdout.
func (p *Plugin) awaitLine(ctx context.Context, lines <-chan struct{}) (string, error) {
	select {
	case <-lines:
	case <-p.proc.done:
		// what it wrote may still be in the pipe
		select {
		case <-lines:
		case <-time.After(drainTimeout):
		}
	case <-ctx.Done():
	}
	p.mu.Lock()
	line := string(p.line)
	p.mu.Unlock()

	select {
	case <-lines:
		if line != "" {
			return line, nil
		}
		if !p.waitDone(ctx, time.Second) {
			return "", withStderr("closed its stdout without a handshake line", &p.words)
		}
	default:
	}
	if p.waitDone(ctx, 0) {
		<-p.ended
		if line != "" {
			return "", fmt.Errorf("wrote %s on stdout instead of a handshake line and %w", quote(line), p.exit)
		}
		return "", fmt.Errorf("wrote no handshake line and %w", p.exit)
	}
	if cause := context.Cause(ctx); !errors.Is(cause, errNoAnswer) {
		return "", cause
	}
	what := fmt.Sprintf("timeout while waiting for plugin to start: no handshake line within %s", p.cfg.StartTimeout)
	if line != "" {
		what += fmt.Sprintf(", only %s without a line end", quote(line))
	}
	return "", withStderr(what, &p.words)
}

// Stdout is what go-plugin reads the handshake line from.
func (l *launcher) Stdout() io.ReadCloser {
	return &processReader{Reader: strings.NewReader(l.p.addr.line()), a: l.attached}
}

// Stderr is empty for go-plugin.
func (l *launcher) Stderr() io.ReadCloser {
	return &processReader{Reader: strings.NewReader(""), a: l.attached}
}

// Name is not shown: go-plugin's logger is silent.
func (l *launcher) Name() string { return l.p.cfg.Name }

// Diagnose is not asked: the handshake line is sound when go-plugin gets it.
func (l *launcher) Diagnose(context.Context) string { return "" }

// processReader is a stream that ends with the process.
type processReader struct {
	*strings.Reader
	a attached
}

func (u *processReader) Read(b []byte) (int, error) {
	n, err := u.Reader.Read(b)
	if err == io.EOF {
		_ = u.a.Wait(context.Background())
	}
	return n, err
}

func (u *processReader) Close() error { return nil }

// explainDial says what is wrong with the socket of the handshake line.
func explainDial(h handshake, err error) error {
	switch {
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("its socket %s does not exist", h.addr)
	case errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("nobody listens on its socket %s", h.addr)
	}
	return fmt.Errorf("connect: %w", err)
}

// checkPeer refuses a socket on which a stranger listens. The plugin is whatever
// runs in its session: a script may have started the program that listens.
func checkPeer(conn *net.UnixConn, pid int) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if credErr != nil {
		return fmt.Errorf("peer credentials: %w", credErr)
	}
	if cred.Pid == 0 { // in another pid namespace
		if uid := int(cred.Uid); uid != os.Geteuid() {
			return fmt.Errorf("a process of uid %d listens on it, not the plugin", uid)
		}
		return nil
	}
	if int(cred.Pid) != pid && !inSession(int(cred.Pid), pid) {
		return fmt.Errorf("process %d of uid %d listens on it, not the plugin", cred.Pid, cred.Uid)
	}
	return nil
}
