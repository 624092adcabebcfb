package systemtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// taskMisconfigurations are jobs whose task does not run, with the reason that each command shows.
var taskMisconfigurations = map[string]struct {
	command string // command of the task: a path, or a command of the shell
	config  string // config block of the task, if command is empty
	task    string // further blocks of the task
	group   string // further blocks of the group
	batch   bool   // the job is a batch job, which has no deployment
	root    bool   // the mistake needs the rights of root
	want    string // regular expression
}{
	"no-command":      {command: "/no/such/command", want: `cannot start: command /no/such/command: stat .*: no such file or directory, not restarted\. Install /no/such/command, or correct "command"`},
	"not-in-path":     {config: "command = \"nosuchcommand\"\n", want: `cannot start: command "nosuchcommand": neither in the task's PATH nor in its directory, not restarted\. Install the command, or write its whole path`},
	"not-executable":  {command: "/etc/passwd", want: `cannot start: command /etc/passwd: permission denied, not restarted\. Make it executable: chmod \+x /etc/passwd`},
	"exit-code":       {command: "echo first >&2; echo oops >&2; exit 3", want: `exit code 3 \(stderr: oops\), restarts (in|now|at)`},
	"signal":          {command: "kill -SEGV $$", want: `killed by signal 11 \(SIGSEGV\), restarts (in|now|at)`},
	"service-ends":    {command: "exit 0", want: `ended with exit code 0, but a service must keep running, restarts .*\. Use type = "batch"`},
	"no-restart":      {command: "exit 4", group: "restart {\n attempts = 0\n mode = \"fail\"\n}\n", want: `exit code 4, not restarted: Policy allows no restarts`},
	"batch":           {command: "exit 5", group: "restart {\n attempts = 0\n mode = \"fail\"\n}\nreschedule {\n attempts = 0\n unlimited = false\n}\n", batch: true, want: `exit code 5, not restarted: Policy allows no restarts`},
	"no-variable":     {command: "sleep 1000", task: "template {\n data = \"{{ with nomadVar \\\"db/password\\\" }}{{ .x }}{{ end }}\"\n destination = \"local/x\"\n}\n", want: `template waits for variable db/password\. Write it: nomad-lite var put db/password KEY=VALUE`},
	"no-service":      {command: "sleep 1000", task: "template {\n data = \"{{ range nomadService \\\"db\\\" }}{{ .Address }}{{ else }}{{ with nomadVar \\\"no/db\\\" }}{{ . }}{{ end }}{{ end }}\"\n destination = \"local/x\"\n}\n", want: `template waits for .*variable no/db`},
	"no-user":         {command: "sleep 1000", task: "user = \"nosuchuser\"\n", root: true, want: `unknown user nosuchuser, not restarted\. Create account nosuchuser, or change "user" of the task`},
	"no-artifact":     {command: "sleep 1000", task: "artifact {\n source = \"http://127.0.0.1:1/file\"\n}\n", want: `failed to download artifact .*connection refused, restarts .*\. Check the address of its source`},
	"earlier-task":    {command: "sleep 1000", group: "task \"prepare\" {\n driver = \"raw_exec\"\n lifecycle {\n  hook = \"prestart\"\n }\n config {\n  command = \"/bin/sleep\"\n  args = [\"1000\"]\n }\n}\n", want: `waits for task "prepare" to end`},
	"failed-sibling":  {command: "sleep 1000", group: "task \"db\" {\n driver = \"raw_exec\"\n leader = true\n restart {\n  attempts = 0\n  mode = \"fail\"\n }\n config {\n  command = \"/bin/false\"\n }\n}\n", want: `db +exit code 1, not restarted`},
	"template-syntax": {command: "sleep 1000", task: "template {\n data = \"{{ nosuch }}\"\n destination = \"local/x\"\n}\n", want: `function "nosuch" not defined`},
}

