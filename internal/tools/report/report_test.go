package main

import (
	"bytes"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestSlowestAndCounts(t *testing.T) {
	runs, err := readTestRuns([]string{"testdata/all.json", "testdata/memory.json"})
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	printTests(&got, runs)
	want, err := os.ReadFile("testdata/report.golden")
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("got\n%s\nwant\n%s", got.String(), want)
	}
}

func TestSlowestIsLimited(t *testing.T) {
	got := slowest(map[string]float64{"a": 1, "b": 3, "d": 2, "c": 2}, 3, strings.Compare)
	if strings.Join(got, " ") != "b c d" {
		t.Errorf("got %v, want b c d", got)
	}
}

func TestDamagedEventsAreAnError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "events.json")
	if err := os.WriteFile(file, []byte(`{"Action":"pass"`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readTestRuns([]string{file}); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("got %v, want an error with the name of the file", err)
	}
}

func TestInitTraceIsSummed(t *testing.T) {
	const trace = `init internal/bytealg @0.008 ms, 0 ms clock, 0 bytes, 0 allocs
init runtime @0.079 ms, 0.10 ms clock, 0 bytes, 0 allocs
nomad-lite: a line of the program
init github.com/distribution/reference @5.8 ms, 0.96 ms clock, 414456 bytes, 3599 allocs
init net/rpc @10 ms, 1e-05 ms clock, 7616 bytes, 133 allocs
`
	got, err := parseInitTrace(trace)
	if err != nil {
		t.Fatal(err)
	}
	if math.Abs(got.milliseconds-1.06001) > 1e-9 || got.bytes != 422072 {
		t.Errorf("got %+v, want 1.06001 ms and 422072 bytes", got)
	}
	for _, trace := range []string{"", "init runtime @x\n"} {
		if _, err := parseInitTrace(trace); err == nil {
			t.Errorf("no error for %q", trace)
		}
	}
}

func TestInitOfThisProgramIsMeasured(t *testing.T) {
	cost, err := measureInit([]string{"/proc/self/exe", "-test.run=^$"})
	if err != nil {
		t.Fatal(err)
	}
	if cost.milliseconds <= 0 || cost.bytes <= 0 {
		t.Errorf("got %+v, want positive figures", cost)
	}
}

func TestTestBinariesAreCounted(t *testing.T) {
	const list = `{"ImportPath": "m/a", "Name": "a", "Deps": ["google.golang.org/grpc"]}
{"ImportPath": "m/a.test", "Name": "main", "Deps": ["google.golang.org/grpc", "testing"]}
{"ImportPath": "m/b.test", "Name": "main", "Deps": ["google.golang.org/grpc/codes", "testing"]}
{"ImportPath": "m/c.test", "Name": "main", "Deps": ["google.golang.org/grpc [m/c.test]"]}
{"ImportPath": "m/program", "Name": "main", "Deps": ["google.golang.org/grpc"]}
`
	linking, all, err := countTestBinaries(strings.NewReader(list), grpcPackage)
	if linking != 2 || all != 3 || err != nil {
		t.Errorf("got %d of %d and %v, want 2 of 3", linking, all, err)
	}
}

// TestFailuresAreShown runs .ci/gotest with a test that fails in each way.
func TestFailuresAreShown(t *testing.T) {
	script, err := filepath.Abs("../../../.ci/gotest")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		source      string
		want        []string // the output contains these strings; without them, the test passes
		passesAgain bool
	}{
		"passes": {source: `func Test(t *testing.T) { t.Log("of no interest") }`},
		"failed subtest": {
			source: `func Test(t *testing.T) { t.Run("sub", func(t *testing.T) { t.Parallel(); println("to stderr"); t.Log("before"); t.Error("wrong value") }) }`,
			want:   []string{"Test/sub", "to stderr", "before", "wrong value"},
		},
		"passes when it runs again": {
			source:      `func Test(t *testing.T) { if _, err := os.Stat("again"); err != nil { os.WriteFile("again", nil, 0o600); t.Error("for the first time") } }`,
			want:        []string{"for the first time", "Tests that failed and ran once more:", "m.Test: 2 runs, 1 failures"},
			passesAgain: true,
		},
		"panic":                      {source: `func Test(t *testing.T) { panic("bad state") }`, want: []string{"panic: bad state", "failure_test.go:4"}},
		"panic of another goroutine": {source: `func Test(t *testing.T) { go panic("bad state"); select {} }`, want: []string{"panic: bad state"}},
		"panic before the tests":     {source: `func init() { panic("bad state") }; func Test(t *testing.T) {}`, want: []string{"panic: bad state"}},
		"exit":                       {source: `func Test(t *testing.T) { println("last words"); os.Exit(0) }`, want: []string{"last words"}},
		"exit after the tests":       {source: `func TestMain(m *testing.M) { m.Run(); println("left behind"); os.Exit(7) }; func Test(t *testing.T) {}`, want: []string{"left behind"}},
		"build":                      {source: `func Test(t *testing.T) { noSuchFunction() }`, want: []string{"undefined: noSuchFunction"}},
		"vet":                        {source: `func Test(t *testing.T) { t.Errorf("%d", "text") }`, want: []string{"wrong type"}},
		"data race": {
			source: `func Test(t *testing.T) { n, done := 0, make(chan bool); go func() { n++; close(done) }(); n++; <-done }`,
			want:   []string{"WARNING: DATA RACE", "failure_test.go:4"},
		},
		"timeout": {source: `func Test(t *testing.T) { println("waits"); select {} }`, want: []string{"waits", "test timed out after 2s", "failure_test.go:4"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for file, text := range map[string]string{
				"go.mod":          "module m\n\ngo 1.26.0\n",
				"failure_test.go": "package m\nimport \"testing\"; import \"os\"\nvar _ = os.Exit\n" + c.source + "\n",
			} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			events := filepath.Join(dir, "events.json")
			cmd := exec.Command(script, events, "./...", "-race", "-timeout=2s")
			cmd.Env = append(os.Environ(), "CGO_ENABLED=1") // the race detector needs C
			cmd.Dir = dir
			out, err := cmd.CombinedOutput()
			passes := len(c.want) == 0 || c.passesAgain
			if exit := (*exec.ExitError)(nil); passes && err != nil || !passes && !errors.As(err, &exit) {
				t.Errorf("exit: %v", err)
			}
			for _, want := range c.want {
				if !strings.Contains(string(out), want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
			if len(c.want) > 0 {
				return
			}
			if strings.Contains(string(out), "of no interest") {
				t.Errorf("the output of a passed test is shown:\n%s", out)
			}
			if runs, err := readTestRuns([]string{events}); err != nil || len(runs.functions) != 1 || len(runs.packageSeconds) != 1 {
				t.Errorf("events: %+v, %v", runs, err)
			}
		})
	}
}
