package jobs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// clusterPartJob is a job with a block in each place. The blocks of the job are at line 2, those of the group at line 4, and those of
// the task at line 8.
const clusterPartJob = `job "a" {
  %s
  group "g" {
    %s
    task "t" {
      driver = "raw_exec"
      config { command = "/bin/true" }
      %s
    }
  }
}
`

// TestPartsOfClustersAreRefused checks that each part of a job that needs Nomad Enterprise, or a system that a single node does not
// have, is refused by "job validate" with its place and the reason, or named in a warning if Nomad accepts it without the system.
func TestPartsOfClustersAreRefused(t *testing.T) {
	t.Parallel()
	const refused = 1
	for name, c := range map[string]struct {
		job, group, task string
		exitCode         int
		want             string // regular expression; "" means that the job is accepted without a warning
	}{
		"multiregion":               {job: "multiregion {\n region \"a\" {}\n }", exitCode: refused, want: `:2,3-14: Multiregion jobs are unlicensed\.`},
		"another region":            {job: `region = "eu"`, want: `:2,3-16: .* the region "eu" does not exist`},
		"another node pool":         {job: `node_pool = "x"`, exitCode: refused, want: `:2,3-18: job "a" is in nonexistent node pool "x"`},
		"vault of the job":          {job: "vault {\n role = \"x\"\n }", exitCode: refused, want: `:2,3-8: Vault "default" not enabled but used in the job`},
		"vault of the group":        {group: "vault {\n role = \"x\"\n }", exitCode: refused, want: `:4,5-10: Vault "default" not enabled`},
		"vault of the task":         {task: "vault {\n role = \"x\"\n }", exitCode: refused, want: `:8,7-12: Vault "default" not enabled`},
		"vault of another cluster":  {task: "vault {\n role = \"x\"\n cluster = \"y\"\n }", exitCode: refused, want: `:8,7-12: non-default Vault cluster requires Nomad Enterprise`},
		"consul of a group":         {group: "consul {\n cluster = \"x\"\n }", exitCode: refused, want: `:4,5-11: non-default Consul cluster requires Nomad Enterprise`},
		"consul of a task":          {task: "consul {\n cluster = \"x\"\n }", exitCode: refused, want: `:8,7-13: non-default Consul cluster requires Nomad Enterprise`},
		"consul of a service":       {group: "service {\n cluster = \"x\"\n }", exitCode: refused, want: `:4,5-12: non-default Consul cluster requires Nomad Enterprise`},
		"namespace of consul":       {group: "consul {\n namespace = \"x\"\n }", want: `:4,5-11: consul has no effect on a single node`},
		"partition of consul":       {group: "consul {\n partition = \"x\"\n }", want: `:4,5-11: consul has no effect on a single node`},
		"service of consul":         {group: "service {}", want: `:4,5-12: There is no Consul here: the node registers service ".*" of provider consul`},
		"namespace for a service":   {group: "consul {\n namespace = \"x\"\n }\n service {}", exitCode: refused, want: `:5,2-17: the namespace "x" of Consul is not supported`},
		"connect":                   {group: "network {\n mode = \"bridge\"\n }\n service {\n connect {\n sidecar_service {}\n }\n }", exitCode: refused, want: `:8,2-9: Consul Connect is not supported`},
		"kind of connect":           {task: `kind = "connect-proxy:x"`, exitCode: refused, want: `:8,7-31: No Connect services in task group`},
		"a CSI volume":              {group: "volume \"v\" {\n type = \"csi\"\n source = \"x\"\n access_mode = \"single-node-writer\"\n attachment_mode = \"file-system\"\n }", exitCode: refused, want: `:4,5-15: the CSI volume "x" needs a directory of this machine in its place`},
		"a CSI plugin":              {task: "csi_plugin {\n id = \"x\"\n type = \"node\"\n }", exitCode: refused, want: `:8,7-17: a CSI plugin is not supported`},
		"a schedule":                {task: "schedule {\n cron {\n start = \"0 8 * * * *\"\n end = \"0 18\"\n timezone = \"UTC\"\n }\n }", exitCode: refused, want: `:8,7-15: task schedules requires Nomad Enterprise`},
		"numa none":                 {task: "resources {\n numa {\n affinity = \"none\"\n }\n }"},
		"numa without an affinity":  {task: "resources {\n numa {}\n }"},
		"numa prefer":               {task: "resources {\n numa {\n affinity = \"prefer\"\n }\n }", exitCode: refused, want: `:9,2-6: numa scheduling requires Nomad Enterprise`},
		"numa require":              {task: "resources {\n numa {\n affinity = \"require\"\n }\n }", exitCode: refused, want: `:9,2-6: numa scheduling requires Nomad Enterprise`},
		"numa of a device":          {task: "resources {\n device \"gpu\" {}\n numa {\n affinity = \"require\"\n devices = [\"gpu\"]\n }\n }", exitCode: refused, want: `:10,2-6: numa scheduling requires Nomad Enterprise`},
		"numa of an unknown device": {task: "resources {\n numa {\n affinity = \"none\"\n devices = [\"gpu\"]\n }\n }", exitCode: refused, want: `:9,2-6: numa device "gpu" not requested as task resource`},
		"a secret of Vault":         {task: "secret \"x\" {\n provider = \"vault\"\n path = \"a\"\n }", exitCode: refused, want: `:9,2-20: the secret provider "vault" is not supported`},
		"a template of Vault":       {task: "template {\n data = \"{{ with secret `x` }}{{ end }}\"\n destination = \"local/x\"\n }", exitCode: refused, want: `:9,2-[0-9]+: template, line 1: function "secret": there is no Vault here`},
		"claims of an identity":     {task: "identity {\n name = \"x\"\n aud = [\"a\"]\n extra_claims = [\"b\"]\n }", exitCode: refused, want: `:8,7-15: identity "x" with extra_claims is not supported`},
		"scaling of a task":         {task: "scaling \"cpu\" {\n min = 1\n max = 2\n policy {}\n }", want: `: scaling has no effect on a single node`},
		"per_alloc":                 {group: "volume \"v\" {\n type = \"host\"\n source = \"x\"\n per_alloc = true\n }", exitCode: refused, want: `:4,5-15: this node has no host volume "x\[0\]"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "job.nomad.hcl")
			if err := os.WriteFile(file, fmt.Appendf(nil, clusterPartJob, c.job, c.group, c.task), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("nomad-lite", "job", "validate", file)
			cmd.Env = append(os.Environ(), "NOMAD_ADDR=http://127.0.0.1:1") // no agent
			out, _ := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != c.exitCode {
				t.Errorf("exit code %d, want %d", code, c.exitCode)
			}
			switch {
			case c.want == "" && strings.Contains(string(out), "Warning"):
				t.Errorf("a warning:\n%s", out)
			case !regexp.MustCompile(c.want).Match(out):
				t.Errorf("want %s, got\n%s", c.want, out)
			}
		})
	}
}
