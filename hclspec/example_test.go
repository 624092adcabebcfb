package hclspec_test

import (
	"fmt"

	"github.com/nomad-lite/nomad-lite/hclspec"
)

// A schema describes a config block. A struct field is matched with an argument or block by
// its codec tag.
func ExampleObject() {
	schema := hclspec.Object(map[string]*hclspec.Spec{
		"image":  hclspec.Attr("image", "string", true),
		"labels": hclspec.BlockAttrs("labels", "string", false),
		"pull":   hclspec.Default(hclspec.Attr("pull", "bool", false), hclspec.Literal("true")),
		"mount": hclspec.BlockList("mount", hclspec.Object(map[string]*hclspec.Spec{
			"source": hclspec.Attr("source", "string", true),
			"target": hclspec.Attr("target", "string", true),
		}), 0, 0),
	})
	_ = schema
}

// UnmarshalJSON decodes the JSON of a hook's attachment, and rejects unknown keys.
func ExampleUnmarshalJSON() {
	var config struct {
		Greeting string `codec:"greeting"`
	}
	fmt.Println(hclspec.UnmarshalJSON([]byte(`{"greeting": "hello"}`), &config), config.Greeting)
	fmt.Println(hclspec.UnmarshalJSON([]byte(`{"greetings": "hello"}`), &config))
	// Output:
	// <nil> hello
	// "greetings" has no field in the Go struct: add one with the tag `codec:"greetings"`
}
