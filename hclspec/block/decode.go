package block

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hcldec"
	hcljson "github.com/hashicorp/hcl/v2/json"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/hclspec/nesting"
)

// Decode decodes a config block into the value that s describes. config is a map from
// encoding/json or from a job file. Each string and key in it is a template, which can use
// vars and a few functions. If vars is nil, variables are not allowed. Decode calls vars
// only if the config may refer to a variable.
//
// The diagnostics are for users (see Messages); their ranges are meaningless. If they
// contain an error, the value is unusable.
func Decode(s *hclspec.Spec, config map[string]any, vars func() map[string]cty.Value) (cty.Value, hcl.Diagnostics) {
	return decode(context.Background(), s, config, func(hcl.Body, hcldec.Spec) map[string]cty.Value {
		if vars == nil {
			return nil
		}
		return vars()
	})
}

// Check returns the errors of a config block that occur for all values of its variables.
// The diagnostics have the same form as those of Decode. If ctx ends, they contain only its
// error.
func Check(ctx context.Context, s *hclspec.Spec, config map[string]any) hcl.Diagnostics {
	_, diags := decode(ctx, s, config, func(body hcl.Body, spec hcldec.Spec) map[string]cty.Value {
		vars := make(map[string]cty.Value)
		for _, variable := range hcldec.Variables(body, spec) {
			vars[variable.RootName()] = cty.DynamicVal
		}
		return vars
	})
	return diags
}

// Reference is a reference to a variable in an argument or block of a config block.
type Reference struct {
	Argument  string // the argument or block of the config block itself, which contains the reference at any depth
	Variable  string // the whole name, with dots between its parts
	IsEnvItem bool   // the reference is env["NAME"] or env.NAME, and Variable is NAME
}

// References returns the references to variables in a config block, in the order of the arguments. It returns none for a block that
// Check cannot read.
func References(config map[string]any) (list []Reference) {
	text, err := json.Marshal(replaceIntegralFloats(config))
	if err != nil {
		return nil
	}
	if refers, diags := checkConfigNesting(text); !refers || diags.HasErrors() {
		return nil
	}
	file, diags := hcljson.Parse(text, "config")
	if diags.HasErrors() {
		return nil
	}
	attributes, _ := file.Body.JustAttributes()
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		for _, traversal := range attributes[name].Expr.Variables() {
			list = append(list, newReference(name, traversal))
		}
	}
	return list
}

func newReference(argument string, traversal hcl.Traversal) Reference {
	parts := []string{traversal.RootName()}
	for _, step := range traversal[1:] {
		switch step := step.(type) {
		case hcl.TraverseAttr:
			parts = append(parts, step.Name)
		case hcl.TraverseIndex:
			if step.Key.Type() == cty.String {
				parts = append(parts, step.Key.AsString())
			}
		}
	}
	if parts[0] == "env" && len(parts) > 1 {
		return Reference{Argument: argument, Variable: strings.Join(parts[1:], "."), IsEnvItem: true}
	}
	return Reference{Argument: argument, Variable: strings.Join(parts, ".")}
}

// CheckPart checks a part of a config block like Check, but ignores missing arguments and
// blocks, because the caller adds them later.
func CheckPart(s *hclspec.Spec, config map[string]any) hcl.Diagnostics {
	return slices.DeleteFunc(Check(context.Background(), s, config), func(d *hcl.Diagnostic) bool {
		noBlock := strings.HasPrefix(d.Summary, "Missing ") && strings.HasSuffix(d.Summary, " block")
		return noBlock || d.Summary == "Missing required argument" || strings.HasPrefix(d.Summary, "Insufficient ")
	})
}

