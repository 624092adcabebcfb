package jobspec

import (
	"fmt"
	"math"
	"reflect"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/gohcl"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/gocty"

	"github.com/nomad-lite/nomad-lite/hclspec/convert"
)

func unsuitableValueDiagnostic(reason string, expr hcl.Expression) *hcl.Diagnostic {
	return &hcl.Diagnostic{
		Severity: hcl.DiagError,
		Summary:  "Unsuitable value type",
		Detail:   "Unsuitable value: " + reason,
		Subject:  expr.StartRange().Ptr(),
		Context:  expr.Range().Ptr(),
	}
}

var durationType = reflect.TypeFor[time.Duration]()

// decodeAttribute decodes an expression into a field of a simple type.
func (d *decoder) decodeAttribute(expr hcl.Expression, field reflect.Value) hcl.Diagnostics {
	switch field.Type() {
	case durationType:
		duration, diags := d.decodeDuration(expr)
		field.SetInt(int64(duration))
		return diags
	case reflect.PointerTo(durationType):
		duration, diags := d.decodeDuration(expr)
		field.Set(reflect.ValueOf(&duration))
		return diags
	}
	return decodeExpression(expr, d.evalContext, field.Addr().Interface())
}

// decodeExpression decodes an expression into target in time that is linear in the
// length of a list.
func decodeExpression(expr hcl.Expression, ctx *hcl.EvalContext, target any) hcl.Diagnostics {
	if ty, err := gocty.ImpliedType(target); err == nil && !ty.IsPrimitiveType() {
		expr = convert.PreconvertExpression(expr, "", ty)
	}
	return gohcl.DecodeExpression(expr, ctx, target)
}

// decodeDuration accepts the text of a Go duration, or a whole number of
// nanoseconds.
func (d *decoder) decodeDuration(expr hcl.Expression) (time.Duration, hcl.Diagnostics) {
	val, diags := expr.Value(d.evalContext)
	duration, diag := toDuration(val)
	if diag == nil {
		return duration, diags
	}
	diag.Severity = hcl.DiagError
	diag.Subject = expr.StartRange().Ptr()
	diag.Context = expr.Range().Ptr()
	return 0, append(diags, diag)
}

func toDuration(val cty.Value) (time.Duration, *hcl.Diagnostic) {
	val, _ = val.Unmark()
	switch {
	case !val.IsKnown():
		return 0, &hcl.Diagnostic{Summary: "Unsuitable value type", Detail: "Unsuitable duration value: value must be known"}
	case val.IsNull():
		return 0, &hcl.Diagnostic{Summary: "Unsuitable value", Detail: "Unsuitable duration value: nil"}
	case val.Type() == cty.String:
		duration, err := time.ParseDuration(val.AsString())
		if err != nil {
			return 0, &hcl.Diagnostic{Summary: "Unsuitable value type", Detail: fmt.Sprintf("Unsuitable duration value: %s", err)}
		}
		return duration, nil
	case val.Type() == cty.Number:
		n := val.AsBigFloat()
		if !n.IsInt() || n.MantExp(nil) > 64 {
			return 0, notIntegerDiagnostic()
		}
		i, _ := n.Int(nil)
		if !i.IsInt64() {
			return 0, notIntegerDiagnostic()
		}
		return time.Duration(i.Int64()), nil
	}
	return 0, &hcl.Diagnostic{Summary: "Unsuitable value type", Detail: "Unsuitable value: expected a string but found " + val.Type().FriendlyName()}
}

func notIntegerDiagnostic() *hcl.Diagnostic {
	return &hcl.Diagnostic{
		Summary: "Unsuitable value type",
		Detail:  fmt.Sprintf("Unsuitable duration value: value must be a whole number, between %d and %d", math.MinInt64, math.MaxInt64),
	}
}

// decodeString decodes an expression that must be a string.
func (d *decoder) decodeString(expr hcl.Expression) (string, hcl.Diagnostics) {
	var s string
	diags := gohcl.DecodeExpression(expr, d.evalContext, &s)
	return s, diags
}

