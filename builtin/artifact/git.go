package artifact

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// gitProtocols are the transports that git may use. The transport "file" is missing, so that a
// download cannot read files of this machine.
var gitProtocols = []string{"https", "http", "ssh", "git"}

// downloadGit clones a repository, and checks out the requested revision and its
// submodules.
func (d *downloader) downloadGit(ctx context.Context) error {
	switch {
	case d.checksum != "":
		return errors.New("checksum cannot be specified for directory download")
	case d.ref != "" && !revisionPattern().MatchString(d.ref):
		return fmt.Errorf("the ref %q is no name of a branch, a tag or a commit", d.ref)
	}
	if login := d.url.User; login != nil {
		password, _ := login.Password()
		if strings.ContainsAny(login.Username()+password, "\n\x00") {
			return errors.New("the user of the source, or its password, has a line break")
		}
	}
	// The archive option has no effect on git sources, as in Nomad.
	env, err := d.gitEnv()
	if err != nil {
		return err
	}
	// RLIMIT_FSIZE limits the size of single files; checkRepositorySize checks the total
	// size of the clone.
	if limit := uint64(d.Limits.Unpacked); limit > 0 {
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			return err
		}
	}
	tree := repositoryDirName
	clone := []string{"clone", "--quiet", "--no-checkout"}
	checkout := []string{"-C", tree, "checkout", "--quiet"}
	if depth, err := strconv.ParseUint(cmp.Or(d.cloneDepth, "0"), 10, 31); err != nil {
		return fmt.Errorf("the depth %q is no number", d.cloneDepth)
	} else if depth > 0 && commitPattern().MatchString(d.ref) {
		return fmt.Errorf("with a depth the ref must be a branch or a tag, and not the commit %s: leave the depth out", d.ref)
	} else if depth > 0 {
		clone = append(clone, "--depth", d.cloneDepth)
		if d.ref != "" {
			clone = append(clone, "--branch", d.ref)
		}
	} else if d.ref != "" {
		checkout = append(checkout, d.ref)
	}
	if err := d.runGit(ctx, env, append(clone, "--", d.repositoryURL(), tree), nil); err != nil {
		return err
	}
	if err := d.checkFileCount(ctx, env, tree); err != nil {
		return err
	}
	if err := d.runGit(ctx, env, append(checkout, "--"), nil); err != nil {
		return err
	}
	if _, err := d.stagingRoot.Lstat(path.Join(tree, ".gitmodules")); err == nil {
		if err := d.runGit(ctx, env, []string{"-C", tree, "submodule", "update", "--quiet", "--init", "--recursive"}, nil); err != nil {
			return err
		}
	}
	if err := d.checkRepositorySize(tree); err != nil {
		return err
	}
	if err := d.writeOriginURL(path.Join(tree, ".git", "config")); err != nil {
		return err
	}
	return d.moveTreeToResult(tree, "")
}

// repositoryURL returns the URL that is passed to git. For http it has no user
// (which may be a key) and no password, because every user of the machine can
// read the arguments of git.
func (d *downloader) repositoryURL() string {
	if !d.hasHTTPLogin() {
		return d.url.String()
	}
	u := *d.url
	u.User = nil
	return u.String()
}

func (d *downloader) hasHTTPLogin() bool {
	return d.url.User != nil && (d.url.Scheme == "http" || d.url.Scheme == "https")
}

// writeOriginURL writes the URL with user and password into the repository's
// configuration, as git clone would, so that a task can fetch.
func (d *downloader) writeOriginURL(config string) error {
	if !d.hasHTTPLogin() {
		return nil
	}
	text, err := d.stagingRoot.ReadFile(config)
	if err != nil {
		return err
	}
	whole := "\turl = \"" + d.url.String() + "\"\n"
	text = bytes.Replace(text, []byte("\turl = "+d.repositoryURL()+"\n"), []byte(whole), 1)
	return d.stagingRoot.WriteFile(config, text, 0o644)
}

const (
	// envGitUser and envGitPassword are the environment variables of credentialHelper.
	envGitUser     = "NOMAD_LITE_GIT_USER"
	envGitPassword = "NOMAD_LITE_GIT_PASSWORD"
	// credentialHelper is a git credential helper that prints the user and password
	// in the environment. git is configured to call it for a single host.
	credentialHelper = `!f() { test "$1" = get && printf 'username=%s\npassword=%s\n' "$` + envGitUser + `" "$` + envGitPassword + `"; }; f`
)

// gitLoginConfig returns the configuration with which git logs in as the user of the URL:
// flags, which have no secrets, and environment variables, which only processes of the
// same user can read.
func (d *downloader) gitLoginConfig() (flags, env []string) {
	if !d.hasHTTPLogin() {
		return nil, nil
	}
	host := url.URL{Scheme: d.url.Scheme, Host: d.url.Host}
	password, _ := d.url.User.Password()
	return []string{"-c", "credential." + host.String() + ".helper=" + credentialHelper},
		[]string{envGitUser + "=" + d.url.User.Username(), envGitPassword + "=" + password}
}

const (
	// gitFileLimitFactor is the limit of files in a repository, divided by the limit of
	// files in an archive.
	gitFileLimitFactor = 64
	// memoryLimitedGitScript starts git with a limit of 4 GiB of memory for each of its
	// processes.
	memoryLimitedGitScript = `ulimit -d 4194304 && exec git "$@"`
)

func (d *downloader) newGitQuota() unpackQuota {
	limits := d.Limits
	limits.Files *= gitFileLimitFactor
	return unpackQuota{limits: limits}
}

