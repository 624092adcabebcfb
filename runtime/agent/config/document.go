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

// hclDocument is a parsed configuration file. Its blocks, settings, lists and objects are HCL 1; each string in quotes and each
// heredoc is a template of HCL 2.
type hclDocument struct {
	filename string
	src      []byte
	items    *ast.ObjectList
	// crlfCountBeforeLine has, for each line, the number of \r\n before the line. The text that is parsed has \n in place of \r\n,
	// so convertPosition adds the number to the parser's offsets.
	crlfCountBeforeLine []int
}

// parseDocument parses a file. It returns nil if the text is not HCL 1, or is nested too deeply. Each error has a
// position.
func parseDocument(filename string, src []byte) (d *hclDocument, diags hcl.Diagnostics) {
	d = &hclDocument{filename: filename, src: src}
	crlf := 0
	for line := range bytes.Lines(src) {
		d.crlfCountBeforeLine = append(d.crlfCountBeforeLine, crlf)
		if bytes.HasSuffix(line, []byte("\r\n")) {
			crlf++
		}
	}
	d.crlfCountBeforeLine = append(d.crlfCountBeforeLine, crlf)

	defer func() {
		if r := recover(); r != nil { // the scanner of HCL 1 panics for some invalid texts, for example if the word of a heredoc is no regular expression
			start := hcl.Range{Filename: filename, Start: hcl.InitialPos, End: hcl.InitialPos}
			d, diags = nil, syntaxError(start, "the parser of HCL failed: %v", r)
		}
	}()
	text := bytes.ReplaceAll(src, []byte("\r\n"), []byte("\n"))
	if diags := d.checkTokensBeforeParse(text); diags.HasErrors() {
		return nil, diags
	}
	file, err := parser.Parse(text)
	if err != nil {
		return nil, d.newParserErrorDiagnostics(text, err)
	}
	d.items = file.Node.(*ast.ObjectList)
	return d, nil
}

func syntaxError(rng hcl.Range, format string, args ...any) hcl.Diagnostics {
	return hcl.Diagnostics{{Severity: hcl.DiagError, Summary: fmt.Sprintf(format, args...), Subject: &rng}}
}

// checkTokensBeforeParse reports errors that the parser of HCL 1 does not handle well: nesting that makes the parser recurse too deeply, errors
// for which the parser reports another position, and settings without a value and unmatched brackets, some of which the parser ignores.
func (d *hclDocument) checkTokensBeforeParse(text []byte) hcl.Diagnostics {
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
	var last token.Token // last token that is not a comment
	for {
		t := s.Scan()
		if first != nil {
			place := token.Token{Pos: first.pos, Text: firstCharacter(text[min(first.pos.Offset, len(text)):])}
			if strings.HasSuffix(first.msg, "not terminated") {
				place.Pos = t.Pos
				place.Text, _, _ = strings.Cut(t.Text, "\n")
			}
			return syntaxError(d.tokenRange(place), "not HCL: %s", explainScanError(first.msg, place.Text))
		}
		if t.Type == token.COMMENT {
			continue
		}
		if last.Type == token.ASSIGN && !canStartValue(t) {
			return syntaxError(d.tokenRange(t), `not HCL: %s is not a value: write a number, true, false, a text in quotes, [ … ] or { … }; an expression for a plugin is written in quotes, "${ … }"`, quoteTokenForErrorMessage(t))
		}
		last = t
		switch t.Type {
		case token.LBRACE, token.LBRACK:
			if open = append(open, t); len(open) > nesting.Max {
				return syntaxError(d.tokenRange(t), "Nesting too deep: blocks, objects and lists may be nested %d levels deep at most", nesting.Max)
			}
		case token.RBRACE, token.RBRACK:
			if len(open) == 0 {
				return syntaxError(d.tokenRange(t), "not HCL: no bracket is open that %q closes: remove it", t.Text)
			}
			opening := open[len(open)-1]
			if open = open[:len(open)-1]; (opening.Type == token.LBRACE) != (t.Type == token.RBRACE) {
				return syntaxError(d.tokenRange(t), "not HCL: %q does not close the %q at %s", t.Text, opening.Text, d.tokenRange(opening))
			}
		case token.EOF:
			if len(open) > 0 {
				opening := open[len(open)-1]
				return syntaxError(d.tokenRange(opening), "not HCL: the file ends before this %q is closed", opening.Text)
			}
			return nil
		}
	}
}

// quoteTokenForErrorMessage returns the first 40 characters of a token in quotes, for an error message.
func quoteTokenForErrorMessage(t token.Token) string {
	if t.Type == token.EOF {
		return "the end of the file"
	}
	return fmt.Sprintf("%.40q", t.Text)
}

func firstCharacter(text []byte) string {
	_, size := utf8.DecodeRune(text)
	return string(text[:size])
}

