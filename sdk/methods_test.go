package sdk

import (
	"reflect"
	"slices"
	"testing"
)

// A later version must not reject a method that a plugin of an earlier version has. So the checked names are those of version
// 0.1. An interface that is added is not checked, and its methods have a parameter of a new type: see DESIGN.md.
func TestCheckedMethodsAreThoseOfTheFirstVersion(t *testing.T) {
	for name, test := range map[string]struct {
		interfaces []reflect.Type
		want       []string
	}{
		"hook": {hookInterfaces, []string{
			"Configure", "Destroy", "Exited", "Postrun", "Poststart", "PreKill", "PreKilling", "PreTaskRestart", "Prerun", "Prestart", "SetHost",
			"Shutdown", "ShutdownAlloc", "Stop", "Update", "UpdateAlloc",
		}},
		"device": {deviceInterfaces, []string{"Configure", "Stats", "Watch"}},
		"driver": {driverInterfaces, []string{
			"Configure", "CreateNetwork", "DestroyNetwork", "Fingerprint", "Init", "Shutdown", "Sweep", "Watch",
		}},
		"task": {taskInterfaces, []string{"Attributes", "Destroy", "Exec", "Network", "Signal", "State", "Stats", "Stop"}},
	} {
		var got []string
		for _, i := range test.interfaces {
			for m := range i.Methods() {
				got = append(got, m.Name)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, test.want) {
			t.Errorf("checked methods of a %s: %q, want %q", name, got, test.want)
		}
	}
}
