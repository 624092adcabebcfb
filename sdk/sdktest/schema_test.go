package sdktest

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/hclspec/block"
)

// testSchema has each kind of part, and each type.
func testSchema() *hclspec.Spec {
	return hclspec.Object(map[string]*hclspec.Spec{
		"text":     hclspec.Attr("text", "string", true),
		"n":        hclspec.Attr("n", "number", false),
		"on":       hclspec.Attr("on", "bool", false),
		"anything": hclspec.Attr("anything", "any", false),
		"list":     hclspec.Attr("list", "list(string)", false),
		"mixed":    hclspec.Attr("mixed", "list(any)", false),
		"maps":     hclspec.Attr("maps", "list(map(number))", false),
		"map":      hclspec.Attr("map", "map(any)", false),
		"set":      hclspec.Attr("set", "set(number)", false),
		"tuple":    hclspec.Attr("tuple", "tuple([string, number])", false),
		"object":   hclspec.Attr("object", "object({a = string, b = list(bool)})", false),
		"renamed":  hclspec.Attr("other_name", "string", false),
		"retries":  hclspec.Default(hclspec.Attr("retries", "number", false), hclspec.Literal("3")),
		"rate":     hclspec.Default(hclspec.Attr("rate", "number", false), hclspec.Literal("-0.1e1")),
		"names":    hclspec.Default(hclspec.Attr("names", "list(string)", false), hclspec.Literal("[ \"a\\n\\u00e4\", # first\n\"$${x}\",]")),
		"settings": hclspec.Default(hclspec.Block("settings", hclspec.Object(map[string]*hclspec.Spec{
			"mode": hclspec.Default(hclspec.Attr("mode", "string", false), hclspec.Literal(`"fast"`)),
		}), false), hclspec.Literal("{\n mode = \"default\"\n \"more\": [true, null]\n}")),
		"fallback": hclspec.Default(hclspec.Attr("first", "string", false), hclspec.Attr("second", "string", false)),
		"labels":   hclspec.BlockAttrs("labels", "string", false),
		"step":     hclspec.BlockList("step", hclspec.Object(map[string]*hclspec.Spec{"run": hclspec.Attr("run", "string", true)}), 0, 2),
		"once":     hclspec.BlockSet("once", hclspec.Object(map[string]*hclspec.Spec{"x": hclspec.Attr("x", "number", false)}), 0, 0),
		"every":    hclspec.BlockMap("every", []string{"name"}, hclspec.Object(map[string]*hclspec.Spec{"s": hclspec.Attr("s", "number", true)})),
		"two":      hclspec.BlockMap("two", []string{"a", "b"}, hclspec.Object(map[string]*hclspec.Spec{"s": hclspec.Attr("s", "number", false)})),
		"row":      hclspec.Array(hclspec.Attr("text", "string", false), hclspec.Literal("7")),
	})
}

