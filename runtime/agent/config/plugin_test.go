package config

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/hcl/hcl/ast"
	"github.com/hashicorp/hcl/v2"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
)

// parsePlugins returns the plugin blocks in the text of a configuration file.
func parsePlugins(filename string, src []byte) (pluginBlocks, hcl.Diagnostics) {
	d, diags := parseDocument(filename, src)
	if d == nil {
		return nil, diags
	}
	var r configFileReader
	for _, item := range d.items.Items {
		if names, _ := d.decodeNameAndLabels(item); len(names) > 0 && names[0] == "plugin" {
			r.readItems(d, &ast.ObjectList{Items: []*ast.ObjectItem{item}}, topLevelBody)
		}
	}
	return r.plugins, append(diags, r.diags...)
}

func TestPluginBlocks(t *testing.T) {
	text := `
data_dir   = "/var/lib/x"
plugin_dir = "plugins"
client {
  enabled = true
}
plugin "docker" {
  args = ["-old"]
}
plugin "hello" {
  args   = ["-v", "x"]
  sha256 = "` + strings.Repeat("aB", 32) + `"
  shell  = "zsh"
  config {
    text    = "plain $${not} %%{if}"
    expr    = "pre ${upper("x")} post"
    whole   = "${lower("Y")}"
    call    = "${min(1, 2)}"
    ref     = "${env.HOME}"
    count   = 3
    ratio   = 0.5
    minus   = -7
    yes     = true
    list    = ["a", 1, [true]]
    object  = { a = 1, "b c" = "${x}" }
    heredoc = <<-END
      one
      ${two}
    END
    auth {
      user = "me"
    }
    auth {
      user = "you"
    }
    volume "data" "rw" {
      path = "/d"
    }
  }
}
plugin "docker" {
  config = { gc = false }
}
`
	plugins, diags := parsePlugins("agent.hcl", []byte(text))
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	var warnings []string
	for _, d := range diags {
		warnings = append(warnings, fmt.Sprintf("%d: %s", d.Subject.Start.Line, d.Detail))
	}
	wantWarnings := []string{
		`13: A plugin block has args, config, env_allowlist and sha256; "shell" is not used.`,
		`41: This block replaces the one of the same name at agent.hcl:7,1-16.`,
	}
	if !reflect.DeepEqual(warnings, wantWarnings) {
		t.Errorf("warnings\n%q, want\n%q", warnings, wantWarnings)
	}

	if len(plugins) != 2 {
		t.Fatalf("%+v", plugins)
	}
	hello, docker := plugins[0], plugins[1]
	if docker.Args != nil || !reflect.DeepEqual(docker.Config, map[string]any{"gc": false}) {
		t.Errorf("of two blocks the later one wins whole: %+v", docker)
	}
	if got := hello.Range.String(); got != "agent.hcl:10,1-15" {
		t.Errorf("range %s", got)
	}
	if !reflect.DeepEqual(hello.Args, []string{"-v", "x"}) || len(hello.SHA256) != 64 {
		t.Errorf("%+v", hello)
	}
	want := map[string]any{
		"text":    "plain $${not} %%{if}",
		"expr":    `pre ${upper("x")} post`,
		"whole":   `${lower("Y")}`,
		"call":    `${min(1, 2)}`,
		"ref":     `${env.HOME}`,
		"count":   3,
		"ratio":   0.5,
		"minus":   -7,
		"yes":     true,
		"list":    []any{"a", 1, []any{true}},
		"object":  map[string]any{"a": 1, "b c": "${x}"},
		"heredoc": "one\n${two}\n",
		"auth":    []map[string]any{{"user": "me"}, {"user": "you"}},
		"volume":  []map[string]any{{"data": []map[string]any{{"rw": []map[string]any{{"path": "/d"}}}}}},
	}
	for k := range want {
		if !reflect.DeepEqual(hello.Config[k], want[k]) {
			t.Errorf("%s = %#v, want %#v", k, hello.Config[k], want[k])
		}
	}
	if len(hello.Config) != len(want) {
		t.Errorf("config has %d keys, want %d", len(hello.Config), len(want))
	}
}

