package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestMain starts the program itself if a test has started this binary as benchcompare.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "benchcompare" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestFiguresAreParsed(t *testing.T) {
	out, err := os.ReadFile("testdata/output.txt")
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseFigures("HTTPRequests", string(out))
	if err != nil {
		t.Fatal(err)
	}
	want := []figure{
		{rowID{"HTTPRequests/api", "sec/op"}, 41.235e-6, 0},
		{rowID{"HTTPRequests/api", "p50-µs"}, 38, 0},
		{rowID{"HTTPRequests/static-files", "sec/op"}, 1.5e-3, 0},
		{rowID{"HTTPRequests/static-files", "B/s"}, 12.5e6, 0},
		{rowID{"agent exec -> node ready, fresh", "ms"}, 75.2, 0.1},
		{rowID{"100 no-op batch allocs complete; floor: the same", "/s"}, 1230, 10},
		{rowID{"fdatasyncs in the life of a task", ""}, 5, 0.01},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%v\nwant\n%v", got, want)
	}
}

func TestDirectionOfUnits(t *testing.T) {
	for unit, want := range map[string]bool{
		"B/s": true, "/s": true, "GB/s": true, "writes/s": true,
		"sec/op": false, "ms": false, "": false, "B/op": false, "%cpu@100/s": false, "keeper-KiB/stream": false,
	} {
		if moreIsBetter(unit) != want {
			t.Errorf("moreIsBetter(%q) = %v", unit, !want)
		}
	}
}

// makeRow makes the figures of 10 rounds. Candidate changes the figures of the candidate.
func makeRow(noise func() float64, candidate func(float64) float64) *[sideCount][]figure {
	var row [sideCount][]figure
	for range 10 {
		for at := range sideCount {
			v := noise()
			if at == sideCandidate {
				v = candidate(v)
			}
			row[at] = append(row[at], figure{value: v})
		}
	}
	return &row
}

func unchanged(v float64) float64 { return v }

func verdicts(rows []comparison) map[string]string {
	all := map[string]string{}
	for _, c := range rows {
		all[c.row] = c.verdict
	}
	return all
}

// TestFalseAlarms measures how many comparisons of equal commits have a row that is not the same.
// DESIGN.md has the rates.
func TestFalseAlarms(t *testing.T) {
	const tables, rowsPerTable = 200, 5
	for name, newNoise := range map[string]func(*rand.Rand) func() float64{
		"normal":     func(r *rand.Rand) func() float64 { return func() float64 { return 100 + r.NormFloat64() } },
		"log-normal": func(r *rand.Rand) func() float64 { return func() float64 { return 100 * math.Exp(r.NormFloat64()) } },
		"one run of ten disturbed": func(r *rand.Rand) func() float64 {
			return func() float64 {
				if r.IntN(10) == 0 {
					return 100 + 1000*r.Float64()
				}
				return 100 + r.NormFloat64()
			}
		},
		"two values": func(r *rand.Rand) func() float64 { return func() float64 { return float64(3 + r.IntN(2)) } },
		"drift": func(r *rand.Rand) func() float64 {
			level := 100.0
			return func() float64 { level += r.NormFloat64(); return level + r.NormFloat64() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(7, 7))
			alarms, outsideNoise := 0, 0
			for range tables {
				s := samples{}
				for i := range rowsPerTable {
					noise := newNoise(r)
					row := makeRow(noise, unchanged)
					shuffleSides(r, row)
					s[rowID{row: fmt.Sprint(i)}] = row
				}
				alarm := false
				for _, c := range compare(s, 10) {
					alarm = alarm || c.verdict != verdictSame
					if math.Abs(c.difference) > c.noise {
						outsideNoise++
					}
				}
				if alarm {
					alarms++
				}
			}
			t.Logf("%s: false alarms in %.1f %% of %d tables of %d rows; differences larger than the noise in %.1f %% of the rows", name,
				100*float64(alarms)/tables, tables, rowsPerTable, 100*float64(outsideNoise)/(tables*rowsPerTable))
			// At a rate of 5 %, more than 19 alarms of 200 have a probability of 0.3 %.
			if alarms > 19 {
				t.Errorf("%d of %d comparisons of equal commits have a row that is not the same", alarms, tables)
			}
		})
	}
}

