package hclspec_test

import (
	"fmt"

	"github.com/zclconf/go-cty/cty"

	"github.com/nomad-lite/nomad-lite/hclspec"
)

// schema describes the config block of a task.
var schema = hclspec.Object(map[string]*hclspec.Spec{
	"image": hclspec.Attr("image", "string", true),
	"pull":  hclspec.Default(hclspec.Attr("pull", "bool", false), hclspec.Literal("true")),
	"mount": hclspec.BlockList("mount", hclspec.Object(map[string]*hclspec.Spec{
		"source": hclspec.Attr("source", "string", true),
	}), 0, 0),
})

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

// A host decodes a config block and sends it to the plugin, which decodes the received
// bytes into a struct.
func ExampleSpec_Decode() {
	block := map[string]any{
		"image": "web:${meta_version}",
		"mount": []any{map[string]any{"source": "/srv"}},
	}
	value, diags := schema.Decode(block, func() map[string]cty.Value {
		return map[string]cty.Value{"meta_version": cty.StringVal("1.2")}
	})
	if diags.HasErrors() {
		fmt.Println(hclspec.Messages(diags))
		return
	}
	wire, err := hclspec.Marshal(value)
	if err != nil {
		fmt.Println(err)
		return
	}

	var config struct {
		Image string `codec:"image"`
		Pull  bool   `codec:"pull"`
		Mount []struct {
			Source string `codec:"source"`
		} `codec:"mount"`
	}
	if err := hclspec.Unmarshal(wire, &config); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%+v\n", config)
	// Output: {Image:web:1.2 Pull:true Mount:[{Source:/srv}]}
}

// Messages returns the errors of a config block as texts for users.
func ExampleMessages() {
	_, diags := schema.Decode(map[string]any{"image": "web", "pull": "yes"}, nil)
	for _, message := range hclspec.Messages(diags) {
		fmt.Println(message)
	}
	// Output: Incorrect attribute value type: Inappropriate value for attribute "pull": a bool is required.
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
