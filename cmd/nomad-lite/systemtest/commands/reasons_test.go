package commands

import (
	"cmp"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/root"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
)

// misconfiguration is a job that does not run as its user wants, with the reason that each command shows.
// In its texts, DIR is a directory with the files of [writeReasonFiles], URL is the address of an HTTP
// server, and PORT is the server's port.
type misconfiguration struct {
	command  string // command of the task: a path, or a command of the shell
	config   string // config block of the task, if command is empty
	task     string // further blocks of the task
	group    string // further blocks of the group
	job      string // further blocks of the job
	batch    bool   // the job is a batch job, which has no deployment
	root     bool   // the mistake needs the rights of root
	want     string // regular expression
	inEvents string // regular expression for `event stream`, if it differs; "-" if the events do not contain the reason
	inRun    string // regular expression for `run`, if it differs; "-" if it does not print the reason
}

const (
	noRestart    = "restart {\n attempts = 0\n mode = \"fail\"\n}\n"
	noReschedule = "reschedule {\n attempts = 0\n unlimited = false\n}\n"
)

var misconfigurations = map[string]misconfiguration{
	// The command cannot be started.
	"no-command":     {command: "/no/such/command", want: `cannot start: command /no/such/command: stat .*: no such file or directory, not restarted\. Install /no/such/command, or correct "command"`},
	"not-in-path":    {config: "command = \"nosuchcommand\"\n", want: `cannot start: command "nosuchcommand": neither in the task's PATH nor in its directory, not restarted\. Install the command, or write its whole path`},
	"not-executable": {command: "/etc/passwd", want: `cannot start: command /etc/passwd: permission denied, not restarted\. Make it executable: chmod \+x /etc/passwd`},
	"directory":      {command: "/etc", want: `cannot start: command /etc: .*directory`},
	"no-interpreter": {command: "DIR/nointerpreter", want: `cannot start: .*/nointerpreter: the interpreter or loader that it names does not exist, not restarted`},
	"exec-format":    {command: "DIR/noformat", want: `cannot start: .*/noformat: not a program for this machine, and no #! line names an interpreter, not restarted`},
	"no-work-dir":    {config: "command = \"/bin/true\"\nwork_dir = \"/no/such/dir\"\n", want: `cannot start: .*/no/such/dir: no such file or directory`},
	"no-user":        {command: "sleep 1000", task: "user = \"nosuchuser\"\n", root: true, want: `unknown user nosuchuser, not restarted\. Create account nosuchuser, or change "user" of the task`, inRun: `user "nosuchuser" does not exist on this machine`},

	// The command ends.
	"exit-code":        {command: "echo first >&2; echo oops >&2; exit 3", want: `exit code 3 \(stderr: oops\), restarts (in|now|at)`, inEvents: `task t: exit code 3, restarts at`, inRun: `Terminated: Exit Code: 3`},
	"no-output":        {command: "exit 9", want: `exit code 9, restarts (in|now|at)`, inRun: `Terminated: Exit Code: 9`},
	"command-missing":  {command: "nosuchtool", want: `exit code 127 \(stderr: .*nosuchtool.*not found\), restarts .*\. Install the command that it calls`, inEvents: `exit code 127, restarts .*\. Install`, inRun: `Install the command that it calls`},
	"not-allowed":      {command: "/etc/passwd arg", want: `exit code 126 \(stderr: .*[Pp]ermission denied\), restarts .*\. Make the command that it calls executable`, inEvents: `exit code 126, restarts`, inRun: `Make the command that it calls executable`},
	"unset-variable":   {command: "set -u; echo $NOSUCHVARIABLE", want: `exit code [12] \(stderr: .*NOSUCHVARIABLE`, inEvents: `task t: exit code [12], restarts`, inRun: `Terminated: Exit Code: [12]`},
	"port-of-program":  {command: "echo 'listen tcp :80: bind: address already in use' >&2; exit 1", want: `address already in use\), restarts .*\. Stop the process that uses the port`, inEvents: `exit code 1, restarts`, inRun: `Terminated: Exit Code: 1`},
	"signal":           {command: "kill -SEGV $$", want: `killed by signal 11 \(SIGSEGV\), restarts (in|now|at)`, inRun: `Terminated: .*Signal: 11`},
	"killed":           {command: "kill -KILL $$", want: `killed by signal 9 \(SIGKILL\), restarts (in|now|at)`, inRun: `Terminated: .*Signal: 9`},
	"out-of-memory":    {command: "head -c 300m /dev/zero | tail", task: "resources {\n memory = 20\n}\n", root: true, want: `out of memory: killed when it exceeded its limit.*, (not )?restart.*\. Raise "memory" in "resources"`, inRun: `Raise "memory" in "resources"`},
	"service-ends":     {command: "exit 0", want: `ended with exit code 0, but a service must keep running, restarts .*\. Use type = "batch"`, inRun: `Use type = "batch"`},
	"no-restart":       {command: "exit 4", group: noRestart, want: `exit code 4, not restarted: Policy allows no restarts`},
	"too-many-restart": {command: "exit 6", group: "restart {\n attempts = 1\n delay = \"1s\"\n interval = \"1h\"\n mode = \"fail\"\n}\n" + noReschedule, want: `exit code 6, not restarted: Exceeded allowed attempts`},
	"batch":            {command: "exit 5", group: noRestart + noReschedule, batch: true, want: `exit code 5, not restarted: Policy allows no restarts`},

	// Data or files are missing.
	"no-variable":        {command: "sleep 1000", task: "template {\n data = \"{{ with nomadVar \\\"db/password\\\" }}{{ .x }}{{ end }}\"\n destination = \"local/x\"\n}\n", want: `template waits for variable db/password\. Write it: nomad-lite var put db/password KEY=VALUE`, inRun: `Set it: nomad-lite run -nomad-var db/password KEY=VALUE`},
	"no-service":         {command: "sleep 1000", task: "template {\n data = \"{{ range nomadService \\\"db\\\" }}{{ .Address }}{{ else }}{{ with nomadVar \\\"no/db\\\" }}{{ . }}{{ end }}{{ end }}\"\n destination = \"local/x\"\n}\n", want: `template waits for .*variable no/db`, inRun: `no/db`},
	"template-syntax":    {command: "sleep 1000", task: "template {\n data = \"{{ nosuch }}\"\n destination = \"local/x\"\n}\n", want: `function "nosuch" not defined`, inRun: `function "nosuch" not defined`},
	"template-index":     {command: "sleep 1000", task: "template {\n data = \"{{ index (split \\\",\\\" \\\"a\\\") 5 }}\"\n destination = \"local/x\"\n}\n", want: `index out of range: 5`},
	"template-source":    {command: "sleep 1000", task: "template {\n source = \"local/missing.tpl\"\n destination = \"local/x\"\n}\n", want: `local/missing\.tpl.*no such file or directory`},
	"artifact-refused":   {command: "sleep 1000", task: "artifact {\n source = \"http://127.0.0.1:1/file\"\n}\n", want: `failed to download artifact .*connection refused, restarts .*\. Check the address of its source`, inRun: `Check the address of its source`},
	"artifact-missing":   {command: "sleep 1000", task: "artifact {\n source = \"URL/missing\"\n}\n", want: `failed to download artifact .*404, restarts .*\. Correct its source`, inRun: `Correct its source`},
	"artifact-forbidden": {command: "sleep 1000", task: "artifact {\n source = \"URL/forbidden\"\n}\n", want: `failed to download artifact .*403, restarts .*\. Check the credentials in "headers" or "options"`, inRun: `Check the credentials in "headers" or "options"`},
	"artifact-checksum":  {command: "sleep 1000", task: "artifact {\n source = \"URL/file\"\n options {\n  checksum = \"md5:00000000000000000000000000000000\"\n }\n}\n", want: `failed to download artifact .*[Cc]hecksums? did not match.*\. Correct the checksum, or the source`, inRun: `Correct the checksum, or the source`},

	// Another task of the group does not run, or a check of the task fails.
	"earlier-task":   {command: "sleep 1000", group: "task \"prepare\" {\n driver = \"raw_exec\"\n lifecycle {\n  hook = \"prestart\"\n }\n config {\n  command = \"/bin/sleep\"\n  args = [\"1000\"]\n }\n}\n", want: `waits for task "prepare" to end`, inEvents: "-", inRun: "-"},
	"failed-prepare": {command: "sleep 1000", group: noRestart + "task \"prepare\" {\n driver = \"raw_exec\"\n lifecycle {\n  hook = \"prestart\"\n }\n config {\n  command = \"/bin/false\"\n }\n}\n", want: `prepare +exit code 1, not restarted`, inEvents: `task prepare: exit code 1`, inRun: `task "prepare" of alloc .*: exit code 1, not restarted`},
	"failed-sibling": {command: "sleep 1000", group: "task \"db\" {\n driver = \"raw_exec\"\n leader = true\n restart {\n  attempts = 0\n  mode = \"fail\"\n }\n config {\n  command = \"/bin/false\"\n }\n}\n", want: `db +exit code 1, not restarted`, inEvents: `task db: exit code 1`, inRun: `task "db" of alloc .*: exit code 1, not restarted`},
	"check-refused":  {command: "sleep 1000", group: httpCheck("1", "/"), want: `check-refused-c .*connection refused`, inEvents: "-", inRun: "-"},
	"check-status":   {command: "sleep 1000", group: httpCheck("PORT", "/missing"), want: `check-status-c .*404`, inEvents: "-", inRun: "-"},

	// The node cannot run the group.
	"no-driver":         {config: "", task: "driver = \"podman\"\n", want: `Task "t": driver "podman": node ".*" does not have it; it has (exec, )?(java, )?(qemu, )?raw_exec`, inEvents: `driver "podman" is not there`, inRun: `there is no task driver "podman"`},
	"memory":            {command: "sleep 1000", task: "resources {\n memory = 100000000\n}\n", want: `memory.* 100000000 MB`},
	"processor":         {command: "sleep 1000", task: "resources {\n cpu = 100000000\n}\n", want: `cpu.* 100000000 MHz`},
	"disk":              {command: "sleep 1000", group: "ephemeral_disk {\n size = 1000000000\n}\n", want: `disk.* 1000000000 MB`},
	"constraint":        {command: "sleep 1000", group: "constraint {\n attribute = \"${attr.kernel.name}\"\n value = \"windows\"\n}\n", want: `attr\.kernel\.name\} is "linux" here`},
	"no-meta":           {command: "sleep 1000", job: "constraint {\n attribute = \"${meta.rack}\"\n operator = \"is_set\"\n}\n", want: `meta\.rack\} is not set here`},
	"version":           {command: "sleep 1000", task: "constraint {\n attribute = \"${attr.nomad.version}\"\n operator = \"semver\"\n value = \">= 99.0.0\"\n}\n", want: `attr\.nomad\.version\} is ".*" here`},
	"datacenter":        {command: "sleep 1000", job: "datacenters = [\"paris\"]\n", want: `datacenter.*dc1`},
	"distinct-hosts":    {command: "sleep 1000", group: "count = 2\nconstraint {\n distinct_hosts = true\n}\n", want: `distinct_hosts.* allows 1 on one node, not 2`},
	"port-of-process":   {command: "sleep 1000", group: "network {\n port \"http\" {\n  static = PORT\n }\n}\n", want: `port "http": .*process ".*" \(pid \d+\) listens there\. Stop it, or leave out static`},
	"port-of-instances": {command: "sleep 1000", group: "count = 2\nnetwork {\n port \"http\" {\n  static = 61003\n }\n}\n", want: `another allocation of this job has the static port 61003 on this node: leave out static, or lower the count`},
}

