package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/tools/worktree"
)

// allTargets are the systems of a release, as GOOS/GOARCH. The program is complete on Linux, and a client elsewhere.
var allTargets = []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64", "windows/amd64"}

// options are the flags of the program. complete fills in their defaults.
type options struct {
	version, sourceDir, outDir, revision string
	targets                              []string
	time                                 time.Time // of the commit; all files of the release have it
}

// versionPattern matches a semantic version without build metadata. Its order is the same in all package formats, and the
// point in rc.1 is necessary for it: a semantic version orders rc10 before rc9.
var versionPattern = regexp.MustCompile(`^\d+\.\d+\.\d+(-(alpha|beta|rc)\.\d+)?$`)

// complete checks the options, and reads what is not set from the repository.
func (o *options) complete(ctx context.Context) error {
	if !versionPattern.MatchString(o.version) {
		return fmt.Errorf("version %q: write it as 0.1.0 or 0.1.0-rc.1, with -version or make release VERSION=0.1.0", o.version)
	}
	for _, target := range o.targets {
		if !slices.Contains(allTargets, target) {
			return fmt.Errorf("target %q: choose from %s", target, strings.Join(allTargets, ", "))
		}
	}
	if !slices.Contains(o.targets, hostTarget()) {
		return fmt.Errorf("the targets do not include this machine's, %s, whose program writes the manual pages: run the release on Linux, and add the target", hostTarget())
	}
	if o.sourceDir == "" {
		root, err := worktree.Root(nil)
		if err != nil {
			return err
		}
		o.sourceDir = root
	}
	if o.outDir == "" {
		o.outDir = filepath.Join(o.sourceDir, "dist")
	}
	for _, dir := range []string{o.sourceDir, o.outDir} {
		if !filepath.IsAbs(dir) {
			return fmt.Errorf("directory %s: write an absolute path, as go run -C executes this program in another directory", dir)
		}
	}
	if err := checkReplaceable(o.outDir); err != nil {
		return err
	}
	if err := o.readRevision(ctx); err != nil {
		return err
	}
	if text := os.Getenv("SOURCE_DATE_EPOCH"); text != "" {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil || seconds <= 0 {
			return fmt.Errorf("SOURCE_DATE_EPOCH %q: write the time of the commit in seconds since 1970", text)
		}
		o.time = time.Unix(seconds, 0).UTC()
	}
	if o.time.IsZero() {
		return errors.New("with -revision, the time of the commit is not known: set SOURCE_DATE_EPOCH to it, in seconds since 1970")
	}
	return nil
}

// readRevision reads the commit and its time from the repository, unless the flag -revision names the commit.
func (o *options) readRevision(ctx context.Context) error {
	if o.revision != "" {
		return nil
	}
	git := func(args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, "git", append([]string{"-C", o.sourceDir}, args...)...).Output()
		if err != nil {
			return "", fmt.Errorf("git %s in %s: %w: sources without a repository need -revision", strings.Join(args, " "), o.sourceDir, err)
		}
		return strings.TrimSpace(string(out)), nil
	}
	// The directory of a source archive can lie inside another repository.
	if prefix, err := git("rev-parse", "--show-prefix"); err != nil || prefix != "" {
		return errors.Join(err, fmt.Errorf("%s is not the root of a work tree: name it with -source, or its commit with -revision", o.sourceDir))
	}
	changes, err := git("status", "--porcelain")
	if err != nil {
		return err
	}
	if changes != "" {
		return fmt.Errorf("the work tree differs from its commit, so that nobody could build the same release: commit or remove\n%s", changes)
	}
	if o.revision, err = git("rev-parse", "HEAD"); err != nil {
		return err
	}
	text, err := git("show", "-s", "--format=%ct", "HEAD")
	if err != nil {
		return err
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return fmt.Errorf("time of commit %s: %w", o.revision, err)
	}
	o.time = time.Unix(seconds, 0).UTC()
	return nil
}

// hostTarget returns the target whose program this machine can execute.
func hostTarget() string { return runtime.GOOS + "/" + runtime.GOARCH }
