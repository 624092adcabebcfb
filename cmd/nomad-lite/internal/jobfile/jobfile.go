package jobfile

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/agentsocket"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/job/admission"
	"github.com/nomad-lite/nomad-lite/runtime/job/fileaccess"
	"github.com/nomad-lite/nomad-lite/runtime/job/jobspec"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// Flags are Nomad's flags of commands that read a job file.
type Flags struct {
	Vars       []string
	VarFiles   []string
	FileIsJSON bool
	HCL2Strict bool
	// AllowedFiles are the files and directories that the functions of the job file may read in addition.
	AllowedFiles []string
	// DataDirs are data directories that the command's other flags name. No job file may read them.
	DataDirs []string
}

// allowFileEnvVar has more paths of the flag -allow-file, separated like those of PATH.
const allowFileEnvVar = "NOMAD_LITE_ALLOW_FILE"

// Register adds the flags to a command.
func (f *Flags) Register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVar(&f.Vars, "var", nil, "set a variable of the job file, as `name=value`; may be repeated")
	flags.StringArrayVar(&f.VarFiles, "var-file", nil, "read variables from this `file`; may be repeated")
	flags.BoolVar(&f.FileIsJSON, "json", false, "the file is a job in the JSON form of the HTTP API")
	flags.StringArrayVar(&f.AllowedFiles, "allow-file", nil, "let the functions of the job file read this `path`, and what is below it; may be repeated; "+allowFileEnvVar+" has more, separated like PATH")
	flags.BoolVar(&f.HCL2Strict, "hcl2-strict", true, "refuse values for variables that the job file does not declare")
}

// RequireOneFileArg is a cobra.PositionalArgs function for a command that reads one job file.
func RequireOneFileArg(cmd *cobra.Command, args []string) error {
	if len(args) == 1 {
		return nil
	}
	return cli.UsageError(cmd, errors.New("takes one argument: the path or the URL of a job file, or - for standard input"))
}

// File is a parsed job and the source positions of its attributes and blocks.
type File struct {
	Job        *api.Job
	Parsed     *jobspec.ParsedFile
	SourceText []byte

	// jsonFilePath is the path of a job file in JSON, and "" for HCL. The attributes and blocks of a job in JSON have
	// no source positions.
	jsonFilePath string
	files        *fileaccess.Reader
}

// ReadFile returns the content of a file that the job names, if the functions of the job file may read it. The error of
// a file that does not exist is fs.ErrNotExist, and that of a file that the job may not read a fileaccess.RefusedError.
func (fi *File) ReadFile(path string) ([]byte, error) {
	return fi.files.ReadFile(path, jobspec.MaxTextSize)
}

// Read reads and parses a job file, and prints warnings and errors to standard error. The returned error has the exit
// code onError.
func (f *Flags) Read(s *cli.Streams, pathOrURL string, onError *cli.ExitCode) (*File, error) {
	fail := func(err error) error {
		//lint:ignore ST1005 the text is Nomad's
		return &cli.ExitError{Code: onError.Number, Err: fmt.Errorf("Error getting job struct: %w", err)}
	}
	if f.FileIsJSON && len(f.Vars)+len(f.VarFiles) > 0 {
		//lint:ignore ST1005 the text is Nomad's
		return nil, &cli.ExitError{Code: onError.Number, Err: fmt.Errorf("Invalid job options: %w", jobspec.ErrVariablesWithJSON)}
	}
	for _, v := range f.Vars {
		if !strings.Contains(v, "=") {
			fmt.Fprintf(s.Err, "warning: -var %s is ignored: it has no value; write -var %s=value\n", v, v)
		}
	}
	text, name, err := readJobFileSource(s, pathOrURL)
	if err != nil {
		//lint:ignore ST1005 the text is Nomad's
		return nil, fail(fmt.Errorf("Error reading job file from %s: %w", pathOrURL, err))
	}
	files := f.newFileReader(pathOrURL)
	if f.FileIsJSON {
		job, err := jobspec.ParseJSON(text)
		if err != nil {
			//lint:ignore ST1005 the text is Nomad's
			return nil, fail(fmt.Errorf("Error parsing job file from %s:\n%w", pathOrURL, err))
		}
		return &File{Job: job, Parsed: &jobspec.ParsedFile{}, SourceText: text, jsonFilePath: name, files: files}, nil
	}
	file, diags := jobspec.Parse(jobspec.ParseInput{
		DiagnosticFileName: name, Text: text, VarAssignments: f.Vars, VarFilePaths: f.VarFiles, Environ: os.Environ(), Files: files, RejectsUndeclaredVariables: f.HCL2Strict,
	})
	if diags.HasErrors() {
		fmt.Fprintf(s.Err, "Error getting job struct: Error parsing job file from %s:\n", pathOrURL)
	}
	if err := jobspec.WriteDiagnostics(s.Err, diags, file.SourceTextByFileName); err != nil {
		return nil, err
	}
	if diags.HasErrors() {
		for _, diag := range diags {
			if name, unset := jobspec.UnsetVariableName(diag); unset {
				fmt.Fprintf(s.Err, "Set it: -var %s=VALUE, NOMAD_VAR_%s=VALUE in the environment, a line in a -var-file, or a default in the file\n", name, name)
			}
		}
		if regexp.MustCompile(`^\s*\{\s*"(Job|ID)"\s*:`).Match(text) {
			fmt.Fprintln(s.Err, "This looks like the JSON form of the HTTP API: add -json")
		}
		return nil, &cli.ExitError{Code: onError.Number}
	}
	return &File{Job: file.Job, Parsed: file, SourceText: text, files: files}, nil
}

