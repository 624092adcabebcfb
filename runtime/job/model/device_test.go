package model

import (
	"testing"

	"github.com/hashicorp/nomad/api"
)

func deviceFixture() *api.NodeDeviceResource {
	return &api.NodeDeviceResource{
		Vendor: "acme", Type: "gpu", Name: "g1",
		Instances: []*api.NodeDevice{{ID: "a", Healthy: true}, {ID: "b", Healthy: true}},
		Attributes: map[string]*api.Attribute{
			"memory":  {IntVal: new(int64(2048)), Unit: "MiB"},
			"clock":   {FloatVal: new(1.5), Unit: "GHz"},
			"cores":   {IntVal: new(int64(16))},
			"ecc":     {BoolVal: new(true)},
			"driver":  {StringVal: new("396.44")},
			"codecs":  {StringVal: new("h264,av1")},
			"largest": {IntVal: new(int64(1<<62 + 1)), Unit: "GiB"},
		},
	}
}

func TestMatchesDevice(t *testing.T) {
	for request, want := range map[string]bool{
		"gpu": true, "acme/gpu": true, "acme/gpu/g1": true,
		"acme": false, "gpu/acme": false, "acme/gpu/g2": false, "other/gpu/g1": false, "acme/gpu/g1/x": false, "": false,
	} {
		if got := MatchesDevice(request, deviceFixture()); got != want {
			t.Errorf("%q matches: %v", request, got)
		}
	}
}

func TestDeviceConstraint(t *testing.T) {
	node := &NodeFacts{Class: "big", Meta: map[string]string{"least": "1 GiB"}}
	for _, c := range []struct {
		left, operand, right string
		want                 bool
	}{
		{"${device.vendor}", "=", "acme", true},
		{"${device.type}", "is", "gpu", true},
		{"${device.model}", "!=", "g1", false},
		{"${device.model}", "regexp", "^g", true},
		{"${device.attr.memory}", ">=", "2 GiB", true},
		{"${device.attr.memory}", "=", "2GiB", true},
		{"${device.attr.memory}", ">", "2 GiB", false},
		{"${device.attr.memory}", ">", "2 GB", true},
		{"${device.attr.memory}", "<", "2.1 GiB", true},
		{"${device.attr.memory}", ">=", "${meta.least}", true},
		{"${device.attr.memory}", ">", "1000", false},    // a number without a unit is not a memory size
		{"${device.attr.memory}", ">", "1 GHz", false},   // another dimension
		{"${device.attr.memory}", "!=", "1 GHz", true},   // not comparable, so not equal
		{"${device.attr.memory}", ">", "1 GiB/s", false}, // a rate
		{"${device.attr.memory}", ">", "1 parsec", false},
		{"${device.attr.memory}", ">", "much", false},
		{"${device.attr.memory}", ">", "", false},
		{"${device.attr.largest}", ">", "${device.attr.memory}", true}, // more bytes than an int64 holds
		{"${device.attr.clock}", ">", "1400 MHz", true},
		{"${device.attr.cores}", "<=", "16", true},
		{"${device.attr.cores}", ">", "9", true}, // as a number, not as a text
		{"${device.attr.cores}", "=", "16.0", true},
		{"${device.attr.ecc}", "=", "true", true},
		{"${device.attr.ecc}", "=", "false", false},
		{"${device.attr.ecc}", "<", "true", false},
		{"${device.attr.driver}", "=", "396.44", true},
		{"${device.attr.driver}", "version", ">= 390", true},
		{"${device.attr.codecs}", "set_contains", "av1, h264", true},
		{"${device.attr.codecs}", "set_contains_any", "av1,vp8", true},
		{"${device.attr.codecs}", "set_contains", "vp8", false},
		{"${device.attr.missing}", "is_set", "", false},
		{"${device.attr.missing}", "is_not_set", "", true},
		{"${device.attr.missing}", "=", "1", false},
		{"${device.attr.missing}", "!=", "1", true},
		{"${device.attr.ecc}", "is_set", "", true},
		{"${node.class}", "=", "big", true},
		{"${device.ids}", "set_contains", "a", true},
		{"${device.ids}", "set_contains", "a,c", false},
		{"${device.ids}", "set_contains_any", "a,c", true},
		{"${device.ids}", "=", "b", true},
		{"${device.ids}", "=", "c", false},
		{"${device.ids}", "!=", "a", true}, // holds for b
		{"${device.ids}", "regexp", "^b$", true},
		{"${device.attr.cores}", "distinct_hosts", "", false},
	} {
		got := DeviceGroupSatisfiesConstraint(api.NewConstraint(c.left, c.operand, c.right), deviceFixture(), node)
		if got != c.want {
			t.Errorf("%s %s %q: %v", c.left, c.operand, c.right, got)
		}
	}
}

func TestDeviceConstraintAdmitsInstances(t *testing.T) {
	for _, c := range []struct {
		operand, value string
		want           string // IDs of the admitted instances
	}{
		{"set_contains", "b", "b"}, {"set_contains_any", "b,c", "b"}, {"set_contains_all", "a,b", "ab"},
		{"=", "a", "a"}, {"!=", "a", "b"}, {"regexp", ".", "ab"},
	} {
		got := ""
		for _, d := range deviceFixture().Instances {
			if DeviceInstanceSatisfiesConstraint(api.NewConstraint("${device.ids}", c.operand, c.value), d, &NodeFacts{}) {
				got += d.ID
			}
		}
		if got != c.want {
			t.Errorf("${device.ids} %s %q admits %q, want %q", c.operand, c.value, got, c.want)
		}
	}
	if !DeviceInstanceSatisfiesConstraint(api.NewConstraint("${device.model}", "=", "other"), deviceFixture().Instances[0], &NodeFacts{}) {
		t.Error("a constraint on the group excludes an instance")
	}
}

func TestDeviceAffinityScore(t *testing.T) {
	affinity := func(value string, weight int8) *api.Affinity {
		return api.NewAffinity("${device.attr.memory}", ">=", value, weight)
	}
	for _, c := range []struct {
		name       string
		affinities []*api.Affinity
		want       float64
	}{
		{"none", nil, 0},
		{"met", []*api.Affinity{affinity("1 GiB", 50)}, 1},
		{"not met", []*api.Affinity{affinity("4 GiB", 50)}, 0},
		{"one of two", []*api.Affinity{affinity("1 GiB", 25), affinity("4 GiB", 75)}, 0.25},
		{"an aversion", []*api.Affinity{affinity("1 GiB", -100), affinity("4 GiB", 100)}, -0.5},
	} {
		if got := DeviceAffinityScore(c.affinities, deviceFixture(), &NodeFacts{}); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
