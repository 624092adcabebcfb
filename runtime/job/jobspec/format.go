package jobspec

import (
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"

	"github.com/nomad-lite/nomad-lite/hclspec/nesting"
)

// Format formats a native HCL text in the canonical style. It does not change a text with syntax
// errors.
func Format(text []byte, fileName string) ([]byte, hcl.Diagnostics) {
	if len(text) > MaxTextSize {
		return nil, textTooLargeDiagnostics(len(text), fileName)
	}
	if diags := nesting.CheckConfig(text, fileName); diags.HasErrors() {
		return nil, diags
	}
	if _, diags := hclsyntax.ParseConfig(text, fileName, hcl.InitialPos); diags.HasErrors() {
		return nil, diags
	}
	return hclwrite.Format(text), nil
}
