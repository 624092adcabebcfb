package nesting

import (
	"bytes"
	"fmt"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

const (
	// Max is how deep brackets, templates, operators and blocks may nest.
	Max = 200
	// MaxOperators bounds the depth of an expression tree where no bracket shows
	// it: 1 + 1 + 1 + … is a tree as deep as it is long, and evaluation recurses.
	MaxOperators = 2000
	// maxNumber bounds the length of a number, maxExponent the digits of its
	// exponent: 1e999999999 is a gigabyte of text when it becomes a string. A
	// float64 has three.
	maxNumber   = 4096
	maxExponent = 3
)

func refused(summary, detail string, rng hcl.Range) *hcl.Diagnostic {
	return &hcl.Diagnostic{Severity: hcl.DiagError, Summary: summary, Detail: detail, Subject: rng.Ptr()}
}

func tooDeep(rng hcl.Range) hcl.Diagnostics {
	return hcl.Diagnostics{refused("Nesting too deep",
		fmt.Sprintf("Brackets, templates, operators and blocks may be nested %d levels deep at most.", Max), rng)}
}

// TooLong refuses an expression whose tree turned out deeper than its operators
// let expect.
func TooLong(rng hcl.Range) *hcl.Diagnostic {
	return refused("Expression too long", fmt.Sprintf("An expression may chain %d operators at most.", MaxOperators), rng)
}

// checkNumber refuses a number that is longer than any value can be used.
func checkNumber(text []byte, rng hcl.Range) *hcl.Diagnostic {
	digits := 0
	if e := bytes.IndexAny(text, "eE"); e >= 0 {
		digits = len(bytes.TrimLeft(text[e+1:], "+-0"))
	}
	if len(text) <= maxNumber && digits <= maxExponent {
		return nil
	}
	return refused("Number out of range", fmt.Sprintf("A number may have %d characters, and %d digits in its exponent, at most.", maxNumber, maxExponent), rng)
}

// frame is one open bracket, quote, heredoc or template sequence.
type frame struct {
	open hclsyntax.TokenType
	// unary counts the operators in front of the bracket: !(-(!(…
	unary int
	// chain counts what recurses to the right without a bracket: a ? b : c ? …,
	// x[*][*]…; it starts anew with each item of a list or a body.
	chain int
	// operators counts what makes the tree of one expression deeper without
	// making the parser recurse: 1 + 1 + 1 + …, x[a][b]…
	operators int
	// directives counts open %{ if } and %{ for } in a template.
	directives int
	// loop is a { for … } expression: line ends in it end nothing.
	loop bool
}

func (f *frame) depth() int { return 1 + f.unary + f.chain + f.directives }

var closers = map[hclsyntax.TokenType][]hclsyntax.TokenType{
	hclsyntax.TokenCBrace:         {hclsyntax.TokenOBrace},
	hclsyntax.TokenCBrack:         {hclsyntax.TokenOBrack},
	hclsyntax.TokenCParen:         {hclsyntax.TokenOParen},
	hclsyntax.TokenCQuote:         {hclsyntax.TokenOQuote},
	hclsyntax.TokenCHeredoc:       {hclsyntax.TokenOHeredoc},
	hclsyntax.TokenTemplateSeqEnd: {hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl},
}

// nesting follows the tokens of a text and knows how deep the parser would
// have to recurse. Where the text is not well formed it errs on the deep side.
type nesting struct {
	frames    []frame
	depth     int
	operators int // of all frames: an operand in brackets goes on where they stand
	unary     int
	// operand is true after something that a minus can subtract from.
	operand bool
}

// firstScan is how much of a text is scanned by itself, before the rest costs
// anything: what nests too deep mostly does so from the start.
const firstScan = 64 << 10

type lexer func(text []byte, name string, start hcl.Pos) (hclsyntax.Tokens, hcl.Diagnostics)

// Config scans a file of arguments and blocks.
func Config(text []byte, name string) hcl.Diagnostics {
	return scan(hclsyntax.LexConfig, frame{}, text, name, hcl.InitialPos)
}

// Expression scans the text of one expression.
func Expression(text []byte, name string) hcl.Diagnostics {
	return scan(hclsyntax.LexExpression, frame{open: whole}, text, name, hcl.InitialPos)
}

// Template scans what would stand between quotes. start is its place in the text
// that is called name.
func Template(text []byte, name string, start hcl.Pos) hcl.Diagnostics {
	return scan(hclsyntax.LexTemplate, frame{open: whole}, text, name, start)
}

// whole opens a text that is one item: a line end in it ends nothing.
const whole = hclsyntax.TokenEOF

func scan(lex lexer, root frame, text []byte, name string, start hcl.Pos) hcl.Diagnostics {
	if len(text) > firstScan {
		tokens, _ := lex(text[:firstScan], name, start)
		if diags := scanTokens(root, tokens); diags.HasErrors() {
			return diags
		}
	}
	tokens, _ := lex(text, name, start)
	return scanTokens(root, tokens)
}

func scanTokens(root frame, tokens hclsyntax.Tokens) hcl.Diagnostics {
	n := nesting{frames: []frame{root}}
	for i, token := range tokens {
		if token.Type == hclsyntax.TokenNumberLit {
			if diag := checkNumber(token.Bytes, token.Range); diag != nil {
				return hcl.Diagnostics{diag}
			}
		}
		n.token(token, tokens[i+1:])
		if n.depth+n.unary > Max {
			return tooDeep(token.Range)
		}
		if n.operators > MaxOperators {
			return hcl.Diagnostics{TooLong(token.Range)}
		}
	}
	return nil
}

// token counts one token; rest are those after it.
func (n *nesting) token(token hclsyntax.Token, rest hclsyntax.Tokens) {
	top := &n.frames[len(n.frames)-1]
	switch token.Type {
	case hclsyntax.TokenOBrace, hclsyntax.TokenOBrack, hclsyntax.TokenOParen,
		hclsyntax.TokenOQuote, hclsyntax.TokenOHeredoc, hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl:
		n.open(token, rest)
	case hclsyntax.TokenCBrace, hclsyntax.TokenCBrack, hclsyntax.TokenCParen,
		hclsyntax.TokenCQuote, hclsyntax.TokenCHeredoc, hclsyntax.TokenTemplateSeqEnd:
		n.close(token.Type)
	case hclsyntax.TokenBang:
		n.unary++
		n.operand = false
	case hclsyntax.TokenMinus:
		if !n.operand {
			n.unary++
			return
		}
		n.operator(top, 1)
		n.unary, n.operand = 0, false
	case hclsyntax.TokenPlus, hclsyntax.TokenStar, hclsyntax.TokenSlash, hclsyntax.TokenPercent,
		hclsyntax.TokenEqualOp, hclsyntax.TokenNotEqual, hclsyntax.TokenLessThan, hclsyntax.TokenLessThanEq,
		hclsyntax.TokenGreaterThan, hclsyntax.TokenGreaterThanEq, hclsyntax.TokenAnd, hclsyntax.TokenOr:
		n.operator(top, 1)
		n.unary, n.operand = 0, false
	case hclsyntax.TokenQuestion, hclsyntax.TokenDoubleColon:
		n.chain(top, 1)
		n.unary, n.operand = 0, false
	case hclsyntax.TokenComma:
		n.item(top)
	case hclsyntax.TokenNewline:
		if ends := top.open == 0 || top.open == hclsyntax.TokenOBrace && !top.loop; ends {
			n.item(top)
		}
	case hclsyntax.TokenComment:
		// The parser does not see it.
	case hclsyntax.TokenIdent, hclsyntax.TokenNumberLit:
		n.unary, n.operand = 0, true
	default:
		n.unary, n.operand = 0, false
	}
}

func (n *nesting) chain(f *frame, by int) {
	f.chain += by
	n.depth += by
}

func (n *nesting) operator(f *frame, by int) {
	f.operators += by
	n.operators += by
}

// item starts a new item of a list or a body.
func (n *nesting) item(f *frame) {
	n.chain(f, -f.chain)
	n.operator(f, -f.operators)
	n.unary, n.operand = 0, false
}

func (n *nesting) open(token hclsyntax.Token, rest hclsyntax.Tokens) {
	top := &n.frames[len(n.frames)-1]
	next := firstWord(rest)
	if token.Type == hclsyntax.TokenOBrack && next.Type == hclsyntax.TokenStar {
		n.chain(top, 1)
	}
	if token.Type == hclsyntax.TokenOBrack && n.operand {
		n.operator(top, 1)
	}
	if token.Type == hclsyntax.TokenTemplateControl {
		n.directive(top, string(next.Bytes))
	}
	f := frame{open: token.Type, unary: n.unary, loop: string(next.Bytes) == "for"}
	n.frames = append(n.frames, f)
	n.depth += f.depth()
	n.unary, n.operand = 0, false
}

// firstWord is the first token that is neither a line end nor a comment.
func firstWord(tokens hclsyntax.Tokens) hclsyntax.Token {
	for _, token := range tokens {
		if token.Type != hclsyntax.TokenNewline && token.Type != hclsyntax.TokenComment {
			return token
		}
	}
	return hclsyntax.Token{}
}

// directive counts %{ if } and %{ for } until they end.
func (n *nesting) directive(f *frame, word string) {
	by := 0
	switch word {
	case "if", "for":
		by = 1
	case "endif", "endfor":
		by = -min(1, f.directives)
	}
	f.directives += by
	n.depth += by
}

// close ends the innermost frame if the token fits it. One that does not fit
// ends nothing: the text is refused anyhow, and the count stays on the safe
// side.
func (n *nesting) close(token hclsyntax.TokenType) {
	n.unary, n.operand = 0, true
	top := n.frames[len(n.frames)-1]
	for _, open := range closers[token] {
		if top.open == open {
			n.frames = n.frames[:len(n.frames)-1]
			n.depth -= top.depth()
			n.operators -= top.operators
			return
		}
	}
}

// JSON refuses JSON that nests too deep, and numbers out of range. It
// knows just enough of the syntax for that: strings, brackets and numbers.
func JSON(text []byte, name string) hcl.Diagnostics {
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
				return tooDeep(Range(text, name, i, i+1))
			}
		case c == '}' || c == ']':
			depth = max(0, depth-1)
		case c >= '0' && c <= '9':
			start := i
			for i+1 < len(text) && isNumberByte(text[i+1]) {
				i++
			}
			if i-start < maxExponent {
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

// Range is the range of text[start:end], which lies in one line.
func Range(text []byte, name string, start, end int) hcl.Range {
	line := 1 + bytes.Count(text[:start], []byte("\n"))
	column := start - bytes.LastIndexByte(text[:start], '\n')
	return hcl.Range{
		Filename: name,
		Start:    hcl.Pos{Line: line, Column: column, Byte: start},
		End:      hcl.Pos{Line: line, Column: column + end - start, Byte: end},
	}
}
