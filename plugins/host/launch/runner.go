package launch

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	plugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
)

var (
	_ runner.Runner         = (*spawnRunner)(nil)
	_ runner.AttachedRunner = (*attachedRunner)(nil)
)

// attachedRunner implements go-plugin's runner interface for a running process.
type attachedRunner struct{ plugin *Plugin }

// Wait returns when the process has ended, or when the plugin was detached.
func (a attachedRunner) Wait(context.Context) error {
	select {
	case <-a.plugin.proc.done:
	case <-a.plugin.released:
	}
	return nil
}

func (a attachedRunner) Kill(context.Context) error {
	a.plugin.proc.kill()
	return nil
}

func (a attachedRunner) ID() string {
	if a.plugin.proc == nil {
		return ""
	}
	return strconv.Itoa(a.plugin.proc.PID)
}

func (attachedRunner) PluginToHost(network, addr string) (string, string, error) {
	return network, addr, nil
}
func (attachedRunner) HostToPlugin(network, addr string) (string, string, error) {
	return network, addr, nil
}

// spawnRunner starts a plugin process for go-plugin. The package reads the process's stdout and stderr itself:
// go-plugin gets a stdout with one valid handshake line and an empty stderr, which both end when the process exits.
// Therefore neither an invalid line nor a child of the plugin that keeps stderr open affects go-plugin.
type spawnRunner struct {
	attachedRunner
	launchCtx   context.Context // context of the launch; go-plugin passes another context to Start
	goPluginEnv []string        // variables that go-plugin adds to the environment of the plugin
}

// Start starts the process. It returns when the handshake line has arrived and the socket
// accepts a connection. go-plugin returns the error unchanged.
func (r *spawnRunner) Start(context.Context) error {
	p := r.plugin
	ctx, cancel := context.WithTimeoutCause(r.launchCtx, p.cfg.HandshakeTimeout, errNoAnswer)
	defer cancel()
	if err := r.spawnProcess(ctx); err != nil {
		return err
	}
	lineRead := make(chan struct{})
	p.startProcessWatchers()
	p.wg.Go(func() { p.readFirstLineAndDrainStdout(lineRead) })

	line, err := p.awaitHandshakeLine(ctx, lineRead)
	if err != nil {
		return err
	}
	if p.handshake, err = parseHandshake(line); err != nil {
		if p.exitsWithin(ctx, 100*time.Millisecond) {
			<-p.exit.errSet
			return fmt.Errorf("%w; it %w", err, p.exit.err)
		}
		return err
	}
	conn, err := p.dialAndVerifyPeer(ctx)
	if err != nil {
		if p.exitsWithin(ctx, 100*time.Millisecond) {
			<-p.exit.errSet
			return fmt.Errorf("after its handshake line it %w", p.exit.err)
		}
		return explainDialError(p.handshake, err)
	}
	p.mu.Lock()
	p.initialConn = conn
	p.mu.Unlock()
	return nil
}

func (r *spawnRunner) spawnProcess(ctx context.Context) error {
	p := r.plugin
	var pipeWriters [2]*os.File
	for i := range pipeWriters {
		reader, writer, err := os.Pipe()
		if err != nil {
			return err
		}
		p.output.stdoutAndStderrReadEnds[i], pipeWriters[i] = reader, writer
		defer writer.Close()
	}
	// The keeper gets the read ends before the plugin starts: a plugin that writes to a
	// pipe without a reader is killed by SIGPIPE.
	p.output.keeperFDKeyPrefix = fmt.Sprintf("plugin/%s/%s/", p.cfg.Name, rand.Text()[:8])
	for i, stream := range pipeNames {
		if err := p.cfg.Keeper.StoreFDDrainedWithoutAgent(ctx, p.output.keeperFDKeyPrefix+stream, p.output.stdoutAndStderrReadEnds[i]); err != nil {
			return fmt.Errorf("hold %s: %w", stream, err)
		}
	}
	env := slices.Concat(p.cfg.Env, r.goPluginEnv)
	id, err := spawnRetryingTextBusy(ctx, p.cfg.Keeper, keeper.Command{
		Name:       p.cfg.Name,
		Executable: p.cfg.Executable,
		Path:       p.cfg.Path,
		Args:       p.cfg.Argv,
		Env:        replaceSocketDirVar(env, p.cfg.SocketDir),
		Dir:        p.cfg.WorkDir,
		Stdout:     pipeWriters[0],
		Stderr:     pipeWriters[1],

		KillOnDisconnect: true,
	})
	if errors.Is(err, keeper.ErrKeeperDied) {
		pipeWriters[0].Close() // now only the plugin can have the write end of its stdout
		return errors.Join(err, killPluginOfDeadKeeper(p.output.stdoutAndStderrReadEnds[0], p.cfg.SocketDir))
	}
	if err != nil {
		return explainSpawnError(err, p.cfg.Path, p.cfg.Executable)
	}
	if p.cfg.OnSpawn != nil {
		boot, _ := osprocess.BootID() // no error is possible: Start has cached the boot id
		p.cfg.OnSpawn(ReattachConfig{Pid: id.PID, StartTimeTicks: id.StartTime, BootID: boot, StreamKeyPrefix: p.output.keeperFDKeyPrefix})
	}
	p.proc, err = openProcessHandle(id)
	switch {
	case errors.Is(err, os.ErrProcessDone):
		p.proc = newEndedProcessHandle(id) // the process has exited, and the keeper has reaped it
		return nil
	case err != nil:
		id.KillSession()
		return err
	}
	// The plugin inherits the protection of agent and keeper from the OOM killer, and would
	// pass it on to downloads, commands and tasks.
	if err := osprocess.ResetOOMScore(id.PID); err != nil {
		p.logger.Warn("plugin is protected from the lack of memory as the agent is", "error", err)
	}
	return nil
}

