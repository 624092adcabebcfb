package model

import (
	"slices"
	"testing"

	"github.com/hashicorp/nomad/api"
)

// The driver of each task and the mode of each network must be permitted in the namespace of the job.
func TestNamespaceCapabilities(t *testing.T) {
	driver := func(name string) string { return `used task driver "` + name + `" is not allowed in namespace "fence"` }
	mode := func(name string) string {
		return `used group network mode "` + name + `" is not allowed in namespace "fence"`
	}
	for _, c := range []struct {
		name string
		caps *api.NamespaceCapabilities
		edit func(*jobFixture)
		want []string
	}{
		{"none", nil, func(*jobFixture) {}, nil},
		{"empty lists", &api.NamespaceCapabilities{}, func(*jobFixture) {}, nil},
		{"an enabled driver", &api.NamespaceCapabilities{EnabledTaskDrivers: []string{"d"}}, func(*jobFixture) {}, nil},
		{"another driver is enabled", &api.NamespaceCapabilities{EnabledTaskDrivers: []string{"e"}}, func(*jobFixture) {}, []string{driver("d")}},
		{"an enabled driver that is disabled", &api.NamespaceCapabilities{EnabledTaskDrivers: []string{"d"}, DisabledTaskDrivers: []string{"d"}}, func(*jobFixture) {}, []string{driver("d")}},
		{"no network", &api.NamespaceCapabilities{EnabledNetworkModes: []string{"bridge"}}, func(*jobFixture) {}, nil},
		{"a network without a mode", &api.NamespaceCapabilities{DisabledNetworkModes: []string{"host"}}, func(f *jobFixture) { f.group.Networks = []*api.NetworkResource{{}} }, []string{mode("host")}},
		{"a permitted mode", &api.NamespaceCapabilities{EnabledNetworkModes: []string{"bridge"}}, func(f *jobFixture) { f.group.Networks = []*api.NetworkResource{{Mode: "bridge"}} }, nil},
		{"each task and group", &api.NamespaceCapabilities{EnabledTaskDrivers: []string{"e"}}, func(f *jobFixture) { f.addGroup("h") }, []string{driver("d"), driver("d")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newJobFixture(c.edit)
			f.job.Namespace = new("fence")
			var got []string
			for _, fault := range LeafFaults(Validate(f.job, JobLimits{}, &api.Namespace{Name: "other", Capabilities: &api.NamespaceCapabilities{DisabledTaskDrivers: []string{"d"}}}, &api.Namespace{Name: "fence", Capabilities: c.caps})) {
				got = append(got, fault.Text)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("faults %q, want %q", got, c.want)
			}
		})
	}
}
