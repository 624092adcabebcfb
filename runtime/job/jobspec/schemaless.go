package jobspec

import (
	"cmp"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strconv"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

// decodeSchemaless reads a native body without a schema, such as config { }. A block is a list of maps, and so is an object written directly as
// the value of an attribute. If an attribute and a block have the same name, the block wins.
func (b *nativeBody) decodeSchemaless(ctx *hcl.EvalContext) (map[string]any, hcl.Diagnostics) {
	return decodeNativeSchemaless(b.syntax, ctx, true)
}

// decodeNativeSchemaless decodes a body at any depth. dropNulls is set at the top level only: nulls are kept in
// nested bodies.
func decodeNativeSchemaless(body *hclsyntax.Body, ctx *hcl.EvalContext, dropNulls bool) (map[string]any, hcl.Diagnostics) {
	out := make(map[string]any, len(body.Attributes)+len(body.Blocks))
	var diags hcl.Diagnostics
	for _, name := range namesInFileOrder(body.Attributes) {
		attr := body.Attributes[name]
		val, moreDiags := evaluateToPlainValue(attr.Expr, ctx)
		diags = append(diags, moreDiags...)
		if dropNulls && val == nil {
			continue
		}
		if isObjectLiteral(attr.Expr) {
			val = []any{val}
		}
		out[name] = val
	}
	blocks := map[string][]any{}
	for _, block := range body.Blocks {
		content, moreDiags := decodeNativeSchemaless(block.Body, ctx, false)
		diags = append(diags, moreDiags...)
		for _, label := range slices.Backward(block.Labels) {
			content = map[string]any{label: []any{content}}
		}
		blocks[block.Type] = append(blocks[block.Type], content)
	}
	for name, list := range blocks {
		out[name] = list
	}
	return out, diags
}

func (b *nativeBody) addRangesTo(ranges sourceRangeByPath, path []string) {
	addNativeRanges(b.syntax, ranges, path)
}

// addNativeRanges adds the ranges of a body at any depth. Blocks with labels are counted by type, like
// blocks without labels.
func addNativeRanges(body *hclsyntax.Body, ranges sourceRangeByPath, path []string) {
	for name, attr := range body.Attributes {
		ranges.addRangeIfAbsent(joinPath(path, name), attr.SrcRange)
	}
	counts := make(map[string]int)
	for _, block := range body.Blocks {
		ranges.addRangeIfAbsent(joinPath(path, block.Type), block.DefRange())
		at := joinPath(path, block.Type, strconv.Itoa(counts[block.Type]))
		counts[block.Type]++
		ranges.addRangeIfAbsent(at, block.DefRange())
		addNativeRanges(block.Body, ranges, at)
	}
}

func (b *jsonBody) addRangesTo(ranges sourceRangeByPath, path []string) {
	attrs, _ := b.JustAttributes() // decodeSchemaless reports the errors
	for name, attr := range attrs {
		ranges.addRangeIfAbsent(joinPath(path, name), attr.Range)
	}
}

// decodeSchemaless reads a JSON body without a schema. Objects are not converted to lists.
func (b *jsonBody) decodeSchemaless(ctx *hcl.EvalContext) (map[string]any, hcl.Diagnostics) {
	attrs, diags := b.JustAttributes()
	out := make(map[string]any, len(attrs))
	for _, attr := range attributesInFileOrder(attrs) {
		val, moreDiags := evaluateToPlainValue(attr.Expr, ctx)
		diags = append(diags, moreDiags...)
		if val != nil {
			out[attr.Name] = val
		}
	}
	return out, diags
}

// namesInFileOrder lists attributes in the order of the file, so that diagnostics have a fixed order.
func namesInFileOrder(attrs hclsyntax.Attributes) []string {
	names := slices.Collect(maps.Keys(attrs))
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Compare(attrs[a].SrcRange.Start.Byte, attrs[b].SrcRange.Start.Byte)
	})
	return names
}

func attributesInFileOrder(attrs hcl.Attributes) []*hcl.Attribute {
	return slices.SortedFunc(maps.Values(attrs), func(a, b *hcl.Attribute) int {
		return cmp.Or(cmp.Compare(a.Range.Start.Byte, b.Range.Start.Byte), cmp.Compare(a.Name, b.Name))
	})
}

func isObjectLiteral(expr hcl.Expression) bool {
	if m, ok := expr.(*budgetedExpression); ok {
		expr = m.Expression
	}
	_, ok := expr.(*hclsyntax.ObjectConsExpr)
	return ok
}

// evaluateToPlainValue evaluates an expression into the types of encoding/json: nil, bool, int, float64,
// string, []any and map[string]any.
func evaluateToPlainValue(expr hcl.Expression, ctx *hcl.EvalContext) (any, hcl.Diagnostics) {
	val, diags := expr.Value(ctx)
	plain, err := toPlainValue(val)
	if err != nil {
		diags = append(diags, unsuitableValueDiagnostic(err.Error(), expr))
	}
	return plain, diags
}

func toPlainValue(val cty.Value) (any, error) {
	if !val.IsKnown() {
		return nil, fmt.Errorf("value must be known")
	}
	if val.IsNull() {
		return nil, nil
	}
	switch ty := val.Type(); {
	case ty == cty.Bool:
		return val.True(), nil
	case ty == cty.Number:
		return toPlainNumber(val.AsBigFloat()), nil
	case ty == cty.String:
		return val.AsString(), nil
	case ty.IsMapType() && ty.ElementType().IsMapType(), ty.IsListType(), ty.IsSetType(), ty.IsTupleType():
		// A map of maps loses its keys, as it does in Nomad.
		return toPlainList(val)
	case ty.IsMapType(), ty.IsObjectType():
		return toPlainMap(val)
	default:
		return nil, fmt.Errorf("a %s cannot be used here", ty.FriendlyName())
	}
}

// toPlainNumber returns an int if the number is whole and fits into an int.
func toPlainNumber(n *big.Float) any {
	if i, accuracy := n.Int64(); accuracy == big.Exact {
		return int(i)
	}
	f, _ := n.Float64()
	return f
}

func toPlainList(val cty.Value) (any, error) {
	list := make([]any, 0, val.LengthInt())
	for it := val.ElementIterator(); it.Next(); {
		_, element := it.Element()
		p, err := toPlainValue(element)
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	return list, nil
}

func toPlainMap(val cty.Value) (any, error) {
	out := make(map[string]any, val.LengthInt())
	for it := val.ElementIterator(); it.Next(); {
		key, element := it.Element()
		p, err := toPlainValue(element)
		if err != nil {
			return nil, err
		}
		out[key.AsString()] = p
	}
	return out, nil
}
