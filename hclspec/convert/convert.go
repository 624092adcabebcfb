package convert

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// maxTypes is the maximum number of different types, including nested types, of the
// elements of a list or map whose element type is not given. The search for the common type
// takes quadratic time in the number of types.
const maxTypes = 200

// maxTypesWithoutPreconvert is the maximum number of types, as counted by CountTypes, of a
// value that Preconvert returns unchanged if the wanted type is partly dynamic. In that
// case the result of go-cty can depend on the empty collections in the value.
const maxTypesWithoutPreconvert = 1000

var errTooManyTypes = fmt.Errorf("the elements have too many different types: %d are allowed", maxTypes)

// Convert returns val as a value of the type want, or the error of go-cty.
func Convert(val cty.Value, want cty.Type) (cty.Value, error) {
	prepared, err := Preconvert(val, want)
	if err != nil {
		return cty.NilVal, err
	}
	return convert.Convert(prepared, want)
}

// Preconvert converts the tuples and objects inside of val, as far as possible, so that
// the conversion of the result to the type want takes linear time. Preconvert leaves
// values that cannot be converted unchanged: the conversion of the result fails with
// the same error as the conversion of val. An error of Preconvert is an error of the
// conversion.
func Preconvert(val cty.Value, want cty.Type) (cty.Value, error) {
	if val == cty.NilVal || want == cty.NilType || val.ContainsMarked() {
		return val, nil
	}
	if want.HasDynamicTypes() && CountTypes(val.Type()) <= maxTypesWithoutPreconvert {
		return val, nil
	}
	return preconvert(val, want)
}

func preconvert(val cty.Value, want cty.Type) (cty.Value, error) {
	ty := val.Type()
	if !val.IsKnown() || val.IsNull() || ty.IsPrimitiveType() || want.IsPrimitiveType() || want == cty.DynamicPseudoType || ty.Equals(want) {
		return val, nil
	}
	switch {
	case (want.IsListType() || want.IsSetType()) && ty.IsTupleType():
		elems, same, err := preconvertCollection(elementsOf(val), want)
		switch {
		case err != nil:
			return cty.NilVal, err
		case !same:
			return cty.TupleVal(elems), nil
		case want.IsSetType():
			return cty.SetVal(elems), nil
		}
		return cty.ListVal(elems), nil
	case want.IsMapType() && ty.IsObjectType():
		attrs := val.AsValueMap()
		names := slices.Sorted(maps.Keys(attrs))
		elems, same, err := preconvertCollection(orderedAttrValues(attrs, names), want)
		switch {
		case err != nil:
			return cty.NilVal, err
		case !same:
			return cty.ObjectVal(valuesByName(names[:len(elems)], elems)), nil
		}
		return cty.MapVal(valuesByName(names, elems)), nil
	case want.IsTupleType() && ty.IsTupleType() && ty.Length() == want.Length():
		elems, err := preconvertElements(elementsOf(val), want.TupleElementType)
		if err != nil {
			return cty.NilVal, err
		}
		return cty.TupleVal(elems), nil
	case want.IsObjectType() && ty.IsObjectType():
		attrs := val.AsValueMap()
		for _, name := range slices.Sorted(maps.Keys(attrs)) {
			if !want.HasAttribute(name) {
				continue
			}
			attr, err := preconvert(attrs[name], want.AttributeType(name))
			if err != nil {
				return cty.NilVal, err
			}
			attrs[name] = attr
		}
		return cty.ObjectVal(attrs), nil
	}
	return val, nil
}

// preconvertCollection converts the elements of a value that is to become the collection
// want. same is true if all elements have the same type afterwards. For an empty collection
// same is false, because go-cty determines its type.
func preconvertCollection(elems []cty.Value, want cty.Type) (prepared []cty.Value, same bool, err error) {
	elems, err = preconvertElements(elems, func(int) cty.Type { return want.ElementType() })
	if err != nil || len(elems) == 0 {
		return elems, false, err
	}
	converted := elems
	if elem := want.ElementType(); elem != cty.DynamicPseudoType {
		if converted, same = convertElements(elems, elem); !same {
			return elems, false, nil
		}
		if !elem.HasDynamicTypes() {
			return converted, true, nil
		}
	}
	samples, weight := firstElementsByType(converted)
	if len(samples) == 1 {
		return converted, true, nil
	}
	if !needsUnification(want) {
		// go-cty does not search for a common type here, and rejects elements of different
		// types.
		return elems, false, nil
	}
	if weight > maxTypes {
		return nil, false, errTooManyTypes
	}
	types := make([]cty.Type, len(samples))
	for i, sample := range samples {
		types[i] = sample.Type()
	}
	if ty, _ := convert.UnifyUnsafe(types); ty != cty.NilType && ty != cty.DynamicPseudoType {
		if converted, same = convertElements(converted, ty); same && cty.CanListVal(converted) {
			return converted, true, nil
		}
	}
	if canConvert(samples, want) {
		return nil, false, errTooManyTypes
	}
	// The result contains only one element of each type: go-cty returns the same error as
	// for all elements, in less time.
	return samples, false, nil
}

