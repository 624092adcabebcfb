package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/runtime/hookplugin"
	"github.com/nomad-lite/nomad-lite/runtime/jobspec"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
)

// jobFileFlags are the flags of commands that read a job file. They are Nomad's.
type jobFileFlags struct {
	vars     []string
	varFiles []string
	json     bool
	strict   bool
}

func (f *jobFileFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVar(&f.vars, "var", nil, "set a variable of the job file, as `name=value`; may be repeated")
	flags.StringArrayVar(&f.varFiles, "var-file", nil, "read variables from this `file`; may be repeated")
	flags.BoolVar(&f.json, "json", false, "the file is a job in the JSON form of the HTTP API")
	flags.BoolVar(&f.strict, "hcl2-strict", true, "refuse values for variables that the job file does not declare")
}

// oneJobFile accepts the arguments of a command that reads one job file.
func oneJobFile(cmd *cobra.Command, args []string) error {
	if len(args) == 1 {
		return nil
	}
	return usageError(cmd, errors.New("takes one argument: the path of a job file, or - for standard input"))
}

// jobFile is a parsed job and the source positions of its parts.
type jobFile struct {
	job    *api.Job
	file   *jobspec.File
	source []byte
}

// read reads and parses a job file. It prints diagnostics to standard error; its error then
// holds only the exit code.
func (f *jobFileFlags) read(s *streams, path string, code int) (*jobFile, error) {
	fail := func(err error) error {
		return &exitError{code, fmt.Errorf("Error getting job struct: %w", err)}
	}
	if f.json && len(f.vars)+len(f.varFiles) > 0 {
		//lint:ignore ST1005 the text is Nomad's
		return nil, &exitError{code, fmt.Errorf("Invalid job options: %w", jobspec.ErrVariablesWithJSON)}
	}
	for _, v := range f.vars {
		if !strings.Contains(v, "=") {
			fmt.Fprintf(s.err, "warning: -var %s is ignored: it has no value; write -var %s=value\n", v, v)
		}
	}
	text, name, err := readSource(s, path)
	if err != nil {
		return nil, fail(fmt.Errorf("Error reading job file from %s: %w", path, err))
	}
	if f.json {
		job, err := jobspec.ParseJSON(text)
		if err != nil {
			return nil, fail(fmt.Errorf("Error parsing job file from %s:\n%w", path, err))
		}
		return &jobFile{job, &jobspec.File{}, text}, nil
	}
	file, diags := jobspec.Parse(jobspec.Source{
		Name: name, Text: text, Vars: f.vars, VarFiles: f.varFiles, Environ: os.Environ(), Files: true, Strict: f.strict,
	})
	if diags.HasErrors() {
		fmt.Fprintf(s.err, "Error getting job struct: Error parsing job file from %s:\n", path)
	}
	if err := jobspec.WriteDiagnostics(s.err, diags, file.Texts); err != nil {
		return nil, err
	}
	if diags.HasErrors() {
		for _, diag := range diags {
			if name, unset := jobspec.UnsetVariable(diag); unset {
				fmt.Fprintf(s.err, "Set it: -var %s=VALUE, NOMAD_VAR_%s=VALUE in the environment, a line in a -var-file, or a default in the file\n", name, name)
			}
		}
		if regexp.MustCompile(`^\s*\{\s*"(Job|ID)"\s*:`).Match(text) {
			fmt.Fprintln(s.err, "This looks like the JSON form of the HTTP API: add -json")
		}
		return nil, &exitError{code: code}
	}
	return &jobFile{file.Job, file, text}, nil
}

// readSource returns the text of a job file and its name for diagnostics.
func readSource(s *streams, path string) (text []byte, name string, err error) {
	if path == "-" {
		text, err = io.ReadAll(io.LimitReader(s.in, jobspec.MaxText+1))
		return text, "stdin", err
	}
	if strings.Contains(path, "://") {
		return nil, "", errors.New("only files of this machine can be read: download it first, or pipe it in and name it -")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, "", errors.Unwrap(err)
	}
	text, err = io.ReadAll(io.LimitReader(f, jobspec.MaxText+1))
	return text, filepath.Base(path), errors.Join(err, f.Close())
}

// check brings the job into canonical form and prints all errors with their places in the
// file. It does not check whether the namespace exists, because only an agent has the list.
// It reports whether the job is valid.
func (j *jobFile) check(s *streams) (bool, error) {
	model.Canonicalize(j.job)
	if warnings := model.Warnings(j.job); len(warnings) > 0 {
		fmt.Fprintf(s.err, "Job Warnings:\n%s\n", strings.TrimRight(model.FormatWarnings(warnings), "\n"))
	}
	var namespaces []string
	if model.NamespaceNameFault(*j.job.Namespace) == nil {
		namespaces = append(namespaces, *j.job.Namespace)
	}
	invalid := model.Validate(j.job, namespaces...)
	if invalid == nil {
		return true, nil
	}
	fmt.Fprintf(s.err, "Job validation errors:\n%s\n", strings.TrimRight(invalid.Error(), "\n"))
	faults := model.Faults(invalid)
	places := make(hcl.Diagnostics, 0, len(faults))
	for _, fault := range faults {
		places = append(places, j.at(fault.Path, fault.Text+fault.Hint()))
	}
	return false, j.writePlaces(s, places)
}

