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

// Fault tells its author what is wrong with the Spec of a whole block, whatever
// stands in the block. Hosts need not ask: Decode takes more than this allows, and
// tells the rest. A nil Spec has none.
func (s *Spec) Fault() (err error) {
	switch {
	case s == nil:
		return nil
	case s.kind != kindObject:
		return errors.New("it is no Object, whose parts have names")
	}
	defer func() { // see decode
		if r := recover(); r != nil {
			err = fmt.Errorf("it does not fit together: %v", r)
		}
	}()
	c := newCompiler()
	spec := c.compile(s, "config", "")
	if c.diags.HasErrors() {
		return errors.New(strings.Join(Messages(c.diags), "; "))
	}
	hcldec.ImpliedType(spec)
	return s.defaultFault("config")
}

// defaultFault finds a default that is not of the type of what it stands for.
func (s *Spec) defaultFault(path string) error {
	if s == nil {
		return nil
	}
	if s.kind == kindDefault && s.nested.kind == kindAttr && s.fallback.kind == kindLiteral {
		c := newCompiler()
		want := c.typ(s.nested, path)
		value := c.compile(s.fallback, path, "").(*hcldec.LiteralSpec).Value
		_, err := convert.Convert(value, want)
		// What a plugin reads is not converted.
		if err != nil || want.IsPrimitiveType() && !value.IsNull() && !value.Type().Equals(want) {
			return fmt.Errorf("the default of %q is %s, and its type is %s", path, s.fallback.text, s.nested.text)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(s.attributes)) {
		if err := s.attributes[key].defaultFault(path + "." + key); err != nil {
			return err
		}
	}
	for _, part := range append(slices.Clip(s.values), s.nested, s.fallback) {
		if err := part.defaultFault(path); err != nil {
			return err
		}
	}
	return nil
}
