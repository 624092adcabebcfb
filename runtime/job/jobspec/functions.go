package jobspec

import (
	"errors"
	"fmt"
	"os"
	"slices"

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

// fileFunctions are the functions that read the file system. Paths are relative to the working directory,
// as in Nomad.
var fileFunctions = map[string]function.Function{
	"abspath":    filesystem.AbsPathFunc,
	"basename":   filesystem.BasenameFunc,
	"dirname":    filesystem.DirnameFunc,
	"file":       filesystem.MakeFileFunc(".", false),
	"filebase64": filesystem.MakeFileFunc(".", true),
	"fileexists": filesystem.MakeFileExistsFunc("."),
	"fileset":    filesystem.MakeFileSetFunc("."),
	"pathexpand": filesystem.PathExpandFunc,
}

//lint:ignore ST1005 Nomad's text
var errFileFunctionDisabled = errors.New("filesystem function disabled.")

// fileReaders are the functions whose argument is the path of a file.
var fileReaders = []string{"file", "filebase64", "fileexists"}

// functionTable returns the functions for one evaluation. It calls onFileRead with each path that a function reads.
func functionTable(budget *evaluationBudget, withFileFunctions bool, onFileRead func(path string)) map[string]function.Function {
	table := make(map[string]function.Function, len(pureFunctions)+len(fileFunctions))
	for name, f := range pureFunctions {
		table[name] = withCheckedAndChargedArgs(name, f, budget)
	}
	for name, f := range fileFunctions {
		switch {
		case withFileFunctions && slices.Contains(fileReaders, name):
			table[name] = withCheckedAndChargedArgs(name, readReportingFunction(f, onFileRead), budget)
		case withFileFunctions:
			table[name] = withCheckedAndChargedArgs(name, f, budget)
		default:
			table[name] = disabledFileFunction(f)
		}
	}
	return table
}

// readReportingFunction returns a function that calls onFileRead with its argument before it runs.
func readReportingFunction(f function.Function, onFileRead func(path string)) function.Function {
	return function.New(&function.Spec{
		Description: f.Description(),
		Params:      f.Params(),
		Type:        f.ReturnTypeForValues,
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			onFileRead(args[0].AsString())
			return f.Call(args)
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

// checkArgIsSmallRegularFile rejects a file that may have no end.
func checkArgIsSmallRegularFile(args []cty.Value) error {
	if !areAllKnownAndNotNull(args...) {
		return nil
	}
	path, err := homedir.Expand(args[0].AsString())
	if err != nil {
		return nil // the function returns the error of a missing file
	}
	info, err := os.Stat(path)
	switch {
	case err != nil || info.IsDir():
		return nil
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file", path)
	case info.Size() > MaxTextSize:
		return fmt.Errorf("%s has %d bytes, and the limit is %d", path, info.Size(), MaxTextSize)
	}
	return nil
}
