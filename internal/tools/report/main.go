package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const (
	modulePath       = "github.com/nomad-lite/nomad-lite"
	programPackage   = modulePath + "/cmd/nomad-lite"
	librariesPackage = modulePath + "/testdata/libraries"
	grpcPackage      = "google.golang.org/grpc"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

func run(eventFiles []string, w io.Writer) error {
	tests, err := readTestRuns(eventFiles)
	if err != nil {
		return err
	}
	printTests(w, tests)

	root, err := output(".", "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	root = strings.TrimSpace(root)
	if err := printProgram(w, root); err != nil {
		return err
	}
	list, err := output(root, "go", "list", "-test", "-json=ImportPath,Name,Deps", "./...")
	if err != nil {
		return err
	}
	linking, all, err := countTestBinaries(strings.NewReader(list), grpcPackage)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\nTest binaries that link gRPC: %d of %d\n", linking, all)
	return nil
}

// testRuns are the results of tests, by package and name. A test that ran several times counts once,
// with its longest time.
type testRuns struct {
	functions, subtests map[testID]bool // value: the test ran and was not skipped
	testSeconds         map[testID]float64
	packageSeconds      map[string]float64
}

type testID struct{ pkg, name string }

func readTestRuns(files []string) (*testRuns, error) {
	runs := &testRuns{map[testID]bool{}, map[testID]bool{}, map[testID]float64{}, map[string]float64{}}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		err = runs.read(f)
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, fmt.Errorf("read test events of %s: %w", name, err)
		}
	}
	return runs, nil
}

// read adds events of `go test -json`.
func (r *testRuns) read(events io.Reader) error {
	for d := json.NewDecoder(events); ; {
		var e struct {
			Action, Package, Test string
			Elapsed               float64
		}
		if err := d.Decode(&e); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if e.Action != "pass" && e.Action != "fail" && e.Action != "skip" {
			continue
		}
		if e.Test == "" {
			r.packageSeconds[e.Package] = max(r.packageSeconds[e.Package], e.Elapsed)
			continue
		}
		id, ran := testID{e.Package, e.Test}, e.Action != "skip"
		if strings.Contains(e.Test, "/") {
			r.subtests[id] = r.subtests[id] || ran
			continue
		}
		r.functions[id] = r.functions[id] || ran
		r.testSeconds[id] = max(r.testSeconds[id], e.Elapsed)
	}
}

func printTests(w io.Writer, runs *testRuns) {
	const count = 10
	fmt.Fprintf(w, "Slowest tests, in seconds:\n")
	for _, id := range slowest(runs.testSeconds, count, func(a, b testID) int {
		return cmp.Or(cmp.Compare(a.pkg, b.pkg), cmp.Compare(a.name, b.name))
	}) {
		fmt.Fprintf(w, "%8.1f  %s %s\n", runs.testSeconds[id], shortPackage(id.pkg), id.name)
	}
	fmt.Fprintf(w, "\nSlowest packages, in seconds:\n")
	for _, pkg := range slowest(runs.packageSeconds, count, cmp.Compare[string]) {
		fmt.Fprintf(w, "%8.1f  %s\n", runs.packageSeconds[pkg], shortPackage(pkg))
	}
	functions, skippedFunctions := countRan(runs.functions)
	subtests, skippedSubtests := countRan(runs.subtests)
	fmt.Fprintf(w, "\nTest functions: %d ran, %d skipped; subtests: %d ran, %d skipped\n", functions, skippedFunctions, subtests, skippedSubtests)
}

// slowest returns the count keys with the largest values.
func slowest[K comparable](seconds map[K]float64, count int, compare func(a, b K) int) []K {
	keys := make([]K, 0, len(seconds))
	for k := range seconds {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b K) int { return cmp.Or(cmp.Compare(seconds[b], seconds[a]), compare(a, b)) })
	return keys[:min(count, len(keys))]
}

func countRan(tests map[testID]bool) (ran, skipped int) {
	for _, r := range tests {
		if r {
			ran++
		}
	}
	return ran, len(tests) - ran
}

