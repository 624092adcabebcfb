package systemtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
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
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/root"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest/racereport"
	"github.com/nomad-lite/nomad-lite/plugins/driver/drivertest"
)

func TestMain(m *testing.M) {
	if guest := os.Getenv(vmEnvVar); os.Getpid() == 1 && guest != "" {
		runVMInit(guest)
	}
	testscript.Main(leakCheckedTests{m}, map[string]func(){
		"nomad-lite":         runWithTestConfig,
		"old-driver":         serveOldDriver,
		"hostile-driver":     serveHostileDriver,
		"hostile-sdk-driver": serveHostileSDKDriver,
		"dying-hook":         serveCrashingHook,
		"exec-driver":        serveExternalExecDriver,
		"shell-driver":       serveShellDriver,
		"chroot-driver":      serveChrootDriver,
		"hanging-hook":       serveHangingHook,
		"hostile-hook":       serveHostileHook,
		"quiet-hook":         serveNoopHook,
		"asking-hook":        serveHostAPIHook,
		"acting-hook":        serveActionHook,
		"strange-hook":       serveMisbehavingHook,
		"doomed-agent":       runSelfKillingAgent,
		"mortal-agent":       serveKillableAgent,
		"faulty-agent":       runFailpointAgent,
		"without-cgroups":    execWithoutCgroups,
		"ask":                sendAPIRequest,
		"say-hello":          serveHelloHTTP,
		"mint":               createCertificates,
		"half-sender":        keepPartialRequestsOpen,
		"isolating-driver":   serveIsolatingDriver,
		"test-device":        serveTestDevice,
		"pod-driver":         servePodDriver,
		"wire-driver":        drivertest.Main,
		"containers":         listContainers,
		"net-peer":           runNetPeer,
	})
}

// testConfigEnvVar names the configuration file that all agents of the tests read first.
const testConfigEnvVar = "NOMAD_LITE_TEST_ROOMY"

const (
	testConfigFile     = "testdata/roomy.hcl"
	freePortConfigFile = "free_port.hcl" // in the directory of testConfigFile
)

// runWithTestConfig runs nomad-lite. Its agents ignore the disk usage of this machine, because they
// could otherwise remove ended allocations before a test has checked them. They listen on a free
// port if a test chooses none, because tests run in parallel.
func runWithTestConfig() {
	config := os.Getenv(testConfigEnvVar)
	if config != "" && len(os.Args) > 1 && os.Args[1] == "agent" && !slices.Contains(os.Args, "-print-unit") {
		options := []string{"-config", config}
		if !slices.Contains(os.Args, "-dev") { // with -dev, an agent of root has no port
			options = append(options, "-config", filepath.Join(filepath.Dir(config), freePortConfigFile))
		}
		os.Args = slices.Insert(os.Args, 2, options...)
	}
	runNomadLite()
}

