package jobspec

import (
	"fmt"
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/dynblock"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/nomad/api"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"

	"github.com/nomad-lite/nomad-lite/runtime/job/fileaccess"
)

// ParseInput is the text of a job and all other inputs of the parser.
type ParseInput struct {
	// DiagnosticFileName is the file name in diagnostics: a path, "stdin", or another name of the caller's choice.
	DiagnosticFileName string
	// Text is native HCL, or HCL's JSON profile if its first byte that is not a space is '{'.
	Text []byte

	// VarAssignments are the values of -var, each "name=value".
	VarAssignments []string
	// VarFilePaths are the paths of variable files, lowest precedence first.
	VarFilePaths []string
	// VarFileText is the content of one more variable file, which takes precedence over VarFilePaths. The
	// parse endpoint of the HTTP API sets it.
	VarFileText string
	// Environ is searched for NOMAD_VAR_<name>, in the format of os.Environ. It may be nil.
	Environ []string

	// Files enables the functions that read the file system, and reads for them. Their paths are relative to the working
	// directory of the process, as in Nomad.
	Files *fileaccess.Reader
	// RejectsUndeclaredVariables rejects values for variables that the job does not declare.
	RejectsUndeclaredVariables bool
}

// ParsedFile is a parsed job file.
type ParsedFile struct {
	// Job is the job as written. It is nil if there were errors.
	Job *api.Job
	// SourceTextByFileName has every text to which a diagnostic may refer, by file name.
	SourceTextByFileName map[string][]byte
	// PathsReadByFunctions has the paths of the files that functions of the job have read or have not found. A path
	// can occur more than once.
	PathsReadByFunctions []string

	ranges sourceRangeByPath
}

// Parse parses a job file. It always returns a ParsedFile, so that its SourceTextByFileName can show the positions of
// the diagnostics; its Job is set if the diagnostics have no error. A valid job may have
// warnings.
//
// Parse reads the variable files named in src and, with src.Files, the files that functions of the job name and that
// it permits. It keeps no state and may be called concurrently.
func Parse(src ParseInput) (*ParsedFile, hcl.Diagnostics) {
	return parseWithBudget(maxEvaluationCost, src)
}

// parseWithBudget is Parse with a given budget.
func parseWithBudget(maxCost int, src ParseInput) (*ParsedFile, hcl.Diagnostics) {
	p := &parser{
		input:  src,
		file:   &ParsedFile{SourceTextByFileName: map[string][]byte{src.DiagnosticFileName: src.Text}, ranges: sourceRangeByPath{}},
		budget: &evaluationBudget{maxCost: maxCost},
	}
	job, diags := p.parseJob()
	if p.budget.exceededDiagnostic != nil {
		// Other errors may only result from values that were truncated when the budget was
		// exceeded.
		diags = hcl.Diagnostics{p.budget.exceededDiagnostic}
	}
	if !diags.HasErrors() {
		p.file.Job = job
	}
	if src.Files != nil {
		for _, path := range src.Files.FilesReadOutside() {
			diags = append(diags, &hcl.Diagnostic{Severity: hcl.DiagWarning, Summary: "The job has read " + path + ", which is not below the working directory, the job file's directory or their Git repository"})
		}
	}
	return p.file, diags
}

// parser is the shared state of the steps of one call of Parse.
type parser struct {
	input  ParseInput
	file   *ParsedFile
	budget *evaluationBudget
}

var fileSchema = &hcl.BodySchema{
	Blocks: []hcl.BlockHeaderSchema{
		{Type: "job", LabelNames: []string{"name"}},
		{Type: "variable", LabelNames: []string{"name"}},
		{Type: "variables"},
		{Type: "locals"},
	},
}

// parseJob runs all steps. A step runs only if the previous steps found no errors; all errors of a
// step are collected.
func (p *parser) parseJob() (*api.Job, hcl.Diagnostics) {
	body, diags := p.parseBody(p.input.Text, p.input.DiagnosticFileName)
	given, moreDiags := p.parseVarFiles()
	diags = append(diags, moreDiags...)
	if diags.HasErrors() {
		return nil, diags
	}

	content, moreDiags := body.Content(fileSchema)
	diags = append(diags, moreDiags...)
	vars, moreDiags := p.evaluateVariables(content.Blocks, given)
	diags = append(diags, moreDiags...)
	job, moreDiags := onlyJobBlock(content)
	if job == nil && diags.HasErrors() && hasBlock(body, "job") {
		moreDiags = nil // the job block exists but has wrong labels, which a diagnostic already reports
	}
	diags = append(diags, moreDiags...)
	if diags.HasErrors() {
		return nil, diags
	}

	ctx := &hcl.EvalContext{
		Functions: p.functionTable(p.input.Files),
		Variables: map[string]cty.Value{"var": vars, "local": cty.EmptyObjectVal},
	}
	locals, moreDiags := p.evaluateLocals(content.Blocks, ctx)
	diags = append(diags, moreDiags...)
	if diags.HasErrors() {
		return nil, diags
	}
	ctx.Variables["local"] = locals

	d := &decoder{evalContext: ctx, budget: p.budget, ranges: p.file.ranges}
	decoded, moreDiags := d.decodeJob(job, dynblock.Expand(job.Body, ctx, dynblock.OptCheckForEach(p.budget.checkForEachSize)))
	return decoded, append(diags, moreDiags...)
}

// hasBlock reports whether a body has a block of the type, with any labels.
func hasBlock(body hcl.Body, name string) bool {
	switch b := body.(type) {
	case *nativeBody:
		return slices.ContainsFunc(b.syntax.Blocks, func(block *hclsyntax.Block) bool { return block.Type == name })
	case *jsonBody:
		attrs, _ := b.Body.JustAttributes()
		return attrs[name] != nil
	}
	return false
}

// onlyJobBlock returns the only job block of a file.
func onlyJobBlock(content *hcl.BodyContent) (*hcl.Block, hcl.Diagnostics) {
	var job *hcl.Block
	var diags hcl.Diagnostics
	for _, block := range content.Blocks.OfType("job") {
		if job != nil {
			diags = append(diags, &hcl.Diagnostic{
				Severity: hcl.DiagError,
				Summary:  "Duplicate job block",
				Detail:   fmt.Sprintf("Only one block of type \"job\" is allowed. Previous definition was at %s.", job.DefRange),
				Subject:  block.DefRange.Ptr(),
			})
			continue
		}
		job = block
	}
	if job == nil {
		diags = append(diags, &hcl.Diagnostic{
			Severity: hcl.DiagError,
			Summary:  "Missing job block",
			Detail:   "A job block is required",
			Subject:  content.MissingItemRange.Ptr(),
		})
	}
	return job, diags
}

// functionTable returns the functions of an evaluation.
func (p *parser) functionTable(files *fileaccess.Reader) map[string]function.Function {
	return functionTable(p.budget, files, func(path string) { p.file.PathsReadByFunctions = append(p.file.PathsReadByFunctions, path) })
}
