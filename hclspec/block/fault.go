package block

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2/hcldec"
	"github.com/zclconf/go-cty/cty/convert"

	"github.com/nomad-lite/nomad-lite/hclspec"
)

// Fault returns an error if the Spec of a whole block is invalid for any content of the
// block. It is for authors of plugins. Hosts need not call it: Decode accepts some specs
// that Fault rejects, and reports errors in the others. A nil Spec is valid.
func Fault(s *hclspec.Spec) (err error) {
	switch {
	case s == nil:
		return nil
	case s.Node().Kind != hclspec.KindObject:
		return errors.New("it is no Object, whose parts have names")
	}
	defer func() { // hcldec panics if the parts of a spec are inconsistent, see decode
		if r := recover(); r != nil {
			err = fmt.Errorf("it does not fit together: %v", r)
		}
	}()
	c := compiled(s)
	if c.diags.HasErrors() {
		return errors.New(strings.Join(Messages(c.diags), "; "))
	}
	hcldec.ImpliedType(c.spec)
	return checkDefaults(s, "config")
}

// checkDefaults returns an error if the type of a default is not the type of its attribute.
func checkDefaults(spec *hclspec.Spec, path string) error {
	if spec == nil {
		return nil
	}
	s := spec.Node()
	argument, literal := s.Nested.Node(), s.Default.Node()
	if s.Kind == hclspec.KindDefault && argument.Kind == hclspec.KindAttr && literal.Kind == hclspec.KindLiteral {
		c := newCompiler()
		want := c.parseType(argument, path)
		value := c.compileSpec(s.Default, path, "").(*hcldec.LiteralSpec).Value
		_, err := convert.Convert(value, want)
		// Decode does not convert a default to the type of the attribute.
		if err != nil || want.IsPrimitiveType() && !value.IsNull() && !value.Type().Equals(want) {
			return fmt.Errorf("the default of %q is %s, and its type is %s", path, literal.Expression, argument.Expression)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(s.Attributes)) {
		if err := checkDefaults(s.Attributes[key], path+"."+key); err != nil {
			return err
		}
	}
	for _, part := range append(slices.Clip(s.Values), s.Nested, s.Default) {
		if err := checkDefaults(part, path); err != nil {
			return err
		}
	}
	return nil
}
