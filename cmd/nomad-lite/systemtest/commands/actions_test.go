package commands

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
)

const (
	goodJob = `job "good" {
  type = "batch"
  group "g" {
    restart {
      attempts = 0
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", %q]
      }
    }
  }
}
`
	badJob = `job "bad" {
  group "g" {
    cuont = 1
    task "t" {
      driver = "raw_exec"
    }
  }
}
`
	serviceJob = `job "service" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sleep"
        args    = ["1000"]
      }
    }
  }
}
`
)

// action is the part of the file of a composite action that the runner of GitHub executes.
type action struct {
	Inputs map[string]struct {
		Description, Default string
		Required             bool
	}
	Runs struct {
		Using string
		Steps []struct {
			Name, Shell, Run string
			Env              map[string]string
		}
	}
}

// repository is a work tree of git in which actions and hooks are executed.
type repository struct {
	t    *testing.T
	dir  string
	path string            // PATH of the steps
	env  map[string]string // other variables of the steps
}

func newRepository(t *testing.T, files map[string]string) *repository {
	t.Helper()
	temp := t.TempDir()
	r := &repository{t: t, dir: filepath.Join(temp, "repository"), path: os.Getenv("PATH"), env: map[string]string{
		"GITHUB_ACTIONS": "true", "RUNNER_TEMP": temp, "GITHUB_PATH": filepath.Join(temp, "path"), "HOME": temp, "XDG_CACHE_HOME": filepath.Join(temp, "cache"),
	}}
	for name, text := range files {
		path := filepath.Join(r.dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "."}} {
		if out, err := exec.Command("git", append([]string{"-C", r.dir}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	return r
}

// execute runs a command in the repository, and returns its output and its exit code.
func (r *repository) execute(env map[string]string, command ...string) (output string, code int) {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), command[0], command[1:]...)
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), "PATH="+r.path)
	for _, variables := range []map[string]string{r.env, env} {
		for name, value := range variables {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		r.t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

var actionExpression = regexp.MustCompile(`\$\{\{\s*(.*?)\s*\}\}`)

// run executes the steps of an action as the runner of GitHub does, until one fails.
func (r *repository) run(name string, inputs map[string]string) (output string, code int) {
	r.t.Helper()
	dir := filepath.Join(systemtest.RepositoryDir(), ".github/actions", name)
	text, err := os.ReadFile(filepath.Join(dir, "action.yml"))
	if err != nil {
		r.t.Fatal(err)
	}
	var a action
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	if err := decoder.Decode(&a); err != nil || a.Runs.Using != "composite" || len(a.Runs.Steps) == 0 {
		r.t.Fatalf("%d steps, %v", len(a.Runs.Steps), err)
	}
	for given := range inputs {
		if _, known := a.Inputs[given]; !known {
			r.t.Fatalf("the action %s has no input %s", name, given)
		}
	}
	for _, step := range a.Runs.Steps {
		if step.Shell != "bash" || strings.Contains(step.Run, "${{") { // an input in a script would be executed
			r.t.Fatalf("step %q has the shell %q, or an expression in its script", step.Name, step.Shell)
		}
		env := map[string]string{"GITHUB_ACTION_PATH": dir}
		for variable, value := range step.Env {
			env[variable] = actionExpression.ReplaceAllStringFunc(value, func(expression string) string {
				input, isInput := strings.CutPrefix(actionExpression.FindStringSubmatch(expression)[1], "inputs.")
				definition, known := a.Inputs[input]
				if !isInput || !known {
					r.t.Fatalf("step %q: %s is no input", step.Name, expression)
				}
				if given, ok := inputs[input]; ok {
					return given
				}
				return definition.Default
			})
		}
		script := filepath.Join(r.t.TempDir(), "script.sh")
		if err := os.WriteFile(script, []byte(step.Run), 0o600); err != nil {
			r.t.Fatal(err)
		}
		out, code := r.execute(env, "bash", "--noprofile", "--norc", "-eo", "pipefail", script)
		output += out
		if code != 0 {
			return output, code
		}
		if added, err := os.ReadFile(r.env["GITHUB_PATH"]); err == nil {
			r.path = strings.TrimSpace(string(added)) + ":" + r.path
		}
	}
	return output, 0
}

func checkContains(t *testing.T, output string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(output, part) {
			t.Errorf("%q is missing in\n%s", part, output)
		}
	}
}

func TestValidateAction(t *testing.T) {
	r := newRepository(t, map[string]string{
		"good.nomad.hcl": fmt.Sprintf(goodJob, "true"), "jobs/bad job.nomad.hcl": badJob, "jobs/variable.nomad.hcl": `variable "image" {}` + "\n" + fmt.Sprintf(goodJob, "echo ${var.image}"),
		"agent.hcl": `ports { htpp = 4646 }`, "good.hcl": `ports { http = 4646 }`,
	})
	out, code := r.run("validate", map[string]string{"flags": "-hcl2-strict=false\n-var=image=web:2\n"})
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
	checkContains(t, out, "good.nomad.hcl is valid\n", "jobs/variable.nomad.hcl is valid\n", "jobs/bad job.nomad.hcl is not valid\n", "::error file=jobs/bad job.nomad.hcl,line=3,col=5::")
	// The runner executes no command between stop-commands and the token.
	executed := out
	for _, found := range regexp.MustCompile(`::stop-commands::([0-9a-f]{32})\n`).FindAllStringSubmatch(out, -1) {
		before, block, _ := strings.Cut(executed, found[0])
		_, after, ended := strings.Cut(block, "\n::"+found[1]+"::\n")
		if !ended {
			t.Fatalf("the runner executes no commands after %s:\n%s", found[1], out)
		}
		executed = before + after
	}
	if strings.Contains(executed, "cuont = 1") || executed == out {
		t.Errorf("the runner would execute commands of the file:\n%s", executed)
	}

	if out, code = r.run("validate", map[string]string{"files": "*.nomad.hcl\n:!jobs", "agent-config": "good.hcl"}); code != 0 {
		t.Errorf("exit code %d\n%s", code, out)
	}
	checkContains(t, out, "good.nomad.hcl is valid\n", "Configuration is valid!\n")
	if out, code = r.run("validate", map[string]string{"files": "", "agent-config": "good.hcl\nagent.hcl\n"}); code != 1 {
		t.Errorf("exit code %d\n%s", code, out)
	}
	checkContains(t, out, `did you mean "http"?`)
	if out, code = r.run("validate", map[string]string{"files": "*.job"}); code != 1 {
		t.Errorf("exit code %d\n%s", code, out)
	}
	checkContains(t, out, "no file of the repository matches the input files: *.job")
}

func TestRunAction(t *testing.T) {
	r := newRepository(t, map[string]string{
		"good.nomad.hcl": fmt.Sprintf(goodJob, "echo hello $NAME"), "fails.nomad.hcl": fmt.Sprintf(goodJob, "exit 3"), "sleeps.nomad.hcl": fmt.Sprintf(goodJob, "sleep 1000"),
		"service.nomad.hcl": serviceJob, "bad.nomad.hcl": badJob, "ci.env": "NAME=ci\n",
	})
	for _, c := range []struct {
		inputs map[string]string
		code   int
		want   string
	}{
		{map[string]string{"file": "good.nomad.hcl", "flags": "-env-file=ci.env"}, 0, "hello ci"},
		{map[string]string{"file": "fails.nomad.hcl"}, 1, "exit code 3"},
		{map[string]string{"file": "bad.nomad.hcl"}, 2, "cuont"},
		{map[string]string{"file": "sleeps.nomad.hcl", "timeout": "2s"}, 1, "stopped"},
		{map[string]string{"file": "service.nomad.hcl", "timeout": "2s"}, 0, "stopped"},
	} {
		out, code := r.run("run", c.inputs)
		if code != c.code {
			t.Errorf("%v: exit code %d, want %d\n%s", c.inputs, code, c.code, out)
		}
		checkContains(t, out, c.want)
	}
}

// TestActionInstallsRelease installs an archive whose program prints the arguments.
func TestActionInstallsRelease(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl, which install.sh calls, is missing: ", err)
	}
	release, root := t.TempDir(), fmt.Sprintf("nomad-lite_0.1.0_%s_%s", runtime.GOOS, runtime.GOARCH)
	var archive bytes.Buffer
	compressed := gzip.NewWriter(&archive)
	files := tar.NewWriter(compressed)
	program := []byte("#!/bin/sh\necho \"program $*\"\n")
	err := files.WriteHeader(&tar.Header{Name: root + "/bin/nomad-lite", Mode: 0o755, Size: int64(len(program))})
	if err == nil {
		_, err = files.Write(program)
	}
	script, scriptErr := os.ReadFile(filepath.Join(systemtest.RepositoryDir(), "internal/tools/release/files/install.sh"))
	if err := errors.Join(err, scriptErr, files.Close(), compressed.Close()); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"install.sh": script, root + ".tar.gz": archive.Bytes(), "SHA256SUMS": fmt.Appendf(nil, "%x  %s.tar.gz\n", sha256.Sum256(archive.Bytes()), root),
	} {
		if err := os.WriteFile(filepath.Join(release, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}

	r := newRepository(t, map[string]string{"good.nomad.hcl": fmt.Sprintf(goodJob, "true")})
	r.path = strings.Join(slices.DeleteFunc(filepath.SplitList(r.path), func(dir string) bool {
		_, err := os.Stat(filepath.Join(dir, "nomad-lite"))
		return err == nil
	}), ":")
	r.env["NOMAD_LITE_URL"] = "file://" + release
	out, code := r.run("run", map[string]string{"file": "good.nomad.hcl"})
	if code != 1 {
		t.Errorf("without a version: exit code %d", code)
	}
	checkContains(t, out, "set the input version of the action")
	out, code = r.run("run", map[string]string{"file": "good.nomad.hcl", "version": "v0.1.0"})
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	checkContains(t, out, "installed: program version", "program run good.nomad.hcl\n")
}

// preCommitHook is a hook of .pre-commit-hooks.yaml.
type preCommitHook struct{ ID, Language, Entry, Files string }

func readPreCommitHooks(t *testing.T) (hooks []preCommitHook) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(systemtest.RepositoryDir(), ".pre-commit-hooks.yaml"))
	if err == nil {
		err = yaml.Unmarshal(text, &hooks)
	}
	if err != nil || len(hooks) == 0 {
		t.Fatalf("%d hooks, %v", len(hooks), err)
	}
	return hooks
}

