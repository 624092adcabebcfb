package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// tree is a commit in a git worktree of its own, with the binaries of its benchmarks.
type tree struct {
	root, dir  string // root is the repository, dir the worktree
	benchmarks []*benchmark
}

// benchmark is a benchmark function in a tree.
type benchmark struct {
	function string // name of the function
	pkg      string // folder of the package, relative to the tree
	row      string // name of its rows without the names of sub-benchmarks
	binary   string // test binary of its package
	dir      string // folder in which the binary runs
	pattern  string // value of -test.bench
}

// commitWorkTree returns a commit with the files of the work tree, so that an edit during the
// comparison changes nothing. Without uncommitted changes, this is HEAD. The commit is in no branch.
func commitWorkTree(ctx context.Context, root, tmp string) (commit, name string, err error) {
	head, err := output(ctx, root, nil, "git", "rev-parse", "HEAD")
	if err != nil {
		return "", "", err
	}
	env := []string{
		"GIT_INDEX_FILE=" + filepath.Join(tmp, "index"), // the index of the user does not change
		"GIT_AUTHOR_NAME=benchcompare", "GIT_AUTHOR_EMAIL=benchcompare@localhost",
		"GIT_COMMITTER_NAME=benchcompare", "GIT_COMMITTER_EMAIL=benchcompare@localhost",
	}
	for _, args := range [][]string{{"read-tree", "HEAD"}, {"add", "--all", "."}} {
		if _, err := output(ctx, root, env, "git", args...); err != nil {
			return "", "", err
		}
	}
	files, err := output(ctx, root, env, "git", "write-tree")
	if err != nil {
		return "", "", err
	}
	if committed, err := output(ctx, root, nil, "git", "rev-parse", "HEAD^{tree}"); err != nil || committed == files {
		return head, shortCommit(head), err
	}
	commit, err = output(ctx, root, env, "git", "commit-tree", files, "-p", "HEAD", "-m", "work tree of a comparison of benchmarks")
	return commit, shortCommit(head) + " with uncommitted changes", err
}

func shortCommit(commit string) string { return commit[:12] }

// checkOut creates the worktree. The caller must call remove, even after an error.
func (t *tree) checkOut(ctx context.Context, commit string) error {
	_, err := output(ctx, t.root, nil, "git", "worktree", "add", "--quiet", "--detach", t.dir, commit)
	return err
}

// remove removes the worktree, also one that git has added in part.
func (t *tree) remove() error {
	err := os.RemoveAll(t.dir)
	_, pruneErr := output(context.Background(), t.root, nil, "git", "worktree", "prune")
	return errors.Join(err, pruneErr)
}

var benchmarkFunction = regexp.MustCompile(`(?m)^func (Benchmark\w*)\(\w+ \*testing\.B\)`)

// build finds the selected benchmarks, whichever package contains them in this tree, and builds the
// test binaries of their packages.
func (t *tree) build(ctx context.Context, selected selection) error {
	list, err := output(ctx, t.dir, nil, "go", "list", "-json=ImportPath,Dir,TestGoFiles,XTestGoFiles", "./...")
	if err != nil {
		return err
	}
	for d := json.NewDecoder(strings.NewReader(list)); ; {
		var p struct {
			ImportPath, Dir           string
			TestGoFiles, XTestGoFiles []string
		}
		if err := d.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			return fmt.Errorf("decode the list of packages: %w", err)
		}
		dir, err := filepath.Rel(t.dir, p.Dir)
		if err != nil {
			return err
		}
		functions, err := findBenchmarks(p.Dir, append(p.TestGoFiles, p.XTestGoFiles...))
		if err != nil {
			return err
		}
		binary := filepath.Join(t.dir+"-binaries", strings.ReplaceAll(dir, "/", "-")+".test")
		built := false
		for _, function := range functions {
			if !selected.includes(dir, function) {
				continue
			}
			if !built {
				// Without -trimpath, each worktree would compile all packages again.
				if _, err := output(ctx, t.dir, nil, "go", "test", "-c", "-trimpath", "-o", binary, p.ImportPath); err != nil {
					return err
				}
				built = true
			}
			t.benchmarks = append(t.benchmarks, &benchmark{
				function: function, pkg: dir, binary: binary, dir: p.Dir, pattern: "^" + function + "$" + selected.sub,
			})
		}
	}
	if len(t.benchmarks) == 0 {
		return fmt.Errorf("no benchmark of %s is selected", filepath.Base(t.dir))
	}
	return nil
}

// findBenchmarks returns the names of the benchmark functions in files.
func findBenchmarks(dir string, files []string) (functions []string, err error) {
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return nil, err
		}
		for _, match := range benchmarkFunction.FindAllSubmatch(text, -1) {
			functions = append(functions, string(match[1]))
		}
	}
	return functions, nil
}

// nameRows sets the names of the rows. A benchmark is named by its function, so that its package can
// have another name in another commit; if a tree has several functions of this name, by its package
// too.
func nameRows(trees ...[]*benchmark) {
	ambiguous := map[string]bool{}
	for _, benchmarks := range trees {
		seen := map[string]bool{}
		for _, b := range benchmarks {
			ambiguous[b.function] = ambiguous[b.function] || seen[b.function]
			seen[b.function] = true
		}
	}
	for _, benchmarks := range trees {
		for _, b := range benchmarks {
			b.row = strings.TrimPrefix(b.function, "Benchmark")
			if ambiguous[b.function] {
				b.row = b.pkg + " " + b.row
			}
		}
	}
}
