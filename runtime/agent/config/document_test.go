package config

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/hcl/hcl/ast"
	"github.com/hashicorp/hcl/hcl/scanner"
	"github.com/hashicorp/hcl/hcl/token"
	"github.com/hashicorp/hcl/v2"
)

func TestFormsThatNomadAccepts(t *testing.T) {
	for text, want := range map[string]string{
		`client { enabled = true, max_kill_timeout = "30s" }`:                                                     "30s",
		`"client" { max_kill_timeout = "30s" }`:                                                                   "30s",
		`name = "a" client { max_kill_timeout = "30s" gc_max_allocs = 3 }`:                                        "30s a 3",
		"name = \"a\",\nclient {\n  gc_max_allocs = 3,\n  max_kill_timeout = \"30s\",\n},\n":                      "30s a 3",
		`client { host_volume "x" { path = "/tmp"  read_only = true } }`:                                          "0s x:/tmp:true",
		`telemetry { collection_interval = "10s", prefix_filter = ["+nomad.client",], disable_hostname = true, }`: "0s 10s true [+nomad.client]",
		`client = { max_kill_timeout = "30s" meta { "a b" = 1 c.d = true } }`:                                     "30s map[a b:1 c.d:true]",
		`client { "gc_max_allocs" = 0x10 }`:                                                                       "0s 16",
		`"plugin" "x" { config { a { b = "${c}" d = 1, } } }`:                                                     "0s x map[a:[map[b:${c} d:1]]]",
		"client {\r\n  // one\r\n  /* two */ gc_max_allocs = 3 # three\r\n}\r\n":                                  "0s 3",
		`hook "x" { config { rule = [{ word = "one" }, { word = "two" }] } }`:                                     "0s map[rule:[map[word:one] map[word:two]]]",
	} {
		var c Config
		diags := c.Parse("a.hcl", []byte(text))
		got := []string{c.MaxKillTimeout.String()}
		if c.Node.Name != "" {
			got = append(got, c.Node.Name)
		}
		if c.GC.MaxAllocsOnDisk != 0 {
			got = append(got, fmt.Sprint(c.GC.MaxAllocsOnDisk))
		}
		for name, v := range c.Node.HostVolumes {
			got = append(got, fmt.Sprintf("%s:%s:%t", name, v.Path, v.ReadOnly))
		}
		if t := c.Telemetry; t.CollectionInterval != 0 {
			got = append(got, fmt.Sprint(t.CollectionInterval, t.OmitHost, t.Filter.Rules))
		}
		if c.Node.Meta != nil {
			got = append(got, fmt.Sprint(c.Node.Meta))
		}
		for _, p := range c.Plugins {
			got = append(got, p.Name, fmt.Sprint(p.Config))
		}
		for _, h := range c.HookRules {
			got = append(got, fmt.Sprint(h.Config))
		}
		if s := strings.Join(got, " "); len(diags) > 0 || s != want {
			t.Errorf("%s\nread %s, want %s; %v", text, s, want, diags)
		}
	}
}

