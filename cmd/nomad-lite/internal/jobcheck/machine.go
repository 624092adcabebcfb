package jobcheck

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/builtin/rawexec"
	"github.com/nomad-lite/nomad-lite/builtin/template"
	"github.com/nomad-lite/nomad-lite/builtin/template/evaluate"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/jobfile"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/internal/taskuser"
	"github.com/nomad-lite/nomad-lite/runtime/job/fileaccess"
	"github.com/nomad-lite/nomad-lite/runtime/job/jobspec"
)

// CheckTemplatesUsersCommands prints the errors in a job's templates. If the job runs on this machine, it also prints
// which users and commands of the job's tasks the machine does not have. It returns true if there are no errors.
func CheckTemplatesUsersCommands(j *jobfile.File, s *cli.Streams, jobRunsOnThisMachine bool) (noErrors bool, err error) {
	templatesParse, err := checkTemplates(j, s, jobRunsOnThisMachine)
	if err != nil || !jobRunsOnThisMachine {
		return templatesParse, err
	}
	usersExist, err := checkRawExecUsersAndCommands(j, s)
	return templatesParse && usersExist, err
}

// checkTemplates prints the errors in the texts of the job's templates, with their lines in the job file or in the
// template's source. If the job runs on this machine, it reads sources that are absolute paths. It reads no other
// source, because the source can be created in the task's directory later.
func checkTemplates(j *jobfile.File, s *cli.Streams, jobRunsOnThisMachine bool) (noErrors bool, err error) {
	var diags hcl.Diagnostics
	texts := make(map[string][]byte)
	maps.Copy(texts, j.Parsed.SourceTextByFileName)
	apiclient.ForEachTask(j.Job, func(group *api.TaskGroup, task *api.Task) {
		for i, t := range task.Templates {
			path := append(jobfile.TaskBlockPath(group, task), "template", strconv.Itoa(i))
			text := pointer.Value(t.EmbeddedTmpl)
			for _, err := range checkTemplateText(t, text) {
				diags = append(diags, newTemplateDiagnostic(j, append(path, "data"), hcl.DiagError, err))
			}
			if pointer.Value(t.Envvars) {
				for _, loss := range template.EnvLosses(text) {
					diags = append(diags, newTemplateDiagnostic(j, append(path, "data"), hcl.DiagWarning, newEnvLossError(loss)))
				}
			}
			source := pointer.Value(t.SourcePath)
			if !jobRunsOnThisMachine || !filepath.IsAbs(source) || isInterpolated(source) {
				continue
			}
			sourceText, err := j.ReadFile(source)
			refusal := new(fileaccess.RefusedError)
			switch {
			case errors.Is(err, fs.ErrNotExist):
				diags = append(diags, j.NewWarningDiagnostic(append(path, "source"), "the source of the template is not on this machine: "+err.Error()))
			case errors.As(err, &refusal):
				diags = append(diags, j.NewWarningDiagnostic(append(path, "source"), "the source of the template is not checked: "+err.Error()))
			}
			for _, err := range checkTemplateText(t, string(sourceText)) {
				diags = append(diags, newTemplateSourceDiagnostic(source, sourceText, err))
				texts[source] = sourceText
			}
		}
	})
	if diags.HasErrors() {
		fmt.Fprintln(s.Err, "Template errors:")
	}
	return !diags.HasErrors(), jobspec.WriteDiagnostics(s.Err, diags, texts)
}

func checkTemplateText(t *api.Template, text string) []evaluate.TextError {
	return evaluate.CheckText(text, pointer.Value(t.LeftDelim), pointer.Value(t.RightDelim))
}

// newEnvLossError describes a line of an env file that loses characters.
func newEnvLossError(l template.EnvLoss) evaluate.TextError {
	return evaluate.TextError{Line: l.Line, Reason: fmt.Sprintf(
		"the variable %s gets the value %s: quotes are removed, and # starts a comment. Write %s", l.Name, l.Value, strconv.Quote(l.Written))}
}

