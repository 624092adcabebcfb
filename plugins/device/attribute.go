package device

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Attribute is a property that all devices of a group have.
type Attribute struct {
	Value any    // bool, int64, float64 or string; an int is sent as int64
	Unit  string // unit of a number, one of Units; empty if the number has none
}

// ParseAttribute parses the text of an attribute, as an operator writes it in a configuration:
//
//   - "true" and "false" are a bool;
//   - a number is an int64, or a float64 with a decimal point or an exponent; a unit of [Units] can follow, with or without a
//     blank before it: "4 GiB", "1.5GHz";
//   - any other text is a string: "Tesla T4", "470.82.01".
//
// A number and a word after a blank that is no unit, such as "4 Gib", is an error that lists the units.
func ParseAttribute(text string) (Attribute, error) {
	switch text {
	case "true", "false":
		return Attribute{Value: text == "true"}, nil
	}
	trimmed := strings.TrimSpace(text)
	end := strings.LastIndexAny(trimmed, "0123456789.") + 1
	value, isNumber := parseNumber(trimmed[:end])
	if !isNumber {
		return Attribute{Value: text}, nil
	}
	a := Attribute{Value: value, Unit: strings.TrimSpace(trimmed[end:])}
	_, known := LookupUnit(a.Unit)
	switch hasBlank := len(a.Unit) < len(trimmed[end:]); {
	case a.Unit == "", known:
		return a, nil
	case hasBlank:
		return Attribute{}, fmt.Errorf("%q %w", text, a.Validate())
	}
	return Attribute{Value: text}, nil
}

// parseNumber returns an int64 or a float64, and false for a text that is no finite number.
func parseNumber(text string) (value any, ok bool) {
	if i, err := strconv.ParseInt(text, 10, 64); err == nil {
		return i, true
	}
	f, err := strconv.ParseFloat(text, 64)
	return f, err == nil && isFinite(f)
}

// String renders the attribute as in a node's attributes: the value in decimal, with the unit
// directly after it.
func (a Attribute) String() string { return fmt.Sprint(a.Value) + a.Unit }

// Validate returns an error if the value has another type, is not finite, or has a unit that
// it cannot have.
func (a Attribute) Validate() error {
	switch v := a.Value.(type) {
	case nil:
		return errors.New("has no value")
	case bool, string:
		if a.Unit != "" {
			return fmt.Errorf("has the unit %q, but only numbers have units", a.Unit)
		}
		return nil
	case float64:
		if !isFinite(v) {
			return fmt.Errorf("is %v, which is not a finite number", v)
		}
	case int, int64:
	default:
		return fmt.Errorf("has the type %T, which is neither bool, int64, float64 nor string", v)
	}
	if _, ok := LookupUnit(a.Unit); !ok && a.Unit != "" {
		return fmt.Errorf("has the unknown unit %q; the units are %s", a.Unit, strings.Join(Units(), ", "))
	}
	return nil
}

func isFinite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// Unit is a unit of an attribute. For hosts only.
type Unit struct {
	// Base is the unit to which Multiplier converts: "B", "B/s", "Hz" or "mW". Numbers are
	// comparable if their units have the same Base.
	Base       string
	Multiplier int64
}

// Units returns the names of all units that an attribute can have: those of a size, a rate, a frequency and a power, each in
// increasing order. Later versions can return more.
func Units() []string {
	units := unitsByName()
	return slices.SortedFunc(maps.Keys(units), func(a, b string) int {
		u, v := units[a], units[b]
		return cmp.Or(cmp.Compare(u.Base, v.Base), cmp.Compare(u.Multiplier, v.Multiplier), cmp.Compare(a, b))
	})
}

// LookupUnit returns the unit with a name of Units, and whether there is one. For hosts only.
func LookupUnit(name string) (Unit, bool) {
	u, ok := unitsByName()[name]
	return u, ok
}

var unitsByName = sync.OnceValue(newUnitsByName)

func newUnitsByName() map[string]Unit {
	all := map[string]Unit{
		"MHz": {"Hz", 1e6}, "GHz": {"Hz", 1e9},
		"mW": {"mW", 1}, "W": {"mW", 1e3}, "kW": {"mW", 1e6}, "MW": {"mW", 1e9}, "GW": {"mW", 1e12},
	}
	for name, multiplier := range map[string]int64{
		"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "PiB": 1 << 50, "EiB": 1 << 60,
		"kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15, "EB": 1e18,
	} {
		all[name] = Unit{"B", multiplier}
		all[name+"/s"] = Unit{"B/s", multiplier}
	}
	return all
}
