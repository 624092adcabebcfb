package artifact

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/opcount"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// repositoryProgram is a program that clones repositories.
type repositoryProgram struct {
	name          string
	debianPackage string // name of the Debian package that contains the program
}

const (
	// repositoryFileLimitFactor is the limit of files in a repository, divided by the limit of
	// files in an archive.
	repositoryFileLimitFactor = 64
	// memoryLimitedScript starts a program with a limit of 4 GiB of memory for each of its
	// processes.
	memoryLimitedScript = `ulimit -d 4194304 && exec "$0" "$@"`
)

func (d *downloader) newRepositoryQuota() unpackQuota {
	limits := d.Limits
	limits.MaxFiles *= repositoryFileLimitFactor
	return unpackQuota{limits: limits}
}

// fileNameCounter counts the file names, each with a zero byte at the end, that are
// written to it.
type fileNameCounter struct {
	unpackQuota
	limitErr error
}

func (c *fileNameCounter) Write(p []byte) (int, error) {
	for range bytes.Count(p, []byte{0}) {
		if c.limitErr = c.addFile(); c.limitErr != nil {
			return 0, c.limitErr
		}
	}
	return len(p), nil
}

// revisionPattern matches a valid revision. Such a revision is never a flag for git or hg, because
// no flag starts with these characters.
var revisionPattern = lazyRegexp(`^[A-Za-z0-9_][A-Za-z0-9_./+@{}^~-]*$`)

// rejectMultilineLogin rejects a user name or a password with a line break or a zero byte, because it would
// add lines to a configuration file.
func (d *downloader) rejectMultilineLogin() error {
	if login := d.url.User; login != nil {
		password, _ := login.Password()
		if strings.ContainsAny(login.Username()+password, "\r\n\x00") {
			return errors.New("the user of the source, or its password, has a line break")
		}
	}
	return nil
}

// setFileSizeRlimit limits the size in bytes of single files that this process and its child processes
// write; 0 means no limit. checkRepositorySize checks the total size of the clone.
func setFileSizeRlimit(maxBytes int64) error {
	if maxBytes == 0 {
		return nil
	}
	return unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: uint64(maxBytes), Max: uint64(maxBytes)})
}

// prepareSSH stores the key of the option sshkey, and returns the command of ssh and the
// home directory for the program.
func (d *downloader) prepareSSH() (command, home string, err error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", "", err
	}
	home = path.Join(dir, scratchDirName)
	// ssh rejects hosts that are not in a list of known hosts: the operator must provide the
	// list at the usual path of ssh, or the job must turn the check off (insecure).
	command = "ssh -o BatchMode=yes -o UserKnownHostsFile=/dev/null"
	if d.Insecure {
		command += " -o StrictHostKeyChecking=no"
	}
	if d.sshKeyBase64 != "" {
		key, err := base64.StdEncoding.DecodeString(d.sshKeyBase64)
		if err != nil {
			return "", "", fmt.Errorf("the option sshkey is no base64: %w", err)
		}
		if err := d.stagingRoot.WriteFile(path.Join(scratchDirName, "key"), key, 0o600); err != nil {
			return "", "", err
		}
		command += " -o IdentitiesOnly=yes -i '" + strings.ReplaceAll(path.Join(home, "key"), "'", `'\''`) + "'"
	}
	return command, home, nil
}

// runRepositoryProgram runs a program with limited memory. If stdout is nil, the output
// is part of the error. The error contains no password of the URL.
func (d *downloader) runRepositoryProgram(ctx context.Context, p repositoryProgram, env, args []string, stdout io.Writer) error {
	if _, err := exec.LookPath(p.name); err != nil {
		return fmt.Errorf("there is no %s on this machine: install %s", p.name, p.debianPackage)
	}
	var output bytes.Buffer
	opcount.Count(opcount.Fork)
	cmd := exec.CommandContext(ctx, "sh", slices.Concat([]string{"-c", memoryLimitedScript, p.name}, args)...)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, &output, &output
	if stdout != nil {
		cmd.Stdout = stdout
	}
	err := d.startWithoutProcFS(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err == nil {
		return nil
	}
	text := strings.TrimSpace(output.String())
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		status := exit.Sys().(syscall.WaitStatus)
		// Python ignores SIGXFSZ, and hg prints the error of the write.
		if status.Signaled() && status.Signal() == syscall.SIGXFSZ || p.name == "hg" && strings.Contains(text, "File too large") {
			return (&unpackQuota{limits: d.Limits}).newContentTooLargeError()
		}
	}
	if user := d.url.User; user != nil && d.url.Scheme != "ssh" {
		text = strings.ReplaceAll(text, user.String()+"@", "xxxxx@")
		if password, _ := user.Password(); password != "" {
			text = strings.ReplaceAll(text, password, "xxxxx")
		}
	}
	if len(text) > 1000 {
		text = "… " + text[len(text)-1000:]
	}
	return fmt.Errorf("%s: %w: %s", p.name, contextCauseOrRedactedError(ctx, err), text)
}

// startWithoutProcFS starts a program without access to /proc. This process itself has access to
// /proc, because it needs /proc to make a user namespace.
func (d *downloader) startWithoutProcFS(cmd *exec.Cmd) error {
	if d.Limits.DisableLandlock {
		return cmd.Start()
	}
	stage, err := d.stagingRoot.Open(".")
	if err != nil {
		return err
	}
	defer stage.Close()
	return osprocess.RunOnNewThread(func() error {
		if err := restrictThreadWithLandlock(stage, d.Limits.withoutInaccessiblePaths(), false); err != nil && !errors.Is(err, errNoLandlock) {
			return err
		}
		return cmd.Start()
	})
}

// checkRepositorySize rejects a repository that is larger than the limits for unpacked
// content. The files in vcsMetadataDir count only with their size.
func (d *downloader) checkRepositorySize(repositoryDir, vcsMetadataDir string) error {
	t := d.newRepositoryQuota()
	return fs.WalkDir(d.stagingRoot.FS(), repositoryDir, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if inside := strings.TrimPrefix(name, repositoryDir+"/"); !strings.HasPrefix(inside, vcsMetadataDir+"/") {
			if err := t.addFile(); err != nil {
				return err
			}
		}
		return t.addBytes(info.Size())
	})
}
