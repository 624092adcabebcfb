package jobspec

import (
	"encoding/base64"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/hashicorp/go-cty-funcs/cidr"
	"github.com/hashicorp/go-cty-funcs/crypto"
	"github.com/hashicorp/go-cty-funcs/encoding"
	"github.com/hashicorp/go-cty-funcs/filesystem"
	"github.com/hashicorp/go-cty-funcs/uuid"
	"github.com/hashicorp/hcl/v2/ext/tryfunc"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/mitchellh/go-homedir"
	ctyyaml "github.com/zclconf/go-cty-yaml"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"

	"github.com/nomad-lite/nomad-lite/runtime/job/fileaccess"
)

// pureFunctions are the functions that depend only on their arguments (and, for some, on randomness).
var pureFunctions = map[string]function.Function{
	"abs":             stdlib.AbsoluteFunc,
	"base64decode":    encoding.Base64DecodeFunc,
	"base64encode":    encoding.Base64EncodeFunc,
	"bcrypt":          crypto.BcryptFunc,
	"can":             tryfunc.CanFunc,
	"ceil":            stdlib.CeilFunc,
	"chomp":           stdlib.ChompFunc,
	"chunklist":       stdlib.ChunklistFunc,
	"cidrhost":        cidr.HostFunc,
	"cidrnetmask":     cidr.NetmaskFunc,
	"cidrsubnet":      cidr.SubnetFunc,
	"cidrsubnets":     cidr.SubnetsFunc,
	"coalesce":        stdlib.CoalesceFunc,
	"coalescelist":    stdlib.CoalesceListFunc,
	"compact":         stdlib.CompactFunc,
	"concat":          stdlib.ConcatFunc,
	"contains":        stdlib.ContainsFunc,
	"convert":         typeexpr.ConvertFunc,
	"csvdecode":       stdlib.CSVDecodeFunc,
	"distinct":        stdlib.DistinctFunc,
	"element":         stdlib.ElementFunc,
	"flatten":         stdlib.FlattenFunc,
	"floor":           stdlib.FloorFunc,
	"format":          stdlib.FormatFunc,
	"formatdate":      stdlib.FormatDateFunc,
	"formatlist":      stdlib.FormatListFunc,
	"indent":          stdlib.IndentFunc,
	"index":           stdlib.IndexFunc,
	"join":            stdlib.JoinFunc,
	"jsondecode":      stdlib.JSONDecodeFunc,
	"jsonencode":      stdlib.JSONEncodeFunc,
	"keys":            stdlib.KeysFunc,
	"length":          stdlib.LengthFunc,
	"log":             stdlib.LogFunc,
	"lookup":          stdlib.LookupFunc,
	"lower":           stdlib.LowerFunc,
	"max":             stdlib.MaxFunc,
	"md5":             crypto.Md5Func,
	"merge":           stdlib.MergeFunc,
	"min":             stdlib.MinFunc,
	"parseint":        stdlib.ParseIntFunc,
	"pow":             stdlib.PowFunc,
	"range":           stdlib.RangeFunc,
	"regex_replace":   stdlib.RegexReplaceFunc,
	"replace":         stdlib.ReplaceFunc,
	"reverse":         stdlib.ReverseFunc,
	"rsadecrypt":      crypto.RsaDecryptFunc,
	"setintersection": stdlib.SetIntersectionFunc,
	"setproduct":      stdlib.SetProductFunc,
	"setunion":        stdlib.SetUnionFunc,
	"sha1":            crypto.Sha1Func,
	"sha256":          crypto.Sha256Func,
	"sha512":          crypto.Sha512Func,
	"signum":          stdlib.SignumFunc,
	"slice":           stdlib.SliceFunc,
	"sort":            stdlib.SortFunc,
	"split":           stdlib.SplitFunc,
	"strlen":          stdlib.StrlenFunc,
	"strrev":          stdlib.ReverseFunc,
	"substr":          stdlib.SubstrFunc,
	"timeadd":         stdlib.TimeAddFunc,
	"title":           stdlib.TitleFunc,
	"trim":            stdlib.TrimFunc,
	"trimprefix":      stdlib.TrimPrefixFunc,
	"trimspace":       stdlib.TrimSpaceFunc,
	"trimsuffix":      stdlib.TrimSuffixFunc,
	"try":             tryfunc.TryFunc,
	"upper":           stdlib.UpperFunc,
	"urlencode":       encoding.URLEncodeFunc,
	"uuidv4":          uuid.V4Func,
	"uuidv5":          uuid.V5Func,
	"values":          stdlib.ValuesFunc,
	"yamldecode":      ctyyaml.YAMLDecodeFunc,
	"yamlencode":      ctyyaml.YAMLEncodeFunc,
	"zipmap":          stdlib.ZipmapFunc,
}

// pathFunctions are the functions whose results depend on the working directory or the home directory, but that read no
// file.
var pathFunctions = map[string]function.Function{
	"abspath":    filesystem.AbsPathFunc,
	"basename":   filesystem.BasenameFunc,
	"dirname":    filesystem.DirnameFunc,
	"pathexpand": filesystem.PathExpandFunc,
}

