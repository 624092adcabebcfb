package device

import (
	"slices"
	"strings"
	"testing"
)

func TestUnitsOfOneBaseAreComparable(t *testing.T) {
	for _, c := range []struct {
		big, small string
		factor     int64
	}{{"EiB", "PiB", 1024}, {"EB", "PB", 1000}, {"GiB/s", "MiB/s", 1024}, {"GHz", "MHz", 1000}, {"W", "mW", 1000}, {"GW", "kW", 1e6}, {"kB", "KB", 1}} {
		big, ok1 := LookupUnit(c.big)
		small, ok2 := LookupUnit(c.small)
		if !ok1 || !ok2 || big.Base != small.Base || big.Multiplier != small.Multiplier*c.factor {
			t.Errorf("1 %s (%+v) is not %d %s (%+v)", c.big, big, c.factor, c.small, small)
		}
	}
	if _, ok := LookupUnit("B"); ok {
		t.Error("B is no unit of the protocol")
	}
}

func TestUnitsAreInIncreasingOrder(t *testing.T) {
	all := Units()
	if len(all) != len(unitsByName()) || !slices.Contains(all, "KiB/s") {
		t.Errorf("units are %q", all)
	}
	for i, name := range all[1:] {
		u, before := unitsByName()[name], unitsByName()[all[i]]
		if u.Base == before.Base && u.Multiplier < before.Multiplier {
			t.Errorf("%q is before %q", all[i], name)
		}
	}
}

func TestUnknownUnitListsUnits(t *testing.T) {
	err := Attribute{Value: 3, Unit: "furlong"}.Validate()
	if err == nil || !strings.Contains(err.Error(), `unknown unit "furlong"; the units are KB, kB, KiB,`) || !strings.Contains(err.Error(), "mW, W, kW") {
		t.Errorf("error is %v", err)
	}
}

func TestParseAttribute(t *testing.T) {
	for text, want := range map[string]Attribute{
		"true":                 {Value: true},
		"False":                {Value: "False"},
		"4 GiB":                {Value: int64(4), Unit: "GiB"},
		" 4GiB ":               {Value: int64(4), Unit: "GiB"},
		"-1.5 GHz":             {Value: -1.5, Unit: "GHz"},
		"1e3 kB/s":             {Value: 1000.0, Unit: "kB/s"},
		"120":                  {Value: int64(120)},
		"Tesla T4":             {Value: "Tesla T4"},
		"470.82.01":            {Value: "470.82.01"},
		"3D":                   {Value: "3D"},
		"":                     {Value: ""},
		"inf":                  {Value: "inf"},
		"1e999":                {Value: "1e999"},
		"99999999999999999999": {Value: 1e20},
	} {
		if got, err := ParseAttribute(text); got != want || err != nil {
			t.Errorf("%q is %#v, %v, want %#v", text, got, err, want)
		} else if err := got.Validate(); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	if got, err := ParseAttribute("4 Gib"); err == nil || !strings.Contains(err.Error(), `"4 Gib" has the unknown unit "Gib"; the units are `) {
		t.Errorf("an unknown unit is %v, %v", got, err)
	}
}