// shuffleSides puts the figures of each round in random order, as the tool runs them.
func shuffleSides(r *rand.Rand, row *[sideCount][]figure) {
	for i := range row[sideBase] {
		r.Shuffle(int(sideCount), func(a, b int) { row[a][i], row[b][i] = row[b][i], row[a][i] })
	}
}

func TestShiftOfTenPercentIsFound(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	noise := func() float64 { return 100 + r.NormFloat64() }
	slower := func(v float64) float64 { return v * 1.1 }
	s := samples{
		{"slower", "ms"}:            makeRow(noise, slower),
		{"faster", "ms"}:            makeRow(noise, func(v float64) float64 { return v * 0.9 }),
		{"lower throughput", "/s"}:  makeRow(noise, func(v float64) float64 { return v * 0.9 }),
		{"higher throughput", "/s"}: makeRow(noise, slower),
	}
	disturbed := makeRow(noise, slower)
	disturbed[sideBase][4].value, disturbed[sideCandidate][7].value = 5000, 9000
	s[rowID{"slower, two runs disturbed", "ms"}] = disturbed
	for i := range 40 { // a whole table of other rows
		s[rowID{fmt.Sprint("same ", i), "ms"}] = makeRow(noise, unchanged)
	}
	got := verdicts(compare(s, 10))
	for row, want := range map[string]string{
		"slower": verdictWorse, "faster": verdictBetter, "lower throughput": verdictWorse, "higher throughput": verdictBetter,
		"slower, two runs disturbed": verdictWorse,
	} {
		if got[row] != want {
			t.Errorf("%s: %s, want %s", row, got[row], want)
		}
		delete(got, row)
	}
	for row, verdict := range got {
		if verdict != verdictSame {
			t.Errorf("%s: %s", row, verdict)
		}
	}
}

func TestShiftBelowNoiseIsTheSame(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	noise := func() float64 { return 100 + 20*r.NormFloat64() }
	rows := compare(samples{{"noisy", "ms"}: makeRow(noise, func(v float64) float64 { return v + 5 })}, 10)
	if rows[0].verdict != verdictSame || rows[0].noise < 5 {
		t.Errorf("got %+v", rows[0])
	}
}

