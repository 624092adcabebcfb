package template

import (
	"encoding/json"
	"testing"

	"github.com/zclconf/go-cty/cty"
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
			"words:\n- two words\n- \"yes\"\n- \"1\"\n- \"0x1\"\n- \"-\"\n- \"a: b\"\n- \"a #b\"\n- http://x:80/y\n- \"\"\n- \"~\"\n- \"*a\"\n- \"a:\"\n- \"10:20\"\n- \"é\"\n- \"=\"\n- \"<<\""},
		{`{"text":"one\n  two\n\nthree\n","end":"a\nb","more":"a\n\n","before":" a\nb","tab":"a\tb","zero":"\u0000\u007f"}`,
			"before: \" a\\nb\"\nend: |-\n  a\n  b\nmore: \"a\\n\\n\"\ntab: \"a\\tb\"\ntext: |\n  one\n    two\n\n  three\nzero: \"\\u0000\\u007f\""},
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

// YAML output is read back as the same value, except for the form of equivalent
// Unicode sequences, which the parser normalizes.
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
		if got, _ := json.Marshal(again); err != nil || cty.NormalizeString(string(got)) != cty.NormalizeString(string(want)) {
			t.Errorf("%q\n%s\nis read as %q, %v", v, written, again, err)
		}
	})
}
