package jobfile

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/builtin/rawexec"
	"github.com/nomad-lite/nomad-lite/builtin/template"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/cli"
	"github.com/nomad-lite/nomad-lite/plugins/process"
	"github.com/nomad-lite/nomad-lite/runtime/jobspec"
)

// CheckTemplates prints the errors in the texts of the job's templates, with their lines in the file. It
// does not check templates that a task reads from a file. It returns true if there are no errors.
func (j *File) CheckTemplates(s *cli.Streams) (bool, error) {
	var diags hcl.Diagnostics
	apiclient.ForEachTask(j.Job, func(group *api.TaskGroup, task *api.Task) {
		for i, t := range task.Templates {
			text := apiclient.Deref(t.EmbeddedTmpl)
			if err := template.CheckText(text, apiclient.Deref(t.LeftDelim), apiclient.Deref(t.RightDelim)); err != nil {
				path := append(taskPath(group, task), "template", strconv.Itoa(i), "data")
				diags = append(diags, j.newTemplateDiagnostic(path, err))
			}
		}
	})
	if len(diags) == 0 {
		return true, nil
	}
	fmt.Fprintln(s.Err, "Template errors:")
	return false, jobspec.WriteDiagnostics(s.Err, diags, j.File.SourceTexts)
}

func taskPath(group *api.TaskGroup, task *api.Task) []string {
	return []string{"group", apiclient.Deref(group.Name), "task", task.Name}
}

// newTemplateDiagnostic returns a diagnostic for an error in the text of a template. If the text is a
// heredoc, the position is a line of it, and otherwise the attribute.
func (j *File) newTemplateDiagnostic(path []string, err *template.TextError) *hcl.Diagnostic {
	diag := j.newDiagnostic(path, "template: "+err.Reason)
	if diag.Subject == nil {
		return diag
	}
	line, ok := heredocLine(j.File.SourceTexts[diag.Subject.Filename], *diag.Subject, err.Line)
	switch {
	case ok:
		diag.Subject = &line
	case err.Line > 0:
		diag.Summary = fmt.Sprintf("template, line %d: %s", err.Line, err.Reason)
	}
	return diag
}

// heredocLine returns the range of a line of the heredoc that is the value of an attribute, without
// leading blanks. It returns false if the value is no heredoc.
func heredocLine(source []byte, attribute hcl.Range, line int) (hcl.Range, bool) {
	lines := bytes.SplitAfter(source, []byte("\n"))
	first, number := attribute.Start.Line, attribute.Start.Line+line
	if line == 0 || number > len(lines) || number > attribute.End.Line || !bytes.Contains(lines[first-1], []byte("<<")) {
		return hcl.Range{}, false
	}
	offset := 0
	for _, before := range lines[:number-1] {
		offset += len(before)
	}
	text := bytes.TrimRight(lines[number-1], "\r\n")
	blanks := len(text) - len(bytes.TrimLeft(text, " \t"))
	return hcl.Range{
		Filename: attribute.Filename,
		Start:    hcl.Pos{Line: number, Column: blanks + 1, Byte: offset + blanks},
		End:      hcl.Pos{Line: number, Column: len(text) + 1, Byte: offset + len(text)},
	}, true
}

// CheckUsersAndCommands prints which users of raw_exec tasks do not exist on this machine, and warns of
// commands that do not. It returns true if all users exist.
func (j *File) CheckUsersAndCommands(s *cli.Streams) (bool, error) {
	var diags hcl.Diagnostics
	apiclient.ForEachTask(j.Job, func(group *api.TaskGroup, task *api.Task) {
		if task.Driver != rawexec.Name {
			return // another driver can have users and commands of its own, as in an image
		}
		if task.User != "" && !isInterpolated(task.User) {
			if _, err := process.LookupUser(task.User); err != nil {
				diags = append(diags, j.newDiagnostic(append(taskPath(group, task), "user"), fmt.Sprintf("user %q does not exist on this machine: %v", task.User, err)))
			}
		}
		if why := whyCommandIsMissing(task); why != "" {
			diags = append(diags, j.newWarning(append(taskPath(group, task), "config", "command"), why))
		}
	})
	if diags.HasErrors() {
		fmt.Fprintln(s.Err, "This job cannot run here:")
	}
	return !diags.HasErrors(), jobspec.WriteDiagnostics(s.Err, diags, j.File.SourceTexts)
}

func isInterpolated(text string) bool { return strings.Contains(text, "${") }

// whyCommandIsMissing returns why raw_exec will not find the command of a task on this machine, or "" if
// it can find it.
func whyCommandIsMissing(task *api.Task) string {
	command, _ := task.Config["command"].(string)
	path, searched := os.Getenv("PATH"), "PATH"
	if ownPath, hasOwn := task.Env["PATH"]; hasOwn {
		path, searched = ownPath, fmt.Sprintf("the task's PATH (%s)", ownPath)
	}
	switch {
	case command == "" || isInterpolated(command) || isInterpolated(path):
		return ""
	case filepath.IsAbs(command):
		if _, err := exec.LookPath(command); err != nil {
			return fmt.Sprintf("the command cannot be run on this machine: %v", err)
		}
		return ""
	case strings.Contains(command, "/") || len(task.Artifacts)+len(task.Templates) > 0:
		return "" // the command can be a file in the directory of the task
	}
	for _, dir := range filepath.SplitList(path) {
		if _, err := exec.LookPath(filepath.Join(dir, command)); err == nil && filepath.IsAbs(dir) {
			return ""
		}
	}
	return fmt.Sprintf("the command %q is not on this machine: it is in no directory of %s", command, searched)
}