func decode(ctx context.Context, s *hclspec.Spec, config map[string]any, vars func(hcl.Body, hcldec.Spec) map[string]cty.Value) (value cty.Value, diags hcl.Diagnostics) {
	run := &decodeState{ctx: ctx}
	defer func() {
		if run.stopDiag != nil {
			value, diags = cty.DynamicVal, hcl.Diagnostics{run.stopDiag}
		}
	}()
	// hcldec does not check its spec, and panics if the parts of a plugin's spec are
	// inconsistent.
	defer func() {
		if r := recover(); r != nil {
			value, diags = cty.DynamicVal, hcl.Diagnostics{{
				Severity: hcl.DiagError,
				Summary:  "Invalid spec",
				Detail:   fmt.Sprintf("The schema of the plugin does not fit together: %v.", r),
			}}
		}
	}()

	if n := hclspec.CountValues(config); n > hclspec.MaxValues {
		return cty.DynamicVal, hcl.Diagnostics{{
			Severity: hcl.DiagError,
			Summary:  "Config too large",
			Detail:   fmt.Sprintf("A config block can hold %d values at most, and this one holds %d.", hclspec.MaxValues, n),
		}}
	}
	c := compiled(s)
	if c.diags.HasErrors() {
		return cty.DynamicVal, c.diags
	}

	if config == nil {
		config = map[string]any{}
	}
	text, err := json.Marshal(replaceIntegralFloats(config))
	if err != nil {
		return cty.DynamicVal, hcl.Diagnostics{{
			Severity: hcl.DiagError,
			Summary:  "Invalid config",
			Detail:   fmt.Sprintf("The config cannot be read: %v.", err),
		}}
	}
	refers, diags := checkConfigNesting(text)
	if diags.HasErrors() {
		return cty.DynamicVal, diags
	}
	file, diags := hcljson.Parse(text, "config")
	if diags.HasErrors() {
		return cty.DynamicVal, diags
	}
	if err := ctx.Err(); err != nil {
		return cty.DynamicVal, hcl.Diagnostics{contextEndDiag(err)}
	}
	scope := &hcl.EvalContext{Functions: hclFunctions}
	body := &typedBody{file.Body, c.bodyLayout, run}
	if refers {
		scope.Variables = vars(body, c.spec)
	}
	value, diags = hcldec.Decode(body, c.spec, scope)
	for _, d := range diags {
		// Users write arguments and blocks, so messages do not mention JSON object
		// properties.
		if d.Summary == "Extraneous JSON object property" {
			d.Summary = "Invalid label"
		}
	}
	return value, diags
}

// replaceIntegralFloats replaces integral float64 values, which come from JSON, by all their
// decimal digits. encoding/json would write zeros for the last digits of large ones.
func replaceIntegralFloats(v any) any {
	switch v := v.(type) {
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1e21 {
			return json.Number(strconv.FormatFloat(v, 'f', 0, 64))
		}
	case map[string]any:
		if v == nil {
			return nil
		}
		m := make(map[string]any, len(v))
		for key, elem := range v {
			m[key] = replaceIntegralFloats(elem)
		}
		return m
	case []any:
		if v == nil {
			return nil
		}
		list := make([]any, len(v))
		for i, elem := range v {
			list[i] = replaceIntegralFloats(elem)
		}
		return list
	case []map[string]any:
		if v == nil {
			return nil
		}
		list := make([]any, len(v))
		for i, elem := range v {
			list[i] = replaceIntegralFloats(elem)
		}
		return list
	}
	return v
}

// Messages returns the text of each error in diags, in the form "Summary: detail".
func Messages(diags hcl.Diagnostics) []string {
	var messages []string
	for _, d := range diags {
		if d.Severity == hcl.DiagError {
			messages = append(messages, d.Summary+": "+d.Detail)
		}
	}
	return messages
}

// hclFunctions are the functions that a config block can call.
var hclFunctions = map[string]function.Function{
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

// jsonDecodeFunc is the function jsondecode with a check of the nesting depth, because the
// library's function recurses for each level.
var jsonDecodeFunc = function.New(&function.Spec{
	Params: stdlib.JSONDecodeFunc.Params(),
	Type: func(args []cty.Value) (cty.Type, error) {
		if text := args[0]; text.IsKnown() && !text.IsNull() {
			if diags := nesting.CheckJSON([]byte(text.AsString()), "argument"); diags.HasErrors() {
				return cty.NilType, errors.New(Messages(diags)[0])
			}
		}
		return stdlib.JSONDecodeFunc.ReturnTypeForValues(args)
	},
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		return stdlib.JSONDecodeFunc.Call(args)
	},
})