// spawnRetryingTextBusy starts a program. As long as its file is open for writing (ETXTBSY), it
// retries for a quarter of a second: an installer may be writing the file, or a child that
// the installer has forked has not called exec yet, and still has the file open.
func spawnRetryingTextBusy(ctx context.Context, k Keeper, command keeper.Command) (osprocess.ID, error) {
	for delay := time.Millisecond; ; delay *= 2 {
		id, err := k.Spawn(ctx, command)
		if !errors.Is(err, unix.ETXTBSY) || delay > 128*time.Millisecond {
			return id, err
		}
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return osprocess.ID{}, err
		}
	}
}

// killPluginOfDeadKeeper kills the plugin that a dead keeper may have started: the process whose stdout
// is the pipe with the given read end. It repeats that until no process has the write end, for at most a
// second, because a child that was being forked when the keeper died gets the pipe as its
// stdout later. It removes the plugin's socket from socketDir.
func killPluginOfDeadKeeper(stdoutReadEnd *os.File, socketDir string) error {
	conn, err := stdoutReadEnd.SyscallConn()
	if err != nil {
		return err
	}
	var st unix.Stat_t
	var statErr error
	if err := conn.Control(func(fd uintptr) { statErr = unix.Fstat(int(fd), &st) }); err != nil || statErr != nil {
		return errors.Join(err, statErr)
	}
	killed, held := false, true
	for deadline := time.Now().Add(time.Second); held && time.Now().Before(deadline); {
		ended, err := killProcessesWithStdout(fmt.Sprintf("pipe:[%d]", st.Ino))
		if err != nil {
			return err
		}
		killed = killed || ended
		err = conn.Control(func(fd uintptr) {
			// Poll requests no events, so it returns 1 only at the end of the pipe.
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd)}}, 10)
			held = n == 0 || err != nil
		})
		if err != nil {
			return err
		}
	}
	if killed {
		return removeUnboundSockets(socketDir, "")
	}
	return nil
}

// killProcessesWithStdout kills the processes whose stdout is the pipe of pipeLinkTarget, which has
// the form "pipe:[inode]", and waits up to a second for each to end. It reports whether it has
// killed any.
func killProcessesWithStdout(pipeLinkTarget string) (killed bool, err error) {
	links, err := filepath.Glob("/proc/[0-9]*/fd/1")
	if err != nil {
		return false, err
	}
	for _, link := range links {
		pid, err := strconv.Atoi(strings.Split(link, "/")[2])
		if err != nil {
			return killed, err
		}
		// The ID is read before the link to stdout. If the pid is reused in between, Signal returns an error, because the
		// later process has another ID.
		p, err := osprocess.LookupID(pid)
		if target, linkErr := os.Readlink(link); linkErr != nil || target != pipeLinkTarget {
			continue // the process has another stdout, belongs to another user, or has ended
		}
		if err == nil {
			err = p.Signal(unix.SIGKILL)
			killed = p.EndsWithin(time.Second) || killed
		}
		if err != nil && !errors.Is(err, os.ErrProcessDone) {
			return killed, fmt.Errorf("end what the keeper has started: process %d: %w", pid, err)
		}
	}
	return killed, nil
}

// removeUnboundSockets removes the sockets in a directory whose names start with namePrefix and that no process is
// bound to.
func removeUnboundSockets(dir, namePrefix string) error {
	// entries is read before the bound sockets, so that a socket of a plugin that starts
	// meanwhile is not removed.
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	bound, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if e.Type()&os.ModeSocket == 0 || !strings.HasPrefix(e.Name(), namePrefix) || bytes.Contains(bound, []byte("/"+e.Name()+"\n")) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// replaceSocketDirVar replaces go-plugin's temporary directory in env by dir.
func replaceSocketDirVar(env []string, dir string) []string {
	prefix := plugin.EnvUnixSocketDir + "="
	for i, v := range env {
		if strings.HasPrefix(v, prefix) {
			env[i] = prefix + dir
		}
	}
	return env
}

// appendFirstStdoutLine appends text from stdout to the first line, and reports whether the line is complete or has the
// maximum length.
func (p *processOutput) appendFirstStdoutLine(text []byte) (complete bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.firstStdoutLine = append(p.firstStdoutLine, text...)
	if i := bytes.IndexByte(p.firstStdoutLine, '\n'); i >= 0 {
		p.firstStdoutLine = p.firstStdoutLine[:i]
		return true
	}
	return len(p.firstStdoutLine) >= maxHandshakeSize
}

// copyFirstStdoutLine returns the first line of stdout, as far as the plugin has written it.
func (p *processOutput) copyFirstStdoutLine() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return string(p.firstStdoutLine)
}

