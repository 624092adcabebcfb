package jobfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/hcl/v2"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/runtime/job/jobspec"
)

// CheckReport is the JSON report of the checks of a job file. The checks write their errors and warnings to it instead
// of standard error.
type CheckReport struct {
	Valid       bool
	Diagnostics []Diagnostic
	Messages    []string // lines of text without a position, such as headings
}

// Diagnostic is an error or a warning, with its position if it concerns a part of a file.
type Diagnostic struct {
	Severity  string // "error" or "warning"
	ID        string `json:",omitempty"` // ID of a refusal in admission.RefusalKinds
	Text      string
	File      string `json:",omitempty"`
	Line      int    `json:",omitempty"` // from 1
	Column    int    `json:",omitempty"` // from 1
	EndLine   int    `json:",omitempty"`
	EndColumn int    `json:",omitempty"` // first column after the attribute or block
}

var (
	_ io.Writer              = (*CheckReport)(nil)
	_ jobspec.DiagnosticSink = (*CheckReport)(nil)
)

// NewCheckReport returns an empty report.
func NewCheckReport() *CheckReport {
	return &CheckReport{Diagnostics: []Diagnostic{}, Messages: []string{}} // lists are never null in JSON
}

// StreamsWritingToReport returns streams for a check: the check reads from s.In, and its output goes to the report.
func (r *CheckReport) StreamsWritingToReport(s *cli.Streams) *cli.Streams {
	return &cli.Streams{In: s.In, Out: r, Err: r, NoColour: true}
}

// PrintJSON prints the report as JSON. checkErr is the error with which the check has ended, or nil. PrintJSON returns
// an error with the exit code of the check.
func (r *CheckReport) PrintJSON(s *cli.Streams, checkErr error) error {
	r.Valid = checkErr == nil
	exitErr := &cli.ExitError{Code: cli.Failed.Number}
	if exit := new(cli.ExitError); errors.As(checkErr, &exit) {
		exitErr.Code, checkErr = exit.Code, exit.Err
	}
	if checkErr != nil {
		fmt.Fprintln(r, checkErr)
	}
	if err := output.PrintJSON(s, r); err != nil || r.Valid {
		return err
	}
	return exitErr
}

// Write adds each line of text that is not blank to Messages.
func (r *CheckReport) Write(text []byte) (int, error) {
	for line := range bytes.Lines(text) {
		if line = bytes.TrimSpace(line); len(line) > 0 {
			r.Messages = append(r.Messages, string(line))
		}
	}
	return len(text), nil
}

// AddDiagnostics adds errors and warnings with their positions to the report. It implements jobspec.DiagnosticSink.
func (r *CheckReport) AddDiagnostics(diags hcl.Diagnostics) {
	for _, diag := range diags {
		d := Diagnostic{Severity: "error", Text: diag.Summary}
		if diag.Severity == hcl.DiagWarning {
			d.Severity = "warning"
		}
		if id, isRefusal := diag.Extra.(printedRefusalID); isRefusal {
			d.ID = string(id)
		}
		if diag.Detail != "" {
			d.Text += "; " + diag.Detail
		}
		if at := diag.Subject; at != nil {
			d.File, d.Line, d.Column, d.EndLine, d.EndColumn = at.Filename, at.Start.Line, at.Start.Column, at.End.Line, at.End.Column
		}
		r.Diagnostics = append(r.Diagnostics, d)
	}
}