// explainScanError converts an error message of the scanner to a message for the user.
func explainScanError(msg, tokenText string) string {
	switch msg {
	case "literal not terminated":
		return "this text has no closing quote on its line"
	case "heredoc not terminated":
		return "this heredoc has no line with its closing word; after <<- that line must begin with a space or a tab"
	case "comment not terminated":
		return "this comment has no closing */"
	}
	return fmt.Sprintf("%s at %q", msg, tokenText)
}

func canStartValue(t token.Token) bool {
	return t.Type.IsLiteral() || t.Type == token.LBRACE || t.Type == token.LBRACK
}

// newParserErrorDiagnostics returns an error of the parser as a diagnostic. Its range is the first token at or after the position of the error.
func (d *hclDocument) newParserErrorDiagnostics(text []byte, err error) hcl.Diagnostics {
	var posErr *parser.PosError
	if !errors.As(err, &posErr) {
		start := hcl.Range{Filename: d.filename, Start: hcl.InitialPos, End: hcl.InitialPos}
		return syntaxError(start, "not HCL: %v", err)
	}
	s := scanner.New(text)
	for t := s.Scan(); ; t = s.Scan() {
		if t.Type == token.EOF || t.Pos.Offset >= posErr.Pos.Offset {
			return syntaxError(d.tokenRange(t), `not HCL: %s is not expected here: settings are written NAME = VALUE, blocks NAME "LABEL" { … }, and a comma follows each element of a list (%v)`, quoteTokenForErrorMessage(t), posErr.Err)
		}
	}
}

// convertPosition converts a position in the parsed text to a position in the file.
func (d *hclDocument) convertPosition(p token.Pos) hcl.Pos {
	line := min(max(p.Line, 1), len(d.crlfCountBeforeLine))
	return hcl.Pos{Line: line, Column: max(p.Column, 1), Byte: min(p.Offset+d.crlfCountBeforeLine[line-1], len(d.src))}
}

// tokenRange returns the range of a token.
func (d *hclDocument) tokenRange(t token.Token) hcl.Range {
	if t.Type == token.EOF { // the scanner reports a wrong column for the end of the file
		t.Pos.Column = 1 + utf8.RuneCount(d.src[bytes.LastIndexByte(d.src, '\n')+1:])
	}
	end := t.Pos
	end.Offset += len(t.Text)
	if lines := strings.Count(t.Text, "\n"); lines > 0 {
		end.Line, end.Column = end.Line+lines, 1
	}
	end.Column += utf8.RuneCountInString(t.Text[strings.LastIndexByte(t.Text, '\n')+1:])
	return hcl.Range{Filename: d.filename, Start: d.convertPosition(t.Pos), End: d.convertPosition(end)}
}

// keysRange returns the range of the name and the labels of a block, or of the name of a setting.
func (d *hclDocument) keysRange(keys []*ast.ObjectKey) hcl.Range {
	return hcl.RangeBetween(d.tokenRange(keys[0].Token), d.tokenRange(keys[len(keys)-1].Token))
}

// valueRange returns the range of a value.
func (d *hclDocument) valueRange(value ast.Node) hcl.Range {
	switch v := value.(type) {
	case *ast.ObjectType:
		return hcl.Range{Filename: d.filename, Start: d.convertPosition(v.Lbrace), End: d.tokenRange(token.Token{Pos: v.Rbrace, Text: "}"}).End}
	case *ast.ListType:
		return hcl.Range{Filename: d.filename, Start: d.convertPosition(v.Lbrack), End: d.tokenRange(token.Token{Pos: v.Rbrack, Text: "]"}).End}
	}
	return d.tokenRange(value.(*ast.LiteralType).Token)
}

// decodeNameAndLabels returns the name of a setting, or the name and the labels of a block, without their quotes.
func (d *hclDocument) decodeNameAndLabels(item *ast.ObjectItem) (names []string, diags hcl.Diagnostics) {
	for _, key := range item.Keys {
		name := key.Token.Text
		if key.Token.Type == token.STRING {
			expr, more := d.parseLiteral(key.Token)
			if diags = append(diags, more...); more.HasErrors() {
				continue
			}
			value, more := expr.Value(nil)
			if more.HasErrors() || value.Type() != cty.String {
				diags = append(diags, syntaxError(d.tokenRange(key.Token), "%s is not a name: for a name with ${ in it write $${", name)...)
				continue
			}
			name = value.AsString()
		}
		names = append(names, name)
	}
	return names, diags
}

// parseLiteral converts a literal of HCL 1 to an expression of HCL 2: a template, a number or a boolean.
func (d *hclDocument) parseLiteral(t token.Token) (hclsyntax.Expression, hcl.Diagnostics) {
	rng := d.tokenRange(t)
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