// checkFileCount rejects a revision that has too many files. It uses git ls-tree,
// before files are written or read: a small repository can have a huge tree, in which
// directories have the same subdirectory many times.
func (d *downloader) checkFileCount(ctx context.Context, env []string, tree string) error {
	entries := &fileCounter{unpackQuota: d.newGitQuota()}
	err := errors.New("no revision")
	for _, ref := range []string{cmp.Or(d.ref, "HEAD"), "origin/" + d.ref} {
		if err != nil && entries.err == nil {
			err = d.runGit(ctx, env, []string{"-C", tree, "ls-tree", "-r", "-z", "--name-only", ref}, entries)
		}
	}
	return entries.err // an error of ls-tree is ignored: an invalid revision makes the checkout fail
}

// fileCounter counts the file names, each with a zero byte at the end, that are
// written to it.
type fileCounter struct {
	unpackQuota
	err error
}

func (c *fileCounter) Write(p []byte) (int, error) {
	for range bytes.Count(p, []byte{0}) {
		if c.err = c.addFile(); c.err != nil {
			return 0, c.err
		}
	}
	return len(p), nil
}

// revisionPattern matches a valid ref, which cannot be taken for a flag.
var revisionPattern = lazyRegexp(`^[A-Za-z0-9_][A-Za-z0-9_./+@{}^~-]*$`)

// commitPattern matches a full commit hash.
var commitPattern = lazyRegexp(`^([0-9a-f]{40}|[0-9a-f]{64})$`)

// gitEnv returns the environment of git. With it git does not prompt, reads no configuration
// of a user or the machine, and uses only the transports of gitProtocols.
func (d *downloader) gitEnv() ([]string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	home := path.Join(dir, scratchDirName)
	// ssh rejects hosts that are not in a list of known hosts: the operator must provide the
	// list at the usual path of ssh, or the job must turn the check off (insecure).
	ssh := "ssh -o BatchMode=yes -o UserKnownHostsFile=/dev/null"
	if d.Insecure {
		ssh += " -o StrictHostKeyChecking=no"
	}
	if d.sshKey != "" {
		key, err := base64.StdEncoding.DecodeString(d.sshKey)
		if err != nil {
			return nil, fmt.Errorf("the option sshkey is no base64: %w", err)
		}
		if err := d.stagingRoot.WriteFile(path.Join(scratchDirName, "key"), key, 0o600); err != nil {
			return nil, err
		}
		ssh += " -o IdentitiesOnly=yes -i '" + strings.ReplaceAll(path.Join(home, "key"), "'", `'\''`) + "'"
	}
	return append(os.Environ(),
		"HOME="+home, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_TERMINAL_PROMPT=0",
		"GIT_ALLOW_PROTOCOL="+strings.Join(gitProtocols, ":"), "GIT_SSH_COMMAND="+ssh), nil
}

// runGit runs one git command. Hooks and helpers of a repository never run. If
// out is nil, the output is part of the error.
func (d *downloader) runGit(ctx context.Context, env, args []string, out io.Writer) error {
	flags := []string{"-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "credential.helper=", "-c", "gc.auto=0", "-c", "maintenance.auto=false"}
	if d.Insecure {
		flags = append(flags, "-c", "http.sslVerify=false")
	}
	login, variables := d.gitLoginConfig()
	flags = append(flags, login...)
	var gitOutput bytes.Buffer
	if _, err := exec.LookPath("git"); err != nil {
		return errors.New("there is no git on this machine: install it")
	}
	cmd := exec.CommandContext(ctx, "sh", slices.Concat([]string{"-c", memoryLimitedGitScript, "git"}, flags, args)...)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(slices.Clip(env), variables...), &gitOutput, &gitOutput
	if out != nil {
		cmd.Stdout = out
	}
	err := d.startGit(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err == nil {
		return nil
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if status := exit.Sys().(syscall.WaitStatus); status.Signaled() && status.Signal() == syscall.SIGXFSZ {
			return (&unpackQuota{limits: d.Limits}).errContentTooLarge()
		}
	}
	text := strings.TrimSpace(gitOutput.String())
	if user := d.url.User; user != nil && d.url.Scheme != "ssh" {
		text = strings.ReplaceAll(text, user.String()+"@", "xxxxx@")
		if password, _ := user.Password(); password != "" {
			text = strings.ReplaceAll(text, password, "xxxxx")
		}
	}
	if len(text) > 1000 {
		text = "… " + text[len(text)-1000:]
	}
	return fmt.Errorf("git: %w: %s", contextCause(ctx, err), text)
}

// startGit starts git without access to /proc. This process itself has access,
// because it needs it to make a user namespace.
func (d *downloader) startGit(cmd *exec.Cmd) error {
	if d.Limits.NoLandlock {
		return cmd.Start()
	}
	stage, err := d.stagingRoot.Open(".")
	if err != nil {
		return err
	}
	defer stage.Close()
	return runOnNewThread(func() error {
		if err := restrictThreadWithLandlock(stage, d.Limits.withoutInaccessiblePaths(), false); err != nil && !errors.Is(err, errNoLandlock) {
			return err
		}
		return cmd.Start()
	})
}

// checkRepositorySize rejects a repository that is larger than the limit for unpacked content.
func (d *downloader) checkRepositorySize(tree string) error {
	t := d.newGitQuota()
	return fs.WalkDir(d.stagingRoot.FS(), tree, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if inside := strings.TrimPrefix(name, tree+"/"); !strings.HasPrefix(inside, ".git/") {
			if err := t.addFile(); err != nil {
				return err
			}
		}
		return t.addBytes(info.Size())
	})
}
