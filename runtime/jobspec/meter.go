package jobspec

import (
	"fmt"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

const (
	// budget is how much one parse may evaluate, counted in bytes of the
	// values that it makes on the way. An ordinary job needs some ten
	// thousand.
	budget = 64 << 20
	// valueCost is what a value counts beside its text, numberCost what a
	// number counts, whose decimal text is slow to make, and blockCost what a
	// decoded block counts: about their share of the time.
	valueCost  = 32
	numberCost = 256
	blockCost  = 1024
	// maxValueDepth bounds how deep values nest: locals can build on each
	// other, so that short expressions make deep values.
	maxValueDepth = 500
	// maxForEach is how many blocks one dynamic block may make.
	maxForEach = 10_000
	// maxNumberBits bounds the exponent of a number: beyond it, the decimal
	// text of the number is the danger.
	maxNumberBits = 1 << 16
)

// meter stops an evaluation that grows without bound. HCL cannot be told to
// stop, so every metered expression asks first, and once the budget is spent
// each of them answers at once.
type meter struct {
	limit    int
	used     int
	exceeded *hcl.Diagnostic
}

// charge counts what a value holds and reports the first excess.
func (m *meter) charge(val cty.Value, rng hcl.Range) *hcl.Diagnostic {
	if m.exceeded != nil {
		return nil
	}
	if reason := m.measure(val, 0); reason != "" {
		m.exceeded = refused("Evaluation too large", reason, rng)
	}
	return m.exceeded
}

// spend counts work that is no value.
func (m *meter) spend(n int, rng hcl.Range) *hcl.Diagnostic {
	if m.exceeded != nil {
		return nil
	}
	if m.used += n; m.used > m.limit {
		m.exceeded = refused("Evaluation too large", spentReason, rng)
	}
	return m.exceeded
}

const spentReason = "The expressions of this file make values that are too large. Are locals, for expressions or dynamic blocks multiplying each other?"

// measure adds the size of a value to the account. The answer is why the
// value is refused, or nothing.
func (m *meter) measure(val cty.Value, depth int) string {
	m.used += valueCost
	switch {
	case m.used > m.limit:
		return spentReason
	case depth > maxValueDepth:
		return fmt.Sprintf("A value may nest %d levels deep at most.", maxValueDepth)
	case val == cty.NilVal || !val.IsKnown() || val.IsNull():
		return ""
	}
	val, _ = val.Unmark()
	switch ty := val.Type(); {
	case ty == cty.String:
		m.used += len(val.AsString())
	case ty == cty.Number:
		return m.number(val)
	case ty.IsCollectionType() || ty.IsTupleType() || ty.IsObjectType():
		for it := val.ElementIterator(); it.Next(); {
			key, element := it.Element()
			if key.Type() == cty.String && key.IsKnown() {
				m.used += len(key.AsString())
			}
			if reason := m.measure(element, depth+1); reason != "" {
				return reason
			}
		}
	}
	return ""
}

// number refuses a number whose decimal text would be enormous, and counts the
// length of that of others.
func (m *meter) number(val cty.Value) string {
	f := val.AsBigFloat()
	if f.IsInf() {
		return ""
	}
	exp := f.MantExp(nil)
	if exp < 0 {
		exp = -exp
	}
	if exp > maxNumberBits {
		return "A number is too large or too small to be written out."
	}
	m.used += numberCost + exp
	return ""
}

// forEach bounds the blocks that a dynamic block makes, before it makes them.
func (m *meter) forEach(val cty.Value, expr hcl.Expression, _ *hcl.EvalContext) hcl.Diagnostics {
	val, _ = val.Unmark()
	if !val.IsKnown() || val.IsNull() || !val.CanIterateElements() || val.LengthInt() <= maxForEach {
		return nil
	}
	return hcl.Diagnostics{refused("Invalid dynamic for_each value",
		fmt.Sprintf("A dynamic block can make %d blocks at most, and this asks for %d.", maxForEach, val.LengthInt()), expr.Range())}
}

// budgeted is an expression whose results are charged.
type budgeted struct {
	hclsyntax.Expression
	meter *meter
}

func (e *budgeted) Value(ctx *hcl.EvalContext) (cty.Value, hcl.Diagnostics) {
	if e.meter.exceeded != nil {
		return cty.DynamicVal, nil
	}
	val, diags := e.Expression.Value(ctx)
	if diag := e.meter.charge(val, e.Range()); diag != nil {
		return cty.DynamicVal, append(diags, diag)
	}
	return val, diags
}

// UnwrapExpression lets static analysis (type expressions, lists of labels)
// see what was written.
func (e *budgeted) UnwrapExpression() hcl.Expression { return e.Expression }
