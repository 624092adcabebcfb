package block

import (
	"testing"

	"github.com/nomad-lite/nomad-lite/hclspec"
)

func TestFaultOfInvalidSpec(t *testing.T) {
	in := func(parts map[string]*hclspec.Spec) *hclspec.Spec { return hclspec.Object(parts) }
	for _, c := range []struct {
		name string
		spec *hclspec.Spec
		want string // empty means no error
	}{
		{"no spec", nil, ""},
		{"an empty block", hclspec.Object(nil), ""},
		{"a part of each kind", in(map[string]*hclspec.Spec{
			"a": hclspec.Default(hclspec.Attr("a", "number", false), hclspec.Literal("3")),
			"b": hclspec.Default(hclspec.Attr("b", "list(string)", false), hclspec.Literal(`["x"]`)),
			"c": hclspec.Default(hclspec.Attr("c", "string", false), hclspec.Literal("null")),
			"d": hclspec.BlockMap("d", []string{"l"}, in(map[string]*hclspec.Spec{"e": hclspec.Attr("e", "any", true)})),
			"f": hclspec.Attr("", "bool", false),
		}), `Invalid type in block_map spec: The schema of the plugin is wrong at "config.d": the type "any" cannot stand in a map of blocks.`},
		{"a single argument", hclspec.Attr("a", "string", true), "it is no Object, whose parts have names"},
		{"an unknown type", in(map[string]*hclspec.Spec{"a": hclspec.Attr("a", "sting", true)}),
			`Invalid type specification: The schema of the plugin is wrong at "config.a": The keyword "sting" is not a valid type specification.`},
		{"a default without quotes", in(map[string]*hclspec.Spec{"a": hclspec.Default(hclspec.Attr("a", "string", false), hclspec.Literal("hello"))}),
			`Variables not allowed: The schema of the plugin is wrong at "config.a": Variables may not be used here.`},
		{"a default without a name", in(map[string]*hclspec.Spec{"a": hclspec.Default(hclspec.Attr("", "string", false), hclspec.Literal("1"))}),
			`Missing name in attribute spec: The schema of the plugin is wrong at "config.a": an argument needs a name.`},
		{"a text as the default of a number", in(map[string]*hclspec.Spec{"a": hclspec.Block("a", in(map[string]*hclspec.Spec{"n": hclspec.Default(hclspec.Attr("n", "number", false), hclspec.Literal(`"3"`))}), false)}),
			`the default of "config.a.n" is "3", and its type is number`},
		{"a text as the default of a list", in(map[string]*hclspec.Spec{"a": hclspec.Default(hclspec.Attr("a", "list(string)", false), hclspec.Literal(`"x"`))}),
			`the default of "config.a" is "x", and its type is list(string)`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ""
			if err := Fault(c.spec); err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}
