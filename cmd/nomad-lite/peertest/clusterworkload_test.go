package peertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/peers"
)

// stockCluster is a server of the stock agent with access control, and nomad-lite as its only node.
type stockCluster struct {
	*api.Client // with the management token
	t           *testing.T
	nodeDir     string // data directory of the node
	nodeConfig  string // path
	node        *exec.Cmd
}

// startProgram starts an agent whose output is appended to the file log.
func startProgram(t *testing.T, log string, arguments ...string) *exec.Cmd {
	t.Helper()
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command(arguments[0], arguments[1:]...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			text, _ := os.ReadFile(log) // the test has failed already
			t.Logf("%s:\n%s", arguments, text)
		}
	})
	return cmd
}

// interrupt stops an agent and waits for its end.
func interrupt(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Error(err)
	}
	kill := time.AfterFunc(waitTimeout, func() { _ = cmd.Process.Kill() }) // an error means that it has exited
	defer kill.Stop()
	_ = cmd.Wait() // the exit code of the stock agent after SIGINT is 1
}

// startStockCluster starts a server, and a node that joins it. Both are stopped at the end of the test.
func startStockCluster(t *testing.T) *stockCluster {
	t.Helper()
	program := peers.ProgramOrSkip(t, "nomad")
	// Sockets have short paths, and the directory of a test a long one.
	dir, err := os.MkdirTemp("", "cluster")
	if err != nil {
		t.Fatal(err)
	}
	c := &stockCluster{t: t, nodeDir: filepath.Join(dir, "node")}
	t.Cleanup(func() {
		// The keeper stays if the agent could not learn at its end that no task runs.
		if out, err := exec.Command("nomad-lite", "agent", "stop", "-all", c.nodeDir).CombinedOutput(); err != nil {
			t.Errorf("end the helper processes of the node: %v\n%s", err, out)
		}
		if left := processesOf(dir); len(left) > 0 {
			t.Errorf("processes remain: %v", left)
		}
		if !t.Failed() { // otherwise a mount may remain
			os.RemoveAll(dir)
		}
	})
	ports, err := freePorts(3)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, text string, values ...any) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(fmt.Sprintf(text, values...)), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	serverConfig := write("server.hcl", `
data_dir  = %q
bind_addr = "127.0.0.1"
ports {
  http = %s
  rpc  = %s
  serf = %s
}
advertise {
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}
server {
  enabled          = true
  bootstrap_expect = 1
}
acl {
  enabled = true
}
`, filepath.Join(dir, "server"), ports[0], ports[1], ports[2])
	c.nodeConfig = write("node.hcl", `
data_dir = %q
ports {
  http = 0
}
client {
  servers = ["127.0.0.1:%s"]
}
plugin "raw_exec" {
  config {
    enabled = true
  }
}
`, c.nodeDir, ports[1])
	server := startProgram(t, filepath.Join(dir, "server.log"), program, "agent", "-config", serverConfig)
	t.Cleanup(func() { interrupt(t, server) })
	if c.Client, err = api.NewClient(&api.Config{Address: "http://127.0.0.1:" + ports[0]}); err != nil {
		t.Fatal(err)
	}
	await(t, "a leader", func() bool {
		token, _, err := c.ACLTokens().Bootstrap(nil)
		if err == nil {
			c.SetSecretID(token.SecretID)
		}
		return err == nil
	})
	c.startNode()
	t.Cleanup(func() { interrupt(t, c.node) })
	return c
}

func (c *stockCluster) startNode() {
	c.t.Helper()
	c.node = startProgram(c.t, filepath.Join(filepath.Dir(c.nodeConfig), "node.log"), "nomad-lite", "agent", "-config", c.nodeConfig)
}

// killNode kills the agent of the node; its tasks continue.
func (c *stockCluster) killNode() {
	c.t.Helper()
	if err := c.node.Process.Kill(); err != nil {
		c.t.Fatal(err)
	}
	_ = c.node.Wait() // it was killed
}

func (c *stockCluster) putVariable(path, value string) {
	c.t.Helper()
	await(c.t, "the keys of the server, which it makes after its start", func() bool {
		_, _, err := c.Variables().Update(&api.Variable{Namespace: "default", Path: path, Items: map[string]string{"word": value}}, nil)
		return err == nil
	})
}

