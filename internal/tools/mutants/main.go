package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

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

// testTimeout limits the tests of one mutant, because it can make a test wait forever.
const testTimeout = 2 * time.Minute

// run tries the mutants of files with the tests of packages.
type run struct {
	files, packages []string // the paths are relative to the root of the work tree
	only            string
	stdout          io.Writer

	root, dir string
}

func (r *run) do(ctx context.Context, equivalentPath string) (err error) {
	if r.root, err = worktree.Root(nil); err != nil {
		return err
	}
	if r.dir, err = os.MkdirTemp("", "mutants"); err != nil {
		return err
	}
	defer os.RemoveAll(r.dir)
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
			switch {
			case err != nil:
				return err
			case finding == notCompiled:
				continue
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

const notCompiled = "does not compile"

// try runs the tests with one mutant. It returns the first test that has failed, or an empty text if all pass.
func (r *run) try(ctx context.Context, m mutant) (finding string, err error) {
	changed := filepath.Join(r.dir, "changed.go")
	if err := os.WriteFile(changed, m.source, 0o600); err != nil {
		return "", err
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(r.root, m.file): changed}})
	if err != nil {
		return "", err
	}
	overlayPath := filepath.Join(r.dir, "overlay.json")
	if err := os.WriteFile(overlayPath, overlay, 0o600); err != nil {
		return "", err
	}
	// Most mutants are found by tests that are not slow.
	if finding, err := r.runTests(ctx, overlayPath, "-short"); finding != "" || err != nil {
		return finding, err
	}
	return r.runTests(ctx, overlayPath)
}

// runTests returns the first test that has failed, or an empty text.
func (r *run) runTests(ctx context.Context, overlayPath string, flags ...string) (finding string, err error) {
	args := slices.Concat([]string{"test", "-overlay", overlayPath, "-vet=off", "-failfast", "-timeout", testTimeout.String()}, flags, r.packages)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = r.root
	output, err := cmd.CombinedOutput()
	var failed *exec.ExitError
	switch {
	case err == nil:
		return "", nil
	case !errors.As(err, &failed):
		return "", err
	case strings.Contains(string(output), "[build failed]"):
		return notCompiled, nil
	}
	for line := range strings.Lines(string(output)) {
		if test, ok := strings.CutPrefix(strings.TrimSpace(line), "--- FAIL: "); ok {
			return strings.Fields(test)[0], nil
		}
	}
	return "the tests do not end", nil
}