// newTemplateDiagnostic returns a diagnostic for an error in the text of a template in the job file. Its position is a
// line of the text if that is a heredoc, and else the attribute with the text.
func newTemplateDiagnostic(j *jobfile.File, attributePath []string, severity hcl.DiagnosticSeverity, err evaluate.TextError) *hcl.Diagnostic {
	diag := j.NewErrorDiagnostic(attributePath, "template: "+err.Reason)
	diag.Severity = severity
	if diag.Subject == nil {
		return diag
	}
	source, attribute := j.Parsed.SourceTextByFileName[diag.Subject.Filename], *diag.Subject
	number := attribute.Start.Line + err.Line
	switch {
	case err.Line > 0 && number <= attribute.End.Line && isHeredoc(source, attribute):
		diag.Subject = rangeOfLine(attribute.Filename, source, number)
	case err.Line > 0:
		diag.Summary = fmt.Sprintf("template, line %d: %s", err.Line, err.Reason)
	}
	return diag
}

// newTemplateSourceDiagnostic returns a diagnostic for an error in the source file of a template.
func newTemplateSourceDiagnostic(sourcePath string, text []byte, err evaluate.TextError) *hcl.Diagnostic {
	return &hcl.Diagnostic{Severity: hcl.DiagError, Summary: "template: " + err.Reason, Subject: rangeOfLine(sourcePath, text, max(err.Line, 1))}
}

func isHeredoc(source []byte, attribute hcl.Range) bool {
	lines := bytes.Split(source, []byte("\n"))
	return attribute.End.Line <= len(lines) && bytes.Contains(lines[attribute.Start.Line-1], []byte("<<"))
}

// rangeOfLine returns the range of the line with this number, without its leading blanks. A number after the last line
// means the last line.
func rangeOfLine(fileName string, source []byte, lineNumber int) *hcl.Range {
	lines := bytes.SplitAfter(source, []byte("\n"))
	lineNumber = min(lineNumber, len(lines))
	offset := len(bytes.Join(lines[:lineNumber-1], nil))
	text := bytes.TrimRight(lines[lineNumber-1], "\r\n")
	blanks := len(text) - len(bytes.TrimLeft(text, " \t"))
	return &hcl.Range{
		Filename: fileName,
		Start:    hcl.Pos{Line: lineNumber, Column: blanks + 1, Byte: offset + blanks},
		End:      hcl.Pos{Line: lineNumber, Column: len(text) + 1, Byte: offset + len(text)},
	}
}

// checkRawExecUsersAndCommands prints which users of raw_exec tasks do not exist on this machine, and warns of
// commands that do not. It returns true if all users exist.
func checkRawExecUsersAndCommands(j *jobfile.File, s *cli.Streams) (noErrors bool, err error) {
	var diags hcl.Diagnostics
	apiclient.ForEachTask(j.Job, func(group *api.TaskGroup, task *api.Task) {
		if task.Driver != rawexec.Name {
			return // another driver can have users and commands of its own, as in an image
		}
		if task.User != "" && !isInterpolated(task.User) {
			if _, err := taskuser.Lookup(task.User); err != nil {
				reason := err.Error()
				if errors.As(err, new(user.UnknownUserError)) {
					reason = fmt.Sprintf("user %q does not exist on this machine", task.User)
				}
				diags = append(diags, j.NewErrorDiagnostic(append(jobfile.TaskBlockPath(group, task), "user"), reason))
			}
		}
		if why := missingRawExecCommandReason(task); why != "" {
			diags = append(diags, j.NewWarningDiagnostic(append(jobfile.TaskBlockPath(group, task), "config", "command"), why))
		}
	})
	if diags.HasErrors() {
		fmt.Fprintln(s.Err, "This job cannot run here:")
	}
	return !diags.HasErrors(), jobspec.WriteDiagnostics(s.Err, diags, j.Parsed.SourceTextByFileName)
}

func isInterpolated(text string) bool { return strings.Contains(text, "${") }

// missingRawExecCommandReason returns why raw_exec will not find the command of a task on this machine, or "" if
// it can find it.
func missingRawExecCommandReason(task *api.Task) string {
	command, _ := task.Config["command"].(string)
	path, searched := os.Getenv("PATH"), "PATH"
	if ownPath, hasOwn := task.Env["PATH"]; hasOwn {
		path, searched = ownPath, fmt.Sprintf("the task's PATH (%s)", ownPath)
	}
	switch {
	case command == "" || isInterpolated(command) || isInterpolated(path):
		return ""
	case filepath.IsAbs(command):
		_, err := exec.LookPath(command)
		switch {
		case err == nil:
			return ""
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Sprintf("the command %q is not on this machine", command)
		}
		return fmt.Sprintf("the command %q cannot be run on this machine: %v", command, errors.Unwrap(err))
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
