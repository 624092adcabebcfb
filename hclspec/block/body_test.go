package block

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2/hcldec"
	hcljson "github.com/hashicorp/hcl/v2/json"
	"github.com/zclconf/go-cty/cty"

	"github.com/nomad-lite/nomad-lite/hclspec"
)

// commandSpec is the task config schema of a driver that runs commands.
var commandSpec = hclspec.Object(map[string]*hclspec.Spec{
	"command": hclspec.Attr("command", "string", true),
	"args":    hclspec.Attr("args", "list(string)", false),
	"env":     hclspec.BlockAttrs("env", "list(string)", false),
	"mount":   hclspec.BlockList("mount", hclspec.Object(map[string]*hclspec.Spec{"options": hclspec.Attr("options", "list(string)", false), "any": hclspec.Attr("any", "any", false)}), 0, 0),
	"label":   hclspec.Default(hclspec.Attr("label", "list(string)", false), hclspec.Literal(`["none"]`)),
})

func newArguments(n int) []any {
	args := make([]any, n)
	for i := range args {
		args[i] = fmt.Sprint("argument-", i)
	}
	return args
}

// typedBody passes lists to hcldec, because go-cty would compare each element of a tuple
// with every other.
func TestDecoderSeesListsInsteadOfTuples(t *testing.T) {
	c := newCompiler()
	spec := c.compileSpec(commandSpec, "config", "")
	file, diags := hcljson.Parse([]byte(`{"command": "x", "args": ["a", "b"], "label": ["a"], "env": {"A": ["a"]}, "mount": [{"options": ["a", "b"]}]}`), "config")
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	body := &typedBody{file.Body, c.bodyLayout, &decodeState{ctx: t.Context()}}
	content, diags := body.Content(hcldec.ImpliedSchema(spec))
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	list := cty.List(cty.String)
	for _, name := range []string{"args", "label"} {
		if val, _ := content.Attributes[name].Expr.Value(nil); !val.Type().Equals(list) {
			t.Errorf("%s: the decoder sees %s", name, val.Type().FriendlyName())
		}
	}
	for _, block := range content.Blocks {
		attrs, _ := block.Body.JustAttributes()
		if block.Type == "mount" {
			nested, _ := block.Body.Content(hcldec.ImpliedSchema(hcldec.ChildBlockTypes(spec)["mount"]))
			attrs = nested.Attributes
		}
		for name, attr := range attrs {
			if val, _ := attr.Expr.Value(nil); !val.Type().Equals(list) {
				t.Errorf("%s.%s: the decoder sees %s", block.Type, name, val.Type().FriendlyName())
			}
		}
	}
	if len(content.Blocks) != 2 {
		t.Errorf("got %d blocks", len(content.Blocks))
	}
}

func TestConfigLimits(t *testing.T) {
	blocks, anys := make([]any, maxBlocks+1), make([]any, 2)
	for i := range blocks {
		blocks[i] = map[string]any{}
	}
	for i := range anys {
		anys[i] = map[string]any{"any": newArguments(maxAnyValues/2 + i)}
	}
	for _, c := range []struct {
		name   string
		config map[string]any
		want   string // error text; empty means that the config is valid
	}{
		{"the most arguments", map[string]any{"command": "x", "args": newArguments(hclspec.MaxValues - 3)}, ""},
		{"one argument more", map[string]any{"command": "x", "args": newArguments(hclspec.MaxValues - 2)},
			"Config too large: A config block can hold 100000 values at most, and this one holds 100001."},
		{"the most blocks", map[string]any{"command": "x", "mount": blocks[:maxBlocks]}, ""},
		{"one block more", map[string]any{"command": "x", "mount": blocks}, `Too many mount blocks: No more than 1000 "mount" blocks are allowed.`},
		{"values of any type in blocks", map[string]any{"command": "x", "mount": anys[:1]}, ""},
		{"too many values of any type in blocks", map[string]any{"command": "x", "mount": anys}, `Incorrect attribute value type: Inappropriate value for attribute "any": `},
	} {
		t.Run(c.name, func(t *testing.T) {
			if testing.Short() && c.name == "the most arguments" {
				t.Skip("decodes 100000 values")
			}
			got := strings.Join(Messages(Check(t.Context(), commandSpec, c.config)), "; ")
			if (c.want == "") != (got == "") || !strings.HasPrefix(got, c.want) {
				t.Errorf("got %.200q, want %q", got, c.want)
			}
		})
	}
}

func TestCheckEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	diags := Check(ctx, commandSpec, map[string]any{"args": newArguments(10)})
	if got := Messages(diags); len(got) != 1 || got[0] != "Config not read: context canceled" {
		t.Errorf("got %q", got)
	}
	// The context can also end while the arguments are decoded.
	a := &argumentExpr{decodeState: &decodeState{ctx: ctx}}
	if val, _ := a.Value(nil); val != cty.DynamicVal || a.decodeState.stopDiag == nil {
		t.Errorf("the argument was evaluated: %#v", val)
	}
}

// BenchmarkCheckArgs measures the time of a check for different numbers of arguments.
func BenchmarkCheckArgs(b *testing.B) {
	for _, n := range []int{1000, 10_000, hclspec.MaxValues - 3} {
		config := map[string]any{"command": "x", "args": newArguments(n)}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				if diags := Check(b.Context(), commandSpec, config); diags.HasErrors() {
					b.Fatal(diags)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/argument")
		})
	}
}