// Each form of a value reaches the plugin as hclspec expects it.
func TestPluginConfigValues(t *testing.T) {
	const end = "\n  END\n"
	for text, want := range map[string]any{
		`""`:                          "",
		`"a\"b\\c\n\t\r\u00e9ü"`:      "a\"b\\c\n\t\réü",
		`"C:\\dir"`:                   `C:\dir`,
		`"100% of $5 {a}"`:            "100% of $5 {a}",
		`"$${a} and %%{b}"`:           "$${a} and %%{b}",
		`"$$"`:                        "$$",
		`"\u0024{a}"`:                 "$${a}",
		`"${a}"`:                      "${a}",
		`"${a}${b}"`:                  "${a}${b}",
		`"${ a }"`:                    "${a}",
		`"x ${~ a ~} y"`:              "x${a}y",
		`"${lower("${a}-\n{}")}"`:     `${lower("${a}-\n{}")}`,
		`"${[for x in y : {a = x}]}"`: "${[for x in y : {a = x}]}",
		`"# // /* ${a} */"`:           "# // /* ${a} */",
		`0`:                           0,
		`-7`:                          -7,
		`9223372036854775807`:         9223372036854775807,
		`9223372036854775808`:         float64(1 << 63),
		`1e3`:                         1000,
		`-2.50`:                       -2.5,
		`1.0`:                         1,
		`1e-2`:                        0.01,
		`9007199254740993.0`:          9007199254740993,
		`true`:                        true,
		`false`:                       false,
		`[]`:                          []any{},
		"[\n1,\n# one\n\"b\",\n]":     []any{1, "b"},
		`[[1, "${a}"], [], [{}]]`:     []any{[]any{1, "${a}"}, []any{}, []any{map[string]any{}}},
		`{}`:                          map[string]any{},
		"{\na = 1\n\"b.c\" = true\n}": map[string]any{"a": 1, "b.c": true},
		`{ a = { b = [{ c = "${d}" }] }, e = "f" }`: map[string]any{
			"a": map[string]any{"b": []any{map[string]any{"c": "${d}"}}}, "e": "f",
		},
		`{ a = 1, a = 2 }`:                           map[string]any{"a": 2},
		`{ "$${a}" = 1 }`:                            map[string]any{"${a}": 1},
		"<<END\n  one\n\n\ttwo \\n \"${a}\"" + end:   "  one\n\n\ttwo \\n \"${a}\"\n",
		"<<END\n$${a} %%{b}" + end:                   "$${a} %%{b}\n",
		"<<-END\n    one\n      ${a}\n    two" + end: "one\n  ${a}\ntwo\n",
		"<<-END\n one\n    two" + end:                "one\n   two\n",
		"<<END\r\none\r\ntwo\r" + end:                "one\r\ntwo\r\n",
	} {
		for _, form := range []string{"config {\n  x = %s\n}", "config {\n \"x\" = %s\n}", "config = {\n  x = %s\n}", "config {\r\n  a {}\r\n  x = %s\r\n}"} {
			plugins, diags := parsePlugins("agent.hcl", []byte("plugin \"a\" {\n"+fmt.Sprintf(form, text)+"\n}\n"))
			if diags.HasErrors() {
				t.Errorf("%s: %v", text, diags)
				continue
			}
			if got := plugins[0].Config["x"]; !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %#v, want %#v", text, got, want)
			}
		}
	}
}

