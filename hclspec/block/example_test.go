package block_test

import (
	"fmt"

	"github.com/zclconf/go-cty/cty"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/hclspec/block"
)

// schema describes the config block of a task.
var schema = hclspec.Object(map[string]*hclspec.Spec{
	"image": hclspec.Attr("image", "string", true),
	"pull":  hclspec.Default(hclspec.Attr("pull", "bool", false), hclspec.Literal("true")),
	"mount": hclspec.BlockList("mount", hclspec.Object(map[string]*hclspec.Spec{
		"source": hclspec.Attr("source", "string", true),
	}), 0, 0),
})

// A host decodes a config block and sends it to the plugin, which decodes the received
// bytes into a struct.
func ExampleDecode() {
	config := map[string]any{
		"image": "web:${meta_version}",
		"mount": []any{map[string]any{"source": "/srv"}},
	}
	value, diags := block.Decode(schema, config, func() map[string]cty.Value {
		return map[string]cty.Value{"meta_version": cty.StringVal("1.2")}
	})
	if diags.HasErrors() {
		fmt.Println(block.Messages(diags))
		return
	}
	wire, err := block.Marshal(value)
	if err != nil {
		fmt.Println(err)
		return
	}

	var c struct {
		Image string `codec:"image"`
		Pull  bool   `codec:"pull"`
		Mount []struct {
			Source string `codec:"source"`
		} `codec:"mount"`
	}
	if err := hclspec.Unmarshal(wire, &c); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%+v\n", c)
	// Output: {Image:web:1.2 Pull:true Mount:[{Source:/srv}]}
}

// Messages returns the errors of a config block as texts for users.
func ExampleMessages() {
	_, diags := block.Decode(schema, map[string]any{"image": "web", "pull": "yes"}, nil)
	for _, message := range block.Messages(diags) {
		fmt.Println(message)
	}
	// Output: Incorrect attribute value type: Inappropriate value for attribute "pull": a bool is required.
}
