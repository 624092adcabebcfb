package jobspec

import (
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"

	"github.com/nomad-lite/nomad-lite/hclspec/nesting"
)

// runtimeReference is a traversal such as attr.kernel.name. If its root name is not defined in the job file, its value is its
// own text "${attr.kernel.name}", which the agent resolves when the task starts.
type runtimeReference struct {
	*hclsyntax.ScopeTraversalExpr
	// text is the value, including ${ }.
	text string
}

func (r *runtimeReference) Value(ctx *hcl.EvalContext) (cty.Value, hcl.Diagnostics) {
	if ctx == nil || isVariableDefined(ctx, r.Traversal.RootName()) {
		return r.ScopeTraversalExpr.Value(ctx)
	}
	return cty.StringVal(r.text), nil
}

func isVariableDefined(ctx *hcl.EvalContext, name string) bool {
	for ; ctx != nil; ctx = ctx.Parent() {
		if _, ok := ctx.Variables[name]; ok {
			return true
		}
	}
	return false
}

// referenceAndBudgetRewriter replaces every traversal in parsed expressions by a runtimeReference, and wraps
// expressions whose values can become large in a budgetedExpression.
type referenceAndBudgetRewriter struct {
	text          []byte // source text of the expressions
	textStartByte int    // byte offset at which text starts
	budget        *evaluationBudget
	diags         hcl.Diagnostics
}

func (r *referenceAndBudgetRewriter) rewriteBody(body *hclsyntax.Body) {
	for _, attr := range body.Attributes {
		attr.Expr = r.rewriteTopLevelExpression(attr.Expr)
	}
	for _, block := range body.Blocks {
		r.rewriteBody(block.Body)
	}
}

// rewriteTopLevelExpression rewrites a whole expression.
func (r *referenceAndBudgetRewriter) rewriteTopLevelExpression(expr hclsyntax.Expression) hclsyntax.Expression {
	return r.withBudget(r.rewriteExpr(expr, 0))
}

func (r *referenceAndBudgetRewriter) withBudget(expr hclsyntax.Expression) hclsyntax.Expression {
	if _, ok := expr.(*hclsyntax.LiteralValueExpr); ok || expr == nil {
		return expr
	}
	return &budgetedExpression{Expression: expr, budget: r.budget}
}

func (r *referenceAndBudgetRewriter) rewriteExpr(expr hclsyntax.Expression, depth int) hclsyntax.Expression {
	if depth++; depth > nesting.MaxOperators {
		if len(r.diags) == 0 {
			r.diags = append(r.diags, nesting.TooManyOperatorsDiag(expr.Range()))
		}
		return expr
	}
	switch e := expr.(type) {
	case *hclsyntax.ScopeTraversalExpr:
		return &runtimeReference{ScopeTraversalExpr: e, text: "${" + r.sourceText(e.SrcRange) + "}"}
	case *hclsyntax.RelativeTraversalExpr:
		e.Source = r.rewriteExpr(e.Source, depth)
	case *hclsyntax.ParenthesesExpr:
		e.Expression = r.rewriteExpr(e.Expression, depth)
	case *hclsyntax.UnaryOpExpr:
		e.Val = r.rewriteExpr(e.Val, depth)
	case *hclsyntax.BinaryOpExpr:
		e.LHS = r.rewriteExpr(e.LHS, depth)
		e.RHS = r.rewriteExpr(e.RHS, depth)
		return r.withBudget(e)
	case *hclsyntax.ConditionalExpr:
		e.Condition = r.rewriteExpr(e.Condition, depth)
		e.TrueResult = r.rewriteExpr(e.TrueResult, depth)
		e.FalseResult = r.rewriteExpr(e.FalseResult, depth)
	case *hclsyntax.IndexExpr:
		e.Collection = r.rewriteExpr(e.Collection, depth)
		e.Key = r.rewriteExpr(e.Key, depth)
	case *hclsyntax.SplatExpr:
		e.Source = r.rewriteExpr(e.Source, depth)
		e.Each = r.rewriteExpr(e.Each, depth)
	case *hclsyntax.TupleConsExpr:
		for i := range e.Exprs {
			e.Exprs[i] = r.rewriteExpr(e.Exprs[i], depth)
		}
	case *hclsyntax.ObjectConsExpr:
		for i := range e.Items {
			e.Items[i].KeyExpr = r.rewriteExpr(e.Items[i].KeyExpr, depth)
			e.Items[i].ValueExpr = r.rewriteExpr(e.Items[i].ValueExpr, depth)
		}
	case *hclsyntax.ObjectConsKeyExpr:
		// In an object, a bare name is the key itself, and a bare path is rejected. The
		// library decides both by the traversal, which is not replaced.
		if _, bare := e.Wrapped.(*hclsyntax.ScopeTraversalExpr); !bare || e.ForceNonLiteral {
			e.Wrapped = r.rewriteExpr(e.Wrapped, depth)
		}
	case *hclsyntax.ForExpr:
		r.rewriteFor(e, depth)
	case *hclsyntax.FunctionCallExpr:
		for i := range e.Args {
			e.Args[i] = r.rewriteExpr(e.Args[i], depth)
		}
		return r.withBudget(e)
	case *hclsyntax.TemplateExpr:
		for i := range e.Parts {
			e.Parts[i] = r.withBudget(r.rewriteInterpolation(e.Parts[i], depth))
		}
		return r.withBudget(e)
	case *hclsyntax.TemplateWrapExpr:
		e.Wrapped = r.rewriteInterpolation(e.Wrapped, depth)
	case *hclsyntax.TemplateJoinExpr:
		e.Tuple = r.rewriteExpr(e.Tuple, depth)
		return r.withBudget(e)
	}
	return expr
}

