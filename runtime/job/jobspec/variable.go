package jobspec

import (
	"fmt"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/hashicorp/hcl/v2/gohcl"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"

	"github.com/nomad-lite/nomad-lite/hclspec/convert"
)

// variable is a variable that the job file declares, with the assigned value of the highest precedence.
type variable struct {
	name string
	// valueType is the declared type, or the type of the default, or DynamicPseudoType for any type.
	valueType     cty.Type
	validations   []validation
	assignedValue *variableValue
	// hasInvalidValue is set if a given value cannot be used.
	hasInvalidValue  bool
	declarationRange hcl.Range // of the declaration
}

// variableValue is a value for a variable and its source.
type variableValue struct {
	val cty.Value
	// source is Nomad's name of the source: default, env, varfile or cmd.
	source string
	rng    hcl.Range
}

// validation is a rule that a value must satisfy.
type validation struct {
	condition hcl.Expression
	message   string
	rng       hcl.Range
}

// acceptsLiteralText reports whether text from -var or the environment is the value itself instead of an
// expression.
func (v *variable) acceptsLiteralText() bool {
	return v.valueType == cty.String || v.valueType == cty.Number || v.valueType == cty.DynamicPseudoType
}

// evaluateVariables returns the object that expressions of the job file refer to as var: variable name -> value.
func (p *parser) evaluateVariables(blocks hcl.Blocks, fileAssignments []variableAssignment) (cty.Value, hcl.Diagnostics) {
	declared, diags := p.parseDeclarations(blocks)
	if diags.HasErrors() {
		return cty.EmptyObjectVal, diags
	}
	byName := make(map[string]*variable, len(declared))
	for _, v := range declared {
		byName[v.name] = v
	}
	diags = append(diags, p.assignFromEnvironment(byName)...)
	diags = append(diags, p.assignFromFiles(byName, fileAssignments)...)
	diags = append(diags, p.assignFromArguments(byName)...)

	vals := make(map[string]cty.Value, len(declared))
	for _, v := range declared {
		if v.hasInvalidValue {
			continue // the value is invalid, and a diagnostic has been added
		}
		if v.assignedValue == nil {
			diags = append(diags, &hcl.Diagnostic{
				Severity: hcl.DiagError,
				Extra:    unsetVariableExtra(v.name),
				Subject:  v.declarationRange.Ptr(),
				Summary:  fmt.Sprintf("Unset variable %q", v.name),
				Detail:   "A used variable must be set or have a default value; see https://developer.hashicorp.com/nomad/docs/reference/hcl2/variables  for details.",
			})
			continue
		}
		diags = append(diags, p.validateVariable(v)...)
		vals[v.name] = v.assignedValue.val
	}
	return cty.ObjectVal(vals), diags
}

// unsetVariableExtra marks the diagnostic of a variable of this name that has no value.
type unsetVariableExtra string

// UnsetVariableName returns the name of the variable if a diagnostic reports that a variable has no
// value.
func UnsetVariableName(diag *hcl.Diagnostic) (name string, ok bool) {
	variable, ok := diag.Extra.(unsetVariableExtra)
	return string(variable), ok
}

var (
	variableSchema = &hcl.BodySchema{
		Attributes: []hcl.AttributeSchema{{Name: "description"}, {Name: "default"}, {Name: "type"}},
		Blocks:     []hcl.BlockHeaderSchema{{Type: "validation"}},
	}
	validationSchema = &hcl.BodySchema{
		Attributes: []hcl.AttributeSchema{{Name: "condition", Required: true}, {Name: "error_message", Required: true}},
	}
)

// parseDeclarations reads the variable and variables blocks, which share one name space.
func (p *parser) parseDeclarations(blocks hcl.Blocks) ([]*variable, hcl.Diagnostics) {
	var declarations []*variable
	var diags hcl.Diagnostics
	taken := map[string]bool{}
	add := func(v *variable, rng hcl.Range) {
		if v == nil {
			return
		}
		if taken[v.name] {
			diags = append(diags, errorAt("Duplicate variable", fmt.Sprintf("Duplicate %s variable definition found.", v.name), rng))
			return
		}
		taken[v.name] = true
		declarations = append(declarations, v)
	}
	for _, block := range blocks {
		switch block.Type {
		case "variable":
			v, moreDiags := p.parseDeclaration(block)
			diags = append(diags, moreDiags...)
			add(v, block.DefRange)
		case "variables":
			attrs, moreDiags := block.Body.JustAttributes()
			diags = append(diags, moreDiags...)
			for _, attr := range attributesInFileOrder(attrs) {
				val, moreDiags := attr.Expr.Value(nil)
				diags = append(diags, moreDiags...)
				add(&variable{name: attr.Name, valueType: val.Type(), assignedValue: &variableValue{val, "default", attr.Expr.Range()}}, attr.NameRange)
			}
		}
	}
	return declarations, diags
}

