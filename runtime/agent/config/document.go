package config

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/hashicorp/hcl/hcl/ast"
	"github.com/hashicorp/hcl/hcl/parser"
	"github.com/hashicorp/hcl/hcl/scanner"
	"github.com/hashicorp/hcl/hcl/token"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"

	"github.com/nomad-lite/nomad-lite/hclspec/nesting"
)

// maxFileSize is the maximum size of a configuration file, in bytes.
const maxFileSize = 1 << 20

// document is a configuration file whose blocks, settings, lists and objects are HCL 1. Each text in quotes and each heredoc
// in it is a template of HCL 2.
type document struct {
	filename string
	src      []byte
	items    *ast.ObjectList
	// crlfBefore is the number of \r\n before each line. The parser replaces \r\n by \n, and its offsets are those in the new
	// text.
	crlfBefore []int
}

// parseDocument parses a file. The document is nil if the text is not HCL 1, or is nested too deeply. Each error has a
// position.
func parseDocument(filename string, src []byte) (d *document, diags hcl.Diagnostics) {
	d = &document{filename: filename, src: src}
	crlf := 0
	for line := range bytes.Lines(src) {
		d.crlfBefore = append(d.crlfBefore, crlf)
		if bytes.HasSuffix(line, []byte("\r\n")) {
			crlf++
		}
	}
	d.crlfBefore = append(d.crlfBefore, crlf)

	defer func() {
		if r := recover(); r != nil { // the scanner panics if it goes back twice, or if the word of a heredoc is no regular expression
			start := hcl.Range{Filename: filename, Start: hcl.InitialPos, End: hcl.InitialPos}
			d, diags = nil, syntaxError(start, "the parser of HCL failed: %v", r)
		}
	}()
	text := bytes.ReplaceAll(src, []byte("\r\n"), []byte("\n"))
	if diags := d.checkTokens(text); diags.HasErrors() {
		return nil, diags
	}
	file, err := parser.Parse(text)
	if err != nil {
		return nil, d.parserError(text, err)
	}
	d.items = file.Node.(*ast.ObjectList)
	return d, nil
}

func syntaxError(rng hcl.Range, format string, args ...any) hcl.Diagnostics {
	return hcl.Diagnostics{{Severity: hcl.DiagError, Summary: fmt.Sprintf(format, args...), Subject: &rng}}
}

// checkTokens reports the errors for which the parser recurses too deeply, that it reports at another place, or that it
// accepts: it ignores some settings without a value and some brackets that do not match.
func (d *document) checkTokens(text []byte) hcl.Diagnostics {
	type scanError struct {
		pos token.Pos
		msg string
	}
	var first *scanError
	s := scanner.New(text)
	s.Error = func(pos token.Pos, msg string) {
		if first == nil {
			first = &scanError{pos, msg}
		}
	}
	var open []token.Token
	var last token.Token // is not a comment
	for {
		t := s.Scan()
		if first != nil {
			place := token.Token{Pos: first.pos, Text: firstCharacter(text[min(first.pos.Offset, len(text)):])}
			if strings.HasSuffix(first.msg, "not terminated") {
				place.Pos = t.Pos
				place.Text, _, _ = strings.Cut(t.Text, "\n")
			}
			return syntaxError(d.rangeOf(place), "not HCL: %s", explainScanError(first.msg, place.Text))
		}
		if t.Type == token.COMMENT {
			continue
		}
		if last.Type == token.ASSIGN && !startsValue(t) {
			return syntaxError(d.rangeOf(t), `not HCL: %s is not a value: write a number, true, false, a text in quotes, [ … ] or { … }; an expression for a plugin is written in quotes, "${ … }"`, tokenText(t))
		}
		last = t
		switch t.Type {
		case token.LBRACE, token.LBRACK:
			if open = append(open, t); len(open) > nesting.Max {
				return syntaxError(d.rangeOf(t), "Nesting too deep: blocks, objects and lists may be nested %d levels deep at most", nesting.Max)
			}
		case token.RBRACE, token.RBRACK:
			if len(open) == 0 {
				return syntaxError(d.rangeOf(t), "not HCL: no bracket is open that %q closes: remove it", t.Text)
			}
			opening := open[len(open)-1]
			if open = open[:len(open)-1]; (opening.Type == token.LBRACE) != (t.Type == token.RBRACE) {
				return syntaxError(d.rangeOf(t), "not HCL: %q does not close the %q at %s", t.Text, opening.Text, d.rangeOf(opening))
			}
		case token.EOF:
			if len(open) > 0 {
				opening := open[len(open)-1]
				return syntaxError(d.rangeOf(opening), "not HCL: the file ends before this %q is closed", opening.Text)
			}
			return nil
		}
	}
}

// tokenText returns the start of a token in quotes, for a message.
func tokenText(t token.Token) string {
	if t.Type == token.EOF {
		return "the end of the file"
	}
	return fmt.Sprintf("%.40q", t.Text)
}

func firstCharacter(text []byte) string {
	_, size := utf8.DecodeRune(text)
	return string(text[:size])
}

// explainScanError returns the message for an error of the scanner.
func explainScanError(msg, text string) string {
	switch msg {
	case "literal not terminated":
		return "this text has no closing quote on its line"
	case "heredoc not terminated":
		return "this heredoc has no line with its closing word; after <<- that line must begin with a space or a tab"
	case "comment not terminated":
		return "this comment has no closing */"
	}
	return fmt.Sprintf("%s at %q", msg, text)
}

