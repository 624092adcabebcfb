package systemtest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/golden"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// NewScriptParams returns the parameters with which testscript runs the scripts of a directory, with the commands and
// the environment that all scripts of the tests have.
func NewScriptParams(scriptDir string) testscript.Params {
	return testscript.Params{
		Dir:                 scriptDir,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       golden.Updating(),
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"await":     awaitFileWithMatch,
			"slay":      killMatchingProcesses,
			"raise":     signalMatchingProcesses,
			"statefile": createOrEditStateFile,
			"alone":     waitScriptProcessesGone,
			"settled":   awaitUnmounted,
			"normal":    writeNormalizedOutput,
			"terminal":  startProgramOnTerminal,
			"type":      typeIntoTerminal,
			"resize":    resizeTerminal,
			"hangup":    assertTerminalExitCode,
			"soon":      retryProgramUntilOutputMatches,
			"replay":    checkTransitionsFile,
			"printed":   assertOutputHasLines,
		},
		Condition: evalScriptCondition,
		Setup: func(env *testscript.Env) error {
			// A failed script does not stop its agent and its tasks, so they are killed here.
			work := env.Getenv("WORK")
			scriptDirs.Store(work, nil)
			env.Defer(func() {
				for pid := range ScriptCommandLineByPID(work) {
					_ = syscall.Kill(pid, syscall.SIGKILL) // an error means that the process has exited
				}
				killKeepersAndLogCollectors(work)
				unmountAllocRootDirs(work)
			})
			// The go command in a script uses this checkout and the caches of the machine.
			for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOPROXY", "GONOSUMDB", "GOTOOLCHAIN"} {
				env.Setenv(name, goEnvVar(name))
			}
			// The linker needs half of its time for debug information, which no script reads.
			flags := append(strings.Fields(goEnvVar("GOFLAGS")), "-ldflags=-w")
			// Plugin authors build without the race detector. Without C, the programs of scripts and the tests
			// of the virtual machines share compiled packages in the build cache.
			if race := slices.Index(flags, "-race"); race >= 0 {
				flags = slices.Delete(flags, race, race+1)
				env.Setenv("CGO_ENABLED", "0")
			}
			env.Setenv("GOFLAGS", strings.Join(flags, " "))
			env.Setenv("REPOSITORY", RepositoryDir())
			env.Setenv(WorkDirEnvVar, work)
			env.Setenv("XDG_CACHE_HOME", filepath.Join(work, ".cache"))
			env.Setenv(TestConfigEnvVar, testConfigPath())
			env.Values[ptyTerminal{}] = new(ptyTerminal)
			env.Setenv("GORACE", os.Getenv("GORACE"))
			// The programs of a script are short. Their garbage collections cost more than the memory that they save.
			env.Setenv("GOGC", cmp.Or(os.Getenv("GOGC"), "400"))
			return nil
		},
	}
}

// awaitFileWithMatch is the script command "await FILE [REGEXP]". It waits until a file exists and one of its lines
// matches. A script uses it before it signals a background process, to wait for the output that the process writes when
// it is ready.
func awaitFileWithMatch(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 || len(args) > 2 {
		ts.Fatalf("usage: await file [regexp]")
	}
	pattern := regexp.MustCompile("")
	if len(args) == 2 {
		pattern = regexp.MustCompile("(?m)" + args[1])
	}
	for deadline := time.Now().Add(WaitTimeout); ; time.Sleep(5 * time.Millisecond) {
		text, err := os.ReadFile(ts.MkAbs(args[0]))
		if err == nil && pattern.Match(text) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("await: no %s in %s within %v:\n%s", pattern, args[0], WaitTimeout, text)
		}
	}
}

