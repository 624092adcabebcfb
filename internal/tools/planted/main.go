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
	"strings"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/tools/worktree"
)

func main() {
	list := flag.String("defects", "", "file with the defects; the paths in it are relative to the root of the work tree")
	only := flag.String("only", "", "plant only the defects whose names contain this text")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: planted -defects file [-only text] package...")
		flag.PrintDefaults()
	}
	flag.Parse()
	if *list == "" || flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(context.Background(), *list, *only, flag.Args(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "planted:", err)
		os.Exit(1)
	}
}

// defect is one change of a file that a test must find.
type defect struct {
	name, file    string // file is relative to the root of the work tree
	before, after string
}

// testTimeout limits the tests of one defect, because a defect can make a test wait forever.
const testTimeout = 2 * time.Minute

// run plants each defect alone, and returns an error that names the defects with which the tests of the packages pass.
func run(ctx context.Context, list, only string, packages []string, stdout io.Writer) error {
	root, err := worktree.Root(nil)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(root, list))
	if err != nil {
		return err
	}
	defects, err := parse(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", list, err)
	}
	dir, err := os.MkdirTemp("", "planted")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var missed []string
	planted := 0
	for _, d := range defects {
		if !strings.Contains(d.name, only) {
			continue
		}
		planted++
		start := time.Now()
		finding, err := plant(ctx, root, dir, d, packages)
		if err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
		if finding == "" {
			missed = append(missed, d.name)
			finding = "NOT FOUND"
		}
		fmt.Fprintf(stdout, "%5.1fs  %s: %s\n", time.Since(start).Seconds(), d.name, finding)
	}
	fmt.Fprintf(stdout, "%d defects, %d not found\n", planted, len(missed))
	if len(missed) > 0 {
		return fmt.Errorf("no test has found: %s", strings.Join(missed, "; "))
	}
	return nil
}

// parse returns the defects of a list. Each has its name in the first line and its file in the second one; then follow the
// lines that are replaced, after "-", and their replacement, after "+". An empty line separates two defects.
func parse(text string) (defects []defect, err error) {
	for _, block := range strings.Split(strings.TrimSpace(text), "\n\n") {
		lines := strings.Split(block, "\n")
		if len(lines) < 3 {
			return nil, fmt.Errorf("%q has no change", block)
		}
		d := defect{name: lines[0], file: lines[1]}
		for _, line := range lines[2:] {
			switch line[:1] {
			case "-":
				d.before += line[1:] + "\n"
			case "+":
				d.after += line[1:] + "\n"
			default:
				return nil, fmt.Errorf("%s: the line %q begins with neither - nor +", d.name, line)
			}
		}
		defects = append(defects, d)
	}
	return defects, nil
}

// plant runs the tests with one defect. It returns the first test that has failed, or an empty text if all tests pass.
func plant(ctx context.Context, root, dir string, d defect, packages []string) (finding string, err error) {
	path := filepath.Join(root, d.file)
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(text), d.before); n != 1 {
		return "", fmt.Errorf("%s has the lines %d times: correct the list", d.file, n)
	}
	changed := filepath.Join(dir, "changed.go")
	if err := os.WriteFile(changed, []byte(strings.Replace(string(text), d.before, d.after, 1)), 0o600); err != nil {
		return "", err
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {path: changed}})
	if err != nil {
		return "", err
	}
	overlayPath := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlayPath, overlay, 0o600); err != nil {
		return "", err
	}
	args := append([]string{"test", "-overlay", overlayPath, "-vet=off", "-failfast", "-timeout", testTimeout.String()}, packages...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	output, err := cmd.CombinedOutput()
	var failed *exec.ExitError
	switch {
	case err == nil:
		return "", nil
	case !errors.As(err, &failed):
		return "", err
	case strings.Contains(string(output), "[build failed]"):
		return "", fmt.Errorf("the defect does not compile: %s", output)
	}
	for line := range strings.Lines(string(output)) {
		if test, ok := strings.CutPrefix(strings.TrimSpace(line), "--- FAIL: "); ok {
			return strings.Fields(test)[0], nil
		}
	}
	return "the tests do not end", nil
}
