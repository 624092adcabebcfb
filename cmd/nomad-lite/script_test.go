package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(leakGate{m}, map[string]func(){"nomad-lite": main})
}

// leakGate fails the package when a script has left something on the machine.
type leakGate struct{ tests testscript.TestingM }

func (g leakGate) Run() int {
	before := traces()
	code := g.tests.Run()
	for _, trace := range traces() {
		if !slices.Contains(before, trace) {
			fmt.Fprintln(os.Stderr, "left behind:", trace)
			code = max(code, 1)
		}
	}
	return code
}

// traces are the places where a node leaves something outside of its data
// directory.
func traces() []string {
	var all []string
	for _, pattern := range []string{"/run/nomad-lite/*", "/tmp/nomad-lite-*-run/*", "/sys/fs/cgroup/*/nomad/*-*-*-*-*.*", "/sys/fs/cgroup/nomad.slice/*/*.scope"} {
		found, _ := filepath.Glob(pattern)
		all = append(all, found...)
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, "nomad-lite") {
			all = append(all, line)
		}
	}
	return all
}

func TestScripts(t *testing.T) {
	repository, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       os.Getenv("UPDATE_SCRIPTS") != "",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"await": await,
			"slay":  slay,
			"alone": alone,
		},
		Setup: func(env *testscript.Env) error {
			// What a script builds with Go comes from this checkout and the caches of the machine.
			for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOFLAGS", "GOPROXY", "GONOSUMDB", "GOTOOLCHAIN"} {
				env.Setenv(name, goEnv(name))
			}
			env.Setenv("REPOSITORY", repository)
			return nil
		},
	})
}

// await FILE [REGEXP] waits until a file exists, or until a line of it matches:
// a script that signals a process in the background waits for what the process
// writes when it is ready.
func await(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 || len(args) > 2 {
		ts.Fatalf("usage: await file [regexp]")
	}
	pattern := regexp.MustCompile("")
	if len(args) == 2 {
		pattern = regexp.MustCompile("(?m)" + args[1])
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		text, err := os.ReadFile(ts.MkAbs(args[0]))
		if err == nil && pattern.Match(text) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("await: no %s in %s within 30 s:\n%s", pattern, args[0], text)
		}
	}
}

// slay REGEXP kills, with SIGKILL, the processes of this script whose command
// line matches; there must be one.
func slay(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: slay regexp")
	}
	pattern := regexp.MustCompile(args[0])
	killed := 0
	for pid, command := range processes(ts.Getenv("WORK")) {
		if pattern.MatchString(command) {
			ts.Check(syscall.Kill(pid, syscall.SIGKILL))
			ts.Logf("killed %d: %s", pid, command)
			killed++
		}
	}
	if killed == 0 {
		ts.Fatalf("slay: no process of this script matches %s", pattern)
	}
}

// alone proves that no process of this script runs any more, and that none of
// its directories is left; "alone processes" leaves out the latter. "! alone"
// proves that some process runs.
func alone(ts *testscript.TestScript, neg bool, args []string) {
	work := ts.Getenv("WORK")
	if neg {
		if len(processes(work)) == 0 {
			ts.Fatalf("no process of this script runs")
		}
		return
	}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		left := processes(work)
		if len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			ts.Fatalf("processes are left: %v", left)
		}
	}
	if len(args) > 0 {
		return
	}
	if dirs, _ := filepath.Glob(filepath.Join(ts.Getenv("TMPDIR"), "nomad-lite-*", "run-*")); len(dirs) > 0 {
		ts.Fatalf("directories are left: %v", dirs)
	}
}

// processes are those that have the script's directory in their environment,
// and their children.
func processes(work string) map[int]string {
	found := map[int]string{}
	parents := map[int]int{}
	commands := map[int]string{}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		command, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		stat, _ := os.ReadFile(filepath.Join(dir, "stat"))
		environ, _ := os.ReadFile(filepath.Join(dir, "environ"))
		if len(command) == 0 {
			continue // gone, or a zombie
		}
		// The name in parentheses may hold anything.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		parents[pid], _ = strconv.Atoi(fields[1])
		commands[pid] = strings.ReplaceAll(strings.TrimRight(string(command), "\x00"), "\x00", " ")
		if bytes.Contains(environ, []byte("WORK="+work+"\x00")) {
			found[pid] = commands[pid]
		}
	}
	for grown := true; grown; {
		grown = false
		for pid, parent := range parents {
			if found[parent] != "" && found[pid] == "" {
				found[pid], grown = commands[pid], true
			}
		}
	}
	return found
}
