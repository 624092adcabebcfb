package volume

import (
	"reflect"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
)

func TestParseSpecification(t *testing.T) {
	want := &api.HostVolume{
		Name: "data", Namespace: "n", ID: "i", PluginID: "p", NodePool: "np", NodeID: "nid", HostPath: "/srv",
		CapacityBytes: 1, RequestedCapacityMinBytes: 1500, RequestedCapacityMaxBytes: 10 << 30,
		RequestedCapabilities: []*api.HostVolumeCapability{{AccessMode: "single-node-writer", AttachmentMode: "file-system"}, {AccessMode: "single-node-reader-only"}},
		Constraints:           []*api.Constraint{api.NewConstraint("${attr.kernel.name}", "=", "linux"), api.NewConstraint("${meta.x}", "!=", "y")},
		Parameters:            map[string]string{"a": "1", "b": "${c}"},
	}
	for name, text := range map[string]string{
		"HCL": `
type = "host"
name = "data"
namespace = "n"
id = "i"
plugin_id = "p"
node_pool = "np"
node_id = "nid"
host_path = "/srv"
capacity = 1
capacity_min = "1.5 KB"
capacity_max = "10GiB"
capability {
  access_mode = "single-node-writer"
  attachment_mode = "file-system"
}
capability { access_mode = "single-node-reader-only" }
constraint {
  attribute = "${attr.kernel.name}"
  value = "linux"
}
constraint {
  attribute = "${meta.x}"
  operator = "!="
  value = "y"
}
parameters {
  a = 1
  b = "${c}"
}
`,
		"JSON": ` {"type": "host", "name": "data", "namespace": "n", "id": "i", "plugin_id": "p", "node_pool": "np", "node_id": "nid", "host_path": "/srv",
"capacity": 1, "capacity_min": "1.5KB", "capacity_max": "10 gib",
"capability": [{"access_mode": "single-node-writer", "attachment_mode": "file-system"}, {"access_mode": "single-node-reader-only"}],
"constraint": [{"attribute": "${attr.kernel.name}", "value": "linux"}, {"attribute": "${meta.x}", "operator": "!=", "value": "y"}],
"parameters": {"a": 1, "b": "${c}"}}`,
	} {
		if got, err := parseSpecification("v", []byte(text)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for _, text := range []string{volumeExample, volumeExampleJSON} {
		if got, err := parseSpecification("v", []byte(text)); err != nil || got.PluginID != "mkdir" || got.Parameters["mode"] != "0700" {
			t.Errorf("example: %+v, %v", got, err)
		}
	}
	for text, want := range map[string]string{
		`type = "host"`:                                            "v:1,1-1: Missing required argument",
		"name = \"a\"":                                             `v: type is "": write type = "host"`,
		"name = \"a\"\ntype = \"csi\"":                             "a CSI volume is not supported",
		"name = \"a\"\ntype = \"host\"\nx = 1":                     "v:3,1-2: Unsupported argument",
		"name = \"a\"\ntype = \"host\"\ncapacity = \"-1\"":         `capacity: "-1" is not a capacity`,
		"name = \"a\"\ntype = \"host\"\ncapacity = \"9999999PiB\"": "is not a capacity",
		"name = \"a\"\ntype = \"host\"\ncapacity = []":             "capacity: ",
		"{": "v:1",
	} {
		if _, err := parseSpecification("v", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func FuzzParseSpecification(f *testing.F) {
	f.Add(volumeExample)
	f.Add(volumeExampleJSON)
	f.Add("name = \"a\"\ntype = \"host\"\ncapacity = [1]")
	f.Fuzz(func(t *testing.T, text string) {
		v, err := parseSpecification("v", []byte(text))
		if (v == nil) == (err == nil) {
			t.Errorf("%v, %v", v, err)
		}
	})
}
