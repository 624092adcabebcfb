package jobcheck

import (
	"fmt"
	"slices"
	"testing"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/jobfile"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// Each reference is an argument of a task's config block.
func TestUnsetReferencesWarn(t *testing.T) {
	const fails = ": the task fails when it is started"
	image := map[string]*driver.Capabilities{"own": {FSIsolation: driver.FSIsolationImage}}
	host := EnvSources{InheritedHostEnv: map[string]string{"HOME": "/root"}}
	for _, c := range []struct {
		name, reference, group, task string // group and task are further blocks
		sources                      EnvSources
		want                         string
	}{
		{name: "a variable of each task", reference: "NOMAD_TASK_DIR", sources: host},
		{name: "a misspelt variable", reference: "NOMAD_TASK_DIRR", sources: host, want: fails + ". Did you mean ${NOMAD_TASK_DIR}?"},
		{name: "a port", reference: "NOMAD_PORT_http", group: "network {\n port \"http\" {}\n}", sources: host},
		{name: "a misspelt port", reference: "NOMAD_ADDR_htp", group: "network {\n port \"http\" {}\n}", sources: host, want: fails + ". Did you mean ${NOMAD_ADDR_http}?"},
		{name: "a port without a network", reference: "NOMAD_PORT_http", sources: host, want: fails + `. The group has no ports: write port "http" {} in its network block`},
		{name: "an address of a network namespace", reference: "NOMAD_ALLOC_ADDR_http", group: "network {\n mode = \"bridge\"\n port \"http\" {}\n}", sources: host},
		{name: "an address of a network namespace on the host", reference: "NOMAD_ALLOC_ADDR_http", group: "network {\n port \"http\" {}\n}", sources: host, want: fails + ". Did you mean ${NOMAD_ALLOC_PORT_http}?"},
		{name: "a port of the task", reference: "NOMAD_IPv6_db", task: "resources {\n network {\n port \"db\" {}\n }\n}", sources: host},
		{name: "a variable of the machine", reference: "HOME", sources: host},
		{name: "a variable that the machine does not have", reference: "NO_HOME", sources: host, want: fails},
		{name: "a variable of an unknown machine", reference: "NO_HOME"},
		{name: "a variable of Nomad's clients on an unknown machine", reference: "NOMAD_ADDR"},
		{name: "a variable of the machine in an image", reference: "HOME", task: `driver = "own"`, sources: EnvSources{CapabilitiesByDriver: image, InheritedHostEnv: host.InheritedHostEnv}, want: fails},
		{name: "a token of the task", reference: "NOMAD_TOKEN_db", task: "identity {\n name = \"db\"\n env = true\n}", sources: host},
		{name: "no token of the task", reference: "NOMAD_TOKEN_db", task: "identity {\n name = \"db\"\n file = true\n}", sources: host, want: fails},
		{name: "metadata", reference: "NOMAD_META_owner", group: "meta {\n owner = \"me\"\n}", sources: host},
		{name: "a hook of the agent", reference: "NO_HOME", sources: EnvSources{InheritedHostEnv: host.InheritedHostEnv, HasOperatorHooks: true}},
		{name: "a node's property", reference: "node.unique.name", sources: host},
		{name: "a node's attribute", reference: "attr.no.such", sources: host},
		{name: "a secret", reference: "secret.db.password", sources: host},
		{name: "an upstream of Connect", reference: "NOMAD_UPSTREAM_ADDR_db", group: "service {\n name = \"a\"\n connect {\n sidecar_service {}\n }\n}", sources: host},
	} {
		t.Run(c.name, func(t *testing.T) {
			task := c.task
			if task != `driver = "own"` {
				task += "\ndriver = \"raw_exec\""
			}
			file := parseFile(t, "j.nomad.hcl", fmt.Appendf(nil, "job \"j\" {\n group \"g\" {\n task \"t\" {\n config {\n  args = [\"${%s}\"]\n }\n%s\n }\n%s\n }\n}\n", c.reference, task, c.group))
			model.Canonicalize(file.Job)
			report := jobfile.NewCheckReport()
			if err := WarnUnsetReferences(file, &cli.Streams{Out: report, Err: report, NoColour: true}, c.sources); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, d := range report.Diagnostics {
				if d.Severity != "warning" || d.Line != 5 {
					t.Errorf("got %+v, want a warning in line 5", d)
				}
				got = append(got, d.Text)
			}
			var want []string
			if c.want != "" {
				want = append(want, "nothing sets ${"+c.reference+"}"+c.want)
			}
			if !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

// The variables that only a dispatch or a launch sets are known.
func TestReferencesOfChildJobsAreSet(t *testing.T) {
	file := parseFile(t, "j.nomad.hcl", []byte(`job "j" {
  type = "batch"
  parameterized {
    meta_required = ["to"]
    meta_optional = ["cc"]
  }
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        args = ["${NOMAD_META_to}", "${NOMAD_META_cc}", "${NOMAD_JOB_PARENT_ID}"]
      }
    }
  }
}`))
	model.Canonicalize(file.Job)
	report := jobfile.NewCheckReport()
	if err := WarnUnsetReferences(file, &cli.Streams{Out: report, Err: report, NoColour: true}, EnvSources{}); err != nil || len(report.Diagnostics) > 0 {
		t.Errorf("got %+v, %v", report.Diagnostics, err)
	}
}