// TestPreCommitHooks executes the entries of the hooks with the files that their patterns select, as pre-commit does.
func TestPreCommitHooks(t *testing.T) {
	files := map[string]string{
		"good.nomad.hcl": fmt.Sprintf(goodJob, "true"), "jobs/bad.nomad.hcl": badJob, "old.nomad": fmt.Sprintf(goodJob, "true"), "other.hcl": "a = 1\n",
		"nomad-lite.d/agent.hcl": "ports { http = 4646 }\n",
	}
	r := newRepository(t, files)
	for _, hook := range readPreCommitHooks(t) {
		pattern := regexp.MustCompile(hook.Files)
		var selected []string
		for _, name := range slices.Sorted(maps.Keys(files)) {
			if pattern.MatchString(name) {
				selected = append(selected, name)
			}
		}
		entry := strings.Fields(hook.Entry)
		if hook.Language == "script" {
			entry[0] = filepath.Join(systemtest.RepositoryDir(), entry[0])
		}
		out, code := r.execute(nil, append(entry, selected...)...)
		switch hook.ID {
		case "nomad-lite-validate":
			if code != 1 {
				t.Errorf("%s: exit code %d", hook.ID, code)
			}
			checkContains(t, out, "good.nomad.hcl is valid\n", "old.nomad is valid\n", "jobs/bad.nomad.hcl is not valid\n")
		case "nomad-lite-fmt":
			if want := []string{"good.nomad.hcl", "jobs/bad.nomad.hcl", "old.nomad"}; code != 0 || !slices.Equal(selected, want) {
				t.Errorf("%s: exit code %d, selected %v\n%s", hook.ID, code, selected, out)
			}
		case "nomad-lite-config-validate":
			if code != 0 || !slices.Equal(selected, []string{"nomad-lite.d/agent.hcl"}) {
				t.Errorf("%s: exit code %d, selected %v\n%s", hook.ID, code, selected, out)
			}
		default:
			t.Errorf("there is no check of the hook %s", hook.ID)
		}
	}
}

