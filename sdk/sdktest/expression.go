package sdktest

import (
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// expression is an HCL expression of a schema: the type of an argument, or a constant. Only the syntax that schemas use is
// known, so that the tests of a plugin do not need the modules of HCL.
type expression struct {
	kind  expressionKind
	word  string // of a wordExpression or callExpression
	value any    // string or *big.Float of a constantExpression
	keys  []string
	// hasQuotedKey means that a key is written as a string, which a type must not have.
	hasQuotedKey bool
	items        []expression // elements, values of keys, or arguments
}

type expressionKind uint8

const (
	constantExpression expressionKind = iota // string or number
	wordExpression                           // type, true, false or null
	callExpression
	listExpression
	objectExpression
)

// numberPrecision is the precision of HCL's numbers in bits.
const numberPrecision = 512

var errUnknownSyntax = errors.New("this syntax of HCL is not known to sdktest; a constant has strings without templates, numbers, true, false, null, lists and objects")

func parseExpression(text string) (expression, error) {
	p := &expressionParser{rest: text}
	e, err := p.parse(0)
	if p.skipSpace(true); err == nil && p.rest != "" {
		err = errUnknownSyntax
	}
	if err != nil {
		return expression{}, fmt.Errorf("expression %q: %w", text, err)
	}
	return e, nil
}

type expressionParser struct{ rest string }

// skipSpace skips spaces and comments, and line ends if lines is set.
func (p *expressionParser) skipSpace(lines bool) {
	for {
		trimmed := strings.TrimLeft(p.rest, " \t")
		if lines {
			trimmed = strings.TrimLeft(trimmed, " \t\r\n")
		}
		switch {
		case strings.HasPrefix(trimmed, "#"), strings.HasPrefix(trimmed, "//"):
			if i := strings.IndexByte(trimmed, '\n'); i >= 0 {
				trimmed = trimmed[i:]
			} else {
				trimmed = ""
			}
		case strings.HasPrefix(trimmed, "/*"):
			_, trimmed, _ = strings.Cut(trimmed, "*/")
		}
		if trimmed == p.rest {
			return
		}
		p.rest = trimmed
	}
}

// accept skips the token if it comes next, after spaces and line ends.
func (p *expressionParser) accept(token string) bool {
	p.skipSpace(true)
	rest, ok := strings.CutPrefix(p.rest, token)
	p.rest = rest
	return ok
}

// maxExpressionDepth is the maximum nesting of lists and objects.
const maxExpressionDepth = 200

func (p *expressionParser) parse(depth int) (expression, error) {
	if depth > maxExpressionDepth {
		return expression{}, errors.New("it is nested too deeply")
	}
	switch {
	case p.accept("["):
		items, err := p.parseItems("]", depth)
		return expression{kind: listExpression, items: items}, err
	case p.accept("{"):
		return p.parseObject(depth)
	case strings.HasPrefix(p.rest, `"`):
		text, err := p.parseString()
		return expression{value: text}, err
	}
	if p.rest != "" && (p.rest[0] == '-' || p.rest[0] >= '0' && p.rest[0] <= '9') {
		return p.parseNumber()
	}
	word := p.parseWord()
	switch {
	case word == "":
		return expression{}, errUnknownSyntax
	case strings.HasPrefix(p.rest, "("):
		p.rest = p.rest[1:]
		items, err := p.parseItems(")", depth)
		return expression{kind: callExpression, word: word, items: items}, err
	}
	return expression{kind: wordExpression, word: word}, nil
}

func (p *expressionParser) parseItems(end string, depth int) (items []expression, err error) {
	for !p.accept(end) {
		item, err := p.parse(depth + 1)
		if err != nil {
			return nil, err
		}
		items = append(items, item)
		if !p.accept(",") && !strings.HasPrefix(p.rest, end) {
			return nil, errUnknownSyntax
		}
	}
	return items, nil
}

func (p *expressionParser) parseObject(depth int) (expression, error) {
	object := expression{kind: objectExpression}
	for !p.accept("}") {
		var key string
		var err error
		switch {
		case strings.HasPrefix(p.rest, `"`):
			object.hasQuotedKey = true
			key, err = p.parseString()
		default:
			if key = p.parseWord(); key == "" {
				err = errUnknownSyntax
			}
		}
		if err == nil && !p.accept("=") && !p.accept(":") {
			err = errUnknownSyntax
		}
		if err != nil {
			return object, err
		}
		value, err := p.parse(depth + 1)
		if err != nil {
			return object, err
		}
		object.keys, object.items = append(object.keys, key), append(object.items, value)
		p.skipSpace(false)
		if !strings.HasPrefix(p.rest, "\n") && !strings.HasPrefix(p.rest, "\r\n") && !p.accept(",") && !strings.HasPrefix(p.rest, "}") {
			return object, errUnknownSyntax
		}
	}
	return object, nil
}

func (p *expressionParser) parseWord() string {
	end := strings.IndexFunc(p.rest, func(r rune) bool { return r != '_' && r != '-' && !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	if end < 0 {
		end = len(p.rest)
	}
	word := p.rest[:end]
	p.rest = p.rest[end:]
	return word
}

func (p *expressionParser) parseNumber() (expression, error) {
	end := 1
	for end < len(p.rest) && (strings.IndexByte("0123456789.eE", p.rest[end]) >= 0 || strings.IndexByte("+-", p.rest[end]) >= 0 && strings.IndexByte("eE", p.rest[end-1]) >= 0) {
		end++
	}
	number, err := parseNumber(p.rest[:end])
	p.rest = p.rest[end:]
	return expression{value: number}, err
}

func parseNumber(text string) (*big.Float, error) {
	const maxNumberLength = 4096
	if mantissa, exponent, _ := strings.Cut(strings.ToLower(text), "e"); len(mantissa) > maxNumberLength || len(strings.TrimLeft(exponent, "+-0")) > 3 {
		return nil, errors.New("a number is out of range")
	}
	number, _, err := big.ParseFloat(text, 10, numberPrecision, big.ToNearestEven)
	if err != nil {
		return nil, fmt.Errorf("%q is no number", text)
	}
	return number, nil
}

func (p *expressionParser) parseString() (string, error) {
	var b strings.Builder
	for rest := p.rest[1:]; rest != ""; {
		switch {
		case rest[0] == '"':
			p.rest = rest[1:]
			return unescapeTemplate(b.String())
		case rest[0] == '\n':
			return "", errors.New("a string has no end")
		case rest[0] != '\\':
			r, size := utf8.DecodeRuneInString(rest)
			b.WriteRune(r)
			rest = rest[size:]
			continue
		}
		r, _, tail, err := strconv.UnquoteChar(rest, '"')
		if err != nil || !strings.Contains(`nrt"\uU`, rest[1:2]) {
			return "", errors.New("a string has an escape sequence that HCL does not have")
		}
		b.WriteRune(r)
		rest = tail
	}
	return "", errors.New("a string has no end")
}

// unescapeTemplate returns the text of a string of HCL that is no template.
func unescapeTemplate(text string) (string, error) {
	for _, mark := range []string{"${", "%{"} {
		if strings.Contains(strings.ReplaceAll(text, mark[:1]+mark, ""), mark) {
			return "", fmt.Errorf("%q is a template, which sdktest does not evaluate; write %s for %s", text, mark[:1]+mark, mark)
		}
		text = strings.ReplaceAll(text, mark[:1]+mark, mark)
	}
	return text, nil
}

// constant returns the value of an expression without types: nil, bool, string, *big.Float, []any or map[string]any.
func (e expression) constant() (any, error) {
	switch e.kind {
	case constantExpression:
		return e.value, nil
	case listExpression:
		list := make([]any, len(e.items))
		for i, item := range e.items {
			var err error
			if list[i], err = item.constant(); err != nil {
				return nil, err
			}
		}
		return list, nil
	case objectExpression:
		object := make(map[string]any, len(e.items))
		for i, item := range e.items {
			value, err := item.constant()
			if err != nil {
				return nil, err
			}
			object[e.keys[i]] = value
		}
		return object, nil
	case wordExpression:
		switch e.word {
		case "true", "false":
			return e.word == "true", nil
		case "null":
			return nil, nil
		}
	}
	return nil, fmt.Errorf("%s: %w", e.word, errUnknownSyntax)
}