// runNomadLite is the program under test.
func runNomadLite() {
	os.Exit(root.Execute(os.Args[1:], &cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}

// leakCheckedTests runs the tests of the package, and fails if they leave files or processes on the
// machine, or if the race detector reports a race in one of their processes.
type leakCheckedTests struct{ tests testscript.TestingM }

func (g leakCheckedTests) Run() int {
	before := leftoverPaths()
	reports := racereport.Collect()
	code := g.tests.Run()
	code = max(code, reports.Print(os.Stderr))
	printBenchResults(os.Stdout)
	_ = os.RemoveAll(benchBinaryDir)
	left := slices.DeleteFunc(leftoverPaths(), func(trace string) bool { return slices.Contains(before, trace) })
	// Files of other processes, such as the tests of other packages, are removed after some time.
	for deadline := time.Now().Add(waitTimeout); ; time.Sleep(50 * time.Millisecond) {
		now := leftoverPaths()
		left = slices.DeleteFunc(left, func(trace string) bool { return !slices.Contains(now, trace) || isLeftoverInUse(trace) })
		if len(left) == 0 || code != 0 || time.Now().After(deadline) {
			break
		}
	}
	for _, trace := range left {
		fmt.Fprintln(os.Stderr, "left behind:", trace)
		code = max(code, 1)
	}
	return code
}

// isLeftoverInUse reports whether a leftover belongs to a running nomad-lite, such as a user's job
// in another terminal. Running processes are found by the script command "alone".
func isLeftoverInUse(trace string) bool {
	if procs, _ := os.ReadFile(filepath.Join(trace, "cgroup.procs")); len(procs) > 0 {
		return true
	}
	conn, err := net.Dial("unix", filepath.Join(trace, "keeper.sock"))
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// leftoverPaths returns the files, cgroups and mounts of nodes that are outside of a data
// directory.
func leftoverPaths() []string {
	var all []string
	for _, pattern := range []string{"/run/nomad-lite/*", "/tmp/nomad-lite-*-run/*", "/sys/fs/cgroup/*/nomad/*-*-*-*-*.*", "/sys/fs/cgroup/nomad.slice/*/*.scope"} {
		found, _ := filepath.Glob(pattern)
		all = append(all, found...)
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, "/go-test-script") {
			all = append(all, line)
		}
	}
	return all
}

// sendAPIRequest is the program "ask METHOD PATH [BODY]" of the scripts. It sends a request to the
// agent of NOMAD_ADDR, and prints the answer.
func sendAPIRequest() {
	client, err := api.NewClient(api.DefaultConfig())
	if err == nil && len(os.Args) < 3 {
		err = errors.New("usage: ask method path [body]")
	}
	var response json.RawMessage
	switch {
	case err != nil:
	case os.Args[1] == "GET":
		_, err = client.Raw().Query(os.Args[2], &response, nil)
	default:
		_, err = client.Raw().Write(os.Args[2], json.RawMessage(os.Args[3]), &response, nil)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(string(response))
}

// serveHelloHTTP is the program "say-hello PORT" of the scripts, a web server.
func serveHelloHTTP() {
	fmt.Fprintln(os.Stderr, http.ListenAndServe(":"+os.Args[1], http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "hello")
	})))
	os.Exit(1)
}

func TestScripts(t *testing.T) {
	testscript.Run(t, scriptParams(t, "testdata/script"))
}

func scriptParams(t *testing.T, dir string) testscript.Params {
	repository, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	return testscript.Params{
		Dir:                 dir,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       os.Getenv("UPDATE_SCRIPTS") != "",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"await":     awaitFile,
			"slay":      killProcesses,
			"raise":     signalProcesses,
			"statefile": editStateFile,
			"alone":     assertProcessesGone,
			"settled":   awaitUnmounted,
			"normal":    normalizeOutput,
			"terminal":  startTerminal,
			"type":      typeText,
			"resize":    resizeTerminal,
			"hangup":    waitTerminalExit,
			"soon":      retryProgram,
		},
		Condition: scriptCondition,
		Setup: func(env *testscript.Env) error {
			// A failed script does not stop its agent and its tasks.
			work := env.Getenv("WORK")
			env.Defer(func() {
				for pid := range scriptProcesses(work) {
					_ = syscall.Kill(pid, syscall.SIGKILL) // an error means that the process has exited
				}
			})
			// The go command in a script uses this checkout and the caches of the machine.
			for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOFLAGS", "GOPROXY", "GONOSUMDB", "GOTOOLCHAIN"} {
				env.Setenv(name, goEnvVar(name))
			}
			env.Setenv("REPOSITORY", repository)
			env.Setenv(workDirEnvVar, work)
			env.Setenv("XDG_CACHE_HOME", filepath.Join(work, ".cache"))
			env.Setenv(testConfigEnvVar, filepath.Join(repository, "cmd/nomad-lite/systemtest", testConfigFile))
			env.Values[ptyTerminal{}] = new(ptyTerminal)
			env.Setenv("GORACE", os.Getenv("GORACE"))
			return nil
		},
	}
}

// awaitFile is the command "await FILE [REGEXP]" of the scripts. It waits until a file exists, or
// until a line of it matches. A script that signals a process in the background first waits for the
// output that the process writes when it is ready.
func awaitFile(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 || len(args) > 2 {
		ts.Fatalf("usage: await file [regexp]")
	}
	pattern := regexp.MustCompile("")
	if len(args) == 2 {
		pattern = regexp.MustCompile("(?m)" + args[1])
	}
	for deadline := time.Now().Add(waitTimeout); ; time.Sleep(5 * time.Millisecond) {
		text, err := os.ReadFile(ts.MkAbs(args[0]))
		if err == nil && pattern.Match(text) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("await: no %s in %s within %v:\n%s", pattern, args[0], waitTimeout, text)
		}
	}
}

