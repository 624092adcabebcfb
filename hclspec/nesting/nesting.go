package nesting

import (
	"bytes"
	"fmt"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

const (
	// Max is the maximum nesting depth of brackets, templates, operators and blocks.
	Max = 200
	// MaxOperators is the maximum depth of an expression tree without brackets. The tree of
	// 1 + 1 + 1 + … is as deep as the expression is long, and evaluation recurses.
	MaxOperators = 2000
	// maxNumberLength is the maximum length of a number, and maxExponentDigits that of its
	// exponent: the decimal text of 1e999999999 has a gigabyte. The exponent of a float64
	// has at most three digits.
	maxNumberLength   = 4096
	maxExponentDigits = 3
)

func limitError(summary, detail string, rng hcl.Range) *hcl.Diagnostic {
	return &hcl.Diagnostic{Severity: hcl.DiagError, Summary: summary, Detail: detail, Subject: rng.Ptr()}
}

func depthError(rng hcl.Range) hcl.Diagnostics {
	return hcl.Diagnostics{limitError("Nesting too deep",
		fmt.Sprintf("Brackets, templates, operators and blocks may be nested %d levels deep at most.", Max), rng)}
}

// TooManyOperatorsDiag returns the diagnostic for an expression with too many operators.
func TooManyOperatorsDiag(rng hcl.Range) *hcl.Diagnostic {
	return limitError("Expression too long", fmt.Sprintf("An expression may chain %d operators at most.", MaxOperators), rng)
}

// checkNumber returns an error for a number that has more characters, or more digits in its exponent, than any usable
// number.
func checkNumber(text []byte, rng hcl.Range) *hcl.Diagnostic {
	digits := 0
	if e := bytes.IndexAny(text, "eE"); e >= 0 {
		digits = len(bytes.TrimLeft(text[e+1:], "+-0"))
	}
	if len(text) <= maxNumberLength && digits <= maxExponentDigits {
		return nil
	}
	return limitError("Number out of range", fmt.Sprintf("A number may have %d characters, and %d digits in its exponent, at most.", maxNumberLength, maxExponentDigits), rng)
}

// openBracket is a bracket, quote, heredoc or template sequence that has not been closed
// yet.
type openBracket struct {
	token hclsyntax.TokenType
	// unaryOperatorCount is the number of unary operators before the bracket, as in !(-(!(…
	unaryOperatorCount int
	// chainLength is the number of tokens, outside of inner brackets, for which the parser
	// recurses: a ? b : c ? …, x[*][*]…; it is reset for each item of a list or a body.
	chainLength int
	// operatorCount is the number of tokens that make the syntax tree of one expression deeper,
	// although the parser does not recurse: 1 + 1 + 1 + …, x[a][b]…
	operatorCount int
	// openDirectiveCount is the number of open %{ if } and %{ for } in a template.
	openDirectiveCount int
	// isForExpr is true in a { for … } expression, in which a newline does not separate
	// items.
	isForExpr bool
}

func (o *openBracket) totalDepth() int {
	return 1 + o.unaryOperatorCount + o.chainLength + o.openDirectiveCount
}

var openTokensByClose = map[hclsyntax.TokenType][]hclsyntax.TokenType{
	hclsyntax.TokenCBrace:         {hclsyntax.TokenOBrace},
	hclsyntax.TokenCBrack:         {hclsyntax.TokenOBrack},
	hclsyntax.TokenCParen:         {hclsyntax.TokenOParen},
	hclsyntax.TokenCQuote:         {hclsyntax.TokenOQuote},
	hclsyntax.TokenCHeredoc:       {hclsyntax.TokenOHeredoc},
	hclsyntax.TokenTemplateSeqEnd: {hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl},
}

// parserDepth computes the recursion depth of the parser from the tokens of a text. For
// malformed text it may compute a higher depth, never a lower one.
type parserDepth struct {
	openBrackets []openBracket
	depth        int
	// operatorCount is the sum over all open brackets, because operators in brackets are a part of the
	// enclosing expression.
	operatorCount      int
	unaryOperatorCount int
	// afterOperand is true after an operand: then a minus is a binary operator.
	afterOperand bool
}

// firstScanSize is the number of bytes of a text that are scanned first, because most text
// with too much nesting has it at the start.
const firstScanSize = 64 << 10

type lexFunc func(text []byte, name string, start hcl.Pos) (hclsyntax.Tokens, hcl.Diagnostics)

// CheckConfig checks a config file, with arguments and blocks.
func CheckConfig(text []byte, name string) hcl.Diagnostics {
	return checkText(hclsyntax.LexConfig, openBracket{}, text, name, hcl.InitialPos)
}

// CheckExpression checks the text of one expression.
func CheckExpression(text []byte, name string) hcl.Diagnostics {
	return checkText(hclsyntax.LexExpression, openBracket{token: rootFrameToken}, text, name, hcl.InitialPos)
}

// CheckTemplate checks the content of a quoted template. start is the position of the
// template in the file.
func CheckTemplate(text []byte, name string, start hcl.Pos) hcl.Diagnostics {
	return checkText(hclsyntax.LexTemplate, openBracket{token: rootFrameToken}, text, name, start)
}

// rootFrameToken is the token of the outermost openBracket, which no bracket opens, for an expression or template, in
// which a newline does not separate items.
const rootFrameToken = hclsyntax.TokenEOF

func checkText(lex lexFunc, root openBracket, text []byte, name string, start hcl.Pos) hcl.Diagnostics {
	if len(text) > firstScanSize {
		tokens, _ := lex(text[:firstScanSize], name, start)
		if diags := checkTokens(root, tokens); diags.HasErrors() {
			return diags
		}
	}
	tokens, _ := lex(text, name, start)
	return checkTokens(root, tokens)
}

func checkTokens(root openBracket, tokens hclsyntax.Tokens) hcl.Diagnostics {
	n := parserDepth{openBrackets: []openBracket{root}}
	for i, token := range tokens {
		if token.Type == hclsyntax.TokenNumberLit {
			if diag := checkNumber(token.Bytes, token.Range); diag != nil {
				return hcl.Diagnostics{diag}
			}
		}
		n.processToken(token, tokens[i+1:])
		if n.depth+n.unaryOperatorCount > Max {
			return depthError(token.Range)
		}
		if n.operatorCount > MaxOperators {
			return hcl.Diagnostics{TooManyOperatorsDiag(token.Range)}
		}
	}
	return nil
}

// processToken updates the depth for one token; rest has the tokens after the token.
func (p *parserDepth) processToken(token hclsyntax.Token, rest hclsyntax.Tokens) {
	top := &p.openBrackets[len(p.openBrackets)-1]
	switch token.Type {
	case hclsyntax.TokenOBrace, hclsyntax.TokenOBrack, hclsyntax.TokenOParen,
		hclsyntax.TokenOQuote, hclsyntax.TokenOHeredoc, hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl:
		p.pushBracket(token, rest)
	case hclsyntax.TokenCBrace, hclsyntax.TokenCBrack, hclsyntax.TokenCParen,
		hclsyntax.TokenCQuote, hclsyntax.TokenCHeredoc, hclsyntax.TokenTemplateSeqEnd:
		p.popBracket(token.Type)
	case hclsyntax.TokenBang:
		p.unaryOperatorCount++
		p.afterOperand = false
	case hclsyntax.TokenMinus:
		if !p.afterOperand {
			p.unaryOperatorCount++
			return
		}
		p.addOperators(top, 1)
		p.unaryOperatorCount, p.afterOperand = 0, false
	case hclsyntax.TokenPlus, hclsyntax.TokenStar, hclsyntax.TokenSlash, hclsyntax.TokenPercent,
		hclsyntax.TokenEqualOp, hclsyntax.TokenNotEqual, hclsyntax.TokenLessThan, hclsyntax.TokenLessThanEq,
		hclsyntax.TokenGreaterThan, hclsyntax.TokenGreaterThanEq, hclsyntax.TokenAnd, hclsyntax.TokenOr:
		p.addOperators(top, 1)
		p.unaryOperatorCount, p.afterOperand = 0, false
	case hclsyntax.TokenQuestion, hclsyntax.TokenDoubleColon:
		p.addChainLength(top, 1)
		p.unaryOperatorCount, p.afterOperand = 0, false
	case hclsyntax.TokenComma:
		p.resetForNextItem(top)
	case hclsyntax.TokenNewline:
		if ends := top.token == 0 || top.token == hclsyntax.TokenOBrace && !top.isForExpr; ends {
			p.resetForNextItem(top)
		}
	case hclsyntax.TokenComment:
		// The parser ignores comments.
	case hclsyntax.TokenIdent, hclsyntax.TokenNumberLit:
		p.unaryOperatorCount, p.afterOperand = 0, true
	default:
		p.unaryOperatorCount, p.afterOperand = 0, false
	}
}

func (p *parserDepth) addChainLength(f *openBracket, by int) {
	f.chainLength += by
	p.depth += by
}

func (p *parserDepth) addOperators(f *openBracket, by int) {
	f.operatorCount += by
	p.operatorCount += by
}

// resetForNextItem resets the counters of a bracket at the start of the next item of a list or a body.
func (p *parserDepth) resetForNextItem(f *openBracket) {
	p.addChainLength(f, -f.chainLength)
	p.addOperators(f, -f.operatorCount)
	p.unaryOperatorCount, p.afterOperand = 0, false
}

func (p *parserDepth) pushBracket(token hclsyntax.Token, rest hclsyntax.Tokens) {
	top := &p.openBrackets[len(p.openBrackets)-1]
	next := firstSignificantToken(rest)
	if token.Type == hclsyntax.TokenOBrack && next.Type == hclsyntax.TokenStar {
		p.addChainLength(top, 1)
	}
	if token.Type == hclsyntax.TokenOBrack && p.afterOperand {
		p.addOperators(top, 1)
	}
	if token.Type == hclsyntax.TokenTemplateControl {
		p.countDirective(top, string(next.Bytes))
	}
	f := openBracket{token: token.Type, unaryOperatorCount: p.unaryOperatorCount, isForExpr: string(next.Bytes) == "for"}
	p.openBrackets = append(p.openBrackets, f)
	p.depth += f.totalDepth()
	p.unaryOperatorCount, p.afterOperand = 0, false
}

// firstSignificantToken returns the first token that is neither a newline nor a comment.
func firstSignificantToken(tokens hclsyntax.Tokens) hclsyntax.Token {
	for _, token := range tokens {
		if token.Type != hclsyntax.TokenNewline && token.Type != hclsyntax.TokenComment {
			return token
		}
	}
	return hclsyntax.Token{}
}

// countDirective updates the number of open %{ if } and %{ for } of a template for the directive word.
func (p *parserDepth) countDirective(f *openBracket, word string) {
	by := 0
	switch word {
	case "if", "for":
		by = 1
	case "endif", "endfor":
		by = -min(1, f.openDirectiveCount)
	}
	f.openDirectiveCount += by
	p.depth += by
}

// popBracket removes the innermost open bracket if the closing token matches that bracket. Otherwise it removes
// no bracket, so that the computed depth is not too low: the parser rejects the text anyway.
func (p *parserDepth) popBracket(token hclsyntax.TokenType) {
	p.unaryOperatorCount, p.afterOperand = 0, true
	top := p.openBrackets[len(p.openBrackets)-1]
	for _, open := range openTokensByClose[token] {
		if top.token == open {
			p.openBrackets = p.openBrackets[:len(p.openBrackets)-1]
			p.depth -= top.totalDepth()
			p.operatorCount -= top.operatorCount
			return
		}
	}
}

// CheckJSON returns errors for JSON that is nested too deeply, and for numbers that are too long. It recognizes
// strings, brackets and numbers only, and does not check the syntax.
func CheckJSON(text []byte, name string) hcl.Diagnostics {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		case c == '{' || c == '[':
			if depth++; depth > Max {
				return depthError(Range(text, name, i, i+1))
			}
		case c == '}' || c == ']':
			depth = max(0, depth-1)
		case c >= '0' && c <= '9':
			start := i
			for i+1 < len(text) && isNumberByte(text[i+1]) {
				i++
			}
			if i-start < maxExponentDigits {
				continue
			}
			if diag := checkNumber(text[start:i+1], Range(text, name, start, i+1)); diag != nil {
				return hcl.Diagnostics{diag}
			}
		}
	}
	return nil
}

func isNumberByte(c byte) bool {
	return c >= '0' && c <= '9' || c == 'e' || c == 'E' || c == '+' || c == '-' || c == '.'
}

// Range returns the source range of text[start:end], which must be on one line.
func Range(text []byte, name string, start, end int) hcl.Range {
	line := 1 + bytes.Count(text[:start], []byte("\n"))
	column := start - bytes.LastIndexByte(text[:start], '\n')
	return hcl.Range{
		Filename: name,
		Start:    hcl.Pos{Line: line, Column: column, Byte: start},
		End:      hcl.Pos{Line: line, Column: column + end - start, Byte: end},
	}
}