var (
	stringMapType     = reflect.TypeFor[map[string]string]()
	stringListMapType = reflect.TypeFor[map[string][]string]()
)

// decodeOrDeferSchemalessBlock decodes a block without a schema into a map.
func (d *decoder) decodeOrDeferSchemalessBlock(body hcl.Body, field reflect.Value, path []string) hcl.Diagnostics {
	scoped, diags := unwrapDynamicBlockBody(body, d.evalContext)
	if diags.HasErrors() {
		return diags
	}
	if field.Type() != stringMapType && field.Type() != stringListMapType {
		d.deferredDecodes = append(d.deferredDecodes, func() hcl.Diagnostics {
			scoped.body.addRangesTo(d.ranges, path)
			data, diags := scoped.body.decodeSchemaless(scoped.ctx)
			field.Set(reflect.ValueOf(data))
			return diags
		})
		return nil
	}
	attrs, diags := scoped.body.JustAttributes()
	out := reflect.MakeMapWithSize(field.Type(), len(attrs))
	for _, attr := range attributesInFileOrder(attrs) {
		d.ranges.addRangeIfAbsent(joinPath(path, attr.Name), attr.Range)
		val := reflect.New(field.Type().Elem())
		diags = append(diags, decodeExpression(attr.Expr, scoped.ctx, val.Interface())...)
		out.SetMapIndex(reflect.ValueOf(attr.Name), val.Elem())
	}
	field.Set(out)
	return diags
}

// blocksAllowedAsAttribute are the blocks that may also be written as an attribute.
var blocksAllowedAsAttribute = map[string]bool{"meta": true, "env": true}

// withMetaAndEnvAttributes adds the attribute form of meta and env to a schema, for the types where Nomad
// accepts it.
func withMetaAndEnvAttributes(schema *hcl.BodySchema, t reflect.Type) *hcl.BodySchema {
	if !typesWithMapAttributes[t] {
		return schema
	}
	out := *schema
	out.Attributes = schema.Attributes[:len(schema.Attributes):len(schema.Attributes)]
	for _, block := range schema.Blocks {
		if blocksAllowedAsAttribute[block.Type] {
			out.Attributes = append(out.Attributes, hcl.AttributeSchema{Name: block.Type})
		}
	}
	return &out
}

// decodeMapAttribute decodes meta = { … } or env = { … }.
func (d *decoder) decodeMapAttribute(attr *hcl.Attribute, blocks hcl.Blocks, field reflect.Value, path []string) hcl.Diagnostics {
	d.ranges.addRangeIfAbsent(joinPath(path, attr.Name), attr.Range)
	if len(blocks) > 0 {
		return hcl.Diagnostics{errorAt(fmt.Sprintf("Duplicate %s block", attr.Name),
			fmt.Sprintf("%s may not be defined more than once. Another definition is defined at %s.", attr.Name, attr.Range), blocks[0].DefRange)}
	}
	val, diags := attr.Expr.Value(d.evalContext)
	val, _ = val.Unmark()
	if diags.HasErrors() || val.IsNull() {
		return diags
	}
	if ty := val.Type(); !val.IsKnown() || !ty.IsObjectType() && !ty.IsMapType() {
		_, err := convert.Convert(val, cty.Map(cty.String))
		if err == nil {
			err = fmt.Errorf("map of string required")
		}
		return append(diags, unsuitableValueDiagnostic(err.Error(), attr.Expr))
	}
	out := make(map[string]string, val.LengthInt())
	for it := val.ElementIterator(); it.Next(); {
		key, element := it.Element()
		text, err := convert.Convert(element, cty.String)
		switch {
		case err != nil:
			diags = append(diags, unsuitableValueDiagnostic(err.Error(), attr.Expr))
		case text.IsNull():
			diags = append(diags, unsuitableValueDiagnostic("null value is not allowed", attr.Expr))
		case !text.IsKnown():
			diags = append(diags, unsuitableValueDiagnostic("value must be known", attr.Expr))
		default:
			out[key.AsString()] = text.AsString()
		}
	}
	field.Set(reflect.ValueOf(out))
	return diags
}
