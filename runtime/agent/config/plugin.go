package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/hclspec/nesting"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
)

// pluginBlocks are the plugin blocks of one configuration file.
type pluginBlocks []catalog.PluginBlock

// add adds a plugin block. If a file has two blocks of one name, the later block replaces the earlier
// one completely.
func (p *pluginBlocks) add(block catalog.PluginBlock) hcl.Diagnostics {
	var diags hcl.Diagnostics
	for i, old := range *p {
		if old.Name == block.Name {
			diags = append(diags, &hcl.Diagnostic{
				Severity: hcl.DiagWarning, Summary: "Plugin block replaced", Subject: &block.Range,
				Detail: fmt.Sprintf("This block replaces the one of the same name at %s.", old.Range),
			})
			*p = slices.Delete(*p, i, i+1)
			break
		}
	}
	*p = append(*p, block)
	return diags
}

const maxConfigFileSize = 1 << 20

// checkConfigLimits rejects a text that is too large, or nested too deeply for the recursive
// parser.
func checkConfigLimits(filename string, src []byte) hcl.Diagnostics {
	if len(src) > maxConfigFileSize {
		start := hcl.Range{Filename: filename, Start: hcl.InitialPos, End: hcl.InitialPos}
		return hcl.Diagnostics{{Severity: hcl.DiagError, Summary: "Configuration file refused", Detail: "The file is larger than 1 MiB.", Subject: &start}}
	}
	return nesting.CheckConfig(src, filename)
}

// pluginParser converts the HCL of a plugin block to plain values. An expression that needs the
// functions of a plugin's schema is kept as the text of a template, which hclspec evaluates later.
type pluginParser struct {
	src      []byte
	attrName func(*hclsyntax.Attribute) string
	diags    hcl.Diagnostics
}

func (p *pluginParser) addDiagnostic(severity hcl.DiagnosticSeverity, rng hcl.Range, summary, format string, args ...any) {
	p.diags = append(p.diags, &hcl.Diagnostic{Severity: severity, Summary: summary, Detail: fmt.Sprintf(format, args...), Subject: &rng})
}

func (p *pluginParser) parsePluginBlock(b *hclsyntax.Block) catalog.PluginBlock {
	block := catalog.PluginBlock{Name: b.Labels[0], Range: b.DefRange()}
	if !base.ValidName(block.Name) {
		p.addDiagnostic(hcl.DiagError, b.LabelRanges[0], "Not a plugin name", "A plugin name has letters, digits, dots, dashes and underscores, and begins with a letter or digit.")
	}
	for _, attr := range sortedAttrs(b.Body) {
		switch p.attrName(attr) {
		case "args":
			block.Args = p.parseStringList(attr)
		case "env_allowlist":
			block.EnvAllowlist = append([]string{}, p.parseStringList(attr)...) // not nil if the list is empty, because nil means the default
		case "sha256":
			block.SHA256 = p.str(attr)
			if sum, err := hex.DecodeString(block.SHA256); err != nil || len(sum) != sha256.Size {
				p.addDiagnostic(hcl.DiagError, attr.Expr.Range(), "Not a checksum", "sha256 has 64 hexadecimal digits.")
			}
		case "config":
			// Nomad parses plugin blocks as HCL1, which accepts config = { … } as a block.
			if m, ok := p.convertExpr(attr.Expr).(map[string]any); ok {
				block.Config = m
			} else {
				p.addDiagnostic(hcl.DiagError, attr.Expr.Range(), "Not a config block", "config is a block: config { … }.")
			}
		default:
			p.addDiagnostic(hcl.DiagWarning, attr.NameRange, "Setting ignored", "A plugin block has args, config and env_allowlist; %q is not used.", p.attrName(attr))
		}
	}
	for _, inner := range b.Body.Blocks {
		switch {
		case inner.Type != "config":
			p.addDiagnostic(hcl.DiagWarning, inner.TypeRange, "Block ignored", "A plugin block has args, config and env_allowlist; %q is not used.", inner.Type)
		case len(inner.Labels) > 0:
			p.addDiagnostic(hcl.DiagError, inner.LabelRanges[0], "Label on a config block", "A config block has no label.")
		case block.Config != nil:
			p.addDiagnostic(hcl.DiagError, inner.DefRange(), "Two config blocks", "A plugin block has one config.")
		default:
			block.Config = p.convertBody(inner.Body)
		}
	}
	return block
}

func (p *pluginParser) convertBody(body *hclsyntax.Body) map[string]any {
	out := map[string]any{}
	for _, attr := range sortedAttrs(body) {
		out[p.attrName(attr)] = p.convertExpr(attr.Expr)
	}
	for _, b := range body.Blocks {
		inner := p.convertBody(b.Body)
		for i := len(b.Labels) - 1; i >= 0; i-- {
			inner = map[string]any{b.Labels[i]: []map[string]any{inner}}
		}
		list, ok := out[b.Type].([]map[string]any)
		if _, taken := out[b.Type]; taken && !ok {
			p.addDiagnostic(hcl.DiagError, b.DefRange(), "Setting and block of one name", "%q is a setting already.", b.Type)
			continue
		}
		out[b.Type] = append(list, inner)
	}
	return out
}

