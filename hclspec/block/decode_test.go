package block

import (
	"encoding/hex"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/hclspec/specpb"
	"github.com/nomad-lite/nomad-lite/hclspec/specwire"
)

// Schemas of config blocks that these tests decode.
var (
	greetingSpec = hclspec.Object(map[string]*hclspec.Spec{
		"greeting": hclspec.Default(hclspec.Attr("greeting", "string", false), hclspec.Literal(`"Hello, World!"`)),
	})
	numberSpec = hclspec.Object(map[string]*hclspec.Spec{"n": hclspec.Attr("n", "number", false)})
	execSpec   = hclspec.Object(map[string]*hclspec.Spec{
		"command":       hclspec.Attr("", "string", true),
		"args":          hclspec.Attr("", "list(string)", false),
		"work_dir":      hclspec.Attr("", "string", false),
		"oom_score_adj": hclspec.Attr("", "number", false),
		"env":           hclspec.BlockAttrs("", "string", false),
	})
	defaultsSpec = hclspec.Object(map[string]*hclspec.Spec{
		"enabled": hclspec.Default(hclspec.Attr("enabled", "bool", false), hclspec.Literal("true")),
		"timeout": hclspec.Default(hclspec.Attr("timeout", "string", false), hclspec.Literal(`"5m"`)),
		"cap":     hclspec.Default(hclspec.Attr("cap", "list(string)", false), hclspec.Literal(`["a","b"]`)),
		"gc": hclspec.Default(hclspec.Block("gc", hclspec.Object(map[string]*hclspec.Spec{
			"image": hclspec.Default(hclspec.Attr("image", "bool", false), hclspec.Literal("true")),
			"delay": hclspec.Attr("delay", "string", false),
		}), false), hclspec.Literal("{ image = false }")),
	})
	blocksSpec = hclspec.Object(map[string]*hclspec.Spec{
		"mount": hclspec.BlockList("mount", hclspec.Object(map[string]*hclspec.Spec{
			"source": hclspec.Attr("source", "string", false),
			"ro":     hclspec.Default(hclspec.Attr("ro", "bool", false), hclspec.Literal("false")),
		}), 0, 0),
		"labels": hclspec.Attr("labels", "list(map(string))", false),
		"opts":   hclspec.Attr("opts", "map(string)", false),
		"sys":    hclspec.BlockAttrs("sys", "string", false),
		"bm":     hclspec.BlockMap("bm", []string{"name"}, hclspec.Object(map[string]*hclspec.Spec{"v": hclspec.Attr("v", "number", false)})),
		"bs":     hclspec.BlockSet("bs", hclspec.Object(map[string]*hclspec.Spec{"v": hclspec.Attr("v", "number", false)}), 0, 0),
	})
	typesSpec = hclspec.Object(map[string]*hclspec.Spec{
		"a": hclspec.Attr("a", "any", false),
		"t": hclspec.Attr("t", "tuple([string, number])", false),
		"o": hclspec.Attr("o", "object({x=string,y=number})", false),
		"s": hclspec.Attr("s", "set(string)", false),
	})
	pluginConfigSpec = hclspec.Object(map[string]*hclspec.Spec{
		"enabled": hclspec.Default(hclspec.Attr("enabled", "bool", false), hclspec.Literal("true")),
		"fs":      hclspec.Default(hclspec.Attr("fs", "string", false), hclspec.Literal(`"none"`)),
		"mode":    hclspec.Attr("mode", "string", false),
	})
	job = hclspec.Object(map[string]*hclspec.Spec{
		"command": hclspec.Attr("command", "string", true),
		"args":    hclspec.Attr("args", "list(string)", false),
		"count":   hclspec.Attr("count", "number", false),
		"on":      hclspec.Attr("on", "bool", false),
		"dflt":    hclspec.Default(hclspec.Attr("dflt", "number", false), hclspec.Literal("7")),
		"mapattr": hclspec.Attr("mapattr", "map(string)", false),
		"lmap":    hclspec.Attr("lmap", "list(map(string))", false),
		"any":     hclspec.Attr("any", "any", false),
		"one":     hclspec.Block("one", hclspec.Object(map[string]*hclspec.Spec{"x": hclspec.Attr("x", "number", false)}), false),
		"many": hclspec.BlockList("many", hclspec.Object(map[string]*hclspec.Spec{
			"x": hclspec.Attr("x", "number", false),
			"o": hclspec.BlockAttrs("o", "string", false),
		}), 0, 0),
		"bmap":  hclspec.BlockMap("bmap", []string{"name"}, hclspec.Object(map[string]*hclspec.Spec{"x": hclspec.Attr("x", "number", false)})),
		"battr": hclspec.BlockAttrs("battr", "string", false),
	})
)

