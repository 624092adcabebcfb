package device

import "testing"

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
