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
	"os"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// gitProtocols are the ways to a repository: none that reads this machine.
var gitProtocols = []string{"https", "http", "ssh", "git"}

// git clones a repository, checks out what is wanted, and its submodules.
func (d *downloader) git(ctx context.Context) error {
	switch {
	case d.checksum != "":
		return errors.New("checksum cannot be specified for directory download")
	case d.ref != "" && !revision().MatchString(d.ref):
		return fmt.Errorf("the ref %q is no name of a branch, a tag or a commit", d.ref)
	}
	// The archive option has no meaning here: Nomad ignores it too.
	env, err := d.gitEnv()
	if err != nil {
		return err
	}
	// What counts in total is looked at when it is there; this ends the worst.
	if limit := uint64(d.Limits.Unpacked); limit > 0 {
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			return err
		}
	}
	tree := path.Join(scratch, "repository")
	clone := []string{"clone", "--quiet", "--no-checkout"}
	checkout := []string{"-C", tree, "checkout", "--quiet"}
	if depth, err := strconv.ParseUint(cmp.Or(d.depth, "0"), 10, 31); err != nil {
		return fmt.Errorf("the depth %q is no number", d.depth)
	} else if depth > 0 && commit().MatchString(d.ref) {
		return fmt.Errorf("with a depth the ref must be a branch or a tag, and not the commit %s: leave the depth out", d.ref)
	} else if depth > 0 {
		clone = append(clone, "--depth", d.depth)
		if d.ref != "" {
			clone = append(clone, "--branch", d.ref)
		}
	} else if d.ref != "" {
		checkout = append(checkout, d.ref)
	}
	if err := d.runGit(ctx, env, append(clone, "--", d.url.String(), tree), nil); err != nil {
		return err
	}
	if err := d.count(ctx, env, tree); err != nil {
		return err
	}
	if err := d.runGit(ctx, env, append(checkout, "--"), nil); err != nil {
		return err
	}
	if _, err := d.stage.Lstat(path.Join(tree, ".gitmodules")); err == nil {
		if err := d.runGit(ctx, env, []string{"-C", tree, "submodule", "update", "--quiet", "--init", "--recursive"}, nil); err != nil {
			return err
		}
	}
	if err := d.weigh(tree); err != nil {
		return err
	}
	return d.part(tree, "")
}

const (
	// gitFiles is how many times as many files a repository may have as an archive.
	gitFiles = 64
	// gitLimited starts git so that each of its processes may have 4 GiB for itself.
	gitLimited = `ulimit -d 4194304 && exec git "$@"`
)

func (d *downloader) gitTally() tally {
	limits := d.Limits
	limits.Files *= gitFiles
	return tally{limits: limits}
}

// count refuses a tree that has too many files before they are written, or read:
// directories that hold the same one many times over are short to send.
func (d *downloader) count(ctx context.Context, env []string, tree string) error {
	entries := &counter{tally: d.gitTally()}
	err := errors.New("no revision")
	for _, ref := range []string{cmp.Or(d.ref, "HEAD"), "origin/" + d.ref} {
		if err != nil && entries.err == nil {
			err = d.runGit(ctx, env, []string{"-C", tree, "ls-tree", "-r", "-z", "--name-only", ref}, entries)
		}
	}
	return entries.err // what is no revision is told by the checkout
}

// counter counts the names that are written to it.
type counter struct {
	tally
	err error
}

func (c *counter) Write(p []byte) (int, error) {
	for range bytes.Count(p, []byte{0}) {
		if c.err = c.file(); c.err != nil {
			return 0, c.err
		}
	}
	return len(p), nil
}

// revision is what a ref may look like: never like a flag.
var revision = expression(`^[A-Za-z0-9_][A-Za-z0-9_./+@{}^~-]*$`)

// commit is one in full.
var commit = expression(`^([0-9a-f]{40}|[0-9a-f]{64})$`)

// gitEnv keeps git from asking, from reading anybody's configuration, and from
// every way to a repository that is not listed.
func (d *downloader) gitEnv() ([]string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	home := path.Join(dir, scratch)
	// Without a list of known hosts every one is a stranger: the operator has one
	// at the usual place, or the job says that it does not care.
	ssh := "ssh -o BatchMode=yes -o UserKnownHostsFile=/dev/null"
	if d.Insecure {
		ssh += " -o StrictHostKeyChecking=no"
	}
	if d.sshKey != "" {
		key, err := base64.StdEncoding.DecodeString(d.sshKey)
		if err != nil {
			return nil, fmt.Errorf("the option sshkey is no base64: %w", err)
		}
		if err := d.stage.WriteFile(path.Join(scratch, "key"), key, 0o600); err != nil {
			return nil, err
		}
		ssh += " -o IdentitiesOnly=yes -i '" + strings.ReplaceAll(path.Join(home, "key"), "'", `'\''`) + "'"
	}
	return append(os.Environ(),
		"HOME="+home, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_TERMINAL_PROMPT=0",
		"GIT_ALLOW_PROTOCOL="+strings.Join(gitProtocols, ":"), "GIT_SSH_COMMAND="+ssh), nil
}

// runGit runs one command. Hooks and helpers of a repository never run. Without a
// place for its output this is part of the error.
func (d *downloader) runGit(ctx context.Context, env, args []string, out io.Writer) error {
	flags := []string{"-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "credential.helper=", "-c", "gc.auto=0", "-c", "maintenance.auto=false"}
	if d.Insecure {
		flags = append(flags, "-c", "http.sslVerify=false")
	}
	var output bytes.Buffer
	if _, err := exec.LookPath("git"); err != nil {
		return errors.New("there is no git on this machine: install it")
	}
	cmd := exec.CommandContext(ctx, "sh", slices.Concat([]string{"-c", gitLimited, "git"}, flags, args)...)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, &output, &output
	if out != nil {
		cmd.Stdout = out
	}
	err := cmd.Run()
	if err == nil {
		return nil
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if status := exit.Sys().(syscall.WaitStatus); status.Signaled() && status.Signal() == syscall.SIGXFSZ {
			return (&tally{limits: d.Limits}).tooLarge()
		}
	}
	said := strings.TrimSpace(output.String())
	if user := d.url.User; user != nil && d.url.Scheme != "ssh" {
		said = strings.ReplaceAll(said, user.String()+"@", "xxxxx@")
		if password, _ := user.Password(); password != "" {
			said = strings.ReplaceAll(said, password, "xxxxx")
		}
	}
	if len(said) > 1000 {
		said = "… " + said[len(said)-1000:]
	}
	return fmt.Errorf("git: %w: %s", cause(ctx, err), said)
}

// weigh refuses a repository that is larger than what may be unpacked.
func (d *downloader) weigh(tree string) error {
	t := d.gitTally()
	return fs.WalkDir(d.stage.FS(), tree, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if inside := strings.TrimPrefix(name, tree+"/"); !strings.HasPrefix(inside, ".git/") {
			if err := t.file(); err != nil {
				return err
			}
		}
		return t.add(info.Size())
	})
}