func varsFunc(vars map[string]cty.Value) func() map[string]cty.Value {
	return func() map[string]cty.Value { return vars }
}

var nomadVars = map[string]cty.Value{
	"NOMAD_PORT_http": cty.StringVal("21000"),
	"FOO":             cty.StringVal("foo"),
	"env":             cty.MapVal(map[string]cty.Value{"dotted.name": cty.StringVal("dotted")}),
	"attr":            cty.ObjectVal(map[string]cty.Value{"cpu": cty.ObjectVal(map[string]cty.Value{"arch": cty.StringVal("amd64")})}),
}

func parseConfig(t testing.TB, text string) map[string]any {
	t.Helper()
	var m map[string]any
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	if err := dec.Decode(&m); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestDecodeToMsgpack compares encoded configs with fixed bytes: the encoding is part of
// the protocol.
func TestDecodeToMsgpack(t *testing.T) {
	const minimalJobHex = "8ca3616e79c0a461726773c0a56261747472c0a4626d617080a7636f6d6d616e64a62f62696e2f78a5636f756e74c0a464666c7407a46c6d6170c0a46d616e7990a76d617061747472c0a26f6ec0a36f6e65c0"
	// jobWith returns the hex of minimalJobHex with some values replaced.
	jobWith := func(pairs ...string) string {
		text := minimalJobHex
		for i := 0; i < len(pairs); i += 2 {
			if !strings.Contains(text, pairs[i]) {
				t.Fatalf("%q is not in the example", pairs[i])
			}
			text = strings.Replace(text, pairs[i], pairs[i+1], 1)
		}
		return text
	}
	tests := []struct {
		name   string
		spec   *hclspec.Spec
		config string
		want   string
	}{
		{"0", numberSpec, `{"n":0}`, "81a16e00"},
		{"127", numberSpec, `{"n":127}`, "81a16e7f"},
		{"128", numberSpec, `{"n":128}`, "81a16ecc80"},
		{"255", numberSpec, `{"n":255}`, "81a16eccff"},
		{"256", numberSpec, `{"n":256}`, "81a16ecd0100"},
		{"65535", numberSpec, `{"n":65535}`, "81a16ecdffff"},
		{"65536", numberSpec, `{"n":65536}`, "81a16ece00010000"},
		{"4294967296", numberSpec, `{"n":4294967296}`, "81a16ecf0000000100000000"},
		{"-1", numberSpec, `{"n":-1}`, "81a16eff"},
		{"-33", numberSpec, `{"n":-33}`, "81a16ed0df"},
		{"-129", numberSpec, `{"n":-129}`, "81a16ed1ff7f"},
		{"-32769", numberSpec, `{"n":-32769}`, "81a16ed2ffff7fff"},
		{"1.5", numberSpec, `{"n":1.5}`, "81a16ecb3ff8000000000000"},
		{"0.1 is text", numberSpec, `{"n":0.1}`, "81a16ea3302e31"},
		{"1e20 is text", numberSpec, `{"n":1e20}`, "81a16eb5313030303030303030303030303030303030303030"},
		{"2^64-1 is text", numberSpec, `{"n":18446744073709551615}`, "81a16eb43138343436373434303733373039353531363135"},
		{"a whole number as text", numberSpec, `{"n":"12"}`, "81a16e0c"},
		{"a fraction as text", numberSpec, `{"n":"0.25"}`, "81a16ecb3fd0000000000000"},
		{"null", numberSpec, `{"n":null}`, "81a16ec0"},

		{"a default", greetingSpec, `{}`, "81a86772656574696e67ad48656c6c6f2c20576f726c6421"},
		{"no default", greetingSpec, `{"greeting":"hi"}`, "81a86772656574696e67a26869"},
		{"names from the keys", execSpec, `{"command":"/bin/sleep","args":["300"]}`,
			"85a46172677391a3333030a7636f6d6d616e64aa2f62696e2f736c656570a3656e76c0ad6f6f6d5f73636f72655f61646ac0a8776f726b5f646972c0"},
		{"scalars become strings", execSpec, `{"command":5,"args":[1,true,"x"]}`,
			"85a46172677393a131a474727565a178a7636f6d6d616e64a135a3656e76c0ad6f6f6d5f73636f72655f61646ac0a8776f726b5f646972c0"},
		{"defaults of all kinds", defaultsSpec, `{}`, "84a363617092a161a162a7656e61626c6564c3a2676381a5696d616765c2a774696d656f7574a2356d"},
		{"a block in place of its default", defaultsSpec, `{"enabled":"false","gc":[{"delay":"3s"}]}`,
			"84a363617092a161a162a7656e61626c6564c2a2676382a564656c6179a23373a5696d616765c3a774696d656f7574a2356d"},
		{"a block without a list around it", defaultsSpec, `{"enabled":false,"gc":{"delay":"3s"}}`,
			"84a363617092a161a162a7656e61626c6564c2a2676382a564656c6179a23373a5696d616765c3a774696d656f7574a2356d"},
		{"absent blocks", blocksSpec, `{}`, "86a2626d80a2627390a66c6162656c73c0a56d6f756e7490a46f707473c0a3737973c0"},
		{"blocks of all kinds", blocksSpec,
			`{"mount":[{"source":"/a"},{"source":"/b","ro":true}],"labels":[{"k":"v"},{"k2":"v2"}],"opts":{"x":"1"},"sys":[{"net.core":"1"}],"bm":[{"one":[{"v":1}]},{"two":[{"v":2}]}],"bs":[{"v":2},{"v":1},{"v":2}]}`,
			"86a2626d82a36f6e6581a17601a374776f81a17602a262739281a1760181a17602a66c6162656c739281a16ba17681a26b32a27632a56d6f756e749282a2726fc2a6736f75726365a22f6182a2726fc3a6736f75726365a22f62a46f70747381a178a131a373797381a86e65742e636f7265a131"},
		{"types of all kinds", typesSpec, `{"a":{"k":[1,"x",true]},"t":["p",2],"o":{"x":"q","y":3},"s":["b","a","b"]}`,
			"84a16181a16b9301a178c3a16f82a178a171a17903a17392a161a162a17492a17002"},
		{"an empty object", hclspec.Object(nil), `{}`, "80"},
		{"an array at the root", hclspec.Array(hclspec.Attr("x", "string", false), hclspec.Attr("y", "number", false)), `{"x":"q","y":3}`, "92a17103"},
		{"the config of a plugin", pluginConfigSpec, `{"mode":"hello"}`, "83a7656e61626c6564c3a26673a46e6f6e65a46d6f6465a568656c6c6f"},
		{"40 characters", hclspec.Object(map[string]*hclspec.Spec{"s": hclspec.Attr("s", "string", false)}), `{"s":"` + strings.Repeat("a", 40) + `"}`,
			"81a173d928" + strings.Repeat("61", 40)},
		{"a default of another type", hclspec.Object(map[string]*hclspec.Spec{"s": hclspec.Default(hclspec.Attr("s", "string", false), hclspec.Literal("5"))}), `{}`, "81a17305"},

		{"job: only what is required", job, `{"command":"/bin/x"}`, minimalJobHex},
		{"job: interpolated", job, `{"command":"/bin/x","args":["a","${NOMAD_PORT_http}",3],"count":3}`,
			jobWith("a461726773c0", "a46172677393a161a53231303030a133", "a5636f756e74c0", "a5636f756e7403")},
		{"job: fraction and bool", job, `{"command":"/bin/x","count":1.5,"on":true}`,
			jobWith("a5636f756e74c0", "a5636f756e74cb3ff8000000000000", "a26f6ec0", "a26f6ec3")},
		{"job: negative, null takes the default", job, `{"command":"/bin/x","count":-1,"dflt":null}`,
			jobWith("a5636f756e74c0", "a5636f756e74ff")},
		{"job: over the default", job, `{"command":"/bin/x","dflt":300}`, jobWith("a464666c7407", "a464666c74cd012c")},
		{"job: 2^63-1", job, `{"command":"/bin/x","count":9223372036854775807}`,
			jobWith("a5636f756e74c0", "a5636f756e74cf7fffffffffffffff")},
		{"job: 2^63", job, `{"command":"/bin/x","count":9223372036854775808}`,
			jobWith("a5636f756e74c0", "a5636f756e74b339323233333732303336383534373735383038")},
		{"job: blocks", job, `{"command":"/bin/x","one":[{"x":1}],"many":[{"x":1},{"x":2,"o":[{"k":"v"}]}]}`,
			"8ca3616e79c0a461726773c0a56261747472c0a4626d617080a7636f6d6d616e64a62f62696e2f78a5636f756e74c0a464666c7407a46c6d6170c0a46d616e799282a16fc0a1780182a16f81a16ba176a17802a76d617061747472c0a26f6ec0a36f6e6581a17801"},
		{"job: labels and attributes", job, `{"command":"/bin/x","bmap":[{"a":[{"x":1}]},{"b":[{"x":2}]}],"battr":[{"k":"v","n":1}]}`,
			jobWith("a56261747472c0", "a5626174747282a16ba176a16ea131", "a4626d617080", "a4626d617082a16181a17801a16281a17802")},
		{"job: list of maps", job, `{"command":"/bin/x","lmap":[{"a":1},{"b":2}]}`,
			jobWith("a46c6d6170c0", "a46c6d61709281a161a13181a162a132")},
		{"job: any", job, `{"command":"/bin/x","any":[{"a":[1,"b",true,null]}]}`,
			jobWith("a3616e79c0", "a3616e799181a1619401a162c3c0")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			value, diags := Decode(tt.spec, parseConfig(t, tt.config), varsFunc(nomadVars))
			if diags.HasErrors() {
				t.Fatal(Messages(diags))
			}
			b, err := Marshal(value)
			if err != nil {
				t.Fatal(err)
			}
			if got := hex.EncodeToString(b); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestJobThroughTheAPI(t *testing.T) {
	// Numbers that come from JSON are float64.
	s := hclspec.Object(map[string]*hclspec.Spec{"n": hclspec.Attr("n", "list(map(list(number)))", false)})
	value, diags := Decode(s, map[string]any{"n": []map[string]any{{"k": []any{float64(9223372036854775807)}}}}, varsFunc(nomadVars))
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	b, err := Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := hex.EncodeToString(b), "81a16e9181a16b91b339323233333732303336383534373735383038"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestTemplates(t *testing.T) {
	s := hclspec.Object(map[string]*hclspec.Spec{"a": hclspec.Attr("a", "any", false)})
	tests := []struct {
		name string
		in   any
		want cty.Value
	}{
		{"an escape is undone", "$${FOO} %%{if}", cty.StringVal("${FOO} %{if}")},
		{"what is meant as it stands", hclspec.Verbatim("${FOO} %{if} $${x} $ %"), cty.StringVal("${FOO} %{if} $${x} $ %")},
		{"spaces are allowed", "${ FOO }", cty.StringVal("foo")},
		{"any name is in env", `${env["dotted.name"]}`, cty.StringVal("dotted")},
		{"names with dots nest", "${attr.cpu.arch}", cty.StringVal("amd64")},
		{"a directive", "%{ if FOO == \"foo\" }yes%{ else }no%{ endif }", cty.StringVal("yes")},
		{"arithmetic", "${NOMAD_PORT_http + 1}", cty.NumberIntVal(21001)},
		{"a key is a template", map[string]any{"${FOO}": 1}, cty.ObjectVal(map[string]cty.Value{"foo": cty.NumberIntVal(1)})},
		{"abs", "${abs(-1)}", cty.NumberIntVal(1)},
		{"coalesce", `${coalesce(null, "x")}`, cty.StringVal("x")},
		{"concat", "${concat([1], [2])[1]}", cty.NumberIntVal(2)},
		{"hasindex", "${hasindex([1], 1)}", cty.False},
		{"int", "${int(1.9)}", cty.NumberIntVal(1)},
		{"jsondecode", `${jsondecode("[1,2]")[1]}`, cty.NumberIntVal(2)},
		{"jsonencode", `${jsonencode({a = 1})}`, cty.StringVal(`{"a":1}`)},
		{"length", "${length([1, 2])}", cty.NumberIntVal(2)},
		{"lower", `${lower("A")}`, cty.StringVal("a")},
		{"max", "${max(1, 2)}", cty.NumberIntVal(2)},
		{"min", "${min(1, 2)}", cty.NumberIntVal(1)},
		{"reverse", `${reverse("ab")}`, cty.StringVal("ba")},
		{"strlen", `${strlen("ab")}`, cty.NumberIntVal(2)},
		{"substr", `${substr("abc", 1, 1)}`, cty.StringVal("b")},
		{"upper", `${upper("a")}`, cty.StringVal("A")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			value, diags := Decode(s, map[string]any{"a": tt.in}, varsFunc(nomadVars))
			if diags.HasErrors() {
				t.Fatal(Messages(diags))
			}
			if got := value.GetAttr("a"); !got.RawEquals(tt.want) {
				t.Errorf("got %#v, want %#v", got, tt.want)
			}
		})
	}
}

func TestMessages(t *testing.T) {
	block := func(min, max uint64) *hclspec.Spec {
		return hclspec.Object(map[string]*hclspec.Spec{"b": hclspec.BlockList("b", hclspec.Object(nil), min, max)})
	}
	none := map[string]cty.Value{}
	tests := []struct {
		name   string
		spec   *hclspec.Spec
		config string
		vars   map[string]cty.Value
		want   string // prefix of one message
	}{
		{"an unknown name", execSpec, `{"command":"x","bogus":1}`, none, `Invalid label: No argument or block type is named "bogus".`},
		{"an unknown name in a block", defaultsSpec, `{"gc":[{"bogus":1}]}`, none, `Invalid label: No argument or block type is named "bogus".`},
		{"an almost known name", execSpec, `{"command":"x","argz":1}`, none, `Invalid label: No argument or block type is named "argz". Did you mean "args"?`},
		{"a missing argument", execSpec, `{}`, none, `Missing required argument: The argument "command" is required, but no definition was found.`},
		{"a string for a list", execSpec, `{"command":"x","args":"y"}`, none,
			`Incorrect attribute value type: Inappropriate value for attribute "args": list of string required, but have string.`},
		{"text for a number", numberSpec, `{"n":"x"}`, none, `Incorrect attribute value type: Inappropriate value for attribute "n": a number is required.`},
		{"a bool for a number", numberSpec, `{"n":true}`, none, `Incorrect attribute value type: Inappropriate value for attribute "n": number required, but have bool.`},
		{"a map as HCL writes it", job, `{"command":"x","mapattr":[{"k":"v"}]}`, none,
			`Incorrect attribute value type: Inappropriate value for attribute "mapattr": map of string required`},
		{"an object in a list", job, `{"command":"x","args":["${attr.cpu}"]}`, nomadVars,
			`Incorrect attribute value type: Inappropriate value for attribute "args": element 0: string required, but have object.`},
		{"an unknown variable", numberSpec, `{"n":"${FOO}"}`, none, `Unknown variable: There is no variable named "FOO".`},
		{"an unknown attribute", numberSpec, `{"n":"${attr.nope}"}`, nomadVars, `Unsupported attribute: This object does not have an attribute named "nope".`},
		{"no variables at all", numberSpec, `{"n":"${FOO}"}`, nil, `Variables not allowed: Variables may not be used here.`},
		{"an unknown function", numberSpec, `{"n":"${nosuch()}"}`, none, `Call to unknown function: There is no function named "nosuch".`},
		{"two of a block", defaultsSpec, `{"gc":[{},{}]}`, none, `Duplicate gc block: Only one block of type "gc" is allowed. Previous definition was at `},
		{"too many blocks", block(0, 2), `{"b":[{},{},{}]}`, none, `Too many b blocks: No more than 2 "b" blocks are allowed`},
		{"too few blocks", block(1, 0), `{}`, none, `Insufficient b blocks: At least 1 "b" blocks are required.`},
		{"a missing block", hclspec.Object(map[string]*hclspec.Spec{"b": hclspec.Block("b", hclspec.Object(nil), true)}), `{}`, none,
			`Missing b block: A block of type "b" is required here.`},

		{"no spec", nil, `{}`, none, "nil spec given: "},
		{"no spec in an object", hclspec.Object(map[string]*hclspec.Spec{"x": nil}), `{}`, none, "nil spec given: "},
		{"a spec that says nothing", &hclspec.Spec{}, `{}`, none, "Invalid spec: "},
		{"no name at the root", hclspec.Attr("", "string", false), `{}`, none, "Missing name in attribute spec: "},
		{"no name in a default", hclspec.Object(map[string]*hclspec.Spec{"x": hclspec.Default(hclspec.Attr("", "string", false), hclspec.Literal("1"))}), `{}`, none, "Missing name in attribute spec: "},
		{"no name in an array", hclspec.Array(hclspec.Attr("", "string", false)), `{}`, none, "Missing name in attribute spec: "},
		{"no type", hclspec.Attr("x", "", false), `{}`, none, "Missing expression: "},
		{"an unknown type", hclspec.Attr("x", "strin", false), `{}`, none, "Invalid type specification: "},
		{"no nested spec", hclspec.Block("b", nil, false), `{}`, none, "Missing spec block: "},
		{"no labels", hclspec.BlockMap("b", nil, hclspec.Object(nil)), `{}`, none, "Missing labels in block_map spec: "},
		{"any in a map of blocks", hclspec.BlockMap("b", []string{"l"}, hclspec.Attr("x", "any", false)), `{}`, none, "Invalid type in block_map spec: "},
		{"a variable in a literal", hclspec.Literal("FOO"), `{}`, none, "Variables not allowed: "},
		{"more blocks than there are", block(math.MaxUint64, 0), `{}`, none, "Invalid block limits: "},
		{"a spec that does not fit together", hclspec.Object(map[string]*hclspec.Spec{
			"b": hclspec.BlockMap("b", []string{"l"}, hclspec.Default(hclspec.Attr("x", "string", false), hclspec.Literal("5"))),
		}), `{"b":[{"one":{"x":"a"}},{"two":{}}]}`, none, "Invalid spec: The schema of the plugin does not fit together: "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, diags := Decode(tt.spec, parseConfig(t, tt.config), varsFunc(tt.vars))
			messages := Messages(diags)
			for _, m := range messages {
				if strings.HasPrefix(m, tt.want) {
					return
				}
			}
			t.Errorf("got %q, want %q", messages, tt.want)
		})
	}
}

// TestHostileConfigIsRejected decodes input that would crash the process if no limits were
// checked.
func TestHostileConfigIsRejected(t *testing.T) {
	s := hclspec.Object(map[string]*hclspec.Spec{"a": hclspec.Attr("a", "any", false)})
	const n = 1 << 16
	vars := maps.Clone(nomadVars)
	vars["DEEP"] = cty.StringVal(strings.Repeat("[", n))
	nested := any("x")
	for range 20_000 {
		nested = []any{nested}
	}
	configs := map[string]any{
		"lists":             nested,
		"brackets":          "${" + strings.Repeat("[", n),
		"parentheses":       "${" + strings.Repeat("(", n) + "1",
		"negations":         "${" + strings.Repeat("!", n) + "true}",
		"minuses":           "${" + strings.Repeat("-", n) + "1}",
		"templates":         strings.Repeat(`${"`, n/3),
		"directives":        strings.Repeat("%{ if true }", n/12),
		"loops":             strings.Repeat("%{ for x in [1] }", n/17),
		"conditionals":      "${" + strings.Repeat("true ? 1 : ", n/11) + "1}",
		"a chain of sums":   "${1" + strings.Repeat("+1", n/2) + "}",
		"a chain of splats": "${FOO" + strings.Repeat("[*]", n/3) + "}",
		"JSON":              "${jsondecode(DEEP)}",
		"a huge number":     json.Number("1e1000000000"),
		"a huge literal":    "${1e1000000000}-",
		"a tiny number":     json.Number("1e-1000000000"),
	}
	for name, value := range configs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, diags := Decode(s, map[string]any{"a": value}, varsFunc(vars))
			expectLimitError(t, diags)
		})
	}

	specs := map[string]*hclspec.Spec{
		"a type":    hclspec.Attr("a", strings.Repeat("list(", n/5)+"string", false),
		"a literal": hclspec.Literal(strings.Repeat("[", n)),
		"labels":    hclspec.BlockMap("a", make([]string, 1000), hclspec.Object(nil)),
	}
	for name, spec := range specs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, diags := Decode(spec, nil, varsFunc(vars))
			expectLimitError(t, diags)
		})
	}

	t.Run("a number in text", func(t *testing.T) {
		value, diags := Decode(numberSpec, map[string]any{"n": "1e100000000"}, varsFunc(vars))
		if diags.HasErrors() {
			t.Fatal(diags)
		}
		if _, err := Marshal(value); err == nil || !strings.Contains(err.Error(), "the number is out of range") {
			t.Errorf("got error %v", err)
		}
	})
	t.Run("what is deep but not too deep", func(t *testing.T) {
		text := "${" + strings.Repeat("[", 150) + strings.Repeat("]", 150) + "}"
		if _, diags := Decode(s, map[string]any{"a": text}, varsFunc(vars)); diags.HasErrors() {
			t.Error(Messages(diags))
		}
	})
}

