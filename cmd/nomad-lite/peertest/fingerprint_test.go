package peertest

import (
	"maps"
	"testing"

	"github.com/hashicorp/nomad/api"
)

// TestFingerprintOfDriver compares the node's drivers and attributes with the fingerprints of the probes.
func TestFingerprintOfDriver(t *testing.T) {
	forEachHost(t, func(t *testing.T, h *host) {
		await(t, "an error of the driver probe_failing", func() bool { return !h.node(t).Drivers["probe_failing"].Detected })
		node := h.node(t)

		probe := node.Drivers["probe"]
		assertField(t, "base.PluginInfoResponse.type", probe != nil, true)
		assertField(t, "base.PluginInfoResponse.plugin_api_versions", probe != nil, true)
		assertField(t, "base.PluginInfoResponse.name", probe != nil, true)
		assertField(t, "drivers.FingerprintResponse.health", []bool{probe.Detected, probe.Healthy}, []bool{true, true})
		assertField(t, "drivers.FingerprintResponse.health_description", probe.HealthDescription, "Healthy")
		assertField(t, "drivers.FingerprintResponse.attributes", maps.Equal(probe.Attributes, map[string]string{
			"driver.probe.text": "some text", "driver.probe.yes": "true", "driver.probe.whole": "2048MiB", "driver.probe.broken": "1.5GHz",
		}), true)
		for _, part := range []struct{ field, attribute, value string }{
			{"structs.Attribute.string_val", "driver.probe.text", "some text"},
			{"structs.Attribute.bool_val", "driver.probe.yes", "true"},
			{"structs.Attribute.int_val", "driver.probe.whole", "2048MiB"},
			{"structs.Attribute.float_val", "driver.probe.broken", "1.5GHz"},
			{"structs.Attribute.unit", "driver.probe.broken", "1.5GHz"},
		} {
			assertField(t, part.field, node.Attributes[part.attribute], part.value)
		}

		unhealthy := node.Drivers["probe_unhealthy"]
		assertField(t, "drivers.FingerprintResponse.health", []bool{unhealthy.Detected, unhealthy.Healthy}, []bool{true, false})
		assertField(t, "drivers.FingerprintResponse.health_description", unhealthy.HealthDescription, "has a cold")

		failing := node.Drivers["probe_failing"]
		assertField(t, "drivers.FingerprintResponse.err", failing.HealthDescription, "failed to fingerprint driver")
	})
}

// node returns the node of the agent.
func (h *host) node(t testing.TB) *api.Node {
	t.Helper()
	node, _, err := h.Nodes().Info(h.nodeID, nil)
	if err != nil {
		t.Fatal(err)
	}
	return node
}
