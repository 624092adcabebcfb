package nesting

import (
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
)

func TestNestingChecks(t *testing.T) {
	many := strings.Repeat
	template := func(text []byte, name string) hcl.Diagnostics {
		return CheckTemplate(text, name, hcl.Pos{Line: 7, Column: 1})
	}
	tests := map[string]struct {
		scan       func(text []byte, name string) hcl.Diagnostics
		text, want string // error text; empty means no error
	}{
		"as many brackets as may be":               {CheckExpression, many("[", Max), ""},
		"one more":                                 {CheckExpression, many("[", Max+1), "in:1,201-202: Nesting too deep"},
		"line ends end the arguments of a file":    {CheckConfig, many("a = b ? c : d\n", 2*Max), ""},
		"but nothing in an expression":             {CheckExpression, many("b ? c :\n", 2*Max), "in:201,3-4: Nesting too deep"},
		"a chain":                                  {CheckConfig, "a = 1" + many("+1", MaxOperators), ""},
		"one that is longer":                       {CheckConfig, "a = 1" + many("+1", MaxOperators+1), "in:1,4006-4007: Expression too long"},
		"one that goes on in brackets":             {CheckExpression, many(many("1+", 100)+"(", 100), "in:1,4022-4023: Expression too long"},
		"chains side by side":                      {CheckExpression, "[" + many("1"+many("+1", 100)+",\n", 100) + "]", ""},
		"chains side by side in brackets of a sum": {CheckExpression, many("["+many("1+", 100)+"1] + ", 100), ""},
		"texts side by side":                       {template, many("${a ? b : c}", 2*Max), ""},
		"directives that end":                      {template, many("%{ if a }b%{ endif }", 2*Max), ""},
		"directives that do not":                   {template, many("%{ if a }b", 2*Max), "in:7,1991-1993: Nesting too deep"},
		"a number of many digits":                  {template, "${1e-999 + 1e1000}", "in:7,12-18: Number out of range"},
		"JSON":                                     {CheckJSON, "[\n" + many("{", Max), "in:2,200-201: Nesting too deep"},
		"brackets in a text of JSON":               {CheckJSON, `"` + many("[", 2*Max) + `\"[["`, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := ""
			if diags := test.scan([]byte(test.text), "in"); len(diags) > 0 {
				got = diags[0].Subject.String() + ": " + diags[0].Summary
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
