package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestServersDecideAboutJobs sends a job through a node that the node's program cannot run. The servers accept it, because another node
// could run it.
func TestServersDecideAboutJobs(t *testing.T) {
	c := startCluster(t, serverOptions{})
	n := c.startNode(t, "lite", fmt.Sprintf("client {\n  server_http_addr = \"http://127.0.0.1:%d\"\n}", c.servers[0].ports[0]))
	file := filepath.Join(t.TempDir(), "csi.nomad.hcl")
	const text = `
job "csi" {
  group "g" {
    volume "data" {
      type            = "csi"
      source          = "data"
      access_mode     = "single-node-writer"
      attachment_mode = "file-system"
    }
    task "t" {
      driver = "raw_exec"
      user   = "no-such-user"
      config {
        command = "/no/such/program"
      }
    }
  }
}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		command  []string
		want     string
		exitCode int
	}{
		{[]string{"validate"}, "Job validation successful", 0},
		{[]string{"plan"}, "missing CSI volume(s) data", 1}, // the exit code says that there are changes
		{[]string{"run", "-detach"}, "Job registration successful", 0},
	} {
		cmd := exec.Command(n.program, append(append([]string{"job"}, test.command...), file)...)
		cmd.Env = append(os.Environ(), "NOMAD_ADDR=unix://"+filepath.Join(n.dataDir, "nomad.sock"))
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != test.exitCode || !strings.Contains(string(out), test.want) || strings.Contains(string(out), "cannot run here") {
			t.Errorf("%v: %v\n%s", test.command, err, out)
		}
	}
}