// assertOutputHasLines is the script command "printed FILE". It asserts that the standard output of the last program has the
// lines of the file, in their order, perhaps with other lines between them. "…" in a line stands for any text, and the number
// of spaces is not compared.
func assertOutputHasLines(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: printed file")
	}
	output := strings.Split(ts.ReadFile("stdout"), "\n")
	for want := range strings.Lines(strings.TrimSpace(ts.ReadFile(args[0]))) {
		parts := strings.Split(strings.Join(strings.Fields(want), " "), "…")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		pattern := regexp.MustCompile("^" + strings.Join(parts, ".*") + "$")
		i := slices.IndexFunc(output, func(line string) bool { return pattern.MatchString(strings.Join(strings.Fields(line), " ")) })
		if i < 0 {
			ts.Fatalf("printed: the output has no line %q after the lines before it", strings.TrimSpace(want))
		}
		output = output[i+1:]
	}
}

// HasProgram reports whether a program is installed. In CI it returns true without a check, so that a missing program fails the test
// that starts it.
func HasProgram(name string) bool {
	_, err := exec.LookPath(name)
	return err == nil || os.Getenv("NOMAD_LITE_CI") != ""
}

// evalScriptCondition evaluates a condition of a script, such as root, that testscript does not have.
func evalScriptCondition(name string) (bool, error) {
	switch name {
	case "python-grpc":
		// In CI the condition is true without a check, so that a missing Python module is a
		// failure.
		return os.Getenv("NOMAD_LITE_CI") != "" || exec.Command("/usr/bin/python3", "-c", "import grpc").Run() == nil, nil
	case "jdk": // as for python-grpc
		return HasProgram("javac"), nil
	case "qemu": // as for python-grpc
		return HasProgram("qemu-system-x86_64"), nil
	case "nginx": // as for python-grpc
		_, err := os.Stat("/usr/sbin/nginx")
		return err == nil || os.Getenv("NOMAD_LITE_CI") != "", nil
	case "postgresql": // as for python-grpc; the condition is about the server and its module for Python
		servers, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
		client := exec.Command("/usr/bin/python3", "-c", "import psycopg2").Run()
		return len(servers) > 0 && client == nil || os.Getenv("NOMAD_LITE_CI") != "", nil
	case "root":
		return os.Geteuid() == 0, nil
	case "slow":
		return slowtest.Enabled(), nil
	case "long":
		return slowtest.LongEnabled(), nil
	case "cgroup2":
		_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
		return err == nil, nil
	case "multicore":
		return runtime.NumCPU() > 1, nil
	case "protects":
		// To lower oom_score_adj, root needs CAP_SYS_RESOURCE, which containers do not have.
		return exec.Command("/bin/sh", "-c", "echo -1 >/proc/self/oom_score_adj").Run() == nil, nil
	}
	return false, fmt.Errorf("unknown condition %q", name)
}

// retryProgramUntilOutputMatches is the script command "soon REGEXP PROGRAM [ARGUMENT...]". It runs a program
// repeatedly until the program succeeds and its output matches.
func retryProgramUntilOutputMatches(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: soon regexp program [argument...]")
	}
	pattern := regexp.MustCompile("(?m)" + args[0])
	for began := time.Now(); ; sleepBetweenChecks(began, 50*time.Millisecond) {
		err := ts.Exec(args[1], args[2:]...)
		if err == nil && pattern.MatchString(ts.ReadFile("stdout")) {
			return
		}
		if time.Since(began) > WaitTimeout {
			ts.Fatalf("soon: no %s within %v: %v", pattern, WaitTimeout, err)
		}
	}
}

