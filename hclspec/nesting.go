package hclspec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// The parser and the evaluator of HCL recurse without measure, and a Go
// program does not survive the end of its stack. So all text is scanned for
// what would recurse before it is parsed: what opens something, what stands in
// front of an operand, and long chains, whose tree is as deep as they are long.
const (
	maxNesting  = 200
	maxTokens   = 20000 // inside one interpolation
	maxExponent = 1000  // a number is written out in full when it becomes text
)

// checkConfig refuses a config that would hurt whoever decodes it, and tells whether
// any text of it could refer to a variable.
func checkConfig(config []byte) (refers bool, err error) {
	dec := json.NewDecoder(bytes.NewReader(config))
	dec.UseNumber()
	depth := 0
	for {
		token, err := dec.Token()
		if err != nil {
			return refers, nil // its end; the decoder says what is wrong with it
		}
		switch t := token.(type) {
		case json.Delim:
			if t == ']' || t == '}' {
				depth--
			} else if depth++; depth > maxNesting {
				return false, fmt.Errorf("it is nested deeper than %d levels", maxNesting)
			}
		case json.Number:
			if err := checkNumber(t.String()); err != nil {
				return false, err
			}
		case string:
			if !isTemplate(t) {
				continue
			}
			refers = true
			if err := checkTemplate(t); err != nil {
				return false, err
			}
		}
	}
}

func isTemplate(text string) bool {
	return strings.Contains(text, "${") || strings.Contains(text, "%{")
}

func checkTemplate(text string) error {
	tokens, _ := hclsyntax.LexTemplate([]byte(text), "", hcl.InitialPos)
	return checkNesting(tokens)
}

func checkNesting(tokens hclsyntax.Tokens) error {
	var (
		open     []int // what each open bracket adds to depth
		depth    int
		controls int // %{ if } and %{ for } without their end
		prefix   int // operators in a row
		length   int // tokens since the outermost bracket
		keyword  bool
	)
	for _, t := range tokens {
		if len(open) > 0 {
			length++
		} else {
			length = 0
		}
		switch t.Type {
		case hclsyntax.TokenOBrace, hclsyntax.TokenOBrack, hclsyntax.TokenOParen, hclsyntax.TokenOQuote,
			hclsyntax.TokenOHeredoc, hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl:
			open = append(open, 1+prefix)
			depth += 1 + prefix
		case hclsyntax.TokenCBrace, hclsyntax.TokenCBrack, hclsyntax.TokenCParen, hclsyntax.TokenCQuote,
			hclsyntax.TokenCHeredoc, hclsyntax.TokenTemplateSeqEnd:
			if len(open) > 0 {
				depth -= open[len(open)-1]
				open = open[:len(open)-1]
			}
		case hclsyntax.TokenQuestion:
			depth++
			if len(open) > 0 {
				open[len(open)-1]++
			}
		case hclsyntax.TokenIdent:
			if keyword {
				switch string(t.Bytes) {
				case "if", "for":
					controls++
				case "endif", "endfor":
					controls--
				}
			}
		case hclsyntax.TokenNumberLit:
			if err := checkNumber(string(t.Bytes)); err != nil {
				return err
			}
		}
		keyword = t.Type == hclsyntax.TokenTemplateControl
		if t.Type == hclsyntax.TokenBang || t.Type == hclsyntax.TokenMinus {
			prefix++
		} else {
			prefix = 0
		}
		if depth+controls+prefix > maxNesting {
			return fmt.Errorf("it holds an expression that is nested deeper than %d levels", maxNesting)
		}
		if length > maxTokens {
			return fmt.Errorf("it holds an expression of more than %d parts", maxTokens)
		}
	}
	return nil
}

func checkNumber(text string) error {
	at := strings.IndexAny(text, "eE")
	if at < 0 {
		return nil
	}
	exponent, err := strconv.Atoi(text[at+1:])
	if err != nil || exponent > maxExponent || exponent < -maxExponent {
		return fmt.Errorf("the number %.20s is out of range", text)
	}
	return nil
}
