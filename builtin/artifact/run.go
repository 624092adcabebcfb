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
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/confine"
	"github.com/nomad-lite/nomad-lite/internal/idrange"
	"github.com/nomad-lite/nomad-lite/internal/opcount"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// inheritedEnvNames are the environment variables for network access that a download inherits.
// Their values may contain a password, so they are passed in the request, which other processes
// cannot read.
var inheritedEnvNames = []string{
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy",
}

// goRuntimeEnvNames are the environment variables that the Go runtime reads before main.
var goRuntimeEnvNames = []string{"GODEBUG", "GOGC", "GOMAXPROCS", "GOMEMLIMIT", "GORACE", "GOTRACEBACK"}

var errDownloadTimeout = errors.New("the download has taken longer than the limits allow")

// warnNoLandlockOnce logs at most once per process that the kernel has no
// Landlock.
var warnNoLandlockOnce sync.Once

// downloadUserIDs allocates the user ids of the downloads of this process.
var downloadUserIDs = &userIDAllocator{accountFilesDir: "/etc"}

// runDownloadProcess runs the process of one download in the staging directory, and blocks until it
// has exited. When ctx ends, it kills the process and all processes that the process has started.
// When it returns, none of them is running, and the staging directory belongs to the caller again;
// the files in it still have another owner. The process writes its reports to reportWriter.
func runDownloadProcess(ctx context.Context, downloadArgs []string, request downloadRequest, stagingDir *os.File, reportWriter io.Writer) error {
	request.Env = map[string]string{}
	for _, name := range slices.Concat(inheritedEnvNames, request.Limits.EnvNames) {
		if value, ok := os.LookupEnv(name); ok {
			request.Env[name] = value
		}
	}
	encoded, err := json.Marshal(request)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, request.Limits.maxDownloadDuration(), errDownloadTimeout)
	defer cancel()

	stderr := &tailBuffer{maxBytes: 4096}
	p := &downloadProcess{downloadArgs: downloadArgs, stagingDir: stagingDir, request: request, reportWriter: reportWriter, stderrTail: stderr}
	if err := p.startAsDownloadUser(ctx); err != nil {
		return fmt.Errorf("start the download: %w", err)
	}
	_, err = p.stdin.Write(encoded)
	waitErr, cleanupErr := p.waitAndReclaimStagingDir()
	switch {
	case cleanupErr != nil:
		return cleanupErr
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case waitErr != nil && stderr.String() == "":
		return fmt.Errorf("getter subprocess failed: %w", waitErr)
	case waitErr != nil:
		return fmt.Errorf("getter subprocess failed: %w: %s", waitErr, strings.TrimSpace(stderr.String()))
	}
	return err
}

// downloadProcess is the process of one download. It runs as the agent's user or, if
// the agent is root, under a user id of its own.
type downloadProcess struct {
	downloadArgs []string
	stagingDir   *os.File
	request      downloadRequest
	reportWriter io.Writer
	stderrTail   *tailBuffer

	cmd             *exec.Cmd
	stdin           io.WriteCloser // closed when the process of the hook exits, which ends the download
	userID          uint32
	hasPIDNamespace bool // the process is in a PID namespace: when it exits, the kernel kills all its children
}

// startAsDownloadUser starts the process, and gives the staging directory to its user. The process waits for its
// request.
func (p *downloadProcess) startAsDownloadUser(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return p.startInNamespacesAs(ctx, nil)
	}
	set, err := idrange.ParseDownloadUIDs(p.request.Limits.DownloadUIDs)
	if err != nil {
		return fmt.Errorf("download_uids in the client's artifact block: %w", err)
	}
	const maxTries = 20
	for range maxTries {
		if p.userID, err = downloadUserIDs.reserveID(ctx, set); err != nil {
			return err
		}
		if err = p.startInNamespacesAs(ctx, &syscall.Credential{Uid: p.userID, Gid: p.userID}); err != nil {
			downloadUserIDs.releaseID(p.userID)
			return err
		}
		// Two agents can choose the same id. Then at least one of them sees the other's
		// process here, before its own process gets the request and the staging
		// directory.
		alone, err := p.isOnlyProcessOfUser()
		if err == nil && alone {
			err = p.stagingDir.Chown(int(p.userID), int(p.userID))
		}
		if err == nil && alone {
			return nil
		}
		p.killProcessGroup()
		if _, cleanupErr := p.waitAndReclaimStagingDir(); err != nil || cleanupErr != nil {
			return errors.Join(err, cleanupErr)
		}
	}
	return fmt.Errorf("other processes have the user ids of downloads, %s: let download_uids in the client's artifact block name a range that nothing else uses", cmp.Or(p.request.Limits.DownloadUIDs, idrange.DefaultDownloadUIDs))
}

// isOnlyProcessOfUser reports whether no other process has the user id of the
// download.
func (p *downloadProcess) isOnlyProcessOfUser() (bool, error) {
	pids, err := findPIDsOfUser(p.userID)
	pids = slices.DeleteFunc(pids, func(pid int) bool { return pid == p.cmd.Process.Pid })
	return len(pids) == 0, err
}

