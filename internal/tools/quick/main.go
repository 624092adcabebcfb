package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

func main() {
	base := flag.String("base", "main", "commit or branch; the change starts at its merge base with HEAD")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *base, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "quick:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, base string, stdout io.Writer) error {
	root, err := output(ctx, ".", "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	root = strings.TrimSpace(root)
	r := runner{ctx, root, stdout}
	files, err := r.changedFiles(base)
	if err != nil {
		return err
	}
	if len(files) == 0 {
		fmt.Fprintf(stdout, "Nothing changed since the merge base with %s.\n", base)
		return nil
	}
	p, err := r.plan(files)
	if err != nil {
		return err
	}
	return r.check(p)
}

// runner runs commands in the repository at root.
type runner struct {
	ctx    context.Context
	root   string
	stdout io.Writer
}

// changedFiles returns the files that differ from the merge base of HEAD and base, deleted ones
// included, with paths relative to root.
func (r runner) changedFiles(base string) ([]string, error) {
	mergeBase, err := output(r.ctx, r.root, "git", "merge-base", "HEAD", base)
	if err != nil {
		return nil, fmt.Errorf("find the start of the change, which -base (make quick BASE=...) sets: %w", err)
	}
	differing, err := output(r.ctx, r.root, "git", "diff", "--name-only", "--no-renames", "-z", strings.TrimSpace(mergeBase))
	if err != nil {
		return nil, err
	}
	untracked, err := output(r.ctx, r.root, "git", "ls-files", "--others", "--exclude-standard", "-z")
	if err != nil {
		return nil, err
	}
	files := strings.FieldsFunc(differing+untracked, func(c rune) bool { return c == 0 })
	slices.Sort(files)
	return slices.Compact(files), nil // a file that git rm --cached has removed from the index is in both lists
}

func (r runner) plan(files []string) (plan, error) {
	var module struct{ Module struct{ Path string } }
	text, err := output(r.ctx, r.root, "go", "mod", "edit", "-json")
	if err != nil {
		return plan{}, err
	}
	if err := json.Unmarshal([]byte(text), &module); err != nil {
		return plan{}, fmt.Errorf("decode go.mod: %w", err)
	}
	// -e lists packages whose imports do not exist: they import a removed package.
	list, err := output(r.ctx, r.root, "go", "list", "-e", "-json=ImportPath,Dir,Imports,TestImports,XTestImports", "./...")
	if err != nil {
		return plan{}, err
	}
	var packages []goPackage
	for d := json.NewDecoder(strings.NewReader(list)); ; {
		var p goPackage
		if err := d.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			return plan{}, fmt.Errorf("decode the list of packages: %w", err)
		}
		if p.Dir, err = filepath.Rel(r.root, p.Dir); err != nil {
			return plan{}, err
		}
		packages = append(packages, p)
	}
	goMods, err := output(r.ctx, r.root, "git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "*/go.mod")
	if err != nil {
		return plan{}, err
	}
	exists := func(file string) bool { _, err := os.Stat(filepath.Join(r.root, file)); return err == nil }
	var nestedModules []string
	for _, file := range strings.FieldsFunc(goMods, func(c rune) bool { return c == 0 }) {
		// A module in testdata is a fixture of a test, and not tested by itself.
		if dir := filepath.Dir(file); exists(file) && !slices.Contains(strings.Split(dir, "/"), "testdata") {
			nestedModules = append(nestedModules, dir)
		}
	}
	return newPlan(module.Module.Path, packages, nestedModules, files, exists), nil
}

// check prints the plan and carries it out. All checks run, even if one fails.
func (r runner) check(p plan) error {
	r.list("Changed packages", p.changed)
	r.list("Removed packages", p.removed)
	if p.all {
		r.list("All other packages, because go.mod or go.sum changed", p.importers)
	} else {
		r.list("Packages that import them", p.importers)
	}
	r.list("Tests of the whole program, which are vetted and not run because they did not change", p.vetOnly)
	r.list("Other modules with changes", p.modules)
	r.list("Changed files that belong to no package", p.noPackage)

	var errs []error
	if len(p.goFiles) > 0 {
		errs = append(errs, r.checkFormat(p.goFiles))
	}
	tested := slices.Concat(p.changed, p.importers)
	if vetted := slices.Concat(tested, p.vetOnly); len(vetted) > 0 {
		errs = append(errs, r.goCommand(".", append([]string{"vet"}, vetted...)...))
	}
	if len(tested) > 0 {
		errs = append(errs, r.goCommand(".", append([]string{"test", "-short"}, tested...)...))
	}
	for _, dir := range p.modules {
		errs = append(errs, r.goCommand(dir, "vet", "./..."), r.goCommand(dir, "test", "-short", "./..."))
	}
	if p.documents {
		errs = append(errs, r.goCommand("internal/tools", "run", "./site", "-check"))
	}
	return errors.Join(errs...)
}

func (r runner) list(title string, names []string) {
	if len(names) == 0 {
		return
	}
	fmt.Fprintf(r.stdout, "%s:\n", title)
	for _, name := range names {
		fmt.Fprintf(r.stdout, "  %s\n", name)
	}
}

func (r runner) checkFormat(files []string) error {
	unformatted, err := output(r.ctx, r.root, "gofmt", append([]string{"-l"}, files...)...)
	if err != nil {
		return err
	}
	if unformatted != "" {
		return fmt.Errorf("not formatted, run gofmt -w: %s", strings.Join(strings.Fields(unformatted), " "))
	}
	return nil
}

// goCommand runs the go command in a folder below root, with its output on the output of this
// program.
func (r runner) goCommand(dir string, args ...string) error {
	fmt.Fprintf(r.stdout, "\n== go %s in %s\n", args[0], dir)
	cmd := exec.CommandContext(r.ctx, "go", args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = filepath.Join(r.root, dir), r.stdout, r.stdout
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go %s in %s: %w", args[0], dir, err)
	}
	return nil
}

func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, args[0], err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), nil
}
