package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
)

const (
	// logFileName is the log of a detached agent in its data directory.
	logFileName = "agent.log"
	// readyPipeVar is the environment variable with the descriptor of the pipe into which a detached agent writes when it is ready.
	readyPipeVar = "NOMAD_LITE_READY_FD"
	// detachedStopTimeout is how long an agent that was not ready in time has to shut down before it is killed.
	detachedStopTimeout = 30 * time.Second
	// maxStartLogLines is how many lines of the log the error of a failed start has.
	maxStartLogLines = 10
)

type detachOptions struct {
	enabled bool
	logFile string
	timeout time.Duration
}

// startDetached starts an agent with the same flags in a session of its own, and blocks until the agent is ready. After an error,
// the agent does not run.
func startDetached(ctx context.Context, o options, flags *pflag.FlagSet, s *cli.Streams) error {
	ctx, release := cli.ContextUntilInterrupted(ctx)
	defer release()
	log, err := o.openLogOfDetachedAgent(s)
	if err != nil {
		return err
	}
	defer log.Close()
	logStart, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	words, err := agentCommandLine(flags)
	if err != nil {
		return err
	}
	readyPipe, childEnd, err := os.Pipe()
	if err != nil {
		return err
	}
	defer readyPipe.Close()
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{childEnd}
	cmd.Env = append(os.Environ(), readyPipeVar+"=3") // the first of ExtraFiles has the descriptor 3
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	childEnd.Close()
	if err != nil {
		return fmt.Errorf("start the agent: %w", err)
	}

	ctx, cancel := context.WithTimeoutCause(ctx, o.detach.timeout, fmt.Errorf("the agent was not ready after %v, and was stopped: see its log, or start it again with a longer -detach-timeout", o.detach.timeout))
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = readyPipe.SetReadDeadline(time.Now()) })() // pipes have deadlines
	message, err := io.ReadAll(readyPipe)
	switch {
	case len(message) > 0:
		fmt.Fprintf(s.Err, "%s    log in %s\n", message, log.Name())
		_, err := fmt.Fprintln(s.Out, cmd.Process.Pid)
		return err
	case err != nil:
		_ = cmd.Process.Signal(syscall.SIGTERM) // an error means that the agent has exited
		defer time.AfterFunc(detachedStopTimeout, func() { _ = cmd.Process.Kill() }).Stop()
	}
	waitErr := cmd.Wait()
	switch cause := context.Cause(ctx); {
	case err == nil && waitErr != nil:
		err = fmt.Errorf("the agent ended before it was ready: %w", waitErr)
	case err != nil && !errors.Is(cause, context.Canceled):
		err = cause
	default:
		err = errors.New("the agent was stopped by a signal before it was ready: start it again")
	}
	if lines := lastLines(log.Name(), logStart); len(lines) > 0 {
		err = fmt.Errorf("%w\nThe end of its log, %s:\n%s", err, log.Name(), lines)
	}
	return err
}

// openLogOfDetachedAgent opens the file to which a detached agent appends its output. It checks the configuration, so that
// errors of the configuration are printed and not only logged.
func (o *options) openLogOfDetachedAgent(s *cli.Streams) (*os.File, error) {
	c, err := o.loadConfig(false, s)
	if err != nil {
		return nil, err
	}
	path := o.detach.logFile
	if path == "" {
		if o.devMode {
			return nil, errors.New("-dev keeps nothing, and so no log of a detached agent: name a file with -log-file")
		}
		dir, err := keeper.OpenOrCreateDataDir(c.DataDir)
		if err != nil {
			return nil, fmt.Errorf("data directory: %w", err)
		}
		defer dir.Close()
		path = filepath.Join(c.DataDir, logFileName)
	}
	log, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("log of the agent: %w; -log-file names another file", err)
	}
	return log, nil
}

// lastLines returns the last lines of a file that begin at the offset or after it.
func lastLines(path string, offset int64) []byte {
	text, err := os.ReadFile(path)
	if err != nil {
		return []byte(err.Error())
	}
	lines := bytes.Split(bytes.TrimSpace(text[min(offset, int64(len(text))):]), []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-maxStartLogLines):], []byte("\n"))
}

// readyPipe is the pipe to the command that has started this agent with -detach. Without such a command it does nothing.
type readyPipe struct{ file *os.File }

// takeReadyPipeFromEnv returns the pipe in readyPipeVar. Processes that the agent starts inherit neither the variable nor the pipe,
// whose end tells the command that the agent has exited.
func takeReadyPipeFromEnv() readyPipe {
	fd, err := strconv.Atoi(os.Getenv(readyPipeVar))
	os.Unsetenv(readyPipeVar)
	if err != nil {
		return readyPipe{}
	}
	syscall.CloseOnExec(fd)
	return readyPipe{os.NewFile(uintptr(fd), readyPipeVar)}
}

// announce passes the message to the command, which then exits.
func (p readyPipe) announce(message string) {
	if p.file != nil {
		_, _ = p.file.WriteString(message) // an error means that the command was killed
		p.file.Close()
	}
}