func shortPackage(pkg string) string { return strings.TrimPrefix(pkg, modulePath+"/") }

// countTestBinaries counts the test binaries in the output of `go list -test -json`, and those whose
// dependencies include a package.
func countTestBinaries(list io.Reader, dependency string) (linking, all int, err error) {
	for d := json.NewDecoder(list); ; {
		var p struct {
			ImportPath, Name string
			Deps             []string
		}
		if err := d.Decode(&p); err == io.EOF {
			return linking, all, nil
		} else if err != nil {
			return 0, 0, fmt.Errorf("decode the list of packages: %w", err)
		}
		if p.Name != "main" || !strings.HasSuffix(p.ImportPath, ".test") {
			continue
		}
		all++
		// A package that is compiled again for a test is listed as "path [test binary]".
		if slices.ContainsFunc(p.Deps, func(dep string) bool { path, _, _ := strings.Cut(dep, " "); return path == dependency }) {
			linking++
		}
	}
}

// printProgram builds the program and the program of the libraries, and prints their figures.
func printProgram(w io.Writer, root string) error {
	dir, err := os.MkdirTemp("", "ci-report")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) // a file that remains is in the folder for temporary files
	program, libraries := filepath.Join(dir, "nomad-lite"), filepath.Join(dir, "libraries")
	for path, pkg := range map[string]string{program: programPackage, libraries: librariesPackage} {
		if _, err := output(root, "go", "build", "-ldflags=-s -w", "-o", path, pkg); err != nil {
			return err
		}
	}
	info, err := os.Stat(program)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\nStripped binary: %.1f MB\n", float64(info.Size())/1e6)

	// The programs start in alternation, so that the load of the machine affects both.
	var ours, theirs []initCost
	for range 15 {
		for _, c := range []struct {
			argv  []string
			costs *[]initCost
		}{{[]string{program, "version"}, &ours}, {[]string{libraries}, &theirs}} {
			cost, err := measureInit(c.argv)
			if err != nil {
				return err
			}
			*c.costs = append(*c.costs, cost)
		}
	}
	a, b := medianCost(ours), medianCost(theirs)
	fmt.Fprintf(w, "Initialisation of packages, median of %d starts: %.1f ms and %.2f MB; of the libraries alone: %.1f ms and %.2f MB\n",
		len(ours), a.milliseconds, a.bytes/1e6, b.milliseconds, b.bytes/1e6)
	return nil
}

// initCost is what the initialisation of all packages of a process takes.
type initCost struct{ milliseconds, bytes float64 }

func measureInit(argv []string) (initCost, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return initCost{}, fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, stderr.String())
	}
	return parseInitTrace(stderr.String())
}

// parseInitTrace adds up lines like
//
//	init net/http @2.1 ms, 0.05 ms clock, 5128 bytes, 39 allocs
func parseInitTrace(trace string) (sum initCost, err error) {
	found := false
	for line := range strings.Lines(trace) {
		if !strings.HasPrefix(line, "init ") {
			continue
		}
		_, figures, _ := strings.Cut(line, "@")
		var at, clock, bytes float64
		if _, err := fmt.Sscanf(figures, "%g ms, %g ms clock, %g bytes", &at, &clock, &bytes); err != nil {
			return initCost{}, fmt.Errorf("line of GODEBUG=inittrace=1 %q: %w", line, err)
		}
		sum.milliseconds += clock
		sum.bytes += bytes
		found = true
	}
	if !found {
		return initCost{}, errors.New("the process printed no line of GODEBUG=inittrace=1")
	}
	return sum, nil
}

// medianCost returns the median of each figure.
func medianCost(costs []initCost) initCost {
	return initCost{
		median(costs, func(c initCost) float64 { return c.milliseconds }),
		median(costs, func(c initCost) float64 { return c.bytes }),
	}
}

func median(costs []initCost, figure func(initCost) float64) float64 {
	var values []float64
	for _, c := range costs {
		values = append(values, figure(c))
	}
	slices.Sort(values)
	return values[len(values)/2]
}

func output(dir, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}