// scriptCondition evaluates the conditions in brackets that testscript does not have.
func scriptCondition(name string) (bool, error) {
	switch name {
	case "python-grpc":
		// In CI the condition is true without a check, so that a missing Python module is a
		// failure.
		return os.Getenv("NOMAD_LITE_CI") != "" || exec.Command("/usr/bin/python3", "-c", "import grpc").Run() == nil, nil
	case "jdk": // as for python-grpc
		_, err := exec.LookPath("javac")
		return err == nil || os.Getenv("NOMAD_LITE_CI") != "", nil
	case "qemu": // as for python-grpc
		_, err := exec.LookPath("qemu-system-x86_64")
		return err == nil || os.Getenv("NOMAD_LITE_CI") != "", nil
	case "root":
		return os.Geteuid() == 0, nil
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

// retryProgram is the command "soon REGEXP PROGRAM [ARGUMENT...]" of the scripts. It runs a program
// again and again until its output matches.
func retryProgram(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: soon regexp program [argument...]")
	}
	pattern := regexp.MustCompile("(?m)" + args[0])
	for deadline := time.Now().Add(waitTimeout); ; time.Sleep(50 * time.Millisecond) {
		err := ts.Exec(args[1], args[2:]...)
		if err == nil && pattern.MatchString(ts.ReadFile("stdout")) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("soon: no %s within %v: %v", pattern, waitTimeout, err)
		}
	}
}

// normalizeOutput is the command "normal" of the scripts. It writes the output of the last program
// to the file "normal". In it, ids, times, addresses and host names are replaced by constants, and
// several spaces by one, because the replaced values have different widths.
func normalizeOutput(ts *testscript.TestScript, neg bool, args []string) {
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
	} {
		text = regexp.MustCompile(change[0]).ReplaceAllString(text, change[1])
	}
	ts.Check(os.WriteFile(ts.MkAbs("normal"), []byte(text), 0o644))
}

