package supervisor

import (
	"slices"
	"testing"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/catalog"
)

func TestArbitrate(t *testing.T) {
	offer := func(e catalog.Entry, order int, name, version string) pluginOffer {
		return pluginOffer{entry: e, order: order, info: base.Info{Type: base.TypeDriver, Name: name, Version: version}}
	}
	inUse := func(c pluginOffer) pluginOffer {
		c.inUse = true
		return c
	}
	for _, tt := range []struct {
		name     string
		claimant pluginOffer
		rivals   []pluginOffer
		replaced []int
		winner   int
	}{
		{"a claimant without rivals wins", offer(external("a"), 0, "x", "1"), nil, nil, -1},
		{"a plugin of another driver is no rival", offer(external("a"), 0, "x", "1"), []pluginOffer{offer(external("b"), 1, "y", "2")}, nil, -1},
		{"a plugin that has not reported its name is no rival", offer(external("a"), 0, "x", "1"), []pluginOffer{{entry: external("x")}}, nil, -1},
		{"a hook of the same name is no rival of a driver", offer(external("a"), 0, "x", "1"),
			[]pluginOffer{{entry: external("b"), order: 1, info: base.Info{Type: base.TypeHook, Name: "x", Version: "2"}}}, nil, -1},
		{"the higher version replaces the lower", offer(external("a"), 0, "x", "1.10.0"), []pluginOffer{offer(external("b"), 1, "x", "v1.9.0")}, []int{0}, -1},
		{"the lower version loses", offer(external("b"), 1, "x", "1.9.0"), []pluginOffer{offer(external("a"), 0, "x", "1.10.0")}, nil, 0},
		{"a plugin in use is not replaced", offer(external("a"), 0, "x", "2"), []pluginOffer{inUse(offer(external("b"), 1, "x", "1"))}, nil, 0},
		{"of equal versions an external plugin replaces a builtin", offer(external("a"), 0, "x", "1"), []pluginOffer{offer(builtin("x"), 1, "x", "1")}, []int{0}, -1},
		{"of equal versions a builtin loses against an external plugin", offer(builtin("x"), 1, "x", "1"), []pluginOffer{offer(external("a"), 0, "x", "1")}, nil, 0},
		{"of equal versions the later file replaces the earlier", offer(external("b"), 1, "x", "1.0"), []pluginOffer{offer(external("a"), 0, "x", "1.0.0")}, []int{0}, -1},
		{"of versions that cannot be compared the later file wins", offer(external("a"), 0, "x", "new"), []pluginOffer{offer(external("b"), 1, "x", "1")}, nil, 0},
		{"a file without a block does not replace a builtin", offer(externalWithoutBlock("a"), 0, "x", "9"), []pluginOffer{offer(builtin("x"), 1, "x", "1")}, nil, 0},
		{"a builtin replaces a file without a block", offer(builtin("x"), 1, "x", "1"), []pluginOffer{offer(externalWithoutBlock("a"), 0, "x", "9")}, []int{0}, -1},
		{"every rival that loses is replaced", offer(external("c"), 2, "x", "3"),
			[]pluginOffer{offer(external("a"), 0, "x", "1"), offer(external("z"), 3, "y", "1"), offer(external("b"), 1, "x", "2")}, []int{0, 2}, -1},
		{"rivals before the winner are replaced", offer(external("b"), 1, "x", "2"),
			[]pluginOffer{offer(external("a"), 0, "x", "1"), offer(external("c"), 2, "x", "3")}, []int{0}, 1},
	} {
		replaced, winner := arbitrate(tt.claimant, tt.rivals)
		if !slices.Equal(replaced, tt.replaced) || winner != tt.winner {
			t.Errorf("%s: replaced %v, winner %d; want %v, %d", tt.name, replaced, winner, tt.replaced, tt.winner)
		}
	}
}
