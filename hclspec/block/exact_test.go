package block

import (
	"reflect"
	"strings"
	"testing"

	"github.com/zclconf/go-cty/cty"

	"github.com/nomad-lite/nomad-lite/hclspec"
)

// upperCaseText is a type with its own decoder.
type upperCaseText struct{ text string }

func (u *upperCaseText) UnmarshalBinary(b []byte) error {
	u.text = strings.ToUpper(string(b))
	return nil
}

func (u upperCaseText) MarshalBinary() ([]byte, error) { return []byte(u.text), nil }

func TestUnmarshalExactRejectsWhatGoWouldLose(t *testing.T) {
	type inner struct {
		X int `codec:"x"`
	}
	for _, tt := range []struct {
		name  string
		value cty.Value
		into  any
		want  string
	}{
		{"no field", cty.ObjectVal(map[string]cty.Value{"message": cty.StringVal("hi"), "times": cty.NumberIntVal(1)}),
			&struct {
				Times int `codec:"times"`
			}{}, "\"message\" has no field in the Go struct: add one with the tag `codec:\"message\"`"},
		{"no field, and no value", cty.ObjectVal(map[string]cty.Value{"message": cty.NullVal(cty.String)}), &inner{}, `"message" has no field in the Go type block.inner`},
		{"a field in another case", cty.ObjectVal(map[string]cty.Value{"named": cty.True}), &struct{ Named bool }{}, `"named" has no field`},
		{"a field that is not exported", cty.ObjectVal(map[string]cty.Value{"x": cty.True}), &struct {
			x bool `codec:"x"`
		}{}, `"x" has no field`},
		{"no field deeper down", cty.ObjectVal(map[string]cty.Value{"in": cty.ListVal([]cty.Value{cty.ObjectVal(map[string]cty.Value{"y": cty.True})})}),
			&struct {
				In []inner `codec:"in"`
			}{}, `"in.0.y" has no field in the Go type block.inner`},
		{"a string for an int", cty.ObjectVal(map[string]cty.Value{"x": cty.StringVal("secret")}), &inner{}, `"x" is a string, and must be a whole number`},
		{"digits for an int", cty.ObjectVal(map[string]cty.Value{"x": cty.MustParseNumberVal("99999999999999999999")}), &inner{}, `"x" is a number with a fraction or too many digits, and must be a whole number`},
		{"a fraction for an int", cty.ObjectVal(map[string]cty.Value{"x": cty.NumberFloatVal(1.5)}), &inner{}, `"x" is the number 1.5, and must be a whole number`},
		{"too much", cty.ObjectVal(map[string]cty.Value{"x": cty.NumberIntVal(300)}), &struct {
			X int8 `codec:"x"`
		}{}, `"x" is the number 300, and must be a whole number from -128 to 127`},
		{"a list for a struct", cty.ObjectVal(map[string]cty.Value{"in": cty.TupleVal([]cty.Value{cty.NumberIntVal(1)})}), &struct {
			In inner `codec:"in"`
		}{}, `"in" is a list, which does not fit the Go type block.inner`},
		{"a bool for a string", cty.ObjectVal(map[string]cty.Value{"x": cty.True}), &struct {
			X string `codec:"x"`
		}{}, `"x" is a bool, and must be a string`},
		{"an object for a list", cty.ObjectVal(map[string]cty.Value{"x": cty.EmptyObjectVal}), &struct {
			X []string `codec:"x"`
		}{}, `"x" is an object, which does not fit the Go type []string`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, err := Marshal(tt.value)
			if err != nil {
				t.Fatal(err)
			}
			before := reflect.ValueOf(tt.into).Elem().Interface()
			err = hclspec.UnmarshalExact(b, tt.into)
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
			if after := reflect.ValueOf(tt.into).Elem().Interface(); !reflect.DeepEqual(after, before) {
				t.Errorf("decoded all the same: %+v", after)
			}
		})
	}
}

func TestUnmarshalExactDecodesWhatFits(t *testing.T) {
	type embedded struct {
		E uint16 `codec:"e"`
	}
	type all struct {
		embedded
		S     string              `codec:"s"`
		Bytes []byte              `codec:"bytes"`
		P     *int                `codec:"p"`
		F     float64             `codec:"f"`
		M     map[string]string   `codec:"m"`
		Lists []map[string]string `codec:"lists"`
		Upper upperCaseText       `codec:"upper"`
		Any   any                 `codec:"any"`
		Unset *string             `codec:"unset"`
		Opt   bool                `codec:"opt,omitempty"`
	}
	b, err := Marshal(cty.ObjectVal(map[string]cty.Value{
		"e": cty.NumberIntVal(65535), "s": cty.StringVal("x"), "bytes": cty.StringVal("b"), "p": cty.NumberIntVal(1), "f": cty.MustParseNumberVal("0.1"),
		"m":     cty.ListVal([]cty.Value{cty.MapVal(map[string]cty.Value{"k": cty.StringVal("v")})}),
		"lists": cty.ListVal([]cty.Value{cty.MapVal(map[string]cty.Value{"k": cty.StringVal("w")})}),
		"upper": cty.StringVal("low"), "any": cty.NumberIntVal(7), "unset": cty.NullVal(cty.String), "opt": cty.True,
	}))
	if err != nil {
		t.Fatal(err)
	}
	var got all
	if err := hclspec.UnmarshalExact(b, &got); err != nil {
		t.Fatal(err)
	}
	one := 1
	want := all{embedded{65535}, "x", []byte("b"), &one, 0.1, map[string]string{"k": "v"}, []map[string]string{{"k": "w"}}, upperCaseText{"LOW"}, int64(7), nil, true}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	var untypedMap map[string]any
	if err := hclspec.UnmarshalExact(b, &untypedMap); err != nil || len(untypedMap) != 11 {
		t.Errorf("into a map: %v, %v", untypedMap, err)
	}
}
