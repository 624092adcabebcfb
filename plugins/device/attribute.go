package device

import (
	"errors"
	"fmt"
	"math"
	"sync"
)

// Attribute is a property that all devices of a group have.
type Attribute struct {
	Value any    // bool, int64, float64 or string; an int is sent as int64
	Unit  string // unit of a number, see LookupUnit; empty if the number has none
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
		return fmt.Errorf("has the unknown unit %q", a.Unit)
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

// LookupUnit returns the unit with a name, and whether there is one. The names are "KiB" to "EiB", "kB" (or "KB") to
// "EB", each of these followed by "/s", "MHz", "GHz", and "mW" to "GW". For hosts only.
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
