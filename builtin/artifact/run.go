package artifact

import (
	"bytes"
	"cmp"
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

	"github.com/nomad-lite/nomad-lite/plugins/confine"
	"github.com/nomad-lite/nomad-lite/plugins/idrange"
)

// inherited are the environment variables that a download gets from this
// process, for access to the network. They may have a password, and are part of
// the order.
var inherited = []string{
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy",
}

// ofRuntime are the environment variables that the Go runtime reads before main.
var ofRuntime = []string{"GODEBUG", "GOGC", "GOMAXPROCS", "GOMEMLIMIT", "GORACE", "GOTRACEBACK"}

var errTimeout = errors.New("the download has taken longer than the limits allow")

// tellOnce logs once per process that the machine lacks a feature.
var tellOnce sync.Once

// downloadIDs are the user ids of the downloads of this process.
var downloadIDs = &identities{files: "/etc"}

// run makes one download in a process of its own, in the directory stage. It
// blocks until the process has ended. When ctx ends, run kills the process and
// everything that it has started. When run returns, none of them is running, and
// the stage belongs to the caller again; its content still has another owner.
func run(ctx context.Context, args []string, o request, stage *os.File) error {
	o.Env = map[string]string{}
	for _, name := range slices.Concat(inherited, o.Limits.Env) {
		if value, ok := os.LookupEnv(name); ok {
			o.Env[name] = value
		}
	}
	told, err := json.Marshal(o)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.Limits.deadline(), errTimeout)
	defer cancel()

	said := &tail{limit: 4096}
	p := &process{args: args, stage: stage, order: o, said: said}
	if err := p.start(ctx); err != nil {
		return fmt.Errorf("start the download: %w", err)
	}
	_, err = p.stdin.Write(told)
	waited, left := p.end()
	switch {
	case left != nil:
		return left
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case waited != nil && said.String() == "":
		return fmt.Errorf("getter subprocess failed: %w", waited)
	case waited != nil:
		return fmt.Errorf("getter subprocess failed: %w: %s", waited, strings.TrimSpace(said.String()))
	}
	return err
}

// process is the process of one download. It runs as the agent's user or, if
// that is root, under an id of its own.
type process struct {
	args  []string
	stage *os.File
	order request
	said  *tail

	cmd       *exec.Cmd
	stdin     io.WriteCloser // closed when the process of the hook dies, which ends the download
	id        uint32
	namespace bool // no process that it starts survives it
}

// start starts the process, which waits for its order, and gives it the stage.
func (p *process) start(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return p.spawn(ctx, nil)
	}
	set, err := idrange.Downloads(p.order.Limits.UIDs)
	if err != nil {
		return fmt.Errorf("download_uids in the client's artifact block: %w", err)
	}
	const tries = 20
	for range tries {
		if p.id, err = downloadIDs.reserve(ctx, set); err != nil {
			return err
		}
		if err = p.spawn(ctx, &syscall.Credential{Uid: p.id, Gid: p.id}); err != nil {
			downloadIDs.release(p.id)
			return err
		}
		// Two agents can choose the same id. Then at least one of them sees the
		// process of the other one here, before its own process gets its order
		// and any file.
		alone, err := p.hasUserIDAlone()
		if err == nil && alone {
			err = p.stage.Chown(int(p.id), int(p.id))
		}
		if err == nil && alone {
			return nil
		}
		p.kill()
		if _, left := p.end(); err != nil || left != nil {
			return errors.Join(err, left)
		}
	}
	return fmt.Errorf("other processes have the user ids of downloads, %s: let download_uids in the client's artifact block name a range that nothing else uses", cmp.Or(p.order.Limits.UIDs, idrange.DefaultDownloads))
}

// hasUserIDAlone reports whether no other process has the user id of the
// download.
func (p *process) hasUserIDAlone() (bool, error) {
	pids, err := processesOf(p.id)
	pids = slices.DeleteFunc(pids, func(pid int) bool { return pid == p.cmd.Process.Pid })
	return len(pids) == 0, err
}