// Each error has a range. The parser alone accepts some of these texts, and omits a setting.
func TestSyntaxErrors(t *testing.T) {
	for text, want := range map[string]string{
		"name = \"a\nlog_level = \"info\"": "a.hcl:1,8-10: not HCL: this text has no closing quote on its line",
		"name = <<END\ntext\n":             "a.hcl:1,8-13: not HCL: this heredoc has no line with its closing word",
		"\n/* text\n":                      "a.hcl:2,1-8: not HCL: this comment has no closing */",
		"client {\r\n  \"ü\" = ~1\r\n}":    `a.hcl:2,9-10: not HCL: illegal char at "~"`,
		"name = \"\x00\"":                  `a.hcl:1,9-10: not HCL: unexpected null character (0x00) at "\x00"`,
		"# \xff":                           `a.hcl:1,3-4: not HCL: illegal UTF-8 encoding at "\xff"`,
		"client {\n  reserved {\n    cpu = }\n  }\n}\n}": `a.hcl:3,11-12: not HCL: "}" is not a value`,
		"client { servers = [ } }":                       `a.hcl:1,22-23: not HCL: "}" does not close the "[" at a.hcl:1,20-21`,
		"client {\n  meta {\n  }\n":                      `a.hcl:1,8-9: not HCL: the file ends before this "{" is closed`,
		"client { } }":                                   `a.hcl:1,12-13: not HCL: no bracket is open that "}" closes: remove it`,
		"name =":                                         `a.hcl:1,7-7: not HCL: the end of the file is not a value`,
		"name":                                           `a.hcl:1,5-5: not HCL: the end of the file is not expected here`,
		"client { enabled }":                             `a.hcl:1,18-19: not HCL: "}" is not expected here: settings are written NAME = VALUE`,
		"client { servers = [1 2] }":                     `a.hcl:1,23-24: not HCL: "2" is not expected here`,
		"client \"a\" = 1":                               `a.hcl:1,12-13: not HCL: "=" is not expected here`,
		"client {\n gc_max_allocs = 010\n}":              "a.hcl:2,18-21: 010 has a leading zero, which makes it the octal number 8 for Nomad: write 8, or omit the zero",
		"client {\n gc_max_allocs = 0xfffffffffffffffff\n}": "a.hcl:2,18-37: 0xfffffffffffffffff is not a number of 64 bits",
		"name = \"\\q\"":                   `a.hcl:1,10-11: not HCL: illegal char escape at "q"`,
		"\r\n\r\nname = \"a${b}\"":         "a.hcl:3,8-15: name: the value must be written out: Variables may not be used here. For a text with ${ in it write $${.",
		strings.Repeat("#", maxFileSize+1): "a.hcl:1,1-1: Configuration file refused: the file is larger than 1 MiB",
	} {
		var c Config
		diags := c.Parse("a.hcl", []byte(text))
		if len(text) > 100 {
			text = text[:100]
		}
		if len(diags) != 1 || !strings.HasPrefix(diags.Error(), want) {
			t.Errorf("%q\ngives %v\nwant %s", text, diags, want)
		}
	}
}

// The time to read a large text does not depend on the square of its length.
func TestLargeFiles(t *testing.T) {
	for name, part := range map[string]string{
		"settings": "a=\"\"\n", "one line": "a=1,", "texts": `a="${b}" `, "lists": "a=[[],[]],", "blocks": "a{} ", "comments": "#\n", "labels": "a ",
		"heredocs": "a=<<E\nE\n", "line ends": "a{}\r\n", "elements": "{},",
	} {
		text := strings.Repeat(part, maxFileSize/8/len(part))
		if name == "elements" {
			text = "a=[" + text + "]"
		}
		began := time.Now()
		for _, prefix := range []string{"", `plugin "x" { config { `} {
			var c Config
			c.Parse("a.hcl", []byte(prefix+text+strings.Repeat("}", strings.Count(prefix, "{"))))
		}
		if d := time.Since(began); d > time.Minute {
			t.Errorf("%s: read in %v", name, d)
		}
	}
}

// countAssignments returns the number of settings and elements of objects in a syntax tree.
func countAssignments(node ast.Node) (n int) {
	ast.Walk(node, func(node ast.Node) (ast.Node, bool) {
		if item, ok := node.(*ast.ObjectItem); ok && item.Assign.IsValid() {
			n++
		}
		return node, true
	})
	return n
}

func FuzzParseDocument(f *testing.F) {
	for _, text := range []string{
		`client { enabled = true, meta { "a" = [1, {"b" = 0x1}] } }`, "a = <<-E\n${b}\n E\n", "a { b = } }", "a { b = [ } }", "a = \"${\"}\"\n", "a = 00.1e1\r\n/**/", "a =",
		"a { b c = 1 }", "a = [[1] 2]", "\"a\" \"b\" { /* */ }", "a = -", "a = 0e", "a = \"\\u00e9\\101\"", "a=<<\xc3\xbc\n\xc3\xbc\n",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, diags := parseDocument("a.hcl", []byte(text))
		if (d == nil) != diags.HasErrors() {
			t.Fatalf("%v with the errors %v", d, diags)
		}
		if d != nil {
			assignments := 0
			for s, normal := scanner.New([]byte(strings.ReplaceAll(text, "\r\n", "\n"))), true; normal; {
				next := s.Scan()
				if next.Type == token.ASSIGN {
					assignments++
				}
				normal = next.Type != token.EOF
			}
			if n := countAssignments(d.items); n != assignments {
				t.Errorf("%d settings of %d were read", n, assignments)
			}
		}
		var c Config
		diags = c.Parse("a.hcl", []byte(text))
		if slices.ContainsFunc(diags, func(d *hcl.Diagnostic) bool {
			return d.Subject == nil || d.Subject.Start.Line < 1 || d.Subject.Start.Column < 1 || d.Subject.End.Byte < d.Subject.Start.Byte || d.Subject.End.Byte > len(text)
		}) {
			t.Errorf("a position is not in the text: %v", diags)
		}
	})
}
