package supervisor

import (
	"slices"
	"testing"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
)

func TestArbitratePlugins(t *testing.T) {
	offer := func(e catalog.Entry, order int, name, version string) pluginCandidate {
		return pluginCandidate{entry: e, catalogPosition: order, info: base.Info{Type: base.TypeDriver, Name: name, Version: version}}
	}
	inUse := func(c pluginCandidate) pluginCandidate {
		c.inUse = true
		return c
	}
	for _, tt := range []struct {
		name     string
		claimant pluginCandidate
		rivals   []pluginCandidate
		replaced []int
		winner   int
	}{
		{"a claimant without rivals wins", offer(externalEntry("a"), 0, "x", "1"), nil, nil, -1},
		{"a plugin of another driver is no rival", offer(externalEntry("a"), 0, "x", "1"), []pluginCandidate{offer(externalEntry("b"), 1, "y", "2")}, nil, -1},
		{"a plugin that has not reported its name is no rival", offer(externalEntry("a"), 0, "x", "1"), []pluginCandidate{{entry: externalEntry("x")}}, nil, -1},
		{"a hook of the same name is no rival of a driver", offer(externalEntry("a"), 0, "x", "1"),
			[]pluginCandidate{{entry: externalEntry("b"), catalogPosition: 1, info: base.Info{Type: base.TypeHook, Name: "x", Version: "2"}}}, nil, -1},
		{"the higher version replaces the lower", offer(externalEntry("a"), 0, "x", "1.10.0"), []pluginCandidate{offer(externalEntry("b"), 1, "x", "v1.9.0")}, []int{0}, -1},
		{"the lower version loses", offer(externalEntry("b"), 1, "x", "1.9.0"), []pluginCandidate{offer(externalEntry("a"), 0, "x", "1.10.0")}, nil, 0},
		{"a plugin in use is not replaced", offer(externalEntry("a"), 0, "x", "2"), []pluginCandidate{inUse(offer(externalEntry("b"), 1, "x", "1"))}, nil, 0},
		{"of equal versions an external plugin replaces a builtin", offer(externalEntry("a"), 0, "x", "1"), []pluginCandidate{offer(builtinEntry("x"), 1, "x", "1")}, []int{0}, -1},
		{"of equal versions a builtin loses against an external plugin", offer(builtinEntry("x"), 1, "x", "1"), []pluginCandidate{offer(externalEntry("a"), 0, "x", "1")}, nil, 0},
		{"of equal versions the later file replaces the earlier", offer(externalEntry("b"), 1, "x", "1.0"), []pluginCandidate{offer(externalEntry("a"), 0, "x", "1.0.0")}, []int{0}, -1},
		{"of versions that cannot be compared the later file wins", offer(externalEntry("a"), 0, "x", "new"), []pluginCandidate{offer(externalEntry("b"), 1, "x", "1")}, nil, 0},
		{"a file without a block does not replace a builtin", offer(externalEntryWithoutBlock("a"), 0, "x", "9"), []pluginCandidate{offer(builtinEntry("x"), 1, "x", "1")}, nil, 0},
		{"a builtin replaces a file without a block", offer(builtinEntry("x"), 1, "x", "1"), []pluginCandidate{offer(externalEntryWithoutBlock("a"), 0, "x", "9")}, []int{0}, -1},
		{"every rival that loses is replaced", offer(externalEntry("c"), 2, "x", "3"),
			[]pluginCandidate{offer(externalEntry("a"), 0, "x", "1"), offer(externalEntry("z"), 3, "y", "1"), offer(externalEntry("b"), 1, "x", "2")}, []int{0, 2}, -1},
		{"rivals before the winner are replaced", offer(externalEntry("b"), 1, "x", "2"),
			[]pluginCandidate{offer(externalEntry("a"), 0, "x", "1"), offer(externalEntry("c"), 2, "x", "3")}, []int{0}, 1},
	} {
		replaced, winner := arbitratePlugins(tt.claimant, tt.rivals)
		if !slices.Equal(replaced, tt.replaced) || winner != tt.winner {
			t.Errorf("%s: replaced %v, winner %d; want %v, %d", tt.name, replaced, winner, tt.replaced, tt.winner)
		}
	}
}