// newFileReader returns the reader for the functions of a job file.
func (f *Flags) newFileReader(pathOrURL string) *fileaccess.Reader {
	policy := fileaccess.Policy{AllowedPaths: append(slices.Clip(f.AllowedFiles), filepath.SplitList(os.Getenv(allowFileEnvVar))...), ForbiddenDirs: slices.Clone(f.DataDirs)}
	switch {
	case pathOrURL == "-":
		policy.Source = fileaccess.FromStdin
	case isURL(pathOrURL):
		policy.Source = fileaccess.FromURL
	default:
		policy.JobFileDir = filepath.Dir(pathOrURL)
	}
	for _, socket := range append(agentsocket.DefaultSocketPaths(), strings.TrimPrefix(os.Getenv("NOMAD_ADDR"), "unix://")) {
		if filepath.IsAbs(socket) {
			policy.ForbiddenDirs = append(policy.ForbiddenDirs, filepath.Dir(socket))
		}
	}
	return fileaccess.NewReader(policy)
}

func isURL(pathOrURL string) bool { return strings.Contains(pathOrURL, "://") }

// readJobFileSource returns the text of a job file and its name in diagnostics. The name is the path as the user has
// typed it, so that an editor finds the file.
func readJobFileSource(s *cli.Streams, pathOrURL string) (text []byte, nameInDiagnostics string, err error) {
	if pathOrURL == "-" {
		text, err = io.ReadAll(io.LimitReader(s.In, jobspec.MaxTextSize+1))
		return text, "stdin", err
	}
	if isURL(pathOrURL) {
		text, err = downloadJobFile(pathOrURL)
		return text, pathOrURL, err
	}
	f, err := os.Open(pathOrURL)
	if err != nil {
		return nil, "", errors.Unwrap(err)
	}
	text, err = io.ReadAll(io.LimitReader(f, jobspec.MaxTextSize+1))
	return text, pathOrURL, errors.Join(err, f.Close())
}

// downloadTimeout limits the download of a job file.
const downloadTimeout = 30 * time.Second

// downloadJobFile returns the text of the job file at a URL.
func downloadJobFile(address string) ([]byte, error) {
	location, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	if location.Scheme != "http" && location.Scheme != "https" {
		return nil, fmt.Errorf("a job file can be a file, - for standard input, or at an address with http or https, and not %s: download it first", location.Scheme)
	}
	client := &http.Client{Timeout: downloadTimeout}
	answer, err := client.Get(address)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the server answered %s", answer.Status)
	}
	return io.ReadAll(io.LimitReader(answer.Body, jobspec.MaxTextSize+1))
}