// The values are those that an agent sends.
func TestPlainEncoderEncodesLikeAHost(t *testing.T) {
	for name, config := range map[string]map[string]any{
		"nothing":            {},
		"only what must be":  {"text": "x"},
		"a number as text":   {"text": 5, "n": "7", "on": "true"},
		"numbers":            {"text": "x", "n": 0.5, "anything": 1 << 40, "set": []int{3, 1, 3}},
		"an inexact number":  {"text": "x", "n": 0.1, "anything": uint64(1<<63 + 1)},
		"null":               {"text": "x", "n": nil, "list": nil},
		"a required null":    {"text": nil},
		"collections":        {"text": "x", "list": []string{"a"}, "mixed": []any{"a", 1, true}, "maps": []any{map[string]any{"a": 1}}, "map": map[string]any{"a": 1, "b": "c"}},
		"fixed types":        {"text": "x", "tuple": []any{"a", "2"}, "object": map[string]any{"a": 1, "b": []bool{true}}},
		"a short tuple":      {"text": "x", "tuple": []any{"a"}},
		"a missing key":      {"text": "x", "object": map[string]any{"a": 1}},
		"a further key":      {"text": "x", "object": map[string]any{"a": 1, "b": []any{}, "c": 1}},
		"another name":       {"text": "x", "other_name": "y"},
		"the name of a key":  {"text": "x", "renamed": "y"},
		"no default":         {"text": "x", "retries": 4, "names": []any{}, "settings": map[string]any{}, "second": "z"},
		"a block":            {"text": "x", "settings": map[string]any{"mode": "slow"}, "labels": map[string]any{"a": 1, "b": "c"}},
		"two blocks":         {"text": "x", "settings": []any{map[string]any{}, map[string]any{}}},
		"blocks":             {"text": "x", "step": []map[string]any{{"run": "a"}, {"run": "b"}}, "once": map[string]any{"x": 1}},
		"too many blocks":    {"text": "x", "step": []any{map[string]any{"run": "a"}, map[string]any{"run": "a"}, map[string]any{"run": "a"}}},
		"equal blocks":       {"text": "x", "once": []any{map[string]any{"x": 1}, map[string]any{"x": 1}}},
		"a wrong block":      {"text": "x", "step": map[string]any{"walk": "a"}},
		"an incomplete one":  {"text": "x", "step": map[string]any{}},
		"labels":             {"text": "x", "every": map[string]any{"a": map[string]any{"s": 1}, "b": []any{map[string]any{"s": 2}}}},
		"labels as list":     {"text": "x", "every": []any{map[string]any{"a": map[string]any{"s": 1}}, map[string]any{"b": map[string]any{"s": 2}}}},
		"equal labels":       {"text": "x", "every": map[string]any{"a": []any{map[string]any{"s": 1}, map[string]any{"s": 1}}}},
		"no label":           {"text": "x", "every": map[string]any{"s": 1}},
		"two labels":         {"text": "x", "two": map[string]any{"a": map[string]any{"b": map[string]any{"s": 1}, "c": map[string]any{}}}},
		"an escaped text":    {"text": "$${x} %%{y} $5 100%"},
		"a text for a list":  {"text": "x", "list": "a"},
		"a list for a text":  {"text": []any{"x"}},
		"a text for a block": {"text": "x", "step": "a"},
		"a word":             {"text": "x", "n": "many"},
	} {
		t.Run(name, func(t *testing.T) {
			value, diags := block.Decode(testSchema(), config, nil)
			got, err := encodeMsgpack(testSchema(), config)
			if diags.HasErrors() != (err != nil) {
				t.Fatalf("the error is %v, and that of a host %v", err, diags)
			}
			if err != nil {
				t.Log(err)
				return
			}
			want, err := block.Marshal(value)
			if err != nil {
				t.Fatal(err)
			}
			var gotValue, wantValue any
			if err := hclspec.UnmarshalState(got, &gotValue); err != nil {
				t.Fatal(err)
			}
			if err := hclspec.UnmarshalState(want, &wantValue); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(gotValue, wantValue) {
				t.Errorf("encoded as\n%v, and by a host as\n%v", gotValue, wantValue)
			}
			gotJSON, err := encodeJSON(testSchema(), config)
			if err != nil {
				t.Fatal(err)
			}
			wantJSON, err := ctyjson.Marshal(value, value.Type())
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(canonicalJSON(t, gotJSON), canonicalJSON(t, wantJSON)) {
				t.Errorf("encoded as\n%s, and by a host as\n%s", gotJSON, wantJSON)
			}
		})
	}
}

func canonicalJSON(t *testing.T, text []byte) []byte {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		t.Fatal(err)
	}
	canonical, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return canonical
}

func TestTemplateIsRejected(t *testing.T) {
	if _, err := encodeMsgpack(testSchema(), map[string]any{"text": "a ${b}"}); err == nil || !strings.Contains(err.Error(), "template") {
		t.Errorf("got %v", err)
	}
}

// A schema that a host rejects is rejected, and no other.
func TestSchemaFaultAgreesWithHosts(t *testing.T) {
	schemas := map[string]*hclspec.Spec{"the schema of the tests": testSchema(), "nil": nil, "no object": hclspec.Attr("a", "string", false)}
	for _, typ := range []string{"string", "int", "list", "list(string)", "list(string, string)", "list(any)", "map( number )", "tuple([])", "tuple(string)", "object({})", "object({a = int})", `object({"a" = bool})`, "string string", "", "set(list(map(bool)))", "any()"} {
		schemas["type "+typ] = hclspec.Object(map[string]*hclspec.Spec{"a": hclspec.Attr("a", typ, false)})
	}
	for _, literal := range []string{`"x"`, "5", "-5", "0.25", "1e3", "true", "null", `["a", "b"]`, `["a" "b"]`, `{a = 1, "b" = 2}`, `{a = 1 b = 2}`, "{\n  a = 1\n  b = 2 // two\n}", `"\q"`, `"a`, "x", "/* none */ 1", ""} {
		schemas["literal "+literal] = hclspec.Object(map[string]*hclspec.Spec{"a": hclspec.Literal(literal)})
		schemas["default string "+literal] = hclspec.Object(map[string]*hclspec.Spec{"a": hclspec.Default(hclspec.Attr("a", "string", false), hclspec.Literal(literal))})
		schemas["default list "+literal] = hclspec.Object(map[string]*hclspec.Spec{"a": hclspec.Default(hclspec.Attr("a", "list(string)", false), hclspec.Literal(literal))})
	}
	for name, schema := range schemas {
		if got, want := schemaFault(schema), block.Fault(schema); (got == nil) != (want == nil) {
			t.Errorf("%s: %v, and by a host: %v", name, got, want)
		}
	}
}

// A plugin whose tests import this package does not require the modules of HCL.
func TestPackageDoesNotImportHCL(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, pkg := range strings.Fields(string(out)) {
		if strings.Contains(pkg, "hashicorp/hcl") || strings.Contains(pkg, "go-cty") {
			t.Errorf("it imports %s", pkg)
		}
	}
}
