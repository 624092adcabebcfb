package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nomad-lite/nomad-lite/internal/tools/overlay"
	"github.com/nomad-lite/nomad-lite/internal/tools/worktree"
)

func main() {
	equivalent := flag.String("equivalent", "", "file with the mutants that change nothing that can be observed, one per line, each followed by a line with the reason")
	only := flag.String("only", "", "try only the mutants whose description contains this text")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: mutants [-equivalent file] [-only text] file... -- package...")
		flag.PrintDefaults()
	}
	flag.Parse()
	i := slices.Index(flag.Args(), "--")
	if i < 1 || i == flag.NArg()-1 {
		flag.Usage()
		os.Exit(2)
	}
	r := run{files: flag.Args()[:i], packages: flag.Args()[i+1:], only: *only, stdout: os.Stdout}
	if err := r.do(context.Background(), *equivalent); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// run tries the mutants of files with the tests of packages.
type run struct {
	files, packages []string // the paths are relative to the root of the work tree
	only            string
	stdout          io.Writer

	root string
}

func (r *run) do(ctx context.Context, equivalentPath string) (err error) {
	if r.root, err = worktree.Root(nil); err != nil {
		return err
	}
	equivalent, err := readEquivalent(filepath.Join(r.root, equivalentPath), equivalentPath != "")
	if err != nil {
		return err
	}
	lines, tried, survived, known := 0, 0, 0, 0
	for _, file := range r.files {
		source, err := os.ReadFile(filepath.Join(r.root, file))
		if err != nil {
			return err
		}
		mutants, err := mutate(file, source)
		if err != nil {
			return err
		}
		lines += codeLines(source)
		for _, m := range mutants {
			if !strings.Contains(m.what, r.only) {
				continue
			}
			finding, err := r.try(ctx, m)
			if _, ok := errors.AsType[*overlay.CompileError](err); ok {
				continue
			}
			if err != nil {
				return err
			}
			tried++
			switch {
			case finding != "":
			case equivalent[m.key()]:
				known++
			default:
				survived++
				fmt.Fprintf(r.stdout, "%s:%d: survives: %s\n", m.file, m.line, m.what)
			}
		}
	}
	fmt.Fprintf(r.stdout, "%d mutants of %d lines of code, %.0f per 100 lines: %d found, %d equivalent, %d survive\n",
		tried, lines, 100*float64(tried)/float64(max(lines, 1)), tried-survived-known, known, survived)
	if survived > 0 {
		return fmt.Errorf("%d mutants survive", survived)
	}
	return nil
}

// readEquivalent returns the keys of the mutants in a list. A key is followed by a line with the reason, which begins with a space.
func readEquivalent(path string, isGiven bool) (map[string]bool, error) {
	keys := map[string]bool{}
	if !isGiven {
		return keys, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimRight(line, "\n"); line != "" && line[0] != ' ' {
			keys[line] = true
		}
	}
	return keys, nil
}

// codeLines counts the lines of a file that are neither empty nor a comment.
func codeLines(source []byte) (count int) {
	for line := range strings.Lines(string(source)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") {
			count++
		}
	}
	return count
}

// try runs the tests with one mutant. It returns the first failed test's name, or an empty text if all tests pass.
func (r *run) try(ctx context.Context, m mutant) (finding string, err error) {
	// The fast tests find most mutants.
	if finding, err := overlay.Test(ctx, r.root, m.file, m.source, append([]string{"-short"}, r.packages...)...); finding != "" || err != nil {
		return finding, err
	}
	return overlay.Test(ctx, r.root, m.file, m.source, r.packages...)
}
