package config

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/hcl/ast"
	"github.com/hashicorp/hcl/hcl/token"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
)

// pluginBlocks are the plugin blocks of one configuration file.
type pluginBlocks []catalog.PluginBlock

// addOrReplace adds a plugin block. If a file has two blocks of one name, the later block replaces the earlier
// one completely.
func (p *pluginBlocks) addOrReplace(block catalog.PluginBlock) hcl.Diagnostics {
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

// pluginParser converts a plugin block to values of basic Go types. Strings become templates, which hclspec evaluates later
// with the functions of the plugin's schema.
type pluginParser struct {
	*hclDocument
	diags hcl.Diagnostics
}

func (p *pluginParser) addDiagnostic(severity hcl.DiagnosticSeverity, rng hcl.Range, summary, format string, args ...any) {
	p.diags = append(p.diags, &hcl.Diagnostic{Severity: severity, Summary: summary, Detail: fmt.Sprintf(format, args...), Subject: &rng})
}

// nameAndLabels calls hclDocument.decodeNameAndLabels and adds the errors to p.diags. It returns nil after an error.
func (p *pluginParser) nameAndLabels(item *ast.ObjectItem) []string {
	names, diags := p.decodeNameAndLabels(item)
	if p.diags = append(p.diags, diags...); diags.HasErrors() {
		return nil
	}
	return names
}

// parsePluginBlock converts one plugin block of a document. labels are the labels of the block, of which there must be one.
func parsePluginBlock(d *hclDocument, item *ast.ObjectItem, labels []string) (catalog.PluginBlock, hcl.Diagnostics) {
	p := &pluginParser{hclDocument: d}
	block := catalog.PluginBlock{Range: d.keysRange(item.Keys)}
	if len(labels) != 1 {
		p.addDiagnostic(hcl.DiagError, block.Range, "Plugin block without a name", `A plugin block has one label: plugin "NAME" { … }.`)
		return block, p.diags
	}
	if block.Name = labels[0]; !base.ValidName(block.Name) {
		p.addDiagnostic(hcl.DiagError, d.tokenRange(item.Keys[1].Token), "Not a plugin name", "A plugin name has letters, digits, dots, dashes and underscores, and begins with a letter or digit.")
	}
	settings := make(map[string]hcl.Range)
	for _, inner := range item.Val.(*ast.ObjectType).List.Items {
		names := p.nameAndLabels(inner)
		if names == nil {
			continue
		}
		name, rng := names[0], p.keysRange(inner.Keys)
		// Settings of the plugin, which has their schema. [type: block; reload]
		if name == "config" {
			p.parseConfig(&block, inner)
			continue
		}
		if !inner.Assign.IsValid() {
			p.addDiagnostic(hcl.DiagWarning, p.tokenRange(inner.Keys[0].Token), "Block ignored", "%s", unknownPluginSetting(name))
			continue
		}
		if earlier, ok := settings[name]; ok {
			p.diags = append(p.diags, repeatedSettingError(name, rng, earlier)...)
			continue
		}
		settings[name] = rng
		switch name {
		// Arguments of the program. [type: list of strings; reload]
		case "args":
			block.Args = p.parseStringList(name, inner.Val)
		// Variables of the agent that the plugin inherits; a name can end with *. [type: list of strings; default: see the environment of plugins; reload; not in Nomad]
		case "env_allowlist":
			block.EnvAllowlist = append([]string{}, p.parseStringList(name, inner.Val)...) // not nil if the list is empty, because nil means the default
		// Checksum that the program must have, 64 hexadecimal digits. [type: string; reload; not in Nomad]
		case "sha256":
			block.SHA256 = p.parseString(name, inner.Val)
			if !isSHA256(block.SHA256) {
				p.addDiagnostic(hcl.DiagError, p.valueRange(inner.Val), "Not a checksum", notSHA256)
			}
		default:
			p.addDiagnostic(hcl.DiagWarning, rng, "Setting ignored", "%s", unknownPluginSetting(name))
		}
	}
	return block, p.diags
}

const notSHA256 = "sha256 has 64 hexadecimal digits."

func isSHA256(text string) bool {
	sum, err := hex.DecodeString(text)
	return err == nil && len(sum) == sha256.Size
}

// unknownPluginSetting returns the text of the warning about a setting that plugin blocks do not have.
func unknownPluginSetting(name string) string {
	return fmt.Sprintf("A plugin block has %s; %q is not used%s", joinNames(pluginSettingNames), name, cmp.Or(didYouMean(name, slices.Values(pluginSettingNames)), "."))
}

// parseConfig parses config { … } or config = { … }.
func (p *pluginParser) parseConfig(block *catalog.PluginBlock, item *ast.ObjectItem) {
	object, ok := item.Val.(*ast.ObjectType)
	switch {
	case !ok:
		p.addDiagnostic(hcl.DiagError, p.valueRange(item.Val), "Not a config block", "config is a block: config { … }.")
	case len(item.Keys) > 1:
		p.addDiagnostic(hcl.DiagError, p.tokenRange(item.Keys[1].Token), "Label on a config block", "A config block has no label.")
	case block.Config != nil:
		p.addDiagnostic(hcl.DiagError, p.keysRange(item.Keys), "Two config blocks", "A plugin block has one config.")
	default:
		block.Config = p.blockOrObjectToMap(object, item.Assign.IsValid())
	}
}

// blockOrObjectToMap converts the content of a block or of an object. In an object a later element replaces an earlier element
// with the same name; in a block a repeated setting is an error.
func (p *pluginParser) blockOrObjectToMap(body *ast.ObjectType, isObject bool) map[string]any {
	out := make(map[string]any, len(body.List.Items))
	settings := make(map[string]hcl.Range)
	for _, item := range body.List.Items {
		names := p.nameAndLabels(item)
		if names == nil {
			continue
		}
		name, rng := names[0], p.keysRange(item.Keys)
		earlier, isSetting := settings[name]
		blocks, isBlock := out[name].([]map[string]any)
		switch assigned := item.Assign.IsValid(); {
		case assigned && isSetting && !isObject:
			p.diags = append(p.diags, repeatedSettingError(name, rng, earlier)...)
		case assigned && isBlock, !assigned && isSetting:
			p.addDiagnostic(hcl.DiagError, rng, "Setting and block of one name", "%q is both a setting and a block.", name)
		case assigned:
			settings[name] = rng
			out[name] = p.toBasicGoValue(item.Val)
		default:
			inner := p.blockOrObjectToMap(item.Val.(*ast.ObjectType), false)
			for _, label := range slices.Backward(names[1:]) {
				inner = map[string]any{label: []map[string]any{inner}}
			}
			out[name] = append(blocks, inner)
		}
	}
	return out
}

// toBasicGoValue converts a value to a string, bool, int, float64, []any or map[string]any.
func (p *pluginParser) toBasicGoValue(value ast.Node) any {
	switch v := value.(type) {
	case *ast.ObjectType:
		return p.blockOrObjectToMap(v, true)
	case *ast.ListType:
		out := make([]any, len(v.List))
		for i, element := range v.List {
			out[i] = p.toBasicGoValue(element)
		}
		return out
	}
	expr, diags := p.parseLiteral(value.(*ast.LiteralType).Token)
	if p.diags = append(p.diags, diags...); diags.HasErrors() {
		return nil
	}
	switch e := expr.(type) {
	case *hclsyntax.TemplateExpr:
		return p.toTemplateString(e)
	case *hclsyntax.TemplateWrapExpr:
		return p.exprToInterpolation(e.Wrapped)
	case *hclsyntax.LiteralValueExpr:
		return convertNumberOrBool(e.Val)
	}
	p.addDiagnostic(hcl.DiagError, expr.Range(), "Not a text", "A text in quotes is one template.")
	return nil
}

// toTemplateString returns the text of a quoted template as a string that hclspec evaluates.
func (p *pluginParser) toTemplateString(e *hclsyntax.TemplateExpr) string {
	var sb strings.Builder
	for _, part := range e.Parts {
		switch part := part.(type) {
		case *hclsyntax.LiteralValueExpr:
			if part.Val.Type().Equals(cty.String) {
				sb.WriteString(hclspec.Verbatim(part.Val.AsString()))
				continue
			}
		case *hclsyntax.ConditionalExpr, *hclsyntax.TemplateJoinExpr:
			// The part may be a %{ } sequence, whose range has no source text that could be copied.
			if src := string(e.Range().SliceBytes(p.src)); strings.HasPrefix(src, `"`) && strings.Contains(src, "%{") {
				p.addDiagnostic(hcl.DiagError, part.Range(), "Template sequence", "A %%{ … } sequence cannot be used in a plugin's configuration.")
				return ""
			}
		}
		sb.WriteString(p.exprToInterpolation(part))
	}
	return sb.String()
}

// exprToInterpolation returns the source text of expr as a template that hclspec evaluates.
func (p *pluginParser) exprToInterpolation(expr hclsyntax.Expression) string {
	return "${" + string(expr.Range().SliceBytes(p.src)) + "}"
}

func convertNumberOrBool(val cty.Value) any {
	if val.Type() == cty.Bool {
		return val.True()
	}
	f := val.AsBigFloat()
	if i, acc := f.Int64(); acc == big.Exact && int64(int(i)) == i {
		return int(i)
	}
	x, _ := f.Float64()
	return x
}

// literalString returns the value of a string literal or heredoc. It returns false for another value, or if the string has references.
func (p *pluginParser) literalString(value ast.Node) (text string, isLiteral bool) {
	literal, ok := value.(*ast.LiteralType)
	if !ok || literal.Token.Type != token.STRING && literal.Token.Type != token.HEREDOC {
		return "", false
	}
	expr, diags := p.parseLiteral(literal.Token)
	if diags.HasErrors() {
		return "", false
	}
	val, diags := expr.Value(nil)
	if diags.HasErrors() || val.Type() != cty.String {
		return "", false
	}
	return val.AsString(), true
}

func (p *pluginParser) parseString(name string, value ast.Node) string {
	text, ok := p.literalString(value)
	if !ok {
		p.addDiagnostic(hcl.DiagError, p.valueRange(value), "Not a string", "%s is a string.", name)
	}
	return text
}

func (p *pluginParser) parseStringList(name string, value ast.Node) []string {
	list, ok := value.(*ast.ListType)
	var out []string
	if ok {
		for _, element := range list.List {
			text, isText := p.literalString(element)
			ok = ok && isText
			out = append(out, text)
		}
	}
	if !ok {
		p.addDiagnostic(hcl.DiagError, p.valueRange(value), "Not a list of strings", "%s is a list of strings.", name)
		return nil
	}
	return out
}
