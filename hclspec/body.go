package hclspec

import (
	"context"
	"fmt"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"

	"github.com/nomad-lite/nomad-lite/hclspec/convert"
)

const (
	// MaxValues limits the number of values in a config block: texts, numbers and so on,
	// in lists and blocks at any depth. The kernel rejects a command with more than about
	// twice as many arguments.
	MaxValues = 100_000
	// maxBlocks limits the number of blocks of one type in a body, and maxAny the number
	// of values in all arguments of the type "any" inside of such blocks together: hcldec
	// compares each block of a list with every other block.
	maxBlocks = 1000
	maxAny    = 2000
)

// CountValues returns the number of values in a config block.
func CountValues(config map[string]any) int { return countValues(config) }

func countValues(v any) int {
	n := 1
	switch v := v.(type) {
	case map[string]any:
		for _, elem := range v {
			n += countValues(elem)
		}
	case []any:
		for _, elem := range v {
			n += countValues(elem)
		}
	case []map[string]any:
		for _, elem := range v {
			n += countValues(elem)
		}
	}
	return n
}

// layout is the structure of one body according to a Spec: the types of its arguments,
// and the layouts of its blocks.
type layout struct {
	args   map[string]cty.Type
	blocks map[string]*layout
	// every is the type of all arguments of a block whose arguments can have any name.
	every *cty.Type
	// listed reports whether there can be several such bodies.
	listed bool
}

func newLayout(listed bool) *layout {
	return &layout{args: make(map[string]cty.Type), blocks: make(map[string]*layout), listed: listed}
}

// addArg records the type of an argument. An argument that a Spec reads with two types
// is left to the library.
func (l *layout) addArg(name string, ty cty.Type) {
	if known, twice := l.args[name]; twice && !known.Equals(ty) {
		ty = cty.String
	}
	l.args[name] = ty
}

// typedBody passes values to hcldec that it can convert in linear time, and stops when
// the context ends.
type typedBody struct {
	hcl.Body
	*layout
	run *decoding
}

// decoding is one call of Decode or Check.
type decoding struct {
	ctx context.Context
	any int // number of values in arguments of the type "any" inside of listed blocks
	// fault has ended the decoding: hcldec's diagnostics for the rest are meaningless.
	fault *hcl.Diagnostic
}

func (b *typedBody) Content(schema *hcl.BodySchema) (*hcl.BodyContent, hcl.Diagnostics) {
	content, diags := b.Body.Content(schema)
	return b.content(content, diags)
}

func (b *typedBody) PartialContent(schema *hcl.BodySchema) (*hcl.BodyContent, hcl.Body, hcl.Diagnostics) {
	content, rest, diags := b.Body.PartialContent(schema)
	content, diags = b.content(content, diags)
	return content, &typedBody{rest, b.layout, b.run}, diags
}

func (b *typedBody) content(content *hcl.BodyContent, diags hcl.Diagnostics) (*hcl.BodyContent, hcl.Diagnostics) {
	if content == nil {
		return nil, diags
	}
	typed := *content
	typed.Attributes = make(hcl.Attributes, len(content.Attributes))
	for name, attr := range content.Attributes {
		typed.Attributes[name] = b.attribute(attr, b.args[name])
	}
	counts := make(map[string]int)
	typed.Blocks = nil
	for _, block := range content.Blocks {
		counts[block.Type]++
		switch nested := b.blocks[block.Type]; {
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
			inner.Body = &typedBody{block.Body, nested, b.run}
			typed.Blocks = append(typed.Blocks, &inner)
		}
	}
	return &typed, diags
}

func (b *typedBody) JustAttributes() (hcl.Attributes, hcl.Diagnostics) {
	attrs, diags := b.Body.JustAttributes()
	if b.every == nil {
		return attrs, diags
	}
	typed := make(hcl.Attributes, len(attrs))
	for name, attr := range attrs {
		typed[name] = b.attribute(attr, *b.every)
	}
	return typed, diags
}

func (b *typedBody) attribute(attr *hcl.Attribute, ty cty.Type) *hcl.Attribute {
	typed := *attr
	typed.Expr = &argument{Expression: attr.Expr, name: attr.Name, run: b.run}
	if ty != cty.NilType {
		typed.Expr = &argument{
			Expression: convert.Expression(attr.Expr, attr.Name, ty), name: attr.Name, run: b.run,
			bounded: b.listed && ty.HasDynamicTypes(),
		}
	}
	return &typed
}

// argument is the expression of an argument.
type argument struct {
	hcl.Expression
	name    string
	run     *decoding
	bounded bool // whether maxAny applies
}

func (a *argument) Value(scope *hcl.EvalContext) (cty.Value, hcl.Diagnostics) {
	if err := a.run.ctx.Err(); err != nil && a.run.fault == nil {
		a.run.fault = stoppedError(err)
	}
	if a.run.fault != nil {
		return cty.DynamicVal, nil
	}
	val, diags := a.Expression.Value(scope)
	if !a.bounded {
		return val, diags
	}
	if a.run.any += convert.Weigh(val.Type()); a.run.any > maxAny {
		a.run.fault = &hcl.Diagnostic{
			Severity: hcl.DiagError,
			Summary:  "Incorrect attribute value type",
			Detail:   fmt.Sprintf("Inappropriate value for attribute %q: the blocks of one type hold too many values of any type, %d are allowed.", a.name, maxAny),
			Subject:  a.Range().Ptr(),
		}
		return cty.DynamicVal, nil
	}
	return val, diags
}

func (a *argument) UnwrapExpression() hcl.Expression { return a.Expression }

func stoppedError(err error) *hcl.Diagnostic {
	return &hcl.Diagnostic{Severity: hcl.DiagError, Summary: "Config not read", Detail: err.Error()}
}
