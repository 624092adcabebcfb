package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/tools/overlay"
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
	var missed []string
	planted := 0
	for _, d := range defects {
		if !strings.Contains(d.name, only) {
			continue
		}
		planted++
		start := time.Now()
		finding, err := plant(ctx, root, d, packages)
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
func plant(ctx context.Context, root string, d defect, packages []string) (finding string, err error) {
	text, err := os.ReadFile(filepath.Join(root, d.file))
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(text), d.before); n != 1 {
		return "", fmt.Errorf("%s has the lines %d times: correct the list", d.file, n)
	}
	return overlay.Test(ctx, root, d.file, []byte(strings.Replace(string(text), d.before, d.after, 1)), packages...)
}
