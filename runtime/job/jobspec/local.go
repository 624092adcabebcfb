package jobspec

import (
	"fmt"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"

	"github.com/nomad-lite/nomad-lite/hclspec/nesting"
)

// localValue is one entry of the locals blocks.
type localValue struct {
	attr *hcl.Attribute
	// dependencies are the names of the locals that the expression uses. usesWholeLocalObject means that it uses the object
	// local itself, and so all locals.
	dependencies         []string
	usesWholeLocalObject bool
	evaluationState      localState
	val                  cty.Value
}

type localState int

const (
	localPending localState = iota
	localEvaluating
	localEvaluated
	localFailed
)

// evaluateLocals evaluates the locals blocks. They may refer to each other in any
// order; each is evaluated after the locals that it needs. As in Nomad, the same name
// in two blocks is not an error: the later definition is used.
func (p *parser) evaluateLocals(blocks hcl.Blocks, ctx *hcl.EvalContext) (cty.Value, hcl.Diagnostics) {
	declared, order, diags := declareLocals(blocks)
	e := &localEvaluation{declared: declared, ctx: ctx, budget: p.budget}
	for _, name := range order {
		if !declared[name].usesWholeLocalObject {
			diags = append(diags, e.evaluateLocal(name)...)
		}
	}
	for _, name := range order {
		diags = append(diags, e.evaluateLocal(name)...)
	}
	return e.objectOfLocals(order), diags
}

func declareLocals(blocks hcl.Blocks) (declared map[string]*localValue, namesInOrder []string, diags hcl.Diagnostics) {
	declared = map[string]*localValue{}
	for _, block := range blocks.OfType("locals") {
		attrs, moreDiags := block.Body.JustAttributes()
		diags = append(diags, moreDiags...)
		for _, attr := range attributesInFileOrder(attrs) {
			if first := declared[attr.Name]; first != nil {
				diags = append(diags, &hcl.Diagnostic{
					Severity: hcl.DiagWarning,
					Summary:  "Duplicate local",
					Detail:   fmt.Sprintf("The local %q was already defined at %s. This later definition counts.", attr.Name, first.attr.Range),
					Subject:  attr.NameRange.Ptr(),
				})
			} else {
				namesInOrder = append(namesInOrder, attr.Name)
			}
			declared[attr.Name] = newLocal(attr)
		}
	}
	return declared, namesInOrder, diags
}

func newLocal(attr *hcl.Attribute) *localValue {
	l := &localValue{attr: attr}
	seen := map[string]bool{}
	for _, traversal := range references(attr.Expr) {
		if traversal.RootName() != "local" {
			continue
		}
		if len(traversal) == 1 {
			l.usesWholeLocalObject = true
			continue
		}
		name := attributeName(traversal[1])
		if !seen[name] {
			seen[name] = true
			l.dependencies = append(l.dependencies, name)
		}
	}
	return l
}

// attributeName returns the name in local.name and in local["name"].
func attributeName(step hcl.Traverser) string {
	switch s := step.(type) {
	case hcl.TraverseAttr:
		return s.Name
	case hcl.TraverseIndex:
		if s.Key.Type() == cty.String && s.Key.IsKnown() && !s.Key.IsNull() {
			return s.Key.AsString()
		}
	}
	return ""
}

type localEvaluation struct {
	declared        map[string]*localValue
	ctx             *hcl.EvalContext
	budget          *evaluationBudget
	dependencyDepth int
}

// evaluateLocal evaluates one local after the locals that it needs. A local that is missing,
// or that depends on itself, has no value when an expression refers to it.
func (e *localEvaluation) evaluateLocal(name string) hcl.Diagnostics {
	l := e.declared[name]
	if l == nil || l.evaluationState != localPending {
		return nil
	}
	if e.dependencyDepth++; e.dependencyDepth > nesting.MaxOperators {
		e.dependencyDepth--
		l.evaluationState = localFailed
		return hcl.Diagnostics{errorAt("Locals too deep", fmt.Sprintf("Locals may build on each other %d times at most.", nesting.MaxOperators), l.attr.Range)}
	}
	l.evaluationState = localEvaluating
	var diags hcl.Diagnostics
	for _, need := range l.dependencies {
		diags = append(diags, e.evaluateLocal(need)...)
	}
	e.dependencyDepth--
	for _, need := range l.dependencies {
		if other := e.declared[need]; other != nil && other.evaluationState == localFailed {
			l.evaluationState = localFailed
			return diags
		}
	}
	names := l.dependencies
	if l.usesWholeLocalObject {
		names = nil
		for other := range e.declared {
			names = append(names, other)
		}
		if diag := e.budget.chargeCost(len(names)*blockCost, l.attr.Range); diag != nil {
			return append(diags, diag)
		}
	}
	ctx := e.ctx.NewChild()
	ctx.Variables = map[string]cty.Value{"local": e.objectOfLocals(names)}
	val, moreDiags := l.attr.Expr.Value(ctx)
	l.val, l.evaluationState = val, localEvaluated
	if moreDiags.HasErrors() {
		l.evaluationState = localFailed
	}
	return append(diags, moreDiags...)
}

// objectOfLocals returns an object with the named locals that have a value.
func (e *localEvaluation) objectOfLocals(names []string) cty.Value {
	vals := make(map[string]cty.Value, len(names))
	for _, name := range names {
		if l := e.declared[name]; l != nil && l.evaluationState == localEvaluated {
			vals[name] = l.val
		}
	}
	return cty.ObjectVal(vals)
}
