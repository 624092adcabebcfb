package endurance

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// iterationEnvVar names the iteration of TestLong in a child process.
const iterationEnvVar = "ENDURANCE_TEST_ITERATION"

// TestLong is the long test that TestReport runs in child processes. Its iterations print their seeds.
func TestLong(t *testing.T) {
	name := os.Getenv(iterationEnvVar)
	if name == "" {
		t.Skip("runs in the child processes of TestReport")
	}
	run := Start(t, Config{Sample: 3, SampleSeed: 1, Unit: "iterations", Load: "1 task"})
	each := run.Each
	if name == "parallel" {
		each = run.EachParallel
	}
	each(func(seed uint64) error {
		fmt.Println("iteration", seed)
		time.Sleep(10 * time.Millisecond)
		if seed == 9 { // the third iteration of the children that fail
			switch name {
			case "error":
				return errors.New("a|b\nis wrong")
			case "fatal":
				t.Fatal("is wrong")
			case "panic":
				panic("is wrong")
			case "hang":
				select {}
			}
		}
		run.Add(2)
		return nil
	})
	switch name {
	case "late error":
		t.Error("is wrong")
	case "late panic":
		panic("is wrong")
	}
}

// newDocument returns the path of a document with an empty table.
func newDocument(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "endurance.md")
	if err := os.WriteFile(path, []byte("# Parts\n\n"+tableHeader+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func longTestCommand(t *testing.T, iteration string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], append([]string{"-test.run=^TestLong$", "-test.v"}, args...)...)
	cmd.Env = append(os.Environ(), iterationEnvVar+"="+iteration)
	return cmd
}

func readParts(t *testing.T, path string) []part {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	parts, err := parseTable(string(text))
	if err != nil {
		t.Fatal(err)
	}
	return parts
}

// A part prints and appends one row, however it ends.
func TestReport(t *testing.T) {
	for _, test := range []struct {
		iteration string
		args      []string
		signal    syscall.Signal // sent during the first iterations
		want      string         // result
		wantCount int            // 0 means that the count depends on the time
		silent    bool           // the process cannot print the result
	}{
		{iteration: "pass", want: "passed"},
		{iteration: "parallel", want: "passed"},
		{iteration: "error", want: "failed: seed 9: a/b is wrong", wantCount: 4},
		{iteration: "fatal", want: "failed: seed 9", wantCount: 4},
		{iteration: "panic", want: "failed: seed 9", wantCount: 4},
		{iteration: "late error", want: "failed: after the last iteration"},
		{iteration: "late panic", want: "failed: after the last iteration"},
		{iteration: "hang", args: []string{"-test.timeout=7s"}, want: "timed out", wantCount: 4},
		{iteration: "pass", args: []string{"-duration=1h"}, signal: syscall.SIGINT, want: "interrupted"},
		{iteration: "pass", args: []string{"-duration=1h"}, signal: syscall.SIGKILL, want: "unfinished", silent: true},
	} {
		t.Run(test.want+" of "+test.iteration, func(t *testing.T) {
			t.Parallel()
			if testing.Short() && (test.iteration == "hang" || test.wantCount+int(test.signal) == 0) {
				t.Skip("lasts for its duration of a second, or until its timeout")
			}
			document := newDocument(t)
			cmd := longTestCommand(t, test.iteration, append([]string{"-duration=1s", "-seed=7", "-append=" + document}, test.args...)...)
			var out strings.Builder
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			exit := make(chan error, 1)
			go func() { exit <- cmd.Wait() }()
			if test.signal != 0 {
				for len(readParts(t, document)) == 0 {
					select {
					case err := <-exit:
						t.Fatalf("the process exited before its first iteration: %v\n%s", err, &out)
					case <-time.After(10 * time.Millisecond):
					}
				}
				time.Sleep(100 * time.Millisecond) // the child starts to handle signals
				if err := cmd.Process.Signal(test.signal); err != nil {
					t.Fatal(err)
				}
			}
			err := <-exit
			if passed := err == nil; passed != (test.want == "passed") {
				t.Errorf("the process: %v", err)
			}
			parts := readParts(t, document)
			if len(parts) != 1 {
				t.Fatalf("parts %v, want 1\n%s", parts, &out)
			}
			p := parts[0]
			if p.result != test.want || p.testName != "internal/testsupport/endurance.TestLong" || p.firstSeed != 7 || p.unit != "iterations" || !strings.HasPrefix(p.loadText, "1 task; ") || test.wantCount != 0 && p.count != test.wantCount {
				t.Errorf("got %v\n%s", p, &out)
			}
			if test.want == "passed" && (p.count < 4 || p.duration < time.Second) {
				t.Errorf("%d iterations in %v", p.count, p.duration)
			}
			if !test.silent && !strings.Contains(out.String(), p.String()+"\n") {
				t.Errorf("the process does not print the row\n%v\n%s", p, &out)
			}
		})
	}
}

// The flags select the seeds, and so the number, of the iterations.
func TestSeeds(t *testing.T) {
	seeds := func(t *testing.T, iteration string, args ...string) (all []string) {
		t.Helper()
		out, err := longTestCommand(t, iteration, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for line := range strings.Lines(string(out)) {
			if seed, ok := strings.CutPrefix(strings.TrimSpace(line), "iteration "); ok {
				all = append(all, seed)
			}
		}
		return all
	}
	for _, iteration := range []string{"pass", "parallel"} {
		if got := seeds(t, iteration); !slices.Equal(slices.Sorted(slices.Values(got)), []string{"1", "2", "3"}) {
			t.Errorf("%s: a sample has the seeds %v", iteration, got)
		}
		if got := seeds(t, iteration, "-sample=2"); len(got) != 2 {
			t.Errorf("%s: -sample 2 has the seeds %v", iteration, got)
		}
		if got := seeds(t, iteration, "-seed=42"); !slices.Equal(got, []string{"42"}) {
			t.Errorf("%s: -seed 42 repeats the seeds %v", iteration, got)
		}
	}
	if got := seeds(t, "pass", "-seed=42", "-duration=100ms"); len(got) < 2 || got[0] != "42" || got[1] != "43" {
		t.Errorf("a part of seed 42 has the seeds %v", got)
	}
	if got := seeds(t, "pass", "-duration=1ns"); len(got) != 1 {
		t.Errorf("a part of the shortest duration has the seeds %v", got)
	}
}

func TestFailureNamesSeed(t *testing.T) {
	for _, iteration := range []string{"error", "fatal"} {
		out, err := longTestCommand(t, iteration, "-seed=9").CombinedOutput()
		if err == nil || !strings.Contains(string(out), "failed: seed 9") {
			t.Errorf("%s: %v\n%s", iteration, err, out)
		}
	}
}

func TestUselessFlagsAreRejected(t *testing.T) {
	for want, args := range map[string][]string{
		"-append needs -duration": {"-append=" + newDocument(t)},
		"add -timeout 0":          {"-duration=1h", "-test.timeout=10m"},
		"no such file":            {"-duration=1s", "-append=/nonexistent"},
	} {
		if out, err := longTestCommand(t, "pass", args...).CombinedOutput(); err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%v: %v, want %q:\n%s", args, err, want, out)
		}
	}
}