// expectLimitError checks that the config was rejected because of a limit.
func expectLimitError(t *testing.T, diags hcl.Diagnostics) {
	t.Helper()
	messages := strings.Join(Messages(diags), "; ")
	for _, reason := range []string{"levels deep at most", "operators at most", "out of range", "digits in its exponent", "too many"} {
		if strings.Contains(messages, reason) {
			return
		}
	}
	t.Errorf("got %q", messages)
}

func TestConfigThatIsNoJSON(t *testing.T) {
	_, diags := Decode(numberSpec, map[string]any{"n": math.Inf(1)}, varsFunc(nomadVars))
	if got := Messages(diags); len(got) != 1 || !strings.HasPrefix(got[0], "Invalid config: The config cannot be read: ") {
		t.Errorf("got %q", got)
	}
}

// Some plugins send a Spec with a kind and without its content.
func TestDecodeWithMissingFieldsDoesNotPanic(t *testing.T) {
	for _, p := range []*specpb.Spec{
		{},
		{Block: &specpb.Spec_Object{}},
		{Block: &specpb.Spec_Array{}},
		{Block: &specpb.Spec_Attr{}},
		{Block: &specpb.Spec_BlockValue{}},
		{Block: &specpb.Spec_BlockAttrs{}},
		{Block: &specpb.Spec_BlockList{}},
		{Block: &specpb.Spec_BlockSet{}},
		{Block: &specpb.Spec_BlockMap{}},
		{Block: &specpb.Spec_Default{}},
		{Block: &specpb.Spec_Literal{}},
	} {
		s, err := specwire.FromProto(&specpb.Spec{Block: &specpb.Spec_Object{Object: &specpb.Object{Attributes: map[string]*specpb.Spec{"x": p}}}})
		if err != nil {
			t.Fatal(err)
		}
		_, diags := Decode(s, nil, nil)
		if err := Fault(s); (err == nil) == diags.HasErrors() {
			t.Errorf("%v: Decode reports %q, Fault %v", p, Messages(diags), err)
		}
	}
}

func TestReferences(t *testing.T) {
	got := References(map[string]any{
		"args":    []any{"${NOMAD_PORT_http} $${escaped}", `${upper(env["HOME"])}`},
		"command": "${attr.kernel.name}",
		"mount":   []map[string]any{{"source": "${meta[\"rack\"]}", "${KEY}": 1}},
		"number":  1,
	})
	want := []Reference{
		{"args", "NOMAD_PORT_http", false}, {"args", "HOME", true}, {"command", "attr.kernel.name", false}, {"mount", "KEY", false}, {"mount", "meta.rack", false},
	}
	slices.SortStableFunc(got, func(a, b Reference) int { return strings.Compare(a.Argument, b.Argument) })
	slices.SortFunc(got[len(got)-2:], func(a, b Reference) int { return strings.Compare(a.Variable, b.Variable) })
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := References(map[string]any{"command": "no references"}); got != nil {
		t.Errorf("got %v", got)
	}
}
