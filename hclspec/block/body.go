package block

import (
	"context"
	"fmt"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"

	"github.com/nomad-lite/nomad-lite/hclspec/convert"
)

const (
	// maxBlocks is the maximum number of blocks of one type in a body. maxAnyValues is the
	// maximum number of values in all arguments of type "any" inside such blocks. Both
	// exist because hcldec compares each block of a list with every other block.
	maxBlocks    = 1000
	maxAnyValues = 2000
)

// bodyLayout is the structure of a body according to a Spec: the types of its arguments,
// and the layouts of its blocks.
type bodyLayout struct {
	argTypes     map[string]cty.Type
	blockLayouts map[string]*bodyLayout
	// anyArgType is the type of all arguments of a block whose arguments can have any name.
	anyArgType *cty.Type
	// isRepeated reports whether a config can have several bodies with this layout.
	isRepeated bool
}

func newBodyLayout(listed bool) *bodyLayout {
	return &bodyLayout{argTypes: make(map[string]cty.Type), blockLayouts: make(map[string]*bodyLayout), isRepeated: listed}
}

// addArg records the type of an argument. If a Spec has two types for one argument, the
// argument gets the type string, for which typedBody does not change the value.
func (l *bodyLayout) addArg(name string, ty cty.Type) {
	if known, twice := l.argTypes[name]; twice && !known.Equals(ty) {
		ty = cty.String
	}
	l.argTypes[name] = ty
}

// typedBody is the body that hcldec decodes. It converts the values of arguments before hcldec does, so that hcldec's
// conversion takes linear time, and stops the decoding when the context ends.
type typedBody struct {
	hcl.Body
	*bodyLayout
	decodeState *decodeState
}

// decodeState is the state of one call of Decode or Check.
type decodeState struct {
	ctx           context.Context
	anyValueCount int // number of values in arguments of type "any" inside of repeated blocks
	// stopDiag is the reason why decoding was stopped. If it is set, the diagnostics of
	// hcldec are meaningless.
	stopDiag *hcl.Diagnostic
}

func (b *typedBody) Content(schema *hcl.BodySchema) (*hcl.BodyContent, hcl.Diagnostics) {
	content, diags := b.Body.Content(schema)
	return b.wrapContentExprs(content, diags)
}

func (b *typedBody) PartialContent(schema *hcl.BodySchema) (*hcl.BodyContent, hcl.Body, hcl.Diagnostics) {
	content, rest, diags := b.Body.PartialContent(schema)
	content, diags = b.wrapContentExprs(content, diags)
	return content, &typedBody{rest, b.bodyLayout, b.decodeState}, diags
}

func (b *typedBody) wrapContentExprs(content *hcl.BodyContent, diags hcl.Diagnostics) (*hcl.BodyContent, hcl.Diagnostics) {
	if content == nil {
		return nil, diags
	}
	typed := *content
	typed.Attributes = make(hcl.Attributes, len(content.Attributes))
	for name, attr := range content.Attributes {
		typed.Attributes[name] = b.wrapAttributeExpr(attr, b.argTypes[name])
	}
	counts := make(map[string]int)
	typed.Blocks = nil
	for _, block := range content.Blocks {
		counts[block.Type]++
		switch nested := b.blockLayouts[block.Type]; {
		case counts[block.Type] == maxBlocks+1:
			diags = append(diags, &hcl.Diagnostic{
				Severity: hcl.DiagError,
				Summary:  fmt.Sprintf("Too many %s blocks", block.Type),
				Detail:   fmt.Sprintf("No more than %d %q blocks are allowed.", maxBlocks, block.Type),
				Subject:  &block.DefRange,
			})
		case counts[block.Type] > maxBlocks:
		case nested == nil:
			typed.Blocks = append(typed.Blocks, block)
		default:
			inner := *block
			inner.Body = &typedBody{block.Body, nested, b.decodeState}
			typed.Blocks = append(typed.Blocks, &inner)
		}
	}
	return &typed, diags
}

func (b *typedBody) JustAttributes() (hcl.Attributes, hcl.Diagnostics) {
	attrs, diags := b.Body.JustAttributes()
	if b.anyArgType == nil {
		return attrs, diags
	}
	typed := make(hcl.Attributes, len(attrs))
	for name, attr := range attrs {
		typed[name] = b.wrapAttributeExpr(attr, *b.anyArgType)
	}
	return typed, diags
}

func (b *typedBody) wrapAttributeExpr(attr *hcl.Attribute, ty cty.Type) *hcl.Attribute {
	typed := *attr
	typed.Expr = &argumentExpr{Expression: attr.Expr, name: attr.Name, decodeState: b.decodeState}
	if ty != cty.NilType {
		typed.Expr = &argumentExpr{
			Expression: convert.PreconvertExpression(attr.Expr, attr.Name, ty), name: attr.Name, decodeState: b.decodeState,
			countsAgainstMaxAnyValues: b.isRepeated && ty.HasDynamicTypes(),
		}
	}
	return &typed
}

// argumentExpr is the expression of an argument. It stops the decoding when the context
// ends or the argument has too many values.
type argumentExpr struct {
	hcl.Expression
	name                      string
	decodeState               *decodeState
	countsAgainstMaxAnyValues bool // the values of the argument are added to anyValueCount
}

func (a *argumentExpr) Value(scope *hcl.EvalContext) (cty.Value, hcl.Diagnostics) {
	if err := a.decodeState.ctx.Err(); err != nil && a.decodeState.stopDiag == nil {
		a.decodeState.stopDiag = contextEndDiag(err)
	}
	if a.decodeState.stopDiag != nil {
		return cty.DynamicVal, nil
	}
	val, diags := a.Expression.Value(scope)
	if !a.countsAgainstMaxAnyValues {
		return val, diags
	}
	if a.decodeState.anyValueCount += convert.CountTypes(val.Type()); a.decodeState.anyValueCount > maxAnyValues {
		a.decodeState.stopDiag = &hcl.Diagnostic{
			Severity: hcl.DiagError,
			Summary:  "Incorrect attribute value type",
			Detail:   fmt.Sprintf("Inappropriate value for attribute %q: the blocks of one type hold too many values of any type, %d are allowed.", a.name, maxAnyValues),
			Subject:  a.Range().Ptr(),
		}
		return cty.DynamicVal, nil
	}
	return val, diags
}

func (a *argumentExpr) UnwrapExpression() hcl.Expression { return a.Expression }

func contextEndDiag(err error) *hcl.Diagnostic {
	return &hcl.Diagnostic{Severity: hcl.DiagError, Summary: "Config not read", Detail: err.Error()}
}
