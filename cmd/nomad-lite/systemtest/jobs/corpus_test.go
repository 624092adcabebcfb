package jobs

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/jobfile"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// refusalReason is a reason for which `job validate` may refuse a job file of the corpus.
type refusalReason struct {
	name    string
	pattern string // regular expression for the text of an error
}

// corpusRefusals are the reasons that stay: a part of Nomad that this node cannot have, or an error of the
// job file.
var corpusRefusals = []refusalReason{
	{"Consul", `there is no Consul here`},
	{"Vault", `there is no Vault here`},
	{"CSI", `^a CSI plugin is not supported|^the CSI volume ".*" needs a directory of this machine`},
	{"does not fit on this machine", `^constraint ".*" (does not hold|allows 1 on one node)`},
	{"invalid in Nomad", `^task group count must not be less than minimum count in scaling policy$`},
}

// TestCorpusIsAccepted validates job files of Nomad's own tests and demos. The test logs the reasons for each
// refused file.
func TestCorpusIsAccepted(t *testing.T) {
	slowtest.Skip(t, "starts a process for each of hundreds of job files")
	files, err := filepath.Glob(filepath.Join(systemtest.SharedDirOrSkip(t, "corpus", "jobspecs"), "*.nomad.hcl"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no job files: %v", err)
	}
	config := writeCorpusConfig(t)
	refused := 0
	var table strings.Builder
	for _, path := range files {
		report := validateReport(t, path, config)
		if report.Valid {
			continue
		}
		refused++
		var names []string
		for _, d := range report.Diagnostics {
			if d.Severity != "error" {
				continue
			}
			i := slices.IndexFunc(corpusRefusals, func(r refusalReason) bool { return regexp.MustCompile(r.pattern).MatchString(d.Text) })
			if i < 0 {
				t.Errorf("%s:%d: %s", filepath.Base(path), d.Line, d.Text)
				continue
			}
			if !slices.Contains(names, corpusRefusals[i].name) {
				names = append(names, corpusRefusals[i].name)
			}
		}
		if len(names) == 0 {
			t.Errorf("%s is refused for no known reason: %q", filepath.Base(path), report.Messages)
		}
		fmt.Fprintf(&table, "%-68s %s\n", filepath.Base(path), strings.Join(names, ", "))
	}
	t.Logf("%d of %d job files are accepted; the others:\n%s", len(files)-refused, len(files), table.String())
}

// writeCorpusConfig writes the configuration of a node with the host volumes and the CNI network that the job
// files name, and returns its path.
func writeCorpusConfig(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	config := fmt.Sprintf("client {\n  cni_path = %q\n  cni_config_dir = %q\n", "/usr/lib/cni", dir)
	for _, volume := range []string{"host-nfs", "registered-volume", "shared_data"} {
		config += fmt.Sprintf("  host_volume %q {\n    path = %q\n  }\n", volume, dir)
	}
	path := filepath.Join(dir, "agent.hcl")
	for name, text := range map[string]string{
		path:                                    config + "}\n",
		filepath.Join(dir, "cni_args.conflist"): `{"cniVersion": "1.0.0", "name": "cni_args", "plugins": [{"type": "loopback"}]}`,
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// validateReport returns the report of `job validate` with a configuration and the plugins of this machine.
func validateReport(t *testing.T, path, config string) *jobfile.CheckReport {
	t.Helper()
	cmd := exec.Command("nomad-lite", "job", "validate", "-json-output", "-config", config, path)
	cmd.Env = append(cmd.Environ(), "NOMAD_ADDR=", "XDG_STATE_HOME="+t.TempDir(), "HOME="+t.TempDir())
	out, err := cmd.Output() // the exit code says the same as the report
	report := new(jobfile.CheckReport)
	if jsonErr := json.Unmarshal(out, report); jsonErr != nil {
		t.Fatalf("%s: %v, %v", path, err, jsonErr)
	}
	return report
}