// AddSourceLinesToError appends source lines of the job file to the error with which an agent has rejected the job, if
// the error is about an attribute or block in the file.
func (fi *File) AddSourceLinesToError(agentErr error) error {
	text := agentErr.Error()
	var diags hcl.Diagnostics
	for line := range strings.Lines(text) {
		path, reason, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if looksLikeJobPath(path) {
			diags = append(diags, fi.NewErrorDiagnostic(strings.Split(path, "."), reason))
		}
	}
	if isRegionError(agentErr) && fi.Job.Region != nil {
		diags = append(diags, fi.NewErrorDiagnostic([]string{"region"}, fi.wrongRegionReason()))
	}
	model.Canonicalize(fi.Job)
	for _, fault := range fi.faultsFoundByAnyAgent() {
		if strings.Contains(text, fault.Text) {
			diags = append(diags, fi.NewErrorDiagnostic(fault.Path, fault.Text+fault.Hint()))
		}
	}
	var b strings.Builder
	if err := fi.printDiagnosticsWithPositionDropOthers(&cli.Streams{Err: &b}, diags); err != nil || b.Len() == 0 {
		return agentErr
	}
	return fmt.Errorf("%w\n%s", agentErr, strings.TrimRight(b.String(), "\n"))
}

// DriverNames returns the names of the drivers of the job's tasks.
func (fi *File) DriverNames() []string { return admission.DriverNames(fi.Job) }

// RequestsDevices reports whether a task of the job requests devices.
func (fi *File) RequestsDevices() bool {
	requests := false
	apiclient.ForEachTask(fi.Job, func(_ *api.TaskGroup, task *api.Task) {
		requests = requests || task.Resources != nil && len(task.Resources.Devices) > 0
	})
	return requests
}

// NewErrorDiagnostic returns an error diagnostic at the attribute or block of the job that jobPath names. If the file
// has no source position for it, the text of the diagnostic starts with jobPath.
func (fi *File) NewErrorDiagnostic(jobPath []string, text string) *hcl.Diagnostic {
	diag := &hcl.Diagnostic{Severity: hcl.DiagError, Summary: text}
	if rng, ok := fi.Parsed.InnermostRange(jobPath...); ok {
		diag.Subject = &rng
	} else if len(jobPath) > 0 {
		diag.Summary = strings.Join(jobPath, ".") + ": " + text
		if fi.jsonFilePath != "" {
			diag.Summary = fi.jsonFilePath + ": " + diag.Summary
		}
	}
	return diag
}

// sourceByteOffset returns the offset of a diagnostic in the job file, or -1 if it has no position.
func sourceByteOffset(diag *hcl.Diagnostic) int {
	if diag.Subject == nil {
		return -1
	}
	return diag.Subject.Start.Byte
}

// sortByPosition sorts diagnostics by their position in the file. Diagnostics without a position come first.
func sortByPosition(diags hcl.Diagnostics) {
	slices.SortStableFunc(diags, func(a, b *hcl.Diagnostic) int {
		return cmp.Compare(sourceByteOffset(a), sourceByteOffset(b))
	})
}

// NewWarningDiagnostic returns the diagnostic of NewErrorDiagnostic as a warning.
func (fi *File) NewWarningDiagnostic(jobPath []string, text string) *hcl.Diagnostic {
	diag := fi.NewErrorDiagnostic(jobPath, text)
	diag.Severity = hcl.DiagWarning
	return diag
}

// printDiagnosticsWithPositionDropOthers prints only the diagnostics that have a position in the job file, with the lines of
// the file.
func (fi *File) printDiagnosticsWithPositionDropOthers(s *cli.Streams, diags hcl.Diagnostics) error {
	var diagsWithSource hcl.Diagnostics
	for _, diag := range diags {
		if diag.Subject != nil {
			diagsWithSource = append(diagsWithSource, diag)
		}
	}
	return jobspec.WriteDiagnostics(s.Err, diagsWithSource, fi.Parsed.SourceTextByFileName)
}

// TaskBlockPath returns the path of a task's block, for NewErrorDiagnostic.
func TaskBlockPath(group *api.TaskGroup, task *api.Task) []string {
	return []string{"group", pointer.Value(group.Name), "task", task.Name}
}