// writeNormalizedOutput is the script command "normal". It writes the output of the last program to the file "normal",
// with constants in place of IDs, times, addresses and host names. It also replaces several spaces by one, because the
// replaced values have different widths.
func writeNormalizedOutput(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 0 {
		ts.Fatalf("usage: normal")
	}
	host, err := os.Hostname()
	ts.Check(err)
	text := ts.ReadFile("stdout")
	for _, change := range [][2]string{
		{`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`, "UUID"},
		{`\b[0-9a-f]{64}\b`, "HASH"},
		{`\b[0-9a-f]{8}\b`, "ID"},
		{`\b\d{4}-\d\d-\d\dT[0-9:.]+(Z|[+-]\d\d:\d\d)`, "TIME"},
		{`\b(\d+(mo|[ydhms])){1,2} ago\b`, "AGO"},
		{`\b(\d+(mo|[ydhms])){1,2} from now\b`, "FROM NOW"},
		{`\b(dispatch|periodic)-\d{10}\b`, "$1-UNIX"},
		{`"(\w*Time|Timestamp|\w*Index|Port)": \d+`, `"$1": 0`},
		{`\b\d+\.\d+\.\d+\.\d+\b`, "IP"},
		{`IP:\d+`, "IP:PORT"},
		{`\b` + regexp.QuoteMeta(host) + `\b`, "HOST"},
		{`[\d.]+/[\d.]+ MHz`, "N/N MHz"},
		{`[\d.]+ ([KMGT]i)?B/`, "N B/"},
		{`N B/[\d.]+ [KMGT]iB`, "N B/N B"},
		{`\(\d+ cores\)`, "(N cores)"},
		{`(Uptime +=).*`, "$1 SPAN"},
		{`(Job Modify Index: |-check-index )[1-9]\d*`, "${1}INDEX"},
		{` +(\n|$)`, "$1"},
		{`  +`, " "},
		{`(?m)^ ?TIME Driver memory limit not enforced here: .*\n`, ""}, // an agent that is not root
		{`(?m) running Driver AGO`, " running Started AGO"},             // the event of such a limit can be the last one
	} {
		text = regexp.MustCompile(change[0]).ReplaceAllString(text, change[1])
	}
	ts.Check(os.WriteFile(ts.MkAbs("normal"), []byte(text), 0o644))
}

// signalMatchingProcesses is the script command "raise SIGNAL REGEXP". It sends a signal to the processes of this
// script whose command line matches. There must be at least one.
func signalMatchingProcesses(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 || unix.SignalNum(args[0]) == 0 {
		ts.Fatalf("usage: raise signal regexp")
	}
	pattern := regexp.MustCompile(args[1])
	found := 0
	for pid, command := range ScriptCommandLineByPID(ts.Getenv("WORK")) {
		if pattern.MatchString(command) {
			ts.Check(syscall.Kill(pid, unix.SignalNum(args[0])))
			ts.Logf("%s to %d: %s", args[0], pid, command)
			found++
		}
	}
	if found == 0 {
		ts.Fatalf("raise: no process of this script matches %s", pattern)
	}
}

// killMatchingProcesses is the script command "slay REGEXP". It sends SIGKILL to the processes of this script whose
// command line matches. There must be at least one.
func killMatchingProcesses(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: slay regexp")
	}
	pattern := regexp.MustCompile(args[0])
	killed := 0
	for pid, command := range ScriptCommandLineByPID(ts.Getenv("WORK")) {
		if pattern.MatchString(command) {
			// A process may have exited, because its keeper kills it when another process of the pattern is dead.
			if err := syscall.Kill(pid, syscall.SIGKILL); !errors.Is(err, syscall.ESRCH) {
				ts.Check(err)
			}
			ts.Logf("killed %d: %s", pid, command)
			killed++
		}
	}
	if killed == 0 {
		ts.Fatalf("slay: no process of this script matches %s", pattern)
	}
}