func (p *downloadProcess) startInNamespacesAs(ctx context.Context, cred *syscall.Credential) error {
	env := []string{"PATH=/usr/local/bin:/usr/bin:/bin", "TMPDIR=" + scratchDirName, "HOME=/nonexistent"}
	for _, name := range goRuntimeEnvNames {
		if value, ok := os.LookupEnv(name); ok && slices.Contains(p.request.Limits.EnvNames, name) {
			env = append(env, name+"="+value)
		}
	}
	// These combinations of namespaces are tried in order, because some containers do not allow all
	// of them.
	kinds := []uintptr{unix.CLONE_NEWUSER | unix.CLONE_NEWPID, unix.CLONE_NEWPID, 0}
	switch {
	case cred == nil:
		kinds = kinds[2:]
	case !p.request.hasRepositorySource(): // only git and hg need a user namespace: ssh requires an account for its user id
		kinds = kinds[1:]
	}
	var err error
	for _, kind := range kinds {
		attr := &syscall.SysProcAttr{Setpgid: true, Credential: cred, Cloneflags: kind}
		if kind&unix.CLONE_NEWUSER != 0 {
			attr.Credential = &syscall.Credential{Uid: nobodyID, Gid: nobodyID}
			attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: nobodyID, HostID: int(cred.Uid), Size: 1}}
			attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: nobodyID, HostID: int(cred.Gid), Size: 1}}
			attr.GidMappingsEnableSetgroups = true // lets the process drop the groups of root
		}
		p.hasPIDNamespace = kind != 0
		opcount.Count(opcount.Fork)
		p.cmd = exec.CommandContext(ctx, "/proc/self/exe", p.downloadArgs...)
		p.cmd.Args[0] = os.Args[0]
		p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr, p.cmd.ExtraFiles, p.cmd.SysProcAttr = env, p.reportWriter, p.stderrTail, []*os.File{p.stagingDir}, attr
		p.cmd.WaitDelay = 5 * time.Second // a child of git or hg that keeps stderr open would otherwise delay Wait
		p.cmd.Cancel = p.killProcessGroup
		if p.stdin, err = p.cmd.StdinPipe(); err != nil {
			return err
		}
		if err = startConfinedCommand(p.cmd, p.stagingDir, p.request); err == nil || !slices.ContainsFunc(namespaceUnavailableErrors, func(n error) bool { return errors.Is(err, n) }) {
			return err
		}
	}
	return err
}

// nobodyID is the user id and group id of a download inside of its user
// namespace, where it is an account in /etc/passwd. Outside of the namespace no
// download has this id.
const nobodyID = 65534

// namespaceUnavailableErrors are the errors of machines on which namespaces cannot be
// made.
var namespaceUnavailableErrors = []error{unix.EPERM, unix.EACCES, unix.ENOSPC, unix.EUSERS, unix.EINVAL, unix.ENOSYS}

func (p *downloadProcess) killProcessGroup() error {
	return syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
}

// waitAndReclaimStagingDir waits for the exit of the process, kills the processes that the process has
// started, and gives the staging directory back to root. waitErr is the error of the exit. If
// cleanupErr is not nil, the content of the directory must not be used.
func (p *downloadProcess) waitAndReclaimStagingDir() (waitErr, cleanupErr error) {
	waitErr = p.cmd.Wait()
	if os.Geteuid() != 0 {
		return waitErr, nil
	}
	if !p.hasPIDNamespace {
		cleanupErr = killProcessesOfUserAndWait(p.userID)
	}
	// Both calls use the open handle and not the path. With mode 0700 other users
	// cannot reach the content.
	cleanupErr = errors.Join(cleanupErr, p.stagingDir.Chown(0, 0), p.stagingDir.Chmod(0o700))
	if cleanupErr == nil {
		downloadUserIDs.releaseID(p.userID) // after an error the id stays reserved, because a process may still have it
	}
	return waitErr, cleanupErr
}

// startConfinedCommand starts a command with all restrictions that this machine
// supports.
func startConfinedCommand(cmd *exec.Cmd, stagingDir *os.File, request downloadRequest) error {
	return osprocess.RunOnNewThread(func() error { return confineThreadAndStart(cmd, stagingDir, request) })
}

// confineThreadAndStart restricts the calling thread permanently, and starts a command,
// which inherits the restrictions.
func confineThreadAndStart(cmd *exec.Cmd, stagingDir *os.File, request downloadRequest) error {
	if request.hasRepositorySource() && os.Geteuid() == 0 {
		shown, err := mountStagingDirIfUnreachable(stagingDir)
		if err != nil {
			hclog.Default().Debug("git and hg may not find their directory", "error", err)
		}
		if shown != nil {
			defer shown.Close()
			stagingDir, cmd.ExtraFiles = shown, []*os.File{shown}
		}
	}
	if !request.Limits.DisableLandlock {
		err := restrictThreadWithLandlock(stagingDir, request.Limits, cmd.SysProcAttr.UidMappings != nil)
		switch {
		case errors.Is(err, errNoLandlock):
			warnNoLandlockOnce.Do(func() {
				hclog.Default().Warn("downloads see the files that everybody may see: this kernel has no landlock")
			})
		case err != nil:
			return err
		}
	}
	// These calls are denied last, because mountStagingDirIfUnreachable needs some of them.
	confine.DenyThreadSyscalls(append(confine.NamespaceSyscalls(), confine.SystemAdminSyscalls()...)...)
	return cmd.Start()
}

// tailBuffer keeps the end of the data written to it.
type tailBuffer struct {
	maxBytes int
	buf      bytes.Buffer
}

func (t *tailBuffer) Write(p []byte) (int, error) {
	t.buf.Write(p)
	t.buf.Next(max(0, t.buf.Len()-t.maxBytes))
	return len(p), nil
}

func (t *tailBuffer) String() string { return t.buf.String() }
