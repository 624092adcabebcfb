package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// minPairs is the smallest number of rounds. With much fewer rounds, no difference in a long table can
// be told from chance.
const minPairs = 10

type options struct {
	base, bench, benchtime string
	pairs                  int
}

func main() {
	var o options
	flag.StringVar(&o.base, "base", "", "commit that the work tree is compared with")
	flag.StringVar(&o.bench, "bench", "", "regular expression of the benchmarks, as for go test -bench; by default those of make bench")
	flag.StringVar(&o.benchtime, "benchtime", "100ms", "duration or count of each run of a benchmark, as for go test -benchtime")
	flag.IntVar(&o.pairs, "pairs", minPairs, "number of rounds")
	flag.Parse()

	untilInterrupt, interrupt := context.WithCancel(context.Background())
	untilKill, kill := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		interrupt()
		fmt.Fprintln(os.Stderr, "benchcompare: interrupted, waiting for the benchmark to end; interrupt again to kill it")
		<-signals
		kill()
	}()
	worse, err := run(untilInterrupt, untilKill, o, os.Stdout)
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "benchcompare:", err)
		os.Exit(2)
	case worse:
		os.Exit(1)
	}
}

// run compares, and reports whether a row is worse. It starts nothing after untilInterrupt ends, and
// kills the benchmark that runs when untilKill ends.
func run(untilInterrupt, untilKill context.Context, o options, w io.Writer) (worse bool, err error) {
	switch {
	case o.base == "":
		return false, errors.New("no base: set -base (make bench BASE=...) to a commit")
	case o.pairs < minPairs:
		return false, fmt.Errorf("%d pairs are too few to tell a difference from chance: -pairs (make bench PAIRS=...) is at least %d", o.pairs, minPairs)
	}
	selected, err := newSelection(o.bench)
	if err != nil {
		return false, err
	}
	root, err := output(untilInterrupt, ".", nil, "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return false, err
	}
	work, err := os.MkdirTemp("", "bench-compare")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()

	baseCommit, err := output(untilInterrupt, root, nil, "git", "rev-parse", "--verify", o.base+"^{commit}")
	if err != nil {
		return false, err
	}
	candidateCommit, candidateName, err := commitWorkTree(untilInterrupt, root, work)
	if err != nil {
		return false, err
	}
	var trees [2]*tree // base, candidate
	for i, commit := range []string{baseCommit, candidateCommit} {
		t := &tree{root: root, dir: filepath.Join(work, []string{"base", "candidate"}[i])}
		trees[i] = t
		defer func() { err = errors.Join(err, t.remove()) }()
		if err := t.checkOut(untilInterrupt, commit); err != nil {
			return false, err
		}
		if err := t.build(untilInterrupt, selected); err != nil {
			return false, err
		}
	}
	nameRows(trees[0].benchmarks, trees[1].benchmarks)

	fmt.Fprintf(w, "base:      %s\ncandidate: %s\n%d pairs, benchtime %s, load %s\n", shortCommit(baseCommit), candidateName, o.pairs, o.benchtime, loadAverage())
	samples, err := measure(untilInterrupt, untilKill, trees, o, w)
	if err != nil {
		return false, err
	}
	rows := compare(samples, o.pairs)
	if len(rows) == 0 {
		return false, errors.New("the benchmarks printed no figures")
	}
	return printRows(w, rows), nil
}

// measure runs all benchmarks in o.pairs rounds.
func measure(untilInterrupt, untilKill context.Context, trees [2]*tree, o options, w io.Writer) (samples, error) {
	result := samples{}
	began := time.Now()
	for round := range o.pairs {
		for _, runs := range roundOrder(trees[0].benchmarks, trees[1].benchmarks) {
			for _, r := range runs {
				if err := untilInterrupt.Err(); err != nil {
					return nil, fmt.Errorf("interrupted in round %d of %d", round+1, o.pairs)
				}
				figures, err := r.benchmark.run(untilKill, o.benchtime)
				if err != nil {
					return nil, fmt.Errorf("round %d, %s: %w", round+1, r.side, err)
				}
				for _, f := range figures {
					result.add(r.side, f)
				}
			}
		}
		perRound := time.Since(began) / time.Duration(round+1)
		fmt.Fprintf(w, "round %d of %d after %v, load %s, about %v left\n", round+1, o.pairs,
			time.Since(began).Round(time.Second), loadAverage(), (perRound * time.Duration(o.pairs-round-1)).Round(time.Second))
	}
	return result, nil
}

// benchmarkRun is one run of a benchmark in a round.
type benchmarkRun struct {
	side      side
	benchmark *benchmark
}

// roundOrder returns the runs of one round: for each benchmark, its runs in random order. The three
// runs of one benchmark follow each other, so that they have the same load of the machine.
func roundOrder(base, candidate []*benchmark) (order [][]benchmarkRun) {
	byRow := map[string][]benchmarkRun{}
	var names []string
	add := func(b *benchmark, sides ...side) {
		if byRow[b.row] == nil {
			names = append(names, b.row)
		}
		for _, s := range sides {
			byRow[b.row] = append(byRow[b.row], benchmarkRun{s, b})
		}
	}
	for _, b := range base {
		add(b, sideBase, sideAgain)
	}
	for _, b := range candidate {
		add(b, sideCandidate)
	}
	for _, name := range names {
		runs := byRow[name]
		rand.Shuffle(len(runs), func(i, j int) { runs[i], runs[j] = runs[j], runs[i] })
		order = append(order, runs)
	}
	return order
}

// run runs the benchmark once, and returns its figures.
func (b *benchmark) run(ctx context.Context, benchtime string) ([]figure, error) {
	var out strings.Builder
	cmd := exec.CommandContext(ctx, b.binary, "-test.run=^$", "-test.bench="+b.pattern, "-test.benchtime="+benchtime, "-test.timeout=30m")
	cmd.Dir, cmd.Stdout, cmd.Stderr = b.dir, &out, &out
	// An interrupt of the terminal reaches only the group of this program.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s in %s: %w\n%s", b.function, b.dir, err, out.String())
	}
	return parseFigures(b.row, out.String())
}

func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	one, _, _ := strings.Cut(string(text), " ")
	return one
}

// output runs a command with additional environment variables, and returns its output without the
// newline at the end.
func output(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}

// selection selects benchmarks.
type selection struct {
	function *regexp.Regexp // matches names of functions; nil means the benchmarks of make bench
	sub      string         // pattern of sub-benchmarks, with a leading slash, or ""
}

func newSelection(bench string) (selection, error) {
	if bench == "" {
		return selection{}, nil
	}
	first, sub, found := strings.Cut(bench, "/")
	if found {
		sub = "/" + sub
	}
	function, err := regexp.Compile(first)
	if err != nil {
		return selection{}, fmt.Errorf("-bench (make bench BENCH=...): %w", err)
	}
	return selection{function, sub}, nil
}

// defaultFunctions are the benchmarks of make bench outside the tests of the whole program.
var defaultFunctions = regexp.MustCompile(`^Benchmark(HTTPRequests|Jobs)$`)

// defaultFolder contains the other benchmarks of make bench.
const defaultFolder = "cmd/nomad-lite/systemtest"

// includes reports whether a function of the package in a folder, relative to the root of the
// repository, is selected.
func (s selection) includes(dir, function string) bool {
	if s.function != nil {
		return s.function.MatchString(function)
	}
	return dir == defaultFolder || strings.HasPrefix(dir, defaultFolder+"/") || defaultFunctions.MatchString(function)
}
