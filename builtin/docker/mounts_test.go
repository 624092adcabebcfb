package docker

import (
	"slices"
	"testing"

	"github.com/moby/moby/api/types/mount"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// The mounts of a host volume keep their mode. A label of SELinux comes from the volume_mount, and otherwise from the
// configuration of the plugin.
func TestHostMounts(t *testing.T) {
	request := func(s *sdk.StartRequest) {
		s.Mounts = []driver.Mount{
			{TaskPath: "/ro", HostPath: "/srv", Readonly: true, PropagationMode: "private"},
			{TaskPath: "/slave", HostPath: "/srv", PropagationMode: "host-to-task"},
			{TaskPath: "/label", HostPath: "/srv", PropagationMode: "bidirectional", SELinuxLabel: "Z", Readonly: true},
		}
	}
	_, host, err := build(t, nil, nil, request)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []mount.Mount{
		{Type: mount.TypeBind, Source: "/srv", Target: "/ro", ReadOnly: true, BindOptions: &mount.BindOptions{}},
		{Type: mount.TypeBind, Source: "/srv", Target: "/slave", BindOptions: &mount.BindOptions{Propagation: mount.PropagationRSlave}},
	} {
		if !slices.ContainsFunc(host.Mounts, func(m mount.Mount) bool {
			return m.Type == want.Type && m.Source == want.Source && m.Target == want.Target && m.ReadOnly == want.ReadOnly &&
				(m.BindOptions == nil || *m.BindOptions == *want.BindOptions)
		}) {
			t.Errorf("mounts %+v, want %+v", host.Mounts, want)
		}
	}
	if want := []string{"/srv:/label:Z,ro,rshared"}; !slices.Equal(host.Binds, want) {
		t.Errorf("binds %q, want %q", host.Binds, want)
	}
	_, host, err = build(t, map[string]any{"volumes": list(map[string]any{"selinuxlabel": "z"})}, nil, request)
	if err != nil || !slices.Contains(host.Binds, "/srv:/ro:z,ro") || !slices.Contains(host.Binds, "/srv:/label:Z,ro,rshared") {
		t.Errorf("binds %q, %v", host.Binds, err)
	}
}
