package jobfile

import (
	"testing"

	"github.com/nomad-lite/nomad-lite/runtime/job/jobspec"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

func TestFormatWarningsShowsEachWarningOnce(t *testing.T) {
	const text = `
job "web" {
  group "a" {
    network {
      mbits = 1
    }
    task "t" {
      driver = "raw_exec"
      resources {
        iops = 3
      }
    }
    task "u" {
      driver = "raw_exec"
      resources {
        iops = 3
      }
    }
  }
  group "b" {
    network {
      mbits = 1
    }
    task "t" {
      driver = "raw_exec"
      resources {
        memory_max = 500
      }
    }
  }
}`
	file, diags := jobspec.Parse(jobspec.ParseInput{DiagnosticFileName: "web.nomad.hcl", Text: []byte(text)})
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	model.Canonicalize(file.Job)
	const want = `* mbits has been deprecated as of Nomad 0.12.0. Please remove mbits from the network block (group "a"; group "b")
* IOPS has been deprecated as of Nomad 0.9.0. Please remove IOPS from resource block. (group "a", task "t"; group "a", task "u")
* Memory oversubscription is not enabled; Task "b.t" memory_max value will be ignored. Update the Scheduler Configuration to allow oversubscription.`
	if got := FormatAPIWarnings(model.FormatWarnings(model.Warnings(file.Job, model.NewDefaultSchedulerConfig()))); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := FormatAPIWarnings(""); got != "" {
		t.Errorf("without warnings: %q", got)
	}
}
