package jobspec

import (
	"fmt"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

const (
	// maxEvaluationCost is the budget of one parse: roughly the maximum number of bytes of all values that it may create.
	// An ordinary job needs about ten thousand.
	maxEvaluationCost = 64 << 20
	// valueCost is counted for a value in addition to its text, numberCost for a number,
	// whose decimal text is slow to create, and blockCost for a decoded block. They are
	// proportional to the time of creation.
	valueCost  = 32
	numberCost = 256
	blockCost  = 1024
	// maxValueDepth limits the nesting of values: locals can refer to each other, so that short
	// expressions create deep values.
	maxValueDepth = 500
	// maxForEach is the maximum number of blocks of one dynamic block.
	maxForEach = 10_000
	// maxNumberBits limits the exponent of a number: the decimal text of a larger number would be
	// too long.
	maxNumberBits = 1 << 16
)

// evaluationBudget limits the values that the evaluation of a file may create. An evaluation by the HCL library cannot be
// interrupted, so every budgetedExpression first checks the budget: when it is spent, the expression returns at once.
type evaluationBudget struct {
	maxCost            int
	usedCost           int
	exceededDiagnostic *hcl.Diagnostic
}

// chargeValue counts the size of a value and returns a diagnostic when the budget is
// exceeded for the first time.
func (e *evaluationBudget) chargeValue(val cty.Value, rng hcl.Range) *hcl.Diagnostic {
	if e.exceededDiagnostic != nil {
		return nil
	}
	if reason := e.chargeValueAtDepth(val, 0); reason != "" {
		e.exceededDiagnostic = errorAt("Evaluation too large", reason, rng)
	}
	return e.exceededDiagnostic
}

// chargeCost counts work that creates no value.
func (e *evaluationBudget) chargeCost(n int, rng hcl.Range) *hcl.Diagnostic {
	if e.exceededDiagnostic != nil {
		return nil
	}
	if e.usedCost += n; e.usedCost > e.maxCost {
		e.exceededDiagnostic = errorAt("Evaluation too large", overBudgetReason, rng)
	}
	return e.exceededDiagnostic
}

const overBudgetReason = "The expressions of this file make values that are too large. Are locals, for expressions or dynamic blocks multiplying each other?"

// chargeValueAtDepth counts the size of a value. If the value is rejected, it returns the
// reason, otherwise "".
func (e *evaluationBudget) chargeValueAtDepth(val cty.Value, depth int) (rejectReason string) {
	e.usedCost += valueCost
	switch {
	case e.usedCost > e.maxCost:
		return overBudgetReason
	case depth > maxValueDepth:
		return fmt.Sprintf("A value may nest %d levels deep at most.", maxValueDepth)
	case val == cty.NilVal || !val.IsKnown() || val.IsNull():
		return ""
	}
	val, _ = val.Unmark()
	switch ty := val.Type(); {
	case ty == cty.String:
		e.usedCost += len(val.AsString())
	case ty == cty.Number:
		return e.chargeNumber(val)
	case ty.IsCollectionType() || ty.IsTupleType() || ty.IsObjectType():
		for it := val.ElementIterator(); it.Next(); {
			key, element := it.Element()
			if key.Type() == cty.String && key.IsKnown() {
				e.usedCost += len(key.AsString())
			}
			if reason := e.chargeValueAtDepth(element, depth+1); reason != "" {
				return reason
			}
		}
	}
	return ""
}

// chargeNumber rejects a number whose decimal text would be too long, and counts the length of the text
// otherwise.
func (e *evaluationBudget) chargeNumber(val cty.Value) (rejectReason string) {
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
	e.usedCost += numberCost + exp
	return ""
}

// checkForEachSize rejects the for_each value of a dynamic block with more than maxForEach elements, before the block
// is expanded.
func (e *evaluationBudget) checkForEachSize(val cty.Value, expr hcl.Expression, _ *hcl.EvalContext) hcl.Diagnostics {
	val, _ = val.Unmark()
	if !val.IsKnown() || val.IsNull() || !val.CanIterateElements() || val.LengthInt() <= maxForEach {
		return nil
	}
	return hcl.Diagnostics{errorAt("Invalid dynamic for_each value",
		fmt.Sprintf("A dynamic block can make %d blocks at most, and this asks for %d.", maxForEach, val.LengthInt()), expr.Range())}
}

// budgetedExpression is an expression whose values are charged to the evaluationBudget.
type budgetedExpression struct {
	hclsyntax.Expression
	budget *evaluationBudget
}

func (e *budgetedExpression) Value(ctx *hcl.EvalContext) (cty.Value, hcl.Diagnostics) {
	if e.budget.exceededDiagnostic != nil {
		return cty.DynamicVal, nil
	}
	val, diags := e.Expression.Value(ctx)
	if diag := e.budget.chargeValue(val, e.Range()); diag != nil {
		return cty.DynamicVal, append(diags, diag)
	}
	return val, diags
}

// UnwrapExpression returns the original expression for static analysis (type expressions, lists of
// labels).
func (e *budgetedExpression) UnwrapExpression() hcl.Expression { return e.Expression }