func TestPluginBlockErrors(t *testing.T) {
	tests := []struct{ text, want string }{
		{`plugin {}`, `agent.hcl:1,1-7: Plugin block without a name`},
		{`plugin "a" "b" {}`, "Plugin block without a name"},
		{`plugin "../../bin/sh" {}`, `agent.hcl:1,8-22: Not a plugin name`},
		{"plugin \"a\" {\n  args = \"x\"\n}", "agent.hcl:2,10-13: Not a list of strings"},
		{"plugin \"a\" {\n  args = [1]\n}", "agent.hcl:2,10-13: Not a list of strings"},
		{"plugin \"a\" {\n  args = [x]\n}", `agent.hcl:2,11-12: not HCL: "x" is not expected here`},
		{"plugin \"a\" {\n  args = [\"${x}\"]\n}", "agent.hcl:2,10-18: Not a list of strings"},
		{"plugin \"a\" {\n  args = []\n  args = []\n}", "agent.hcl:3,3-7: args is already set at agent.hcl:2,3-7"},
		{"plugin \"a\" {\n  config {\n    x = 1\n    x = 2\n  }\n}", "agent.hcl:4,5-6: x is already set at agent.hcl:3,5-6"},
		{"plugin \"a\" {\n  config {\n    x = min(1, 2)\n  }\n}", `agent.hcl:3,9-12: not HCL: "min" is not a value`},
		{"plugin \"a\" {\n  config {\n    \"${x}\" = 1\n  }\n}", `agent.hcl:3,5-11: "${x}" is not a name`},
		{"plugin \"a\" {\n  config = 1\n}", "agent.hcl:2,12-13: Not a config block"},
		{"plugin \"a\" {\n  config \"x\" {}\n}", "agent.hcl:2,10-13: Label on a config block"},
		{"plugin \"a\" {\n  config {}\n  config {}\n}", "agent.hcl:3,3-9: Two config blocks"},
		{"plugin \"a\" {\n  sha256 = \"12\"\n}", "agent.hcl:2,12-16: Not a checksum"},
		{"plugin \"a\" {\n  config {\n    x = 1\n    x {}\n  }\n}", "Setting and block of one name"},
		{"plugin \"a\" {\n  config {\n    x = { (y) = 1 }\n  }\n}", `agent.hcl:3,11-12: not HCL: illegal char at "("`},
		{"plugin \"a\" {\n  config {\n    x = \"%{if true}a%{endif}\"\n  }\n}", "Template sequence"},
		{"plugin \"a\" {\n  sha256 = 7\n}", "agent.hcl:2,12-13: Not a string"},
		{`plugin "a" {`, `agent.hcl:1,12-13: not HCL: the file ends before this "{" is closed`},
	}
	for _, tt := range tests {
		_, diags := parsePlugins("agent.hcl", []byte(tt.text))
		if !diags.HasErrors() || !strings.Contains(diags.Error(), tt.want) {
			t.Errorf("%s\ngives %v, want %s", tt.text, diags, tt.want)
		}
	}
}

func TestOneLinePluginBlocks(t *testing.T) {
	tests := []struct {
		text string
		want string // expected name, config and range of each block, or the expected error
	}{
		{`plugin "raw_exec" { config { enabled = true } }`, "raw_exec map[enabled:true] agent.hcl:1,1-18"},
		{`plugin "a" { args = ["-v"] config { x { y = { z = 1 } } } } plugin "b" {}`, "a map[x:[map[y:map[z:1]]]] agent.hcl:1,1-11; b map[] agent.hcl:1,61-71"},
		{"# ü\nplugin \"a\" { config { x = \"${f({})}\" } } # end\nplugin \"b\" {\n}", "a map[x:${f({})}] agent.hcl:2,1-11; b map[] agent.hcl:3,1-11"},
		{`plugin "a" { config { x = 1 } config { y = 2 } }`, "agent.hcl:1,31-37: Two config blocks"},
		{`plugin "a" { config { x = } }`, `agent.hcl:1,27-28: not HCL: "}" is not a value`},
		{`plugin "a" { config { `, "agent.hcl:1,"},
		{`} plugin "a" { config { x = 1 } }`, "agent.hcl:1,1-2"},
	}
	for _, tt := range tests {
		plugins, diags := parsePlugins("agent.hcl", []byte(tt.text))
		if diags.HasErrors() {
			if !strings.Contains(diags.Error(), tt.want) {
				t.Errorf("%s\ngives %v, want %s", tt.text, diags, tt.want)
			}
			continue
		}
		var got []string
		for _, b := range plugins {
			got = append(got, fmt.Sprintf("%s %v %s", b.Name, b.Config, b.Range))
		}
		if s := strings.Join(got, "; "); s != tt.want {
			t.Errorf("%s\ngives %s, want %s", tt.text, s, tt.want)
		}
	}
}

