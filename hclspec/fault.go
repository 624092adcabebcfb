package hclspec

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2/hcldec"
	"github.com/zclconf/go-cty/cty/convert"
)

// Fault returns an error if the Spec of a whole block is invalid for any content of the
// block. It is for authors of plugins. Hosts need not call it: Decode accepts some specs
// that Fault rejects, and reports errors in the others. A nil Spec is valid.
func (s *Spec) Fault() (err error) {
	switch {
	case s == nil:
		return nil
	case s.kind != kindObject:
		return errors.New("it is no Object, whose parts have names")
	}
	defer func() { // hcldec panics if the parts of a spec are inconsistent, see decode
		if r := recover(); r != nil {
			err = fmt.Errorf("it does not fit together: %v", r)
		}
	}()
	c := s.compiled()
	if c.diags.HasErrors() {
		return errors.New(strings.Join(Messages(c.diags), "; "))
	}
	hcldec.ImpliedType(c.spec)
	return s.checkDefaults("config")
}

// checkDefaults returns an error if the type of a default is not the type of its attribute.
func (s *Spec) checkDefaults(path string) error {
	if s == nil {
		return nil
	}
	if s.kind == kindDefault && s.nested.kind == kindAttr && s.defaultSpec.kind == kindLiteral {
		c := newCompiler()
		want := c.parseType(s.nested, path)
		value := c.compileSpec(s.defaultSpec, path, "").(*hcldec.LiteralSpec).Value
		_, err := convert.Convert(value, want)
		// Decode does not convert a default to the type of the attribute.
		if err != nil || want.IsPrimitiveType() && !value.IsNull() && !value.Type().Equals(want) {
			return fmt.Errorf("the default of %q is %s, and its type is %s", path, s.defaultSpec.typeOrLiteral, s.nested.typeOrLiteral)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(s.attributes)) {
		if err := s.attributes[key].checkDefaults(path + "." + key); err != nil {
			return err
		}
	}
	for _, part := range append(slices.Clip(s.values), s.nested, s.defaultSpec) {
		if err := part.checkDefaults(path); err != nil {
			return err
		}
	}
	return nil
}
