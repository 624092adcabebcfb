package block

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/hashicorp/hcl/v2/hcldec"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/hclspec/nesting"
)

// compiler converts a Spec to a spec of hcldec, and collects the errors of the Spec.
type compiler struct {
	diags      hcl.Diagnostics
	bodyLayout *bodyLayout // layout of the body that contains the part of the Spec being compiled
}

func newCompiler() *compiler { return &compiler{bodyLayout: newBodyLayout(false)} }

// compiledSpec is a Spec converted for hcldec. It is immutable.
type compiledSpec struct {
	spec       hcldec.Spec
	bodyLayout *bodyLayout
	diags      hcl.Diagnostics
}

// compiled returns the compiledSpec of the Spec of a whole block. It compiles only once,
// because parsing the expressions of types and defaults takes longer than decoding most
// config blocks.
func compiled(s *hclspec.Spec) *compiledSpec {
	compile := func() any {
		c := newCompiler()
		spec := c.compileSpec(s, "config", "")
		return &compiledSpec{spec, c.bodyLayout, c.diags}
	}
	if s == nil {
		return compile().(*compiledSpec)
	}
	return s.Cached(compile).(*compiledSpec)
}

// addFault reports an error in the part of the Spec at path, and returns a valid part for
// hcldec, which would panic on most invalid ones.
func (c *compiler) addFault(path, summary, detail string, args ...any) hcldec.Spec {
	c.diags = append(c.diags, &hcl.Diagnostic{
		Severity: hcl.DiagError,
		Summary:  summary,
		Detail:   fmt.Sprintf("The schema of the plugin is wrong at %q: ", path) + fmt.Sprintf(detail, args...),
	})
	return &hcldec.LiteralSpec{Value: cty.DynamicVal}
}

// addDiags reports diagnostics of the HCL library as errors at path.
func (c *compiler) addDiags(path string, diags hcl.Diagnostics) {
	for _, d := range diags {
		c.addFault(path, d.Summary, "%s", d.Detail)
	}
}

// compileSpec compiles a part of a Spec. key is its name if the part has none.
func (c *compiler) compileSpec(spec *hclspec.Spec, path, key string) hcldec.Spec {
	if spec == nil {
		return c.addFault(path, "nil spec given", "nothing stands there.")
	}
	s := spec.Node()
	name := cmp.Or(s.Name, key)
	switch s.Kind {
	case hclspec.KindObject:
		object := make(hcldec.ObjectSpec, len(s.Attributes))
		for _, key := range slices.Sorted(maps.Keys(s.Attributes)) {
			object[key] = c.compileSpec(s.Attributes[key], path+"."+key, key)
		}
		return object

	case hclspec.KindArray:
		tuple := make(hcldec.TupleSpec, len(s.Values))
		for i, part := range s.Values {
			tuple[i] = c.compileSpec(part, fmt.Sprintf("%s[%d]", path, i), "")
		}
		return tuple

	case hclspec.KindAttr:
		if name == "" {
			return c.addFault(path, "Missing name in attribute spec", "an argument needs a name.")
		}
		ty := c.parseType(s, path)
		c.bodyLayout.addArg(name, ty)
		return &hcldec.AttrSpec{Name: name, Type: ty, Required: s.Required}

	case hclspec.KindBlockAttrs:
		if name == "" {
			return c.addFault(path, "Missing name in block_attrs spec", "a block needs a name.")
		}
		ty := c.parseType(s, path)
		c.nestedLayout(name, false).anyArgType = &ty
		return &hcldec.BlockAttrsSpec{TypeName: name, ElementType: ty, Required: s.Required}

	case hclspec.KindBlock, hclspec.KindBlockList, hclspec.KindBlockSet, hclspec.KindBlockMap:
		return c.compileBlock(s, path, name)

	case hclspec.KindDefault:
		return &hcldec.DefaultSpec{Primary: c.compileSpec(s.Nested, path, ""), Default: c.compileSpec(s.Default, path, "")}

	case hclspec.KindLiteral:
		expr := c.parseExpression(s.Expression, path, "Invalid literal")
		if expr == nil {
			return &hcldec.LiteralSpec{Value: cty.DynamicVal}
		}
		value, diags := expr.Value(nil)
		c.addDiags(path, diags)
		return &hcldec.LiteralSpec{Value: value}

	default:
		return c.addFault(path, "Invalid spec", "it says neither argument nor block nor literal.")
	}
}

func (c *compiler) compileBlock(s hclspec.Node, path, name string) hcldec.Spec {
	if name == "" {
		return c.addFault(path, "Missing name in block spec", "a block needs a name.")
	}
	if s.Nested == nil {
		return c.addFault(path, "Missing spec block", "a block needs a spec of its content.")
	}
	if s.Min > math.MaxInt32 || s.Max > math.MaxInt32 {
		return c.addFault(path, "Invalid block limits", "%d to %d blocks are out of range.", s.Min, s.Max)
	}

	outer := c.bodyLayout
	c.bodyLayout = c.nestedLayout(name, s.Kind != hclspec.KindBlock)
	nested := c.compileSpec(s.Nested, path, "")
	c.bodyLayout = outer
	switch s.Kind {
	case hclspec.KindBlock:
		return &hcldec.BlockSpec{TypeName: name, Nested: nested, Required: s.Required}
	case hclspec.KindBlockList:
		return &hcldec.BlockListSpec{TypeName: name, Nested: nested, MinItems: int(s.Min), MaxItems: int(s.Max)}
	case hclspec.KindBlockSet:
		return &hcldec.BlockSetSpec{TypeName: name, Nested: nested, MinItems: int(s.Min), MaxItems: int(s.Max)}
	}

	if len(s.Labels) == 0 {
		return c.addFault(path, "Missing labels in block_map spec", "a map of blocks needs at least one label.")
	}
	if len(s.Labels) > hclspec.MaxDepth {
		return c.addFault(path, "Invalid labels in block_map spec", "%d labels are too many.", len(s.Labels))
	}
	if len(c.diags) == 0 && hcldec.ImpliedType(nested).HasDynamicTypes() {
		return c.addFault(path, "Invalid type in block_map spec", `the type "any" cannot stand in a map of blocks.`)
	}
	return &hcldec.BlockMapSpec{TypeName: name, LabelNames: slices.Clone(s.Labels), Nested: nested}
}

// nestedLayout returns the layout of the blocks of one type. It is the same layout if two
// parts of a Spec have the same block type.
func (c *compiler) nestedLayout(name string, listed bool) *bodyLayout {
	listed = listed || c.bodyLayout.isRepeated
	nested := c.bodyLayout.blockLayouts[name]
	if nested == nil {
		nested = newBodyLayout(listed)
		c.bodyLayout.blockLayouts[name] = nested
	}
	nested.isRepeated = nested.isRepeated || listed
	return nested
}

// parseType parses the type expression of s.
func (c *compiler) parseType(s hclspec.Node, path string) cty.Type {
	expr := c.parseExpression(s.Expression, path, "Invalid type specification")
	if expr == nil {
		return cty.DynamicPseudoType
	}
	ty, diags := typeexpr.TypeConstraint(expr)
	c.addDiags(path, diags)
	return ty
}

func (c *compiler) parseExpression(text, path, summary string) hclsyntax.Expression {
	if diags := nesting.CheckExpression([]byte(text), ""); diags.HasErrors() {
		c.addFault(path, summary, "%s", diags[0].Detail)
		return nil
	}
	expr, diags := hclsyntax.ParseExpression([]byte(text), "", hcl.InitialPos)
	c.addDiags(path, diags)
	if diags.HasErrors() {
		return nil
	}
	return expr
}
