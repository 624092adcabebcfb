package hclspec

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hcldec"
	hcljson "github.com/hashicorp/hcl/v2/json"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
)

// Decode reads a config block, which is a map as encoding/json or a job file
// makes it, into the value that s describes. Every string and every key in it
// is a template and sees vars and a few functions; nil vars mean that variables
// are not allowed at all.
//
// The diagnostics are what a user reads (Messages); their ranges mean nothing.
// With an error among them the value is unusable.
func (s *Spec) Decode(config map[string]any, vars map[string]cty.Value) (value cty.Value, diags hcl.Diagnostics) {
	// hcldec takes its spec from a programmer and panics on one whose parts do
	// not fit together. This one comes from a plugin.
	defer func() {
		if r := recover(); r != nil {
			value, diags = cty.DynamicVal, hcl.Diagnostics{{
				Severity: hcl.DiagError,
				Summary:  "Invalid spec",
				Detail:   fmt.Sprintf("The schema of the plugin does not fit together: %v.", r),
			}}
		}
	}()

	c := &compiler{}
	spec := c.compile(s, "config", "")
	if c.diags.HasErrors() {
		return cty.DynamicVal, c.diags
	}

	if config == nil {
		config = map[string]any{}
	}
	text, err := json.Marshal(config)
	if err == nil {
		err = checkConfig(text)
	}
	if err != nil {
		return cty.DynamicVal, hcl.Diagnostics{{
			Severity: hcl.DiagError,
			Summary:  "Invalid config",
			Detail:   fmt.Sprintf("The config cannot be read: %v.", err),
		}}
	}
	file, diags := hcljson.Parse(text, "config")
	if diags.HasErrors() {
		return cty.DynamicVal, diags
	}
	value, diags = hcldec.Decode(file.Body, spec, &hcl.EvalContext{Variables: vars, Functions: functions})
	for _, d := range diags {
		// Nobody wrote a JSON object property: it was an argument or a block.
		if d.Summary == "Extraneous JSON object property" {
			d.Summary = "Invalid label"
		}
	}
	return value, diags
}

// Messages renders the errors among diags as users see them: "Summary: detail".
func Messages(diags hcl.Diagnostics) []string {
	var messages []string
	for _, d := range diags {
		if d.Severity == hcl.DiagError {
			messages = append(messages, d.Summary+": "+d.Detail)
		}
	}
	return messages
}

// functions is what a config block may call.
var functions = map[string]function.Function{
	"abs":        stdlib.AbsoluteFunc,
	"coalesce":   stdlib.CoalesceFunc,
	"concat":     stdlib.ConcatFunc,
	"hasindex":   stdlib.HasIndexFunc,
	"int":        stdlib.IntFunc,
	"jsondecode": jsonDecodeFunc,
	"jsonencode": stdlib.JSONEncodeFunc,
	"length":     stdlib.LengthFunc,
	"lower":      stdlib.LowerFunc,
	"max":        stdlib.MaxFunc,
	"min":        stdlib.MinFunc,
	"reverse":    stdlib.ReverseFunc,
	"strlen":     stdlib.StrlenFunc,
	"substr":     stdlib.SubstrFunc,
	"upper":      stdlib.UpperFunc,
}

// jsonDecodeFunc is the library's, which recurses as deep as the text says.
var jsonDecodeFunc = function.New(&function.Spec{
	Params: stdlib.JSONDecodeFunc.Params(),
	Type: func(args []cty.Value) (cty.Type, error) {
		if text := args[0]; text.IsKnown() && !text.IsNull() && nestedJSON(text.AsString()) {
			return cty.NilType, errors.New("the text is nested too deeply")
		}
		return stdlib.JSONDecodeFunc.ReturnTypeForValues(args)
	},
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		return stdlib.JSONDecodeFunc.Call(args)
	},
})

// nestedJSON reports whether text is nested too deeply. It may see brackets
// where there are none, in strings.
func nestedJSON(text string) bool {
	depth := 0
	for _, b := range []byte(text) {
		switch b {
		case '[', '{':
			if depth++; depth > maxNesting {
				return true
			}
		case ']', '}':
			depth--
		}
	}
	return false
}
