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

// assignment is one line of a variable file.
type assignment struct {
	name string
	val  cty.Value
	rng  hcl.Range
}

// varFileError is Nomad's prefix of an error in a variable file.
const varFileError = "unable to parse var file: "

// varTextName is the file name of Source.VarText in diagnostics.
const varTextName = "input.hcl.variables"

// varFiles reads the variable files, lowest precedence first.
func (p *parser) varFiles() ([]assignment, hcl.Diagnostics) {
	var all []assignment
	var diags hcl.Diagnostics
	for _, path := range p.src.VarFiles {
		text, err := readText(path)
		if err != nil {
			diags = append(diags, markFollowing(hcl.Diagnostics{{
				Severity: hcl.DiagError,
				Summary:  "Failed to read file",
				Detail:   fmt.Sprintf("failed to read %q: %s", path, err),
			}}, varFileError)...)
			continue
		}
		found, moreDiags := p.varFile(text, path)
		all = append(all, found...)
		diags = append(diags, moreDiags...)
	}
	if p.src.VarText != "" {
		found, moreDiags := p.varFile([]byte(p.src.VarText), varTextName)
		all = append(all, found...)
		diags = append(diags, moreDiags...)
	}
	return all, diags
}

// readText reads a file of at most MaxText bytes.
func readText(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, MaxText+1))
	return text, errors.Join(err, f.Close())
}

func (p *parser) varFile(text []byte, name string) ([]assignment, hcl.Diagnostics) {
	p.file.Texts[name] = text
	body, diags := p.syntax(text, name)
	if diags.HasErrors() {
		return nil, markFollowing(diags, varFileError)
	}
	if moreDiags := noDeclarations(body); moreDiags.HasErrors() {
		return nil, append(diags, moreDiags...)
	}
	attrs, moreDiags := body.JustAttributes()
	diags = append(diags, moreDiags...)
	var out []assignment
	for _, attr := range attributesInOrder(attrs) {
		val, moreDiags := attr.Expr.Value(nil)
		diags = append(diags, moreDiags...)
		if !moreDiags.HasErrors() {
			out = append(out, assignment{attr.Name, val, attr.Expr.Range()})
		}
	}
	return out, diags
}

// noDeclarations rejects a variable block in a variable file, which is a common mistake.
func noDeclarations(body hcl.Body) hcl.Diagnostics {
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
func (v *variable) assign(val cty.Value, from string, rng hcl.Range, summary, detail string) hcl.Diagnostics {
	val, err := convert.Convert(val, v.ty)
	if err != nil {
		v.invalid = true
		return hcl.Diagnostics{errorAt(summary, fmt.Sprintf(detail, v.name, err), rng)}
	}
	v.value, v.invalid = &value{val, from, rng}, false
	return nil
}

const (
	badValue          = "Invalid value for variable"
	badValueDetail    = "The value for %s is not compatible with the variable's type constraint: %s."
	badArgument       = "Invalid argument value for -var variable"
	badArgumentDetail = "The received arg value for %s is not compatible with the variable's type constraint: %s."
)

// fromEnvironment sets the declared variables from the environment.
func (p *parser) fromEnvironment(declared map[string]*variable) hcl.Diagnostics {
	given := map[string]string{}
	for _, entry := range p.src.Environ {
		if name, text, ok := strings.Cut(entry, "="); ok && strings.HasPrefix(name, environmentPrefix) {
			given[strings.TrimPrefix(name, environmentPrefix)] = text
		}
	}
	var diags hcl.Diagnostics
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if v := declared[name]; v != nil {
			diags = append(diags, p.fromText(v, given[name], "env", "env", badValue, badValueDetail)...)
		}
	}
	return diags
}

func (p *parser) fromFiles(declared map[string]*variable, files []assignment) hcl.Diagnostics {
	var diags hcl.Diagnostics
	for _, a := range files {
		v := declared[a.name]
		if v == nil {
			diags = append(diags, p.undeclared("Undefined variable",
				fmt.Sprintf("A %q variable was set but was not found in known variables. To declare variable %q, place this block in your job files", a.name, a.name)))
			continue
		}
		diags = append(diags, v.assign(a.val, "varfile", a.rng, badValue, badValueDetail)...)
	}
	return diags
}

// fromArguments sets variables from -var. As in Nomad, it skips arguments without "=".
func (p *parser) fromArguments(declared map[string]*variable) hcl.Diagnostics {
	given := map[string]string{}
	for _, argument := range p.src.Vars {
		if name, text, ok := strings.Cut(argument, "="); ok {
			given[name] = text
		}
	}
	var diags hcl.Diagnostics
	for _, name := range slices.Sorted(maps.Keys(given)) {
		v := declared[name]
		if v == nil {
			diags = append(diags, p.undeclared("Undefined -var variable",
				fmt.Sprintf("A %q variable was passed in the command line but was not found in known variables. To declare variable %q, place this block in your job file", name, name)))
			continue
		}
		diags = append(diags, p.fromText(v, given[name], "cmd", "arguments", badArgument, badArgumentDetail)...)
	}
	return diags
}

func (p *parser) undeclared(summary, detail string) *hcl.Diagnostic {
	diag := &hcl.Diagnostic{Severity: hcl.DiagWarning, Summary: summary, Detail: detail}
	if p.src.Strict {
		diag.Severity = hcl.DiagError
	}
	return diag
}

// fromText decodes the text of -var or of the environment: a literal text for a string or a
// number, otherwise an expression without names.
func (p *parser) fromText(v *variable, text, from, where, summary, detail string) hcl.Diagnostics {
	if v.literal() {
		return v.assign(cty.StringVal(text), from, hcl.Range{}, summary, detail)
	}
	name := fmt.Sprintf("<value for var.%s from %s>", v.name, where)
	p.file.Texts[name] = []byte(text)
	expr, diags := p.expression([]byte(text), name)
	if diags.HasErrors() {
		v.invalid = true
		return diags
	}
	val, moreDiags := expr.Value(nil)
	diags = append(diags, moreDiags...)
	if diags.HasErrors() {
		v.invalid = true
		return diags
	}
	return append(diags, v.assign(val, from, expr.Range(), summary, detail)...)
}
