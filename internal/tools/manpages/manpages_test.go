package manpages

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestMain lets the test binary act as a program with two commands, one of which has a subcommand.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[len(os.Args)-1] == "-help" {
		text, found := map[string]string{
			"":        "prog runs things.\n\nUsage:\n  nomad-lite COMMAND\n\nThings:\n  job   Control 'jobs'\n  quit  Leave\n\nFlags:\n  -h, -help   help for prog\n\nRun 'nomad-lite COMMAND -help' for more about a command.\n",
			"job":     "Control jobs.\n\n.hidden files are read, and C:\\x…\n\nUsage:\n  nomad-lite job COMMAND\n\nCommands:\n  run   Run a job\n",
			"job run": "Run a job.\n\nUsage:\n  nomad-lite job run [flags] FILE\n\nExamples:\n  nomad-lite job run  a.hcl\n\nFlags:\n      -check-index index   refuse the job\n      -detach\n",
			"quit":    "Leave.\n\nUsage:\n  nomad-lite quit\n",
		}[strings.Join(os.Args[1:len(os.Args)-1], " ")]
		if !found {
			os.Exit(1)
		}
		os.Stdout.WriteString(text) //nolint:errcheck
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestGenerate(t *testing.T) {
	pages, err := Generate(t.Context(), os.Args[0], "0.1.0", time.Date(2026, 11, 25, 23, 0, 0, 0, time.FixedZone("", -7200)))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := slices.Sorted(maps.Keys(pages)), []string{"nomad-lite-job.1", "nomad-lite-quit.1", "nomad-lite.1"}; !slices.Equal(got, want) {
		t.Fatalf("pages %q, want %q", got, want)
	}
	const want = `.TH "NOMAD\-LITE\-JOB" 1 "2026\-11\-26" "nomad\-lite 0.1.0" "Manual of nomad\-lite"
.SH NAME
nomad\-lite\-job \- Control 'jobs'
.SH SYNOPSIS
.nf
  nomad\-lite job COMMAND
.fi
.SH DESCRIPTION
.nf
Control jobs.

\&.hidden files are read, and C:\ex\[u2026]
.fi
.SH "COMMANDS"
.TP
.B "run"
Run a job
.SH "JOB RUN"
.nf
Run a job.
.fi
.SS "Usage"
.nf
  nomad\-lite job run [flags] FILE
.fi
.SS "Examples"
.nf
  nomad\-lite job run  a.hcl
.fi
.SS "Flags"
.TP
.B "\-check\-index index"
refuse the job
.TP
.B "\-detach"

.SH SEE ALSO
.BR nomad\-lite (1)
`
	if got := string(pages["nomad-lite-job.1"]); got != want {
		t.Errorf("page of job:\n%s\nwant:\n%s", got, want)
	}
	if got := string(pages["nomad-lite.1"]); !strings.Contains(got, ".BR nomad\\-lite\\-job (1),\n.BR nomad\\-lite\\-quit (1)\n") {
		t.Errorf("the page of the program does not refer to both commands:\n%s", got)
	}
	checkRoff(t, pages)
}

// checkRoff lets groff check the pages, where it is installed.
func checkRoff(t *testing.T, pages map[string][]byte) {
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Log("without groff, which checks the pages: install groff-base")
		return
	}
	for name, text := range pages {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(groff, "-man", "-ww", "-z", path).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

func TestGenerateReportsFailures(t *testing.T) {
	if _, err := Generate(t.Context(), "/bin/false", "0.1.0", time.Now()); err == nil || !strings.Contains(err.Error(), "run /bin/false -help: exit status 1") {
		t.Errorf("a program that fails: %v", err)
	}
	if _, err := Generate(t.Context(), "/bin/echo", "0.1.0", time.Now()); err == nil || !strings.Contains(err.Error(), `help text of nomad-lite: no line "Usage:"`) {
		t.Errorf("a program that prints no help text: %v", err)
	}
}
