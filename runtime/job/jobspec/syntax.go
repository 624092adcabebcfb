package jobspec

import (
	"bytes"
	"fmt"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	hcljson "github.com/hashicorp/hcl/v2/json"

	"github.com/nomad-lite/nomad-lite/hclspec/nesting"
)

// MaxTextSize is the maximum length of a source text in bytes: the lexer needs about a hundred bytes
// for each token.
const MaxTextSize = 2 << 20

func textTooLargeDiagnostics(sizeBytes int, fileName string) hcl.Diagnostics {
	start := hcl.Range{Filename: fileName, Start: hcl.InitialPos, End: hcl.InitialPos}
	return hcl.Diagnostics{errorAt("Text too large", fmt.Sprintf("This text has %d bytes. The limit is %d.", sizeBytes, MaxTextSize), start)}
}

// startsLikeJSON reports whether a text is JSON. As in Nomad, the first byte that is not a space decides;
// line ends and tabs are not skipped.
func startsLikeJSON(text []byte) bool {
	return bytes.HasPrefix(bytes.TrimLeft(text, " "), []byte("{"))
}

// parseBody parses a text in either form. Nomad prints only its first error.
func (p *parser) parseBody(text []byte, name string) (hcl.Body, hcl.Diagnostics) {
	if len(text) > MaxTextSize {
		return nil, markPrintOnlyFirst(textTooLargeDiagnostics(len(text), name), "")
	}
	parse := p.parseNative
	if startsLikeJSON(text) {
		parse = p.parseJSON
	}
	body, diags := parse(text, name)
	return body, markPrintOnlyFirst(diags, "")
}

func (p *parser) parseNative(text []byte, name string) (hcl.Body, hcl.Diagnostics) {
	if diags := nesting.CheckConfig(text, name); diags.HasErrors() {
		return nil, diags
	}
	file, diags := hclsyntax.ParseConfig(text, name, hcl.InitialPos)
	if diags.HasErrors() {
		return nil, diags
	}
	body := file.Body.(*hclsyntax.Body)
	r := &referenceAndBudgetRewriter{text: text, budget: p.budget}
	r.rewriteBody(body)
	return &nativeBody{syntax: body, Body: body}, append(diags, r.diags...)
}

func (p *parser) parseJSON(text []byte, name string) (hcl.Body, hcl.Diagnostics) {
	if diags := nesting.CheckJSON(text, name); diags.HasErrors() {
		return nil, diags
	}
	file, diags := hcljson.Parse(text, name)
	if diags.HasErrors() {
		return nil, diags
	}
	return &jsonBody{Body: file.Body, budget: p.budget}, diags
}

// parseExpression parses one native expression, such as the text of -var.
func (p *parser) parseExpression(text []byte, name string) (hcl.Expression, hcl.Diagnostics) {
	if len(text) > MaxTextSize {
		return nil, textTooLargeDiagnostics(len(text), name)
	}
	if diags := nesting.CheckExpression(text, name); diags.HasErrors() {
		return nil, diags
	}
	expr, diags := hclsyntax.ParseExpression(text, name, hcl.InitialPos)
	if diags.HasErrors() {
		return nil, diags
	}
	r := &referenceAndBudgetRewriter{text: text, budget: p.budget}
	return r.rewriteTopLevelExpression(expr), append(diags, r.diags...)
}

// parseTemplate parses the content of a JSON string as a template.
func parseTemplate(text []byte, budget *evaluationBudget, name string, start hcl.Pos) (hclsyntax.Expression, hcl.Diagnostics) {
	if diags := nesting.CheckTemplate(text, name, start); diags.HasErrors() {
		return nil, diags
	}
	expr, diags := hclsyntax.ParseTemplate(text, name, start)
	if diags.HasErrors() {
		return nil, diags
	}
	r := &referenceAndBudgetRewriter{text: text, textStartByte: start.Byte, budget: budget}
	return r.rewriteTopLevelExpression(expr), append(diags, r.diags...)
}
