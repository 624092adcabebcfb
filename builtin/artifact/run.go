package artifact

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// nobody owns nothing that a download should see. Directories of tasks belong to
// it, and are not visible.
const nobody = 65534

// inherited are the variables that a download sees besides those of its own: how
// to get out of here.
var inherited = []string{
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy",
}

var errTimeout = errors.New("the download has taken longer than the limits allow")

// tellOnce says once per process what is missing here.
var tellOnce sync.Once

// run makes one download in a process of its own, in the directory stage. When
// ctx ends, so does the process with all that it has started.
func run(ctx context.Context, args []string, o order, stage *os.File) error {
	told, err := json.Marshal(o)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.Limits.deadline(), errTimeout)
	defer cancel()

	env := []string{"PATH=/usr/local/bin:/usr/bin:/bin", "TMPDIR=" + scratch, "HOME=/nonexistent"}
	for _, name := range slices.Concat(inherited, o.Limits.Env) {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	said := &tail{limit: 4096}
	var (
		cmd   *exec.Cmd
		stdin io.WriteCloser
	)
	// Nothing that it starts survives the first process of a namespace; not every
	// container lets us have one.
	for _, namespace := range []uintptr{unix.CLONE_NEWPID, 0} {
		attr := &syscall.SysProcAttr{Setpgid: true}
		if os.Geteuid() == 0 {
			attr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
			attr.Cloneflags = namespace
		}
		cmd = exec.CommandContext(ctx, "/proc/self/exe", args...)
		cmd.Args[0] = os.Args[0]
		cmd.Env, cmd.Stderr, cmd.ExtraFiles, cmd.SysProcAttr = env, said, []*os.File{stage}, attr
		cmd.WaitDelay = 5 * time.Second // for a helper of git that holds stderr
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
		// The pipe stays open: its end is how the process learns of our death.
		if stdin, err = cmd.StdinPipe(); err != nil {
			return err
		}
		if err = start(cmd, stage, o); attr.Cloneflags == 0 || !errors.Is(err, syscall.EPERM) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("start the download: %w", err)
	}
	_, err = stdin.Write(told)
	waited := cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case waited != nil && said.String() == "":
		return fmt.Errorf("getter subprocess failed: %w", waited)
	case waited != nil:
		return fmt.Errorf("getter subprocess failed: %w: %s", waited, strings.TrimSpace(said.String()))
	}
	return err
}

// start starts a command as confined as this machine can.
func start(cmd *exec.Cmd, stage *os.File, o order) error {
	failed := make(chan error)
	go func() {
		// The thread is not of use to anything else: it ends with this goroutine.
		runtime.LockOSThread()
		failed <- startHere(cmd, stage, o)
	}()
	return <-failed
}

// startHere starts a command that sees of the machine what the calling thread sees from
// then on.
func startHere(cmd *exec.Cmd, stage *os.File, o order) error {
	if src, err := parseSource(o.Source, o.Options); err == nil && src.kind == "git" && os.Geteuid() == 0 {
		shown, err := walkable(stage)
		if err != nil {
			hclog.Default().Debug("git may not find its directory", "error", err)
		}
		if shown != nil {
			defer shown.Close()
			stage, cmd.ExtraFiles = shown, []*os.File{shown}
		}
	}
	if !o.Limits.NoLandlock {
		err := restrict(stage, o.Limits)
		switch {
		case errors.Is(err, errNoLandlock):
			tellOnce.Do(func() {
				hclog.Default().Warn("downloads see the files that everybody may see: this kernel has no landlock")
			})
		case err != nil:
			return err
		}
	}
	return cmd.Start()
}

// tail keeps the end of what is written to it.
type tail struct {
	limit int
	buf   bytes.Buffer
}

func (t *tail) Write(p []byte) (int, error) {
	t.buf.Write(p)
	t.buf.Next(max(0, t.buf.Len()-t.limit))
	return len(p), nil
}

func (t *tail) String() string { return t.buf.String() }