func (r *referenceAndBudgetRewriter) rewriteFor(e *hclsyntax.ForExpr, depth int) {
	e.CollExpr = r.rewriteExpr(e.CollExpr, depth)
	for _, each := range []*hclsyntax.Expression{&e.KeyExpr, &e.ValExpr, &e.CondExpr} {
		if *each != nil {
			*each = r.withBudget(r.rewriteExpr(*each, depth))
		}
	}
}

// rewriteInterpolation rewrites the expression in ${ } of a template. A reference that is the whole
// template keeps the spaces around it.
func (r *referenceAndBudgetRewriter) rewriteInterpolation(expr hclsyntax.Expression, depth int) hclsyntax.Expression {
	e, ok := expr.(*hclsyntax.ScopeTraversalExpr)
	if !ok {
		return r.rewriteExpr(expr, depth)
	}
	return &runtimeReference{ScopeTraversalExpr: e, text: "${" + r.spacesAfterInterpolationStart(e.SrcRange) + r.sourceText(e.SrcRange) + r.spacesBeforeInterpolationEnd(e.SrcRange) + "}"}
}

func (r *referenceAndBudgetRewriter) sourceText(rng hcl.Range) string {
	start, end := rng.Start.Byte-r.textStartByte, rng.End.Byte-r.textStartByte
	if start < 0 || end > len(r.text) || start > end {
		return ""
	}
	return string(r.text[start:end])
}

// spacesAfterInterpolationStart returns the spaces between ${ and the range, if there is nothing else.
func (r *referenceAndBudgetRewriter) spacesAfterInterpolationStart(rng hcl.Range) string {
	end := rng.Start.Byte - r.textStartByte
	start := end
	for start > 0 && r.text[start-1] == ' ' {
		start--
	}
	if start < 2 || r.text[start-1] != '{' || r.text[start-2] != '$' {
		return ""
	}
	return string(r.text[start:end])
}

// spacesBeforeInterpolationEnd returns the spaces between the range and }, if there is nothing else.
func (r *referenceAndBudgetRewriter) spacesBeforeInterpolationEnd(rng hcl.Range) string {
	start := rng.End.Byte - r.textStartByte
	end := start
	for end < len(r.text) && r.text[end] == ' ' {
		end++
	}
	if end >= len(r.text) || r.text[end] != '}' {
		return ""
	}
	return string(r.text[start:end])
}

// references returns the traversals in a rewritten expression, except those whose root name a for
// expression inside the expression defines.
func references(expr hcl.Expression) []hcl.Traversal {
	switch e := expr.(type) {
	case *jsonExpr:
		return e.references()
	case hclsyntax.Node:
		w := &referenceWalker{}
		hclsyntax.Walk(e, w)
		return w.references
	}
	return nil
}

type referenceWalker struct {
	boundNames []map[string]struct{}
	references []hcl.Traversal
}

func (w *referenceWalker) Enter(node hclsyntax.Node) hcl.Diagnostics {
	if m, ok := node.(*budgetedExpression); ok {
		node = m.Expression
	}
	switch n := node.(type) {
	case *runtimeReference:
		for _, names := range w.boundNames {
			if _, ok := names[n.Traversal.RootName()]; ok {
				return nil
			}
		}
		w.references = append(w.references, n.Traversal)
	case hclsyntax.ChildScope:
		w.boundNames = append(w.boundNames, n.LocalNames)
	}
	return nil
}

func (w *referenceWalker) Exit(node hclsyntax.Node) hcl.Diagnostics {
	if _, ok := node.(hclsyntax.ChildScope); ok {
		w.boundNames = w.boundNames[:len(w.boundNames)-1]
	}
	return nil
}
