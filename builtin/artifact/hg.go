package artifact

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/nomad-lite/nomad-lite/internal/wait"
)

// hgProtocols are the transports that hg may use. The other transports of hg read files of this
// machine.
var hgProtocols = []string{"https", "http", "ssh"}

// hgConfigName is the name of the only configuration file that hg reads.
const hgConfigName = scratchDirName + "/hgrc"

// hgNodePattern matches the id of a changeset.
var hgNodePattern = lazyRegexp(`^[0-9a-f]{40}$`)

// downloadHg clones a Mercurial repository, and updates to the requested revision.
func (d *downloader) downloadHg(ctx context.Context) error {
	switch {
	case d.checksum != "":
		return errors.New("checksum cannot be specified for directory download")
	case d.revision != "" && !revisionPattern().MatchString(d.revision):
		return fmt.Errorf("the rev %q is no name of a branch, a tag, a bookmark or a changeset", d.revision)
	case d.url.Fragment != "":
		return errors.New(`the source has a "#": name the revision in the option rev`)
	}
	if err := d.rejectMultilineLogin(); err != nil {
		return err
	}
	env, err := d.prepareHgEnv()
	if err != nil {
		return err
	}
	if err := setFileSizeRlimit(d.Limits.MaxUnpackedBytes); err != nil {
		return err
	}
	tree := repositoryDirName
	ctx, stop := d.limitHgCloneSize(ctx, tree)
	defer stop()
	// With --pull, hg writes the files of its store itself, instead of copying the files that the
	// server sends.
	clone := []string{"clone", "--quiet", "--noupdate", "--pull"}
	if d.Insecure && d.url.Scheme == "https" {
		clone = append(clone, "--insecure")
	}
	if err := d.runHg(ctx, env, append(clone, "--", d.repositoryURLWithoutLogin(), tree), nil); err != nil {
		return err
	}
	node, err := d.findHgRevision(ctx, env, tree)
	if err != nil || node == "" {
		return errors.Join(err, d.moveTreeOrSubpathToResult(tree, ""))
	}
	files := &fileNameCounter{unpackQuota: d.newRepositoryQuota()}
	// An error of hg is ignored, because hg also exits with an error for a revision without files.
	_ = d.runHg(ctx, env, []string{"-R", tree, "files", "--print0", "--rev", node}, files)
	if files.limitErr != nil {
		return files.limitErr
	}
	if err := d.runHg(ctx, env, []string{"-R", tree, "update", "--quiet", "--rev", node}, nil); err != nil {
		return err
	}
	if err := d.checkRepositorySize(tree, ".hg"); err != nil {
		return err
	}
	return d.moveTreeOrSubpathToResult(tree, "")
}

// findHgRevision returns the changeset of the requested revision. Without a request it
// is the changeset to which hg clone updates; "" means that the repository is empty.
func (d *downloader) findHgRevision(ctx context.Context, env []string, repositoryDir string) (string, error) {
	rev := d.revision
	if rev == "" {
		rev = `first(present("@") + present("default") + tip)`
	}
	var out bytes.Buffer
	if err := d.runHg(ctx, env, []string{"-R", repositoryDir, "log", "--limit", "1", "--rev", rev, "--template", "{node}\n"}, &out); err != nil {
		return "", err
	}
	node := strings.TrimSpace(out.String())
	switch {
	case node == "" && d.revision == "", strings.Trim(node, "0") == "" && d.revision == "":
		return "", nil
	case !hgNodePattern().MatchString(node):
		return "", fmt.Errorf("there is no revision %q", d.revision)
	}
	return node, nil
}

// prepareHgEnv writes the configuration of hg, and returns its environment. With them, hg does not
// prompt, and reads no configuration of a user, the machine or a repository, so that hg runs no
// hooks and no extensions.
func (d *downloader) prepareHgEnv() ([]string, error) {
	ssh, home, err := d.prepareSSH()
	if err != nil {
		return nil, err
	}
	if strings.ContainsAny(home, "\r\n") {
		return nil, fmt.Errorf("the path %q has a line break", home)
	}
	lines := []string{
		"[ui]", "interactive = false", "ssh = " + ssh,
		"clonebundles = false", // a server could name another source
		// A repository inside of another could have any source, including files of this
		// machine; hg cannot limit its transports.
		"[subrepos]", "allowed = false",
	}
	if d.hasHTTPLogin() {
		password, _ := d.url.User.Password()
		if user := d.url.User.Username(); strings.TrimSpace(user) != user || strings.TrimSpace(password) != password || strings.Contains(user, "$") {
			return nil, errors.New("the user of the source, or its password, has a space at an end, or the user a $: hg cannot use it")
		}
		lines = append(lines, "[auth]", "source.prefix = "+d.url.Scheme+"://"+d.url.Host+"/",
			"source.username = "+d.url.User.Username(), "source.password = "+password)
	}
	// The file has secrets, which the arguments of a process would show to all users.
	if err := d.stagingRoot.WriteFile(hgConfigName, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		return nil, err
	}
	// HGRCPATH is relative because it is a list, whose separator can be in a path.
	return append(os.Environ(), "HOME="+home, "HGRCPATH="+hgConfigName, "HGRCSKIPREPO=1", "HGPLAIN=+strictflags", "PYTHONNOUSERSITE=1"), nil
}

// runHg runs one hg command. If stdout is nil, the output is part of the error.
func (d *downloader) runHg(ctx context.Context, env, args []string, stdout io.Writer) error {
	err := d.runRepositoryProgram(ctx, repositoryProgram{"hg", "mercurial"}, env, args, stdout)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// limitHgCloneSize returns a context that ends when repositoryDir exceeds the limits. The size
// is limited here because a clone of hg has a file for each file of the repository, and
// setFileSizeRlimit limits only single files. The caller must call stop, which blocks until the
// directory is no longer read.
func (d *downloader) limitHgCloneSize(ctx context.Context, repositoryDir string) (untilTooLarge context.Context, stop func()) {
	untilTooLarge, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for wait.Sleep(untilTooLarge, reportInterval) == nil {
			if err := d.checkHgCloneSize(repositoryDir); err != nil {
				cancel(err)
			}
		}
	}()
	return untilTooLarge, func() { cancel(context.Canceled); <-done }
}

// hgStoreFileFactor is the limit of files in a clone, divided by the limit of files in
// a revision: the store has one or two files for each file that a revision had.
const hgStoreFileFactor = 4

// checkHgCloneSize rejects a growing clone that is larger than the limits.
func (d *downloader) checkHgCloneSize(repositoryDir string) error {
	t := d.newRepositoryQuota()
	t.limits.MaxFiles *= hgStoreFileFactor
	return fs.WalkDir(d.stagingRoot.FS(), repositoryDir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return nil // hg removes files during the walk
		}
		if err := t.addFile(); err != nil {
			return err
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			return t.addBytes(info.Size())
		}
		return nil
	})
}
