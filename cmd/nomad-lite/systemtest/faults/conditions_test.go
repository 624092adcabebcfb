package faults

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/runtime/explain/conditions"
)

// brokenMachine is an agent that testdata/broken-machine.sh has started, and on whose machine the script has broken something.
type brokenMachine struct {
	*testing.T
	condition, dir string
	client         *api.Client
}

func newBrokenMachine(t *testing.T, condition string) *brokenMachine {
	t.Helper()
	dir, err := os.MkdirTemp("", "broken")
	if err != nil {
		t.Fatal(err)
	}
	m := &brokenMachine{T: t, condition: condition, dir: dir}
	t.Cleanup(func() {
		m.runScript("end")
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	m.runScript("break")
	m.client, err = api.NewClient(&api.Config{Address: "unix://" + filepath.Join(dir, "state/nomad.sock")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.client.Close)
	return m
}

func (m *brokenMachine) runScript(action string) {
	m.Helper()
	script, err := filepath.Abs("testdata/broken-machine.sh")
	if err != nil {
		m.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", script, m.condition, m.dir, action)
	cmd.Env = append(os.Environ(), "PORT=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		log, _ := os.ReadFile(filepath.Join(m.dir, "agent.log"))
		m.Errorf("%s %s: %v: %s\n%s", m.condition, action, err, out, log)
	}
}

// runCommand returns the standard output and the standard error of a command of the agent's user.
func (m *brokenMachine) runCommand(args ...string) (stdout, stderr string) {
	m.Helper()
	cmd := exec.Command("nomad-lite", args...)
	var out, errOut strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errOut
	cmd.Env = append(os.Environ(), "NOMAD_ADDR=unix://"+filepath.Join(m.dir, "state/nomad.sock"))
	if err := cmd.Run(); err != nil {
		m.Errorf("%q: %v: %s", args, err, errOut.String())
	}
	return out.String(), errOut.String()
}

// find returns the condition, or nil if the agent does not report it.
func (m *brokenMachine) find() *conditions.Condition {
	m.Helper()
	var report conditions.Report
	if _, err := m.client.Raw().Query("/v1/agent/conditions", &report, nil); err != nil {
		m.Fatal(err)
	}
	if i := slices.IndexFunc(report.Conditions, func(c conditions.Condition) bool { return c.Kind == m.condition }); i >= 0 {
		return &report.Conditions[i]
	}
	return nil
}

func (m *brokenMachine) waitUntil(description string, isSo func() bool) {
	m.Helper()
	for deadline := time.Now().Add(systemtest.WaitTimeout); !isSo(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			m.Fatalf("not within %v: %s", systemtest.WaitTimeout, description)
		}
	}
}

func (m *brokenMachine) hasNodeEvent(prefix string) bool {
	m.Helper()
	nodes, _, err := m.client.Nodes().List(nil)
	if err != nil || len(nodes) != 1 {
		m.Fatalf("%v, %v", nodes, err)
	}
	node, _, err := m.client.Nodes().Info(nodes[0].ID, nil)
	if err != nil {
		m.Fatal(err)
	}
	return slices.ContainsFunc(node.Events, func(e *api.NodeEvent) bool { return strings.HasPrefix(e.Message, prefix) })
}

// test checks that all views have the condition, and that it ends when the cause is repaired.
func (m *brokenMachine) test() {
	m.waitUntil("the condition", func() bool { return m.find() != nil })
	found := *m.find()
	label := "Warning: "
	if found.Severity == conditions.Error {
		label = "Error: "
	}
	wanted := []string{label + found.Summary + ".\n  Since ", ". " + found.Remedy + ".\n", "\n    " + strings.Join(found.Commands, "\n    ") + "\n"}
	for _, command := range [][]string{{"status"}, {"job", "status"}, {"top", "-once"}} {
		if _, stderr := m.runCommand(command...); !containsAll(stderr, wanted) {
			m.Errorf("%q prints %q, want %q", command, stderr, wanted)
		}
	}
	if stdout, _ := m.runCommand("node", "status", "-self"); !containsAll(stdout, append(wanted, "\nConditions\n")) {
		m.Errorf("node status prints\n%s", stdout)
	}
	m.checkHealth(found)
	// The agent made every other file in the data directory.
	if name := map[string]string{"DiskFull": "backup.tar", "NoInodes": "sessions"}[m.condition]; name != "" && !strings.Contains(found.Remedy, ": "+name+". If") {
		m.Errorf("remedy %q, want the name %s alone", found.Remedy, name)
	}
	metric := fmt.Sprintf(`nomad_lite_condition{condition=%q,severity=%q} `, m.condition, found.Severity)
	if text := m.get("/v1/metrics?format=prometheus"); !regexp.MustCompile(regexp.QuoteMeta(metric) + `[1-9]\n`).MatchString(text) {
		m.Errorf("no metric %s", metric)
	}
	hasBegun := func() bool { return m.hasNodeEvent(m.condition + ": ") }
	if m.condition != "StateNotWritten" { // events are in the state
		m.waitUntil("the event of its begin", hasBegun)
	}
	script, err := os.ReadFile("testdata/broken-machine.sh")
	if err != nil {
		m.Fatal(err)
	}
	if !strings.Contains(string(script), "\n"+m.condition+"-repair)") {
		return // it ends after some time
	}
	m.runScript("repair")
	m.waitUntil("the end of the condition", func() bool { return m.find() == nil })
	if m.condition == "UnknownTasks" { // the repair is another start of the agent
		return
	}
	m.waitUntil("the event of its end", func() bool { return hasBegun() && m.hasNodeEvent(m.condition+" has ended: ") })
}

func containsAll(text string, parts []string) bool {
	return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) })
}

// get returns the body of a reply, whatever its status.
func (m *brokenMachine) get(path string) string {
	m.Helper()
	body, err := m.client.Raw().Response(path, nil)
	if err != nil {
		return err.Error()
	}
	defer body.Close()
	text, err := io.ReadAll(body)
	if err != nil {
		m.Fatal(err)
	}
	return string(text)
}

func (m *brokenMachine) checkHealth(found conditions.Condition) {
	m.Helper()
	text := m.get("/v1/agent/health")
	wanted := found.Kind
	if found.Severity == conditions.Error {
		quoted, err := json.Marshal(found.Summary)
		if err != nil {
			m.Fatal(err)
		}
		wanted = strings.Trim(string(quoted), `"`)
	}
	if !strings.Contains(text, wanted) || found.Severity == conditions.Error && !strings.Contains(text, "500") {
		m.Errorf("health: %s, want %s", text, wanted)
	}
}

// TestConditions breaks a machine in each way of the list. All views have the condition with its remedy. Conditions of the whole machine are in TestVM/clock. A node is not ready for seconds of a start only, and knows no
// server only in a cluster.
func TestConditions(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to break a machine")
	}
	for _, condition := range []string{
		"DiskFull", "NoInodes", "OutputLost", "RecordsDamaged", "UnknownTasks", "PluginDown", "DescriptorsExhausted", "ProcessesExhausted",
		"KeeperReplaced", "CertificateExpiring", "CertificateExpired", "StateNotWritten", "DriverUnhealthy",
	} {
		t.Run(condition, func(t *testing.T) {
			t.Parallel()
			newBrokenMachine(t, condition).test()
		})
	}
}