func (p *parser) parseDeclaration(block *hcl.Block) (*variable, hcl.Diagnostics) {
	v := &variable{name: block.Labels[0], valueType: cty.DynamicPseudoType, declarationRange: block.DefRange}
	content, diags := block.Body.Content(variableSchema)
	if !hclsyntax.ValidIdentifier(v.name) {
		diags = append(diags, errorAt("Invalid variable name",
			"A name must start with a letter or underscore and may contain only letters, digits, underscores, and dashes.", block.LabelRanges[0]))
	}
	if attr := content.Attributes["description"]; attr != nil {
		var typeText string
		diags = append(diags, gohcl.DecodeExpression(attr.Expr, nil, &typeText)...)
	}
	typeGood := true
	if attr := content.Attributes["type"]; attr != nil {
		ty, moreDiags := typeexpr.Type(attr.Expr)
		diags = append(diags, moreDiags...)
		typeGood = !moreDiags.HasErrors()
		v.valueType = ty
	}
	if attr := content.Attributes["default"]; attr != nil && typeGood {
		diags = append(diags, v.setDefault(attr.Expr)...)
	}
	for _, rule := range content.Blocks {
		parsed, moreDiags := v.parseValidation(rule)
		diags = append(diags, moreDiags...)
		if parsed != nil {
			v.validations = append(v.validations, *parsed)
		}
	}
	return v, diags
}

func (v *variable) setDefault(expr hcl.Expression) hcl.Diagnostics {
	val, diags := expr.Value(nil)
	if diags.HasErrors() {
		return diags
	}
	val, err := convert.Convert(val, v.valueType)
	if err != nil {
		return append(diags, errorAt("Invalid default value for variable",
			fmt.Sprintf("This default value is not compatible with the variable's type constraint: %s.", err), expr.Range()))
	}
	v.assignedValue = &variableValue{val, "default", expr.Range()}
	if v.valueType == cty.DynamicPseudoType && !val.IsNull() {
		v.valueType = val.Type()
	}
	return diags
}

// parseValidation decodes a validation block.
func (v *variable) parseValidation(block *hcl.Block) (*validation, hcl.Diagnostics) {
	content, diags := block.Body.Content(validationSchema)
	if diags.HasErrors() {
		return nil, diags
	}
	condition, message := content.Attributes["condition"], content.Attributes["error_message"]
	rule := &validation{condition: condition.Expr, rng: condition.Expr.Range()}
	diags = append(diags, v.checkRefersToItselfOnly(condition.Expr)...)
	moreDiags := gohcl.DecodeExpression(message.Expr, nil, &rule.message)
	diags = append(diags, moreDiags...)
	if !moreDiags.HasErrors() && strings.TrimSpace(rule.message) == "" {
		diags = append(diags, errorAt("Invalid validation error message", "An empty or blank string is not a valid nor useful error message.", message.Expr.Range()))
	}
	return rule, diags
}

// checkRefersToItselfOnly checks that a condition refers to its own variable, and to nothing else.
func (v *variable) checkRefersToItselfOnly(condition hcl.Expression) hcl.Diagnostics {
	refersToItself := false
	for _, traversal := range references(condition) {
		var referencedName string
		if len(traversal) > 1 && traversal.RootName() == "var" {
			if step, ok := traversal[1].(hcl.TraverseAttr); ok {
				referencedName = step.Name
			}
		}
		if referencedName != v.name {
			return hcl.Diagnostics{errorAt("Invalid reference in variable validation",
				fmt.Sprintf("The condition for variable %q can only refer to the variable itself, using var.%s.", v.name, v.name), traversal.SourceRange())}
		}
		refersToItself = true
	}
	if refersToItself {
		return nil
	}
	return hcl.Diagnostics{errorAt("Invalid variable validation condition",
		fmt.Sprintf("The condition for variable %q must refer to var.%s in order to test incoming values.", v.name, v.name), condition.Range())}
}

// validateVariable checks the final value against the rules.
func (p *parser) validateVariable(v *variable) hcl.Diagnostics {
	if len(v.validations) == 0 {
		return nil
	}
	ctx := &hcl.EvalContext{
		Functions: p.functionTable(nil),
		Variables: map[string]cty.Value{"var": cty.ObjectVal(map[string]cty.Value{v.name: v.assignedValue.val})},
	}
	var diags hcl.Diagnostics
	for _, rule := range v.validations {
		result, moreDiags := rule.condition.Value(ctx)
		diags = append(diags, moreDiags...)
		if moreDiags.HasErrors() {
			continue
		}
		result, err := convert.Convert(result, cty.Bool)
		if err != nil || result.IsNull() || !result.IsKnown() {
			diags = append(diags, errorAt("Invalid variable validation result", "The condition of a validation must be true or false.", rule.rng))
			continue
		}
		if result.False() {
			diags = append(diags, errorAt(fmt.Sprintf("Invalid value for %s variable", v.assignedValue.source),
				fmt.Sprintf("%s\n\nThis was checked by the validation rule at %s.", rule.message, rule.rng), v.assignedValue.rng))
		}
	}
	return diags
}
