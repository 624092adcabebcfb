package convert

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// randomValue returns a value of a kind that occurs in config blocks: text, number,
// boolean, null, unknown value, tuple or object.
func randomValue(r *rand.Rand, depth int) cty.Value {
	kinds := 8
	if depth == 0 {
		kinds = 6
	}
	switch r.IntN(kinds) {
	case 0, 1:
		return cty.StringVal([]string{"", "a", "12", "true"}[r.IntN(4)])
	case 2:
		return cty.NumberIntVal(int64(r.IntN(3)))
	case 3:
		return cty.BoolVal(r.IntN(2) == 0)
	case 4:
		return []cty.Value{cty.NullVal(cty.DynamicPseudoType), cty.NullVal(cty.String), cty.UnknownVal(cty.String), cty.DynamicVal}[r.IntN(4)]
	case 5:
		return []cty.Value{cty.EmptyTupleVal, cty.EmptyObjectVal, cty.ListValEmpty(cty.String)}[r.IntN(3)]
	case 6:
		elems := make([]cty.Value, 1+r.IntN(3))
		for i := range elems {
			elems[i] = randomValue(r, depth-1)
		}
		if r.IntN(2) == 0 { // half of the tuples have elements of one type, as most lists have
			for i := range elems {
				elems[i] = elems[0]
			}
		}
		return cty.TupleVal(elems)
	default:
		attrs := map[string]cty.Value{}
		for range 1 + r.IntN(3) {
			attrs[string(rune('a'+r.IntN(3)))] = randomValue(r, depth-1)
		}
		return cty.ObjectVal(attrs)
	}
}

func randomType(r *rand.Rand, depth int) cty.Type {
	kinds := 9
	if depth == 0 {
		kinds = 4
	}
	switch r.IntN(kinds) {
	case 0:
		return cty.String
	case 1:
		return cty.Number
	case 2:
		return cty.Bool
	case 3:
		return cty.DynamicPseudoType
	case 4, 5:
		return cty.List(randomType(r, depth-1))
	case 6:
		return cty.Map(randomType(r, depth-1))
	case 7:
		return cty.Set(randomType(r, depth-1))
	default:
		attrs := map[string]cty.Type{"a": randomType(r, depth-1), "b": randomType(r, depth-1)}
		if r.IntN(2) == 0 {
			return cty.ObjectWithOptionalAttrs(attrs, []string{"b"})
		}
		return cty.Tuple([]cty.Type{attrs["a"], attrs["b"]})
	}
}

// convertToText returns the result of a conversion as text. It removes the name of the
// entry from errors in maps and objects, because go-cty chooses the entry at random.
func convertToText(f func(cty.Value, cty.Type) (cty.Value, error), val cty.Value, want cty.Type) (text string) {
	defer func() {
		if recover() != nil {
			text = "panic"
		}
	}()
	out, err := f(val, want)
	switch {
	case err == nil:
		return out.GoString()
	case strings.Contains(want.GoString(), "Map") || strings.Contains(want.GoString(), "Object"):
		return "error"
	}
	return err.Error()
}

func TestConvertAgreesWithLibrary(t *testing.T) {
	converted := 0
	for seed := range uint64(100_000) {
		r := rand.New(rand.NewPCG(seed, 1))
		val, want := randomValue(r, 3), randomType(r, 3)
		got := convertToText(Convert, val, want)
		var ctyResult string
		for range 20 { // 20 attempts, because the result of go-cty can depend on the iteration order of a map
			if ctyResult = convertToText(convert.Convert, val, want); ctyResult == got || ctyResult == "panic" {
				break
			}
		}
		if got != ctyResult && ctyResult != "panic" {
			t.Fatalf("seed %d: convert %#v to %#v:\n got %s\nwant %s", seed, val, want, got, ctyResult)
		}
		if strings.HasPrefix(got, "cty.") {
			converted++
		}
	}
	if converted < 10_000 {
		t.Errorf("%d conversions have succeeded, which is too few to tell anything", converted)
	}
}

func stringValues(n int) []cty.Value {
	elems := make([]cty.Value, n)
	for i := range elems {
		elems[i] = cty.StringVal(fmt.Sprint("argument-", i))
	}
	return elems
}

// Preconvert converts all tuples to lists: for tuples, go-cty's conversion takes quadratic
// time.
func TestPreconvertLeavesNoTuple(t *testing.T) {
	rows := cty.TupleVal([]cty.Value{cty.TupleVal(stringValues(2000)), cty.TupleVal(stringValues(1999))})
	for _, c := range []struct {
		name string
		val  cty.Value
		want cty.Type
	}{
		{"list of texts", cty.TupleVal(stringValues(2000)), cty.List(cty.String)},
		{"list of anything", cty.TupleVal(stringValues(2000)), cty.List(cty.DynamicPseudoType)},
		{"list of texts and numbers", cty.TupleVal(append(stringValues(2000), cty.NumberIntVal(1))), cty.List(cty.String)},
		{"list of unknown values", cty.TupleVal(append(stringValues(2000), cty.DynamicVal)), cty.List(cty.String)},
		{"list of lists", rows, cty.List(cty.List(cty.String))},
		{"list of lists of anything", rows, cty.List(cty.List(cty.DynamicPseudoType))},
		{"list in a map", cty.ObjectVal(map[string]cty.Value{"a": rows, "b": rows}), cty.Map(cty.List(cty.List(cty.String)))},
		{"list in an object", cty.ObjectVal(map[string]cty.Value{"a": rows}), cty.Object(map[string]cty.Type{"a": cty.List(cty.List(cty.String))})},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Preconvert(c.val, c.want)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(got.Type().GoString(), "Tuple") {
				t.Errorf("a tuple is left: %.200s", got.Type().GoString())
			}
		})
	}
}

// tupleOfManyTypes returns a tuple of objects, each with a different type.
func tupleOfManyTypes() cty.Value {
	var tupleElements []cty.Value
	for i := range 2000 {
		tupleElements = append(tupleElements, cty.ObjectVal(map[string]cty.Value{fmt.Sprint("a", i): cty.True}))
	}
	return cty.TupleVal(tupleElements)
}

// Convert rejects a long list that cannot be converted without a comparison of all its
// elements by go-cty.
func TestListWithoutCommonTypeIsCutShort(t *testing.T) {
	val, want := cty.TupleVal(append(stringValues(100_000), cty.EmptyObjectVal)), cty.List(cty.DynamicPseudoType)
	prepared, err := Preconvert(val, want)
	if err != nil {
		t.Fatal(err)
	}
	if n := prepared.LengthInt(); n != 2 {
		t.Errorf("go-cty compares %d elements, want one of each type", n)
	}
	if _, err := Convert(val, want); err == nil {
		t.Error("a list of texts and objects was converted")
	}
}

func TestManyTypesAreAnError(t *testing.T) {
	_, diags := PreconvertExpression(hcl.StaticExpr(tupleOfManyTypes(), hcl.Range{}), "args", cty.List(cty.DynamicPseudoType)).Value(nil)
	want := `Inappropriate value for attribute "args": the elements have too many different types: 200 are allowed.`
	if len(diags) != 1 || diags[0].Detail != want {
		t.Errorf("got %v, want %s", diags, want)
	}
}

// BenchmarkConvert measures the time of a conversion for different lengths of the list.
func BenchmarkConvert(b *testing.B) {
	for _, n := range []int{1000, 10_000, 100_000} {
		val := cty.TupleVal(stringValues(n))
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				if _, err := Convert(val, cty.List(cty.String)); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/element")
		})
	}
}