// Each command that shows the state of a job shows why its tasks do not run.
func TestReasonsOfTasksThatDoNotRun(t *testing.T) {
	t.Parallel()
	s := startTestAgent(t, false)
	dir := t.TempDir()
	nomadLite := func(args ...string) *exec.Cmd {
		cmd := exec.Command("nomad-lite", args...)
		cmd.Env = append(os.Environ(), "NOMAD_ADDR="+s.address)
		return cmd
	}
	var eventStreamOutput lockedBuffer
	stream := nomadLite("event", "stream", "-topic", "Allocation")
	stream.Stdout = &eventStreamOutput
	if err := stream.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stream.Process.Kill()
		_ = stream.Wait()
	})
	for name, m := range taskMisconfigurations {
		t.Run(name, func(t *testing.T) {
			if m.root && os.Geteuid() != 0 {
				t.Skip("needs an agent that runs as root")
			}
			t.Parallel()
			config := m.config
			switch {
			case strings.HasPrefix(m.command, "/"):
				config = fmt.Sprintf("command = %q\n", m.command)
			case m.command != "":
				config = fmt.Sprintf("command = \"/bin/sh\"\nargs = [\"-c\", %q]\n", m.command)
			}
			jobType := "service"
			if m.batch {
				jobType = "batch"
			}
			path := filepath.Join(dir, name+".nomad.hcl")
			text := fmt.Sprintf("job %q {\n type = %q\n group \"g\" {\n%s task \"t\" {\n driver = \"raw_exec\"\n config {\n%s}\n%s}\n}\n}\n", name, jobType, m.group, config, m.task)
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			monitor := nomadLite("job", "run", path)
			var monitorOutput lockedBuffer
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
			want := regexp.MustCompile(m.want)
			waitFor := func(command string, read func() string) {
				t.Helper()
				text := ""
				for deadline := time.Now().Add(waitTimeout); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
					if text = read(); want.MatchString(text) {
						return
					}
				}
				t.Errorf("%s does not say %s:\n%s", command, want, text)
			}
			output := func(args ...string) func() string {
				return func() string {
					text, _ := nomadLite(args...).CombinedOutput() // fails until the job is registered
					return string(text)
				}
			}
			if !m.batch { // the monitor of a batch job ends when the job is placed
				waitFor("job run", monitorOutput.text)
				deployment, _, err := s.Jobs().LatestDeployment(name, nil)
				if err != nil {
					t.Fatal(err)
				}
				waitFor("deployment status", output("deployment", "status", deployment.ID))
			}
			waitFor("job status", output("job", "status", name))
			waitFor("job allocs", output("job", "allocs", name))
			if name == "exit-code" { // the event does not contain the last line of standard error
				want = regexp.MustCompile(`exit-code\.g\[0\] .*; task t: exit code 3, restarts at`)
			}
			if name == "failed-sibling" {
				want = regexp.MustCompile(`failed-sibling\.g\[0\] .*; task db: exit code 1`)
			}
			if name == "earlier-task" {
				return // the event of an allocation does not contain the job
			}
			waitFor("event stream", eventStreamOutput.text)
		})
	}
}

// A placement failure contains what the node's drivers report.
func TestReasonsOfMissingDrivers(t *testing.T) {
	t.Parallel()
	s := startTestAgent(t, false)
	path := filepath.Join(t.TempDir(), "job.nomad.hcl")
	const jobSpec = "job \"elsewhere\" {\n group \"g\" {\n  task \"t\" {\n   driver = \"podman\"\n  }\n }\n}\n"
	if err := os.WriteFile(path, []byte(jobSpec), 0o600); err != nil {
		t.Fatal(err)
	}
	want := regexp.MustCompile(`(?m)^ *\* Task "t": driver "podman": node ".*" does not have it; it has raw_exec$`)
	for _, command := range [][]string{{"job", "plan", path}, {"job", "run", "-detach", path}, {"job", "status", "elsewhere"}} {
		cmd := exec.Command("nomad-lite", command...)
		cmd.Env = append(os.Environ(), "NOMAD_ADDR="+s.address)
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
