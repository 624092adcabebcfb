package jobspec

import (
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"

	"github.com/nomad-lite/nomad-lite/hclspec/nesting"
)

// reference is a traversal such as attr.kernel.name. If its root name is not in scope, it is
// resolved at run time, and its value is its own text.
type reference struct {
	*hclsyntax.ScopeTraversalExpr
	// text is the value, including ${ }.
	text string
}

func (r *reference) Value(ctx *hcl.EvalContext) (cty.Value, hcl.Diagnostics) {
	if ctx == nil || defined(ctx, r.Traversal.RootName()) {
		return r.ScopeTraversalExpr.Value(ctx)
	}
	return cty.StringVal(r.text), nil
}

func defined(ctx *hcl.EvalContext, name string) bool {
	for ; ctx != nil; ctx = ctx.Parent() {
		if _, ok := ctx.Variables[name]; ok {
			return true
		}
	}
	return false
}

// rewriter replaces, in a parsed text, every traversal by a reference, and wraps expressions whose
// values can grow in the meter.
type rewriter struct {
	text   []byte // source text of the expressions
	base   int    // byte offset at which text starts
	budget *evaluationBudget
	diags  hcl.Diagnostics
}

func (r *rewriter) body(body *hclsyntax.Body) {
	for _, attr := range body.Attributes {
		attr.Expr = r.attribute(attr.Expr)
	}
	for _, block := range body.Blocks {
		r.body(block.Body)
	}
}

// attribute rewrites a whole expression.
func (r *rewriter) attribute(expr hclsyntax.Expression) hclsyntax.Expression {
	return r.withBudget(r.expr(expr, 0))
}

func (r *rewriter) withBudget(expr hclsyntax.Expression) hclsyntax.Expression {
	if _, ok := expr.(*hclsyntax.LiteralValueExpr); ok || expr == nil {
		return expr
	}
	return &budgetedExpression{Expression: expr, budget: r.budget}
}

func (r *rewriter) expr(expr hclsyntax.Expression, depth int) hclsyntax.Expression {
	if depth++; depth > nesting.MaxOperators {
		if len(r.diags) == 0 {
			r.diags = append(r.diags, nesting.TooLong(expr.Range()))
		}
		return expr
	}
	switch e := expr.(type) {
	case *hclsyntax.ScopeTraversalExpr:
		return &reference{ScopeTraversalExpr: e, text: "${" + r.source(e.SrcRange) + "}"}
	case *hclsyntax.RelativeTraversalExpr:
		e.Source = r.expr(e.Source, depth)
	case *hclsyntax.ParenthesesExpr:
		e.Expression = r.expr(e.Expression, depth)
	case *hclsyntax.UnaryOpExpr:
		e.Val = r.expr(e.Val, depth)
	case *hclsyntax.BinaryOpExpr:
		e.LHS = r.expr(e.LHS, depth)
		e.RHS = r.expr(e.RHS, depth)
		return r.withBudget(e)
	case *hclsyntax.ConditionalExpr:
		e.Condition = r.expr(e.Condition, depth)
		e.TrueResult = r.expr(e.TrueResult, depth)
		e.FalseResult = r.expr(e.FalseResult, depth)
	case *hclsyntax.IndexExpr:
		e.Collection = r.expr(e.Collection, depth)
		e.Key = r.expr(e.Key, depth)
	case *hclsyntax.SplatExpr:
		e.Source = r.expr(e.Source, depth)
		e.Each = r.expr(e.Each, depth)
	case *hclsyntax.TupleConsExpr:
		for i := range e.Exprs {
			e.Exprs[i] = r.expr(e.Exprs[i], depth)
		}
	case *hclsyntax.ObjectConsExpr:
		for i := range e.Items {
			e.Items[i].KeyExpr = r.expr(e.Items[i].KeyExpr, depth)
			e.Items[i].ValueExpr = r.expr(e.Items[i].ValueExpr, depth)
		}
	case *hclsyntax.ObjectConsKeyExpr:
		// A bare name is the key itself, and a bare path is rejected: the library decides both by
		// the traversal.
		if _, bare := e.Wrapped.(*hclsyntax.ScopeTraversalExpr); !bare || e.ForceNonLiteral {
			e.Wrapped = r.expr(e.Wrapped, depth)
		}
	case *hclsyntax.ForExpr:
		r.loop(e, depth)
	case *hclsyntax.FunctionCallExpr:
		for i := range e.Args {
			e.Args[i] = r.expr(e.Args[i], depth)
		}
		return r.withBudget(e)
	case *hclsyntax.TemplateExpr:
		for i := range e.Parts {
			e.Parts[i] = r.withBudget(r.interpolated(e.Parts[i], depth))
		}
		return r.withBudget(e)
	case *hclsyntax.TemplateWrapExpr:
		e.Wrapped = r.interpolated(e.Wrapped, depth)
	case *hclsyntax.TemplateJoinExpr:
		e.Tuple = r.expr(e.Tuple, depth)
		return r.withBudget(e)
	}
	return expr
}