// needsUnification reports whether go-cty searches for a common type of the elements of a
// collection.
func needsUnification(collection cty.Type) bool {
	elem := collection.ElementType()
	return elem == cty.DynamicPseudoType || collection.IsListType() ||
		collection.IsMapType() && (elem.IsCollectionType() || elem.IsObjectType())
}

// canConvert reports whether go-cty can convert the elements to the collection want.
func canConvert(elems []cty.Value, want cty.Type) bool {
	val := cty.TupleVal(elems)
	if want.IsMapType() {
		attrs := make(map[string]cty.Value, len(elems))
		for i, elem := range elems {
			attrs[strconv.Itoa(i)] = elem
		}
		val = cty.ObjectVal(attrs)
	}
	_, err := convert.Convert(val, want)
	return err == nil
}

func elementsOf(val cty.Value) []cty.Value {
	elems := make([]cty.Value, 0, val.LengthInt())
	for it := val.ElementIterator(); it.Next(); {
		_, elem := it.Element()
		elems = append(elems, elem)
	}
	return elems
}

func orderedAttrValues(attrs map[string]cty.Value, names []string) []cty.Value {
	vals := make([]cty.Value, len(names))
	for i, name := range names {
		vals[i] = attrs[name]
	}
	return vals
}

func valuesByName(names []string, vals []cty.Value) map[string]cty.Value {
	attrs := make(map[string]cty.Value, len(names))
	for i, name := range names {
		attrs[name] = vals[i]
	}
	return attrs
}

// preconvertElements replaces each element by the result of preconvert for the type want(i).
func preconvertElements(elems []cty.Value, want func(i int) cty.Type) ([]cty.Value, error) {
	for i, elem := range elems {
		var err error
		if elems[i], err = preconvert(elem, want(i)); err != nil {
			return nil, err
		}
	}
	return elems, nil
}

// convertElements returns the elements converted to the type want. ok is false if an element cannot be
// converted.
func convertElements(elems []cty.Value, want cty.Type) (converted []cty.Value, ok bool) {
	converted = make([]cty.Value, len(elems))
	for i, elem := range elems {
		val, err := convert.Convert(elem, want)
		if err != nil {
			return nil, false
		}
		if val.IsNull() {
			val = cty.NullVal(val.Type().WithoutOptionalAttributesDeep())
		}
		converted[i] = val
	}
	return converted, true
}

// firstElementsByType returns the first element of each type, and weight, the number of these types
// including nested types. It stops when weight exceeds maxTypes.
func firstElementsByType(elems []cty.Value) (samples []cty.Value, weight int) {
	for _, elem := range elems {
		ty := elem.Type()
		if slices.ContainsFunc(samples, func(sample cty.Value) bool { return sample.Type().Equals(ty) }) {
			continue
		}
		samples = append(samples, elem)
		if weight += CountTypes(ty); weight > maxTypes && len(samples) > 1 {
			break
		}
	}
	return samples, weight
}

// CountTypes returns the number of types that a type consists of, including itself and
// nested types.
func CountTypes(ty cty.Type) int {
	n := 1
	switch {
	case ty.IsCollectionType():
		n += CountTypes(ty.ElementType())
	case ty.IsTupleType():
		for _, elem := range ty.TupleElementTypes() {
			n += CountTypes(elem)
		}
	case ty.IsObjectType():
		for _, attr := range ty.AttributeTypes() {
			n += CountTypes(attr)
		}
	}
	return n
}

// PreconvertExpression returns the expression of the named attribute. Preconvert is applied to its
// value, for the type want. If Preconvert fails, the value is unknown, and the diagnostic
// has the same text as that of hcldec.
func PreconvertExpression(expr hcl.Expression, name string, want cty.Type) hcl.Expression {
	return &preconvertedExpr{expr, name, want}
}

type preconvertedExpr struct {
	hcl.Expression
	attrName string
	wantType cty.Type
}

func (e *preconvertedExpr) Value(ctx *hcl.EvalContext) (cty.Value, hcl.Diagnostics) {
	val, diags := e.Expression.Value(ctx)
	prepared, err := Preconvert(val, e.wantType)
	if err == nil {
		return prepared, diags
	}
	return cty.DynamicVal, append(diags, &hcl.Diagnostic{
		Severity: hcl.DiagError,
		Summary:  "Incorrect attribute value type",
		Detail:   fmt.Sprintf("Inappropriate value for attribute %q: %s.", e.attrName, err),
		Subject:  e.Range().Ptr(),
	})
}

// UnwrapExpression returns the original expression, for hcl's static analysis.
func (e *preconvertedExpr) UnwrapExpression() hcl.Expression { return e.Expression }