// TestPreCommit lets pre-commit execute the hook that validates job files.
func TestPreCommit(t *testing.T) {
	if _, err := exec.LookPath("pre-commit"); err != nil {
		t.Skip("pre-commit is missing, which CI installs: ", err)
	}
	// pre-commit clones the repository of the hooks, so it has the committed files only.
	hooks := t.TempDir()
	for _, name := range []string{".pre-commit-hooks.yaml", ".github/actions/validate/validate.sh"} {
		text, err := os.ReadFile(filepath.Join(systemtest.RepositoryDir(), name))
		if err := errors.Join(err, os.MkdirAll(filepath.Dir(filepath.Join(hooks, name)), 0o755)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(hooks, name), text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, command := range []string{"init -q", "add .", "-c user.name=a -c user.email=a@example.com commit -qm hooks"} {
		if out, err := exec.Command("git", append([]string{"-C", hooks}, strings.Fields(command)...)...).CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v\n%s", command, err, out)
		}
	}
	for name, want := range map[string]struct {
		text string
		code int
	}{"good.nomad.hcl": {fmt.Sprintf(goodJob, "true"), 0}, "bad.nomad.hcl": {badJob, 1}} {
		r := newRepository(t, map[string]string{name: want.text})
		out, code := r.execute(nil, "pre-commit", "try-repo", hooks, "nomad-lite-validate", "--all-files", "--verbose")
		if code != want.code {
			t.Errorf("%s: exit code %d, want %d", name, code, want.code)
		}
		checkContains(t, out, map[int]string{0: name + " is valid", 1: name + " is not valid"}[want.code])
	}
}