// httpCheck returns a service with a check of an address on this machine. The name of the check is the name
// of the job and "-c".
func httpCheck(port, path string) string {
	return "service {\n name = \"${NOMAD_JOB_NAME}\"\n provider = \"nomad\"\n address = \"127.0.0.1\"\n port = \"" + port + "\"\n check {\n  name = \"${NOMAD_JOB_NAME}-c\"\n  type = \"http\"\n  path = \"" + path + "\"\n  interval = \"1s\"\n  timeout = \"1s\"\n }\n}\n"
}

// writeReasonFiles writes the files that the misconfigurations need.
func writeReasonFiles(t *testing.T, dir string) {
	t.Helper()
	for name, text := range map[string]string{"nointerpreter": "#!/no/such/interpreter\n", "noformat": "neither a script nor a binary\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// spec returns the job file of a misconfiguration.
func (m misconfiguration) spec(name string, replacer *strings.Replacer) string {
	config, driver := m.config, "driver = \"raw_exec\"\n"
	switch {
	case strings.Contains(m.task, "driver"):
		driver = ""
	case strings.HasPrefix(m.command, "/") && !strings.Contains(m.command, " "), strings.HasPrefix(m.command, "DIR"):
		config = fmt.Sprintf("command = %q\n", m.command)
	case m.command != "":
		config = fmt.Sprintf("command = \"/bin/sh\"\nargs = [\"-c\", %q]\n", m.command)
	}
	jobType := "service"
	if m.batch {
		jobType = "batch"
	}
	return replacer.Replace(fmt.Sprintf("job %q {\n type = %q\n%s group \"g\" {\n%s task \"t\" {\n %s config {\n%s}\n%s}\n}\n}\n", name, jobType, m.job, m.group, driver, config, m.task))
}

// Each command that shows the state of a job shows why it does not run.
func TestReasons(t *testing.T) {
	t.Parallel()
	s := systemtest.StartTestAgent(t, false)
	dir := t.TempDir()
	writeReasonFiles(t, dir)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/missing":
			http.NotFound(w, r)
		case "/forbidden":
			http.Error(w, "forbidden", http.StatusForbidden)
		}
	}))
	t.Cleanup(server.Close)
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	replacer := strings.NewReplacer("DIR", dir, "URL", server.URL, "PORT", port)
	var eventStreamOutput systemtest.LockedBuffer
	stream := nomadLiteCommand(s.Address, "event", "stream", "-last", "1000", "-topic", "Allocation", "-topic", "Evaluation")
	stream.Stdout = &eventStreamOutput
	if err := stream.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stream.Process.Kill()
		_ = stream.Wait()
	})
	for name, m := range misconfigurations {
		t.Run(name, func(t *testing.T) {
			if m.root && os.Geteuid() != 0 {
				t.Skip("needs an agent that runs as root")
			}
			t.Parallel()
			path := filepath.Join(dir, name+".nomad.hcl")
			if err := os.WriteFile(path, []byte(m.spec(name, replacer)), 0o600); err != nil {
				t.Fatal(err)
			}
			runOutput := func() string { return "" }
			if m.inRun != "-" {
				runOutput = startForegroundRun(t, path)
			}
			monitor := nomadLiteCommand(s.Address, "job", "run", path)
			var monitorOutput systemtest.LockedBuffer
			monitor.Stdout, monitor.Stderr = &monitorOutput, &monitorOutput
			if err := monitor.Start(); err != nil {
				t.Fatal(err)
			}
			monitorEnded := make(chan struct{})
			go func() {
				defer close(monitorEnded)
				_ = monitor.Wait() // the exit code depends on the deployment, or the test has killed the command
			}()
			defer func() {
				_ = monitor.Process.Kill()
				<-monitorEnded
			}()
			// The commands that end at once are called without a process, because a program under the
			// race detector starts slowly.
			output := func(args ...string) func() string {
				args = slices.Insert(args, 2, "-address="+s.Address)
				return func() string {
					var text systemtest.LockedBuffer
					root.Execute(args, &cli.Streams{In: strings.NewReader(""), Out: &text, Err: &text}) // fails until the job is registered
					return text.String()
				}
			}
			if !m.batch { // the monitor of a batch job ends when the job is placed
				waitForOutput(t, "job run", m.want, monitorOutput.String)
				deployment, _, err := s.Jobs().LatestDeployment(name, nil)
				if err != nil {
					t.Fatal(err)
				}
				waitForOutput(t, "deployment status", m.want, output("deployment", "status", deployment.ID))
			}
			waitForOutput(t, "job status", m.want, output("job", "status", name))
			waitForOutput(t, "job allocs", m.want, output("job", "allocs", name))
			if m.inRun != "-" {
				waitForOutput(t, "run", cmp.Or(m.inRun, m.want), runOutput)
			}
			if m.inEvents != "-" {
				waitForOutput(t, "event stream", regexp.QuoteMeta(name)+`.*(`+cmp.Or(m.inEvents, m.want)+`)`, eventStreamOutput.String)
			}
		})
	}
}