//lint:ignore ST1005 Nomad's text
var errFileFunctionDisabled = errors.New("filesystem function disabled.")

// functionTable returns the functions for one evaluation. If files is nil, functions that depend on the file system are
// disabled. It calls onFileRead with each path that a function reads or looks up.
func functionTable(budget *evaluationBudget, files *fileaccess.Reader, onFileRead func(path string)) map[string]function.Function {
	table := make(map[string]function.Function, len(pureFunctions)+len(pathFunctions)+4)
	add := func(functions map[string]function.Function, enabled bool) {
		for name, f := range functions {
			if enabled {
				table[name] = withCheckedAndChargedArgs(name, f, budget)
			} else {
				table[name] = disabledFileFunction(f)
			}
		}
	}
	add(pureFunctions, true)
	add(pathFunctions, files != nil)
	add(fileFunctions(files, onFileRead), files != nil)
	return table
}

// fileFunctions returns the functions that read the file system. Paths are relative to the working directory, as in
// Nomad.
func fileFunctions(files *fileaccess.Reader, onFileRead func(path string)) map[string]function.Function {
	return map[string]function.Function{
		"file": newPathFunction(cty.String, onFileRead, func(path string) (cty.Value, error) {
			content, err := files.ReadFile(path, MaxTextSize)
			if err == nil && !utf8.Valid(content) {
				err = fmt.Errorf("contents of %s are not valid UTF-8; use the filebase64 function to obtain the Base64 encoded contents", path)
			}
			return cty.StringVal(string(content)), err
		}),
		"filebase64": newPathFunction(cty.String, onFileRead, func(path string) (cty.Value, error) {
			content, err := files.ReadFile(path, MaxTextSize)
			return cty.StringVal(base64.StdEncoding.EncodeToString(content)), err
		}),
		"fileexists": newPathFunction(cty.Bool, onFileRead, func(path string) (cty.Value, error) {
			exists, err := files.Exists(path)
			return cty.BoolVal(exists), err
		}),
		"fileset": function.New(&function.Spec{
			Params: []function.Parameter{{Name: "path", Type: cty.String}, {Name: "pattern", Type: cty.String}},
			Type:   function.StaticReturnType(cty.Set(cty.String)),
			Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
				matches, err := files.Glob(args[0].AsString(), args[1].AsString())
				if err != nil || len(matches) == 0 {
					return cty.SetValEmpty(cty.String), err
				}
				values := make([]cty.Value, len(matches))
				for i, match := range matches {
					values[i] = cty.StringVal(match)
				}
				return cty.SetVal(values), nil
			},
		}),
	}
}

// newPathFunction returns a function whose argument is the path of a file, which can start with ~. It calls onFileRead
// with the path before it calls read.
func newPathFunction(result cty.Type, onFileRead func(path string), read func(path string) (cty.Value, error)) function.Function {
	return function.New(&function.Spec{
		Params: []function.Parameter{{Name: "path", Type: cty.String}},
		Type:   function.StaticReturnType(result),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			path, err := homedir.Expand(args[0].AsString())
			if err != nil {
				return cty.UnknownVal(result), err
			}
			onFileRead(path)
			value, err := read(path)
			if err != nil {
				return cty.UnknownVal(result), err
			}
			return value, nil
		},
	})
}

// withCheckedAndChargedArgs returns a function that checks and charges its arguments before it runs, and that
// returns panics as errors without a stack.
func withCheckedAndChargedArgs(name string, f function.Function, budget *evaluationBudget) function.Function {
	check := argumentGuards[name]
	return function.New(&function.Spec{
		Description: f.Description(),
		Params:      f.Params(),
		VarParam:    f.VarParam(),
		Type: func(args []cty.Value) (cty.Type, error) {
			for _, arg := range args {
				if reason := budget.chargeValueAtDepth(arg, 0); reason != "" {
					return cty.NilType, errors.New(reason)
				}
			}
			if check != nil {
				if err := check(args); err != nil {
					return cty.NilType, err
				}
			}
			ty, err := f.ReturnTypeForValues(args)
			return ty, withoutStackTrace(err)
		},
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			val, err := f.Call(args)
			return val, withoutStackTrace(err)
		},
	})
}

func withoutStackTrace(err error) error {
	var panicErr function.PanicError
	if errors.As(err, &panicErr) {
		return fmt.Errorf("cannot be computed for these arguments: %v", panicErr.Value)
	}
	return err
}

func disabledFileFunction(f function.Function) function.Function {
	return function.New(&function.Spec{
		Params:   f.Params(),
		VarParam: f.VarParam(),
		Type:     func([]cty.Value) (cty.Type, error) { return cty.NilType, errFileFunctionDisabled },
		Impl:     func([]cty.Value, cty.Type) (cty.Value, error) { return cty.NilVal, errFileFunctionDisabled },
	})
}
