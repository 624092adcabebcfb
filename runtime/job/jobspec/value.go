package jobspec

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"

	"github.com/nomad-lite/nomad-lite/hclspec/convert"
)

// environmentPrefix is the prefix of variable names in the environment.
const environmentPrefix = "NOMAD_VAR_"

// variableAssignment is one "name = value" of a variable file.
type variableAssignment struct {
	name string
	val  cty.Value
	rng  hcl.Range
}

// varFileErrorPrefix is Nomad's prefix of an error in a variable file.
const varFileErrorPrefix = "unable to parse var file: "

// varTextFileName is the file name of Source.VarFileText in diagnostics.
const varTextFileName = "input.hcl.variables"

// parseVarFiles reads the variable files, lowest precedence first.
func (p *parser) parseVarFiles() ([]variableAssignment, hcl.Diagnostics) {
	var all []variableAssignment
	var diags hcl.Diagnostics
	for _, path := range p.input.VarFilePaths {
		text, err := readFileUpToMaxSize(path)
		if err != nil {
			diags = append(diags, markPrintOnlyFirst(hcl.Diagnostics{{
				Severity: hcl.DiagError,
				Summary:  "Failed to read file",
				Detail:   fmt.Sprintf("failed to read %q: %s", path, err),
			}}, varFileErrorPrefix)...)
			continue
		}
		parsed, moreDiags := p.parseVarFile(text, path)
		all = append(all, parsed...)
		diags = append(diags, moreDiags...)
	}
	if p.input.VarFileText != "" {
		parsed, moreDiags := p.parseVarFile([]byte(p.input.VarFileText), varTextFileName)
		all = append(all, parsed...)
		diags = append(diags, moreDiags...)
	}
	return all, diags
}

// readFileUpToMaxSize reads a file of at most MaxTextSize bytes.
func readFileUpToMaxSize(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, MaxTextSize+1))
	return text, errors.Join(err, f.Close())
}

func (p *parser) parseVarFile(text []byte, name string) ([]variableAssignment, hcl.Diagnostics) {
	p.file.SourceTextByFileName[name] = text
	body, diags := p.parseBody(text, name)
	if diags.HasErrors() {
		return nil, markPrintOnlyFirst(diags, varFileErrorPrefix)
	}
	if moreDiags := rejectVariableDeclarations(body); moreDiags.HasErrors() {
		return nil, append(diags, moreDiags...)
	}
	attrs, moreDiags := body.JustAttributes()
	diags = append(diags, moreDiags...)
	var out []variableAssignment
	for _, attr := range attributesInFileOrder(attrs) {
		val, moreDiags := attr.Expr.Value(nil)
		diags = append(diags, moreDiags...)
		if !moreDiags.HasErrors() {
			out = append(out, variableAssignment{attr.Name, val, attr.Expr.Range()})
		}
	}
	return out, diags
}

// rejectVariableDeclarations rejects a variable block in a variable file, which is a common mistake.
func rejectVariableDeclarations(body hcl.Body) hcl.Diagnostics {
	native, ok := body.(*nativeBody)
	if !ok {
		return nil
	}
	var diags hcl.Diagnostics
	for _, block := range native.syntax.Blocks {
		if block.Type == "variable" {
			name := strings.Join(block.Labels, " ")
			diags = append(diags, errorAt("Variable declaration in a .var file",
				fmt.Sprintf("A .var file is used to assign values to variables that have already been declared in job files, not to declare new variables. To declare variable %q, place this block in your job file; to set a value for it, write %s = … here.", name, name),
				block.DefRange()))
		}
	}
	return diags
}

// assign sets a variable to a value, converted to its type.
func (v *variable) assign(val cty.Value, sourceName string, rng hcl.Range, errorSummary, errorDetailFormat string) hcl.Diagnostics {
	val, err := convert.Convert(val, v.valueType)
	if err != nil {
		v.hasInvalidValue = true
		return hcl.Diagnostics{errorAt(errorSummary, fmt.Sprintf(errorDetailFormat, v.name, err), rng)}
	}
	v.assignedValue, v.hasInvalidValue = &variableValue{val, sourceName, rng}, false
	return nil
}

const (
	invalidValueSummary    = "Invalid value for variable"
	invalidValueDetail     = "The value for %s is not compatible with the variable's type constraint: %s."
	invalidArgumentSummary = "Invalid argument value for -var variable"
	invalidArgumentDetail  = "The received arg value for %s is not compatible with the variable's type constraint: %s."
)