func startsValue(t token.Token) bool {
	return t.Type.IsLiteral() || t.Type == token.LBRACE || t.Type == token.LBRACK
}

// parserError returns an error of the parser at the token that it reports.
func (d *document) parserError(text []byte, err error) hcl.Diagnostics {
	var posErr *parser.PosError
	if !errors.As(err, &posErr) {
		start := hcl.Range{Filename: d.filename, Start: hcl.InitialPos, End: hcl.InitialPos}
		return syntaxError(start, "not HCL: %v", err)
	}
	s := scanner.New(text)
	for t := s.Scan(); ; t = s.Scan() {
		if t.Type == token.EOF || t.Pos.Offset >= posErr.Pos.Offset {
			return syntaxError(d.rangeOf(t), `not HCL: %s is not expected here: settings are written NAME = VALUE, blocks NAME "LABEL" { … }, and a comma follows each element of a list (%v)`, tokenText(t), posErr.Err)
		}
	}
}

// position converts a position of the parser.
func (d *document) position(p token.Pos) hcl.Pos {
	line := min(max(p.Line, 1), len(d.crlfBefore))
	return hcl.Pos{Line: line, Column: max(p.Column, 1), Byte: min(p.Offset+d.crlfBefore[line-1], len(d.src))}
}

// rangeOf returns the range of a token.
func (d *document) rangeOf(t token.Token) hcl.Range {
	if t.Type == token.EOF { // the scanner counts the end of the file as characters
		t.Pos.Column = 1 + utf8.RuneCount(d.src[bytes.LastIndexByte(d.src, '\n')+1:])
	}
	end := t.Pos
	end.Offset += len(t.Text)
	if lines := strings.Count(t.Text, "\n"); lines > 0 {
		end.Line, end.Column = end.Line+lines, 1
	}
	end.Column += utf8.RuneCountInString(t.Text[strings.LastIndexByte(t.Text, '\n')+1:])
	return hcl.Range{Filename: d.filename, Start: d.position(t.Pos), End: d.position(end)}
}

// keysRange returns the range of the name and the labels of a block, or of the name of a setting.
func (d *document) keysRange(keys []*ast.ObjectKey) hcl.Range {
	return hcl.RangeBetween(d.rangeOf(keys[0].Token), d.rangeOf(keys[len(keys)-1].Token))
}

// valueRange returns the range of a value.
func (d *document) valueRange(value ast.Node) hcl.Range {
	switch v := value.(type) {
	case *ast.ObjectType:
		return hcl.Range{Filename: d.filename, Start: d.position(v.Lbrace), End: d.rangeOf(token.Token{Pos: v.Rbrace, Text: "}"}).End}
	case *ast.ListType:
		return hcl.Range{Filename: d.filename, Start: d.position(v.Lbrack), End: d.rangeOf(token.Token{Pos: v.Rbrack, Text: "]"}).End}
	}
	return d.rangeOf(value.(*ast.LiteralType).Token)
}

// names returns the name of a setting, or the name and the labels of a block.
func (d *document) names(item *ast.ObjectItem) (names []string, diags hcl.Diagnostics) {
	for _, key := range item.Keys {
		name := key.Token.Text
		if key.Token.Type == token.STRING {
			expr, more := d.literal(key.Token)
			if diags = append(diags, more...); more.HasErrors() {
				continue
			}
			value, more := expr.Value(nil)
			if more.HasErrors() || value.Type() != cty.String {
				diags = append(diags, syntaxError(d.rangeOf(key.Token), "%s is not a name: for a name with ${ in it write $${", name)...)
				continue
			}
			name = value.AsString()
		}
		names = append(names, name)
	}
	return names, diags
}

// literal returns a literal as an expression of HCL 2: a template, a number or a boolean.
func (d *document) literal(t token.Token) (hclsyntax.Expression, hcl.Diagnostics) {
	rng := d.rangeOf(t)
	text := rng.SliceBytes(d.src)
	if diags := nesting.CheckExpression(text, d.filename); diags.HasErrors() {
		diags[0].Subject = &rng
		return nil, diags
	}
	switch t.Type {
	case token.BOOL:
		return &hclsyntax.LiteralValueExpr{Val: cty.BoolVal(t.Text == "true"), SrcRange: rng}, nil
	case token.NUMBER, token.FLOAT:
		number, err := parseNumberLiteral(t)
		if err != nil {
			return nil, syntaxError(rng, "%v", err)
		}
		return &hclsyntax.LiteralValueExpr{Val: number, SrcRange: rng}, nil
	}
	return hclsyntax.ParseExpression(text, d.filename, rng.Start)
}

func parseNumberLiteral(t token.Token) (cty.Value, error) {
	digits := strings.TrimPrefix(t.Text, "-")
	if t.Type == token.NUMBER && len(digits) > 1 && digits[0] == '0' {
		n, err := strconv.ParseInt(t.Text, 0, 64)
		if err != nil {
			return cty.NilVal, fmt.Errorf("%s is not a number of 64 bits", t.Text)
		}
		if digits[1] != 'x' && digits[1] != 'X' {
			return cty.NilVal, fmt.Errorf("%s has a leading zero, which makes it the octal number %d for Nomad: write %d, or omit the zero", t.Text, n, n)
		}
		return cty.NumberIntVal(n), nil
	}
	number, err := cty.ParseNumberVal(t.Text)
	if err != nil {
		return cty.NilVal, fmt.Errorf("%s is not a number", t.Text)
	}
	return number, nil
}