// placed adds the place in the file to an error with which an agent has rejected the job.
func (j *jobFile) placed(refusal error) error {
	text := refusal.Error()
	var places hcl.Diagnostics
	for line := range strings.Lines(text) {
		path, reason, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if strings.HasPrefix(path, "group.") {
			places = append(places, j.at(strings.Split(path, "."), reason))
		}
	}
	model.Canonicalize(j.job)
	for _, fault := range model.Faults(model.Validate(j.job)) {
		if strings.Contains(text, fault.Text) {
			places = append(places, j.at(fault.Path, fault.Text+fault.Hint()))
		}
	}
	var b strings.Builder
	if err := j.writePlaces(&streams{err: &b}, places); err != nil || b.Len() == 0 {
		return refusal
	}
	return fmt.Errorf("%w\n%s", refusal, strings.TrimRight(b.String(), "\n"))
}

// refuse prints each part of a canonical job that this build cannot run, with its place in
// the file: in the foreground, or on an agent, which can wait. drivers are the names of the
// available drivers; nil means unknown. It reports whether the job can run.
func (j *jobFile) refuse(s *streams, drivers []string, foreground bool) (bool, error) {
	known := func(name string) bool { return drivers == nil || slices.Contains(drivers, name) }
	refusals := slices.DeleteFunc(model.UnsupportedParts(j.job, known, drivers...), func(r model.Unsupported) bool { return needsAgent(r) && !foreground })
	return j.report(s, "This job cannot run here:", append(refusals, model.UnknownPorts(j.job)...))
}

// needsAgent reports whether the refused part of a job runs on an agent.
func needsAgent(r model.Unsupported) bool { return r.Foreground && !r.Blocked }

// checkPorts reports port labels that do not exist, for commands that leave all other
// checks to an agent: Nomad's API accepts such labels.
func (j *jobFile) checkPorts(s *streams) (bool, error) {
	return j.report(s, "This job cannot run here:", model.UnknownPorts(j.job))
}

// warnOfForeground reports the parts of a job that only an agent runs.
func (j *jobFile) warnOfForeground(s *streams) error {
	var places hcl.Diagnostics
	for _, refusal := range model.UnsupportedParts(j.job, func(string) bool { return true }) {
		if needsAgent(refusal) {
			place := j.at(refusal.Path, "in the foreground (nomad-lite run), "+refusal.Reason)
			place.Severity = hcl.DiagWarning
			places = append(places, place)
		}
	}
	return j.writePlaces(s, places)
}

// checkNode reports the constraints of a valid canonical job that the node does not
// satisfy, with what the node has instead.
func (j *jobFile) checkNode(s *streams, heading string, node scheduler.Node) (bool, error) {
	var unmet []model.Unsupported
	for _, u := range scheduler.UnmetConstraints(j.job, node) {
		unmet = append(unmet, model.Unsupported{Path: u.Path, Reason: u.Err.Error()})
	}
	return j.report(s, heading, unmet)
}

// report prints refusals under a heading, with their places in the file. It returns true if
// there are none.
func (j *jobFile) report(s *streams, heading string, refusals []model.Unsupported) (bool, error) {
	if len(refusals) == 0 {
		return true, nil
	}
	fmt.Fprintln(s.err, heading)
	places := make(hcl.Diagnostics, 0, len(refusals))
	for _, refusal := range refusals {
		places = append(places, j.at(refusal.Path, refusal.Reason))
	}
	return false, jobspec.WriteDiagnostics(s.err, places, j.file.Texts)
}

// drivers returns the names of the drivers of the job's tasks.
func (j *jobFile) drivers() []string {
	var names []string
	eachTask(j.job, func(_ *api.TaskGroup, task *api.Task) { names = append(names, task.Driver) })
	slices.Sort(names)
	return slices.Compact(names)
}

// hooks returns the names of the hooks that take part in the job.
func (j *jobFile) hooks() []string {
	var names []string
	for _, at := range model.HookAttachments(j.job) {
		names = append(names, at.Hook)
	}
	names = append(names, hookplugin.BuiltinHooks(j.job)...)
	slices.Sort(names)
	return slices.Compact(names)
}

// eachTask calls do for each task of a job, which can be invalid.
func eachTask(job *api.Job, do func(*api.TaskGroup, *api.Task)) {
	for _, group := range job.TaskGroups {
		if group == nil {
			continue
		}
		for _, task := range group.Tasks {
			if task != nil {
				do(group, task)
			}
		}
	}
}

// at returns a diagnostic at a part of the job.
func (j *jobFile) at(path []string, text string) *hcl.Diagnostic {
	diag := &hcl.Diagnostic{Severity: hcl.DiagError, Summary: text}
	if rng, ok := j.file.Range(path...); ok {
		diag.Subject = &rng
	}
	return diag
}

// writePlaces prints the source positions of the errors in a list that has none. It prints
// nothing for a job without source text.
func (j *jobFile) writePlaces(s *streams, diags hcl.Diagnostics) error {
	var placed hcl.Diagnostics
	for _, diag := range diags {
		if diag.Subject != nil {
			placed = append(placed, diag)
		}
	}
	return jobspec.WriteDiagnostics(s.err, placed, j.file.Texts)
}
