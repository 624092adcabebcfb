package supervisor

import (
	"errors"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
)

// A configured plugin supersedes a builtin during the builtin's launch. Then the builtin
// reports a higher version than the catalog has.
func TestSupersededPluginIsNotRegistered(t *testing.T) {
	r := registry{ownerByKey: map[PluginKey]*managedPlugin{}, driverInfoByName: map[string]DriverInfo{}, logger: hclog.NewNullLogger()}
	r.replaceCatalogPlugins(newManagedPlugins([]catalog.Entry{builtinEntry("x"), externalEntry("a")}, nil))
	late, owner := r.plugins[0], r.plugins[1]
	s := &Supervisor{registry: r}
	if !s.UsesBuiltin("x") || s.UsesBuiltin("a") || s.UsesBuiltin("y") {
		t.Error("only x is a builtin plugin")
	}
	if external := s.ExternalPlugins(); len(external) != 1 || external[0].Name != "a" {
		t.Errorf("external plugins %+v, want a", external)
	}
	if err := r.registerOwner(owner, base.Info{Type: base.TypeDriver, Name: "x", Version: "0.2.0"}); err != nil {
		t.Fatal(err)
	}
	if err := r.registerOwner(late, base.Info{Type: base.TypeDriver, Name: "x", Version: "9.0.0"}); !errors.Is(err, errSuperseded) {
		t.Errorf("register: %v, want %v", err, errSuperseded)
	}
	if r.ownerByKey[driverKey("x")] != owner || owner.state == stateSuperseded {
		t.Errorf("the driver is served by %s, whose state is %d", r.ownerByKey[driverKey("x")].entry, owner.state)
	}
	if s.UsesBuiltin("x") {
		t.Error("the superseded builtin plugin is used")
	}
}