func (p *process) spawn(ctx context.Context, cred *syscall.Credential) error {
	env := []string{"PATH=/usr/local/bin:/usr/bin:/bin", "TMPDIR=" + scratch, "HOME=/nonexistent"}
	for _, name := range ofRuntime {
		if value, ok := os.LookupEnv(name); ok && slices.Contains(p.order.Limits.Env, name) {
			env = append(env, name+"="+value)
		}
	}
	// Not every container may make namespaces.
	kinds := []uintptr{unix.CLONE_NEWUSER | unix.CLONE_NEWPID, unix.CLONE_NEWPID, 0}
	switch {
	case cred == nil:
		kinds = kinds[2:]
	case !p.order.isGit(): // ssh requires an account for its user
		kinds = kinds[1:]
	}
	var err error
	for _, kind := range kinds {
		attr := &syscall.SysProcAttr{Setpgid: true, Credential: cred, Cloneflags: kind}
		if kind&unix.CLONE_NEWUSER != 0 {
			attr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
			attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: nobody, HostID: int(cred.Uid), Size: 1}}
			attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: nobody, HostID: int(cred.Gid), Size: 1}}
			attr.GidMappingsEnableSetgroups = true // else the process would keep the groups of root
		}
		p.namespace = kind != 0
		p.cmd = exec.CommandContext(ctx, "/proc/self/exe", p.args...)
		p.cmd.Args[0] = os.Args[0]
		p.cmd.Env, p.cmd.Stderr, p.cmd.ExtraFiles, p.cmd.SysProcAttr = env, p.said, []*os.File{p.stage}, attr
		p.cmd.WaitDelay = 5 * time.Second // limits the wait for a helper of git that holds stderr
		p.cmd.Cancel = p.kill
		if p.stdin, err = p.cmd.StdinPipe(); err != nil {
			return err
		}
		if err = start(p.cmd, p.stage, p.order); err == nil || !slices.ContainsFunc(noNamespace, func(n error) bool { return errors.Is(err, n) }) {
			return err
		}
	}
	return err
}

// nobody is the id of an account in a user namespace; no download has it outside
// of that.
const nobody = 65534

// noNamespace are the errors on a machine that cannot make more namespaces.
var noNamespace = []error{unix.EPERM, unix.EACCES, unix.ENOSPC, unix.EUSERS, unix.EINVAL, unix.ENOSYS}

func (p *process) kill() error { return syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) }

// end waits for the process, kills everything that it has started, and takes the
// stage from its user. left is an error of the latter two steps: the content of
// the stage must not be used then.
func (p *process) end() (waited, left error) {
	waited = p.cmd.Wait()
	if os.Geteuid() != 0 {
		return waited, nil
	}
	if !p.namespace {
		left = endProcesses(p.id)
	}
	// Both calls use the handle; with mode 0700 other users cannot reach the
	// content.
	left = errors.Join(left, p.stage.Chown(0, 0), p.stage.Chmod(0o700))
	if left == nil {
		downloadIDs.release(p.id) // after an error the id is never used again
	}
	return waited, left
}

// start starts a command as confined as this machine supports.
func start(cmd *exec.Cmd, stage *os.File, o request) error {
	return onThread(func() error { return startHere(cmd, stage, o) })
}

// onThread calls a function that confines its thread. The thread ends
// afterwards, because it cannot be used for anything else.
func onThread(f func() error) error {
	failed := make(chan error)
	go func() {
		runtime.LockOSThread()
		failed <- f()
	}()
	return <-failed
}

// startHere starts a command with the restrictions of the calling thread, which
// keeps them.
func startHere(cmd *exec.Cmd, stage *os.File, o request) error {
	if o.isGit() && os.Geteuid() == 0 {
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
		err := restrict(stage, o.Limits, cmd.SysProcAttr.UidMappings != nil)
		switch {
		case errors.Is(err, errNoLandlock):
			tellOnce.Do(func() {
				hclog.Default().Warn("downloads see the files that everybody may see: this kernel has no landlock")
			})
		case err != nil:
			return err
		}
	}
	// The namespaces above need these system calls, so they are denied only now.
	confine.DenyThread(append(confine.Namespaces(), confine.Machine()...)...)
	return cmd.Start()
}

// tail keeps the end of its input.
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
