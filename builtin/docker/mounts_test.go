package docker

import (
	"fmt"
	"slices"
	"strings"
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
	// A container that cannot mount shares nothing: the engine itself mounts below the volume what links lead there.
	if want := []string{"/srv:/label:Z,ro,rslave"}; !slices.Equal(host.Binds, want) {
		t.Errorf("binds %q, want %q", host.Binds, want)
	}
	_, host, err = build(t, map[string]any{"volumes": list(map[string]any{"selinuxlabel": "z"})}, nil, request)
	if err != nil || !slices.Contains(host.Binds, "/srv:/ro:z,ro") || !slices.Contains(host.Binds, "/srv:/label:Z,ro,rslave") {
		t.Errorf("binds %q, %v", host.Binds, err)
	}
}

// Mounts appear on the machine only from a container whose programs can mount themselves, and only with the operator's word.
func TestSharedMounts(t *testing.T) {
	volume := func(s *sdk.StartRequest) {
		s.Mounts = []driver.Mount{{TaskPath: "/v", HostPath: "/srv", PropagationMode: "bidirectional"}}
	}
	allowAll := map[string]any{"allow_caps": []any{"all"}}
	for _, test := range []struct {
		name         string
		plugin, task map[string]any
		want         mount.Propagation
	}{
		{"default", nil, nil, mount.PropagationRSlave},
		{"all allowed capabilities", nil, map[string]any{"cap_add": []any{"all"}}, mount.PropagationRSlave},
		{"all capabilities", allowAll, map[string]any{"cap_add": []any{"ALL"}}, mount.PropagationRShared},
		{"all but one", allowAll, map[string]any{"cap_add": []any{"ALL"}, "cap_drop": []any{"cap_sys_admin"}}, mount.PropagationRSlave},
		{"one", allowAll, map[string]any{"cap_add": []any{"CAP_SYS_ADMIN"}}, mount.PropagationRShared},
		{"privileged", map[string]any{"allow_privileged": true}, map[string]any{"privileged": true}, mount.PropagationRShared},
	} {
		_, host, err := build(t, test.plugin, test.task, volume)
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		at := slices.IndexFunc(host.Mounts, func(m mount.Mount) bool { return m.Target == "/v" })
		if got := host.Mounts[at].BindOptions.Propagation; got != test.want {
			t.Errorf("%s: the volume is mounted %q, want %q", test.name, got, test.want)
		}
	}
	for _, propagation := range []string{"shared", "rshared"} {
		for name, task := range map[string]map[string]any{
			"mount":   {"mount": list(map[string]any{"type": "bind", "source": "local", "target": "/v", "bind_options": list(map[string]any{"propagation": propagation})})},
			"volumes": {"volumes": []any{"local:/v:ro," + propagation}},
		} {
			if _, _, err := build(t, nil, task, nil); err == nil || !strings.Contains(err.Error(), "allow_bidirectional") {
				t.Errorf("%s with %s: %v", name, propagation, err)
			}
			_, host, err := build(t, map[string]any{"volumes": list(map[string]any{"enabled": true})}, task, nil)
			if err != nil {
				t.Errorf("%s with %s and volumes: %v", name, propagation, err)
				continue
			}
			if text := fmt.Sprint(host.Binds, host.Mounts); strings.Contains(text, "shared") {
				t.Errorf("%s with %s is shared from a container that cannot mount: %s", name, propagation, text)
			}
		}
	}
}