// assignFromEnvironment sets the declared variables from the environment.
func (p *parser) assignFromEnvironment(declared map[string]*variable) hcl.Diagnostics {
	given := map[string]string{}
	for _, entry := range p.input.Environ {
		if name, text, ok := strings.Cut(entry, "="); ok && strings.HasPrefix(name, environmentPrefix) {
			given[strings.TrimPrefix(name, environmentPrefix)] = text
		}
	}
	var diags hcl.Diagnostics
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if v := declared[name]; v != nil {
			diags = append(diags, p.assignFromText(v, given[name], "env", "env", invalidValueSummary, invalidValueDetail)...)
		}
	}
	return diags
}

func (p *parser) assignFromFiles(declared map[string]*variable, fileAssignments []variableAssignment) hcl.Diagnostics {
	var diags hcl.Diagnostics
	for _, a := range fileAssignments {
		v := declared[a.name]
		if v == nil {
			diags = append(diags, p.undeclaredDiagnostic(&undeclaredVariableExtra{a.name, p.input.DiagnosticFileName, a.rng.Ptr()}, "Undefined variable",
				fmt.Sprintf("A %q variable was set but was not found in known variables. To declare variable %q, place this block in your job files", a.name, a.name)))
			continue
		}
		diags = append(diags, v.assign(a.val, "varfile", a.rng, invalidValueSummary, invalidValueDetail)...)
	}
	return diags
}

// assignFromArguments sets variables from -var. As in Nomad, it skips arguments without "=".
func (p *parser) assignFromArguments(declared map[string]*variable) hcl.Diagnostics {
	given := map[string]string{}
	for _, argument := range p.input.VarAssignments {
		if name, text, ok := strings.Cut(argument, "="); ok {
			given[name] = text
		}
	}
	var diags hcl.Diagnostics
	for _, name := range slices.Sorted(maps.Keys(given)) {
		v := declared[name]
		if v == nil {
			diags = append(diags, p.undeclaredDiagnostic(&undeclaredVariableExtra{name, p.input.DiagnosticFileName, nil}, "Undefined -var variable",
				fmt.Sprintf("A %q variable was passed in the command line but was not found in known variables. To declare variable %q, place this block in your job file", name, name)))
			continue
		}
		diags = append(diags, p.assignFromText(v, given[name], "cmd", "arguments", invalidArgumentSummary, invalidArgumentDetail)...)
	}
	return diags
}

// undeclaredVariableExtra marks the diagnostic of a value for a variable that the job file does not declare.
type undeclaredVariableExtra struct {
	name     string
	jobFile  string
	position *hcl.Range // in a variable file; nil if the value is an argument
}

// terminalDiagnostic returns the diagnostic for people. Nomad's text has no position, and ends before the block that
// it announces.
func (u *undeclaredVariableExtra) terminalDiagnostic(severity hcl.DiagnosticSeverity) *hcl.Diagnostic {
	text := fmt.Sprintf("Undefined variable %q: %s does not declare it. Correct the name, or add the block variable %q {} to the job file", u.name, u.jobFile, u.name)
	if u.position == nil {
		text = fmt.Sprintf("-var %s: %s", u.name, text)
	}
	return &hcl.Diagnostic{Severity: severity, Summary: text, Subject: u.position}
}

func (p *parser) undeclaredDiagnostic(extra *undeclaredVariableExtra, summary, detail string) *hcl.Diagnostic {
	diag := &hcl.Diagnostic{Severity: hcl.DiagWarning, Summary: summary, Detail: detail, Extra: extra}
	if p.input.RejectsUndeclaredVariables {
		diag.Severity = hcl.DiagError
	}
	return diag
}

// assignFromText decodes the text of -var or of the environment. For a string or a
// number, the text is the value; otherwise it is an expression that cannot refer to
// names.
func (p *parser) assignFromText(v *variable, text, sourceName, displayedSource, errorSummary, errorDetailFormat string) hcl.Diagnostics {
	if v.acceptsLiteralText() {
		return v.assign(cty.StringVal(text), sourceName, hcl.Range{}, errorSummary, errorDetailFormat)
	}
	name := fmt.Sprintf("<value for var.%s from %s>", v.name, displayedSource)
	p.file.SourceTextByFileName[name] = []byte(text)
	expr, diags := p.parseExpression([]byte(text), name)
	if diags.HasErrors() {
		v.hasInvalidValue = true
		return diags
	}
	val, moreDiags := expr.Value(nil)
	diags = append(diags, moreDiags...)
	if diags.HasErrors() {
		v.hasInvalidValue = true
		return diags
	}
	return append(diags, v.assign(val, sourceName, expr.Range(), errorSummary, errorDetailFormat)...)
}