// workloadJob has all that a task gets through servers.
func workloadJob() *api.Job {
	zero := time.Duration(0)
	text := `word={{ with nomadVar "nomad/jobs/web" }}{{ .word }}{{ end }}
{{ range nomadService "web" }}service={{ .Name }}:{{ .Port }}{{ end }}
{{ range nomadServices }}name={{ .Name }}{{ end }}
{{ range nomadVarList "nomad/jobs" }}path={{ .Path }}{{ end }}
`
	destination, noop := "local/out", "noop"
	task := api.NewTask("t", "raw_exec").SetConfig("command", "/bin/sleep").SetConfig("args", []string{"100000"})
	task.Templates = []*api.Template{{EmbeddedTmpl: &text, DestPath: &destination, ChangeMode: &noop, Splay: &zero, Wait: &api.WaitConfig{Min: &zero, Max: &zero}}}
	task.Identity = &api.WorkloadIdentity{File: true, Env: true}
	task.Identities = []*api.WorkloadIdentity{{Name: "extra", Audience: []string{"example.com"}, File: true, TTL: time.Hour}}
	task.Env = map[string]string{"SECRET": "${secret.own.word}"}
	task.Secrets = []*api.Secret{{Name: "own", Provider: "nomad", Path: "nomad/jobs/web"}}
	group := api.NewTaskGroup("g", 1).AddTask(task)
	group.Networks = []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "http"}}}}
	group.Services = []*api.Service{{Name: "web", Provider: "nomad", PortLabel: "http"}}
	return api.NewServiceJob("web", "web", "global", 50).AddTaskGroup(group)
}

// services returns the instances of a service as the servers have them.
func (c *stockCluster) services(name string) []*api.ServiceRegistration {
	c.t.Helper()
	list, _, err := c.Client.Services().Get(name, nil)
	if err != nil && !strings.Contains(err.Error(), "404") {
		c.t.Fatal(err)
	}
	return list
}

// TestClusterWorkload runs a job whose task gets variables, services and identities through the servers, and kills the agent
// meanwhile.
func TestClusterWorkload(t *testing.T) {
	c := startStockCluster(t)
	c.putVariable("nomad/jobs/web", "one")
	if _, _, err := c.Jobs().Register(workloadJob(), nil); err != nil {
		t.Fatal(err)
	}
	var alloc *api.AllocationListStub
	await(t, "the allocation", func() bool {
		list, _, err := c.Jobs().Allocations("web", true, nil)
		if err == nil && len(list) == 1 && list[0].ClientStatus == "running" {
			alloc = list[0]
		}
		return alloc != nil
	})
	file := func(path string) string {
		text, err := os.ReadFile(filepath.Join(c.nodeDir, "alloc", alloc.ID, "t", path))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return string(text)
	}
	await(t, "the registration of the service", func() bool { return len(c.services("web")) == 1 })
	service := c.services("web")[0]
	if service.NodeID != alloc.NodeID || service.AllocID != alloc.ID || service.Datacenter != "dc1" || service.Namespace != "default" {
		t.Errorf("registration %+v", service)
	}
	rendered := func(word string) string {
		return fmt.Sprintf("word=%s\nservice=web:%d\nname=web\npath=nomad/jobs/web\n", word, service.Port)
	}
	awaitRendered := func(word string) {
		t.Helper()
		want := rendered(word)
		if err := waitFor("the template", func() bool { return file("local/out") == want }); err != nil {
			t.Fatalf("%v: it has %q, want %q", err, file("local/out"), want)
		}
	}
	awaitRendered("one")
	extra, token := file("secrets/nomad_extra.jwt"), file("secrets/nomad_token")
	task, err := api.NewClient(&api.Config{Address: c.Address(), SecretID: token})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := task.Variables().Read("nomad/jobs/web", nil); err != nil {
		t.Errorf("the server does not accept the default identity: %v", err)
	}
	header, _, _ := strings.Cut(token, ".")
	if signedBy, _, _ := strings.Cut(extra, "."); signedBy != header {
		t.Errorf("header %q of identity %q, want that of a token of the server, %q", signedBy, "extra", header)
	}
	c.putVariable("nomad/jobs/web", "two")
	awaitRendered("two")

	c.killNode()
	c.putVariable("nomad/jobs/web", "three")
	c.startNode()
	awaitRendered("three")
	if now := file("secrets/nomad_extra.jwt"); now != extra {
		t.Error("the next agent has replaced a token that had not expired")
	}
	if list := c.services("web"); len(list) != 1 || list[0].ID != service.ID {
		t.Errorf("after the restart of the agent, the registrations are %v", list)
	}

	c.killNode()
	if _, _, err := c.Jobs().Deregister("web", false, nil); err != nil {
		t.Fatal(err)
	}
	c.startNode()
	await(t, "the end of the allocation", func() bool {
		a, _, err := c.Allocations().Info(alloc.ID, nil)
		return err == nil && a.ClientStatus == "complete"
	})
	await(t, "the removal of the service", func() bool { return len(c.services("web")) == 0 })
}
