package reason

import (
	"testing"

	"github.com/hashicorp/nomad/api"
)

// The reason lists the node's detected drivers, and not the other drivers in its record.
func TestMissingDriversListsDetectedDrivers(t *testing.T) {
	t.Parallel()
	node := &api.Node{Name: "n", Drivers: map[string]*api.DriverInfo{
		"exec": {Detected: true}, "raw_exec": {Detected: true, Healthy: true}, "docker": {HealthDescription: "no Docker engine"},
	}}
	for driver, want := range map[string]string{
		"podman": `Task "t": driver "podman": node "n" does not have it; it has exec, raw_exec`,
		"docker": `Task "t": driver "docker": no Docker engine`,
	} {
		job := &api.Job{TaskGroups: []*api.TaskGroup{{Name: new("g"), Tasks: []*api.Task{{Name: "t", Driver: driver}}}}}
		if got := MissingDriverReasonsByGroup(node, job)["g"]; len(got) != 1 || got[0] != want {
			t.Errorf("%s: %q, want %q", driver, got, want)
		}
	}
}
