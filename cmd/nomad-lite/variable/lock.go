package variable

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
)

const lockHelp = `Run a command while holding the lock of a variable.

The lock is waited for. It is held as long as the command runs, and released
afterwards. Should it be lost, the command gets SIGTERM, and SIGKILL five seconds
later. The variable is made if it is not there, and stays. Of more than one machine,
those that ask the same agent take turns.

PATH may be @FILE, or - for standard input, with a specification as 'var put' takes
it.

Exit codes: the exit code of the command, or 1 when there was no lock, or it was lost.`

// commandShutdownTimeout is the time between SIGTERM and SIGKILL for a command that must stop.
const commandShutdownTimeout = 5 * time.Second

type lockOptions struct {
	clientFlags       apiclient.Flags
	ttl, lockDelay    time.Duration
	maxRetries        int64
	failIfLockIsHeld  bool
	lockRetryInterval time.Duration
	useShell          bool
	verbose           bool
}

func newLockCommand(s *cli.Streams) *cobra.Command {
	var o lockOptions
	cmd := &cobra.Command{
		Use:   "lock [flags] PATH COMMAND [ARGS...]",
		Short: "Run a command while holding the lock of a variable",
		Long:  lockHelp,
		Example: `  nomad-lite var lock locks/backup ./backup.sh
  nomad-lite var lock -ttl 1m -shell=false locks/backup rsync -a /srv /backup`,
		Args: cli.RequireArgCount(2, -1, "the path of a variable, and a command"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.lockRetryInterval <= 0 {
				return cli.UsageError(cmd, errors.New("-backoff takes a positive time, such as 1s"))
			}
			return runWithLock(cmd.Context(), o, args[0], args[1:], s)
		},
		ValidArgsFunction: cli.CompleteArgsByPosition(completeVariables(&o.clientFlags)),
	}
	o.clientFlags.Register(cmd)
	cmd.Flags().DurationVar(&o.ttl, "ttl", 15*time.Second, "how long the lock outlives a holder that is gone, from 10s to 24h")
	cmd.Flags().DurationVar(&o.lockDelay, "delay", 15*time.Second, "how long nobody gets it after that")
	cmd.Flags().Int64Var(&o.maxRetries, "max-retry", 5, "how often a request is tried again that the agent did not answer")
	cmd.Flags().BoolVar(&o.failIfLockIsHeld, "early-return", false, "do not wait for a lock that another holder has")
	cmd.Flags().DurationVar(&o.lockRetryInterval, "backoff", time.Second, "`time` between two requests for a lock that another holder has")
	cmd.Flags().BoolVar(&o.useShell, "shell", true, "let a shell read the command")
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "say what is done")
	return cli.PassFlagsAfterFirstArg(cmd)
}

func runWithLock(ctx context.Context, o lockOptions, pathOrSpecFile string, command []string, s *cli.Streams) error {
	v := &api.Variable{Path: pathOrSpecFile}
	if isFileReference(pathOrSpecFile) {
		var err error
		if v, err = (&putOptions{clientFlags: o.clientFlags}).readSpec(pathOrSpecFile, &referencedFileReader{stdin: s.In}); err != nil {
			return err
		}
	}
	v.Lock = &api.VariableLock{TTL: o.ttl.String(), LockDelay: o.lockDelay.String()}
	c, err := o.clientFlags.Client()
	if err != nil {
		return err
	}
	lock, err := c.Locks(*apiclient.WriteOptions(ctx, v.Namespace), *v, api.LocksOptionWithMaxRetries(o.maxRetries))
	if err != nil {
		return err
	}
	say := func(text string) {
		if o.verbose {
			fmt.Fprintf(s.Err, "%s %q\n", text, v.Path)
		}
	}
	ctx, stop := cli.ContextUntilInterrupted(ctx)
	defer stop()
	say("Waiting for the lock of variable")
	if err := o.waitAndAcquireLock(ctx, lock); err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("lock variable %q", v.Path), err)
	}
	say("Holding the lock of variable")
	err = runAndRenewLock(ctx, lock, func(ctx context.Context) error { return o.runCommand(ctx, command, s) })
	if free := lock.Release(context.WithoutCancel(ctx)); free != nil && !errors.Is(free, api.ErrLockConflict) {
		err = errors.Join(err, apiclient.WrapErrorWithAdvice(fmt.Sprintf("release the lock of variable %q", v.Path), free))
	}
	return err
}

// waitAndAcquireLock requests the lock again each -backoff until the agent grants it. With -early-return it requests
// the lock once.
func (o lockOptions) waitAndAcquireLock(ctx context.Context, lock *api.Locks) error {
	for {
		_, err := lock.Acquire(ctx)
		switch {
		case !errors.Is(err, api.ErrLockConflict):
			return err
		case o.failIfLockIsHeld:
			return errors.New("another holder has the lock")
		}
		select {
		case <-time.After(o.lockRetryInterval):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// runAndRenewLock calls do, and renews the lock while do runs. If the lock is lost, it cancels the context of do.
func runAndRenewLock(ctx context.Context, lock *api.Locks, do func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- do(ctx) }()
	renew := time.NewTicker(lock.LockTTL() / 2)
	defer renew.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-renew.C:
			if err := lock.Renew(ctx); err != nil && ctx.Err() == nil {
				cancel()
				<-ended
				return fmt.Errorf("the lock was lost, and the command ended: %w", err)
			}
		}
	}
}

// runCommand runs the user's command. The exit code in the error is that of the command.
func (o lockOptions) runCommand(ctx context.Context, command []string, s *cli.Streams) error {
	if o.useShell {
		command = []string{"/bin/sh", "-c", strings.Join(command, " ")}
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.In, terminal.UnsanitizedStream(s.Out), terminal.UnsanitizedStream(s.Err)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = commandShutdownTimeout
	err := cmd.Run()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		code := exit.ExitCode()
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			code = 128 + int(status.Signal())
		}
		return &cli.ExitError{Code: cli.CommandExited.Number + code}
	}
	return err
}
