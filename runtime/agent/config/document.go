package config

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"

	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
)

// configDocument is the text of an agent's configuration file. It is HCL2, with two
// features of HCL1 that such files use: a block within a block on one line, and quotes
// around the name of a setting.
type configDocument struct {
	body *hclsyntax.Body

	src           []byte
	quotedNames   map[string]string // quoted names of settings in the file, by the words that replace them in body
	addedNewlines *newlineAdder     // nil if no newline was added
}

// parseDocument parses the text of a configuration file. The document is nil if the
// text is not HCL, or exceeds the limits for size and depth.
func parseDocument(filename string, src []byte) (*configDocument, hcl.Diagnostics) {
	if diags := checkConfigLimits(filename, src); diags.HasErrors() {
		return nil, diags
	}
	d := &configDocument{quotedNames: make(map[string]string)}
	d.src = d.replaceQuotedNames(filename, src)
	parsed, diags := hclsyntax.ParseConfig(d.src, filename, hcl.InitialPos)
	if diags.HasErrors() {
		text, lines := addNewlines(filename, d.src)
		if len(lines.insertedOffsets) == 0 {
			return nil, diags
		}
		d.src, d.addedNewlines = text, lines
		parsed, diags = hclsyntax.ParseConfig(text, filename, hcl.InitialPos)
		lines.restorePositions(diags)
		if diags.HasErrors() {
			return nil, diags
		}
	}
	d.body = parsed.Body.(*hclsyntax.Body)
	return d, diags
}

// settingName returns the name that a setting has in the file.
func (d *configDocument) settingName(attr *hclsyntax.Attribute) string {
	if name, quoted := d.quotedNames[attr.Name]; quoted {
		return name
	}
	return attr.Name
}

// fileRange converts a range in body to the range in the file, which lacks the added newlines.
func (d *configDocument) fileRange(r hcl.Range) hcl.Range {
	if d.addedNewlines == nil {
		return r
	}
	return *d.addedNewlines.originalRange(&r)
}

// parsePluginBlock parses one plugin block of the document.
func (d *configDocument) parsePluginBlock(b *hclsyntax.Block) (catalog.PluginBlock, hcl.Diagnostics) {
	p := &pluginParser{src: d.src, attrName: d.settingName}
	var pluginBlock catalog.PluginBlock
	if len(b.Labels) != 1 {
		p.addDiagnostic(hcl.DiagError, b.DefRange(), "Plugin block without a name", `A plugin block has one label: plugin "NAME" { … }.`)
	} else {
		pluginBlock = p.parsePluginBlock(b)
		pluginBlock.Range = d.fileRange(pluginBlock.Range)
	}
	if d.addedNewlines != nil {
		d.addedNewlines.restorePositions(p.diags)
	}
	return pluginBlock, p.diags
}

// replaceQuotedNames replaces the quoted names of settings by words of the same length.
func (d *configDocument) replaceQuotedNames(filename string, src []byte) []byte {
	tokens, _ := hclsyntax.LexConfig(src, filename, hcl.InitialPos)
	var out []byte
	for i := 0; i+3 < len(tokens); i++ {
		if tokens[i].Type != hclsyntax.TokenOQuote || tokens[i+1].Type != hclsyntax.TokenQuotedLit ||
			tokens[i+2].Type != hclsyntax.TokenCQuote || tokens[i+3].Type != hclsyntax.TokenEqual || !startsSetting(tokens, i) {
			continue
		}
		if out == nil {
			out = bytes.Clone(src)
		}
		from, to := tokens[i].Range.Start.Byte, tokens[i+2].Range.End.Byte
		word, ok := d.unusedIdentifier(src, to-from)
		if !ok {
			continue // the parser reports the error
		}
		d.quotedNames[word] = string(tokens[i+1].Bytes)
		copy(out[from:to], word)
	}
	if out == nil {
		return src
	}
	return out
}

// unusedIdentifier returns a word of the given length that does not occur in the text.
func (d *configDocument) unusedIdentifier(src []byte, length int) (string, bool) {
	for n := len(d.quotedNames); ; n++ {
		word := "_" + strconv.FormatInt(int64(n), 36)
		if len(word) > length {
			return "", false
		}
		word += strings.Repeat("_", length-len(word))
		if _, taken := d.quotedNames[word]; !taken && !bytes.Contains(src, []byte(word)) {
			return word, true
		}
	}
}

// startsSetting reports whether a setting of a block starts at token i. The keys of objects, which HCL2
// allows to be quoted, are not settings.
func startsSetting(tokens hclsyntax.Tokens, i int) bool {
	depth := 0
	for k := i - 1; k >= 0; k-- {
		switch tokens[k].Type {
		case hclsyntax.TokenCBrace, hclsyntax.TokenCBrack, hclsyntax.TokenCParen, hclsyntax.TokenTemplateSeqEnd:
			depth++
		case hclsyntax.TokenOBrack, hclsyntax.TokenOParen, hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl:
			if depth == 0 {
				return false
			}
			depth--
		case hclsyntax.TokenOBrace:
			if depth == 0 {
				return blockHeaderStart(tokens, k) >= 0
			}
			depth--
		}
	}
	return true
}
