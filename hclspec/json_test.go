package hclspec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/golden"
)

// jsonSpecs has each kind of spec with each combination of its fields, absent parts, and texts that JSON escapes.
var jsonSpecs = []struct {
	name string
	spec *Spec
}{
	{"nil", nil},
	{"no kind", &Spec{}},
	{"each kind with all fields", fullSpec},
	{"object without parts", Object(nil)},
	{"object with a nil part", Object(map[string]*Spec{"a": nil, "b": {}})},
	{"object with keys out of order", Object(map[string]*Spec{"b": Literal("1"), "B": Literal("2"), "": Literal("3"), "é": Literal("4"), "a": Literal("5"), "\U0001f600": Literal("6"), "\uffee": Literal("7")})},
	{"array without parts", Array()},
	{"array with a nil part", Array(nil, Literal("1"), &Spec{})},
	{"attr without fields", Attr("", "", false)},
	{"attr, optional", Attr("name", "list(string)", false)},
	{"attr, required", Attr("name", "list(string)", true)},
	{"block without fields", Block("", nil, false)},
	{"block, optional", Block("b", Object(nil), false)},
	{"block, required", Block("b", Attr("a", "bool", false), true)},
	{"block_attrs without fields", BlockAttrs("", "", false)},
	{"block_attrs, optional", BlockAttrs("b", "string", false)},
	{"block_attrs, required", BlockAttrs("b", "string", true)},
	{"block_list without fields", BlockList("", nil, 0, 0)},
	{"block_list with a minimum", BlockList("b", Object(nil), 1, 0)},
	{"block_list with a maximum", BlockList("b", Object(nil), 0, 18446744073709551615)},
	{"block_set without fields", BlockSet("", nil, 0, 0)},
	{"block_set with both limits", BlockSet("b", Object(nil), 9007199254740993, 18446744073709551615)},
	{"block_map without fields", BlockMap("", nil, nil)},
	{"block_map with labels", BlockMap("b", []string{"one", "", "three"}, Object(nil))},
	{"default without parts", Default(nil, nil)},
	{"default with a nil default", Default(Attr("a", "string", false), nil)},
	{"default with a nil primary part", Default(nil, Literal("1"))},
	{"default of a default", Default(Default(Attr("a", "string", false), Literal("null")), Literal(`"x"`))},
	{"literal without fields", Literal("")},
	{"quotes and backslashes", Literal(`"a\"b\\c/d"`)},
	{"control characters", Literal("\x00\x01\a\b\t\n\v\f\r\x1e\x1f \x7f\u0080")},
	{"characters of HTML", Literal("<a href='x'>&amp;</a>")},
	{"line and paragraph separators", Literal("a\u2028b\u2029c")},
	{"other characters", Attr("größe", "ﷺ\ufffd\ufeff\U0001f600", false)},
	{"an escaped key", Object(map[string]*Spec{"a\"\n<": Literal("1")})},
	{"escaped labels", BlockMap("b\t", []string{"\\", "\""}, nil)},
}

// TestJSONOfSpecs compares the JSON of specs with a file, because programs of users read it. The white space between tokens
// is no part of the form.
func TestJSONOfSpecs(t *testing.T) {
	var got bytes.Buffer
	encoder := json.NewEncoder(&got)
	encoder.SetEscapeHTML(false) // shows which characters MarshalJSON escapes itself
	for _, test := range jsonSpecs {
		fmt.Fprintf(&got, "# %s\n", test.name)
		if err := encoder.Encode(test.spec); err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	golden.Check(t, "testdata/json.golden", got.String())
}

func TestSpecOfItsJSON(t *testing.T) {
	for _, test := range jsonSpecs {
		text, err := test.spec.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		back, err := FromJSON(text)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		if again := compactJSON(t, back); again != compactJSON(t, test.spec) || (back == nil) != (test.spec == nil) {
			t.Errorf("%s: got %s, want %s", test.name, again, text)
		}
	}
}

// compactJSON returns the JSON of a Spec without white space.
func compactJSON(t *testing.T, s *Spec) string {
	t.Helper()
	text, err := s.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, text); err != nil {
		t.Fatal(err)
	}
	return compact.String()
}