// convertExpr converts an expression to a string, bool, int, float64, nil, []any or map[string]any.
func (p *pluginParser) convertExpr(expr hclsyntax.Expression) any {
	switch e := expr.(type) {
	case *hclsyntax.ParenthesesExpr:
		return p.convertExpr(e.Expression)
	case *hclsyntax.TupleConsExpr:
		out := make([]any, len(e.Exprs))
		for i, x := range e.Exprs {
			out[i] = p.convertExpr(x)
		}
		return out
	case *hclsyntax.ObjectConsExpr:
		out := make(map[string]any, len(e.Items))
		for _, item := range e.Items {
			key, diags := item.KeyExpr.Value(nil)
			if diags.HasErrors() || key.IsNull() || !key.Type().Equals(cty.String) {
				p.addDiagnostic(hcl.DiagError, item.KeyExpr.Range(), "Not a key", "A key is a word or a string.")
				continue
			}
			out[key.AsString()] = p.convertExpr(item.ValueExpr)
		}
		return out
	case *hclsyntax.TemplateExpr:
		return p.convertQuotedTemplate(e)
	case *hclsyntax.TemplateWrapExpr:
		return p.exprTemplate(e.Wrapped)
	}
	val, diags := expr.Value(nil)
	if diags.HasErrors() {
		return p.exprTemplate(expr)
	}
	return ctyToGo(val)
}

// convertQuotedTemplate returns the text of a quoted template as a string that hclspec evaluates.
func (p *pluginParser) convertQuotedTemplate(e *hclsyntax.TemplateExpr) string {
	var sb strings.Builder
	for _, part := range e.Parts {
		switch part := part.(type) {
		case *hclsyntax.LiteralValueExpr:
			if part.Val.Type().Equals(cty.String) {
				sb.WriteString(hclspec.Verbatim(part.Val.AsString()))
				continue
			}
		case *hclsyntax.ConditionalExpr, *hclsyntax.TemplateJoinExpr:
			// The part may be a %{ } sequence. Such a part has no source text of its own.
			if src := string(e.Range().SliceBytes(p.src)); strings.HasPrefix(src, `"`) && strings.Contains(src, "%{") {
				p.addDiagnostic(hcl.DiagError, part.Range(), "Template sequence", "A %%{ … } sequence cannot be used in a plugin's configuration.")
				return ""
			}
		}
		sb.WriteString(p.exprTemplate(part))
	}
	return sb.String()
}

// exprTemplate returns the source text of expr as a template that hclspec evaluates.
func (p *pluginParser) exprTemplate(expr hclsyntax.Expression) string {
	return "${" + string(expr.Range().SliceBytes(p.src)) + "}"
}

func ctyToGo(val cty.Value) any {
	switch {
	case val.IsNull():
		return nil
	case val.Type() == cty.String:
		return hclspec.Verbatim(val.AsString())
	case val.Type() == cty.Bool:
		return val.True()
	case val.Type() == cty.Number:
		f := val.AsBigFloat()
		if i, acc := f.Int64(); acc == big.Exact && int64(int(i)) == i {
			return int(i)
		}
		x, _ := f.Float64()
		return x
	case val.CanIterateElements() && (val.Type().IsObjectType() || val.Type().IsMapType()):
		out := map[string]any{}
		for k, v := range val.Elements() {
			out[k.AsString()] = ctyToGo(v)
		}
		return out
	case val.CanIterateElements():
		var out []any
		for _, v := range val.Elements() {
			out = append(out, ctyToGo(v))
		}
		return out
	}
	return nil
}

func (p *pluginParser) str(attr *hclsyntax.Attribute) string {
	val, diags := attr.Expr.Value(nil)
	if diags.HasErrors() || val.IsNull() || val.Type() != cty.String {
		p.addDiagnostic(hcl.DiagError, attr.Expr.Range(), "Not a string", "%s is a string.", attr.Name)
		return ""
	}
	return val.AsString()
}

func (p *pluginParser) parseStringList(attr *hclsyntax.Attribute) []string {
	val, diags := attr.Expr.Value(nil)
	wrong := diags.HasErrors() || val.IsNull() || !val.Type().IsTupleType()
	var out []string
	if !wrong {
		for _, v := range val.Elements() {
			if v.IsNull() || v.Type() != cty.String {
				wrong = true
				break
			}
			out = append(out, v.AsString())
		}
	}
	if wrong {
		p.addDiagnostic(hcl.DiagError, attr.Expr.Range(), "Not a list of strings", "%s is a list of strings.", attr.Name)
		return nil
	}
	return out
}

// sortedAttrs returns the attributes in source order, so that diagnostics are
// deterministic.
func sortedAttrs(body *hclsyntax.Body) []*hclsyntax.Attribute {
	out := make([]*hclsyntax.Attribute, 0, len(body.Attributes))
	for _, a := range body.Attributes {
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b *hclsyntax.Attribute) int { return a.SrcRange.Start.Byte - b.SrcRange.Start.Byte })
	return out
}
