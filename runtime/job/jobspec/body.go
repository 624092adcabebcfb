package jobspec

import (
	"reflect"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

// schemalessBody is a body that can be read without a schema: env, meta, config.
type schemalessBody interface {
	hcl.Body
	// decodeSchemaless returns the content of a body without a schema, as plain values.
	decodeSchemaless(ctx *hcl.EvalContext) (map[string]any, hcl.Diagnostics)
	// addRangesTo adds the source range of each attribute and block of the body, whose path is given.
	addRangesTo(ranges sourceRangeByPath, path []string)
}

var (
	_ schemalessBody = (*nativeBody)(nil)
	_ schemalessBody = (*jsonBody)(nil)
)

// scopedBodyAttribute is the name of an attribute that no file can contain. The value of this attribute of a body is a
// scopedBody: the body itself with the context of its expressions. With it, the decoder gets a body inside an expanded
// dynamic block together with the iterators that are in scope there.
const scopedBodyAttribute = "\x00body"

// scopedBody is a body without a schema, and the context in which its expressions are evaluated.
type scopedBody struct {
	body schemalessBody
	ctx  *hcl.EvalContext
}

var scopedBodyType = cty.Capsule("body", reflect.TypeFor[scopedBody]())

var scopedBodySchema = &hcl.BodySchema{Attributes: []hcl.AttributeSchema{{Name: scopedBodyAttribute}}}

// unwrapDynamicBlockBody returns the body inside the wrappers with which the HCL library expands dynamic blocks, and its context.
func unwrapDynamicBlockBody(body hcl.Body, ctx *hcl.EvalContext) (scopedBody, hcl.Diagnostics) {
	content, diags := body.Content(scopedBodySchema)
	attr, ok := content.Attributes[scopedBodyAttribute]
	if !ok {
		return scopedBody{}, append(diags, errorAt("Unreadable block", "This block cannot be read here.", body.MissingItemRange()))
	}
	val, moreDiags := attr.Expr.Value(ctx)
	return *val.EncapsulatedValue().(*scopedBody), append(diags, moreDiags...)
}

// scopedBodyExpression is the value of scopedBodyAttribute.
type scopedBodyExpression struct{ body schemalessBody }

func (e scopedBodyExpression) Value(ctx *hcl.EvalContext) (cty.Value, hcl.Diagnostics) {
	return cty.CapsuleVal(scopedBodyType, &scopedBody{body: e.body, ctx: ctx}), nil
}

func (e scopedBodyExpression) Variables() []hcl.Traversal { return nil }
func (e scopedBodyExpression) Range() hcl.Range           { return e.body.MissingItemRange() }
func (e scopedBodyExpression) StartRange() hcl.Range      { return e.body.MissingItemRange() }

func hasScopedBodyAttribute(schema *hcl.BodySchema) bool {
	for _, attr := range schema.Attributes {
		if attr.Name == scopedBodyAttribute {
			return true
		}
	}
	return false
}

func scopedBodyContent(body schemalessBody) *hcl.BodyContent {
	rng := body.MissingItemRange()
	return &hcl.BodyContent{
		Attributes:       hcl.Attributes{scopedBodyAttribute: {Name: scopedBodyAttribute, Expr: scopedBodyExpression{body}, Range: rng, NameRange: rng}},
		MissingItemRange: rng,
	}
}

// nativeBody is a body in native syntax with rewritten expressions.
type nativeBody struct {
	hcl.Body
	syntax *hclsyntax.Body
}

func (b *nativeBody) Content(schema *hcl.BodySchema) (*hcl.BodyContent, hcl.Diagnostics) {
	if hasScopedBodyAttribute(schema) {
		return scopedBodyContent(b), nil
	}
	content, diags := b.Body.Content(schema)
	wrapBlockBodiesAsNative(content)
	return content, diags
}

func (b *nativeBody) PartialContent(schema *hcl.BodySchema) (*hcl.BodyContent, hcl.Body, hcl.Diagnostics) {
	content, rest, diags := b.Body.PartialContent(schema)
	wrapBlockBodiesAsNative(content)
	return content, &nativeBody{Body: rest, syntax: b.syntax}, diags
}

func wrapBlockBodiesAsNative(content *hcl.BodyContent) {
	for _, block := range content.Blocks {
		syntax := block.Body.(*hclsyntax.Body)
		block.Body = &nativeBody{Body: syntax, syntax: syntax}
	}
}