// waitScriptProcessesGone is the script command "alone". It waits until no process of this script runs, and fails if
// temporary directories of runs are left. "alone processes" does not check directories. "! alone" asserts that a
// process runs.
func waitScriptProcessesGone(ts *testscript.TestScript, neg bool, args []string) {
	work := ts.Getenv("WORK")
	if neg {
		if len(ScriptCommandLineByPID(work)) == 0 {
			ts.Fatalf("no process of this script runs")
		}
		return
	}
	for began := time.Now(); ; sleepBetweenChecks(began, 5*time.Millisecond) {
		left := ScriptCommandLineByPID(work)
		if len(left) == 0 {
			break
		}
		if time.Since(began) > WaitTimeout {
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

// awaitUnmounted is the script command "settled [DIR]". It waits until nothing is mounted below a directory of this
// script, or below its working directory. It ignores the directory of allocations, which an agent of root mounts on
// itself. Then the cleanup of ended allocations is complete; an agent that exits before leaves the cleanup to the next
// agent.
func awaitUnmounted(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 1 {
		ts.Fatalf("usage: settled [dir]")
	}
	below := filepath.Join(append([]string{ts.Getenv("WORK")}, args...)...) + "/"
	for deadline := time.Now().Add(WaitTimeout); ; time.Sleep(5 * time.Millisecond) {
		points := mountPointsBelow(below)
		if !slices.ContainsFunc(points, func(point string) bool { return !isAllocRootDir(point) }) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("settled: not within %v: %q", WaitTimeout, points)
		}
	}
}

// unmountAllocRootDirs does what a next agent would do: an agent that ends while one of its processes is still exiting
// leaves its directory of allocations mounted.
func unmountAllocRootDirs(workDir string) {
	for _, point := range mountPointsBelow(workDir + "/") {
		if isAllocRootDir(point) {
			_ = unix.Unmount(point, unix.MNT_DETACH) // RunTestsOrProgram reports what stays mounted
		}
	}
}

// mountPointsBelow returns the mount points whose paths begin with a prefix.
func mountPointsBelow(prefix string) []string {
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	var points []string
	for line := range strings.Lines(string(mounts)) {
		const mountPoint = 4 // index of the field
		if point := strings.Fields(line)[mountPoint]; strings.HasPrefix(point, prefix) {
			points = append(points, point)
		}
	}
	return points
}

// isAllocRootDir reports whether a mount point is the directory of all allocations in a data directory.
func isAllocRootDir(mountPoint string) bool {
	_, err := os.Lstat(filepath.Join(filepath.Dir(mountPoint), "lock"))
	return err == nil && filepath.Base(mountPoint) == "alloc"
}

// WorkDirEnvVar is the environment variable by which the processes of a test are found. Its value is the test's working
// directory. Plugins inherit it.
const WorkDirEnvVar = "NOMAD_LITE_PLUGIN_WORK"

// ScriptCommandLineByPID returns the processes that have this working directory in WorkDirEnvVar, and all their
// descendants, as a map from the PID to the command line.
func ScriptCommandLineByPID(workDir string) map[int]string {
	found := map[int]string{}
	parents := map[int]int{}
	commands := map[int]string{}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		command, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		stat, _ := os.ReadFile(filepath.Join(dir, "stat"))
		environ, _ := os.ReadFile(filepath.Join(dir, "environ"))
		if len(command) == 0 || len(stat) == 0 {
			continue // the process has exited, or is a zombie
		}
		// In /proc/PID/stat, the name in parentheses can contain any character.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		parents[pid], _ = strconv.Atoi(fields[1])
		commands[pid] = strings.ReplaceAll(strings.TrimRight(string(command), "\x00"), "\x00", " ")
		if bytes.Contains(environ, []byte(WorkDirEnvVar+"="+workDir+"\x00")) {
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

// killKeepersAndLogCollectors kills the keepers and the log collectors of all data directories below workDir. They
// outlive a killed agent for ten minutes, and their environment has the data directory, but nothing of the script.
func killKeepersAndLogCollectors(workDir string) {
	names, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, name := range names {
		environ, _ := os.ReadFile(name)
		if bytes.Contains(environ, []byte(`_SETUP={"Dir":"`+workDir+"/")) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			_ = syscall.Kill(pid, syscall.SIGKILL) // an error means that the process has exited
		}
	}
}

var goEnvVars = sync.OnceValue(func() map[string]string {
	values := map[string]string{}
	out, err := exec.Command("go", "env").Output()
	if err != nil {
		return values
	}
	for _, line := range strings.Split(string(out), "\n") {
		if name, value, ok := strings.Cut(line, "="); ok {
			values[name] = strings.Trim(value, "'")
		}
	}
	return values
})

func goEnvVar(name string) string { return goEnvVars()[name] }