// readFirstLineAndDrainStdout reads the first line of stdout, closes lineRead, and then discards the output
// until stdout ends.
func (p *Plugin) readFirstLineAndDrainStdout(lineRead chan<- struct{}) {
	buf := make([]byte, maxHandshakeSize)
	complete := false
	for {
		n, err := p.output.stdoutAndStderrReadEnds[0].Read(buf)
		if !complete {
			complete = p.output.appendFirstStdoutLine(buf[:n]) || err != nil
			if complete {
				close(lineRead)
			}
		}
		if err != nil {
			return
		}
	}
}

// awaitHandshakeLine waits for the first line of stdout. Its error describes why there is no line.
func (p *Plugin) awaitHandshakeLine(ctx context.Context, lineRead <-chan struct{}) (string, error) {
	select {
	case <-lineRead:
	case <-p.proc.done:
		// After the exit of the process, its output can still be in the pipe.
		select {
		case <-lineRead:
		case <-time.After(drainTimeout):
		}
	case <-ctx.Done():
	}
	line := p.output.copyFirstStdoutLine()

	select {
	case <-lineRead:
		if line != "" {
			return line, nil
		}
		if !p.exitsWithin(ctx, time.Second) {
			return "", errorWithStderr("closed its stdout without a handshake line", &p.output.stderrTail, time.Time{})
		}
	default:
	}
	if p.exitsWithin(ctx, 0) {
		<-p.exit.errSet
		if line != "" {
			return "", fmt.Errorf("wrote %s on stdout instead of a handshake line and %w", quoteTruncated(line), p.exit.err)
		}
		return "", fmt.Errorf("wrote no handshake line and %w", p.exit.err)
	}
	if cause := context.Cause(ctx); !errors.Is(cause, errNoAnswer) {
		return "", cause
	}
	reason := fmt.Sprintf("timeout while waiting for plugin to start: no handshake line within %s", p.cfg.HandshakeTimeout)
	if line != "" {
		reason += fmt.Sprintf(", only %s without a line end", quoteTruncated(line))
	}
	return "", errorWithStderr(reason, &p.output.stderrTail, time.Time{})
}

// Stdout returns the validated handshake line for go-plugin.
func (r *spawnRunner) Stdout() io.ReadCloser {
	return &eofAtExitReader{Reader: strings.NewReader(r.plugin.handshake.formatLine()), process: r.attachedRunner}
}

// Stderr returns an empty stream for go-plugin.
func (r *spawnRunner) Stderr() io.ReadCloser {
	return &eofAtExitReader{Reader: strings.NewReader(""), process: r.attachedRunner}
}

// Name implements go-plugin's interface. go-plugin uses the name only for its log, which is discarded.
func (r *spawnRunner) Name() string { return r.plugin.cfg.Name }

// Diagnose implements go-plugin's interface. go-plugin calls it only after an invalid
// handshake line, and Stdout returns no invalid line.
func (r *spawnRunner) Diagnose(context.Context) string { return "" }

// eofAtExitReader is a stream that ends when the plugin process ends.
type eofAtExitReader struct {
	*strings.Reader
	process attachedRunner
}

func (r *eofAtExitReader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	if err == io.EOF {
		_ = r.process.Wait(context.Background())
	}
	return n, err
}

func (r *eofAtExitReader) Close() error { return nil }

// explainDialError returns an error that describes why the socket of the handshake line cannot
// be used.
func explainDialError(h handshake, err error) error {
	switch {
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("its socket %s does not exist", h.addr)
	case errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("nobody listens on its socket %s", h.addr)
	}
	return fmt.Errorf("connect: %w", err)
}

// checkPeerInSession returns an error if a process outside the plugin's session listens on the socket.
// The session is checked, not the pid, because a script may have started the program that
// listens.
func checkPeerInSession(conn *net.UnixConn, sessionLeaderPID int) error {
	cred, err := osprocess.PeerCredentials(conn)
	if err != nil {
		return err
	}
	if cred.Pid == 0 { // the listening process is in another pid namespace
		if uid := int(cred.Uid); uid != os.Geteuid() {
			return fmt.Errorf("a process of uid %d listens on it, not the plugin", uid)
		}
		return nil
	}
	if int(cred.Pid) != sessionLeaderPID && !inSession(int(cred.Pid), sessionLeaderPID) {
		return fmt.Errorf("process %d of uid %d listens on it, not the plugin", cred.Pid, cred.Uid)
	}
	return nil
}

func inSession(pid, sessionID int) bool {
	sid, err := unix.Getsid(pid)
	return err == nil && sid == sessionID
}
