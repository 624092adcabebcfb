package template

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func TestToYAML(t *testing.T) {
	for _, test := range []struct{ json, want string }{
		{`{"name":"web","count":3,"rate":1.5,"on":true,"none":null}`, "count: 3\nname: web\nnone: null\n\"on\": true\nrate: 1.5"},
		{`{"a":{"b":{"c":[1,{"d":2,"e":[]},[3,[4]],{}]}}}`, "a:\n  b:\n    c:\n    - 1\n    - d: 2\n      e: []\n    - - 3\n      - - 4\n    - {}"},
		{`["x",{"x":{"z":1}}]`, "- x\n- x:\n    z: 1"},
		{`"x"`, "x"},
		{`"x\ny\n"`, "|\n  x\n  y\n"},
		{`[]`, "[]"},
		{`{"words":["two words","yes","1","0x1","-","a: b","a #b","http://x:80/y","","~","*a","a:","10:20","é","=","<<"]}`,
			"words:\n- two words\n- \"yes\"\n- \"1\"\n- \"0x1\"\n- '-'\n- 'a: b'\n- 'a #b'\n- http://x:80/y\n- \"\"\n- \"~\"\n- '*a'\n- 'a:'\n- \"10:20\"\n- é\n- =\n- \"<<\""},
		{`{"text":"one\n  two\n\nthree\n","end":"a\nb","more":"a\n\n","before":" a\nb","tab":"a\tb","zero":"\u0000\u007f"}`,
			"before: |2-\n   a\n  b\nend: |-\n  a\n  b\nmore: |+\n  a\n\ntab: \"a\\tb\"\ntext: |\n  one\n    two\n\n  three\nzero: \"\\0\\x7F\""},
		{`[{"k":"a\nb"},"c\nd"]`, "- k: |-\n    a\n    b\n- |-\n  c\n  d"},
	} {
		var v any
		if err := json.Unmarshal([]byte(test.json), &v); err != nil {
			t.Fatal(err)
		}
		if got, err := toYAML(v); err != nil || got != test.want {
			t.Errorf("%s\ngot  %q, %v\nwant %q", test.json, got, err, test.want)
		}
	}
}

// YAML output is read back as the same value.
func FuzzYAML(f *testing.F) {
	f.Add([]byte(`{"a":["b",1,2.5,null,true,{"c":{}}],"x\ny":"z\n","":"- a"}`))
	f.Add([]byte(`["\u0085\u2028","  a\nb","a\n\nb\n","1e3","0o7",".inf","---","a\n---\nb","\ufeff","\uf900"]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		v, err := decodeJSON(text)
		if err != nil {
			return
		}
		written, err := toYAML(v)
		if err != nil {
			return
		}
		again, err := parseYAML(written)
		want, _ := json.Marshal(v)
		if got, _ := json.Marshal(again); err != nil || string(got) != string(want) {
			t.Errorf("%q\n%s\nis read as %q, %v", v, written, again, err)
		}
	})
}

// Documents that need much more memory than they have text are refused with a line.
func TestParseYAMLRefusesExpensiveDocuments(t *testing.T) {
	bomb := "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := range 8 {
		bomb += fmt.Sprintf("a%d: &a%d [%s]\n", i+1, i+1, strings.Repeat(fmt.Sprintf("*a%d, ", i), 10))
	}
	for _, test := range []struct{ name, text, want string }{
		{"aliases of aliases", bomb, "line 5: the document stands for more than 4194304 bytes"},
		{"an alias of a long text", "a: &a " + strings.Repeat("x", 1<<20) + "\nb: [*a, *a, *a, *a]\n", "line 2: the document stands for more than"},
		{"an alias that contains itself", "a: &a\n  - b\n  - *a\n", "nested more than 1000 deep"},
		{"lists in brackets", "x:\n " + strings.Repeat("[", 2000) + strings.Repeat("]", 2000), "line 2: the document is nested more than 1000 deep"},
		{"maps in braces", strings.Repeat("{a: ", 2000) + "1" + strings.Repeat("}", 2000), "line 1: the document is nested more than 1000 deep"},
		{"lists in lists", strings.Repeat("- ", 2000) + "x", "line 1: the document is nested more than 1000 deep"},
		{"very many brackets", strings.Repeat("[", 200_000), "exceeded max depth"},
		{"very many values", "x: [" + strings.Repeat("\n1,", 1<<20) + "]", "line 262144: the document has more than 262144 values"},
		{"very many lists", strings.Repeat("- -\n", 1<<19), "the document has more than 262144 values"},
		{"many values", "[" + strings.Repeat("1,", 200_000) + "]", "line 1: the document stands for more than 4194304 bytes"},
		{"an unknown alias", "a: 1\nb: *c", "unknown anchor 'c' referenced"},
		{"a bad line", "a: 1\nb: {", "line 2"},
	} {
		t.Run(test.name, func(t *testing.T) {
			v, err := parseYAML(test.text)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%.20v, error %v, want %q", v, err, test.want)
			}
		})
	}
}
