package block

import (
	"fmt"
	"strings"

	"github.com/zclconf/go-cty/cty"
	ctymsgpack "github.com/zclconf/go-cty/cty/msgpack"

	"github.com/nomad-lite/nomad-lite/hclspec"
)

// Marshal encodes a config value for a plugin, in the current msgpack format with the type
// str8, with all keys, sorted. A number that is neither a 64-bit integer nor exactly a
// float64 is encoded as its decimal text.
func Marshal(v cty.Value) ([]byte, error) {
	if err := cty.Walk(v, checkMarshal); err != nil {
		return nil, err
	}
	return ctymsgpack.Marshal(v, v.Type())
}

// maxNumberBits is the maximum binary exponent of a number, because the decimal text of a
// number has all its digits.
const maxNumberBits = 4000

// checkMarshal rejects an unknown value, and a number whose decimal text would be too long.
func checkMarshal(path cty.Path, v cty.Value) (bool, error) {
	if !v.IsKnown() {
		return false, fmt.Errorf("%sthe value is not known", pathErrorPrefix(path))
	}
	if v.Type() == cty.Number && !v.IsNull() {
		f := v.AsBigFloat()
		if e := f.MantExp(nil); !f.IsInf() && (e > maxNumberBits || e < -maxNumberBits) {
			return false, fmt.Errorf("%sthe number is out of range", pathErrorPrefix(path))
		}
	}
	return true, nil
}

// pathErrorPrefix returns the name of the argument or block at the start of path, for
// errors.
func pathErrorPrefix(path cty.Path) string {
	if len(path) > 0 {
		if step, ok := path[0].(cty.GetAttrStep); ok {
			return fmt.Sprintf("%q: ", step.Name)
		}
	}
	return ""
}

// EncodeConfig decodes a config block as [Decode] does, and returns it as MessagePack. The error has the messages of all
// diagnostics.
func EncodeConfig(s *hclspec.Spec, config map[string]any, vars func() map[string]cty.Value) ([]byte, error) {
	value, diags := Decode(s, config, vars)
	if diags.HasErrors() {
		return nil, fmt.Errorf("failed to parse config: %s", strings.Join(Messages(diags), "; "))
	}
	b, err := Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("failed to encode config: %w", err)
	}
	return b, nil
}
