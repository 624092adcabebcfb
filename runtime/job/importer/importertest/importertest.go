// Package importertest has the checks that the tests of all conversions share.
package importertest

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/golden"
	"github.com/nomad-lite/nomad-lite/runtime/job/admission"
	"github.com/nomad-lite/nomad-lite/runtime/job/importer"
	"github.com/nomad-lite/nomad-lite/runtime/job/jobspec"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// CheckJob fails the test unless a job file is formatted, parses without warnings, and is accepted.
func CheckJob(t testing.TB, text []byte) {
	t.Helper()
	job := CheckParses(t, text)
	model.Canonicalize(job)
	check := admission.Check(context.Background(), job, admission.Node{}, admission.CheckOptions{})
	if check.IsRejected() {
		t.Fatalf("the job is rejected: %v %v\n%s", check.ValidationErr, check.Refusals, text)
	}
}

// CheckParses fails the test unless a job file is formatted and parses without warnings. It returns the job.
func CheckParses(t testing.TB, text []byte) *api.Job {
	t.Helper()
	formatted, diags := jobspec.Format(text, "job.nomad.hcl")
	if diags.HasErrors() {
		t.Fatalf("%v\n%s", diags, text)
	}
	if !bytes.Equal(formatted, text) {
		t.Errorf("the job is not formatted: %s", text)
	}
	parsed, diags := jobspec.Parse(jobspec.ParseInput{Text: text, DiagnosticFileName: "job.nomad.hcl"})
	if len(diags) > 0 {
		t.Fatalf("%v\n%s", diags, text)
	}
	return parsed.Job
}

// CompareGolden compares a result with the files want.nomad.hcl and want.warnings of a directory. The absolute path of the
// directory is replaced by /srv/ and its name.
func CompareGolden(t *testing.T, dir string, result *importer.Result) {
	t.Helper()
	var warnings strings.Builder
	for _, w := range result.Warnings {
		warnings.WriteString(w.String() + "\n")
	}
	if len(result.AgentConfig) > 0 {
		warnings.WriteString("\nThe agent needs:\n" + string(result.AgentConfig))
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	paths := strings.NewReplacer(abs, "/srv/"+filepath.Base(dir), dir+"/", "")
	for name, text := range map[string]string{"want.nomad.hcl": string(result.Job), "want.warnings": warnings.String()} {
		golden.Check(t, filepath.Join(dir, name), paths.Replace(text))
	}
}
