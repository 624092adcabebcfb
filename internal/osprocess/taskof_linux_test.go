package osprocess

import "testing"

func TestTaskOfCgroupName(t *testing.T) {
	const allocID = "0b5a1c2d-0000-4000-8000-123456789abc"
	for name, want := range map[string]TaskEnvID{
		allocID + ".web.scope": {allocID, "web"},
		allocID + ".web":       {allocID, "web"},
		allocID + ".a.b.scope": {allocID, "a.b"},
		allocID:                {},
		"session-1.scope":      {},
		"system.slice":         {},
	} {
		if got, ok := taskOfCgroupName(name); got != want || ok != (want != TaskEnvID{}) {
			t.Errorf("%s: %v, %v; want %v", name, got, ok, want)
		}
	}
}
