package artifact

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
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
	case d.revision != "" && !revisionPattern().MatchString(d.revision):
		return fmt.Errorf("the ref %q is no name of a branch, a tag or a commit", d.revision)
	}
	if err := d.rejectMultilineLogin(); err != nil {
		return err
	}
	// The archive option has no effect on git sources, as in Nomad.
	env, err := d.prepareGitEnv()
	if err != nil {
		return err
	}
	if err := setFileSizeRlimit(d.Limits.MaxUnpackedBytes); err != nil {
		return err
	}
	tree := repositoryDirName
	clone := []string{"clone", "--quiet", "--no-checkout"}
	checkout := []string{"-C", tree, "checkout", "--quiet"}
	if depth, err := strconv.ParseUint(cmp.Or(d.cloneDepth, "0"), 10, 31); err != nil {
		return fmt.Errorf("the depth %q is no number", d.cloneDepth)
	} else if depth > 0 && commitPattern().MatchString(d.revision) {
		return fmt.Errorf("with a depth the ref must be a branch or a tag, and not the commit %s: leave the depth out", d.revision)
	} else if depth > 0 {
		clone = append(clone, "--depth", d.cloneDepth)
		if d.revision != "" {
			clone = append(clone, "--branch", d.revision)
		}
	} else if d.revision != "" {
		checkout = append(checkout, d.revision)
	}
	if err := d.runGit(ctx, env, append(clone, "--", d.repositoryURLWithoutLogin(), tree), nil); err != nil {
		return err
	}
	if err := d.checkGitFileCount(ctx, env, tree); err != nil {
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
	if err := d.checkRepositorySize(tree, ".git"); err != nil {
		return err
	}
	if err := d.writeOriginURLWithLogin(path.Join(tree, ".git", "config")); err != nil {
		return err
	}
	return d.moveTreeOrSubpathToResult(tree, "")
}

// repositoryURLWithoutLogin returns the URL that is passed to git or hg. For http it has no user
// (which may be a key) and no password, because every user of the machine can
// read the arguments of a process.
func (d *downloader) repositoryURLWithoutLogin() string {
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

// writeOriginURLWithLogin writes the URL with user and password into the repository's
// configuration, as git clone would, so that a task can fetch.
func (d *downloader) writeOriginURLWithLogin(gitConfigPath string) error {
	if !d.hasHTTPLogin() {
		return nil
	}
	text, err := d.stagingRoot.ReadFile(gitConfigPath)
	if err != nil {
		return err
	}
	whole := "\turl = \"" + d.url.String() + "\"\n"
	text = bytes.Replace(text, []byte("\turl = "+d.repositoryURLWithoutLogin()+"\n"), []byte(whole), 1)
	return d.stagingRoot.WriteFile(gitConfigPath, text, 0o644)
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

// checkGitFileCount rejects a revision that has too many files. It uses git ls-tree,
// before files are written or read: a small repository can have a huge tree, in which
// directories have the same subdirectory many times.
func (d *downloader) checkGitFileCount(ctx context.Context, env []string, repositoryDir string) error {
	entries := &fileNameCounter{unpackQuota: d.newRepositoryQuota()}
	err := errors.New("no revision")
	for _, ref := range []string{cmp.Or(d.revision, "HEAD"), "origin/" + d.revision} {
		if err != nil && entries.limitErr == nil {
			err = d.runGit(ctx, env, []string{"-C", repositoryDir, "ls-tree", "-r", "-z", "--name-only", ref}, entries)
		}
	}
	return entries.limitErr // an error of ls-tree is ignored: an invalid revision makes the checkout fail
}

// commitPattern matches a full commit hash.
var commitPattern = lazyRegexp(`^([0-9a-f]{40}|[0-9a-f]{64})$`)

// prepareGitEnv returns the environment of git. With this environment, git does not prompt, reads no
// configuration of a user or the machine, and uses only the transports of gitProtocols.
func (d *downloader) prepareGitEnv() ([]string, error) {
	ssh, home, err := d.prepareSSH()
	if err != nil {
		return nil, err
	}
	return append(os.Environ(),
		"HOME="+home, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_TERMINAL_PROMPT=0",
		"GIT_ALLOW_PROTOCOL="+strings.Join(gitProtocols, ":"), "GIT_SSH_COMMAND="+ssh), nil
}

// runGit runs one git command. Hooks and helpers of a repository never run. If
// stdout is nil, the output is part of the error.
func (d *downloader) runGit(ctx context.Context, env, args []string, stdout io.Writer) error {
	flags := []string{"-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "credential.helper=", "-c", "gc.auto=0", "-c", "maintenance.auto=false"}
	if d.Insecure {
		flags = append(flags, "-c", "http.sslVerify=false")
	}
	login, variables := d.gitLoginConfig()
	env = append(slices.Clip(env), variables...)
	return d.runRepositoryProgram(ctx, repositoryProgram{"git", "git"}, env, slices.Concat(flags, login, args), stdout)
}
