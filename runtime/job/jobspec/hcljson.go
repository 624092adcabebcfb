package jobspec

import (
	"fmt"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// jsonBody is a body in HCL's JSON profile. It rewrites the expressions: the library evaluates the
// templates in JSON strings by itself, and they must preserve references as native expressions do.
type jsonBody struct {
	hcl.Body
	budget *evaluationBudget
}

func (b *jsonBody) Content(schema *hcl.BodySchema) (*hcl.BodyContent, hcl.Diagnostics) {
	if hasScopedBodyAttribute(schema) {
		return scopedBodyContent(b), nil
	}
	content, diags := b.Body.Content(preferBlocksToAttributes(schema))
	b.wrapContentWithBudget(content)
	return content, diags
}

func (b *jsonBody) PartialContent(schema *hcl.BodySchema) (*hcl.BodyContent, hcl.Body, hcl.Diagnostics) {
	content, rest, diags := b.Body.PartialContent(preferBlocksToAttributes(schema))
	b.wrapContentWithBudget(content)
	return content, &jsonBody{Body: rest, budget: b.budget}, diags
}

func (b *jsonBody) JustAttributes() (hcl.Attributes, hcl.Diagnostics) {
	attrs, diags := b.Body.JustAttributes()
	for _, attr := range attrs {
		attr.Expr = &jsonExpr{Expression: attr.Expr, budget: b.budget}
	}
	return attrs, diags
}

func (b *jsonBody) wrapContentWithBudget(content *hcl.BodyContent) {
	for _, attr := range content.Attributes {
		attr.Expr = &jsonExpr{Expression: attr.Expr, budget: b.budget}
	}
	for _, block := range content.Blocks {
		block.Body = &jsonBody{Body: block.Body, budget: b.budget}
	}
}

// preferBlocksToAttributes removes the attribute form from a schema for names that may also be
// a block (env, meta), because JSON has the same syntax for both.
func preferBlocksToAttributes(schema *hcl.BodySchema) *hcl.BodySchema {
	blocks := make(map[string]bool, len(schema.Blocks))
	for _, block := range schema.Blocks {
		blocks[block.Type] = true
	}
	out := &hcl.BodySchema{Blocks: schema.Blocks}
	for _, attr := range schema.Attributes {
		if !blocks[attr.Name] {
			out.Attributes = append(out.Attributes, attr)
		}
	}
	return out
}

// jsonExpr is a JSON value in which every string is a template.
type jsonExpr struct {
	hcl.Expression
	budget *evaluationBudget
}

// UnwrapExpression returns the JSON value for static analysis.
func (e *jsonExpr) UnwrapExpression() hcl.Expression { return e.Expression }

func (e *jsonExpr) Value(ctx *hcl.EvalContext) (cty.Value, hcl.Diagnostics) {
	if e.budget.exceededDiagnostic != nil {
		return cty.DynamicVal, nil
	}
	val, diags := e.evaluateValue(ctx)
	if diag := e.budget.chargeValue(val, e.Range()); diag != nil {
		return cty.DynamicVal, append(diags, diag)
	}
	return val, diags
}

func (e *jsonExpr) withSameBudget(expr hcl.Expression) *jsonExpr {
	return &jsonExpr{Expression: expr, budget: e.budget}
}

// splitChildren returns the elements of a JSON array, or the members of an object.
func (e *jsonExpr) splitChildren() (list []hcl.Expression, isList bool, members []hcl.KeyValuePair, isObject bool) {
	if lister, ok := e.Expression.(interface{ ExprList() []hcl.Expression }); ok {
		if list = lister.ExprList(); list != nil {
			return list, true, nil, false
		}
	}
	if mapper, ok := e.Expression.(interface{ ExprMap() []hcl.KeyValuePair }); ok {
		if members = mapper.ExprMap(); members != nil {
			return nil, false, members, true
		}
	}
	return nil, false, nil, false
}

func (e *jsonExpr) evaluateValue(ctx *hcl.EvalContext) (cty.Value, hcl.Diagnostics) {
	list, isList, members, isObject := e.splitChildren()
	switch {
	case isList:
		return e.evaluateList(list, ctx)
	case isObject:
		return e.evaluateObject(members, ctx)
	}
	// With a nil EvalContext, the library returns the string without evaluating its
	// template.
	val, diags := e.Expression.Value(nil)
	if ctx == nil || diags.HasErrors() || val.Type() != cty.String || !isTemplate(val) {
		return val, diags
	}
	expr, diags := e.parseTemplate(val)
	if diags.HasErrors() {
		return cty.DynamicVal, diags
	}
	return expr.Value(ctx)
}

func isTemplate(val cty.Value) bool {
	if val.IsNull() || !val.IsKnown() {
		return false
	}
	text := val.AsString()
	return strings.Contains(text, "${") || strings.Contains(text, "%{")
}

func (e *jsonExpr) parseTemplate(val cty.Value) (hcl.Expression, hcl.Diagnostics) {
	rng := e.StartRange()
	start := rng.Start
	start.Byte++ // the opening quote
	start.Column++
	return parseTemplate([]byte(val.AsString()), e.budget, rng.Filename, start)
}

func (e *jsonExpr) evaluateList(list []hcl.Expression, ctx *hcl.EvalContext) (cty.Value, hcl.Diagnostics) {
	var diags hcl.Diagnostics
	vals := make([]cty.Value, 0, len(list))
	for _, element := range list {
		val, moreDiags := e.withSameBudget(element).evaluateValue(ctx)
		vals = append(vals, val)
		diags = append(diags, moreDiags...)
	}
	return cty.TupleVal(vals), diags
}

func (e *jsonExpr) evaluateObject(members []hcl.KeyValuePair, ctx *hcl.EvalContext) (cty.Value, hcl.Diagnostics) {
	var diags hcl.Diagnostics
	vals := make(map[string]cty.Value, len(members))
	for _, member := range members {
		name, moreDiags := e.evaluateMemberName(member.Key, ctx)
		diags = append(diags, moreDiags...)
		val, moreDiags := e.withSameBudget(member.Value).evaluateValue(ctx)
		diags = append(diags, moreDiags...)
		if name == nil {
			continue
		}
		if _, taken := vals[*name]; taken {
			diags = append(diags, errorAt("Duplicate object attribute", fmt.Sprintf("An attribute named %q was already defined.", *name), member.Key.Range()))
			continue
		}
		vals[*name] = val
	}
	return cty.ObjectVal(vals), diags
}

// evaluateMemberName returns the name of a member, which may be a template. It is nil if the name has no
// value; diags has the reason.
func (e *jsonExpr) evaluateMemberName(key hcl.Expression, ctx *hcl.EvalContext) (*string, hcl.Diagnostics) {
	val, diags := e.withSameBudget(key).evaluateValue(ctx)
	if diags.HasErrors() {
		return nil, diags
	}
	val, err := convert.Convert(val, cty.String)
	if err == nil && (val.IsNull() || !val.IsKnown()) {
		err = fmt.Errorf("a name is required")
	}
	if err != nil {
		return nil, append(diags, errorAt("Invalid object key expression", fmt.Sprintf("Cannot use this expression as an object key: %s.", err), key.Range()))
	}
	name := val.AsString()
	return &name, diags
}

// references lists the traversals in the templates of the value.
func (e *jsonExpr) references() []hcl.Traversal {
	var traversals []hcl.Traversal
	list, _, members, _ := e.splitChildren()
	for _, element := range list {
		traversals = append(traversals, e.withSameBudget(element).references()...)
	}
	for _, member := range members {
		traversals = append(traversals, e.withSameBudget(member.Key).references()...)
		traversals = append(traversals, e.withSameBudget(member.Value).references()...)
	}
	if list != nil || members != nil {
		return traversals
	}
	val, diags := e.Expression.Value(nil)
	if diags.HasErrors() || val.Type() != cty.String || !isTemplate(val) {
		return nil
	}
	expr, diags := e.parseTemplate(val)
	if diags.HasErrors() {
		return nil
	}
	return references(expr)
}
