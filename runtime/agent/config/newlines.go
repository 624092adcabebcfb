package config

import (
	"bytes"
	"slices"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// Agent configuration files are written in HCL1, which allows
//
//	plugin "raw_exec" { config { enabled = true } }
//
// HCL2 does not allow a block inside a block on one line. So a file that does not parse
// is parsed again with newlines around its blocks, and positions in it are translated
// back.

// newlineAdder records the positions of added newlines in a text.
type newlineAdder struct {
	filename        string
	originalSource  []byte
	insertedOffsets []int // offsets in the text with the added newlines, ascending
}

// addNewlines adds newlines to src so that every block is on lines of its own. It returns src itself if
// no newline is needed.
func addNewlines(filename string, src []byte) ([]byte, *newlineAdder) {
	tokens, _ := hclsyntax.LexConfig(src, filename, hcl.InitialPos)
	var newlineOffsets []int // offsets in src
	var blockStack []bool
	for i, t := range tokens {
		switch t.Type {
		case hclsyntax.TokenOBrack, hclsyntax.TokenOParen, hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl:
			blockStack = append(blockStack, false)
		case hclsyntax.TokenCBrack, hclsyntax.TokenCParen, hclsyntax.TokenTemplateSeqEnd:
			blockStack = blockStack[:max(0, len(blockStack)-1)]
		case hclsyntax.TokenOBrace:
			inBody := len(blockStack) == 0 || blockStack[len(blockStack)-1]
			header := -1
			if inBody {
				header = blockHeaderStart(tokens, i)
			}
			blockStack = append(blockStack, header >= 0)
			if header < 0 {
				continue
			}
			if header > 0 && tokens[header-1].Type != hclsyntax.TokenIdent && !endsLine(tokens[header-1]) {
				newlineOffsets = append(newlineOffsets, tokens[header].Range.Start.Byte)
			}
			if !startsLine(tokens, i+1) {
				newlineOffsets = append(newlineOffsets, t.Range.End.Byte)
			}
		case hclsyntax.TokenCBrace:
			block := len(blockStack) > 0 && blockStack[len(blockStack)-1]
			blockStack = blockStack[:max(0, len(blockStack)-1)]
			if !block {
				continue
			}
			if i > 0 && !endsLine(tokens[i-1]) {
				newlineOffsets = append(newlineOffsets, t.Range.Start.Byte)
			}
			if !startsLine(tokens, i+1) {
				newlineOffsets = append(newlineOffsets, t.Range.End.Byte)
			}
		}
	}
	slices.Sort(newlineOffsets)
	newlineOffsets = slices.Compact(newlineOffsets)

	s := &newlineAdder{filename: filename, originalSource: src}
	var out []byte
	last := 0
	for _, b := range newlineOffsets {
		out = append(out, src[last:b]...)
		s.insertedOffsets = append(s.insertedOffsets, len(out))
		out = append(out, '\n')
		last = b
	}
	return append(out, src[last:]...), s
}

// blockHeaderStart returns the index of the first token of the block whose opening brace is token i, or -1 if
// token i opens no block.
func blockHeaderStart(tokens hclsyntax.Tokens, i int) int {
	for i--; i >= 0; i-- {
		switch tokens[i].Type {
		case hclsyntax.TokenIdent:
			return i
		case hclsyntax.TokenOQuote, hclsyntax.TokenQuotedLit, hclsyntax.TokenCQuote:
		default:
			return -1
		}
	}
	return -1
}

func endsLine(t hclsyntax.Token) bool {
	return t.Type == hclsyntax.TokenNewline || bytes.HasSuffix(t.Bytes, []byte("\n"))
}

func startsLine(tokens hclsyntax.Tokens, i int) bool {
	return i >= len(tokens) || tokens[i].Type == hclsyntax.TokenNewline || tokens[i].Type == hclsyntax.TokenEOF || tokens[i].Type == hclsyntax.TokenComment
}

// restorePositions replaces the positions in diags by those in the text without the added newlines.
func (s *newlineAdder) restorePositions(diags hcl.Diagnostics) {
	for _, d := range diags {
		d.Subject, d.Context = s.originalRange(d.Subject), s.originalRange(d.Context)
	}
}

func (s *newlineAdder) originalRange(r *hcl.Range) *hcl.Range {
	if r == nil {
		return nil
	}
	return &hcl.Range{Filename: s.filename, Start: s.pos(r.Start), End: s.pos(r.End)}
}

func (s *newlineAdder) pos(p hcl.Pos) hcl.Pos {
	before, _ := slices.BinarySearch(s.insertedOffsets, p.Byte)
	at := min(max(p.Byte-before, 0), len(s.originalSource))
	text := s.originalSource[:at]
	return hcl.Pos{
		Byte:   at,
		Line:   1 + bytes.Count(text, []byte("\n")),
		Column: 1 + utf8.RuneCount(text[bytes.LastIndexByte(text, '\n')+1:]),
	}
}