func (r *rewriter) loop(e *hclsyntax.ForExpr, depth int) {
	e.CollExpr = r.expr(e.CollExpr, depth)
	for _, each := range []*hclsyntax.Expression{&e.KeyExpr, &e.ValExpr, &e.CondExpr} {
		if *each != nil {
			*each = r.withBudget(r.expr(*each, depth))
		}
	}
}

// interpolated rewrites the expression in ${ } of a template. A reference that is the whole
// template keeps the spaces around it.
func (r *rewriter) interpolated(expr hclsyntax.Expression, depth int) hclsyntax.Expression {
	e, ok := expr.(*hclsyntax.ScopeTraversalExpr)
	if !ok {
		return r.expr(expr, depth)
	}
	return &reference{ScopeTraversalExpr: e, text: "${" + r.spacesBefore(e.SrcRange) + r.source(e.SrcRange) + r.spacesAfter(e.SrcRange) + "}"}
}

func (r *rewriter) source(rng hcl.Range) string {
	start, end := rng.Start.Byte-r.base, rng.End.Byte-r.base
	if start < 0 || end > len(r.text) || start > end {
		return ""
	}
	return string(r.text[start:end])
}

// spacesBefore returns the spaces between ${ and the range, if there is nothing else.
func (r *rewriter) spacesBefore(rng hcl.Range) string {
	end := rng.Start.Byte - r.base
	start := end
	for start > 0 && r.text[start-1] == ' ' {
		start--
	}
	if start < 2 || r.text[start-1] != '{' || r.text[start-2] != '$' {
		return ""
	}
	return string(r.text[start:end])
}

// spacesAfter returns the spaces between the range and }, if there is nothing else.
func (r *rewriter) spacesAfter(rng hcl.Range) string {
	start := rng.End.Byte - r.base
	end := start
	for end < len(r.text) && r.text[end] == ' ' {
		end++
	}
	if end >= len(r.text) || r.text[end] != '}' {
		return ""
	}
	return string(r.text[start:end])
}

// references lists the traversals of a rewritten expression that no for expression in it binds.
func references(expr hcl.Expression) []hcl.Traversal {
	switch e := expr.(type) {
	case *jsonExpr:
		return e.references()
	case hclsyntax.Node:
		w := &referenceWalker{}
		hclsyntax.Walk(e, w)
		return w.found
	}
	return nil
}

type referenceWalker struct {
	bound []map[string]struct{}
	found []hcl.Traversal
}

func (w *referenceWalker) Enter(node hclsyntax.Node) hcl.Diagnostics {
	if m, ok := node.(*budgetedExpression); ok {
		node = m.Expression
	}
	switch n := node.(type) {
	case *reference:
		for _, names := range w.bound {
			if _, ok := names[n.Traversal.RootName()]; ok {
				return nil
			}
		}
		w.found = append(w.found, n.Traversal)
	case hclsyntax.ChildScope:
		w.bound = append(w.bound, n.LocalNames)
	}
	return nil
}

func (w *referenceWalker) Exit(node hclsyntax.Node) hcl.Diagnostics {
	if _, ok := node.(hclsyntax.ChildScope); ok {
		w.bound = w.bound[:len(w.bound)-1]
	}
	return nil
}