// startForegroundRun runs a job file with the command run until the end of the test, and returns a function
// that returns the output.
func startForegroundRun(t *testing.T, path string) (output func() string) {
	t.Helper()
	cmd := exec.Command("nomad-lite", "run", path)
	var text systemtest.LockedBuffer
	cmd.Stdout, cmd.Stderr = &text, &text
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt) // fails if the job has ended
		_ = cmd.Wait()                       // the exit code depends on the mistake
	})
	return text.String
}

// A placement failure contains what the node's drivers report.
func TestReasonsOfMissingDrivers(t *testing.T) {
	t.Parallel()
	s := systemtest.StartTestAgent(t, false)
	path := filepath.Join(t.TempDir(), "job.nomad.hcl")
	const jobSpec = "job \"elsewhere\" {\n group \"g\" {\n  task \"t\" {\n   driver = \"podman\"\n  }\n }\n}\n"
	if err := os.WriteFile(path, []byte(jobSpec), 0o600); err != nil {
		t.Fatal(err)
	}
	want := regexp.MustCompile(`(?m)^ *\* Task "t": driver "podman": node ".*" does not have it; it has (exec, )?(java, )?(qemu, )?raw_exec$`)
	for _, command := range [][]string{{"job", "plan", path}, {"job", "run", "-detach", path}, {"job", "status", "elsewhere"}} {
		cmd := exec.Command("nomad-lite", command...)
		cmd.Env = append(os.Environ(), "NOMAD_ADDR="+s.Address)
		output, err := cmd.CombinedOutput()
		if len(command) == 4 { // a detached run does not wait for the placement
			if err != nil {
				t.Fatalf("%v: %v\n%s", command, err, output)
			}
			continue
		}
		if !want.Match(output) {
			t.Errorf("%v does not say %s:\n%s", command, want, output)
		}
	}
}

// waitForOutput waits until read returns text that matches pattern, and fails the test after systemtest.WaitTimeout.
func waitForOutput(t *testing.T, command, pattern string, read func() string) {
	t.Helper()
	want := regexp.MustCompile(pattern)
	text := ""
	for deadline := time.Now().Add(systemtest.WaitTimeout); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		if text = read(); want.MatchString(text) {
			return
		}
	}
	t.Errorf("%s does not print %s:\n%s", command, want, text)
}

// nomadLiteCommand returns a command of nomad-lite that calls the agent at an address.
func nomadLiteCommand(address string, args ...string) *exec.Cmd {
	cmd := exec.Command("nomad-lite", args...)
	cmd.Env = append(os.Environ(), "NOMAD_ADDR="+address)
	return cmd
}