// The parser is recursive, so a text that is nested too deeply is rejected before.
func TestDeeplyNestedConfig(t *testing.T) {
	for name, text := range map[string]string{
		"brackets":     "x = " + strings.Repeat("[", 1<<16),
		"parentheses":  "x = " + strings.Repeat("(", 1<<16),
		"braces":       strings.Repeat("a {\n", 1<<15),
		"negations":    "x = " + strings.Repeat("!", 1<<16),
		"minus":        "x = " + strings.Repeat("- ", 1<<15),
		"templates":    "x = " + strings.Repeat(`"${`, 1<<15),
		"conditionals": "x = " + strings.Repeat("a?b:", 1<<15),
		"operators":    "x = 1" + strings.Repeat("+1", 1<<15),
		"indexes":      "x = a" + strings.Repeat("[b]", 1<<15),
		"lists":        "x = " + strings.Repeat("[", 1<<16) + strings.Repeat("]", 1<<16),
		"objects":      "x = " + strings.Repeat("{ a = ", 1<<16) + "1" + strings.Repeat("}", 1<<16),
		"blocks":       strings.Repeat("a {", 1<<16) + strings.Repeat("}", 1<<16),
		"in a text":    `plugin "a" { config { x = "${` + strings.Repeat("(", 1<<16) + strings.Repeat(")", 1<<16) + `}" } }`,
		"in a heredoc": "x = <<END\n${" + strings.Repeat("!", 1<<16) + "a}\nEND\n",
		"chain":        `x = "${1` + strings.Repeat("+1", 1<<15) + `}"`,
		"a name":       `"${` + strings.Repeat("(", 1<<16) + strings.Repeat(")", 1<<16) + `}" = 1`,
		"a number":     `x = 1e1000000000`,
		"long number":  `x = ` + strings.Repeat("1", 1<<16),
		"anchor":       "x = <<" + strings.Repeat("E", 1<<19) + "\n",
	} {
		began := time.Now()
		diags := new(Config).Parse("agent.hcl", []byte(text))
		if !diags.HasErrors() {
			t.Errorf("%s: accepted", name)
		}
		if d := time.Since(began); d > time.Minute {
			t.Errorf("%s: refused after %v", name, d)
		}
	}
}

func FuzzPluginBlocks(f *testing.F) {
	f.Add(`plugin "a" { args = ["x"] config { a = "${b}" c { d = 1 } } }`)
	f.Add(`plugin "a" { config { x { y = { z = 1 } } } } } plugin "b" {}`)
	f.Add("plugin_dir = \"x\"\nplugin \"a\" {\n config = { a = <<E\n%{if x}\nE\n } }")
	f.Add(`plugin "a" { config { a = [for x in y : x] b = x ? 1 : 2 c = "${~ x ~}" } }`)
	f.Fuzz(func(t *testing.T, text string) {
		plugins, diags := parsePlugins("fuzz.hcl", []byte(text))
		if diags.HasErrors() {
			for _, d := range diags {
				if d.Severity == hcl.DiagError && d.Subject == nil {
					t.Errorf("error without a place: %v", d)
				}
			}
			return
		}
		for _, b := range plugins {
			if !base.ValidName(b.Name) {
				t.Errorf("name %q", b.Name)
			}
		}
		if _, err := catalog.New(catalog.Config{Blocks: plugins}); err != nil {
			t.Errorf("what was parsed is refused: %v", err)
		}
	})
}