// signalProcesses is the command "raise SIGNAL REGEXP" of the scripts. It sends a signal to the
// processes of this script whose command line matches; there must be one.
func signalProcesses(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 || unix.SignalNum(args[0]) == 0 {
		ts.Fatalf("usage: raise signal regexp")
	}
	pattern := regexp.MustCompile(args[1])
	found := 0
	for pid, command := range scriptProcesses(ts.Getenv("WORK")) {
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

// killProcesses is the command "slay REGEXP" of the scripts. It kills, with SIGKILL, the processes
// of this script whose command line matches; there must be one.
func killProcesses(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: slay regexp")
	}
	pattern := regexp.MustCompile(args[0])
	killed := 0
	for pid, command := range scriptProcesses(ts.Getenv("WORK")) {
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

// assertProcessesGone is the command "alone" of the scripts. It asserts that no process of this
// script runs any longer, and that none of its directories is left; "alone processes" leaves out
// the latter. "! alone" asserts that a process runs.
func assertProcessesGone(ts *testscript.TestScript, neg bool, args []string) {
	work := ts.Getenv("WORK")
	if neg {
		if len(scriptProcesses(work)) == 0 {
			ts.Fatalf("no process of this script runs")
		}
		return
	}
	for deadline := time.Now().Add(waitTimeout); ; time.Sleep(5 * time.Millisecond) {
		left := scriptProcesses(work)
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

// awaitUnmounted is the command "settled [DIR]" of the scripts. It waits until nothing is mounted
// below a directory of this script, or below all of them. Then the cleanup of ended allocations
// is complete: an agent that exits earlier leaves the cleanup to the next agent.
func awaitUnmounted(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 1 {
		ts.Fatalf("usage: settled [dir]")
	}
	below := filepath.Join(append([]string{ts.Getenv("WORK")}, args...)...) + "/"
	for deadline := time.Now().Add(waitTimeout); ; time.Sleep(5 * time.Millisecond) {
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		ts.Check(err)
		if !bytes.Contains(mounts, []byte(below)) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("settled: not within %v:\n%s", waitTimeout, mounts)
		}
	}
}

// workDirEnvVar is the environment variable by which the processes of a test are found. Plugins
// inherit it.
const workDirEnvVar = "NOMAD_LITE_PLUGIN_WORK"

// scriptProcesses returns the processes that have the script's directory in their environment, and
// the children of these processes.
func scriptProcesses(work string) map[int]string {
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
		if bytes.Contains(environ, []byte(workDirEnvVar+"="+work+"\x00")) {
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

// TestDocs runs the commands of the documents, in their order. A shell that stops at the first
// error executes each block that is marked sh. A block that is marked with a language and a name is
// a file.
func TestDocs(t *testing.T) {
	documents, err := filepath.Glob("../../../docs/*.md")
	if err != nil || len(documents) == 0 {
		t.Fatalf("no documents: %v", err)
	}
	scripts := t.TempDir()
	for _, document := range documents {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(document), ".md") + ".txtar"
		if err := os.WriteFile(filepath.Join(scripts, name), convertDocumentToScript(string(text)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	testscript.Run(t, scriptParams(t, scripts))
}

// TestQuickStart runs the commands with which the documents for authors of plugins start, each on its own and
// literally, in an empty directory. With -v it prints the time of each command.
func TestQuickStart(t *testing.T) {
	scripts := t.TempDir()
	for _, name := range []string{"drivers", "hooks"} {
		document, err := os.ReadFile(filepath.Join("../../../docs", name+".md"))
		if err != nil {
			t.Fatal(err)
		}
		script, err := convertQuickStartToScript(string(document))
		if err != nil {
			t.Fatalf("docs/%s.md: %v", name, err)
		}
		if err := os.WriteFile(filepath.Join(scripts, name+".txtar"), script, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	testscript.Run(t, scriptParams(t, scripts))
}

// convertQuickStartToScript turns the commands of the section Start of a document into a testscript. Each command is
// a section of the script, whose time is printed. The test of the plugin and the job must be successful.
func convertQuickStartToScript(document string) ([]byte, error) {
	_, section, _ := strings.Cut(document, "\n## Start\n")
	_, block, _ := strings.Cut(section, "\n```sh\n")
	block, _, found := strings.Cut(block, "\n```")
	if !found {
		return nil, errors.New("the section Start has no commands")
	}
	var script strings.Builder
	checked := map[string]bool{}
	for command := range strings.Lines(block + "\n") {
		command = strings.TrimSpace(command)
		if dir, isChange := strings.CutPrefix(command, "cd "); isChange {
			fmt.Fprintf(&script, "cd %s\n", dir)
			continue
		}
		fmt.Fprintf(&script, "# %[1]s\nexec %[1]s\n", command)
		for prefix, check := range map[string]string{
			"nomad-lite plugin test ": "stdout ' 0 failed, '\n! stdout '^(FAIL|QUIRK)'\n",
			"nomad-lite run ":         "stdout 'hello'\nstderr 'completed: every task ended successfully'\n",
		} {
			if strings.HasPrefix(command, prefix) {
				script.WriteString(check)
				checked[prefix] = true
			}
		}
	}
	if len(checked) != 2 {
		return nil, fmt.Errorf("the section Start does not test the plugin and run a job:\n%s", block)
	}
	script.WriteString("alone\n")
	return []byte(script.String()), nil
}

// convertDocumentToScript turns a Markdown document into a testscript.
func convertDocumentToScript(document string) []byte {
	var script, fileSections strings.Builder
	for _, program := range []string{"curl", "openssl"} {
		if strings.Contains(document, program+" ") {
			fmt.Fprintf(&script, "[!exec:%[1]s] skip 'there is no %[1]s'\n", program)
		}
	}
	for i, block := range strings.Split("\n"+document, "\n```") {
		mark, text, _ := strings.Cut(block, "\n")
		language, name, _ := strings.Cut(mark, " ")
		switch {
		case i%2 == 0:
			continue // this part of the text is between two code blocks
		case name != "":
			fmt.Fprintf(&fileSections, "-- %s --\n%s\n", name, text)
		case language == "sh":
			fmt.Fprintf(&script, "exec sh -ex step%d.sh\n", i)
			fmt.Fprintf(&fileSections, "-- step%d.sh --\n%s\n", i, text)
		}
	}
	script.WriteString("alone\n")
	return []byte(script.String() + fileSections.String())
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