func TestJSONOfInvalidUTF8IsAnError(t *testing.T) {
	for _, s := range []*Spec{
		Literal("\xff"), Attr("\xff", "", false), Attr("", "\xff", false), Block("\xff", nil, false), BlockAttrs("", "\xff", false), BlockList("\xff", nil, 0, 0),
		BlockSet("\xff", nil, 0, 0), BlockMap("\xff", nil, nil), BlockMap("", []string{"a", "\xff"}, nil), Object(map[string]*Spec{"\xff": nil}),
		Object(map[string]*Spec{"a": Array(Default(nil, Block("b", Literal("\xff"), false)))}),
	} {
		if text, err := s.MarshalJSON(); err == nil || !strings.Contains(err.Error(), "invalid UTF-8") {
			t.Errorf("got %q and the error %v", text, err)
		}
	}
}

// TestFromJSONAcceptsOtherForms checks the forms of JSON that readers of protocol buffers accept beside the form that
// MarshalJSON writes.
func TestFromJSONAcceptsOtherForms(t *testing.T) {
	for text, want := range map[string]string{
		` { "literal" : { "value" : "1" } } `:                        `{"literal":{"value":"1"}}`,
		`{"blockValue": {"name": "b"}}`:                              `{"block_value":{"name":"b"}}`,
		`{"blockAttrs": {"name": "b"}}`:                              `{"block_attrs":{"name":"b"}}`,
		`{"blockList": {"minItems": "1", "maxItems": 2}}`:            `{"block_list":{"min_items":"1","max_items":"2"}}`,
		`{"blockSet": {"min_items": 1, "maxItems": "2"}}`:            `{"block_set":{"min_items":"1","max_items":"2"}}`,
		`{"blockMap": {"labels": ["a"]}}`:                            `{"block_map":{"labels":["a"]}}`,
		`{"block_list": {"min_items": 1e1, "max_items": "2.50E+1"}}`: `{"block_list":{"min_items":"10","max_items":"25"}}`,
		`{"block_list": {"min_items": 1.0, "max_items": 300e-2}}`:    `{"block_list":{"min_items":"1","max_items":"3"}}`,
		`{"block_list": {"min_items": -0, "max_items": "0.0e9"}}`:    `{"block_list":{}}`,
		`{"block_list": {"max_items": 18446744073709551615}}`:        `{"block_list":{"max_items":"18446744073709551615"}}`,
		`{"block_list": {"max_items": 1844674407370955161.5e1}}`:     `{"block_list":{"max_items":"18446744073709551615"}}`,
		`{"object": null}`:                                                `{}`,
		`{"object": null, "literal": {}}`:                                 `{"literal":{}}`,
		`{"object": {"attributes": null}}`:                                `{"object":{}}`,
		`{"array": {"values": null}}`:                                     `{"array":{}}`,
		`{"block_map": {"name": null, "labels": null, "nested": null}}`:   `{"block_map":{}}`,
		`{"Attr": {"name": null, "type": null, "required": null}}`:        `{"Attr":{}}`,
		`{"Attr": {"required": false}}`:                                   `{"Attr":{}}`,
		`{"block_list": {"min_items": null, "nested": {"object": {}}}}`:   `{"block_list":{"nested":{"object":{}}}}`,
		`{"literal": {"value": "\u0041\ud83d\ude00\/"}}`:                  `{"literal":{"value":"A😀/"}}`,
		`{"object": {"attributes": {"blockList": {}, "block_list": {}}}}`: `{"object":{"attributes":{"blockList":{},"block_list":{}}}}`,
		`{"\u006citeral": {"value": ""}}`:                                 `{"literal":{}}`,
	} {
		s, err := FromJSON([]byte(text))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := compactJSON(t, s); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}

func TestFromJSONOfOtherTextsIsAnError(t *testing.T) {
	for _, text := range []string{
		"", " ", "{", "}", "[]", "1", `"x"`, "true", " null", "null ", "nul", `{"literal": {}`, `{"literal": {}} {}`, `{"literal": {}},`, `{literal: {}}`, `{'literal': {}}`,
		`{"literal": {},}`, `{"literal" {}}`, `{"literal": {"value": "` + "\xff" + `"}}`, `{"literal": {"value": "` + "\n" + `"}}`, `{"literal": {"value": "\x"}}`,
		`{"colour": {}}`, `{"attr": {}}`, `{"ATTR": {}}`, `{"Object": {}}`, `{"blockvalue": {}}`, `{"BlockList": {}}`, `{"": {}}`,
		`{"Attr": {"colour": 1}}`, `{"Attr": {"colour": null}}`, `{"Attr": {"Name": "x"}}`, `{"literal": {"name": "x"}}`, `{"default": {"nested": {}}}`,
		`{"object": {"attributes": {"a": {"colour": {}}}}}`, `{"@type": "x", "literal": {}}`, `{"[x]": {}}`,
		`{"literal": {}, "literal": {}}`, `{"literal": {}, "array": {}}`, `{"block_list": {}, "blockList": {}}`, `{"literal": null, "literal": {}}`,
		`{"Attr": {"name": "a", "name": "a"}}`, `{"block_list": {"min_items": 1, "minItems": 1}}`, `{"object": {"attributes": {"a": {}, "a": {}}}}`, `{"object": {"attributes": {"a": {}, "\u0061": {}}}}`,
		`{"literal": "x"}`, `{"literal": []}`, `{"literal": 1}`, `{"literal": {"value": 1}}`, `{"literal": {"value": true}}`, `{"literal": {"value": {}}}`,
		`{"Attr": {"required": "true"}}`, `{"Attr": {"required": 1}}`, `{"Attr": {"required": {}}}`,
		`{"object": {"attributes": []}}`, `{"object": {"attributes": {"a": null}}}`, `{"object": {"attributes": {"a": 1}}}`,
		`{"array": {"values": {}}}`, `{"array": {"values": [null]}}`, `{"array": {"values": [1]}}`, `{"array": {"values": [[]]}}`,
		`{"block_map": {"labels": {}}}`, `{"block_map": {"labels": "a"}}`, `{"block_map": {"labels": [1]}}`, `{"block_map": {"labels": [null]}}`, `{"block_map": {"labels": [{}]}}`,
		`{"block_list": {"min_items": -1}}`, `{"block_list": {"min_items": 1.5}}`, `{"block_list": {"min_items": 15e-1}}`, `{"block_list": {"min_items": 18446744073709551616}}`,
		`{"block_list": {"min_items": 1e20}}`, `{"block_list": {"min_items": 1e999999999}}`, `{"block_list": {"min_items": 1e99999999999999999999}}`, `{"block_list": {"min_items": true}}`,
		`{"block_list": {"min_items": ""}}`, `{"block_list": {"min_items": " 1"}}`, `{"block_list": {"min_items": "1 "}}`, `{"block_list": {"min_items": "01"}}`, `{"block_list": {"min_items": "+1"}}`,
		`{"block_list": {"min_items": "1 2"}}`, `{"block_list": {"min_items": "x"}}`, `{"block_list": {"min_items": "true"}}`, `{"block_list": {"min_items": "-1"}}`, `{"block_list": {"min_items": "0x1"}}`,
		`{"block_list": {"min_items": "1_0"}}`, `{"block_list": {"min_items": {}}}`, `{"block_list": {"min_items": []}}`, `{"block_list": {"min_items": "\"1\""}}`,
	} {
		if s, err := FromJSON([]byte(text)); err == nil {
			t.Errorf("no error for %q, but %s", text, compactJSON(t, s))
		}
	}
}

func TestFromJSONRefusesDeepSpecs(t *testing.T) {
	deep := func(levels int) []byte {
		s := Literal("1")
		for range levels - 1 {
			s = Default(nil, s)
		}
		text, err := s.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	if _, err := FromJSON(deep(MaxDepth)); err != nil {
		t.Errorf("%d levels: %v", MaxDepth, err)
	}
	_, err := FromJSON(deep(MaxDepth + 1))
	if err == nil || !strings.Contains(err.Error(), "spec is nested deeper than 100 levels") {
		t.Errorf("%d levels: got error %v", MaxDepth+1, err)
	}
}