func TestFiguresWithoutNoise(t *testing.T) {
	constant := func(v float64) func() float64 { return func() float64 { return v } }
	to := func(v float64) func(float64) float64 { return func(float64) float64 { return v } }
	rounded := makeRow(constant(39), to(39.1))
	twoSteps := makeRow(constant(39), to(39.2))
	for _, row := range []*[sideCount][]figure{rounded, twoSteps} {
		for at := range sideCount {
			for i := range row[at] {
				row[at][i].step = 0.1
			}
		}
	}
	got := verdicts(compare(samples{
		{"equal", "allocs/op"}:           makeRow(constant(3), to(3)),
		{"one more", "allocs/op"}:        makeRow(constant(3), to(4)),
		{"from nothing", "allocs/op"}:    makeRow(constant(0), to(1)),
		{"within the rounding", "MB"}:    rounded,
		{"more than the rounding", "MB"}: twoSteps,
	}, 10))
	want := map[string]string{
		"equal": verdictSame, "one more": verdictWorse, "from nothing": verdictWorse, "within the rounding": verdictSame, "more than the rounding": verdictWorse,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
}

func TestPValueIsExact(t *testing.T) {
	rounds := make([][sideCount]float64, 10)
	for i := range rounds {
		rounds[i] = [sideCount]float64{float64(i), float64(i) + 0.1, float64(i) + 5}
	}
	// Of the 3^10 ways to choose the candidate, only the observed one and the opposite one are as extreme.
	if got, want := pValue(rounds), 2/math.Pow(3, 10); math.Abs(got-want) > 1e-12 {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := pValue(make([][sideCount]float64, 10)); got != 1 {
		t.Errorf("equal figures: %v, want 1", got)
	}
	// Twelve rounds have too many ways, and random ones are taken.
	rounds = append(rounds, [sideCount]float64{0, 0.1, 5}, [sideCount]float64{0, 0.1, 5})
	if got := pValue(rounds); got <= 0 || got > 5.0/maxChoices {
		t.Errorf("got %v for twelve rounds", got)
	}
}

func TestRowsOfOneSide(t *testing.T) {
	both := makeRow(func() float64 { return 1 }, unchanged)
	got := verdicts(compare(samples{
		{"new", ""}:        {nil, nil, both[sideCandidate]},
		{"removed", ""}:    {both[sideBase], both[sideAgain], nil},
		{"incomplete", ""}: {both[sideBase], both[sideAgain], both[sideCandidate][:9]},
	}, 10))
	want := map[string]string{"new": "only in candidate", "removed": "only in base", "incomplete": verdictIncomplete}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
}

func TestSelection(t *testing.T) {
	for _, c := range []struct {
		bench, dir, function string
		want                 bool
	}{
		{"", "cmd/nomad-lite/systemtest", "BenchmarkHooks", true},
		{"", "cmd/nomad-lite/systemtest/bench", "BenchmarkHooks", true},
		{"", "runtime/httpapi", "BenchmarkJobs", true},
		{"", "runtime/httpapi", "BenchmarkJobsWithLongLists", false},
		{"", "runtime/store", "BenchmarkOpen", false},
		{"Open/100", "runtime/store", "BenchmarkOpen", true},
		{"Open/100", "cmd/nomad-lite/systemtest", "BenchmarkHooks", false},
	} {
		s, err := newSelection(c.bench)
		if err != nil {
			t.Fatal(err)
		}
		if s.includes(c.dir, c.function) != c.want {
			t.Errorf("%+v: got %v", c, !c.want)
		}
	}
	if _, err := newSelection("("); err == nil {
		t.Error("no error for a pattern that is not valid")
	}
}

// A benchmark is found in whichever package it is, and two of the same name are told apart.
func TestRowsAreNamedByFunction(t *testing.T) {
	base := []*benchmark{{function: "BenchmarkReady", pkg: "systemtest"}, {function: "BenchmarkStart", pkg: "exec"}}
	candidate := []*benchmark{{function: "BenchmarkReady", pkg: "systemtest/bench"}, {function: "BenchmarkStart", pkg: "exec"}, {function: "BenchmarkStart", pkg: "docker"}}
	nameRows(base, candidate)
	var got []string
	for _, b := range append(base, candidate...) {
		got = append(got, b.row)
	}
	if want := "Ready|exec Start|Ready|exec Start|docker Start"; strings.Join(got, "|") != want {
		t.Errorf("got %s, want %s", strings.Join(got, "|"), want)
	}
	order := roundOrder(base, candidate)
	if len(order) != 3 || len(order[0]) != 3 || len(order[1]) != 3 || len(order[2]) != 1 {
		t.Errorf("got %v, want three runs of Ready and of exec Start, and one of docker Start", order)
	}
}

// repository creates a repository with a benchmark that reports a figure, and enters it.
func repository(t *testing.T, body string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	t.Chdir(dir)
	t.Setenv("GIT_CONFIG_GLOBAL", "/dev/null")
	git(t, "init", "-q", "-b", "main")
	write(t, "go.mod", "module example.org/m\n\ngo 1.26.0\n")
	writeBenchmark(t, "old/bench_test.go", body)
	git(t, "add", "-A")
	git(t, "-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "-q", "-m", "first")
	return dir
}

func writeBenchmark(t *testing.T, file, body string) {
	t.Helper()
	write(t, file, "package old\n\nimport (\n\t\"os\"\n\t\"testing\"\n\t\"time\"\n)\n\nvar _, _ = os.WriteFile, time.Sleep\n\n"+body+"\n")
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func git(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("git", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// TestWorkTreeIsCompared compares a commit with a work tree, in which the benchmark has moved to
// another package.
func TestWorkTreeIsCompared(t *testing.T) {
	repository(t, `func BenchmarkSize(b *testing.B) { b.ReportMetric(100, "size"); b.ReportMetric(7, "other") }
func BenchmarkRemoved(b *testing.B) { b.ReportMetric(1, "size") }`)
	git(t, "mv", "old", "moved")
	writeBenchmark(t, "moved/bench_test.go", `func BenchmarkSize(b *testing.B) { b.ReportMetric(110, "size"); b.ReportMetric(7, "other") }`)
	writeBenchmark(t, "untracked/bench_test.go", `func BenchmarkNew(b *testing.B) { b.ReportMetric(1, "size") }`)
	status := git(t, "status", "--porcelain")

	compareAll := func(base string) (out string, worse bool, err error) {
		var stdout bytes.Buffer
		worse, err = run(t.Context(), t.Context(), options{base: base, bench: ".", benchtime: "1x", pairs: 10}, &stdout)
		return stdout.String(), worse, err
	}
	out, worse, err := compareAll("HEAD")
	if err != nil || !worse {
		t.Fatalf("worse: %v, %v\n%s", worse, err, out)
	}
	for _, want := range []string{
		"with uncommitted changes\n10 pairs, benchtime 1x, load ",
		"Size size 100.0 110.0 +10.0% ±0.0% 1.7e-05 worse\n", "Size other 7.000 7.000 +0.0% ±0.0% 1 same\n",
		"New size only in candidate\n", "Removed size only in base\n",
	} {
		if !strings.Contains(regexp.MustCompile(" +").ReplaceAllString(out, " "), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if now := git(t, "status", "--porcelain"); now != status {
		t.Errorf("the work tree was\n%sand is\n%s", status, now)
	}
	if trees := git(t, "worktree", "list"); strings.Count(trees, "\n") != 1 {
		t.Errorf("worktrees remain:\n%s", trees)
	}

	writeBenchmark(t, "moved/bench_test.go", `func BenchmarkSize(b *testing.B) { b.Fatal("out of order") }`)
	if _, _, err := compareAll("HEAD"); err == nil || !strings.Contains(err.Error(), "round 1, candidate: BenchmarkSize") || !strings.Contains(err.Error(), "out of order") {
		t.Errorf("a failed benchmark gives %v", err)
	}
	if _, _, err := compareAll("no-such-commit"); err == nil {
		t.Error("no error for a base that does not exist")
	}
	if _, err := run(t.Context(), t.Context(), options{base: "HEAD", pairs: 9}, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "at least 10") {
		t.Errorf("nine pairs give %v", err)
	}
}

// TestInterrupt checks that the first interrupt lets the benchmark end, that the second one kills
// it, and that worktrees are removed in both cases.
func TestInterrupt(t *testing.T) {
	for name, c := range map[string]struct {
		interrupts int
		duration   string // of the benchmark
	}{
		"once":  {1, "2 * time.Second"},
		"twice": {2, "time.Hour"},
	} {
		t.Run(name, func(t *testing.T) {
			started, ended := filepath.Join(t.TempDir(), "started"), filepath.Join(t.TempDir(), "ended")
			repository(t, fmt.Sprintf(`func BenchmarkSleep(b *testing.B) {
	if err := os.WriteFile(%q, nil, 0o600); err != nil { b.Fatal(err) }
	time.Sleep(%s)
	if err := os.WriteFile(%q, nil, 0o600); err != nil { b.Fatal(err) }
}`, started, c.duration, ended))
			tmp := t.TempDir()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, "/proc/self/exe", "-base", "HEAD", "-bench", "Sleep", "-benchtime", "1x")
			cmd.Args[0] = "benchcompare"
			cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
			stderr, err := cmd.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
				if _, err := os.Stat(started); err == nil {
					break
				}
			}
			buf := make([]byte, 1<<16)
			for range c.interrupts {
				if err := cmd.Process.Signal(os.Interrupt); err != nil {
					t.Fatal(err)
				}
				if n, err := stderr.Read(buf); err != nil || n == 0 { // the answer to the first interrupt, or the last message
					t.Errorf("no message: %v", err)
				}
			}
			err = cmd.Wait()
			if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 2 {
				t.Errorf("exit: %v, want status 2", err)
			}
			if _, err := os.Stat(ended); (err == nil) != (c.interrupts == 1) {
				t.Errorf("after %d interrupts, the benchmark has ended: %v", c.interrupts, err == nil)
			}
			if trees := git(t, "worktree", "list"); strings.Count(trees, "\n") != 1 {
				t.Errorf("worktrees remain:\n%s", trees)
			}
			if left, err := filepath.Glob(tmp + "/bench-compare*"); err != nil || len(left) > 0 {
				t.Errorf("files remain: %v %v", left, err)
			}
		})
	}
}
