package commands

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
)

// documentedParents returns the picture in docs/explanation/processes.md as a map from each process to its parent.
func documentedParents(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(systemtest.RepositoryDir(), "docs/explanation/processes.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, picture, _ := strings.Cut(string(text), "\n```text\n")
	picture, _, _ = strings.Cut(picture, "\n```")
	parents, path := map[string]string{}, []string{}
	for line := range strings.Lines(picture) {
		const indent = 3
		name := strings.TrimSpace(strings.TrimLeft(line, " │├└─"))
		depth := (len([]rune(strings.TrimRight(line, "\n"))) - len([]rune(name))) / indent
		if depth > len(path) {
			t.Fatalf("the line %q has no parent", line)
		}
		if path = append(path[:depth], name); depth > 0 {
			parents[name] = path[depth-1]
		}
	}
	return parents
}

// taskScriptPrefix is the start of the script of a task. The name of the driver follows, and a semicolon.
const taskScriptPrefix = "driver="

// processParents returns a map from each descendant of an agent to its parent. Processes are named as in
// docs/explanation/processes.md.
func processParents(agentPID int) map[string]string {
	parentPIDs, argsByPID, names := map[int]int{}, map[int]string{}, map[int]string{agentPID: "nomad-lite agent"}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(fields) < 2 || len(line) == 0 {
			continue // the process has exited
		}
		argsByPID[pid] = string(line)
		if pid == agentPID {
			continue
		}
		args := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
		name := strings.Join(args, " ")
		switch {
		case len(args) > 4 && args[1] == "plugin":
			name = strings.Join(args[:4], " ") // without the setting download_uids
		case filepath.Base(args[0]) == "shell-driver":
			name = "plugin of another author"
		case args[0] == "/bin/sh" && strings.HasPrefix(args[len(args)-1], taskScriptPrefix):
			driver, _, _ := strings.Cut(strings.TrimPrefix(args[len(args)-1], taskScriptPrefix), ";")
			name = "task of " + driver
		}
		parentPIDs[pid], _ = strconv.Atoi(fields[1])
		names[pid] = name
	}
	parents := map[string]string{}
	for pid, name := range names {
		ancestor := pid
		for ancestor > 1 && ancestor != agentPID {
			ancestor = parentPIDs[ancestor]
		}
		isBeforeExec := argsByPID[pid] == argsByPID[parentPIDs[pid]] // a child has the arguments of its parent until it executes its program
		if pid != agentPID && ancestor == agentPID && !isBeforeExec {
			parents[name] = names[parentPIDs[pid]]
		}
	}
	return parents
}

// The processes of an agent are those in the picture of docs/explanation/processes.md, and have the parents that it shows.
func TestProcessesMatchPicture(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for the driver exec")
	}
	const sleepForever = "; while :; do sleep 1000; done"
	duringDownload := make(chan map[string]string, 1)
	s := systemtest.StartPersistentAgent(t, map[string]string{"shell": "shell-driver"}, "plugin \"exec\" {}\n")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		select {
		case duringDownload <- processParents(s.PID()): // artifact-download waits for this response
		default: // it has requested the file before
		}
		fmt.Fprint(w, "text")
	}))
	defer server.Close()
	s.RunJobUntilStatus("picture", "service", "running",
		systemtest.NewRawExecShellTask("isolated", taskScriptPrefix+"exec"+sleepForever, systemtest.WithExecDriver, func(task *api.Task) { task.User = "nobody" }),
		systemtest.NewRawExecShellTask("plain", taskScriptPrefix+"raw_exec"+sleepForever, func(task *api.Task) {
			task.Artifacts = []*api.TaskArtifact{{GetterSource: new(server.URL + "/a"), RelativeDest: new("local/artifact")}}
			task.Templates = []*api.Template{{EmbeddedTmpl: new("text"), DestPath: new("local/template")}}
		}))
	seen, want := <-duringDownload, documentedParents(t)
	delete(want, "nomad-lite agent") // its parent is this test
	s.WaitUntil("each process of the picture was seen", func() (string, bool) {
		parsed := make(chan error, 1)
		go func() {
			_, err := s.Jobs().ParseHCL(`job "parsed" {}`, true)
			parsed <- err
		}()
		for running := true; running; {
			maps.Copy(seen, processParents(s.PID()))
			select {
			case err := <-parsed:
				if running = false; err != nil {
					t.Fatal(err)
				}
			default:
			}
		}
		for name := range want {
			if seen[name] == "" {
				return "not seen: " + name, false
			}
		}
		return "", true
	})
	for name, parent := range seen {
		if (strings.HasPrefix(name, "nomad-lite") || want[name] != "") && name != "nomad-lite-stage" && parent != want[name] {
			t.Errorf("%s is a child of %s, and in the picture of %q", name, parent, want[name])
		}
	}
}
